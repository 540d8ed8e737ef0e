"""What runs of the command need besides it: an environment, token files, a tokenizer."""

import os
import re
import struct
import subprocess

_LAUNCHERS = re.compile(r"^(RANK|LOCAL_|WORLD_SIZE|MASTER_|OMPI_|PMI_|SLURM_|TORCHELASTIC_)")


def unlaunched():
    """This environment without what a launcher may have put into it."""
    return {key: value for key, value in os.environ.items() if not _LAUNCHERS.match(key)}


def launched(rank, world, port, host="127.0.0.1"):
    """What a launcher tells a process of a job on one machine."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
    }


def checked(script, folder, files):
    """Lays out `files` (path: text) in `folder` as a working copy and runs the check on it."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return subprocess.run([script, "--root", folder], capture_output=True, text=True)


def write_tokens(prefix, documents):
    """Megatron's pair of files, 16 bits a token."""
    lengths = [len(document) for document in documents]
    places = [2 * sum(lengths[:i]) for i in range(len(lengths))]
    tokens = [token for document in documents for token in document]
    prefix.with_suffix(".bin").write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))
    count = len(documents)
    prefix.with_suffix(".idx").write_bytes(
        b"MMIDIDX\0\0"
        + struct.pack("<QBQQ", 1, 8, count, count + 1)
        + struct.pack(f"<{count}i", *lengths)
        + struct.pack(f"<{count}q", *places)
        + struct.pack(f"<{count + 1}q", *range(count + 1))
    )


def byte_level_tokenizer(vocabulary, special, merges=()):
    """tokenizer.json of the GPT-2 kind; `special` are the texts of its first ids."""
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": text, "special": True, **plain} for i, text in enumerate(special)
        ],
        "pre_tokenizer": {**level, "use_regex": True},
        "decoder": level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": list(merges)},
    }
