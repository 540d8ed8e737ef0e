"""`reknit data`: numpy reads what it writes, it reads what numpy writes, and damage ends with 3.

Runs the built command: REKNIT_BIN, or build/cpu/bin/reknit.
"""

import gzip
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from command import BINARY, ROOT, needs_binary

pytestmark = needs_binary


def reknit(*args):
    return subprocess.run(
        [str(BINARY), *map(str, args)], capture_output=True, text=True, timeout=60
    )


@pytest.fixture
def tokenizer(tmp_path):
    """Tokens a, b, c, space, ab and the end token, ids 0 to 5."""
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    vocabulary = {"a": 0, "b": 1, "c": 2, "\u0120": 3, "ab": 4}
    model = {"type": "BPE", "vocab": vocabulary, "merges": ["a b"]}
    level = {"type": "ByteLevel", "add_prefix_space": False}
    whole = {"model": model, "pre_tokenizer": level, "decoder": level}
    whole["added_tokens"] = [{"id": 5, "content": "<end>", "special": True}]
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    return folder


def index_bytes(lengths, code=8, item=2, documents=None, version=1, places=None):
    if places is None:
        places = np.concatenate([[0], np.cumsum(np.array(lengths, "<i8") * item)[:-1]])
    if documents is None:
        documents = range(len(lengths) + 1)
    documents = np.array(documents, "<i8")
    head = b"MMIDIDX\0\0" + np.uint64(version).tobytes() + np.uint8(code).tobytes()
    head += np.array([len(lengths), len(documents)], "<u8").tobytes()
    rest = np.array(lengths, "<i4").tobytes() + np.array(places, "<i8").tobytes()
    return head + rest + documents.tobytes()


@pytest.fixture
def pair(tmp_path):
    def write(index, tokens=np.arange(12, dtype="<u2")):
        (tmp_path / "t.idx").write_bytes(index)
        (tmp_path / "t.bin").write_bytes(tokens.tobytes())
        return tmp_path / "t"

    return write


def test_numpy_reads_what_build_writes(tmp_path, tokenizer):
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        for text in ("abc", "", "c ab<end>", "b"):
            file.write(json.dumps({"text": text}) + "\n")
    prefix = tmp_path / "out"
    result = reknit(
        "data", "build", "--input", tmp_path / "a.jsonl.gz", "--tokenizer", tokenizer,
        "--out", prefix,
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")
    assert "3 documents, 10 tokens" in result.stdout
    assert "left out: 1 rows" in result.stdout
    assert (tmp_path / "out.idx").read_bytes() == index_bytes([3, 5, 2])
    tokens = np.fromfile(tmp_path / "out.bin", "<u2").tolist()
    assert tokens == [4, 2, 5, 2, 3, 4, 5, 5, 1, 5]
    again = reknit(
        "data", "build", "--input", tmp_path / "a.jsonl.gz", "--tokenizer", tokenizer,
        "--out", prefix,
    )  # fmt: skip
    assert again.returncode == 2
    assert "--overwrite" in again.stderr
    shown = reknit("data", "show", prefix, "--tokenizer", tokenizer).stdout
    assert re.search(r"documents +3\nsequences +3\ntokens +10\ntype +uint16", shown)
    assert 'sequence 0, 3 tokens:\n    4 2 5\n    "abc<end>"' in shown


def test_show_reads_what_numpy_writes(pair):
    prefix = pair(index_bytes([5, 3, 4]))
    shown = reknit("data", "show", prefix, "--count", 3)
    assert shown.returncode == 0
    assert "sequence 1, 3 tokens:\n    5 6 7\n" in shown.stdout
    samples = reknit("data", "show", prefix, "--seq-length", 4, "--split", "1")
    assert "train: sequences 0 to 3, 12 tokens, 2 samples of 4 + 1 tokens" in samples.stdout
    assert samples.stdout == reknit(
        "data", "show", prefix, "--seq-length", 4, "--split", "1", "--seed", 1234
    ).stdout  # fmt: skip


DAMAGED = [
    (b"MMIDIDY\0\0" + index_bytes([5, 3, 4])[9:], "no index of tokens"),
    (index_bytes([5, 3, 4], version=2), "version 2"),
    (index_bytes([5, 3, 4], code=9), "token type 9"),
    (index_bytes([5, 3, 4], documents=[0, 1, 2, 2]), "last document entry is 2"),
    (index_bytes([5, 3, 4], places=[0, 10, 18]), "from byte 18 on"),
    (index_bytes([0, 0, 0]), "no tokens"),
    (index_bytes([]), "0 sequences"),
    (index_bytes([5, 3, 4])[:-1], "cut off or damaged"),
    (b"TNTIDX\0\0" + bytes(48), "older form"),
]


@pytest.mark.parametrize("index,said", DAMAGED)
def test_a_damaged_index_ends_with_3_and_its_value(pair, index, said):
    result = reknit("data", "show", pair(index))
    assert result.returncode == 3
    assert said in result.stderr
    assert result.stderr.startswith("error: ")


def test_the_documented_script_converts_an_index_of_the_older_form(tmp_path, pair):
    pair(b"")
    old = b"TNTIDX\0\0" + np.array([1, 8, 2, 3, 3, 4], "<u8").tobytes()
    for numbers in ([0, 1, 2, 3], [0, 5, 8, 12], [5, 3, 4], [0, 1, 2, 3]):
        old += np.array(numbers, "<i8").tobytes()
    (tmp_path / "old.idx").write_bytes(old)
    page = (ROOT / "docs" / "data.md").read_text()
    (tmp_path / "convert.py").write_text(re.search(r"```python\n(.*?)```", page, re.S).group(1))
    subprocess.run(
        [sys.executable, tmp_path / "convert.py", tmp_path / "old.idx", tmp_path / "t.idx"],
        check=True,
    )
    assert (tmp_path / "t.idx").read_bytes() == index_bytes([5, 3, 4])


BAD_LINES = [
    (["data"], 2, "subcommand"),
    (["data", "biuld"], 2, "did you mean build?"),
    (["data", "build", "--input", "x"], 2, "--tokenizer"),
    (["data", "build", "--inptu", "x"], 2, "did you mean --input?"),
    (["data", "build", "--input", "/none", "--tokenizer", "t", "--out", "o"], 3, "/none"),
    (["data", "show"], 2, "PREFIX"),
    (["data", "show", "/none"], 3, "cannot read /none."),
    (["data", "show", "x", "--seq-length", "0"], 2, "at least 1"),
]


@pytest.mark.parametrize("line,code,said", BAD_LINES)
def test_wrong_lines_end_as_the_contract_says(line, code, said):
    result = reknit(*line)
    assert (result.returncode, result.stderr.count("error: ")) == (code, 1)
    assert said in result.stderr


@pytest.mark.parametrize(
    "command,names",
    [
        ("build", "input tokenizer out json-key append-eod workers overwrite"),
        ("show", "count tokenizer seq-length split seed"),
    ],
)
def test_the_frozen_surface_is_there_and_its_help_teaches(command, names):
    text = reknit("data", command, "--help").stdout
    assert set(names.split()) <= set(re.findall(r"^  --([\w-]+)", text, re.MULTILINE))
    assert "Examples" in text
