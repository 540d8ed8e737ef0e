"""Tiny random models of transformers with everything a decoder must reproduce.

usage: models.py FOLDER. A folder per case: config.json, model.safetensors (as
transformers saves it), critic.safetensors (value head), golden.safetensors:
  tokens, lengths      ragged sequences, concatenated
  targets              next token, -1 at the end of a sequence
  weights              loss = sum(weights * logp);     grad.NAME  its gradients
  value_weights        loss = sum(value_weights * v);  value_grad.NAME
  logp, entropy, values
  generated            [B, 12]: greedy, with the sequences as prompts
"""

import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from safetensors.torch import save_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BloomConfig,
    GPT2Config,
    OPTConfig,
)

LENGTHS = [5, 1, 9, 3]
NEW_TOKENS = 12
OPT = dict(vocab_size=83, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=32)

CASES = {
    "opt-125m": OPTConfig(**OPT, hidden_size=32, ffn_dim=56),
    "opt-350m": OPTConfig(
        **OPT, hidden_size=32, ffn_dim=37, word_embed_proj_dim=16, do_layer_norm_before=False
    ),
    "opt-untied": OPTConfig(
        **OPT, hidden_size=24, ffn_dim=40, activation_function="gelu", tie_word_embeddings=False
    ),
    "bloom-4-heads": BloomConfig(vocab_size=97, hidden_size=32, n_layer=2, n_head=4),
    "bloom-6-heads": BloomConfig(vocab_size=97, hidden_size=48, n_layer=2, n_head=6),
    "bloom-post-residual": BloomConfig(
        vocab_size=97,
        hidden_size=32,
        n_layer=2,
        n_head=4,
        apply_residual_connection_post_layernorm=True,
    ),
    "gpt2": GPT2Config(vocab_size=89, n_positions=32, n_embd=32, n_layer=2, n_head=4),
}
# How the tensors of critic.safetensors are named.
CRITICS = {
    "opt-125m": "rwtransformer.",
    "opt-350m": "rwtransformer.",
    "opt-untied": "score",
    "bloom-4-heads": "rwtranrsformer.",
    "bloom-6-heads": "score",
    "bloom-post-residual": "",
    "gpt2": "score",
}


def randomise(model, generator):
    """Values large enough that every parameter matters to the result."""
    with torch.no_grad():
        for name, param in model.named_parameters():
            param.normal_(0, 0.2, generator=generator)
            if param.dim() == 1 and name.endswith("weight"):
                param.add_(1)


def left_padded(rows):
    width = max(map(len, rows))
    ids = torch.full((len(rows), width), 1)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, width - len(row) :] = torch.tensor(row)
        mask[i, width - len(row) :] = 1
    return ids, mask


def inputs_of(config, rows):
    ids, mask = left_padded(rows)
    inputs = dict(input_ids=ids, attention_mask=mask)
    if config.model_type == "gpt2":
        inputs["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
    return inputs, mask.bool()


def base_of(model):
    return getattr(model, model.base_model_prefix)


def named_gradients(model, prefix):
    return {
        prefix + name: param.grad.contiguous()
        for name, param in model.named_parameters()
        if param.grad is not None
    }


def log_probabilities(model, rows, generator):
    inputs, real = inputs_of(model.config, rows)
    logps = torch.log_softmax(model(**inputs).logits, -1)
    logps = [logps[i][real[i]] for i in range(len(rows))]
    targets = [torch.tensor(row[1:] + [-1]) for row in rows]
    flat, target = torch.cat(logps), torch.cat(targets)
    logp = flat.gather(1, target.clamp(min=0)[:, None])[:, 0] * (target >= 0)
    weights = torch.randn(len(flat), generator=generator)
    model.zero_grad()
    (weights * logp).sum().backward()
    return {
        "targets": target,
        "logp": logp.detach(),
        "entropy": -(flat.exp() * flat).sum(-1).detach(),
        "weights": weights,
        **named_gradients(model, "grad."),
    }


def values(model, rows, generator):
    inputs, real = inputs_of(model.config, rows)
    hidden = base_of(model)(**inputs).last_hidden_state
    out = model.score(torch.cat([hidden[i][real[i]] for i in range(len(rows))]))[:, 0]
    weights = torch.randn(len(out), generator=generator)
    model.zero_grad()
    (weights * out).sum().backward()
    return {
        "values": out.detach(),
        "value_weights": weights,
        **named_gradients(model, "value_grad."),
    }


def generated(model, rows):
    ids, mask = left_padded(rows)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 1
    out = model.generate(ids, attention_mask=mask, max_new_tokens=NEW_TOKENS, do_sample=False)
    return out[:, ids.shape[1] :].contiguous()


def save_critic(model, kind, folder):
    state = model.state_dict()
    if kind != "score":
        prefix = model.base_model_prefix + "."
        state = {
            "v_head.weight" if name == "score.weight" else kind + name.removeprefix(prefix): value
            for name, value in state.items()
        }
    save_file({k: v.clone() for k, v in state.items()}, os.path.join(folder, "critic.safetensors"))


def write_case(name, config, folder):
    os.makedirs(folder, exist_ok=True)
    generator = torch.Generator().manual_seed(1234)
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config).eval()
    randomise(model, generator)
    model.save_pretrained(folder)
    rows = [torch.randint(3, config.vocab_size, (n,), generator=generator) for n in LENGTHS]
    rows = [row.tolist() for row in rows]
    rows[0][1] = rows[2][4] = rows[2][5] = 1  # OPT's padding: its lookups train nothing
    golden = log_probabilities(model, rows, generator)
    golden["generated"] = generated(model, rows)

    config.num_labels = 1
    critic = AutoModelForSequenceClassification.from_config(config).eval()
    randomise(critic, generator)
    golden |= values(critic, rows, generator)
    save_critic(critic, CRITICS[name], folder)

    golden["tokens"] = torch.tensor(sum(rows, []))
    golden["lengths"] = torch.tensor(LENGTHS)
    save_file(golden, os.path.join(folder, "golden.safetensors"))


def main(out):
    torch.set_num_threads(1)
    for name, config in CASES.items():
        write_case(name, config, os.path.join(out, name))


if __name__ == "__main__":
    main(sys.argv[1])
