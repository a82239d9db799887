#!/usr/bin/env python3
"""save_kinds.py OUT - write a torch.save file for each kind of value other than a plain tensor.

Each case has OUT/NAME/ckpt, a file, and OUT/NAME/expected.json with what a mount must show: the tensors
and texts, as torch itself loads them.
"""
import hashlib
import importlib
import io
import json
import os
import pickle
import struct
import sys
import tarfile
import types

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor.metadata import ShardedTensorMetadata, TensorProperties
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from safetensors.torch import save_file

from save_files import as_json


torch.manual_seed(0)


def element_bytes(t):
    t = t.detach().contiguous()
    if t.is_quantized:
        t = t.int_repr()
    return t.reshape(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b""


class Case:
    def __init__(self, out, name):
        self.dir, self.tensors, self.objects = f"{out}/{name}", {}, {}
        os.makedirs(self.dir)
        self.path = f"{self.dir}/ckpt"

    def tensor(self, name, t):
        data = element_bytes(t)
        self.tensors[name] = {"dtype": str(t.dtype).removeprefix("torch."), "shape": list(t.shape),
                              "nbytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    def object(self, name, value):
        text = as_json(value).encode()
        self.objects[name] = {"length": len(text), "sha256": hashlib.sha256(text).hexdigest()}

    def state(self, state, prefix=""):
        for name, t in state.items():
            self.value(prefix + name, t)

    def value(self, name, t):
        """What a mount shows of a tensor that is made of others, according to the manual."""
        cls = {"__class__": "torch.Tensor"}
        if isinstance(t, torch.nn.Parameter) and vars(t):
            for k, v in vars(t).items():
                if isinstance(v, torch.Tensor):
                    self.tensor(f"{name}.{k}", v)
        if isinstance(t, DTensor):
            if t._local_tensor.shape == t.shape:
                self.tensor(name, t._local_tensor)
            else:
                self.tensor(f"{name}._local_tensor", t._local_tensor)
                self.object(name, {"__class__": "torch.distributed.tensor.DTensor",
                                   "dtype": str(t.dtype)[6:], "shape": list(t.shape)})
        elif isinstance(t, Float8Tensor):
            self.object(name, {"__class__": "transformer_engine.Float8Tensor", "dtype": str(t.dtype)[6:],
                               "shape": list(t.shape), "fp8_dtype": "float8_e4m3fn"})
            self.tensor(f"{name}._data", t.qdata)
            self.tensor(f"{name}._scale_inv", t.scale)
        elif isinstance(t, Wrapper):
            self.object(name, {"__class__": "__main__.Wrapper", "dtype": str(t.dtype)[6:],
                               "shape": list(t.shape), "block": t.block})
            self.value(f"{name}.qdata", t.qdata)
            self.value(f"{name}.scale", t.scale)
        elif t.is_quantized:
            self.tensor(name, t)
            if t.qscheme() == torch.per_tensor_affine:
                self.object(f"{name}.scale", t.q_scale())
                self.object(f"{name}.zero_point", t.q_zero_point())
            else:
                self.tensor(f"{name}.scale", t.q_per_channel_scales())
                self.tensor(f"{name}.zero_point", t.q_per_channel_zero_points())
                self.object(f"{name}.axis", t.q_per_channel_axis())
        elif t.layout == torch.sparse_coo:
            self.object(name, cls | {"layout": str(t.layout), "shape": list(t.shape),
                                     "coalesced": t.is_coalesced()})
            self.tensor(f"{name}.indices", t._indices())
            self.tensor(f"{name}.values", t._values())
        elif t.layout in (torch.sparse_csr, torch.sparse_bsr):
            self.object(name, cls | {"layout": str(t.layout), "shape": list(t.shape)})
            self.tensor(f"{name}.crow_indices", t.crow_indices())
            self.tensor(f"{name}.col_indices", t.col_indices())
            self.tensor(f"{name}.values", t.values())
        elif t.layout in (torch.sparse_csc, torch.sparse_bsc):
            self.object(name, cls | {"layout": str(t.layout), "shape": list(t.shape)})
            self.tensor(f"{name}.ccol_indices", t.ccol_indices())
            self.tensor(f"{name}.row_indices", t.row_indices())
            self.tensor(f"{name}.values", t.values())
        elif t.is_nested:
            parts = t.unbind()
            if t.layout == torch.jagged:
                cls = {"__class__": "torch.nested._internal.nested_tensor.NestedTensor"}
            self.object(name, cls | {"nested": len(parts)})
            for i, part in enumerate(parts):
                self.tensor(f"{name}.{i}", part)
        else:
            self.tensor(name, t)

    def done(self):
        kind = "dcp" if os.path.isdir(self.path) else "torch.save"
        with open(f"{self.dir}/expected.json", "w", encoding="ascii") as f:
            json.dump({"format": kind, "ckpt": "ckpt", "tensors": self.tensors,
                       "bytes": self.objects}, f, indent=1)


def saved(out, name, state, **options):
    """Saves a state; returns what torch.load makes of it, and the case."""
    case = Case(out, name)
    torch.save(state, case.path, **options)
    return torch.load(case.path, weights_only=False), case


# ---- tensors that are made of others

class Wrapper(torch.Tensor):
    """Like torchao's tensors, without elements of its own."""

    @staticmethod
    def __new__(cls, qdata, scale, block):
        return torch.Tensor._make_wrapper_subclass(cls, qdata.shape, dtype=torch.bfloat16)

    def __init__(self, qdata, scale, block):
        self.qdata, self.scale, self.block = qdata, scale, block

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.is_pinned.default:
            return False
        if func in (torch.ops.aten.detach.default, torch.ops.aten.clone.default, torch.ops.aten._to_copy.default):
            return args[0].same()
        raise NotImplementedError(func)

    def same(self):
        return Wrapper(self.qdata, self.scale, self.block)


def _make_float8_tensor_in_reduce_ex(data, fp8_dtype, scale_inv, dtype, shape):
    return Float8Tensor(data, fp8_dtype, scale_inv)


class Float8Tensor(Wrapper):
    """Like Transformer Engine's, which torch does not pickle as a wrapper; a method makes the older ones."""

    @classmethod
    def _make_in_reduce_ex(cls, data, fp8_dtype, scale_inv, dtype, shape):
        return cls(data, fp8_dtype, scale_inv)

    def __new__(cls, data, fp8_dtype, scale_inv, old=False):
        return Wrapper.__new__(cls, data, scale_inv, None)

    def __init__(self, data, fp8_dtype, scale_inv, old=False):
        super().__init__(data, scale_inv, None)
        self.old, self.fp8_dtype = old, fp8_dtype

    def same(self):
        return Float8Tensor(self.qdata, self.fp8_dtype, self.scale, self.old)

    def __reduce_ex__(self, protocol):
        make = Float8Tensor._make_in_reduce_ex if self.old else _make_float8_tensor_in_reduce_ex
        return make, (self.qdata, self.fp8_dtype, self.scale, self.dtype, self.shape)


def quantised():
    x = torch.randn(3, 4, 5)
    scales, zeros = torch.rand(4).double() + 0.1, torch.arange(4)
    return {
        "i8": torch.quantize_per_tensor(x, 0.1, 10, torch.qint8),
        "u8": torch.quantize_per_tensor(x, 1e-3, 0, torch.quint8),
        "i32": torch.quantize_per_tensor(x, 0.3, -7, torch.qint32),
        "channels": torch.quantize_per_channel(x, scales, zeros, 1, torch.qint8),
        "float_zeros": torch.quantize_per_channel(x, scales.float(), scales.float(), 1, torch.quint8),
        "view": torch.quantize_per_tensor(x, 0.1, 10, torch.qint8).permute(2, 0, 1)[1:],
        "empty": torch.quantize_per_tensor(torch.zeros(0, 2), 0.5, 1, torch.qint8),
    }


def sparse():
    x = torch.randn(4, 6) * (torch.rand(4, 6) < 0.4)
    twice = torch.sparse_coo_tensor([[0, 0, 1], [2, 2, 0]], torch.ones(3), (2, 3))
    return {
        "coo": x.to_sparse(), "hybrid": x.to_sparse(1), "twice": twice, "csr": x.to_sparse_csr(),
        "csc": x.to_sparse_csc(), "bsr": x.to_sparse_bsr((2, 3)), "bsc": x.to_sparse_bsc((2, 3)),
        "none": torch.zeros(2, 2).to_sparse(), "half": x.half().to_sparse(),
    }


def nested():
    parts = [torch.randn(2, 3), torch.randn(0, 3), torch.randn(4, 3)]
    jagged = torch.nested.nested_tensor(parts, layout=torch.jagged)
    return {
        "strided": torch.nested.nested_tensor(parts),
        "both": torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(5, 1)]),
        "jagged": jagged,
        "turned": jagged.transpose(1, 2),
        "gaps": torch.nested.narrow(torch.randn(3, 5, 2), 1, torch.tensor([0, 1, 2]),
                                    torch.tensor([3, 1, 2]), layout=torch.jagged),
    }


