"""Untrained tiny reward models of every kind, for smoke runs and tests: the wiring is real, the judgement random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import atomic_directory
from finegrained_rlhf.core.markers import ModelName, OutputDirectory, Seed
from finegrained_rlhf.core.seeding import seed_everything
from reward_models.kinds import KINDS, kind_named
from reward_models.record import RewardModelRecord


@dataclass(frozen=True)
class MakeTinyRewardModels(Settings):
    """Put random heads on an encoder or a decoder-only model, one model a kind.

    Attributes:
        encoder: directory of a (tiny) Longformer, or of a decoder-only model.
        output_dir: a directory a kind is written here.
        kinds: which ones.
        seed: of the heads.
    """

    encoder: ModelName
    output_dir: OutputDirectory
    kinds: Sequence[str] = tuple(KINDS)
    seed: Seed = 0

    def __post_init__(self) -> None:
        for name in self.kinds:
            kind_named(name)

    def run(self) -> None:
        """Write the models; the scalar ones get mean 0 and standard deviation 1."""
        from reward_models.encoders.models import new_reward_model

        for kind in self.kinds:
            seed_everything(self.seed, "tiny reward model", kind)
            mean, std = (0.0, 1.0) if kind_named(kind).form == "sequence" else (None, None)
            model = new_reward_model(self.encoder, RewardModelRecord(kind, mean=mean, std=std))
            with atomic_directory(Path(self.output_dir) / kind) as directory:
                model.save(directory)
