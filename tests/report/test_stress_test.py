"""The stress test as a job: what it reads, where it writes, and what its page and the doctor make of it."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_json, write_json, write_jsonl
from finegrained_rlhf.core.records import Prompt, SegmentScores
from finegrained_rlhf.metrics.stress import read_stress, stress_table, weak_rewards
from finegrained_rlhf.preflight.doctor.case import Case
from finegrained_rlhf.preflight.doctor.inputs import stress_test
from finegrained_rlhf.report import StressTest, StressTestConfig
from finegrained_rlhf.report.stress.page import stress_page
from finegrained_rlhf.rewards import BaseScorer, RewardConfig
from finegrained_rlhf.rewards.stress import Change, Expectation
from finegrained_rlhf.training.ppo.train import warn_of_weak_rewards
from reward_models.trust.evaluate import stress_part


@dataclass
class Counted(BaseScorer):
    """Pays words, whatever they are."""

    path: str | None = None

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        spans = [((0, len(text)),) for text in responses]
        return SegmentScores(spans, [(float(len(text.split())),) for text in responses], whole_response=True)


@dataclass(frozen=True)
class Shout:
    """A family of one's own; `<b>` is to be seen on the page, not obeyed."""

    name: str = "shout <b>"
    family: str = "tone"

    def __call__(self, record: Any, answer: str, others: Any, random: Any) -> Change:
        expected = (Expectation("total", "fall"), Expectation("mine", "fall", None, (0, 3)))
        return Change(self.name, self.family, record.id, answer, f"{answer} NOW!", "gold", expected)


def feedback(directory: Path, count: int = 4) -> Path:
    """A feedback file whose first answer is marked."""
    names = ["Anna Lind", "Karl Ott", "Mia Vogt", "Paul Kern", "Nina Roth"][:count]
    rows = [
        {
            "question": f"When was the town of {name.split()[1]} founded?",
            "passages": [[name, f"{name} founded the town in {1850 + i}.", f"Its {i} parks lie near <i>Port Ulm</i>."]],
            "gold": f"{name} founded the town in {1850 + i}. It was small.",
            "prediction 1": "Nobody knows.",
            "prediction 2": f"{name} founded the town in {1850 + i}.",
            "prediction 3": "It was founded.",
            "feedback": {"errors": [], "missing-info": [], "corrected-prediction": "Nobody knows."},
        }
        for i, name in enumerate(names)
    ]
    write_json(directory / "feedback.json", rows)
    return directory / "feedback.json"


def job(data: Path, **keys: Any) -> StressTest:
    reward = keys.pop("reward", RewardConfig({"mine": Counted()}, {"mine": 1.0}))
    small = StressTestConfig(**{"edits": 10, "roles": {"mine": "relevance"}, **keys.pop("stress_test", {})})
    return StressTest(reward=reward, data=str(data), stress_test=small, **keys)


def test_the_report_has_its_keys_and_goes_beside_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "model"
    model.mkdir()
    reward = RewardConfig({"mine": Counted(str(model))}, {"mine": 1.0})
    values = job(feedback(tmp_path), reward=reward, stress_test={"families": [Shout()]}, format="json").run()
    written = read_json(model / "stress.json")
    assert json.loads(capsys.readouterr().out) == written == json.loads(json.dumps(values))
    assert written.keys() >= {"changes", "leakage", "search", "worst", "data", "seed", "version"}
    repeated = written["changes"]["repeated_sentence"]
    assert (repeated["ranked_right"], repeated["family"]) == (0.0, "copy") and 4 <= repeated["pairs"] <= 8
    assert repeated["components"]["relevance"].keys() == {"pairs", "ranked_right", "low", "high"}
    assert written["search"]["bought"] == 1 and written["search"]["calls"] == 10 and written["search"]["examples"]
    assert written["compared_with"] == "the file's own answers" and written["questions"] == 4
    assert written["changes"]["shout <b>"]["components"].keys() == {"total", "mine"}
    page = (model / "stress.html").read_text()
    assert (
        "shout &lt;b&gt;" in page
        and "<b>NOW" not in page
        and "<mark>" in page
        and "http:" not in page
        and "https:" not in page
    )
    assert "price" in page and "| repeated_sentence" in stress_part(str(model)) and "none" in stress_part(str(tmp_path))


