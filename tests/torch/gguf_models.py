#!/usr/bin/env python3
"""gguf_models.py SEED OUTDIR [MODEL...] - make tiny models with tokenizers of every kind that gguf/ knows.

OUTDIR/NAME/ has hf/ (by save_pretrained, with a tokenizer) and ckpt/ (DCP of {"model": state dict} as
in memory: experts in one tensor, tied weights twice). Dtypes, sizes, vocabularies and weights are drawn
from SEED. NAME-mxfp4 (gpt_oss) and NAME-fp8 (deepseek_v3) are the same models with random codes as
weights in hf/, and with the decoded weights in plain/.
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
from safetensors.torch import load_file, save_file
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers,
                        pre_tokenizers, processors, trainers)

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
QWEN35 = QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def cased(digits, end=""):
    start = r"[^\r\n\p{L}\p{N}]?"
    return (rf"{start}{UPPER}*{LOWER}+{end}|{start}{UPPER}+{LOWER}*{end}|{digits}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


O200K, TEKKEN = cased(r"\p{N}{1,3}", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"), cased(r"\p{N}")
DEEPSEEK3 = [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
             r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
             r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""".replace(r"\r", "\r").replace(r"\n", "\n")]
MARK = "\u2581"
WORDS = ("mount shard rank tensor page cache offset header layer query don't we'll I'VE 12 345 6789 "
         "Größe été слово данные 模型 张量 データ 🚀 ✅ -- ... !? \t \n \n\n    ( ) [x] {y} a_b C++").split(" ")


def text(r, n):
    """Words, blanks and single characters of many scripts, combined in unexpected ways."""
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


def byte_level(r, vocab, specials, split, ignore_merges=False, nfc=False, digits=False):
    tok = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if nfc:
        tok.normalizer = normalizers.NFC()
    steps = [pre_tokenizers.Split(Regex(s), "isolated")
             for s in ([split] if isinstance(split, str) else split or [])]
    if digits:
        steps = [pre_tokenizers.Digits(individual_digits=True)]
    byte = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not split)
    tok.pre_tokenizer = pre_tokenizers.Sequence([*steps, byte]) if steps else byte
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(
        (text(r, 12) for _ in range(300)),
        trainers.BpeTrainer(vocab_size=vocab - len(specials), show_progress=False,
                            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    tok.add_special_tokens(specials)
    return tok


def pieces(r, vocab, specials, kind):
    """A tokenizer as transformers makes it of a SentencePiece model: every split of a piece in two is a merge."""
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
    """Makes every text begin with bos."""
    template = processors.TemplateProcessing(single=f"{bos} $A", pair=f"{bos} $A {bos} $B",
                                             special_tokens=[(bos, tok.token_to_id(bos))])
    tok.post_processor = processors.Sequence([*before, template]) if before else template
    return tok


SPLITS = {"o200k": O200K, "tekken": TEKKEN, "deepseek3": DEEPSEEK3, "qwen35": QWEN35}


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
    elif kind == "glm":
        names = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
        tok = byte_level(r, vocab, ["<|endoftext|>", "[MASK]", "[gMASK]", "<sop>", "<|user|>",
                                    "<|observation|>"], LLAMA3)
        more = {}
    elif kind in SPLITS:
        names = {"bos_token": "<s>", "eos_token": "</s>"}
        tok = begin_with(byte_level(r, vocab, list(names.values()), SPLITS[kind],
                                    ignore_merges=kind == "o200k"), "<s>")
        more = {}
    else:
        names = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
        tok = byte_level(r, vocab, ["<|endoftext|>"], None, digits=kind == "smollm")
        more = {}
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=tok, **names)
    for k, v in more.items():
        setattr(made, k, v)
    return made


# Vision models: the class, the kind of its text model, and sizes of the vision tower.
SIGLIP = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
          "image_size": 28, "patch_size": 14}
QWEN_VISION = {"depth": 2, "hidden_size": 32, "intermediate_size": 40, "num_heads": 4, "out_hidden_size": 64,
               "num_position_embeddings": 16}
