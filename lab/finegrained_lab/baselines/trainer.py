"""Training BERTQA, and its classes as a system that DIALKI's commands know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from finegrained_lab.baselines.bertqa import BertQaModel, qa_means, qa_objective, windows_to_train
from finegrained_lab.baselines.config import BertQaConfig
from finegrained_lab.baselines.finder import BertQaFinder
from finegrained_lab.baselines.windows import WindowedExample
from finegrained_rlhf.dialki.training.job import DialkiBatchConfig
from finegrained_rlhf.dialki.training.systems import System
from finegrained_rlhf.dialki.training.trainer import KnowledgeTrainer
from finegrained_rlhf.runtime.processes import Processes


class BertQaTrainer(KnowledgeTrainer):
    """Trains BERTQA: a dialogue's `batches.passages` are windows."""

    model: BertQaModel
    sums: ClassVar[int] = 5

    @staticmethod
    def new_finder(model: BertQaModel, processes: Processes, batches: DialkiBatchConfig) -> BertQaFinder:
        """The finder of a BERTQA."""
        return BertQaFinder(model, processes, batches.eval_batch_size, batches.group_size)

    def objective(self, examples: Sequence[WindowedExample], count: float, step: int) -> tuple[Tensor, Tensor]:
        """The cross-entropy of both ends of some answers, in a window with gold and others; [5] as in `qa_means`."""
        batches = self.job.batches
        chosen = [windows_to_train(item, batches.passages, self.job.seed, step) for item in examples]
        loss, sums = qa_objective(self.model, chosen, batches.group_size)
        return loss / count, sums

    def means(self, sums: Tensor) -> dict[str, float]:
        """Losses and accuracy."""
        return qa_means(sums)


BERTQA = System(BertQaConfig, BertQaModel, BertQaFinder, BertQaTrainer)
