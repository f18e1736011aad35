"""Training on given examples: a step, a validation, and what is said of the exported model.

A trainer gives its loss as a sum over examples, with the sums that its metrics are made of. The frame draws the batch,
shares it out, goes through it in micro-batches, updates, and adds the sums up over micro-batches and processes, so that
neither changes a step (dropout draws apart). All follows from (seed, step, rank) and the saved weights and moments.
"""

from __future__ import annotations

import copy
import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from finegrained_rlhf.core.batching import batch_overhead, length_groups
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import Write, atomic_directory, write_all
from finegrained_rlhf.models.dropout import set_dropout
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.models.weights.saving import Copies, pretrained_copy, take_part
from finegrained_rlhf.models.weights.sharded import shard_layers, whole_weights
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.loop.forecast import first_measured
from finegrained_rlhf.runtime.loop.run import EXPORT_RECORD
from finegrained_rlhf.runtime.loop.trainer import ModelTrainer, OptimizerTrainer, check_finite
from finegrained_rlhf.runtime.loop.types import LoopResult
from finegrained_rlhf.runtime.optimizer import Optimizer
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.micro_batches import rounds_together
from finegrained_rlhf.training.order import items_of_step
from finegrained_rlhf.training.policy_state import PolicyTrainer

logger = logging.getLogger(__name__)

Example = TypeVar("Example")


def accumulate(
    groups: Sequence[Sequence[Example]],
    objective: Callable[[Sequence[Example]], tuple[Tensor, Tensor]],
    processes: Processes,
) -> Tensor:
    """Accumulate the gradient of micro-batches, one after the other.

    Args:
        groups: the examples of this process; may be none.
        objective: of some examples the part of the loss, [] with a gradient, and sums [n].
        processes: gives the precision.

    Returns:
        The sums of all, fp64 [n]; 0, [], where there are no groups.
    """
    total = torch.zeros((), dtype=torch.float64)
    for group in first_measured(groups):
        with processes.autocast():
            loss, sums = objective(group)
        loss.backward()  # type: ignore[no-untyped-call]
        total = total.to(sums.device) + sums.detach().double()
    return total


def warn_of_cut(what: str, lengths: Sequence[int], limit: int) -> None:
    """Say how many texts reach the limit in tokens, and so lose their end to the end of sequence."""
    if cut := sum(length >= limit for length in lengths):
        logger.warning("%d of %d %s are longer than %d tokens and lose their end", cut, len(lengths), what, limit)


