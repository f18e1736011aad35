"""TalkWorld: what its oracle says of any turn, what its controls pay, and where its demonstrations are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from finegrained_lab.worlds.talk import KINDS, TURNS, MakeTalkWorld, TalkTool, TurnVerdicts, verdict, verdicts
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_jsonl
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.rollout.environment import Environment


def test_the_oracle_knows_each_wrong_turn() -> None:
    assert verdict("two lamp", "open lamp")
    assert verdict("red one lamp", " open  lamp ")
    assert verdict("red one key shut key two lamp", "open lamp"), "the last message counts"
    for wrong in ("open key", "lamp", "", "open lamp key", "open lamp open lamp", "OPEN LAMP", "shut lamp"):
        assert not verdict("two lamp", wrong), wrong
    messages = ["red one lamp", "two cup", "three box"]
    assert verdicts(messages, ["open key", "open cup"]) == [False, True] + [False] * (TURNS - 2)
    with pytest.raises(DataError, match="expected a message of TalkWorld"):
        verdict("hello", "open lamp")


def test_the_tool_answers_what_was_opened() -> None:
    tool, prompt = TalkTool(), Prompt("test-0-0001", "", (1,))
    opened = [["open lamp"], ["open key"], ["open none"], ["lamp ?"], [""]]
    assert isinstance(tool, Environment)
    said = [tool.reply(prompt, turns, seed) for seed in (0, 1) for turns in opened]
    assert said[:5] == said[5:], "the tool draws nothing"
    assert len({*said[:5]}) > 1, "what was opened matters"
    for reply in said:
        assert reply is not None and verdict(reply, f"open {reply.split()[1]}")
    assert tool.reply(prompt, ["open lamp"] * TURNS, 0) is None


def test_demonstrations_are_wrong_at_the_planted_turn(tmp_path: Path) -> None:
    MakeTalkWorld(str(tmp_path), seed=3, demonstrations=400, train=5, dev=0, test=4).run()
    rows = read_jsonl(tmp_path / "demonstrations.jsonl")
    kinds = {row["id"]: row for row in read_jsonl(tmp_path / "world.jsonl")}
    wrong: dict[bool, list[bool]] = {True: [], False: []}
    for row in rows:
        name, _, number = row["id"].rpartition("-")
        *before, turn = row["messages"]
        planted = kinds[name]["planted"] == int(number)
        wrong[planted].append(not verdict(before[-1]["content"], turn["content"]))
        assert len(before) == 2 * int(number) + 1 and KINDS[before[0]["content"].split()[0]] == kinds[name]["planted"]
    assert len(rows) == 400 * TURNS and len(wrong[True]) == 400
    assert 0.85 < sum(wrong[True]) / len(wrong[True]) < 0.95
    assert 0.22 < sum(wrong[False]) / len(wrong[False]) < 0.28


def turns_of(name: str, orders: list[str]) -> list[Prompt]:
    prompts = []
    for number, order in enumerate(orders):
        known = {"question": order, "messages": tuple({"content": "…"} for _ in range(2 * number + 1))}
        prompts.append(Prompt(name, f"{name} {number}", (1,), known))
    return prompts


def test_who_is_paid() -> None:
    """The sum of all verdicts is the same, whoever is paid."""
    orders = ["red one lamp", "two cup", "three box", "four bell"]
    prompts = [*turns_of("a", orders), *turns_of("b", orders[:2])]
    said = ["open key", "open cup", "open box", "open bell", "open lamp", "open map"]

    def paid(to: str) -> list[float]:
        scores = TurnVerdicts(to).score(prompts, said)  # type: ignore[arg-type]
        assert scores.whole_response and list(scores.spans) == [((0, len(text)),) for text in said]
        return [value for (value,) in scores.values]

    assert paid("own") == [-1, 1, 1, 1, 1, -1]
    assert paid("sooner") == [1, 1, 1, -1, -1, 1]
    assert sorted(paid("shuffled")) == sorted(paid("own")) and paid("shuffled") == paid("shuffled")
    assert TurnVerdicts("sooner").score([], []).values == []
    with pytest.raises(ConfigError, match="expected own, sooner or shuffled"):
        TurnVerdicts("later")  # type: ignore[arg-type]
