"""Trains tiny models with DeepSpeed on CPU, saves, goes on: python deepspeed_checkpoints.py FOLDER [CASE...]

Needs deepspeed (0.19.8 made the folders in tests/golden/deepspeed; 0.17.6, which still has
MiCS, made zero3_mics). For each case FOLDER/CASE gets the checkpoint as
DeepSpeed wrote it, config.json of the model, golden.json (what the run was, and the losses of
the steps after the checkpoint) and golden.safetensors (the fp32 weights after those steps).
"""

import json
import os
import shutil
import sys

os.environ["DS_ACCELERATOR"] = "cpu"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

BEFORE = 3
AFTER = 3
BATCH = 6
LENGTH = 12
VOCAB = 37

OPT = dict(
    model_type="opt",
    vocab_size=VOCAB,
    hidden_size=8,
    word_embed_proj_dim=8,
    ffn_dim=11,
    num_attention_heads=2,
    num_hidden_layers=2,
    max_position_embeddings=16,
    dropout=0.0,
    attention_dropout=0.0,
    init_std=0.2,
)
GPT2 = dict(
    model_type="gpt2",
    vocab_size=VOCAB,
    n_embd=8,
    n_inner=12,
    n_head=2,
    n_layer=2,
    n_positions=16,
    resid_pdrop=0.0,
    embd_pdrop=0.0,
    attn_pdrop=0.0,
    initializer_range=0.2,
    activation_function="gelu_new",
)

WARMUP_DECAY = {
    "type": "WarmupDecayLR",
    "params": {
        "warmup_min_lr": 0.001,
        "warmup_max_lr": 0.01,
        "warmup_num_steps": 2,
        "total_num_steps": 10,
    },
}

# ranks, batch (sequences of a step), and what differs from a plain run of OPT in fp32
CASES = {
    "zero0": dict(ranks=2, stage=0),
    "zero1": dict(ranks=2, stage=1, scheduler=True),
    "zero2_groups": dict(ranks=3, stage=2, groups=True, scheduler=True),
    "zero2_gpt2": dict(ranks=2, stage=2, model=GPT2, groups=True),
    "zero3": dict(ranks=3, stage=3, groups=True, scheduler=True),
    "zero3_frozen": dict(ranks=2, stage=3, frozen=True),
    "zero2_frozen": dict(ranks=2, stage=2, frozen=True),
    "zero1_frozen": dict(ranks=2, stage=1, frozen=True),
    "zero3_subgroups": dict(ranks=2, stage=3, zero={"sub_group_size": 300}),
    "zero2_bf16": dict(ranks=2, stage=2, dtype="bf16"),
    "zero3_bf16": dict(ranks=2, stage=3, dtype="bf16"),
    "zero1_bf16": dict(ranks=2, stage=1, dtype="bf16", accumulate="fp32"),
    "zero0_bf16": dict(ranks=2, stage=0, dtype="bf16"),
    "zero0_fp16": dict(ranks=2, stage=0, dtype="fp16"),
    "zero2_fp16": dict(ranks=2, stage=2, dtype="fp16"),
    "zero3_mics": dict(ranks=4, stage=3, batch=8, zero={"mics_shard_size": 2}),
    "zero3_fused": dict(ranks=2, stage=3, optimizer="fused"),
    "zero2_offload": dict(
        ranks=2, stage=2, optimizer="fused", zero={"offload_optimizer": {"device": "cpu"}}
    ),
}


def token(step, sequence, position):
    """The test makes the same. Without 1, OPT's padding, whose lookups torch gives no gradient."""
    return 2 + (31 * step + 17 * sequence + 7 * position * position + 3 * position) % (VOCAB - 2)


def config_of(case):
    params = {"lr": 0.01, "betas": [0.9, 0.98], "eps": 1e-8, "weight_decay": 0.05}
    if case.get("optimizer") != "fused":
        params["torch_adam"] = True
    batch = case.get("batch", BATCH)
    config = {
        "train_batch_size": batch,
        "train_micro_batch_size_per_gpu": batch // case["ranks"],
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": params},
        "zero_optimization": {
            "stage": case["stage"],
            "stage3_param_persistence_threshold": 20,
            **case.get("zero", {}),
        },
    }
    if case.get("scheduler"):
        config["scheduler"] = WARMUP_DECAY
    dtype = case.get("dtype", "fp32")
    if dtype == "bf16":
        config["bf16"] = {"enabled": True}
    if dtype == "fp16":
        config["fp16"] = {
            "enabled": True,
            "initial_scale_power": 19,
            "loss_scale_window": 2,
            "hysteresis": 1,
        }
    if "accumulate" in case:
        config["data_types"] = {"grad_accum_dtype": case["accumulate"]}
    return config


