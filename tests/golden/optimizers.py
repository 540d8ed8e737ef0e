"""Learning rates and weights that torch and transformers give, for tests/optim."""

import json
import pathlib
import sys

import torch
from transformers import get_scheduler

STEPS = 12
SHAPES = {
    "embed.weight": (5, 4),
    "block.wide.weight": (3, 7),
    "block.tall.weight": (9, 4),
    "block.square.weight": (6, 6),
    "block.norm.weight": (7,),
    "block.bias": (1,),
}


def rates(name: str, warmup: int, total: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    scheduler = get_scheduler(name, optimizer, num_warmup_steps=warmup, num_training_steps=total)
    values = []
    for _ in range(STEPS):
        values.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return values


class Lion:
    """Chen et al. 2023, algorithm 2."""

    def __init__(self, groups, betas):
        self.groups, self.betas = groups, betas
        self.mean = {p: torch.zeros_like(p) for g in groups for p in g["params"]}

    def step(self):
        one, two = self.betas
        for group in self.groups:
            for p in group["params"]:
                sign = (one * self.mean[p] + (1 - one) * p.grad).sign()
                p.data -= group["lr"] * (sign + group["weight_decay"] * p.data)
                self.mean[p] = two * self.mean[p] + (1 - two) * p.grad


class Lamb:
    """You et al. 2020, algorithm 2, the ratio of norms kept between two bounds."""

    def __init__(self, groups, betas, eps, bounds):
        self.groups, self.betas, self.eps, self.bounds = groups, betas, eps, bounds
        self.steps = 0
        self.m = {p: torch.zeros_like(p) for g in groups for p in g["params"]}
        self.v = {p: torch.zeros_like(p) for g in groups for p in g["params"]}

    def step(self):
        self.steps += 1
        one, two = self.betas
        for group in self.groups:
            for p in group["params"]:
                self.m[p] = one * self.m[p] + (1 - one) * p.grad
                self.v[p] = two * self.v[p] + (1 - two) * p.grad**2
                m = self.m[p] / (1 - one**self.steps)
                v = self.v[p] / (1 - two**self.steps)
                direction = m / (v.sqrt() + self.eps) + group["weight_decay"] * p.data
                ratio = torch.clamp(p.data.norm() / direction.norm(), *self.bounds)
                if p.data.norm() == 0 or direction.norm() == 0:
                    ratio = 1.0
                p.data -= group["lr"] * ratio * direction


class Both:
    def __init__(self, *optimizers):
        self.optimizers = optimizers

    def step(self):
        for optimizer in self.optimizers:
            optimizer.step()


def groups(weights, decay):
    plain = [p for p in weights.values() if p.ndim == 1]
    decayed = [p for p in weights.values() if p.ndim == 2]
    lr = 0.05
    return [
        {"params": decayed, "lr": lr, "weight_decay": decay},
        {"params": plain, "lr": lr, "weight_decay": 0.0},
    ]


def muon(weights, **settings):
    matrices = [p for n, p in weights.items() if p.ndim == 2 and "embed" not in n]
    others = {n: p for n, p in weights.items() if p.ndim == 1 or "embed" in n}
    adam = torch.optim.AdamW(groups(others, 0.1), betas=(0.9, 0.95), eps=1e-10)
    return Both(torch.optim.Muon(matrices, lr=0.02, weight_decay=0.1, **settings), adam)


OPTIMIZERS = {
    "adam": lambda w: torch.optim.Adam(groups(w, 0.1), betas=(0.9, 0.95)),
    "adamw": lambda w: torch.optim.AdamW(groups(w, 0.1), betas=(0.9, 0.95)),
    "adagrad": lambda w: torch.optim.Adagrad(
        groups(w, 0.1), lr_decay=0.1, initial_accumulator_value=0.5, eps=1e-6
    ),
    "sgd": lambda w: torch.optim.SGD(groups(w, 0.1)),
    "sgd_momentum": lambda w: torch.optim.SGD(groups(w, 0.1), momentum=0.8, dampening=0.3),
    "sgd_nesterov": lambda w: torch.optim.SGD(groups(w, 0.1), momentum=0.8, nesterov=True),
    "lion": lambda w: Lion(groups(w, 0.1), (0.9, 0.99)),
    "lamb": lambda w: Lamb(groups(w, 0.1), (0.9, 0.95), 1e-8, (0.01, 10.0)),
    "lamb_bounded": lambda w: Lamb(groups(w, 0.1), (0.9, 0.95), 1e-8, (0.3, 0.6)),
    "muon": lambda w: muon(w),
    "muon_plain": lambda w: muon(w, nesterov=False, adjust_lr_fn="match_rms_adamw"),
}


def trajectory(make) -> list[list[list[float]]]:
    weights = {}
    for number, (name, shape) in enumerate(SHAPES.items()):
        numbers = torch.arange(torch.Size(shape).numel(), dtype=torch.float32)
        weights[name] = torch.nn.Parameter(torch.sin(numbers * 0.37 + number).view(shape))
    optimizer = make(weights)
    steps = []
    for step in range(5):
        for p in weights.values():
            numbers = torch.arange(p.numel(), dtype=torch.float32).view(p.shape)
            p.grad = torch.cos(numbers * 0.7 + 3 * step) + 0.25 * p.detach()
        optimizer.step()
        steps.append([p.detach().flatten().tolist() for p in weights.values()])
    return steps


def main(folder: str) -> None:
    schedules = [
        {"name": name, "warmup": warmup, "total": total, "rates": rates(name, warmup, total)}
        for name in ("constant", "constant_with_warmup", "linear", "cosine")
        for warmup, total in ((0, 8), (3, 10), (1, 12))
    ]
    optimizers = {name: trajectory(make) for name, make in OPTIMIZERS.items()}
    target = pathlib.Path(folder) / "optimizers.json"
    target.write_text(json.dumps({"schedules": schedules, "optimizers": optimizers}))


main(sys.argv[1])
