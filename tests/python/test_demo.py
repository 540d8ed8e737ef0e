"""The main job as processes: PPO under torchrun equals thread ranks, and a dead rank ends the others.

Runs the built command: REKNIT_BIN, or build/cpu/bin/reknit.
"""

import json
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
from command import BINARY, needs_binary
from runs import launched, unlaunched
from safetensors.numpy import load_file

RANKS = 3

pytestmark = needs_binary

# OPT-350m's shape: a width of its own for the embeddings, norms after the sum.
CONFIG = {
    "model_type": "opt",
    "do_layer_norm_before": False,
    "hidden_size": 32,
    "word_embed_proj_dim": 16,
    "ffn_dim": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "vocab_size": 97,
    "bos_token_id": 2,
    "eos_token_id": 2,
    "pad_token_id": 1,
    "init_std": 0.1,
}
# 10 prompts do not divide by 3 ranks; the threshold of 0 shards every parameter.
FLAGS = (
    "--device cpu --global-batch 10 --batch 2 --max-prompt-seq-len 16 --max-answer-seq-len 8 "
    "--actor-learning-rate 1e-3 --critic-learning-rate 1e-3 --actor-zero-stage 3 "
    "--critic-zero-stage 3 --set zero_optimization.stage3_param_persistence_threshold=0"
).split()
TIMES = re.compile(r"_s$|^seconds$")


def clean_environment(**more):
    kept = unlaunched()
    return kept | {"OMP_NUM_THREADS": "1"} | more


def run(*command, timeout=120):
    result = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=clean_environment(),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A folder with a tiny actor and critic, and prompts as tokens of uneven length."""
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    run(BINARY, "init", "--model", folder / "config.json", "--out", folder / "actor")
    run(
        BINARY,
        "init",
        "--model",
        folder / "config.json",
        "--out",
        folder / "critic",
        "--value-head",
    )
    rows = [{"tokens": [2] + [3 + (7 * i + k) % 90 for k in range(1 + i % 9)]} for i in range(24)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def ppo(inputs, out, *more):
    command = [BINARY, "ppo", "--actor", inputs / "actor", "--critic", inputs / "critic"]
    command += ["--prompts", inputs / "prompts.jsonl", "--out", out, *FLAGS, *more]
    return [str(part) for part in command]


def metrics(out):
    file = out / "metrics.jsonl"
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def numbers(value, name=""):
    """Every number of a metrics line that is no time, by its name."""
    if isinstance(value, dict):
        parts = [numbers(v, f"{name}.{k}") for k, v in value.items() if not TIMES.search(k)]
        return {key: number for part in parts for key, number in part.items()}
    return {name: value}


def test_processes_under_torchrun_give_the_numbers_of_thread_ranks(inputs, tmp_path):
    run(*ppo(inputs, tmp_path / "threads", "--steps", 3, "--ranks", RANKS))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
    processes = ppo(inputs, tmp_path / "processes", "--steps", 3)
    result = run(*torchrun, "--nproc-per-node", RANKS, *processes)
    assert result.stdout.count("|E2E latency=") == 3  # one rank speaks

    expected, found = metrics(tmp_path / "threads"), metrics(tmp_path / "processes")
    assert [line["step"] for line in found] == [1, 2, 3]
    for a, b in zip(expected, found):
        assert numbers(b) == pytest.approx(numbers(a), abs=1e-5)
    for model in ("actor", "critic"):
        assert (tmp_path / "processes" / model / "model.safetensors").exists()


def test_the_moving_average_is_written_beside_the_actor(inputs, tmp_path):
    flags = ["--steps", 1, "--ranks", 2, "--enable-ema", "--ema-beta", 0.75]
    run(*ppo(inputs, tmp_path / "run", *flags))
    before = load_file(inputs / "actor" / "model.safetensors")
    after = load_file(tmp_path / "run" / "actor" / "model.safetensors")
    average = load_file(tmp_path / "run" / "actor_ema" / "model.safetensors")
    assert average.keys() == after.keys()
    # --global-batch is one update: one step of the recurrence.
    for name, value in before.items():
        expected = 0.75 * value + 0.25 * after[name]
        assert abs(average[name] - expected).max() < 1e-7, name
    assert any((after[name] != value).any() for name, value in before.items())


def test_a_resumed_run_has_the_moving_average_of_an_unbroken_one(inputs, tmp_path):
    flags = ["--enable-ema", "--ema-beta", 0.75, "--save-interval", 1, "--dtype", "bf16"]
    run(*ppo(inputs, tmp_path / "whole", "--steps", 3, "--ranks", 2, *flags))
    run(*ppo(inputs, tmp_path / "parts", "--steps", 1, "--ranks", 2, *flags))
    run(*ppo(inputs, tmp_path / "parts", "--steps", 3, "--ranks", 2, *flags, "--resume", "auto"))
    for name in ("actor", "actor_ema"):
        whole, parts = (
            (tmp_path / folder / name / "model.safetensors").read_bytes()
            for folder in ("whole", "parts")
        )
        assert whole == parts, name

    plain = ppo(inputs, tmp_path / "plain", "--steps", 1, "--ranks", 2, "--save-interval", 1)
    run(*plain)
    more = ppo(inputs, tmp_path / "plain", "--steps", 2, "--ranks", 2, "--resume", "auto", *flags)
    result = subprocess.run(more, capture_output=True, text=True, env=clean_environment())
    assert result.returncode == 3
    assert "holds no moving average of actor" in result.stderr


def start_ranks(command):
    """RANKS processes with the variables that torchrun sets, and no agent that would end them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return [
        subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=clean_environment(**launched(rank, RANKS, port)),
        )
        for rank in range(RANKS)
    ]


