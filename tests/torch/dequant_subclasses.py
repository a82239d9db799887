# SPDX-License-Identifier: Apache-2.0
"""Tensor subclasses of torchao and Transformer Engine in torch.save files and DCP, and what they stand for.

    dequant_subclasses.py SEED DIR     writes DIR/CASE/ckpt, DIR/CASE/expected/DTYPE/NAME, like dequant.py

Neither library is in Debian. The classes here have the same modules, names and attributes, so that torch pickles them
in the same way; the formulas follow the libraries' sources, operation by operation and with the same dtypes.
"""
import enum
import os
import sys
import types

import torch
import torch.distributed.checkpoint as dcp

from dequant import Case, codes, floats


def module(name):
    if name not in sys.modules:
        parent, _, last = name.rpartition(".")
        sys.modules[name] = types.ModuleType(name)
        if parent:
            setattr(module(parent), last, sys.modules[name])
    return sys.modules[name]


def placed(where, cls, name=None):
    """Makes the class one of that module."""
    cls.__module__, cls.__name__ = where, name or cls.__name__
    cls.__qualname__ = cls.__name__
    setattr(module(where), cls.__name__, cls)
    return cls


# ---- torchao's classes

class Subclass(torch.Tensor):
    """A tensor without elements of its own; all arguments become attributes."""

    @staticmethod
    def __new__(cls, shape, dtype, attrs):
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype)

    def __init__(self, shape, dtype, attrs):
        self.__dict__.update(attrs)

    @classmethod
    def __torch_dispatch__(cls, func, types_, args=(), kwargs=None):
        if func is torch.ops.aten.is_pinned.default:
            return False
        if func in (torch.ops.aten.detach.default, torch.ops.aten.clone.default, torch.ops.aten._to_copy.default,
                    torch.ops.aten.view.default):
            return args[0].same()
        raise NotImplementedError(func)

    def same(self):
        return type(self)(self.shape, self.dtype, dict(self.__dict__))


def subclass(where, name):
    return placed(where, type(name, (Subclass,), {}))


QUANT, DTYPE_UTILS = "torchao.quantization", "torchao.dtypes.utils"
Int8Tensor = subclass(QUANT, "Int8Tensor")
IntxTensor = subclass(QUANT, "IntxUnpackedToInt8Tensor")
Int4Tensor = subclass(QUANT, "Int4Tensor")
AffineTensor = subclass("torchao.dtypes.affine_quantized_tensor", "AffineQuantizedTensor")
PlainImpl = subclass("torchao.dtypes.uintx.plain_layout", "PlainAQTTensorImpl")
QDQImpl = subclass("torchao.dtypes.uintx.q_dq_layout", "QDQTensorImpl")
PlainLayoutTensor = subclass("torchao.dtypes.affine_quantized_tensor", "PlainAQTLayout")
Float8Impl = subclass("torchao.dtypes.floatx.float8_layout", "Float8AQTTensorImpl")
ActivationTensor = subclass("torchao.quantization.linear_activation_quantized_tensor", "LinearActivationQuantizedTensor")
State8 = subclass("torchao.optim.subclass_8bit", "OptimState8bit")
State4 = subclass("torchao.optim.subclass_4bit", "OptimState4bit")
StateFp8 = subclass("torchao.optim.subclass_fp8", "OptimStateFp8")
CastTensor = subclass("torchao.float8.fsdp_utils", "WeightWithDynamicFloat8CastTensor")
TrainingTensor = subclass("torchao.prototype.moe_training.tensor", "MXFP8TrainingWeightWrapperTensor")
PlainLayout = placed(DTYPE_UTILS, type("PlainLayout", (), {}))
ZeroPointDomain = placed("torchao.quantization.quant_primitives",
                         enum.Enum("ZeroPointDomain", {"INT": 1, "FLOAT": 2, "NONE": 3}))


