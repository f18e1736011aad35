"""Files of RealToxicityPrompts: what is read, what is counted, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from script_runs import run_script

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.detoxification.prompts import PromptCounts, count_prompts, read_continuation_prompts

SAMPLE = Path(__file__).parents[3] / "shared" / "data" / "realtoxicityprompts" / "sample_4000.jsonl"


def row(prompt: str, toxicity: float | None, continuation: float | None = 0.1, challenging: bool = False) -> dict:
    """As published, with the fields that are not read."""
    more = {"profanity": None, "insult": 0.2}
    return {
        "filename": "1-of-1.txt",
        "begin": 340,
        "end": 564,
        "challenging": challenging,
        "prompt": {"text": prompt, "toxicity": toxicity, **more},
        "continuation": {"text": " and so on.", "toxicity": continuation, **more},
    }


ROWS = [
    row("The weather", 0.1),
    row("You are", 0.5, None, challenging=True),
    row("The weather", 0.7),
    row("A plain", None, 1),
    row("The weather", 0.49999, None),
]


def test_rows_are_counted(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "rows.jsonl", ROWS)
    rows = read_continuation_prompts(tmp_path / "rows.jsonl")
    assert [r.prompt.toxicity for r in rows] == [0.1, 0.5, 0.7, None, 0.49999]
    assert [r.prompt.is_toxic for r in rows] == [False, True, True, None, False]
    assert (rows[3].continuation.toxicity, rows[3].continuation.text) == (1.0, " and so on.")
    assert count_prompts(rows) == PromptCounts(5, 2, 2, 1, 2, 1, 2)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"challenging": None}, "field challenging: expected true or false, got None"),
        ({"prompt": "The weather"}, "field prompt: expected an object, got str"),
        ({"prompt": {"text": "", "toxicity": 0.1}}, "field prompt.text: expected some text, got an empty string"),
        ({"prompt": {"text": " \n", "toxicity": 0.1}}, "expected some text, got nothing but white space"),
        ({"prompt": {"toxicity": 0.1}}, r"field prompt.text: missing field \(fields present: toxicity\)"),
        ({"continuation": {"text": "x"}}, "field continuation.toxicity: missing field"),
        ({"continuation": {"text": "x", "toxicity": 1.2}}, "from 0 to 1 or null, got 1.2"),
        ({"continuation": {"text": "x", "toxicity": True}}, "from 0 to 1 or null, got True"),
        ({"prompt": {"text": "x", "toxicity": "high"}}, "from 0 to 1 or null, got 'high'"),
    ],
)
def test_a_broken_row_is_named(broken: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "rows.jsonl", [ROWS[0], {**ROWS[1], **broken}])
    with pytest.raises(DataError, match=f"rows.jsonl, record 1, .*{message}"):
        read_continuation_prompts(tmp_path / "rows.jsonl")


def test_a_file_without_rows(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("")
    with pytest.raises(DataError, match="no record, expected one a line"):
        read_continuation_prompts(tmp_path / "rows.jsonl")


@pytest.mark.scripts
def test_the_script_prints_counts_and_no_text(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "rows.jsonl", ROWS)
    done = run_script("inspect_prompts", f"data={tmp_path}/rows.jsonl", "format=json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["rows"] == 5 and found["duplicate_prompts"] == 2
    table = run_script("inspect_prompts", f"data={tmp_path}/rows.jsonl")
    assert table.stdout.split("\n")[5].split() == ["challenging", "1"] and "weather" not in table.stdout


@pytest.mark.slow
@pytest.mark.skipif(not SAMPLE.is_file(), reason="needs the real sample beside the repository")
def test_the_real_sample_has_the_published_counts() -> None:
    assert count_prompts(read_continuation_prompts(SAMPLE)) == PromptCounts(4000, 2990, 995, 15, 6, 39, 27)
