"""The communication log and --trace of the running commands.

Runs the built command: REKNIT_BIN, or build/cpu/bin/reknit.
"""

import json
import signal
import subprocess
import sys
import time

import pytest
from command import BINARY, needs_binary
from runs import unlaunched, write_tokens
from test_pretrain import SHAPE

pytestmark = needs_binary

TRAIN = "--device cpu --batch 1 --global-batch-size 4 --lr 1e-3 --eval-iters 0".split()
SHARDED = ["--set", "zero_optimization.stage3_param_persistence_threshold=0"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    prefix = tmp_path_factory.mktemp("data") / "text"
    write_tokens(prefix, [[(7 * i + j) % 256 for j in range(90)] + [256] for i in range(40)])
    return prefix


def command(data, *more, before=()):
    parts = [*before, BINARY, "pretrain", *SHAPE, "--data", data, *TRAIN, *SHARDED, *more]
    return [str(part) for part in parts]


def run(line, code=0):
    environment = unlaunched() | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(line, capture_output=True, text=True, timeout=240, env=environment)
    assert result.returncode == code, result.stdout + result.stderr
    return result


def spans(path):
    """{(rank, row): [(label, begin, end)]}, and all events."""
    trace = json.loads(path.read_text())
    rows = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in trace["traceEvents"]
        if event["name"] == "thread_name"
    }
    found = {}
    for event in trace["traceEvents"]:
        if event["ph"] in ("X", "i"):
            end = event["ts"] + event.get("dur", 0)
            key = (event["pid"], rows[event["pid"], event["tid"]])
            found.setdefault(key, []).append((event["name"], event["ts"], end))
    return found


@pytest.fixture(scope="module")
def logged(data, tmp_path_factory):
    """3 steps on 2 ranks with the log and a trace."""
    folder = tmp_path_factory.mktemp("logged")
    out, trace = folder / "run", folder / "trace.json"
    log = ["--set", "comms_logger.enabled=true", "--trace", trace]
    said = run(command(data, "--ranks", 2, "--steps", 3, "--out", out, *log))
    return out, trace, said


def test_the_log_adds_times_and_bandwidths_to_the_metrics(logged):
    out, _, _ = logged
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 3
    for line in lines:
        for operation in ("all_gather", "reduce_scatter", "all_reduce"):
            entry = line["comm"][operation]
            assert entry["count"] > 0 and entry["bytes"] > 0
            assert 0 < entry["seconds"] < line["seconds"] + 1
            assert 0 <= entry["waiting_s"] <= entry["seconds"]
            assert entry["algbw"] > 0
        gather = line["comm"]["all_gather"]
        assert gather["busbw"] == pytest.approx(gather["algbw"] / 2)
        assert line["straggler"]["rank"] in (0, 1)


def test_the_table_has_every_operation_by_size_and_every_rank(logged):
    out, _, said = logged
    summary = json.loads((out / "summary.json").read_text())["comm"]
    assert {row["operation"] for row in summary["operations"]} >= {"all_gather", "reduce_scatter"}
    assert len(summary["ranks"]) == 2
    assert "busbw GB/s" in said.stdout and "came last" in said.stdout


def test_the_trace_shows_the_life_of_every_group_on_every_rank(logged):
    _, trace, _ = logged
    found = spans(trace)
    for rank in (0, 1):
        groups = [row for pid, row in found if pid == rank and row.startswith("model/")]
        assert len(groups) >= 3
        for group in groups:
            labels = [label for label, _, _ in found[rank, group]]
            assert labels.count("updated") == 3
            states = [label for label in labels if label != "updated"]
            assert states[::2] == ["gathering"] * (len(states) // 2)
            assert states[1::2] == ["gathered"] * (len(states) // 2)
        assert [label for label, _, _ in found[rank, "steps"]] == ["step"] * 3
        gathers = [s for s in found[rank, "collectives gather.0"] if s[0] == "all_gather"]
        assert len(gathers) == sum(
            label == "gathering" for row in groups for label, _, _ in found[rank, row]
        )
        for row in found:
            ends = [end for _, _, end in found[row]]
            assert all(begin >= end - 1 for (_, begin, _), end in zip(found[row][1:], ends))


def test_operations_can_be_chosen_and_printed_one_by_one(data, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            {
                "steps_per_print": 1,
                "zero_optimization": {"stage": 3},
                "comms_logger": {
                    "enabled": True,
                    "verbose": True,
                    "debug": True,
                    "prof_all": False,
                    "prof_ops": ["reduce_scatter_tensor"],
                },
            }
        )
    )
    said = run(command(data, "--ranks", 2, "--steps", 2, "--config", config)).stdout
    lines = [line for line in said.splitlines() if line.startswith("comm: ")]
    assert lines and all("reduce_scatter" in line and "(reduce.0 #" in line for line in lines)
    assert said.count("busbw GB/s") == 2
    assert "all_gather " not in said


def test_a_misspelt_operation_is_refused(data):
    log = ["--set", 'comms_logger.prof_ops=["all_gathr"]']
    assert "each must be one of all_gather|" in run(command(data, "--steps", 1, *log), 2).stderr


def test_launched_processes_write_a_trace_each(data, tmp_path):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
    launch += ["--nproc-per-node", "2"]
    trace = tmp_path / "trace.json"
    run(command(data, "--steps", 1, "--trace", trace, before=launch))
    assert {rank for rank, _ in spans(trace)} == {0}
    assert {rank for rank, _ in spans(tmp_path / "trace.1.json")} == {1}


def test_a_run_that_fails_leaves_its_trace(data, tmp_path):
    trace, out = tmp_path / "trace.json", tmp_path / "run"
    scale = ["--dtype", "fp16", "--set", "fp16.initial_scale_power=80"]
    scale += ["--set", "fp16.min_loss_scale=1e20"]
    run(command(data, "--steps", 50, "--ranks", 2, "--trace", trace, "--out", out, *scale), 5)
    assert len({rank for rank, _ in spans(trace)}) == 2


def test_a_run_that_is_stopped_leaves_its_trace(data, tmp_path):
    trace, out = tmp_path / "trace.json", tmp_path / "run"
    line = command(data, "--steps", 10**6, "--ranks", 2, "--trace", trace, "--out", out)
    job = subprocess.Popen(line, env=unlaunched(), stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not (out / "metrics.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(0.5)
        job.send_signal(signal.SIGINT)
        assert job.wait(60) == 0
    finally:
        job.kill()
    assert "updated" in {label for row in spans(trace).values() for label, _, _ in row}


def test_a_trace_that_cannot_be_written_is_refused_before_the_run(data, tmp_path):
    trace = tmp_path / "nowhere" / "trace.json"
    assert "--trace" in run(command(data, "--steps", 1, "--trace", trace), 2).stderr


def test_generation_shows_pinned_groups(tmp_path):
    config = {"model_type": "gpt2", "n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 32}
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 64}))
    model, prompts, trace = tmp_path / "model", tmp_path / "prompts.jsonl", tmp_path / "trace.json"
    prompts.write_text('{"tokens": [1, 2, 3]}\n' * 2)
    run([str(part) for part in [BINARY, "init", "--model", tmp_path, "--out", model]])
    generate = [BINARY, "generate", "--model", model, "--prompts", prompts, *SHARDED]
    generate += ["--max-new-tokens", 4, "--ranks", 2, "--device", "cpu", "--trace", trace]
    run([str(part) for part in generate])
    found = spans(trace)
    groups = [labels for (_, row), labels in found.items() if not row.startswith("collectives")]
    assert groups and all("pinned" in [label for label, _, _ in labels] for labels in groups)
