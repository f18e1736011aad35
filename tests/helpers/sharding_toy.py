"""PPO of tiny models in its own process(es), whose weights may be in shards; run as a script."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from ppo_toy import make_trainer, save_checkpoint
from rl_toy import policy, sharpen, tokenizer
from transformers import GemmaConfig, GemmaForCausalLM

from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.seeding import seed_everything
from finegrained_rlhf.models.config import LoraConfig
from finegrained_rlhf.models.lora import add_lora
from finegrained_rlhf.models.policy import CausalPolicy
from finegrained_rlhf.models.weights.frozen import store_frozen
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.runtime.sharding.shards import is_shard
from finegrained_rlhf.training.ppo.config import EntropyConfig, KLConfig
from finegrained_rlhf.training.ppo.trainer import PPOTrainer

CASES: dict[str, dict[str, Any]] = {
    "t5": {"kind": "t5", "samples": 2},
    "t5_of_many_micro_batches": {"kind": "t5", "prompts_per_step": 5, "micro_batch_prompts": 1, "checkpointing": True},
    "t5_of_mini_batches": {
        "kind": "t5",
        "prompts_per_step": 3,
        "micro_batch_prompts": 1,
        "mini_batches": 2,
        "checkpointing": True,
        "ratio": "sequence",
        "entropy": EntropyConfig(0.02, target=9.0),
    },
    "llama_of_what_top_k_left": {
        "kind": "llama",
        "prompts_per_step": 3,
        "samples": 2,
        "mini_batches": 2,
        "loss": "cispo",
        "entropy": EntropyConfig(0.02, target=2.0),
        "score_sampling": True,
        "drawn": {"top_k": 5, "ahead": 1, "importance_cap": 5.0},
    },
    "t5_adapters": {"kind": "t5", "lora": True, "frozen": True, "prompts_per_step": 2},
    # With seed 0 the gradient of attention over a piece of two tokens cancels, so that rounding ends at up to 2e-5 in
    # the parameters of a resumed run, which in fp64 agree to 5e-15; with this one it ends below 1e-6.
    "t5_in_pieces": {"kind": "t5", "in_pieces": True, "prompts_per_step": 3, "micro_batch_prompts": 1, "seed": 2},
    "t5_shared_trunk": {"kind": "t5", "shared": True, "prompts_per_step": 1},
    "llama": {"kind": "llama", "samples": 2},
    "llama_adapters_of_one_prompt": {"kind": "llama", "lora": True, "prompts_per_step": 1, "checkpointing": True},
    "llama_of_the_whole_vocabulary": {
        "kind": "llama",
        "prompts_per_step": 3,
        "samples": 2,
        "micro_batch_prompts": 1,
        "mini_batches": 2,
        "kl": KLConfig(beta=0.05, place="loss", estimator="exact"),
    },
    "gemma": {"kind": "llama", "gemma": True, "prompts_per_step": 2, "samples": 2},
    "gpt2": {"kind": "gpt2", "prompts_per_step": 2, "samples": 2},
    "t5gemma": {"kind": "t5gemma", "prompts_per_step": 2, "samples": 2},
    "bart": {"kind": "bart", "prompts_per_step": 2, "samples": 2, "checkpointing": True},
}
"""With three processes some have fewer micro-batches than others, or none."""
STEPS = 2


def tied_gemma() -> CausalPolicy:
    """A decoder-only policy whose head is its embeddings."""
    words = tokenizer("llama")
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "head_dim": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": True}
    torch.manual_seed(0)
    config = GemmaConfig(
        vocab_size=len(words), **sizes, **heads, pad_token_id=words.pad_token_id, eos_token_id=words.eos_token_id
    )
    return CausalPolicy(sharpen(GemmaForCausalLM(config), 0), words).eval()


def trainer_of(case: str, path: Path, processes: Processes) -> PPOTrainer:
    options = dict(CASES[case])
    owner = tied_gemma() if options.pop("gemma", False) else policy(options["kind"])
    if options.pop("lora", False):
        torch.manual_seed(3)
        build = type(owner)
        wrapper = add_lora(owner.model, LoraConfig(rank=2))
        owner = build(owner.model, owner.tokenizer, wrapper).eval()
    if options.pop("frozen", False) and processes.precision == "bf16":
        owner.frozen_in_bf16 = True
        store_frozen(owner)
    if options.pop("checkpointing", False):
        owner.use_gradient_checkpointing()
    return make_trainer(path, owner=owner, processes=processes, validation=3, **options)


def main(options: dict[str, Any]) -> None:
    sharding, output = options["sharding"], Path(options["output"])
    precision = options.get("precision", "fp32")
    group = options.get("shard_group")
    processes = Processes(ProcessConfig(precision, threads=1, timeout_s=60.0, sharding=sharding, shard_group=group))
    told = {}
    for case in options["cases"]:
        trainer = trainer_of(case, output / case / f"run_{processes.rank}", processes)
        first = 1
        if "resume" in options:
            trainer.load_state(Path(options["resume"]) / case)
            first = STEPS + 1
        for step in range(first, first + STEPS):
            seed_everything(0, "train", step, processes.rank)
            metrics = trainer.train_step(step)
        named = trainer.optimizer.named
        told[case] = {
            "metrics": {name: value for name, value in metrics.items() if not name.startswith("time/")},
            "score": trainer.validate(step)["score"],
            "in_shards": {name: p.numel() for name, p in named.items() if is_shard(p)},
            "trained": sum(p.numel() for p in named.values()),
            "updated_here": sum(p.numel() for p in trainer.optimizer.share.parameters.values()),
        }
        directory = output / case
        if processes.is_main:
            save_checkpoint(trainer, directory)
        else:
            trainer.model_to_save()(directory / "policy")
            trainer.state_to_save()(directory)
        processes.barrier()
    write_json(output / f"told_{processes.rank}.json", told)
    processes.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
