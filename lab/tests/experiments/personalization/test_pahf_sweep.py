"""The table of PAHF's agents, users and memories, from runs of the protocol itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from finegrained_lab.experiments.personalization import PahfSweepTable
from finegrained_lab.protocols import RunPahf
from finegrained_lab.protocols.pahf.users import ScriptedUser
from finegrained_lab.worlds.pahf import ChoiceScript, MakePahfWorld
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, write_json


def test_a_table_by_agent_user_and_memory(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    for seed in (1,):
        root = tmp_path / f"seed_{seed}"
        MakePahfWorld(str(root / "world"), seed=seed, users=2, scenes=12).run()
        phases = [str(root / "world" / f"phase{number}.jsonl") for number in (1, 2, 3, 4)]
        keys = {"plots": False, "progress": False}
        for noise in (0.0, 0.5):
            script = ChoiceScript(noise=noise, overreach=0.5, seed=seed)
            RunPahf(phases, str(root / "swept" / f"{noise}_0.1"), script, ScriptedUser(terse=0.1), **keys).run()
        for index in ("exact", "faiss"):
            script = ChoiceScript(noise=0.0, overreach=0.5, seed=seed)
            place = str(root / "memory" / f"words_{index}")
            RunPahf(phases, place, script, ScriptedUser(terse=0.1), index=index, **keys).run()
        settings = {"persons": 2, "scenes": 12, "drift": 0.7, "overreach": 0.5, "noise": 0.0, "terse": 0.1}
        write_json(root / "experiment.json", {"seed": seed, "settings": settings})
    table = PahfSweepTable(
        str(tmp_path / "t.json"), "a command", str(tmp_path), [1], chosen="Nothing.",
        agents=[0.0, 0.5], users=[0.1], memories=["words_exact", "words_faiss"],
    )  # fmt: skip
    result = table.run()
    assert len(result["rows"]) == 2 * 4 and len(result["memory_rows"]) == 2
    by = result["summary"]
    assert by["0.5, 0.1, both"]["success2"]["mean"] < by["0.0, 0.1, both"]["success2"]["mean"]
    assert by["0.0, 0.1, none"]["success2"]["mean"] < by["0.0, 0.1, both"]["success2"]["mean"]
    memories = result["memory_summary"]
    assert memories["words_exact"] == memories["words_faiss"] == by["0.0, 0.1, both"]
    assert "| 0.5, 0.1, both" in (tmp_path / "t.md").read_text(encoding="utf-8")
    file = tmp_path / "seed_1/memory/words_faiss/summary.json"
    write_json(file, {**read_json(file), "unchanged_in_tests": False})
    with pytest.raises(DataError, match="has changed in a test"):
        table.run()
