"""Training BERTQA, and its classes as a system that DIALKI's commands know."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from finegrained_lab.baselines.bertqa import BertQaModel, ChosenWindows, QaParts, qa_objective, windows_to_train
from finegrained_lab.baselines.config import BertQaConfig
from finegrained_lab.baselines.finder import BertQaFinder
from finegrained_lab.baselines.windows import WindowedExample
from finegrained_rlhf.dialki.training.config import DialkiBatchConfig
from finegrained_rlhf.dialki.training.systems import System
from finegrained_rlhf.dialki.training.trainer import KnowledgeTrainer
from finegrained_rlhf.runtime.processes import Processes


class BertQaTrainer(KnowledgeTrainer):
    """Trains BERTQA: a dialogue's `batches.passages` are windows."""

    model: BertQaModel

    @staticmethod
    def new_finder(model: BertQaModel, processes: Processes, batches: DialkiBatchConfig) -> BertQaFinder:
        """The finder of a BERTQA."""
        return BertQaFinder(model, processes, batches.eval_batch_size, batches.group_size)

    @staticmethod
    def no_parts() -> QaParts:
        """Parts of nothing."""
        return QaParts.zero()

    def choose(self, item: WindowedExample, step: int) -> ChosenWindows:
        """A window with gold, and others."""
        return windows_to_train(item, self.batches.passages, self.seed, step)

    def loss(self, chosen: Sequence[ChosenWindows], step: int) -> tuple[Tensor, QaParts]:
        """The cross-entropy of both ends of some answers, a scalar [] in nats, and its parts (float64 [5])."""
        return qa_objective(self.model, chosen, self.batches.group_size)


BERTQA = System(BertQaConfig, BertQaModel, BertQaFinder, BertQaTrainer)
