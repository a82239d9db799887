"""The benchmark's data: values distributed like weights, generated from a fixed seed.

Data(directory, size) generates each checkpoint when it is first requested and keeps it for later requests
and runs. A tensor has about `size` bytes, a model a multiple of that.
"""
import ctypes
import functools
import json
import math
import multiprocessing
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "fs"))

import make_dcp  # noqa: E402  writes DCP checkpoints without torch

MIB = 1 << 20
FRAME = 256 << 10
PIECE = 16 * MIB
WIDTH = {"bfloat16": 2, "float32": 4}

# name: columns (the number of rows follows from the size), grid of items, dtype, how items are stored
TENSORS = {
    "rows": (1024, (4, 1), "bfloat16", "plain"),
    "cols256": (1024, (1, 8), "bfloat16", "plain"),
    "cols2k": (8192, (1, 8), "bfloat16", "plain"),
    "cols8k": (32768, (1, 8), "bfloat16", "plain"),
    "grid": (8192, (4, 4), "bfloat16", "plain"),
    "transposed": (4096, (4, 1), "bfloat16", "transposed"),
    "float32": (1024, (4, 1), "float32", "plain"),
    "zstd frames": (1024, (4, 1), "bfloat16", "frames"),
    "zstd": (1024, (4, 1), "bfloat16", "zstd"),
}
# name: multiple of the size, ranks
MODELS = {"model": (8, 4), "model of 1 GiB": (2, 4)}


def top_bytes():
    """Maps random bytes to the top bytes (sign and most of the exponent) of weights from N(0, 0.02). They
    are the same in bfloat16 and float32."""
    normal = statistics.NormalDist(0, 0.02)
    values = (normal.inv_cdf((i + 0.5) / 256) for i in range(256))
    floats = (ctypes.c_float * 256)(*values)
    return bytes(floats)[3::4]


@functools.cache
def piece_of_weights(dtype, seed):
    piece, width = bytearray(random.Random(seed).randbytes(PIECE)), WIDTH[dtype]
    piece[width - 1 :: width] = piece[width - 1 :: width].translate(TOP)
    return bytes(piece)


