"""Drift: each component against the oracle on sampled responses, worked out by hand, and input that does not fit."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from finegrained_lab.experiments.factworld.drift import (
    MeasureDrift,
    OracleAgreement,
    error_claims,
    factuality_verdicts,
    fewer_errors,
    given_share,
    relevance_verdicts,
)
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, write_jsonl
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.factworld.make import MakeFactWorld
from finegrained_rlhf.factworld.oracle import judge_answer
from finegrained_rlhf.feedback.reading import write_examples
from finegrained_rlhf.feedback.records import QAExample
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.directory.samples import read_marks
from finegrained_rlhf.text.segmentation import SpacySegmenter

SEGMENTER = SpacySegmenter()
PASSAGE = Passage("", "Arlo", ("The color of Arlo is blue. The city of Arlo is Rome. The job of Arlo is pilot.",))
QUESTION = "What are the color and the city of Arlo?"
EXAMPLES = [QAExample(name, QUESTION, "task", ("gold",), (PASSAGE,)) for name in ("a", "b")]
GOOD = "The color of Arlo is blue. The city of Arlo is Rome."
WRONG = "The color of Arlo is red, and the job of Arlo is pilot."  # C2 and C1 in one sentence; the city is missing
RAMBLING = "The color of Arlo is blue. The job of Arlo is pilot."  # C1 in the second sentence; the city is missing


def judged(text: str) -> Any:
    return judge_answer(QUESTION, [PASSAGE], text, SEGMENTER)


def test_verdicts_by_hand() -> None:
    assert list(relevance_verdicts(judged(WRONG)).items()) == [((0, 25), False), ((26, 55), True)]
    assert list(factuality_verdicts(judged(WRONG)).items()) == [((0, 55), True)]
    assert list(factuality_verdicts(judged(RAMBLING)).values()) == [False, None]  # a C1 error alone says nothing
    assert [given_share(judged(text)) for text in (GOOD, WRONG, RAMBLING, "")] == [1.0, 0.5, 0.5, 0.0]
    assert [fewer_errors(judged(text)) for text in (GOOD, WRONG, RAMBLING)] == [0, -3, -2]


def test_verdicts_count_what_the_oracle_counts() -> None:
    """Errors and denominators are those of the true error rates, on answers of the imperfect writer."""
    world = MakeFactWorld("unused", seed=5, train=0, dev=0, test=0, sft_train=200, sft_dev=0)
    seen = set()
    for item, answer in world.draw()["sft_train"]:
        judgement = judge_answer(item.question, [Passage("", item.entity, item.sentences)], answer, SEGMENTER)
        relevance, factuality = relevance_verdicts(judgement).values(), factuality_verdicts(judgement).values()
        assert (sum(relevance), len(relevance)) == (judgement.relevance_errors, len(judgement.sub_sentences))
        assert sum(verdict is True for verdict in factuality) == judgement.factual_errors
        assert sum(verdict is not None for verdict in factuality) == judgement.judged_sentences
        seen |= set(factuality)
    assert seen == {True, False, None}


def segments(text: str, **values: Any) -> list[dict[str, Any]]:
    """The segments of a sample: `relevance` and `factuality` one value a segment, any other one a response."""
    cut = {"relevance": SEGMENTER.sub_sentences(text), "factuality": SEGMENTER.sentences(text)}
    rows = []
    for name, given in values.items():
        spans = cut.get(name, [(0, len(text))])
        raws = given if isinstance(given, list) else [given]
        rows += [
            {"component": name, "start": start, "end": end, "raw": raw, "weighted": 0.3 * raw}
            for (start, end), raw in zip(spans, raws, strict=True)
        ]
    return rows


def sample(name: str, text: str, **values: Any) -> dict[str, Any]:
    return {"id": name, "prompt": "task", "response": text, "segments": segments(text, **values)}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    (path / "samples").mkdir(parents=True)
    write_examples(tmp_path / "train.json", EXAMPLES)
    component = {"_target_": "reward_models.scorers.SegmentScorer", "path": "x", "granularity": "sentence"}
    config = {"data": str(tmp_path / "train.json"), "reward": {"components": {"factuality": component}}}
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    return path


def keep(run: Path, step: int, *rows: dict[str, Any]) -> None:
    write_jsonl(run / "samples" / f"step_{step}.jsonl", rows)


def test_agreement_by_hand(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(
        run,
        1,
        sample("a", GOOD, relevance=[1.0, -1.0], factuality=[1.0, 1.0], completeness=0.3, preference=2.0),
        sample("a", WRONG, relevance=[1.0, -1.0], factuality=[-1.0], completeness=0.9, preference=0.1),
        sample("a", RAMBLING, relevance=[1.0, 1.0], factuality=[-1.0, -1.0], completeness=0.3, preference=0.1),
        sample("b", GOOD, relevance=[1.0, 1.0], factuality=[1.0, 1.0], completeness=-5.0, preference=-5.0),
    )
    keep(run, 10, sample("b", GOOD, relevance=[1.0, 1.0], factuality=[1.0, 1.0], completeness=1.0, preference=1.0))
    keep(run, 9, sample("b", "", completeness=1.0, preference=1.0))
    (run / "samples" / "validation_step_1.jsonl").write_text("not read\n")
    report = MeasureDrift(str(run)).run()
    assert report == read_json(run / "drift.json")
    assert report["oracle"] == "factworld" and report["not_comparable"] == []
    parts = report["components"]
    # Errors: the second pieces of WRONG (found) and RAMBLING (missed); the second of the first GOOD is a false alarm.
    assert parts["relevance"][0] == vars(OracleAgreement(1, 8, 6 / 8, 1 / 2, 1 / 2, 1 / 2, 1 / 6, errors=2, claims=2))
    # RAMBLING's second sentence is left out, its first is a false alarm.
    assert parts["factuality"][0] == vars(OracleAgreement(1, 6, 5 / 6, 1 / 2, 1.0, 2 / 3, 1 / 5, errors=1, claims=2))
    # GOOD is more complete than WRONG (ranked the other way) and RAMBLING (equal scores); these two are alike.
    assert parts["completeness"][0] == vars(OracleAgreement(1, 2, 0.0))
    # 0 > −2 > −3 errors: GOOD above both (right), RAMBLING above WRONG (equal scores).
    assert parts["preference"][0] == vars(OracleAgreement(1, 3, 2 / 3))
    assert [row["step"] for row in parts["relevance"]] == [1, 10]
    assert [row["step"] for row in parts["preference"]] == [1, 9, 10]
    assert parts["relevance"][1] == vars(OracleAgreement(10, 2, 1.0, None, None, None, 0.0, errors=0, claims=0))
    assert parts["preference"][1] == vars(OracleAgreement(9, 0, None))
    page = capsys.readouterr().out
    assert "relevance, step 1 → 10: agreement 0.750 → 1.000, recall 0.500 → –, false alarm rate 0.167 → 0.000" in page
    assert "completeness, step 1 → 10: agreement 0.000 → –\n" in page and "drift.json" in page


def test_the_errors_of_every_kept_answer_are_marked(run: Path, tmp_path: Path) -> None:
    config = yaml.safe_load((run / "config.yaml").read_text()) | {"validation_data": str(tmp_path / "train.json")}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    keep(run, 1, sample("a", GOOD, preference=1.0), sample("a", WRONG, preference=0.0))
    rows = [sample("b", RAMBLING, preference=1.0), sample("unknown", GOOD, preference=1.0)]
    write_jsonl(run / "samples" / "validation_step_0.jsonl", rows)
    MeasureDrift(str(run)).run()
    marks = read_marks(RunDirectory(run))
    assert list(marks) == [("a", GOOD), ("a", WRONG), ("b", RAMBLING)] and marks["a", GOOD] == []
    shown = {key: [(m.start, m.end, m.label[-4:]) for m in found] for key, found in marks.items()}
    assert shown["a", WRONG] == [(0, 25, "(C2)"), (26, 55, "(C1)")] and shown["b", RAMBLING] == [(27, 52, "(C1)")]
    assert all(len(m.label) > len(" (C1)") for found in marks.values() for m in found)


def test_components_that_the_oracle_does_not_know_are_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(run, 1, sample("a", GOOD, relevance=[1.0, 1.0], politeness=0.5, length=-1.0))
    report = MeasureDrift(str(run)).run()
    assert list(report["components"]) == ["relevance"] and report["not_comparable"] == ["length", "politeness"]
    assert "not comparable with the oracle: length, politeness" in capsys.readouterr().out


def test_rewards_of_other_sizes_are_read_as_the_scorer_gives_them(run: Path) -> None:
    assert [error_claims({})(value) for value in (-1.0, -0.1, 0.0, 1.0)] == [True, True, False, False]
    assert [error_claims({"positive": 0.0, "negative": -2.0})(value) for value in (-2.0, 0.0)] == [True, False]
    assert [error_claims({"positive": 3.0, "negative": 1.0})(value) for value in (1.0, 3.0)] == [True, False]
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["reward"]["components"]["factuality"] |= {"positive": 2.0, "negative": 0.5}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    keep(run, 1, sample("a", WRONG, factuality=[0.5]), sample("a", GOOD, factuality=[2.0, 2.0]))
    (row,) = MeasureDrift(str(run)).run()["components"]["factuality"]
    assert (row["agreement"], row["claims"], row["errors"]) == (1.0, 1, 1)


def test_chance_scores_agree_by_chance(run: Path) -> None:
    """A random scorer orders half of the pairs as the oracle does."""
    rng = random.Random(0)
    rows = [sample("a", rng.choice([GOOD, WRONG, RAMBLING]), preference=rng.random()) for _ in range(120)]
    keep(run, 1, *rows)
    (row,) = MeasureDrift(str(run)).run()["components"]["preference"]
    assert row["items"] > 3000 and abs(row["agreement"] - 0.5) < 0.1


def test_what_does_not_fit_is_one_clear_error(run: Path, tmp_path: Path) -> None:
    job = MeasureDrift(str(run))
    with pytest.raises(DataError, match=r"samples: no step_N\.jsonl here"):
        job.run()
    keep(run, 1, sample("zoe", GOOD))
    with pytest.raises(DataError, match=r"step_1\.jsonl, record 0, field id: no prompt 'zoe'.*data=FILE"):
        job.run()
    cut = sample("a", GOOD, relevance=[1.0, 1.0])
    cut["segments"][0]["end"] -= 1
    keep(run, 1, cut)
    with pytest.raises(DataError, match=r"step_1\.jsonl, record a, field segments: relevance scored the segments"):
        job.run()
    keep(run, 1, sample("a", GOOD, preference=1.0), sample("a", GOOD))
    with pytest.raises(DataError, match=r"record a, field segments: expected one value of preference a response"):
        job.run()
    broken = sample("a", GOOD, relevance=[1.0, 1.0])
    del broken["segments"][1]["raw"]
    keep(run, 1, broken)
    with pytest.raises(DataError, match=r"record 0, field segments\[1\]\.raw: missing field"):
        job.run()
    with pytest.raises(DataError, match=r"config\.yaml: no such file"):
        MeasureDrift(str(tmp_path)).run()
    assert not (run / "drift.json").exists()


def test_a_task_that_is_no_factworld_is_refused(run: Path, tmp_path: Path) -> None:
    write_examples(tmp_path / "other.json", [QAExample("a", "Why is it cold?", "task", ("gold",), (PASSAGE,))])
    keep(run, 1, sample("a", GOOD, relevance=[1.0, 1.0]))
    with pytest.raises(DataError, match=r"other\.json, record a, field question: expected `What are"):
        MeasureDrift(str(run), data=str(tmp_path / "other.json")).run()
