"""reknit plan: what it prints, its exit codes, and that a run takes what it says."""

import json
import subprocess

import pytest
from command import BINARY, needs_binary

pytestmark = needs_binary

OPT = {
    "model_type": "opt",
    "vocab_size": 50272,
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "ffn_dim": 8192,
    "max_position_embeddings": 2048,
    "word_embed_proj_dim": 2048,
}
TINY = OPT | {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "ffn_dim": 64,
    "max_position_embeddings": 64,
    "word_embed_proj_dim": 32,
    "bos_token_id": 2,
    "eos_token_id": 2,
    "pad_token_id": 1,
}


def reknit(*args):
    return subprocess.run(
        [str(BINARY), *map(str, args)], capture_output=True, text=True, timeout=60
    )


@pytest.fixture
def config(tmp_path):
    def write(content, name="ds.json"):
        path = tmp_path / name
        path.write_text(json.dumps(content))
        return path

    return write


def plan(*args):
    return reknit("plan", *args)


def plan_json(*args):
    result = plan(*args, "--json")
    return result.returncode, json.loads(result.stdout)


def test_what_fits_ends_with_0_and_what_does_not_with_2_and_the_changes_that_help(config):
    model = config(OPT, "config.json")
    fits = plan("--model", model, "--ranks", 8, "--gpu", "h100-80g", "--batch", 8)
    assert (fits.returncode, fits.stderr) == (0, "")
    assert "fits, with" in fits.stdout
    small = ("--model", model, "--ranks", 2, "--memory", "20GB", "--batch", 8)
    tight = plan(*small)
    assert tight.returncode == 2
    assert "too much" in tight.stdout
    code, out = plan_json(*small)
    assert (code, out["fits"], out["limit_bytes"]) == (2, False, 20_000_000_000)
    assert out["options"]
    for option in out["options"]:
        assert option["total_bytes"] <= 20_000_000_000


def test_the_reports_192_ranks_and_mics_beside_zero_3(config):
    model, shape = config(OPT, "config.json"), ("--ranks", 192, "--nodes", 24)
    mics = config({"zero_optimization": {"stage": 3, "mics_shard_size": 8}})
    _, inside = plan_json("--model", model, "--config", mics, *shape)
    _, whole = plan_json("--model", model, *shape)
    assert inside["traffic"]["gathers"]["across"] == 0 < whole["traffic"]["gathers"]["across"]
    assert inside["memory"]["masters"] == pytest.approx(24 * whole["memory"]["masters"], rel=0.01)
    assert sum(whole["memory"].values()) == whole["total_bytes"]


def test_an_optimizer_with_fewer_moments_takes_less(config):
    model = config(OPT, "config.json")

    def moments(kind):
        _, out = plan_json("--model", model, "--set", f"optimizer.type={kind}", "--ranks", 8)
        return out["memory"]["moments"]

    assert moments("Lion") * 2 == moments("AdamW")
    assert moments("SGD") == 0
    assert moments("Lion") < moments("Muon") < moments("AdamW")


def test_a_sweep_lists_settings_that_fit(config):
    model = config(OPT, "config.json")
    _, out = plan_json("--model", model, "--ranks", 8, "--gpu", "a100-80g", "--sweep")
    assert len(out["sweep"]) > 10
    assert max(option["total_bytes"] for option in out["sweep"]) <= out["limit_bytes"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--memory", "80"), None),
        (("--memory", "80 GB"), "--memory 80 GB is not a number of bytes"),
        (("--link", "fast"), "write it as 400GB/s"),
        (("--gpu", "v100"), "must be one of h100-80g"),
        (("--ranks", 5, "--nodes", 2), "cannot be spread"),
        (("--set", "zero_optimization.stage=7"), "must be 3 or less"),
    ],
)
def test_wrong_machines_and_settings_end_with_2(config, flags, said):
    result = plan("--model", config(OPT, "config.json"), *flags)
    assert result.returncode == 2
    assert said is None or said in result.stderr


def test_a_missing_model_and_a_sequence_without_positions_end_with_3(config, tmp_path):
    assert plan("--model", tmp_path / "none").returncode == 3
    result = plan("--model", config(OPT, "config.json"), "--seq-length", 5000)
    assert result.returncode == 3
    assert "5000" in result.stderr


@pytest.mark.parametrize(
    "zero",
    [
        {"stage": 0},
        {"stage": 1},
        {"stage": 2},
        {"stage": 3, "stage3_param_persistence_threshold": 100},
        {"stage": 3, "mics_shard_size": 2, "stage3_param_persistence_threshold": 0},
    ],
    ids=["zero-0", "zero-1", "zero-2", "zero-3", "mics"],
)
def test_ppo_takes_what_was_planned_to_the_byte(config, tmp_path, zero):
    ranks, prompt, answer = 4, 9, 7
    settings = config({"zero_optimization": zero, "bf16": {"enabled": True}})
    made = reknit("init", "--model", config(TINY, "config.json"), "--out", tmp_path / "model")
    assert made.returncode == 0, made.stderr
    prompts = tmp_path / "prompts.jsonl"
    rows = [{"tokens": [5 + i] * prompt} for i in range(16)]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = reknit(
        *("ppo", "--actor", tmp_path / "model", "--reward", tmp_path / "model"),
        *("--prompts", prompts, "--config", settings),
        *("--allow-random-reward", "--learning-rate", 1e-4, "--device", "cpu", "--ranks", ranks),
        *("--batch", 2, "--max-answer-seq-len", answer, "--steps", 2, "--out", tmp_path / "run"),
    )
    assert run.returncode == 0, run.stderr
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    _, planned = plan_json(
        *("--model", tmp_path / "model", "--phase", "ppo", "--config", settings, "--ranks", ranks),
        *("--batch", 2, "--max-prompt-seq-len", prompt, "--max-answer-seq-len", answer),
        *("--device", "cpu"),
    )
    assert [json.loads(line)["peak_bytes"] for line in lines] == [planned["peak_bytes"]] * 2


def test_the_gpu_that_a_plan_assumes_is_printed(config):
    model = config(TINY, "config.json")
    assert "GPU h100-80g (assumed" in plan("--model", model).stdout
    named = plan("--model", model, "--gpu", "h200").stdout
    assert "GPU h200: " in named and "1 rank on 1 node" in named
    assert plan_json("--model", model, "--gpu", "h200")[1]["gpu"] == "h200"
