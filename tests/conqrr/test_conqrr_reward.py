"""Rewards of query rewriters: the built-in shapes by hand, and a reward of one's own named in YAML."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import pytrec_eval
from conqrr_toy import make_files, questions
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from script_runs import ROOT

from finegrained_rlhf.conqrr.data import PassageLabel, RewriteExample
from finegrained_rlhf.conqrr.rewards import (
    GuardedReward,
    PassageRank,
    RetrievedRank,
    RewardInputs,
    guard_penalty,
    pool_ranks,
    rank_values,
)
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.metrics.functions import repeated_bigram_share, words_with_letters
from finegrained_rlhf.retrieval.protocol import Hit


def test_shapes_by_hand() -> None:
    """The positive in column 1: first, second, tied for the first place, and last of three."""
    scores = np.array([[1, 3, 2], [3, 2, 1], [3, 3, 1], [2, 1, 2]], np.float32)
    ranks = pool_ranks(scores, [1] * 4)
    assert ranks.tolist() == [1, 2, 2, 3]
    assert rank_values(ranks, "first").tolist() == [1, 0, 0, 0]
    assert rank_values(ranks, "reciprocal_rank").tolist() == pytest.approx([1, 1 / 2, 1 / 2, 1 / 3])
    assert rank_values(ranks, "ndcg").tolist() == pytest.approx([1, 0.63092975, 0.63092975, 0.5])


@pytest.mark.parametrize(("shape", "metric"), [("first", "P_1"), ("reciprocal_rank", "recip_rank"), ("ndcg", "ndcg")])
def test_shapes_are_trec_evals_metrics_of_one_relevant_passage(shape: Any, metric: str) -> None:
    """trec_eval breaks ties by id, descending; a tie counts against the positive, so its id is the smallest."""
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 4, (60, 7)).astype(np.float32)
    run = {str(q): {f"d{p}": float(score) for p, score in enumerate(row)} for q, row in enumerate(scores)}
    judged = {str(q): {"d0": 1} for q in range(len(scores))}
    names = {"P.1"} if metric == "P_1" else {metric}
    theirs = pytrec_eval.RelevanceEvaluator(judged, names).evaluate(run)
    ours = rank_values(pool_ranks(scores, [0] * len(scores)), shape)
    assert ours.tolist() == pytest.approx([theirs[str(q)][metric] for q in range(len(scores))])
    assert len(set(ours.tolist())) > 1


@given(st.integers(0, 1000))
def test_a_rank_is_a_place_in_a_sorted_list(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.integers(-2, 3, (5, 6)).astype(np.float32)
    positives = rng.integers(0, 6, 5).tolist()
    for row, positive, rank in zip(scores, positives, pool_ranks(scores, positives), strict=True):
        order = sorted(range(6), key=lambda p: (-row[p], p == positive))
        assert order.index(positive) + 1 == rank


def test_ranks_that_are_none_and_unknown_shapes() -> None:
    nothing = np.array([np.inf])
    assert [rank_values(nothing, s).tolist() for s in ("first", "reciprocal_rank", "ndcg")] == [[0.0]] * 3
    with pytest.raises(ValueError, match="begin with 1"):
        rank_values(np.array([0.0]), "first")
    with pytest.raises(ValueError, match="shape must be"):
        rank_values(np.array([1.0]), "map")  # type: ignore[arg-type]


class Lengths:
    """Scores a passage by how long the query is, times its number."""

    def score_pool(self, queries: Sequence[str], ids: Sequence[str]) -> Any:
        return np.array([[len(query) * int(id) for id in ids] for query in queries], np.float32)


def test_the_shape_is_chosen_by_the_configuration() -> None:
    labels = {"a": PassageLabel("a", "2", "3"), "b": PassageLabel("b", "9", "1")}
    prompts = [Prompt(name, "", (1,)) for name in "ab"]
    given = RewardInputs({}, labels, Lengths())
    assert PassageRank().build(given).score(prompts, prompts, ["xx", "y"]) == [0.0, 1.0]
    assert PassageRank("reciprocal_rank").build(given).score(prompts, prompts, ["xx", "y"]) == [1 / 3, 1.0]
    assert PassageRank("ndcg").build(given).score(prompts, prompts, ["xx", "y"]) == [0.5, 1.0]
    assert set(PassageRank().build(given).rewarded) == {"a", "b"}
    with pytest.raises(ConfigError, match="shape: expected one of first, reciprocal_rank, ndcg"):
        PassageRank("rank")  # type: ignore[arg-type]
    for reward in (PassageRank(), RetrievedRank(), GuardedReward(PassageRank())):
        assert reward.needs_labels
        with pytest.raises(ConfigError, match="needs labels=FILE and index=DIR"):
            reward.build(RewardInputs({}, labels, None))


class Found:
    """Finds passages 1, 2 and 3 for every query, 2 and 3 with the same score, as far as it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[str], int]] = []

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.asked.append((list(queries), k))
        return [[Hit("1", 3.0), Hit("3", 2.0), Hit("2", 2.0)][:k] for _ in queries]


