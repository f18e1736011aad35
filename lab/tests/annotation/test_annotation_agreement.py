"""Agreement of people who err at known rates, by hand and by FactWorld's annotators."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from annotation_toy import ANSWER, LAKE, OTHER, export, item, project, span, task

from finegrained_lab.worlds.factworld import SimulateAnnotators
from finegrained_rlhf.annotation.agreement_figures import MISSING, judged_items
from finegrained_rlhf.annotation.annotations import annotations_of
from finegrained_rlhf.annotation.measure_agreement import MeasureAgreement
from finegrained_rlhf.annotation.project import MakeAnnotationTasks
from finegrained_rlhf.annotation.reading import ReadAnnotations
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.factworld.annotate import SUB_SENTENCE_RATE
from finegrained_rlhf.factworld.make import MakeFactWorld, to_example
from finegrained_rlhf.feedback.labels import Suggestion
from finegrained_rlhf.feedback.outputs import OutputRecord, write_outputs
from finegrained_rlhf.feedback.reading import write_feedback
from finegrained_rlhf.feedback.records import Feedback, FeedbackRecord, SpanError
from finegrained_rlhf.text.segmentation import SpacySegmenter

PEOPLE = ("ann", "ben")


def measured(directory: Path, noise: float, questions: int, draws: int = 200) -> dict:
    """Two simulated people on answers of FactWorld's imperfect writer."""
    pairs = MakeFactWorld("unused", seed=8, train=0, dev=0, test=0, sft_train=questions, sft_dev=0).draw()["sft_train"]
    records = [OutputRecord.of(to_example(one, one.gold), [answer, one.gold]) for one, answer in pairs]
    write_outputs(directory / "outputs.jsonl", records)
    tasks, exports, found = directory / "tasks", directory / "exports", directory / "annotations.jsonl"
    MakeAnnotationTasks(
        outputs=str(directory / "outputs.jsonl"), output_dir=str(tasks), annotators=PEOPLE, overlap=1.0
    ).run()
    SimulateAnnotators(str(tasks), str(exports), noise=noise).run()
    ReadAnnotations([str(exports)], str(tasks), str(found)).run()
    return MeasureAgreement(
        annotations=str(found), tasks=str(tasks), output=str(directory / "agreement.json"), draws=draws
    ).run()


def analytic(share: float, error: float) -> tuple[float, float]:
    """Percent and κ of two people who each flip a label, an error in `share` of the cases, with chance `error`."""
    agree = (1 - error) ** 2 + error**2
    said = share * (1 - error) + (1 - share) * error
    chance = said**2 + (1 - said) ** 2
    return agree, (agree - chance) / (1 - chance)


@pytest.mark.slow
def test_two_noisy_people_agree_as_their_errors_say(tmp_path: Path) -> None:
    exact = measured(tmp_path / "exact", 0.0, 400, draws=1)
    assert exact["labels"]["relevance"]["percent"]["value"] == 1.0 and exact["spans"]["exact"]["value"] == 1.0
    assert exact["preference_kappa"] == 1.0 and exact["labels"][MISSING]["kappa"]["value"] == 1.0
    share = exact["labels"]["relevance"]["error_share"]
    noise = 0.55
    found = measured(tmp_path / "noisy", noise, 400)["labels"]
    percent, kappa = analytic(share, SUB_SENTENCE_RATE * noise)
    for name, expected in (("percent", percent), ("kappa", kappa), ("alpha", kappa)):
        value = found["relevance"][name]
        assert value["low"] - 0.01 <= expected <= value["high"] + 0.01, (name, expected, value)
    # one dial reaches the thesis's 83, 92 and 85%: sub-sentences, sentences, whether anything is missing
    assert found["relevance"]["percent"]["value"] == pytest.approx(0.83, abs=0.03)
    assert found["factuality"]["percent"]["value"] == pytest.approx(0.92, abs=0.04)
    assert 0.75 < found[MISSING]["percent"]["value"] < 0.9  # several facts of an answer, each 85%
    assert (tmp_path / "noisy/agreement.html").read_text().count('class="side"') == 100


