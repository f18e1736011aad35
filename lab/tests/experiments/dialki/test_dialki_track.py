"""Sets of snippets by scores: the rule, what trained models say, and the table on worlds of one hotel and one house."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from dialki_toy import COLOURS, THINGS, save_bert, tiny_dialki

from finegrained_lab.experiments.dialki.snippet_encoders import Kind, TrainSnippetEncoder, training_examples
from finegrained_lab.experiments.dialki.snippet_sets import Rule, by_dialki, choose_rule, dialogue_of
from finegrained_lab.experiments.dialki.track import Dstc11TrackTable
from finegrained_lab.published.dialogues.dstc11 import dstc11_part
from finegrained_lab.published.dialogues.dstc11_track import Snippet, read_labels, read_track
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.dialki.finder import KnowledgeFinder
from finegrained_rlhf.dialki.model.search import SearchConfig
from finegrained_rlhf.dialogue.records import Turn

SENTENCES = ("The pool is cold.", "Breakfast was great.", "The pool is deep, and cold too.")


def snippet(number: int) -> Snippet:
    return Snippet(("hotel", "1"), ("review", str(number), "0"))


def test_a_rule_by_hand() -> None:
    scores = {snippet(0): 2.0, snippet(1): 0.0, snippet(2): 1.0}
    assert Rule(0.5, 5)(scores) == {snippet(0), snippet(2)} and Rule(0.6, 5)(scores) == {snippet(0)}
    assert Rule(0.3, 1)(scores) == {snippet(0)} and Rule(0.3, 5)({}) == frozenset()
    assert Rule(0.3, 5)({snippet(0): 0.0}) == frozenset()  # what scores nothing is never named
    needed = frozenset({snippet(0), snippet(2)})
    assert choose_rule([(needed, scores)]) == Rule(0.5, 2)  # of the rules that give both, the smallest


@pytest.fixture
def data(tmp_path: Path) -> Path:
    reviews = {str(i): {"sentences": {"0": words}} for i, words in enumerate(SENTENCES)}
    logs, labels = [], []
    for i in range(60):
        turns = [("U", f"Hello from guest {i} of the Inn."), ("S", "Yes?"), ("U", "How cold is the pool?")]
        logs.append([{"speaker": speaker, "text": text} for speaker, text in turns])
        wanted = [{"domain": "hotel", "entity_id": 1, "doc_type": "review", "doc_id": d, "sent_id": 0} for d in (0, 2)]
        labels.append({"target": True, "response": "Cold.", "knowledge": wanted} if i % 3 else {"target": False})
    content = {"logs": logs, "labels": labels, "knowledge": {"hotel": {"1": {"name": "THE INN", "reviews": reviews}}}}
    for name, value in content.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    return tmp_path


def test_rows_answers_and_page(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers, output = tmp_path / "answers", tmp_path / "track.json"
    result = Dstc11TrackTable(str(output), "the command", data=str(data), answers=str(answers), chosen="On dev.").run()
    rows = {(row["system"], row["entities"]): row for row in result["rows"]}
    assert {system for system, _ in rows} == {
        "bm25", "bm25_porter", "bm25_snowball", "one_needed_snippet", "all_of_the_entities"
    }  # fmt: skip
    assert (
        rows["bm25_porter", "matched"]["selection_exact_match"] == rows["bm25_porter", "labels"]["selection_f1"] == 1.0
    )
    assert rows["one_needed_snippet", "labels"]["selection_recall"] == 0.5
    assert rows["bm25_porter", "labels"]["first_right"] == 1.0
    assert rows["all_of_the_entities", "labels"]["selection_precision"] == pytest.approx(2 / 3)
    parts = [dstc11_part((Turn("user", f"Hello from guest {i} of the Inn."),)) for i in range(60) if i % 3]
    assert result["turns"] == {**{part: parts.count(part) for part in ("dev", "test")}, "new": 0}
    assert {row["f1_new"] for row in result["rows"]} == {None}  # all turns need what those of training did
    assert result["entities_matched"] == 1.0 and result["summary"] == {}
    assert len(read_labels(answers / "bm25_porter_matched.json")) == parts.count("test")
    page = output.with_suffix(".md").read_text()
    assert "the track's baseline 0.391 and 0.789" in page and read_json(output)["rows"] == result["rows"]
    capsys.readouterr()


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """Reviews say a colour of two things each; a turn asks for one thing, and needs both sentences about it."""
    told = {f"{i}": [f"the {THINGS[(i + j) % 6]} is {COLOURS[j]} ." for j in (0, 3)] for i in range(6)}
    reviews = {key: {"sentences": dict(zip("01", both, strict=True))} for key, both in told.items()}
    logs, labels = [], []
    for i in range(120):
        thing = THINGS[i % 6]
        logs.append([{"speaker": "U", "text": f"{i} tell me about the house . what about the {thing} ?"}])
        wanted = [
            {"domain": "hotel", "entity_id": 1, "doc_type": "review", "doc_id": int(key), "sent_id": int(place)}
            for key, both in told.items()
            for place, text in zip("01", both, strict=True)
            if thing in text
        ]
        labels.append({"target": True, "response": "yes", "knowledge": wanted})
    content = {"logs": logs, "labels": labels, "knowledge": {"hotel": {"1": {"name": "house", "reviews": reviews}}}}
    for name, value in content.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    return tmp_path


def test_examples_hold_what_a_turn_needs_and_what_it_does_not(house: Path) -> None:
    track = read_track(house)
    triples, pairs = (training_examples(track, kind, 3, seed=0) for kind in ("bi_encoder", "cross_encoder"))
    assert len(triples) == 120 * 2 and len(pairs) == 4 * len(triples) and sum(pairs["label"]) == len(triples)
    for row in triples:
        thing = row["query"].split()[-2]
        assert thing in row["positive"] and not any(thing in row[f"negative_{i}"] for i in range(3))
        assert len({row[f"negative_{i}"] for i in range(3)}) == 3
    assert training_examples(track, "bi_encoder", 3, seed=1)[:10] != triples[:10]
    assert training_examples(track, "bi_encoder", 3, seed=0)[:] == triples[:]


def test_turns_that_need_what_training_never_did_are_told_apart(house: Path, tmp_path: Path) -> None:
    labels, turns = read_json(house / "labels.json"), read_track(house).turns
    opening = [dstc11_part((Turn("user", turn.turns[0]),)) for turn in turns]
    for i, part in enumerate(opening):
        if part != "test" and i % 6 == 0:  # only a test turn asks for the first thing
            labels[i] = {"target": False}
    (house / "labels.json").write_text(json.dumps(labels))
    table = Dstc11TrackTable(
        str(tmp_path / "track.json"), "", chosen="On dev.", data=str(house), answers=str(tmp_path / "answers")
    ).run()
    new = [i for i, part in enumerate(opening) if part == "test" and i % 6 == 0]
    assert table["turns"]["new"] == len(new) > 0
    known = next(row for row in table["rows"] if row["system"] == "one_needed_snippet")
    assert known["f1_new"] == known["selection_f1"] == pytest.approx(2 / 3)  # one of the two that each of them needs
    assert f"F1 over the {len(new)} turns" in (tmp_path / "track.md").read_text()


@pytest.mark.parametrize(("kind", "lr"), [("bi_encoder", 5e-3), ("cross_encoder", 2e-3)])
def test_an_encoder_learns_until_dev_stops_rising_and_has_a_row(
    house: Path, tmp_path: Path, kind: Kind, lr: float, capsys: pytest.CaptureFixture[str]
) -> None:
    library = pytest.importorskip("sentence_transformers")
    bert = tmp_path / "encoder"
    library.SentenceTransformer(str(save_bert(tmp_path / "bert", width=32))).save_pretrained(str(bert))
    where = tmp_path / "runs" / "seed_0" / kind
    said = TrainSnippetEncoder(
        data=str(house), encoder=str(bert), output_dir=str(where), kind=kind, epochs=12, lr=lr, patience=3
    ).run()
    best = max(row["f1"] for row in said)
    assert best > 0.8 and (len(said) == 12 or said[-4]["f1"] == best)
    table_of = Dstc11TrackTable(
        str(tmp_path / "track.json"), "", chosen="On dev.", data=str(house), answers=str(tmp_path / "answers"),
        directory=str(tmp_path / "runs"), seeds=[0, 1],
    )  # fmt: skip
    table = table_of.run()
    rows = {row["entities"]: row for row in table["rows"] if row["system"] == kind}
    assert rows["labels"]["seed"] == 0 and rows["labels"]["selection_f1"] > 0.75  # the best epoch's weights were kept
    assert {row["epoch"] for row in table["curves"]} == {row["epoch"] for row in said}
    assert f"{kind}, matched" in table["summary"] and (tmp_path / "answers" / f"{kind}_0_matched.json").is_file()

    where.parent.rename(tmp_path / "runs" / "seed_1")  # the models of seed 0 are gone, its rows are not
    other = replace(table_of, output=str(tmp_path / "both.json"), seeds=[1], earlier=str(tmp_path / "track.json"))
    both = other.run()
    assert [row["seed"] for row in both["rows"] if row["system"] == kind] == [0, 0, 1, 1]
    assert [row for row in both["rows"] if row.get("seed") != 1] == table["rows"]
    assert [row["seed"] for row in both["curves"]] == [0] * len(said) + [1] * len(said)
    assert (
        f"Rows of seed 0 are those of this table as it was made at commit `{table['commit']}`"
        in (tmp_path / "both.md").read_text()
    )
    with pytest.raises(DataError, match="earlier: what is not trained has other rows"):
        write_json(tmp_path / "track.json", {**table, "rows": table["rows"][1:]})
        other.run()
    capsys.readouterr()


def test_dialki_scores_every_snippet_and_its_best_is_its_answer(house: Path, tmp_path: Path) -> None:
    model = tiny_dialki(save_bert(tmp_path / "bert"), search=SearchConfig(max_spans=1, score_by="joint"))
    model.save(tmp_path / "dialki")
    score = by_dialki(tmp_path / "dialki")
    track = read_track(house)
    texts = track.texts["hotel", "1"]
    for turn in track.turns[:6]:
        values = dict(zip(texts, score(track, turn, texts), strict=True))
        example, places = dialogue_of(track, turn, texts)
        assert example.turns[-1].role == "user" and [example.text_of(place) for place in places] == list(texts.values())
        found = KnowledgeFinder.load(tmp_path / "dialki").identify([example])[0]
        best = max(values, key=lambda one: values[one])
        assert places[list(texts).index(best)] == found.knowledge
        assert values[best] == pytest.approx(found.probability * found.begin * found.end, rel=1e-5)
        assert 0 < min(values.values()) and sum(values.values()) < 1
