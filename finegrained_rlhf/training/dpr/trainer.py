"""Training two towers: one step, validation by rank, and what a checkpoint keeps.

Every query of a step is compared with the passages of all processes. Each process encodes its share of the queries and
of the passages; passage vectors are gathered, each process takes the loss of its own queries, and the gradients that
their vectors get in all processes are summed before they go back into the tower. So several processes do what one does.
Micro-batches do not change a step either: where there are several, vectors are computed without a graph, and their
texts go through the tower once more when the gradients of the vectors are known (Gao et al. 2021, "Scaling Deep
Contrastive Learning Batch Size under Memory Limited Setup").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.seeding import seed_everything
from finegrained_rlhf.models.encoders.towers import PASSAGE_TOWER, QUERY_TOWER, TextTower, TwoTowers
from finegrained_rlhf.models.loading import check_vocabulary
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.dpr.batches import DprBatch, DprExample, DprSet, dpr_batch, ranking_batch
from finegrained_rlhf.training.dpr.job import TrainDPR
from finegrained_rlhf.training.dpr.records import read_dpr_records
from finegrained_rlhf.training.supervised.trainer import SupervisedModelTrainer


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


class DprTrainer(SupervisedModelTrainer[DprExample]):
    """Trains two towers by the in-batch softmax, the mean over the queries of a step; see `SupervisedTrainer`.

    Args:
        job: batch sizes, what a query brings into a step, what the best towers are chosen by.
        model: to train; what needs no gradient stays as it is, without dropout.
        train: at least one query, with the passages.
        held_out: the same to validate on; may have no query.
        processes: of the run.
    """

    job: TrainDPR
    model: TwoTowers
    sums: ClassVar[int] = 4
    title = "towers"
    headline = ("mean_rank", "mrr", "accuracy")

    def __init__(self, job: TrainDPR, model: TwoTowers, train: DprSet, held_out: DprSet, processes: Processes) -> None:
        self.train, self.held_out = train, held_out
        self.from_step = math.ceil(job.best_from_epoch * len(train.examples) / job.batches.batch_size)
        self.pool = ranking_batch(held_out, job.validation_negatives)
        super().__init__(job, model, train.examples, held_out.examples, processes)

    def batch(self, step: int) -> DprBatch:
        """The queries of a step, with the passages that they bring."""
        return dpr_batch(self.train, self.job.sampling, step, self.job.batches.batch_size, self.job.seed)

    def count(self, batch: DprBatch) -> int:
        """Queries."""
        return len(batch.examples)

    def training(self, on: bool) -> None:
        """A tower that is not trained has no dropout."""
        for tower in (self.model.query, self.model.passage):
            tower.train(on and _trained(tower))

    def backward(self, batch: DprBatch, count: float, step: int) -> Tensor:
        """Accumulate the gradient of this process's queries and passages: [4] as `means` takes them."""
        own, shared = self.processes.share(len(batch.examples)), self.processes.share(len(batch.passages))
        share = batch.of_queries(own)
        queries, into_queries = self._encode(self.model.query, [one.ids for one in share.examples], QUERY_TOWER, step)
        texts = [self.train.passages[batch.passages[i]] for i in shared]
        passages, into_passages = self._encode(self.model.passage, texts, PASSAGE_TOWER, step)
        passages = self._gathered(passages, shared, len(batch.passages)).requires_grad_()
        sums = self._compare(share, queries.requires_grad_(), passages, count)
        assert queries.grad is not None and passages.grad is not None
        if _trained(self.model.passage):  # all processes, and before the first gradient of a parameter
            self.processes.sum_(passages.grad)
        if into_passages is not None:
            into_passages(passages.grad[shared.start : shared.stop])
        if into_queries is not None:
            into_queries(queries.grad)
        return torch.cat([sums, torch.tensor([len(own), len(shared)], dtype=torch.float64)])

    def means(self, sums: Tensor) -> dict[str, float]:
        """Of the summed loss, queries whose passage is first, queries, and passages."""
        loss, first, queries, passages = sums.tolist()
        return {"loss": loss / queries, "accuracy": first / queries, "passages": passages}

    def validate(self, step: int) -> Mapping[str, float]:
        """Nothing before the first epoch that counts."""
        return super().validate(step) if step >= self.from_step else {}

    def score(self, metrics: Mapping[str, float]) -> float:
        """What is to rise of what the job selects by."""
        return -metrics["mean_rank"] if self.job.selected_by == "mean_rank" else metrics["mrr"]

    @torch.no_grad()
    def measured(self) -> dict[str, float]:
        """Of the held-out queries: `mean_rank` from 1, `mrr` (mean of 1 / rank), `accuracy` (share of rank 1).

        The rank is that of a query's first positive among the passages of all; `passages` is how many compete.
        """
        pool, size = self.pool, self.job.batches.eval_batch_size
        own, shared = self.processes.share(len(pool.examples)), self.processes.share(len(pool.passages))
        texts = [self.held_out.passages[pool.passages[i]] for i in shared]
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

    def _compare(self, batch: DprBatch, queries: Tensor, passages: Tensor, count: float) -> Tensor:
        """Give the vectors their gradients: fp64 [2] on the CPU, summed loss and queries whose passage is first."""
        targets, left_out = batch.targets.to(queries.device), batch.left_out.to(queries.device)
        losses = in_batch_loss(queries, passages, targets, left_out)
        (losses.sum() / count).backward()  # type: ignore[no-untyped-call]
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
                return tower.vectors(texts, self.job.batches.eval_batch_size), None
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        size = self.job.batches.micro_batch_size or len(order)
        parts = [order[start : start + size] for start in range(0, len(order), size)]

        def computed(number: int) -> Tensor:
            seed_everything(self.job.seed, "dropout", step, self.processes.rank, name, number)  # alike in both passes
            with self.processes.autocast():
                rows = [texts[i] for i in parts[number]]
                vectors: Tensor = tower.by_length(rows, len(rows)) if self.job.packing else tower(rows)
            return vectors

        vectors = torch.zeros(len(texts), tower.dimension, device=tower.device)
        with torch.set_grad_enabled(len(parts) == 1):
            graphs = [computed(number) for number in range(len(parts))]
        for places, part in zip(parts, graphs, strict=True):
            vectors[places] = part.detach()

        def backward(gradient: Tensor) -> None:
            for number, places in enumerate(parts):
                graph = graphs[0] if len(parts) == 1 else computed(number)
                torch.autograd.backward([graph], [gradient[places]])

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

    def results(self, dev: Mapping[str, float], exported: Path) -> dict[str, Any]:
        """Different passages of the training queries."""
        return {"train_passages": len(self.train.passages)}


