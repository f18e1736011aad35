"""Events that were not learnt from: listed, and learnt from again by the agent that the user has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.generation.wrappers import ScriptedGenerator
from finegrained_rlhf.personalization import CatchUp, UserMemory

EDIT = {"context": "Dogs", "draft": "The red dog.", "edited": "The dog.", "preference": ""}
REMARK = {"instruction": "A drink", "action": "tea", "remark": "Cold, please."}
TURN = {"question": "?", "answers": ["x"], "reasoning": "", "remark": {"text": "Rome", "attribute": "", "value": ""}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A memory in which of each kind of event one waits and one is set aside."""
    memory = UserMemory(tmp_path / "users.db", durable=False)
    handle = memory.user("ada")
    for kind, body in (("edit", EDIT), ("feedback", REMARK), ("turn", TURN)):
        handle.record(f"{kind} waits", kind, body)
        event = handle.record(f"{kind} \x1b[31m", kind, body)
        for _ in range(3):
            handle.count_try(event)
    memory.close()
    return tmp_path / "users.db"


def model(reply: dict[str, Any] | str = "") -> ScriptedGenerator:
    good = {"preference": "short", "salient": "yes", "note": "cold", "operation": "add", "summary": "Rome"}
    return ScriptedGenerator(lambda prompt: reply if isinstance(reply, str) and reply else json.dumps(good))


def notes(file: Path) -> list[dict[str, Any]]:
    memory = UserMemory(file, durable=False)
    found = [dict(note.body) for note in memory.user("ada").notes()]
    memory.close()
    return found


def test_without_a_language_model_it_lists(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = file.read_bytes()
    assert CatchUp(str(file), "ada").run() == {"learnt": 0, "waiting": 3, "set_aside": 3}
    lines = capsys.readouterr().out.splitlines()
    assert sum("| set aside |" in line for line in lines) == 3 == sum("| waits " in line for line in lines)
    assert sum("edit waits" in line for line in lines) == 1 and not any("\x1b" in line for line in lines)
    assert "Dogs" not in "\n".join(lines) and file.read_bytes() == before
    assert CatchUp(str(file), "ada", tries=4).run()["set_aside"] == 0


@pytest.mark.parametrize(
    ("agent", "note"),
    [
        ("cipher_5", {"preference": "short"}),
        ("explore_then_exploit", None),
        ("pahf", {"text": "cold"}),
        ("summarised_memory", {"text": "Rome"}),
        ("coreset_recency_exact", {"remark": TURN["remark"]}),
    ],
)
def test_the_named_agent_learns_from_what_it_writes(file: Path, agent: str, note: dict[str, Any] | None) -> None:
    job = CatchUp(str(file), "ada", agent, model(), again=False)
    assert job.run() == {"learnt": 1, "waiting": 2, "set_aside": 3}
    assert CatchUp(str(file), "ada", agent, model()).run() == {"learnt": 1, "waiting": 2, "set_aside": 2}
    assert (
        [note.items() <= made.items() for made in notes(file)] == [True] * len(notes(file)) if note else not notes(file)
    )
    assert CatchUp(str(file), "ada", agent, model()).run()["learnt"] == 0


def test_what_cannot_be_learnt_from_again_stays(file: Path) -> None:
    job = CatchUp(str(file), "ada", "cipher_5", model("Sorry."))
    assert job.run() == {"learnt": 0, "waiting": 3, "set_aside": 3} and notes(file) == []
    assert [job.run()["set_aside"] for _ in range(2)] == [3, 4]


def test_what_is_refused(file: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="user"):
        CatchUp(str(file), "eve").run()
    with pytest.raises(DataError, match=r"none\.db"):
        CatchUp(str(tmp_path / "none.db"), "ada").run()
    assert not (tmp_path / "none.db").exists()
    for wrong in ({"agent": "cipher"}, {"agent": "all"}, {"llm": model()}, {"tries": 0}):
        with pytest.raises(ConfigError, match=r"agent|tries"):
            CatchUp(str(file), "ada", **wrong)  # type: ignore[arg-type]
