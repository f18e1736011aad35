"""Public span feedback in its published forms, in small files of our own."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from script_runs import ROOT, run_script

from finegrained_lab.published.feedback import FavaBench, MqmSpans, Prm800k, RagTruth, ReadPublicFeedback
from finegrained_lab.published.feedback.fava import untagged
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.feedback.reading import read_feedback
from finegrained_rlhf.feedback.taxonomy import Taxonomy
from finegrained_rlhf.text.segmentation import SpacySegmenter
from reward_models.kinds import SegmentKind, kinds_of


def lines(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def taxonomy(name: str) -> Taxonomy:
    values = yaml.safe_load((ROOT / f"lab/finegrained_lab/conf/taxonomy/{name}.yaml").read_text(encoding="utf-8"))
    return Taxonomy(**{key: value for key, value in values.items() if key != "_target_"})


def written(source: Any, name: str, directory: Path) -> list[Any]:
    ReadPublicFeedback(source, str(directory / "out.json"), taxonomy(name)).run()
    records = read_feedback(directory / "out.json", taxonomy(name))
    segmenter = SpacySegmenter("rules")
    for kind in kinds_of(taxonomy(name)).values():
        assert isinstance(kind, SegmentKind) and [kind.labels(record, segmenter) for record in records]
    return records


def label(text: str, piece: str, kind: str, **changes: Any) -> dict[str, Any]:
    start = text.index(piece)
    return {"start": start, "end": start + len(piece), "text": piece, "meta": "why", "label_type": kind, **changes}


PASSAGES = "passage 1:Roast them.\n\npassage 2:Serve.\n\n"
ANSWER = "Beets 🥬 are roasted for an hour. They are blue. They are blue."


def ragtruth(directory: Path, labels: list[dict[str, Any]], **changes: Any) -> RagTruth:
    sources = [
        {
            "source_id": "1",
            "task_type": "QA",
            "source_info": {
                "question": "how to cook beets",
                "passages": "passage 1:Roast them.\n\npassage 2:Serve.\n\n",
            },
            "prompt": "Briefly answer",
        },
        {"source_id": "2", "task_type": "Summary", "source_info": "The text.", "prompt": "Summarize this:\nThe text."},
        {"source_id": "3", "task_type": "Data2txt", "source_info": {"name": "Subway"}, "prompt": "Write:\n{}"},
    ]
    row = {"id": "7", "source_id": "1", "labels": labels, "split": "train", "quality": "good", "response": ANSWER}
    rows = [{**row, **changes}, {**row, "id": "8", "source_id": "2", "labels": []}]
    rows += [{**row, "id": "9", "source_id": "3", "labels": []}, {**row, "id": "10", "quality": "truncated"}]
    rows += [{**row, "id": "11", "split": "test"}]
    return RagTruth(lines(directory / "r.jsonl", rows), lines(directory / "s.jsonl", sources), "train")


def test_ragtruth(tmp_path: Path) -> None:
    moved = label(ANSWER, "for an hour", "Subtle Conflict", start=0, end=11)
    twice = label(ANSWER, "They are blue", "Evident Conflict", start=1, end=3)
    source = ragtruth(tmp_path, [label(ANSWER, "They are blue", "Evident Baseless Info"), moved, twice])
    found = source.read()
    assert +found.left_out == Counter(
        {
            "found by its words": 1,
            "span that is not in its response": 1,
            "quality truncated": 1,
            "of another split": 1,
        }
    )
    records = written(source, "ragtruth", tmp_path)
    first = records[0]
    assert first.question == "how to cook beets" and [p.text for p in first.passages] == ["Roast them.", "Serve."]
    marks = [(ANSWER[e.start : e.end], e.error_type, e.explanation) for e in first.marked[0].errors]
    assert marks == [("They are blue", "Evident Baseless Info", "why"), ("for an hour", "Subtle Conflict", "why")]
    assert records[1].question == "Summarize this:" and "Subway" in records[2].passages[0].text
    with pytest.raises(DataError, match=r"r.jsonl, record 0, field source_id: there is no source '9'"):
        ragtruth(tmp_path, [], source_id="9").read()
    with pytest.raises(DataError, match="unknown error type 'Odd'"):
        written(ragtruth(tmp_path, [label(ANSWER, "blue", "Odd")]), "ragtruth", tmp_path)


def test_fava(tmp_path: Path) -> None:
    tagged = (
        "Messi is an <entity><delete>American</delete><mark>Argentine</mark></entity> player. "
        "<invented>He flies.</invented> He <relation>was <delete>sold</delete><mark>moved</mark></relation> to Paris."
    )
    text = "Messi is an American player. He flies. He was sold to Paris."
    rows = [
        {"prompt": "Who is Messi?", "output": text, "annotated": tagged, "evidence": "Argentine."},
        {"passage": "Something else.", "annotated": tagged},
    ]
    (tmp_path / "f.json").write_text(json.dumps(rows))
    (record,) = FavaBench(str(tmp_path / "f.json")).read().records
    assert record.predictions == (text,) and record.question == "Who is Messi?"
    feedback = record.marked[0]
    assert [(text[e.start : e.end], e.error_type) for e in feedback.errors] == [
        ("American", "entity"),
        ("He flies.", "invented"),
        ("was sold", "relation"),
    ]
    assert feedback.corrected_prediction == "Messi is an Argentine player.  He was moved to Paris."
    ReadPublicFeedback(FavaBench(str(tmp_path / "f.json")), str(tmp_path / "o.json"), taxonomy("fava")).run()
    for bad in ("<entity>x", "x</entity>", "<entity>x<invented></entity></invented>"):
        with pytest.raises(DataError, match="closes nothing|never closed"):
            untagged(bad)


def solution(steps: list[dict[str, Any]], reason: str = "solution", **changes: Any) -> dict[str, Any]:
    question = {"problem": "1 + 1?", "ground_truth_solution": "2"}
    return {"labeler": "a", "question": question, "label": {"steps": steps, "finish_reason": reason}, **changes}


def step(*rated: tuple[str, int | None], chosen: int | None = 0, human: Any = None) -> dict[str, Any]:
    offered = [{"text": text, "rating": rating, "flagged": None} for text, rating in rated]
    return {"completions": offered, "chosen_completion": chosen, "human_completion": human}


def test_prm800k(tmp_path: Path) -> None:
    rows = [
        solution([step(("I add.", 0)), step(("It is\n\n# Answer", 1), ("x", -1)), step(("3", -1), chosen=None)]),
        solution([step(("no", -1), chosen=None, human="By hand."), step(("So 2.", 1))]),
        solution([step(("?", None))]),
        solution([step(("a", 1))], "give_up"),
        solution([step(("a", 1))], is_quality_control_question=True),
    ]
    source = Prm800k(lines(tmp_path / "p.jsonl", rows))
    first, second = written(source, "prm800k", tmp_path)
    assert first.predictions == ("I add.\nIt is # Answer\n3",) and first.gold == "2"
    kinds = kinds_of(taxonomy("prm800k"))
    segmenter = SpacySegmenter("rules")
    assert kinds["correctness"].labels(first, segmenter).labels == (0, 0, 1)  # type: ignore[attr-defined]
    assert kinds["progress"].labels(first, segmenter).labels == (1, 0, None)  # type: ignore[attr-defined]
    assert second.predictions == ("By hand.\nSo 2.",) and second.marked[0].errors == ()
    assert +source.read().left_out == Counter(
        {"a step without text or rating": 1, "give_up": 1, "screening or quality control": 1}
    )
    with pytest.raises(
        DataError, match=r"record 0, field label.steps\[0\].completions\[0\].rating: expected -1, 0 or 1"
    ):
        Prm800k(lines(tmp_path / "p.jsonl", [solution([step(("a", 7))])])).read()


HEAD = "system\tdoc\tdoc_id\tseg_id\trater\tsource\ttarget\tcategory\tseverity\n"


def mqm(directory: Path, *rows: str) -> MqmSpans:
    (directory / "m.tsv").write_text(HEAD + "".join(f"{row}\n" for row in rows), encoding="utf-8")
    return MqmSpans(str(directory / "m.tsv"))


def test_mqm(tmp_path: Path) -> None:
    base = "A\td\t1\t1\t{}\tWe see.\t{}\t{}\t{}"
    source = mqm(
        tmp_path,
        base.format("r1", "Wir <v>sehen </v>Licht.", "Accuracy/Addition", "Major"),
        base.format("r2", "Wir <v>sehen </v>Licht.", "Accuracy/Addition", "Major"),
        base.format("r2", "<v>Wir</v> sehen Licht.", "Style/Awkward", "minor"),
        base.format("r3", "Wir sehen Licht.", "No-error", "No-error"),
        base.format("r3", "Wir sehen Licht.", "Source error", "Minor"),
        base.format("r3", "Wir <v>sehen</v> Licht.", "Fluency/Grammar", "Neutral"),
        "B\td\t1\t1\tr1\tWe see.\tXx yy.\tNon-translation!\tMajor",
    )
    first, second = written(source, "mqm", tmp_path)
    text = "Wir sehen Licht."
    assert first.predictions == (text,) and first.marked[0].annotators == ("r1", "r2", "r3")
    assert [(text[e.start : e.end], e.error_type, e.annotators) for e in first.marked[0].errors] == [
        ("Wir", "Style-Minor", ("r2",)),
        ("sehen", "Accuracy-Major", ("r1", "r2")),
    ]
    assert [e.error_type for e in second.marked[0].errors] == ["Accuracy-Major"] and second.id == "B:d:1"
    assert +source.read().left_out == Counter({"severity Neutral": 1, "marked in the source, or nowhere": 1})
    with pytest.raises(DataError, match="another target than in the first row"):
        mqm(tmp_path, base.format("r1", "Wir.", "No-error", ""), base.format("r2", "Ihr.", "No-error", "")).read()
    (tmp_path / "m.tsv").write_text("system\tdoc\n")
    with pytest.raises(DataError, match="expected a column 'seg_id'"):
        MqmSpans(str(tmp_path / "m.tsv")).read()


@pytest.mark.scripts
def test_the_script_writes_what_inspection_and_training_read(tmp_path: Path) -> None:
    file = lines(tmp_path / "p.jsonl", [solution([step(("I add.", 0)), step(("3", -1))])] * 3)
    output = tmp_path / "out.json"
    given = ("public_feedback@source=prm800k", "taxonomy=prm800k", f"source.data={file}", f"output={output}")
    done = run_script("read_public_feedback", *given)
    assert done.returncode == 0 and "3 records" in done.stdout, done.stderr
    shown = run_script("inspect_feedback", f"data={output}", "taxonomy=prm800k", "format=json")
    assert json.loads(shown.stdout)["correctness"] == {"examples": 3, "has_error": 3, "no_error": 3}
    wrong = run_script("read_public_feedback", *given[:1], f"source.data={file}", f"output={tmp_path}/no.json")
    assert wrong.returncode == 2 and "unknown error type" in wrong.stderr and not (tmp_path / "no.json").exists()
