"""The command's surface, frozen: names, defaults, exit codes, and what is said when something is wrong.

Runs the built command: REKNIT_BIN, or build/cpu/bin/reknit.
"""

import functools
import json
import re
import subprocess

import pytest
from command import BINARY, needs_binary
from runs import launched, unlaunched

pytestmark = needs_binary


def reknit(*args, env=None):
    clean = unlaunched()
    return subprocess.run(
        [str(BINARY), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**clean, **(env or {})},
    )


@functools.cache
def commands():
    listing = reknit("--help").stdout.split("Subcommands:")[1].split("\n\n")[0]
    return re.findall(r"^  (\w+)", listing, re.MULTILINE)


def flags(command):
    """{flag: default or None} as --help shows them."""
    text = reknit(command, "--help").stdout
    found = {}
    for line in re.findall(r"^  (--[\w-]+.*)$", text, re.MULTILINE):
        default = re.match(r"--[\w-]+ ?[\w.\[\]|]*=(\S+)", line)
        found[re.match(r"--[\w-]+", line).group(0)] = default.group(1) if default else None
    return found


# The frozen surface. Add to it freely; to change or remove, say why in the change log.
RUN = {
    "--config": None,
    "--set": None,
    "--ranks": None,
    "--nodes": None,
    "--device": None,
    "--share-gpus": None,
    "--dtype": None,
    "--batch": None,
    "--seed": "1234",
    "--deterministic": None,
    "--timeout": "600",
    "--trace": None,
}
TRAIN = RUN | {
    "--steps": None,
    "--num-train-epochs": "1",
    "--compat": None,
    "--out": None,
    "--overwrite": None,
    "--save-interval": None,
    "--sync-save": None,
    "--keep": "2",
    "--resume": None,
    "--time-limit": None,
    "--log-interval": None,
    "--tensorboard": None,
    "--wandb": None,
}
MODEL = ("learning-rate", "weight-decay", "zero-stage", "config", "gradient-checkpointing")
SURFACE = {
    "check": {"--config": None, "--set": None, "--ranks": "1", "--nodes": "1"},
    "env": {},
    "report": {"--out": None, "--plot": None, "--names": None},
    "export": {
        "--out": None,
        "--model": None,
        "--model-config": None,
        "--dtype": None,
        "--overwrite": None,
    },
    "plan": {
        "--model": None,
        "--critic": None,
        "--phase": "pretrain",
        "--config": None,
        "--set": None,
        "--dtype": None,
        "--batch": None,
        "--seq-length": None,
        "--max-prompt-seq-len": "256",
        "--max-answer-seq-len": "256",
        "--generation-batch": None,
        "--gradient-checkpointing": None,
        "--ranks": "1",
        "--nodes": "1",
        "--device": None,
        "--gpu": None,
        "--memory": None,
        "--link": None,
        "--network": None,
        "--sweep": None,
        "--json": None,
    },
    "init": {
        "--model": None,
        "--seed": "1234",
        "--out": None,
        "--dtype": "fp32",
        "--value-head": None,
        "--overwrite": None,
    },
    "score": RUN | {"--model": None, "--tokenizer": None, "--input": None, "--out": None},
    "generate": RUN
    | {
        "--model": None,
        "--tokenizer": None,
        "--prompt": None,
        "--prompts": None,
        "--max-new-tokens": None,
        "--min-new-tokens": "0",
        "--temperature": "0",
        "--top-k": "0",
        "--top-p": "1",
        "--chat": None,
        "--out": None,
    },
    "pretrain": TRAIN
    | dict.fromkeys(
        """
        --model --num-layers --hidden-size --num-attention-heads
        --ffn-hidden-size --max-position-embeddings --vocab-size --vocab-file
        --untie-embeddings-and-output-weights --hidden-dropout --attention-dropout --tokenizer
        --data --train-data-path --valid-data-path --test-data-path
        --seq-length --eod-token --reset-position-ids --reset-attention-mask
        --eod-mask-loss --global-batch-size --rampup-batch-size --train-samples
        --train-tokens --zero-stage --exit-interval --gradient-checkpointing
        --checkpoint-every --recompute-granularity --recompute-method --wall-clock-breakdown
        --lr --lr-decay-style --lr-decay-iters --lr-decay-samples
        --lr-decay-tokens --lr-warmup-fraction --lr-warmup-iters --lr-warmup-samples
        --lr-warmup-tokens --override-opt-param-scheduler --use-checkpoint-opt-param-scheduler --weight-decay
        --clip-grad --adam-beta1 --adam-beta2 --adam-eps
        --fp16 --bf16 --loss-scale --initial-loss-scale
        --min-loss-scale --loss-scale-window --hysteresis --load
        --distributed-timeout-minutes
        """.split()
    )
    | {
        "--make-vocab-size-divisible-by": "128",
        "--init-method-std": "0.02",
        "--layernorm-epsilon": "1e-05",
        "--split": "969,30,1",
        "--eval-interval": "1000",
        "--eval-iters": "100",
        "--recompute-num-layers": "1",
        "--min-lr": "0",
    },
    "ppo": TRAIN
    | {f"--{who}-{what}": None for who in ("actor", "critic") for what in MODEL}
    | {
        "--actor": None,
        "--critic": None,
        "--reference": None,
        "--reward": None,
        "--reward-fn": None,
        "--reward-cmd": None,
        "--reward-rule": None,
        "--allow-random-reward": None,
        "--prompts": None,
        "--tokenizer": None,
        "--generation-batch": None,
        "--training-batch": None,
        "--generation-batches": "1",
        "--max-prompt-seq-len": "256",
        "--max-answer-seq-len": "256",
        "--temperature": "1",
        "--top-k": "0",
        "--top-p": "1",
        "--unpin-actor-parameters": None,
        "--release-inference-cache": None,
        "--save-samples": "0",
        "--kl-ctl": "0.1",
        "--clip-reward-value": "5",
        "--cliprange": "0.2",
        "--cliprange-value": "0.2",
        "--gamma": "1",
        "--lam": "0.95",
        "--unsup-coef": "27.8",
        "--ema-beta": "0.992",
        "--ppo-epochs": "1",
        "--enable-ema": None,
        "--align-overflow": None,
        "--num-padding-at-beginning": "1",
        "--gradient-accumulation-steps": None,
        "--learning-rate": None,
        "--lr-scheduler-type": None,
        "--num-warmup-steps": "0",
    },
}


