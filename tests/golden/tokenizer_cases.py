"""Trains small tokenizers and writes texts with the ids that `tokenizers` gives them.

Usage: tokenizer_cases.py OUT [megabytes]. Writes a folder per tokenizer and cases.json.
"""

import json
import os
import pathlib
import pydoc_data.topics
import random
import sys

os.environ["TOKENIZERS_PARALLELISM"] = "true"
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    processors,
    trainers,
)

BLOOM = " ?[^(\\s|[.,!?…。，、।۔،])]+"
LLAMA = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
EDGES = [
    "",
    " ",
    "  ",
    "\n",
    " \n",
    "\t\t x",
    "a",
    "'s",
    "'S",
    "it's they're I'LL we'Ve ſ 'ſ",
    "\0",
    "a\0b\0\0",
    "</s>",
    "</s></s> a </s>b",
    "<pad>",
    " <unk> <s>",
    "<|endoftext|>x <|endoftext|>",
    "</s",
    "<",
    "</s>>",
    "x   <left>   y",
    "<left><right>",
    "  <left> <left>  ",
    "a<right>   b",
    "<right>  <left>  <right>",
    "alone",
    "alone.",
    " alone ",
    "standalone",
    "alone1",
    "éalone",
    "alone\u0301",
    "(alone)",
    "alone alone",
    "ⓐalone",
    "\u200dalone",
    "<a",
    "<a>",
    "<a><b>",
    "<a><b",
    "<a><a><b>",
    "Zürich",
    "in Zürich!",
    "Zu\u0308rich",
    "\ufeffbom",
    "\ufffd",
    "\uffff\U0010ffff\ue000",
    "e\u0301\u0327\u0300",
    "\u0301\u0301",
    "\u180e \u180e",
    "\u200b \u2060",
    "\u0085x\u0085",
    "\u00a0\u00a0x",
    "\u1680\u2000\u2028\u2029\u202f\u205f\u3000",
    "\x0b\x0c\x1c\x1d\x1e\x1f ",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇫🇷🇩🇪 1️⃣",
    "日本語のテキスト。中文，测试、好",
    "한국어 텍스트",
    "\u202bعربي\u202c نص ١٢٣، هنا۔",
    "हिन्दी पाठ। क्षत्रिय",
    "ไทย",
    "שלום",
    "Ⅷ ½ ² ৪ ①",
    "\U00011bc5\U0001ccf3\U0001e4f5\U00031350",
    "a\r\nb\r\n\r\nc",
    "1234567890 12,345.67",
    "…..!?",
    "(x|y) [z].",
    "\u0660\u0661",
    "ß SS ǅ ﬀ K",
    " " * 100_000,
    "a" * 100_000,
    "ab" * 30_000,
    "\n" * 50_000,
    "!" * 50_000,
    " a" * 40_000,
    "\u0301" * 20_000,
    "x" + " " * 70_000 + "y",
    "日" * 30_000,
    "👍" * 10_000,
    "<left>" * 3000,
    " <right> " * 3000,
]


def real_text():
    parts = list(pydoc_data.topics.topics.values())
    folder = pathlib.Path(os.__file__).parent
    for name in sorted(folder.glob("*.py"))[:60]:
        parts.append(name.read_text("utf-8", "replace"))
    return parts


def words_of(rng, low, high, count=300):
    return [
        "".join(chr(rng.randrange(low, high)) for _ in range(rng.randrange(1, 9)))
        for _ in range(count)
    ]


def mixed_words(rng):
    """Words of many scripts, and the characters that tokenizers stumble over."""
    words = []
    for low, high in [
        (0x41, 0x5B),
        (0x61, 0x7B),
        (0xC0, 0x250),
        (0x370, 0x400),
        (0x400, 0x500),
        (0x590, 0x600),
        (0x600, 0x700),
        (0x900, 0x980),
        (0xE00, 0xE80),
        (0x1100, 0x1200),
        (0x3040, 0x3100),
        (0x4E00, 0x9FA6),
        (0xAC00, 0xD7A4),
        (0x1F300, 0x1F700),
        (0x1F900, 0x1FA00),
        (0x20000, 0x2A6D0),
        (0x300, 0x370),
        (0x0, 0x20),
        (0x2000, 0x2070),
        (0xFE00, 0xFE10),
        (0x30, 0x3A),
        (0x21, 0x30),
    ]:
        words += words_of(rng, low, high)
    everything = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    words += ["".join(map(chr, rng.sample(everything, 4))) for _ in range(3000)]
    words += [
        "👩‍👩‍👧‍👦",
        "🏳️‍🌈",
        "👍🏽",
        "e\u0301",
        "n\u0303o",
        "\u200f",
        "\u200e",
        "\u202e",
        "\u2067abc\u2069",
        "'s",
        "'re",
    ] * 40
    words += [
        "</s>",
        "<pad>",
        "<|endoftext|>",
        "<left>",
        "<right>",
        "alone",
        "<a><b>",
        "Zürich",
        "<s>",
        "<unk>",
    ] * 20
    return words


