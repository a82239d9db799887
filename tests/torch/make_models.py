#!/usr/bin/env python3
"""make_models.py SEED OUTDIR [NAME...] - write tiny random language models and their checkpoints.

All is written by the real libraries, from SEED, as fp32 and as bf16, for every NAME of llama
qwen2 qwen3 mixtral gpt2 (default: all of them). OUTDIR/NAME-DTYPE/ has

  hf/                what save_pretrained writes, and a tokenizer
  state.safetensors  the state dict as in memory (save_pretrained leaves tied weights out and splits
                     experts; a checkpoint does neither)
  reference-*.safetensors  what hf/, loaded as fp32 and as bf16, answers to a prompt: ids, logits,
                     greedy
  fsdp/              DCP by 4 gloo ranks, FSDP2: {"model", "optim" (AdamW), "step"}; for gpt2 the
                     weights are at the top, without "model"
  tp/                llama: a plain state dict by 2 x 2 ranks, tensor parallel in FSDP, with the
                     files that hf/ has beside its weights
  wrapped/ckpt/      llama: {"actor", "critic", "step"} with names as wrappers leave them, and
                     trunk.block-N for model.layers.N; the files of hf/ are in wrapped/
"""
import copy
import datetime
import logging
import os
import random
import shutil
import sys
import tempfile

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
os.environ.setdefault("USE_LIBUV", "0")
os.environ["HF_HUB_OFFLINE"] = "1"
logging.disable(logging.WARNING)

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,
                                               parallelize_module)

WORLD = 4
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
NAMES = ["llama", "qwen2", "qwen3", "mixtral", "gpt2"]
WORDS = "mount shard rank tensor mesh stripe page cache offset header layer norm query".split()
BOS, EOS = "<|begin|>", "<|end|>"
PROMPT = "rank 3 mounts a tensor of 2 layers."


def config(name, vocab, width):
    if name == "gpt2":
        return transformers.GPT2Config(
            vocab_size=vocab, n_embd=64, n_layer=2, n_head=4, n_positions=128)
    kind, more = {
        "llama": (transformers.LlamaConfig, {"rope_theta": 5e5, "tie_word_embeddings": False}),
        "qwen2": (transformers.Qwen2Config, {"tie_word_embeddings": True}),
        "qwen3": (transformers.Qwen3Config, {"head_dim": 32, "tie_word_embeddings": True}),
        "mixtral": (transformers.MixtralConfig, {"num_local_experts": 4, "num_experts_per_tok": 2}),
    }[name]
    return kind(vocab_size=vocab, hidden_size=64, intermediate_size=width, num_hidden_layers=2,
                num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128, **more)


