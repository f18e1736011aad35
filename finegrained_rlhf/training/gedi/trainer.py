"""Training a class-conditional language model (GeDi; Krause et al., 2021): one step, validation, checkpoints.

A text x is read behind the code of each class c. With ℓ_c the mean −log p of its tokens and end of sequence, the loss
is λ ℓ_y + (1 − λ) · cross-entropy of y under the logits −s ℓ_c, where y is the text's own class and s a trained scale,
as in the authors' released script, which trains a scale and no bias.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from finegrained_rlhf.core.files import Write, write_all
from finegrained_rlhf.core.records import Prompt, on_device, pad_rows
from finegrained_rlhf.metrics.functions import perplexity_of
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.models.weights.saving import policy_to_save
from finegrained_rlhf.rollout.mixers.gedi import ClassCodes
from finegrained_rlhf.runtime.loop.trainer import check_finite
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.micro_batches import Sums
from finegrained_rlhf.training.order import items_of_step
from finegrained_rlhf.training.policy_state import PolicyTrainer


@dataclass(frozen=True)
class ClassExample:
    """A text of a class.

    Attributes:
        ids: its token ids, the end of sequence last.
        label: place of its class among the codes.
    """

    ids: tuple[int, ...]
    label: int


@dataclass(frozen=True)
class GeDiSettings:
    """The numbers of the training.

    Attributes:
        generative: λ, the share of the generative loss; the rest is the discriminative one's.
        batch_size: texts an optimizer step, over all processes.
        micro_batch_size: texts in one forward and backward pass, each as often as there are classes.
        validation_batch_size: the same in a validation.
    """

    generative: float
    batch_size: int
    micro_batch_size: int
    validation_batch_size: int


class GeDiTrainer(PolicyTrainer):
    """Trains a decoder-only policy behind class codes. Satisfies the training loop's `Trainable`.

    Args:
        policy: trained.
        codes: token ids of each class.
        data: at least one text.
        validation: may be empty.
        settings: λ and batch sizes.
        optimizer: rates and schedule, of the scale too.
        total_steps: that the schedule spans.
        processes: of the run.
        seed: of the run.

    Attributes:
        scale: s, [] fp32.
    """

    def __init__(
        self,
        policy: Policy,
        codes: Mapping[str, tuple[int, ...]],
        data: Sequence[ClassExample],
        validation: Sequence[ClassExample],
        settings: GeDiSettings,
        optimizer: OptimizerConfig,
        total_steps: int,
        processes: Processes,
        *,
        seed: int,
    ) -> None:
        self.policy, self.codes, self.data, self.validation = policy.eval(), dict(codes), data, validation
        self.settings, self.processes, self.seed = settings, processes, seed
        self._sums = Sums(self._of, 4)
        self.scale = nn.Parameter(torch.ones((), device=policy.device))
        named = [*policy.model.named_parameters(), ("class_scale", self.scale)]
        self.optimizer = optimizer.build(named, total_steps, processes)

    def train_step(self, step: int) -> dict[str, float]:
        """One optimizer step. Returns the losses before it, the accuracy of the more likely class, norm and rate."""
        size = self.settings.batch_size
        batch = items_of_step(self.data, step, size, self.seed)
        share = [batch[i] for i in self.processes.share(size)]
        self.policy.train()
        sums = self._sums.backward(share, self.settings.micro_batch_size, lambda losses: self._loss(losses) / size)
        self.policy.eval()
        norm = self.optimizer_step(step)
        metrics = {
            **self._means(sums),
            "class_scale": float(self.scale.detach()),
            "gradient_norm": norm,
            "lr": self.optimizer.lr(step),
        }
        check_finite(step, metrics, ("loss", "gradient_norm"))
        return metrics

    def validate(self, step: int) -> dict[str, float]:
        """The same losses and accuracy on the held-out texts; `score` is less the loss. Nothing without any."""
        if not self.validation:
            return {}
        share = [self.validation[i] for i in self.processes.share(len(self.validation))]
        metrics = self._means(self._sums.measure(share, self.settings.validation_batch_size, self.policy.device))
        return {"score": -metrics["loss"], **metrics}

    def _of(self, examples: Sequence[ClassExample]) -> Tensor:
        """fp32 [4]: summed ℓ of the own class, summed cross-entropy of the class, texts of the right class, texts."""
        classes, device = len(self.codes), self.policy.device
        rows = [one.ids for one in examples for _ in range(classes)]
        ids, mask = (on_device(part, device) for part in pad_rows(rows, self.policy.pad_id))
        index = torch.arange(classes, device=device).repeat(len(examples))
        labels = torch.tensor([one.label for one in examples], device=device)
        with self.processes.autocast():
            memory = self.policy.encode([Prompt(name, "", code) for name, code in self.codes.items()])
            logprobs = self.policy.logprobs(memory, index, ids, mask).logprobs
        means = (-logprobs.sum(dim=1) / mask.sum(dim=1)).view(len(examples), classes)
        logits = -self.scale * means
        own = means.gather(1, labels[:, None]).sum()
        right = (logits.argmax(dim=1) == labels).sum().float()
        return torch.stack(
            [own, F.cross_entropy(logits, labels, reduction="sum"), right, own.new_tensor(float(len(examples)))]
        )

    def _loss(self, sums: Tensor) -> Tensor:
        share = self.settings.generative
        return share * sums[0] + (1.0 - share) * sums[1]

    def _means(self, sums: Tensor) -> dict[str, float]:
        total = self.processes.sum_(sums)
        count = float(total[3])
        return {
            "loss": float(self._loss(total)) / count,
            "loss/generative": float(total[0]) / count,
            "loss/discriminative": float(total[1]) / count,
            "perplexity": perplexity_of(float(total[0]) / count),
            "accuracy": float(total[2]) / count,
        }

    def model_to_save(self) -> Write:
        """The policy in the Hugging Face layout, the codes and the scale beside it."""
        policy = policy_to_save(self.policy, self.processes.is_main)
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