WHOLES = {"gemma3_vision": ("Gemma3", "gemma3", SIGLIP),
          "mistral3": ("Mistral3", "mistral", {"model_type": "pixtral", **SIGLIP}),
          "ministral3_vision": ("Mistral3", "ministral3", {"model_type": "pixtral", **SIGLIP}),
          "qwen3_vl": ("Qwen3VL", "qwen3", {**QWEN_VISION, "deepstack_visual_indexes": [0]}),
          "qwen35_vision": ("Qwen3_5", "qwen35", QWEN_VISION),
          "qwen35_moe_vision": ("Qwen3_5Moe", "qwen35_moe", QWEN_VISION)}


def whole(r, name, vocab):
    kind, text, vision = WHOLES[name]
    inner = config(r, text, vocab).to_dict()
    if name == "qwen3_vl":
        inner = {**inner, "model_type": "qwen3_vl_text", "rope_parameters": {
            "rope_type": "default", "rope_theta": 5e6, "mrope_section": [6, 5, 5], "mrope_interleaved": True}}
    # Which of the two counts is the outer one.
    return getattr(transformers, f"{kind}Config")(
        text_config={**inner, "tie_word_embeddings": r.random() < 0.5}, vision_config=vision,
        tie_word_embeddings=inner["tie_word_embeddings"])


def config(r, name, vocab):
    if name in WHOLES:
        return whole(r, name, vocab)
    if name == "gpt2":
        return transformers.GPT2Config(vocab_size=vocab, n_embd=64, n_layer=2, n_head=4,
                                       n_positions=256, bos_token_id=0, eos_token_id=0)
    common = {"vocab_size": vocab, "hidden_size": 64, "intermediate_size": r.choice([96, 120]),
              "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
              "max_position_embeddings": 256}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}

    routed = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
              "n_shared_experts": 2, "first_k_dense_replace": 1, "num_hidden_layers": 4,
              "routed_scaling_factor": 1.5}
    latent = {"kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32,
              "num_key_value_heads": 4, **routed}

    heads = r.choice([1, 2, 3])  # key heads of linear attention
    linear = {"head_dim": 32, "num_hidden_layers": 5, "linear_num_key_heads": heads,
              "linear_num_value_heads": heads * r.choice([1, 2, 3] if heads > 1 else [2, 3]), "linear_key_head_dim": 32,
              "linear_value_head_dim": 32, "linear_conv_kernel_dim": r.choice([3, 4]),
              "layer_types": r.choice([None, [f"{t}_attention" for t in ("full", *3 * ["linear"], "full")]])}

    def rope(kind, **more):
        return {"rope_parameters": {"rope_type": kind, "rope_theta": 5e5, **more}}

    kind, more = {
        "llama": (transformers.LlamaConfig, {"attention_bias": True, "mlp_bias": True, **rope(
            "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
            original_max_position_embeddings=64)}),
        "smaug": (transformers.LlamaConfig, {"head_dim": 32, **rope(
            "llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
            original_max_position_embeddings=8192)}),
        "mistral": (transformers.MistralConfig, {"sliding_window": None, **rope("linear", factor=2.0)}),
        "ministral3": (transformers.Ministral3Config, {"head_dim": 32, "max_position_embeddings": 64, **rope(
            "yarn", factor=8.0, original_max_position_embeddings=8, beta_fast=32.0, beta_slow=1.0, mscale=1.0,
            mscale_all_dim=1.0, llama_4_scaling_beta=0.3)}),
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
        "phi3": (transformers.Phi3Config, {
            "num_key_value_heads": 4, "original_max_position_embeddings": 256, "pad_token_id": None}),
        "phi4_mini": (transformers.Phi3Config, {  # 24 of 32 elements of a head are rotated
            "hidden_size": 128, "pad_token_id": None, "max_position_embeddings": 1024,
            "tie_word_embeddings": True, "original_max_position_embeddings": 512,
            **rope("longrope", partial_rotary_factor=0.75,
                   long_factor=[round(1 + r.random() * 9, 2) for _ in range(12)],
                   short_factor=[round(1 + r.random(), 2) for _ in range(12)])}),
        "gemma": (transformers.GemmaConfig, {"head_dim": 32}),
        "granite": (transformers.GraniteConfig, {
            "attention_multiplier": 0.3, "embedding_multiplier": 3.0, "residual_multiplier": 0.4,
            "logits_scaling": 2.0, "attention_bias": True, "mlp_bias": True}),
        "granite_moe": (transformers.GraniteMoeConfig, {
            "attention_multiplier": 0.3, "embedding_multiplier": 3.0, "residual_multiplier": 0.4, "logits_scaling": 2.0,
            "num_local_experts": 4, "num_experts_per_tok": 2, "attention_bias": r.random() < 0.5}),
        "cohere": (transformers.CohereConfig, {
            "logit_scale": 0.25, "pad_token_id": None}),
        "cohere_plus": (transformers.CohereConfig, {
            "logit_scale": 0.25, "use_qk_norm": True, "num_hidden_layers": 64, "pad_token_id": None}),
        "smollm3": (transformers.SmolLM3Config, {"num_hidden_layers": 5, "pad_token_id": None}),
        "olmo2": (transformers.Olmo2Config, {"pad_token_id": None}),
        "olmo3": (transformers.Olmo3Config, {
            "num_hidden_layers": 5, "sliding_window": 16, "pad_token_id": None}),
        "glm4": (transformers.Glm4Config, {
            "head_dim": 32, "attention_bias": r.random() < 0.5, "pad_token_id": None}),
        "glm4_moe": (transformers.Glm4MoeConfig, {
            **routed, "use_qk_norm": True, "attention_bias": True, "n_group": 1, "topk_group": 1,
            "head_dim": 32, "norm_topk_prob": True}),
        "gpt_oss": (transformers.GptOssConfig, {
            "head_dim": 32, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16,
            "num_hidden_layers": 4, "intermediate_size": r.choice([64, 96]), **rope("yarn", factor=2.0, beta_fast=32.0, beta_slow=1.0,
                                           truncate=True, original_max_position_embeddings=128)}),
        "deepseek_v2": (transformers.DeepseekV2Config, {
            **latent, "q_lora_rank": None, "num_hidden_layers": 27, "n_group": 1, "topk_group": 1, "scoring_func": "softmax"}),
        "deepseek_v3": (transformers.DeepseekV3Config, {
            **latent, "q_lora_rank": 48, "n_routed_experts": 8, "n_group": 4, "topk_group": 2,
            "scoring_func": "sigmoid", **rope(
                "yarn", factor=4.0, beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=1.0,
                original_max_position_embeddings=64)}),
        "qwen3_next": (transformers.Qwen3NextConfig, {
            **linear, **experts, "shared_expert_intermediate_size": 96}),
        "qwen35": (transformers.Qwen3_5TextConfig, {**linear, "tie_word_embeddings": r.random() < 0.5}),
        "qwen35_moe": (transformers.Qwen3_5MoeTextConfig, {
            **linear, **experts, "shared_expert_intermediate_size": 64, **rope(
                "default", mrope_section=[2, 1, 1], partial_rotary_factor=0.25)}),
    }[name]
    return kind(**{**common, **more})