def test_help_lists_commands_and_exit_codes():
    result = reknit("--help")
    assert result.returncode == 0
    assert "Exit codes" in result.stdout
    assert {"check", "env"} <= set(commands())
    assert reknit().stdout == result.stdout


@pytest.mark.parametrize("command", [["check"], ["data", "build"]])
def test_help_is_a_command_too(command):
    assert reknit("help", *command).stdout == reknit(*command, "--help").stdout
    assert reknit("help").stdout == reknit("--help").stdout


def test_a_wrong_config_is_not_described_and_each_error_has_its_help(config):
    result = check(config({"train_batch_sise": 8, "zero_optimization": {"stage": 4}}))
    assert "train_batch_sise = 8: there is no such key\n    (did you mean" in result.stderr
    assert "ZeRO-" not in result.stdout


def test_version():
    result = reknit("--version")
    assert (result.returncode, result.stdout.split()[0]) == (0, "reknit")


@pytest.mark.parametrize("command", sorted(SURFACE))
def test_the_frozen_surface_is_there(command):
    assert command in commands()
    actual = flags(command)
    assert set(SURFACE[command]) <= set(actual)
    assert {k: actual[k] for k, v in SURFACE[command].items() if v} == {
        k: v for k, v in SURFACE[command].items() if v
    }


@pytest.mark.parametrize("command", sorted(SURFACE))
def test_every_help_text_teaches(command):
    assert command in commands()
    result = reknit(command, "--help")
    assert result.returncode == 0
    assert "Example" in result.stdout
    assert result.stderr == ""


@pytest.fixture
def config(tmp_path):
    def write(content, name="ds.json"):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def check(path, *more):
    return reknit("check", "--config", path, *more)


