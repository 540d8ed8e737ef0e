"""The peer of bench/decode.cpp: transformers' generate() with a static cache, compiled.

Usage: bench/peers/static_generate.py CONFIG_DIR BATCH [PROMPT 256] [NEW 256]
Random weights of CONFIG_DIR/config.json in bf16, random prompts, sampling at temperature 1. The first calls
compile; the fastest of the later ones counts.
"""

import sys
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM

WARM_UP, TIMED = 2, 2


def main():
    folder, batch = sys.argv[1], int(sys.argv[2])
    prompt, new = (int(x) for x in (sys.argv[3:] + ["256", "256"])[:2])
    config = AutoConfig.from_pretrained(folder)
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    tokens = torch.randint(10, 1000, (batch, prompt), device="cuda")
    options = {
        "attention_mask": torch.ones_like(tokens),
        "max_new_tokens": new,
        "min_new_tokens": new,
        "do_sample": True,
        "pad_token_id": 1,
        "cache_implementation": "static",
    }
    times = []
    with torch.no_grad():
        for _ in range(WARM_UP + TIMED):
            torch.cuda.synchronize()
            start = time.perf_counter()
            model.generate(tokens, **options)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
    best = min(times[WARM_UP:])
    print(f"transformers, static cache, compiled: batch {batch}, {best / new * 1e3:.3f} ms/token")


if __name__ == "__main__":
    main()
