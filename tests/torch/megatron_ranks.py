"""megatron_ranks.py OUT [SEEDS] - write checkpoints in Megatron-LM's format `torch`, from random models.

Each case has OUT/NAME/ckpt with the ranks' files, and OUT/NAME/expected.json with the model from which they
were made. The splitting follows Megatron-LM's modules (ColumnParallelLinear, RowParallelLinear,
VocabParallelEmbedding, GroupedMLP, the layer offsets of pipelines), not our reader.
"""

import argparse
import hashlib
import json
import os
import random
import sys

import torch

HIDDEN, HEADS, GROUPS, HEAD = 16, 8, 4, 4
VOCAB = 48


def rand(*shape):
    return torch.randn(*shape).to(torch.bfloat16)


# ---- how a tensor is split: a function from (whole, tp) to tp slices ----


def column(x, tp):
    return list(torch.chunk(x, tp, dim=0))


def row(x, tp):
    return list(torch.chunk(x, tp, dim=1))


def same(x, tp):
    return [x] * tp


def gated(x, tp):
    gate, up = torch.chunk(x, 2, dim=0)
    return [torch.cat(pair) for pair in zip(torch.chunk(gate, tp), torch.chunk(up, tp))]


def old_rows(version, kinds):
    """Each rank's rows, (head, kind, dimension), in the order of an old version."""

    def split(x, tp):
        heads = HEADS // tp
        result = []
        for part in torch.chunk(x, tp, dim=0):
            each = part.shape[0] // (heads * kinds)
            v = part.view(heads, kinds, each, *part.shape[1:])
            v = v.transpose(0, 1) if version == 0 else v.transpose(1, 2)
            result.append(v.reshape(part.shape))
        return result

    return split


# ---- models: {name: (tensor, how it is split)}; layers and experts have global numbers ----


def mcore_layer(n, r, ffn, gate, bias, norm_bias, moe):
    p = f"decoder.layers.{n}."
    fc1 = 2 * ffn if gate else ffn
    qkv = (HEADS + 2 * GROUPS) * HEAD
    m = {
        p + "self_attention.linear_qkv.weight": (rand(qkv, HIDDEN), column),
        p + "self_attention.linear_qkv.layer_norm_weight": (rand(HIDDEN), same),
        p + "self_attention.linear_proj.weight": (rand(HIDDEN, HEADS * HEAD), row),
        p + "self_attention.q_layernorm.weight": (rand(HEAD), same),
    }
    if bias:
        m[p + "self_attention.linear_qkv.bias"] = rand(qkv), column
        m[p + "self_attention.linear_proj.bias"] = rand(HIDDEN), same
    if norm_bias:
        m[p + "self_attention.linear_qkv.layer_norm_bias"] = rand(HIDDEN), same
    if not moe:
        m[p + "mlp.linear_fc1.layer_norm_weight"] = rand(HIDDEN), same
        m[p + "mlp.linear_fc1.weight"] = rand(fc1, HIDDEN), gated if gate else column
        m[p + "mlp.linear_fc2.weight"] = rand(HIDDEN, ffn), row
        if bias:
            m[p + "mlp.linear_fc1.bias"] = rand(fc1), gated if gate else column
            m[p + "mlp.linear_fc2.bias"] = rand(HIDDEN), same
        return m
    m[p + "pre_mlp_layernorm.weight"] = rand(HIDDEN), same
    m[p + "mlp.router.weight"] = rand(moe.experts, HIDDEN), same
    if r.random() < 0.5:
        m[p + "mlp.shared_experts.linear_fc1.weight"] = rand(2 * ffn, HIDDEN), gated
        m[p + "mlp.shared_experts.linear_fc2.weight"] = rand(HIDDEN, ffn), row
        m[p + "mlp.shared_experts.gate_weight"] = rand(1, HIDDEN), same
    for e in range(moe.experts if moe.kind != "grouped" else 0):
        one, two = (f"local_experts.{e}.linear_fc1.weight", f"local_experts.{e}.linear_fc2.weight")
        if moe.kind == "te":
            one, two = f"linear_fc1.weight{e}", f"linear_fc2.weight{e}"
        m[p + "mlp.experts." + one] = rand(fc1, HIDDEN), gated if gate else column
        m[p + "mlp.experts." + two] = rand(HIDDEN, ffn), row
    if moe.kind == "grouped":
        m[p + "mlp.experts.weight1"] = rand(moe.experts, HIDDEN, fc1), "grouped 1"
        m[p + "mlp.experts.weight2"] = rand(moe.experts, ffn, HIDDEN), "grouped 2"
    return m


