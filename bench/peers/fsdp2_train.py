"""The peer of bench/train.cpp: the same work in PyTorch, sharded by fully_shard (FSDP2).

Usage: torchrun --nproc-per-node GPUS bench/peers/fsdp2_train.py CONFIG_DIR MICRO_BATCH LENGTH
       [--steps N] [--compile] [--recompute] [--eager-attention]
Random weights of CONFIG_DIR/config.json, random tokens, one batch in every step; bf16 weights
and sums, fp32 masters, fused AdamW, clipping at 1.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import AutoConfig, AutoModelForCausalLM

WARM_UP = 4


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("config")
    parser.add_argument("micro_batch", type=int)
    parser.add_argument("length", type=int)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--eager-attention", action="store_true")
    return parser.parse_args()


def build(args):
    config = AutoConfig.from_pretrained(args.config)
    config.use_cache = False
    attention = "eager" if args.eager_attention else "sdpa"
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(
            config, attn_implementation=attention, dtype=torch.float32
        )
    model.train()
    if args.recompute:
        model.gradient_checkpointing_enable()
    return model


def blocks_of(model):
    """The longest list of modules: the decoder's blocks."""
    lists = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList)]
    return max(lists, key=len)


def shard(model, args):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    for block in blocks_of(model):
        if args.compile:
            block.compile()
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)


def main():
    args = arguments()
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    torch.manual_seed(0)
    model = build(args)
    shard(model, args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.0, fused=True)
    torch.manual_seed(rank + 1)
    tokens = torch.randint(
        0, model.config.vocab_size, (args.micro_batch, args.length), device="cuda"
    )
    losses = []
    for step in range(args.steps):
        if step == WARM_UP:
            torch.cuda.synchronize()
            start = time.perf_counter()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - start) / (args.steps - WARM_UP)
    if rank == 0:
        rate = args.micro_batch * args.length / seconds
        name = "fsdp2+compile" if args.compile else "fsdp2"
        print(
            f"{name:10} GPUs {dist.get_world_size()}, batch {args.micro_batch} x {args.length}: "
            f"{seconds * 1e3:.1f} ms a step, {rate:.0f} tokens/s a GPU"
        )
        print(f"memory     at most {torch.cuda.max_memory_allocated() / 1e9:.1f} GB")
        print("losses     " + " ".join(f"{x.item():.4f}" for x in losses), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
