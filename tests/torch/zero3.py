#!/usr/bin/env python3
"""zero3.py make SEED OUTDIR   - write random models, and checkpoints as DeepSpeed's ZeRO 3 would save them.
zero3.py check OUTDIR MOUNTS - load MOUNTS/NAME/hf with transformers: it must be the original model.

OUTDIR/NAME/hf/ is written by save_pretrained, NAME/ckpt has the files of the ranks, NAME/logits the model's logits.
A parameter is a padded slice of each rank's flat tensor. Some models have two groups of parameters (as with and
without weight decay), or several flat tensors for a group, or frozen parameters. The second name of a tied parameter
is only in shared_params.
"""
import logging
import os
import pathlib
import random
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
logging.disable(logging.CRITICAL)

import torch
import transformers

from loaded import check

COMMON = {"vocab_size": 50, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 3,
          "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 64,
          "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
MODELS = {
    "llama": (transformers.LlamaConfig, COMMON | {"tie_word_embeddings": False}),
    "llama-tied": (transformers.LlamaConfig, COMMON | {"tie_word_embeddings": True}),
    "qwen2": (transformers.Qwen2Config, COMMON),
    "gpt2": (transformers.GPT2Config, {"vocab_size": 50, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 64}),
}


def slices(w, ranks):
    """Each rank's part of a parameter."""
    flat = w.detach().float().flatten()
    length = -(-len(flat) // ranks)
    return list(torch.cat([flat, torch.full((length * ranks - len(flat),), 9.0)]).split(length))


def save(r, model, out):
    ranks = r.choice([1, 2, 3, 5, 8])
    parameters = dict(model.named_parameters())  # tied ones only once
    alias = {k: next(n for n, p in parameters.items() if p is v)
             for k, v in model.named_parameters(remove_duplicate=False) if k not in parameters}
    frozen = {k for k in parameters if r.random() < 0.2} if r.random() < 0.5 else set()
    decay = {k: r.random() < 0.5 and parameters[k].ndim < 2 for k in parameters}
    groups = [[k for k in parameters if k not in frozen and decay[k] == which] for which in (False, True)]
    groups = [g for g in groups if g]
    flat = []  # the names in each flat tensor, which is a group or a part of one (sub_group_size)
    for group in groups:
        cut = r.randint(1, len(group)) if r.random() < 0.5 else len(group)
        flat += [part for part in (group[:cut], group[cut:]) if part]
    part = {k: slices(p, ranks) for k, p in parameters.items()}
    module = {k: torch.empty(0, dtype=torch.bfloat16) for k in [*parameters, *alias]}
    buffers = {k: v for k, v in model.named_buffers() if k in model.state_dict()}
    module |= buffers
    tag = f"{out}/global_step7"
    os.makedirs(tag)
    with open(f"{out}/latest", "w", encoding="ascii") as f:
        f.write("global_step7")
    for rank in range(ranks):
        stem = f"zero_pp_rank_{rank}_mp_rank_00"
        torch.save({"module": module, "buffer_names": list(buffers), "optimizer": None,
                    "param_shapes": [{k: parameters[k].shape for k in names} for names in flat],
                    "frozen_param_shapes": {k: parameters[k].shape for k in parameters if k in frozen},
                    "frozen_param_fragments": {k: part[k][rank] for k in parameters if k in frozen},
                    "shared_params": alias, "global_steps": 7, "dp_world_size": ranks, "mp_world_size": 1,
                    "ds_version": "0.19.6"}, f"{tag}/{stem}_model_states.pt")
        masters = [torch.cat([part[k][rank] for k in names]) for names in flat]
        torch.save({"optimizer_state_dict": {
            "zero_stage": 3, "partition_count": ranks, "fp32_flat_groups": masters,
            "optimizer_state_dict": {
                "state": {i: {"step": torch.tensor(7.0), "exp_avg": m / 2, "exp_avg_sq": m * m}
                          for i, m in enumerate(masters)},
                "param_groups": [{"lr": 1e-4, "params": [i]} for i in range(len(masters))]}},
            "ds_version": "0.19.6"}, f"{tag}/bf16_{stem}_optim_states.pt")


def make(seed, out):
    for name, (cls, values) in MODELS.items():
        r = random.Random(f"{seed} {name}")
        torch.manual_seed(r.getrandbits(32))
        here = pathlib.Path(out, name)
        model = transformers.AutoModelForCausalLM.from_config(cls(**values)).eval()
        with torch.no_grad():
            for p in model.parameters():
                p.uniform_(-1, 1)
            tokens = torch.randint(50, (2, 9))
            logits = model(tokens).logits
        model.save_pretrained(here / "hf")
        torch.save((tokens, logits), here / "logits")
        save(r, model, here / "ckpt")


if __name__ == "__main__":
    {"make": make, "check": check}[sys.argv[1]](*sys.argv[2:])