def test_a_report_of_other_weights_says_only_that(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    weights = tmp_path / "run" / "model" / "model.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"first")
    scorers = {"mine": Counted(str(tmp_path / "run"))}
    job(feedback(tmp_path), reward=RewardConfig(scorers, {"mine": 1.0}), format="json").run()
    before = read_stress(tmp_path / "run")
    assert before is not None and not before["other_weights"] and weak_rewards({"mine": before})["mine"][0].severe
    inner = read_stress(weights.parent)
    assert inner is not None and not inner["other_weights"], "the model of the run is the same one"
    weights.write_bytes(b"second")
    warn_of_weak_rewards(scorers)
    (message,) = caplog.messages
    assert message.startswith("mine: by its stress.json it was attacked with other weights than it has now")
    (found,) = stress_test(Case({}, scorers=scorers))  # type: ignore[arg-type]
    assert found.status == "warn" and "other weights" in found.measured
    assert "other weights" in stress_part(str(tmp_path / "run")) and "|" not in stress_part(str(tmp_path / "run"))


def test_any_file_with_gold_answers_is_read_and_samples_are_what_the_price_is_among(tmp_path: Path) -> None:
    prompts = [
        {
            "question": f"Where is {name}?",
            "passages": [[name, f"{name} is in Peru."]],
            "answer": [f"{name} is in Peru."],
        }
        for name in ("Limo", "Cuzca", "Pisa")
    ]
    write_jsonl(tmp_path / "prompts.jsonl", prompts)
    outputs = [{**row, "passages": [], "outputs": ["Somewhere.", "x " * 40]} for row in prompts[:2]]
    write_jsonl(tmp_path / "samples.jsonl", outputs)
    output = tmp_path / "r.json"
    alone = job(tmp_path / "prompts.jsonl", output=str(output)).run()
    assert alone["search"]["bought"] is None and alone["compared_with"] == "gold answers"
    assert "not searched for" in stress_table(alone)
    sampled = job(tmp_path / "prompts.jsonl", output=str(output), samples=str(tmp_path / "samples.jsonl")).run()
    assert sampled["search"]["questions"] == 2 and sampled["compared_with"] == "sampled answers"
    assert output.is_file() and output.with_suffix(".html").is_file()
    one = job(tmp_path / "prompts.jsonl", output=str(output), records=1).run()
    assert one["questions"] == 1 and one["changes"]["filler"]["low"] is None
    assert str(stress_page(one)).startswith("<!DOCTYPE html>")


def test_what_does_not_fit_is_refused_before_anything_is_scored(tmp_path: Path) -> None:
    data = feedback(tmp_path)
    with pytest.raises(ConfigError, match="output: no component has a model's directory"):
        job(data).run()
    with pytest.raises(ConfigError, match="samples, checkpoint"):
        job(data, samples="a", checkpoint="b")
    with pytest.raises(ConfigError, match="stress_test.families"):
        StressTestConfig(families=["fillers"])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="built_in=false"):
        StressTestConfig(built_in=False)
    write_jsonl(tmp_path / "other.jsonl", [{"question": "Who?", "passages": [], "outputs": ["I."]}])
    with pytest.raises(DataError, match="no answer to any question"):
        job(data, output=str(tmp_path / "r.json"), samples=str(tmp_path / "other.jsonl")).run()
    assert not (tmp_path / "r.json").exists()


def row(share: float, low: float, high: float) -> dict[str, Any]:
    return {"pairs": 40, "ranked_right": share, "low": low, "high": high}


def written(directory: Path, share: float, high: float, sold: float = 0.0) -> Path:
    directory.mkdir(exist_ok=True)
    change = {"family": "swap", "direction": "fall", **row(share, share, high)}
    total = {**change, "components": {"factuality": row(share, share, high)}}
    search = {
        "bought": sold,
        "above_median": sold,
        "low": sold,
        "high": sold,
        "questions": 9,
        "calls": 9,
        "examples": [],
    }
    write_json(
        directory / "stress.json",
        {"changes": {"swap_name": total}, "search": search, "compared_with": "x", "roles": {"f": "factuality"}},
    )
    return directory


@pytest.mark.parametrize(
    ("share", "high", "sold", "statuses"),
    [
        (0.9, 0.95, 0.1, ["pass", "pass"]),
        (0.7, 0.75, 0.0, ["warn", "pass"]),
        (0.3, 0.6, 0.2, ["warn", "warn"]),
        (0.3, 0.4, 0.9, ["fail", "fail"]),
    ],
)
def test_the_doctor_warns_and_refuses(
    tmp_path: Path, share: float, high: float, sold: float, statuses: list[str]
) -> None:
    path = written(tmp_path / "model", share, high, sold)
    scorers = {"f": SimpleNamespace(path=str(path)), "rule": SimpleNamespace()}
    found = list(stress_test(Case({}, scorers=scorers)))  # type: ignore[arg-type]
    assert [finding.status for finding in found] == statuses
    other = list(stress_test(Case({}, scorers={"tone": SimpleNamespace(path=str(path))})))  # type: ignore[arg-type]
    assert [finding.measured.partition(":")[0] for finding in other] == ["total"], "it says nothing of `tone`"
    allowed = list(stress_test(Case({"allow_weak_rewards": True}, scorers=scorers)))  # type: ignore[arg-type]
    assert "fail" not in [finding.status for finding in allowed]
    if statuses[0] == "fail":
        assert "allow_weak_rewards=true" in found[0].mend and "swap_name is ranked right in 30%" in found[0].measured


def test_a_run_warns_once_of_each_weak_component(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    weak = SimpleNamespace(path=str(written(tmp_path / "weak", 0.3, 0.4)))
    strong = SimpleNamespace(path=str(written(tmp_path / "strong", 0.9, 0.95)))
    with caplog.at_level(logging.WARNING):
        warn_of_weak_rewards({"f": weak, "other": SimpleNamespace(path=str(tmp_path)), "rule": SimpleNamespace()})
        warn_of_weak_rewards({"f": strong})
    (message,) = caplog.messages
    assert message.startswith("f: by its stress.json swap_name is ranked right in 30% (30% to 40%)")


def test_a_model_without_a_stress_test_is_named_and_a_broken_file_too(tmp_path: Path) -> None:
    scorers = {"f": SimpleNamespace(path=str(tmp_path))}
    (found,) = stress_test(Case({}, scorers=scorers))  # type: ignore[arg-type]
    assert found.status == "skipped" and "beside the model of f" in found.measured and "stress-test" in found.mend
    assert read_stress(tmp_path) is None and weak_rewards({"f": None}) == {}
    for broken in (
        {"changes": 3},
        [],
        {"changes": {"a": {"components": {"b": {}}}}},
        {"changes": {}, "search": {"bought": 1}},
    ):
        write_json(tmp_path / "stress.json", broken)
        with pytest.raises(DataError, match="expected the report of a stress test"):
            read_stress(tmp_path)
    inner = written(tmp_path / "run", 0.9, 0.9) / "model"
    inner.mkdir()
    assert read_stress(inner) is not None, "a model's directory lies in its run"