def parameters_of(model, case):
    """The groups; those that are no matrices do not decay, as Reknit has it."""
    params = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    matrices = [p for _, p in params if p.dim() > 1]
    others = [p for _, p in params if p.dim() <= 1]
    if case.get("groups"):
        return [{"params": matrices}, {"params": others, "weight_decay": 0.0}]
    return [p for _, p in params]


def gather_one_by_one():
    """MiCS gathers several tensors at once, which gloo does not know."""
    import torch.distributed as dist
    from deepspeed.comm.torch import TorchBackend

    class Works(list):
        def wait(self):
            for work in self:
                work.wait()

    def gather(self, outputs, inputs, group=None, async_op=False):
        pairs = zip(outputs, inputs, strict=True)
        works = [dist.all_gather_into_tensor(*pair, group=group, async_op=True) for pair in pairs]
        return Works(works) if async_op else Works(works).wait()

    TorchBackend.all_gather_coalesced = gather


def train(rank, name, folder, port):
    case = CASES[name]
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(case["ranks"]),
        LOCAL_SIZE=str(case["ranks"]),
        LOCAL_WORLD_SIZE=str(case["ranks"]),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    import deepspeed
    import torch
    from deepspeed.accelerator import get_accelerator
    from deepspeed.utils import safe_get_full_fp32_param
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    # DeepSpeed asks its accelerator; torch can compute in fp16 on any CPU, if slowly.
    type(get_accelerator()).is_fp16_supported = lambda self: True
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo", verbose=False)
    torch.manual_seed(5)
    shape = dict(case.get("model", OPT))
    model_config = AutoConfig.for_model(shape.pop("model_type"), **shape)
    config = config_of(case)
    model = AutoModelForCausalLM.from_config(model_config)
    if "mics_shard_size" in config["zero_optimization"]:
        gather_one_by_one()
        deepspeed.zero.MiCS_Init(module=model, config_dict_or_path=config)
    if case.get("frozen"):
        for key, value in model.named_parameters():
            value.requires_grad = "layers.0." not in key and "positions" not in key
    model.train()
    engine, _, _, _ = deepspeed.initialize(
        model=model, model_parameters=parameters_of(model, case), config=config
    )
    batch = config["train_batch_size"]
    share = batch // case["ranks"]

    def step(index):
        ids = torch.tensor(
            [[token(index, rank * share + row, at) for at in range(LENGTH)] for row in range(share)]
        )
        loss = engine(input_ids=ids, labels=ids, use_cache=False).loss
        engine.backward(loss)
        engine.step()
        mean = loss.detach().float().clone()
        torch.distributed.all_reduce(mean)
        return mean.item() / case["ranks"]

    losses = [step(i) for i in range(BEFORE)]
    engine.save_checkpoint(folder, client_state={"iteration": BEFORE, "note": "a user's own"})
    skipped = engine.skipped_steps
    after = [step(i) for i in range(BEFORE, BEFORE + AFTER)]
    weights = {}
    for key, value in engine.module.named_parameters():
        if case["stage"] == 0:
            full = value.detach()
        elif value.requires_grad:
            full = safe_get_full_fp32_param(value)
        else:
            with deepspeed.zero.GatheredParameters([value]):
                full = value.detach().clone()
        if full is not None:
            weights[key] = full.float().clone().contiguous()
    if rank == 0:
        model_config.save_pretrained(folder)
        save_file(weights, os.path.join(folder, "golden.safetensors"))
        golden = {
            "made_with": f"deepspeed {deepspeed.__version__}, torch {torch.__version__}",
            "ranks": case["ranks"],
            "stage": case["stage"],
            "dtype": case.get("dtype", "fp32"),
            "batch": batch,
            "length": LENGTH,
            "before": losses,
            "after": after,
            "skipped": skipped,
            "config": config,
            "decay_all": not case.get("groups", False),
        }
        with open(os.path.join(folder, "golden.json"), "w") as file:
            json.dump(golden, file, indent=1)
            file.write("\n")
        print(name, losses, after, "skipped", skipped)
    torch.distributed.destroy_process_group()


def make(name, target):
    import torch.multiprocessing as mp

    folder = os.path.join(target, name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    port = 29600 + list(CASES).index(name)
    mp.start_processes(
        train, args=(name, folder, port), nprocs=CASES[name]["ranks"], start_method="spawn"
    )
    for script in ("zero_to_fp32.py", "zero_to_torch.py"):
        path = os.path.join(folder, script)
        if os.path.exists(path):
            os.remove(path)


if __name__ == "__main__":
    failed = []
    for chosen in sys.argv[2:] or list(CASES):
        try:
            make(chosen, sys.argv[1])
        except Exception as error:
            failed.append(f"{chosen}: {str(error).strip().splitlines()[-1]}")
    if failed:
        sys.exit("not made: " + "; ".join(failed))
