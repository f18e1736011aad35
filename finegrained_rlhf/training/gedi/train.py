"""How the training of a class-conditional language model is put together: what the methods of `TrainGeDi` do."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.feedback.labelled_texts import LabelledText, labels_of, read_labelled_texts
from finegrained_rlhf.models.dropout import set_dropout
from finegrained_rlhf.models.families.causal import check_positions
from finegrained_rlhf.models.loading import check_vocabulary
from finegrained_rlhf.models.policy import CausalPolicy, Policy
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.loop.types import LoopResult
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.plain_text import plain_token_ids
from finegrained_rlhf.training.gedi.job import TrainGeDi
from finegrained_rlhf.training.gedi.trainer import ClassExample, GeDiSettings, GeDiTrainer

logger = logging.getLogger(__name__)


def train_gedi(job: TrainGeDi, built: GeDiTrainer, processes: Processes, run: RunDirectory) -> LoopResult:
    """Run the loop; the main process says where the best model is."""
    epoch = max(1, math.ceil(len(built.data) / job.batch_size))
    loop = job.loop_settings(job.steps(len(built.data)), epoch=epoch, validates=bool(built.validation))
    result = job.fit(built, loop, processes, run)
    if processes.is_main and not result.already_done:
        logger.info(job.outcome(result, run, "minus the loss"))
    return result


def assemble_gedi(job: TrainGeDi, processes: Processes, run: RunDirectory) -> GeDiTrainer:
    """Load the model, read the labelled texts and give each class its code."""
    policy = job.policy.load(processes.loading_device)
    if not isinstance(policy, CausalPolicy):
        raise ConfigError("policy: expected a decoder-only model, got an encoder-decoder")
    if job.dropout is not None:
        set_dropout(policy.model, job.dropout)
    train = _read(job.data)
    validation = [] if job.validation_data is None else _read(job.validation_data)
    labels = labels_of([*train, *validation], None if job.codes is None else list(job.codes))
    codes = _codes(job, policy, labels)
    longest = max(len(code) for code in codes.values()) + job.max_tokens
    examples, held_out = (_examples(job, policy, part, labels) for part in (train, validation))
    check_vocabulary(policy, [*codes.values(), *(example.ids for example in (*examples, *held_out))])
    check_positions(policy.model.config, min(longest, longest - job.max_tokens + max(len(e.ids) for e in examples)))
    return GeDiTrainer(
        policy,
        codes,
        examples,
        held_out,
        GeDiSettings(job.generative, job.batch_size, job.micro_batch_size, job.validation_batch_size),
        job.optimizer,
        job.steps(len(examples)),
        processes,
        seed=job.seed,
    )


def _read(path: str) -> list[LabelledText]:
    texts = read_labelled_texts(path)
    for number, text in enumerate(texts):
        if text.label is None:
            raise DataError("expected a label, got a score alone", file=path, record=number, field="label")
    return texts


def _codes(job: TrainGeDi, policy: Policy, labels: Sequence[str]) -> dict[str, tuple[int, ...]]:
    texts = list(labels) if job.codes is None else [job.codes[label] for label in labels]
    rows = [tuple(row) for row in plain_token_ids(policy.tokenizer, texts)]
    unknown = policy.tokenizer.unk_token_id
    for label, row in zip(labels, rows, strict=True):
        if not row or unknown in row:
            raise ConfigError(
                f"codes: the tokenizer does not know the code of {label!r}; name another in codes.{label}"
            )
    if len(set(rows)) != len(rows):
        raise ConfigError("codes: two classes have the same code")
    return dict(zip(labels, rows, strict=True))


def _examples(
    job: TrainGeDi, policy: Policy, texts: Sequence[LabelledText], labels: Sequence[str]
) -> list[ClassExample]:
    rows = plain_token_ids(policy.tokenizer, [text.text for text in texts])
    end, places = policy.eos_ids[0], {label: place for place, label in enumerate(labels)}
    cut = sum(len(row) >= job.max_tokens for row in rows)
    if cut:
        logger.warning("%d of %d texts are longer than %d tokens and lose their end", cut, len(rows), job.max_tokens)
    return [
        ClassExample((*row[: job.max_tokens - 1], end), places[str(text.label)])
        for row, text in zip(rows, texts, strict=True)
    ]
