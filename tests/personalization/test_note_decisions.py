"""One note is corrected, deleted, expired, held; agents respect it; a user is exported and imported: on both stores."""

from __future__ import annotations

import copy
import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from stores import Store
from user_memory_toy import SECRET

from finegrained_rlhf.core.errors import ConfigError, DataError, FineGrainedError
from finegrained_rlhf.core.generation.wrappers import ScriptedGenerator
from finegrained_rlhf.personalization import (
    Cipher,
    ExploreThenExploit,
    HashedWords,
    MemoryLimits,
    NoteDecision,
    Pahf,
    SummarisedMemory,
    UserMemory,
    UserNotes,
)
from finegrained_rlhf.personalization.learners.base import Draft
from finegrained_rlhf.personalization.store.protocol import (
    ConsentError,
    ForgottenUserError,
    MemoryLimitError,
    MemoryStore,
    NoteChange,
    NoteConflictError,
    RepeatedKeyError,
    UserHandle,
)


def learnt(handle: UserHandle, key: str = "n", says: str = "short", expected: int = 0) -> int:
    event = handle.record(f"{key} {says} {expected}", "edit", {"context": "c"})
    handle.apply(event, [NoteChange(key, {"encoder": "e", "preference": says}, b"vector", expected)])
    return event.id


def states(handle: UserHandle) -> dict[str, str]:
    return {note.key: note.state for note in handle.notes(unused=True)}


def test_a_correction_keeps_what_was_said_before(memory: MemoryStore) -> None:
    handle = memory.user("ada")
    first = learnt(handle)
    decision = NoteDecision("n", "correct", {"preference": "long"}, by="user", expected=1)
    event = handle.decide(decision, "key")
    assert handle.decide(decision, "key") == event and event.applied and event.kind == "note"  # once
    note = handle.note("n")
    assert (note.body["preference"], note.version, note.event, note.decided) == ("long", 2, event.id, event.id)
    assert note.vector == b"" and note.body["encoder"] == ""  # to be made anew
    (before,) = handle.history("n")
    assert (before.body["preference"], before.event, before.vector) == ("short", first, None)
    assert before.valid_from < before.valid_to == note.valid_from and note.valid_to is None
    assert handle.evidence()["n"] == [(1, first), (2, event.id)]
    with pytest.raises(RepeatedKeyError):
        handle.decide(NoteDecision("n", "delete"), "key")
    with pytest.raises(NoteConflictError, match="expected version 1, it has version 2"):
        handle.decide(decision)
    for body in ({"preference": 1}, {"encoder": "x"}, {"other": "x"}):
        with pytest.raises(DataError, match="body"):
            handle.decide(NoteDecision("n", "correct", body))
    with pytest.raises(DataError, match="no such note"):
        handle.decide(NoteDecision("gone", "delete"))
    assert handle.note("n") == note and len(handle.events()) == 2 and handle.decisions() == 1  # nothing by half


def test_only_notes_in_use_are_seen(memory: MemoryStore) -> None:
    handle = memory.user("ada")
    for key in ("held", "expired", "deleted", "later", "used"):
        learnt(handle, key)
    for key, action in (("held", "hold"), ("expired", "expire"), ("deleted", "delete")):
        handle.decide(NoteDecision(key, action))
    handle.decide(NoteDecision("later", "expire", until=time.time() + 0.3))
    assert set(handle.versions()) == {note.key for note in handle.notes()} == {"later", "used"}
    assert handle.note("held") is None and handle.note("held", unused=True).body["preference"] == "short"
    assert states(handle) == {
        **dict.fromkeys(("later", "used"), "used"),
        **{key: key for key in ("held", "expired", "deleted")},
    }
    gone = handle.note("deleted", unused=True)
    assert (gone.body, gone.vector) == ({}, None) and handle.history("deleted")[0].body["preference"] == "short"
    time.sleep(0.35)
    assert handle.note("later") is None and set(handle.versions()) == {"used"}
    for key in ("held", "expired", "later"):
        handle.decide(NoteDecision(key, "release"))
    assert set(handle.versions()) == {"held", "expired", "later", "used"}
    with pytest.raises(DataError):
        handle.decide(NoteDecision("deleted", "release"))


