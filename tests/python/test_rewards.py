"""Rewards of `reknit ppo` that are no model, and the run's scalars for other programs.

Runs the built command: REKNIT_BIN, or build/cpu/bin/reknit.
"""

import json
import re
import struct
import subprocess
import sys
import time

import pytest
from command import BINARY, needs_binary
from runs import byte_level_tokenizer, unlaunched

SPECIAL = ["<s>", "<pad>", "</s>"]
LETTERS = [chr(code) for code in range(32, 126)]
CONFIG = {
    "model_type": "opt",
    "hidden_size": 16,
    "word_embed_proj_dim": 16,
    "ffn_dim": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "vocab_size": len(SPECIAL) + len(LETTERS),
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 1,
}
# One token for each printable character.
TOKENIZER = byte_level_tokenizer(
    {text.replace(" ", "\u0120"): i for i, text in enumerate(SPECIAL + LETTERS)}, SPECIAL
)

pytestmark = needs_binary


def reknit(*args, env=None):
    clean = unlaunched()
    return subprocess.run(
        [str(BINARY), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**clean, "OMP_NUM_THREADS": "1", "REKNIT_PYTHON": sys.executable, **(env or {})},
    )


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    made = reknit("init", "--model", folder / "config.json", "--out", folder / "actor")
    assert made.returncode == 0, made.stderr
    rows = [{"prompt": "abc"[: 1 + i % 3] + str(i), "wanted": i} for i in range(7)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def ppo(models, out, *more, steps=1, env=None):
    return reknit(
        *("ppo", "--actor", models / "actor", "--prompts", models / "prompts.jsonl"),
        *("--learning-rate", "1e-3", "--device", "cpu", "--batch", 2, "--global-batch", 7),
        *("--max-answer-seq-len", 6, "--save-samples", 7, "--steps", steps, "--out", out, *more),
        env=env,
    )


def samples(out):
    return [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]


def metrics(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def refused(result, code, part):
    assert result.returncode == code, result.stderr
    assert part in result.stderr
    assert "help: " in result.stderr


def answer_of(sample):
    tokens = sample["tokens"][sample["prompt_length"] :]
    return tokens[:-1] if tokens[-1] == 2 else tokens


def test_rules_score_what_the_answers_say(models, tmp_path):
    first = ppo(models, tmp_path / "length", "--reward-rule", "length:4")
    assert first.returncode == 0, first.stderr
    for sample in samples(tmp_path / "length"):
        assert sample["score"] == -abs(len(answer_of(sample)) - 4) / 4
    texts = [sample["answer"] for sample in samples(tmp_path / "length")]
    letter = next(c for text in texts for c in text if c.isalpha())
    for rule, worth in {
        f"contains:{letter}": lambda text: float(letter in text),
        r"regex:^.*\d": lambda text: float(re.search(r"^.*\d", text) is not None),
        "json": lambda text: 0.0,
    }.items():
        out = tmp_path / rule[:4]
        result = ppo(models, out, "--reward-rule", rule)
        assert result.returncode == 0, result.stderr
        assert [s["answer"] for s in samples(out)] == texts
        assert [s["score"] for s in samples(out)] == [worth(text) for text in texts], rule


COUNTS = (
    "import json,sys\nfor line in sys.stdin:\n row=json.loads(line)\n print(PRINTED, flush=True)"
)


def program(tmp_path, printed):
    path = tmp_path / "judge.py"
    path.write_text(COUNTS.replace("PRINTED", printed))
    return f"{sys.executable} {path}"


def test_a_command_scores_the_same_for_any_number_of_ranks(models, tmp_path):
    command = program(
        tmp_path, 'json.dumps({"reward": row["wanted"] / 8 + len(row["completion"]) / 64})'
    )
    for ranks in (1, 3):
        out = tmp_path / str(ranks)
        result = ppo(models, out, "--reward-cmd", command, "--ranks", ranks, steps=2)
        assert result.returncode == 0, result.stderr
        for sample in samples(out):
            wanted = int(sample["prompt"][-1])
            assert sample["score"] == wanted / 8 + len(sample["answer"]) / 64
    one, three = metrics(tmp_path / "1"), metrics(tmp_path / "3")
    assert [m["reward"] for m in three] == pytest.approx([m["reward"] for m in one], abs=1e-12)


def test_a_python_function_is_called_with_the_rows_of_a_step(models, tmp_path):
    (tmp_path / "helper.py").write_text("worth = 0.5\n")
    (tmp_path / "rewards.py").write_text(
        "from helper import worth\n"
        "def score(rows):\n"
        "    print('this is no reward')\n"
        "    assert {'prompt', 'completion', 'tokens', 'finish', 'wanted'} <= rows[0].keys()\n"
        "    return [worth * row['wanted'] for row in rows]\n"
        "def short(rows):\n"
        "    return []\n"
    )
    out = tmp_path / "run"
    result = ppo(models, out, "--reward-fn", f"{tmp_path}/rewards.py:score")
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("this is no reward") == 1
    assert {s["score"] * 2 for s in samples(out)} == set(range(7))
    for name, said in (("short", "returned 0 rewards for 7 rows"), ("none", "no attribute")):
        result = ppo(models, tmp_path / name, "--reward-fn", f"{tmp_path}/rewards.py:{name}")
        refused(result, 4, "ended with exit code 1 after 0 of 7 answers")
        assert said in result.stderr


@pytest.mark.parametrize(
    "command, code, said",
    [
        ("exit 3", 4, "the reward command ended with exit code 3 after 0 of 7 answers"),
        ("read line; echo 1; kill -9 $$", 4, "was ended by signal 9 after 1 of 7 answers"),
        ("no-such-program", 4, "ended with exit code 127"),
        ("sleep 100", 4, "was silent for 1 s after 0 of 7 answers"),
        ("while read line; do echo good; done", 3, 'printed "good", which is no reward'),
        ("while read line; do echo NaN; done", 3, 'printed "NaN", which is no reward'),
        ("while read line; do echo 1; echo 2; done", 3, "printed more than a line for each answer"),
    ],
)
def test_a_command_that_fails_ends_the_run_with_a_sentence(models, tmp_path, command, code, said):
    start = time.monotonic()
    flags = ("--reward-cmd", command, "--timeout", 1)
    result = ppo(models, tmp_path / "run", *flags, steps=2)
    assert result.returncode == code, result.stderr
    assert "help: " in result.stderr
    assert re.search(said, result.stderr), result.stderr
    assert time.monotonic() - start < 15


@pytest.mark.parametrize(
    "flags, code, said",
    [
        (("--reward-rule", "size:4"), 2, "there is no such rule"),
        (("--reward-rule", "length:0"), 2, "no length of at least 1"),
        (("--reward-rule", "regex:("), 2, "is no pattern: at byte 1"),
        (("--reward-fn", "rewards.py"), 2, "is not FILE.py:NAME"),
        (("--reward-fn", "/nonexistent/r.py:score"), 3, "/nonexistent/r.py"),
        (("--reward-rule", "json", "--reward-cmd", "true"), 2, "there is one reward"),
    ],
)
def test_rewards_that_cannot_be_are_refused_at_the_start(models, tmp_path, flags, code, said):
    result = ppo(models, tmp_path / "run", *flags)
    refused(result, code, said)
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_with_the_reward_it_began_with(models, tmp_path):
    flags = ("--save-interval", 1)
    result = ppo(models, tmp_path, "--reward-rule", "length:4", *flags)
    assert result.returncode == 0, result.stderr
    more = (*flags, "--resume", "auto")
    result = ppo(models, tmp_path, "--reward-rule", "length:5", *more, steps=2)
    refused(result, 2, 'began with reward "length:4", this command says "length:5"')
    result = ppo(models, tmp_path, "--reward-rule", "length:4", *more, steps=2)
    assert result.returncode == 0, result.stderr
    assert [line["step"] for line in metrics(tmp_path)] == [1, 2]


def xxh64(data):
    """The checksum of complete.json, from its specification."""
    p1, p2, p3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
    p4, p5, mask = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5, (1 << 64) - 1

    def turn(x, bits):
        return (x << bits | x >> (64 - bits)) & mask

    def mix(acc, lane):
        return turn((acc + lane * p2) & mask, 31) * p1 & mask

    stripes, at = [(p1 + p2) & mask, p2, 0, -p1 & mask], 0
    hash = p5
    if len(data) >= 32:
        while at + 32 <= len(data):
            lanes = struct.unpack_from("<4Q", data, at)
            stripes = [mix(acc, lane) for acc, lane in zip(stripes, lanes)]
            at += 32
        hash = sum(turn(acc, bits) for acc, bits in zip(stripes, (1, 7, 12, 18))) & mask
        for acc in stripes:
            hash = ((hash ^ mix(0, acc)) * p1 + p4) & mask
    hash = (hash + len(data)) & mask
    while at + 8 <= len(data):
        hash = (turn(hash ^ mix(0, struct.unpack_from("<Q", data, at)[0]), 27) * p1 + p4) & mask
        at += 8
    if at + 4 <= len(data):
        hash = (turn(hash ^ struct.unpack_from("<I", data, at)[0] * p1 & mask, 23) * p2 + p3) & mask
        at += 4
    for byte in data[at:]:
        hash = turn(hash ^ byte * p5 & mask, 11) * p1 & mask
    hash = (hash ^ hash >> 33) * p2 & mask
    hash = (hash ^ hash >> 29) * p3 & mask
    return hash ^ hash >> 32


def test_a_checkpoint_of_something_else_is_refused(models, tmp_path):
    flags = ("--save-interval", 1, "--reward-rule", "length:4")
    assert ppo(models, tmp_path, *flags).returncode == 0
    state = tmp_path / "step-000001" / "state.json"
    content = json.loads(state.read_text())
    del content["extra"]["seed"]
    state.write_text(json.dumps(content))

    # complete.json vouches for the bytes: it is rewritten as another program would have it.
    def text(value):
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()

    complete = tmp_path / "step-000001" / "complete.json"
    manifest = json.loads(complete.read_text())
    manifest["files"]["state.json"] = {
        "bytes": state.stat().st_size,
        "checksum": f"{xxh64(state.read_bytes()):016x}",
    }
    del manifest["checksum"]
    complete.write_text(json.dumps(manifest | {"checksum": f"{xxh64(text(manifest)):016x}"}))
    result = ppo(models, tmp_path, *flags, "--resume", tmp_path / "step-000001", steps=2)
    refused(result, 3, "is no checkpoint of a ppo run: it says nothing of its seed")


def test_no_prompt_is_taken_twice_in_a_step(models, tmp_path):
    (tmp_path / "one.jsonl").write_text('{"prompt": "a"}\n')
    result = reknit(
        *("ppo", "--actor", models / "actor", "--prompts", tmp_path / "one.jsonl", "--ranks", 9),
        *("--learning-rate", "1e-3", "--device", "cpu", "--batch", 1, "--save-samples", 99),
        *("--max-answer-seq-len", 4, "--reward-rule", "length:4", "--out", tmp_path / "run"),
        *("--num-train-epochs", 2),
    )
    assert result.returncode == 0, result.stderr
    assert "each step takes all 1 once" in result.stderr
    assert [s["step"] for s in samples(tmp_path / "run")] == [1, 2]


CRC_TABLE = []
for value in range(256):
    for _ in range(8):
        value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    CRC_TABLE.append(value)


def masked_crc(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ CRC_TABLE[(crc ^ byte) & 255]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def fields(data):
    """(number, value) of a protocol buffer: integers, and bytes for the other wire types."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        size = {1: 8, 5: 4}[key & 7] if key & 7 != 2 else varint()
        yield key >> 3, data[at : at + size]
        at += size


def events(path):
    data = path.read_bytes()
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        assert struct.unpack("<I", data[8:12])[0] == masked_crc(data[:8])
        event = data[12 : 12 + size]
        assert struct.unpack("<I", data[12 + size : 16 + size])[0] == masked_crc(event)
        yield dict(fields(event))
        data = data[16 + size :]


def scalars(folder):
    (path,) = folder.glob("events.out.tfevents.*")
    first, *rest = events(path)
    assert first[3] == b"brain.Event:2"
    found = {}
    for event in rest:
        assert abs(struct.unpack("<d", event[1])[0] - time.time()) < 600
        for number, value in fields(event[5]):
            assert number == 1
            tagged = dict(fields(value))
            number = struct.unpack("<f", tagged[2])[0]
            found.setdefault(tagged[1].decode(), {})[event[2]] = number
    return found


def test_tensorboard_files_hold_the_metrics(models, tmp_path):
    out = tmp_path / "run"
    result = ppo(models, out, "--reward-rule", "length:4", "--tensorboard", "--ranks", 2, steps=3)
    assert result.returncode == 0, result.stderr
    found = scalars(out / "tensorboard")
    for line in metrics(out):
        for tag in ("reward", "actor_loss", "critic_loss", "kl", "e2e_s"):
            assert found[tag][line["step"]] == pytest.approx(line[tag], rel=1e-6), tag
        assert found["actor_loss_sum"][line["step"]] == found["actor_loss"][line["step"]]
        assert found["critic/lr"][line["step"]] == pytest.approx(1e-3, rel=1e-6)


def test_the_configs_monitors_write_what_deepspeed_does(models, tmp_path):
    section = {"enabled": True, "output_path": str(tmp_path / "logs"), "job_name": "actor"}
    config = {"tensorboard": section, "csv_monitor": section, "train_micro_batch_size_per_gpu": 2}
    (tmp_path / "ds.json").write_text(json.dumps(config))
    flags = ("--reward-rule", "length:4", "--actor-config", tmp_path / "ds.json")
    result = ppo(models, tmp_path / "run", *flags, steps=2)
    assert result.returncode == 0, result.stderr
    found = scalars(tmp_path / "logs" / "actor")
    assert found["Train/Samples/lr"] == pytest.approx({7: 1e-3, 14: 1e-3}, rel=1e-6)
    rows = (tmp_path / "logs" / "actor" / "Train_Samples_lr.csv").read_text().splitlines()
    assert rows == ["step,Train/Samples/lr", "7,0.001", "14,0.001"]
