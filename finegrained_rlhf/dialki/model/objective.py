"""L = L_next + α L_hist + β L_adv for some dialogues, with its parts (thesis, equation 3.4).

All values are sums over dialogues, so that micro-batches and processes add up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from finegrained_rlhf.dialki.inputs.batches import NO_LABEL, Chosen, Targets, collate, targets
from finegrained_rlhf.dialki.model.config import LossConfig
from finegrained_rlhf.dialki.model.heads import NextScores
from finegrained_rlhf.dialki.model.losses import binary_loss, history_loss, marginal_loss, next_loss
from finegrained_rlhf.dialki.model.model import DialkiModel
from finegrained_rlhf.dialki.model.regularization import RandomState, adversarial_loss
from finegrained_rlhf.dialki.records import GoldEntries

_NEXT_LOSSES: Mapping[GoldEntries, Callable[[NextScores, Targets], Tensor]] = {
    "one": next_loss,
    "all": marginal_loss,
    "each": binary_loss,
}


@dataclass(frozen=True)
class Parts:
    """Sums over dialogues; the parts of several batches or processes add up.

    Attributes:
        values: float64 [9]: total loss, its passage, begin, end, history and adversarial parts (the last two without
            their weights), in nats; dialogues, those whose passage was found, labelled turns.
    """

    values: Tensor

    def __add__(self, other: Parts) -> Parts:
        return replace(self, values=self.values + other.values)

    @staticmethod
    def zero() -> Parts:
        """Parts of nothing."""
        return Parts(torch.zeros(9, dtype=torch.float64))

    def metrics(self) -> dict[str, float]:
        """Means over dialogues; `accuracy` is that of the passage among those that were given."""
        *losses, dialogues, correct, turns = self.values.tolist()
        names = ("loss", "loss/passage", "loss/begin", "loss/end", "loss/history", "loss/adversarial")
        count = max(dialogues, 1)
        means = {name: value / count for name, value in zip(names, losses, strict=True)}
        return {**means, "accuracy": correct / count, "labelled_turns": turns / count}


def objective(
    model: DialkiModel, chosen: Sequence[Chosen], config: LossConfig, seed: int, group_size: int = 64
) -> tuple[Tensor, Parts]:
    """The summed loss (with gradient) of some dialogues, and its parts.

    Args:
        model: trained.
        chosen: dialogues with their passages and gold.
        config: weights.
        seed: of the noise, a 63-bit hash of run and step.
        group_size: most inputs that go through the encoder together.

    Returns:
        Scalar [] in nats, and its parts (float64 [9]).
    """
    batch = collate(chosen, model.pad_id, model.device, group_size)
    labels = targets(chosen, model.device)
    before = RandomState.of(model.device)
    vectors = model.encode(batch)
    scores = model.next_scores(vectors, batch)
    following = _NEXT_LOSSES[config.gold](scores, labels)
    total = following.sum()
    history = adversarial = following.new_zeros(())
    if config.history:
        history = history_loss(model.history_scores(vectors, batch), labels)
        total = total + config.history * history
    if config.adversarial:
        adversarial = adversarial_loss(model, batch, scores, before, config.noise, seed)
        total = total + config.adversarial * adversarial
    values = torch.cat([torch.stack([total, *following, history, adversarial]), _counts(scores, labels)])
    return total, Parts(values.detach().double().cpu())


def _counts(scores: NextScores, labels: Targets) -> Tensor:
    """Dialogues, those whose passage (of several gold ones any) was found, and labelled turns."""
    right = torch.cat([labels.passage[:, None], labels.entries[..., 0]], dim=1)
    correct = (right == scores.passage.argmax(dim=1)[:, None]).any(dim=1)
    turns = labels.history_passage != NO_LABEL
    return torch.stack(
        [correct.new_tensor(len(correct), dtype=torch.float32), correct.sum().float(), turns.sum().float()]
    )
