"""Hard inputs: each of these once ended the command by a signal, a hang, a trace or a lie.

Runs the built command: REKNIT_BIN, or build/cpu/bin/reknit.
"""

import json
import os
import pathlib
import shutil
import socket
import stat
import subprocess
import time

import pytest
from command import BINARY, needs_binary
from runs import byte_level_tokenizer, unlaunched

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
}

pytestmark = needs_binary


def reknit(*args, env=None, stdout=subprocess.PIPE):
    clean = unlaunched()
    return subprocess.run(
        [str(BINARY), *map(str, args)],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        env={**clean, "OMP_NUM_THREADS": "1", **(env or {})},
    )


def refused(result, code, part):
    assert result.returncode == code, result.stderr
    assert part in result.stderr
    assert "frame #" not in result.stderr
    assert "json.exception" not in result.stderr


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    for name, extra in (("actor", ()), ("critic", ("--value-head",))):
        made = reknit("init", "--model", folder / "config.json", "--out", folder / name, *extra)
        assert made.returncode == 0, made.stderr
    (folder / "prompts.jsonl").write_text('{"tokens": [5, 6, 7]}\n')
    return folder


def ppo(models, *args):
    return reknit(
        *("ppo", "--actor", models / "actor", "--critic", models / "critic"),
        *("--prompts", models / "prompts.jsonl", "--learning-rate", "1e-3"),
        *("--device", "cpu", *args),
    )


@pytest.mark.parametrize("key", ["prompt", "x"])
def test_a_row_nested_without_end_is_refused(models, tmp_path, key):
    rows = tmp_path / "deep.jsonl"
    rows.write_text(f'{{"tokens":[5],"{key}":' + "[" * 200000 + "]" * 200000 + "}\n")
    result = reknit("score", "--model", models / "actor", "--input", rows)
    refused(result, 3, "line 1: is nested deeper than 256")


def test_a_broken_row_is_told_without_the_parsers_own_words(models, tmp_path):
    rows = tmp_path / "broken.jsonl"
    rows.write_text('{"tokens": [5]\n')
    result = reknit("score", "--model", models / "actor", "--input", rows)
    refused(result, 3, "line 1: is no JSON: parse error")


def test_out_is_written_to_a_pipe_and_does_not_replace_it(models, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # Not opened for reading only: that would wait for ever should nobody write.
    end = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    try:
        result = reknit(
            "score", "--model", models / "actor", "--input", models / "prompts.jsonl", "--out", pipe
        )
        assert result.returncode == 0, result.stderr
        assert stat.S_ISFIFO(pipe.stat().st_mode)
        read = os.read(end, 1 << 16)
    finally:
        os.close(end)
    assert json.loads(read)["tokens"] == [5, 6, 7]


@pytest.mark.skipif(not pathlib.Path("/dev/full").is_char_device(), reason="no /dev/full")
def test_a_result_that_cannot_be_written_is_an_error(models):
    with open("/dev/full", "w") as full:
        result = reknit(
            *("score", "--model", models / "actor", "--input", models / "prompts.jsonl"),
            stdout=full,
        )
    refused(result, 4, "cannot write the result to standard output")


@pytest.mark.parametrize(
    "flag, value",
    [
        ("--ranks", 1000000000),
        ("--ranks", 10**22),
        ("--batch", 2**63 - 1),
        ("--global-batch", 2**63 - 1),
        ("--generation-batches", 2**63 - 1),
        ("--num-train-epochs", 2**63 - 1),
        ("--max-answer-seq-len", 2**63 - 1),
    ],
)
def test_a_number_beyond_reason_is_a_usage_error(models, flag, value):
    refused(ppo(models, flag, value), 2, f"error: {flag}: {value} must be at most ")


def test_a_product_beyond_reason_is_a_usage_error(models):
    result = ppo(models, "--generation-batches", 2**31 - 1, "--batch", 2**31 - 1, "--steps", 1)
    refused(result, 2, "--generation-batches 2147483647")


def test_an_answer_beyond_reason_is_a_usage_error(models):
    result = reknit(
        *("generate", "--model", models / "actor", "--prompts", models / "prompts.jsonl"),
        *("--max-new-tokens", 2**63 - 1),
    )
    refused(result, 2, "--max-new-tokens: 9223372036854775807 must be at most ")


@pytest.mark.parametrize(
    "key, value",
    [("num_hidden_layers", 10**9), ("ffn_dim", 2**62), ("hidden_size", 10**12)],
)
def test_a_config_of_an_impossible_size_is_refused(tmp_path, key, value):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {key: value}))
    result = reknit("init", "--model", tmp_path / "config.json", "--out", tmp_path / "out")
    refused(result, 3, f"config.json: {key} must be at most ")
    assert not (tmp_path / "out").exists()


