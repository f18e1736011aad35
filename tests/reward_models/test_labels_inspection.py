import json
from pathlib import Path

import pytest
from feedback_samples import LAKE, record
from script_runs import run_script

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.feedback.reading import write_feedback
from reward_models.data.inspection import InspectFeedback, agreement_with
from reward_models.pairs import CompletenessConfig, ordered_pairs

WIDE, COLD, SWIM = LAKE.sentences


def test_real_file(shared_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    InspectFeedback(str(shared_data / "qa_feedback/dev_feedback.json"), format="json", segmenter="rules").run()
    report = json.loads(capsys.readouterr().out)
    assert report["relevance"] == {"examples": 400, "has_error": 1131, "no_error": 1052}
    assert report["factuality"] == {"examples": 347, "has_error": 218, "no_error": 418}
    assert report["completeness"] == {"examples": 352, "first": 531, "second": 328, "ties": 1253}
    assert report["preference"] == {"examples": 400, "first": 1293, "second": 811, "ties": 296}
    assert report["span_types"]["Irrelevant"] == 746 and sum(report["span_types"].values()) == 1110
    assert sum(report["missing_info_types"].values()) == 659


@pytest.fixture
def small(tmp_path: Path) -> str:
    """Two records: completeness orders all four answers of the first, and no answers of the second."""
    first = record(f"{WIDE} {COLD}", [(COLD, "Irrelevant")], (SWIM, WIDE, "No."), f"{WIDE} {COLD}", name="1")
    write_feedback(tmp_path / "small.json", [first, record("It is.", correction="", name="2")])
    return str(tmp_path / "small.json")


def test_small_file_as_json_and_as_table(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    InspectFeedback(small, format="json").run()
    report = json.loads(capsys.readouterr().out)
    assert report["relevance"] == {"examples": 2, "has_error": 1, "no_error": 2}
    assert report["factuality"] == {"examples": 2, "has_error": 0, "no_error": 2}
    assert report["completeness"] == {"examples": 1, "first": 4, "second": 1, "ties": 1}
    assert report["preference"] == {"examples": 2, "first": 4, "second": 4, "ties": 4}
    assert report["agreement"]["completeness"] == {"compared": 4, "agree": 1, "share": 0.25}
    InspectFeedback(small, completeness=CompletenessConfig("token_f1")).run()
    table = capsys.readouterr().out
    for words in ("2 examples", "Irrelevant", "Missing-Answer", "relevance", "completeness", "longer answer"):
        assert words in table


def test_agreement_by_hand() -> None:
    row = record(WIDE)
    human = ordered_pairs(row, (1, 1, 2, 0, 0, 1))
    other = ordered_pairs(row, (1, 2, 0, 1, 0, 1))
    agreement = agreement_with(human, other)
    assert (agreement.compared, agreement.agree, agreement.share) == (3, 2, 0.6667)
    assert agreement_with(human, []).share is None


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        InspectFeedback(str(tmp_path / "none.json")).run()
    with pytest.raises(ConfigError, match="format: expected one of table, json"):
        InspectFeedback("x", format="xml")  # type: ignore[arg-type]


@pytest.mark.scripts
def test_the_script_prints_json_alone(small: str) -> None:
    done = run_script("inspect_feedback", f"data={small}", "format=json", "completeness.matching=token_f1")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["relevance"] == {"examples": 2, "has_error": 1, "no_error": 2}
