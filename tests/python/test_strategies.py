"""MiCS through the command: same numbers with either gather, and sentences for what cannot be.

Runs the built command: REKNIT_BIN, or build/cpu/bin/reknit.
"""

import json
import subprocess

import pytest
from command import BINARY, needs_binary
from runs import unlaunched

CONFIG = {
    "model_type": "opt",
    "vocab_size": 50,
    "hidden_size": 16,
    "word_embed_proj_dim": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "ffn_dim": 37,
    "max_position_embeddings": 64,
    "eos_token_id": 2,
    "pad_token_id": 1,
    "init_std": 0.1,
}
MICS = (
    "--set",
    "zero_optimization.stage=3",
    "--set",
    "zero_optimization.stage3_param_persistence_threshold=0",
    "--set",
)

pytestmark = needs_binary


def reknit(*args):
    clean = unlaunched()
    return subprocess.run(
        [str(BINARY), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**clean, "OMP_NUM_THREADS": "1"},
    )


def mics(size, hierarchical=False):
    return (
        *MICS,
        f"zero_optimization.mics_shard_size={size}",
        "--set",
        f"zero_optimization.mics_hierarchical_params_gather={json.dumps(hierarchical)}",
    )


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    for name, extra in (("actor", ()), ("critic", ("--value-head",))):
        made = reknit("init", "--model", folder / "config.json", "--out", folder / name, *extra)
        assert made.returncode == 0, made.stderr
    lines = (json.dumps({"tokens": [5 + i, 6, 7 + i % 3]}) + "\n" for i in range(8))
    (folder / "prompts.jsonl").write_text("".join(lines))
    return folder


def ppo(models, *args):
    return reknit(
        *("ppo", "--actor", models / "actor", "--critic", models / "critic", "--steps", 2),
        *("--prompts", models / "prompts.jsonl", "--learning-rate", "1e-3", "--device", "cpu"),
        *("--ranks", 4, "--global-batch", 8, "--max-answer-seq-len", 4, *args),
    )


def metrics(models, tmp_path, *args):
    result = ppo(models, "--out", tmp_path, *args)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]


def test_both_gathers_give_the_same_numbers_and_only_the_staged_one_spares_the_network(
    models, tmp_path
):
    flat = metrics(models, tmp_path / "flat", "--nodes", 2, *mics(4))
    staged = metrics(models, tmp_path / "staged", "--nodes", 2, *mics(4, True))
    inside = metrics(models, tmp_path / "inside", "--nodes", 2, *mics(2))
    for a, b in zip(flat, staged, strict=True):
        for key in ("reward", "kl", "actor_loss", "critic_loss", "entropy", "actor", "critic"):
            assert a[key] == b[key]
        assert b["comm"]["all_gather"]["across"] * 2 == a["comm"]["all_gather"]["across"] > 0
    for line in inside:
        assert line["comm"]["all_gather"]["across"] == 0
        assert line["comm"]["reduce_scatter"]["across"] == 0
        assert line["comm"]["all_reduce"]["across"] > 0


@pytest.mark.parametrize(
    "nodes,settings,said",
    [
        (2, mics(3), "mics_shard_size = 3"),
        (2, mics(2, True), "the group is inside one node"),
        (1, mics(4, True), "the group is inside one node"),
        (3, mics(2), "cannot be spread evenly over 3 nodes"),
    ],
)
def test_groups_that_do_not_fit_end_with_2(models, nodes, settings, said):
    result = ppo(models, "--nodes", nodes, *settings)
    assert result.returncode == 2, result.stderr
    assert said in result.stderr


def test_check_prints_the_groups_by_rank():
    out = reknit("check", "--ranks", 8, "--nodes", 4, *mics(4, True), "--set", "train_batch_size=8")
    assert out.returncode == 0, out.stderr
    for part in ("0: 0 1 2 3\n  1: 4 5 6 7", "0: 0 4\n", "0: 0 2\n  1: 1 3\n  2: 4 6", "3: 6 7"):
        assert part in out.stdout
