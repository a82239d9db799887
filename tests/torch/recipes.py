#!/usr/bin/env python3
"""recipes.py make SEED OUTDIR [MODEL...] - write random models as transformers and as other frameworks save them.
recipes.py check OUTDIR MOUNTS          - load MOUNTS/NAME/hf with transformers: it must be the original model.

OUTDIR/NAME/hf/ is written by save_pretrained. NAME/ckpt is a DCP checkpoint of three ranks (for MaxText, arrays
as Orbax writes them), with the names, shapes and rows of another framework. NAME/logits has the model's logits,
NAME/recipe the recipe that must be suggested, and "known" if the verdict knows what the model needs. A forward
pass of torchtitan's kind, with rotary embeddings that turn neighbouring elements as a complex number, proves
that the rows of its Llama are in torchtitan's order; likewise for MaxText, which stores queries divided. MaxText
computes and rounds, so its hf/ and logits are those of the model that its own exporter would make with NumPy.
"""
import gzip
import itertools
import json
import logging
import os
import pathlib
import random
import sys
import zlib

os.environ["HF_HUB_OFFLINE"] = "1"
logging.disable(logging.CRITICAL)

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing
import transformers
from safetensors.torch import load_file
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.functional import embedding, linear, rms_norm, scaled_dot_product_attention, silu

from loaded import check

