#!/usr/bin/env python3
"""torchtitan.py make SEED OUTDIR - random Llamas, as transformers and as torchtitan saves them.
torchtitan.py check OUTDIR MOUNTS   - load MOUNTS/NAME/hf with transformers: it is the model that it was.

OUTDIR/NAME/hf/ is what save_pretrained leaves, NAME/ckpt a DCP checkpoint of three ranks with torchtitan's
names, NAME/logits what the model says. That the rows of queries and keys lie as torchtitan has them is
proved by a forward pass of its kind, with rotary embeddings that turn neighbouring elements as a
complex number.
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
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.functional import embedding, linear, rms_norm, scaled_dot_product_attention, silu

RANKS = 3
COMMON = {"hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 3, "max_position_embeddings": 64,
          "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
MODELS = {
    "grouped": {"vocab_size": 50, "num_attention_heads": 6, "num_key_value_heads": 2},
    "alike": {"vocab_size": 51, "num_attention_heads": 4, "num_key_value_heads": 4, "dtype": "bfloat16"},
    "one-head-of-keys": {"vocab_size": 40, "num_attention_heads": 3, "num_key_value_heads": 1},
    "tied": {"vocab_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True},
    "wide-heads": {"vocab_size": 33, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 20},
}
NAMES = {"input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm",
         "self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk",
         "self_attn.v_proj": "attention.wv", "self_attn.o_proj": "attention.wo",
         "mlp.gate_proj": "feed_forward.w1", "mlp.up_proj": "feed_forward.w3", "mlp.down_proj": "feed_forward.w2"}


def pairs(w, heads):
    """Rows as torchtitan has them: those that are turned together are neighbours."""
    half = w.shape[0] // heads // 2
    rows = [head * 2 * half + i + side * half for head in range(heads) for i in range(half) for side in (0, 1)]
    return w[rows]


def titan_weights(model):
    config, out = model.config, {}
    for name, w in model.state_dict().items():
        name = name.removeprefix("model.").removesuffix(".weight")
        if name.startswith("layers."):
            _, layer, rest = name.split(".", 2)
            if rest == "self_attn.q_proj":
                w = pairs(w, config.num_attention_heads)
            if rest == "self_attn.k_proj":
                w = pairs(w, config.num_key_value_heads)
            name = f"layers.{layer}.{NAMES[rest]}"
        else:
            name = {"embed_tokens": "tok_embeddings", "norm": "norm", "lm_head": "output"}[name]
        if not (name == "output" and config.tie_word_embeddings):
            out[f"{name}.weight"] = w.clone()
    return out


def turn(x, theta):
    """x: batch, place, head, element."""
    d = x.shape[-1]
    angles = torch.outer(torch.arange(x.shape[1]).float(), 1 / theta ** (torch.arange(0, d, 2) / d))
    turned = torch.view_as_complex(x.float().reshape(*x.shape[:-1], d // 2, 2)) * torch.polar(
        torch.ones_like(angles), angles)[None, :, None]
    return torch.view_as_real(turned).flatten(3)


def titan_forward(w, config, tokens):
    w = {name: t.float() for name, t in w.items()}
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
    return linear(rms_norm(x, size, w["norm.weight"], eps), w.get("output.weight", w["tok_embeddings.weight"]))


def save(rank, where, weights):
    dist.init_process_group("gloo", init_method=f"file://{where}.rendezvous", rank=rank, world_size=RANKS)
    mesh = dist.device_mesh.init_device_mesh("cpu", (RANKS,))
    state = {}
    for name, w in weights.items():
        placement = [Shard(0) if w.dim() > 1 else Replicate()]
        for key, value in ((name, w), (f"optimizer.state.{name}.exp_avg", w * 0)):
            state[key] = distribute_tensor(value, mesh, placement, src_data_rank=None)
    state["train_state"] = {"step": 7}
    dcp.save(state, checkpoint_id=where)
    dist.destroy_process_group()


def make(seed, out):
    transformers.set_seed(seed)
    for name, more in MODELS.items():
        here = pathlib.Path(out, name)
        config = transformers.LlamaConfig(**{**COMMON, **more})
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        for p in model.parameters():  # norms are 1 otherwise
            torch.nn.init.normal_(p, 1 if p.dim() == 1 else 0, 0.3)
        model.save_pretrained(here / "hf")
        tokens = torch.randint(config.vocab_size, (2, 20))
        with torch.no_grad():
            logits = model(tokens).logits
            weights = titan_weights(model)
            error = (titan_forward(weights, config, tokens) - model.float()(tokens).logits).abs().max()
        assert error < 1e-3, (name, error)
        if random.Random(seed + len(name)).random() < 0.5:
            weights = {f"model.{n}": w for n, w in weights.items()}
        torch.save((tokens, logits), here / "logits")
        torch.multiprocessing.spawn(save, (str(here / "ckpt"), weights), RANKS)


def check(out, mounts):
    passed = failed = 0
    for name in MODELS:
        want = torch.load(pathlib.Path(out, name, "logits"))
        hf = pathlib.Path(mounts, name, "hf")
        model, info = transformers.AutoModelForCausalLM.from_pretrained(hf, output_loading_info=True)
        faults = [f"{k}: {v}" for k, v in info.items() if v]
        with torch.no_grad():
            if not torch.equal(model.eval()(want[0]).logits, want[1]):
                faults.append("other logits")
        before = transformers.AutoModelForCausalLM.from_pretrained(pathlib.Path(out, name, "hf")).state_dict()
        now = model.state_dict()
        faults += [f"{k} differs" for k in before if not torch.equal(before[k], now[k])]
        passed, failed = passed + (not faults), failed + bool(faults)
        for fault in faults:
            print(f"{name}: {fault}")
    print(f"{passed} passed, {failed} failed")


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(int(sys.argv[2]), sys.argv[3])
    else:
        check(*sys.argv[2:])
