#!/usr/bin/env python3
"""gguf_check.py SEED JOBS - compare gguf/ of live mounts with llama.cpp's converter, and serve it.

A line of the file JOBS is one mount: MOUNTPOINT MODEL TYPE SERVE

  MODEL   a directory with the model as save_pretrained wrote it in hf/; if its weights are quantised, also with
          the decoded weights in plain/
  TYPE    the type of the mount's gguf/: f32, f16, bf16 or one of llama-quantize's
  SERVE   "-", or how llama-server is to load it: mmap, none (it reads), dio

All tensors have to be those that the converter makes of hf/, bit for bit; if they are quantised, those that
llama-quantize makes of the converter's f32; q8_0 has to be both. All keys have to be equal, with the exceptions in
KEYS. From 1000 random texts the server has to make the same tokens as transformers, with the same probabilities; texts
that llama.cpp splits by its own idea of upper and lower case are compared with the same split (ascii_cased).

Prints one line per difference, then "N passed, M failed"; exit status 1 if there is a difference.
"""
import glob
import http.client
import json
import logging
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import types
import unicodedata
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["TQDM_DISABLE"] = "1"
sys.path.insert(1, "/usr/share/llama.cpp/llama.cpp-tools")
logging.disable(logging.WARNING)

import gguf
import torch
import transformers
from tokenizers import Tokenizer

# The converter imports sentencepiece to look for a tokenizer.model, which these models do not have.
sys.modules.setdefault("sentencepiece", types.SimpleNamespace(SentencePieceProcessor=None))
import conversion
import conversion.base

from compare import Report
from gguf_models import LOWER, UPPER, text

