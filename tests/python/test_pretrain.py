"""reknit pretrain from a real text: learns, resumes to the same numbers, under threads and torchrun.

Runs the built command: REKNIT_BIN, or build/cpu/bin/reknit.
"""

import json
import math
import re
import socket
import subprocess
import sys

import pytest
from command import BINARY, ROOT, needs_binary
from runs import unlaunched, write_tokens

TIMES = {"seconds", "tokens_per_s", "tflops", "peak_bytes", "comm"}

pytestmark = needs_binary

SHAPE = (
    "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --vocab-size 257 "
    "--make-vocab-size-divisible-by 1 --seq-length 32"
).split()
TRAIN = (
    "--device cpu --micro-batch-size 2 --global-batch-size 6 --lr 1e-2 --lr-decay-style cosine "
    "--lr-warmup-iters 2 --eval-iters 1 --eval-interval 4 --log-interval 2"
).split()


def run(*command, code=0, env=None):
    clean = unlaunched() | (env or {})
    result = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=240,
        env=clean | {"OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == code, result.stdout + result.stderr
    return result


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The project's own documentation, a byte a token; 256 ends a paragraph."""
    text = (ROOT / "docs" / "architecture.md").read_bytes()
    paragraphs = [part for part in text.split(b"\n\n") if part]
    prefix = tmp_path_factory.mktemp("data") / "text"
    write_tokens(prefix, [[*part, 256] for part in paragraphs])
    return prefix


def pretrain(data, out, *more):
    return [BINARY, "pretrain", *SHAPE, "--data-path", data, *TRAIN, "--save", out, *more]


def metrics(out):
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in TIMES} for line in lines]


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """8 steps at once, on 2 ranks with ZeRO-3."""
    out = tmp_path_factory.mktemp("whole") / "run"
    said = run(*pretrain(data, out, "--train-iters", 8, "--ranks", 2))
    return out, said


def test_it_learns_and_reports_as_megatron_does(whole):
    out, said = whole
    lines = metrics(out)
    assert [line["step"] for line in lines] == list(range(1, 9))
    assert lines[-1]["loss"] < lines[0]["loss"] - 0.5
    assert lines[0]["lr"] == 0 and lines[2]["lr"] == pytest.approx(1e-2)
    assert lines[-1]["tokens"] == 6 * 32
    assert "validation_loss" in lines[3] and "validation_loss" not in lines[4]
    iterations = [line for line in said.stdout.splitlines() if line.startswith(" iteration ")]
    assert len(iterations) == 4
    assert re.search(
        r"iteration +8/ +8 \| consumed samples: +48 \| consumed tokens: +1536 \| elapsed time per "
        r"iteration \(ms\): [\d.]+ \| learning rate: [\dE.+-]+ \| global batch size: +6 \| lm loss: ",
        iterations[-1],
    )
    assert "validation loss at iteration 4 | lm loss value:" in said.stdout
    comm = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])["comm"]
    assert comm["all_gather"]["count"] > 0 and comm["reduce_scatter"]["bytes"] > 0
    summary = json.loads((out / "summary.json").read_text())
    assert summary["steps"] == 8
    assert summary["validation_loss"] == lines[-1]["validation_loss"]
    assert set(summary["memory"]) == {"shards", "optimizer", "slots"}


def test_the_model_is_what_transformers_loads(whole, data):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    out, _ = whole
    model = transformers.AutoModelForCausalLM.from_pretrained(out / "model")
    model.eval()
    tokens = torch.frombuffer(bytearray(data.with_suffix(".bin").read_bytes()), dtype=torch.int16)
    batch = tokens[: 32 * 64].long().view(64, 32)
    with torch.no_grad():
        loss = model(batch, labels=batch).loss.item()
    assert loss < metrics(out)[0]["loss"] - 0.5