WRONG = [
    ({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1536}, 8, "look exchanged"),
    ({"train_batch_size": 10, "train_micro_batch_size_per_gpu": 2}, 2, "B = 10"),
    ({"gradient_accumulation_steps": 4}, 2, "no batch size is given"),
    ({"train_batch_size": "auto"}, 2, "auto"),
    ({"train_batch_size": 8, "gradient_cliping": 1.0}, 2, "did you mean gradient_clipping?"),
    (
        {"train_batch_size": 8, "zero_optimization": {"stage": 3, "stage3_prefetch_bucket": 1}},
        2,
        "stage3_prefetch_bucket_size",
    ),
    (
        '{"train_batch_size": 8, "fp16": {"enabled": true, "enabled": false}}',
        2,
        "fp16.enabled is given twice",
    ),
    ({"train_batch_size": 8, "fp16": {"enabled": True}, "bf16": {"enabled": True}}, 2, "both true"),
    ({"train_batch_size": 8, "zero_optimization": {"cpu_offload": True}}, 2, "offload"),
    (
        {"train_batch_size": 8, "zero_optimization": {"stage3_prefetch_bucket_size": 921600.9}},
        2,
        "must be a whole number",
    ),
    (
        {"train_batch_size": 8, "zero_optimization": {"stage": 3, "mics_shard_size": 3}},
        4,
        "does not divide 4 ranks",
    ),
    ('{\n  "train_batch_size": 8\n  "x": 1\n}', 2, "line 3, column"),
    ("[]", 2, "not an object"),
    ("", 2, "empty"),
]


@pytest.mark.parametrize("content,ranks,said", WRONG)
def test_wrong_configs_end_with_2_and_say_why(config, content, ranks, said):
    result = check(config(content), "--ranks", ranks)
    assert result.returncode == 2
    assert result.stderr.startswith("error: ")
    assert said in result.stderr
    assert result.stderr.count("error: ") == 1