RANKS = 3
COMMON = {"vocab_size": 50, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 3,
          "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 64,
          "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
LATENT = {"num_key_value_heads": 6, "n_routed_experts": 4, "moe_intermediate_size": 24, "first_k_dense_replace": 1,
          "kv_lora_rank": 10, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 20,
          "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "n_shared_experts": 2}
GPT = {"n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 64}
OSS = {"num_local_experts": 4, "head_dim": 16, "num_experts_per_tok": 2}
LLAMA31 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
           "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
# For each model: the recipe, the class, and options of its config.
MODELS = {
    "titan-grouped": ("torchtitan-llama", "Llama", {}),
    "titan-alike": ("torchtitan-llama", "Llama", {"num_key_value_heads": 6, "dtype": "bfloat16"}),
    "titan-one-head-of-keys": ("torchtitan-llama", "Llama", {
        "vocab_size": 40, "num_attention_heads": 3, "num_key_value_heads": 1}),
    "titan-tied": ("torchtitan-llama", "Llama", {"num_attention_heads": 4, "tie_word_embeddings": True}),
    "titan-wide-heads": ("torchtitan-llama", "Llama", {
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 20}),
    "titan-qwen3": ("torchtitan-qwen", "Qwen3", {"head_dim": 16}),
    "titan-qwen3-tied": ("torchtitan-qwen", "Qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "titan-qwen3-moe": ("torchtitan-qwen", "Qwen3Moe", {**EXPERTS, "head_dim": 16, "mlp_only_layers": [1]}),
    "titan-deepseek": ("torchtitan-deepseek-v3", "DeepseekV3", {**LATENT, "q_lora_rank": 14}),
    "titan-deepseek-plain-queries": ("torchtitan-deepseek-v3", "DeepseekV3", {**LATENT, "q_lora_rank": None}),
    "titan-gpt-oss": ("torchtitan-gpt-oss", "GptOss", OSS),
    "llama": ("megatron-llama", "Llama", {}),
    "llama-tied": ("megatron-llama", "Llama", {"tie_word_embeddings": True, "head_dim": 12}),
    "mistral": ("megatron-llama", "Mistral", {"head_dim": 8}),
    "qwen2": ("megatron-llama", "Qwen2", {}),
    "qwen3": ("megatron-llama", "Qwen3", {"head_dim": 16}),
    "mixtral": ("megatron-mixtral", "Mixtral", {"num_local_experts": 4}),
    "qwen2-moe": ("megatron-qwen-moe", "Qwen2Moe", {**EXPERTS, "shared_expert_intermediate_size": 20}),
    "qwen3-moe": ("megatron-qwen-moe", "Qwen3Moe", {**EXPERTS, "head_dim": 16}),
    "qwen3-moe-dense": ("megatron-qwen-moe", "Qwen3Moe", {**EXPERTS, "head_dim": 16, "mlp_only_layers": [1]}),
    "gpt2": ("megatron-gpt2", "GPT2", GPT),
    "gpt2-inner": ("megatron-gpt2", "GPT2", {**GPT, "n_inner": 40}),
    "gpt2-untied": ("megatron-gpt2", "GPT2", {**GPT, "tie_word_embeddings": False}),
    "gpt-bigcode": ("megatron-gpt-bigcode", "GPTBigCode", GPT),
    "gpt-bigcode-heads": ("megatron-gpt-bigcode", "GPTBigCode", {**GPT, "multi_query": False}),
    "gpt-neox": ("megatron-gpt-neox", "GPTNeoX", {"use_parallel_residual": False}),
    "gpt-neox-plain": ("megatron-gpt-neox", "GPTNeoX", {"use_parallel_residual": False, "attention_bias": False}),
    "gemma": ("megatron-gemma", "Gemma", {"head_dim": 16}),
    "gemma2": ("megatron-gemma", "Gemma2", {"head_dim": 16}),
    "gemma3": ("megatron-gemma", "Gemma3Text", {"head_dim": 16}),
    "phi3": ("megatron-phi3", "Phi3", {}),
    "glm4": ("megatron-glm4", "Glm4", {"head_dim": 16, "attention_bias": True}),
    "deepseek": ("megatron-deepseek-v3", "DeepseekV3", {**LATENT, "q_lora_rank": 14}),
    "deepseek-plain-queries": ("megatron-deepseek-v3", "DeepseekV3", {**LATENT, "q_lora_rank": None}),
    "glm4-moe": ("megatron-glm4-moe", "Glm4Moe", {
        "head_dim": 16, "n_routed_experts": 4, "moe_intermediate_size": 24, "num_experts_per_tok": 2,
        "first_k_dense_replace": 1, "use_qk_norm": True, "attention_bias": True}),
    "gpt-oss": ("megatron-gpt-oss", "GptOss", OSS),
    "olmo2": ("olmo-olmo2", "Olmo2", {}),
    "olmo2-tied": ("olmo-olmo2", "Olmo2", {"tie_word_embeddings": True, "num_key_value_heads": 6}),
    "olmo2-biases": ("olmo-olmo2", "Olmo2", {"attention_bias": True}),
    "olmo3": ("olmo-olmo2", "Olmo3", {"sliding_window": 8}),
    "olmo-llama": ("olmo-llama", "Llama", {"head_dim": 8}),
    "olmo-qwen3": ("olmo-llama", "Qwen3", {"head_dim": 16}),
    "max-llama": ("maxtext-llama", "Llama", {}),
    "max-llama-bf16": ("maxtext-llama", "Llama", {"head_dim": 12, "dtype": "bfloat16"}),
    "max-llama-tied": ("maxtext-llama", "Llama", {"tie_word_embeddings": True, "head_dim": 20}),
    "max-llama3.1": ("maxtext-llama", "Llama", {"rope_parameters": LLAMA31}),
    "max-llama3.1-bf16": ("maxtext-llama", "Llama", {"rope_parameters": LLAMA31, "head_dim": 16, "dtype": "bfloat16"}),
    "max-llama-one-head-of-keys": ("maxtext-llama", "Llama", {
        "rope_parameters": LLAMA31, "num_attention_heads": 3, "num_key_value_heads": 1, "dtype": "float16"}),
    "max-mistral": ("maxtext-llama", "Mistral", {"head_dim": 8}),
    "max-mixtral": ("maxtext-mixtral", "Mixtral", {"num_local_experts": 4}),
    "max-mixtral-bf16": ("maxtext-mixtral", "Mixtral", {"num_local_experts": 3, "head_dim": 12, "dtype": "bfloat16"}),
    "max-qwen2": ("maxtext-qwen", "Qwen2", {}),
    "max-qwen3": ("maxtext-qwen", "Qwen3", {"head_dim": 16}),
    "max-qwen3-tied": ("maxtext-qwen", "Qwen3", {"head_dim": 12, "tie_word_embeddings": True}),
    "max-qwen3-moe": ("maxtext-qwen", "Qwen3Moe", {**EXPERTS, "head_dim": 16}),
    "max-gemma": ("maxtext-gemma", "Gemma", {"head_dim": 12}),
    "max-gemma-bf16": ("maxtext-gemma", "Gemma", {"head_dim": 12, "dtype": "bfloat16"}),
    "max-gemma2": ("maxtext-gemma2", "Gemma2", {"head_dim": 12, "num_hidden_layers": 4}),
    "max-gemma2-bf16": ("maxtext-gemma2", "Gemma2", {"head_dim": 12, "num_hidden_layers": 2, "dtype": "bfloat16"}),
    "max-gemma3": ("maxtext-gemma3", "Gemma3Text", {"head_dim": 12, "num_hidden_layers": 14}),
    "max-gemma3-small": ("maxtext-gemma3", "Gemma3Text", {"head_dim": 12, "num_hidden_layers": 4}),
    "max-gemma3-bf16": ("maxtext-gemma3", "Gemma3Text", {"head_dim": 12, "num_hidden_layers": 6, "dtype": "bfloat16"}),
}
UNKNOWN = ["GPTBigCode", "GPTNeoX"]  # classes whose weights the verdict does not know
# torchtitan's names within a layer that have never changed.
TITAN = {"input_layernorm.weight": "attention_norm.weight", "post_attention_layernorm.weight": "ffn_norm.weight",
         "self_attn.o_proj.weight": "attention.wo.weight", "self_attn.o_proj.bias": "attention.wo.bias",
         "self_attn.sinks": "attention.sinks",
         "mlp.router.weight": "moe.router.gate.weight", "mlp.router.bias": "moe.router.gate.bias",
         "mlp.gate_proj.weight": "feed_forward.w1.weight", "mlp.up_proj.weight": "feed_forward.w3.weight",
         "mlp.down_proj.weight": "feed_forward.w2.weight", "mlp.gate.weight": "moe.router.gate.weight",
         "mlp.shared_experts.gate_proj.weight": "moe.shared_experts.w1.weight",
         "mlp.shared_experts.up_proj.weight": "moe.shared_experts.w3.weight",
         "mlp.shared_experts.down_proj.weight": "moe.shared_experts.w2.weight"}
# Its names that have changed, the newest first.
TITAN_ERAS = 3
TITAN_CHANGED = {
    **{f"self_attn.{x}_proj.{of}": [f"attention.qkv_linear.w{x}.{of}"] + [f"attention.w{x}.{of}"] * 2
       for x in "qkv" for of in ("weight", "bias")},
    **{f"mlp.experts.{name}": [f"moe.routed_experts.inner_experts.{w}_{suffix}", f"moe.experts.{w}_{suffix}",
                               f"moe.experts.{w}"]
       for name, w, suffix in (("gate_up_proj", "mlp1_weight", "EGD"), ("gate_up_proj_bias", "mlp1_bias", "EG"),
                               ("down_proj", "mlp2_weight", "EDF"), ("down_proj_bias", "mlp2_bias", "ED"))},
    **{f"mlp.experts.{x}_proj.weight": [f"moe.routed_experts.inner_experts.{w}_{suffix}", f"moe.experts.{w}_{suffix}",
                                        f"moe.experts.{w}"]
       for x, w, suffix in (("gate", "w1", "EFD"), ("up", "w3", "EFD"), ("down", "w2", "EDF"))},
    "mlp.gate.e_score_correction_bias": ["moe.expert_bias_E", "moe.expert_bias_E", "moe.expert_bias"],
    "lm_head.weight": ["lm_head.weight", "lm_head.weight", "output.weight"],
}
TITAN_LATENT = {"self_attn.q_proj": "wq", "self_attn.q_a_proj": "wq_a", "self_attn.q_b_proj": "wq_b",
                "self_attn.q_a_layernorm": "q_norm", "self_attn.kv_a_proj_with_mqa": "wkv_a",
                "self_attn.kv_a_layernorm": "kv_norm", "self_attn.kv_b_proj": "wkv_b"}
TITAN_LATENT = {f"{x}.weight": f"attention.{w}.weight" for x, w in TITAN_LATENT.items()}


def layers(hf):
    """The weights of each layer, by their names in it; those of experts are stacked."""
    out = {}
    for name, w in hf.items():
        parts = name.split(".")[name.split(".")[0] in ("model", "transformer", "gpt_neox"):]
        if parts[0] not in ("layers", "h"):
            continue
        rest = ".".join(parts[2:])
        layer = out.setdefault(int(parts[1]), {})
        at = parts.index("experts") + 1 if "experts" in parts else 0
        if at and parts[at].isdigit():
            layer.setdefault(".".join(parts[2:at] + parts[at + 1:]), {})[int(parts[at])] = w
        else:
            layer[rest] = w
    return {i: {name: torch.stack([w[e] for e in sorted(w)]) if isinstance(w, dict) else w
                for name, w in out[i].items()} for i in sorted(out)}


def pairs(w, heads):
    """Rows in torchtitan's order: those that are turned together are neighbours."""
    half = w.shape[0] // heads // 2
    rows = [head * 2 * half + i + side * half for head in range(heads) for i in range(half) for side in (0, 1)]
    return w[rows]


def torchtitan(r, config, hf):
    era = r.randrange(TITAN_ERAS)
    out = {"tok_embeddings.weight": hf["model.embed_tokens.weight"], "norm.weight": hf["model.norm.weight"]}
    if "lm_head.weight" in hf:
        out[TITAN_CHANGED["lm_head.weight"][era]] = hf["lm_head.weight"]
    for i, layer in layers(hf).items():
        for name, w in layer.items():
            if config.model_type == "llama" and name == "self_attn.q_proj.weight":
                w = pairs(w, config.num_attention_heads)
            if config.model_type == "llama" and name == "self_attn.k_proj.weight":
                w = pairs(w, config.num_key_value_heads)
            if name in ("mlp.experts.gate_up_proj", "mlp.experts.down_proj"):  # gpt-oss
                w = w.transpose(1, 2)
            if config.model_type == "deepseek_v3" and name in TITAN_LATENT:
                name = TITAN_LATENT[name]
            elif name in TITAN:
                name = TITAN[name]
            elif name in TITAN_CHANGED:
                name = TITAN_CHANGED[name][era]
            else:
                name = {"self_attn.q_norm.weight": "attention.q_norm.weight",
                        "self_attn.k_norm.weight": "attention.k_norm.weight"}[name]
            out[f"layers.{i}.{name}"] = w
    return out, ["", "model."]


# OLMo-core's names within a block. Its norms come before or after the attention and the MLP.
OLMO = {"self_attn.q_proj": "attention.w_q", "self_attn.k_proj": "attention.w_k", "self_attn.v_proj": "attention.w_v",
        "self_attn.o_proj": "attention.w_out", "self_attn.q_norm": "attention.q_norm",
        "self_attn.k_norm": "attention.k_norm", "mlp.gate_proj": "feed_forward.w1", "mlp.down_proj": "feed_forward.w2",
        "mlp.up_proj": "feed_forward.w3"}
OLMO_NORMS = {True: {"post_attention_layernorm": "attention_norm", "post_feedforward_layernorm": "feed_forward_norm"},
              False: {"input_layernorm": "attention_norm", "post_attention_layernorm": "feed_forward_norm"}}


def olmo(r, config, hf):
    names = OLMO | OLMO_NORMS[config.model_type.startswith("olmo")]
    head = r.choice(["lm_head.", ""])  # the latter before 1.7
    out = {"embeddings.weight": padded(r, hf["model.embed_tokens.weight"]),
           f"{head}norm.weight": hf["model.norm.weight"]}
    if "lm_head.weight" in hf:
        out[f"{head}w_out.weight"] = padded(r, hf["lm_head.weight"])
    for i, layer in layers(hf).items():
        for name, w in layer.items():
            stem, kind_of = name.rsplit(".", 1)
            out[f"blocks.{i}.{names[stem]}.{kind_of}"] = w
    return out, ["model."]


# The names that most models of transformers have for parts of a layer.
GPT_NAMES = {"ln_1": "input_layernorm", "ln_2": "post_attention_layernorm", "attn.c_attn": "qkv",
             "attn.c_proj": "self_attn.o_proj", "mlp.c_fc": "fc1", "mlp.c_proj": "mlp.down_proj"}
NEOX_NAMES = {"attention.query_key_value": "qkv", "attention.dense": "self_attn.o_proj",
              "mlp.dense_h_to_4h": "fc1", "mlp.dense_4h_to_h": "mlp.down_proj"}


def plain(config, layer):
    """The layer with separate queries, keys, values, gate and up, and Llama's names."""
    kind, heads = config.model_type, config.num_attention_heads
    out = {}
    for name, w in layer.items():
        stem, kind_of = name.rsplit(".", 1) if "." in name else (name, "")
        stem = GPT_NAMES.get(stem, NEOX_NAMES.get(stem, stem))
        if kind == "gpt2" and w.dim() == 2:
            w = w.T
        if stem == "qkv" and kind == "gpt2":
            parts = w.chunk(3)
        elif stem == "qkv" and getattr(config, "multi_query", False):
            d = config.hidden_size // heads
            parts = w.split([heads * d, d, d])
        elif stem == "qkv":
            parts = [part.flatten(0, 1) for part in w.unflatten(0, (heads, 3, -1)).unbind(1)]
        elif stem == "self_attn.qkv_proj":
            d, groups = config.hidden_size // heads, config.num_key_value_heads
            parts = w.split([heads * d, groups * d, groups * d])
        elif stem == "mlp.gate_up_proj":
            out["mlp.gate_proj.weight"], out["mlp.up_proj.weight"] = w.chunk(2)
            continue
        elif stem == "mlp.experts" and kind == "gpt_oss":
            bias = kind_of.endswith("_bias")
            w, to = w if bias else w.transpose(1, 2), "bias" if bias else "weight"
            if kind_of.startswith("down"):
                out[f"mlp.experts.down_proj.{to}"] = w
            else:
                out[f"mlp.experts.gate_proj.{to}"], out[f"mlp.experts.up_proj.{to}"] = w[:, ::2], w[:, 1::2]
            continue
        else:
            out[f"{stem}.{kind_of}"] = w
            continue
        for x, part in zip("qkv", parts):
            out[f"self_attn.{x}_proj.{kind_of}"] = part
    return out


def megatron_layer(r, config, w, te, moved):
    """w: from plain(). te: norms are in the projections."""
    kind, out = config.model_type, {}
    latent, moe = "self_attn.kv_b_proj.weight" in w, any("experts" in name for name in w)

    def move(name, to):
        for x in ("weight", "bias"):
            if f"{name}.{x}" in w:
                out[f"{to}.{x}"] = w.pop(f"{name}.{x}")

    def norm(name, inside, own, on_its_own):
        for x in ("weight", "bias"):
            if f"{name}.{x}" in w:
                out[f"{own}.{x}" if on_its_own else f"{inside}.layer_norm_{x}"] = w.pop(f"{name}.{x}")

    def gated(hf, to, names=("gate_proj", "up_proj", "down_proj"), axis=0):
        for x in ("weight", "bias"):
            if f"{hf}.{names[0]}.{x}" in w:
                out[f"{to}.linear_fc1.{x}"] = torch.cat([w.pop(f"{hf}.{n}.{x}") for n in names[:2]], axis)
        move(f"{hf}.{names[2]}", f"{to}.linear_fc2")

    sandwich = "pre_feedforward_layernorm.weight" in w
    norm("input_layernorm", "self_attention.linear_qkv", "input_layernorm", latent or not te)
    if sandwich:
        move("post_attention_layernorm", "self_attention.linear_proj.post_layernorm")
        move("post_feedforward_layernorm", "mlp.linear_fc2.post_layernorm")
    norm("pre_feedforward_layernorm" if sandwich else "post_attention_layernorm", "mlp.linear_fc1",
         "pre_mlp_layernorm", moe if te else moved)
    if latent:
        for hf, to in (("q_proj", "q_proj"), ("q_a_proj", "q_down_proj"), ("q_b_proj", "q_up_proj"),
                       ("kv_a_proj_with_mqa", "kv_down_proj"), ("kv_b_proj", "kv_up_proj")):
            move(f"self_attn.{hf}", f"self_attention.linear_{to}")
        for x in ("q", "kv"):
            norm(f"self_attn.{x}_a_layernorm", f"self_attention.linear_{x}_up_proj",
                 f"self_attention.{x}_layernorm", not te)
        if moved and "self_attention.linear_q_down_proj.weight" in out:
            out["self_attention.linear_qkv_down_proj.weight"] = torch.cat([
                out.pop(f"self_attention.linear_{x}_down_proj.weight") for x in ("q", "kv")])
    for x in ("weight", "bias"):
        if f"self_attn.q_proj.{x}" in w:
            groups = w[f"self_attn.k_proj.{x}"].shape[0] // (getattr(config, "head_dim", None) or
                                                            config.hidden_size // config.num_attention_heads)
            parts = [w.pop(f"self_attn.{p}_proj.{x}").unflatten(0, (groups, -1)) for p in "qkv"]
            out[f"self_attention.linear_qkv.{x}"] = torch.cat(parts, 1).flatten(0, 1)
    for x in "qk":
        move(f"self_attn.{x}_norm", f"self_attention.{x}_layernorm")
    move("self_attn.o_proj", "self_attention.linear_proj")
    for name, where in (("post_self_attn_layernorm", "self_attention."), ("post_mlp_layernorm", "mlp.")):
        move(name, f"{where if moved else ''}{name}")
    if "self_attn.sinks" in w:
        out["self_attention.core_attention.softmax_offset"] = w.pop("self_attn.sinks")
    move("fc1", "mlp.linear_fc1")
    if moe:
        block = "block_sparse_moe" if kind == "mixtral" else "mlp"
        move(f"{block}.gate", "mlp.router")
        move("mlp.router", "mlp.router")
        if "mlp.gate.e_score_correction_bias" in w:
            out["mlp.router.expert_bias"] = w.pop("mlp.gate.e_score_correction_bias")
        gated(f"{block}.experts", "mlp.experts.experts",
              ("w1", "w3", "w2") if kind == "mixtral" else ("gate_proj", "up_proj", "down_proj"), 1)
        gated("mlp.shared_experts", "mlp.shared_experts")
        gated("mlp.shared_expert", "mlp.shared_experts")
        if "mlp.shared_expert_gate.weight" in w:
            out["mlp.shared_experts.gate_weight"] = w.pop("mlp.shared_expert_gate.weight")
    elif "mlp.gate_proj.weight" in w:
        gated("mlp", "mlp")
        if moved:  # as with FSDP
            out["mlp.linear_fc1.weight_w"], out["mlp.linear_fc1.weight_v"] = out.pop("mlp.linear_fc1.weight").chunk(2)
    else:
        move("mlp.down_proj", "mlp.linear_fc2")
    assert not w, list(w)
    return out


def padded(r, w):
    return torch.cat([w, torch.full((-w.shape[0] % r.choice([8, 64]), w.shape[1]), 7.0, dtype=w.dtype)])


def megatron(r, config, hf):
    te, moved, in_key = (r.random() < 0.5 for _ in range(3))
    inner = [megatron_layer(r, config, plain(config, layer), te, moved) for layer in layers(hf).values()]
    out = {}
    for name, w in hf.items():
        stem, kind_of = name.rsplit(".", 1)
        stem = stem.split(".")[-1]
        if stem in ("embed_tokens", "wte", "embed_in"):
            out["embedding.word_embeddings.weight"] = padded(r, w)
        elif stem in ("lm_head", "embed_out"):
            out["output_layer.weight"] = padded(r, w)
        elif stem == "wpe":
            out["embedding.position_embeddings.weight"] = w
        elif stem in ("norm", "ln_f", "final_layer_norm"):
            out[f"decoder.final_layernorm.{kind_of}"] = w
        else:
            assert "layers." in name or ".h." in name, name
    if in_key or len({tuple(layer) for layer in inner}) > 1:
        out |= {f"decoder.layers.{i}.{name}": w for i, layer in enumerate(inner) for name, w in layer.items()}
    else:
        out |= {f"decoder.layers.{name}": torch.stack([layer[name] for layer in inner]) for name in inner[0]}
    return out, ["", "model."]


def interleaved(config):
    """Whether its rotary embeddings are those of MaxText's Llama 3.1, whose rows are in pairs."""
    return (config.rope_parameters or {}).get("rope_type") == "llama3"


def computed(w, how, number):
    """Computed by NumPy in float32, and rounded to the dtype of w."""
    return torch.from_numpy(how(w.float().numpy(), np.float32(number))).to(w.dtype)


def maxtext_scales(config):
    """Whether to_maxtext() scales queries and norms, and by which factor it multiplies embeddings."""
    root = config.hidden_size ** 0.5
    return {"queries": config.model_type not in ("qwen2", "qwen3", "qwen3_moe", "gemma3_text"),
            "norms": config.model_type.startswith("gemma"),
            "embeddings": {"gemma2": root, "gemma": torch.tensor(root).bfloat16().item(),
                           "gemma3_text": torch.tensor(root).bfloat16().item()}.get(config.model_type)}


def maxtext_names(config):
    """MaxText's names within a layer, by those of transformers."""
    gemma, sandwich = config.model_type.startswith("gemma"), config.model_type in ("gemma2", "gemma3_text")
    block = "MoeBlock_0" if config.model_type == "mixtral" else "moe_block"
    hf = "block_sparse_moe" if config.model_type == "mixtral" else "mlp"
    out = {f"self_attn.{x[0]}_proj.{of}": f"self_attention.{x}.{to}" for x in ("query", "key", "value", "out")
           for of, to in (("weight", "kernel"), ("bias", "bias"))}
    out |= {f"self_attn.{x[0]}_norm.weight": f"self_attention.{x}_norm.scale" for x in ("query", "key")}
    out |= {f"mlp.{x}_proj.weight": f"mlp.{to}.kernel" for x, to in (("gate", "wi_0"), ("up", "wi_1"), ("down", "wo"))}
    out |= {f"{hf}.gate.weight": f"{block}.gate.kernel"}
    out |= {f"{hf}.experts.{x}.weight": f"{block}.{to}" for x, to in (
        ("w1", "wi_0"), ("w3", "wi_1"), ("w2", "wo"), ("gate_proj", "wi_0"), ("up_proj", "wi_1"), ("down_proj", "wo"))}
    norm = "norm" if gemma else "layer_norm"
    out |= {"input_layernorm.weight": f"pre_self_attention_{norm}.scale",
            "post_attention_layernorm.weight": f"post_self_attention_{norm}.scale" if sandwich or not gemma
            else "pre_ffw_norm.scale",
            "pre_feedforward_layernorm.weight": "pre_ffw_norm.scale",
            "post_feedforward_layernorm.weight": "post_ffw_norm.scale"}
    return out


def to_maxtext(config, name, w):
    """A weight as MaxText's to_maxtext stores it."""
    d = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    scales, x = maxtext_scales(config), name.split(".")[-2]
    if x in ("q_proj", "k_proj", "v_proj") and name.endswith("bias"):
        return w.reshape(-1, d)
    if x in ("q_proj", "k_proj", "v_proj"):
        w = w.T.reshape(config.hidden_size, -1, d)
        if x != "v_proj" and interleaved(config):
            w = torch.stack([w[..., :d // 2], w[..., d // 2:]], -1).reshape(w.shape)
        return computed(w, np.multiply, 1 / np.sqrt(d)) if x == "q_proj" and scales["queries"] else w
    if x == "o_proj":
        return w.T.reshape(-1, d, config.hidden_size)
    if x.endswith("norm"):
        return computed(w, np.add, 1) if scales["norms"] else w
    if x == "embed_tokens":
        return computed(w, np.multiply, scales["embeddings"]) if scales["embeddings"] else w
    return w.mT


def from_maxtext(config, name, w):
    """The weight as to_huggingface exports it, which may have rounded it."""
    d = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    scales, x = maxtext_scales(config), name.split(".")[-2]
    if x in ("q_proj", "k_proj", "v_proj") and name.endswith("bias"):
        return w.reshape(-1)
    if x in ("q_proj", "k_proj", "v_proj"):
        if x == "q_proj" and scales["queries"]:
            w = computed(w, np.multiply, np.sqrt(d))
        if x != "v_proj" and interleaved(config):
            w = torch.cat([w[..., ::2], w[..., 1::2]], -1)
        return w.reshape(config.hidden_size, -1).T
    if x == "o_proj":
        return w.reshape(-1, config.hidden_size).T
    if x.endswith("norm"):
        return computed(w, np.subtract, 1) if scales["norms"] else w
    if x == "embed_tokens":
        return computed(w, np.divide, scales["embeddings"]) if scales["embeddings"] else w
    return w.mT


def maxtext_blocks(config, inner, scan):
    """Layers by their names in the decoder; a list stands for layers that are stacked along the second axis."""
    if config.model_type == "gemma2":  # two layers form one
        def both(local, other):
            return {f"{name.split('.')[0]}_{side}.{name.split('.', 1)[1]}": w
                    for side, layer in (("local", local), ("global", other)) for name, w in layer.items()}
        inner = [both(*inner[i:i + 2]) for i in range(0, len(inner), 2)]
    if not scan:
        return {f"layers_{i}": layer for i, layer in enumerate(inner)}
    if config.model_type != "gemma3_text":
        return {"layers": inner}
    whole = len(inner) // 6 * 6
    return {**{f"layers.layers_{i}": inner[i:whole:6] for i in range(6) if whole},
            **{f"layers_remainder.layers_{i}": layer for i, layer in enumerate(inner[whole:])}}


def maxtext(r, config, hf):
    names = maxtext_names(config)
    inner = [{names[name]: to_maxtext(config, name, w) for name, w in layer.items()} for layer in layers(hf).values()]
    out = {to: to_maxtext(config, name, hf[name]) for name, to in (
        ("model.embed_tokens.weight", "token_embedder.embedding"), ("model.norm.weight", "decoder.decoder_norm.scale"))}
    out["token_embedder.embedding"] = padded(r, out["token_embedder.embedding"])
    if "lm_head.weight" in hf:
        out["decoder.logits_dense.kernel"] = padded(r, hf["lm_head.weight"]).T
    for at, layer in maxtext_blocks(config, inner, r.random() < 0.5).items():
        for name in layer[0] if isinstance(layer, list) else layer:
            out[f"decoder.{at}.{name}"] = torch.stack([one[name] for one in layer], 1) \
                if isinstance(layer, list) else layer[name]
    return out, ["params.params.", "params.", ""]


def maxtext_exported(config, hf):
    """hf after conversion to MaxText and back."""
    return {name: from_maxtext(config, name, to_maxtext(config, name, w)).contiguous() if name != "lm_head.weight"
            else w for name, w in hf.items()}


def maxtext_forward(config, hf, turning, tokens):
    """A forward pass of Llama with rotary embeddings of pairs or of halves, and queries that are already scaled."""
    names = maxtext_names(config)
    x, size, eps = embedding(tokens, hf["model.embed_tokens.weight"]), [config.hidden_size], config.rms_norm_eps
    angles = torch.outer(torch.arange(tokens.shape[1]).float(), turning)
    polar = torch.polar(torch.ones_like(angles), angles)[None, :, None]

    def rotate(t):
        if interleaved(config):
            return torch.view_as_real(torch.view_as_complex(t.unflatten(-1, (-1, 2))) * polar).flatten(3)
        t = torch.complex(*t.chunk(2, -1)) * polar
        return torch.cat([t.real, t.imag], -1)
    for layer in layers(hf).values():
        w = {names[name]: to_maxtext(config, name, one) for name, one in layer.items()}
        h = rms_norm(x, size, w["pre_self_attention_layer_norm.scale"], eps)
        q, k, v = (torch.einsum("bte,ehd->bthd", h, w[f"self_attention.{n}.kernel"]) for n in ("query", "key", "value"))
        o = scaled_dot_product_attention(*(t.transpose(1, 2) for t in (rotate(q), rotate(k), v)), is_causal=True,
                                         enable_gqa=True, scale=1.0)
        x = x + torch.einsum("bhtd,hde->bte", o, w["self_attention.out.kernel"])
        h = rms_norm(x, size, w["post_self_attention_layer_norm.scale"], eps)
        x = x + (silu(h @ w["mlp.wi_0.kernel"]) * (h @ w["mlp.wi_1.kernel"])) @ w["mlp.wo.kernel"]
    head = hf.get("lm_head.weight", hf["model.embed_tokens.weight"])
    return linear(rms_norm(x, size, hf["model.norm.weight"], eps), head)


def turn(x, theta):
    """x: batch, place, head, element."""
    d = x.shape[-1]
    angles = torch.outer(torch.arange(x.shape[1]).float(), 1 / theta ** (torch.arange(0, d, 2) / d))
    turned = torch.view_as_complex(x.float().reshape(*x.shape[:-1], d // 2, 2)) * torch.polar(
        torch.ones_like(angles), angles)[None, :, None]
    return torch.view_as_real(turned).flatten(3)


def torchtitan_forward(w, config, tokens):
    w = {name.replace("qkv_linear.", ""): t.float() for name, t in w.items()}
    head = w.get("lm_head.weight", w.get("output.weight", w["tok_embeddings.weight"]))
    theta, eps, size = 10000.0, config.rms_norm_eps, [config.hidden_size]
    x = embedding(tokens, w["tok_embeddings.weight"])
    for i in range(config.num_hidden_layers):
        def layer(name):
            return w[f"layers.{i}.{name}.weight"]

        h = rms_norm(x, size, layer("attention_norm"), eps)
        q, k, v = (linear(h, layer(f"attention.w{c}")).unflatten(2, (-1, config.head_dim)) for c in "qkv")
        q, k = turn(q, theta), turn(k, theta)
        o = scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True, enable_gqa=True)
        x = x + linear(o.transpose(1, 2).flatten(2), layer("attention.wo"))
        h = rms_norm(x, size, layer("ffn_norm"), eps)
        x = x + linear(silu(linear(h, layer("feed_forward.w1"))) * linear(h, layer("feed_forward.w3")),
                       layer("feed_forward.w2"))
    return linear(rms_norm(x, size, w["norm.weight"], eps), head)


ZARR = {torch.float32: ("<f4", "float32"), torch.float16: ("<f2", "float16"), torch.bfloat16: ("bfloat16", "bfloat16")}


def write_array(r, at, w):
    """A directory as Orbax writes it without OCDBT: zarr 2 or 3, with the last chunks padded."""
    shape, chunk = list(w.shape), [r.randint(1 + n // 3, n + 2) for n in w.shape]
    packed, old = r.random() < 0.5, r.random() < 0.5
    bits = (w.view(torch.int16) if w.dtype == torch.bfloat16 else w).contiguous().numpy()
    at.mkdir(parents=True)
    if old:
        meta = {"zarr_format": 2, "shape": shape, "chunks": chunk, "dtype": ZARR[w.dtype][0], "fill_value": None,
                "order": "C", "filters": None, "dimension_separator": ".",
                "compressor": {"id": "zlib", "level": 1} if packed else None}
    else:
        codecs = [{"name": "bytes", "configuration": {"endian": "little"}}]
        codecs += [{"name": "gzip", "configuration": {"level": 1}}] * packed
        meta = {"zarr_format": 3, "node_type": "array", "shape": shape, "data_type": ZARR[w.dtype][1],
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
                "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
                "fill_value": 0.0, "codecs": codecs, "attributes": {}}
    (at / (".zarray" if old else "zarr.json")).write_text(json.dumps(meta))
    for index in itertools.product(*(range(-(-n // c)) for n, c in zip(shape, chunk))):
        part = bits[tuple(slice(i * c, (i + 1) * c) for i, c in zip(index, chunk))]
        whole = np.zeros(chunk, bits.dtype)
        whole[tuple(map(slice, part.shape))] = part
        name = at / (".".join(map(str, index)) if old else "/".join(["c", *map(str, index)]))
        name.parent.mkdir(parents=True, exist_ok=True)
        data = whole.tobytes()
        name.write_bytes((zlib if old else gzip).compress(data, 1) if packed else data)


def save(rank, out):
    dist.init_process_group("gloo", init_method=f"file://{out}/.rendezvous", rank=rank, world_size=RANKS)
    mesh = dist.device_mesh.init_device_mesh("cpu", (RANKS,))
    for here in sorted(pathlib.Path(out).iterdir()):
        if not here.is_dir():
            continue
        state = {}
        recipe = (here / "recipe").read_text().split("-")[0]
        if recipe == "maxtext":  # an item of Orbax
            r = random.Random(here.name)
            for name, w in torch.load(here / "weights").items() if not rank else ():
                for key in (name, f"opt_state.0.mu.{name.removeprefix('params.')}"):
                    write_array(r, here / "ckpt" / key, w)
            for path in (here / "ckpt").rglob("*") if not rank else ():
                os.utime(path, (1700000000, 1700000000))  # a newer save might count as unfinished
            continue
        for name, w in torch.load(here / "weights").items():
            placement = [Shard(0) if w.dim() > 1 else Replicate()]
            optim = f"optim.state.{name.removeprefix('model.')}" if recipe == "olmo" else f"optimizer.state.{name}"
            for key, value in ((name, w), (f"{optim}.exp_avg", w * 0)):
                state[key] = distribute_tensor(value, mesh, placement, src_data_rank=None)
        state["train_state"] = {"step": 7}
        dcp.save(state, checkpoint_id=here / "ckpt")
    dist.barrier()
    dist.destroy_process_group()


def make_one(r, here, recipe, cls, more):
    common = {k: v for k, v in COMMON.items() if "n_embd" not in more or "vocab" in k or "token" in k}
    config = getattr(transformers, f"{cls}Config")(**{**common, **more})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for p in [*model.parameters(), *(b for n, b in model.named_buffers() if "e_score" in n)]:
        torch.nn.init.normal_(p, 1 if p.dim() == 1 else 0, 0.3)  # otherwise norms would be 1
    model.save_pretrained(here / "hf")
    tokens = torch.randint(config.vocab_size, (2, 20))
    with torch.no_grad():
        logits = model(tokens).logits
        weights, prefixes = globals()[recipe.split("-")[0]](r, config, load_file(here / "hf/model.safetensors"))
        if recipe == "torchtitan-llama":
            error = (torchtitan_forward(weights, config, tokens) - model.float()(tokens).logits).abs().max()
            assert error < 1e-3, (here, error)
        if recipe.startswith("maxtext"):
            before = load_file(here / "hf/model.safetensors")
            after = maxtext_exported(config, before)
            rounding = 4 * torch.finfo(logits.dtype).eps
            for name, w in before.items():
                assert ((after[name] - w).abs() <= rounding * (1 + w.abs())).all(), (here, name)
            model.load_state_dict(after, strict=False)
            model.save_pretrained(here / "hf")
            logits, as_made = model(tokens).logits, logits
            if logits.dtype == torch.float32 and not hasattr(config, "num_experts_per_tok"):
                assert (logits - as_made).abs().max() < 1e-3 * as_made.abs().max(), here
            if logits.dtype == torch.float32 and config.model_type == "llama":
                error = (maxtext_forward(config, before, model.model.rotary_emb.inv_freq, tokens) - logits).abs().max()
                assert error < 1e-3, (here, error)
    prefix = r.choice(prefixes)
    torch.save({f"{prefix}{name}": w.contiguous() for name, w in weights.items()}, here / "weights")
    torch.save((tokens, logits), here / "logits")
    (here / "recipe").write_text(f"{recipe} {'' if cls in UNKNOWN else 'known'}\n")


def make(seed, out, names):
    transformers.set_seed(seed)
    for name in names or MODELS:
        make_one(random.Random(f"{seed}/{name}"), pathlib.Path(out, name), *MODELS[name])
    torch.multiprocessing.spawn(save, (out,), RANKS)


def weights_differ(here, model):
    before = transformers.AutoModelForCausalLM.from_pretrained(here / "hf").state_dict()
    now = model.state_dict()
    return [f"{k} differs" for k in before if not torch.equal(before[k], now[k])]


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(int(sys.argv[2]), sys.argv[3], sys.argv[4:])
    else:
        check(*sys.argv[2:], weights_differ)
