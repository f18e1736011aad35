"""The annotator: exact at noise 0, the stated rates at noise 1, one schema with the published file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.factworld.annotate import AnnotateFactWorld, Annotator, annotate, prefer
from finegrained_rlhf.factworld.make import MakeFactWorld, to_example
from finegrained_rlhf.factworld.oracle import Judgement, judge_outputs
from finegrained_rlhf.feedback.outputs import OutputRecord, write_outputs
from finegrained_rlhf.feedback.reading import read_feedback
from finegrained_rlhf.text.segmentation import SpacySegmenter

SEGMENTER = SpacySegmenter()
PASSAGE = Passage("", "Arlo", ("The color of Arlo is blue.", "The city of Arlo is Rome.", "The job of Arlo is pilot."))
QUESTION = "What are the color and the city of Arlo?"
OUTPUTS = (
    "The color of Arlo is red.",  # wrong value, city missing: 2 errors
    "The color of Arlo is blue. The city of Arlo is Rome.",  # 0 errors
    "The color of Arlo is blue.",  # city missing: 1 error
    "The city of Arlo is Rome, and the job of Arlo is pilot. The color of Arlo is blue.",  # 1 error
)
RECORD = OutputRecord("q1", QUESTION, (PASSAGE,), ("Blue, in Rome.",), "", OUTPUTS)


@pytest.fixture(scope="module")
def written() -> list[OutputRecord]:
    """Records of the imperfect writer's answers, four a question."""
    splits = MakeFactWorld("unused", seed=5, train=0, dev=0, test=0, sft_train=800, sft_dev=0).draw()
    pairs = splits["sft_train"]
    return [
        OutputRecord.of(to_example(item, item.gold), [answer, answer + " ", item.gold, item.gold + " "])
        for item, answer in pairs
    ]


def test_oracle_feedback_and_preferences_by_hand() -> None:
    record = annotate(RECORD, Annotator(noise=0.0), SEGMENTER)
    assert record.preferences == (2, 2, 2, 1, 1, 0)
    (error,) = record.feedback.errors
    assert (error.start, error.end, error.error_type) == (0, 25, "Wrong-Grounding")
    (gap,) = record.feedback.missing_info
    assert (gap.error_type, gap.passage_id, gap.sentence_ids) == ("Missing-Answer", 1, (2,))
    assert record.feedback.corrected_prediction == OUTPUTS[1]
    assert record.gold == "Blue, in Rome." and record.predictions == OUTPUTS


def test_corrections_of_the_oracle_are_perfect(written: list[OutputRecord]) -> None:
    for record in written[:200]:
        feedback = annotate(record, Annotator(noise=0.0), SEGMENTER)
        corrected = replace(record, outputs=(feedback.feedback.corrected_prediction,))
        assert judge_outputs(corrected, SEGMENTER)[0].errors == 0
        assert set(corrected.outputs[0].split(". ")) <= set(record.references[0].split(". ")) | {
            corrected.outputs[0].split(". ")[-1]
        }


def flips(true: list[Judgement], noisy: list[Judgement]) -> tuple[float, float, float]:
    """Shares of sub-sentences, sentences and asked facts whose label differs."""

    def c2(judgement: Judgement) -> list[bool]:
        with_c2 = {piece.sentence for piece in judgement.sub_sentences if piece.c2 is not None}
        return [i in with_c2 for i in range(len(judgement.sentences))]

    def share(first: list[bool], second: list[bool]) -> float:
        return sum(a != b for a, b in zip(first, second, strict=True)) / len(first)

    return (
        share(
            [p.c1 is not None for j in true for p in j.sub_sentences],
            [p.c1 is not None for j in noisy for p in j.sub_sentences],
        ),
        share([x for j in true for x in c2(j)], [x for j in noisy for x in c2(j)]),
        share([g for j in true for g in j.given], [g for j in noisy for g in j.given]),
    )


