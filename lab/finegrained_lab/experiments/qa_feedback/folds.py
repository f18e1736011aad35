"""The reward models of a cross-validation on disk (`DIR/fold_K/NAME/KIND`), and what each says of its held-out fold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import harmless
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.process_config import ProcessConfig
from reward_models.kinds import KINDS
from reward_models.trust.job import EvaluateRewardModel

JUDGED = "judged.jsonl"
"""What a model said of its held-out fold, beside its run."""


@dataclass(frozen=True)
class FoldModel:
    """A trained reward model of a cross-validation.

    Attributes:
        fold: number of the fold that it was not trained on.
        name: of the encoder, or of what was done with it.
        kind: of reward model.
        directory: its run.
    """

    fold: int
    name: str
    kind: str
    directory: Path

    @property
    def judged(self) -> Path:
        """What it said of the held-out fold."""
        return self.directory / JUDGED


def fold_models(directory: str | Path) -> Iterator[FoldModel]:
    """The finished runs of a cross-validation, in the order of name, kind and fold."""
    models = []
    for fold in Path(directory).glob("fold_*"):
        if fold.name.removeprefix("fold_").isdigit():
            number = int(fold.name.removeprefix("fold_"))
            runs = (path for name in fold.iterdir() if name.is_dir() for path in name.iterdir() if path.name in KINDS)
            models += [
                FoldModel(number, run.parent.name, run.name, run) for run in runs if RunDirectory(run).results.is_file()
            ]
    yield from sorted(models, key=lambda model: (model.name, list(KINDS).index(model.kind), model.fold))


@dataclass(frozen=True)
class JudgeFolds(Settings):
    """Lets every finished model of a cross-validation judge its held-out fold, those excepted that have done so.

    Attributes:
        directory: holds `fold_K/NAME/KIND`, runs of `finegrained train-reward-model`, and `folds/fold_K/test.json`.
        batch_size: inputs in one forward pass.
        processes: precision and CPU threads.
    """

    directory: str
    batch_size: Annotated[int, harmless] = 32
    processes: ProcessConfig = ProcessConfig()

    def run(self) -> None:
        """Write `evaluation.json` and `judged.jsonl` beside each run."""
        for model in fold_models(self.directory):
            if model.judged.is_file():
                continue
            EvaluateRewardModel(
                path=str(model.directory),
                data=str(Path(self.directory) / "folds" / f"fold_{model.fold}" / "test.json"),
                output=str(model.directory / "evaluation.json"),
                items=str(model.judged),
                batch_size=self.batch_size,
                processes=self.processes,
            ).run()
