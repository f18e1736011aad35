"""Makes `importance.json`: TRL's importance weights and losses for an engine that is not quite the trained policy.

TRL weighs what vLLM drew. Here its own generation draws, and log-probabilities of a moved policy stand for vLLM's.
README.md says how to run it.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from rl_toy import policy
from trl import GRPOConfig, GRPOTrainer
from trl import __version__ as version

CAP = 1.3
MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")


def odd_words(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """A reward."""
    return [float(sum(i % 5 == 0 for i in ids)) for ids in completion_ids]


class Recorder(GRPOTrainer):
    """Takes its own samples for vLLM's, and keeps the weights, the loss and its gradient of the second batch."""

    def _generate(self, prompts: Any) -> Any:
        self.use_vllm = False
        found = list(super()._generate(prompts))
        self.use_vllm = True
        generator = torch.Generator().manual_seed(len(self.seen))
        rows = []
        for prompt, ids in zip(found[0], found[1], strict=True):
            whole = torch.tensor([[*prompt, *ids]])
            with torch.no_grad():
                logits = self.model(input_ids=whole).logits[0, len(prompt) - 1 : -1]
            logprobs = logits.log_softmax(dim=-1)[torch.arange(len(ids)), torch.tensor(ids)]
            rows.append((logprobs + 0.3 * torch.randn(len(ids), generator=generator)).tolist())
        place = next(number for number, part in enumerate(found) if number > 2 and part is None)
        found[place] = rows
        return tuple(found)

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        found = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self.last = found[0]
        return found

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        loss = super()._compute_loss(model, inputs)
        (gradient,) = torch.autograd.grad(loss, self.last, retain_graph=True)
        names = (
            "completion_mask",
            "advantages",
            "old_per_token_logps",
            "sampling_per_token_logps",
            "importance_sampling_ratio",
        )
        parts = {name: inputs[name] for name in names} | {"loss": loss, "gradient": gradient, "logps": self.last}
        self.seen.append({name: tensor.detach().double().tolist() for name, tensor in parts.items()})
        return loss


def run(mode: str, model: str, directory: str) -> dict[str, Any]:
    """The second update of one mode: two prompts with four completions each."""
    config = GRPOConfig(
        output_dir=directory,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=10,
        num_iterations=2,
        max_steps=2,
        learning_rate=3e-2,
        lr_scheduler_type="constant",
        loss_type="bnpo",
        beta=0.0,
        vllm_importance_sampling_mode=mode,
        vllm_importance_sampling_clip_max=CAP,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        seed=1,
        gradient_checkpointing=False,
        bf16=False,
    )
    data = Dataset.from_dict({"prompt": ["red blue", "green red blue"] * 4})
    trainer = Recorder(model, [odd_words], args=config, train_dataset=data)
    trainer.seen = []
    trainer.train()
    return dict(trainer.seen[1])


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        owner = policy("gpt2")
        owner.model.save_pretrained(f"{directory}/model")
        owner.tokenizer.save_pretrained(f"{directory}/model")
        found = {mode: run(mode, f"{directory}/model", directory) for mode in MODES}
    target = Path(__file__).with_name("importance.json")
    target.write_text(json.dumps({"trl": version, "cap": CAP, **found}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
