# SPDX-License-Identifier: Apache-2.0
"""What zero3.py and recipes.py do with mounts: transformers loads each model, which is the one that it was."""
import pathlib

import torch
import transformers


def check(out, mounts, others=lambda here, model: []):
    """MOUNTS/NAME/hf has the logits in OUT/NAME/logits; others(OUT/NAME, model) are more faults."""
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
