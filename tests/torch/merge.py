# SPDX-License-Identifier: Apache-2.0
"""Checkpoints to average and adapters to merge, with torch's results.

    merge.py make SEED DIR     writes DIR/CASE/ckpt (and more), DIR/CASE/options, DIR/CASE/expected/NAME
    merge.py check DIR GOT     compares GOT/CASE/NAME with these; all NaNs are equal

Averages are compared bit by bit if torch has AVX2, without which it does not fuse. Merged weights are those of PEFT
(peft/tuners/lora/layer.py: get_delta_weight and merge, on a CPU, with the adapter in float32): they must equal sums in
the order of the rank bit by bit, and torch.mm's within one step of the dtype, for all but a few elements.
"""
import json
import math
import os
import random
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def floats(*shape, dtype=torch.float32):
    x = torch.randn(shape) * torch.exp2(torch.randint(-12, 4, shape).float())
    pick = torch.rand(shape)
    x[pick < 0.02] = -0.0
    x[pick > 0.98] = 1e-42
    x[pick > 0.995] = float("nan")
    x[pick > 0.997] = float("inf")
    return x.to(dtype)


def shape_of(rng):
    return rng.choice([(7, 1031), (300, 33), (1, 5), (129, 640), (513, 300)])


def put(path, tensors, name="model.safetensors"):
    os.makedirs(path, exist_ok=True)
    save_file({n: t.contiguous() for n, t in tensors.items()}, os.path.join(path, name))


def expect(root, tensors):
    os.makedirs(os.path.join(root, "expected"))
    for name, t in tensors.items():
        with open(os.path.join(root, "expected", name), "wb") as f:
            f.write(t.contiguous().view(torch.uint8).numpy().tobytes())
        with open(os.path.join(root, f"{name}.dtype"), "w") as f:
            f.write(str(t.dtype).removeprefix("torch."))


def options(root, where, words):
    with open(os.path.join(root, "options"), "w") as f:
        f.write(f"{where}\n{words}\n")


