# SPDX-License-Identifier: Apache-2.0
"""Checkpoints for quantize=, and the codes and scales that compressed-tensors and transformers compute.

    quantise.py make SEED DIR    writes DIR/DTYPE/ckpt, DIR/DTYPE/expected/KIND/NAME, and a Llama, DIR/model/ckpt
    quantise.py check DIR GOT    compares GOT/DTYPE/KIND, a copy of hf/, with these, byte by byte; all NaNs are equal
    quantise.py load DIR GOT     opens GOT/model/KIND by transformers; logits must be near those of DIR/model/ckpt
"""
import json
import os
import sys
from types import SimpleNamespace

import torch
from compressed_tensors.compressors.base import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils.helpers import calculate_qparams
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.integrations.finegrained_fp8 import Fp8Quantize
from transformers.quantizers import quantizer_finegrained_fp8

KINDS = ["fp8_dynamic", "fp8_block"]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
SHAPES = [(128, 128), (256, 384), (1, 1), (3, 300000), (2000, 64), (300, 1111), (640, 4096), (129, 128), (5, 0)]
LEFT = ["lm_head", "model.layers.0.mlp.gate", "model.layers.0.block_sparse_moe.router.layer", "model.visual.blocks.0.attn.qkv",
        "model.layers.0.mlp.shared_expert_gate"]
OTHER = ["model.embed_tokens", "model.norm"]


def values(m, n, dtype):
    """Values of all sizes: rows and blocks of zeros, of subnormals, of numbers that become infinite, with NaN."""
    x = torch.randn(m, n) * torch.exp2(torch.randint(-20, 8, (m, 1)).float())
    for special in (0, 1e-40, 1e-6, 60000, 3e38, float("inf"), float("nan"), -0.0):
        if n and m > 3:
            row, column = int(torch.randint(m, ())), int(torch.randint(n, ()))
            x[row] = x[row] * special if special in (0, 1e-40) else x[row]
            x[row, column] = special
    x[: m // 7] *= 0
    return x.to(dtype)


def by_rows(weight):
    args = QuantizationArgs(num_bits=8, type="float", strategy="channel", symmetric=True, dynamic=False)
    scale, _ = calculate_qparams(weight.amin(-1, keepdim=True), weight.amax(-1, keepdim=True), args)
    made = BaseCompressor.get_value_from_registry("float-quantized").compress(
        {"weight": weight, "weight_scale": scale}, QuantizationScheme(targets=["Linear"], weights=args))
    return made["weight"], "weight_scale", made["weight_scale"]


def by_blocks(weight):
    how = SimpleNamespace(quantization_config=SimpleNamespace(weight_block_size=(128, 128), scale_fmt=None))
    made = Fp8Quantize(how)._quantize_one("weight", weight)
    return made["weight"], "weight_scale_inv", made.get("weight_scale_inv")


def write(path, tensor):
    with open(path, "wb") as f:
        f.write(tensor.contiguous().view(torch.uint8).numpy().tobytes())


def make(seed, root):
    torch.manual_seed(seed)
    for word, dtype in DTYPES.items():
        at = os.path.join(root, word)
        weights = {f"model.layers.{i}.mlp.up_proj": values(m, n, dtype) for i, (m, n) in enumerate(SHAPES)}
        rest = {name: values(128, 256, dtype) for name in LEFT + OTHER}
        os.makedirs(os.path.join(at, "ckpt"))
        save_file({k + ".weight": v for k, v in {**weights, **rest}.items()}, os.path.join(at, "ckpt/model.safetensors"))
        with open(os.path.join(at, "ckpt/config.json"), "w") as f:
            json.dump({"model_type": "x", "quantization_config": None} if word == "fp16" else {"model_type": "x"}, f)
        for kind in KINDS:
            os.makedirs(os.path.join(at, "expected", kind))
            for name, weight in {**weights, **rest}.items():
                codes, end, scale = weight, None, None
                if name in weights and weight.numel():
                    codes, end, scale = (by_rows if kind == "fp8_dynamic" else by_blocks)(weight)
                write(os.path.join(at, "expected", kind, name + ".weight"), codes)
                if scale is not None:
                    write(os.path.join(at, "expected", kind, f"{name}.{end}"), scale)
    config = LlamaConfig(vocab_size=96, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=4, max_position_embeddings=64, tie_word_embeddings=bool(seed % 2))
    model = LlamaForCausalLM(config).bfloat16()
    model.save_pretrained(os.path.join(root, "model/ckpt"))


def same(a, b):
    """Whether each pair has the same bytes, or is NaN in both."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    nan = a.float().isnan() & b.float().isnan()
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[a.element_size()]
    return bool(((a.view(kind) == b.view(kind)) | nan).all())


def ignored(config):
    q = config["quantization_config"]
    return set(q.get("ignore") or q.get("modules_to_not_convert"))


def check(root, got):
    passed = failed = 0
    for word in DTYPES:
        for kind in KINDS:
            at, mine = os.path.join(root, word, "expected", kind), os.path.join(got, word, kind)
            with open(os.path.join(mine, "config.json")) as f:
                left = ignored(json.load(f))
            want_left = {n[:-7] for n in os.listdir(at) if n.endswith(".weight")} - set(OTHER)
            want_left -= {n.rpartition(".")[0] for n in os.listdir(at) if "scale" in n}
            problems = [] if left == want_left else [f"left: {left ^ want_left}"]
            with safe_open(os.path.join(mine, "model.safetensors"), "pt") as f:
                if set(f.keys()) != set(os.listdir(at)):
                    problems.append(f"names: {set(f.keys()) ^ set(os.listdir(at))}")
                for name in f.keys():
                    have = f.get_tensor(name)
                    with open(os.path.join(at, name), "rb") as g:
                        raw = bytearray(g.read())
                    want = torch.frombuffer(raw, dtype=have.dtype) if raw else torch.empty(0, dtype=have.dtype)
                    if not same(have.flatten(), want):
                        problems.append(f"{name}: {have.dtype} {list(have.shape)} differs")
                    passed += 1
            failed += len(problems)
            for problem in problems:
                print(f"{word} {kind}: {problem}")
    print(f"{passed} passed, {failed} failed")


def load(root, got):
    passed = failed = 0
    quantizer_finegrained_fp8.is_accelerate_available = lambda: True  # required, but not needed here
    ids = torch.arange(24).reshape(2, 12)
    plain = AutoModelForCausalLM.from_pretrained(os.path.join(root, "model/ckpt"), dtype=torch.bfloat16)
    for kind in KINDS:
        model, info = AutoModelForCausalLM.from_pretrained(os.path.join(got, "model", kind), dtype=torch.bfloat16,
                                                           output_loading_info=True)
        with torch.no_grad():
            want, have = plain(ids).logits.float(), model(ids).logits.float()
        near = float((want - have).norm() / want.norm())
        wrong = [k for k in ("missing_keys", "unexpected_keys", "mismatched_keys") if info[k]]
        if wrong or not 0 < near < 0.1:
            print(f"{kind}: {[info[k] for k in wrong]}, relative error {near}")
            failed += 1
        else:
            passed += 1
    print(f"{passed} passed, {failed} failed")


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(int(sys.argv[2]), sys.argv[3])
    else:
        {"check": check, "load": load}[sys.argv[1]](sys.argv[2], sys.argv[3])
