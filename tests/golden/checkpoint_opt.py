"""A tiny OPT in every form of a Hugging Face folder, and the check of one that we wrote.

python checkpoint_opt.py write FOLDER
python checkpoint_opt.py check ORIGINAL EXPORTED...
"""

import json
import os
import shutil
import sys

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, OPTConfig, OPTForCausalLM


def write(folder):
    torch.manual_seed(11)
    config = OPTConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        ffn_dim=32,
        num_attention_heads=2,
        max_position_embeddings=20,
        word_embed_proj_dim=8,
        do_layer_norm_before=False,
    )
    model = OPTForCausalLM(config)
    single, sharded = os.path.join(folder, "single"), os.path.join(folder, "sharded")
    model.save_pretrained(single)
    model.save_pretrained(sharded, max_shard_size="8KB")
    state = model.state_dict()
    names = list(state)
    for form in ("bin", "bin_sharded"):
        os.mkdir(os.path.join(folder, form))
        shutil.copy(os.path.join(single, "config.json"), os.path.join(folder, form))
    torch.save(state, os.path.join(folder, "bin", "pytorch_model.bin"))
    files = {}
    for i, part in enumerate((names[:5], names[5:])):
        file = f"pytorch_model-{i + 1:05d}-of-00002.bin"
        torch.save({name: state[name] for name in part}, os.path.join(folder, "bin_sharded", file))
        files |= dict.fromkeys(part, file)
    with open(os.path.join(folder, "bin_sharded", "pytorch_model.bin.index.json"), "w") as out:
        json.dump({"metadata": {}, "weight_map": files}, out)


def check(original, *exported):
    expected = AutoModelForCausalLM.from_pretrained(original)
    for folder in exported:
        model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
        for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            assert not report[key], (folder, key, report[key])
        for name, value in expected.state_dict().items():
            assert torch.equal(model.state_dict()[name], value), (folder, name)
        assert model.lm_head.weight is model.model.decoder.embed_tokens.weight
        assert GenerationConfig.from_pretrained(folder).eos_token_id == expected.config.eos_token_id


if __name__ == "__main__":
    {"write": write, "check": check}[sys.argv[1]](*sys.argv[2:])