def documents(seed, size, real):
    rng = random.Random(seed)
    words = mixed_words(rng)
    spaces = [" "] * 20 + ["", "  ", "\n", "\t", "\n\n", "\u3000", "\u00a0", " \n ", "    "]
    texts, total = [], 0
    while total < size:
        if rng.random() < 0.5:
            text = rng.choice(real)
            start = rng.randrange(max(1, len(text) - 3000))
            text = text[start : start + 6000]
        else:
            text = "".join(w + rng.choice(spaces) for w in rng.choices(words, k=500))
        texts.append(text)
        total += len(text.encode("utf-8"))
    return texts


def trained(pre, special, real, size=6000):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=special,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(real, trainer)
    return tokenizer


def extras(tokenizer):
    tokenizer.add_tokens(
        [
            AddedToken("<left>", lstrip=True),
            AddedToken("<right>", rstrip=True, normalized=False),
            AddedToken("alone", single_word=True),
            AddedToken("<a>", normalized=False),
            AddedToken("<a><b>", normalized=False),
            AddedToken("Zürich", normalized=True),
        ]
    )


def string_merges(path):
    """Older files write a merge as one string."""
    data = json.loads(path.read_text("utf-8"))
    data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]
    path.write_text(json.dumps(data), "utf-8")


def build(out, real):
    level = pre_tokenizers.ByteLevel
    made = {}
    gpt2 = trained(level(add_prefix_space=False), ["<|endoftext|>"], real)
    gpt2.post_processor = processors.ByteLevel(trim_offsets=False)
    extras(gpt2)
    made["gpt2"] = gpt2
    opt = trained(level(add_prefix_space=False), ["<s>", "<pad>", "</s>", "<unk>"], real)
    (out / "opt_files").mkdir()
    opt.model.save(str(out / "opt_files"))
    (out / "opt_files" / "config.json").write_text(
        json.dumps({"model_type": "opt", "eos_token_id": 2})
    )
    files = Tokenizer(
        models.BPE.from_file(str(out / "opt_files/vocab.json"), str(out / "opt_files/merges.txt"))
    )
    for tokenizer in (opt, files):
        tokenizer.post_processor = processors.TemplateProcessing(
            single="</s> $A", special_tokens=[("</s>", 2)]
        )
    files.pre_tokenizer, files.decoder = opt.pre_tokenizer, opt.decoder
    files.add_special_tokens([AddedToken("</s>"), AddedToken("<pad>")])
    made["opt"], made["opt_files"] = opt, files
    bloom = trained(
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(BLOOM), "isolated"),
                level(add_prefix_space=False, use_regex=False),
            ]
        ),
        ["<unk>", "<s>", "</s>", "<pad>"],
        real,
    )
    bloom.post_processor = processors.ByteLevel()
    made["bloom"] = bloom
    llama = Tokenizer.from_str(bloom.to_str())
    llama.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA), "isolated"),
            level(add_prefix_space=False, use_regex=False),
        ]
    )
    llama.model.ignore_merges = True
    llama.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
            ),
        ]
    )
    extras(llama)
    made["llama"] = llama
    prefix = Tokenizer.from_str(gpt2.to_str())
    prefix.pre_tokenizer = level(add_prefix_space=True)
    made["prefix"] = prefix
    for name, tokenizer in made.items():
        if name != "opt_files":
            (out / name).mkdir()
            tokenizer.save(str(out / name / "tokenizer.json"))
    string_merges(out / "gpt2" / "tokenizer.json")
    return made


def main():
    out = pathlib.Path(sys.argv[1])
    size = float(sys.argv[2]) if len(sys.argv) > 2 else 5
    out.mkdir(parents=True, exist_ok=True)
    real = real_text()
    made = build(out, real)
    share = {"gpt2": 0.3, "opt": 0.2, "opt_files": 0.1, "bloom": 0.3, "llama": 0.05, "prefix": 0.05}
    for seed, (name, tokenizer) in enumerate(made.items()):
        texts = EDGES + documents(seed, int(size * share[name] * 1e6), real)
        ids = [e.ids for e in tokenizer.encode_batch(texts)]
        rng = random.Random(seed)
        top = tokenizer.get_vocab_size() + 10
        random_ids = [[rng.randrange(top) for _ in range(rng.randrange(20))] for _ in range(500)]
        case = {
            "texts": texts,
            "ids": ids,
            "plain_ids": [tokenizer.encode(t, add_special_tokens=False).ids for t in EDGES],
            "random_ids": random_ids,
            "decoded": tokenizer.decode_batch(random_ids, skip_special_tokens=False),
            "decoded_plain": tokenizer.decode_batch(random_ids, skip_special_tokens=True),
        }
        (out / f"{name}.cases.json").write_text(json.dumps(case, ensure_ascii=False), "utf-8")


main()
