"""Rewards of query rewriters: the built-in shapes by hand, and a reward of one's own named in YAML."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from conqrr_toy import make_files, questions
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf
from script_runs import ROOT

from finegrained_rlhf.conqrr.records import PassageLabel, RewriteExample
from finegrained_rlhf.conqrr.training.reward import PassageRank, RewardInputs, ranked_first, reciprocal_ranks
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.records import Prompt


def test_shapes_by_hand() -> None:
    """The positive in column 1: first, second, tied for the first place, and last of three."""
    scores = np.array([[1, 3, 2], [3, 2, 1], [3, 3, 1], [2, 1, 2]], np.float32)
    assert ranked_first(scores, [1] * 4).tolist() == [True, False, False, False]
    assert reciprocal_ranks(scores, [1] * 4).tolist() == pytest.approx([1, 1 / 2, 1 / 2, 1 / 3])


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
    assert set(PassageRank().build(given).rewarded) == {"a", "b"}
    with pytest.raises(ConfigError, match="rewrite_reward.shape: expected first or reciprocal_rank, got 'rank'"):
        PassageRank("rank")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="needs labels=FILE and index=DIR"):
        PassageRank().build(RewardInputs({}, labels, None))


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
