"""The table of PAHF: every setting and every baseline a row, curves of both learning phases."""

from __future__ import annotations

from pathlib import Path

import pytest

from finegrained_lab.experiments.personalization import PahfTable
from finegrained_lab.protocols import RunPahf, ScriptedUser
from finegrained_lab.worlds.pahf import ChoiceScript, MakePahfWorld
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, write_json

SETTINGS = {"users": 1, "scenes": 9, "drift": 0.7, "noise": 0.05, "overreach": 0.5, "terse": 0.1}


def test_the_table(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for seed in (1, 2):
        root = tmp_path / f"seed_{seed}"
        MakePahfWorld(str(root / "world"), seed=seed, users=1, scenes=9).run()
        files = [str(root / "world" / f"phase{number}.jsonl") for number in (1, 2, 3, 4)]
        RunPahf(files, str(root / "run"), ChoiceScript(seed=seed), ScriptedUser(seed=seed), progress=False).run()
        write_json(root / "experiment.json", {"seed": seed, "settings": SETTINGS})
    table = PahfTable(str(tmp_path / "t.json"), "a command", str(tmp_path), [1, 2], chosen="Nothing.")
    table.run()
    result, page = read_json(tmp_path / "t.json"), (tmp_path / "t.md").read_text()
    assert len(result["rows"]) == 14 and (tmp_path / "t.svg").is_file() and len(result["errors_over_users"]) == 8
    own = [row for row in result["rows"] if row["system"] == "both"]
    summary = read_json(tmp_path / "seed_2/run/summary.json")
    assert own[1]["acpe3"] == summary["settings"]["both"]["phase3"]["acpe"][-1]
    assert own[1]["first1"] == summary["settings"]["both"]["phase1"]["success"][0]
    assert result["curves"]["success3"]["both"][1] == summary["settings"]["both"]["phase3"]["success"]
    constant = next(row for row in result["rows"] if row["system"] == "constant" and row["seed"] == 2)
    assert constant["acpe1"] == 1.0 - constant["success1"] and constant["frequency3"] == 0.0
    assert "1 users, 9 scenes" in page and "byte by byte" in page
    file = tmp_path / "seed_2/run/summary.json"
    for wrong in ({"unchanged_in_tests": False}, {"settings": {}}):
        write_json(file, {**summary, **wrong})
        with pytest.raises((DataError, KeyError)):
            table.run()
