"""Bridges: rewards that other trainers get are those of our composer, in the signatures that they document."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from byte_toy import byte_fallback
from ppo_toy import LengthScorer, WordScorer
from rewards_toy import rollout
from rl_toy import policy, prompts, tokenizer
from verl_toy import FakeDataProto

from finegrained_rlhf.bridges import (
    DenseReward,
    VerlRewardManager,
    trl_reward_function,
    trl_reward_functions,
    verl_compute_score,
)
from finegrained_rlhf.bridges.trainers import message_text, prompt_of_row
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.records import Prompt, Rollout, Sample, SegmentScores
from finegrained_rlhf.rewards import (
    BaseScorer,
    ComponentConfig,
    OverlongPenalty,
    RewardComposer,
    RewardConfig,
    RewardConstraint,
    RewardGate,
    WeightSchedule,
)
from finegrained_rlhf.rollout import make_engine
from finegrained_rlhf.text.alignment import byte_tokens, token_ends

PAGE = Path(__file__).parents[2] / "docs/bridges.md"


def config(**given: Any) -> RewardConfig:
    components = {"words": WordScorer(), "length": LengthScorer()}
    return RewardConfig(components, {"words": 1.0, "length": 0.5}, **given)


FULL = {
    "settings": {"words": ComponentConfig(aggregation="mean", empty=-1.0)},
    "end_penalty": 0.7,
    "overlong": OverlongPenalty(3, 0.1),
    "gates": {"length": RewardGate("words", 0.0)},
}


def test_the_examples_of_the_page_print_what_they_say(capsys: pytest.CaptureFixture[str]) -> None:
    bodies = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    source = "\n".join(body for body in bodies if "bridges.trl" not in body)  # which runs in TRL's own environment
    exec(compile(source, PAGE.name, "exec"), {"__name__": "page"})
    said = re.findall(r"^print\(.*?\)(?:  |\n)# (.*)$", source, re.MULTILINE)
    assert len(said) == source.count("\nprint(") == 6
    assert capsys.readouterr().out.splitlines() == said


# Arrays -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [{}, FULL], ids=["plain", "full"])
def test_arrays_are_what_our_trainer_would_be_paid(given: dict[str, Any]) -> None:
    ours = policy()
    engine, asked = make_engine(ours), prompts(count=4)
    drawn = engine.decode(engine.encode(asked), [Sample(3, temperature=2.0)], max_new_tokens=7, seed=1)
    composer = RewardComposer(config(**given), eos_ids=ours.eos_ids)
    trace = composer.compose(drawn, composer.score(drawn.row_prompts(), drawn.texts), train=False)
    reward, lengths = DenseReward(config(**given)), drawn.lengths().tolist()
    ids = [row[:length] for row, length in zip(drawn.response_ids.tolist(), lengths, strict=True)]
    ended = drawn.ended(ours.eos_ids).tolist()
    assert 0 < sum(ended) < len(ended)
    by_ids = reward.of_ids(drawn.row_prompts(), ids, ours.tokenizer, ours.eos_ids)
    by_texts = reward.of_texts(drawn.row_prompts(), drawn.texts, drawn.token_ends, ended=ended)
    for found in (by_ids, by_texts):
        assert list(found.components) == list(trace.components)
        for name, part in trace.components.items():
            assert np.array_equal(found.components[name], part.weighted.numpy())
        assert np.array_equal(found.total, trace.total.numpy()) and found.total.dtype == np.float32
        assert np.array_equal(found.mask, drawn.response_mask.numpy().astype(bool))
    numbers = reward.of_responses(drawn.row_prompts(), drawn.texts, lengths=lengths, ended=ended)
    for name, part in trace.components.items():
        assert reward.weights[name] * np.array(numbers[name]) == pytest.approx(
            part.weighted.sum(dim=1).numpy(), abs=1e-5
        )
    wide = reward.of_ids(drawn.row_prompts(), ids, ours.tokenizer, width=20)
    assert wide.total.shape == (12, 20) and not wide.total[:, by_ids.total.shape[1] :].any()


def test_bytes_of_a_character_decide_nothing_here_either() -> None:
    """As in our training, what decides a segment waits for the characters that a run of bytes becomes."""
    words = byte_fallback()
    asked = prompts(count=2)
    ids = [[2, 3, 1, 7 + 0xC3, 7 + 0xA9, 7 + 0xC3, 7 + 0xA9, 3, 2], [2, 3, 2, 3, 4, 2, 3, 2, 3]]  # "ab éé…", "ab ab. …"
    mask = torch.ones(2, 9, dtype=torch.long)
    decoded = [token_ends(words, row) for row in ids]
    none = torch.zeros(2, dtype=torch.long)
    drawn = Rollout(
        asked, none[:, None], none[:, None], torch.arange(2), none, none, (Sample(1),), torch.tensor(ids), mask,
        mask.float(), [text for text, _ in decoded], [ends for _, ends in decoded],
    )  # fmt: skip
    scorer = WordScorer()
    scorer.reads_on, scorer.look_ahead = False, 0  # type: ignore[attr-defined]
    reward = RewardConfig({"words": scorer}, {"words": 1.0}, credit="decided")
    found = DenseReward(reward).of_ids(asked, ids, words, eos_ids=[0])
    same = []
    for unfinished in (byte_tokens(words), frozenset[int]()):
        composer = RewardComposer(reward, byte_ids=unfinished)
        expected = composer.compose(drawn, composer.score(asked, drawn.texts), train=False).total.numpy()
        same.append(np.array_equal(found.total, expected))
    assert same == [True, False]


def test_arrays_by_hand() -> None:
    """`the cat sat, one dog ran!`: six words of -0.2, the last character of each in token 0, 1, 3, 4, 5 and 7."""
    drawn = rollout()
    found = DenseReward(config()).of_texts(drawn.prompts, drawn.texts, drawn.token_ends)
    assert found.components["words"][0].nonzero()[0].tolist() == [0, 1, 3, 4, 5, 7]
    assert found.total[0].tolist() == pytest.approx([-0.2, -0.2, 0, -0.2, -0.2, -0.2, 0, -0.2, -0.5 * 2.5])
    assert found.total[1].tolist() == pytest.approx([1.0 - 0.15, *[0.0] * 8])


def test_what_only_our_trainer_can_follow_is_refused() -> None:
    for moving, message in (
        (
            {"schedule": {"words": WeightSchedule([1], [1.0])}},
            r"reward\.schedule\.words: moves with our trainer's steps",
        ),
        ({"constraints": {"length": RewardConstraint(0.5)}}, r"reward\.constraints\.length"),
        ({"settings": {"words": ComponentConfig("running")}}, r"reward\.settings\.words\.normalisation"),
    ):
        with pytest.raises(ConfigError, match=message):
            DenseReward(config(**moving))
    DenseReward(config(schedule={"words": WeightSchedule()}, constraints={"words": RewardConstraint()}))


def test_bad_input_is_one_error() -> None:
    reward, asked = DenseReward(config()), [Prompt("a", "", ())]
    with pytest.raises(DataError, match="1 responses need as many ends, got 2"):
        reward.of_texts(asked, ["red"], [[3], [3]])
    for ends in ([2, 1], [4], [-1, 3]):
        with pytest.raises(DataError, match=r"response 1: expected characters of the text \(0 to 3\) that do not"):
            reward.of_texts(asked * 2, ["red", "red"], [[3], ends])
    with pytest.raises(DataError, match="response 0 has no token"):
        reward.of_texts(asked, ["red"], [[]])
    with pytest.raises(DataError, match="a response has 2 tokens, more than the width 1"):
        reward.of_texts(asked, ["red"], [[2, 3]], width=1)
    with pytest.raises(ConfigError, match=r"reward\.end_penalty: which responses ended"):
        DenseReward(config(end_penalty=1.0)).of_texts(asked, ["red"], [[3]])
    with pytest.raises(ConfigError, match=r"reward\.overlong: the lengths of the responses"):
        DenseReward(config(overlong=OverlongPenalty(3, 0.1))).of_responses(asked, ["red"])
    formal = DenseReward(config(end_penalty=1.0, overlong=OverlongPenalty(3, 0.1)))
    with pytest.raises(DataError, match="1 responses need as many lengths, got 2"):
        formal.of_responses(asked, ["red"], lengths=[1, 1], ended=[True])
    with pytest.raises(DataError, match="1 responses need as many ended, got 0"):
        formal.of_responses(asked, ["red"], lengths=[1], ended=[])
    with pytest.raises(ConfigError, match=r"VerlRewardManager\.make_reward: give the DenseReward"):
        VerlRewardManager(tokenizer())
    with pytest.raises(ConfigError, match=r"compute_score sees no tokens, by which unfinished is counted"):
        verl_compute_score(formal)
    with pytest.raises(ConfigError, match=r"reward\.end_penalty: .* give eos_ids="):
        trl_reward_functions(formal)


class Asked(BaseScorer):
    """Counts the characters of the passages and of the references that a prompt comes with; keeps the questions."""

    def __init__(self) -> None:
        self.questions: list[Any] = []

    def score(self, prompts: Any, responses: Any) -> Any:
        self.questions.append([prompt.metadata.get("question") for prompt in prompts])
        values = [
            (float(sum(len(p.text) for p in prompt.metadata["passages"]) + 100 * len(prompt.metadata["references"])),)
            for prompt in prompts
        ]
        return SegmentScores([((0, len(r)),) for r in responses], values, whole_response=True)


# TRL --------------------------------------------------------------------------------------------------------------


def test_trl_functions_take_what_trl_gives() -> None:
    """`reward_func(prompts=…, completions=…, completion_ids=…, **columns)` with a list a column, and objects beside."""
    scorer = Asked()
    reward = DenseReward(RewardConfig({"asked": scorer, "words": WordScorer()}, {"asked": 0.1, "words": 2.0}, {}, 1.0))
    functions, weights = trl_reward_functions(reward, eos_ids=[1])
    assert [function.__name__ for function in functions] == ["asked", "words", "unfinished"]
    assert weights == [0.1, 2.0, -1.0]
    call: dict[str, Any] = {
        "prompts": [[{"role": "user", "content": "q1"}], [{"role": "user", "content": "q2"}]],
        "completions": [[{"role": "assistant", "content": "red red"}], [{"role": "assistant", "content": "one"}]],
        "completion_ids": [[5, 5, 1], [6]],
        "question": ["q1", "q2"],
        "passages": [[["title", "abc", "d"]], []],
        "references": [[], ["x", "y"]],
        "trainer_state": SimpleNamespace(global_step=3),
        "log_metric": print,
    }
    assert [function(**call) for function in functions] == [[5.0, 200.0], [2.0, -0.2], [0.0, 1.0]]
    assert scorer.questions == [["q1", "q2"]]  # once for all functions
    assert trl_reward_function(reward, eos_ids=[1])(**call) == pytest.approx([0.5 + 4.0, 20.0 - 0.4 - 1.0])
    functions[1](**{**call, "question": ["q3", "q2"]})
    assert scorer.questions[-1] == ["q3", "q2"]
    with pytest.raises(ConfigError, match="which responses ended"):
        functions[0](**{**call, "completion_ids": None})


# verl -------------------------------------------------------------------------------------------------------------


def encoded(text: str, end: bool) -> list[int]:
    return [*tokenizer()(text, add_special_tokens=False)["input_ids"], *([1] if end else [])]


def test_a_verl_manager_fills_token_level_scores() -> None:
    class Manager(VerlRewardManager):
        def make_reward(self) -> DenseReward:
            parts = {"asked": Asked(), "words": WordScorer()}
            return DenseReward(RewardConfig(parts, {"asked": 0.1, "words": 2.0}, {}, 1.0))

    data = FakeDataProto(
        [encoded("who saw it", False), encoded("red", False)],
        [encoded("one red", True), encoded("red", False)],
        width=5,
        data_source=["toy", "toy"],
        reward_model=[{"style": "rule", "ground_truth": "one"}, {"style": "rule", "ground_truth": ["a", "b"]}],
        extra_info=[
            {"question": "who", "passages": np.array([np.array(["t", "abc"], dtype=object)], dtype=object)},
            {"question": "what", "passages": [["t", "abcd"]]},
        ],
    )
    manager = Manager(tokenizer(), 1, compute_score=None, reward_fn_key="data_source", max_resp_len=5)
    found = manager(data, return_dict=True)
    data.batch["token_level_scores"] = found["reward_tensor"]  # as verl's trainer does
    scores = data.batch["token_level_scores"]
    assert scores.shape == data.batch["responses"].shape and scores.dtype == torch.float32
    # one: -0.4, red: 2.0, end: 0.1 · (3 + 100) | red: 2.0 + 0.1 · (4 + 200) - 1 without an end
    assert scores.tolist() == [pytest.approx([-0.4, 2.0, 10.3, 0.0, 0.0]), pytest.approx([21.4, 0.0, 0.0, 0.0, 0.0])]
    extra = found["reward_extra_info"]
    assert extra["reward/words"] == pytest.approx([1.6, 2.0]) and extra["reward/unfinished"] == [0.0, -1.0]
    assert torch.equal(manager(data), scores)
    # The reward loop makes a manager by keywords and asks for one response at a time.
    looped = Manager(config={}, tokenizer=tokenizer(), compute_score=None, reward_router_address=None)
    alone = FakeDataProto(
        [encoded("red", False)], [encoded("red", False)], width=5, extra_info=[{"passages": [], "references": []}]
    )
    one = asyncio.run(looped.run_single(alone))
    assert one["reward_score"] == pytest.approx(1.0)
    paid = json.loads(one["reward_extra_info"].pop("fine_grained"))
    assert paid["words"] == {"weight": 2.0, "tokens": [0], "values": [1.0]}
    assert one["reward_extra_info"] == {"reward/asked": 0.0, "reward/words": 2.0, "reward/unfinished": -1.0}


def test_a_verl_compute_score_pays_a_response_as_a_whole() -> None:
    score = verl_compute_score(DenseReward(RewardConfig({"a": Asked(), "w": WordScorer()}, {"a": 0.1, "w": 2.0})))
    found = score(
        data_source="toy", solution_str="one red", ground_truth="x", extra_info={"question": "q", "passages": []}
    )
    assert found == pytest.approx({"score": 10.0 + 1.6, "reward/a": 10.0, "reward/w": 1.6})


@pytest.mark.parametrize(
    ("truth", "metadata"),
    [
        (72, {"ground_truth": 72}),
        ({"target": [3, 4]}, {"ground_truth": {"target": [3, 4]}}),
        (np.array(["a", "b"], dtype=object), {"references": ["a", "b"]}),
        (None, {}),
    ],
)
def test_a_ground_truth_that_is_no_text_is_no_reference(truth: Any, metadata: dict[str, Any]) -> None:
    seen = []

    class Seeing(WordScorer):
        def score(self, prompts: Any, responses: Any) -> SegmentScores:
            seen.append(prompts[0].metadata)
            return super().score(prompts, responses)

    reward = DenseReward(RewardConfig({"words": Seeing()}, {"words": 1.0}))
    verl_compute_score(reward)("toy", "red", truth)
    assert seen == [metadata]


def test_of_chat_messages_the_texts_count() -> None:
    parts = [{"type": "image"}, {"type": "text", "text": "hi"}, {"type": "text", "text": "there"}]
    calls = [{"role": "assistant", "tool_calls": []}, {"role": "assistant", "content": None}]
    messages = [{"role": "user", "content": parts}, *calls, {"role": "tool", "content": "3"}]
    assert message_text(messages) == "hi\nthere\n3"


def test_passages_of_data_sets_are_passages() -> None:
    row = prompt_of_row("text", {"id": 7, "passages": [["title", "one.", "two."]]}, 3)
    assert (row.id, row.text) == ("7", "text") and row.metadata["passages"][0].title == "title"
    with pytest.raises(DataError, match="passages"):
        prompt_of_row("text", {"passages": [[]]}, 3)


def test_a_response_without_a_score_is_masked_and_never_paid_for_it() -> None:
    class Odd(WordScorer):
        def score(self, prompts: Any, responses: Any) -> SegmentScores:
            scores = super().score(prompts, responses)
            return SegmentScores([scores.spans[0], ()], [scores.values[0], ()], unscored=frozenset({1}))

    reward = DenseReward(RewardConfig({"words": Odd(), "length": LengthScorer()}, {"words": 1.0, "length": 0.5}))
    asked, texts = [Prompt("p", "", ())] * 2, ["red is", "red is"]
    found = reward.of_texts(asked, texts, [[3, 6], [3, 6]])
    assert found.mask.tolist() == [[True, True], [False, False]] and found.components["words"][1].tolist() == [0, 0]
    numbers = reward.of_responses(asked, texts)
    assert np.isnan(numbers["words"]).tolist() == [False, True] and not np.isnan(numbers["length"]).any()
