"""fsdp.py OUT - write per-rank checkpoints as verl and others do, with real torch on four gloo ranks.

Each case has OUT/NAME/ckpt with the files, and OUT/NAME/expected.json with the tensors as torch itself puts
them together.
"""

import hashlib
import json
import math
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.fsdp import LocalStateDictConfig, ShardedStateDictConfig, ShardingStrategy, StateDictType, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

WORLD = 4


class Net(torch.nn.Module):
    """Uneven sizes, a buffer, and a weight under two names."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(13, 6)
        self.up = torch.nn.Linear(6, 9)
        self.down = torch.nn.Linear(9, 6, bias=False)
        self.norm = torch.nn.LayerNorm(6)
        self.small = torch.nn.Parameter(torch.randn(3, 2))
        self.head = torch.nn.Linear(6, 13, bias=False)
        self.register_buffer("scale", torch.arange(5, dtype=torch.float64))
        self.register_buffer("count", torch.tensor(7))


def full(t):
    return t.full_tensor() if isinstance(t, DTensor) else t


def note(expected, name, t):
    t = t.detach().cpu().contiguous()
    data = t.reshape(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b""
    expected[name] = {
        "dtype": str(t.dtype).removeprefix("torch."),
        "shape": list(t.shape),
        "nbytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }


class Case:
    def __init__(self, out, name, rank):
        self.dir, self.rank, self.expected, self.objects = f"{out}/{name}", rank, {}, {}
        self.warned = False
        os.makedirs(f"{self.dir}/ckpt", exist_ok=True)

    def save(self, kind, state, world=WORLD):
        torch.save(state, f"{self.dir}/ckpt/{kind}_world_size_{world}_rank_{self.rank}.pt")

    def model(self, state):
        self.save("model", state)
        for name, t in state.items():
            note(self.expected, name, full(t))

    def optim(self, opt, names):
        state = opt.state_dict()
        self.save("optim", state)
        self.object("optimizer.param_groups", state["param_groups"])
        for number, values in state["state"].items():
            for key, t in values.items():
                note(self.expected, f"optimizer.state.{names[number]}.{key}", full(t))

    def object(self, name, value):
        text = (json.dumps(value) + "\n").encode()
        self.objects[name] = {"length": len(text), "sha256": hashlib.sha256(text).hexdigest()}

    def done(self):
        if self.rank == 0:
            with open(f"{self.dir}/expected.json", "w", encoding="utf-8") as f:
                json.dump({"format": "fsdp", "ckpt": "ckpt", "notes": f"torch {torch.__version__}",
                           "tensors": dict(sorted(self.expected.items())),
                           "bytes": self.objects, "warned": self.warned}, f, indent=1)
                f.write("\n")
        dist.barrier()


def step(model, opt):
    """An optimizer step with made-up gradients, because torch has no backward pass for some uneven shards."""
    for p in model.parameters():
        p.grad = p.detach().clone()
    opt.step()


def fsdp2(case, mesh, plan=None):
    torch.manual_seed(1)
    model = Net()
    if plan:
        parallelize_module(model, mesh["tp"], plan)
        mesh = mesh["dp"]
    fully_shard(model, mesh=mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=0.1)
    names = [n for n, _ in model.named_parameters()]
    step(model, opt)
    case.model(model.state_dict())
    case.optim(opt, names)
    rng = torch.get_rng_state()[:8].clone()
    case.save("extra_state", {"lr_scheduler": {"last_epoch": 3}, "rng": {"cpu": rng}})
    for rank in range(WORLD):
        note(case.expected, f"extra_state.rank_{rank}.rng.cpu", rng)
        case.object(f"extra_state.rank_{rank}.lr_scheduler", {"last_epoch": 3})
    case.done()


class Uneven(torch.nn.ModuleDict):
    def forward(self):
        pass


def uneven(rank, out, sizes):
    """Sizes that neither tensor parallelism nor FSDP divides evenly, on meshes of more ranks. The weights are known,
    and ranks exchange nothing, so a fake process group will do."""
    world, names = math.prod(sizes), ("ddp", "dp", "tp")[-len(sizes):]
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
    case = Case(out, "uneven_" + "_".join(map(str, sizes)), rank)
    model, plan = Uneven(), {}
    for n in range(1, 13):
        model[f"up{n}"], plan[f"up{n}"] = torch.nn.Linear(3, n), ColwiseParallel()
        model[f"down{n}"], plan[f"down{n}"] = torch.nn.Linear(n, 3), RowwiseParallel()
        model[f"alone{n}"] = torch.nn.Linear(2, n)
    for name, style in (("across", ColwiseParallel()), ("along", RowwiseParallel())):
        model[name], plan[name] = torch.nn.Linear(2 * sizes[-2] * sizes[-1], 7, bias=False), style
    for i, (name, p) in enumerate(model.named_parameters()):
        p.data.copy_((1000 * i + torch.arange(p.numel())).view_as(p))
        note(case.expected, name, p)
    parallelize_module(model, mesh["tp"], plan, src_data_rank=None)
    columns = {model["across"].weight, model["along"].weight}
    fully_shard(model, mesh=mesh[names[:-1]], shard_placement_fn=lambda p: Shard(int(p in columns)))
    case.save("model", model.state_dict(), world)
    case.done()


def fsdp1(case, **options):
    torch.manual_seed(1)
    model = FSDP(Net(), device_id=torch.device("cpu"), **options)
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig()):
        state = model.state_dict()
        case.save("model", state)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        for name, t in model.state_dict().items():
            note(case.expected, name, t)
    case.done()


def cloned(self, **_):
    """Stands for ShardedTensor.cpu() of a tensor on a GPU."""
    for shard in self.local_shards():
        shard.tensor = shard.tensor.clone()
    return self


def local(case, orig, offload):
    """Flat parameters, and each rank's pieces of them; those of the norms are alike."""
    torch.manual_seed(1)
    model = Net()
    model.norm = torch.nn.LayerNorm(8)
    model = FSDP(model, device_id=torch.device("cpu"), use_orig_params=orig,
                 auto_wrap_policy=ModuleWrapPolicy({torch.nn.Embedding, torch.nn.LayerNorm}))
    cpu = ShardedTensor.cpu
    ShardedTensor.cpu = cloned
    with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT, LocalStateDictConfig(offload_to_cpu=offload)):
        state = model.state_dict()
    ShardedTensor.cpu = cpu
    case.save("model", state)
    states = [None] * WORLD
    mine = {k: t.local_shards()[0].tensor if isinstance(t, ShardedTensor) else t for k, t in state.items()}
    dist.all_gather_object(states, mine)
    for name in mine:
        if name.endswith("_flat_param"):
            note(case.expected, name, torch.cat([s[name] for s in states]))
        elif name in ("scale", "count"):
            note(case.expected, name, mine[name])
        else:
            for rank, s in enumerate(states):
                note(case.expected, f"rank_{rank}/{name}", s[name])
    case.warned = True
    case.done()