# The tokenizer of each model.
NAMES = {"llama": "llama", "smaug": "smaug", "mistral": "pieces", "mixtral": "metaspace",
         "qwen2": "qwen", "qwen3": "qwen", "qwen2_moe": "qwen", "qwen3_moe": "qwen", "gpt2": "gpt2",
         "gemma2": "gemma", "gemma3": "gemma", "phi3": "pieces", "phi4_mini": "o200k", "glm4": "glm",
         "glm4_moe": "glm", "gemma": "gemma", "granite": "smollm", "smollm3": "llama", "olmo2": "gpt2",
         "olmo3": "tekken", "gpt_oss": "o200k", "deepseek_v2": "smollm", "deepseek_v3": "deepseek3", "qwen3_next": "qwen",
         "granite_moe": "smollm", "cohere": "smollm", "cohere_plus": "smollm",
         "qwen35": "qwen35", "qwen35_moe": "qwen35", "gemma3_vision": "gemma", "mistral3": "tekken", "ministral3": "tekken", "ministral3_vision": "tekken",
         "qwen3_vl": "qwen", "qwen35_vision": "qwen35", "qwen35_moe_vision": "qwen35"}


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def mxfp4(tensors, generator):
    """Experts as in gpt-oss: [E, in, out] by columns, in groups of 32 that share a power of two."""
    for name in [n for n in tensors if n.endswith("_proj") and ".experts." in n]:
        n_experts, rows, columns = tensors[name].shape
        codes = torch.randint(16, (n_experts, columns, rows // 32, 32), generator=generator)
        codes[:, :, :, 1:] &= torch.randint(2, codes.shape[:3] + (1,), generator=generator) * 15  # zeros, too
        scales = torch.randint(122, 125, codes.shape[:3], generator=generator)
        weight = E2M1[codes & 7] * torch.where(codes > 7, -1.0, 1.0) * torch.exp2(scales - 127.0)[..., None]
        tensors[name] = weight.flatten(2).transpose(1, 2).contiguous()
        yield name + "_blocks", (codes[..., ::2] | codes[..., 1::2] << 4).to(torch.uint8)
        yield name + "_scales", scales.to(torch.uint8)


def float8(tensors, generator):
    """Linear weights in blocks of 128 x 128, each with a scale."""
    for name in [n for n in tensors if n.endswith("_proj.weight") or "_proj_with_mqa" in n]:
        rows, columns = tensors[name].shape
        codes = tensors[name].float().mul(100).clamp(-448, 448).to(torch.float8_e4m3fn)
        scales = torch.rand((rows + 127) // 128, (columns + 127) // 128, generator=generator) / 100 + 0.005
        full = scales.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]
        tensors[name] = codes.float() * full
        yield name, codes
        yield name + "_scale_inv", scales


QUANTISED = {"gpt_oss": ("mxfp4", mxfp4, {"quant_method": "mxfp4"}),
             "deepseek_v3": ("fp8", float8, {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128],
                                             "activation_scheme": "dynamic"})}


def quantised(name, out, model, tok, generator):
    word, how, config = QUANTISED[name]
    at = f"{out}-{word}"
    plain = load_file(f"{out}/hf/model.safetensors")
    before = set(plain)
    codes = dict(how(plain, generator))
    kept = {k: v for k, v in plain.items() if k not in codes and k + "_blocks" not in codes}
    for where, tensors in (("plain", plain), ("hf", {**kept, **codes})):
        model.config.save_pretrained(f"{at}/{where}")
        tok.save_pretrained(f"{at}/{where}")
        save_file({k: v.contiguous() for k, v in tensors.items()}, f"{at}/{where}/model.safetensors",
                  {"format": "pt"})
    assert set(plain) == before and codes
    with open(f"{at}/hf/config.json", encoding="utf-8") as f:
        edited = {**json.load(f), "quantization_config": config}
    with open(f"{at}/hf/config.json", "w", encoding="utf-8") as f:
        json.dump(edited, f)


def make(seed, name, out):
    r = random.Random(f"{seed}/{name}")
    vocab = r.randint(700, 800)
    more = r.choice([0, 0, 5])  # rows without a token; for Gemma 3 the converter cuts them off
    conf = config(r, name, vocab + (more if not name.startswith("gemma3") else 0))
    tok = tokenizer(r, NAMES[name], vocab - 1)
    at = conf.get_text_config()
    at.bos_token_id, at.eos_token_id = tok.bos_token_id, tok.eos_token_id
    dtype = r.choice([torch.float32, torch.bfloat16])
    auto = transformers.AutoModelForImageTextToText if name in WHOLES else transformers.AutoModelForCausalLM
    model = auto.from_config(conf, dtype=torch.float32)
    generator = torch.Generator().manual_seed(r.getrandbits(63))
    with torch.no_grad():  # norms and biases, too: ones and zeros would hide mistakes
        for _, p in sorted(model.named_parameters()):
            p.copy_(0.2 * torch.randn(p.shape, generator=generator) + (p.dim() == 1))
        for n, p in sorted(model.named_buffers()):
            if n.endswith("e_score_correction_bias"):
                p.copy_(0.2 * torch.randn(p.shape, generator=generator))
    model = model.to(dtype).eval()
    model.config.dtype = dtype
    model.generation_config.temperature, model.generation_config.top_k = 0.7, 20
    model.generation_config.do_sample = True
    model.save_pretrained(f"{out}/hf")
    tok.save_pretrained(f"{out}/hf")
    dcp.save({"model": model.state_dict()}, checkpoint_id=f"{out}/ckpt", no_dist=True)
    if name in QUANTISED:
        quantised(name, out, model, tok, generator)
    print(f"seed {seed} {name}: {dtype}, {at.vocab_size} tokens")


def main():
    seed, out = int(sys.argv[1]), os.path.abspath(sys.argv[2])
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    for name in sys.argv[3:] or NAMES:
        make(seed, name, f"{out}/{name}")


if __name__ == "__main__":
    main()
