"""What models say of answers that nobody annotated: the scorers' own verdicts, and orders worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from feedback_samples import LAKE
from reward_model_samples import CORPUS, enlarged, prompt, save_bert, save_llama, save_longformer

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.feedback.outputs import OutputRecord, write_outputs
from finegrained_rlhf.feedback.taxonomy import QA_FEEDBACK
from reward_models.encoders.inputs import pad_inputs
from reward_models.encoders.models import RewardModel, new_reward_model
from reward_models.parts import answer_parts, relevance_parts
from reward_models.record import RewardModelRecord
from reward_models.scorers import SegmentScorer, SequenceScorer
from reward_models.selection import answers
from reward_models.selection.answers import AnswerReader
from reward_models.selection.strategies import (
    DisagreeSelection,
    DiverseSelection,
    DriftSelection,
    UncertainSelection,
    farthest_first,
)
from reward_models.selection.suggest import SuggestByModels

ANSWERS = ("It is cold, wide and deep, they say. Yes! It was warm; not so bad, they say.", "It is good. It is bad.")


@dataclass(frozen=True)
class Item:
    id: str
    answers: tuple[str, ...]
    marked: int | None = 0
    question: str = "What is the lake like?"
    passages: Any = (LAKE,)


ITEMS = [Item("a", ANSWERS), Item("b", ANSWERS[::-1]), Item("c", ANSWERS, marked=1), Item("d", ("It is deep.", "No."))]


def balance(model: RewardModel) -> None:
    parts = [relevance_parts("What is the lake like?", [text, "It is deep."]) for text in CORPUS]
    batch = pad_inputs(model.input_encoder().encode(parts), model.pad_id)
    with torch.no_grad():
        logits = model.segment_logits(batch)
        model.model.classifier.bias[1] -= (logits[:, 1] - logits[:, 0]).median()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    encoder = save_longformer(folder / "encoder")
    for kind in ("relevance", "factuality", "completeness"):
        moments = {"mean": 0.5, "std": 2.0} if kind == "completeness" else {}
        model = enlarged(new_reward_model(encoder, RewardModelRecord(kind, global_attention="first", **moments)))
        if model.record.labels_segments:
            balance(model)
        model.save(folder / kind)
    return {path.name: str(path) for path in folder.iterdir()}


@pytest.mark.parametrize("kind", ["relevance", "factuality"])
def test_a_segment_model_says_what_it_says_as_a_reward(models: dict[str, str], kind: str) -> None:
    scorer = SegmentScorer(models[kind])
    texts = [item.answers[item.marked or 0] for item in ITEMS]
    scores = scorer.score([prompt(item.id) for item in ITEMS], texts)
    judged = AnswerReader(models[kind], batch_size=3).segments(ITEMS)
    assert [one.spans for one in judged] == list(scores.spans)
    assert [one.verdicts.claims for one in judged] == [tuple(v < 0 for v in row) for row in scores.values]
    claims = [claim for one in judged for claim in one.verdicts.claims]
    assert any(claims) and not all(claims)
    for one in judged:
        assert [p > 0.5 for p in one.verdicts.probabilities] == list(one.verdicts.claims)


def test_a_model_of_whole_answers_says_what_it_says_as_a_reward(models: dict[str, str]) -> None:
    scorer = SequenceScorer(models["completeness"], mean=0.0, std=1.0)
    reader = AnswerReader(models["completeness"])
    for item, scores, probable in zip(ITEMS, reader.scores(ITEMS), reader.probabilities(ITEMS), strict=True):
        own = scorer.score([prompt(item.id)] * 2, item.answers).values
        assert scores == pytest.approx([own[0][0], own[1][0]], abs=1e-4)
        assert probable == pytest.approx([1 / (1 + np.exp(own[1][0] - own[0][0]))], abs=1e-4)
    assert reader.rewards(ITEMS) == pytest.approx([scores.mean() for scores in reader.scores(ITEMS)])


@pytest.mark.parametrize("save", [save_longformer, save_bert, save_llama])
def test_the_head_turns_its_states_into_the_logits(save: Callable[[Path], Path], tmp_path: Path) -> None:
    model = enlarged(new_reward_model(save(tmp_path / "m"), RewardModelRecord("relevance", "separators")))
    parts = [relevance_parts("What is the lake like?", CORPUS[:n]) for n in (1, 3)]
    batch = pad_inputs(model.input_encoder().encode(parts), model.pad_id)
    head = model.model.score if model.causal else model.model.classifier
    with torch.no_grad():
        assert torch.allclose(head(model.head_states(batch)), model.segment_logits(batch), atol=1e-5)


@pytest.mark.parametrize("save", [save_longformer, save_llama])
def test_the_head_turns_its_state_into_the_score(save: Callable[[Path], Path], tmp_path: Path) -> None:
    model = enlarged(new_reward_model(save(tmp_path / "m"), RewardModelRecord("completeness", "first")))
    parts = [answer_parts("What is the lake like?", (), text) for text in CORPUS[:3]]
    batch = pad_inputs(model.input_encoder().encode(parts), model.pad_id)
    with torch.no_grad():
        states = model.head_states(batch)
        scores = model.model.score(states) if model.causal else model.model.classifier(states[:, None])
        assert torch.allclose(scores.squeeze(-1), model.answer_scores(batch), atol=1e-5)


def test_states_are_those_of_the_marked_answer(models: dict[str, str]) -> None:
    for kind in ("relevance", "completeness"):
        reader = AnswerReader(models[kind], batch_size=2)
        states = reader.states([*ITEMS, Item("e", (ANSWERS[1],))])
        assert states.shape == (5, 32) and np.isfinite(states).all()
        assert np.allclose(states[1], states[2], atol=1e-5) and np.allclose(states[1], states[4], atol=1e-5)
        assert not np.allclose(states[0], states[1], atol=1e-2)


class Fixed:
    """A reader whose figures are given, by the last part of the path."""

    said: dict[str, list[list[float]]] = {}
    kinds: dict[str, str] = {}

    def __init__(self, path: str, *_: Any) -> None:
        self.name = Path(path).name
        self.kind = self.kinds.get(self.name, "relevance")

    def probabilities(self, items: Sequence[Any]) -> list[Any]:
        return [np.array(row) for row in self.said[self.name]]

    def states(self, items: Sequence[Any]) -> Any:
        return np.array(self.said[self.name])

    def rewards(self, items: Sequence[Any]) -> Any:
        return np.array([float(item.answers[0].count(self.name)) for item in items])


@pytest.fixture
def fixed(monkeypatch: pytest.MonkeyPatch) -> type[Fixed]:
    monkeypatch.setattr(answers, "AnswerReader", Fixed)
    monkeypatch.setattr(Fixed, "said", {})
    monkeypatch.setattr(Fixed, "kinds", {})
    return Fixed


def test_uncertain_wants_the_highest_mean_entropy(fixed: type[Fixed]) -> None:
    fixed.said = {"one": [[0.5, 0.0], [0.4], [1.0, 1.0, 0.0], []], "two": [[0.5], [0.5], [0.9], [0.9]]}
    assert UncertainSelection(models=["x/one"]).order(ITEMS) == [1, 0, 2, 3]  # .673 > .347 > 0 = 0
    assert UncertainSelection(models=["x/two"]).order(ITEMS) == [0, 1, 2, 3]
    assert UncertainSelection(models=["x/one", "x/two"]).order(ITEMS) == [1, 0, 2, 3]


def test_disagree_wants_the_widest_range_among_models_of_a_kind(fixed: type[Fixed]) -> None:
    fixed.said = {"a": [[0.1], [0.5], [0.9, 0.1], []], "b": [[0.2], [0.4], [0.1, 0.1], []], "c": [[0.9]] * 4}
    assert DisagreeSelection(models=["a", "b"]).order(ITEMS) == [2, 0, 1, 3]
    fixed.said["d"] = [[0.1], [0.5, 0.5], [0.9, 0.1], []]
    with pytest.raises(ConfigError, match="the relevance models cut item 'b' differently"):
        DisagreeSelection(models=["a", "d"]).order(ITEMS)
    fixed.kinds = {"c": "factuality"}
    with pytest.raises(ConfigError, match="expected two factuality models or more, of different seeds, got 1"):
        DisagreeSelection(models=["a", "b", "c"]).order(ITEMS)


def drift_file(path: Path, **components: Any) -> str:
    names = ("agreement", "recall", "false_alarm_rate", "errors")
    rows = {name: [dict(zip(names, row, strict=True)) for row in rows] for name, rows in components.items()}
    path.write_text(json.dumps({"oracle": "factworld", "components": rows}))
    return str(path)


def test_drift_wants_the_greatest_rise_by_models_that_lost_trust(fixed: type[Fixed], tmp_path: Path) -> None:
    before, now = ("bad good", "good good", "bad", "good bad bad"), ("good good", "good good", "bad bad", "bad")
    items = [Item(str(i), (text,)) for i, text in enumerate(now)]
    records = [
        OutputRecord(str(i), "Why?", (LAKE,), (), "", (text, " ", text) if i else (text,))
        for i, text in enumerate(before)
    ]
    write_outputs(tmp_path / "before.jsonl", records)
    earlier = str(tmp_path / "before.jsonl")
    assert DriftSelection(models=["good"], before=earlier).order(items) == [0, 1, 2, 3]  # +1, 0, 0, −1
    assert DriftSelection(models=["bad"], before=earlier).order(items) == [2, 1, 0, 3]  # −1, 0, +1, −1
    fixed.kinds = {"good": "relevance", "bad": "factuality"}
    fell = {
        "relevance": [(0.7, 0.8, 0.1, 9), (0.9, 0.9, 0.1, 2)],
        "factuality": [(0.7, 0.8, 0.1, 9), (0.9, 0.5, 0.1, 2)],
    }
    both = {"models": ["good", "bad"], "before": earlier}
    report = drift_file(tmp_path / "drift.json", **fell)
    assert DriftSelection(**both, drift=report).order(items) == [2, 1, 0, 3]  # relevance kept its trust
    with pytest.raises(ConfigError, match="no model's trust fell in"):
        DriftSelection(models=["good"], before=earlier, drift=report).order(items)
    fixed.kinds = {"good": "completeness"}
    report = drift_file(tmp_path / "pairs.json", completeness=[(0.9, None, None, None), (0.8, None, None, None)])
    assert DriftSelection(models=["good"], before=earlier, drift=report).order(items) == [0, 1, 2, 3]
    with pytest.raises(ConfigError, match=r"has completeness, not relevance"):
        DriftSelection(models=["bad"], before=earlier, drift=report).order(items)
    write_outputs(tmp_path / "silent.jsonl", [OutputRecord("0", "Why?", (LAKE,), (), "", (" ",))])
    with pytest.raises(DataError, match="record 0: every output is empty"):
        DriftSelection(models=["good"], before=str(tmp_path / "silent.jsonl")).order(items[:1])
    with pytest.raises(DataError, match="no outputs to the question of item 'new'"):
        DriftSelection(models=["good"], before=earlier).order([Item("new", ("x",))])
    (tmp_path / "other.json").write_text('{"components": {"completeness": [{"step": 1}]}}')
    with pytest.raises(DataError, match="expected the agreement of each step"):
        DriftSelection(models=["good"], before=earlier, drift=str(tmp_path / "other.json")).order(items)


def test_diverse_takes_the_farthest_from_all_that_it_has(fixed: type[Fixed]) -> None:
    points = np.array([[0.0, 0.0], [1.0, 0.0], [10.0, 0.0], [0.0, 4.0], [2.0, 1.0]])
    assert farthest_first(points) == [4, 2, 3, 0, 1]
    assert sorted(farthest_first(np.zeros((3, 2)))) == [0, 1, 2]
    fixed.said = {"one": points.tolist(), "thousandfold": (1000 * points).tolist()}
    five = [*ITEMS, Item("e", ("x",))]
    assert DiverseSelection(models=["one"]).order(five) == [4, 2, 3, 0, 1]
    assert DiverseSelection(models=["thousandfold", "one"]).order(five) == [4, 2, 3, 0, 1]
    assert DiverseSelection(models=["one"]).order([]) == []


def test_real_models_order_all_items(models: dict[str, str], tmp_path: Path) -> None:
    own = [models[kind] for kind in ("relevance", "factuality", "completeness")]
    write_outputs(
        tmp_path / "before.jsonl", [OutputRecord(item.id, "Why?", (LAKE,), (), "", item.answers) for item in ITEMS]
    )
    for chosen in (
        UncertainSelection(models=own),
        DisagreeSelection(models=[own[0], own[0]]),
        DriftSelection(models=own, before=str(tmp_path / "before.jsonl")),
        DiverseSelection(models=own),
    ):
        assert sorted(chosen.order(ITEMS)) == [0, 1, 2, 3]


def test_suggestions_are_the_segments_that_the_models_claim(models: dict[str, str]) -> None:
    wrong: dict[str, list[set[tuple[int, int]]]] = {}
    texts = [item.answers[item.marked or 0] for item in ITEMS]
    for kind in ("relevance", "factuality"):
        scores = SegmentScorer(models[kind]).score([prompt(item.id) for item in ITEMS], texts)
        rows = zip(scores.spans, scores.values, strict=True)
        wrong[kind] = [{span for span, value in zip(*row, strict=True) if value < 0} for row in rows]
    suggester = SuggestByModels(
        models=[models["factuality"], models["relevance"]], types={"factuality": "Unverifiable"}
    )
    found = suggester.suggest(ITEMS, QA_FEEDBACK)
    kept = 0
    for suggested, first, second in zip(found, wrong["relevance"], wrong["factuality"], strict=True):
        ours = {(one.start, one.end) for one in suggested if one.error_type == "Irrelevant"}
        theirs = {(one.start, one.end) for one in suggested if one.error_type == "Unverifiable"}
        assert ours == first
        assert theirs == {(a, b) for a, b in second if all(b <= start or end <= a for start, end in first)}
        assert [one.start for one in suggested] == sorted(one.start for one in suggested)
        kept += len(suggested)
    assert kept and all(one.score >= 0.5 and "@" in one.model_version for row in found for one in row)
    assert suggester.suggest([], QA_FEEDBACK) == []


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda m: UncertainSelection(models=[]), "expected one reward model or more"),
        (lambda m: DiverseSelection(models=["x"], batch_size=0), "batch_size: expected at least 1, got 0"),
        (lambda m: SuggestByModels(models=["x"], threshold=1.0), "threshold: expected above 0 and below 1"),
        (lambda m: SuggestByModels(models=[m["completeness"]]).suggest(ITEMS, QA_FEEDBACK), "not 'completeness'"),
        (
            lambda m: SuggestByModels(models=[m["relevance"]], types={"relevance": "Rude"}).suggest(ITEMS, QA_FEEDBACK),
            "category relevance has the types .*, not 'Rude'",
        ),
        (
            lambda m: SuggestByModels(models=[m["relevance"]] * 2).suggest(ITEMS, QA_FEEDBACK),
            "expected one model of each kind",
        ),
        (lambda m: AnswerReader(m["completeness"]).segments(ITEMS), "a completeness model scores whole answers"),
        (lambda m: AnswerReader(m["relevance"]).scores(ITEMS), "a relevance model labels segments"),
        (lambda m: AnswerReader(m["relevance"]).segments([Item("a", ANSWERS, None)]), "and of 'a' none is"),
    ],
)
def test_what_cannot_be_is_refused(
    models: dict[str, str], make: Callable[[dict[str, str]], object], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        make(models)


def test_a_single_answer_cannot_be_compared(models: dict[str, str]) -> None:
    with pytest.raises(DataError, match="a completeness model compares answers, and there is one"):
        UncertainSelection(models=[models["completeness"]]).order([Item("a", ("x",))])