def test_earlier_events_do_not_bring_back_what_somebody_removed(memory: MemoryStore) -> None:
    handle = memory.user("ada")
    early = [handle.record(f"early {n}", "edit", {}) for n in range(4)]
    for key in ("deleted", "corrected", "held"):
        learnt(handle, key)
    seen = handle.decisions()
    handle.decide(NoteDecision("deleted", "delete"))
    handle.decide(NoteDecision("corrected", "correct", {"preference": "long"}))
    handle.decide(NoteDecision("held", "hold"))
    with pytest.raises(NoteConflictError, match="decided"):  # derived from what was there before
        handle.apply(early[0], [NoteChange("other", {"preference": "short"})], seen)
    before = handle.notes(unused=True)
    assert handle.apply(early[0], [NoteChange("deleted", {"preference": "brief"})])
    assert handle.apply(early[1], [NoteChange("corrected", {"preference": "brief"}, None, 2)])
    assert handle.apply(early[2], [NoteChange("twin", {"encoder": "other", "preference": "short"}, b"v")])
    assert handle.notes(unused=True) == before
    assert handle.apply(early[3], [NoteChange("other", {"preference": "funny"})])  # is about something else
    late = learnt(handle, "deleted", "Short")  # new evidence
    learnt(handle, "held", "brief")
    assert handle.note("deleted").version == 3 and handle.evidence()["deleted"][-1] == (3, late)
    learnt(handle, "corrected", "longer", 2)
    assert handle.note("corrected").body["preference"] == "longer" and states(handle)["held"] == "held"


def test_forgetting_removes_decisions_and_history(store: Store) -> None:
    memory = store.open()
    handle = memory.user(SECRET)
    learnt(handle, "n", SECRET)
    handle.decide(NoteDecision("n", "correct", {"preference": f"{SECRET} once more"}))
    handle.decide(NoteDecision("n", "delete"))
    store.settle()
    assert store.traces(SECRET) and memory.forget(SECRET)
    store.settle()
    assert store.traces(SECRET) == []
    assert handle.history() == [] == handle.notes(unused=True) and handle.decisions() == 0
    with pytest.raises(ForgottenUserError):
        handle.decide(NoteDecision("n", "delete"))
    memory.close()


def test_limits_and_consent(store: Store) -> None:
    memory = store.open(limits=MemoryLimits(notes=1, versions=2, body_bytes=300))
    handle = memory.user("ada")
    learnt(handle)
    for number in range(4):
        handle.decide(NoteDecision("n", "correct", {"preference": str(number)}))
    assert [note.body["preference"] for note in handle.history()] == ["1", "2"]
    with pytest.raises(MemoryLimitError):
        handle.decide(NoteDecision("n", "correct", {"preference": "x" * 280}))
    with pytest.raises(MemoryLimitError):
        learnt(handle, "m")
    handle.decide(NoteDecision("n", "delete"))
    learnt(handle, "m", "free")  # deleted ones take no room
    strict = store.open(consent_required=True)
    with pytest.raises(ConsentError):
        strict.user("ada")
    with pytest.raises(ConsentError):
        strict.reader("ada").decide(NoteDecision("m", "correct", {"preference": "x"}))
    strict.reader("ada").decide(NoteDecision("m", "delete"))  # always may be
    for wrong in ({"action": "burn"}, {"action": "delete", "body": {"a": 1}}, {"action": "hold", "until": 1.0}):
        with pytest.raises(ConfigError):
            NoteDecision("m", **wrong)
    memory.close()
    strict.close()


def preferring(prompts: list[str], reply: str = "short") -> ScriptedGenerator:
    def answer(prompt: str) -> str:
        prompts.append(prompt)
        fields = ("preference", "note", "summary", "cues")
        return json.dumps({**dict.fromkeys(fields, reply), "salient": "yes", "operation": "add", "choice": "1"})

    return ScriptedGenerator(answer)


