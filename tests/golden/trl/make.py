"""Makes `case.json`: what TRL's GRPO and RLOO trainers compute of one small batch. README.md says how to run it."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from rl_toy import policy
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from trl import __version__ as version

LONGEST = 14
WEIGHTS = [0.3, 2.0]
VARIANTS: dict[str, tuple[type, type, dict[str, Any]]] = {
    "grpo": (GRPOTrainer, GRPOConfig, {"loss_type": "grpo", "beta": 0.04, "use_bias_correction_kl": False}),
    "dr_grpo": (GRPOTrainer, GRPOConfig, {"loss_type": "dr_grpo", "scale_rewards": "none", "beta": 0.0}),
    "clip_higher": (
        GRPOTrainer,
        GRPOConfig,
        {"loss_type": "bnpo", "epsilon_high": 0.28, "delta": 1.5, "beta": 0.1, "use_bias_correction_kl": False},
    ),
    "gdpo": (
        GRPOTrainer,
        GRPOConfig,
        {"loss_type": "grpo", "multi_objective_aggregation": "normalize_then_sum", "beta": 0.0},
    ),
    "gspo": (
        GRPOTrainer,
        GRPOConfig,
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.1, "epsilon_high": 0.05, "beta": 0.0},
    ),
    "gspo_by_token": (
        GRPOTrainer,
        GRPOConfig,
        {"loss_type": "bnpo", "importance_sampling_level": "sequence", "epsilon": 0.05, "beta": 0.0},
    ),
    "cispo": (GRPOTrainer, GRPOConfig, {"loss_type": "cispo", "epsilon_high": 1.25, "beta": 0.0}),
    "entropy": (GRPOTrainer, GRPOConfig, {"loss_type": "dr_grpo", "entropy_coef": 0.3, "beta": 0.0}),
    "rloo": (RLOOTrainer, RLOOConfig, {"beta": 0.05}),
}


def long_words(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """A reward with ties."""
    return [float(sum(i % 5 == 0 for i in ids)) for ids in completion_ids]


def spread(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """A reward without ties."""
    return [sum(i * (t + 1) for t, i in enumerate(ids)) % 97 / 97 for ids in completion_ids]


def plain(tensors: dict[str, Any]) -> dict[str, Any]:
    """Nested lists of numbers."""
    return {name: tensor.detach().double().tolist() for name, tensor in tensors.items()}


def recorder(base: type) -> type:
    """A trainer that keeps its second batch, whose policy is not the reference any more, and that batch's second loss,
    whose policy is not the sampling one.
    """

    class Recorder(base):  # type: ignore[misc]
        batches = 0

        def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
            found = super()._get_per_token_logps_and_entropies(*args, **kwargs)
            self.calls.append(found[0])
            self.entropies = found[1]
            return found

        def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
            self.rewards = super()._calculate_rewards(*args, **kwargs)
            return self.rewards

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            self.calls: list[Any] = []
            found = super()._generate_and_score_completions(inputs)
            self.batches += 1
            if self.batches == 2:
                parts = {"mask": found["completion_mask"], "advantages": found["advantages"], "rewards": self.rewards}
                parts |= dict(zip(("logps", "reference"), self.calls, strict=False))
                self.sampled = plain(parts)
            return found

        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            loss = super()._compute_loss(model, inputs)
            if self.state.global_step == 3 and "old_per_token_logps" in inputs:
                (gradient,) = torch.autograd.grad(loss, self.calls[-1], retain_graph=True)
                names = ("completion_mask", "advantages", "old_per_token_logps", "ref_per_token_logps")
                parts = {name: inputs[name] for name in names if inputs.get(name) is not None}
                if self.args.entropy_coef:
                    (by_entropy,) = torch.autograd.grad(loss, self.entropies, retain_graph=True)
                    parts |= {"entropies": self.entropies, "gradient_by_entropy": by_entropy}
                self.loss = plain({**parts, "loss": loss, "gradient": gradient, "logps": self.calls[-1]})
            return loss

    return Recorder


def run(name: str, model: str, directory: str) -> dict[str, Any]:
    """One variant: two updates on each of two batches of two prompts with four completions each."""
    trainer_class, config_class, options = VARIANTS[name]
    config = config_class(
        output_dir=directory,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=LONGEST,
        num_iterations=2,
        max_steps=4,
        learning_rate=3e-2,
        lr_scheduler_type="constant",
        reward_weights=WEIGHTS,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        seed=1,
        shuffle_dataset=False,
        gradient_checkpointing=False,
        bf16=False,
        **options,
    )
    data = Dataset.from_dict({"prompt": ["red blue", "green red blue"] * 4})
    trainer = recorder(trainer_class)(model, [long_words, spread], args=config, train_dataset=data)
    trainer.train()
    return {"options": options, "sampled": trainer.sampled, "loss": getattr(trainer, "loss", None)}


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        owner = policy("gpt2")
        owner.model.save_pretrained(f"{directory}/model")
        owner.tokenizer.save_pretrained(f"{directory}/model")
        found = {name: run(name, f"{directory}/model", directory) for name in sys.argv[1:] or VARIANTS}
    target = Path(__file__).with_name("case.json")
    target.write_text(
        json.dumps({"trl": version, "longest": LONGEST, "weights": WEIGHTS, **found}) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
