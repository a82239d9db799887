# SPDX-License-Identifier: Apache-2.0
"""Sharded training checkpoints as NumPy arrays and PyTorch tensors.

    import ckptfs

    with ckptfs.open("run/step-1000") as ck:
        w = ck["model.embed_tokens.weight"]             # the whole tensor, a NumPy array
        t = ck.tensor("model.embed_tokens.weight")      # nothing is read yet
        t.shape, t.dtype                                # (32000, 4096), 'bfloat16'
        rows = t[1000:1010, ::2]                        # reads only these elements
        p = t.torch()                                   # a torch tensor, of any dtype
        t.read_into(array)                              # into existing memory
        weights = ck.state_dict(prefix="model.")        # torch tensors, filled by several threads

Reads every format that `ckptfs mount` reads, see ckptfs-formats(5), from a directory or from an object store
("s3://..."). ck is a mapping of the checkpoint's tensors, ck.model one of the model's tensors as in hf/ (for example
with recipe="megatron"), ck.rank(N) one of the parts of them that a rank of layout=FILE holds, ck.objects one of
everything that is not a tensor: ck.objects["step"].value is a Python value, and no pickle is executed for it.
ck.read(path), ck.open_file(path) and ck.listdir(path) give access to the files of the mount; ck.verdicts()["hf"] tells
whether hf/ can be loaded, and if not, why. series(run, "*.norm.weight") follows tensors from checkpoint to checkpoint
of a run.

Instead of safetensors:

    weights = ckptfs.load_file("run/step-1000", device="cpu")
    with ckptfs.safe_open("iter_0001000", framework="pt", recipe="megatron") as f:
        rows = f.get_slice("lm_head.weight")[:16]

Both have the names of hf/, without conversion and without a copy on disk. So a checkpoint of Megatron-core is loaded
into a transformers model, without Megatron-core, by

    model.load_state_dict(ckptfs.load_file("iter_0001000", recipe="megatron", assets="Qwen3-8B"))

NumPy has no bfloat16 or float8. Such arrays have the types of ml_dtypes if that is installed, otherwise
they raise TypeError; torch() and bits() always work, and dtype="fp32" converts bfloat16 (but not float8).
A Tensor can be passed to whatever takes DLPack or NumPy's array protocol: torch.from_dlpack(t), numpy.asarray(t).

The package uses ctypes. It needs libckpt, which is in the wheel, or which `make install` installs, $CKPTFS_LIBRARY
names, or `make` has built in the source tree that contains this file; NumPy and torch are needed only for arrays and
tensors. Failures raise ckptfs.Error with the library's message, which is also a FileNotFoundError, PermissionError, ...
according to its errno; unknown names raise KeyError, with similar names that exist.

Threads: everything may be called from any number of threads at once; reads release the GIL. A checkpoint
that is closed meanwhile stays open until pending reads have finished. Checkpoints and what they contain can be pickled,
for example for the workers of a DataLoader: where they are unpickled, the checkpoint is opened again. Open
files cannot be pickled.
"""

from ._checkpoint import Checkpoint, File, Object, Objects, Tensors, Verdict, open, series
from ._libckpt import (DeniedError, Error, IsDirectoryError, NotDirectoryError, NotFoundError,
                       __version__)
from ._load import SafeSlice, load_file, safe_open
from ._tensor import Tensor
from ._values import Finding, Histogram, Step, Values

__all__ = ["Checkpoint", "DeniedError", "Error", "File", "Finding", "Histogram", "IsDirectoryError",
           "NotDirectoryError", "NotFoundError", "Object", "Objects", "SafeSlice", "Step", "Tensor", "Tensors",
           "Values", "Verdict", "__version__", "load_file", "open", "safe_open", "series"]

# Messages, pickles and help() show these names as the package's, not as those of its private modules.
for _name in __all__:
    if hasattr(globals()[_name], "__module__"):
        globals()[_name].__module__ = __name__
