"""Hard inputs: each of these once ended the command by a signal, a hang, a trace or a lie.

Runs the built command: REKNIT_BIN, or build/cpu/bin/reknit.
"""

import json
import os
import pathlib
import shutil
import signal
import socket
import stat
import subprocess
import time

import pytest
from command import BINARY, needs_binary
from runs import byte_level_tokenizer, launched, unlaunched

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
        env=launched(1, 2, 29987),
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
    environment = unlaunched() | {"OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [str(part) for part in (BINARY, *streamed(writer))],
            env=environment | launched(rank, 2, port),
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


def model_copy(models, folder):
    shutil.copytree(models / "actor", folder)
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def unchanged(folder, before):
    return {name: (folder / name).read_bytes() for name in before} == before


@pytest.mark.parametrize("command", ["generate", "score"])
@pytest.mark.parametrize("flag", ["--out", "--trace"])
def test_no_output_takes_the_place_of_an_input(models, tmp_path, command, flag):
    before = model_copy(models, tmp_path / "model")
    rows = tmp_path / "rows.jsonl"
    shutil.copy(models / "prompts.jsonl", rows)
    (tmp_path / "link.jsonl").symlink_to(rows)
    reads = {"generate": ("--max-new-tokens", 2, "--prompts"), "score": ("--input",)}[command]
    for taken in (rows, tmp_path / "link.jsonl", *(tmp_path / "model" / name for name in before)):
        result = reknit(command, "--model", tmp_path / "model", *reads, rows, flag, taken)
        refused(result, 2, f"{flag} {taken} would replace ")
    assert unchanged(tmp_path / "model", before)
    assert rows.read_bytes() == (models / "prompts.jsonl").read_bytes()
    free = tmp_path / "free.jsonl"
    for _ in range(2):  # an older output is replaced
        result = reknit(command, "--model", tmp_path / "model", *reads, rows, flag, free)
        assert result.returncode == 0, result.stderr


def test_token_files_do_not_take_the_place_of_their_text(models, tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps(byte_level_tokenizer({"a": 0}, [])))
    text = tmp_path / "x.bin"
    text.write_text('{"text": "a"}\n')
    build = ("data", "build", "--input", text, "--tokenizer", tmp_path, "--out", tmp_path / "x")
    refused(reknit(*build, "--overwrite"), 2, "x.bin would replace the input ")
    assert text.read_text() == '{"text": "a"}\n'


def test_overwrite_of_a_model_replaces_nothing_but_a_model(models, tmp_path):
    before = model_copy(models, tmp_path / "home" / "model")
    (tmp_path / "home" / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "home" / "thesis.txt").write_text("years of work")
    init = ("init", "--overwrite", "--model")
    for model in (tmp_path / "home/model", models / "config.json"):
        for out in (tmp_path / "home", tmp_path):
            result = reknit(*init, model, "--out", out)
            refused(result, 2, ", which is no part of a model")
    assert unchanged(tmp_path / "home/model", before)
    assert (tmp_path / "home/thesis.txt").exists()
    result = reknit(*init, models / "config.json", "--out", tmp_path / "home/model", "--seed", 5)
    assert result.returncode == 0, result.stderr
    assert not unchanged(tmp_path / "home/model", before)


def test_a_run_does_not_replace_its_input_when_it_goes_on(models, tmp_path):
    before = model_copy(models, tmp_path / "run" / "actor")
    actor = ("--actor", tmp_path / "run/actor", "--critic", models / "critic")
    result = reknit(
        *("ppo", *actor, "--prompts", models / "prompts.jsonl", "--learning-rate", "1e-3"),
        *("--device", "cpu", "--steps", 1, "--max-answer-seq-len", 4),
        *("--out", tmp_path / "run", "--resume", "auto"),
    )
    refused(result, 2, "the run would replace its input ")
    assert unchanged(tmp_path / "run/actor", before)


def steps_of(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


@pytest.mark.parametrize("more", [("--resume", "auto"), ("--overwrite",)])
def test_a_second_run_in_the_same_folder_is_refused(models, tmp_path, more):
    out = tmp_path / "run"
    common = ("--out", out, "--max-answer-seq-len", 4, "--save-interval", 50)
    command = ("ppo", "--actor", models / "actor", "--critic", models / "critic", "--device", "cpu")
    command += ("--prompts", models / "prompts.jsonl", "--learning-rate", "1e-4")
    first = subprocess.Popen(
        [str(part) for part in (BINARY, *command, *common, "--steps", 100000)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=unlaunched() | {"OMP_NUM_THREADS": "1"},
    )
    try:
        for _ in range(600):
            if (out / "metrics.jsonl").exists():
                break
            time.sleep(0.05)
        second = ppo(models, *common, "--steps", 3, *more)
        refused(second, 2, "another run writes into --out ")
        first.send_signal(signal.SIGHUP)  # its terminal is closed
        assert first.wait(60) == 0
    finally:
        first.kill()
    steps = steps_of(out)
    assert steps == list(range(1, len(steps) + 1))
    assert (out / "actor" / "model.safetensors").exists()
    assert ppo(models, *common, "--steps", len(steps) + 1, *more).returncode == 0


def test_a_path_that_cannot_be_looked_at_is_no_bug_of_ours(models, tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    for bad in (tmp_path / "loop", "x" * 300):
        for line in (
            ("generate", "--model", bad, "--prompt", "x", "--max-new-tokens", 2),
            ("score", "--model", models / "actor", "--input", bad),
            ("score", "--model", models / "actor", "--input", models / "prompts.jsonl")
            + ("--out", bad),
        ):
            refused(reknit(*line), 3, str(bad))


def test_text_comes_from_a_pipe_as_well(models, tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps(byte_level_tokenizer({"a": 0}, [])))
    build = (BINARY, "data", "build", "--tokenizer", tmp_path, "--out", tmp_path / "x")
    built = subprocess.run(
        [*map(str, build), "--no-append-eod", "--input", "/dev/stdin"],
        input='{"text": "a"}\n',
        text=True,
        capture_output=True,
        timeout=60,
        env=unlaunched(),
    )
    assert built.returncode == 0, built.stderr
    assert "1 documents" in built.stdout


def test_weights_of_whole_numbers_are_refused(models, tmp_path):
    before = model_copy(models, tmp_path / "actor")
    whole = before["model.safetensors"].replace(b'"F32"', b'"I32"', 1)
    (tmp_path / "actor/model.safetensors").write_bytes(whole)
    result = reknit("score", "--model", tmp_path / "actor", "--input", models / "prompts.jsonl")
    refused(result, 3, "holds Int numbers, which are no weights")


ROWS = [
    ('{"tokens": []}', 3, "rows.jsonl, line 2: the prompt has no tokens"),
    ('{"tokens": [50]}', 3, "rows.jsonl, line 2: token 50 is outside the model's vocabulary of 50"),
    ('{"tokens": [5%s]}' % (", 5" * 63), 2, "rows.jsonl, line 2: a prompt of 64 tokens"),
]


@pytest.mark.parametrize("row,code,said", ROWS)
def test_a_prompt_that_cannot_be_is_named_by_file_and_line(models, tmp_path, row, code, said):
    (tmp_path / "rows.jsonl").write_text('{"tokens": [5]}\n' + row + "\n")
    command = ("generate", "--model", models / "actor", "--max-new-tokens", 2, "--prompts")
    refused(reknit(*command, tmp_path / "rows.jsonl"), code, said)


def test_the_end_token_is_that_of_generation_config(models, tmp_path):
    model_copy(models, tmp_path / "actor")
    command = ("generate", "--model", tmp_path / "actor", "--max-new-tokens", 4, "--prompts")
    free = json.loads(reknit(*command, models / "prompts.jsonl").stdout)
    ends = free["tokens"][0]
    for named in (ends, [ends, 7]):
        config = tmp_path / "actor" / "generation_config.json"
        config.write_text(json.dumps({"eos_token_id": named}))
        answer = json.loads(reknit(*command, models / "prompts.jsonl").stdout)
        assert (answer["tokens"], answer["finish"]) == ([ends], "eos")
    config.write_text('{"eos_token_id": "end"}')
    refused(reknit(*command, models / "prompts.jsonl"), 3, "eos_token_id must be a token id")


LINES = [
    (("--seed", 10**30), "must be at most"),
    (("--seed", 1, "--seed", 1), "--seed is given more than once"),
]


@pytest.mark.parametrize("more,said", LINES)
def test_a_flag_is_never_taken_for_something_else(models, more, said):
    refused(reknit("score", "--model", models / "actor", "--input", "x", *more), 2, said)


def test_a_broken_tokenizer_config_is_told_without_the_parsers_own_words(models, tmp_path):
    model_copy(models, tmp_path / "actor")
    (tmp_path / "actor" / "tokenizer.json").write_text(json.dumps(byte_level_tokenizer({}, [])))
    (tmp_path / "actor" / "tokenizer_config.json").write_text("{")
    result = reknit("score", "--model", tmp_path / "actor", "--input", models / "prompts.jsonl")
    refused(result, 3, "tokenizer_config.json: is no JSON: ")


def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_again(models, tmp_path):
    common = ("--out", tmp_path / "run", "--max-answer-seq-len", 4, "--save-interval", 1)
    assert ppo(models, *common, "--steps", 2).returncode == 0
    done = ppo(models, *common, "--steps", 2, "--resume", "auto")
    assert done.returncode == 0 and "nothing is left of the 2 steps" in done.stderr
    for state in (tmp_path / "run").glob("step-*/state.json"):
        state.unlink()
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    result = ppo(models, *common, "--steps", 3, "--resume", "auto")
    refused(result, 3, f"checkpoints in {tmp_path}/run is whole")
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_a_name_in_a_config_neither_ends_the_line_nor_steers_the_terminal(tmp_path):
    for text, said in (
        ('{"train_batch_size": 4, "\\u0000": 1}', "a key holds a zero character"),
        ('{"train_batch_size": 4, "\\u001b[2J": 1}', "\\x1b[2J"),
        ('{"train_batch_size": 4, "": 1}', "there is no key without a name"),
        ("[" * 1000, "[0] is nested"),
    ):
        (tmp_path / "c.json").write_text(text)
        result = reknit("check", "--config", tmp_path / "c.json", "--ranks", 2)
        refused(result, 2, said)
        assert not set(result.stderr) & {"\x00", "\x1b"}


def test_a_host_that_is_not_there_is_told_without_a_stack(models):
    result = reknit(
        *("score", "--model", models / "actor", "--input", models / "prompts.jsonl"),
        *("--timeout", 1),
        env=launched(1, 2, 29986, host="no-such-host.invalid"),
    )
    refused(result, 4, "ranks missing: 0 of 2")


def test_an_update_smaller_than_the_config_asks_for_is_said(models, tmp_path):
    (tmp_path / "many.jsonl").write_text('{"tokens": [5, 6, 7]}\n' * 4)
    common = ("--prompts", tmp_path / "many.jsonl", "--steps", 1, "--max-answer-seq-len", 4)
    sizes = ("--batch", 1, "--ranks", 2)
    result = ppo(models, *common, *sizes, "--gradient-accumulation-steps", 2)
    assert result.returncode == 0, result.stderr
    assert "an update takes the 2 prompts of its step, not 4 (" in result.stderr
    result = ppo(
        models, *common, *sizes, "--gradient-accumulation-steps", 2, "--generation-batches", 2
    )
    assert result.returncode == 0 and "an update takes" not in result.stderr


def test_a_flag_whose_value_asks_for_nothing_may_be_written_in_any_way(models):
    short = ("--steps", 1, "--max-answer-seq-len", 4)
    assert ppo(models, *short, "--actor_dropout", "0.0").returncode == 0
    refused(
        ppo(models, *short, "--actor_dropout", "0.1"), 2, "--actor-dropout 0.1 is not supported"
    )
