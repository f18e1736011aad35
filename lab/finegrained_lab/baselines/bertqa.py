"""BERTQA-Token (Devlin et al. 2019; thesis, section 3.3.3): the first and the last token of an answer in each window.

`[CLS]` stands for "not in this window". All losses are sums over dialogues.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from finegrained_lab.baselines.config import BertQaConfig
from finegrained_lab.baselines.windows import WindowedExample
from finegrained_rlhf.core.batching import batch_overhead, length_groups
from finegrained_rlhf.core.errors import ModelError
from finegrained_rlhf.core.records import on_device, pad_rows
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.dialki.inputs.batches import InputGroup
from finegrained_rlhf.dialki.model.config import DialkiConfig
from finegrained_rlhf.dialki.model.heads import MASKED, full_precision
from finegrained_rlhf.dialki.model.model import KnowledgeModel

NOT_HERE = (0, 0)
"""The label of a window without the answer: `[CLS]` for both ends."""


@dataclass(frozen=True)
class ChosenWindows:
    """The windows of one dialogue that go through the model.

    Attributes:
        example: the dialogue.
        windows: which of its windows.
        labels: of each, the positions of the answer's first and last token in the input, or `NOT_HERE`.
    """

    example: WindowedExample
    windows: tuple[int, ...]
    labels: tuple[tuple[int, int], ...] = ()


def windows_to_train(example: WindowedExample, count: int, seed: int, step: int) -> ChosenWindows:
    """A window with gold, where there is gold, and up to `count` − 1 others, in document order.

    A window's label is the drawn gold entry where the window holds it whole, else the first other one that it holds,
    else `NOT_HERE`.

    Args:
        example: with gold, or one whose answer is no passage at all.
        count: windows, at least one.
        seed: of the run.
        step: training step.
    """
    generator = np.random.default_rng(stable_hash(seed, "windows", step, example.record.id))
    numbers = range(len(example.starts))
    if not example.gold:
        chosen = tuple(sorted(generator.permutation(len(numbers))[:count].tolist()))
        return ChosenWindows(example, chosen, (NOT_HERE,) * len(chosen))
    drawn = example.gold[int(generator.integers(len(example.gold)))]
    holding = [w for w in numbers if example.holds(w, drawn)]
    first = holding[int(generator.integers(len(holding)))]
    others = [w for w in numbers if w != first]
    more = generator.permutation(len(others))[: count - 1].tolist()
    chosen = tuple(sorted([first, *(others[i] for i in more)]))
    return ChosenWindows(example, chosen, tuple(_label(example, w, drawn) for w in chosen))


def _label(example: WindowedExample, window: int, drawn: tuple[int, int]) -> tuple[int, int]:
    shift = len(example.context) - example.starts[window]
    for tokens in (drawn, *example.gold):
        if example.holds(window, tokens):
            return tokens[0] + shift, tokens[1] + shift
    return NOT_HERE


def windows_to_search(example: WindowedExample) -> ChosenWindows:
    """All windows."""
    return ChosenWindows(example, tuple(range(len(example.starts))))


@dataclass(frozen=True)
class TokenScores:
    """Logits of one group of windows, fp32, `MASKED` where no answer may begin or end.

    Attributes:
        rows: int64 [G], which of the windows of a batch they are.
        begin: [G, L], of each token as the first one; at 0 that there is no answer here.
        end: [G, L], as the last one.
        choices: bool [G, L], True where an answer may begin or end.
    """

    rows: Tensor
    begin: Tensor
    end: Tensor
    choices: Tensor


class BertQaModel(KnowledgeModel):
    """An encoder with a head that gives each token two logits.

    Args:
        encoder: transformers' encoder, without a pooler.
        tokenizer: its tokenizer, with the role tokens.
        config: what it is.

    Raises:
        ModelError: `config` is not a BERTQA's.
    """

    heads: nn.Linear

    def __init__(self, encoder: Any, tokenizer: Any, config: DialkiConfig) -> None:
        head = nn.Linear(int(encoder.config.hidden_size), 2)
        nn.init.normal_(head.weight, std=0.02)
        nn.init.zeros_(head.bias)
        super().__init__(encoder, tokenizer, config, head)
        if not isinstance(config, BertQaConfig):
            raise ModelError(f"expected the record of a BERTQA, got {type(config).__name__}")
        self.windows = config.windows

    def scores(self, chosen: Sequence[ChosenWindows], group_size: int = 64) -> list[TokenScores]:
        """Logits of all windows, in groups of similar length.

        Args:
            chosen: windows of some dialogues, numbered through.
            group_size: most windows that go through the encoder together.
        """
        windows = [(item.example, w) for item in chosen for w in item.windows]
        scores = []
        lengths = [example.length(w) for example, w in windows]
        for rows in length_groups(lengths, group_size, batch_overhead(self.device)):
            group, choices = self._group([windows[r] for r in rows], rows)
            hidden = self.encoder(input_ids=group.ids, attention_mask=group.mask).last_hidden_state
            with full_precision(hidden):
                begin, end = self.heads(hidden.float()).unbind(-1)
            here = choices.clone()
            here[:, 0] = True
            scores.append(
                TokenScores(group.rows, begin.masked_fill(~here, MASKED), end.masked_fill(~here, MASKED), choices)
            )
        return scores

    def _group(self, windows: Sequence[tuple[WindowedExample, int]], rows: list[int]) -> tuple[InputGroup, Tensor]:
        ids, mask = pad_rows([example.input_ids(w).tolist() for example, w in windows], self.pad_id)
        choices = torch.zeros(ids.shape, dtype=torch.bool)
        for i, (example, w) in enumerate(windows):
            choices[i, : example.length(w)] = torch.from_numpy(example.choices(w))
        whole = bool(mask.all())
        group = InputGroup(
            on_device(ids, self.device),
            None if whole else on_device(mask, self.device),
            on_device(torch.tensor(rows), self.device),
        )
        return group, on_device(choices, self.device)


def window_loss(scores: Sequence[TokenScores], chosen: Sequence[ChosenWindows]) -> Tensor:
    """−log of the probabilities of the label's first and last token, as the mean over each dialogue's windows, in nats.

    Args:
        scores: of all windows of `chosen`.
        chosen: with their labels.

    Returns:
        fp32 [4]: sums over the dialogues of the begin and the end loss; windows whose label is the most probable begin
        and end, over all windows; windows.
    """
    device = scores[0].begin.device
    labels = torch.tensor([label for item in chosen for label in item.labels], device=device)
    shares = torch.tensor([1 / len(item.windows) for item in chosen for _ in item.windows], device=device)
    total = scores[0].begin.new_zeros(4)
    for part in scores:
        targets, share = labels[part.rows], shares[part.rows]
        losses = [
            (F.cross_entropy(logits, targets[:, i], reduction="none") * share).sum()
            for i, logits in enumerate((part.begin, part.end))
        ]
        right = (part.begin.argmax(1) == targets[:, 0]) & (part.end.argmax(1) == targets[:, 1])
        total = total + torch.stack([*losses, right.sum().float(), right.new_tensor(len(right), dtype=torch.float32)])
    return total


def qa_means(sums: Tensor) -> dict[str, float]:
    """Means over dialogues; `accuracy` is that of both ends over all windows.

    Args:
        sums: [5] of begin and end loss in nats; windows whose label was found, windows; dialogues.
    """
    begin, end, right, windows, dialogues = sums.tolist()
    count = max(dialogues, 1)
    losses = {"loss": (begin + end) / count, "loss/begin": begin / count, "loss/end": end / count}
    return {**losses, "accuracy": right / max(windows, 1)}


def qa_objective(model: BertQaModel, chosen: Sequence[ChosenWindows], group_size: int = 64) -> tuple[Tensor, Tensor]:
    """The summed loss of some dialogues, a scalar [] with gradient, and sums (float64 [5], see `qa_means`)."""
    sums = window_loss(model.scores(chosen, group_size), chosen)
    values = torch.cat([sums, sums.new_tensor([len(chosen)])])
    return sums[:2].sum(), values.detach().double().cpu()
