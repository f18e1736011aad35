"""Runs of TRL's trainer with our rewards, on a tiny Llama and recorded responses. Needs TRL.

    python tests/helpers/trl_toy.py DIRECTORY

does in this process, or in one of several, what `DIRECTORY/task.json` says, and leaves the weights in
`DIRECTORY/weights.safetensors`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from letters_toy import LetterScorer
from ppo_toy import LengthScorer
from rl_toy import model, prompts, tokenizer
from safetensors.torch import save_file
from trl import GRPOConfig

from finegrained_rlhf.bridges.trl import FineGrainedGRPOTrainer
from finegrained_rlhf.rewards import RewardConfig
from finegrained_rlhf.training.ppo import GroupAdvantages
from finegrained_rlhf.training.ppo.metrics import KeptSamples

LONGEST, SAMPLES, LR, EPS = 6, 4, 1e-3, 1e-5
ALGORITHMS = {
    "gdpo_by_segment": GroupAdvantages("group_mean", "std", credit="process", by_component=True, whiten=True),
    "returns": GroupAdvantages(credit="returns"),
}


def reward(**given: Any) -> RewardConfig:
    """Two components: one by letter, one of the whole response."""
    scorers = {"words": LetterScorer(), "length": LengthScorer()}
    return RewardConfig(scorers, {"words": 1.0, "length": 0.5}, **given)


class Recorded:
    """Responses that were drawn before, as TRL's `rollout_func`; every process gets its own part.

    Args:
        steps: of each step the prompts of its rows and their responses, `[[prompt, ids], …]`.
    """

    def __init__(self, steps: list[list[list[Any]]]) -> None:
        self.steps, self.number = steps, 0

    def __call__(self, asked: list[str], trainer: Any) -> dict[str, Any]:
        """Of the next step."""
        rows = self.steps[self.number]
        self.number += 1
        start = trainer.accelerator.process_index * len(asked)
        own = rows[start : start + len(asked)]
        assert [prompt for prompt, _ in own] == asked
        encoded = [tokenizer("llama")(prompt)["input_ids"] for prompt in asked]
        return {"prompt_ids": encoded, "completion_ids": [ids for _, ids in own], "logprobs": None}


def trainer(directory: Path, steps: list[list[list[Any]]] | None, **given: Any) -> FineGrainedGRPOTrainer:
    """A trainer of a tiny Llama.

    Args:
        directory: of the run.
        steps: recorded responses; None: TRL draws.
        given: `algorithm`, `reward`, `peft`, `every`; the rest are fields of `GRPOConfig`.
    """
    algorithm = ALGORITHMS[given.pop("algorithm", "gdpo_by_segment")]
    paid, adapters = given.pop("reward", None) or reward(), given.pop("peft", None)
    policy = directory.parent / f"{directory.name}_model"
    if not policy.exists():  # `launched` makes it for several processes
        model("llama").save_pretrained(policy)
    every = given.pop("every", 1)
    asked = [p.text for p in prompts("llama", 5)]
    if steps is not None:
        asked = [prompt for rows in steps for prompt, _ in rows[:: given.get("num_generations", SAMPLES)]]
    settings: dict[str, Any] = {
        "output_dir": str(directory),
        "per_device_train_batch_size": 8,
        "num_generations": SAMPLES,
        "max_completion_length": LONGEST,
        "max_steps": 3,
        "learning_rate": LR,
        "adam_epsilon": EPS,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 1e9,
        "optim": "adamw_torch",
        "loss_type": "dapo",
        "beta": 0.05,
        "use_bias_correction_kl": False,
        "temperature": 1.0,
        "use_cpu": True,
        "bf16": False,
        "model_init_kwargs": {"dtype": "float32"},
        "shuffle_dataset": False,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
        **given,
    }
    more: dict[str, Any] = {} if steps is None else {"rollout_func": Recorded(steps)}
    if adapters is not None:
        from peft import LoraConfig

        more["peft_config"] = LoraConfig(**adapters)
    return FineGrainedGRPOTrainer(
        str(policy),
        paid,
        GRPOConfig(**settings),
        algorithm=algorithm,
        samples=replace(KeptSamples(), every=every),
        train_dataset=Dataset.from_dict({"prompt": asked}),
        processing_class=tokenizer("llama"),
        **more,
    )


def weights(policy: Any) -> dict[str, torch.Tensor]:
    """A copy of a model's parameters by name."""
    return {name: p.detach().clone().contiguous() for name, p in policy.named_parameters()}


def run(directory: Path) -> None:
    """What `task.json` says."""
    task: Mapping[str, Any] = json.loads((directory / "task.json").read_text(encoding="utf-8"))
    made = trainer(directory / "run", task["steps"], **task["given"])
    made.train(resume_from_checkpoint=task.get("resume"))
    state = made.accelerator.get_state_dict(made.deepspeed or made.model)  # whole, where it is sharded
    if made.accelerator.is_main_process:
        save_file(
            {k: v.detach().cpu().clone().contiguous() for k, v in state.items()}, directory / "weights.safetensors"
        )
        (directory / "type").write_text(made.accelerator.distributed_type.value)
    made.accelerator.wait_for_everyone()
    made.accelerator.end_training()


if __name__ == "__main__":
    run(Path(sys.argv[1]))
