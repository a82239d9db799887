#!/usr/bin/env python3
"""gguf_models.py SEED OUTDIR [MODEL...] - tiny models with tokenizers of every kind that gguf/ knows.

OUTDIR/NAME/ has hf/ (save_pretrained and a tokenizer) and ckpt/ (DCP of {"model": state dict} as it
is in memory: experts in one tensor, tied weights twice). Dtypes, sizes, vocabularies and weights
are drawn from SEED.
"""
import json
import logging
import os
import random
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
logging.disable(logging.WARNING)

import torch
import torch.distributed.checkpoint as dcp
import transformers
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers,
                        pre_tokenizers, processors, trainers)

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
MARK = "\u2581"
WORDS = ("mount shard rank tensor page cache offset header layer query don't we'll I'VE 12 345 6789 "
         "Größe été слово данные 模型 张量 データ 🚀 ✅ -- ... !? \t \n \n\n    ( ) [x] {y} a_b C++").split(" ")


def text(r, n):
    """Words, blanks and single characters of many scripts, run together in unexpected ways."""
    out = []
    for _ in range(n):
        what = r.random()
        if what < 0.6:
            out.append(r.choice(WORDS) + r.choice([" ", " ", " ", "", "\n", "  "]))
        elif what < 0.8:
            out.append("".join(chr(r.randint(32, 126)) for _ in range(r.randint(1, 8))))
        else:
            out.append(chr(r.choice([r.randint(0xA1, 0x24F), r.randint(0x391, 0x44F),
                                     r.randint(0x4E00, 0x4FFF), r.randint(0x1F600, 0x1F640)])))
    return "".join(out)


