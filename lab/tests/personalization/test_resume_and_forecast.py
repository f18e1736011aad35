"""Runs that are killed pay nobody twice, agent or user; what a run may cost is said first, and is never exceeded."""

from __future__ import annotations

import json
import re
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from finegrained_lab.protocols import ModelEditor, ModelUser, RunCoreset, RunPahf, RunPrelude
from finegrained_lab.protocols.answers import KeptModel
from finegrained_lab.protocols.coreset.conversations import read_conversations
from finegrained_lab.protocols.coreset.run import coreset_asks
from finegrained_lab.protocols.forecast import EARLY, Asks, Forecast, most_calls
from finegrained_lab.protocols.pahf.run import pahf_asks
from finegrained_lab.protocols.prelude.run import prelude_asks
from finegrained_lab.worlds.bios import BioScript, MakeBiosWorld
from finegrained_lab.worlds.pahf import ChoiceScript, MakePahfWorld
from finegrained_lab.worlds.style import MakeStyleWorld, StyleReader, StyleWriter
from finegrained_rlhf.core.files import read_json, read_jsonl
from finegrained_rlhf.core.generation.asking import ask
from finegrained_rlhf.core.generation.outcomes import RefusedReplyError
from finegrained_rlhf.core.generation.protocol import Generation
from finegrained_rlhf.core.generation.schema import Choice, ReplySchema
from finegrained_rlhf.core.generation.wrappers import ScriptedGenerator
from finegrained_rlhf.personalization.learners.coreset import CORESETS, DEFAULT_AGENTS
from finegrained_rlhf.personalization.learners.pahf import FEEDBACK_SETTINGS
from finegrained_rlhf.personalization.learners.prelude import AGENTS
from finegrained_rlhf.personalization.prompts import fenced_data


class Counted:
    """An endpoint that counts what it is asked, and may be killed while it is asked."""

    def __init__(self, identity: str, llm: Any, dies_at: int = 0) -> None:
        self.identity, self.llm, self.dies_at, self.asked = identity, llm, dies_at, 0

    def generate(self, prompt: str, schema: Any = None) -> Generation:
        self.asked += 1
        if self.asked == self.dies_at:
            raise KeyboardInterrupt
        return self.llm.generate(prompt, schema)  # type: ignore[no-any-return]


class Unreadable:
    """Another language model, none of whose replies is JSON."""

    def __init__(self, llm: Any) -> None:
        self.llm, self.calls = llm, 0

    def generate(self, prompt: str, schema: Any = None) -> Generation:
        self.calls += 1
        made: Generation = self.llm.generate(prompt, schema)
        return made if schema is None else Generation("Sorry.", made.tokens_in, 1)


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("worlds")
    MakePahfWorld(str(path / "pahf"), seed=7, users=2, scenes=9, drift=1.0).run()
    MakeStyleWorld(str(path / "style"), seed=7, contexts=25, foreign=0.0).run()
    scenarios = ["mixed", "position"]
    MakeBiosWorld(str(path / "bios"), seed=7, conversations=1, documents=[3], scenarios=scenarios, turns=15).run()
    return path


def pahf(worlds: Path, output: Path, llm: Any, user: Any = None, **keys: Any) -> RunPahf:
    phases = [str(worlds / f"pahf/phase{number}.jsonl") for number in (1, 2, 3, 4)]
    plays = ModelUser(user or ScriptedGenerator(lambda prompt: str(fenced_data(prompt)["persona"])))
    return RunPahf(phases, str(output), llm, plays, iterations=2, plots=False, progress=False, **keys)


def prelude(worlds: Path, output: Path, llm: Any, user: Any = None, **keys: Any) -> RunPrelude:
    files = [str(worlds / "style/contexts.jsonl"), str(worlds / "style/preferences.json")]
    plays = ModelEditor(user or ScriptedGenerator(reader()))
    return RunPrelude(*files, str(output), llm, plays, plots=False, progress=False, **keys)


def reader() -> Any:
    """StyleWorld's reader behind the prompts of a user in two stages."""
    edits: dict[str, str] = {}

    def reply(prompt: str) -> str:
        data = fenced_data(prompt)
        if "context" not in data:
            return edits[data["draft"]]
        edits[data["draft"]] = StyleReader().edit(data["context"], data["preference"], data["draft"])
        return json.dumps({"satisfied": "yes" if edits[data["draft"]] == data["draft"] else "no"})

    return reply