def wrapped():
    with_state = torch.nn.Parameter(torch.randn(3))
    with_state.other = torch.randn(2)
    inner = torch.quantize_per_tensor(torch.randn(2, 2), 0.1, 10, torch.qint8)
    mesh = init_device_mesh("cpu", (1,))
    part = DTensor.from_local(torch.randn(2, 3), mesh, [Shard(0)], run_check=False,
                              shape=torch.Size((8, 3)), stride=(3, 1))
    return {
        "parameter": torch.nn.Parameter(torch.randn(2, 3), requires_grad=False),
        "with_state": with_state,
        "wrapper": Wrapper(torch.randn(4, 4).to(torch.int8), torch.rand(4), [1, 4]),
        "twice": Wrapper(Wrapper(torch.ones(2, 2).byte(), torch.rand(1), None), inner, [2]),
        "dtensor": distribute_tensor(torch.randn(4, 2), mesh, [Shard(0)]),
        "replica": distribute_tensor(torch.randn(3), mesh, [Replicate()]),
        "part": part,
    }


def in_dcp(out):
    """Quantised tensors, which torch.distributed.checkpoint can save but not load."""
    case = Case(out, "dcp")
    state = quantised() | {"plain": torch.randn(3)}
    dcp.save({"model": state}, checkpoint_id=case.path)
    # Of a view whose storage is larger it makes a clone, and then saves all of that.
    case.state(state, "model.")
    case.done()