def mcore_model(layers, r, ffn, gate, bias, norm_bias, tied, moe=None, first_moe=0):
    m = {"embedding.word_embeddings.weight": (rand(VOCAB, HIDDEN), column)}
    if r.random() < 0.5:
        m["embedding.position_embeddings.weight"] = rand(20, HIDDEN), same
    for n in range(layers):
        m |= mcore_layer(n, r, ffn, gate, bias, norm_bias, moe if n >= first_moe else None)
    m["decoder.final_layernorm.weight"] = rand(HIDDEN), same
    if norm_bias:
        m["decoder.final_layernorm.bias"] = rand(HIDDEN), same
    if not tied:
        m["output_layer.weight"] = rand(VOCAB, HIDDEN), column
    return m


def legacy_model(layers, ffn, gate, version, words=("encoder", "self_attention", "norm"), cross=False):
    stack, attention, norm = words
    three, two = (old_rows(version, 3), old_rows(version, 2)) if version < 2 else (column, column)
    m = {
        "language_model.embedding.word_embeddings.weight": (rand(VOCAB, HIDDEN), column),
        "language_model.embedding.position_embeddings.weight": (rand(20, HIDDEN), same),
    }
    inner = HEADS * HEAD
    for part in (stack, "decoder") if cross else (stack,):
        for n in range(layers):
            p = f"language_model.{part}.layers.{n}."
            m |= {
                f"{p}input_{norm}.weight": (rand(HIDDEN), same),
                f"{p}input_{norm}.bias": (rand(HIDDEN), same),
                f"{p}{attention}.query_key_value.weight": (rand(3 * inner, HIDDEN), three),
                f"{p}{attention}.query_key_value.bias": (rand(3 * inner), three),
                f"{p}{attention}.dense.weight": (rand(HIDDEN, inner), row),
                f"{p}{attention}.dense.bias": (rand(HIDDEN), same),
                f"{p}mlp.dense_h_to_4h.weight": (rand(ffn * (1 + gate), HIDDEN), gated if gate else column),
                f"{p}mlp.dense_h_to_4h.bias": (rand(ffn * (1 + gate)), gated if gate else column),
                f"{p}mlp.dense_4h_to_h.weight": (rand(HIDDEN, ffn), row),
                f"{p}mlp.dense_4h_to_h.bias": (rand(HIDDEN), same),
            }
            if part == "decoder":
                m |= {
                    f"{p}inter_attention.query.weight": (rand(inner, HIDDEN), column),
                    f"{p}inter_attention.key_value.weight": (rand(2 * inner, HIDDEN), two),
                    f"{p}inter_attention.dense.weight": (rand(HIDDEN, inner), row),
                    f"{p}post_inter_attention_{norm}.weight": (rand(HIDDEN), same),
                }
        m[f"language_model.{part}.final_{norm}.weight"] = rand(HIDDEN), same
    return m


# ---- which rank has what ----


def stage_of(name, stacks):
    """(pipeline stage, virtual stage, local name) of a tensor; stacks: {prefix: layers of each stage}."""
    for prefix, sizes in stacks.items():
        if not name.startswith(prefix + "layers."):
            continue
        number, rest = name[len(prefix) + 7:].split(".", 1)
        number = int(number)
        for (p, v), layers in sizes:
            if number < layers:
                return p, v, f"{prefix}layers.{number}.{rest}"
            number -= layers
    sizes = [at for s in stacks.values() for at, n in s]
    first = min(sizes, key=lambda at: (at[1], at[0]))
    last = max(sizes, key=lambda at: (at[1], at[0]))
    return (*(first if "embedding." in name else last), name)


def expert_of(name, per_rank):
    """(expert-parallel rank, local name) of an expert's tensor, or None."""
    if ".local_experts." in name:
        head, rest = name.split(".local_experts.")
        number, rest = rest.split(".", 1)
        return int(number) // per_rank, f"{head}.local_experts.{int(number) % per_rank}.{rest}"
    if ".experts.linear_fc" in name:
        head, number = name.rsplit("weight", 1)
        return int(number) // per_rank, f"{head}weight{int(number) % per_rank}"
    return None


