"""From segment scores to token rewards: where each value lands, and how components add up."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from properties import given, st
from rewards_toy import rollout, whole

from finegrained_rlhf.core.errors import AlignmentError, ConfigError, DataError
from finegrained_rlhf.core.records import Prompt, Rollout, Sample, SegmentScores
from finegrained_rlhf.rewards import BaseScorer, ComponentConfig, RewardComposer, RewardConfig
from finegrained_rlhf.rewards.placement import place_values, segment_tokens
from finegrained_rlhf.rl.stats import RunningMoments
from finegrained_rlhf.rollout.assembly import empty_rollout


def place(scores: SegmentScores, drawn: Rollout) -> torch.Tensor:
    return place_values(scores.values, segment_tokens(scores, drawn), drawn)


SEGMENTS = SegmentScores([((0, 12), (13, 25)), ((0, 3),), ()], [(1.0, -1.0), (0.5,), ()])


BOTH = {"relevance": SEGMENTS, "completeness": whole(2.0, 3.0, -4.0)}


def cells(placed: torch.Tensor) -> dict[tuple[int, int], float]:
    return {(r, t): float(placed[r, t]) for r, t in placed.nonzero().tolist()}


def test_the_toy_is_what_it_says() -> None:
    assert rollout().token_ends[0] == (3, 7, 11, 12, 16, 20, 24, 25, 25)
    assert rollout().lengths().tolist() == [9, 1, 1]


def test_segments_land_on_the_token_that_ends_them() -> None:
    assert cells(place(SEGMENTS, rollout())) == {(0, 3): 1.0, (0, 7): -1.0, (1, 0): 0.5}


def test_whole_responses_land_on_the_last_real_token() -> None:
    """The end token where there is one, else the last token that was sampled; never padding."""
    assert cells(place(whole(2.0, 3.0, 4.0), rollout())) == {(0, 8): 2.0, (1, 0): 3.0, (2, 0): 4.0}


def test_segments_that_end_in_one_token_add_up() -> None:
    both = SegmentScores([((0, 5), (5, 7), (8, 9)), (), ()], [(1.0, 2.0, 4.0), (), ()])
    assert cells(place(both, rollout())) == {(0, 1): 3.0, (0, 2): 4.0}
    twice = SegmentScores([((0, 25), (0, 25)), (), ()], [(1.0, 2.0), (), ()], whole_response=True)
    assert cells(place(twice, rollout())) == {(0, 8): 3.0}


@pytest.mark.parametrize(
    "spans",
    [
        [((0, 26),), (), ()],  # past the text
        [((5, 5),), (), ()],  # empty
        [((9, 3),), (), ()],  # reversed
        [(), (), ((0, 1),)],  # in a response without text
    ],
)
def test_segments_outside_their_response_are_refused(spans: list) -> None:
    with pytest.raises(AlignmentError, match="segment"):
        place(SegmentScores(spans, [tuple(1.0 for _ in row) for row in spans]), rollout())


def test_counts_must_agree() -> None:
    with pytest.raises(AlignmentError, match="scores of 2 responses for a rollout of 3"):
        place(SegmentScores([(), ()], [(), ()]), rollout())
    with pytest.raises(ValueError, match="response 1 has 1 spans and 2 values"):
        SegmentScores([(), ((0, 1),)], [(), (1.0, 2.0)])
    with pytest.raises(ValueError, match="1 responses have spans, 2 have values"):
        SegmentScores([()], [(), ()])


def test_a_response_without_real_tokens_takes_no_value() -> None:
    nothing = replace(rollout(), response_mask=torch.zeros_like(rollout().response_mask))
    with pytest.raises(AlignmentError, match="token -1 of 0"):
        place(whole(1.0, 1.0, 1.0), nothing)


# Composition ----------------------------------------------------------------------------------------------------


class Fixed(BaseScorer):
    """Gives what it was given."""

    def __init__(self, scores: SegmentScores) -> None:
        self.scores, self.ready, self.calls = scores, 0, 0

    def setup(self, device: torch.device) -> None:
        self.ready += 1

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        assert len(prompts) == len(responses)
        self.calls += 1
        return self.scores


def composer(**settings: ComponentConfig) -> RewardComposer:
    components = {"relevance": Fixed(SEGMENTS), "completeness": Fixed(whole(2.0, 3.0, -4.0))}
    return RewardComposer(RewardConfig(components, {"relevance": 0.3, "completeness": 0.5}, settings))


def test_components_keep_their_share() -> None:
    ours = composer()
    ours.setup(torch.device("cpu"))
    assert all(scorer.ready == 1 for scorer in ours.config.components.values())
    drawn = rollout()
    trace = ours.compose(drawn, ours.score(drawn.row_prompts(), drawn.texts))
    assert list(trace.components) == ["relevance", "completeness"]
    relevance, completeness = trace.components.values()
    assert cells(relevance.raw) == {(0, 3): 1.0, (0, 7): -1.0, (1, 0): 0.5}
    assert torch.equal(relevance.normalised, relevance.raw)
    assert cells(relevance.weighted) == pytest.approx({(0, 3): 0.3, (0, 7): -0.3, (1, 0): 0.15})
    assert relevance.normalised_values == [(1.0, -1.0), (0.5,), ()]
    assert completeness.normalised_values == [(2.0,), (3.0,), (-4.0,)]
    assert cells(trace.total) == pytest.approx({(0, 3): 0.3, (0, 7): -0.3, (0, 8): 1.0, (1, 0): 1.65, (2, 0): -2.0})
    assert torch.equal(trace.total, relevance.weighted + completeness.weighted)
    assert (relevance.weight, completeness.weight) == (0.3, 0.5)
    assert trace.total.dtype == torch.float32


def test_a_weight_of_zero_keeps_the_trace_but_not_the_reward() -> None:
    config = RewardConfig({"a": Fixed(SEGMENTS)}, {"a": 0.0})
    trace = RewardComposer(config).compose(rollout(), {"a": SEGMENTS})
    assert not trace.total.any() and trace.components["a"].raw.any()


class MyScorer:
    """A user's own class: no base class, one value a response from the prompt's metadata."""

    def setup(self, device: torch.device) -> None:
        self.device = device

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        values = [(float(p.metadata["bonus"]) + len(r),) for p, r in zip(prompts, responses, strict=True)]
        return SegmentScores([((0, len(r)),) for r in responses], values, whole_response=True)


def test_a_class_of_the_users_own() -> None:
    ours = RewardComposer(RewardConfig({"mine": MyScorer()}, {"mine": 2.0}))
    ours.setup(torch.device("cpu"))
    drawn = rollout()
    asked = [replace(p, metadata={"bonus": i}) for i, p in enumerate(drawn.prompts)]
    trace = ours.compose(drawn, ours.score(asked, drawn.texts))
    assert cells(trace.total) == {(0, 8): 50.0, (1, 0): 8.0, (2, 0): 4.0}


class Started(BaseScorer):
    """A scorer that works in two steps and writes down when."""

    def __init__(self, name: str, log: list[str], scores: SegmentScores) -> None:
        self.name, self.log, self.scores = name, log, scores

    def start(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Callable[[], SegmentScores]:
        self.log.append(f"start {self.name}")

        def collect() -> SegmentScores:
            self.log.append(f"collect {self.name}")
            return self.scores

        return collect

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        return self.start(prompts, responses)()


class Plain(BaseScorer):
    """A scorer that knows `score` only."""

    def __init__(self, log: list[str], scores: SegmentScores) -> None:
        self.log, self.scores = log, scores

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        self.log.append("score")
        return self.scores


def test_every_scorer_is_started_before_any_is_waited_for() -> None:
    log: list[str] = []
    components = {
        "a": Started("a", log, whole(1.0, 2.0, 3.0)),
        "b": Plain(log, SEGMENTS),
        "c": Started("c", log, whole(4.0, 5.0, 6.0)),
    }
    drawn = rollout()
    scores = RewardComposer(RewardConfig(components, {"a": 1.0, "b": 1.0, "c": 1.0})).score(
        drawn.row_prompts(), drawn.texts
    )
    assert log == ["start a", "start c", "score", "collect a", "collect c"]
    assert list(scores.items()) == [(name, scorer.scores) for name, scorer in components.items()]


def test_results_of_started_scorers_are_checked_too() -> None:
    drawn = rollout()
    for scores, message in ((whole(1.0, float("nan"), 0.0), "not finite"), (SegmentScores([()], [()]), "1 responses")):
        composer = RewardComposer(RewardConfig({"a": Started("a", [], scores)}, {"a": 1.0}))
        with pytest.raises(ConfigError, match=message):
            composer.score(drawn.row_prompts(), drawn.texts)


def test_configuration_mistakes_are_named() -> None:
    scorer = Fixed(SEGMENTS)
    for arguments, message in (
        (({}, {}), "components is empty"),
        (({"a": scorer}, {"a": 1.0, "relevence": 1.0}), r"weights\.relevence: no such component; the reward has a"),
        (({"a": scorer}, {"a": 1.0}, {"b": ComponentConfig()}), r"settings\.b: no such component"),
        (({"a": scorer, "b": scorer}, {"a": 1.0}), r"weights\.b: expected a finite number, got None"),
        (({"a": scorer}, {"a": float("nan")}), r"weights\.a: expected a finite number"),
        (({"a": scorer}, {"a": "much"}), r"weights\.a: expected a finite number, got 'much'"),
        (({"a": object()}, {"a": 1.0}), r"components\.a: object has no setup"),
    ):
        with pytest.raises(ConfigError, match=message):
            RewardConfig(*arguments)
    with pytest.raises(ConfigError, match="normalisation: expected one of none, running"):
        ComponentConfig("batch")
    with pytest.raises(ConfigError, match="budget: expected a finite number, got 'much'"):
        ComponentConfig(budget="much")


def test_bad_scores_are_named() -> None:
    drawn = rollout()
    for scores, message in (
        (whole(1.0, float("nan"), 0.0), "component a gave a value that is not finite"),
        (whole(1.0, float("inf"), 0.0), "component a gave a value that is not finite"),
        (SegmentScores([()], [()]), "component a scored 1 responses, 3 were given"),
    ):
        with pytest.raises(ConfigError, match=message):
            RewardComposer(RewardConfig({"a": Fixed(scores)}, {"a": 1.0})).score(drawn.row_prompts(), drawn.texts)


RUNNING = ComponentConfig("running")


def test_running_normalisation_by_hand() -> None:
    """Values 2, 3, −4: mean 1/3, variance (25 + 64 + 169)/27; then 0, 0, 0 join them."""
    ours = composer(completeness=RUNNING)
    drawn = rollout()
    trace = ours.compose(drawn, {"completeness": whole(2.0, 3.0, -4.0)})
    std = (258 / 27) ** 0.5
    part = trace.components["completeness"]
    expected = {(0, 8): (2 - 1 / 3) / std, (1, 0): (3 - 1 / 3) / std, (2, 0): (-4 - 1 / 3) / std}
    assert cells(part.normalised) == pytest.approx(expected)
    assert cells(part.raw) == {(0, 8): 2.0, (1, 0): 3.0, (2, 0): -4.0}
    assert cells(part.weighted) == pytest.approx({name: 0.5 * value for name, value in expected.items()})
    second = ours.compose(drawn, {"completeness": whole(0.0, 0.0, 0.0)}).components["completeness"]
    mean, std = 1 / 6, (29 / 6 - 1 / 36) ** 0.5
    assert float(second.normalised[0, 8]) == pytest.approx(-mean / std)


def test_running_normalisation_stands_still_in_validation_and_survives_a_resume() -> None:
    ours, drawn = composer(relevance=RUNNING), rollout()
    ours.compose(drawn, {"relevance": SEGMENTS})
    state = ours.state()
    assert list(state["moments"]) == ["relevance"] and state["constraints"] == {}
    before = ours.compose(drawn, {"relevance": SEGMENTS}, train=False)
    assert ours.state() == state
    other = composer(relevance=RUNNING)
    other.load_state(state)
    after = other.compose(drawn, {"relevance": SEGMENTS}, train=False)
    assert torch.equal(before.total, after.total)
    assert not torch.equal(before.total, composer().compose(drawn, {"relevance": SEGMENTS}).total)


def test_validations_are_standardised_by_the_first_one() -> None:
    """By hand: 2, 3, −4 have mean 1/3 and variance 86/9; later values and training change neither."""
    ours, drawn = composer(completeness=RUNNING), rollout()
    ours.fix_moments({"completeness": [whole(2.0, 3.0, -4.0)], "relevance": [SEGMENTS]})
    ours.compose(drawn, {"completeness": whole(90.0, 50.0, -70.0)})
    ours.fix_moments({"completeness": [whole(9.0, 5.0, 7.0)]})
    again = composer(completeness=RUNNING)
    again.load_state(json.loads(json.dumps(ours.state())))
    for one in (ours, again):
        used = one.used_values({"completeness": whole(5.0, 1 / 3, 0.0)})["completeness"]
        std = (86 / 9) ** 0.5
        assert [value for (value,) in used] == pytest.approx([(5 - 1 / 3) / std, 0.0, -1 / 3 / std])
    older = composer(completeness=RUNNING)
    older.load_state({"completeness": [3.0, 1 / 3, 86 / 3]})  # as checkpoints held it before
    assert older.used_values({"completeness": whole(5.0, 0.0, 0.0)})["completeness"][0] == pytest.approx(used[0])


def test_running_normalisation_counts_over_processes() -> None:
    ours = RewardComposer(RewardConfig({"a": Fixed(SEGMENTS)}, {"a": 1.0}, {"a": RUNNING}), reduce=lambda t: 2 * t)
    ours.compose(rollout(), {"a": SEGMENTS})
    alone = RunningMoments()
    alone.update(torch.tensor([1.0, -1.0, 0.5]))
    count, mean, m2 = ours.state()["moments"]["a"]["running"]
    assert (count, mean) == (6, pytest.approx(alone.mean))
    assert m2 == pytest.approx(2 * alone.m2)


def test_a_process_without_responses_asks_no_scorer() -> None:
    ours = composer(relevance=RUNNING)
    empty = empty_rollout([Sample(1)], torch.device("cpu"))
    scores = ours.score(empty.row_prompts(), empty.texts)
    assert list(scores) == ["relevance", "completeness"]  # the same names as on the other processes
    assert all(scorer.calls == 0 for scorer in ours.config.components.values())
    trace = ours.compose(empty, scores)
    assert trace.total.shape == (0, 1)
    assert list(trace.components) == ["relevance", "completeness"]


# Aggregation and density ----------------------------------------------------------------------------------------


def test_a_mean_pays_a_response_once_whatever_its_segments() -> None:
    trace = composer(relevance=ComponentConfig(aggregation="mean")).compose(rollout(), BOTH)
    assert trace.components["relevance"].normalised_values == [(0.5, -0.5), (0.5,), ()]
    assert cells(trace.components["relevance"].raw) == {(0, 3): 1.0, (0, 7): -1.0, (1, 0): 0.5}
    assert cells(trace.components["relevance"].weighted) == pytest.approx({(0, 3): 0.15, (0, 7): -0.15, (1, 0): 0.15})


def test_a_budget_is_spent_whole() -> None:
    """By hand: (3, −1) of a budget of 2 is (1.5, −0.5); a response of zeros gets nothing."""
    scores = SegmentScores([((0, 12), (13, 25)), ((0, 3),), ()], [(3.0, -1.0), (0.0,), ()])
    setting = ComponentConfig(aggregation="budget", budget=2.0)
    assert composer(relevance=setting).used_values({"relevance": scores}) == {"relevance": [(1.5, -0.5), (0.0,), ()]}


@given(st.lists(st.floats(-9, 9).filter(lambda value: abs(value) > 1e-3), min_size=1, max_size=7), st.integers(2, 4))
def test_more_segments_of_the_same_kind_earn_more_by_the_sum_alone(values: list[float], times: int) -> None:
    once, often = [tuple(values)], [tuple(values * times)]
    for how, factor in (("sum", times), ("mean", 1), ("budget", 1)):
        ours = composer(relevance=ComponentConfig(aggregation=how, budget=3.0))
        single, many = (
            ours.totals({"relevance": SegmentScores([tuple((i, i + 1) for i in range(len(row[0])))], row)})[0]
            for row in (once, often)
        )
        assert many == pytest.approx(factor * single, abs=1e-9)


def test_density_of_a_response_moves_the_reward_but_not_its_amount() -> None:
    plain = composer().compose(rollout(), BOTH)
    moved = composer(relevance=ComponentConfig(density="response")).compose(rollout(), BOTH)
    assert cells(moved.components["relevance"].raw) == cells(plain.components["relevance"].raw)
    assert cells(moved.components["relevance"].weighted) == pytest.approx({(1, 0): 0.15})  # +0.3 − 0.3 at (0, 8)
    assert moved.components["relevance"].tokens == [(8, 8), (0,), ()]
    assert torch.allclose(moved.total.sum(dim=1), plain.total.sum(dim=1))


def test_totals_are_what_training_would_add_up() -> None:
    for setting in (ComponentConfig(), ComponentConfig(aggregation="mean"), ComponentConfig(density="response")):
        ours = composer(relevance=setting)
        assert ours.totals(BOTH) == pytest.approx(ours.compose(rollout(), BOTH).total.sum(dim=1).tolist())


def test_what_cannot_be_aggregated_is_refused() -> None:
    for wrong in ({"aggregation": "median"}, {"density": "token"}, {"aggregation": "budget", "budget": 0.0}):
        with pytest.raises(ConfigError, match="expected (one of|above 0)"):
            ComponentConfig(**wrong)
    with pytest.raises(ConfigError, match="settings.completeness.aggregation: a budget is for segments"):
        composer(completeness=ComponentConfig(aggregation="budget")).compose(rollout(), BOTH)
    with pytest.raises(ConfigError, match="settings.relevance.normalisation: running moments"):
        composer(relevance=ComponentConfig("running")).totals(BOTH)


# Empty responses ------------------------------------------------------------------------------------------------


class Words(BaseScorer):
    """−1 for every word."""

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        spans = [tuple(match.span() for match in re.finditer(r"\S+", text)) for text in responses]
        return SegmentScores(spans, [(-1.0,) * len(row) for row in spans])


def test_an_empty_response_is_paid_what_the_setting_says() -> None:
    """Row 2 of the toy has no text: without the setting it earns more than one wrong word."""
    drawn = rollout()
    for empty, paid in ((0.0, {}), (-1.0, {(2, 0): -0.5})):
        config = RewardConfig({"a": Words()}, {"a": 0.5}, {"a": ComponentConfig(empty=empty)})
        ours = RewardComposer(config)
        scores = ours.score(drawn.row_prompts(), drawn.texts)
        trace = ours.compose(drawn, scores)
        assert {cell: value for cell, value in cells(trace.total).items() if cell[0] == 2} == paid
        assert ours.totals(scores)[2] == sum(paid.values())
        assert list(scores["a"].values[:2]) == Words().score([], drawn.texts[:2]).values
    assert trace.components["a"].tokens[2] == (0,) and scores["a"].spans[2] == ((0, 0),)
    again = ours.compose(drawn, scores)  # as from kept samples
    assert torch.equal(again.total, trace.total)


def test_whole_responses_and_texts_without_segments_are_left_alone() -> None:
    drawn = rollout()
    config = RewardConfig(
        {"whole": Fixed(whole(2.0, 3.0, -4.0)), "some": Fixed(SegmentScores([(), (), ()], [(), (), ()]))},
        {"whole": 1.0, "some": 1.0},
        {name: ComponentConfig(empty=-1.0) for name in ("whole", "some")},
    )
    scores = RewardComposer(config).score(drawn.row_prompts(), drawn.texts)
    assert scores["whole"].values == [(2.0,), (3.0,), (-4.0,)]
    assert scores["some"].values == ((), (), (-1.0,))  # only the response without a word is empty
    with pytest.raises(ConfigError, match="empty: expected a finite number"):
        ComponentConfig(empty=float("nan"))


def test_prompts_are_shown_to_the_scorers_that_check_them() -> None:
    class Checking(BaseScorer):
        def __init__(self) -> None:
            self.asked: list[str] = []

        def check_prompts(self, prompts: Sequence[Prompt]) -> None:
            self.asked += [prompt.id for prompt in prompts]
            if any(prompt.id == "p1" for prompt in prompts):
                raise DataError("too long", record="p1")

        def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
            raise AssertionError("nothing is scored yet")

    class Plain(BaseScorer):
        def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
            raise AssertionError("nothing is scored yet")

    checking = Checking()
    composer = RewardComposer(RewardConfig({"a": Plain(), "b": checking}, {"a": 1.0, "b": 1.0}))
    composer.check_prompts([Prompt("p0", "", (1,))])
    with pytest.raises(DataError, match="record p1: too long"):
        composer.check_prompts(rollout().prompts)
    assert checking.asked == ["p0", "p0", "p1", "p2"]
