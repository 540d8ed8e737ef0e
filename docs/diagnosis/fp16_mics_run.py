"""The MiCS report's run in small: fp16 from scale 2^12 on real text, under ZeRO-3 and MiCS.

    python docs/diagnosis/fp16_mics_run.py [--steps 200] [--window 1000] [--out DIR]

Trains one small GPT-2 with `reknit pretrain` on one rank and on 4 ranks (2 nodes of 2) under
ZeRO-3, MiCS with flat gathers and MiCS with hierarchical ones, and fails unless all of them
have the same losses, the same loss scales and the same skipped steps. Needs a build, nothing
else. Writes DIR/fp16_mics.svg.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "python"))
from runs import unlaunched, write_tokens

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Part of every Debian, byte for byte the same.
TEXTS = [
    pathlib.Path("/usr/share/common-licenses") / name for name in ("GPL-2", "GPL-3", "Apache-2.0")
]
MODEL = (
    "--num-layers 3 --hidden-size 64 --num-attention-heads 4 --vocab-size 257 --seq-length 64 "
    "--make-vocab-size-divisible-by 1 --hidden-dropout 0 --attention-dropout 0"
).split()
TRAIN = (
    "--device cpu --batch 2 --global-batch-size 16 --lr 1e-3 --lr-decay-style constant "
    "--eval-iters 0 --split 1,0,0"
).split()

# Name, ranks, nodes, keys of zero_optimization.
RUNS = [
    ("one rank", 1, 1, {"stage": 0}),
    ("ZeRO-3", 4, 2, {"stage": 3}),
    ("MiCS, groups of 2", 4, 2, {"stage": 3, "mics_shard_size": 2}),
    ("MiCS, groups of 4, flat", 4, 2, {"stage": 3, "mics_shard_size": 4}),
    (
        "MiCS, groups of 4, hierarchical",
        4,
        2,
        {"stage": 3, "mics_shard_size": 4, "mics_hierarchical_params_gather": True},
    ),
]
# fp16 and another order of sums.
TOLERANCE = 1e-2


def write_text(prefix, texts):
    """Token files: a document a paragraph, a token a byte; 256 ends a paragraph."""
    parts = [part for text in texts for part in text.read_bytes().split(b"\n\n") if part.strip()]
    write_tokens(prefix, [[*part, 256] for part in parts])


def config(keys, window):
    return {
        "fp16": {
            "enabled": True,
            "initial_scale_power": 12,
            "loss_scale_window": window,
            "hysteresis": 2,
        },
        # One rank sums its micro-batches in fp32; so the ranks do.
        "communication_data_type": "fp32",
        # Every parameter is sharded, however small.
        "zero_optimization": keys | {"stage3_param_persistence_threshold": 0},
    }


def train(binary, folder, number, run, steps, window):
    """The lines of metrics.jsonl."""
    _, ranks, nodes, keys = run
    out = folder / f"run{number}"
    (folder / f"run{number}.json").write_text(json.dumps(config(keys, window)))
    command = [binary, "pretrain", *MODEL, *TRAIN, "--data", folder / "text", "--out", out]
    command += ["--config", folder / f"run{number}.json", "--steps", steps, "--ranks", ranks]
    command += ["--nodes", nodes]
    result = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        env=unlaunched() | {"OMP_NUM_THREADS": "1"},
    )
    if result.returncode != 0:
        sys.exit(f"{run[0]}: {result.stderr}")
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def history(lines, key):
    return [line[key] for line in lines]


def difference(lines, twin):
    """The largest difference of the loss, relative."""
    return max(abs(a["loss"] / b["loss"] - 1) for a, b in zip(lines, twin, strict=True))


def check(results):
    """What must hold; a list of what does not."""
    wrong = []
    twin = results["one rank"]
    zero3 = results["ZeRO-3"]
    for name, lines in results.items():
        if history(lines, "loss_scale") != history(twin, "loss_scale"):
            wrong.append(f"{name}: another history of the loss scale than on one rank")
        if history(lines, "skipped") != history(twin, "skipped"):
            wrong.append(f"{name}: other steps were skipped than on one rank")
        if difference(lines, twin) > TOLERANCE:
            wrong.append(f"{name}: the loss differs by {difference(lines, twin):.1e} from one rank")
        if name.startswith("MiCS, groups of 4") and history(lines, "loss") != history(
            zero3, "loss"
        ):
            wrong.append(f"{name}: not the bits of ZeRO-3, which sums in the same order")
        if not lines[-1]["loss"] < 0.9 * lines[0]["loss"]:
            wrong.append(f"{name}: does not learn")
    return wrong


def table(results):
    twin = results["one rank"]
    steps = sorted({0, 1, 2, 3, len(twin) // 2 - 1, len(twin) - 1} & set(range(len(twin))))
    rows = [["run", *(f"loss {s + 1}" for s in steps), "scale", "skipped", "difference"]]
    for name, lines in results.items():
        rows.append(
            [
                name,
                *(f"{lines[step]['loss']:.4f}" for step in steps),
                f"{lines[0]['loss_scale']:.0f} .. {lines[-1]['loss_scale']:.0f}",
                str(lines[-1]["skipped"]),
                f"{difference(lines, twin):.1e}",
            ]
        )
    rows.insert(1, ["---"] * len(rows[0]))
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


COLORS = ["#000000", "#1f77b4", "#d62728", "#2ca02c", "#ff7f0e"]
WIDTH, HEIGHT = 720, 300


def line_of(values, low, high, color, width):
    """A curve over the whole picture."""
    step = (WIDTH - 80) / max(1, len(values) - 1)
    points = " ".join(
        f"{60 + i * step:.1f},{HEIGHT - 40 - (v - low) / (high - low) * (HEIGHT - 70):.1f}"
        for i, v in enumerate(values)
    )
    return f'<polyline fill="none" stroke="{color}" stroke-width="{width}" points="{points}"/>'


def plot(results):
    """Loss over steps as SVG, the first run widest, so that equal curves lie in each other."""
    curves = {name: history(lines, "loss") for name, lines in results.items()}
    low = min(min(values) for values in curves.values())
    high = max(max(values) for values in curves.values())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<path d="M60 20V{HEIGHT - 40}H{WIDTH - 20}" fill="none" stroke="#888"/>',
    ]
    for share in (0, 0.5, 1):
        y = HEIGHT - 40 - share * (HEIGHT - 70)
        parts.append(f'<text x="20" y="{y + 4:.0f}">{low + share * (high - low):.2f}</text>')
    steps = len(next(iter(curves.values())))
    parts.append(f'<text x="60" y="{HEIGHT - 22}">1</text>')
    parts.append(f'<text x="{WIDTH - 44}" y="{HEIGHT - 22}">{steps}</text>')
    parts.append(f'<text x="{WIDTH // 2 - 40}" y="{HEIGHT - 8}">loss over steps</text>')
    for i, (name, values) in enumerate(curves.items()):
        width = 1 + 1.6 * (len(curves) - 1 - i)
        parts.append(line_of(values, low, high, COLORS[i], width))
        y = 34 + 18 * i
        parts.append(
            f'<path d="M{WIDTH - 260} {y - 4}h24" stroke="{COLORS[i]}" stroke-width="{width}"/>'
            f'<text x="{WIDTH - 228}" y="{y}">{name}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--window", type=int, default=1000, help="loss_scale_window")
    parser.add_argument("--text", type=pathlib.Path, nargs="*", default=TEXTS)
    parser.add_argument("--out", type=pathlib.Path, help="for fp16_mics.svg")
    parser.add_argument(
        "--reknit", default=os.environ.get("REKNIT_BIN", ROOT / "build" / "cpu" / "bin" / "reknit")
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_text(folder / "text", options.text)
        results = {
            run[0]: train(options.reknit, folder, i, run, options.steps, options.window)
            for i, run in enumerate(RUNS)
        }
    print(table(results))
    if options.out:
        (options.out / "fp16_mics.svg").write_text(plot(results))
    wrong = check(results)
    print("\n".join(wrong) or "the same losses, scales and skipped steps")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
