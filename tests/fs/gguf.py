#!/usr/bin/env python3
"""Tiny models for gguf/, and checks of the GGUF files made from them.

    gguf.py model KIND DIR          - write DIR/config.json, DIR/tokenizer.json and the elements, in data/; print
                                      arguments for make_dcp.py. KIND: llama, experts, fused, granitemoe, gpt2, or one
                                      of LINEAR, WHOLES or FAMILIES
    gguf.py check KIND FILE...      - check that FILEs are a GGUF of the model in data/
    gguf.py names FILE              - print the names of its tensors
    gguf.py types FILE              - print their types, as ggml's numbers, sorted
    gguf.py key FILE NAME           - print the value of a key
    gguf.py spoil FILE NAME         - change some bytes of a tensor
    gguf.py further FILE ARCH       - make the last layer one that predicts further tokens
    gguf.py vector FILE NAME        - give a tensor of one row one dimension, as llama-quantize does
    gguf.py set FILE KEY JSON       - set a value in a JSON file; "-": remove the key

Tensors are float32; each element is compared with the one from which it was made.
"""
import json
import math
import os
import random
import struct
import sys

VOCAB, HIDDEN, HEADS, KV, FFN, LAYERS, EXPERTS = 8, 64, 4, 2, 96, 2, 3
HEAD = HIDDEN // HEADS
# Elements and bytes of a block, for each of ggml's types.
BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 8: (32, 34), 12: (256, 144), 14: (256, 210), 30: (1, 2)}
CONFIG = {"model_type": "llama", "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": FFN,
          "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV,
          "max_position_embeddings": 32, "rms_norm_eps": 1e-5}