TYPES = {"f32": gguf.LlamaFileType.ALL_F32, "f16": gguf.LlamaFileType.MOSTLY_F16,
         "bf16": gguf.LlamaFileType.MOSTLY_BF16, "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0}
QUANTISED = {"mxfp4": "MXFP4_MOE"}  # llama-quantize's names, where they differ
# Keys that only one of the two has, or that differ, and the reason.
KEYS = {
    "general.name": "made of the directory's name",
    "general.size_label": "made of the number of parameters, for people",
    "tokenizer.ggml.pre": "by a hash of published vocabularies, which these are not",
    "tokenizer.ggml.scores": "-1000 for all, where here they are the order of merges",
    "tokenizer.ggml.add_bos_token": "not there where it is false",
    "tokenizer.ggml.add_eos_token": "not there where it is false",
    "tokenizer.ggml.add_sep_token": "of pairs of texts, which nobody generates from",
    "tokenizer.ggml.add_space_prefix": "not there where it is llama.cpp's default",
    ".attention.key_length": "not there where it is llama.cpp's default",
    ".attention.value_length": "not there where it is llama.cpp's default",
    ".vocab_size": "not there where it is the number of tokens",
}
BOUND = {"f32": 5e-3, "bf16": 0.25}  # of log-probabilities; a misplaced row makes it several
TEXTS, STEPS, PORT = 1000, 12, 18457
# llama.cpp's types of tokens. The converter may call the unknown token a control token; "unknown" is better.
TYPE_UNKNOWN, TYPE_CONTROL, TYPE_UNUSED = 2, 3, 5


def hf_pieces(model):
    model._set_vocab_llama_hf()
    model.gguf_writer.add_add_space_prefix(False)


def phi3_vocab(model):
    pieces = "<0x00>" in (model.dir_model / "tokenizer.json").read_text(encoding="utf-8")
    (hf_pieces if pieces else type(model)._set_vocab_gpt2)(model)


def ascii_cased(tok):
    """A copy of tok that splits text as llama.cpp does; None if tok does that already.

    For o200k and tekken llama.cpp's expression has no Unicode classes for case: every letter outside of ASCII counts
    as both. If it splits at another place, merges across that place make other tokens.
    """
    made = json.loads(tok.backend_tokenizer.to_str())
    split = [p["pattern"] for p in (made["pre_tokenizer"] or {}).get("pretokenizers", []) if p["type"] == "Split"]
    if not any(UPPER in p["Regex"] for p in split):
        return None
    for p in split:
        p["Regex"] = p["Regex"].replace(UPPER, r"(?:(?=\p{L})[^a-z])").replace(LOWER, r"(?:(?=\p{L})[^A-Z])")
    return Tokenizer.from_str(json.dumps(made))


class Reference:
    """What the converter makes of hf/, made once for each type."""

    def __init__(self, scratch):
        self.scratch, self.made = scratch, {}
        conversion.base.TextModel.get_vocab_base_pre = lambda *_: "unknown"
        for name in "GemmaForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM":  # like Llama's: no tokenizer.model
            conversion.get_model_class(name).set_vocab = hf_pieces
        conversion.get_model_class("Phi3ForCausalLM").set_vocab = phi3_vocab
        conversion.get_model_class("Qwen3NextForCausalLM").no_mtp = True  # --no-mtp
        load = conversion.base.ModelBase.load_hparams

        def load_hparams(*args, **kwargs):  # the converter wants a key that transformers 5 does not write
            found = load(*args, **kwargs)
            if found.get("model_type") == "gpt2":
                found.setdefault("n_ctx", found["n_positions"])
            return found
        conversion.base.ModelBase.load_hparams = staticmethod(load_hparams)

    def convert(self, model, kind):
        out = Path(self.scratch, f"{os.path.basename(model)}-{kind}.gguf")
        if out not in self.made:
            with open(f"{model}/hf/config.json", encoding="utf-8") as f:
                arch = json.load(f)["architectures"][0]
            with torch.inference_mode():
                conversion.get_model_class(arch)(Path(model, "hf"), TYPES[kind], out).write()
            self.made[out] = gguf.GGUFReader(out)
        return self.made[out]

    def quantize(self, model, kind, *options):
        self.convert(model, "f32")
        source = f"{self.scratch}/{os.path.basename(model)}-f32.gguf"
        out = f"{source}.{kind}"
        subprocess.run(["llama-quantize", *options, source, out, QUANTISED.get(kind, kind)],
                       check=True, capture_output=True)
        return gguf.GGUFReader(out)

    def quantize_untied(self, model, kind):
        """For models that store a tied head: the converter drops it, and the embeddings get the head's type."""
        want = {t.name: t for t in self.quantize(model, kind).tensors}
        head = want["token_embd.weight"]
        up = want.get("blk.0.ffn_up.weight", want.get("blk.0.ffn_up_exps.weight")).tensor_type
        plain, data = "q8_0" if kind == "mxfp4" else up.name.lower(), head.data.copy()
        again = self.quantize(model, kind, "--token-embedding-type", plain)
        return [*again.tensors, types.SimpleNamespace(
            name="output.weight", tensor_type=head.tensor_type, shape=head.shape, data=data)]


class Server:
    def __init__(self, path, mode):
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            ["llama-server", "-m", path, "--host", "127.0.0.1", "--port", str(PORT), "-c", "256",
             "-np", "1", "-t", "1", "-ctk", "f32", "-ctv", "f32", "-fa", "off", "--no-webui",
             "--load-mode", mode, "--check-tensors"], stdout=self.log, stderr=subprocess.STDOUT)
        self.http = None

    def __enter__(self):
        for _ in range(600):
            if self.process.poll() is not None:
                break
            try:
                self.http = http.client.HTTPConnection("127.0.0.1", PORT, timeout=60)
                self.http.request("GET", "/health")
                if json.load(self.http.getresponse()).get("status") == "ok":
                    return self
            except OSError:
                pass
            time.sleep(0.05)
        self.__exit__()
        self.log.seek(0)
        raise RuntimeError("llama-server: " + self.log.read().decode("utf-8", "replace")[-600:])

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def post(self, path, **request):
        self.http.request("POST", path, json.dumps(request), {"Content-Type": "application/json"})
        return json.load(self.http.getresponse())


def fields(reader):
    return {k: f.contents() for k, f in reader.fields.items() if not k.startswith("GGUF.")}


def shape(tensor):
    """llama-quantize forgets that a row is a matrix."""
    dims = [int(n) for n in tensor.shape]
    while dims and dims[-1] == 1:
        dims.pop()
    return dims


