# SPDX-License-Identifier: Apache-2.0
"""GGUF files that llama.cpp's own programs make of the models of gguf_models.py.

    gguf_source.py MODELS OUT MODEL:TYPE...     OUT/MODEL-TYPE.gguf
"""
import shutil
import sys
import tempfile

from gguf_check import Reference


def main():
    models, out = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as scratch:
        reference = Reference(scratch)
        for word in sys.argv[3:]:
            model, kind = word.split(":")
            made = f"{scratch}/{model}-{kind}.gguf"
            if kind in ("f32", "f16", "bf16"):
                reference.convert(f"{models}/{model}", kind)
            else:
                reference.quantize(f"{models}/{model}", kind)
                made = f"{scratch}/{model}-f32.gguf.{kind}"
            shutil.copy(made, f"{out}/{model}-{kind}.gguf")


if __name__ == "__main__":
    main()
