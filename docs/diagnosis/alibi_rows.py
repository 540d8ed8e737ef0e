"""The ALiBi rows that an attention kernel reads when its head offset is (rank) x (heads).

    python docs/diagnosis/alibi_rows.py

The kernel's index rule, carried out on the CPU, for a batch of 4 left-padded prompts as one rank of
a data-parallel job would see it. See bloom.md.
"""

import torch

BATCH, HEADS, KEYS = 4, 16, 512


def inputs():
    """Scores, the mask, and ALiBi as transformers builds it: a row per sequence and head."""
    torch.manual_seed(0)
    mask = torch.ones(BATCH, KEYS)
    for sequence in range(BATCH):
        mask[sequence, : KEYS // BATCH * sequence] = 0
    positions = (mask.cumsum(-1) - 1) * mask
    slopes = 2.0 ** (-8.0 * torch.arange(1, HEADS + 1) / HEADS)
    alibi = (slopes[:, None] * positions[:, None, :]).reshape(BATCH * HEADS, KEYS)
    return torch.randn(BATCH, HEADS, KEYS), (1 - mask) * -10000.0, alibi


def probabilities(scores, mask, alibi, head_offset):
    """One result per sequence; None where a row past the tensor's end would be read."""
    results = []
    for sequence in range(BATCH):
        first = sequence * HEADS + head_offset
        rows = alibi[first : first + HEADS]
        whole = len(rows) == HEADS
        results.append(
            torch.softmax(scores[sequence] + rows + mask[sequence], -1) if whole else None
        )
    return results


def main():
    scores, mask, alibi = inputs()
    right = probabilities(scores, mask, alibi, head_offset=0)
    print(f"{BATCH} sequences, {HEADS} heads: {len(alibi)} rows of {KEYS}")
    for rank in range(5):
        wrong = probabilities(scores, mask, alibi, head_offset=rank * HEADS)
        errors = [
            "past the end" if w is None else f"{(w - r).abs().max():.3f}"
            for w, r in zip(wrong, right, strict=True)
        ]
        last = (BATCH + rank) * HEADS - 1
        print(f"rank {rank}: reads up to row {last:3}; largest error: {', '.join(errors)}")


if __name__ == "__main__":
    main()
