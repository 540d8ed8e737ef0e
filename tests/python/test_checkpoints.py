"""Checkpoints of whole runs: written in the background, exported, killed at any moment.

Runs the built command: REKNIT_BIN, or build/cpu/bin/reknit.
"""

import importlib.util
import json
import shutil
import subprocess

import pytest
from command import BINARY, ROOT, needs_binary
from runs import byte_level_tokenizer, unlaunched

pytestmark = needs_binary

spec = importlib.util.spec_from_file_location(
    "kill_restart", ROOT / "tests" / "endurance" / "kill_restart.py"
)
kill_restart = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kill_restart)

OPT = {
    "model_type": "opt",
    "vocab_size": 96,
    "hidden_size": 32,
    "word_embed_proj_dim": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "ffn_dim": 64,
    "max_position_embeddings": 64,
    "do_layer_norm_before": True,
    "bos_token_id": 2,
    "eos_token_id": 2,
    "pad_token_id": 1,
}
TOKENIZER = byte_level_tokenizer(
    {"</s>": 0, "<pad>": 1, "a": 2, "b": 3, "ab": 4}, ["</s>", "<pad>"], [["a", "b"]]
)


def reknit(*args, code=0, **more):
    result = subprocess.run(
        [str(BINARY), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=240,
        env=unlaunched() | {"OMP_NUM_THREADS": "1"},
        **more,
    )
    assert result.returncode == code, result.stdout + result.stderr
    return result


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    prefix = tmp_path_factory.mktemp("data") / "text"
    kill_restart.write_data(prefix)
    return prefix


def pretrain(data, out, *more):
    flags = ["--data-path", data, "--out", out, *more]
    return reknit("pretrain", *kill_restart.MODEL, *flags)


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """6 steps on 3 ranks, saved every 2."""
    out = tmp_path_factory.mktemp("trained") / "run"
    pretrain(data, out, "--ranks", 3, "--train-iters", 6, "--save-interval", 2, "--keep", 3)
    return out


def test_checkpoints_in_the_background_hold_what_waiting_ones_hold(trained, data, tmp_path):
    out = tmp_path / "run"
    flags = ["--ranks", 3, "--train-iters", 6, "--save-interval", 2, "--keep", 3]
    pretrain(data, out, *flags, "--sync-save")
    for step in (2, 4, 6):
        folder = f"step-{step:06}"
        a, b = (json.loads((run / folder / "complete.json").read_text()) for run in (out, trained))
        assert a["files"] == b["files"] and a["serial"] == b["serial"]
    assert not list(trained.glob("*.partial-*"))


@pytest.mark.parametrize("ranks,stage", [(1, 0), (2, 1), (3, 2), (4, 3)])
def test_an_export_is_the_model_that_the_run_writes(data, tmp_path, ranks, stage):
    out = tmp_path / "run"
    flags = ["--ranks", ranks, "--train-iters", 2, "--save-interval", 2]
    at = kill_restart.MODEL.index("--zero-stage")
    model = [*kill_restart.MODEL[:at], "--zero-stage", stage, *kill_restart.MODEL[at + 2 :]]
    reknit("pretrain", *model, "--data-path", data, "--out", out, *flags)
    said = reknit("export", out, "--out", tmp_path / "exported").stdout
    assert "model of step 2" in said
    assert weights(tmp_path / "exported") == weights(out / "model")
    a, b = (json.loads((f / "config.json").read_text()) for f in (tmp_path / "exported", out / "model"))  # fmt: skip
    assert a == b


def test_an_export_loads_in_transformers_and_has_the_dtype_that_was_asked_for(trained, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    shutil.copytree(trained / "step-000004", tmp_path / "moved")
    reknit("export", tmp_path / "moved", "--out", tmp_path / "half", "--dtype", "bf16")
    reknit("export", tmp_path / "moved", "--out", tmp_path / "whole")
    half, whole = (
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / name, dtype="auto")
        for name in ("half", "whole")
    )
    assert half.dtype == torch.bfloat16 and whole.dtype == torch.float32
    for (name, a), b in zip(half.state_dict().items(), whole.state_dict().values(), strict=True):
        assert torch.equal(a, b.to(torch.bfloat16)), name


@pytest.fixture(scope="module")
def ppo_run(tmp_path_factory):
    """A step of PPO with a moving average, on 2 ranks, from a folder with a tokenizer."""
    folder = tmp_path_factory.mktemp("ppo")
    (folder / "config.json").write_text(json.dumps(OPT))
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"})
    )
    reknit("init", "--model", folder, "--out", folder / "actor")
    reknit("init", "--model", folder, "--out", folder / "critic", "--value-head")
    rows = [{"tokens": [2, 3 + i]} for i in range(8)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    models = ["--actor", folder / "actor", "--critic", folder / "critic"]
    flags = "--device cpu --max-answer-seq-len 4 --batch 2 --global-batch 4 --learning-rate 1e-3"
    flags += " --ranks 2 --steps 1 --enable-ema --ema-beta 0.5 --save-interval 1"
    prompts = ["--prompts", folder / "prompts.jsonl"]
    reknit("ppo", *models, *prompts, "--out", folder / "run", *flags.split())
    return folder / "run"


def test_actor_critic_and_average_of_ppo_are_exported(ppo_run, tmp_path):
    transformers = pytest.importorskip("transformers")
    reknit("export", ppo_run, "--out", tmp_path / "default")
    for name in ("actor", "critic", "actor_ema"):
        reknit("export", ppo_run, "--model", name, "--out", tmp_path / name)
        assert weights(tmp_path / name) == weights(ppo_run / name), name
        assert (tmp_path / name / "tokenizer.json").exists()
    assert weights(tmp_path / "default") == weights(tmp_path / "actor")
    assert weights(tmp_path / "actor_ema") != weights(tmp_path / "actor")
    transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "actor_ema")
    critic = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "critic")
    assert critic.num_labels == 1
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "actor")
    assert tokenizer.encode("ab", add_special_tokens=False) == [4]


