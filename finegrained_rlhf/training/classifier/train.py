"""How the training of a classifier is put together and carried out: what the methods of `TrainClassifier` do."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import numpy as np

from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.feedback.labelled_texts import LabelledText, labels_of, read_labelled_texts
from finegrained_rlhf.models.dropout import set_dropout
from finegrained_rlhf.models.encoders.classifier import TextClassifier
from finegrained_rlhf.models.loading import check_vocabulary
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.loop.types import LoopResult
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.classifier.job import TrainClassifier
from finegrained_rlhf.training.classifier.trainer import ClassifierExample, ClassifierTrainer

logger = logging.getLogger(__name__)


def _examples(model: TextClassifier, texts: Sequence[LabelledText], labels: Sequence[str]) -> list[ClassifierExample]:
    rows = model.encoded([text.text for text in texts])
    return [ClassifierExample(tuple(row), text.shares(labels)) for row, text in zip(rows, texts, strict=True)]


def _shuffled(examples: Sequence[ClassifierExample], seed: int) -> list[ClassifierExample]:
    order = np.random.default_rng(stable_hash(seed, "shuffled labels")).permutation(len(examples)).tolist()
    return [ClassifierExample(one.ids, examples[i].shares) for one, i in zip(examples, order, strict=True)]


def train_classifier(
    job: TrainClassifier, built: ClassifierTrainer, processes: Processes, run: RunDirectory
) -> LoopResult:
    """Run the loop, export the best model and write what it reaches on the validation texts."""
    epoch = max(1, math.ceil(len(built.train) / job.batches.batch_size))
    loop = job.loop_settings(job.steps(len(built.train)), epoch=epoch, validates=bool(built.validation))
    result = job.fit(built, loop, processes, run)
    built.model = ClassifierTrainer.copy_of(built.model, run.final(job.export)).to(processes.device)
    dev = built.validate(result.best_step)
    dev.pop("score", None)
    if processes.is_main:
        run.write_results(
            {
                "labels": list(built.model.network.config.id2label.values()),
                "best_step": result.best_step,
                "steps": result.step,
                "train_examples": len(built.train),
                "dev_examples": len(built.validation),
                "dev": dev,
            }
        )
        shown = ", ".join(f"{name} {value:.3f}" for name, value in dev.items())
        print(f"classifier: best at step {result.best_step}, dev {shown or 'not measured'}")
    processes.barrier()
    return result


def assemble_classifier(job: TrainClassifier, processes: Processes, run: RunDirectory) -> ClassifierTrainer:
    """Read the labelled texts and open an encoder with a head for their labels."""
    train = read_labelled_texts(job.data)
    validation = [] if job.validation_data is None else read_labelled_texts(job.validation_data)
    labels = labels_of([*train, *validation], job.classes)
    model = TextClassifier.new(job.model, labels, job.max_length)
    if job.dropout is not None:
        set_dropout(model.network, job.dropout)
    examples, held_out = (_examples(model, part, labels) for part in (train, validation))
    check_vocabulary(model, [example.ids for example in (*examples, *held_out)])
    if job.shuffle_labels:
        examples = _shuffled(examples, job.seed)
    return ClassifierTrainer(
        model,
        examples,
        held_out,
        job.batches,
        job.optimizer,
        job.steps(len(examples)),
        processes,
        seed=job.seed,
        selected_by=job.selected_by,
    )