def test_figures_by_hand(tmp_path: Path) -> None:
    of = project([item("q1", role="overlap"), item("q2", role="overlap")], PEOPLE)
    of.write(tmp_path / "tasks")
    wide, short = span(ANSWER, "Its  water stays warm", "Irrelevant"), span(ANSWER, "stays warm", "Unverifiable")
    gap = {"type": "Missing-Answer", "passage": 1, "sentences": [1, 2]}
    first = span(ANSWER, "The lake 🌊 is wide, and 👩‍👩‍👧 swim", "Irrelevant")
    marked = {"no_error": False, "nothing_missing": False}
    rows = {
        "ann": [
            task(of, "ann", "q1", spans=[first], no_error=False, seconds=10),
            task(of, "ann", "q2", spans=[wide], missing=[gap], correction=OTHER, **marked),
        ],
        "ben": [
            task(of, "ben", "q1", seconds=30),
            task(of, "ben", "q2", spans=[short], missing=[{**gap, "sentences": [2]}], **marked),
        ],
    }
    for name, tasks in rows.items():
        write_json(tmp_path / f"{name}.json", export(of, name, tasks))
    files = [str(tmp_path / f"{name}.json") for name in rows]
    ReadAnnotations(files, str(tmp_path / "tasks"), str(tmp_path / "a.jsonl")).run()
    figures = MeasureAgreement(
        annotations=str(tmp_path / "a.jsonl"),
        tasks=str(tmp_path / "tasks"),
        output=str(tmp_path / "o.json"),
        segmenter="rules",
        draws=20,
    ).run()
    judged = judged_items(annotations_of(tmp_path / "a.jsonl", of), of, SpacySegmenter("rules"))
    assert judged[0].labels[MISSING] == {"ann": [0], "ben": [0]}
    assert figures["labels"][MISSING]["percent"]["value"] == 1.0
    assert figures["missing_sentences_f1"] == pytest.approx(2 * 1 / 3)
    assert figures["spans"]["exact"]["value"] == 0.0 and figures["spans"]["characters_untyped"]["value"] > 0.2
    assert figures["preference_kappa"] is None and figures["preference_percent"] == 1.0  # all of them ties
    ann, ben = figures["annotators"]
    assert (ann["annotator"], ann["annotations"], ann["seconds"], ann["spans"]) == ("ann", 2, 11.25, 1.0)
    assert ben["spans"] == 0.5 and figures["correction_f1"] < 1.0 < 1.0 + figures["correction_f1_with_answer"]


def test_known_answers_and_suggestions_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ann marks the qualification item as it is known to be, Ben marks the wrong words; suggestions lead Ann alone."""
    right = span(ANSWER, "stays warm", "Unverifiable")
    known = FeedbackRecord(
        id="q0",
        question="What is the lake like?",
        passages=(LAKE,),
        predictions=(ANSWER, OTHER),
        gold=None,
        feedback=Feedback((SpanError(right["start"], right["end"], "Unverifiable"),), (), OTHER),
        preferences=(0,),
    )
    write_feedback(tmp_path / "known.json", [known])
    shown = (Suggestion(0, 8, "Irrelevant", 0.9, "m@1"), Suggestion(20, 30, "Irrelevant", 0.9, "m@1"))
    items = [item("q0", role="qualification"), item("q1", suggestions=shown), item("q2")]
    of = project(items, PEOPLE)
    of.write(tmp_path / "tasks")
    assert all(rows[0].item == "q0" for rows in of.annotators.values())
    exports = []
    for name, wrong in (("ann", "stays warm"), ("ben", "The lake")):
        mark = {"spans": [span(ANSWER, wrong, "Unverifiable")], "no_error": False, "correction": OTHER}
        done = [task(of, name, "q0", **mark)]
        for one in of.annotators[name][1:]:
            told = {"shown": 2, "accepted": 1, "refused": 1} if one.item == "q1" else {}
            more = {"suggestions": told} if told else {}
            done.append(task(of, name, one.item, **more))
        exports.append(str(tmp_path / f"{name}.json"))
        write_json(exports[-1], export(of, name, done))
    ReadAnnotations(exports, str(tmp_path / "tasks"), str(tmp_path / "a.jsonl")).run()
    places = {"annotations": str(tmp_path / "a.jsonl"), "tasks": str(tmp_path / "tasks")}
    found = MeasureAgreement(
        **places, output=str(tmp_path / "g.json"), qualification=str(tmp_path / "known.json"), draws=10
    ).run()
    ann, ben = found["annotators"]
    assert ann["factuality_with_known"] == 1.0 and ann["relevance_with_known"] == 1.0
    assert ben["factuality_with_known"] == pytest.approx(1 / 3)  # of three sentences two are called otherwise
    assert found["suggestions"] == {
        "annotations": 1,
        "accepted_share": 0.5,
        "spans_with": 0.0,
        "spans_without": 0.0,
    }
    assert "with known answers" in capsys.readouterr().out
    write_feedback(tmp_path / "known.json", [replace(known, id="q9")])
    with pytest.raises(DataError, match="q9.*is no marked item of this project"):
        MeasureAgreement(
            **places, output=str(tmp_path / "h.json"), qualification=str(tmp_path / "known.json"), draws=10
        ).run()
