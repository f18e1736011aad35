"""Training a class-conditional language model as a configuration: what `scripts/train_gedi.py` builds and runs."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.feedback.labelled_texts import LabelledText, labels_of, read_labelled_texts
from finegrained_rlhf.models.config import PolicyConfig
from finegrained_rlhf.models.dropout import set_dropout
from finegrained_rlhf.models.families.causal import check_positions
from finegrained_rlhf.models.loading import check_vocabulary
from finegrained_rlhf.models.policy import CausalPolicy, Policy
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.loop.run import LoopResult
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.runtime.training_run import TrainingRun
from finegrained_rlhf.text.plain_text import plain_token_ids
from finegrained_rlhf.training.gedi.trainer import ClassExample, GeDiSettings, GeDiTrainer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TrainGeDi(TrainingRun[GeDiTrainer]):
    """Train a class-conditional language model on labelled texts, for `rollout.GeDi`.

    Fields of every training run: see `TrainingRun`; without `total_steps`, `epochs` counts.

    Attributes:
        data: labelled texts (`feedback.labelled_texts`); their scores are not read.
        policy: decoder-only model to start from, with the vocabulary of the policy that it shall steer.
        optimizer: rates and schedule.
        codes: by class the text that stands before its texts; None takes the classes' own names, sorted.
        validation_data: texts to select by; None trains without, and the last model is exported.
        generative: λ, the share of the generative loss.
        dropout: rate everywhere in the model; None keeps the model's own.
        epochs: passes over the data; used where `total_steps` is None.
        batch_size: texts an optimizer step, over all processes.
        micro_batch_size: texts in one forward and backward pass of a process, each once a class.
        validation_batch_size: the same in a validation.
        max_tokens: longest text, end of sequence included; longer ones lose their end.
    """

    data: str
    policy: PolicyConfig
    optimizer: OptimizerConfig
    codes: Mapping[str, str] | None = None
    validation_data: str | None = None
    generative: float = 0.8
    dropout: float | None = None
    epochs: float = 1
    batch_size: int = 16
    micro_batch_size: int = 4
    validation_batch_size: int = 16
    max_tokens: int = 192

    def __post_init__(self) -> None:
        for name in ("batch_size", "micro_batch_size", "validation_batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if not 0.0 <= self.generative <= 1.0:
            raise ConfigError(f"generative: expected a share from 0 to 1, got {self.generative}")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout: expected null or 0 <= dropout < 1, got {self.dropout}")
        if self.epochs <= 0:
            raise ConfigError(f"epochs: expected more than 0, got {self.epochs}")
        if self.max_tokens < 2:
            raise ConfigError(f"max_tokens: expected at least 2, got {self.max_tokens}")
        self.policy.check_frozen(self.processes.precision, reference=False)
        super().__post_init__()

    def steps(self, examples: int) -> int:
        """Training steps on so many texts."""
        if self.total_steps is not None:
            return self.total_steps
        return max(1, math.ceil(self.epochs * examples / self.batch_size))

    def train(self, built: GeDiTrainer, processes: Processes, run: RunDirectory) -> LoopResult:
        """Run the loop; the best model by its loss on the validation texts ends up in `output_dir/policy`."""
        epoch = max(1, math.ceil(len(built.data) / self.batch_size))
        loop = self.loop_settings(self.steps(len(built.data)), epoch=epoch, validates=bool(built.validation))
        result = self.fit(built, loop, processes, run)
        if processes.is_main and not result.already_done:
            logger.info(self.outcome(result, run, "minus the loss"))
        return result

    def assemble(self, processes: Processes, run: RunDirectory) -> GeDiTrainer:
        """Read texts and model.

        Raises:
            DataError: a file is missing or damaged, or a text has no label.
            ConfigError: the policy is an encoder-decoder, or codes that do not belong to the data or the tokenizer.
            ModelError: no readable model, or it has no position for the end of the longest text, or no embedding for
                a token.
        """
        policy = self.policy.load(processes.loading_device)
        if not isinstance(policy, CausalPolicy):
            raise ConfigError("policy: expected a decoder-only model, got an encoder-decoder")
        if self.dropout is not None:
            set_dropout(policy.model, self.dropout)
        train = self._read(self.data)
        validation = [] if self.validation_data is None else self._read(self.validation_data)
        labels = labels_of([*train, *validation], None if self.codes is None else list(self.codes))
        codes = self._codes(policy, labels)
        longest = max(len(code) for code in codes.values()) + self.max_tokens
        examples, held_out = (self._examples(policy, part, labels) for part in (train, validation))
        check_vocabulary(policy, [*codes.values(), *(example.ids for example in (*examples, *held_out))])
        check_positions(
            policy.model.config, min(longest, longest - self.max_tokens + max(len(e.ids) for e in examples))
        )
        return GeDiTrainer(
            policy,
            codes,
            examples,
            held_out,
            GeDiSettings(self.generative, self.batch_size, self.micro_batch_size, self.validation_batch_size),
            self.optimizer,
            self.steps(len(examples)),
            processes,
            seed=self.seed,
        )

    @staticmethod
    def _read(path: str) -> list[LabelledText]:
        texts = read_labelled_texts(path)
        for number, text in enumerate(texts):
            if text.label is None:
                raise DataError("expected a label, got a score alone", file=path, record=number, field="label")
        return texts

    def _codes(self, policy: Policy, labels: Sequence[str]) -> dict[str, tuple[int, ...]]:
        texts = list(labels) if self.codes is None else [self.codes[label] for label in labels]
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

    def _examples(self, policy: Policy, texts: Sequence[LabelledText], labels: Sequence[str]) -> list[ClassExample]:
        rows = plain_token_ids(policy.tokenizer, [text.text for text in texts])
        end, places = policy.eos_ids[0], {label: place for place, label in enumerate(labels)}
        cut = sum(len(row) >= self.max_tokens for row in rows)
        if cut:
            logger.warning(
                "%d of %d texts are longer than %d tokens and lose their end", cut, len(rows), self.max_tokens
            )
        return [
            ClassExample((*row[: self.max_tokens - 1], end), places[str(text.label)])
            for row, text in zip(rows, texts, strict=True)
        ]
