"""Learning rates and weights that torch and transformers give, for tests/optim."""

import json
import pathlib
import sys

import torch
from transformers import get_scheduler

STEPS = 12


def rates(name: str, warmup: int, total: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    scheduler = get_scheduler(name, optimizer, num_warmup_steps=warmup, num_training_steps=total)
    values = []
    for _ in range(STEPS):
        values.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return values


def trajectory(kind: type, decay: float) -> list[list[float]]:
    weight = torch.nn.Parameter(torch.linspace(-1, 1, 5, dtype=torch.float32))
    optimizer = kind([weight], lr=0.05, betas=(0.9, 0.95), eps=1e-8, weight_decay=decay)
    weights = []
    for step in range(4):
        weight.grad = torch.cos(torch.arange(5.0) + step) + 0.5 * weight.detach()
        optimizer.step()
        weights.append(weight.detach().tolist())
    return weights


def main(folder: str) -> None:
    schedules = [
        {"name": name, "warmup": warmup, "total": total, "rates": rates(name, warmup, total)}
        for name in ("constant", "constant_with_warmup", "linear", "cosine")
        for warmup, total in ((0, 8), (3, 10), (1, 12))
    ]
    optimizers = [
        {"decoupled": kind is torch.optim.AdamW, "decay": decay, "weights": trajectory(kind, decay)}
        for kind in (torch.optim.AdamW, torch.optim.Adam)
        for decay in (0.0, 0.1)
    ]
    target = pathlib.Path(folder) / "optimizers.json"
    target.write_text(json.dumps({"schedules": schedules, "optimizers": optimizers}))


main(sys.argv[1])