def wrapped_in_dcp(out):
    """The metadata describe the tensors that they stand for; their parts are in their items."""
    case = Case(out, "dcp_wrapped")
    codes, many = (torch.randint(-128, 128, shape).to(torch.int8) for shape in ((8, 12), (64, 96)))
    state = {
        "int8": Wrapper(codes, torch.rand(8, 1), [1, 12]),
        "float8": Wrapper(many.view(torch.float8_e4m3fn), torch.rand(64, 3).bfloat16(), [1, 32]),
        "small": Wrapper(torch.ones(2, 2).byte(), torch.rand(1), None),
        "twice": Wrapper(Wrapper(codes.t().contiguous(), torch.rand(1), None), torch.rand(2), [2]),
        "engine": Float8Tensor(codes.view(torch.uint8), 6, torch.rand(1)),
        "older": Float8Tensor(codes.view(torch.uint8) + 1, 6, torch.rand(1), old=True),
        "plain": torch.randn(8, 12), "view": torch.randn(50, 12)[3:5], "bias": torch.randn(3),
        "taken": Wrapper(codes, torch.rand(2), None), "taken.scale": torch.randn(4),
    }
    dcp.save({"model": state}, checkpoint_id=case.path, no_dist=True)
    case.state(state, "model.")
    case.tensor("model.taken.scale", state["taken.scale"])
    case.tensor("model.taken.scale@2", state["taken"].scale)
    case.done()


