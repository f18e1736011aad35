"""Agents of conversations about several entities: what each shows its language model, and what it remembers."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from crowd_toy import USERS, Crowd, named

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.generation.asking import TRIES
from finegrained_rlhf.core.generation.wrappers import CachedGenerator, ScriptedGenerator
from finegrained_rlhf.personalization import (
    ChainOfThought,
    Coreset,
    ExactConflicts,
    FeedbackRemark,
    FullMemory,
    InContext,
    ModelConflicts,
    Scratchpad,
    SourceDocument,
    SummarisedMemory,
    UserMemory,
)
from finegrained_rlhf.personalization.learners.conversation import (
    ConversationAgent,
    HoldingRemarks,
    PossibleAnswers,
    WithoutMemory,
)
from finegrained_rlhf.personalization.learners.coreset import RandomWindow
from finegrained_rlhf.personalization.prompts import UnreadableReplyError, fenced_data
from finegrained_rlhf.personalization.store.protocol import (
    MemoryLimitError,
    RepeatedKeyError,
)
from finegrained_rlhf.runtime.remote.cache import AnswerCache

DOCUMENTS = [
    SourceDocument("1", "Ada studied law in Rome.", {"major": "law", "city": "Rome"}),
    SourceDocument("2", "Ada studied art in Oslo.", {"major": "art", "city": "Oslo"}),
]
LAW, ART = FeedbackRemark("She studied law.", "major", "law"), FeedbackRemark("She studied art.", "major", "art")
OSLO = FeedbackRemark("She lives in Oslo.", "city", "Oslo")
QUESTION = "Where does Ada live?"


def model(prompt: str) -> str:
    """Answers with what it was shown; notes and summaries are what was said, in a row."""
    data = fenced_data(prompt)
    if "scratchpad" in data:
        return json.dumps({"note": data["remark"] or f"gave {len(data['answers'])}"})
    if "summary" in data:
        return json.dumps({"summary": f"{data['summary']} {data['remark']}".strip()})
    if '"answer": "..."' in prompt:
        return json.dumps({"answer": "Rome"})
    return json.dumps({"reasoning": "because", "answers": ["Rome", "Oslo", "Rome"]})


@pytest.fixture
def memory(tmp_path: Path) -> UserMemory:
    return UserMemory(tmp_path / "users.db", durable=False)


def talk(agent: ConversationAgent, *remarks: FeedbackRemark | None) -> dict[str, Any]:
    """The data of the prompt of a question after some turns."""
    for number, remark in enumerate(remarks):
        agent.observe_turn("ada", agent.answer("ada", DOCUMENTS, QUESTION, str(number)), remark)
    found = agent.answer("ada", DOCUMENTS, QUESTION)
    assert found.answers == ("Rome", "Oslo")  # each once
    assert isinstance(agent.llm, ScriptedGenerator)
    data = fenced_data(agent.llm.prompts[-1])
    assert data.pop("documents") == [one.text for one in DOCUMENTS] and data.pop("question") == QUESTION
    return data


def test_what_each_baseline_shows(memory: UserMemory, tmp_path: Path) -> None:
    said = (LAW, None, ART)
    turns = [{"question": QUESTION, "answers": ["Rome", "Oslo"]} for _ in said]
    shown = [{**turns[0], "remark": LAW.text}, turns[1], {**turns[2], "remark": ART.text}]

    def data(kind: type[ConversationAgent]) -> dict[str, Any]:
        return talk(kind(UserMemory(tmp_path / f"{kind.__name__}.db", durable=False), ScriptedGenerator(model)), *said)

    assert data(WithoutMemory) == {"remarks": []}
    assert data(InContext) == {"history": shown}
    assert data(ChainOfThought) == {"history": [{**turn, "reasoning": "because"} for turn in shown]}
    assert data(FullMemory) == {"remarks": [LAW.text, ART.text]}
    assert data(Scratchpad) == {"notes": f"{LAW.text}\ngave 2\n{ART.text}"}
    assert data(SummarisedMemory) == {"notes": f"{LAW.text} {ART.text}"}
    holding = HoldingRemarks(memory, ScriptedGenerator(model), lambda key: ["2"])
    assert talk(holding, *said) == {"remarks": [ART.text]}


@pytest.mark.parametrize(("selection", "kept"), [("recency", ["4"]), ("greedy", ["0", "4"]), ("largest", ["0", "4"])])
def test_coreset_shows_a_consistent_set(memory: UserMemory, selection: str, kept: list[str]) -> None:
    agent = Coreset(memory, ScriptedGenerator(model), ExactConflicts(), selection)
    said = (LAW, None, None, OSLO, LAW)
    shown = talk(agent, *said)
    found = agent.answer("ada", DOCUMENTS, QUESTION)
    assert list(found.rests_on) == kept and found.satisfiable
    assert shown == {"remarks": [said[int(key)].text for key in kept]}  # type: ignore[union-attr]
    agent.observe_turn("ada", found, FeedbackRemark("She lives in Bonn.", "city", "Bonn"))
    assert not agent.answer("ada", DOCUMENTS, QUESTION).satisfiable  # said, and not swallowed
    assert agent.answer("bob", DOCUMENTS, QUESTION).rests_on == () and memory.known("bob") is None


def test_retrieval_comes_before_selection(memory: UserMemory) -> None:
    """Of two remarks that contradict each other, the one that is not like the question is never looked at."""
    agent = Coreset(memory, ScriptedGenerator(model), ExactConflicts(), k=1)
    talk(agent, OSLO, LAW)
    question = "Is it true that she lives in Oslo?"
    assert agent.answer("ada", DOCUMENTS, question).rests_on == ("0",)
    near = Coreset(memory, ScriptedGenerator(model), ExactConflicts(), least=0.99)
    assert near.answer("ada", DOCUMENTS, question).rests_on == ()


def test_the_random_window_is_as_long_as_the_recent_run(memory: UserMemory) -> None:
    agent = RandomWindow(memory, ScriptedGenerator(model), ExactConflicts())
    talk(agent, LAW, LAW, OSLO, ART)
    windows = {agent.answer("ada", DOCUMENTS, QUESTION, f"turn {i}").rests_on for i in range(40)}
    assert windows == {("0", "1"), ("1", "2"), ("2", "3")}
    assert agent.answer("ada", DOCUMENTS, QUESTION, "x") == agent.answer("ada", DOCUMENTS, QUESTION, "x")


def test_a_turn_is_learnt_once_and_not_lost(memory: UserMemory) -> None:
    broken = SummarisedMemory(memory, ScriptedGenerator(lambda prompt: '{"answers": []}'))
    found = broken.answer("ada", DOCUMENTS, QUESTION, "one")
    assert found.answers == ()
    with pytest.raises(UnreadableReplyError):
        broken.observe_turn("ada", found, LAW)
    agent = SummarisedMemory(memory, ScriptedGenerator(model))
    assert agent.catch_up("ada") == 1 and agent.catch_up("ada") == 0
    agent.observe_turn("ada", found, LAW)
    assert memory.user("ada").notes()[0].body == {"text": LAW.text}
    with pytest.raises(RepeatedKeyError):
        agent.observe_turn("ada", found, ART)
    assert agent.forget("ada") and memory.known("ada") is None
    assert agent.pick(DOCUMENTS, QUESTION) == "Rome"


def test_what_is_refused(memory: UserMemory) -> None:
    llm = ScriptedGenerator(model)
    for wrong in ({"selection": "newest"}, {"k": 0}, {"limit": 0}, {"least": 2.0}):
        with pytest.raises(ConfigError):
            Coreset(memory, llm, ExactConflicts(), **wrong)  # type: ignore[arg-type]
    agent = FullMemory(memory, llm, longest_text=60)
    with pytest.raises(ConfigError):
        agent.answer("ada", [], QUESTION)
    with pytest.raises(MemoryLimitError):
        agent.answer("ada", DOCUMENTS * 2, QUESTION)
    with pytest.raises(MemoryLimitError):
        agent.observe_turn("ada", agent.answer("ada", DOCUMENTS, QUESTION), FeedbackRemark("x" * 61))
    for reply in ("Rome", '{"answers": [{}]}', json.dumps({"answers": ["x" * 61]})):
        with pytest.raises(UnreadableReplyError):
            FullMemory(memory, ScriptedGenerator([reply] * TRIES), longest_text=60).answer("ada", DOCUMENTS, QUESTION)


@pytest.mark.parametrize(("selection", "shown"), [("recency", 16), ("greedy", 16), ("largest", 16)])
def test_a_long_conversation_costs_a_bounded_number_of_questions(
    memory: UserMemory, selection: str, shown: int
) -> None:
    llm = ScriptedGenerator(lambda prompt: json.dumps({"answers": ["Rome"], "conflict": "no"}))
    agent = Coreset(memory, llm, ModelConflicts(llm), selection)
    for turn in range(40):
        memory_of_turn = PossibleAnswers(str(turn), QUESTION, ())
        agent.observe_turn("ada", memory_of_turn, FeedbackRemark(f"Remark {turn}."))
    assert llm.prompts == []
    found = agent.answer("ada", DOCUMENTS, QUESTION)
    assert found.rests_on == tuple(str(turn) for turn in range(40 - shown, 40))  # the newest
    assert len(llm.prompts) == shown + 1


def test_limits_of_remarks(memory: UserMemory) -> None:
    exact = Coreset(memory, ScriptedGenerator(model), ExactConflicts())
    assert len(talk(exact, *[LAW] * 20)["remarks"]) == 20  # no question is asked: all
    few = Coreset(memory, ScriptedGenerator(model), ExactConflicts(), "largest", limit=2)
    assert few.answer("ada", DOCUMENTS, QUESTION).rests_on == ("18", "19")


def test_answers_of_the_model_that_looks_for_conflicts_are_forgotten(memory: UserMemory, tmp_path: Path) -> None:
    kept = AnswerCache(tmp_path / "answers.db", "conflicts")
    checks = CachedGenerator(ScriptedGenerator(lambda prompt: '{"conflict": "no"} says the canary'), kept)
    agent = Coreset(memory, ScriptedGenerator(model), ModelConflicts(checks))
    talk(agent, LAW)
    assert sum(kept.counts().values()) == 1
    agent.forget("ada")
    assert not kept.counts() and b"canary" not in b"".join(file.read_bytes() for file in tmp_path.iterdir())


def interleaved(memory: UserMemory, steps: int, seed: int) -> int:
    """Agents of every kind answer, remember and forget the same few users in threads: how many prompts there were."""
    crowd, chance = Crowd(), random.Random(seed)

    def reply(prompt: str) -> str:
        crowd.heard(prompt)
        return json.dumps({"conflict": "no"}) if '{"conflict"' in prompt else model(prompt)

    llm = ScriptedGenerator(reply)
    kinds = [InContext, FullMemory, Scratchpad, SummarisedMemory]
    agents = [*(kind(memory, llm) for kind in kinds), Coreset(memory, llm, ModelConflicts(llm))]
    turns = [(chance.choice(USERS), chance.choice(agents), chance.random()) for _ in range(steps)]

    def step(number: int) -> None:
        user, agent, what = turns[number]
        crowd.turn_of(user)
        if what < 0.1:
            agent.forget(user)
            return
        documents = [SourceDocument(f"{i}", f"{user} studied {i}.", {"major": f"{i}"}) for i in range(2)]
        found = agent.answer(user, documents, f"Where is {user}?", f"k{number}")
        agent.observe_turn(user, found, FeedbackRemark(f"{user} studied {number % 2}.", "major", f"{number % 2}"))

    crowd.interleave(steps, step)
    for user in USERS:
        handle = memory.reader(user)
        kept = json.dumps([[one.body for one in handle.notes(unused=True)], [one.body for one in handle.events()]])
        assert named(kept) <= {user}
    return len(crowd)


def test_no_remark_of_another_is_in_a_prompt(memory: UserMemory) -> None:
    assert interleaved(memory, 120, 1) > 100


@pytest.mark.slow
def test_no_remark_of_another_is_in_a_prompt_in_ten_thousand_steps(memory: UserMemory) -> None:
    assert interleaved(memory, 10_000, 2) > 10_000
