"""What stands in --out is never lost: to a second run, to --overwrite, to a damaged checkpoint.

Runs the built command: REKNIT_BIN, or build/cpu/bin/reknit.
"""

import json
import signal
import subprocess
import time

import pytest
from command import BINARY, needs_binary
from runs import unlaunched, write_tokens

pytestmark = needs_binary

SHAPE = {
    "model_type": "gpt2",
    "vocab_size": 64,
    "n_embd": 16,
    "n_layer": 1,
    "n_head": 2,
    "n_positions": 32,
    "bos_token_id": 63,
    "eos_token_id": 63,
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "config.json").write_text(json.dumps(SHAPE))
    write_tokens(folder / "text", [[(7 * i + j) % 63 for j in range(40)] for i in range(50)])
    return folder


def line(*args):
    return [str(BINARY), *map(str, args)]


def pretrain(inputs, out, *args):
    return line(
        *("pretrain", "--model", inputs / "config.json", "--data", inputs / "text"),
        *("--seq-length", 16, "--lr", "1e-3", "--device", "cpu"),
        *(
            "--split",
            "100,0,0",
            "--out",
            out,
            "--save-interval",
            2,
            *(() if "--batch" in args else ("--batch", 2)),
            *args,
        ),
    )


def done(command, code=0):
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, env=unlaunched())
    assert result.returncode == code, result.stderr
    return result.stderr


def endless(inputs, out):
    """A run that has taken its first steps."""
    run = subprocess.Popen(
        pretrain(inputs, out, "--steps", 10**6),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=unlaunched(),
    )
    deadline = time.monotonic() + 60
    while not (out / "metrics.jsonl").exists() or len(steps_of(out)) < 3:
        assert run.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    return run


def steps_of(out):
    rows = (out / "metrics.jsonl").read_text().split("\n")[:-1]  # whole lines
    return [json.loads(row)["step"] for row in rows]


def test_a_second_run_in_the_same_folder_is_refused_and_the_first_goes_on(inputs, tmp_path):
    run = endless(inputs, tmp_path)
    for more in (("--resume", "auto"), ("--overwrite",)):
        refusal = done(pretrain(inputs, tmp_path, "--steps", 4, *more), code=2)
        assert f"another run writes into --out {tmp_path}" in refusal
    run.send_signal(signal.SIGTERM)
    assert run.wait(60) == 0, run.stderr.read()
    steps = steps_of(tmp_path)
    assert steps == list(range(1, len(steps) + 1))


def test_a_run_whose_terminal_goes_away_saves_and_goes_on_later(inputs, tmp_path):
    run = endless(inputs, tmp_path)
    run.send_signal(signal.SIGHUP)
    errors = run.communicate(timeout=60)[1]
    assert run.returncode == 0 and "(SIGHUP)" in errors
    last = steps_of(tmp_path)[-1]
    resumed = done(pretrain(inputs, tmp_path, "--steps", last + 1, "--resume", "auto"))
    assert f"resumed after step {last} from" in resumed


def test_damaged_checkpoints_are_no_fresh_start(inputs, tmp_path):
    done(pretrain(inputs, tmp_path, "--steps", 6))
    before = (tmp_path / "metrics.jsonl").read_text()
    for state in tmp_path.glob("step-*/state.json"):
        state.write_text("{}")
    refusal = done(pretrain(inputs, tmp_path, "--steps", 8, "--resume", "auto"), code=3)
    assert "error: none of the 2 checkpoints in " in refusal and "help: " in refusal
    assert (tmp_path / "metrics.jsonl").read_text() == before


def test_a_resume_with_nothing_left_to_do_says_so(inputs, tmp_path):
    done(pretrain(inputs, tmp_path, "--steps", 4))
    assert "nothing is left of the 3 steps" in done(
        pretrain(inputs, tmp_path, "--steps", 3, "--resume", "auto")
    )


def test_overwrite_replaces_a_model_and_nothing_else(inputs, tmp_path):
    config = inputs / "config.json"
    make = ("init", "--model", config, "--overwrite", "--out")
    for _ in range(2):
        done(line(*make, tmp_path / "model"))
    for held in (tmp_path, tmp_path / "files"):
        (tmp_path / "files").mkdir(exist_ok=True)
        (tmp_path / "files" / "thesis.txt").write_text("years of work")
        assert "--overwrite would remove" in done(line(*make, held), code=2)
    assert (tmp_path / "files" / "thesis.txt").exists()


def test_a_resume_with_another_global_batch_says_both(inputs, tmp_path):
    done(pretrain(inputs, tmp_path, "--steps", 4))
    more = ("--steps", 6, "--ranks", 2, "--resume", "auto")
    refusal = done(pretrain(inputs, tmp_path, *more), code=2)
    assert "began with a global batch of 2, this command's is 4" in refusal
    done(pretrain(inputs, tmp_path, *more, "--global-batch-size", 2, "--batch", 1))
