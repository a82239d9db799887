"""Whole models into the memory of a Python program: the package, and what its users have without it."""
import glob
import json
import os

import data
from harness import TOP, Failed, Sample, Target, in_chroot, no_torch

ENVIRONMENT = ("PYTHONPATH=/mnt/package", "LD_LIBRARY_PATH=/mnt/lib", "XDG_CACHE_HOME=/mnt/cache", "HF_HUB_OFFLINE=1")


def python(bench, made, group, chosen):
    """From the call to the last page of the tensors, without imports. Memory is what the process took beyond the
    tensors."""
    names = "load_file, 4 ranks", "load_file, 4 ranks, cold", "load_file, safetensors", "from_pretrained, 4 ranks"
    wanted = [name for name in names if chosen(name)]
    if not wanted:
        return
    if no_torch():
        bench.skip(group, no_torch())
        return
    if not glob.glob(f"{os.path.dirname(bench.ckptfs)}/libckpt.so.*"):
        raise Failed(f"there is no libckpt beside {bench.ckptfs}")
    top = made.llama()
    cache = f"{bench.tmp}/python-cache"
    os.makedirs(cache, exist_ok=True)
    binds = {"/mnt/in": top, "/mnt/package": f"{TOP}/scripts/python", "/mnt/lib": os.path.dirname(bench.ckptfs),
             "/mnt/cache": cache}
    files = data.sources(f"{top}/ckpt") + data.sources(f"{top}/hf")

    def party(*argv):
        def run():
            said = json.loads(in_chroot(binds, "run", *argv, environment=ENVIRONMENT).splitlines()[-1])
            return Sample([(said["wall_s"], 0)], said["cpu_s"], peak_mib=said["rss_mib"])
        return run

    ours = party("all", "ckptfs", "/mnt/in/ckpt")
    copy = party("all", "safetensors", "/mnt/in/hf/model.safetensors")
    parties = {
        names[0]: ({"ckptfs": ours, "safetensors, of a copy": copy, "dcp.load": party("all", "dcp", "/mnt/in/ckpt")},
                   Target(1 / 1.5)),
        names[1]: ({"ckptfs": ours, "safetensors, of a copy": copy}, Target(1)),
        names[2]: ({"ckptfs": party("all", "ckptfs", "/mnt/in/hf"), "safetensors": copy}, Target()),
        names[3]: ({"ckptfs": party("pretrained", "ckptfs", "/mnt/in/ckpt", "/mnt/in/hf"),
                    "of a copy": party("pretrained", "transformers", "/mnt/in/hf", "")}, Target(1)),
    }
    for name in wanted:
        prepare = bench.cold if name.endswith("cold") else bench.warm
        bench.measure(group, name, parties[name][0], (parties[name][1],), prepare=lambda p=prepare: p(files))
