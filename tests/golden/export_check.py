"""Loads exported folders in transformers, strictly, and compares them with their sources.

usage: export_check.py ROOT. ROOT/cases.json: a list of {folder, source, critic, dtype};
source is a folder of models.py. Weights and outputs must be equal, bit for bit, to those
of the source in that dtype. Exit 1 and a line for each case that differs.
"""

import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
)
from transformers.utils import logging

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def source_critic(folder):
    config = AutoConfig.from_pretrained(folder, num_labels=1)
    model = AutoModelForSequenceClassification.from_config(config)
    names = model.state_dict().keys()
    state = {}
    for name, value in load_file(os.path.join(folder, "critic.safetensors")).items():
        if name == "v_head.weight":
            name = "score.weight"
        name = name.removeprefix("rwtransformer.").removeprefix("rwtranrsformer.")
        state[name if name in names else f"{model.base_model_prefix}.{name}"] = value
    model.load_state_dict(state)
    return model


def problems_of(case, root):
    dtype = DTYPES[case["dtype"]]
    folder = os.path.join(root, case["folder"])
    kind = AutoModelForSequenceClassification if case["critic"] else AutoModelForCausalLM
    loaded, info = kind.from_pretrained(folder, dtype="auto", output_loading_info=True)
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if info.get(key):
            yield f"{key}: {info[key]}"
    if loaded.dtype != dtype:
        yield f"the dtype is {loaded.dtype}"
    source = (
        source_critic(case["source"])
        if case["critic"]
        else AutoModelForCausalLM.from_pretrained(case["source"], dtype=torch.float32)
    )
    source = source.to(dtype).eval()
    loaded = loaded.eval()
    for param in [*source.parameters(), *loaded.parameters()]:
        # A mapped file need not be aligned, and the order of a sum depends on that.
        param.data = param.data.clone()
    for name, value in source.state_dict().items():
        if not torch.equal(value, loaded.state_dict()[name]):
            yield f"{name} differs"
    tokens = torch.tensor([[5, 3, 60, 7, 11]])
    mask = torch.ones_like(tokens)
    head = "score" if case["critic"] else None
    outputs = [
        model.score(getattr(model, model.base_model_prefix)(tokens).last_hidden_state)
        if head
        else model(input_ids=tokens, attention_mask=mask).logits
        for model in (source, loaded)
    ]
    if not torch.equal(*outputs):
        yield f"outputs differ by {(outputs[0] - outputs[1]).abs().max()}"
    tied = not case["critic"] and source.config.tie_word_embeddings
    with safe_open(os.path.join(folder, "model.safetensors"), "pt") as file:
        heads = [name for name in file.keys() if name.startswith("lm_head")]
    if heads != ([] if tied or case["critic"] else ["lm_head.weight"]):
        yield f"output tables in the file: {heads}"


def main(root):
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with open(os.path.join(root, "cases.json")) as file:
        cases = json.load(file)
    found = []
    for case in cases:
        found += [f"{case['folder']}: {problem}" for problem in problems_of(case, root)]
    print("\n".join(found))
    return 1 if found or not cases else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