def test_a_start_up_without_a_server_ends_at_the_timeout(models):
    start = time.monotonic()
    result = reknit(
        *("score", "--model", models / "actor", "--input", models / "prompts.jsonl"),
        *("--device", "cpu", "--timeout", 2),
        env={
            "RANK": "1",
            "LOCAL_RANK": "1",
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29987",
        },
    )
    assert result.returncode == 4, result.stderr
    assert "timed out after 2 s: ranks missing: 0 of 2" in result.stderr
    assert time.monotonic() - start < 20


@pytest.mark.parametrize("out", [".", "actor", "actor/"])
def test_overwrite_never_removes_an_input(models, tmp_path, out):
    shutil.copytree(models, tmp_path / "all")
    result = ppo(tmp_path / "all", "--out", f"{tmp_path}/all/{out}", "--overwrite", "--steps", 1)
    refused(result, 2, "--overwrite would remove the input ")
    assert (tmp_path / "all/actor/model.safetensors").exists()
    assert (tmp_path / "all/prompts.jsonl").exists()


def test_overwrite_and_resume_auto_contradict(models, tmp_path):
    (tmp_path / "step-000001").mkdir()
    result = ppo(models, "--out", tmp_path, "--overwrite", "--resume", "auto")
    refused(result, 2, "--resume auto contradicts --overwrite, which empties the folder")
    assert (tmp_path / "step-000001").exists()


def test_weights_that_are_nan_end_with_exit_5(models, tmp_path):
    load, save = (
        pytest.importorskip("safetensors.torch").__dict__[n] for n in ("load_file", "save_file")
    )
    shutil.copytree(models / "actor", tmp_path / "actor")
    file = tmp_path / "actor" / "model.safetensors"
    tensors = load(file)
    tensors["model.decoder.layers.0.fc2.weight"].fill_(float("nan"))
    save(tensors, file, metadata={"format": "pt"})
    (tmp_path / "rows.jsonl").write_text('{"tokens": [5, 6, 7]}\n')
    out = tmp_path / "out.jsonl"
    common = ("--model", tmp_path / "actor", "--out", out)
    refused(reknit("score", *common, "--input", tmp_path / "rows.jsonl"), 5, "is NaN")
    result = reknit(
        "generate", *common, "--prompts", tmp_path / "rows.jsonl", "--max-new-tokens", 3
    )
    refused(result, 5, "log-probability NaN")
    assert not out.exists()