def byte_level(r, vocab, specials, split, ignore_merges=False, nfc=False):
    tok = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if nfc:
        tok.normalizer = normalizers.NFC()
    byte = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not split)
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(split), "isolated"), byte]) if split else byte
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(
        (text(r, 12) for _ in range(300)),
        trainers.BpeTrainer(vocab_size=vocab - len(specials), show_progress=False,
                            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    tok.add_special_tokens(specials)
    return tok


def pieces(r, vocab, specials, kind):
    """As transformers makes it of a SentencePiece model: of every piece all pairs are merges."""
    base = Tokenizer(models.BPE())
    base.normalizer = normalizers.Replace(" ", MARK)
    base.train_from_iterator((MARK + text(r, 12) for _ in range(300)), trainers.BpeTrainer(
        vocab_size=vocab - 256 - len(specials), show_progress=False, limit_alphabet=100))
    trained = json.loads(base.to_str())["model"]["vocab"]
    ids = {t: i for i, t in enumerate(specials + [f"<0x{b:02X}>" for b in range(256)])}
    for t in sorted(trained, key=trained.get):
        ids[t] = len(ids)
    merges = [(t[:i], t[i:]) for t in sorted(trained, key=trained.get) for i in range(1, len(t))
              if t[:i] in trained and t[i:] in trained]
    tok = Tokenizer(models.BPE(vocab=ids, merges=merges, unk_token=specials[0], fuse_unk=True,
                               byte_fallback=True))
    if kind == "gemma":
        tok.normalizer = normalizers.Replace(" ", MARK)
        tok.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    elif kind == "metaspace":
        tok.pre_tokenizer = pre_tokenizers.Metaspace(MARK, "always", split=False)
    else:
        tok.normalizer = normalizers.Sequence(
            [normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    tok.decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(),
                                     decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tok.add_special_tokens(specials)
    return tok


def begin_with(tok, bos, *before):
    """Every text begins with bos."""
    template = processors.TemplateProcessing(single=f"{bos} $A", pair=f"{bos} $A {bos} $B",
                                             special_tokens=[(bos, tok.token_to_id(bos))])
    tok.post_processor = processors.Sequence([*before, template]) if before else template
    return tok


def tokenizer(r, kind, vocab):
    if kind in ("llama", "smaug"):
        names = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
        tok = begin_with(byte_level(r, vocab, list(names.values()), LLAMA3, kind == "llama"),
                         names["bos_token"], processors.ByteLevel(trim_offsets=False))
        tok.add_tokens([AddedToken("<think>", special=False, normalized=False)])
        more = {"chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}"}
    elif kind in ("pieces", "metaspace", "gemma"):
        names = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
        tok = begin_with(pieces(r, vocab, list(names.values()), kind), "<s>")
        more = {}
    elif kind == "qwen":
        names = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
        tok = byte_level(r, vocab, list(names.values()), QWEN2, nfc=True)
        tok.post_processor = processors.ByteLevel(trim_offsets=False)
        more = {"chat_template": "{{ messages[0]['content'] }}<|im_end|>"}
    else:
        names = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
        tok = byte_level(r, vocab, ["<|endoftext|>"], None)
        more = {}
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=tok, **names)
    for k, v in more.items():
        setattr(made, k, v)
    return made


def config(r, name, vocab):
    if name == "gpt2":
        return transformers.GPT2Config(vocab_size=vocab, n_embd=64, n_layer=2, n_head=4,
                                       n_positions=256, bos_token_id=0, eos_token_id=0)
    common = {"vocab_size": vocab, "hidden_size": 64, "intermediate_size": r.choice([96, 120]),
              "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
              "max_position_embeddings": 256}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}

    def rope(kind, **more):
        return {"rope_parameters": {"rope_type": kind, "rope_theta": 5e5, **more}}

    kind, more = {
        "llama": (transformers.LlamaConfig, {"attention_bias": True, "mlp_bias": True, **rope(
            "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
            original_max_position_embeddings=64)}),
        "smaug": (transformers.LlamaConfig, {"head_dim": 32}),
        "mistral": (transformers.MistralConfig, {"sliding_window": None, **rope("linear", factor=2.0)}),
        "mixtral": (transformers.MixtralConfig, {"num_local_experts": 4, "num_experts_per_tok": 2}),
        "qwen2": (transformers.Qwen2Config, {"tie_word_embeddings": True, **rope(
            "yarn", factor=2.0, original_max_position_embeddings=128)}),
        "qwen3": (transformers.Qwen3Config, {"head_dim": 32}),
        "qwen2_moe": (transformers.Qwen2MoeConfig, {
            **experts, "shared_expert_intermediate_size": 96, "norm_topk_prob": False}),
        "qwen3_moe": (transformers.Qwen3MoeConfig, {
            **experts, "head_dim": 32, "norm_topk_prob": True}),
        "gemma2": (transformers.Gemma2Config, {
            "head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 16, "num_hidden_layers": 4}),
        "gemma3": (transformers.Gemma3TextConfig, {
            "head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 16, "num_hidden_layers": 7,
            "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 2e5},
                                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}),
    }[name]
    return kind(**{**common, **more})


# What tokenizer each has.
NAMES = {"llama": "llama", "smaug": "smaug", "mistral": "pieces", "mixtral": "metaspace",
         "qwen2": "qwen", "qwen3": "qwen", "qwen2_moe": "qwen", "qwen3_moe": "qwen", "gpt2": "gpt2",
         "gemma2": "gemma", "gemma3": "gemma"}


def make(seed, name, out):
    r = random.Random(f"{seed}/{name}")
    vocab = r.randint(700, 800)
    more = r.choice([0, 0, 5])  # rows that no token has; of Gemma 3 the converter cuts them off
    conf = config(r, name, vocab + (more if name != "gemma3" else 0))
    tok = tokenizer(r, NAMES[name], vocab - 1)
    conf.bos_token_id, conf.eos_token_id = tok.bos_token_id, tok.eos_token_id
    dtype = r.choice([torch.float32, torch.bfloat16])
    model = transformers.AutoModelForCausalLM.from_config(conf, dtype=torch.float32)
    generator = torch.Generator().manual_seed(r.getrandbits(63))
    with torch.no_grad():  # norms and biases too: ones and zeros would hide mistakes
        for _, p in sorted(model.named_parameters()):
            p.copy_(0.2 * torch.randn(p.shape, generator=generator) + (p.dim() == 1))
    model = model.to(dtype).eval()
    model.config.dtype = dtype
    model.generation_config.temperature, model.generation_config.top_k = 0.7, 20
    model.generation_config.do_sample = True
    model.save_pretrained(f"{out}/hf")
    tok.save_pretrained(f"{out}/hf")
    dcp.save({"model": model.state_dict()}, checkpoint_id=f"{out}/ckpt", no_dist=True)
    print(f"seed {seed} {name}: {dtype}, {conf.vocab_size} tokens")


def main():
    seed, out = int(sys.argv[1]), os.path.abspath(sys.argv[2])
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    for name in sys.argv[3:] or NAMES:
        make(seed, name, f"{out}/{name}")


if __name__ == "__main__":
    main()