def weights(nbytes, dtype, seed):
    """Elements that zstd compresses as well as real weights, since their top bytes have the same
    distribution. The content repeats, but at a distance that zstd does not look back at this level."""
    piece = piece_of_weights(dtype, seed)
    return (piece * (nbytes // PIECE + 1))[:nbytes]


TOP = top_bytes()


class Zstd:
    """Compresses into frames like those of torch's zstd extension."""

    def __init__(self):
        self.lib = ctypes.CDLL("libzstd.so.1")
        self.lib.ZSTD_compressBound.restype = self.lib.ZSTD_compress.restype = ctypes.c_size_t
        self.lib.ZSTD_compressBound.argtypes = [ctypes.c_size_t]
        self.lib.ZSTD_compress.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p,
                                           ctypes.c_size_t, ctypes.c_int]

    def frame(self, data):
        room = ctypes.create_string_buffer(self.lib.ZSTD_compressBound(len(data)))
        n = self.lib.ZSTD_compress(room, len(room), data, len(data), 3)
        assert n <= len(room), "ZSTD_compress"
        return ctypes.string_at(room, n)

    def frames(self, data, size):
        return b"".join(self.frame(data[at : at + size]) for at in range(0, len(data), size))


class TensorCheckpoint(make_dcp.Checkpoint):
    """A checkpoint of one tensor, "w", with each item in its own file."""

    def add_items(self, dtype, shape, grid, how):
        chunks = []
        rows, cols = (make_dcp.cuts(n, parts) for n, parts in zip(shape, grid))
        for box in ((row, col) for row in rows for col in cols):
            off, lens = (make_dcp.Size(x) for x in zip(*box))
            strides = (1, lens[0]) if how == "transposed" else None
            content = weights(math.prod(lens) * WIDTH[dtype], dtype, len(chunks))
            data = make_dcp.item(dtype, lens, content, strides)
            info = {"relative_path": f"__{len(chunks):02}.distcp", "offset": 0}
            if how in ("zstd", "frames"):
                data = Zstd().frames(data, FRAME if how == "frames" else len(data))
                info["transform_descriptors"] = ["stream.zstd/1"]
            with open(f"{self.directory}/{info['relative_path']}", "wb") as f:
                f.write(data)
            key = make_dcp.new(make_dcp.Index, fqn="w", index=len(chunks), offset=off)
            self.storage[key] = make_dcp.new(make_dcp.StorageInfo, length=len(data), **info)
            chunks.append(make_dcp.new(make_dcp.Chunk, offsets=off, sizes=lens))
        properties = make_dcp.new(make_dcp.Properties, dtype=getattr(make_dcp.torch, dtype))
        self.state["w"] = make_dcp.new(make_dcp.TensorStorage, properties=properties,
                                       size=make_dcp.Size(shape), chunks=chunks)


def model_shapes(nbytes):
    """The shapes of a transformer of about nbytes in bfloat16. Layers have 48 million parameters, or fewer
    if the model would otherwise have less than four layers."""
    hidden = 2048
    while hidden > 64 and 2 * 12 * hidden**2 * 4 > nbytes:
        hidden //= 2
    layers = max(1, nbytes // (2 * 12 * hidden**2))
    shapes = {"model.embed_tokens.weight": (8 * hidden, hidden)}
    for i in range(layers):
        at = f"model.layers.{i}"
        for name in "q", "k", "v", "o":
            shapes[f"{at}.self_attn.{name}_proj.weight"] = (hidden, hidden)
        shapes[f"{at}.mlp.up_proj.weight"] = (4 * hidden, hidden)
        shapes[f"{at}.mlp.down_proj.weight"] = (hidden, 4 * hidden)
        shapes[f"{at}.input_layernorm.weight"] = (hidden,)
    return shapes


def llama_shapes(nbytes):
    """A config.json of transformers' Llama of about nbytes in bfloat16, and the shapes of its weights."""
    hidden = 2048
    while hidden > 64 and 2 * 16 * hidden**2 * 4 > nbytes:
        hidden //= 2
    layers = max(1, nbytes // (2 * 16 * hidden**2) - 1)
    shapes = {"model.embed_tokens.weight": (8 * hidden, hidden)}
    for i in range(layers):
        at = f"model.layers.{i}"
        shapes |= {f"{at}.self_attn.{name}_proj.weight": (hidden, hidden) for name in "qkvo"}
        shapes |= {f"{at}.mlp.{name}_proj.weight": (4 * hidden, hidden) for name in ("gate", "up")}
        shapes[f"{at}.mlp.down_proj.weight"] = (hidden, 4 * hidden)
        shapes |= {f"{at}.{name}_layernorm.weight": (hidden,) for name in ("input", "post_attention")}
    shapes |= {"model.norm.weight": (hidden,), "lm_head.weight": (8 * hidden, hidden)}
    return shapes, {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 8 * hidden,
                    "hidden_size": hidden, "intermediate_size": 4 * hidden, "num_hidden_layers": layers,
                    "num_attention_heads": hidden // 64, "num_key_value_heads": hidden // 64, "torch_dtype": "bfloat16"}


def write_safetensors(path, shapes):
    header, at = {}, 0
    for name, shape in shapes.items():
        n = math.prod(shape) * 2
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for shape in shapes.values():
            f.write(weights(math.prod(shape) * 2, "bfloat16", 0))


def in_child(make, path):
    """Calls make(path) in a child process. It needs a lot of memory, and the peak memory of a program
    that is started later would include this process's own."""
    def run():
        for number in signal.SIGINT, signal.SIGTERM:
            signal.signal(number, signal.SIG_DFL)
        make(path)

    child = multiprocessing.get_context("fork").Process(target=run)
    child.start()
    try:
        child.join()
    except BaseException:
        child.terminate()
        child.join()
        raise
    if child.exitcode:
        sys.exit(f"bench: {path} was not made")


class Data:
    def __init__(self, directory, size, ckptfs, say):
        self.directory, self.size, self.ckptfs, self.say = directory, size, ckptfs, say
        os.makedirs(directory, exist_ok=True)

    def made(self, name, make):
        """The path of a checkpoint, which make() writes under a temporary name if it does not exist."""
        path = f"{self.directory}/{name.replace(' ', '-')}.{self.size >> 20}M"
        if not os.path.exists(path):
            self.say(f"making {name}")
            shutil.rmtree(f"{path}.new", ignore_errors=True)
            in_child(make, f"{path}.new")
            subprocess.run(["sync", "-f", self.directory], check=True)
            os.rename(f"{path}.new", path)
        return path

    def tensor(self, name):
        """A checkpoint with one tensor of TENSORS, called "w"."""
        columns, grid, dtype, how = TENSORS[name]
        rows = max(self.size // (columns * WIDTH[dtype]) // 16, 1) * 16

        def make(path):
            c = TensorCheckpoint(path, None)
            c.add_items(dtype, (rows, columns), grid, how)
            c.finish()

        return self.made(name, make)

    def float8(self):
        """A tensor "w" of float8 codes, with scales for blocks of 128 x 128, which has self.size bytes as bfloat16;
        and the same number of bytes stored as bfloat16, "plain"."""
        columns = 4096
        rows = max(self.size // (columns * 2) // 128, 1) * 128
        grid = (rows // 128, columns // 128)

        def make(path):
            os.makedirs(path)
            n, scales = rows * columns, grid[0] * grid[1] * 4
            header = {"w": {"dtype": "F8_E4M3", "shape": (rows, columns), "data_offsets": [0, n]},
                      "w_scale_inv": {"dtype": "F32", "shape": grid, "data_offsets": [n, n + scales]},
                      "plain": {"dtype": "BF16", "shape": (rows, columns),
                                "data_offsets": [n + scales, 3 * n + scales]}}
            text = json.dumps(header).encode()
            text += b" " * (-len(text) % 8)
            codes = bytes(c if c & 0x7F != 0x7F else 0 for c in random.Random(1).randbytes(columns * 128))
            with open(f"{path}/model.safetensors", "wb") as f:
                f.write(len(text).to_bytes(8, "little") + text)
                for _ in range(grid[0]):
                    f.write(codes)
                f.write(bytes(weights(scales, "float32", 2)))
                f.write(weights(2 * n, "bfloat16", 3))

        return self.made("float8", make)

    def safetensors(self, name):
        """A model as one safetensors file, identical to the one that the mount shows."""
        def make(path):
            os.makedirs(f"{path}/plain")
            write_safetensors(f"{path}/plain/model.safetensors",
                              model_shapes(MODELS[name][0] * self.size))
            self._ckptfs("export", f"{path}/plain", "hf/model.safetensors",
                         f"{path}/model.safetensors")
            shutil.rmtree(f"{path}/plain")

        return self.made(f"{name} in one file", make)

    def llama(self):
        """A model of 8 times the size that transformers loads, in hf/; the same saved by 4 ranks, in ckpt/."""
        def make(path):
            shapes, config = llama_shapes(8 * self.size)
            os.makedirs(f"{path}/plain")
            write_safetensors(f"{path}/plain/model.safetensors", shapes)
            with open(f"{path}/plain/config.json", "w") as f:
                json.dump(config, f)
            self._ckptfs("export", f"{path}/plain", "hf", f"{path}/hf")
            self._ckptfs("reshard", f"{path}/plain", f"{path}/ckpt", "--ranks=4")
            shutil.rmtree(f"{path}/plain")

        return self.made("llama", make)

    def small_llama(self):
        """A model that llama.cpp knows, in bfloat16; a quarter of the size, because quantising takes long."""
        hidden, ffn, layers = 2048, 5632, max(self.size // 4 // (2 * 51380224), 1)

        def make(path):
            os.makedirs(path)
            subprocess.run([sys.executable, f"{HERE}/../fs/gguf.py", "model", "llama", "."], cwd=path, check=True,
                           stdout=subprocess.DEVNULL)
            shutil.rmtree(f"{path}/data")
            with open(f"{path}/config.json", encoding="ascii") as f:
                config = json.load(f)
            config |= {"hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers,
                       "num_attention_heads": 16, "num_key_value_heads": 16}
            with open(f"{path}/config.json", "w", encoding="ascii") as f:
                json.dump(config, f)
            vocab = (config["vocab_size"], hidden)
            shapes = {"model.embed_tokens.weight": vocab, "lm_head.weight": vocab, "model.norm.weight": (hidden,)}
            for i in range(layers):
                at = f"model.layers.{i}"
                shapes |= {f"{at}.self_attn.{x}_proj.weight": (hidden, hidden) for x in "qkvo"}
                shapes |= {f"{at}.mlp.{x}_proj.weight": (ffn, hidden) for x in ("gate", "up")}
                shapes |= {f"{at}.mlp.down_proj.weight": (hidden, ffn), f"{at}.input_layernorm.weight": (hidden,),
                           f"{at}.post_attention_layernorm.weight": (hidden,)}
            write_safetensors(f"{path}/model.safetensors", shapes)

        return self.made("small llama", make)

    def gguf(self, name):
        """The same as a GGUF file in bfloat16."""
        def make(path):
            os.mkdir(path)
            self._ckptfs("export", name, "gguf/model.gguf", f"{path}/model.gguf")

        return self.made("small llama as GGUF", make)

    def adapter(self, name, rank):
        """A LoRA adapter for all weights of that model, as PEFT saves it."""
        def make(path):
            shapes = {}
            for weight, shape in model_shapes(MODELS[name][0] * self.size).items():
                if len(shape) == 2 and "embed" not in weight:
                    at = "base_model.model." + weight.removesuffix(".weight")
                    shapes[f"{at}.lora_A.weight"] = (rank, shape[1])
                    shapes[f"{at}.lora_B.weight"] = (shape[0], rank)
            os.mkdir(path)
            write_safetensors(f"{path}/adapter_model.safetensors", shapes)
            with open(f"{path}/adapter_config.json", "w") as f:
                json.dump({"peft_type": "LORA", "r": rank, "lora_alpha": rank}, f)

        return self.made(f"adapter of rank {rank} for {name}", make)

    def model(self, name):
        """The same model as a DCP checkpoint whose ranks have it sharded along the first dimension."""
        def make(path):
            os.makedirs(f"{path}.plain")
            write_safetensors(f"{path}.plain/model.safetensors",
                              model_shapes(MODELS[name][0] * self.size))
            self._ckptfs("reshard", f"{path}.plain", path, f"--ranks={MODELS[name][1]}")
            shutil.rmtree(f"{path}.plain")

        return self.made(name, make)

    def parts(self, name):
        """The same model as one safetensors file per rank, as torch's Hugging Face writer leaves them."""
        def make(path):
            layout = f"{path}.layout"
            with open(layout, "w", encoding="ascii") as f:
                f.write(f"mesh dp={MODELS[name][1]}\n* dp:0\n")
            self._ckptfs("reshard", self.model(name), path, "--format=safetensors",
                         f"--layout={layout}")
            os.unlink(layout)

        return self.made(f"{name} in parts", make)

    def many(self, n):
        """A checkpoint of n tiny tensors."""
        def make(path):
            make_dcp.main("--many", str(n), path)
            os.unlink(f"{path}.model.layers.0.0.w.bin")

        return self.made(f"{n} tensors", make)

    def files(self, n):
        """A directory of n files with the sizes of those tensors."""
        def make(path):
            os.mkdir(path)
            for i in range(n):
                with open(f"{path}/model.layers.{i // 100}.{i % 100}.w", "wb") as f:
                    f.write(bytes(4))

        return self.made(f"{n} files", make)

    def _ckptfs(self, command, *args):
        subprocess.run([self.ckptfs, command, "-q", "--index=:memory:", *args], check=True,
                       stdout=subprocess.DEVNULL)


def files_below(directory):
    return [f"{d}/{f}" for d, _, files in os.walk(directory) for f in files]


def sources(ckpt):
    """The data files of a checkpoint."""
    return [f"{ckpt}/{f}" for f in sorted(os.listdir(ckpt))
            if f.endswith((".distcp", ".safetensors"))]
