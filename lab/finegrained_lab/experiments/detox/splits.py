"""Which prompts are trained on, selected on and tested on.

The thesis names no split. This is that of Quark's public code, by the same group: the test prompts are non-toxic and
set apart, the others are shuffled once, the first of them are dev, the rest train. No text is in two parts.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from finegrained_rlhf.core.checks import require
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.core.markers import InputFile, OutputDirectory, Seed, at_least
from finegrained_rlhf.detoxification.prompts import ContinuationPrompt, ScoredText, read_continuation_prompts

SEED = 42
"""Of the shuffle, as in Quark's code."""


@dataclass(frozen=True)
class PromptParts:
    """Three parts; no prompt text is in two of them, or twice in one.

    Attributes:
        train: of any toxicity, without a score too.
        dev: the same, or non-toxic prompts alone.
        test: non-toxic.
    """

    train: tuple[ContinuationPrompt, ...]
    dev: tuple[ContinuationPrompt, ...]
    test: tuple[ContinuationPrompt, ...]


def split_prompts(
    rows: Sequence[ContinuationPrompt],
    *,
    dev: int,
    test: int | Sequence[ContinuationPrompt],
    train: int | None = None,
    non_toxic_dev: bool = False,
    seed: int = SEED,
) -> PromptParts:
    """Split rows; of rows with one prompt text the first counts.

    Args:
        rows: all prompts; those of a given test part may be among them.
        dev: how many prompts to select on.
        test: how many non-toxic prompts to test on, drawn from the rows; or the prompts themselves.
        train: how many to train on; None takes what is left.
        non_toxic_dev: whether dev holds non-toxic prompts alone.
        seed: of the shuffle.

    Raises:
        DataError: there are fewer prompts than were asked for.
    """
    left = list({row.prompt.text: row for row in reversed(rows)}.values())[::-1]
    random.Random(seed).shuffle(left)
    if isinstance(test, int):
        tested, left = _take(left, test, True, "test")
    else:
        tested = list({row.prompt.text: row for row in reversed(test)}.values())[::-1]
        held = {row.prompt.text for row in tested}
        left = [row for row in left if row.prompt.text not in held]
    selected, left = _take(left, dev, non_toxic_dev, "dev")
    trained, _ = _take(left, len(left) if train is None else train, False, "train")
    return PromptParts(tuple(trained), tuple(selected), tuple(tested))


def _take(
    rows: Sequence[ContinuationPrompt], count: int, non_toxic: bool, part: str
) -> tuple[list[ContinuationPrompt], list[ContinuationPrompt]]:
    """The first `count` rows that may be taken, and all others, in order."""
    fitting = [i for i, row in enumerate(rows) if not non_toxic or row.prompt.is_toxic is False]
    kind = "different non-toxic prompts" if non_toxic else "different prompts"
    require(len(fitting) >= count, f"asked for {count}, {len(fitting)} {kind} are left", part)
    taken = set(fitting[:count])
    return [rows[i] for i in fitting[:count]], [row for i, row in enumerate(rows) if i not in taken]


@dataclass(frozen=True)
class SplitPrompts(Settings):
    """Write the parts of a file as prompt files `train.jsonl`, `dev.jsonl` and `test.jsonl`, with scores.

    Attributes:
        data: a file of RealToxicityPrompts.
        output_dir: directory of the three files.
        dev: prompts to select on.
        test: non-toxic prompts to test on.
        train: prompts to train on; None takes what is left.
        test_data: a file whose prompts are the test part, whatever `test` says; None draws `test` from `data`.
        non_toxic_dev: whether dev holds non-toxic prompts alone.
        seed: of the shuffle.
    """

    data: InputFile
    output_dir: OutputDirectory
    dev: Annotated[int, at_least(1)] = 5000
    test: Annotated[int, at_least(1)] = 10_000
    train: Annotated[int | None, at_least(1)] = None
    test_data: InputFile | None = None
    non_toxic_dev: bool = False
    seed: Seed = SEED

    def run(self) -> PromptParts:
        """Read, split, write.

        Raises:
            DataError: naming file, record and field; or a part cannot be filled.
        """
        rows = read_continuation_prompts(self.data)
        test = self.test if self.test_data is None else read_continuation_prompts(self.test_data)
        try:
            parts = split_prompts(
                rows, dev=self.dev, test=test, train=self.train, non_toxic_dev=self.non_toxic_dev, seed=self.seed
            )
        except DataError as error:
            raise error.at(file=self.data) from None
        for name in ("train", "dev", "test"):
            part: tuple[ContinuationPrompt, ...] = getattr(parts, name)
            output = Path(self.output_dir) / f"{name}.jsonl"
            write_jsonl(output, (_row(f"{name}-{number}", row) for number, row in enumerate(part)))
            print(f"{len(part)} prompts -> {output}")
        return parts


def _row(name: str, row: ContinuationPrompt) -> dict[str, object]:
    def scored(text: ScoredText) -> dict[str, object]:
        return {"text": text.text, "toxicity": text.toxicity}

    known = {"prompt": scored(row.prompt), "continuation": scored(row.continuation)}
    return {"id": name, **known, "challenging": row.challenging}