def test_the_rank_in_a_search_of_the_whole_index() -> None:
    """First; tied with one that stands before it and with one behind it; not found; blank."""
    labels = {name: PassageLabel(name, positive, "7") for name, positive in zip("abcd", "1239", strict=True)}
    prompts = [Prompt(name, "", (1,)) for name in "abcda"]
    retriever = Found()
    reward = RetrievedRank().build(RewardInputs({}, labels, retriever))
    assert reward.score(prompts[:1], prompts, ["x", "y", "x", "x", " "]) == pytest.approx([1, 1 / 3, 1 / 3, 0, 0])
    assert retriever.asked == [(["x", "y"], 100)] and set(reward.rewarded) == set("abcd")
    shallow = RetrievedRank("ndcg", depth=2).build(RewardInputs({}, labels, Found()))
    assert shallow.score(prompts, prompts[:3], ["x"] * 3) == pytest.approx([1, 0, 0.6309297])
    assert shallow.score(prompts, prompts[:1], [""]) == [0.0]
    with pytest.raises(DataError, match="record z, field positive"):
        reward.score(prompts, [Prompt("z", "", (1,))], ["x"])
    with pytest.raises(ConfigError, match="depth: expected at least 1"):
        RetrievedRank(depth=0)


# Guard ---------------------------------------------------------------------------------------------------------------


def test_the_share_of_repeated_word_pairs_by_hand() -> None:
    """Of 8 pairs 4 differ; punctuation is no word, case does not matter; three in a row repeat a pair once."""
    loop = words_with_letters("What is, of Kirin of Kirin OF kirin, of?")
    assert repeated_bigram_share(loop) == pytest.approx(0.5)
    assert repeated_bigram_share(["red"] * 3) == 0.5
    assert repeated_bigram_share(["red"]) == repeated_bigram_share([]) == 0.0


@given(st.lists(st.sampled_from("abc"), max_size=9))
def test_the_share_of_repeated_word_pairs_counts_what_stood_before(words: list[str]) -> None:
    pairs = [words[i : i + 2] for i in range(len(words) - 1)]
    again = sum(pair in pairs[:i] for i, pair in enumerate(pairs))
    assert repeated_bigram_share(words) == pytest.approx(again / max(len(pairs), 1))


def test_a_guarded_reward_is_the_reward_less_its_penalty() -> None:
    """λ = 0.4 of a half, and two words above four at 0.1."""
    assert guard_penalty("red red red", 0.4, 4, 0.1) == pytest.approx(0.2)
    assert guard_penalty("one two three four five six!", 0.4, 4, 0.1) == pytest.approx(0.2)
    assert guard_penalty("one two three four five six!", 0.4, None, 0.1) == guard_penalty("", 1.0, 1, 1.0) == 0.0
    labels = {"a": PassageLabel("a", "2", "3"), "b": PassageLabel("b", "9", "1")}
    prompts = [Prompt(name, "", (1,)) for name in "bbb"]
    texts = ["red red red", "what is it", "one two three four five six!"]
    guarded = GuardedReward(PassageRank(), 0.4, 4, 0.1).build(RewardInputs({}, labels, Lengths()))
    assert guarded.score(prompts, prompts, texts) == pytest.approx([0.8, 1.0, 0.8])
    assert set(guarded.rewarded) == {"a", "b"}
    assert not GuardedReward(NamesThePerson(0.5)).needs_labels
    for bad in ({"repetition": -1.0}, {"word": -0.1}, {"longest": 0}):
        with pytest.raises(ConfigError, match=rf"{next(iter(bad))}: expected (null or )?at least"):
            GuardedReward(PassageRank(), **bad)


