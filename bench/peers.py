"""How fast is Reknit beside what people use today, on the GPUs of this machine?

Usage: ./dev bench peers [ROW...]      (without rows: all that fit this machine)
Every row runs ours and the peer one after the other on the same work, and prints one line of
a table: both figures, their ratio, and the ratio or figure that docs/results.md aims at.
Times depend on the machine and the day; the ratio is what to look at.
"""

import dataclasses
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
PEERS = ROOT / "bench" / "peers"


def opt(hidden, layers, heads, **more):
    return {
        "model_type": "opt",
        "vocab_size": 50272,
        "hidden_size": hidden,
        "word_embed_proj_dim": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "ffn_dim": 4 * hidden,
        "max_position_embeddings": 2048,
        "dropout": 0.0,
        "pad_token_id": 1,
        "bos_token_id": 2,
        "eos_token_id": 2,
        **more,
    }


def bloom(hidden, layers, heads):
    return {
        "model_type": "bloom",
        "vocab_size": 250880,
        "hidden_size": hidden,
        "n_layer": layers,
        "n_head": heads,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 3,
    }


@dataclasses.dataclass
class Row:
    work: str
    config: dict
    goal: str
    batch: int
    length: int = 0  # tokens a sequence; 0: generation of 256 after 256
    words: tuple = ()  # for bench_train
    peer_words: tuple = ()


ROWS = {
    "train-opt-1.3b": Row(
        "train OPT-1.3b, 8 x 2048", opt(2048, 24, 32), "1.27", 8, 2048, (), ("--compile",)
    ),
    "train-opt-6.7b": Row(
        "train OPT-6.7b, recomputed, 4 x 2048",
        opt(4096, 32, 32),
        "1.25",
        *(4, 2048, ("recompute",), ("--compile", "--recompute")),
    ),
    "train-bloom-1b7": Row(
        "train BLOOM-1b7, 4 x 1024", bloom(2048, 24, 16), "2.2", 4, 1024, (), ("--eager-attention",)
    ),
    "generate-opt-1.3b": Row("generate OPT-1.3b, batch 16", opt(2048, 24, 32), "1.25 ms", 16),
    "generate-opt-1.3b-64": Row("generate OPT-1.3b, batch 64", opt(2048, 24, 32), "2.3 ms", 64),
    "generate-bloom-560m": Row("generate BLOOM-560m, batch 16", bloom(1024, 24, 16), "0.65 ms", 16),
}


def output(*command):
    done = subprocess.run([*map(str, command)], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"error: {' '.join(map(str, command))} failed\n{done.stdout}{done.stderr}")
    return done.stdout


def number(pattern, text):
    return float(re.search(pattern, text).group(1))


def training(row, folder, gpus):
    ours = output(
        *("./dev", "bench", "train", folder / "config.json", gpus, row.batch, row.length),
        *row.words,
    )
    peer = output(
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", gpus, PEERS / "fsdp2_train.py", folder, row.batch, row.length),
        *row.peer_words,
    )
    rates = [number(r"(\d+) tokens/s a GPU", text) for text in (ours, peer)]
    memory = [number(r"at most ([\d.]+) GB", text) for text in (ours, peer)]
    name = "FSDP2 + compile" if "--compile" in row.peer_words else "FSDP2"
    print(
        f"| {row.work}, {gpus} GPU | {rates[0]:,.0f} tokens/s a GPU, {memory[0]} GB "
        f"| {name}: {rates[1]:,.0f}, {memory[1]} GB "
        f"| {rates[0] / rates[1]:.2f}, memory {memory[0] / memory[1]:.2f} | {row.goal} |",
        flush=True,
    )


def generation(row, folder):
    ours = output(
        *("./dev", "bench", "decode", folder / "config.json", row.batch, 256, 256, "bf16", 1, "no")
    )
    peer = output(sys.executable, PEERS / "static_generate.py", folder, row.batch)
    mine = number(r"whole ([\d.]+) ms/token", ours)
    theirs = number(r"([\d.]+) ms/token", peer)
    step = number(r"decode ([\d.]+) ms/token", ours)
    print(
        f"| {row.work} | {mine:.3f} ms/token with prefill, {step:.3f} without "
        f"| static cache + compile: {theirs:.3f} with prefill "
        f"| {theirs / mine:.2f} | {row.goal} |",
        flush=True,
    )


def main():
    names = sys.argv[1:] or list(ROWS)
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        sys.exit(f"error: no row named {unknown[0]}\nhelp: the rows are {', '.join(ROWS)}")
    if not torch.cuda.is_available():
        sys.exit("error: no usable GPU\nhelp: this table is measured on NVIDIA GPUs")
    print("| work | Reknit | peer | ratio | goal |\n|---|---|---|---|---|", flush=True)
    for name in names:
        row = ROWS[name]
        with tempfile.TemporaryDirectory() as folder:
            place = pathlib.Path(folder)
            (place / "config.json").write_text(json.dumps(row.config))
            if row.length:
                training(row, place, min(2, torch.cuda.device_count()))
            else:
                generation(row, place)


if __name__ == "__main__":
    main()