def test_overwrite_empties_only_what_a_run_has_written(models, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    short = ("--steps", 1, "--max-answer-seq-len", 4)
    result = ppo(models, "--out", tmp_path, "--overwrite", *short)
    refused(result, 2, "is no run's folder: log.txt or config.json is not in it")
    assert (tmp_path / "thesis.txt").exists()
    for _ in range(2):
        result = ppo(models, "--out", tmp_path / "run", "--overwrite", *short)
        assert result.returncode == 0, result.stderr


def test_a_reader_that_goes_away_is_no_error(models):
    environment = unlaunched()
    command = ["score", "--model", models / "actor", "--input", models / "prompts.jsonl"]
    read, write = os.pipe()
    os.close(read)
    try:
        result = subprocess.run(
            [str(part) for part in (BINARY, *command)],
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            env=environment,
        )
    finally:
        os.close(write)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_run_that_cannot_be_leaves_the_one_that_overwrite_would_remove(models, tmp_path):
    out = ("--out", tmp_path / "run", "--overwrite", "--steps", 1)
    assert ppo(models, *out, "--max-answer-seq-len", 4).returncode == 0
    result = ppo(models, *out, "--max-answer-seq-len", 63)
    refused(result, 2, "it exceeds the 64 positions of the model actor")
    assert (tmp_path / "run" / "summary.json").exists()


def test_a_resume_that_is_refused_changes_no_file(models, tmp_path):
    common = ("--out", tmp_path, "--max-answer-seq-len", 4, "--save-interval", 1)
    assert ppo(models, *common, "--steps", 1).returncode == 0
    before = (tmp_path / "config.json").read_text()
    result = ppo(models, *common, "--steps", 2, "--resume", "auto", "--seed", 7, "--ranks", 2)
    refused(result, 2, "began with seed 1234, this command says 7")
    assert (tmp_path / "config.json").read_text() == before
    changed = ("--resume", "auto", "--actor-weight-decay", 0.125)
    assert ppo(models, *common, "--steps", 2, *changed).returncode == 0
    assert "0.125" in (tmp_path / "config.json").read_text()


def test_a_run_goes_on_with_the_prompts_and_judges_it_began_with(models, tmp_path):
    for name in ("actor", "critic", "prompts.jsonl"):
        (shutil.copytree if (models / name).is_dir() else shutil.copy)(
            models / name, tmp_path / name
        )
    common = ("--out", tmp_path / "run", "--max-answer-seq-len", 4, "--save-interval", 1)
    assert ppo(tmp_path, *common, "--steps", 1).returncode == 0
    more = (*common, "--steps", 2, "--resume", "auto")
    (tmp_path / "prompts.jsonl").write_text('{"tokens": [5, 6, 8]}\n')
    refused(ppo(tmp_path, *more), 2, "began with prompts")
    shutil.copy(models / "prompts.jsonl", tmp_path / "prompts.jsonl")
    made = reknit(
        *("init", "--model", tmp_path / "critic" / "config.json", "--value-head", "--seed", 99),
        *("--out", tmp_path / "critic", "--overwrite"),
    )
    assert made.returncode == 0, made.stderr
    refused(ppo(tmp_path, *more), 3, "is not the one that the run began with")
    shutil.rmtree(tmp_path / "critic")
    shutil.copytree(models / "critic", tmp_path / "critic")
    assert ppo(tmp_path, *more).returncode == 0


@pytest.mark.skipif(not pathlib.Path("/dev/full").is_char_device(), reason="no /dev/full")
def test_a_disk_that_fills_during_a_run_is_exit_4(models, tmp_path):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    short = ("--steps", 1, "--max-answer-seq-len", 4)
    result = ppo(models, "--out", tmp_path, "--resume", "auto", *short)
    refused(result, 4, "metrics.jsonl: No space left on device")


LETTERS = ["<s>", "<pad>", "</s>", "<unk>", *"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRST"]


@pytest.fixture(scope="module")
def writer(models, tmp_path_factory):
    """A model with a tokenizer of letters alone: one for each of its 50 ids."""
    folder = tmp_path_factory.mktemp("writer") / "model"
    shutil.copytree(models / "actor", folder)
    vocabulary = {letter: i for i, letter in enumerate(LETTERS)}
    tokenizer = byte_level_tokenizer(vocabulary, LETTERS[:4])
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def streamed(writer):
    command = ("generate", "--model", writer, "--prompt", "ab", "--device", "cpu")
    return (*command, "--max-new-tokens", 4, "--min-new-tokens", 4)


@pytest.mark.skipif(not pathlib.Path("/dev/full").is_char_device(), reason="no /dev/full")
def test_a_streamed_answer_that_cannot_be_written_is_an_error(writer):
    assert len(reknit(*streamed(writer)).stdout) > 1
    with open("/dev/full", "w") as full:
        result = reknit(*streamed(writer), stdout=full)
    refused(result, 4, "cannot write the result to standard output")


def test_of_several_processes_the_first_one_streams(writer):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = unlaunched()
    environment |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            [str(part) for part in (BINARY, *streamed(writer))],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=60) for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], said
    assert said[0][0] == reknit(*streamed(writer)).stdout
    assert said[1][0] == ""
