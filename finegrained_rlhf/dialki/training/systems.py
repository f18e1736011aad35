"""Which classes a configuration asks for: DIALKI's (Multi-Sentence's and BERTQA-Span's too), or BERTQA's.

Jobs ask here which classes a configuration means; beside them only figures of what DIALKI alone has (its gates, in
`evaluation`) ask which system they have before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.dialki.baselines.bertqa import BertQaModel, ChosenWindows, QaParts, qa_objective, windows_to_train
from finegrained_rlhf.dialki.baselines.config import BertQaConfig
from finegrained_rlhf.dialki.baselines.finder import BertQaFinder
from finegrained_rlhf.dialki.baselines.windows import WindowedExample
from finegrained_rlhf.dialki.finding.ensemble import EnsembleFinder
from finegrained_rlhf.dialki.finding.finder import Finder, KnowledgeFinder
from finegrained_rlhf.dialki.model.config import DialkiConfig
from finegrained_rlhf.dialki.model.model import DialkiModel, KnowledgeModel, load_model, raw_record, read_record
from finegrained_rlhf.dialki.training.config import DialkiBatchConfig
from finegrained_rlhf.dialki.training.trainer import DialkiTrainer, KnowledgeTrainer
from finegrained_rlhf.models.loading import model_directory
from finegrained_rlhf.runtime.processes import Processes


class BertQaTrainer(KnowledgeTrainer):
    """Trains BERTQA: a dialogue's `batches.passages` are windows."""

    model: BertQaModel

    @staticmethod
    def new_finder(model: BertQaModel, processes: Processes, batches: DialkiBatchConfig) -> BertQaFinder:
        """The finder of a BERTQA."""
        return BertQaFinder(model, processes, batches.eval_batch_size, batches.group_size)

    @staticmethod
    def no_parts() -> QaParts:
        """Parts of nothing."""
        return QaParts.zero()

    def choose(self, item: WindowedExample, step: int) -> ChosenWindows:
        """A window with gold, and others."""
        return windows_to_train(item, self.batches.passages, self.seed, step)

    def loss(self, chosen: Sequence[ChosenWindows], step: int) -> tuple[Tensor, QaParts]:
        """The cross-entropy of both ends of some answers, a scalar [] in nats, and its parts (float64 [5])."""
        return qa_objective(self.model, chosen, self.batches.group_size)


@dataclass(frozen=True)
class System:
    """The classes of a system.

    Attributes:
        config: what it is, beside its weights.
        model: encoder and heads.
        finder: answers dialogues.
        trainer: trains.
    """

    config: type[DialkiConfig]
    model: type[KnowledgeModel] | Any
    finder: type[Finder[Any]]
    trainer: type[KnowledgeTrainer]


def system_of(config: DialkiConfig) -> System:
    """The system that a record or a configuration describes."""
    if isinstance(config, BertQaConfig):
        return System(BertQaConfig, BertQaModel, BertQaFinder, BertQaTrainer)
    return System(DialkiConfig, DialkiModel, KnowledgeFinder, DialkiTrainer)


def load_finder(
    path: str | Path, processes: Processes | None = None, ensemble: Sequence[str | Path] = (), **options: int
) -> Finder[Any]:
    """The finder of a model directory or run directory, whichever system was trained there.

    Args:
        path: directory.
        processes: device and precision.
        ensemble: directories of further DIALKIs whose distributions are averaged with those of `path`.
        options: `batch_size` and `group_size`.

    Raises:
        ModelError: there is no trained model.
        ConfigError: the models of the ensemble do not read alike, or one is a BERTQA.
    """
    system, model = _opened(path)
    if not ensemble:
        return system.finder(model, processes, **options)
    opened = [(path, system, model), *((more, *_opened(more)) for more in ensemble)]
    for place, kind, one in opened:
        if kind.finder is not KnowledgeFinder:
            raise ConfigError(f"ensemble: {place} is a {one.config.system}, expected DIALKI or Multi-Sentence")
    return EnsembleFinder([one for _, _, one in opened], processes, **options)


def _opened(path: str | Path) -> tuple[System, Any]:
    """The system and the trained model of a model directory or run directory."""
    directory = model_directory(path, export="model")
    kind = DialkiConfig if raw_record(directory).get("windows") is None else BertQaConfig
    config = read_record(directory, kind)
    system = system_of(config)
    return system, load_model(directory, config, system.model)