def libraries_in_dcp(out):
    """Subclasses that can be decoded; weights/ has the result in bfloat16."""
    import dequant_subclasses as made  # here, because its packages are not needed for the rest
    case = Case(out, "dcp_subclasses")
    shape, block = (48, 96), (1, 32)
    codes, scale = made.codes(*shape), made.floats(48, 3)
    int8 = {"qdata": codes.view(torch.int8), "scale": scale, "block_size": list(block), "zero_point": None}
    state8 = {"codes": codes + 1, "scale": made.floats(18), "qmap": made.floats(256), "signed": True, "block_size": 256}
    cls, make = made.ENGINE["float8"]
    args = [codes.clamp(max=119), made.EnumSince(7), made.floats(1), torch.bfloat16, torch.Size(shape)]
    state = {"a.weight": made.Int8Tensor(shape, torch.bfloat16, int8), "a.norm": torch.randn(96).bfloat16(),
             "b.weight": cls(shape, torch.bfloat16, {"args": args, "function": make}),
             "exp_avg": made.State8(shape, torch.float32, state8)}
    dcp.save(state, checkpoint_id=case.path, no_dist=True)
    where = ("torchao.quantization.Int8Tensor", "torchao.optim.subclass_8bit.OptimState8bit")
    case.tensor("a.norm", state["a.norm"])
    for name, attrs, of in (("a.weight", int8, where[0]), ("exp_avg", state8, where[1])):
        for k, v in attrs.items():
            if isinstance(v, torch.Tensor):
                case.tensor(f"{name}.{k}", v)
        case.object(name, {"__class__": of, "dtype": str(state[name].dtype)[6:], "shape": list(shape)}
                    | {k: v for k, v in attrs.items() if not isinstance(v, torch.Tensor)})
    case.object("b.weight", {"__class__": "transformer_engine.Float8Tensor", "dtype": "bfloat16", "shape": list(shape),
                             "fp8_dtype": "float8_e4m3fn"})
    case.tensor("b.weight._data", args[0])
    case.tensor("b.weight._scale_inv", args[2])
    case.done()
    weights = {"a.weight": made.affine(int8["qdata"], scale, None, block)(torch.bfloat16), "a.norm": state["a.norm"],
               "b.weight": (args[0].view(torch.float8_e4m3fn).float() * args[2]).bfloat16(),
               "exp_avg": (state8["qmap"][state8["codes"].int()].view(18, -1) * state8["scale"].view(-1, 1))
               .view(shape).bfloat16()}
    os.makedirs(f"{case.dir}/weights")
    save_file(weights, f"{case.dir}/weights/model.safetensors")


# ---- DTensors of subclasses, of which each rank saves a part, as by FSDP2 with torchao's weights and states

RANKS = 4


def cut_rank(rank, port, file):
    """Saves the checkpoints in FILE; it has, for each tensor, the dimension, shape and the ranks' parts."""
    importlib.import_module("dequant_subclasses")  # FILE contains its classes
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    for path, state in torch.load(file, weights_only=False).items():
        dcp.save({name: DTensor.from_local(parts[rank], mesh, [Shard(dim)], run_check=False, shape=torch.Size(shape),
                                           stride=torch.empty(shape, device="meta").stride())
                  for name, (dim, shape, parts) in state.items()}, checkpoint_id=path)
    dist.destroy_process_group()


def rows_of(t, dim=0):
    """The ranks' parts; the last ones may be empty."""
    parts = list(torch.chunk(t, RANKS, dim))
    return [part.clone() for part in parts] + [t.narrow(dim, 0, 0)] * (RANKS - len(parts))


