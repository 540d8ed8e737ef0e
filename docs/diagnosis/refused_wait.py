"""A gather whose wait is refused: PyTorch alone, two processes on the CPU, a few seconds.

    python docs/diagnosis/refused_wait.py

Collectives that are started inside PyTorch's coalescing manager give back a placeholder. Rank 1
enters each gather late, so that it is visible which waits wait. See mics.md.
"""

import tempfile
import time

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

ELEMENTS = 1 << 16  # of a shard
LATE = 0.2  # seconds that rank 1 is late
OLD = -1.0


def start_gather(fulls, shards, late=LATE):
    """-> (what the last single call gave back, the manager)"""
    time.sleep(late * dist.get_rank())
    with _coalescing_manager(async_ops=True) as manager:
        for full, shard in zip(fulls, shards, strict=True):
            handle = dist.all_gather_into_tensor(full, shard, async_op=True)
    return handle, manager


def wait_as_mics_did(handle):
    try:
        handle.wait()
    except (ValueError, RuntimeError) as error:
        return str(error)
    return "no error"


def look_at_one_gather():
    shards = [torch.full((ELEMENTS,), 10.0 * i + dist.get_rank()) for i in range(3)]
    wanted = [torch.tensor([10.0 * i, 10.0 * i + 1]).repeat_interleave(ELEMENTS) for i in range(3)]
    fulls = [torch.full_like(full, OLD) for full in wanted]
    handle, manager = start_gather(fulls, shards)
    said = wait_as_mics_did(handle)
    seen = [full.clone() for full in fulls]
    manager.wait()
    old = sum(bool((full == OLD).any()) for full in seen)
    right = sum(torch.equal(*pair) for pair in zip(fulls, wanted, strict=True))
    return (
        f"the handle of a single call is a {type(handle).__name__}; its wait says: {said}\n"
        f"read then:                 {old} of 3 tensors hold what lay there before\n"
        f"read after manager.wait(): {right} of 3 tensors are right"
    )


def train(late, waits, steps=6):
    """Linear regression with weights cut over the ranks, gathered for each step -> losses"""
    rank = dist.get_rank()
    torch.manual_seed(0)
    inputs, targets = torch.randn(64, 8), torch.randn(64, 1)
    shard, full = torch.zeros(4), torch.zeros(8)
    losses = []
    for _ in range(steps):
        handle, manager = start_gather([full], [shard], late)
        if waits:
            manager.wait()
        else:
            wait_as_mics_did(handle)
        errors = inputs @ full[:, None] - targets
        losses.append(errors.square().mean().item())
        gradient = 2 * (inputs.T @ errors)[:, 0] / len(inputs)
        manager.wait()  # whatever was read above: the next step may not overtake the gather
        dist.all_reduce(gradient)
        shard -= 0.1 * gradient[4 * rank : 4 * rank + 4] / dist.get_world_size()
    return " ".join(f"{loss:.4f}" for loss in losses)


def rank_main(rank, meeting_place):
    dist.init_process_group("gloo", f"file://{meeting_place}/store", rank=rank, world_size=2)
    report = [
        f"torch {torch.__version__}",
        look_at_one_gather(),
        f"loss, waited for, nobody late:        {train(late=0, waits=True)}",
        f"loss, waited for, rank 1 late:        {train(late=LATE, waits=True)}",
        f"loss, refusal swallowed, rank 1 late: {train(late=LATE, waits=False)}",
    ]
    if rank == 0:
        print("\n".join(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(rank_main, args=(folder,), nprocs=2)
