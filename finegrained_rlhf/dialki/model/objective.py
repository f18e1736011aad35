"""DIALKI's losses as functions of logits and labels, and L = L_next + α L_hist + β L_adv (thesis, section 3.2, equation
3.4).

Logits have their padding masked. All values are sums over dialogues, so that micro-batches and processes add up to
the loss of the whole batch. L_adv (section 3.2.3): predictions may not move when the word embeddings do. The noise
of a passage follows from the seed, the step and the passage alone, not from the batch that it is in; dropout draws
the same masks for clean and noisy inputs, so that noise is all they differ by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from finegrained_rlhf.dialki.inputs.batches import NO_LABEL, Chosen, DialkiBatch, Targets, collate, targets
from finegrained_rlhf.dialki.model.config import LossConfig, NoiseConfig
from finegrained_rlhf.dialki.model.heads import HistoryScores, NextScores
from finegrained_rlhf.dialki.model.model import DialkiModel
from finegrained_rlhf.dialki.records import GoldEntries


def next_loss(scores: NextScores, targets: Targets) -> Tensor:
    """−log q of the gold passage among its dialogue's, and of the first and last gold span in it (3.1 to 3.3), in nats.

    Args:
        scores: of N dialogues.
        targets: their labels, all known.

    Returns:
        fp32 [3]: sums over the dialogues of the passage, begin and end loss.
    """
    if targets.passage.shape != scores.passage.shape[:1]:
        raise ValueError(f"{len(targets.passage)} labels for {len(scores.passage)} dialogues")
    rows = torch.arange(len(targets.passage), device=targets.passage.device)
    return torch.stack(
        [
            F.cross_entropy(scores.passage, targets.passage, reduction="sum"),
            F.cross_entropy(scores.begin[rows, targets.passage], targets.begin, reduction="sum"),
            F.cross_entropy(scores.end[rows, targets.passage], targets.end, reduction="sum"),
        ]
    )


def marginal_loss(scores: NextScores, targets: Targets) -> Tensor:
    """−log of the probability that passage, first and last span are those of any gold entry, in nats.

    With q(p, b, e) = q(p) q(b | p) q(e | p) summed over a dialogue's entries. The parts are those of the chain rule:
    that the passage is one of gold; that the first span is right, given that; that the last one is, given both. With
    one entry they are those of `next_loss`. (After the marginal likelihood of Cheng et al. 2020, "Probabilistic
    assumptions matter", over document-level answers.)

    Args:
        scores: of N dialogues.
        targets: with `entries` [N, G, 3], at least one a dialogue.

    Returns:
        fp32 [3]: sums over the dialogues of the passage, begin and end part.
    """
    if targets.entries.shape[:1] != scores.passage.shape[:1] or not targets.entries.shape[1]:
        raise ValueError(f"gold entries {tuple(targets.entries.shape)} for {len(scores.passage)} dialogues")
    known = targets.entries[..., 0] != NO_LABEL
    passage, begin, end = targets.entries.clamp(min=0).unbind(-1)
    rows = torch.arange(len(passage), device=passage.device)[:, None]
    logs = scores.passage.log_softmax(dim=-1).gather(1, passage)
    so_far, parts = passage, [_log_sum(logs, known & _first(passage, known))]
    for place, of_spans in ((begin, scores.begin), (end, scores.end)):
        so_far = so_far * of_spans.shape[-1] + place  # passage, begin and end as one number
        logs = logs + of_spans.log_softmax(dim=-1)[rows, passage, place]
        parts.append(_log_sum(logs, known & _first(so_far, known)))
    log_sums = torch.stack(parts)
    return -torch.cat([log_sums[:1], log_sums.diff(dim=0)]).sum(dim=1)


def binary_loss(scores: NextScores, targets: Targets) -> Tensor:
    """−log σ of the logit of every gold passage and −log (1 − σ) of every other one, in nats.

    Each passage is right or wrong by itself, so that σ of its logit is the probability that it is part of the answer.
    For passages without spans alone.

    Args:
        scores: of N dialogues; the masked passages count nothing.
        targets: with `entries` [N, G, 3], at least one a dialogue.

    Returns:
        fp32 [3]: the sum over the passages of all dialogues, and 0 for begin and end.
    """
    if targets.entries.shape[:1] != scores.passage.shape[:1] or not targets.entries.shape[1]:
        raise ValueError(f"gold entries {tuple(targets.entries.shape)} for {len(scores.passage)} dialogues")
    places = targets.entries[..., 0]
    known = places != NO_LABEL
    right = torch.zeros_like(scores.passage).scatter_add(1, places.clamp(min=0), known.to(scores.passage.dtype))
    mask = scores.passage_mask
    loss = F.binary_cross_entropy_with_logits(scores.passage[mask], right[mask].clamp(max=1.0), reduction="sum")
    return torch.stack([loss, *loss.new_zeros(2)])


def _first(numbers: Tensor, known: Tensor) -> Tensor:
    """Bool [N, G]: no known entry before it has the same number [N, G]."""
    same = (numbers[:, :, None] == numbers[:, None, :]) & known[:, None, :]
    return ~same.tril(diagonal=-1).any(dim=-1)


def _log_sum(logs: Tensor, counted: Tensor) -> Tensor:
    """[N]: log of the summed exponentials of those entries [N, G] that are counted."""
    return logs.masked_fill(~counted, -torch.inf).logsumexp(dim=1)


def history_loss(scores: HistoryScores, targets: Targets) -> Tensor:
    """The mean over a dialogue's labelled turns of the passage, begin and end losses of each, in nats.

    A dialogue without a label contributes 0. (The original code averages over the labelled turns of the batch instead,
    which is NaN where there is none.)

    Args:
        scores: of N dialogues with T turns.
        targets: labels of the turns, −1 where there is none.

    Returns:
        fp32 scalar: sum over the dialogues.
    """
    if targets.history_passage.shape != scores.passage.shape[:2]:
        raise ValueError(f"labels {tuple(targets.history_passage.shape)} for turns {tuple(scores.passage.shape[:2])}")
    known = targets.history_passage != NO_LABEL
    n, t = known.nonzero(as_tuple=True)
    passage = targets.history_passage[n, t]
    each = (
        F.cross_entropy(scores.passage[n, t], passage, reduction="none")
        + F.cross_entropy(scores.begin[n, t, passage], targets.history_begin[n, t], reduction="none")
        + F.cross_entropy(scores.end[n, t, passage], targets.history_end[n, t], reduction="none")
    )
    return (each / known.sum(dim=1)[n]).sum()


def jensen_shannon(first: Tensor, second: Tensor, mask: Tensor) -> Tensor:
    """The Jensen–Shannon divergence ½ KL(p‖m) + ½ KL(q‖m), m = (p + q)/2, of two masked softmax distributions, in nats.

    It is symmetric, 0 where the distributions are equal, and at most log 2.

    Args:
        first: logits [..., K] of p.
        second: logits [..., K] of q.
        mask: bool [..., K], True = a choice; a row without any gives 0.

    Returns:
        fp32 [...].
    """
    if not first.shape == second.shape == mask.shape:
        raise ValueError(f"expected one shape, got {tuple(first.shape)}, {tuple(second.shape)}, {tuple(mask.shape)}")
    log_p, log_q = (_masked_log_softmax(logits, mask) for logits in (first, second))
    log_m = torch.logaddexp(log_p, log_q) - math.log(2.0)
    terms = 0.5 * (log_p.exp() * (log_p - log_m) + log_q.exp() * (log_q - log_m))
    return terms.masked_fill(~mask, 0.0).sum(dim=-1)


def _masked_log_softmax(logits: Tensor, mask: Tensor) -> Tensor:
    """Log-probabilities over the real choices, fp32; 0 elsewhere, so that nothing there can become infinite."""
    log_p = torch.log_softmax(logits.float().masked_fill(~mask, torch.finfo(torch.float32).min / 2), dim=-1)
    return log_p.masked_fill(~mask, 0.0)


def divergence(clean: NextScores, noisy: NextScores) -> Tensor:
    """How far two predictions for the same dialogues are apart: L_adv before its maximum (thesis, section 3.2.3).

    The divergence of the passage distributions, plus those of the begin and of the end distributions of each passage.

    Returns:
        fp32 scalar: sum over the dialogues.
    """
    passages = jensen_shannon(clean.passage, noisy.passage, clean.passage_mask)
    begin = jensen_shannon(clean.begin, noisy.begin, clean.span_mask)
    end = jensen_shannon(clean.end, noisy.end, clean.span_mask)
    return passages.sum() + begin.sum() + end.sum()


_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed number
_MIX = (-4658895280553007687, -7723592293110705685)  # 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def hashed_noise(keys: Tensor, length: int, width: int) -> Tensor:
    """Uniform numbers in [−1, 1), hashes of (key, token, dimension) and of nothing else (SplitMix64).

    Args:
        keys: int64 [G].
        length: tokens.
        width: dimensions a token.

    Returns:
        fp32 [G, length, width], on the device of `keys`.
    """
    counter = torch.arange(1, length * width + 1, device=keys.device)
    x = keys[:, None] + counter * _GOLDEN
    for shift, factor in zip((30, 27), _MIX, strict=True):
        x = (x ^ _shifted(x, shift)) * factor
    bits = _shifted(x ^ _shifted(x, 31), 40)  # 24 bits: exact in fp32
    return (bits.float() * 2.0**-23 - 1.0).view(len(keys), length, width)


def _shifted(x: Tensor, by: int) -> Tensor:
    """A shift to the right that fills with zeros."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def project(noise: Tensor, radius: float) -> Tensor:
    """The nearest noise [G, L, E] whose L2 norm over [L, E] is at most `radius`, row by row."""
    norm = noise.flatten(1).norm(dim=1)[:, None, None]
    return noise * (radius / norm.clamp(min=radius))


def _scaled(noise: Tensor, norm: float) -> Tensor:
    """Rows of noise [G, L, E] with the given norm; rows of zeros stay."""
    size = noise.flatten(1).norm(dim=1)[:, None, None]
    return torch.where(size > 0, noise * (norm / size.clamp(min=torch.finfo(torch.float32).tiny)), noise)


def start_noise(batch: DialkiBatch, width: int, config: NoiseConfig, seed: int) -> list[Tensor]:
    """The random start of each group's inputs, [G, L, width], 0 at padding.

    Args:
        batch: P inputs.
        width: of the word embeddings.
        config: its norm.
        seed: a 63-bit hash of run and step.
    """
    noise = []
    for group in batch.groups:
        drawn = hashed_noise(batch.keys[group.rows] ^ seed, group.ids.shape[1], width)
        noise.append(
            _scaled(drawn if group.mask is None else drawn * group.mask[:, :, None], config.start * config.radius)
        )
    return noise


def worst_noise(
    model: DialkiModel, batch: DialkiBatch, clean: NextScores, start: Sequence[Tensor], config: NoiseConfig
) -> list[Tensor]:
    """Noise of norm ≤ a that moves the predictions far: one ascent step from `start` along the gradient, projected.

    Args:
        model: whose predictions are disturbed; its parameters get no gradient.
        batch: the inputs.
        clean: the predictions without noise; treated as fixed.
        start: fp32 [G, L, width] of each group of G inputs, 0 at padding.
        config: length of the step and radius.

    Returns:
        fp32 [G, L, width] of each group, of norm at most `config.radius` over [L, width], without gradient.
    """
    noise = [delta.detach().requires_grad_() for delta in start]
    fixed = NextScores(
        clean.passage.detach(), clean.begin.detach(), clean.end.detach(), clean.passage_mask, clean.span_mask
    )
    moved = divergence(fixed, model.next_scores(model.encode(batch, noise), batch))
    gradients = torch.autograd.grad(moved, noise)
    worst = []
    for delta, gradient, group in zip(noise, gradients, batch.groups, strict=True):
        if group.mask is not None:
            gradient = gradient * group.mask[:, :, None]
        step = _scaled(gradient.float(), config.step * config.radius)
        worst.append(project(delta.detach() + step, config.radius))
    return worst


@dataclass(frozen=True)
class RandomState:
    """Torch's random state on the CPU and on one device."""

    cpu: Tensor
    device: Tensor | None

    @staticmethod
    def of(device: torch.device) -> RandomState:
        """The present state."""
        return RandomState(torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None)

    @contextmanager
    def again(self, device: torch.device) -> Iterator[None]:
        """Run the block from this state, then go on from where things stood."""
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.set_rng_state(self.cpu)
            if self.device is not None:
                torch.cuda.set_rng_state(self.device, device)
            yield


def adversarial_loss(
    model: DialkiModel, batch: DialkiBatch, clean: NextScores, before: RandomState, config: NoiseConfig, seed: int
) -> Tensor:
    """L_adv: the divergence between the clean predictions and those under the worst noise found.

    The gradient flows through both.

    Args:
        model: trained.
        batch: its inputs.
        clean: its predictions, made from the random state `before` on.
        before: random state, for the same dropout.
        config: of the noise.
        seed: a 63-bit hash of run and step.

    Returns:
        fp32 scalar: sum over the dialogues.
    """
    width = model.encoder.get_input_embeddings().weight.shape[1]
    start = start_noise(batch, width, config, seed)
    with before.again(model.device):
        noise = worst_noise(model, batch, clean, start, config)
    with before.again(model.device):
        noisy = model.next_scores(model.encode(batch, noise), batch)
    return divergence(clean, noisy)


_NEXT_LOSSES: Mapping[GoldEntries, Callable[[NextScores, Targets], Tensor]] = {
    "one": next_loss,
    "all": marginal_loss,
    "each": binary_loss,
}


def loss_means(sums: Tensor) -> dict[str, float]:
    """Metrics of sums over dialogues: means, and `accuracy`, that of the passage among those that were given.

    Args:
        sums: [9] of total loss, its passage, begin, end, history and adversarial parts (the last two without their
            weights), in nats; dialogues, those whose passage was found, labelled turns.
    """
    *losses, dialogues, correct, turns = sums.tolist()
    names = ("loss", "loss/passage", "loss/begin", "loss/end", "loss/history", "loss/adversarial")
    count = max(dialogues, 1)
    means = {name: value / count for name, value in zip(names, losses, strict=True)}
    return {**means, "accuracy": correct / count, "labelled_turns": turns / count}


def objective(
    model: DialkiModel, chosen: Sequence[Chosen], config: LossConfig, seed: int, group_size: int = 64
) -> tuple[Tensor, Tensor]:
    """The summed loss (with gradient) of some dialogues, and the sums of which `loss_means` makes metrics.

    Args:
        model: trained.
        chosen: dialogues with their passages and gold.
        config: weights.
        seed: of the noise, a 63-bit hash of run and step.
        group_size: most inputs that go through the encoder together.

    Returns:
        Scalar [] in nats, and sums (float64 [9]).
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
    return total, values.detach().double().cpu()


def _counts(scores: NextScores, labels: Targets) -> Tensor:
    """Dialogues, those whose passage (of several gold ones any) was found, and labelled turns."""
    right = torch.cat([labels.passage[:, None], labels.entries[..., 0]], dim=1)
    correct = (right == scores.passage.argmax(dim=1)[:, None]).any(dim=1)
    turns = labels.history_passage != NO_LABEL
    return torch.stack(
        [correct.new_tensor(len(correct), dtype=torch.float32), correct.sum().float(), turns.sum().float()]
    )