PERSONA = ScriptedGenerator(lambda prompt: str(fenced_data(prompt)["persona"]))
CASES = {
    "pahf": (pahf, lambda: ChoiceScript(noise=0.0, overreach=0.0), lambda: PERSONA, {"feedback": ["both"]}),
    "prelude": (
        prelude,
        lambda: StyleWriter(slips=0.0, misreads=0.0, notices=1.0),
        lambda: ScriptedGenerator(reader()),
        {"agents": ["cipher_1"]},
    ),
}


@pytest.mark.parametrize("case", list(CASES))
@pytest.mark.parametrize("who", ["agent", "user"])
def test_a_killed_run_pays_neither_agent_nor_user_twice(worlds: Path, tmp_path: Path, case: str, who: str) -> None:
    make, script, player, keys = CASES[case]
    agent, user = Counted("agent", script()), Counted("user", player())
    whole = make(worlds, tmp_path / "whole", agent, user, answers=str(tmp_path / "whole.sqlite"), **keys).run()
    paid = agent.asked, user.asked
    assert min(paid) > 10

    agent, user = Counted("agent", script()), Counted("user", player())
    {"agent": agent, "user": user}[who].dies_at = 9
    answers = {"answers": str(tmp_path / "kept.sqlite"), **keys}
    with pytest.raises(KeyboardInterrupt):
        make(worlds, tmp_path / "run", agent, user, **answers).run()
    assert not (tmp_path / "run/summary.json").exists() and (tmp_path / "kept.user.sqlite").exists()
    assert make(worlds, tmp_path / "run", agent, user, **answers).run() == whole
    killed = who == "agent", who == "user"  # the call that never came back
    assert (agent.asked - killed[0], user.asked - killed[1]) == paid
    before = agent.asked, user.asked
    make(worlds, tmp_path / "again", agent, user, **answers).run()
    assert (agent.asked, user.asked) == before


def said(printed: str) -> dict[str, tuple[int, int]]:
    """What the first line says: the most calls, of replies that can be used and of those that cannot."""
    line = printed.splitlines()[0].replace(",", "")
    found = re.findall(r"(the agents?|the user)'s language model: at most (\d+) calls \(.*?\) (\d+) if no", line)
    return {who: (int(most), int(worst)) for who, most, worst in found}


