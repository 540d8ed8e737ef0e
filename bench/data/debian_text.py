#!/usr/bin/env python3
"""English prose that a Debian has, and a BPE of it: python debian_text.py OUT [--vocabulary 8192]

Reads copyright files, manuals and documentation (FOLDERS below; more with --also), leaves out every
paragraph that was seen before, and writes OUT/text.jsonl and OUT/tokenizer, for `reknit data build`.
Needs the package tokenizers. The same files give the same text, and the same tokenizer.
"""

import argparse
import gzip
import hashlib
import json
import pathlib
import re

FOLDERS = ["/usr/share/doc", "/usr/share/common-licenses", "/usr/share/perl", "/usr/share/perl5"]
PROSE = re.compile(
    r"^(copyright|readme.*|news.*|faq.*|authors|todo|changelog.*|gpl-.*|.*\.(txt|md|rst|pod|html?))$"
)
TAG = re.compile(r"<(script|style)\b.*?</\1>|<[^<>]{1,500}>", re.DOTALL | re.IGNORECASE)
LEAST_LETTERS = 0.6  # of a paragraph's characters: tables, listings and lists of names have fewer
LEAST_LENGTH = 80


def read(path):
    """The text of a file, "" where it is none."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        text = data.decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError):
        return ""
    return TAG.sub(" ", text) if re.search(r"\.html?$", path.name.removesuffix(".gz")) else text


def paragraphs(text, seen):
    for part in re.split(r"\n\s*\n", text):
        part = part.strip()
        letters = sum(c.isascii() and (c.isalpha() or c == " ") for c in part)
        if len(part) < LEAST_LENGTH or letters < LEAST_LETTERS * len(part):
            continue
        key = hashlib.blake2b(" ".join(part.split()).encode(), digest_size=8).digest()
        if key not in seen:
            seen.add(key)
            yield part


def documents(folders):
    seen = set()
    for folder in folders:
        for path in sorted(pathlib.Path(folder).rglob("*")):
            name = path.name.lower().removesuffix(".gz")
            if path.is_file() and not path.is_symlink() and PROSE.match(name):
                text = "\n\n".join(paragraphs(read(path), seen))
                if text:
                    yield text


def train_tokenizer(texts, vocabulary, folder):
    from tokenizers import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>"]  # at the ids of OPT
    tokenizer.train_from_iterator(texts, vocab_size=vocabulary, special_tokens=special)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "</s>", "eos_token": "</s>", "pad_token": "<pad>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--also", nargs="*", default=[], help="more folders")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    texts = list(documents(FOLDERS + options.also))
    with open(options.out / "text.jsonl", "w", encoding="utf-8") as file:
        for text in texts:
            file.write(json.dumps({"text": text}) + "\n")
    train_tokenizer(texts, options.vocabulary, options.out / "tokenizer")
    print(f"{len(texts)} documents, {sum(map(len, texts)):,} characters in {options.out}")


if __name__ == "__main__":
    main()
