#!/usr/bin/env python3
"""Write a checkpoint with a JSON file that could take many times its size in memory:

    bombs.py CONSUMER BOMB BYTES DIR    - the file has about that many bytes
    bombs.py list                       - list consumers and bombs
    bombs.py peak MIB COMMAND...        - run it; fail if it ever used more memory, else return its status

CONSUMER says which file it is, BOMB what fills it.
"""
import json
import os
import resource
import struct
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def repeat(unit, n, sep=b","):
    return sep.join([unit] * max(1, n // (len(unit) + len(sep))))


def many_keys(n):
    return b"{" + b",".join(b'"%x":0' % i for i in range(n // 11)) + b"}"


# Each makes a JSON value of about n bytes.
BOMBS = {
    "numbers": lambda n: b"[" + repeat(b"0", n) + b"]",
    "objects": lambda n: b"[" + repeat(b"{}", n) + b"]",
    "arrays": lambda n: b"[" + repeat(b"[]", n) + b"]",
    "strings": lambda n: b"[" + repeat(b'""', n) + b"]",
    "members": lambda n: b"[" + repeat(b'{"":{}}', n) + b"]",
    "keys": many_keys,
    "duplicates": lambda n: b"{" + repeat(b'"a":0', n) + b"}",
    "deep": lambda n: b"[" * (n // 2) + b"]" * (n // 2),
    "deep_objects": lambda n: b'{"":' * (n // 5) + b"0" + b"}" * (n // 5),
    "string": lambda n: b'"' + b"a" * n + b'"',
    "escapes": lambda n: b'"' + b"\\u20ac" * (n // 6) + b'"',
    "blanks": lambda n: b" " * n + b"0",
    "digits": lambda n: b"9" * n,
    "cut": lambda n: b"[" + b"[0," * (n // 3),
}


def put(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(text)


def safetensors(path, header, data=b"x"):
    put(path, struct.pack("<Q", len(header)) + header + data)


TENSOR = b'"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'

def shape(d, bomb, _):
    safetensors(d + "/model.safetensors", b'{"w":{"dtype":"U8","shape":' + bomb + b',"data_offsets":[0,1]}}')


def offsets(d, bomb, _):
    safetensors(d + "/model.safetensors", b'{"w":{"dtype":"U8","shape":[1],"data_offsets":' + bomb + b"}}")


def metadata(d, bomb, _):
    safetensors(d + "/model.safetensors", b'{"__metadata__":{"a":' + bomb + b"}," + TENSOR + b"}")


def sharding(d, bomb, _):
    info = json.dumps(bomb.decode()).encode()
    safetensors(d + "/model.safetensors", b'{"__metadata__":{"DCP_SHARDING_INFO":' + info + b"}," + TENSOR + b"}")


def index(d, bomb, _):
    safetensors(d + "/m.safetensors", b"{" + TENSOR + b"}")
    put(d + "/model.safetensors.index.json",
        b'{"metadata":{"x":' + bomb + b'},"weight_map":{"w":"m.safetensors"}}')


def torch_index(d, bomb, _):
    put(d + "/pytorch_model.bin.index.json", b'{"metadata":' + bomb + b',"weight_map":{"w":"m.bin"}}')


def weight_map(d, _, n):
    safetensors(d + "/m.safetensors", b"{" + TENSOR + b"}")
    names = b",".join(b'"%06x":"m"' % i for i in range(n // 13))
    put(d + "/model.safetensors.index.json", b'{"weight_map":{' + names + b"}}")


def names(d, _, n):
    "as many tensors as possible"
    safetensors(d + "/model.safetensors", b"{" + b",".join(
        b'"%x":{"dtype":"U8","shape":[],"data_offsets":[%d,%d]}' % (i, i, i + 1) for i in range(n // 66)) + b"}",
        bytes(n // 66))


def dimensions(d, _, n):
    "as many dimensions as possible"
    ones = b",".join([b"1"] * 64)
    safetensors(d + "/model.safetensors", b"{" + b",".join(
        b'"%x":{"dtype":"U8","shape":[%s],"data_offsets":[%d,%d]}' % (i, ones, i, i + 1)
        for i in range(n // 195)) + b"}", bytes(n // 195))


def notes(d, _, n):
    "many entries in __metadata__, which safetensors allows"
    safetensors(d + "/model.safetensors", b'{"__metadata__":{' +
                b",".join(b'"%x":""' % i for i in range(n // 12)) + b"}," + TENSOR + b"}")


def megatron(d, bomb, _):
    put(d + "/metadata.json", b'{"sharded_backend":"zarr","x":' + bomb + b"}")


def model(d, vocab):
    """A llama of one layer, all zeros, and its configuration."""
    shapes = {"model.embed_tokens": [vocab, 4], "model.norm": [4]}
    for part in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj",
                 "mlp.up_proj", "mlp.down_proj"):
        shapes["model.layers.0." + part] = [4, 4]
    for part in ("input_layernorm", "post_attention_layernorm"):
        shapes["model.layers.0." + part] = [4]
    header, at = {}, 0
    for name, dims in shapes.items():
        size = 4 * dims[0] * (dims[1] if len(dims) > 1 else 1)
        header[name + ".weight"] = {"dtype": "F32", "shape": dims, "data_offsets": [at, at + size]}
        at += size
    safetensors(d + "/model.safetensors", json.dumps(header).encode(), b"")
    os.truncate(d + "/model.safetensors", os.path.getsize(d + "/model.safetensors") + at)
    config = {"model_type": "llama", "vocab_size": vocab, "hidden_size": 4, "intermediate_size": 4,
              "num_hidden_layers": 1, "num_attention_heads": 1, "max_position_embeddings": 8, "rms_norm_eps": 1e-5,
              "tie_word_embeddings": True}
    tokenizer = {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
                 "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}}
    files = {"config.json": config, "tokenizer.json": tokenizer}
    for name, value in files.items():
        put(d + "/" + name, json.dumps(value).encode())
    return files


def asset(name):
    """Puts the bomb into one of the files from which a GGUF is made."""
    def write(d, bomb, _):
        text = json.dumps(model(d, 8).get(name, {})).encode()[:-1]
        put(d + "/" + name, text + (b"," if len(text) > 1 else b"") + b'"x":' + bomb + b"}")
    return write


def vocabulary(d, _, n):
    "as many tokens and merges as possible, each only once"
    model(d, 1 << 20)
    text = b'{"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},"model":{"type":"BPE","vocab":{'
    text += b",".join(b'"%x":%d' % (i, i) for i in range(1 << 20)) + b'},"merges":['
    merges = b",".join(b'["%x","%x"]' % (i >> 8, i & 255) for i in range(4096, min(1 << 20, n // 14)))
    put(d + "/tokenizer.json", text + merges + b"]}}")


def merges(d, _, n):
    "as many merges as possible"
    asset("tokenizer.json")(d, b"0", 0)
    with open(d + "/tokenizer.json", "rb") as f:
        text = f.read()
    put(d + "/tokenizer.json", text.replace(b'["a b"]', b"[" + repeat(b'"a b"', n) + b"]"))


def layout(d, bomb, _):
    safetensors(d + "/model.safetensors", b"{" + TENSOR + b"}")
    put(d + "/l.layout", b'{"0":{"w":{"x":' + bomb + b"}}}")


def layout_params(d, _, n):
    safetensors(d + "/model.safetensors", b"{" + TENSOR + b"}")
    put(d + "/l.layout", b'{"0":{' + b",".join(b'"%07x":{}' % i for i in range(n // 13)) + b"}}")


def layout_specs(d, _, n):
    safetensors(d + "/model.safetensors", b"{" + TENSOR + b"}")
    put(d + "/l.layout", b'{"0":{' + b",".join(
        b'"%x":{"full_shape":[%d%s]}' % (i, i, b",1" * 60) for i in range(n // 160)) + b"}}")


CONSUMERS = {
    "shape": shape, "offsets": offsets, "metadata": metadata, "sharding": sharding, "index": index,
    "torch_index": torch_index, "weight_map": weight_map, "names": names, "dimensions": dimensions, "notes": notes,
    "megatron": megatron, "layout": layout, "layout_params": layout_params, "layout_specs": layout_specs,
    "vocabulary": vocabulary, "merges": merges,
}
for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json",
             "chat_template.json"):
    CONSUMERS[name] = asset(name)


def peak(mib, command):
    rc = subprocess.run(command, check=False).returncode
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    print(f"peak {used} MiB", file=sys.stderr)
    if used > mib:
        sys.exit(f"more than {mib} MiB")
    sys.exit(rc if rc >= 0 else 128 - rc)


def main():
    if sys.argv[1] == "list":
        print(*CONSUMERS, "", *BOMBS, sep="\n")
    elif sys.argv[1] == "peak":
        peak(int(sys.argv[2]), sys.argv[3:])
    else:
        consumer, bomb, n, d = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
        CONSUMERS[consumer](d, BOMBS[bomb](n) if bomb != "-" else b"", n)


if __name__ == "__main__":
    main()