def placed(case):
    """All kinds of placements that distribute_tensor accepts."""
    torch.manual_seed(2)
    flat = init_device_mesh("cpu", (WORLD,))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    state = {}
    for name, shape, m, where in (
        ("rows", (10, 3), flat, [Shard(0)]),
        ("columns", (3, 10), flat, [Shard(1)]),
        ("few", (2, 3), flat, [Shard(0)]),
        ("same", (5,), flat, [Replicate()]),
        ("both", (5, 7), mesh, [Shard(0), Shard(1)]),
        ("other", (5, 7), mesh, [Shard(1), Shard(0)]),
        ("twice", (9, 2), mesh, [Shard(0), Shard(0)]),
        ("hybrid", (9, 2), mesh, [Replicate(), Shard(0)]),
        ("hybrid2", (9, 2), mesh, [Shard(1), Replicate()]),
        ("part", (9, 2), mesh["b"], [Shard(0)]),
        ("bf16", (9, 2), flat, [Shard(0)]),
    ):
        t = torch.randn(shape)
        state[name] = distribute_tensor(t, m, where)
        if name == "bf16":  # which gloo does not send
            t, state[name] = t.bfloat16(), state[name].bfloat16()
        note(case.expected, name, t)
    case.save("model", state)
    case.done()


def each_its_own(case):
    """DCP without collectives: values other than DTensors are each rank's own."""
    torch.manual_seed(3)
    mesh = init_device_mesh("cpu", (WORLD,))
    same, rows = torch.randn(3, 4), torch.randn(5, 2)
    own = [torch.randn(7), torch.zeros(7), torch.zeros(7), torch.randn(7)]
    dcp.save({"same": same, "rows": distribute_tensor(rows, mesh, [Shard(0)]), "own": own[case.rank],
              "copy": distribute_tensor(same, mesh, [Replicate()]), "length": torch.ones(2 + case.rank % 2)},
             checkpoint_id=f"{case.dir}/ckpt", use_collectives=False)
    for name, t in (("same", same), ("rows", rows), ("copy", same)):
        note(case.expected, name, t)
    for rank in range(WORLD):
        note(case.expected, f"own@rank{rank}", own[rank])
        note(case.expected, f"length@rank{rank}", torch.ones(2 + rank % 2))
    case.done()


def work(rank, out):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ.get("PORT", "29517"),
                      RANK=str(rank), WORLD_SIZE=str(WORLD))
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    fsdp2(Case(out, "fsdp2", rank), init_device_mesh("cpu", (WORLD,), mesh_dim_names=("fsdp",)))
    fsdp2(Case(out, "hsdp", rank), init_device_mesh("cpu", (2, 2), mesh_dim_names=("ddp", "fsdp")))
    fsdp2(Case(out, "tp", rank), init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")),
          {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fsdp1(Case(out, "fsdp1", rank))
    fsdp1(Case(out, "fsdp1_hybrid", rank), sharding_strategy=ShardingStrategy.HYBRID_SHARD,
          device_mesh=init_device_mesh("cpu", (2, 2)))
    for orig in (False, True):
        for offload in (False, True):
            local(Case(out, f"local_{orig}_{offload}", rank), orig, offload)
    placed(Case(out, "placed", rank))
    each_its_own(Case(out, "each_its_own", rank))
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, args=(sys.argv[1],), nprocs=WORLD)
    for mesh in ((4, 2), (2, 3), (2, 3, 2)):
        mp.start_processes(uneven, args=(sys.argv[1], mesh), nprocs=math.prod(mesh), start_method="fork")