class Job:
    def __init__(self, seed, reference, mountpoint, model, kind, serve):
        self.random = random.Random(f"{seed}/{mountpoint}")
        self.reference, self.top, self.model = reference, mountpoint, model
        self.kind, self.serve = kind, serve
        self.files = sorted(glob.glob(f"{glob.escape(mountpoint)}/gguf/*.gguf"))
        self.report = Report()

    def check(self, what, ok, detail=""):
        return self.report.check(f"{self.top}/gguf", what, ok, detail)

    def run(self):
        if not self.check("there is a file", self.files):
            return
        steps = [self.same_as_converter] if self.kind in TYPES else []
        if self.kind not in ("f32", "f16", "bf16"):
            steps.append(self.same_as_quantized)
        if self.kind == "f32" and len(self.files) == 1:
            steps.append(self.quantised_from_here)
        if self.serve != "-":
            steps.append(self.serve_it)
        for step in steps:
            try:
                step()
            except Exception as e:
                self.check(step.__name__, False, f"{type(e).__name__}: {e}")
                traceback.print_exc(limit=-3)

    def check_tensors(self, who, want):
        have = {t.name: t for f in self.files for t in gguf.GGUFReader(f).tensors}
        want = {t.name: t for t in want}
        if "output.weight" in have and "output.weight" not in want:  # tied, but both were saved
            want["output.weight"] = want["token_embd.weight"]
        self.check(f"{who}: names", set(have) == set(want), sorted(set(have) ^ set(want))[:4])
        for name in set(have) & set(want):
            a, b = have[name], want[name]
            self.check(f"{who}: {name}", a.tensor_type == b.tensor_type
                       and shape(a) == shape(b) and a.data.tobytes() == b.data.tobytes(),
                       f"{a.tensor_type!r} {shape(a)}, {b.tensor_type!r} {shape(b)}")

    def same_as_quantized(self):
        reader = self.reference.quantize(self.model, self.kind)
        there = {t.name for f in self.files for t in gguf.GGUFReader(f).tensors}
        names = {t.name for t in reader.tensors}
        both = "output.weight" in there and "output.weight" not in names
        self.check_tensors("llama-quantize", self.reference.quantize_untied(self.model, self.kind)
                           if both else reader.tensors)
        have, want = fields(gguf.GGUFReader(self.files[0])), fields(reader)
        for key in ("general.file_type", "general.quantization_version"):
            self.check(f"llama-quantize: key {key}", have[key] == want[key], have[key])

    def quantised_from_here(self):
        out = f"{self.reference.scratch}/from_here.gguf"
        subprocess.run(["llama-quantize", self.files[0], out, "q8_0"], check=True, capture_output=True)
        want = {t.name: t for t in self.reference.quantize(self.model, "q8_0").tensors}
        have = {t.name: t for t in gguf.GGUFReader(out).tensors}
        self.check("llama-quantize reads it", set(want) <= set(have), sorted(set(want) - set(have))[:4])
        for name in set(have) & set(want):
            self.check(f"llama-quantize reads {name}", have[name].data.tobytes() == want[name].data.tobytes())

    def same_as_converter(self):
        reader = self.reference.convert(self.model, self.kind)
        self.check_tensors("converter", reader.tensors)
        first = gguf.GGUFReader(self.files[0])
        have, want = fields(first), fields(reader)
        arch = want["general.architecture"]
        for key in sorted(set(have) | set(want), reverse=True):
            known = key in KEYS or key.removeprefix(arch) in KEYS or key.startswith("split.")
            if key == "tokenizer.ggml.token_type":
                unknown = have.get("tokenizer.ggml.unknown_token_id", -1)
                want[key] = [TYPE_UNKNOWN if i == unknown and have[key][i] == TYPE_UNKNOWN
                             and t == TYPE_CONTROL else t for i, t in enumerate(want[key])]
            # llama.cpp wants one for each row
            if key == "tokenizer.ggml.tokens" and want["tokenizer.ggml.model"] == "llama":
                n = len(want[key])
                want[key] += [f"[PAD{i}]" for i in range(n, len(have[key]))]
                want["tokenizer.ggml.token_type"] += [TYPE_UNUSED] * (len(have[key]) - n)
            if not known:
                self.check(f"key {key}", key in have and key in want and have[key] == want[key]
                           and first.fields[key].types == reader.fields[key].types,
                           f"{str(have.get(key))[:60]}, {str(want.get(key))[:60]}")

    def serve_it(self):
        tok = transformers.AutoTokenizer.from_pretrained(f"{self.model}/hf")
        with Server(self.files[0], self.serve) as server:
            self.tokens(server, tok)
            if self.kind in BOUND:
                self.probabilities(server, tok)

    def tokens(self, server, tok):
        different, cased = [], ascii_cased(tok)
        # Before a blank, Metaspace does not add another, but llama.cpp always does.
        blanks = " " if "Metaspace" in str(tok.backend_tokenizer.pre_tokenizer) else ""
        for i in range(TEXTS):
            what = unicodedata.normalize("NFC", text(self.random, self.random.randint(1, 12)))
            what = what.lstrip(blanks) if blanks else what
            if i % 10 == 0:
                what += self.random.choice(tok.all_special_tokens) + "x" + text(self.random, 2)
            want = tok.encode(what)
            have = server.post("/tokenize", content=what, add_special=True, parse_special=True)
            if have["tokens"] != want and not (cased and have["tokens"] == cased.encode(what).ids):
                different.append((what, have["tokens"], want))
        self.check(f"tokens of {TEXTS} texts", not different,
                   f"{len(different)} differ: {ascii(different[:2])}")

    def probabilities(self, server, tok):
        """The probabilities of every token after every token of a text."""
        # Not with SDPA, which leaves out Gemma 2's soft cap of attention scores.
        plain = f"{self.model}/plain"  # exists if weights are quantised
        with open(f"{self.model}/hf/config.json", encoding="utf-8") as f:
            kind = getattr(transformers, json.load(f)["architectures"][0])
        model = kind.from_pretrained(
            plain if os.path.exists(plain) else f"{self.model}/hf", dtype=torch.float32, attn_implementation="eager").eval()
        vocab, bound = model.config.get_text_config().vocab_size, BOUND[self.kind]
        if model.config.model_type.startswith("gemma"):  # ggml's GELU is a table of float16
            bound = max(bound, 0.2)
        prompt, chosen, found = tok.encode("shard 12 rank we'll page")[:20], [], {}
        prompt += tok.encode(text(self.random, 4 * STEPS))[:STEPS]
        # One request for each step: of many steps at once, the server omits those whose text is not whole
        # characters, without saying which. The text is given, because generated text would repeat itself.
        first = len(prompt) - STEPS
        for n in range(first, len(prompt)):
            answer = server.post("/completion", prompt=prompt[:n], n_predict=1, temperature=0,
                                 n_probs=vocab, return_tokens=True, cache_prompt=False,
                                 ignore_eos=True)
            chosen += answer["tokens"]
            for probabilities in answer.get("completion_probabilities", []):
                found[n - first] = probabilities
        if not self.check("steps", len(chosen) == STEPS, chosen):
            return
        with torch.no_grad():
            logits = model(torch.tensor([prompt])).logits[0, first - 1:-1]
        worst, greedy = 0.0, True
        for step, of_step in found.items():
            # Without tokens whose probability is too small for a float32.
            have = {x["id"]: x["logprob"] for x in of_step["top_logprobs"] if x["logprob"] > -80}
            ids = torch.tensor(sorted(have))
            want = logits[step][ids].log_softmax(-1)
            got = torch.tensor([have[i] for i in sorted(have)]).log_softmax(-1)
            self.check(f"step {step}: tokens", len(ids) > vocab / 2, len(ids))
            worst = max(worst, (want - got).abs().max().item())
            least = logits[step][chosen[step]] + 2 * bound
            logits[step][tok.all_special_ids] = -1e9  # some are among what ignore_eos rules out
            greedy &= bool(least >= logits[step].max())
        self.check("there are steps", found)
        self.check("log-probabilities", worst < bound, worst)
        self.check("greedy tokens", greedy, chosen)
        if "VERBOSE" in os.environ:
            print(self.top, "log-probabilities differ by", worst)


def main():
    seed = sys.argv[1]
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    with open(sys.argv[2], encoding="utf-8") as f:
        jobs = [line.split() for line in f]
    scratch = tempfile.mkdtemp()
    try:
        reference, passed, failed = Reference(scratch), 0, 0
        for words in jobs:
            job = Job(seed, reference, *words)
            job.run()
            passed += job.report.passed
            failed += job.report.failed
    finally:
        shutil.rmtree(scratch)
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