def test_agents_go_by_the_corrected_note(memory: MemoryStore) -> None:
    prompts: list[str] = []
    cipher = Cipher(memory, preferring(prompts), k=1)
    for context in ("dogs and cats", "rain"):
        cipher.observe_edit("ada", context, Draft(context, "A long draft."), "A draft.")
    handle = memory.user("ada")
    handle.decide(NoteDecision("rain", "correct", {"preference": "in verse"}))
    draft = cipher.respond("ada", "rain and wind")
    assert (draft.preference, draft.retrieved) == ("in verse", ("rain",))
    assert handle.note("rain").body["encoder"] == HashedWords().identity and handle.note("rain").version == 2
    handle.decide(NoteDecision("rain", "delete"))
    assert cipher.respond("ada", "rain and wind").retrieved == ("dogs and cats",)
    assert Cipher(memory, preferring(prompts), encoder=HashedWords(64)).respond("ada", "rain").preference == "short"
    explore = ExploreThenExploit(memory, preferring(prompts), rounds=2)
    for number in range(4):
        explore.observe_edit("eve", "c", Draft(str(number), "A long draft."), f"Draft {number}.")
        if number == 1:
            memory.user("eve").decide(NoteDecision("explored", "delete"))
        assert (memory.user("eve").note("explored") is not None) == (number == 3)
    assert "Draft 1" not in prompts[-1] and "Draft 3" in prompts[-1]


def test_decisions_while_the_model_is_asked(memory: MemoryStore) -> None:
    prompts: list[str] = []
    pahf = Pahf(memory, preferring(prompts, "likes tea"))
    action = pahf.act("ada", "a drink", ["tea"])
    pahf.observe_feedback("ada", action, "Tea!")
    (note,) = memory.user("ada").notes()
    done: list[int] = []

    def merges(prompt: str) -> str:
        if '"existing"' in prompt and not done:
            done.append(memory.user("ada").decide(NoteDecision(note.key, "delete")).id)
        reply = {"salient": "yes", "note": "likes tea, hot", "operation": "merge", "number": "1"}
        return json.dumps(reply)

    late = Pahf(memory, ScriptedGenerator(merges))
    late.observe_feedback("ada", late_action(pahf), "Hot tea!")
    notes = memory.user("ada").notes(unused=True)
    assert done and {one.key: one.state for one in notes} == {note.key: "deleted", "late/feedback": "used"}
    summary = SummarisedMemory(memory, preferring(prompts))
    event = memory.user("eve").record(
        "t", "turn", {"question": "?", "answers": [], "reasoning": "", "remark": {"text": "x"}}
    )
    learnt(memory.user("eve"), "summary", "wrong")
    memory.user("eve").decide(NoteDecision("summary", "delete"))
    assert summary.catch_up("eve") == 1 and memory.user("eve").note("summary") is None and not event.applied


def late_action(pahf: Pahf) -> Any:
    return pahf.act("ada", "a drink", ["tea"], key="late")


def test_a_user_is_exported_and_imported(store: Store, tmp_path: Path) -> None:
    prompts: list[str] = []
    memory = store.open()
    memory.user("first").record("k", "edit", {})  # so that ids differ
    cipher = Cipher(memory, preferring(prompts), k=3)
    memory.set_consent("ada", store=True, train=True)
    for number, context in enumerate(("dogs", "rain", "dogs and rain")):
        cipher.observe_edit("ada", context, Draft(str(number), "A long draft."), "A draft.")
    handle = memory.user("ada")
    handle.decide(NoteDecision("0", "correct", {"preference": "über \x00 lang"}))
    handle.decide(NoteDecision("1", "hold"))
    handle.count_try(handle.record("waits", "edit", {"context": "c"}, {"notes": ["0"]}))
    data = json.loads(json.dumps(memory.export_user("ada")))
    with pytest.raises(DataError, match="there is such a user"):
        memory.import_user(data)
    imported = memory.import_user(data, "bea")
    assert imported.notes() != [] and memory.consent("bea") == memory.consent("ada")
    again = memory.export_user("bea")
    new = {old["id"]: event["id"] for old, event in zip(data["events"], again["events"], strict=True)} | {0: 0}
    for table in ("events", "notes", "versions", "evidence"):
        for row in data[table]:
            row.update({name: new[row[name]] for name in ("id", "event", "decided", "removed") if name in row})
    assert {**again, "user": "ada"} == data
    for context in ("dogs", "rain", "snow"):
        drafts = [cipher.respond(user, context, "key") for user in ("ada", "bea")]
        assert drafts[0].text == drafts[1].text and drafts[0].retrieved == drafts[1].retrieved
    memory.close()


