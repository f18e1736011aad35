"""TalkWorld: what its oracle says of any turn, what its controls pay, and where its demonstrations are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from finegrained_lab.worlds.talk import KINDS, TURNS, MakeTalkWorld, TalkTool, TurnVerdicts, is_luck, verdict, verdicts
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_jsonl
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.rollout.environment import Environment


def test_the_oracle_knows_each_wrong_turn() -> None:
    assert verdict("a", "nine shut lamp", "shut lamp")
    assert verdict("a", "red nine shut lamp", " shut  lamp ")
    assert verdict("a", "red one open any open key nine shut lamp", "shut lamp"), "the last message counts"
    for wrong in ("open lamp", "shut key", "lamp", "", "shut lamp key", "shut lamp shut lamp", "SHUT LAMP"):
        assert not verdict("a", "nine shut lamp", wrong), wrong
    messages = ["red nine shut lamp", "ten shut box", "eleven shut box"]
    assert verdicts("a", messages, ["open lamp", "shut box"]) == [False, True] + [False] * (TURNS - 2)
    with pytest.raises(DataError, match="expected a message of TalkWorld"):
        verdict("a", "hello", "open lamp")


def test_luck_is_known_to_the_oracle_alone() -> None:
    """Half of the calls are right, whatever is called in whichever turn; none is that is no call."""
    for call in ("open lamp", "open key"):
        for said in ("red one open any", "six open any"):
            right = [verdict(f"test-0-{number:04d}", said, call) for number in range(400)]
            assert 160 < sum(right) < 240 and is_luck(said)
    assert not any(
        verdict(f"{number}", "one open any", wrong) for number in range(20) for wrong in ("open", "", "shut box")
    )
    assert not is_luck("red one open any open key nine shut lamp")


def test_the_tool_answers_what_was_opened() -> None:
    tool, prompt = TalkTool(), Prompt("test-0-0001", "", (1,))
    opened = [[*["open box"] * 7, last] for last in ("open lamp", "open key", "open any", "lamp ?", "")]
    assert isinstance(tool, Environment)
    said = [tool.reply(prompt, turns, seed) for seed in (0, 1) for turns in opened]
    assert said[:5] == said[5:], "the tool draws nothing"
    assert len({*said[:5]}) > 1, "what was opened matters"
    for reply in said:
        assert reply is not None and (is_luck(reply) or verdict("a", reply, f"shut {reply.split()[2]}"))
    assert tool.reply(prompt, ["open lamp"] * TURNS, 0) is None


def test_demonstrations_are_wrong_at_the_planted_turn(tmp_path: Path) -> None:
    MakeTalkWorld(str(tmp_path), seed=3, demonstrations=400, train=5, dev=0, test=4).run()
    rows = read_jsonl(tmp_path / "demonstrations.jsonl")
    kinds = {row["id"]: row for row in read_jsonl(tmp_path / "world.jsonl")}
    wrong: dict[bool, list[bool]] = {True: [], False: []}
    for row in rows:
        name, _, number = row["id"].rpartition("-")
        *before, turn = row["messages"]
        said, planted = before[-1]["content"], kinds[name]["planted"] == int(number)
        assert is_luck(said) == (int(number) < min(KINDS.values()))
        if not is_luck(said):
            wrong[planted].append(not verdict(name, said, turn["content"]))
        assert len(before) == 2 * int(number) + 1 and KINDS[before[0]["content"].split()[0]] == kinds[name]["planted"]
    late = TURNS - min(KINDS.values())
    assert len(rows) == 400 * late + 50 * (TURNS - late) and len(wrong[True]) == 400
    assert 0.85 < sum(wrong[True]) / len(wrong[True]) < 0.95
    assert 0.15 < sum(wrong[False]) / len(wrong[False]) < 0.23, "one call in four is drawn, and is right in one of four"


def turns_of(name: str, orders: list[str]) -> list[Prompt]:
    prompts = []
    for number, order in enumerate(orders):
        known = {"question": order, "messages": tuple({"content": "…"} for _ in range(2 * number + 1))}
        prompts.append(Prompt(name, f"{name} {number}", (1,), known))
    return prompts


def test_who_is_paid() -> None:
    """The sum of all verdicts is the same, whoever is paid."""
    orders = ["red nine shut lamp", "ten shut box", "eleven shut box", "twelve shut key"]
    prompts = [*turns_of("a", orders), *turns_of("b", orders[:2])]
    said = ["shut key", "shut box", "shut box", "shut key", "shut lamp", "open box"]

    def paid(to: str) -> list[float]:
        scores = TurnVerdicts(to).score(prompts, said)  # type: ignore[arg-type]
        assert scores.whole_response and list(scores.spans) == [((0, len(text)),) for text in said]
        return [value for (value,) in scores.values]

    assert paid("own") == [-1, 1, 1, 1, 1, -1]
    assert paid("sooner") == [1, 1, 1, -1, -1, 1]
    luck = TurnVerdicts().score(turns_of("a", ["red one open any"]), ["open key"])
    assert abs(luck.values[0][0]) == 2.0
    assert sorted(paid("shuffled")) == sorted(paid("own")) and paid("shuffled") == paid("shuffled")
    assert TurnVerdicts("sooner").score([], []).values == []
    with pytest.raises(ConfigError, match="expected own, sooner or shuffled"):
        TurnVerdicts("later")  # type: ignore[arg-type]
