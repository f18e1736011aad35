"""A self-critical trainer over tiny models with a reward that anyone can check by eye."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl_toy import policy, prompts

from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.rollout import RolloutEngine, make_engine
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.optimizer import AnyOptimizerConfig, OptimizerConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.self_critical.config import SelfCriticalConfig
from finegrained_rlhf.training.self_critical.rows import Imitation
from finegrained_rlhf.training.self_critical.trainer import SelfCriticalTrainer


class WordReward:
    """1 for a response with the word, else 0; keeps what it was asked."""

    def __init__(self, word: str = "red") -> None:
        self.word = word
        self.calls: list[tuple[list[str], list[str], list[str]]] = []

    def score(self, step_prompts: Sequence[Prompt], prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        self.calls.append(([p.id for p in step_prompts], [p.id for p in prompts], list(texts)))
        return [float(self.word in text.split()) for text in texts]


class WordValidation:
    """The share of validation responses with the word."""

    def __init__(self, validation: Sequence[Prompt], word: str = "red") -> None:
        self.prompts, self.word = validation, word

    def measure(self, texts: Sequence[str], processes: Processes) -> dict[str, float]:
        assert len(texts) == len(self.prompts)
        return {"score": sum(self.word in text.split() for text in texts) / len(texts)}


def examples(kind: str = "t5", count: int = 5) -> list[Imitation]:
    """Every third example has no reward, every fourth no reference."""
    end = (1,)
    answers = [(7, 9, *end), (8, *end), (12, 6, 10, *end), (9, 9, *end), (11, 7, *end)]
    return [
        Imitation(prompt, None if i % 4 == 3 else answers[i], rewarded=i % 3 != 2)
        for i, prompt in enumerate(prompts(kind, count))
    ]


def make_trainer(
    path: Path,
    kind: str = "t5",
    *,
    owner: Policy | None = None,
    data: Sequence[Imitation] | None = None,
    reward: Any = None,
    processes: Processes | None = None,
    optimizer: AnyOptimizerConfig | None = None,
    validation: int = 0,
    seed: int = 0,
    samples_every: int | None = None,
    engine: RolloutEngine | None = None,
    **config: Any,
) -> SelfCriticalTrainer:
    """A trainer whose every part is small; `config` are fields of SelfCriticalConfig."""
    owner = policy(kind) if owner is None else owner
    settings = {"alpha": 0.7, "batch_size": 4, "samples": 4, "max_new_tokens": 6, "top_k": 0, "micro_batch_prompts": 2}
    return SelfCriticalTrainer(
        owner,
        examples(kind) if data is None else data,
        WordReward() if reward is None else reward,
        WordValidation(prompts(kind, validation)),
        SelfCriticalConfig(**{**settings, **config}),
        optimizer or OptimizerConfig(lr=1e-3, schedule="constant"),
        100,
        engine or make_engine(owner, config.get("engine", "auto")),
        processes or Processes(),
        RunDirectory(path).create(),
        seed=seed,
        samples_every=samples_every,
    )
