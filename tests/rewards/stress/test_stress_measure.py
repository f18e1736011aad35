"""What a reward is told of itself: a perfect one gets 1.0 everywhere, one that pays length and copies fails there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.records import Prompt, SegmentScores
from finegrained_rlhf.factworld.grammar import parse_source, split_passages
from finegrained_rlhf.factworld.make import MakeFactWorld
from finegrained_rlhf.factworld.oracle import Judgement, judge
from finegrained_rlhf.metrics.stress import TOTAL, stress_table, weak_rewards, weaknesses
from finegrained_rlhf.rewards import BaseScorer, ComponentConfig, RewardComposer, RewardConfig
from finegrained_rlhf.rewards.stress import Change, Expectation
from finegrained_rlhf.rewards.stress.changes import ROLES, run_changes
from finegrained_rlhf.rewards.stress.makers import BUILT_IN
from finegrained_rlhf.rewards.stress.measure import (
    RatedTexts,
    change_table,
    leakage_table,
    roles_of,
    share_of,
    spreads,
    verdicts,
    worst_cases,
)
from finegrained_rlhf.rewards.stress.reading import StressItem, read_items
from finegrained_rlhf.rewards.stress.search import price
from finegrained_rlhf.text.segmentation import shared_segmenter

Say = Callable[[Judgement], tuple[Sequence[tuple[int, int]], Sequence[float]]]


def relevance(judged: Judgement) -> tuple[Sequence[tuple[int, int]], Sequence[float]]:
    return [one.span for one in judged.sub_sentences], [-1.0 if one.c1 else 1.0 for one in judged.sub_sentences]


def factuality(judged: Judgement) -> tuple[Sequence[tuple[int, int]], Sequence[float]]:
    """What says nothing earns nothing; a sentence that is true a little."""
    wrong = {one.sentence for one in judged.sub_sentences if one.c2}
    says = {one.sentence for one in judged.sub_sentences if one.clause}
    return judged.sentences, [-1.0 if i in wrong else 0.1 * (i in says) for i in range(len(judged.sentences))]


def completeness(judged: Judgement) -> tuple[Sequence[tuple[int, int]], Sequence[float]]:
    return [(0, len(judged.text))], [sum(judged.given) / len(judged.asked)]


@dataclass
class Oracle(BaseScorer):
    """What is true of answers in the FactWorld, in one component."""

    say: Say

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        segmenter, rows = shared_segmenter("english"), []
        for prompt, text in zip(prompts, responses, strict=True):
            passages = split_passages(prompt.metadata["passages"], segmenter)
            rows.append(self.say(judge(parse_source(prompt.metadata["question"], passages), text, segmenter)))
        spans, values = ([tuple(part) for part in column] for column in zip(*rows, strict=True))
        return SegmentScores(spans, values, whole_response=self.say is completeness)


@dataclass
class Pays(BaseScorer):
    """One value a response: its words, or the share of them that the passages have."""

    what: str

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        values = []
        for prompt, text in zip(prompts, responses, strict=True):
            words = text.split()
            passages = " ".join(passage.text for passage in prompt.metadata["passages"])
            copied = sum(word in passages for word in words) / max(len(words), 1)
            values.append((float(len(words)) if self.what == "length" else copied,))
        return SegmentScores([((0, len(text)),) for text in responses], values, whole_response=True)


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory) -> list[StressItem]:
    world = tmp_path_factory.mktemp("world")
    MakeFactWorld(str(world), train=24, dev=0, test=0, sft_train=0, sft_dev=0).run()
    return read_items(world / "train.json")


def rate(
    items: Sequence[StressItem], components: Mapping[str, Any], **settings: Any
) -> tuple[RatedTexts, list[Change]]:
    reward = RewardConfig(components, dict.fromkeys(components, 1.0), **settings)
    rated = RatedTexts(
        RewardComposer(reward), {item.record.id: item.prompt for item in items}, roles_of(reward.components, {})
    )
    changes = run_changes([item.record for item in items], BUILT_IN)
    rated.add((change.record, text) for change in changes for text in (change.base, change.changed))
    return rated, changes


ORACLE = {"relevance": relevance, "factuality": factuality, "completeness": completeness}


def report(items: Sequence[StressItem], rated: RatedTexts, changes: Sequence[Change]) -> dict[str, Any]:
    spread = spreads(rated, {item.record.id: [item.record.gold] for item in items})
    judged = verdicts(changes, rated, spread)
    return {
        "changes": change_table(judged, 0),
        "leakage": leakage_table(changes, rated, spread),
        "worst": worst_cases(judged, {item.record.id: item.record.question for item in items}, spread),
        "search": {"bought": None},
        "roles": {component: role for role, component in rated.roles.items()},
    }


def test_a_perfect_reward_is_right_everywhere(items: Sequence[StressItem]) -> None:
    rated, changes = rate(items, {name: Oracle(say) for name, say in ORACLE.items()})
    values = report(items, rated, changes)
    made = {*values["changes"]}
    assert made >= {"swap_name", "foreign_sentence", "missing_fact", "copied_window", "cut_sentence", "sentence_order"}
    for change in values["changes"].values():
        for row in (change, *change["components"].values()):
            assert (row["ranked_right"], row["low"], row["high"]) == (1.0, 1.0, 1.0) and row["pairs"] > 10
    assert values["worst"] == [] and weak_rewards({"relevance": values}) == {"relevance": [], TOTAL: []}
    leaked = values["leakage"]["swap_name"]
    assert leaked["factuality"]["moved"] == 0, "the other sentences keep their values"
    bought = price([item.record for item in items[:6]], rated, {i.record.id: [i.record.gold] for i in items}, 40, 0)
    assert bought["bought"] == 0 and bought["above_median"] == 0 and bought["questions"] == 6


def test_a_reward_that_pays_length_fails_where_length_is_added(items: Sequence[StressItem]) -> None:
    rated, changes = rate(items, {"relevance": Pays("length")})
    values = report(items, rated, changes)
    right = {name: row["ranked_right"] for name, row in values["changes"].items()}
    assert right["repeated_sentence"] == right["filler"] == right["foreign_sentence"] == right["name_list"] == 0
    assert right["cut_sentence"] == right["empty"] == right["letter_case"] == 1
    assert not {"swap_name", "missing_fact"} & right.keys(), "nothing is said of components that are not there"
    severe = {one.words.split()[0] for one in weaknesses(values, "relevance") if one.severe}
    assert severe >= {"repeated_sentence", "foreign_sentence"} and "cut_sentence" not in severe
    worst = values["worst"][0]
    assert worst["after"] > worst["before"] and worst["changed"] != worst["base"] and worst["question"]
    bought = price([item.record for item in items[:4]], rated, {i.record.id: [i.record.gold] for i in items}, 40, 0)
    assert bought["bought"] == 1 and bought["above_median"] == 1 and len(bought["examples"]) == 4
    among = {item.record.id: [item.record.gold, "No.", "No. " * 5000] for item in items}
    assert price([items[0].record], rated, among, 40, 0)["bought"] == pytest.approx(2 / 3), "one of three is dearer"
    assert "repeated_sentence" in stress_table({**values, "search": bought, "compared_with": "gold answers"})


def test_a_reward_that_pays_copies_sells_them(items: Sequence[StressItem]) -> None:
    rated, changes = rate(items, {"copies": Pays("copied"), "relevance": Oracle(relevance)})
    values = report(items, rated, changes)
    assert values["changes"]["copied_window"]["components"]["relevance"]["ranked_right"] == 1
    assert values["leakage"]["foreign_sentence"]["copies"]["mean"] < 0, "a component without a role leaks"
    alone, _ = rate(items, {"copies": Pays("copied")})
    bought = price([item.record for item in items[:4]], alone, {i.record.id: ["Nobody knows."] for i in items}, 20, 0)
    assert bought["above_median"] == 1


def test_running_normalisation_is_that_of_the_first_answers(items: Sequence[StressItem]) -> None:
    rated, changes = rate(
        items[:6], {"relevance": Pays("length")}, settings={"relevance": ComponentConfig(normalisation="running")}
    )
    assert {change.name for change in changes} >= {"filler"}
    gold = items[0].record
    assert rated.value(gold.id, gold.gold, "total") != rated.value(gold.id, gold.gold, "relevance")


@dataclass
class Sentences(BaseScorer):
    """By sentence: its number, from 1; of an answer without one nothing is known."""

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        spans = [tuple(shared_segmenter("english").sentences(text)) for text in responses]
        values = [tuple(float(i) for i, _ in enumerate(row, 1)) for row in spans]
        return SegmentScores(spans, values, unscored=frozenset(i for i, row in enumerate(spans) if not row))


def sentences_rated(*texts: str) -> RatedTexts:
    composer = RewardComposer(RewardConfig({"relevance": Sentences()}, {"relevance": 1.0}))
    rated = RatedTexts(composer, {"1": Prompt("1", "", ())}, {"relevance": "relevance"})
    rated.add(("1", text) for text in texts)
    return rated


def test_values_are_read_at_their_place() -> None:
    text, longer = "One is. Two is. Three is.", "One is. Two is. New is. Three is."
    rated = sentences_rated(text, longer, "")
    assert rated.value("1", text, "relevance") == 2 and rated.value("1", text, TOTAL) == 6
    assert rated.value("1", text, "relevance", (8, 15)) == 2 and rated.value("1", text, "relevance", (0, 15)) == 1.5
    assert rated.value("1", text, "relevance", (18, 20)) == 3, "a place inside a segment"
    assert rated.value("1", "", "relevance") is None and rated.value("1", "", TOTAL) is None
    assert rated.unchanged("1", (text, longer), "relevance") == (2, pytest.approx(7 / 3))


def test_what_must_follow_is_judged_by_direction_and_spread() -> None:
    base, same, more = "One is. Two is.", "One was. Two was.", "One is. Two is. Three is."
    rated = sentences_rated(base, same, more)

    def right(direction: Any, changed: str, spread: float) -> bool:
        change = Change("c", "f", "1", base, changed, "gold", (Expectation("total", direction),))
        (judged,) = verdicts([change], rated, {"total": spread, "relevance": 0})
        return judged.right

    assert not right("fall", same, 1) and right("not_rise", same, 1) and right("stay", same, 0)
    assert not right("fall", more, 9) and not right("not_rise", more, 9)
    assert right("stay", more, 3) and not right("stay", more, 2.9)
    spread = spreads(rated, {"1": [base, more]})
    assert spread["total"] == pytest.approx(((6 - 3) ** 2 / 2) ** 0.5)
    odd = Change("mine", "f", "1", base, more, "gold", (Expectation("politeness", "fall"),))
    with pytest.raises(ConfigError, match="mine expects something of 'politeness'"):
        verdicts([odd], rated, spread)


def test_intervals_are_over_questions() -> None:
    one = share_of([("1", True)] * 8, 0)
    assert one == {"pairs": 8, "ranked_right": 1.0, "low": None, "high": None}
    many = share_of([(str(i), i % 2 == 0) for i in range(40) for _ in range(5)], 0)
    assert many["pairs"] == 200 and many["low"] < 0.4 and many["high"] > 0.6


@pytest.mark.parametrize("given", [{"mine": "tone"}, {"other": "relevance"}, {"mine": "relevance", "b": "relevance"}])
def test_roles_that_do_not_fit_are_refused(given: dict[str, str]) -> None:
    assert roles_of(("mine", "b"), {"mine": "relevance"}) == {"relevance": "mine", "b": "b"}
    assert set(roles_of(ROLES, {})) == set(ROLES)
    with pytest.raises(ConfigError, match="stress_test.roles"):
        roles_of(("mine", "b"), given)


def test_a_file_without_gold_answers_is_refused(tmp_path: Path) -> None:
    from finegrained_rlhf.core.errors import DataError

    (tmp_path / "p.jsonl").write_text('{"question": "Who?", "passages": []}\n')
    with pytest.raises(DataError, match="no question has a gold answer"):
        read_items(tmp_path / "p.jsonl")
