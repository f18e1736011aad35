"""Training a class-conditional language model (GeDi; Krause et al., 2021): one step, validation, checkpoints.

A text x is read behind the code of each class c. With ℓ_c the mean −log p of its tokens and end of sequence, the loss
is λ ℓ_y + (1 − λ) · cross-entropy of y under the logits −s ℓ_c, where y is the text's own class and s a trained scale,
as in the authors' released script, which trains a scale and no bias.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import Write, write_all
from finegrained_rlhf.core.records import Prompt, on_device, pad_rows
from finegrained_rlhf.feedback.labelled_texts import LabelledText, labels_of, read_labelled_texts
from finegrained_rlhf.metrics.functions import perplexity_of
from finegrained_rlhf.models.families.causal import check_positions
from finegrained_rlhf.models.loading import check_vocabulary
from finegrained_rlhf.models.policy import CausalPolicy, Policy
from finegrained_rlhf.rollout.mixers.gedi import ClassCodes
from finegrained_rlhf.runtime.optimizer import Optimizer
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.plain_text import plain_token_ids
from finegrained_rlhf.training.gedi.job import TrainGeDi
from finegrained_rlhf.training.supervised.trainer import SupervisedPolicyTrainer, warn_of_cut


@dataclass(frozen=True)
class ClassExample:
    """A text of a class.

    Attributes:
        ids: its token ids, the end of sequence last.
        label: place of its class among the codes.
    """

    ids: tuple[int, ...]
    label: int


class GeDiTrainer(SupervisedPolicyTrainer[ClassExample]):
    """Trains a decoder-only policy behind class codes; see `SupervisedTrainer`.

    Args:
        job: λ, batch sizes, and the optimizer, of the scale too.
        policy: trained.
        codes: token ids of each class.
        data: at least one text.
        validation: may be empty.
        processes: of the run.

    Attributes:
        scale: s, [] fp32.
    """

    job: TrainGeDi
    sums: ClassVar[int] = 4

    def __init__(
        self,
        job: TrainGeDi,
        policy: Policy,
        codes: Mapping[str, tuple[int, ...]],
        data: Sequence[ClassExample],
        validation: Sequence[ClassExample],
        processes: Processes,
    ) -> None:
        self.codes, self.scale = dict(codes), nn.Parameter(torch.ones((), device=processes.device))
        super().__init__(job, policy, data, validation, processes)

    def new_optimizer(self) -> Optimizer:
        """Of the policy and the scale."""
        named = [*self.policy.model.named_parameters(), ("class_scale", self.scale)]
        return self.job.optimizer.build(named, self.job.steps(len(self.data)), self.processes)

    def train_step(self, step: int) -> dict[str, float]:
        """One optimizer step; its metrics, and the scale behind it."""
        return {**super().train_step(step), "class_scale": float(self.scale.detach())}

    def objective(self, examples: Sequence[ClassExample], count: float, step: int) -> tuple[Tensor, Tensor]:
        """The loss, and [4]: summed ℓ of the own class, cross-entropy of the class, texts of the right class, texts."""
        classes, device = len(self.codes), self.policy.device
        rows = [one.ids for one in examples for _ in range(classes)]
        ids, mask = (on_device(part, device) for part in pad_rows(rows, self.policy.pad_id))
        index = torch.arange(classes, device=device).repeat(len(examples))
        labels = torch.tensor([one.label for one in examples], device=device)
        memory = self.policy.encode([Prompt(name, "", code) for name, code in self.codes.items()])
        logprobs = self.policy.logprobs(memory, index, ids, mask).logprobs
        means = (-logprobs.sum(dim=1) / mask.sum(dim=1)).view(len(examples), classes)
        logits = -self.scale * means
        own = means.gather(1, labels[:, None]).sum()
        right = (logits.argmax(dim=1) == labels).sum().float()
        discriminative = F.cross_entropy(logits, labels, reduction="sum")
        sums = torch.stack([own, discriminative, right, own.new_tensor(float(len(examples)))])
        return self._loss(sums) / count, sums

    def _loss(self, sums: Tensor) -> Tensor:
        share = self.job.generative
        return share * sums[0] + (1.0 - share) * sums[1]

    def means(self, sums: Tensor) -> dict[str, float]:
        """Both losses, the perplexity behind the own class, and the accuracy of the more likely class."""
        generative, discriminative, right, count = sums.tolist()
        return {
            "loss": float(self._loss(sums)) / count,
            "loss/generative": generative / count,
            "loss/discriminative": discriminative / count,
            "perplexity": perplexity_of(generative / count),
            "accuracy": right / count,
        }

    def model_to_save(self) -> Write:
        """The policy in the Hugging Face layout, the codes and the scale beside it."""
        policy = super().model_to_save()
        if not self.processes.is_main:
            return policy
        codes = ClassCodes(self.codes, float(self.scale.detach()))
        return write_all((policy, codes.write))

    def load_state(self, checkpoint: Path) -> None:
        """Read what a checkpoint holds.

        Raises:
            CheckpointError: it belongs to another architecture or optimizer, or a file is missing.
            ModelError: it has no codes.
        """
        super().load_state(checkpoint)
        with torch.no_grad():
            self.scale.fill_(ClassCodes.read(checkpoint / "policy").scale)


def assemble_gedi(job: TrainGeDi, processes: Processes) -> GeDiTrainer:
    """Load the model, read the labelled texts and give each class its code.

    Raises:
        DataError: a file is missing or damaged, or a text has no label.
        ConfigError: the policy is an encoder-decoder, or codes that do not belong to the data or the tokenizer.
        ModelError: no readable model, or it has no position for the end of the longest text, or no embedding for
            a token.
    """
    policy = job.policy.load(processes.loading_device)
    if not isinstance(policy, CausalPolicy):
        raise ConfigError("policy: expected a decoder-only model, got an encoder-decoder")
    train = _read(job.data)
    validation = [] if job.validation_data is None else _read(job.validation_data)
    labels = labels_of([*train, *validation], None if job.codes is None else list(job.codes))
    codes = _codes(job, policy, labels)
    longest = max(len(code) for code in codes.values()) + job.max_tokens
    examples, held_out = (_examples(job, policy, part, labels) for part in (train, validation))
    check_vocabulary(policy, [*codes.values(), *(example.ids for example in (*examples, *held_out))])
    check_positions(policy.model.config, min(longest, longest - job.max_tokens + max(len(e.ids) for e in examples)))
    return GeDiTrainer(job, policy, codes, examples, held_out, processes)


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
    warn_of_cut("texts", [len(row) for row in rows], job.max_tokens)
    return [
        ClassExample((*row[: job.max_tokens - 1], end), places[str(text.label)])
        for row, text in zip(rows, texts, strict=True)
    ]
