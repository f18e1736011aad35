"""PAHF against the paper's loop, step by step, with a language model that follows a script."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from crowd_toy import USERS, Crowd, named

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.generation.asking import TRIES
from finegrained_rlhf.core.generation.wrappers import ScriptedGenerator
from finegrained_rlhf.personalization import (
    Cipher,
    Coreset,
    Draft,
    ExactConflicts,
    HashedWords,
    Pahf,
    SourceDocument,
    UserMemory,
)
from finegrained_rlhf.personalization.learners.pahf import FEEDBACK_SETTINGS
from finegrained_rlhf.personalization.prompts import UnreadableReplyError, fenced_data
from finegrained_rlhf.personalization.store.protocol import (
    ConsentError,
    ForgottenUserError,
    MemoryLimitError,
    MemoryLimits,
    RepeatedKeyError,
)

DRINK, DRINKS = "Bring me a drink", ["cold tea", "hot tea"]


class Model:
    """Answers from a table by template; keeps what it was asked."""

    def __init__(self, **replies: Any) -> None:
        self.replies: dict[str, Any] = {
            "distil": {"cues": "known"},
            "decide": {"decision": "act"},
            "choose": {"choice": "1"},
            "salient": {"salient": "yes"},
            "summarise": {"note": "drink: hot"},
            "integrate": {"operation": "add", "number": "", "note": ""},
        } | replies
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, prompt: str) -> str:
        data = fenced_data(prompt)
        (name,) = (
            name
            for name, is_asked in {
                "distil": '{"cues"' in prompt,
                "decide": '{"decision"' in prompt,
                "choose": '{"choice"' in prompt,
                "salient": '{"salient"' in prompt,
                "summarise": '{"note": "..."}' in prompt,
                "integrate": '{"operation"' in prompt,
            }.items()
            if is_asked
        )
        self.asked.append((name, data))
        reply = self.replies[name]
        reply = reply(data) if callable(reply) else reply
        return reply if isinstance(reply, str) else json.dumps(reply)

    def steps(self) -> list[str]:
        names = [name for name, _ in self.asked]
        self.asked.clear()
        return names


@pytest.fixture
def memory(tmp_path: Path) -> UserMemory:
    return UserMemory(tmp_path / "users.db", durable=False)


def pahf(memory: UserMemory, model: Model, **keys: Any) -> Pahf:
    return Pahf(memory, ScriptedGenerator(model), **keys)


def texts(memory: UserMemory, user: str = "ada") -> list[str]:
    return [note.body["text"] for note in memory.user(user).notes()]


def test_a_round_is_the_loop_of_the_paper(memory: UserMemory) -> None:
    model = Model(decide={"decision": "ask", "question": "Hot or cold?"}, choose={"choice": "2"})
    agent = pahf(memory, model)
    questions: list[str] = []

    def ask(question: str) -> str:
        questions.append(question)
        assert memory.known("ada") is None  # nothing is written before the answer
        return "Hot, always."

    action = agent.act("ada", DRINK, DRINKS, ask, key="one")
    assert questions == ["Hot or cold?"]
    assert (action.number, action.option, action.answer, action.retrieved) == (1, "hot tea", "Hot, always.", ())
    chosen = model.asked[-1][1]
    assert chosen["answer"] == "Hot, always." and chosen["options"] == ["1. cold tea", "2. hot tea"]
    assert model.steps() == ["decide", "salient", "summarise", "choose"]  # there was no note to distil or to merge with
    assert [(event.key, event.kind) for event in memory.user("ada").events()] == [("one/answer", "answer")]
    assert texts(memory) == ["drink: hot"]

    model.replies |= {"decide": {"decision": "act"}, "integrate": {"operation": "replace", "number": "1", "note": "x"}}
    model.replies["summarise"] = {"note": "drink: cold"}
    second = agent.act("ada", DRINK, DRINKS, ask, key="two")
    assert second.retrieved == ("one/answer",) and second.cues == "known" and second.question == ""
    assert model.asked[0] == ("distil", {"instruction": DRINK, "options": DRINKS, "notes": ["drink: hot"]})
    assert agent.observe_feedback("ada", second, "No, cold from now on.")
    assert model.steps() == ["distil", "decide", "choose", "salient", "summarise", "integrate"]
    assert texts(memory) == ["drink: cold"] and memory.user("ada").notes()[0].version == 2
    agent.observe_feedback("ada", second, "No, cold from now on.")
    assert model.steps() == []  # learnt once
    with pytest.raises(RepeatedKeyError):
        agent.observe_feedback("ada", second, "Something else.")


@pytest.mark.parametrize("setting", FEEDBACK_SETTINGS)
def test_settings(setting: str, memory: UserMemory) -> None:
    model = Model(decide={"decision": "ask", "question": "Which?"})
    agent = pahf(memory, model, feedback=setting)
    action = agent.act("ada", DRINK, DRINKS, lambda question: "Hot.", key="one")
    assert agent.observe_feedback("ada", action, "Wrong.") is (setting in ("post", "both"))
    handle = memory.known("ada")
    kinds = [] if handle is None else [event.kind for event in handle.events()]
    assert kinds == {"none": [], "pre": ["answer"], "post": ["feedback"], "both": ["answer", "feedback"]}[setting]
    assert bool(action.question) is (setting in ("pre", "both"))
    model.asked.clear()
    agent.act("ada", DRINK, DRINKS)  # nobody to ask
    assert model.steps() == (["choose"] if setting == "none" else ["distil", "choose"])


def test_a_remark_without_a_preference_leaves_no_note(memory: UserMemory) -> None:
    model = Model(salient={"salient": "no"})
    agent = pahf(memory, model)
    agent.observe_feedback("ada", agent.act("ada", DRINK, DRINKS), "Thank you.")
    assert texts(memory) == [] and not memory.user("ada").pending() and len(memory.user("ada").events()) == 1


def test_a_merge_touches_the_named_note_only(memory: UserMemory) -> None:
    notes = iter(["drink in the morning: hot", "drink at night: cold", "drink at night: sweet"])
    model = Model(summarise=lambda data: {"note": next(notes)})
    agent = pahf(memory, model, similarity=0.0)
    for round_ in ("one", "two"):
        agent.observe_feedback("ada", agent.act("ada", DRINK, DRINKS, key=round_), "That was wrong.")
    before = memory.user("ada").note("one/feedback")

    def merged(data: dict[str, Any]) -> dict[str, str]:
        number = next(line[0] for line in data["existing"] if "night" in line)
        return {"operation": "merge", "number": number, "note": "drink at night: cold and sweet"}

    model.replies["integrate"] = merged
    agent.observe_feedback("ada", agent.act("ada", DRINK, DRINKS, key="three"), "Sweet, too.")
    assert sorted(texts(memory)) == ["drink at night: cold and sweet", "drink in the morning: hot"]
    assert memory.user("ada").note("one/feedback") == before
    assert memory.user("ada").note("three/feedback") is None


@pytest.mark.parametrize(
    ("step", "reply"),
    [
        ("choose", {"choice": "3"}),
        ("choose", {"choice": "0"}),
        ("choose", "the first one"),
        ("salient", {"salient": "perhaps"}),
        ("integrate", {"operation": "delete", "number": "1", "note": ""}),
        ("integrate", {"operation": "replace", "number": "2", "note": ""}),
        ("integrate", {"operation": "merge", "number": "1", "note": ""}),
    ],
)
def test_replies_that_do_not_fit_change_nothing(step: str, reply: Any, memory: UserMemory) -> None:
    agent = pahf(memory, Model())
    agent.observe_feedback("ada", agent.act("ada", DRINK, DRINKS, key="one"), "Hot.")
    wrong = pahf(memory, Model(**{step: reply}))
    before = memory.user("ada").notes()
    with pytest.raises(UnreadableReplyError):
        action = wrong.act("ada", DRINK, DRINKS, lambda question: "Hot.", key="two")
        wrong.observe_feedback("ada", action, "Hot.")
    assert memory.user("ada").notes() == before
    assert agent.catch_up("ada") == (step in ("salient", "integrate"))  # what was said is not lost
    assert not memory.user("ada").pending()


@pytest.mark.parametrize("reply", [{"decision": "maybe"}, {"decision": "ask", "question": " "}, "I cannot say."])
def test_who_cannot_decide_whether_to_ask_acts(reply: Any, memory: UserMemory) -> None:
    model = Model(decide=reply)
    action = pahf(memory, model).act("ada", DRINK, DRINKS, lambda question: pytest.fail("was asked"))
    assert (action.option, action.question) == ("cold tea", "") and model.steps() == ["decide"] * TRIES + ["choose"]


def test_notes_that_cannot_be_distilled_are_the_cues(memory: UserMemory) -> None:
    said = iter(["drink: hot", "a long note about drinks", "drink: sweet"])
    agent = pahf(memory, Model(summarise=lambda data: {"note": next(said)}), longest_note=25)
    for key in ("1", "2", "3"):
        agent.observe_feedback("ada", agent.act("ada", DRINK, DRINKS, key=key), "Hm.")
    model = Model(distil="Sorry.")
    action = pahf(memory, model, longest_note=25).act("ada", DRINK, DRINKS)
    nearest = [memory.user("ada").note(key) for key in action.retrieved]
    texts = [note.body["text"] for note in nearest if note is not None]
    assert len(texts) == 3 and action.cues and len(action.cues) <= 25
    assert action.cues.split("\n") == texts[: len(action.cues.split("\n"))]  # whole notes, the nearest first
    assert model.asked[-1][1]["cues"] == action.cues


def test_an_answer_that_cannot_be_learnt_from_is_acted_on_and_waits(memory: UserMemory) -> None:
    model = Model(decide={"decision": "ask", "question": "Which?"}, salient="Sorry.")
    action = pahf(memory, model).act("ada", DRINK, DRINKS, lambda question: "Hot.", key="one")
    assert action.answer == "Hot." and action.owner == memory.user("ada").owner
    (event,) = memory.user("ada").pending()
    assert (event.key, event.tries, event.applied) == ("one/answer", 1, False)
    assert pahf(memory, Model()).catch_up("ada") == 1 and texts(memory) == ["drink: hot"]


def test_a_note_that_changed_meanwhile_is_derived_again(memory: UserMemory) -> None:
    agent = pahf(memory, Model())
    agent.observe_feedback("ada", agent.act("ada", DRINK, DRINKS, key="one"), "Hot.")
    other = pahf(memory, Model(integrate={"operation": "replace", "number": "1", "note": ""}))
    calls = []

    def late(data: dict[str, Any]) -> dict[str, str]:
        calls.append(data["existing"])
        if len(calls) == 1:
            other.observe_feedback("ada", other.act("ada", DRINK, DRINKS, key="other"), "Hot, I said.")
        return {"operation": "merge", "number": "1", "note": "drink: hot, in a cup"}

    slow = pahf(memory, Model(integrate=late))
    slow.observe_feedback("ada", slow.act("ada", DRINK, DRINKS, key="two"), "In a cup.")
    assert len(calls) == 2 and texts(memory) == ["drink: hot, in a cup"]
    assert memory.user("ada").notes()[0].version == 3


def test_users_are_apart_and_acting_alone_writes_nothing(memory: UserMemory) -> None:
    agent = pahf(memory, Model())
    agent.observe_feedback("ada", agent.act("ada", DRINK, DRINKS), "Hot.")
    assert agent.act("bob", DRINK, DRINKS).retrieved == () and memory.known("bob") is None
    assert agent.forget("ada") and memory.known("ada") is None and agent.act("ada", DRINK, DRINKS).cues == ""


def test_without_consent_nobody_is_asked_or_stored(tmp_path: Path) -> None:
    memory = UserMemory(tmp_path / "asks.db", durable=False, consent_required=True)
    agent = pahf(memory, Model(decide={"decision": "ask", "question": "Hot or cold?"}))
    action = agent.act("ada", DRINK, DRINKS, ask=lambda question: pytest.fail("was asked"))
    with pytest.raises(ConsentError):
        agent.observe_feedback("ada", action, "Hot.")
    assert memory.known("ada") is None
    memory.set_consent("ada", store=True, train=False)
    action = agent.act("ada", DRINK, DRINKS, ask=lambda question: "Hot.")
    agent.observe_feedback("ada", action, "Hot, I said.")
    assert [event.used for event in memory.user("ada").events()] == [{"notes": [], "cues": ""}] * 2
    memory.forget("ada")
    with pytest.raises(ForgottenUserError):
        agent.observe_feedback("ada", action, "Hot, I said.")


def test_an_answer_that_finds_no_room_is_used_and_not_stored(tmp_path: Path) -> None:
    memory = UserMemory(tmp_path / "full.db", limits=MemoryLimits(events=1), durable=False)
    agent = pahf(memory, Model(decide={"decision": "ask", "question": "Hot or cold?"}))
    answers = [agent.act("ada", DRINK, DRINKS, ask=lambda question: "Hot.").answer for _ in range(3)]
    assert answers == ["Hot."] * 3 and len(memory.user("ada").events()) == 1
    with pytest.raises(MemoryLimitError):
        agent.observe_feedback("ada", agent.act("ada", DRINK, DRINKS), "Hot, I said.")


def test_what_is_refused(memory: UserMemory) -> None:
    for keys in ({"feedback": "all"}, {"k": 0}, {"similarity": 1.5}):
        with pytest.raises(ConfigError):
            pahf(memory, Model(), **keys)
    agent = pahf(memory, Model(), longest_text=20)
    with pytest.raises(ConfigError):
        agent.act("ada", DRINK, [])
    with pytest.raises(MemoryLimitError):
        agent.act("ada", "x" * 21, DRINKS)
    with pytest.raises(MemoryLimitError):
        agent.observe_feedback("ada", agent.act("ada", DRINK, DRINKS), "x" * 21)


def interleaved(memory: UserMemory, steps: int, seed: int) -> tuple[int, int]:
    """Threads ask, act, correct and forget for the same few users: how many prompts and how many notes there were."""
    crowd, chance = Crowd(), random.Random(seed)

    def reply(data: dict[str, Any]) -> dict[str, Any]:
        crowd.heard(json.dumps(data))
        number = len(crowd)
        (user,) = named(json.dumps(data))
        text, merged = f"{user} wants {number}", bool(data.get("notes")) and number % 2 == 0
        return {
            **{"cues": text, "decision": ("ask", "act")[number % 2], "question": f"what does {user} like?"},
            **{"choice": str(1 + number % 2), "salient": "yes", "note": text},
            **{
                "operation": ("merge", "replace")[number % 3 == 0] if merged else "add",
                "number": "1" if merged else "",
            },
        }

    model = ScriptedGenerator(lambda prompt: json.dumps(reply(fenced_data(prompt))))
    agents = [Pahf(memory, model, encoder=HashedWords(places), similarity=0.1) for places in (1024, 256)]
    turns = [(chance.choice(USERS), chance.random()) for _ in range(steps)]

    def step(number: int) -> None:
        (user, what), agent = turns[number], agents[number % 2]
        crowd.turn_of(user)
        if what < 0.03:
            agent.forget(user)
            return
        action = agent.act(
            user, f"{user} is thirsty", DRINKS, lambda question: f"{user} said {number}", key=f"k{number}"
        )
        if what < 0.5:
            agent.observe_feedback(user, action, f"{user} wants something else")
        if what > 0.95:
            agent.catch_up(user)

    crowd.interleave(steps, step)
    held = {user: memory.reader(user).notes(unused=True) for user in USERS}
    for user, notes in held.items():
        assert all(named(json.dumps(note.body)) <= {user} for note in notes)
    return len(crowd), sum(map(len, held.values()))


def test_no_note_of_another_is_in_a_prompt(memory: UserMemory) -> None:
    prompts, notes = interleaved(memory, 120, 1)
    assert prompts > 200 and notes > 4


@pytest.mark.slow
def test_no_note_of_another_is_in_a_prompt_in_ten_thousand_steps(memory: UserMemory) -> None:
    prompts, notes = interleaved(memory, 10_000, 2)
    assert prompts > 10_000 and notes > 4


def test_a_blank_answer_ended_the_round(memory: UserMemory) -> None:
    model = Model(decide={"decision": "ask", "question": "Hot?"})
    action = pahf(memory, model).act("ada", DRINK, DRINKS, lambda question: " ", key="k")
    assert (action.option, action.question) == ("cold tea", "Hot?") and memory.known("ada") is None
    assert "answer" not in model.asked[-1][1] and model.steps() == ["decide", "choose"]


def test_agents_of_other_kinds_could_not_share_a_memory(memory: UserMemory) -> None:
    llm = ScriptedGenerator(lambda prompt: json.dumps({"preference": "short"}))
    cipher, coreset = (
        Cipher(memory, llm),
        Coreset(memory, ScriptedGenerator(['{"answers": ["Rome"]}']), ExactConflicts()),
    )
    cipher.observe_edit("ada", DRINK, Draft("edit", "Some tea."), "Tea.")
    agent = pahf(memory, Model())
    action = agent.act("ada", DRINK, DRINKS)
    assert agent.observe_feedback("ada", action, "Hot, please.") and action.retrieved == ()
    assert cipher.respond("ada", DRINK).retrieved == ("edit",)
    assert coreset.answer("ada", [SourceDocument("1", "Rome.", {"city": "Rome"})], "Where?").rests_on == ()
    assert len(agent.act("ada", DRINK, DRINKS).retrieved) == 1
