"""Which classes a configuration asks for: DIALKI's (Multi-Sentence's and BERTQA-Span's too), or those of a package.

A package that joins brings a `System` under `[knowledge_systems]` of its `parts.toml`, by the name of a field that only
its configuration has. Jobs ask here which classes a configuration means; beside them only figures of what DIALKI alone
has (its gates, in `evaluation`) ask which system they have before them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.extensions import load_part, parts
from finegrained_rlhf.dialki.data import DialogueReading
from finegrained_rlhf.dialki.finder import EnsembleFinder, Finder, KnowledgeFinder
from finegrained_rlhf.dialki.inputs.history_labels import keep_history_labels
from finegrained_rlhf.dialki.inputs.report import InputReport
from finegrained_rlhf.dialki.model.config import DialkiConfig
from finegrained_rlhf.dialki.model.model import (
    DialkiModel,
    KnowledgeModel,
    load_model,
    new_model,
    raw_record,
    read_record,
)
from finegrained_rlhf.dialki.training.job import TrainDialki
from finegrained_rlhf.dialki.training.trainer import DialkiTrainer, KnowledgeTrainer
from finegrained_rlhf.models.loading import model_directory
from finegrained_rlhf.runtime.processes import Processes

logger = logging.getLogger(__name__)


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


_DIALKI = System(DialkiConfig, DialkiModel, KnowledgeFinder, DialkiTrainer)
_KIND = "knowledge_systems"


def system_of(config: DialkiConfig) -> System:
    """The system that a record or a configuration describes."""
    if type(config) is DialkiConfig:
        return _DIALKI
    return next(system for name in parts(_KIND) if isinstance(config, (system := load_part(_KIND, name)).config))


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
        ConfigError: the models of the ensemble do not read alike, or one is another system.
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
    record = raw_record(directory)
    system = next((load_part(_KIND, name) for name in parts(_KIND) if record.get(name) is not None), _DIALKI)
    return system, load_model(directory, read_record(directory, system.config), system.model)


def assemble_dialki(job: TrainDialki, processes: Processes) -> KnowledgeTrainer:
    """Load model and data.

    Raises:
        DataError: broken data, or nothing is left to train on.
        ModelError: `model` is no encoder.
    """
    system = system_of(job.dialki)
    model = new_model(job.model, job.dialki, system.model)
    encoder = system.finder.new_encoder(model)
    source = job.source()
    reading = source.read()
    examples = [keep_history_labels(item, job.history_labels, job.seed) for item in reading.examples]
    train, cut = encoder.encode(examples, training=True)
    report = {"train": _report("training", reading, cut)}
    if not train:
        raise DataError(f"no dialogue with gold is left to train on ({cut})", file=source.path)
    validation: Sequence[Any] = []
    if job.validation_data is not None:
        reading = job.source(validation=True).read()
        labelled = [item for item in reading.examples if item.gold][: job.validation_examples]
        validation, cut = encoder.encode(labelled)
        report["validation"] = _report("validation", reading, cut)
    return system.trainer(job, model, train, validation, processes, report)


def _report(what: str, reading: DialogueReading, cut: InputReport) -> dict[str, Any]:
    """Say what was read and what did not fit; the same for JSON."""
    skipped = sum(reading.skipped.values())
    logger.info("%s data: %s%s", what, cut, f", {skipped} turns skipped by the reader" if skipped else "")
    return {"read": reading.report(), "inputs": cut.to_json()}
