"""Four models of models.py trained for four steps by PyTorch.

usage: strategies.py FOLDER. A folder per model as transformers saves it, and expected.json:
for each model and step the loss (mean over the tokens of the global batch) and the
gradient norm before clipping. The tokens are those of tests/support/twin_run.cpp.
"""

import json
import os
import sys

import torch
from models import CASES, randomise
from transformers import AutoModelForCausalLM

MODELS = {"opt": "opt-125m", "opt-350m": "opt-350m", "bloom": "bloom-4-heads", "gpt2": "gpt2"}
GLOBAL_BATCH = 24
STEPS = 4


def sequence(number, vocab):
    return [
        3 + (number * number * 7 + number * t * 5 + t * t * 3 + number * 11) % (vocab - 3)
        for t in range(3 + number * 7 % 6)
    ]


def batch_of(step, vocab):
    """Padded on the right, which a causal model does not see."""
    rows = [sequence(step * GLOBAL_BATCH + i, vocab) for i in range(GLOBAL_BATCH)]
    width = max(map(len, rows))
    ids = torch.full((GLOBAL_BATCH, width), 1)
    mask = torch.zeros((GLOBAL_BATCH, width), dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        mask[i, : len(row)] = 1
    return ids, mask


def train(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0)
    lines = []
    for step in range(STEPS):
        ids, mask = batch_of(step, model.config.vocab_size)
        logp = torch.log_softmax(model(input_ids=ids, attention_mask=mask).logits[:, :-1], -1)
        picked = logp.gather(2, ids[:, 1:, None])[:, :, 0]
        loss = -(picked * mask[:, 1:]).sum() / mask[:, 1:].sum()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        lines.append({"loss": loss.item(), "grad_norm": norm.item()})
    return lines


def main(out):
    torch.set_num_threads(1)
    expected = {}
    for name, case in MODELS.items():
        config = CASES[case]
        config._attn_implementation = "eager"
        model = AutoModelForCausalLM.from_config(config).eval()
        randomise(model, torch.Generator().manual_seed(77))
        model.save_pretrained(os.path.join(out, name))
        expected[name] = train(model)
    with open(os.path.join(out, "expected.json"), "w") as file:
        json.dump(expected, file)


if __name__ == "__main__":
    main(sys.argv[1])
