# SPDX-License-Identifier: Apache-2.0
"""A load format of vLLM: `--load-format ckptfs`.

    vllm serve Qwen3-8B --load-format ckptfs \\
      --model-loader-extra-config '{"path": "iter_0001000", "recipe": "megatron"}'

The model's directory has config.json and the tokenizer; "path" is the checkpoint, by default that directory. The other
words are options of ckptfs.open(). vLLM calls register() through the wheel's entry point in the group
vllm.general_plugins; without the wheel, a program has to call it.

This follows the interface that vLLM documents (register_model_loader, BaseModelLoader with download_model and
load_weights) and is tested with classes of these names and signatures. It has not been run in vLLM itself.
"""

from __future__ import annotations

import collections
import concurrent.futures
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ._checkpoint import Checkpoint, Tensors
from ._libckpt import Error

if TYPE_CHECKING:
    import torch

__all__ = ["register", "weights"]

AHEAD = 4 << 30  # bytes that are read before vLLM asks for them


def weights(tensors: Tensors, threads: int = 0, ahead: int = AHEAD) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and tensors in the order of the files. Meanwhile other threads read the next ones, up to `ahead` bytes."""
    waiting: collections.deque = collections.deque()
    held = 0
    with concurrent.futures.ThreadPoolExecutor(threads or len(os.sched_getaffinity(0)), "ckptfs") as pool:
        try:
            for t in map(tensors.tensor, tensors.in_file_order()):
                while waiting and held + t.nbytes > ahead:
                    name, size, found = waiting.popleft()
                    held -= size
                    yield name, found.result()
                waiting.append((t.name, t.nbytes, pool.submit(t.torch)))
                held += t.nbytes
            while waiting:
                name, _, found = waiting.popleft()
                yield name, found.result()
        finally:
            for _, _, found in waiting:
                found.cancel()


def register() -> None:
    """Add the load format "ckptfs" to vLLM."""
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    class CkptfsModelLoader(BaseModelLoader):
        """Loads the model of hf/ from any checkpoint."""

        def __init__(self, load_config: Any):
            super().__init__(load_config)
            extra = getattr(load_config, "model_loader_extra_config", None) or {}
            if not isinstance(extra, Mapping):
                raise ValueError(f"model_loader_extra_config is not a JSON object: {extra!r}")
            self._options = dict(extra)
            self._path = self._options.pop("path", None)
            self._threads = self._options.pop("threads", 0)

        def _open(self, model_config: Any) -> Checkpoint:
            path = self._path or model_config.model
            options = self._options
            # The configuration comes from vLLM's model, unless assets= names another.
            if self._path and "assets" not in options and os.path.isdir(model_config.model):
                options = {**options, "assets": model_config.model}
            return Checkpoint(path, options)

        def download_model(self, model_config: Any) -> None:
            """Downloads nothing: a checkpoint at an address is fetched while it is read. A path that cannot be opened
            fails here."""
            self._open(model_config).close()

        def load_weights(self, model: Any, model_config: Any) -> None:
            wanted = {name for name, _ in model.named_parameters()}
            with self._open(model_config) as ck:
                loaded = model.load_weights(weights(ck.model, self._threads))
                if loaded is None or getattr(model_config, "quantization", None) is not None:
                    return  # parameters that quantisation adds are not in the checkpoint
                lacks = sorted(wanted - set(loaded))
                if lacks:
                    raise Error(f"checkpoint '{ck.path}' has not all weights of {type(model).__name__}: it lacks "
                                + ", ".join(lacks[:3]) + (f" and {len(lacks) - 3} more" if len(lacks) > 3 else ""))

    register_model_loader("ckptfs")(CkptfsModelLoader)