def split_stages(layers, pp, vp, r, even):
    """The number of layers in each stage, in their order."""
    n = pp * vp
    sizes = [layers // n] * n
    if not even:
        for _ in range(n):
            a, b = r.randrange(n), r.randrange(n)
            if sizes[a]:
                sizes[a], sizes[b] = sizes[a] - 1, sizes[b] + 1
    return [((i % pp, i // pp), sizes[i]) for i in range(n)]


def set_path(d, name, value, nested):
    if not nested:
        d[name] = value
        return
    parts, cuts = name.split("."), []
    while parts[0] in ("language_model", "embedding", "encoder", "transformer", "decoder", "output_layer") or \
            "embeddings" in parts[0]:
        cuts.append(parts.pop(0))
    for key in cuts:
        d = d.setdefault(key, {})
    d[".".join(parts)] = value


class Case:
    def __init__(self, out, name, tp=1, pp=1, vp=1, ep=1, experts=0, etp=None, **args):
        self.dir, self.tp, self.pp, self.vp, self.ep, self.etp = f"{out}/{name}", tp, pp, vp, ep, etp
        self.experts, self.expected, self.objects = experts, {}, {}
        self.args = argparse.Namespace(tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp,
                                       num_attention_heads=HEADS, **args)
        if ep > 1:
            self.args.expert_model_parallel_size = ep
        if etp:
            self.args.expert_tensor_parallel_size = etp
        self.ranks = {}

    def model(self, p, t, e, v):
        rank = self.ranks.setdefault((p, t, e), {})
        return rank.setdefault("model" if self.vp == 1 else f"model{v}", {})

    def places(self):
        """The ranks that have files: all, or those of the first replica."""
        if self.etp is None or self.etp == self.tp:
            return [(t, e) for t in range(self.tp) for e in range(self.ep)]
        return sorted({(i % self.tp, i // self.etp % self.ep) for i in range(self.tp * self.ep)})

    def add(self, name, whole, split, stacks, nested, copies=()):
        p, v, local = stage_of(name, stacks)
        etp = self.etp or self.tp
        expert = expert_of(local, max(self.experts // self.ep, 1))
        for stage in {(p, v), *copies}:
            for t, e in self.places():
                if isinstance(split, str):
                    part = torch.chunk(whole, self.ep)[e]
                    if split == "grouped 1":
                        part = torch.stack([gated(x.T, self.tp)[t].T for x in part])
                        part = part.contiguous().view(HIDDEN, -1)
                    else:
                        part = torch.stack([column(x, self.tp)[t] for x in part]).view(-1, HIDDEN)
                    own = local
                elif expert:
                    if expert[0] != e:
                        continue
                    part, own = split(whole, etp)[t % etp], expert[1]
                else:
                    part, own = split(whole, self.tp)[t], local
                set_path(self.model(stage[0], t, e, stage[1]), own, part.clone(), nested)
        self.note(name, whole)

    def note(self, name, whole):
        data = whole.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        self.expected[name] = {"dtype": str(whole.dtype).removeprefix("torch."), "shape": list(whole.shape),
                               "nbytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    def object(self, name, text):
        text += "\n"
        self.objects[name] = {"length": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()}

    def save(self, version=3.0, optimizer=False, nemo=False, file="model_optim_rng.pt"):
        for p in range(self.pp):
            for t, e in self.places():
                for v in range(self.vp):
                    self.model(p, t, e, v)
        for (p, t, e), state in self.ranks.items():
            name = f"mp_rank_{t:02d}"
            if nemo and self.pp > 1:
                name = f"tp_rank_{t:02d}_pp_rank_{p:03d}"
            elif self.pp > 1:
                name += f"_{p:03d}"
            if self.ep > 1:
                name += f"_{e:03d}"
            path = f"{self.dir}/ckpt/{name}"
            os.makedirs(path)
            if nemo:
                torch.save(state["model"], f"{path}/model_weights.ckpt")
                continue
            if version is not None:
                state["checkpoint_version"] = version
            state |= {"args": self.args, "iteration": 7, "rng_state": [{"torch": torch.zeros(5, dtype=torch.uint8)}]}
            if optimizer:
                state["optimizer"] = {"state": {0: {"exp_avg": rand(3)}}}
            torch.save(state, f"{path}/{file}")
        if not nemo:
            self.object("args", json.dumps({"__class__": "argparse.Namespace"} | vars(self.args)))
            self.object("iteration", "7")
            if version is not None:
                self.object("checkpoint_version", json.dumps(version))
        if optimizer:
            self.object("not_shown", '"the optimizer\'s states: the files number them, and do not say which '
                                     'parameters they belong to"')
        with open(f"{self.dir}/expected.json", "w") as f:
            json.dump({"format": "megatron-legacy", "ckpt": "ckpt", "tensors": self.expected, "bytes": self.objects}, f)


class Moe:
    def __init__(self, kind, experts):
        self.kind, self.experts = kind, experts


def mcore_case(out, name, r, tp, pp=1, vp=1, ep=1, etp=None, moe=None, even=True, gate=True, tied=False, nemo=False):
    layers = pp * vp * r.choice([1, 2, 3])
    bias = moe is None and r.random() < 0.5
    c = Case(out, name, tp, pp, vp, ep, moe.experts if moe else 0, etp, num_layers=layers)
    model = mcore_model(layers, r, 32, gate, bias, r.random() < 0.5, tied, moe, r.choice([0, 1]))
    stages = split_stages(layers, pp, vp, r, even)
    prefix = "model." if nemo else ""
    stacks = {prefix + "decoder.": stages}
    for key, (whole, split) in model.items():
        c.add(prefix + key, whole, split, stacks, False)
    if tied and pp > 1:  # the last stage has a copy of the embedding
        for t, e in c.places():
            part = column(model["embedding.word_embeddings.weight"][0], tp)[t]
            c.model(pp - 1, t, e, vp - 1)[prefix + "output_layer.weight"] = part.clone()
        c.note(prefix + "output_layer.weight", model["embedding.word_embeddings.weight"][0])
    c.save(optimizer=not nemo and r.random() < 0.5, nemo=nemo)


def legacy_case(out, name, r, tp, pp=1, version=3.0, **how):
    layers = pp * r.choice([1, 2])
    c = Case(out, name, tp, pp, num_layers=layers)
    model = legacy_model(layers, 32, r.random() < 0.5, 0 if version is None else version, **how)
    stages = split_stages(layers, pp, 1, r, True)
    stacks = {f"language_model.{s}.": stages for s in ("encoder", "transformer", "decoder")}
    for key, (whole, split) in model.items():
        c.add(key, whole, split, stacks, True)
    if pp > 1:
        word = model["language_model.embedding.word_embeddings.weight"][0]
        for t in range(tp):
            c.model(pp - 1, t, 0, 0)["word_embeddings_for_head"] = {"weight": column(word, tp)[t].clone()}
        c.note("word_embeddings_for_head.weight", word)
    c.save(version)


def main():
    out, seeds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 6
    for seed in range(seeds):
        torch.manual_seed(seed)
        r = random.Random(seed)
        tp, pp, vp = r.choice([1, 2, 4]), r.choice([1, 2, 3]), r.choice([2, 3])
        mcore_case(out, f"{seed}_dense", r, tp, pp, even=False, gate=r.random() < 0.5)
        mcore_case(out, f"{seed}_virtual", r, tp, max(pp, 2), vp, tied=True, gate=r.random() < 0.5)
        mcore_case(out, f"{seed}_moe", r, tp, pp, ep=r.choice([1, 2, 4]), moe=Moe("local", 8))
        mcore_case(out, f"{seed}_moe_te", r, tp, pp, ep=2, moe=Moe("te", 12))
        mcore_case(out, f"{seed}_moe_grouped", r, tp, pp, ep=r.choice([1, 2]), moe=Moe("grouped", 4))
        mcore_case(out, f"{seed}_moe_etp", r, 2, pp, ep=4, etp=1, moe=Moe("local", 8))
        if tp * pp > 1:  # the only rank's directory has no number
            mcore_case(out, f"{seed}_nemo", r, tp, pp, even=False, nemo=True)
        legacy_case(out, f"{seed}_legacy", r, tp, pp)
        legacy_case(out, f"{seed}_t5", r, tp, cross=True)
        legacy_case(out, f"{seed}_version_0", r, tp, version=None, words=("transformer", "attention", "layernorm"))
        legacy_case(out, f"{seed}_version_1", r, tp, version=1.0, cross=True)


main()