class SupervisedTrainer(OptimizerTrainer, Generic[Example]):
    """Trains a model on given examples. Satisfies the training loop's `Trainable`.

    Args:
        job: whose settings are used: sizes, dropout, optimizer, seed.
        model: trained; what needs no gradient stays as it is.
        data: drawn in a seeded order, epoch after epoch; at least one.
        validation: what the best model is chosen by; may be empty.
        processes: of the run.

    Attributes:
        sums: how many sums the objective gives.
        speed: the metric of what is counted a second; with it come the examples, the epoch and the seconds of a step.
        longest_first: in which order micro-batches go through the model.

    Raises:
        ConfigError: the layers' weights are to be in shards, and cannot be.
        DataError: there is nothing to train on.
    """

    sums: ClassVar[int]
    speed: ClassVar[str] = ""
    longest_first: ClassVar[bool] = False
    model: Any
    validation: Sequence[Any]

    def __init__(
        self, job: Any, model: nn.Module, data: Sequence[Example], validation: Sequence[Any], processes: Processes
    ) -> None:
        if not data:
            raise DataError("expected at least one example to train on, got none", field="data")
        self.job, self.model, self.data, self.validation = job, model.eval(), data, validation
        self.processes = processes
        if (rate := getattr(job, "dropout", None)) is not None:  # a reward model's job has no such key
            set_dropout(model, rate)
        network = self.shardable()
        if network is None and processes.sharding == "full" and processes.count > 1:
            raise ConfigError("processes.sharding=full: this model's layers cannot be in shards; set gradients or none")
        self._sharded = processes.sharding != "none" and processes.count > 1 and network is not None
        if self._sharded and network is not None:
            shard_layers(network, processes)
        model.to(processes.device)
        self.optimizer = self.new_optimizer()

    # What a trainer gives ----------------------------------------------------------------------------------------

    @abstractmethod
    def backward(self, batch: Any, count: float, step: int) -> Tensor:
        """Accumulate the gradient of this process's share of a batch. Returns its sums, fp64 [`sums`]."""

    @abstractmethod
    def measured(self) -> Mapping[str, float]:
        """Metrics of the validation examples, alike in all processes."""

    @abstractmethod
    def means(self, sums: Tensor) -> dict[str, float]:
        """Metrics, `loss` among them, of the sums [`sums`] over all examples of a step or of a validation."""

    def score(self, metrics: Mapping[str, float]) -> float:
        """What the best model has most of: less the loss."""
        return -metrics["loss"]

    def length(self, example: Example) -> int:
        """What micro-batches are sorted by: token ids; where there are none, they keep the order of the batch."""
        return len(getattr(example, "ids", ()))

    def batch(self, step: int) -> Any:
        """The examples of training step `step` (from 1), over all processes."""
        return items_of_step(self.data, step, self.job.sizes.batch_size, self.job.seed)

    def count(self, batch: Any) -> int:
        """What the summed loss of a batch is divided by: its examples."""
        return len(batch)

    def new_optimizer(self) -> Optimizer:
        """The optimizer of all that is trained."""
        steps = self.job.steps(len(self.data))
        optimizer: Optimizer = self.job.optimizer.build(self.model.named_parameters(), steps, self.processes)
        return optimizer

    def shardable(self) -> nn.Module | None:
        """The transformers model whose layers can be in shards: a process makes one pass of it in each `objective`.

        None where processes make other numbers of passes, or weights of layers are used outside the layers' passes.
        """
        return self.model if getattr(self.job, "shards_weights", False) else None

    def training(self, on: bool) -> None:
        """Switch to the mode of a step's passes, and back."""
        self.model.train(on)

    # A step, a validation ----------------------------------------------------------------------------------------

    def train_step(self, step: int) -> dict[str, float]:
        """One optimizer step on the batch of `step`: its metrics before the update, alike in all processes.

        Raises:
            ConsistencyError: the loss or the gradient norm is no number.
        """
        started = time.perf_counter()
        batch = self.batch(step)
        count = self.count(batch)
        self.training(True)
        sums = self.backward(batch, count, step)
        self.training(False)
        norm = self.optimizer_step(step)
        metrics = self.means(self.processes.sum_(sums))
        metrics |= {"gradient_norm": norm, "lr": self.optimizer.lr(step)}
        check_finite(step, metrics, ("loss", "gradient_norm"))
        if self.speed:
            examples, seconds = step * self.job.sizes.batch_size, time.perf_counter() - started
            metrics |= {"examples": examples, "epoch": examples / len(self.data)}
            metrics |= {"time/update_s": seconds, self.speed: count / max(seconds, 1e-9)}
        return metrics

    def validate(self, step: int) -> Mapping[str, float]:
        """What the validation examples say, with the `score`; nothing without any."""
        if not self.validation:
            return {}
        with whole_weights(self.model):
            metrics = self.measured()
        return {"score": self.score(metrics), **metrics}

    @abstractmethod
    def finish(self, result: LoopResult, run: RunDirectory) -> None:
        """After the loop (every process): say what became of the exported model."""


class AdditiveTrainer(SupervisedTrainer[Example]):
    """Trains by a loss that adds up over examples, which are not compared with one another."""

    @property
    def in_rows(self) -> bool:
        """Whether `objective` lays examples one behind the other, so that they need not be of similar length."""
        return False

    @abstractmethod
    def objective(self, examples: Sequence[Example], count: float, step: int) -> tuple[Tensor, Tensor]:
        """Examples' part of the loss, and their sums, under the precision of the run.

        Args:
            examples: at least one; those of a micro-batch, or of a pass of a validation.
            count: what the summed loss is divided by, over all processes.
            step: training step; 0 in a validation.

        Returns:
            [] with a gradient; and [`sums`], which add up over examples.
        """

    def groups(self, examples: Sequence[Example], size: int | None, learn: bool) -> list[Sequence[Example]]:
        """Examples in micro-batches.

        Args:
            examples: of this process; may be none.
            size: at most so many together; None takes all.
            learn: whether they are trained on; in a validation, and with `packing` where the objective does not lay
                them in rows, they are cut so that padding costs least.
        """
        size = size or max(1, len(examples))
        if learn and (self.in_rows or not self.job.packing):
            ordered = sorted(examples, key=self.length, reverse=self.longest_first)
            return [ordered[start : start + size] for start in range(0, len(ordered), size)]
        places = length_groups([self.length(one) for one in examples], size, batch_overhead(self.processes.device))
        return [[examples[i] for i in group] for group in places]

    def backward(self, batch: Any, count: float, step: int) -> Tensor:
        """Accumulate the gradient of this process's share of a batch. Returns its sums, fp64 [`sums`]."""
        share = [batch[i] for i in self.processes.share(len(batch))]
        groups = self.groups(share, self.job.sizes.micro_batch_size, learn=True)
        rounds = rounds_together(len(groups), self.processes) if self._sharded else len(groups)
        sums = accumulate(groups, lambda part: self.objective(part, count, step), self.processes)
        for _ in range(rounds - len(groups)):  # the others need the rows that are here
            with self.processes.autocast():
                nothing, _ = self.objective([min(self.data, key=self.length)], count, step)
            (nothing * 0.0).backward()  # type: ignore[no-untyped-call]
        return sums if groups else torch.zeros(self.sums, dtype=torch.float64)

    @torch.no_grad()
    def measured(self) -> Mapping[str, float]:
        """Metrics of the validation examples, alike in all processes."""
        share = [self.validation[i] for i in self.processes.share(len(self.validation))]
        sums = torch.zeros(self.sums, dtype=torch.float64)
        for group in self.groups(share, self.job.sizes.eval_batch_size, learn=False):
            with self.processes.autocast():
                sums += self.objective(group, 1, 0)[1].double().cpu()
        return self.means(self.processes.sum_(sums))


