# SPDX-License-Identifier: Apache-2.0
"""Quantised checkpoints, and the weights that other programs compute from them.

    dequant.py make SEED DIR     writes DIR/CASE/ckpt, DIR/CASE/expected/DTYPE/NAME
    dequant.py check DIR GOT     compares GOT/CASE/DTYPE/NAME with these, bit by bit; all NaNs are equal
"""
import json
import os
import sys

import numpy
import torch
from compressed_tensors.compressors.base import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def codes(*shape):
    """Every code, including NaN, subnormals and -0."""
    return torch.randint(0, 256, shape, dtype=torch.uint8)


def floats(*shape, dtype=torch.float32):
    return (torch.randn(shape) * torch.exp2(torch.randint(-12, 4, shape).float())).to(dtype)


class Case:
    """A checkpoint of two files, so that codes and their scales are in different ones."""

    def __init__(self, root, name, config):
        self.dir = os.path.join(root, name)
        self.files = [{}, {}]
        self.weights = {}
        os.makedirs(os.path.join(self.dir, "ckpt"))
        with open(os.path.join(self.dir, "ckpt/config.json"), "w") as f:
            at = {"architectures": ["X"], "quantization_config": config, "hidden_size": 64}
            if len(name) % 2:  # nested, as in models of several parts, and with a number that only Python writes
                at = {"time_step_limit": [0.0, float("inf")], "text_config": at}
            json.dump(at, f, indent=2)

    def put(self, name, tensor):
        self.files[len(self.files[0]) > len(self.files[1])][name] = tensor.contiguous()

    def expect(self, name, weight, dtype=None):
        """weight: a function of the requested dtype."""
        self.weights[name] = weight

    def plain(self):
        x = floats(5, 7, dtype=torch.bfloat16)
        self.put("model.norm.weight", x)
        self.weights["model.norm.weight"] = lambda dtype: x

    def save(self):
        self.plain()
        self.write()
        for word, dtype in DTYPES.items():
            at = os.path.join(self.dir, "expected", word)
            os.makedirs(at)
            for name, weight in self.weights.items():
                with open(os.path.join(at, name), "wb") as f:
                    f.write(weight(dtype).contiguous().view(torch.uint8).numpy().tobytes())

    def write(self):
        for i, tensors in enumerate(self.files):
            save_file(tensors, os.path.join(self.dir, f"ckpt/model-{i + 1:05}-of-00002.safetensors"))
        index = {name: f"model-{i + 1:05}-of-00002.safetensors" for i, f in enumerate(self.files) for name in f}
        with open(os.path.join(self.dir, "ckpt/model.safetensors.index.json"), "w") as f:
            json.dump({"metadata": {}, "weight_map": index}, f)


def blocks(scales, rows, columns, m, n):
    """A scale for each element; the last blocks may be partial."""
    return scales.repeat_interleave(rows, -2)[..., :m, :].repeat_interleave(columns, -1)[..., :n]


