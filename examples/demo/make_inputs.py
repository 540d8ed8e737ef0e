"""Writes what the demo starts from: two tokenizers, two model configurations, real prompts.

    python make_inputs.py OUT

The text is English that comes with every CPython: the language reference behind `help()`.
OUT/opt and OUT/bloom get config.json and tokenizer files, and OUT/prompts.jsonl the prompts.
"""

import json
import pathlib
import pydoc_data.topics
import re
import sys

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

VOCAB = 1024
NUM_PROMPTS = 256
BLOOM_SPLIT = Regex(" ?[^(\\s|[.,!?…。，、।۔،])]+")


def text():
    return "\n\n".join(topic for _, topic in sorted(pydoc_data.topics.topics.items()))


def sentences():
    """Whole sentences of 30 to 90 letters, in the order of the text, each once."""
    flat = re.sub(r"\s+", " ", text())
    found = re.findall(r"(?<=[.] )[A-Z][a-z][a-z ,'-]{28,88}\.(?= )", flat)
    return list(dict.fromkeys(found))


def trained(special, pre_tokenizer):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text().splitlines(keepends=True), trainer)
    return tokenizer


def opt_tokenizer():
    """GPT-2's split, and an end token in front of every text."""
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = trained(["<s>", "<pad>", "</s>", "<unk>"], split)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="</s> $A", pair="</s> $A $B", special_tokens=[("</s>", 2)]
    )
    return tokenizer, {"bos_token": "</s>", "eos_token": "</s>", "pad_token": "<pad>"}


def bloom_tokenizer():
    """A split of its own before the byte level, and nothing around a text."""
    split = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(BLOOM_SPLIT, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer = trained(["<unk>", "<s>", "</s>", "<pad>"], split)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer, {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}


# OPT-350m in small: norms after the sum, and embeddings half as wide as the blocks. Weights are
# larger than usual, so that these untrained models prefer some tokens and a reward can differ.
OPT = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "activation_function": "relu",
    "do_layer_norm_before": False,
    "hidden_size": 128,
    "word_embed_proj_dim": 64,
    "ffn_dim": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "init_std": 0.08,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "vocab_size": VOCAB,
    "tie_word_embeddings": True,
    "bos_token_id": 2,
    "eos_token_id": 2,
    "pad_token_id": 1,
    "torch_dtype": "float32",
}

BLOOM = {
    "architectures": ["BloomForCausalLM"],
    "model_type": "bloom",
    "hidden_size": 128,
    "n_layer": 4,
    "n_head": 4,
    "layer_norm_epsilon": 1e-5,
    "initializer_range": 0.05,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "vocab_size": VOCAB,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 3,
    "torch_dtype": "float32",
}


def write_model(folder, config, tokenizer, special):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def main(out):
    write_model(out / "opt", OPT, *opt_tokenizer())
    write_model(out / "bloom", BLOOM, *bloom_tokenizer())
    prompts = [f" Human: {sentence} Assistant:" for sentence in sentences()[:NUM_PROMPTS]]
    lines = "".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts)
    (out / "prompts.jsonl").write_text(lines)
    print(f"{len(prompts)} prompts, two tokenizers of {VOCAB} tokens")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