@pytest.mark.parametrize("noise", [0.0, 1.0, 2.0])
def test_noise_is_measured_at_its_rate(
    noise: float, written: list[OutputRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    import finegrained_rlhf.factworld.annotate as module

    true: list[Judgement] = []
    noisy: list[Judgement] = []
    original = module.mislabel

    def spy(judgement: Judgement, *rest: object) -> Judgement:
        true.append(judgement)
        noisy.append(original(judgement, *rest))  # type: ignore[arg-type]
        return noisy[-1]

    monkeypatch.setattr(module, "mislabel", spy)
    for record in written:
        annotate(record, Annotator(noise, seed=1), SEGMENTER)
    measured = flips(true, noisy)
    # About 13,000 segments or facts: three standard deviations are below 0.01.
    assert measured == pytest.approx((0.17 * noise, 0.08 * noise, 0.15 * noise), abs=0.012)


def test_preferences_follow_the_noisy_labels(written: list[OutputRecord]) -> None:
    """Span labels and preferences come from one judgement: counting the marks gives the first output's errors."""
    differing = 0
    for record in written[:300]:
        exact, noisy = (annotate(record, Annotator(noise, seed=2), SEGMENTER) for noise in (0.0, 1.0))
        differing += exact.preferences != noisy.preferences
        assert exact.preferences[0] == exact.preferences[5] == 0  # a trailing space changes nothing for the oracle
    assert 60 < differing < 290


def test_prefer_by_hand() -> None:
    judgements = judge_outputs(RECORD, SEGMENTER)
    assert [j.errors for j in judgements] == [2, 0, 1, 1]
    assert prefer(judgements) == (2, 2, 2, 1, 1, 0)
    assert prefer(judgements[::-1]) == (0, 2, 1, 2, 1, 1)


def test_seeds_and_equal_outputs() -> None:
    again = replace(RECORD, outputs=(OUTPUTS[3],) * 4)
    for seed in range(30):
        assert annotate(again, Annotator(1.0, seed), SEGMENTER).preferences == (0,) * 6
    drawn = {annotate(RECORD, Annotator(1.0, seed), SEGMENTER).preferences for seed in range(40)}
    assert len(drawn) > 3
    assert annotate(RECORD, Annotator(1.0, 7), SEGMENTER) == annotate(RECORD, Annotator(1.0, 7), SEGMENTER)


def test_bad_input_is_named() -> None:
    with pytest.raises(ConfigError, match="noise"):
        Annotator(noise=3.0)
    with pytest.raises(DataError, match="record q1, field outputs: expected 4 outputs"):
        annotate(replace(RECORD, outputs=OUTPUTS[:3]), Annotator(), SEGMENTER)
    with pytest.raises(DataError, match="record q1, field prediction 2"):
        annotate(replace(RECORD, outputs=(OUTPUTS[0], "", *OUTPUTS[2:])), Annotator(), SEGMENTER)


def test_job_writes_a_file_the_reader_takes(tmp_path: Path, written: list[OutputRecord]) -> None:
    source, target = tmp_path / "outputs.jsonl", tmp_path / "feedback.json"
    write_outputs(source, written[:20])
    AnnotateFactWorld(str(source), str(target), noise=1.0, seed=3).run()
    first = target.read_bytes()
    records = read_feedback(target)
    assert [r.id for r in records] == [r.id for r in written[:20]]
    assert records[4] == annotate(written[4], Annotator(1.0, 3), SEGMENTER)
    AnnotateFactWorld(str(source), str(target), noise=1.0, seed=3).run()
    assert target.read_bytes() == first
    write_outputs(source, [replace(written[0], question="Who?")])
    with pytest.raises(DataError, match=r"outputs\.jsonl, record sft_train-00000, field question"):
        AnnotateFactWorld(str(source), str(target)).run()
    assert target.read_bytes() == first


def test_a_question_with_an_empty_output_is_left_out(
    tmp_path: Path, written: list[OutputRecord], capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "outputs.jsonl", tmp_path / "feedback.json"
    silent = replace(written[1], outputs=(*written[1].outputs[:3], " "))
    write_outputs(source, [written[0], silent, written[2]])
    AnnotateFactWorld(str(source), str(target)).run()
    assert [r.id for r in read_feedback(target)] == [written[0].id, written[2].id]
    assert "2 annotated questions" in (printed := capsys.readouterr().out) and "1 left out" in printed
    write_outputs(source, [silent])
    with pytest.raises(DataError, match="every question has an empty output"):
        AnnotateFactWorld(str(source), str(target)).run()
    assert len(read_feedback(target)) == 2


def test_a_strangers_file_needs_three_fields(tmp_path: Path) -> None:
    """The example of docs/factworld.md, fed as it stands there."""
    page = (Path(__file__).parents[2] / "docs/factworld.md").read_text()
    example = json.loads(page.split("```json\n")[1].split("```")[0])
    (tmp_path / "outputs.jsonl").write_text(json.dumps(example) + "\n")
    AnnotateFactWorld(str(tmp_path / "outputs.jsonl"), str(tmp_path / "feedback.json"), noise=0.0).run()
    (record,) = read_feedback(tmp_path / "feedback.json")
    assert record.gold == "The color of Arlo is blue. The city of Arlo is Rome."
    # Errors: wrong colour and no city; none of the color's, no city; no clause and nothing given; no color.
    assert record.preferences == (2, 1, 2, 1, 0, 2)
    assert [(e.start, e.end, e.error_type) for e in record.feedback.errors] == [(0, 25, "Wrong-Grounding")]
    assert [(m.passage_id, m.sentence_ids) for m in record.feedback.missing_info] == [(1, (2,))]


def shape(value: object) -> object:
    """The keys and types of a JSON value; a list is described by its elements' shapes."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return ["list", *sorted({json.dumps(shape(item)) for item in value})]
    return type(value).__name__


def test_schema_equals_the_published_file(tmp_path: Path, shared_data: Path, written: list[OutputRecord]) -> None:
    real = json.loads((shared_data / "qa_feedback/dev_feedback.json").read_text())
    write_outputs(tmp_path / "outputs.jsonl", written[:50])
    AnnotateFactWorld(str(tmp_path / "outputs.jsonl"), str(tmp_path / "feedback.json")).run()
    ours = json.loads((tmp_path / "feedback.json").read_text())
    assert {tuple(r for r in row if r != "id") for row in ours} == {tuple(row) for row in real}
    for key in ("errors", "missing-info"):
        theirs = {json.dumps(shape(item)) for row in real for item in row["feedback"][key]}
        assert {json.dumps(shape(item)) for row in ours for item in row["feedback"][key]} == theirs
    assert {tuple(row["feedback"]) for row in ours} == {tuple(row["feedback"]) for row in real}
    assert {shape(row["question"]) for row in ours} == {"str"}
    assert {json.dumps(shape(row["passages"])) for row in ours} <= {json.dumps(shape(row["passages"])) for row in real}
