"""Best of n over a pool, by hand; what is taught; the demo's table and its page of answers."""

from __future__ import annotations

import itertools
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from finegrained_lab.experiments.qa_feedback.distilled import pool
from finegrained_lab.experiments.qa_feedback.distilled.credit import RealCreditTable
from finegrained_lab.experiments.qa_feedback.distilled.demo import DemoRealTable, answers_page, exported_words
from finegrained_lab.experiments.qa_feedback.distilled.expert import ExpertIterationTable
from finegrained_lab.experiments.qa_feedback.distilled.pool import TeachBest, best_of_n
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import write_json, write_jsonl
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.outputs import OutputRecord, write_outputs
from finegrained_rlhf.feedback.reading import read_examples

PASSAGES = (Passage("Lake", "Lake Onega", ("Lake Onega lies in Russia.", "It is 120 metres deep.")),)


class Words:
    """A bottleneck that pays for the share of an answer's words that the passages have."""

    def source(self, question: str, passages: Any) -> str:
        return " ".join(passage.text for passage in passages)

    def features(self, component: str, source: str, answer: str) -> Any:
        share = fmean(word.strip(".") in source for word in answer.split() or ["?"])
        return np.array([share, share / 2, share / 4])

    def score(self, component: str, source: str, answer: str) -> float:
        return float(self.features(component, source, answer)[0])

    def cut(self, component: str, answer: str) -> list[tuple[int, int]]:
        return [(0, len(answer))] if answer else []

    def errors(self, component: str, source: str, segments: list[str]) -> Any:
        return np.array([1 - self.score(component, source, text) for text in segments])


@pytest.fixture(autouse=True)
def _words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reward_models.bottleneck.model.load_bottleneck", lambda path, device="cpu": Words())


def samples(path: Path, *outputs: str) -> str:
    records = [
        OutputRecord(f"q{i}", f"How deep is lake {i}?", PASSAGES, ("It is 120 metres deep.",), f"question {i}", outputs)
        for i in range(3)
    ]
    write_outputs(path, records)
    return str(path)


def test_best_of_n_is_the_mean_over_all_subsets() -> None:
    rewards, values = [0.3, 0.9, 0.9, -1.0, 0.1], [5.0, 1.0, 2.0, 3.0, 4.0]
    for n in range(1, 6):
        chosen = [max(of, key=lambda i: (rewards[i], i)) for of in itertools.combinations(range(5), n)]
        assert best_of_n(rewards, values, n) == pytest.approx(fmean(values[i] for i in chosen))
    assert best_of_n(rewards, [None, 1.0, None, 3.0, None], 4) == 1.0 and best_of_n([1.0], [None], 1) is None


def test_only_finished_samples_are_taught(tmp_path: Path) -> None:
    path = samples(tmp_path / "s.jsonl", "It is 120 metres", "It is green.", "It is 120 metres deep.")
    job = TeachBest(path, "reward", str(tmp_path / "best.json"))
    assert job.run() == {"questions": 3, "taught": 3}
    assert {example.references for example in read_examples(tmp_path / "best.json")} == {("It is 120 metres deep.",)}
    longest = TeachBest(
        samples(tmp_path / "l.jsonl", "Yes.", "It is."), "reward", str(tmp_path / "l.json"), by="length"
    )
    assert longest.run()["taught"] == 3
    assert {example.references for example in read_examples(tmp_path / "l.json")} == {("It is.",)}
    with pytest.raises(ConfigError, match="by: expected one of bottleneck, .*, got 'gold recall'"):
        TeachBest(path, "reward", "x", by="gold recall")
    with pytest.raises(DataError, match="no sample ends as a sentence does"):
        TeachBest(samples(tmp_path / "cut.jsonl", "It is"), "reward", str(tmp_path / "none.json")).run()


