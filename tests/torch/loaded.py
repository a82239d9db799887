# SPDX-License-Identifier: Apache-2.0
"""For zero3.py and recipes.py: transformers loads each model from its mount, and it must be the original one."""
import pathlib

import torch
import transformers


def check(out, mounts, others=lambda here, model: []):
    """The model in MOUNTS/NAME/hf must have the logits in OUT/NAME/logits. others(OUT/NAME, model): further faults."""
    passed = failed = 0
    for mount in sorted(pathlib.Path(mounts).iterdir()):
        here = pathlib.Path(out, mount.name)
        tokens, logits = torch.load(here / "logits")
        model, info = transformers.AutoModelForCausalLM.from_pretrained(mount / "hf", output_loading_info=True)
        faults = [f"{k}: {v}" for k, v in info.items() if v]
        with torch.no_grad():
            if not torch.equal(model.eval()(tokens).logits, logits):
                faults.append("other logits")
        faults += others(here, model)
        passed, failed = passed + (not faults), failed + bool(faults)
        for fault in faults:
            print(f"{mount.name}: {fault}")
    print(f"{passed} passed, {failed} failed")