def each(x, block, shape):
    """Repeats a value of each block for each of its elements."""
    x = x.reshape([n // b for n, b in zip(shape, block)])
    for d, b in enumerate(block):
        x = x.repeat_interleave(b, d)
    return x


def affine(q, scale, zero, block):
    """dequantize_affine: zero points are subtracted in the result's dtype; before 0.12, as int32."""

    def weight(dtype):
        y = q.to(dtype)
        if zero is not None:
            y = y - each(zero, block, q.shape).to(dtype)
            if not zero.is_floating_point():
                old = (q.to(torch.int32) - each(zero, block, q.shape).to(torch.int32)).to(dtype)
                assert torch.equal(old, y)
        return (y * each(scale, block, q.shape)).to(dtype)

    return weight


def tinygemm(q, scale, zero, block, low, high):
    """_dequantize_affine_tinygemm: zero points are floats, and each in-place operation rounds."""

    def weight(dtype):
        y = (q - (high + low + 1) / 2).to(dtype)
        y *= each(scale, block, q.shape)
        if zero is not None:
            y += each(zero, block, q.shape)
        return y

    return weight


def ints(low, high, *shape):
    return torch.randint(low, high, shape)


SCALES = [torch.float32, torch.bfloat16, torch.float16]


class Saved(Case):
    """The same tensors, saved by torch.save or by DCP."""

    def __init__(self, root, name, tensors, weights):
        self.dir, self.tensors, self.weights = os.path.join(root, name), tensors, weights
        os.makedirs(self.dir)

    def plain(self):
        x = self.tensors["model.norm.weight"] = floats(5, 7, dtype=torch.bfloat16)
        self.weights["model.norm.weight"] = lambda dtype: x

    def write(self):
        if self.dir.endswith("-dcp"):
            dcp.save(dict(self.tensors), checkpoint_id=os.path.join(self.dir, "ckpt"), no_dist=True)
        else:
            torch.save(self.tensors, os.path.join(self.dir, "ckpt"))


def save_both(root, name, tensors, weights):
    for how in ("pt", "dcp"):
        case = Saved(root, f"{name}-{how}", dict(tensors), dict(weights))
        case.save()


def int8(root):
    tensors, weights = {}, {}
    shapes = [((70, 64), (1, 64)), ((70, 64), (70, 64)), ((33, 128), (1, 32)), ((64, 96), (16, 32)),
              ((3, 40, 64), (1, 1, 64)), ((3, 40, 64), (3, 40, 64)), ((300, 1100), (1, 1100)), ((1, 1), (1, 1)),
              ((5, 40), (5, 1))]
    for i, (shape, block) in enumerate(shapes):
        for dtype in SCALES:
            for kind in ("none", "int8", "float"):
                grid = [n // b for n, b in zip(shape, block)]
                q, scale = codes(*shape).view(torch.int8), floats(*grid, dtype=dtype)
                zero = {"none": None, "int8": ints(-128, 128, *grid).to(torch.int8), "float": floats(*grid, dtype=dtype)}[kind]
                key = f"model.layers.{i}.{str(dtype)[6:]}.{kind}"
                attrs = {"qdata": q, "scale": scale, "block_size": list(block), "zero_point": zero}
                if kind == "float":
                    attrs.update(target_dtype=torch.int8, block_size=tuple(block), activation_quantization=None)
                else:
                    attrs.update(act_quant_kwargs=None, act_quant_scale=None, act_pre_scale=None, reduce_range=False)
                if kind == "int8":
                    attrs.update(act_quant_scale=floats(1), act_quant_zero_point=torch.zeros(1, dtype=torch.int8))
                cls = IntxTensor if kind == "float" else Int8Tensor
                tensors[key] = cls(shape, torch.bfloat16, attrs)
                weights[key] = affine(q, scale, zero, block)
    save_both(root, "torchao-int8", tensors, weights)


def int4(root):
    tensors, weights = {}, {}
    for i, (shape, group) in enumerate([((64, 128), 32), ((5, 64), 64), ((3, 20, 96), 32), ((300, 1024), 128)]):
        for dtype in SCALES:
            q = ints(-8, 8, *shape).to(torch.int8)
            packed = ((q[..., 1::2] << 4) | (q[..., ::2] & 15)).to(torch.int8)
            turned = (*shape[:-2], shape[-1] // group, shape[-2])
            scale, zero = floats(*turned, dtype=dtype), floats(*turned, dtype=dtype)
            key = f"model.layers.{i}.{str(dtype)[6:]}"
            tensors[key] = Int4Tensor(shape, dtype, {
                "qdata": packed, "scale": scale, "zero_point": zero, "block_size": [1] * (len(shape) - 1) + [group],
                "activation_dtype": torch.bfloat16, "act_pre_scale": None})
            s, z = (x.float().transpose(-1, -2).repeat_interleave(group, -1) for x in (scale, zero))
            weights[key] = lambda out, q=q, s=s, z=z: (q.float() * s + z).to(out)
    save_both(root, "torchao-int4", tensors, weights)


def aqt(root):
    tensors, weights = {}, {}

    def put(key, outer, shape, q, scale, zero, block, domain, weight, old=False, low=None, high=None):
        inner = {"int_data": q, "scale": scale, "zero_point": zero, "layout_type" if old else "_layout": PlainLayout()}
        impl = (PlainLayoutTensor if old else QDQImpl if outer else PlainImpl)(shape, q.dtype, inner)
        t = AffineTensor(shape, torch.bfloat16, {"layout_tensor" if old else "tensor_impl": impl, "block_size": tuple(block),
                                                 "quant_min": low, "quant_max": high, "zero_point_domain": domain})
        if outer:
            t = ActivationTensor(shape, torch.bfloat16, {
                "original_weight_tensor": t, "input_quant_func": torch.nn.functional.relu, "quant_kwargs": {}})
        tensors[key], weights[key] = t, weight

    for i, (shape, block) in enumerate([((70, 64), (1, 64)), ((70, 64), (70, 64)), ((33, 128), (1, 32)), ((64, 96), (16, 32))]):
        grid = [n // b for n, b in zip(shape, block)]
        short = [n for n in grid if n > 1]  # without keepdim
        for dtype in SCALES:
            q, u = codes(*shape).view(torch.int8), codes(*shape)
            scale, floating = floats(*short, dtype=dtype), floats(*short, dtype=dtype)
            zero, uzero = ints(-128, 128, *short), ints(0, 256, *short).to(torch.int32)
            key = f"model.layers.{i}.{str(dtype)[6:]}"
            put(key + ".int", i % 2, shape, q, scale, zero, block, ZeroPointDomain.INT, affine(q, scale, zero, block))
            put(key + ".uint", False, shape, u, scale, uzero, block, ZeroPointDomain.INT, affine(u, scale, uzero, block), True)
            whole = ints(-128, 128, *short).to(dtype)
            put(key + ".whole", True, shape, q, scale, whole, block, ZeroPointDomain.INT, affine(q, scale, whole, block))
            put(key + ".none", True, shape, q, scale, None, block, ZeroPointDomain.NONE, affine(q, scale, None, block),
                low=-127, high=127)
            nibbles = u & 15
            put(key + ".float", False, shape, nibbles, scale, floating, block, ZeroPointDomain.FLOAT,
                tinygemm(nibbles, scale, floating, block, 0, 15), low=0, high=15)
            put(key + ".bytes", False, shape, u, scale, floating, block, ZeroPointDomain.FLOAT,
                tinygemm(u, scale, floating, block, 0, 255))
            f8 = codes(*shape).view(torch.float8_e4m3fn)
            impl = Float8Impl(shape, f8.dtype, {"float8_data": f8, "scale": scale, "transposed": False, "_layout": PlainLayout()})
            tensors[key + ".float8"] = AffineTensor(shape, torch.bfloat16, {
                "tensor_impl": impl, "block_size": block, "quant_min": None, "quant_max": None,
                "zero_point_domain": ZeroPointDomain.NONE})
            full = f8.float() * each(scale, block, shape).float()
            weights[key + ".float8"] = lambda out, full=full: full.to(out)
    save_both(root, "torchao-aqt", tensors, weights)


def states(root):
    """dequant_with_qmap, OptimStateFp8.dequantize"""
    tensors, weights = {}, {}
    for i, (shape, block) in enumerate([((64, 96), 256), ((3, 7, 256), 128), ((4096,), 64), ((33, 1024), 32), ((16, 16), 256)]):
        n = torch.Size(shape).numel()
        for kind in ("8", "4", "fp8"):
            key, scale = f"state.exp_avg.{i}.{kind}", floats(n // block)
            attrs = {"scale": scale, "block_size": block}
            if kind == "fp8":
                attrs["codes"] = codes(*shape).view(torch.float8_e4m3fn)
                y, cls = attrs["codes"].float().view(-1, block), StateFp8
            elif kind == "8":
                attrs.update(codes=codes(*shape), qmap=floats(256), signed=True)
                y, cls = attrs["qmap"][attrs["codes"].int()].view(scale.shape[0], -1), State8
            else:
                attrs.update(codes=codes(n // 2), qmap=floats(16), signed=False, _shape=torch.Size(shape))
                two = torch.stack([attrs["codes"] >> 4, attrs["codes"] & 15], -1)
                y, cls = attrs["qmap"][two.int()].view(scale.shape[0], -1), State4
            tensors[key] = cls(shape, torch.float32, attrs)
            full = (y * scale.view(-1, 1)).view(shape)
            weights[key] = lambda out, full=full: full.to(out)
    save_both(root, "torchao-states", tensors, weights)


# ---- Transformer Engine

class Engine(Subclass):
    """Pickled as a call with positional arguments: since 2.16 of a function, before that of a method."""

    @classmethod
    def _make_in_reduce_ex(cls, *args):
        raise NotImplementedError

    def __reduce_ex__(self, protocol):
        return (self.function if self.function else type(self)._make_in_reduce_ex), tuple(self.args)


class EnumBefore:
    """An enum as pybind11 made it: an object without arguments whose state is the number."""

    def __init__(self, n=0):
        self.n = n

    def __getstate__(self):
        return self.n

    def __setstate__(self, n):
        self.n = n


class EnumSince(EnumBefore):
    def __reduce_ex__(self, protocol):
        return EnumSince, (self.n,)


def engine_class(file, name, function):
    where = "transformer_engine.pytorch.tensor." + file

    def make(*args):
        raise NotImplementedError

    return placed(where, type(name, (Engine,), {})), placed(where, make, function)


ENGINE = {
    "float8": engine_class("float8_tensor", "Float8Tensor", "_make_float8_tensor_in_reduce_ex"),
    "mxfp8": engine_class("mxfp8_tensor", "MXFP8Tensor", "_make_mxfp8_tensor_in_reduce_ex"),
    "blocks": engine_class("float8_blockwise_tensor", "Float8BlockwiseQTensor", "_make_float8_blockwise_tensor_in_reduce_ex"),
}
placed("transformer_engine_torch", EnumBefore, "DType")
placed("transformer_engine.pytorch.constants", EnumSince, "DType")
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def engine(root):
    tensors, weights = {}, {}

    def put(key, kind, function, shape, args, weight):
        cls, make = ENGINE[kind]
        tensors[key] = cls(shape, torch.bfloat16, {"args": args, "function": make if function else None})
        weights[key] = weight

    # the version, its number of arguments, numbers of dtypes
    for version, n, function, numbers in [("1.13", 4, False, {E4M3: 6, E5M2: 7}), ("2.3", 5, False, {E4M3: 6}),
                                          ("2.15", 5, False, {E5M2: 8}), ("2.16", 5, True, {E4M3: 7, E5M2: 8}),
                                          ("2.18", 6, True, {E4M3: 7, E5M2: 8})]:
        for dtype, number in numbers.items():
            for shape in [(64, 96), (3, 20, 32), (300, 1111)]:
                number_ = (EnumSince if function else EnumBefore)(number)
                data, scale = codes(*shape), floats(1)
                args = [data, number_, scale, torch.bfloat16, torch.Size(shape), None][:n]
                full = data.view(dtype).float() * scale
                put(f"float8.{version}.{number}.{len(shape)}.{shape[0]}", "float8", function, shape, args,
                    lambda out, full=full: full.to(out))
    for n, function, number, dtype in [(6, False, 6, E4M3), (7, False, 6, E4M3), (8, False, 7, E4M3), (9, True, 8, E5M2)]:
        for m, k in [(128, 128), (70, 96), (300, 1120)]:
            data, scale = codes(m, k), ints(60, 190, -(-m // 128) * 128, -(-k // 128) * 4).to(torch.uint8)
            args = [data, scale, codes(m, k), codes(m // 32, k), (EnumSince if function else EnumBefore)(number), torch.bfloat16,
                    torch.Size((m, k)), None, False][:n]
            s = scale.view(torch.float8_e8m0fnu).float()[:m, :k // 32].repeat_interleave(32, 1)
            full = data.view(dtype).float() * s
            put(f"mxfp8.{n}.{m}", "mxfp8", function, (m, k), args, lambda out, full=full: full.to(out))
    for n, function, number, dtype in [(9, False, 6, E4M3), (10, False, 7, E4M3), (10, True, 8, E5M2)]:
        for m, k in [(128, 128), (70, 96), (300, 1111)]:
            for square in (True, False):
                data, rows = codes(m, k), -(-m // 128) if square else -(-k // 128)
                scale = floats(rows, -(-(-(-k // 128) if square else m) // 4) * 4)
                args = [torch.Size((m, k)), data, scale, None, None, (EnumSince if function else EnumBefore)(number),
                        torch.bfloat16, None, square, None][:n]
                if square:
                    s = scale.repeat_interleave(128, 0)[:m].repeat_interleave(128, 1)[:, :k]
                else:
                    s = scale[:, :m].T.repeat_interleave(128, 1)[:, :k]
                full = data.view(dtype).float() * s
                put(f"blocks.{n}.{number}.{m}.{square}", "blocks", function, (m, k), args, lambda out, full=full: full.to(out))
    save_both(root, "engine", tensors, weights)


if __name__ == "__main__":
    torch.manual_seed(int(sys.argv[1]))
    for maker in (int8, int4, aqt, states, engine):
        maker(sys.argv[2])