def test_expert_iteration_beside_chance_and_the_best_of_n(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = ExpertIterationTable(
        str(tmp_path / "x.json"), "the command", directory=str(tmp_path / "runs"), arms=["bottleneck", "chance"],
        answers=str(tmp_path / "answers.html"), chosen="Nothing.",
    )  # fmt: skip
    with pytest.raises(DataError, match="no arm has answered the questions of every fold"):
        table.run()
    for fold in (1, 3):
        place = tmp_path / "runs" / "seed_0" / f"fold_{fold}"
        for name in ("start", "bottleneck", "chance"):
            (place / name).mkdir(parents=True)
        samples(place / "start" / "sft.jsonl", "It is green.", "It is 120 metres deep.")
        samples(place / "bottleneck" / "round_3.jsonl", "It is 120 metres deep.", "It is 120 metres")
        samples(place / "chance" / "round_3.jsonl", "It is green.", "It is green.")
    result = table.run()
    rows = {row["system"]: row for row in result["rows"]}
    assert result["seeds"] == [0] and {row["seed"] for row in result["rows"] + result["goals"]} == {0}
    assert "one seed of training (0)" in (tmp_path / "x.md").read_text()
    assert list(rows)[:4] == ["sft", "sft, best of 2", "bottleneck", "bottleneck, best of 2"] and "gold" in rows
    assert result["questions"] == 6 and rows["sft"]["facts/recalled"] == 0.5 and rows["chance"]["finished"] == 1.0
    assert rows["bottleneck"]["facts/recalled"] == rows["bottleneck"]["judge"] == 1.0
    reached = {goal["goal"]: goal["reached"] for goal in result["goals"]}
    assert reached["finished"] is False and sum(reached.values()) == 4
    assert {row["system"] for row in result["differences"]} >= {"bottleneck − sft", "bottleneck − chance"}
    best = {(row["reward"], row["n"]): row for row in result["curves"]}
    assert {name for name, _ in best} == {"bottleneck", *pool.PARTS, "length", "chance", "gold recall", "judge"}
    assert best["bottleneck", 1]["facts/recalled"] == 0.5 and best["bottleneck", 2]["itself"] == 1.0
    assert result["curves_of"] == {"questions": 6, "samples": 2}
    wide = ("It is green.", "It is 120 metres deep.", "It is blue.", "It is red.")
    samples(tmp_path / "runs" / "seed_0" / "fold_3" / "start" / "wide.jsonl", *wide)
    wider = table.run()
    assert wider["curves_of"] == {"questions": 3, "samples": 4} and wider["rows"] == result["rows"]
    best = {(row["reward"], row["n"]): row for row in wider["curves"]}
    assert best["bottleneck", 1]["facts/recalled"] == 0.25 and best["bottleneck", 4]["facts/recalled"] == 1.0
    assert "4 samples of each of 3 questions" in (tmp_path / "x.md").read_text()
    assert "## Does the judge count?" in (tmp_path / "x.md").read_text()
    other = OutputRecord("x", "Why?", PASSAGES, ("So.",), "q", ("No.",))
    write_outputs(tmp_path / "runs" / "seed_0" / "fold_3" / "chance" / "round_3.jsonl", [other])
    with pytest.raises(DataError, match="expected answers to SFT's questions"):
        table.run()
    samples(tmp_path / "runs" / "seed_0" / "fold_3" / "chance" / "round_3.jsonl", "It is green.", "It is green.")
    (tmp_path / "runs" / "seed_0" / "fold_1" / "bottleneck" / "round_3.jsonl").unlink()
    assert table.run()["goals"] == []  # an arm that a fold lacks is left out
    capsys.readouterr()


def test_seeds_stand_side_by_side_and_are_drawn_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = ExpertIterationTable(
        str(tmp_path / "x.json"), "the command", directory=str(tmp_path / "runs"), arms=["bottleneck"],
        answers=str(tmp_path / "answers.html"), chosen="Nothing.",
    )  # fmt: skip
    for seed, said in ((0, "It is 120 metres deep."), (1, "It is green."), (2, "It is 120 metres deep.")):
        place = tmp_path / "runs" / f"seed_{seed}" / "fold_4"
        for name in ("start", "bottleneck"):
            (place / name).mkdir(parents=True)
        samples(place / "start" / "sft.jsonl", "It is green.", "It is green.")
        samples(place / "bottleneck" / "round_3.jsonl", said, said)
    result = table.run()
    assert result["seeds"] == [0, 1, 2] and result["questions"] == 3  # not nine
    rows = {(row["system"], row["seed"]): row for row in result["rows"]}
    assert [rows["bottleneck", seed]["facts/recalled"] for seed in (0, 1, 2)] == [1.0, 0.0, 1.0]
    gained = next(row for row in result["differences"] if row["system"] == "bottleneck − sft")["facts/recalled"]
    assert gained == [pytest.approx(2 / 3), 0.0, 1.0]  # questions agree: all of it is the spread of seeds
    finished = [goal for goal in result["goals"] if goal["goal"] == "finished"]
    assert [(goal["seed"], goal["reached"]) for goal in finished] == [(0, True), (1, True), (2, True)]
    page = (tmp_path / "x.md").read_text()
    assert "seeds 0, 1, 2 of training" in page and "intervals over questions and seeds" in page
    assert "## Mean ± standard deviation over seeds" in page and "0.667 ± 0.577" in page
    (tmp_path / "runs" / "seed_2" / "fold_4").rename(tmp_path / "runs" / "seed_2" / "fold_3")
    with pytest.raises(DataError, match="expected fold_4 of seed 2 as of 0"):
        table.run()
    capsys.readouterr()


def test_when_the_same_reward_is_paid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A system's point is the one that recalls most on dev questions, whatever it does on test questions."""
    runs, start = tmp_path / "runs", tmp_path / "start"
    table = RealCreditTable(
        str(tmp_path / "c.json"), "the command", directory=str(runs), start=str(start), credits=["outcome"], lrs=[1e-4],
        betas=[0.02, 0.1], chosen="Nothing.",
    )  # fmt: skip
    write_json(start / "judge" / "stress.json", {"changes": {}})
    samples(start / "dev.jsonl", "It is green.", "It is blue.")
    samples(start / "sft.jsonl", "It is green.", "It is 120 metres deep.")
    right, wrong = "It is 120 metres deep.", "It is green."
    for beta, dev, test in ((0.02, right, wrong), (0.1, wrong, right)):
        name = f"outcome_lr0.0001_beta{beta}"
        with pytest.raises(DataError, match=f"{name}_dev.jsonl: this point of the grid has not answered yet"):
            table.run()
        rows = [{"step": i, "reward/total": float(i), "kl": 0.5, "gradient_norm": 1.0} for i in range(12)]
        write_jsonl(runs / name / "metrics.jsonl", rows)
        samples(runs / f"{name}_dev.jsonl", dev, dev)
        samples(runs / f"{name}_test.jsonl", test, test)
    result = table.run()
    assert result["best_points"] == {"outcome": {"lr": 1e-4, "beta": 0.02}} and result["chosen"] == "Nothing."
    rows = {row["system"]: row for row in result["rows"]}
    assert rows["outcome"]["facts/recalled"] == 0.0 and rows["sft"]["facts/recalled"] == 0.5
    assert [point["facts/recalled"] for point in result["points"]] == [0.0, 1.0]
    assert result["points"][0]["training/reward/total"] == 6.5  # of the last ten of twelve steps
    assert [row["system"] for row in result["differences"]] == ["outcome − sft"]
    page = (tmp_path / "c.md").read_text()
    assert "`outcome` lr 0.0001, β 0.02" in page and "## Every point of the grid" in page
    other = OutputRecord("x", "Why?", PASSAGES, ("So.",), "q", ("No.",))
    write_outputs(runs / "outcome_lr0.0001_beta0.1_test.jsonl", [other])
    with pytest.raises(DataError, match="expected answers to SFT's questions"):
        table.run()
    capsys.readouterr()


def test_the_demos_table_and_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = samples(tmp_path / "b.jsonl", "It is <b>green.", "It is blue.")
    after = samples(tmp_path / "a.jsonl", "It is 120 metres deep.", "It is blue.")
    paths = {"before": before, "after": after, "reward_model": "reward", "answers": str(tmp_path / "answers.html")}
    distilled = tmp_path / "distilled"
    write_json(distilled / "run.json", {"total_steps": 15})
    table = DemoRealTable(
        str(tmp_path / "d.json"), "make demo-real", **paths, distilled=str(distilled), chosen="Nothing."
    )
    with pytest.raises(DataError, match="distilled: expected a run that exported a policy"):
        table.run()
    write_json(distilled / "policy" / "export.json", {"step": 15})
    result = table.run()
    assert result["exported"] == {"step": 15, "of": 15}
    assert "`after` is the policy of step 15 of 15, the last.\n" in (tmp_path / "d.md").read_text()
    rows = {row["system"]: row for row in result["rows"]}
    assert list(rows) == [
        "before", "before, best of 2", "after", "after, best of 2", "gold", "cut_gold", "cut_lead", "best_sentence"
    ]  # fmt: skip
    assert rows["before"]["facts/recalled"] == 0.0 and rows["after"]["facts/recalled"] == 0.5
    assert rows["after, best of 2"]["facts/recalled"] == rows["gold"]["facts/recalled"] == 1.0
    difference = next(row for row in result["differences"] if row["system"] == "after")["facts/recalled"]
    assert difference == [0.5, 0.5, 0.5]
    page = (tmp_path / "answers.html").read_text()
    assert "&lt;b&gt;green" in page and "<b>green" not in page and 'title="' in page and "human answer" in page
    other = samples(tmp_path / "o.jsonl", "No.")
    write_outputs(other, [OutputRecord("x", "Why?", PASSAGES, ("So.",), "q", ("No.",))])
    with pytest.raises(DataError, match="expected answers to the same questions"):
        DemoRealTable(str(tmp_path / "e.json"), "c", **{**paths, "after": other}, chosen="Nothing.").run()
    capsys.readouterr()


def test_which_step_an_older_page_shows_follows_from_its_rows() -> None:
    one, other = (
        {"system": name, **dict.fromkeys(("bottleneck", *pool.MEASURES), 0.5)} for name in ("before", "after")
    )
    assert exported_words({"rows": [one, other]}) == "Which step `after` is was not kept."
    result = {"rows": [one, other], "configuration": {"settings": {"steps": 15}}}
    assert exported_words(result) == "Which step `after` is was not kept."  # it may be the first weights
    result["rows"] = [one, {**other, "words": 3.0}]
    assert "so it is the last ones" in exported_words(result) and "step 15" in exported_words(result)
    first = {**result, "exported": {"step": 0, "of": 15}}
    assert exported_words(first) == "`after` is the policy of step 0 of 15, not the last."


def test_an_empty_answer_is_shown_as_such() -> None:
    record = OutputRecord("q", "How deep?", PASSAGES, ("120 metres.",), "q", ("",))
    assert "How deep?" in answers_page(Words(), [record], [record])  # type: ignore[arg-type]