def test_a_guard_is_put_around_any_reward_by_the_configuration() -> None:
    words = ["rewrite_reward=guarded", "rewrite_reward@rewrite_reward.reward=retrieved", "data=x", "output_dir=x"]
    words += ["policy.path=x", "labels=x", "index=x", "rewrite_reward.longest=9", "rewrite_reward.reward.shape=ndcg"]
    with initialize_config_dir(str(ROOT / "conf"), version_base=None):
        config = compose("train_conqrr", overrides=words)
    assert instantiate(config.rewrite_reward, _convert_="all") == GuardedReward(RetrievedRank("ndcg"), 0.5, 9, 0.05)


@dataclass(frozen=True)
class NamesThePerson:
    """A user's reward: whether the rewrite has a word of the human's one, for questions that have a rewrite."""

    needs_labels: ClassVar[bool] = False
    calls: ClassVar[list[int]] = []

    worth: float

    def build(self, inputs: RewardInputs) -> NamesThePersonScores:
        return NamesThePersonScores(self.worth, inputs.examples)


class NamesThePersonScores:
    def __init__(self, worth: float, examples: Mapping[str, RewriteExample]) -> None:
        self.worth, self.examples = worth, examples
        self.rewarded = {name for name, question in examples.items() if question.rewrite is not None}

    def score(self, step_prompts: Sequence[Prompt], prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        NamesThePerson.calls.append(len(texts))
        words = [set(str(self.examples[prompt.id].rewrite).split()) for prompt in prompts]
        return [self.worth * bool(known & set(text.split())) for known, text in zip(words, texts, strict=True)]


def test_a_reward_of_ones_own_trains_without_labels_and_index(tmp_path: Path) -> None:
    """`rewrite_reward=mine` from a directory of the user's; the scores of the run's rewrites are that reward's."""
    files = make_files(tmp_path)
    (tmp_path / "conf/rewrite_reward").mkdir(parents=True)
    (tmp_path / "conf/rewrite_reward/mine.yaml").write_text(f"_target_: {__name__}.NamesThePerson\nworth: 0.25\n")
    words = [
        f"hydra.searchpath=[file://{tmp_path}/conf]", "rewrite_reward=mine", f"data={files}/questions.jsonl",
        f"validation_data={files}/questions.jsonl", "validation_share=0", "labels=null", "index=null",
        f"policy.path={files}/t5", f"output_dir={tmp_path}/run", "total_steps=1", "samples_every=1",
        "training.alpha=1.0", "training.batch_size=12", "training.samples=2", "training.max_new_tokens=6",
        "processes.precision=fp32",
    ]  # fmt: skip
    with initialize_config_dir(str(ROOT / "conf"), version_base=None):
        config = OmegaConf.to_container(compose("train_conqrr", overrides=words), resolve=True)
    assert isinstance(config, dict) and config.pop("prepare") is None
    task = instantiate(config, _convert_="all")
    assert isinstance(task.rewrite_reward, NamesThePerson) and task.selects_by == "rouge1"
    NamesThePerson.calls.clear()
    task.run()
    assert NamesThePerson.calls == [len(questions()) * 3]
    (samples,) = (tmp_path / "run/samples").glob("scored_*.jsonl")
    known = {question.id: set(str(question.rewrite).split()) for question in questions()}
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    assert len(rows) == len(questions())
    for row in rows:
        for told in (row["greedy"], *row["samples"]):
            assert told["score"] == 0.25 * bool(known[row["id"]] & set(told["response"].split()))