def test_a_resumed_run_has_the_numbers_of_one_that_was_not_interrupted(whole, data, tmp_path):
    out = tmp_path / "run"
    flags = ["--train-iters", 8, "--ranks", 2, "--save-interval", 4, "--load", out]
    first = run(*pretrain(data, out, *flags, "--exit-interval", 4))
    assert "stopped after step 4 of 8" in first.stderr + first.stdout
    run(*pretrain(data, out, *flags))
    assert metrics(out) == metrics(whole[0])
    model = (out / "model" / "model.safetensors").read_bytes()
    assert model == (whole[0] / "model" / "model.safetensors").read_bytes()


RAMP = "--start-weight-decay 0.1 --end-weight-decay 20 --weight-decay-incr-style cosine".split()


def test_a_growing_weight_decay_goes_on_where_it_was(whole, data, tmp_path):
    run(*pretrain(data, tmp_path / "whole", "--train-iters", 8, "--ranks", 2, *RAMP))
    lines = metrics(tmp_path / "whole")
    decays = [line["weight_decay"] for line in lines]
    expected = [0.1 + 19.9 * 0.5 * (1 - math.cos(math.pi * i / 8)) for i in range(8)]
    assert decays == pytest.approx(expected)
    assert "weight_decay" not in metrics(whole[0])[0]
    assert abs(lines[-1]["loss"] - metrics(whole[0])[-1]["loss"]) > 1e-3

    out = tmp_path / "run"
    flags = ["--train-iters", 8, "--ranks", 2, "--save-interval", 4, "--load", out]
    run(*pretrain(data, out, *flags, *RAMP, "--exit-interval", 4))
    other = ["--weight-decay", 0.1]
    assert "weight_decay" in run(*pretrain(data, out, *flags, *other), code=2).stderr
    run(*pretrain(data, out, *flags, *other, "--use-checkpoint-opt-param-scheduler"))
    assert metrics(out) == lines
    model = (out / "model" / "model.safetensors").read_bytes()
    assert model == (tmp_path / "whole" / "model" / "model.safetensors").read_bytes()


