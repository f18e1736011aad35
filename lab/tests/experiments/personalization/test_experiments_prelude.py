"""The table of PRELUDE: every agent a row, means with standard errors, orders as found."""

from __future__ import annotations

from pathlib import Path

import pytest

from finegrained_lab.experiments.personalization import PreludeTable
from finegrained_lab.protocols import RunPrelude
from finegrained_lab.worlds.style import MakeStyleWorld, StyleReader, StyleWriter
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, write_json

SETTINGS = {"contexts": 20, "foreign": 0.3, "slips": 0.02, "misreads": 0.05, "notices": 0.8}


def test_the_table(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for seed in (1, 2):
        root = tmp_path / f"seed_{seed}"
        MakeStyleWorld(str(root / "world"), seed=seed, contexts=20).run()
        files = (str(root / "world" / name) for name in ("contexts.jsonl", "preferences.json"))
        RunPrelude(*files, str(root / "run"), StyleWriter(seed=seed), StyleReader(), progress=False).run()
        write_json(root / "experiment.json", {"seed": seed, "settings": SETTINGS})
    table = PreludeTable(str(tmp_path / "t.json"), "a command", str(tmp_path), [1, 2], chosen="Nothing.")
    table.run()
    result, page = read_json(tmp_path / "t.json"), (tmp_path / "t.md").read_text()
    assert len(result["rows"]) == 16 and set(result["orders"]) == {"1", "2"} and (tmp_path / "t.svg").is_file()
    costs = [row["cost"] for row in result["rows"] if row["system"] == "cipher_5"]
    mean, error = sum(costs) / 2, abs(costs[0] - costs[1]) / 2  # of two: |a - b| / √2 / √2
    row = next(line for line in page.splitlines() if line.startswith("| cipher_5"))
    said, plus = row.split("|")[2].split("±")
    assert float(said) == pytest.approx(mean, abs=0.5) and float(plus) == pytest.approx(error, abs=0.5)
    assert "preference_accuracy" not in result["summary"]["no_learning"]
    for seed, order in result["orders"].items():
        by_cost = {row["system"]: row["cost"] for row in result["rows"] if row["seed"] == int(seed)}
        assert [by_cost[agent] for agent in order] == sorted(by_cost.values())
    assert "20 rounds" in page and "does not follow 2%" in page
    summary = tmp_path / "seed_2/run/summary.json"
    write_json(summary, {"agents": {}})
    with pytest.raises(DataError, match="no such agent"):
        table.run()
