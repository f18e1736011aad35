"""How a query rewriter is chosen: ROUGE-1 with human rewrites, or how often the right passage ranks first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from finegrained_rlhf.conqrr.rewards.passages import PoolReward
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.metrics.functions import rouge1_scores

if TYPE_CHECKING:
    from finegrained_rlhf.runtime.processes import Processes

SelectBy = Literal["rouge1", "accuracy"]


def fixed_batches(prompts: Sequence[Prompt], size: int) -> list[list[int]]:
    """Places of prompts in batches that are the same in every run: ordered by a hash of the id, then cut.

    Args:
        prompts: any; turns of one dialogue must not end up together because they stand together.
        size: most prompts of a batch; sizes differ by at most one, so that no pool is much smaller than the others.
    """
    order = sorted(range(len(prompts)), key=lambda i: (stable_hash(0, "validation", prompts[i].id), i))
    count = -(-len(order) // size)
    return [order[len(order) * k // count : len(order) * (k + 1) // count] for k in range(count)]


class RewriteValidation:
    """Measures greedy rewrites of validation questions. Satisfies `ResponseValidation`.

    `rouge1` is the mean ROUGE-1 F1 with the human rewrites over the questions that have one; `accuracy` the share of
    labelled questions whose positive ranks first in the pool of its fixed batch (thesis, section 4.3). `score` is the
    one that `select_by` names.

    Args:
        prompts: validation questions; `references` in their metadata holds the human rewrite.
        reward: scores rewrites of questions with labels; None measures no accuracy.
        batch_size: questions of a fixed batch.
        select_by: what `score` is.

    Raises:
        ConfigError: no question can be measured in the way that `select_by` asks for.
    """

    def __init__(
        self, prompts: Sequence[Prompt], reward: PoolReward | None, batch_size: int, select_by: SelectBy
    ) -> None:
        self.prompts, self.reward, self.select_by = prompts, reward, select_by
        self._referenced = [i for i, prompt in enumerate(prompts) if prompt.metadata["references"]]
        labels = {} if reward is None else reward.labels
        labelled = [i for i, prompt in enumerate(prompts) if prompt.id in labels]
        batches = fixed_batches([prompts[i] for i in labelled], batch_size)
        self._batches = [[labelled[place] for place in batch] for batch in batches]
        needed = {"rouge1": ("a rewrite", self._referenced), "accuracy": ("a passage label", labelled)}
        if select_by not in needed:
            raise ConfigError(f"select_by: expected rouge1 or accuracy, got {select_by!r}")
        what, measurable = needed[select_by]
        if prompts and not measurable:
            raise ConfigError(f"select_by={select_by}: no validation question has {what}")

    def measure(self, texts: Sequence[str], processes: Processes) -> dict[str, float]:
        """See `ResponseValidation.measure`; `rouge1` and `accuracy` as far as there is something to measure."""
        import torch

        share = [self._referenced[i] for i in processes.share(len(self._referenced))]
        references = [self.prompts[i].metadata["references"][0] for i in share]
        rouge = sum(rouge1_scores([texts[i] for i in share], references))
        right = 0.0
        for batch in (self._batches[i] for i in processes.share(len(self._batches))):
            assert self.reward is not None
            prompts = [self.prompts[i] for i in batch]
            right += sum(self.reward.score(prompts, prompts, [texts[i] for i in batch]))
        rouge, right = processes.sum_(torch.tensor([rouge, right], dtype=torch.float64)).tolist()
        scores = {}
        if self._referenced:
            scores["rouge1"] = rouge / len(self._referenced)
        if self._batches:
            scores["accuracy"] = right / sum(map(len, self._batches))
        return {"score": scores[self.select_by], **scores}