class SupervisedPolicyTrainer(AdditiveTrainer[Example], PolicyTrainer):
    """Trains a policy; see `SupervisedTrainer`.

    Attributes:
        score_name: what the best policy has most of.
    """

    score_name: str = "minus the loss"

    def __init__(
        self, job: Any, policy: Policy, data: Sequence[Example], validation: Sequence[Any], processes: Processes
    ) -> None:
        self.policy = policy.eval()
        super().__init__(job, policy.model, data, validation, processes)

    def finish(self, result: LoopResult, run: RunDirectory) -> None:
        """The main process says where the best policy is."""
        if self.processes.is_main and not result.already_done:
            logger.info(self.job.outcome(result, run, self.score_name))


class SupervisedModelTrainer(SupervisedTrainer[Example], ModelTrainer):
    """Trains a model that saves itself; see `SupervisedTrainer`.

    Attributes:
        title: what the model is called.
        headline: validation metrics that are printed.
    """

    title: str
    headline: Sequence[str]

    def shardable(self) -> nn.Module | None:
        """See `SupervisedTrainer.shardable`."""
        return None if super().shardable() is None else self.model.network

    def model_to_save(self) -> Write:
        """See `ModelTrainer`; of a network in shards, which cannot be copied as it is, a copy that is whole."""
        if not self._sharded:
            return super().model_to_save()
        network = self.model.network
        if not self.processes.is_main:
            take_part(network)
            return write_all(())
        take = Copies()
        whole = pretrained_copy(network, {name: take(tensor) for name, tensor in network.state_dict().items()})
        save: Write = copy.deepcopy(self.model, {id(network): whole}).save
        return save

    def finish(self, result: LoopResult, run: RunDirectory) -> None:
        """Open the exported model, measure it on the validation examples, and write `metrics.json`."""
        self.model = self.copy_of(self.model, run.final(self.job.export)).to(self.processes.device)
        dev = dict(self.measured()) if self.validation else {}
        results = self.results(dev, run.final(self.job.export))
        if self.processes.is_main:
            steps = {"best_step": result.best_step, "steps": result.step}
            examples = {"train_examples": len(self.data), "dev_examples": len(self.validation)}
            run.write_results({**steps, **examples, "dev": dev, **results})
            shown = ", ".join(f"{name} {dev[name]:.3f}" for name in self.headline if name in dev)
            print(f"{self.title}: best at step {result.best_step}, dev {shown or 'not measured'}")
        self.processes.barrier()

    def results(self, dev: Mapping[str, float], exported: Path) -> dict[str, Any]:
        """What `metrics.json` says beside steps, numbers of examples and the validation (every process).

        Args:
            dev: metrics of the validation; none where there is nothing to validate on.
            exported: directory of the model.
        """
        return {}

    def save_again(self, exported: Path) -> None:
        """Write a model that was changed after the loop over the exported one (main process only)."""
        record = (exported / EXPORT_RECORD).read_text(encoding="utf-8")
        with atomic_directory(exported) as directory:
            self.model.save(directory)
            (directory / EXPORT_RECORD).write_text(record, encoding="utf-8")
