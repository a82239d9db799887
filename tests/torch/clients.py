#!/usr/bin/env python3
"""clients.py JOBS - open mounted models with transformers, safetensors, torch and numpy.

A line of the file JOBS is one mount: MOUNTPOINT MODEL DTYPE PREFIX LIMIT

  MODEL   a directory that make_models.py has made; the mount must show that model's weights
  DTYPE   fp32 or bf16: the weights' type in the mount
  PREFIX  of the weights' names in tensors/ and npy/; "-": none; "skip": for mounts with weights= and
          rename=; "recipe": for those with recipe=, whose files have what save_pretrained writes
  LIMIT   bytes of tensors per file in hf/; 0: one file must hold all

One line per difference, then "N passed, M failed"; exit status 1 when there is a difference.
"""
import glob
import io
import json
import os
import random
import signal
import struct
import sys
import tempfile
import traceback

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
import safetensors.torch
import torch
import transformers
from safetensors import safe_open
from torch.utils.serialization import config as torch_config

from compare import Report, encode_name
from make_models import DTYPES, PROMPT, answer

SECONDS = 120  # per mount


def octets(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def same(a, b):
    """Same type, shape and bytes (a NaN equals itself)."""
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(octets(a), octets(b))


def from_numpy(a, dtype):
    """The bytes of a numpy array of any type, as a tensor of this dtype."""
    raw = np.array(a, order="C").reshape(-1).view(np.uint8)  # copies
    return torch.from_numpy(raw).view(dtype).reshape(a.shape)


class Job:
    def __init__(self, mountpoint, model, dtype, prefix, limit):
        self.top, self.model, self.limit = mountpoint, model, int(limit)
        self.dtype = DTYPES[dtype]
        self.prefix = {"-": "", "skip": None, "recipe": None}.get(prefix, prefix)
        self.reference = safetensors.torch.load_file(f"{model}/reference-{dtype}.safetensors")
        self.want = {k: v.to(self.dtype) for k, v in
                     safetensors.torch.load_file(f"{model}/state.safetensors").items()}
        self.state = self.want
        # In hf/, experts are split, as by save_pretrained; tied weights are there twice.
        self.hf = {k: v.to(self.dtype) for k, v in
                   safetensors.torch.load_file(f"{model}/hf/model.safetensors").items()}
        if "lm_head.weight" in self.want:
            self.hf.setdefault("lm_head.weight", self.want["lm_head.weight"])
        if prefix == "recipe":
            self.want = self.hf
        self.report = Report()

    def check(self, where, what, ok, detail=""):
        return self.report.check(f"{self.top}/{where}", what, ok, detail)

    def check_tensors(self, where, what, have, want=None):
        want = want or self.want
        self.check(where, f"{what}: names", set(have) == set(want),
                   sorted(set(have) ^ set(want))[:4])
        for name in set(have) & set(want):
            self.check(where, f"{what}: {name} differs", same(have[name], want[name]))

    def guard(self, where, function, *args):
        try:
            function(where, *args)
        except Exception as e:
            self.check(where, function.__name__, False, f"{type(e).__name__}: {e}")

    def run(self):
        shards = sorted(os.path.relpath(p, self.top)
                        for p in glob.glob(f"{glob.escape(self.top)}/hf/*.safetensors"))
        self.guard("hf", self.directory, shards)
        for options in ({}, {"disable_mmap": True}):
            self.guard("hf", self.transformers, options)
        self.guard("hf", self.tokenizer)
        self.guard("hf", self.safetensors, shards, False)
        # All tensors; or, with weights= (PREFIX is "skip"), the model.
        self.guard("safetensors", self.safetensors, ["safetensors/model.safetensors"],
                   self.prefix is not None)
        for mmap in (True, False):
            for calculated in (True, False):
                self.guard("pt/model.pt", self.torch_load, mmap, calculated)
        for name in sorted(os.listdir(f"{self.top}/npy")):
            self.guard(f"npy/{name}", self.array)
        if self.prefix is not None:
            for name in self.want:
                self.guard(f"tensors/{os.fsdecode(encode_name(self.prefix + name))}",
                           self.one_tensor, name)

    def directory(self, where, shards):
        """File names and index must be those that save_pretrained makes."""
        have = set(os.listdir(f"{self.top}/hf"))
        assets = {n for n in os.listdir(f"{self.model}/hf") if ".safetensors" not in n}
        index = set()
        if self.limit:
            index = {"model.safetensors.index.json"}
            files = [f"hf/model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
                     for i in range(len(shards))]
            self.check(where, "only one file", len(shards) > 1, shards)
            self.index(where, shards)
        else:
            files = ["hf/model.safetensors"]
        self.check(where, "shards", shards == files, shards)
        want = index | assets | {os.path.basename(f) for f in files}
        self.check(where, "listing", have == want, sorted(have ^ want))

    def index(self, where, shards):
        with open(f"{self.top}/hf/model.safetensors.index.json", encoding="utf-8") as f:
            index = json.load(f)
        names, limits = {}, []
        for shard in shards:
            with safe_open(f"{self.top}/{shard}", "pt") as f:
                names |= {k: os.path.basename(shard) for k in f.keys()}
                sizes = [self.hf[k].nbytes for k in f.keys() if k in self.hf]
                limits.append(sum(sizes) <= self.limit or len(sizes) == 1)
        total = sum(t.nbytes for t in self.hf.values())
        self.check(where, "weight_map", index["weight_map"] == names)
        self.check(where, "total_size", index["metadata"]["total_size"] == total,
                   f"{index['metadata']}, not {total}")
        self.check(where, "shards too large", all(limits), limits)

    def transformers(self, where, options):
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            f"{self.top}/hf", output_loading_info=True, **options)
        wrong = {k: v for k, v in info.items() if v}
        self.check(where, "loading_info", not wrong, wrong)
        self.check(where, "dtype", model.dtype == self.dtype, model.dtype)
        self.check_tensors(where, "from_pretrained", model.state_dict(), self.state)
        have = answer(model.eval(), self.reference["ids"])
        self.check(where, "logits differ", torch.equal(have["logits"], self.reference["logits"]))
        self.check(where, "greedy differs", torch.equal(have["greedy"], self.reference["greedy"]))

    def tokenizer(self, where):
        tok = transformers.AutoTokenizer.from_pretrained(f"{self.top}/hf")
        ids = tok(PROMPT, return_tensors="pt").input_ids
        self.check(where, "tokenizer", torch.equal(ids, self.reference["ids"]), ids)

    def safetensors(self, where, files, is_tree):
        want = self.hf if where == "hf" else self.want
        have = {"safe_open": {}, "numpy": {}, "load_file": {}, "load": {}}
        for file in files:
            path = f"{self.top}/{file}"
            have["load_file"] |= safetensors.torch.load_file(path)
            with open(path, "rb") as f:
                raw = f.read()
            have["load"] |= safetensors.torch.load(raw)
            begin = 8 + struct.unpack_from("<Q", raw)[0]
            self.check(file, "alignment of the data", begin % 4096 == 0, begin)
            with safe_open(path, "pt") as f:
                self.check(file, "metadata", f.metadata() == {"format": "pt"}, f.metadata())
                have["safe_open"] |= {k: f.get_tensor(k) for k in f.keys()}
                self.slices(file, f, want, self.prefix if is_tree else "")
            if self.dtype != torch.bfloat16:  # numpy has no such type
                with safe_open(path, "np") as f:
                    have["numpy"] |= {k: torch.from_numpy(f.get_tensor(k)) for k in f.keys()}
        for what, tensors in have.items():
            if what != "numpy" or self.dtype != torch.bfloat16:
                self.check_tensors(where, what,
                                   self.model_of(where, what, tensors) if is_tree else tensors,
                                   want)

    def model_of(self, where, what, have):
        """`have` must be the tensors of tensors/, with the model's weights."""
        names = os.listdir(os.fsencode(f"{self.top}/tensors"))
        self.check(where, f"{what}: not the names of tensors/",
                   {encode_name(k) for k in have} == set(names))
        weights = {self.prefix + k: k for k in self.want}
        for name in set(have) - set(weights):
            with open(os.fsencode(f"{self.top}/tensors/") + encode_name(name), "rb") as f:
                self.check(where, f"{what}: {name} is not that of tensors/",
                           octets(have[name]).numpy().tobytes() == f.read())
        return {weights[k]: v for k, v in have.items() if k in weights}

    def slices(self, where, f, wants, prefix):
        r = random.Random(where)  # the same in every run
        for name, want in wants.items():
            if prefix + name not in f.keys():
                continue
            view = f.get_slice(prefix + name)
            wrong = []
            for _ in range(4):
                ends = [sorted(r.choices(range(n + 1), k=2)) for n in want.shape]
                box = tuple(slice(a, max(b, a + 1) if a < n else b)
                            for (a, b), n in zip(ends, want.shape))
                if want.dim() and not same(view[box], want[box]):
                    wrong.append(box)
            self.check(where, f"slices of {name}", not wrong, wrong)

    def torch_load(self, where, mmap, calculated):
        with torch_config.patch("load.calculate_storage_offsets", calculated):
            have = torch.load(f"{self.top}/{where}", mmap=mmap, weights_only=True)
        self.check_tensors(where, f"torch.load(mmap={mmap})", dict(have))

    def array(self, where):
        """npy/ and tensors/ must show the same for every tensor, weight or not."""
        array = np.load(f"{self.top}/{where}", mmap_mode="r")
        plain = f"{self.top}/tensors/{os.path.basename(where).removesuffix('.npy')}"
        if os.fsencode(where).find(b"%~") < 0:  # names that are cut differ
            self.check(where, "not tensors/", os.path.getsize(plain) == array.nbytes and
                       (not array.nbytes or np.array_equal(
                           np.memmap(plain, mode="r").reshape(-1),
                           np.array(array, order="C").reshape(-1).view(np.uint8))))

    def one_tensor(self, where, name):
        path, want = f"{self.top}/{where}", self.want[name]
        flat = torch.from_file(path, shared=False, size=want.numel(), dtype=want.dtype)
        self.check(where, "torch.from_file", same(flat.reshape(want.shape), want))
        size = os.path.getsize(path)
        self.check(where, "size", size == want.nbytes, f"{size}, not {want.nbytes}")
        npy = f"{self.top}/npy/{os.fsdecode(encode_name(self.prefix + name, '.npy'))}"
        for mode in ("r", "c", None):
            array = np.load(npy, mmap_mode=mode)
            self.check(where, f"npy, mmap_mode={mode}", same(from_numpy(array, want.dtype), want))
        with open(npy, "rb") as f:  # loaded from memory, as by a server
            array = np.load(io.BytesIO(f.read()))
        self.check(where, "npy from memory", same(from_numpy(array, want.dtype), want))


def in_child(job):
    """(passed, failed) from a child process, because a failed page fault is a SIGBUS, and a hang must end."""
    with tempfile.TemporaryFile("w+") as counts:
        pid = os.fork()
        if pid == 0:
            signal.alarm(SECONDS)
            try:
                job.run()
                json.dump([job.report.passed, job.report.failed], counts)
                counts.flush()
            except BaseException:
                traceback.print_exc(file=sys.stdout)
            sys.stdout.flush()
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        counts.seek(0)
        text = counts.read()
        if not text:
            print(f"{job.top}: stopped, wait status {status:#x}")
        return json.loads(text) if text else (0, 1)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    passed = failed = 0
    with open(sys.argv[1], encoding="utf-8") as f:
        for line in f:
            sys.stdout.flush()
            good, bad = in_child(Job(*line.split()))
            passed, failed = passed + good, failed + bad
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