TOKENIZER = {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
             "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}}


def rotated(w, rows, heads):
    """Rows of each head, with those of its two halves alternating."""
    size = rows // heads
    order = [h * size + t * size // 2 + j
             for h in range(heads) for j in range(size // 2) for t in range(2)]
    n = len(w) // rows
    return [x for r in order for x in w[r * n:(r + 1) * n]]


def turned(w, rows):
    return [x for c in range(len(w) // rows) for x in w[c::len(w) // rows]]


# Linear attention in the first layer: key heads, value heads, elements of each, taps of the convolution.
KEYS, VALUES, SIZE, TAPS = 2, 6, 5, 3
LINEAR = {name: {
    "head_dim": HEAD, "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": KEYS,
    "linear_num_value_heads": VALUES, "linear_key_head_dim": SIZE, "linear_value_head_dim": SIZE,
    "linear_conv_kernel_dim": TAPS, "num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": FFN,
    "shared_expert_intermediate_size": 32} for name in ("qwen3_next", "qwen3_5_text")}
# -torch.exp(x) for the values of A_log.
MINUS_EXP = {0.0: -1.0, 1.0: -2.7182817459106445, 2.7725887298583984: -16.0, -1.0: -0.3678794503211975,
             -1.6937198638916016: -0.18383440375328064}


def linear(kind):
    """tensors() for the models in LINEAR."""
    stored, made = {}, {}
    keys, values, share = KEYS * SIZE, VALUES * SIZE, VALUES // KEYS

    def one(name, shape, to, rows=None, matrix=None, how=lambda w: w, dims=None):
        """rows: the stored rows, in the order in which they are written."""
        stored[name] = shape
        dims = dims or (shape if rows is None else (len(rows), *shape[1:]))
        n = math.prod(shape[1:])
        made[to] = (dims, len(dims) > 1 if matrix is None else matrix, lambda get: how(
            get(name) if rows is None else [x for r in rows for x in get(name)[r * n:(r + 1) * n]]))

    def plus_one(w):
        return [x + 1 for x in w]

    def tiled(size, before=0):
        """The rows of value heads, of which `share` belong to each key head, in llama.cpp's order."""
        return [*range(before), *(before + (k * share + v) * size + r for v in range(share) for k in range(KEYS)
                                  for r in range(size))]

    def columns(w):
        return [w[r * values + c] for r in range(HIDDEN) for c in tiled(SIZE)]

    one("model.embed_tokens.weight", (VOCAB, HIDDEN), "token_embd.weight")
    one("lm_head.weight", (VOCAB, HIDDEN), "output.weight")
    one("model.norm.weight", (HIDDEN,), "output_norm.weight", how=plus_one)
    for i in range(LAYERS):
        p, b = f"model.layers.{i}.", f"blk.{i}."
        one(p + "input_layernorm.weight", (HIDDEN,), b + "attn_norm.weight", how=plus_one)
        one(p + "post_attention_layernorm.weight", (HIDDEN,), b + "post_attention_norm.weight", how=plus_one)
        if kind == "qwen3_next":
            experts("fused", p, b, stored, made)
            for x, shape in (("gate", (32, HIDDEN)), ("up", (32, HIDDEN)), ("down", (HIDDEN, 32))):
                one(f"{p}mlp.shared_expert.{x}_proj.weight", shape, f"{b}ffn_{x}_shexp.weight")
            one(p + "mlp.shared_expert_gate.weight", (1, HIDDEN), b + "ffn_gate_inp_shexp.weight", matrix=False)
        else:
            for x, shape in (("gate", (FFN, HIDDEN)), ("up", (FFN, HIDDEN)), ("down", (HIDDEN, FFN))):
                one(f"{p}mlp.{x}_proj.weight", shape, f"{b}ffn_{x}.weight")
    for x, n in (("q", 2 * HEADS), ("k", KV), ("v", KV)):
        one(f"{p}self_attn.{x}_proj.weight", (n * HEAD, HIDDEN), f"{b}attn_{x}.weight")
    one(p + "self_attn.o_proj.weight", (HIDDEN, HEADS * HEAD), b + "attn_output.weight")
    for x in "qk":
        one(f"{p}self_attn.{x}_norm.weight", (HEAD,), f"{b}attn_{x}_norm.weight", how=plus_one)
    p, b, turned_heads = "model.layers.0.linear_attn.", "blk.0.", kind != "qwen3_next"
    group = 2 * SIZE + 2 * share * SIZE
    if turned_heads:
        one(p + "in_proj_qkv.weight", (2 * keys + values, HIDDEN), b + "attn_qkv.weight", tiled(SIZE, 2 * keys))
        one(p + "in_proj_z.weight", (values, HIDDEN), b + "attn_gate.weight", tiled(SIZE))
        for x, to in (("b", "beta"), ("a", "alpha")):
            one(f"{p}in_proj_{x}.weight", (VALUES, HIDDEN), f"{b}ssm_{to}.weight", tiled(1))
    else:
        def part(begin, n):
            return [k * group + begin + r for k in range(KEYS) for r in range(n)]
        mixed = p + "in_proj_qkvz.weight"
        one(mixed, (KEYS * group, HIDDEN), b + "attn_qkv.weight",
            part(0, SIZE) + part(SIZE, SIZE) + part(2 * SIZE, share * SIZE))
        one(mixed, (KEYS * group, HIDDEN), b + "attn_gate.weight", part(2 * SIZE + share * SIZE, share * SIZE))
        one(p + "in_proj_ba.weight", (2 * VALUES, HIDDEN), b + "ssm_ba.weight")
    one(p + "conv1d.weight", (2 * keys + values, 1, TAPS), b + "ssm_conv1d.weight",
        tiled(SIZE, 2 * keys) if turned_heads else None, False, dims=(2 * keys + values, TAPS))
    one(p + "A_log", (VALUES,), b + "ssm_a", tiled(1) if turned_heads else None,
        how=lambda w: [MINUS_EXP[x] for x in w])
    one(p + "dt_bias", (VALUES,), b + "ssm_dt.bias", tiled(1) if turned_heads else None)
    one(p + "norm.weight", (SIZE,), b + "ssm_norm.weight")
    one(p + "out_proj.weight", (HIDDEN, values), b + "ssm_out.weight", how=columns if turned_heads else lambda w: w)
    return stored, made


# A llama inside a vision model: the prefixes of its names, of the head's name, and of the other tensors' names.
WHOLES = {"mistral3": ("model.language_model.", "", "model."),
          "mistral3_old": ("language_model.model.", "language_model.", "")}


def whole(kind):
    most, head, others = WHOLES[kind]
    stored, made = tensors("llama")

    def there(name):
        return head + name if name == "lm_head.weight" else most + name.removeprefix("model.")

    def under(how):
        return lambda get: how(lambda name: get(there(name)))

    seen = {f"{others}vision_tower.layers.0.self_attn.q_proj.weight": (HIDDEN, HIDDEN),
            f"{others}multi_modal_projector.norm.weight": (HIDDEN,)}
    return ({**{there(n): shape for n, shape in stored.items()}, **seen},
            {n: (shape, matrix, under(how)) for n, (shape, matrix, how) in made.items()})


def tensors(kind):
    """Stored tensors: name -> shape. Tensors of the GGUF: name -> (shape, is a matrix, function of the stored ones)."""
    if kind in LINEAR:
        return linear(kind)
    if kind in WHOLES:
        return whole(kind)
    stored, made = {}, {}

    def one(name, shape, to, how=lambda w: w, dims=None, matrix=None):
        stored[name] = shape
        dims = dims or shape
        made[to] = (dims, len(dims) > 1 if matrix is None else matrix,
                    lambda get: how(get(name)))

    if kind == "gpt2":
        one("transformer.wte.weight", (VOCAB, HIDDEN), "token_embd.weight")
        one("transformer.wpe.weight", (32, HIDDEN), "position_embd.weight", matrix=False)
        for x in ("weight", "bias"):
            one(f"transformer.ln_f.{x}", (HIDDEN,), f"output_norm.{x}")
        for i in range(LAYERS):
            for name, rows, cols, to in (("attn.c_attn", HIDDEN, 3 * HIDDEN, "attn_qkv"),
                                         ("attn.c_proj", HIDDEN, HIDDEN, "attn_output"),
                                         ("mlp.c_fc", HIDDEN, FFN, "ffn_up"),
                                         ("mlp.c_proj", FFN, HIDDEN, "ffn_down")):
                one(f"transformer.h.{i}.{name}.weight", (rows, cols), f"blk.{i}.{to}.weight",
                    lambda w, n=rows: turned(w, n), (cols, rows))
                one(f"transformer.h.{i}.{name}.bias", (cols,), f"blk.{i}.{to}.bias")
            for name, to in (("ln_1", "attn_norm"), ("ln_2", "ffn_norm")):
                for x in ("weight", "bias"):
                    one(f"transformer.h.{i}.{name}.{x}", (HIDDEN,), f"blk.{i}.{to}.{x}")
        return stored, made
    one("model.embed_tokens.weight", (VOCAB, HIDDEN), "token_embd.weight")
    one("lm_head.weight", (VOCAB, HIDDEN), "output.weight")
    one("model.norm.weight", (HIDDEN,), "output_norm.weight")
    for i in range(LAYERS):
        p, b = f"model.layers.{i}.", f"blk.{i}."
        one(p + "input_layernorm.weight", (HIDDEN,), b + "attn_norm.weight")
        one(p + "post_attention_layernorm.weight", (HIDDEN,), b + "ffn_norm.weight")
        for x, heads in (("q", HEADS), ("k", KV)):
            one(f"{p}self_attn.{x}_proj.weight", (heads * HEAD, HIDDEN), f"{b}attn_{x}.weight",
                lambda w, n=heads: rotated(w, n * HEAD, n))
        one(p + "self_attn.v_proj.weight", (KV * HEAD, HIDDEN), b + "attn_v.weight")
        one(p + "self_attn.o_proj.weight", (HIDDEN, HIDDEN), b + "attn_output.weight")
        if kind == "llama":
            one(p + "mlp.gate_proj.weight", (FFN, HIDDEN), b + "ffn_gate.weight")
            one(p + "mlp.up_proj.weight", (FFN, HIDDEN), b + "ffn_up.weight")
            one(p + "mlp.down_proj.weight", (HIDDEN, FFN), b + "ffn_down.weight")
        else:
            experts(kind, p, b, stored, made)
    return stored, made


def experts(kind, p, b, stored, made):
    shapes = {"gate": (FFN, HIDDEN), "up": (FFN, HIDDEN), "down": (HIDDEN, FFN)}
    moe = p + {"fused": "mlp.gate.weight", "granitemoe": "block_sparse_moe.router.layer.weight"}.get(
        kind, "block_sparse_moe.gate.weight")
    stored[moe] = (EXPERTS, HIDDEN)
    made[b + "ffn_gate_inp.weight"] = ((EXPERTS, HIDDEN), False, lambda get: get(moe))
    if kind in ("fused", "granitemoe"):
        both, down = p + "mlp.experts.gate_up_proj", p + "mlp.experts.down_proj"
        if kind == "granitemoe":
            both, down = (f"{p}block_sparse_moe.{x}put_linear.weight" for x in ("in", "out"))
        stored[both], stored[down] = (EXPERTS, 2 * FFN, HIDDEN), (EXPERTS, HIDDEN, FFN)
        n = FFN * HIDDEN

        def half(get, at):
            w = get(both)
            return [x for e in range(EXPERTS) for x in w[(2 * e + at) * n:(2 * e + at + 1) * n]]
        made[b + "ffn_gate_exps.weight"] = ((EXPERTS, FFN, HIDDEN), True, lambda get: half(get, 0))
        made[b + "ffn_up_exps.weight"] = ((EXPERTS, FFN, HIDDEN), True, lambda get: half(get, 1))
        made[b + "ffn_down_exps.weight"] = ((EXPERTS, HIDDEN, FFN), True, lambda get: get(down))
        return
    for part, w in (("gate", "w1"), ("up", "w3"), ("down", "w2")):
        names = [f"{p}block_sparse_moe.experts.{e}.{w}.weight" for e in range(EXPERTS)]
        for name in names:
            stored[name] = shapes[part]
        made[f"{b}ffn_{part}_exps.weight"] = (
            (EXPERTS, *shapes[part]), True,
            lambda get, names=tuple(names): [x for name in names for x in get(name)])


ROUTED = {"n_routed_experts": EXPERTS, "num_experts_per_tok": 2, "n_shared_experts": 2, "moe_intermediate_size": 32,
          "first_k_dense_replace": 1, "routed_scaling_factor": 1.5, "n_group": 1, "topk_group": 1, "norm_topk_prob": True}
ATTENTION = {"self_attn.q_proj.weight": (64, 64), "self_attn.k_proj.weight": (32, 64),
             "self_attn.v_proj.weight": (32, 64), "self_attn.o_proj.weight": (64, 64)}
MLP = {"mlp.gate_proj.weight": (96, 64), "mlp.up_proj.weight": (96, 64), "mlp.down_proj.weight": (64, 96)}
MOE = {"mlp.gate.weight": (3, 64), "mlp.gate.e_score_correction_bias": (3,),
       **{f"mlp.{x}.{y}_proj.weight": shape for x, n in (("shared_experts", 64), *((f"experts.{e}", 32) for e in range(3)))
          for y, shape in (("gate", (n, 64)), ("up", (n, 64)), ("down", (64, n)))}}
TWO, FOUR = ({f"{x}_layernorm.weight": (64,) for x in names} for names in (
    ("input", "post_attention"), ("input", "post_attention", "pre_feedforward", "post_feedforward")))
LATENT = {"self_attn.q_a_proj.weight": (20, 64), "self_attn.q_a_layernorm.weight": (20,),
          "self_attn.q_b_proj.weight": (48, 20), "self_attn.kv_a_proj_with_mqa.weight": (28, 64),
          "self_attn.kv_a_layernorm.weight": (24,), "self_attn.kv_b_proj.weight": (60, 24),
          "self_attn.o_proj.weight": (64, 28)}
# Entries of config.json, and the weights of the first layer and of the second.
FAMILIES = {
    "phi3": ({}, *2 * [{**TWO, "self_attn.qkv_proj.weight": (128, 64), "self_attn.o_proj.weight": (64, 64),
                        "mlp.gate_up_proj.weight": (192, 64), "mlp.down_proj.weight": (64, 96)}]),
    "gemma": ({"head_dim": HEAD}, *2 * [{**TWO, **ATTENTION, **MLP}]),
    "gemma2": ({"head_dim": HEAD, "query_pre_attn_scalar": HEAD, "sliding_window": 16, "attn_logit_softcapping": 50.0,
                "final_logit_softcapping": 30.0}, *2 * [{**FOUR, **ATTENTION, **MLP}]),
    "gemma3_text": ({"head_dim": HEAD, "query_pre_attn_scalar": HEAD, "sliding_window": 16, "rope_theta": 1e6,
                     "rope_local_base_freq": 5e3, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
                    *2 * [{**FOUR, **ATTENTION, **MLP, "self_attn.q_norm.weight": (16,),
                           "self_attn.k_norm.weight": (16,)}]),
    "glm4": ({"head_dim": HEAD, "attention_bias": False, "partial_rotary_factor": 0.5}, *2 * [{
        **TWO, **ATTENTION, "post_self_attn_layernorm.weight": (64,), "post_mlp_layernorm.weight": (64,),
        "mlp.gate_up_proj.weight": (192, 64), "mlp.down_proj.weight": (64, 96)}]),
    "olmo3": ({"tie_word_embeddings": False, "sliding_window": 16, "layer_types": ["full_attention", "sliding_attention"]},
              *2 * [{**ATTENTION, **MLP, "self_attn.q_norm.weight": (64,), "self_attn.k_norm.weight": (32,),
                     "post_attention_layernorm.weight": (64,), "post_feedforward_layernorm.weight": (64,)}]),
    "glm4_moe": ({**ROUTED, "head_dim": HEAD}, {**TWO, **ATTENTION, **MLP}, {**TWO, **ATTENTION, **MOE}),
    "qwen2_moe": ({"num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
                   "shared_expert_intermediate_size": 64}, *2 * [{
                       **TWO, **ATTENTION, **{f"self_attn.{x}_proj.bias": (n,) for x, n in (("q", 64), ("k", 32), ("v", 32))},
                       "mlp.shared_expert_gate.weight": (1, 64),
                       **{name.replace("shared_experts", "shared_expert"): shape for name, shape in MOE.items()
                          if not name.endswith("bias")}}]),
    "deepseek_v3": ({**ROUTED, "num_key_value_heads": HEADS, "q_lora_rank": 20, "kv_lora_rank": 24,
                     "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 7,
                     "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8,
                                      "mscale": 0.707, "mscale_all_dim": 0.707}},
                    {**TWO, **LATENT, **MLP}, {**TWO, **LATENT, **MOE}),
}


def family(kind):
    shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    if not kind.startswith("gemma"):
        shapes["lm_head.weight"] = (VOCAB, HIDDEN)
    for i, layer in enumerate(FAMILIES[kind][1:]):
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


def model(kind, where):
    config = dict(CONFIG)
    if kind == "gpt2":
        config = {"model_type": "gpt2", "vocab_size": VOCAB, "n_embd": HIDDEN, "n_layer": LAYERS,
                  "n_head": HEADS, "n_positions": 32, "n_inner": FFN, "layer_norm_epsilon": 1e-5}
    elif kind in WHOLES:
        config = {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3", "vision_config": {},
                  "tie_word_embeddings": False, "text_config": {**CONFIG, "model_type": "mistral"}}
    elif kind in FAMILIES or kind in LINEAR:
        config |= {"model_type": kind, **(FAMILIES[kind][0] if kind in FAMILIES else LINEAR[kind])}
    elif kind != "llama":
        config |= {"model_type": "granitemoe" if kind == "granitemoe" else "mixtral", "num_local_experts": EXPERTS, "num_experts_per_tok": 2}
    for name, value in (("config", config), ("tokenizer", TOKENIZER)):
        with open(f"{where}/{name}.json", "w", encoding="utf-8") as f:
            json.dump(value, f)
    os.makedirs("data", exist_ok=True)
    r = random.Random(kind)
    for name, shape in (family(kind) if kind in FAMILIES else tensors(kind)[0]).items():
        with open(f"data/{name}", "wb") as f:
            n = math.prod(shape)
            values = [r.gauss(0, r.choice([0.01, 1])) for _ in range(n)]
            if (kind.startswith("gemma") or kind in LINEAR) and name.endswith("norm.weight"):  # 1 more is exact
                values = [round(1024 * x) / 1024 for x in values]
            if name.endswith("A_log"):
                values = [r.choice(sorted(MINUS_EXP)) for _ in values]
            f.write(struct.pack(f"<{n}f", *values))
        grid = "x".join(["2"] + ["1"] * (len(shape) - 1))
        print(name, "x".join(map(str, shape)), f"{grid}:data/{name}")


class Reader:
    def __init__(self, path):
        with open(path, "rb") as f:
            self.data, self.at = f.read(), 0
        assert self.data[:4] == b"GGUF" and self.take("<4xI") == 3
        n_tensors, n_keys = self.take("<Q"), self.take("<Q")
        self.keys = {self.text(): self.value(self.take("<I")) for _ in range(n_keys)}
        assert "general.alignment" not in self.keys
        infos = [(self.text(), [self.take("<Q") for _ in range(self.take("<I"))][::-1],
                  self.take("<I"), self.take("<Q")) for _ in range(n_tensors)]
        self.begin = begin = self.at + -self.at % 32
        end = 0
        self.tensors = {}
        for name, dims, kind, off in infos:
            assert off == end, name
            block, size = BLOCKS[kind]
            n = math.prod(dims) // block * size
            self.tensors[name] = (dims, kind, self.data[begin + off:begin + off + n])
            end = off + n + -n % 32
        assert len(self.data) == begin + end

    def take(self, form):
        value, = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def text(self):
        n = self.take("<Q")
        self.at += n
        return self.data[self.at - n:self.at].decode()

    def value(self, kind):
        if kind == 9:
            kind, n = self.take("<I"), self.take("<Q")
            return [self.value(kind) for _ in range(n)]
        return self.text() if kind == 8 else self.take(
            {2: "<H", 4: "<I", 5: "<i", 6: "<f", 7: "<?"}[kind])


def further(path, arch):
    """Add a layer without tensors, and the key that says that it predicts further tokens."""
    key, layers = (f"{arch}.{name}".encode() for name in ("nextn_predict_layers", "block_count"))
    key = struct.pack("<Q", len(key)) + key + struct.pack("<II", 4, 1)
    with open(path, "rb") as f:
        data = bytearray(f.read())
    reader = Reader(path)
    at = data.index(layers) + len(layers) + 4
    data[at] += 1
    data[16] += 1
    data[24:reader.begin] = key + data[24:reader.at] + bytes(-(reader.at + len(key)) % 32)
    with open(path, "wb") as f:
        f.write(data)


def spoil(path, name):
    """Change some bytes of a tensor."""
    reader = Reader(path)
    at = reader.data.index(reader.tensors[name][2])
    with open(path, "r+b") as f:
        f.seek(at)
        f.write(b"abcdefgh")


def vector(path, name):
    name = name.encode()
    with open(path, "rb") as f:
        data = bytearray(f.read())
    reader = Reader(path)
    at = data.index(struct.pack("<Q", len(name)) + name) + 8 + len(name)
    n, columns, rows = struct.unpack_from("<IQQ", data, at)
    assert (n, rows) == (2, 1), (n, rows)
    data[at:at + 20] = struct.pack("<IQ", 1, columns)
    end = reader.at - 8
    with open(path, "wb") as f:
        f.write(data[:end] + bytes(-end % 32) + data[reader.begin - 8:])


def single(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def q8_0(w):
    out = b""
    for i in range(0, len(w), 32):
        d = single(max(map(abs, w[i:i + 32])) / 127)
        inverse = single(1 / d) if d else 0
        y = [single(x * inverse) for x in w[i:i + 32]]
        out += struct.pack("<e32b", d, *(int(math.copysign(math.floor(abs(v) + 0.5), v)) for v in y))
    return out


def q4_0(w):
    out = b""
    for i in range(0, len(w), 32):
        d = single(max(w[i:i + 32], key=abs) / -8)
        inverse = single(1 / d) if d else 0
        q = [min(15, int(single(single(x * inverse) + 8.5))) for x in w[i:i + 32]]
        out += struct.pack("<e16B", d, *(a | b << 4 for a, b in zip(q, q[16:])))
    return out


def packed(w, kind):
    if kind == 30:  # to the nearest, ties to even
        bits = struct.unpack(f"<{len(w)}I", struct.pack(f"<{len(w)}f", *w))
        return struct.pack(f"<{len(w)}H", *((b + 0x7fff + (b >> 16 & 1)) >> 16 for b in bits))
    if kind in (2, 8):
        return q4_0(w) if kind == 2 else q8_0(w)
    return struct.pack(f"<{len(w)}{'fe'[kind]}", *w)


def check(kind, *paths):
    readers = [Reader(p) for p in paths]
    have = {n: t for r in readers for n, t in r.tensors.items()}
    made = tensors(kind)[1]
    assert sum(len(r.tensors) for r in readers) == len(have)
    assert set(have) == set(made), set(have) ^ set(made)

    def get(name):
        with open(f"data/{name}", "rb") as f:
            data = f.read()
        return struct.unpack(f"<{len(data) // 4}f", data)

    matrices = {t[1] for n, t in have.items() if made[n][1]}
    for name, (dims, matrix, how) in made.items():
        got_dims, got, data = have[name]
        assert got_dims == list(dims), (name, got_dims, dims)
        assert matrix or got == 0, (name, got)
        assert data == packed(how(get), got), name
    for i, r in enumerate(readers if len(readers) > 1 else []):
        assert r.keys["split.no"] == i and r.keys["split.count"] == len(readers)
        assert r.keys["split.tensors.count"] == len(have)
    assert readers[0].keys["tokenizer.ggml.tokens"][:4] == ["a", "b", "ab", "[PAD3]"]
    print(*sorted(matrices), readers[0].keys["general.file_type"])


def change(path, key, value):
    with open(path, encoding="utf-8") as f:
        tree = json.load(f)
    if value == "-":
        del tree[key]
    else:
        tree[key] = json.loads(value)
    with open(path, "w", encoding="utf-8") as f:
        json.dump(tree, f)


def names(path):
    print(*sorted(Reader(path).tensors))


def types(path):
    print(*sorted(t[1] for t in Reader(path).tensors.values()))


def key(path, name):
    print(Reader(path).keys[name])


{"model": model, "check": check, "names": names, "types": types, "key": key, "set": change,
 "further": further, "spoil": spoil, "vector": vector}[sys.argv[1]](*sys.argv[2:])
