#!/usr/bin/env python3
"""make_megatron.py SEED MODELDIR... - write what Megatron-core would have saved of these models.

MODELDIR is one of make_models.py's, of llama, qwen2, qwen3 or mixtral. MODELDIR/megatron becomes a DCP
checkpoint of the same weights in Megatron-core's layout: layers and experts stacked or under separate
names, queries, keys and values of a group together, gate above up, a vocabulary with padding, norms in
the projections after them or separate, and optimizer state. SEED decides which.
"""
import json
import os
import random
import shutil
import sys

import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp


def padded(r, w):
    rows = -w.shape[0] % r.choice([8, 64, 128])
    return torch.cat([w, torch.full((rows, w.shape[1]), 7.0, dtype=w.dtype)])


def fused(conf, q, k, v):
    """Weights or biases in the order of groups: the queries, the key and the value of each."""
    groups, rest = conf["num_key_value_heads"], q.shape[1:]
    parts = [x.reshape(groups, -1, *rest) for x in (q, k, v)]
    return torch.cat(parts, 1).reshape(-1, *rest)


def layer(conf, own_norms, hf, i):
    """Names and weights of one layer; experts are stacked."""
    def w(name):
        return hf[f"model.layers.{i}.{name}"]

    attention = "self_attention."
    out = {f"{attention}linear_proj.weight": w("self_attn.o_proj.weight")}
    for kind in ("weight", "bias"):
        if f"model.layers.{i}.self_attn.q_proj.{kind}" in hf:
            out[f"{attention}linear_qkv.{kind}"] = fused(
                conf, *(w(f"self_attn.{x}_proj.{kind}") for x in "qkv"))
    for x in "qk":
        if f"model.layers.{i}.self_attn.{x}_norm.weight" in hf:
            out[f"{attention}{x}_layernorm.weight"] = w(f"self_attn.{x}_norm.weight")
    out["input_layernorm.weight" if own_norms else f"{attention}linear_qkv.layer_norm_weight"] = \
        w("input_layernorm.weight")
    out["pre_mlp_layernorm.weight" if own_norms else "mlp.linear_fc1.layer_norm_weight"] = \
        w("post_attention_layernorm.weight")
    if conf["model_type"] == "mixtral":
        moe, experts = "block_sparse_moe", range(conf["num_local_experts"])
        out["mlp.router.weight"] = w(f"{moe}.gate.weight")
        out["mlp.experts.experts.linear_fc1.weight"] = torch.stack([
            torch.cat([w(f"{moe}.experts.{e}.{x}.weight") for x in ("w1", "w3")]) for e in experts])
        out["mlp.experts.experts.linear_fc2.weight"] = torch.stack([
            w(f"{moe}.experts.{e}.w2.weight") for e in experts])
    else:
        out["mlp.linear_fc1.weight"] = torch.cat([w(f"mlp.{x}_proj.weight") for x in ("gate", "up")])
        out["mlp.linear_fc2.weight"] = w("mlp.down_proj.weight")
    return out


def megatron(r, conf, hf):
    in_key, prefix = r.random() < 0.5, r.choice(["", "module.", "model."])
    out = {"embedding.word_embeddings.weight": padded(r, hf["model.embed_tokens.weight"]),
           "decoder.final_layernorm.weight": hf["model.norm.weight"]}
    if "lm_head.weight" in hf:
        out["output_layer.weight"] = padded(r, hf["lm_head.weight"])
    own_norms = r.random() < 0.5
    layers = [layer(conf, own_norms, hf, i) for i in range(conf["num_hidden_layers"])]
    for name in layers[0]:
        if in_key:
            out |= {f"decoder.layers.{i}.{name}": x[name] for i, x in enumerate(layers)}
        else:
            out[f"decoder.layers.{name}"] = torch.stack([x[name] for x in layers])
    state = {f"{prefix}{k}": v.contiguous() for k, v in out.items()}
    state |= {f"optimizer.state.exp_avg.{k}": v.float() for k, v in list(state.items())[:3]}
    return state


def main():
    seed = sys.argv[1]
    for model in sys.argv[2:]:
        with open(f"{model}/hf/config.json", encoding="utf-8") as f:
            conf = json.load(f)
        hf = safetensors.torch.load_file(f"{model}/hf/model.safetensors")
        shutil.rmtree(f"{model}/megatron", ignore_errors=True)
        r = random.Random(f"{seed}/{os.path.basename(model)}")
        dcp.save(megatron(r, conf, hf), checkpoint_id=f"{model}/megatron", no_dist=True)


main()
