#!/usr/bin/env python3
"""recipes.py make SEED OUTDIR [MODEL...] - random models, as transformers and as other frameworks save them.
recipes.py check OUTDIR MOUNTS          - load MOUNTS/NAME/hf with transformers: it is the model that it was.

OUTDIR/NAME/hf/ is what save_pretrained leaves, NAME/ckpt a DCP checkpoint of three ranks with the names,
shapes and rows of another framework, NAME/logits what the model says, NAME/recipe the recipe that is to be
suggested for it, and "known" if the verdict knows what the model needs. That the rows of torchtitan's Llama
lie as torchtitan has them is proved by a forward pass of its kind, with rotary embeddings that turn
neighbouring elements as a complex number.
"""
import logging
import os
import pathlib
import random
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
logging.disable(logging.CRITICAL)

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing
import transformers
from safetensors.torch import load_file
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.functional import embedding, linear, rms_norm, scaled_dot_product_attention, silu

RANKS = 3
COMMON = {"vocab_size": 50, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 3,
          "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 64,
          "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
LATENT = {"num_key_value_heads": 6, "n_routed_experts": 4, "moe_intermediate_size": 24, "first_k_dense_replace": 1,
          "kv_lora_rank": 10, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 20,
          "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "n_shared_experts": 2}
# The recipe, its model's class, and what is particular.
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
}
UNKNOWN = []  # classes whose weights the verdict does not know
# torchtitan's names of what lies in a layer, where they have not changed.
TITAN = {"input_layernorm.weight": "attention_norm.weight", "post_attention_layernorm.weight": "ffn_norm.weight",
         "self_attn.o_proj.weight": "attention.wo.weight",
         "mlp.gate_proj.weight": "feed_forward.w1.weight", "mlp.up_proj.weight": "feed_forward.w3.weight",
         "mlp.down_proj.weight": "feed_forward.w2.weight", "mlp.gate.weight": "moe.router.gate.weight",
         "mlp.shared_experts.gate_proj.weight": "moe.shared_experts.w1.weight",
         "mlp.shared_experts.up_proj.weight": "moe.shared_experts.w3.weight",
         "mlp.shared_experts.down_proj.weight": "moe.shared_experts.w2.weight"}
# And where they have: a list of names, the newest first.
TITAN_ERAS = 3
TITAN_CHANGED = {
    **{f"self_attn.{x}_proj.weight": [f"attention.qkv_linear.w{x}.weight"] + [f"attention.w{x}.weight"] * 2
       for x in "qkv"},
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
    """The weights of each layer, by their names in it; those of experts one behind the other."""
    out = {}
    for name, w in hf.items():
        parts = name.removeprefix("model.").split(".")
        if parts[0] != "layers":
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
    """Rows as torchtitan has them: those that are turned together are neighbours."""
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


def save(rank, out):
    dist.init_process_group("gloo", init_method=f"file://{out}/.rendezvous", rank=rank, world_size=RANKS)
    mesh = dist.device_mesh.init_device_mesh("cpu", (RANKS,))
    for here in sorted(pathlib.Path(out).iterdir()):
        if not here.is_dir():
            continue
        state = {}
        for name, w in torch.load(here / "weights").items():
            placement = [Shard(0) if w.dim() > 1 else Replicate()]
            for key, value in ((name, w), (f"optimizer.state.{name}.exp_avg", w * 0)):
                state[key] = distribute_tensor(value, mesh, placement, src_data_rank=None)
        state["train_state"] = {"step": 7}
        dcp.save(state, checkpoint_id=here / "ckpt")
    dist.destroy_process_group()


def make_one(r, here, recipe, cls, more):
    config = getattr(transformers, f"{cls}Config")(**{**COMMON, **more})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for p in [*model.parameters(), *(b for n, b in model.named_buffers() if "e_score" in n)]:
        torch.nn.init.normal_(p, 1 if p.dim() == 1 else 0, 0.3)  # norms are 1 otherwise
    model.save_pretrained(here / "hf")
    tokens = torch.randint(config.vocab_size, (2, 20))
    with torch.no_grad():
        logits = model(tokens).logits
        weights, prefixes = globals()[recipe.split("-")[0]](r, config, load_file(here / "hf/model.safetensors"))
        if recipe == "torchtitan-llama":
            error = (torchtitan_forward(weights, config, tokens) - model.float()(tokens).logits).abs().max()
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


def check(out, mounts):
    passed = failed = 0
    for mount in sorted(pathlib.Path(mounts).iterdir()):
        here = pathlib.Path(out, mount.name)
        tokens, logits = torch.load(here / "logits")
        model, info = transformers.AutoModelForCausalLM.from_pretrained(mount / "hf", output_loading_info=True)
        faults = [f"{k}: {v}" for k, v in info.items() if v]
        with torch.no_grad():
            if not torch.equal(model.eval()(tokens).logits, logits):
                faults.append("other logits")
        before = transformers.AutoModelForCausalLM.from_pretrained(here / "hf").state_dict()
        now = model.state_dict()
        faults += [f"{k} differs" for k in before if not torch.equal(before[k], now[k])]
        passed, failed = passed + (not faults), failed + bool(faults)
        for fault in faults:
            print(f"{mount.name}: {fault}")
    print(f"{passed} passed, {failed} failed")


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(int(sys.argv[2]), sys.argv[3], sys.argv[4:])
    else:
        check(*sys.argv[2:])