def test_right_configs_end_with_0_and_say_what_they_do(config):
    result = check(
        config("""{ // comments are fine
        "train_batch_size": 16, "train_micro_batch_size_per_gpu": 2,
        "zero_optimization": {"stage": 3, "mics_shard_size": 2, "sub_group_size": 1e8,},
    }"""),
        "--ranks",
        4,
        "--nodes",
        2,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert "16 sequences a step = 2 a rank x 2 micro-batches x 4 ranks" in result.stdout
    assert "0: 0 1\n  1: 2 3" in result.stdout
    assert "0: 0 2\n  1: 1 3" in result.stdout
    assert "sub_group_size" in result.stdout


def test_set_overrides_one_key(config):
    path = config({"train_batch_size": 8, "zero_optimization": {"stage": 2}})
    assert "ZeRO-3" in check(path, "--set", "zero_optimization.stage=3").stdout
    assert check(path, "--set", "zero_optimization.stage=7").returncode == 2
    assert check(path, "--set", "nonsense").returncode == 2


BAD_LINES = [
    (["nothing"], 2, "there is no command nothing"),
    (["chek"], 2, "did you mean check?"),
    (["check"], 2, "nothing to check"),
    (["check", "--config"], 2, "--config"),
    (["check", "--config", "/nonexistent/ds.json"], 3, "/nonexistent/ds.json"),
    (["check", "--config", "/"], 3, "is a folder"),
    (["check", "--rank", "2"], 2, "did you mean --ranks?"),
    (["check", "--set", "a=1", "--ranks", "0"], 2, "--ranks"),
    (["check", "--set", "a=1", "--ranks", "two"], 2, "--ranks"),
    (["check", "--set", "a=1", "--ranks", "2", "--ranks", "4"], 2, "--ranks"),
    (["check", "--set", "train_batch_size=4", "--ranks", "4", "--nodes", "3"], 2, "nodes"),
    (["generate", "--prompt", "x", "--max-new-tokens", "4"], 2, "--model"),
    (["generate", "--model", "/nonexistent/m", "--prompt", "x"], 2, "--max-new-tokens"),
    (["generate", "--model", "/nonexistent/m", "--max-new-tokens", "4"], 2, "--prompt"),
    (
        ["generate", "--model", "/nonexistent/m", "--prompt", "x", "--max-new-tokens", "4"],
        3,
        "--model: there is no folder /nonexistent/m",
    ),
    (["generate", "--model", "m", "--prompt", "x", "--max-new-tokens", "0"], 2, "at least 1"),
    (
        ["generate", "--model", "m", "--prompt", "x", "--max_new_tokens", "4", "--top_p", "2"],
        2,
        "from 0 to 1",
    ),
    (
        [
            "generate",
            "--model",
            "m",
            "--prompt",
            "x",
            "--max-new-tokens",
            "4",
            "--min-new-tokens",
            "5",
        ],
        2,
        "--min-new-tokens 5",
    ),
    (
        ["generate", "--model", "m", "--prompt", "x", "--max-new-tokens", "4", "--dtype", "int8"],
        2,
        "one of fp32, bf16, fp16",
    ),
    (["score", "--model", "/nonexistent/m", "--input", "/nonexistent/x"], 3, "--model"),
    (["score", "--model", "m"], 2, "--input"),
    (["ppo", "--actor", "/nonexistent/a", "--prompts", "p", "--critic", "c"], 3, "--actor"),
    (["ppo", "--actor", "a"], 2, "--prompts"),
    (["ppo", "--actor", "a", "--prompts", "p", "--keep", "0"], 2, "at least 1"),
    (["ppo", "--actor", "a", "--prompts", "p", "--time-limit", "soon"], 2, "--time-limit"),
    (["ppo", "--actor", "a", "--prompts", "p", "--compat", "trl"], 2, "strict, deepspeed-chat"),
    (["ppo", "--actor", "a", "--prompts", "p", "--actor-zero-stage", "4"], 2, "one of 0, 1, 2, 3"),
    (["ppo", "--actor", "a", "--prompts", "p", "--wandb", "x"], 2, "opens no connection"),
    (["ppo", "--actor", "a", "--prompts", "p", "--offload"], 2, "--actor-zero-stage 3"),
    (["ppo", "--actor", "a", "--prompts", "p", "--actor_lora_dim", "128"], 2, "LoRA"),
    (
        ["ppo", "--actor", "a", "--prompts", "p", "--actr-zero-stage", "3"],
        2,
        "did you mean --actor-zero-stage?",
    ),
    (["pretrain", "--data", "x", "--seq-length", "8"], 2, "there is no model"),
    (["pretrain", "--model", "/nonexistent/m"], 3, "--model: there is no folder"),
    (["pretrain", "--data", "x", "--split"], 2, "--split"),
    (["pretrain", "--swiglu"], 2, "--model config.json"),
    (["pretrain", "--seq-lenght", "8"], 2, "did you mean --seq-length?"),
    (["env", "--what"], 2, "there is no flag --what"),
    (["env", "what"], 2, "what"),
]


@pytest.mark.parametrize(
    "line,code,said", BAD_LINES, ids=lambda v: " ".join(v) if isinstance(v, list) else None
)
def test_bad_command_lines(line, code, said):
    result = reknit(*line)
    assert result.returncode == code
    assert result.stderr.startswith("error: ")
    assert said in result.stderr


def test_env_names_versions_devices_and_what_is_missing():
    result = reknit("env")
    assert result.returncode == 0
    for word in (
        "reknit ",
        "libtorch 2.",
        "cpu: ",
        "launcher: none",
        "threads",
        "V100",
        "AMD",
        "missing:",
    ):
        assert word in result.stdout


def test_env_reads_the_launcher():
    place = launched(1, 2, 29500)
    assert "rank 1 of 2" in reknit("env", env=place).stdout
    partly = {key: place[key] for key in ("RANK", "WORLD_SIZE")}
    result = reknit("env", env=partly)
    assert result.returncode == 2
    assert "MASTER_ADDR" in result.stderr


TINY = {
    "model_type": "opt",
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "ffn_dim": 32,
    "max_position_embeddings": 24,
    "word_embed_proj_dim": 8,
    "do_layer_norm_before": False,
    "activation_function": "relu",
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 2,
}


def tensors(folder):
    from safetensors.numpy import load_file

    return load_file(folder / "model.safetensors")


def test_init_writes_a_folder_that_depends_on_the_seed_alone(config, tmp_path):
    path = config(TINY, "config.json")
    (tmp_path / "tokenizer.json").write_text("{}")
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        result = reknit("init", "--model", path, "--seed", seed, "--out", tmp_path / name)
        assert (result.returncode, result.stderr) == (0, "")
    a, b, c = (tensors(tmp_path / name) for name in "abc")
    assert all((a[name] == b[name]).all() for name in a)
    table = "model.decoder.embed_tokens.weight"
    assert (a[table] != c[table]).any()
    assert a[table].shape == (40, 8)
    assert 0.01 < a["model.decoder.layers.0.fc1.weight"].std() < 0.03
    assert (tmp_path / "a" / "tokenizer.json").read_text() == "{}"
    assert reknit("init", "--model", path, "--out", tmp_path / "a").returncode == 2
    assert reknit("init", "--model", path, "--out", tmp_path / "a", "--overwrite").returncode == 0


def test_init_refuses_what_it_does_not_know(config, tmp_path):
    unknown = config({"model_type": "nothing"}, "config.json")
    result = reknit("init", "--model", unknown, "--out", tmp_path / "x")
    assert result.returncode == 3
    assert "nothing" in result.stderr
    assert not (tmp_path / "x").exists()
    assert (
        reknit("init", "--model", tmp_path / "none.json", "--out", tmp_path / "x").returncode == 3
    )


@pytest.mark.parametrize("dtype,head", [("fp32", False), ("bf16", True)])
def test_init_loads_in_transformers(config, tmp_path, dtype, head):
    transformers = pytest.importorskip("transformers")
    path = config(TINY, "config.json")
    out = tmp_path / "m"
    result = reknit(
        "init", "--model", path, "--out", out, "--dtype", dtype, *(["--value-head"] if head else [])
    )
    assert result.returncode == 0, result.stderr
    kind = (
        transformers.AutoModelForSequenceClassification
        if head
        else transformers.AutoModelForCausalLM
    )
    model, info = kind.from_pretrained(out, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert str(model.dtype) == {"fp32": "torch.float32", "bf16": "torch.bfloat16"}[dtype]


def test_errors_are_left_for_torchrun(tmp_path):
    path = tmp_path / "error.json"
    reknit("check", "--config", "/nonexistent/ds.json", env={"TORCHELASTIC_ERROR_FILE": str(path)})
    assert "/nonexistent/ds.json" in json.loads(path.read_text())["message"]["message"]


def test_a_config_without_a_batch_is_fine_and_check_takes_a_batch(tmp_path):
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"zero_optimization": {"stage": 3}}))
    alone = check(path)
    assert alone.returncode == 0, alone.stderr
    assert "the config leaves it to the run's --batch" in alone.stdout
    given = check(path, "--batch", 4, "--ranks", 1)
    assert "batch: 4 sequences a step = 4 a rank x 1 micro-batch x 1 rank\n" in given.stdout
    path.write_text(json.dumps({"train_micro_batch_size_per_gpu": 2}))
    assert check(path, "--batch", 4).returncode == 2