def cut_in_dcp(out):
    import dequant_subclasses as made
    case, state, weights = Case(out, "dcp_cut"), {}, {}
    for name, t, dim in (("wq", torch.randn(130, 33), 0), ("wk", torch.randn(64, 50).bfloat16(), 1),
                         ("wv", torch.randn(3, 5), 0)):
        parts = [made.CastTensor(p.shape, p.dtype, {"_tensor": p, "_linear_mm_config": (1, 2), "_precomputed_scale":
                                                    torch.ones(()) if name == "wq" else None}) for p in rows_of(t, dim)]
        state[name] = dim, t.shape, parts
        case.tensor(name, t)
        weights[name] = t
    experts = torch.randn(8, 6, 4)
    state["experts"] = 0, experts.shape, [made.TrainingTensor(p.shape, p.dtype, {"_data": p, "config": None})
                                          for p in rows_of(experts)]
    case.tensor("experts", experts)
    weights["experts"] = experts
    shape, block = (192, 128), 256
    n = shape[0] * shape[1]
    for name, cls in (("exp_avg.8", made.State8), ("exp_avg.4", made.State4), ("exp_avg.fp8", made.StateFp8)):
        scale, attrs = made.floats(n // block), {"block_size": block}
        if cls is made.StateFp8:
            codes = made.codes(*shape).view(torch.float8_e4m3fn)
            values = codes.float()
        elif cls is made.State8:
            codes, qmap = made.codes(*shape), made.floats(256)
            values, attrs = qmap[codes.int()], attrs | {"qmap": qmap, "signed": True}
        else:
            codes, qmap = made.codes(n // 2), made.floats(16)
            values = qmap[torch.stack([codes >> 4, codes & 15], -1).int()]
            attrs |= {"qmap": qmap, "signed": False}
        state[name] = 0, shape, [cls((shape[0] // RANKS, shape[1]), torch.float32, {"codes": c, "scale": s} | attrs)
                                 for c, s in zip(rows_of(codes), rows_of(scale))]
        case.tensor(f"{name}.codes", codes)
        case.tensor(f"{name}.scale", scale)
        if "qmap" in attrs:
            case.tensor(f"{name}.qmap", attrs.pop("qmap"))
        case.object(name, {"__class__": f"{cls.__module__}.{cls.__name__}", "dtype": "float32",
                           "shape": list(shape)} | attrs)
        weights[name] = (values.reshape(-1, block) * scale.view(-1, 1)).view(shape).bfloat16()
    checkpoints, cases = {case.path: state}, [case]
    # Parts that cannot be put together.
    part = {"codes": made.codes(192, 32), "scale": made.floats(24), "qmap": made.floats(256), "block_size": block}
    rows = part | {"codes": made.codes(48, 128)}
    unknown = made.Int8Tensor((48, 128), torch.float32, {"qdata": made.codes(48, 128).view(torch.int8), "scale":
                                                         made.floats(48, 1), "block_size": [1, 128]})
    for name, dim, parts, of, why in (
            ("columns", 1, [made.State8((192, 32), torch.float32, part)] * 4, "OptimState8bit",
             "the tensors in them do not fit together"),
            ("tables", 0, [made.State8((48, 128), torch.float32, rows | {"qmap": torch.full((256,), float(i))})
                           for i in range(RANKS)], "OptimState8bit", "the tensors in them do not fit together"),
            ("some", 0, [made.State8((48, 128), torch.float32, rows)] * 3 + [torch.zeros(48, 128)], "OptimState8bit",
             "other ranks have none"),
            ("class", 0, [unknown] * 4, "Int8Tensor", "ckptfs cannot put them together")):
        bad = Case(out, f"dcp_cut_{name}")
        checkpoints[bad.path] = {"w": state["wq"], "bad": (dim, shape, parts)}
        bad.tensors["w"] = case.tensors["wq"]
        bad.object("not_shown", f"'bad', which is cut into parts of class {of}: {why}")
        cases.append(bad)
    torch.save(checkpoints, f"{out}/parts.pt")
    torch.multiprocessing.spawn(cut_rank, (str(int(os.environ["MASTER_PORT"]) + 1), f"{out}/parts.pt"), RANKS)
    os.remove(f"{out}/parts.pt")
    for each in cases:  # now that all of them have been saved
        each.done()
    os.makedirs(f"{case.dir}/weights")
    save_file(weights, f"{case.dir}/weights/model.safetensors")


# ---- checkpoints of torch 1.12's torch.distributed._shard.checkpoint

ANCIENT = types.ModuleType("torch.distributed._shard.checkpoint.metadata")


def ancient(name, **attributes):
    """An instance of one of its classes, which no longer exist."""
    cls = getattr(ANCIENT, name, None) or type(name, (), {"__module__": ANCIENT.__name__})
    setattr(ANCIENT, name, cls)
    value = cls()
    value.__dict__.update(attributes)
    return value


def ancient_dcp(out):
    case, entries = Case(out, "dcp_1_12"), {}
    os.makedirs(case.path)

    def store(fqn, value):
        key = hashlib.sha256(fqn.encode()).hexdigest()
        torch.save(value, f"{case.path}/{key}")
        return key

    state = {"half": torch.randn(3, 2).half().t(), "scalar": torch.tensor(5), "parameter":
             torch.nn.Parameter(torch.randn(4)), "model.0.weight": torch.randn(2, 2)} | quantised()
    for fqn, t in state.items():
        entries[fqn] = ancient("TensorStorageMetadata", storage_key=store(fqn, t), size=t.shape)
    case.state(state)
    whole, parts = torch.randn(7, 4), []
    for rank, (at, n) in enumerate(((0, 3), (3, 3), (6, 1))):
        metadata = ShardMetadata([at, 0], [n, 4], f"rank:{rank}/cpu")
        parts.append(ancient("ShardStorageMetadata", shard_metadata=metadata,
                             storage_key=store(f"rows$shard_{rank}", whole[at:at + n].clone())))
    properties = TensorProperties(dtype=whole.dtype)
    entries["rows"] = ancient(
        "ShardedTensorStorageMetadata", storage_metadata=parts,
        tensor_metadata=ShardedTensorMetadata([p.shard_metadata for p in parts], whole.shape, properties))
    case.tensor("rows", whole)
    key = store("step", {"step": 3})
    with open(f"{case.path}/{key}", "rb") as f:
        data = f.read()
    entries["step"] = ancient("BytesStorageMetadata", storage_key=key, length=len(data))
    case.objects["step"] = {"length": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    sys.modules[ANCIENT.__name__] = ANCIENT
    with open(f"{case.path}/.metadata", "wb") as f:
        pickle.dump(ancient("Metadata", state_dict_metadata=entries), f)
    case.done()


# ---- modules

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(7, 8)
        self.block = torch.nn.TransformerEncoderLayer(8, 2, 16)
        self.stack = torch.nn.ModuleList([torch.nn.Linear(8, 4), torch.nn.ReLU()])
        self.norm = torch.nn.BatchNorm1d(8)
        self.head = torch.nn.Linear(8, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_parameter("absent", None)
        self.register_buffer("kept", torch.arange(3))
        self.register_buffer("left_out", torch.arange(4), persistent=False)
        self.plain = torch.ones(5)
        self.again = self.stack


def modules(out):
    net = Net()
    for name, value, prefix, options in (
        ("module", net, "", {}),
        ("module_in_dict", {"model": net}, "model.", {}),
        ("module_stream", net, "", {"_use_new_zipfile_serialization": False}),
        ("module_4", torch.nn.Sequential(net, torch.nn.Linear(2, 2)), "", {"pickle_protocol": 4}),
        ("module_parallel", torch.nn.DataParallel(net), "", {}),
    ):
        loaded, case = saved(out, name, value, **options)
        case.state((loaded["model"] if prefix else loaded).state_dict(), prefix)
        case.done()


class Scripted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 3)
        self.quiet = torch.nn.ReLU()
        self.register_buffer("kept", torch.arange(3))
        self.register_buffer("sparse", torch.eye(3).to_sparse())
        self.register_buffer("scaled", torch.quantize_per_tensor(torch.randn(4), 0.1, 3, torch.qint8))
        self.register_buffer("turned", torch.randn(2, 5).t())
        self.plain = torch.ones(2)
        self.parts = [torch.zeros(1), torch.ones(3)]
        self.named = {"a": torch.ones(4)}
        self.numbers = [1, 2]

    def forward(self, x):
        return self.quiet(self.linear(x)) + self.plain[0] + self.parts[0] + self.named["a"][0] + self.numbers[0]


def scripts(out):
    """Tensor attributes that are not in the state dict are shown as well."""
    for name, module in (("script", Scripted()), ("script_block", torch.nn.Sequential(
            torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)))):
        case = Case(out, name)
        scripted = torch.jit.script(module)
        torch.jit.save(scripted, case.path)
        loaded = torch.jit.load(case.path)
        case.state(loaded.state_dict())
        if name == "script":
            case.tensor("plain", loaded.plain)
            case.state({f"parts.{i}": t for i, t in enumerate(loaded.parts)})
            case.state({f"named.{k}": t for k, t in loaded.named.items()})
            del case.objects["sparse"]  # here it is not recorded whether the indices are sorted
            case.object("sparse", {"__class__": "torch.Tensor", "layout": "torch.sparse_coo",
                                   "shape": [3, 3]})
        case.done()


# ---- protocols 0 and 1

TYPED = {
    "float": torch.randn(2, 3), "half": torch.randn(5).half()[1:], "long": torch.arange(6).reshape(2, 3).T,
    "bool": torch.tensor([True, False]), "complex": torch.randn(2, dtype=torch.complex64),
    "empty": torch.zeros(0, 3), "scalar": torch.tensor(7, dtype=torch.uint8), "0 \\'\n\u00e9": torch.ones(1),
}
VALUES = {
    "numbers": [0, -1, 255, 2**31, -2**63, 2**64, -2**200, 10**150, 0.1, -1e-300, float(2**70)],
    "words": ["", "it's", 'say "so"', "a\\b\nc\td", "\u00e9\u4e2d\U0001f600", "\\u0041"],
    "rest": {"yes": True, "no": False, "none": None, "pair": [1, [2, []]]},
}


def protocols(out):
    for protocol in (0, 1):
        for suffix, options in (("", {}), ("_stream", {"_use_new_zipfile_serialization": False})):
            case = Case(out, f"protocol_{protocol}{suffix}")
            state = {"t": TYPED, "v": VALUES, "again": TYPED["float"]}
            torch.save(state, case.path, pickle_protocol=protocol, **options)
            if protocol:  # torch cannot read what it writes with protocol 0
                state = torch.load(case.path, weights_only=False)
            case.state(state["t"], "t.")
            case.tensor("again", state["again"])
            case.object("v", state["v"])
            case.done()


# ---- the tar files of torch 0.1.0 to 0.1.9, which torch.load still reads

def save_tar(path, value, protocol, windows=()):
    """windows: (tensor, root, offset in elements) for each tensor whose storage is a part of the root's."""
    tensors, storages, inside = {}, {}, {id(t): (root, at) for t, root, at in windows}

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj):
            if isinstance(obj, torch.Tensor) and not isinstance(obj, torch.nn.Parameter):
                tensors[id(obj)] = obj
                return str(id(obj))
            return None

    def key_of(t):
        return id(t) if id(t) in inside else t.untyped_storage()._cdata

    def dump(v):
        return pickle.dumps(v, protocol)

    def table(count, parts):
        return dump(count) + b"".join(parts)

    def class_of(t):
        return getattr(torch, STORAGES[t.dtype])

    f = io.BytesIO()
    Pickler(f, protocol).dump(value)
    for t in list(tensors.values()):
        root = inside[id(t)][0] if id(t) in inside else t
        storages[root.untyped_storage()._cdata] = root
    members = {"sys_info": dump({"protocol_version": 1000, "little_endian": True}),
               "pickle": f.getvalue()}
    members["tensors"] = table(len(tensors), (
        dump((k, key_of(t), torch.FloatTensor)) + struct.pack("<i4x", t.dim()) +
        struct.pack(f"<{2 * t.dim() + 1}q", *t.shape, *t.stride(),
                    0 if k in inside else t.storage_offset()) for k, t in tensors.items()))
    members["storages"] = table(len(storages), (
        dump((k, "cpu", class_of(t))) +
        struct.pack("<q", len(t.untyped_storage()) // t.element_size()) +
        bytes(t.untyped_storage().tolist()) for k, t in storages.items())) + dump(
            [(k, root.untyped_storage()._cdata, at, tensors[k].numel())
             for k, (root, at) in inside.items()])
    with tarfile.open(path, "w:", format=tarfile.PAX_FORMAT) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), 1480000000.25  # the fraction needs an extended header
            tar.addfile(info, io.BytesIO(data))


STORAGES = {torch.float32: "FloatStorage", torch.float64: "DoubleStorage",
            torch.float16: "HalfStorage", torch.int64: "LongStorage", torch.uint8: "ByteStorage",
            torch.int32: "IntStorage"}


def tars(out):
    x, y = torch.randn(4, 6), torch.arange(10)
    part = y[2:5]
    state = {"x": x, "half": torch.randn(3).half(), "turned": x.t()[1:], "same": x, "y": y,
             "list": [torch.zeros(0), torch.tensor(5, dtype=torch.uint8)], "part": part,
             "parameter": torch.nn.Parameter(torch.randn(2)), "epoch": 3}
    for protocol in (0, 1, 2):
        case = Case(out, f"tar_{protocol}")
        save_tar(case.path, state, protocol, [(part, y, 2)])
        loaded = torch.load(case.path, weights_only=False)
        case.object("epoch", loaded.pop("epoch"))
        case.state({f"list.{i}": t for i, t in enumerate(loaded.pop("list"))})
        case.state(loaded)
        assert (loaded["part"] == part).all() and (loaded["turned"] == state["turned"]).all()
        case.done()


def main():
    out = sys.argv[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ.get("PORT", "29519"))
    dist.init_process_group("gloo", rank=0, world_size=1)
    os.makedirs(out)
    for make in (quantised, sparse, nested, wrapped):
        state = make()
        for suffix, options in (("", {}), ("_stream", {"_use_new_zipfile_serialization": False})):
            if make is nested and suffix:
                continue  # torch cannot load it: it uses the sizes before it has read them
            loaded, case = saved(out, make.__name__ + suffix, state, **options)
            case.state(loaded)
            case.done()
    case = Case(out, "parts")
    all_parts = quantised() | sparse() | nested() | {"module": torch.nn.Sequential(
        torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))}
    torch.save(all_parts, case.path)
    loaded = torch.load(case.path, weights_only=False)
    case.state(loaded.pop("module").state_dict(), "module.")
    case.state(loaded)
    case.done()
    in_dcp(out)
    wrapped_in_dcp(out)
    libraries_in_dcp(out)
    cut_in_dcp(out)
    ancient_dcp(out)
    modules(out)
    scripts(out)
    protocols(out)
    tars(out)
    loaded, case = saved(out, "names", {"a": {"b": torch.ones(2)}, "a.b": torch.zeros(3),
                                        "s": torch.eye(2).to_sparse(), "s.values": torch.ones(1)})
    case.tensor("a.b", loaded["a"]["b"])
    case.tensor("a.b@2", loaded["a.b"])
    case.value("s", loaded["s"])
    case.tensor("s.values@2", loaded["s.values"])
    case.done()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