def test_what_cannot_be_imported(memory: MemoryStore) -> None:
    learnt(memory.user("ada"))
    memory.user("ada").decide(NoteDecision("n", "correct", {"preference": "long"}))
    good = memory.export_user("ada")

    def without(*path: Any, value: Any = None, remove: bool = False) -> dict[str, Any]:
        data = copy.deepcopy(good)
        place = data
        for step in path[:-1]:
            place = place[step]
        if remove:
            del place[path[-1]]
        else:
            place[path[-1]] = value
        return data

    wrong = [
        *([], {}, without("version", value=2), without("form", value="x"), without("notes", value={})),
        *(without("notes", 0, "event", value=99_999), without("notes", 0, "event", value=0)),
        *(without("notes", 0, "vector", value="?"), without("notes", 0, "state", value="expired")),
        *(without("notes", 0, "body", value="text"), without("notes", 0, "valid_from", value="now")),
        *(without("events", 0, "id", value=-1), without("events", 1, "id", value=1), without("user", value="")),
        *(without("events", 0, "applied", value=True), without("events", 0, "key", remove=True)),
        *(without("evidence", 0, "note", value=3), without("consent", value={"store": True})),
        without("events", 1, value=good["events"][0]),
        without("consent", value={"store": False, "train": False, "at": 1.0}),
    ]
    for data in wrong:
        with pytest.raises(FineGrainedError):
            memory.import_user(data, "new" if isinstance(data, dict) and data.get("user") else None)
    assert memory.known("new") is None
    memory.set_consent("refuses", store=False, train=False)
    memory.forget("refuses")
    with pytest.raises(ConsentError):
        memory.import_user(good, "refuses")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, json_file = str(tmp_path / "users.db"), str(tmp_path / "ada.json")
    memory = UserMemory(file, durable=False)
    learnt(memory.user("ada"), "n\x1b[31m", "short")
    memory.close()
    key = "n\x1b[31m"
    UserNotes(file, "ada", "correct", key, {"preference": "long"}).run()
    UserNotes(file, "ada", "expire", key, until="2099-01-31").run()
    rows = UserNotes(file, "ada", note=key).run()
    assert [(row["version"], row["state"]) for row in rows] == [(1, "used"), (2, "used"), (3, "used")]
    assert rows[-1]["valid to"].startswith("2099-01-31") and "long" in rows[-1]["body"]
    UserNotes(file, "ada", "export", file=json_file).run()
    UserNotes(file, "bea", "import", file=json_file).run()
    for wrong, message in (
        (UserNotes(file, "ada", "export", file=json_file), "already"),
        (UserNotes(file, "bea", "import", file=json_file), "there is such a user"),
        (UserNotes(file, "eve", "import", file=file), "expected a JSON file"),
        (UserNotes(file, "eve"), "no such user"),
        (UserNotes(file, "ada", note="gone"), "no such note"),
    ):
        with pytest.raises(DataError, match=message):
            wrong.run()
    for keys in ({"action": "burn"}, {"action": "delete"}, {"action": "export"}, {"file": "x"}):
        with pytest.raises(ConfigError):
            UserNotes(file, "ada", **keys)
    with pytest.raises(ConfigError, match="until"):
        UserNotes(file, "ada", "expire", key, until="soon")
    assert "\x1b" not in capsys.readouterr().out


def test_a_file_of_a_later_version_is_refused(tmp_path: Path) -> None:
    UserMemory(tmp_path / "users.db", durable=False).close()
    with sqlite3.connect(tmp_path / "users.db") as later:
        (version,) = later.execute("PRAGMA user_version").fetchone()
        later.execute(f"PRAGMA user_version = {version + 1}")
    later.close()
    with pytest.raises(FineGrainedError, match="later version"):
        UserMemory(tmp_path / "users.db")


@pytest.mark.parametrize("until", [float("nan"), float("inf"), -1, 1e15, True, "2099"])
def test_a_time_that_is_none_was_stored(until: Any) -> None:
    with pytest.raises(ConfigError, match="until"):
        NoteDecision("note", "expire", until=until)
    with pytest.raises(ConfigError, match="expected"):
        NoteDecision("note", "hold", expected=str(until))  # type: ignore[arg-type]
