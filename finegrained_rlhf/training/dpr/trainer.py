"""Training two towers: one step, validation by rank, and what a checkpoint keeps.

Satisfies the training loop's `Trainable`.

Every query of a step is compared with the passages of all processes. Each process encodes its share of the queries and
of the passages; passage vectors are gathered, each process takes the loss of its own queries, and the gradients that
their vectors get in all processes are summed before they go back into the tower. So several processes do what one does.
Micro-batches do not change a step either: where there are several, vectors are computed without a graph, and their
texts go through the tower once more when the gradients of the vectors are known (Gao et al. 2021, "Scaling Deep
Contrastive Learning Batch Size under Memory Limited Setup").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from finegrained_rlhf.core.seeding import seed_everything
from finegrained_rlhf.models.encoders.towers import PASSAGE_TOWER, QUERY_TOWER, TextTower, TwoTowers
from finegrained_rlhf.runtime.loop.trainer import ModelTrainer, check_finite
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.dpr.batches import DprBatch, DprSet, dpr_batch, ranking_batch
from finegrained_rlhf.training.dpr.config import DprBatchConfig, DprSampling, DprSelection


def in_batch_loss(queries: Tensor, passages: Tensor, targets: Tensor, left_out: Tensor) -> Tensor:
    """Negative log-likelihood of each query's passage among all passages of the batch.

    loss_q = log Σ_p exp(q · p) − q · p⁺, where p goes over all passages but those that are left out: the other
    passages that answer the query, which so are never negatives of it. Source: Karpukhin et al. 2020, equation 2, with
    the negatives of section 3.2; the paper's code leaves none out.

    Args:
        queries: fp32 [Q, D].
        passages: fp32 [P, D].
        targets: int64 [Q], the place of each query's passage.
        left_out: bool [Q, P]; never a target.

    Returns:
        fp32 [Q] in nats.
    """
    assert queries.dim() == passages.dim() == 2 and queries.shape[1] == passages.shape[1], "expected [Q, D] and [P, D]"
    scores = batch_scores(queries, passages, targets, left_out)
    return scores.logsumexp(dim=1) - scores.gather(1, targets[:, None]).squeeze(1)


def batch_scores(queries: Tensor, passages: Tensor, targets: Tensor, left_out: Tensor) -> Tensor:
    """Dot products fp32 [Q, P], −∞ for what is left out; arguments as in `in_batch_loss`."""
    assert left_out.shape == (len(queries), len(passages)) and left_out.dtype == torch.bool, "expected bool [Q, P]"
    assert targets.shape == (len(queries),), "expected targets [Q]"
    return (queries @ passages.T).masked_fill(left_out, -torch.inf)


def target_ranks(scores: Tensor, targets: Tensor) -> Tensor:
    """The rank of each query's passage, from 1; passages of equal score share the mean of their ranks.

    Args:
        scores: fp32 [Q, P]; −∞ for what is left out.
        targets: int64 [Q].

    Returns:
        fp64 [Q].
    """
    own = scores.gather(1, targets[:, None])
    above, equal = (scores > own).sum(dim=1), (scores == own).sum(dim=1)
    return 1 + above.double() + (equal.double() - 1) / 2


Backward = Callable[[Tensor], None]
"""Takes the gradient of vectors [n, D] back into the tower that gave them."""


@dataclass(frozen=True)
class DprValidation:
    """What towers are selected by: the rank of each query's first positive among the passages of all queries.

    Attributes:
        data: held-out queries; may be none.
        negatives: of each kind that a record brings into the passages, the first ones.
        from_step: earlier validations are left out.
        selected_by: what the best towers have least (`mean_rank`) or most (`mrr`) of.
    """

    data: DprSet
    negatives: int = 30
    from_step: int = 0
    selected_by: DprSelection = "mean_rank"


class DprTrainer(ModelTrainer):
    """Trains two towers by the in-batch softmax, the mean over the queries of a step.

    Args:
        model: to train; what needs no gradient stays as it is, without dropout.
        train: at least one query.
        validation: what the best towers are chosen by.
        sampling: what a query brings into a step.
        batches: batch sizes.
        optimizer: rates and schedule.
        total_steps: that the schedule spans.
        processes: of the run.
        seed: of the run.
    """

    model: TwoTowers

    def __init__(
        self,
        model: TwoTowers,
        train: DprSet,
        validation: DprValidation,
        sampling: DprSampling,
        batches: DprBatchConfig,
        optimizer: OptimizerConfig,
        total_steps: int,
        processes: Processes,
        *,
        seed: int,
    ) -> None:
        self.model, self.processes, self.batches = model.to(processes.device).eval(), processes, batches
        self.train, self.validation, self.sampling, self.seed = train, validation, sampling, seed
        self._pool = ranking_batch(validation.data, validation.negatives) if validation.data.examples else None
        self.optimizer = optimizer.build(model.named_parameters(), total_steps, processes)

    def train_step(self, step: int) -> dict[str, float]:
        """One optimizer step on the queries of `step`.

        Returns:
            Before it, over the batch: the loss, the share of queries whose passage is first, and the number of
            passages; the gradient norm and the rate.
        """
        size = self.batches.batch_size
        batch = dpr_batch(self.train, self.sampling, step, size, self.seed)
        own, shared = self.processes.share(size), self.processes.share(len(batch.passages))
        share = batch.of_queries(own)
        queries, into_queries = self._encode(self.model.query, [one.ids for one in share.examples], QUERY_TOWER, step)
        texts = [self.train.passages[batch.passages[i]] for i in shared]
        passages, into_passages = self._encode(self.model.passage, texts, PASSAGE_TOWER, step)
        passages = self._gathered(passages, shared, len(batch.passages)).requires_grad_()
        queries.requires_grad_()
        measured = self._backward(share, queries, passages, size)
        assert queries.grad is not None and passages.grad is not None
        if _trained(self.model.passage):  # all processes, and before the first gradient of a parameter
            self.processes.sum_(passages.grad)
        if into_passages is not None:
            into_passages(passages.grad[shared.start : shared.stop])
        if into_queries is not None:
            into_queries(queries.grad)
        norm = self.optimizer_step(step)
        loss, first = (self.processes.sum_(measured) / size).tolist()
        metrics = {"loss": loss, "accuracy": first, "passages": float(len(batch.passages))}
        metrics |= {"gradient_norm": norm, "lr": self.optimizer.lr(step)}
        check_finite(step, metrics, ("loss", "gradient_norm"))
        return metrics

    def validate(self, step: int) -> dict[str, float]:
        """As `measure`, with the `score` that is to rise; nothing without held-out queries or before `from_step`."""
        if self._pool is None or step < self.validation.from_step:
            return {}
        metrics = self.measure()
        by_rank = self.validation.selected_by == "mean_rank"
        return {"score": -metrics["mean_rank"] if by_rank else metrics["mrr"], **metrics}

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """Of the held-out queries: `mean_rank` from 1, `mrr` (mean of 1 / rank), `accuracy` (share of rank 1).

        `passages` is how many compete.
        """
        if self._pool is None:
            return {}
        pool, size = self._pool, self.batches.eval_batch_size
        own, shared = self.processes.share(len(pool.examples)), self.processes.share(len(pool.passages))
        texts = [self.validation.data.passages[pool.passages[i]] for i in shared]
        with self.processes.autocast():
            part = self.model.passage.vectors(texts, size)
            queries = self.model.query.vectors([pool.examples[i].ids for i in own], size)
        passages = self._gathered(part, shared, len(pool.passages))
        sums = torch.zeros(3, dtype=torch.float64)
        for start in range(own.start, own.stop, size):
            chosen = pool.of_queries(range(start, min(start + size, own.stop)))
            targets, left_out = chosen.targets.to(passages.device), chosen.left_out.to(passages.device)
            vectors = queries[start - own.start : start - own.start + len(targets)]
            ranks = target_ranks(batch_scores(vectors, passages, targets, left_out), targets)
            sums += torch.stack([ranks.sum(), (1 / ranks).sum(), (ranks == 1).sum().double()]).cpu()
        rank, reciprocal, first = (self.processes.sum_(sums) / len(pool.examples)).tolist()
        return {"mean_rank": rank, "mrr": reciprocal, "accuracy": first, "passages": float(len(pool.passages))}

    def _backward(self, batch: DprBatch, queries: Tensor, passages: Tensor, size: int) -> Tensor:
        """Give the vectors their gradients: fp64 [2] on the CPU, summed loss and queries whose passage is first."""
        targets, left_out = batch.targets.to(queries.device), batch.left_out.to(queries.device)
        losses = in_batch_loss(queries, passages, targets, left_out)
        (losses.sum() / size).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            ranks = target_ranks(batch_scores(queries, passages, targets, left_out), targets)
        return torch.stack([losses.detach().double().sum(), (ranks == 1).sum().double()]).cpu()

    def _encode(
        self, tower: TextTower, texts: Sequence[tuple[int, ...]], name: str, step: int
    ) -> tuple[Tensor, Backward | None]:
        """Vectors [n, D] of this process's texts, without a graph, and what takes their gradient into the tower.

        There is nothing to take it into where the tower is frozen or there are no texts.
        """
        if not texts or not _trained(tower):
            with self.processes.autocast():
                return tower.vectors(texts, self.batches.eval_batch_size), None
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        size = self.batches.micro_batch_size
        parts = [order[start : start + size] for start in range(0, len(order), size)]

        def computed(number: int) -> Tensor:
            seed_everything(self.seed, "dropout", step, self.processes.rank, name, number)  # alike in both passes
            with self.processes.autocast():
                vectors: Tensor = tower([texts[i] for i in parts[number]])
            return vectors

        tower.train()
        vectors = torch.zeros(len(texts), tower.dimension, device=tower.device)
        with torch.set_grad_enabled(len(parts) == 1):
            graphs = [computed(number) for number in range(len(parts))]
        for places, part in zip(parts, graphs, strict=True):
            vectors[places] = part.detach()
        tower.eval()

        def backward(gradient: Tensor) -> None:
            tower.train()
            for number, places in enumerate(parts):
                graph = graphs[0] if len(parts) == 1 else computed(number)
                torch.autograd.backward([graph], [gradient[places]])
            tower.eval()

        return vectors, backward

    def _gathered(self, own: Tensor, share: range, count: int) -> Tensor:
        """The vectors [count, D] of all processes, of which this one has `own` [n, D] at the places of its share."""
        gathered = own.new_zeros(count, own.shape[1])
        gathered[share.start : share.stop] = own
        return self.processes.sum_(gathered)

    @staticmethod
    def copy_of(model: TwoTowers, directory: Path) -> TwoTowers:
        """The towers that were saved in `directory`."""
        return TwoTowers.open(
            directory / QUERY_TOWER, directory / PASSAGE_TOWER, model.query.max_length, model.passage.max_length
        )


def _trained(tower: TextTower) -> bool:
    return any(parameter.requires_grad for parameter in tower.parameters())