def assemble_dpr(job: TrainDPR, processes: Processes) -> DprTrainer:
    """Read queries and passages, open both towers and check that they can read them.

    Raises:
        DataError: a file is missing or damaged, or there are no two passages to tell apart.
        ConfigError: `best_from_epoch` is after the last step.
        ModelError: a tower is missing, no encoder, or its tokenizer is not its own; or vectors of two widths.
    """
    records = read_dpr_records(job.data)
    held_out = [] if job.validation_data is None else read_dpr_records(job.validation_data)
    towers = TwoTowers.open(job.query_model, job.passage_model, job.max_query_tokens, job.max_passage_tokens)
    train, validation = DprSet.of(records, towers), DprSet.of(held_out, towers)
    if len(train.passages) < 2:
        raise DataError("holds one passage alone, expected two or more to tell apart", file=job.data)
    check_vocabulary(towers.query, [one.ids for one in (*train.examples, *validation.examples)])
    check_vocabulary(towers.passage, [*train.passages, *validation.passages])
    towers.passage.requires_grad_(not job.freeze_passages)
    trainer = DprTrainer(job, towers.to(processes.device), train, validation, processes)
    if trainer.from_step > (steps := job.steps(len(records))):
        raise ConfigError(f"best_from_epoch: expected at most {steps} steps, got {trainer.from_step}")
    return trainer


def _trained(tower: TextTower) -> bool:
    return any(parameter.requires_grad for parameter in tower.parameters())
