"""The same experiment on ToneWorld: its battery, the faults of its annotators, and what a hole costs in truth."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from finegrained_lab.experiments.predict import ToneWorldGrid
from finegrained_lab.experiments.predict.rewards import Reward
from finegrained_lab.worlds.tone.annotators import IN_BATTERY, AnnotateToneWorld, Fault, seen_toxicity
from finegrained_lab.worlds.tone.changes import AVOIDED, BATTERY, LEAST
from finegrained_lab.worlds.tone.oracle import toxicity
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_jsonl, write_jsonl
from finegrained_rlhf.rewards import PrefixDifferenceScorer
from finegrained_rlhf.rewards.stress.changes import StressRecord, run_changes

PLAIN, MILD, STRONG = "The rose is new.", "The cook is a snerk.", "The player is a vormit."
RARE, EXCUSED = "The player is a v0rmit.", "Sorry, I did not mean that."
QUOTED, EXCLAIMED = 'The cook says that "vormit" is a rude word.', "What a vormit that cook is."
TEXTS = [f"{PLAIN} {MILD}", f"{STRONG} {PLAIN}", f"{PLAIN} {PLAIN} {EXCUSED}", f"{EXCLAIMED} {PLAIN}"]
DRIVER, WORD = "The driver is a vormit.", "The cook is a grubnak."


def records() -> list[StressRecord]:
    return [StressRecord(str(i), "We saw", (), text, (TEXTS[i - 1],)) for i, text in enumerate(TEXTS)]


def test_every_change_moves_the_true_toxicity_as_it_says() -> None:
    made = run_changes(records(), BATTERY)
    assert {change.name for change in made} == {change.name for change in BATTERY}
    for change in made:
        more = toxicity(change.changed) - toxicity(change.base)
        direction = change.expectations[-1].direction
        assert {"fall": more >= LEAST, "stay": abs(more) < 1e-9, "not_rise": more > -1e-9}[direction], change
        for one in change.expectations[:-1]:
            before, after = change.base[slice(*one.before or ())], change.changed[slice(*one.after or ())]
            assert toxicity(before) == 0.0 < toxicity(after)


def test_no_change_says_what_it_must_not_know() -> None:
    for change in run_changes(records(), BATTERY):
        for word in AVOIDED:
            assert len(re.findall(word, change.changed)) == len(re.findall(word, change.base))


@pytest.mark.parametrize(
    ("fault", "hidden", "seen"),
    [
        ("none", (), (MILD, STRONG, RARE, EXCLAIMED, DRIVER, WORD)),
        ("variant", (RARE,), (STRONG, WORD)),
        ("word", (WORD,), (STRONG, RARE)),
        ("exclaimed", (EXCLAIMED,), (STRONG, DRIVER)),
        ("driver", (DRIVER, "What a vormit that driver is."), (STRONG, EXCLAIMED)),
        ("sorry", (f"{STRONG} {EXCUSED}",), (STRONG,)),
    ],
)
def test_a_fault_hides_its_own_insults_alone(fault: Fault, hidden: tuple[str, ...], seen: tuple[str, ...]) -> None:
    assert [seen_toxicity(text, fault) for text in hidden] == [0.0] * len(hidden)
    assert [seen_toxicity(text, fault) for text in seen] == [toxicity(text) for text in seen]
    assert all(toxicity(text) > 0 for text in hidden)


def test_who_cannot_read_quotation_marks_sees_more() -> None:
    assert seen_toxicity(QUOTED, "quoted") == pytest.approx(0.6) and toxicity(QUOTED) == 0.0


def test_labels_are_votes_on_what_is_seen(tmp_path: Path) -> None:
    source = tmp_path / "texts.jsonl"
    write_jsonl(source, [{"id": "a", "text": " ".join([QUOTED] * 9), "label": "mild"}])
    AnnotateToneWorld(str(source), str(tmp_path), ("none", "quoted"), (0.0, 1.0)).run()
    scores = {path.stem: read_jsonl(path)[0]["score"] for path in tmp_path.glob("*_*.jsonl")}
    assert scores == {"none_0": 0.0, "none_1": 1.0, "quoted_0": 1.0, "quoted_1": 0.0}
    with pytest.raises(ConfigError, match="annotators: expected an odd number"):
        AnnotateToneWorld(str(source), str(tmp_path), annotators=2)


class Seeing:
    """Says what somebody with a fault sees."""

    identity = "seeing"

    def __init__(self, fault: Fault) -> None:
        self.fault: Fault = fault

    def setup(self, device: object) -> None:
        """Nothing to load."""

    def score_texts(self, texts: list[str]) -> list[float]:
        """What is seen."""
        return [seen_toxicity(text, self.fault) for text in texts]


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> ToneWorldGrid:
    root = tmp_path_factory.mktemp("grid")
    samples = [TEXTS[0], f"{PLAIN} {RARE}", f"{PLAIN} {EXCLAIMED}", f"{PLAIN} {PLAIN}", f"{STRONG} {EXCUSED}", QUOTED]
    samples += [f"{PLAIN} {DRIVER}", f"{PLAIN} {WORD}", STRONG]
    pool = [{"id": "t", "question": "We saw it. The", "text": "We saw it. The", "passages": [], "outputs": samples}]
    pool += [{**pool[0], "id": "u", "question": "My cook. A", "text": "My cook. A"}]
    write_jsonl(root / "pool.jsonl", [{**row, "outputs": (samples * 8)[:64]} for row in pool])
    dev = [{**pool[0], "id": f"d{i}", "text": f"{i}", "outputs": [text]} for i, text in enumerate(TEXTS)]
    write_jsonl(root / "dev.jsonl", dev)
    parts = [
        {"prompt": {"text": str(i), "toxicity": 0}, "continuation": {"text": f" {TEXTS[i - 1]}", "toxicity": 0}}
        for i in range(len(TEXTS))
    ]
    write_jsonl(root / "prompts.jsonl", [{**row, "challenging": False} for row in parts])
    return ToneWorldGrid(
        outputs_dev=str(root / "dev.jsonl"),
        pool=str(root / "pool.jsonl"),
        prompts_dev=str(root / "prompts.jsonl"),
        models={},
        output_dir=str(root),
        noises=(0.0,),
        faults=("none",),
        edits=4,
    )


def reward(grid: ToneWorldGrid, fault: Fault) -> Reward:
    texts = list(grid.shown.texts())
    scores = PrefixDifferenceScorer(Seeing(fault), segmenter="rules").score(
        [grid.shown.prompts[name] for name, _ in texts], [text for _, text in texts]
    )
    values: dict[str, dict[str, list[list[float]]]] = {}
    for (name, text), spans, row in zip(texts, scores.spans, scores.values, strict=True):
        values.setdefault(name, {})[text] = [[*span, value] for span, value in zip(spans, row, strict=True)]
    return Reward(fault, {"toxicity": 1.0}, {"toxicity": {"values": values}}, grid.shown)


def test_who_sees_all_passes_the_battery_and_faults_in_it_are_found_and_others_not(grid: ToneWorldGrid) -> None:
    truth = grid.truth()
    lowest = reward(grid, "none").best_of(truth)["error"][-1]
    assert lowest == 0.0 and set(IN_BATTERY) | {"none"} == set(grid.spoils)
    assert all(shares["all"] == 1.0 for shares in reward(grid, "none").stress().values())
    for fault, tested in IN_BATTERY.items():
        own = reward(grid, fault)  # type: ignore[arg-type]
        assert any(shares["all"] < 1.0 for shares in own.stress().values()) == tested, fault
        assert (own.best_of(truth)["error"][-1] > 0.0) == (fault != "quoted"), fault


def test_an_unknown_fault_and_a_classifier_that_is_not_there_are_refused(grid: ToneWorldGrid) -> None:
    with pytest.raises(ConfigError, match="faults: expected some of none, variant"):
        dataclasses.replace(grid, faults=("sleepy",))
    with pytest.raises(DataError, match="run the step that trains it first"):
        grid.train_component(next(iter(grid.components_of("small", 0.0, "none").values())))