def damage(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def test_bad_input_to_export_is_a_sentence_with_its_code(trained, ppo_run, tmp_path):
    out = tmp_path / "out"

    def refused(code, part, *args):
        result = reknit("export", *args, code=code)
        assert result.stderr.count("error: ") == 1 and part in result.stderr, result.stderr
        assert "help: " in result.stderr

    refused(2, "--out", trained)
    refused(2, "CHECKPOINT", "--out", out)
    refused(3, "does not exist", tmp_path / "absent", "--out", out)
    refused(3, "is no folder", trained / "log.txt", "--out", out)
    refused(3, "is no checkpoint", trained / "model", "--out", out)
    refused(2, "holds no model critic, only model", trained, "--model", "critic", "--out", out)
    refused(2, "actor, actor_ema, critic", ppo_run, "--model", "model", "--out", out)
    refused(2, "one of fp32, bf16, fp16", trained, "--dtype", "int8", "--out", out)
    refused(2, "is not empty", trained, "--out", trained / "model")
    for over in (trained, trained / "step-000006", trained / "step-000006" / "model.hf"):
        refused(2, str(over), trained, "--overwrite", "--out", over)
        assert (trained / "step-000006" / "model.hf" / "config.json").exists()
    assert not out.exists()

    torn = tmp_path / "torn"
    shutil.copytree(trained, torn)
    damage(torn / "step-000006" / "model.00001.safetensors")
    refused(3, "model.00001.safetensors", torn / "step-000006", "--out", out)
    result = reknit("export", torn, "--out", out)  # the one before is whole
    assert "step-000006 is not whole" in result.stderr and "of step 4" in result.stdout
    for step in (2, 4):
        damage(torn / f"step-{step:06}" / "state.json")
    refused(3, "none of the 3 checkpoints in", torn, "--out", tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_disk_that_is_full_ends_the_run_with_4_and_leaves_no_torn_checkpoint(data, tmp_path):
    """The limit on a file's size stands in for the disk: shards are larger, the log is not."""
    out = tmp_path / "run"
    command = [BINARY, "pretrain", *kill_restart.MODEL, "--data-path", data, "--out", out]
    command += ["--ranks", 2, "--train-iters", 400, "--save-interval", 3]
    limited = "trap '' XFSZ; ulimit -f 100; exec " + " ".join(map(str, command))
    result = subprocess.run(
        ["bash", "-c", limited], capture_output=True, text=True, timeout=120, env=unlaunched()
    )
    assert result.returncode == 4, result.stderr
    assert result.stderr.count("error: ") == 1
    assert "cannot write" in result.stderr and ".safetensors" in result.stderr
    assert not list(out.glob("step-??????"))


@pytest.mark.parametrize("processes", [False, True], ids=["threads", "processes"])
def test_a_run_killed_at_random_moments_ends_as_an_unbroken_one(tmp_path, processes):
    runs = kill_restart.Runs(BINARY, tmp_path, 24, 2, 3, processes)
    seen = kill_restart.endure(runs, 2 if processes else 4, 7)
    assert seen["ends"] >= 1