def float8_block(root):
    """DeepSeek's kernel: w.to(float32) * s, stored in the output's dtype."""
    for name, rows, columns, said in [("fp8-block", 128, 128, [128, 128]), ("fp8-small", 16, 32, [16, 32]),
                                      ("fp8-nothing", 128, 128, [0, 0])]:
        case = Case(root, name, {"quant_method": "fp8", "weight_block_size": said, "fmt": "e4m3"})
        shapes = [(rows, columns), (2 * rows + 1, columns), (rows - 1, 3 * columns - 5), (3, 2), (1, 1),
                  (4 * rows + rows // 2, 9 * columns), (300, 1111)]
        for i, (m, n) in enumerate(shapes):
            w = codes(m, n).view(torch.float8_e4m3fn)
            s = floats(-(-m // rows), -(-n // columns))
            key = f"model.layers.{i}.mlp.weight"
            case.put(key, w)
            case.put(key + "_scale_inv", s)
            full = w.to(torch.float32) * blocks(s, rows, columns, m, n)
            case.expect(key, lambda dtype, full=full: full.to(dtype))
        case.save()


def float8_rows(root):
    """compressed-tensors and ModelOpt: one scale, or one for each row."""
    case = Case(root, "fp8-rows", {"quant_method": "compressed-tensors", "format": "float-quantized"})
    for i, (m, n, s) in enumerate([(64, 48, (1,)), (64, 48, (64, 1)), (33, 77, (33,)), (100, 2000, (1, 1)), (5, 9, ())]):
        for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
            w = codes(m, n).view(torch.float8_e4m3fn)
            scale = floats(*s, dtype=dtype)
            key = f"model.layers.{i}.{str(dtype)[6:]}.weight"
            case.put(key, w)
            case.put(key + "_scale", scale)
            case.put(key[:-6] + "input_scale", torch.ones(1))
            full = w.to(torch.float32) * (scale.to(torch.float32)[:, None] if s == (33,) else scale.to(torch.float32))
            case.expect(key, lambda dtype, full=full: full.to(dtype))
    case.save()


def mxfp8(root):
    """All scales are exponents."""
    case = Case(root, "mxfp8", {"quant_method": "mxfp8"})
    w = codes(256, 96).view(torch.float8_e4m3fn)
    s = torch.arange(256 * 3).remainder(256).to(torch.uint8).reshape(256, 3)
    case.put("a.weight", w)
    case.put("a.weight_scale", s)
    full = w.to(torch.float32) * blocks(s.view(torch.float8_e8m0fnu).to(torch.float32), 1, 32, 256, 96)
    case.expect("a.weight", lambda dtype: full.to(dtype))
    case.save()


def mxfp4(root):
    """gpt-oss, as transformers computes it."""
    case = Case(root, "gpt-oss", {"quant_method": "mxfp4"})
    for name, shape in {"gate_up_proj": (3, 70, 4, 16), "down_proj": (2, 33, 1, 16)}.items():
        blocks_, scales = codes(*shape), codes(*shape[:-1])
        key = "model.layers.0.mlp.experts." + name
        case.put(key + "_blocks", blocks_)
        case.put(key + "_scales", scales)
        full = convert_moe_packed_tensors(blocks_, scales).to(torch.float32)
        case.expect(key, lambda dtype, full=full: full.to(dtype))
    case.save()


def compressed(root, name, how, args, tensors):
    """compressed-tensors computes in the dtype of the scales; if another one is requested, in float32."""
    config = {"quant_method": "compressed-tensors", "format": how,
              "config_groups": {"group_0": {"targets": ["Linear"], "weights": args}}}
    case = Case(root, name, config)
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**args))
    for key, state in tensors.items():
        for part, tensor in state.items():
            case.put(f"{key}.{part}", tensor)

        def weight(dtype, state=state):
            state = dict(state)
            scale = state["weight_scale"]
            if scale.dtype in DTYPES.values() and scale.dtype != dtype:
                state["weight_scale"] = scale.to(torch.float32)
            if "weight_packed" in state and state["weight_packed"].dtype == torch.uint8 and dtype != torch.bfloat16:
                return nvfp4_formula(state).to(dtype)
            return BaseCompressor.get_value_from_registry(how).decompress(state, scheme)["weight"].to(dtype)

        case.expect(key + ".weight", weight)
    case.save()


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def nibbles(packed):
    """uint8 [..., n] to [..., 2n], the low one first."""
    return torch.stack([packed & 15, packed >> 4], -1).flatten(-2).long()


def nvfp4_formula(state):
    scale = state["weight_scale"].to(torch.float32) / state["weight_global_scale"]
    return E2M1[nibbles(state["weight_packed"])] * scale.repeat_interleave(16, -1)


def words(*shape):
    return torch.randint(-2**31, 2**31, shape, dtype=torch.int64).to(torch.int32)


def packed(root):
    shapes = [(16, 64), (33, 128), (7, 32), (100, 320)]
    for dtype in (torch.bfloat16, torch.float16):
        short = "bf16" if dtype == torch.bfloat16 else "fp16"
        args = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
        compressed(root, f"int4-{short}", "pack-quantized", args, {
            f"a.{i}": {"weight_packed": words(m, n // 8), "weight_scale": floats(m, n // 32, dtype=dtype),
                       "weight_shape": torch.tensor([m, n])} for i, (m, n) in enumerate(shapes)})
        args = {**args, "symmetric": False}
        compressed(root, f"int4-zeros-{short}", "pack-quantized", args, {
            f"a.{i}": {"weight_packed": words(m, n // 8), "weight_scale": floats(m, n // 32, dtype=dtype),
                       "weight_zero_point": words(-(-m // 8), n // 32),
                       "weight_shape": torch.tensor([m, n])} for i, (m, n) in enumerate(shapes)})
        args = {**args, "symmetric": True, "actorder": "group"}
        compressed(root, f"int4-order-{short}", "pack-quantized", args, {
            f"a.{i}": {"weight_packed": words(m, n // 8), "weight_scale": floats(m, n // 32, dtype=dtype),
                       "weight_g_idx": (torch.randperm(n) // 32).to(torch.int32),
                       "weight_shape": torch.tensor([m, n])} for i, (m, n) in enumerate(shapes)})
        args = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "channel"}
        compressed(root, f"int4-rows-{short}", "pack-quantized", args, {
            f"a.{i}": {"weight_packed": words(m, -(-n // 8)), "weight_scale": floats(m, 1, dtype=dtype),
                       "weight_shape": torch.tensor([m, n])} for i, (m, n) in enumerate([(5, 9), (12, 777)])})
        args = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
        compressed(root, f"int8-packed-{short}", "pack-quantized", args, {
            f"a.{i}": {"weight_packed": words(m, -(-n // 4)), "weight_scale": floats(m, 1, dtype=dtype),
                       "weight_shape": torch.tensor([m, n])} for i, (m, n) in enumerate([(5, 9), (12, 777)])})
        compressed(root, f"int8-{short}", "int-quantized", args, {
            f"a.{i}": {"weight": codes(m, n).view(torch.int8), "weight_scale": floats(m, 1, dtype=dtype)}
            for i, (m, n) in enumerate(shapes)})
    args = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16}
    compressed(root, "nvfp4", "nvfp4-pack-quantized", args, {
        f"a.{i}": {"weight_packed": codes(m, n // 2), "weight_scale": floats(m, n // 16).to(torch.float8_e4m3fn),
                   "weight_global_scale": floats(1).abs()} for i, (m, n) in enumerate(shapes)})


def unpack(words_, bits, order=None):
    """int32 [a, b] to codes [a, b * 32 / bits]; order: that of the codes in a word."""
    shifts = torch.arange(32 // bits) if order is None else torch.tensor(order)
    return ((words_.long()[..., None] >> (shifts * bits)) & ((1 << bits) - 1)).flatten(-2)


def inputs_first(root):
    """AWQ and GPTQ store [inputs, outputs]: W = (code - zero) * scale in float32, rounded once."""
    case = Case(root, "awq", {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"})
    order = [0, 4, 1, 5, 2, 6, 3, 7]
    for i, (k, n) in enumerate([(64, 16), (1024, 304), (32, 8)]):
        q, z, s = words(k, n // 8), words(k // 32, n // 8), floats(k // 32, n, dtype=torch.float16)
        key = f"model.layers.{i}.q_proj"
        case.put(key + ".qweight", q)
        case.put(key + ".qzeros", z)
        case.put(key + ".scales", s)
        zero, scale = (x.repeat_interleave(32, 0).float() for x in (unpack(z, 4, order), s))
        full = ((unpack(q, 4, order).float() - zero) * scale).T
        case.expect(key + ".weight", lambda dtype, full=full: full.to(dtype))
    case.save()
    for name, bits, more, how in [("gptq", 4, 1, {"quant_method": "gptq", "checkpoint_format": "gptq"}),
                                  ("gptq-v2", 4, 0, {"quant_method": "gptq", "checkpoint_format": "gptq_v2"}),
                                  ("gptq-int8", 8, 1, {"quant_method": "gptq"}),
                                  ("auto-round", 4, 0, {"quant_method": "auto-round", "packing_format": "auto_round"})]:
        case = Case(root, name, {"bits": bits, "group_size": 32, **how})
        per = 32 // bits
        for i, (k, n, ordered) in enumerate([(64, 16, False), (1024, 304, True), (32, 8, True)]):
            q, z, s = words(k // per, n), words(k // 32, n // per), floats(k // 32, n, dtype=torch.float16)
            groups = (torch.randperm(k) if ordered else torch.arange(k)) // 32
            key = f"model.layers.{i}.q_proj"
            case.put(key + ".qweight", q)
            case.put(key + ".qzeros", z)
            case.put(key + ".scales", s)
            if i:
                case.put(key + ".g_idx", groups.to(torch.int32))
            zero = (unpack(z, bits) + more).float()[groups]
            full = ((unpack(q.T, bits).T.float() - zero) * s.float()[groups]).T
            case.expect(key + ".weight", lambda dtype, full=full: full.to(dtype))
        case.save()


NF4 = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
       -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
       0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0]


def bitsandbytes(root):
    """As its kernels for CUDA compute: map[code] * absmax in float32; nested, absmax is map[code] * absmax + offset."""
    for kind in ("nf4", "fp4"):
        case = Case(root, f"bnb-{kind}", {"quant_method": "bitsandbytes", "load_in_4bit": True})
        for i, (shape, block, nested) in enumerate([((64, 96), 64, 0), ((7, 33), 64, 0), ((300, 1111), 128, 256),
                                                    ((5,), 64, 256), ((3, 20, 4), 4096, 0), ((2000, 70), 64, 100)]):
            n = torch.Size(shape).numel()
            key, scales = f"model.layers.{i}.q_proj.weight", -(-n // block)
            packed_, table = codes(-(-n // 2), 1), torch.tensor(NF4) if kind == "nf4" else floats(16)
            state = {"quant_type": kind, "blocksize": block, "dtype": "bfloat16", "shape": shape}
            if nested:
                offset = float(floats(1))
                state.update(nested_blocksize=nested, nested_dtype="float32", nested_offset=offset)
                small, deep, deep_map = codes(scales), floats(-(-scales // nested)), floats(256)
                case.put(key + ".absmax", small)
                case.put(key + ".nested_absmax", deep)
                case.put(key + ".nested_quant_map", deep_map)
                absmax = deep_map[small.long()] * deep.repeat_interleave(nested)[:scales]
                absmax += torch.tensor(offset)
            else:
                absmax = floats(scales)
                case.put(key + ".absmax", absmax)
            case.put(key, packed_)
            case.put(key + ".quant_map", table)
            text = bytearray(json.dumps(state).encode())
            case.put(f"{key}.quant_state.bitsandbytes__{kind}", torch.frombuffer(text, dtype=torch.uint8))
            flat = torch.stack([packed_ >> 4, packed_ & 15], -1).flatten()[:n].long()
            full = table[flat] * absmax.repeat_interleave(block)[:n]
            case.expect(key, lambda dtype, full=full: full.to(dtype))
        case.save()


MAKERS = [bitsandbytes, float8_block, float8_rows, mxfp8, mxfp4, packed, inputs_first]


def is_nan(bits, dtype):
    mask = {"bf16": 0x7F80, "fp16": 0x7C00, "fp32": 0x7F800000}[dtype]
    rest = {"bf16": 0x7F, "fp16": 0x3FF, "fp32": 0x7FFFFF}[dtype]
    return ((bits & mask) == mask) & ((bits & rest) != 0)


def check(root, got):
    passed = failed = 0
    for case in sorted(os.listdir(root)):
        for dtype in DTYPES:
            at = os.path.join(root, case, "expected", dtype)
            mine = os.path.join(got, case, dtype)
            if sorted(os.listdir(at)) != sorted(os.listdir(mine)):
                print(f"{case} {dtype}: {set(os.listdir(at)) ^ set(os.listdir(mine))}")
                failed += 1
            for name in os.listdir(at):
                plain = name == "model.norm.weight"
                kind = numpy.uint32 if dtype == "fp32" and not plain else numpy.uint16
                want = numpy.fromfile(os.path.join(at, name), kind)
                have = numpy.fromfile(os.path.join(mine, name), kind)
                if len(want) != len(have):
                    print(f"{case} {dtype} {name}: {len(have)} elements, {len(want)} expected")
                    failed += 1
                    continue
                differ = want != have
                if not plain:
                    differ &= ~(is_nan(want, dtype) & is_nan(have, dtype))
                if differ.any():
                    i = int(numpy.argmax(differ))
                    print(f"{case} {dtype} {name}: {int(differ.sum())} of {len(want)} differ, "
                          f"first {i}: {int(have[i]):#x}, expected {int(want[i]):#x}")
                    failed += 1
                else:
                    passed += 1
    print(f"{passed} passed, {failed} failed")


if __name__ == "__main__":
    if sys.argv[1] == "make":
        torch.manual_seed(int(sys.argv[2]))
        for maker in MAKERS:
            maker(sys.argv[3])
    else:
        check(sys.argv[2], sys.argv[3])