def test_no_agent_of_prelude_asks_more_than_was_said(
    worlds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent, user = Counted("", StyleWriter(slips=0.3)), Counted("", ScriptedGenerator(reader()))
    found = prelude(worlds, tmp_path / "a", agent, user).run()
    first, second = said(printed := capsys.readouterr().out), printed.splitlines()[1]
    for name in AGENTS:
        assert found[name]["calls"] <= most_calls(prelude_asks(name, 25, 5))[0]
    for name in ("oracle", "no_learning", "explore_then_exploit", "continual", "icl_edit_5"):  # each is reached
        assert found[name]["calls"] == most_calls(prelude_asks(name, 25, 5))[0]
    assert found["cipher_5"]["calls"] > 0.6 * most_calls(prelude_asks("cipher_5", 25, 5))[0]
    assert agent.asked <= first["the agents"][0] and 25 * 8 < user.asked <= first["the user"][0]
    assert second.startswith(f"to go, as the {EARLY} rounds so far were: the agents's up to ")
    for name in AGENTS:
        silent = Unreadable(StyleWriter())
        prelude(worlds, tmp_path / name, silent, agents=[name], failures=1.0).run()
        assert silent.calls <= said(capsys.readouterr().out)["the agents"][1]
        assert name in ("oracle", "no_learning", "icl_edit_5") or silent.calls > found[name]["calls"]


def test_what_is_to_go_counts_the_replies_that_are_asked_for_again(capsys: pytest.CaptureFixture[str]) -> None:
    replies = cycle(["Sorry.", '{"choice": "1"}'])
    model = KeptModel(ScriptedGenerator(lambda prompt: next(replies)), None)
    forecast = Forecast("100 rounds", {"the agent": (model, [Asks("choices", 100)])})
    for number in range(EARLY):
        assert ask(model.asked, f"choice {number}", ReplySchema({"choice": Choice(("1", "2"))})).tries == 2
        forecast.played()
    assert "the agent's up to 160 calls" in capsys.readouterr().out.splitlines()[1]


@pytest.mark.parametrize(("paid", "calls"), [((7, 1), 80), (None, 90)])
def test_what_is_refused_is_not_asked_for_again_and_not_counted_so(
    paid: tuple[int, int] | None, calls: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where a refusal is not said to be paid for, it is no call, and its question counts as one that is left."""

    def refuse(prompt: str) -> str:
        if int(prompt.split()[-1]) % 2:
            return '{"choice": "1"}'
        error = RefusedReplyError("it will not answer")
        error.paid = paid
        raise error

    model = KeptModel(ScriptedGenerator(refuse), None)
    forecast = Forecast("100 rounds", {"the agent": (model, [Asks("choices", 100)])})
    for number in range(EARLY + 1):  # the first one is no round that was paid for where it says nothing of its cost
        ask(model.asked, f"choice {number}", ReplySchema({"choice": Choice(("1", "2"))}))
        forecast.played()
    assert f"the agent's up to {calls} calls" in capsys.readouterr().out.splitlines()[1]


def test_no_setting_of_pahf_asks_more_than_was_said(
    worlds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for setting in FEEDBACK_SETTINGS:
        agent, user = Counted("", ChoiceScript(noise=0.2)), Counted("", PERSONA)
        pahf(worlds, tmp_path / setting, agent, user, feedback=[setting]).run()
        first = said(capsys.readouterr().out)
        assert first["the agent"] == most_calls(pahf_asks(setting, 72, 36))
        assert agent.asked <= first["the agent"][0] and user.asked <= first["the user"][0]
        assert agent.asked >= 0.4 * first["the agent"][0]
        assert bool(user.asked) == bool(first["the user"][0]) == (setting != "none")
        silent = Unreadable(ChoiceScript())
        pahf(worlds, tmp_path / f"{setting}_odd", silent, feedback=[setting], failures=1.0).run()
        assert silent.calls <= said(capsys.readouterr().out)["the agent"][1]


def test_no_agent_of_coreset_asks_more_than_was_said(
    worlds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = worlds / "bios/conversations.jsonl"
    conversations = read_conversations(file)
    for name in (*DEFAULT_AGENTS, *(one for one in CORESETS if one.endswith("_model") and one not in DEFAULT_AGENTS)):
        agent = Counted("", BioScript())
        RunCoreset(str(file), str(tmp_path / name), agent, [name], progress=False).run()
        most, worst = said(capsys.readouterr().out)["the agents"]
        assert (most, worst) == most_calls(coreset_asks(name, conversations, None))
        assert agent.asked <= most and (name.endswith("_model") or agent.asked == most)
        silent = Unreadable(BioScript())
        RunCoreset(str(file), str(tmp_path / f"{name}_odd"), silent, [name], failures=1.0, progress=False).run()
        assert silent.calls <= said(capsys.readouterr().out)["the agents"][1] == worst
    assert most_calls(coreset_asks("coreset_greedy_model", conversations, 1))[0] < most  # fewer remarks


def test_tokens_are_extrapolated_from_rounds_that_were_paid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    llm, file = Counted("one", ScriptedGenerator(lambda prompt: "b c")), str(tmp_path / "answers.sqlite")
    model = KeptModel(llm, file)
    for number in range(7):
        model.asked.generate(f"{number}")
    model = KeptModel(llm, file)
    forecast = Forecast("100 rounds", {"the agent": (model, [Asks("drafts", 100, 2), Asks("notes", 20)])})
    begins = (
        "100 rounds; the agent's language model: at most 120 calls (100 drafts, 20 notes), 260 if no reply can be used"
    )
    assert capsys.readouterr().out == f"{begins}; 7 answers are kept and not asked for again\n"
    for number in range(7 + EARLY):
        assert capsys.readouterr().out == ""
        model.asked.generate(f"{number}")
        forecast.played()
    line = capsys.readouterr().out
    assert "the agent's up to 93 calls, 93 tokens in and 186 out; up to 0." in line
    forecast.played()
    assert capsys.readouterr().out == ""


def test_failures_are_counted_by_scene(worlds: Path, tmp_path: Path) -> None:
    pahf(worlds, tmp_path / "pahf", Unreadable(ChoiceScript()), feedback=["none", "post"], failures=1.0).run()
    rounds, failures = read_jsonl(tmp_path / "pahf/rounds.jsonl"), read_json(tmp_path / "pahf/summary.json")["failures"]
    assert len(failures) == 4 * 18 and failures[f"1/{rounds[0]['scene']}"] == {"unanswered": 4, "odd": 12}
    assert failures[f"2/{rounds[36]['scene']}"]["unanswered"] == 2

    prelude(worlds, tmp_path / "style", Unreadable(StyleWriter()), agents=["cipher_5"]).run()
    rounds, summary = read_jsonl(tmp_path / "style/rounds.jsonl"), read_json(tmp_path / "style/summary.json")
    odd = [one for one in rounds if one["odd"]]
    assert odd and summary["failures"] == {one["context"]: {"unanswered": 0, "odd": one["odd"]} for one in odd}

    file = str(worlds / "bios/conversations.jsonl")
    found = RunCoreset(file, str(tmp_path / "bios"), BioScript(), ["icl"], progress=False).run()
    assert found["failures"] == {}