def test_a_missing_batch_is_a_sentence_without_letters(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    flags = ["--seq-length", 8, "--steps", 1, "--learning-rate", 1e-3, "--device", "cpu"]
    for name in ("text.bin", "text.idx"):
        (tmp_path / name).touch()
    result = reknit(
        "pretrain", "--model", tmp_path / "config.json", "--data", tmp_path / "text", *flags
    )
    assert result.returncode == 2
    assert "no batch size is given: neither train_batch_size nor" in result.stderr
    assert "help: pass --batch" in result.stderr


def test_plan_and_init_find_names_in_the_local_cache(tmp_path):
    model = tmp_path / "models--some--opt"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text("abc")
    snapshot = model / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    shape = {"model_type": "opt", "vocab_size": 96, "hidden_size": 32, "word_embed_proj_dim": 32}
    shape |= {"num_hidden_layers": 1, "num_attention_heads": 4, "ffn_dim": 64}
    (snapshot / "config.json").write_text(json.dumps(shape | {"max_position_embeddings": 64}))
    env = {"HF_HUB_CACHE": str(tmp_path)}
    for command in (["plan"], ["init", "--out", tmp_path / "made"]):
        result = reknit(*command, "--model", "some/opt", env=env)
        assert result.returncode == 0, result.stderr
        missing = reknit(*command, "--model", "some/other", env=env)
        assert missing.returncode == 3
        assert "hf download some/other" in missing.stderr