def wait_until(condition, seconds):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not so within {seconds} s"
        time.sleep(0.02)


@pytest.mark.parametrize("victim", [1, 0], ids=["a-rank", "the-rank-that-hosts-the-meeting"])
def test_when_a_process_is_killed_the_others_end_with_exit_code_4(inputs, tmp_path, victim):
    ranks = start_ranks(ppo(inputs, tmp_path / "run", "--steps", 100000, "--timeout", 20))
    try:
        wait_until(lambda: len(metrics(tmp_path / "run")) >= 1, 60)
        ranks[victim].send_signal(signal.SIGKILL)
        said = {
            rank: (process.communicate(timeout=45)[1], process.returncode)
            for rank, process in enumerate(ranks)
            if rank != victim
        }
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert {code for _, code in said.values()} == {4}, said
    errors = [text for text, _ in said.values() if "error: " in text]
    # Without the meeting place the others cannot agree on who speaks.
    assert len(errors) == (2 if victim == 0 else 1), said
    assert errors[0].count("error: ") == 1
    assert f"ranks {victim} of 3" in errors[0] or victim == 0
    assert not (tmp_path / "run" / "actor").exists()


def test_an_error_of_one_process_is_said_once_and_all_end_with_its_code(inputs, tmp_path):
    (tmp_path / "file").touch()  # no folder, which only rank 0 finds out
    ranks = start_ranks(
        ppo(inputs, tmp_path / "run", "--steps", 3, "--tensorboard", tmp_path / "file")
    )
    said = [process.communicate(timeout=60)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [2] * RANKS, said
    assert sum(text.count("error: ") for text in said) == 1, said


@pytest.mark.parametrize("victim", [1, 0], ids=["a-rank", "the-rank-that-hosts-the-meeting"])
def test_a_stopped_process_ends_the_others_at_the_timeout(inputs, tmp_path, victim):
    ranks = start_ranks(ppo(inputs, tmp_path / "run", "--steps", 100000, "--timeout", 12))
    others = [process for rank, process in enumerate(ranks) if rank != victim]
    try:
        wait_until(lambda: len(metrics(tmp_path / "run")) >= 1, 60)
        ranks[victim].send_signal(signal.SIGSTOP)
        start = time.monotonic()
        said = [process.communicate(timeout=60)[1] for process in others]
        assert time.monotonic() - start < 28
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert {process.returncode for process in others} == {4}, said
    assert any("timed out after 12 s" in text for text in said), said
