# SPDX-License-Identifier: Apache-2.0
"""Models of transformers, straight from a training checkpoint.

    from transformers import AutoModelForCausalLM
    from ckptfs.transformers import from_pretrained

    model = from_pretrained(AutoModelForCausalLM, "iter_0001000", recipe="megatron", assets="Qwen3-8B")

No files are written: several threads read the weights into the memory in which the model then keeps them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, Optional, Union

import transformers

from ._checkpoint import Checkpoint
from ._libckpt import Error, NotFoundError, Option

__all__ = ["from_pretrained"]


def from_pretrained(model_class: Any, path: Union[str, os.PathLike], *, recipe: Optional[str] = None,
                    dequantize: Optional[str] = None, assets: Union[str, os.PathLike, None] = None,
                    config: Optional[transformers.PretrainedConfig] = None, strict: bool = True, threads: int = 0,
                    mmap: bool = True, options: Optional[Mapping[str, Option]] = None, **named: Any) -> Any:
    """Like model_class.from_pretrained(), for any checkpoint: the model of hf/, in memory.

    recipe, dequantize, assets and options are those of ckptfs.open(). Unless config is given, it is read from
    hf/config.json, which assets= may supply. Everything else is passed to model_class.from_pretrained(): dtype=,
    device_map=, attn_implementation=.

    strict: raise an Error if the checkpoint lacks a weight, or has it in another shape; transformers alone would give
    it random values.

    threads and mmap: see Tensors.state_dict().

    """
    words = {"recipe": recipe, "dequantize": dequantize, "assets": assets, **(options or {})}
    with Checkpoint(path, words) as ck:
        if not len(ck.model):
            raise Error(f"checkpoint '{path}' has no model: {ck.verdicts()['hf'].text}")
        if config is None:
            about = json.loads(ck.read("hf/config.json"))
            kind = about.get("model_type")
            if kind not in transformers.CONFIG_MAPPING:
                raise Error(f"config.json of '{path}': transformers {transformers.__version__} has no model_type {kind!r}; "
                            "pass config=")
            config = transformers.CONFIG_MAPPING[kind].from_dict(about)
        state = ck.model.state_dict(threads=threads, mmap=mmap)
        generation = _generation(ck)
    if hasattr(model_class, "_model_mapping"):  # an AutoModel, which would want a directory to look into
        model_class = _class_of(model_class, config)
    # Given a state dict, from_pretrained() makes the model on the meta device and uses these tensors as its weights.
    model, found = model_class.from_pretrained(None, config=config, state_dict=state, output_loading_info=True, **named)
    lacks, odd = sorted(found["missing_keys"]), found["mismatched_keys"]
    if strict and (lacks or odd):
        names = [f"'{name}'" for name in lacks] + [f"'{name[0]}' in the model's shape" for name in odd]
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        raise Error(f"checkpoint '{path}' has not all weights of {type(model).__name__}: it lacks {shown}; "
                    "`ckptfs info` tells more, and strict=False gives them random values")
    if generation is not None and model.can_generate():
        model.generation_config = generation
    return model


def _class_of(auto: Any, config: transformers.PretrainedConfig) -> Any:
    found = auto._model_mapping[type(config)]
    classes = found if isinstance(found, (list, tuple)) else (found,)
    named = [c for c in classes if c.__name__ in (config.architectures or ())]
    return (named or classes)[0]


def _generation(ck: Checkpoint) -> Optional[transformers.GenerationConfig]:
    try:
        return transformers.GenerationConfig.from_dict(json.loads(ck.read("hf/generation_config.json")))
    except NotFoundError:
        return None
