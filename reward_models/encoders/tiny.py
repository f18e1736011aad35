"""Untrained tiny reward models of every kind, for smoke runs and tests: the wiring is real, the judgement random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from finegrained_rlhf.core.files import atomic_directory
from finegrained_rlhf.core.seeding import seed_everything
from reward_models.encoders.models import Kind, RewardModelRecord, new_reward_model


@dataclass(frozen=True)
class MakeTinyRewardModels:
    """Put random heads on an encoder, one model a kind.

    Attributes:
        encoder: directory of a (tiny) Longformer.
        output_dir: a directory a kind is written here.
        kinds: which ones.
        seed: of the heads.
    """

    encoder: str
    output_dir: str
    kinds: Sequence[Kind] = ("relevance", "factuality", "completeness", "preference")
    seed: int = 0

    def run(self) -> None:
        """Write the models; the scalar ones get mean 0 and standard deviation 1."""
        for kind in self.kinds:
            seed_everything(self.seed, "tiny reward model", kind)
            segments = kind in ("relevance", "factuality")
            mean, std = (None, None) if segments else (0.0, 1.0)
            model = new_reward_model(self.encoder, RewardModelRecord(kind, mean=mean, std=std))
            with atomic_directory(Path(self.output_dir) / kind) as directory:
                model.save(directory)