def tokenizer(r, vocab):
    """Byte-level BPE, trained on nonsense."""
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(
        (" ".join(r.choices(WORDS, k=12)) for _ in range(100)),
        trainers.BpeTrainer(vocab_size=vocab, special_tokens=[BOS, EOS], show_progress=False,
                            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tok, bos_token=BOS, eos_token=EOS)


class Model:
    """One model with one dtype and its directory."""

    def __init__(self, seed, name, dtype, outdir):
        r = random.Random(f"{seed}/{name}")  # the same weights for both dtypes, then rounded
        self.name, self.dir = name, f"{outdir}/{name}-{dtype}"
        # Not round numbers, so that shards have different lengths. (Mixtral needs multiples of 8.)
        step = 8 if name == "mixtral" else 2
        conf = config(name, r.randint(360, 400), step * r.randint(82 // step, 120 // step))
        self.tok = tokenizer(r, conf.vocab_size)
        conf.bos_token_id, conf.eos_token_id = self.tok.bos_token_id, self.tok.eos_token_id
        self.model = transformers.AutoModelForCausalLM.from_config(conf, dtype=torch.float32)
        generator = torch.Generator().manual_seed(r.getrandbits(63))
        with torch.no_grad():  # norms and biases, too: ones and zeros would hide mistakes
            for _, p in sorted(self.model.named_parameters()):
                p.copy_(0.2 * torch.randn(p.shape, generator=generator) + (p.dim() == 1))
        self.model = self.model.to(DTYPES[dtype]).eval()
        self.model.config.dtype = DTYPES[dtype]

    def save(self):
        shutil.rmtree(self.dir, ignore_errors=True)
        self.model.save_pretrained(f"{self.dir}/hf")
        self.tok.save_pretrained(f"{self.dir}/hf")
        save_file({k: v.detach().clone() for k, v in self.model.state_dict().items()},
                  f"{self.dir}/state.safetensors")
        for name, dtype in DTYPES.items():
            save_file(reference(f"{self.dir}/hf", self.tok, dtype),
                      f"{self.dir}/reference-{name}.safetensors")
        if self.name == "llama":
            for where in ("tp", "wrapped"):
                shutil.copytree(f"{self.dir}/hf", f"{self.dir}/{where}",
                                ignore=shutil.ignore_patterns("*.safetensors*"))

    def checkpoint(self, meshes):
        """Saves the checkpoints; called on every rank."""
        model = shard(copy.deepcopy(self.model), meshes["dp"])
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
        for p in model.parameters():
            p.grad = p.detach() * 0.25
        optimizer.step()  # makes moments; with this learning rate it does not change the weights
        weights, moments = get_state_dict(model, optimizer)
        state = dict(weights) if self.name == "gpt2" else {"model": weights}
        dcp.save(state | {"optim": moments, "step": 1}, checkpoint_id=f"{self.dir}/fsdp")
        if self.name != "llama":
            return
        critic = {k: v + 1 for k, v in weights.items()}
        dcp.save({"actor": wrapped(weights), "critic": wrapped(critic), "step": 1},
                 checkpoint_id=f"{self.dir}/wrapped/ckpt")
        model = copy.deepcopy(self.model)
        # src_data_rank=None: all ranks have the weights already. (This gloo cannot send bf16.)
        parallelize_module(model, meshes["tp"], tensor_parallel(model), src_data_rank=None)
        weights = shard(model, meshes["outer dp"]).state_dict()
        dcp.save(weights, checkpoint_id=f"{self.dir}/tp")


def reference(hf, tok, dtype):
    model = transformers.AutoModelForCausalLM.from_pretrained(hf, dtype=dtype).eval()
    ids = tok(PROMPT, return_tensors="pt").input_ids
    return {"ids": ids, **answer(model, ids)}


def answer(model, ids):
    with torch.no_grad():
        greedy = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12,
                                do_sample=False, eos_token_id=None, pad_token_id=0)
        return {"logits": model(ids).logits, "greedy": greedy}


def shard(model, mesh):
    layers = model.transformer.h if hasattr(model, "transformer") else model.model.layers
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def tensor_parallel(model):
    plan = {}
    for i in range(len(model.model.layers)):
        for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                     "mlp.gate_proj", "mlp.up_proj"):
            plan[f"model.layers.{i}.{name}"] = ColwiseParallel()
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            plan[f"model.layers.{i}.{name}"] = RowwiseParallel()
    return plan


def wrapped(weights):
    return {"_orig_mod." + k.replace("model.layers.", "trunk.block-")
            .replace(".mlp.", "._checkpoint_wrapped_module.mlp."): v for k, v in weights.items()}


def rank_main(rank, made, rendezvous):
    torch.set_num_threads(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # silences gloo; exceptions are reported in another way
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank,
                            world_size=WORLD, timeout=datetime.timedelta(seconds=120))
    flat = init_device_mesh("cpu", (WORLD,), mesh_dim_names=("dp",))
    square = init_device_mesh("cpu", (2, WORLD // 2), mesh_dim_names=("dp", "tp"))
    for model in made:
        model.checkpoint({"dp": flat, "outer dp": square["dp"], "tp": square["tp"]})
    dist.destroy_process_group()


def main():
    seed, outdir = int(sys.argv[1]), os.path.abspath(sys.argv[2])
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    made = [Model(seed, name, dtype, outdir) for name in sys.argv[3:] or NAMES for dtype in DTYPES]
    for model in made:
        model.save()
    with tempfile.TemporaryDirectory() as d:
        # By fork, because importing torch four more times would take longer than all the saves.
        mp.start_processes(rank_main, (made, f"{d}/rendezvous"), WORLD, start_method="fork")
    for model in made:
        print(f"seed {seed} {os.path.basename(model.dir)}:",
              f"{model.model.num_parameters()} parameters")


if __name__ == "__main__":
    main()