def average(root, rng, n, weights, words):
    """Like Megatron's weighted_merge.py: acc.add_(x.float(), alpha=w), then cast to the dtype."""
    kinds = {f"w{i}": (shape_of(rng), d) for i, d in enumerate(DTYPES + [torch.float64])}
    steps = []
    for i in range(n):
        steps.append({k: floats(*s, dtype=torch.float32).to(d) for k, (s, d) in kinds.items()})
        steps[-1]["count"] = torch.tensor([i, 7])
        put(os.path.join(root, f"ckpt/step-{i + 1}000"), steps[-1])
    merged = {"count": steps[-1]["count"]}
    for k, (shape, dtype) in kinds.items():
        acc = torch.zeros(shape, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
        for step, weight in zip(steps, weights):
            acc.add_(step[k].to(acc.dtype), alpha=weight)
        merged[k] = acc.to(dtype)
    options(root, "ckpt", f"average={words}")
    expect(root, merged)


def averages(root, rng):
    w = [rng.uniform(-1, 1) for _ in range(4)]
    average(f"{root}/avg-weights", rng, 4, w, "\\,".join(f"step-{i + 1}000:{x!r}" for i, x in enumerate(w)))
    average(f"{root}/avg-thirds", rng, 3, [1 / 3] * 3, "last:3")
    average(f"{root}/avg-ema", rng, 5, [0.9**4] + [0.9 ** (4 - i) * (1 - 0.9) for i in range(1, 5)], "ema:0.9:last:5")


def in_order(b, a):
    """b @ a with the products added one after another, as the generic BLAS does."""
    acc = torch.zeros(b.shape[0], a.shape[1])
    for k in range(a.shape[0]):
        acc = acc + b[:, k : k + 1] * a[k : k + 1, :]
    return acc


def adapter(root, rng, number):
    rslora, turned, scale = number % 2, number % 3 == 1, rng.choice([1, 0.5, -2])
    base, lora, exact, blas = {}, {}, {}, {}
    config = {"peft_type": "LORA", "r": 16, "lora_alpha": rng.randint(1, 64), "use_rslora": bool(rslora),
              "fan_in_fan_out": bool(turned), "rank_pattern": {"m1.proj": 3}, "alpha_pattern": {"m1.proj": 5},
              "modules_to_save": ["norm"], "init_lora_weights": True, "use_dora": False, "bias": "none"}
    for i, dtype in enumerate(DTYPES * 2):
        embeds, (m, n) = i == 4, shape_of(rng)
        r = 3 if i == 1 else 16
        w = floats(m, n, dtype=dtype).nan_to_num(1, 2, 3)
        rows, columns = (n, m) if turned or embeds else (m, n)
        a, b = (torch.randn(s).to(rng.choice(DTYPES)) for s in ((r, columns), (rows, r)))
        s = config["lora_alpha"] if i != 1 else 5
        s = s / math.sqrt(r) if rslora else s / r
        base[f"m{i}.proj.weight"] = w
        kinds = ("lora_embedding_A", "lora_embedding_B") if embeds else ("lora_A.weight", "lora_B.weight")
        for kind, x in zip(kinds, (a, b)):
            lora[f"base_model.model.m{i}.proj.{kind}"] = x
        for to, product in ((exact, in_order), (blas, torch.mm)):
            delta = product(b.float(), a.float())
            delta = (delta.T if turned or embeds else delta) * (s * scale)
            to[f"m{i}.proj.weight"] = w.clone().add_(delta)
    base["norm.weight"], base["other"] = floats(64, dtype=torch.bfloat16), floats(9)
    lora["base_model.model.norm.weight"] = torch.randn(64)
    exact["norm.weight"], exact["other"] = lora["base_model.model.norm.weight"].to(torch.bfloat16), base["other"]
    put(f"{root}/ckpt", base)
    put(f"{root}/lora", lora, "adapter_model.safetensors")
    with open(f"{root}/lora/adapter_config.json", "w") as f:
        json.dump(config, f)
    for name, x in blas.items():
        steps = (x.view(torch.int16 if x.dtype != torch.float32 else torch.int32).long() -
                 exact[name].view(torch.int16 if x.dtype != torch.float32 else torch.int32).long()).abs()
        far = (steps > 1).sum().item()
        print(f"{root} {name} {x.dtype}: torch.mm differs in {(steps > 0).sum().item()} of {steps.numel()}, "
              f"by more than a step in {far}")
        if x.dtype != torch.float32 and far > steps.numel() / 100:
            sys.exit(f"{name}: {far} elements are more than one step apart")
    options(root, "ckpt", f"lora=@/lora:{scale}")
    expect(root, exact)


def resized(root, rng, tied):
    """A model that gets more tokens, or fewer, before it is tuned: PEFT stores its embeddings whole, both if they are
    one matrix (peft/utils/save_and_load.py)."""
    config = LlamaConfig(vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, tie_word_embeddings=tied, torch_dtype="bfloat16")
    model = LlamaForCausalLM(config).bfloat16()
    model.save_pretrained(f"{root}/ckpt")
    model.resize_token_embeddings(rng.choice([37, 43, 64]), mean_resizing=False)
    with torch.no_grad():
        for embedding in (model.get_input_embeddings(), model.get_output_embeddings()):
            embedding.weight.copy_(torch.randn(embedding.weight.shape))
        lora = {f"base_model.model.{n}": t.clone() for n, t in model.state_dict().items() if "embed" in n or "head" in n}
        for name, linear in model.named_modules():
            if name.endswith("q_proj"):
                a, b = torch.randn(4, 32), torch.randn(32, 4)
                lora |= {f"base_model.model.{name}.lora_A.weight": a, f"base_model.model.{name}.lora_B.weight": b}
                linear.weight.add_(in_order(b, a) * 2)
    assert len(lora) == 6, lora.keys()
    put(f"{root}/lora", lora, "adapter_model.safetensors")
    with open(f"{root}/lora/adapter_config.json", "w") as f:
        json.dump({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}, f)
    options(root, "ckpt", "lora=@/lora")
    model.save_pretrained(f"{root}/model")
    expect(root, load_file(f"{root}/model/model.safetensors"))


def check_model(root, got):
    """The model with its new vocabulary, as transformers loads it from hf/."""
    want, have = (LlamaForCausalLM.from_pretrained(p) for p in (f"{root}/model", got))
    same = want.config.vocab_size == have.config.vocab_size and want.state_dict().keys() == have.state_dict().keys() and \
        all(torch.equal(t, have.state_dict()[n]) for n, t in want.state_dict().items())
    print(f"{root}: {want.config.vocab_size} tokens", "" if same else "FAIL")
    return same


def make(seed, root):
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(seed)
    rng = random.Random(seed)
    averages(root, rng)
    for i in range(6):
        adapter(f"{root}/lora-{i}", rng, i)
    for tied in (False, True):
        resized(f"{root}/resized-{tied}", rng, tied)


def check(root, got):
    good = bad = 0
    fused = "avx2" in torch.backends.cpu.get_cpu_capability().lower() or \
        "avx512" in torch.backends.cpu.get_cpu_capability().lower()
    for case in sorted(os.listdir(root)):
        if case.startswith("avg") and not fused:
            print(f"{case}: not compared, torch does not fuse on this CPU")
            continue
        for name in sorted(os.listdir(f"{root}/{case}/expected")):
            with open(f"{root}/{case}/{name}.dtype") as f:
                dtype = getattr(torch, f.read())
            want, have = (torch.frombuffer(bytearray(open(p, "rb").read()), dtype=dtype) for p in
                          (f"{root}/{case}/expected/{name}", f"{got}/{case}/{name}"))
            same, wrong = want.shape == have.shape, want.numel()
            if same:
                nans = want.isnan() & have.isnan() if dtype.is_floating_point else torch.zeros_like(want, dtype=bool)
                bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
                wrong = ((want.view(bits) != have.view(bits)) & ~nans).sum().item()
                same = wrong == 0
            good, bad = good + same, bad + (not same)
            if not same:
                print(f"FAIL: {case} {name}: {wrong} of {want.numel()} elements")
        if os.path.exists(f"{root}/{case}/model"):
            same = check_model(f"{root}/{case}", f"{got}/{case}.hf")
            good, bad = good + same, bad + (not same)
    print(f"{good} passed, {bad} failed")
    return bad


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(int(sys.argv[2]), sys.argv[3])
    else:
        sys.exit(1 if check(sys.argv[2], sys.argv[3]) else 0)
