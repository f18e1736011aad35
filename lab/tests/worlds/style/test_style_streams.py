"""Users over time, drafts of a policy within PRELUDE, what they leave to train on, and the table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from finegrained_lab.experiments.personalization import NotesAndTrainingTable
from finegrained_lab.experiments.personalization.notes_and_training import SYSTEMS
from finegrained_lab.protocols import RunPrelude
from finegrained_lab.worlds.style import (
    MakeStyleWorld,
    PolicyDrafts,
    RoundsToTexts,
    StyleReader,
    UserStreams,
    WriteStyleTexts,
)
from finegrained_lab.worlds.style.styles import PLAIN, bare_sentences, described, rendered, style_of
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_json, read_jsonl, write_json, write_jsonl
from finegrained_rlhf.core.generation.protocol import Generation

PROMPT = re.compile(r"question: (.*) context: (?:wikipage: .* text: (.*))?", re.DOTALL)


class Obedient:
    """A policy that writes as the note in its prompt says, and plainly without one."""

    def __init__(self, policy: str, max_new_tokens: int) -> None:
        assert max_new_tokens == 64

    def generate(self, prompt: str) -> Generation:
        found = PROMPT.fullmatch(prompt)
        assert found
        return Generation(rendered(bare_sentences(found[1]), {**PLAIN, **described(found[2] or "")}), 1, 1)


def world(root: Path, seed: int) -> dict[str, str]:
    MakeStyleWorld(str(root), seed=seed, contexts=60).run()
    return {"contexts": str(root / "contexts.jsonl"), "preferences": str(root / "preferences.json")}


def test_three_users_have_the_same_last_rounds(tmp_path: Path) -> None:
    files = world(tmp_path / "world", 5)
    with pytest.raises(ConfigError, match="fewer than the 60 contexts"):
        UserStreams(**files, output_dir=str(tmp_path), earlier=60).run()
    assert UserStreams(**files, output_dir=str(tmp_path / "s"), earlier=20).run() == {
        "known": 60, "new": 40, "changed": 60
    }  # fmt: skip
    known, new, changed = (list(read_jsonl(tmp_path / "s" / f"{name}.jsonl")) for name in ("known", "new", "changed"))
    assert known[:20] == changed[:20] and changed[20:] == new
    assert [row["text"] for row in known[20:]] == [row["text"] for row in new]
    wanted = read_json(tmp_path / "s" / "preferences.json")
    assert all(wanted[row["source"]] != wanted[row["source"].removesuffix(", changed")] for row in new)


def test_notes_help_a_policy_that_obeys_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("finegrained_rlhf.inference.LocalGenerator", Obedient)
    for seed in (1, 2):
        root = tmp_path / f"seed_{seed}"
        files = world(root / "used", seed)
        keys: dict[str, Any] = {"plots": False, "progress": False}
        drafts, reader = PolicyDrafts(policy="p"), StyleReader()
        RunPrelude(**files, output_dir=str(root / "c"), llm=drafts, user=reader, agents=["cipher_5"], **keys).run()
        noted, plain = str(root / "noted.jsonl"), str(root / "plain.jsonl")
        assert RoundsToTexts(str(root / "c/rounds.jsonl"), files["contexts"], "cipher_5", noted, plain).run() == 60
        texts = list(read_jsonl(noted))
        assert [row["answer"] for row in texts] == [row["answer"] for row in read_jsonl(plain)]
        assert any(row["passages"] for row in texts) and not any(row["passages"] for row in read_jsonl(plain))
        UserStreams(**files, output_dir=str(root / "streams"), earlier=20).run()
        for user in ("known", "new", "changed"):
            for policy in {policy for policy, _ in SYSTEMS.values()}:
                RunPrelude(
                    str(root / "streams" / f"{user}.jsonl"), str(root / "streams/preferences.json"),
                    str(root / "played" / f"{policy}_{user}"), drafts, reader,
                    agents=["no_learning", "cipher_5", "oracle"], **keys,
                ).run()  # fmt: skip
        settings = {"used": 60, "measured": 40, "earlier": 20, "foreign": 0.3}
        write_json(root / "experiment.json", {"seed": seed, "settings": settings})
    monkeypatch.setattr(NotesAndTrainingTable, "runs", ())
    table = NotesAndTrainingTable(str(tmp_path / "t.json"), "a command", str(tmp_path), [1, 2], chosen="Nothing.")
    users = table.run()["users"]
    assert all(of["summary"]["writer, true notes"]["cost"]["mean"] == 0 for of in users.values())
    known, new, changed = (users[name]["summary"] for name in ("known", "new", "changed"))
    assert known["writer, notes"]["first"]["mean"] < new["writer, notes"]["first"]["mean"]
    assert new["writer, notes"]["last"]["mean"] < new["writer"]["last"]["mean"]
    assert changed["writer"]["cost"] == new["writer"]["cost"]  # without notes the past is nothing
    write_jsonl(tmp_path / "seed_1/played/writer_new/rounds.jsonl", [{"agent": "nobody"}])
    with pytest.raises(DataError, match="no such agent"):
        table.run()
    capsys.readouterr()


def test_texts_say_their_style_in_a_note(tmp_path: Path) -> None:
    files = world(tmp_path, 6)
    WriteStyleTexts(contexts=files["contexts"], output=str(tmp_path / "t.jsonl"), noted=0.5).run()
    rows = list(read_jsonl(tmp_path / "t.jsonl"))
    noted = [row for row in rows if row["passages"]]
    assert 15 < len(noted) < 45
    for row in noted:
        said, written = {**PLAIN, **described(row["passages"][0][1])}, style_of(row["answer"][0])
        assert said == written
    with pytest.raises(ConfigError, match="either noted or preferences"):
        WriteStyleTexts(**files, output="x", noted=1.0)
