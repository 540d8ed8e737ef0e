"""Kills `reknit pretrain` at random moments, restarts it, and compares the end with an unbroken run.

    python tests/endurance/kill_restart.py --moments 200 --seed 1

Every restart must go on from the newest checkpoint that stood when the run was killed, and lose no
step that it holds; a run that gets to its end must have the weights and losses of the unbroken one,
bit for bit, and then begins again in an empty folder. --processes starts the ranks as processes that meet over
gloo, and kills one of them or all.
"""

import argparse
import json
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "python"))
from runs import unlaunched, write_tokens

ROOT = pathlib.Path(__file__).resolve().parents[2]
TIMES = {"seconds", "tokens_per_s", "tflops", "peak_bytes", "comm"}
MODEL = (
    "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --vocab-size 257 "
    "--make-vocab-size-divisible-by 1 --seq-length 32 --device cpu --micro-batch-size 1 "
    "--global-batch-size 4 --lr 1e-2 --eval-iters 0 --zero-stage 3 --timeout 30"
).split()


def write_data(prefix):
    """One document of 20,000 tokens."""
    write_tokens(prefix, [[(7 * i + i * i // 11) % 256 for i in range(20_000)]])


def metrics(out):
    """The whole lines of metrics.jsonl, without times."""
    file = out / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    found = [json.loads(line) for line in lines if line.endswith("\n")]
    return [{k: v for k, v in line.items() if k not in TIMES} for line in found]


def newest_step(out):
    """Of the checkpoints that have their final name; 0: there is none."""
    return max((int(p.name[5:]) for p in out.glob("step-*") if p.name[5:].isdigit()), default=0)


class Runs:
    """One folder's runs: started, killed, compared."""

    def __init__(self, binary, folder, steps, interval, ranks, processes):
        self.binary, self.folder, self.steps = binary, folder, steps
        self.interval, self.ranks, self.processes = interval, ranks, processes
        self.data = folder / "text"
        write_data(self.data)

    def start(self, out, log):
        command = [self.binary, "pretrain", *MODEL, "--data-path", self.data, "--out", out]
        command += ["--train-iters", self.steps, "--save-interval", self.interval]
        command += ["--resume", "auto"]
        clean = unlaunched() | {"OMP_NUM_THREADS": "1"}
        if not self.processes:
            places, command = [{}], [*command, "--ranks", self.ranks]
        else:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = str(probe.getsockname()[1])
            job = {"WORLD_SIZE": str(self.ranks), "LOCAL_WORLD_SIZE": str(self.ranks)}
            job |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            places = [job | {"RANK": str(r), "LOCAL_RANK": str(r)} for r in range(self.ranks)]
        return [
            subprocess.Popen(
                [str(part) for part in command],
                stdout=log,
                stderr=log,
                env=clean | place,
            )
            for place in places
        ]

    def finish(self, out):
        log = self.folder / "whole.txt"
        with log.open("w") as file:
            codes = [process.wait(timeout=600) for process in self.start(out, file)]
        assert set(codes) == {0}, log.read_text()


def end(processes, rng):
    """Kill -9 for all, or for one, whom the others must follow."""
    if len(processes) > 1 and rng.random() < 0.5:
        rng.choice(processes).send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 60
        while any(p.poll() is None for p in processes) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert all(p.poll() is not None for p in processes), "a rank outlived the killed one"
    for process in processes:
        process.kill()
        process.wait()


def endure(runs, moments, seed, say=print):
    """Returns what happened; AssertionError at the first promise that is not kept."""
    rng = random.Random(seed)
    began = time.monotonic()
    whole = runs.folder / "whole"
    start = time.monotonic()
    runs.finish(whole)
    length = time.monotonic() - start
    expected = metrics(whole)
    weights = (whole / "model" / "model.safetensors").read_bytes()
    assert [line["step"] for line in expected] == list(range(1, runs.steps + 1))
    seen = {"kills": 0, "ends": 0, "in_save": 0, "fresh": 0, "most_lost": 0, "lost": 0}
    out = runs.folder / "run"
    saved, done = 0, 0  # as the last kill left them
    while seen["kills"] < moments:
        log = runs.folder / "log.txt"
        with log.open("w") as file:
            processes = runs.start(out, file)
            until = time.monotonic() + rng.uniform(0, 0.6 * length)
            while time.monotonic() < until and any(p.poll() is None for p in processes):
                time.sleep(0.002)
            killed = any(p.poll() is None for p in processes)
            if killed:
                end(processes, rng)
        text = log.read_text()
        resumed = re.search(r"resumed after step (\d+) ", text)
        assert "error:" not in text or (killed and runs.processes), text
        assert "is not whole" not in text, text
        if resumed:
            assert int(resumed.group(1)) == saved, f"resumed after {resumed.group(1)}, not {saved}"
            lost = done - saved
            seen["most_lost"] = max(seen["most_lost"], lost)
            seen["lost"] += max(lost, 0)
        elif "fresh start" in text:
            assert saved == 0, f"a fresh start beside a checkpoint of step {saved}: {text}"
            seen["fresh"] += 1
        went_on = newest_step(out) > saved or not killed
        assert not went_on or resumed or "fresh start" in text, f"where did it begin? {text}"
        lines = metrics(out) if out.exists() else []
        assert lines == expected[: len(lines)], "the losses are not those of the unbroken run"
        saved, done = newest_step(out), max(len(lines), newest_step(out))
        if killed:
            seen["kills"] += 1
            seen["in_save"] += any(out.glob("step-*.partial-*"))
            continue
        assert [p.returncode for p in processes] == [0] * len(processes), text
        assert len(lines) == runs.steps
        assert (out / "model" / "model.safetensors").read_bytes() == weights, "other weights"
        seen["ends"] += 1
        shutil.rmtree(out)
        saved, done = 0, 0
        say(f"{seen['kills']} kills, {seen['ends']} runs to their end", flush=True)
    if out.exists():  # The last one goes on to its end too.
        runs.finish(out)
        assert metrics(out) == expected
        assert (out / "model" / "model.safetensors").read_bytes() == weights, "other weights"
        seen["ends"] += 1
    return seen | {"unbroken_s": round(length, 2), "seconds": round(time.monotonic() - began, 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--moments", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--interval", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--processes", action="store_true")
    parser.add_argument("--reknit", default=ROOT / "build" / "cpu" / "bin" / "reknit")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(
            args.reknit,
            pathlib.Path(folder),
            args.steps,
            args.interval,
            args.ranks,
            args.processes,
        )
        print(json.dumps(endure(runs, args.moments, args.seed)))


if __name__ == "__main__":
    sys.exit(main())
