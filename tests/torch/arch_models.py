#!/usr/bin/env python3
"""arch_models.py SEED OUTDIR - write a tiny model of every family whose weights ckptfs knows.

OUTDIR/NAME-WHAT/ has config.json and model.safetensors. WHAT: saved (by save_pretrained), memory (the state
dict as it is), bare (without a prefix such as "model."), or with a tensor missing, renamed or reshaped.
OUTDIR/expected has a line for each: the directory, and a glob for the verdict on hf/. transformers has loaded
each, and agrees about what is missing, unexpected or of another shape.
"""
import logging
import os
import random
import shutil
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
logging.disable(logging.CRITICAL)

import torch
import transformers
from safetensors.torch import load_file, save_file

COMMON = {"vocab_size": 48, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 3,
          "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
          "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
LATENT = {"n_routed_experts": 4, "moe_intermediate_size": 24, "first_k_dense_replace": 1,
          "kv_lora_rank": 10, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
          "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "n_shared_experts": 2}
LINEAR = {"head_dim": 16, "num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
          "linear_key_head_dim": 8, "linear_value_head_dim": 12}
SHARED = {**EXPERTS, "shared_expert_intermediate_size": 20}
FAMILIES = [
    ("Llama", {}), ("Llama", {"attention_bias": True, "mlp_bias": True}),
    ("Llama", {"tie_word_embeddings": True, "head_dim": 12}), ("Mistral", {"head_dim": 8}), ("Ministral3", {"head_dim": 8}),
    ("Mixtral", {"num_local_experts": 4}), ("Qwen2", {}), ("Qwen2", {"tie_word_embeddings": True}),
    ("Qwen3", {"head_dim": 16}), ("Qwen3", {"head_dim": 16, "attention_bias": True}),
    ("Qwen2Moe", SHARED), ("Qwen2Moe", {**SHARED, "qkv_bias": False}),
    ("Qwen3Moe", {**EXPERTS, "head_dim": 16}),
    ("Qwen3Moe", {**EXPERTS, "head_dim": 16, "decoder_sparse_step": 2, "mlp_only_layers": [1]}),
    ("Granite", {}), ("GraniteMoe", {"num_local_experts": 4}),
    ("GraniteMoe", {"num_local_experts": 4, "attention_bias": True}),
    ("Cohere", {}), ("Cohere", {"use_qk_norm": True, "attention_bias": True}), ("SmolLM3", {}), ("Gemma", {"head_dim": 16}), ("Gemma2", {"head_dim": 16}),
    ("Gemma3Text", {"head_dim": 16}), ("Phi3", {}), ("Olmo2", {}), ("Olmo3", {}),
    ("DeepseekV3", {**LATENT, "q_lora_rank": 12}),
    ("DeepseekV3", {**LATENT, "q_lora_rank": None, "attention_bias": True}),
    ("DeepseekV2", {**LATENT, "q_lora_rank": None}),
    ("GptOss", {"num_local_experts": 4, "head_dim": 16}),
    ("Glm4", {"head_dim": 16}), ("Glm4", {"head_dim": 16, "attention_bias": False}),
    ("Glm4Moe", {**LATENT, "use_qk_norm": True}), ("Glm4Moe", {**LATENT, "attention_bias": True}),
    ("Qwen3Next", {**LINEAR, **SHARED}),
    ("Qwen3Next", {**LINEAR, **SHARED, "attention_bias": True, "mlp_only_layers": [1],
                   "layer_types": [f"{t}_attention" for t in ("full", "linear", "full", "linear")]}),
    ("Qwen3_5Text", LINEAR), ("Qwen3_5MoeText", {**LINEAR, **SHARED}),
]
# Vision models, by the text models in them, and their vision towers.
SIGLIP = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
          "image_size": 28, "patch_size": 14}
SEES = {"depth": 2, "hidden_size": 32, "intermediate_size": 40, "num_heads": 4, "out_hidden_size": 32,
        "num_position_embeddings": 16, "deepstack_visual_indexes": [0]}
PIXTRAL = {**SIGLIP, "model_type": "pixtral"}
WHOLES = [
    ("Gemma3", {"head_dim": 16}, SIGLIP, {}), ("Gemma3", {"head_dim": 16}, SIGLIP, {"tie_word_embeddings": False}),
    ("Mistral3", {"head_dim": 8, "model_type": "mistral"}, PIXTRAL, {"tie_word_embeddings": False}),
    ("Mistral3", {"head_dim": 8, "model_type": "mistral"}, PIXTRAL, {}),
    ("Mistral3", {"head_dim": 8, "model_type": "ministral3"}, PIXTRAL, {"tie_word_embeddings": False}), ("Qwen3VL", {"head_dim": 16}, SEES, {}),
    ("Qwen3_5", LINEAR, SEES, {}), ("Qwen3_5Moe", {**LINEAR, **SHARED}, SEES, {"tie_word_embeddings": True}),
]
OTHERS = ("vision_tower.", "multi_modal_projector.", "visual.")


def models():
    gpt2 = transformers.GPT2Config(vocab_size=48, n_embd=32, n_layer=3, n_head=4, n_positions=64)
    yield "GPT2", transformers.GPT2LMHeadModel(gpt2)
    for i, (name, more) in enumerate(FAMILIES):
        config = getattr(transformers, name + "Config")(**{**COMMON, **more})
        yield f"{i}{name}", transformers.AutoModelForCausalLM.from_config(config)


def wholes():
    for i, (name, text, vision, more) in enumerate(WHOLES):
        config = getattr(transformers, name + "Config")(text_config={**COMMON, **text}, vision_config=vision, **more)
        yield f"{i}{name}Whole", transformers.AutoModelForImageTextToText.from_config(config)


def loaded(where, auto):
    """How many keys transformers finds missing, unexpected, and of another shape."""
    _, info = auto.from_pretrained(
        where, output_loading_info=True, ignore_mismatched_sizes=True)
    return [len(info[k]) for k in ("missing_keys", "unexpected_keys", "mismatched_keys")]


def main(seed, out):
    r = random.Random(seed)
    expected = open(f"{out}/expected", "w")

    def case(name, what, tensors, verdict, want, auto=transformers.AutoModelForCausalLM):
        where = f"{out}/{name}-{what}"
        if tensors is not None:
            os.makedirs(where)
            shutil.copy(f"{out}/{name}-saved/config.json", where)
            save_file({k: v.clone().contiguous() for k, v in tensors.items()},
                      f"{where}/model.safetensors", {"format": "pt"})
        found = loaded(where, auto)
        assert [bool(n) for n in found] == want, (where, found)
        print(f"{name}-{what}\t{verdict}", file=expected)

    for name, model in models():
        cls = type(model).__name__
        complete, bad = f"complete for {cls} (*)", f"not loadable as {cls}: "
        model.save_pretrained(f"{out}/{name}-saved")
        saved = load_file(f"{out}/{name}-saved/model.safetensors")
        case(name, "saved", None, complete, [False, False, False])
        case(name, "memory", model.state_dict(), complete, [False, False, False])
        prefix = model.base_model_prefix + "."
        case(name, "bare", {k.removeprefix(prefix): v for k, v in saved.items()}, complete,
             [False, False, False])
        # Not an expert's tensor, because transformers counts those differently.
        k = r.choice([k for k in saved if "experts." not in k and saved[k].dim()])
        case(name, "missing", {n: v for n, v in saved.items() if n != k},
             bad + f"1 tensor missing ({k})*", [True, False, False])
        case(name, "renamed", {"x.y" if n == k else n: v for n, v in saved.items()},
             bad + f"1 tensor missing ({k}), 1 unexpected (x.y)*", [True, True, False])
        longer = torch.cat([saved[k], saved[k]])
        case(name, "reshaped", {**saved, k: longer},
             bad + f"1 of the wrong shape ({k} is *)*", [False, False, True])
        case(name, "more", {**saved, "x.y": torch.zeros(2)},
             f"more than {cls}: 1 unexpected (x.y)*", [False, True, False])

    def whole_case(*args):
        case(*args, transformers.AutoModelForImageTextToText)

    for name, model in wholes():
        cls = type(model).__name__
        bad, sound = f"not loadable as {cls}: ", [False, False, False]
        complete = f"not checked: the text model is complete for {cls} (*)*"
        model.save_pretrained(f"{out}/{name}-saved")
        saved, memory = load_file(f"{out}/{name}-saved/model.safetensors"), model.state_dict()
        text = {k: v for k, v in saved.items() if not k.removeprefix("model.").startswith(OTHERS)}
        assert text and len(text) < len(saved)
        whole_case(name, "saved", None, complete, sound)
        whole_case(name, "memory", memory, complete, sound)
        # Without the model's prefix, and with the current name of the head beside older names.
        whole_case(name, "bare", {k.removeprefix("model."): v for k, v in memory.items()}, complete, sound)
        whole_case(name, "mixed", {k.replace("language_model.lm_head", "lm_head"): v for k, v in saved.items()},
                   complete, sound)
        whole_case(name, "blind", text, bad + "no tensors but those of the text model", [True, False, False])
        k = r.choice([k for k in text if "experts." not in k])
        whole_case(name, "missing", {n: v for n, v in saved.items() if n != k},
                   bad + f"1 tensor missing ({k})*", [True, False, False])
        whole_case(name, "reshaped", {**saved, k: torch.cat([saved[k], saved[k]])},
                   bad + f"1 of the wrong shape ({k} is *)*", [False, False, True])
        whole_case(name, "more", {**saved, "x.y": torch.zeros(2)},
                   f"more than {cls}: 1 unexpected (x.y)*", [False, True, False])


if __name__ == "__main__":
    torch.manual_seed(int(sys.argv[1]))
    os.makedirs(sys.argv[2], exist_ok=True)
    main(int(sys.argv[1]), sys.argv[2])
