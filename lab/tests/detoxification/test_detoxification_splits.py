"""Parts of RealToxicityPrompts: no text in two of them, none but non-toxic prompts to test on."""

from __future__ import annotations

from pathlib import Path

import pytest

from finegrained_lab.experiments.detox import SplitPrompts
from finegrained_lab.experiments.detox.splits import PromptParts, split_prompts
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.detoxification.prompts import ContinuationPrompt, ScoredText, read_continuation_prompts
from finegrained_rlhf.feedback.prompt_files import read_prompt_file

AFTER = ScoredText(" and so on.", 0.2)


def prompts(*scores: float | None, name: str = "text") -> list[ContinuationPrompt]:
    return [ContinuationPrompt(ScoredText(f"{name} {i}", score), AFTER, False) for i, score in enumerate(scores)]


ROWS = prompts(*[0.1, 0.9, None, 0.3] * 10)


def texts(parts: PromptParts) -> list[list[str]]:
    return [[row.prompt.text for row in part] for part in (parts.train, parts.dev, parts.test)]


def test_every_text_is_in_one_part() -> None:
    parts = split_prompts([*ROWS, *ROWS[:7]], dev=8, test=6)
    found = [text for part in texts(parts) for text in part]
    assert sorted(found) == sorted(row.prompt.text for row in ROWS)
    assert [len(part) for part in texts(parts)] == [26, 8, 6]
    assert all(row.prompt.is_toxic is False for row in parts.test)
    assert {row.prompt.is_toxic for row in parts.train} == {True, False, None}


def test_of_one_text_the_first_row_counts() -> None:
    again = [ContinuationPrompt(ScoredText(row.prompt.text, 0.99), AFTER, True) for row in ROWS]
    parts = split_prompts([*ROWS, *again], dev=8, test=6)
    assert not any(row.challenging for part in (parts.train, parts.dev, parts.test) for row in part)


def test_a_given_test_part_is_in_no_other() -> None:
    given = [ROWS[0], ROWS[3], *prompts(0.2, name="other")]
    parts = split_prompts(ROWS, dev=8, test=given, train=5)
    train, dev, test = texts(parts)
    assert test == ["text 0", "text 3", "other 0"] and not set(test) & {*train, *dev}
    assert (len(train), len(dev)) == (5, 8)


def test_the_seed_decides_and_dev_may_be_non_toxic() -> None:
    parts = [split_prompts(ROWS, dev=8, test=6, non_toxic_dev=True, seed=seed) for seed in (1, 1, 2)]
    assert texts(parts[0]) == texts(parts[1]) != texts(parts[2])
    assert all(row.prompt.is_toxic is False for row in parts[0].dev)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"dev": 8, "test": 21}, "field test: asked for 21, 20 different non-toxic prompts are left"),
        ({"dev": 35, "test": 6}, "field dev: asked for 35, 34 different prompts are left"),
        ({"dev": 15, "test": 6, "non_toxic_dev": True}, "field dev: asked for 15, 14 different non-toxic prompts"),
        ({"dev": 8, "test": 6, "train": 27}, "field train: asked for 27, 26 different prompts are left"),
    ],
)
def test_no_part_is_smaller_than_was_asked(asked: dict[str, int], said: str) -> None:
    with pytest.raises(DataError, match=said):
        split_prompts(ROWS, **asked)


def test_the_files_are_prompt_files_with_scores(tmp_path: Path) -> None:
    data, parts = tmp_path / "data.jsonl", tmp_path / "parts"
    write_jsonl(
        data,
        [
            {
                "prompt": {"text": row.prompt.text, "toxicity": row.prompt.toxicity},
                "continuation": {"text": AFTER.text, "toxicity": AFTER.toxicity},
                "challenging": row.challenging,
            }
            for row in ROWS
        ],
    )
    made = SplitPrompts(str(data), str(parts), dev=8, test=6).run()
    assert [prompt.text for prompt in read_prompt_file(parts / "dev.jsonl")] == texts(made)[1]
    assert tuple(read_continuation_prompts(parts / "test.jsonl")) == made.test
    with pytest.raises(DataError, match="data.jsonl, field test: asked for 10000"):
        SplitPrompts(str(data), str(parts)).run()
    with pytest.raises(ConfigError, match="dev: expected at least 1, got 0"):
        SplitPrompts(str(data), str(parts), dev=0)