def test_groups_of_parameters_have_rates_and_decays_of_their_own(data, tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")

    def weights(name, *more):
        flags = ["--train-iters", 1, "--lr", 0.5, "--lr-decay-style", "constant"]
        skip = [*TRAIN[: TRAIN.index("--lr")], *TRAIN[TRAIN.index("--eval-iters") :]]
        run(BINARY, "pretrain", *SHAPE, "--data-path", data, *skip, *flags,
            "--set", "optimizer.type=SGD", "--save", tmp_path / name, *more)  # fmt: skip
        return safetensors.load_file(tmp_path / name / "model" / "model.safetensors")

    table, matrix = "transformer.wte.weight", "transformer.h.0.mlp.c_fc.weight"
    norm = "transformer.h.0.ln_1.weight"
    plain = weights("plain", "--weight-decay", 0)
    decays = weights("decays", "--weight-decay", 0.5)
    all_decay = weights("all", "--weight-decay", 0.5, "--set", "optimizer.params.decay_all=true")
    assert (decays[norm] == plain[norm]).all() and (decays[matrix] != plain[matrix]).any()
    assert (all_decay[matrix] == decays[matrix]).all()
    # New norms are ones: the decay takes 0.5 x 0.5 off each.
    assert all_decay[norm] == pytest.approx(plain[norm] - 0.25, abs=1e-6)
    frozen = weights("frozen", "--weight-decay", 0, "--decoupled-lr", 0)
    assert (frozen[matrix] == plain[matrix]).all() and (frozen[table] != plain[table]).any()


def test_a_fresh_start_forgets_the_lines_of_a_run_that_saved_nothing(data, tmp_path):
    out = tmp_path / "run"
    run(*pretrain(data, out, "--train-iters", 4))
    run(*pretrain(data, out, "--train-iters", 4, "--resume", "auto"))
    assert [line["step"] for line in metrics(out)] == [1, 2, 3, 4]


def test_another_number_of_ranks_continues_the_run_too(whole, data, tmp_path):
    out = tmp_path / "run"
    run(*pretrain(data, out, "--train-iters", 8, "--ranks", 3, "--save-interval", 3,
                  "--exit-interval", 3))  # fmt: skip
    events = ["--tensorboard-dir", tmp_path / "events"]
    run(*pretrain(data, out, "--train-iters", 8, "--save-interval", 8, "--resume", "auto", *events))
    assert len(list((tmp_path / "events").glob("events.out.tfevents.*"))) == 1
    for a, b in zip(metrics(whole[0]), metrics(out), strict=True):
        assert b == pytest.approx(a, rel=2e-5, abs=1e-6)


@pytest.mark.parametrize("shard,hierarchical", [(2, False), (4, True)])
def test_mics_trains_as_plain_zero_does(whole, data, tmp_path, shard, hierarchical):
    zero = {
        "stage": 3,
        "mics_shard_size": shard,
        "mics_hierarchical_params_gather": hierarchical,
        "stage3_param_persistence_threshold": 0,
    }
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": zero}))
    where = ["--ranks", 4, "--nodes", 2, "--deepspeed_config", tmp_path / "ds.json"]
    run(*pretrain(data, tmp_path / "run", "--train-iters", 8, *where))
    for a, b in zip(metrics(whole[0]), metrics(tmp_path / "run"), strict=True):
        assert b == pytest.approx(a, rel=2e-5, abs=1e-6)


def test_four_processes_under_torchrun_train_as_threads_do(whole, data, tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
    command = pretrain(data, tmp_path / "run", "--train-iters", 8, "--zero-stage", 3)
    run(*torchrun, "--nproc-per-node", 4, *command)
    for a, b in zip(metrics(whole[0]), metrics(tmp_path / "run"), strict=True):
        assert b == pytest.approx(a, rel=2e-5, abs=1e-6)


def held(out):
    return json.loads((out / "summary.json").read_text())["memory"]["shards"]


def test_processes_of_a_launcher_hold_their_part_and_one_alone_never_holds_it_all(data, tmp_path):
    """Public report: where the group was missing, every rank quietly held the whole model."""
    threshold = [
        "--zero-stage",
        3,
        "--set",
        "zero_optimization.stage3_param_persistence_threshold=0",
    ]
    steps = ["--train-iters", 3, *threshold]
    whole = run(*pretrain(data, tmp_path / "whole", *steps), env={"RANK": "0", "WORLD_SIZE": "1"})
    assert "warning" not in whole.stderr.lower()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
    run(*torchrun, "--nproc-per-node", 2, *pretrain(data, tmp_path / "half", *steps))
    assert held(tmp_path / "half") == pytest.approx(held(tmp_path / "whole") / 2, rel=0.05)
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    place |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    alone = pretrain(data, tmp_path / "alone", *steps, "--timeout", 2)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        place["MASTER_PORT"] = str(free.getsockname()[1])
    assert "ranks missing: 1 of 2" in run(*alone, code=4, env=place).stderr
    assert not (tmp_path / "alone" / "metrics.jsonl").exists()


WRONG = [
    (["--data-path", "/nonexistent/x"], 3, "/nonexistent/x"),
    (["--split", "0,0,0"], 2, "split"),
    (["--split", "a"], 2, "split"),
    (["--vocab-size", "200"], 3, "token"),
    (["--eod-mask-loss"], 2, "--eod-token"),
    (["--tensor-model-parallel-size", "2"], 2, "data-parallel"),
    (["--eval-iter", "3"], 2, "did you mean --eval-iters?"),
    (["--resume", "/nonexistent"], 3, "/nonexistent"),
    (["--lr-warmup-iters", "99"], 2, "warm-up"),
    (["--config", "/nonexistent/ds.json"], 3, "ds.json"),
]


@pytest.mark.parametrize(
    "flags,code,part", WRONG, ids=lambda v: str(v[0]) if isinstance(v, list) else ""
)
def test_wrong_flags_and_files_end_with_their_code(data, tmp_path, flags, code, part):
    command = [str(part) for part in pretrain(data, tmp_path / "run", "--train-iters", "4")]
    for name in flags[::2]:  # in place of the good value
        if name in command:
            at = command.index(name)
            del command[at : at + 2]
    result = run(*command, *flags, code=code)
    assert result.stderr.count("error: ") == 1
    assert part in result.stderr
    assert not (tmp_path / "run" / "model").exists()
