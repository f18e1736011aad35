"""The table of CORESET: every agent a row, the orders beside the paper's, the challenges, curves."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from finegrained_lab.experiments.personalization import CoresetTable, StraysTable
from finegrained_lab.experiments.personalization.coreset import BIOS_SETTINGS
from finegrained_lab.experiments.personalization.coreset_figures import windowed_curve
from finegrained_lab.experiments.personalization.strays import STRAYS_SETTINGS
from finegrained_lab.protocols import RunCoreset
from finegrained_lab.worlds.bios import BioScript, MakeBiosWorld
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, write_json


@pytest.mark.slow
def test_the_table(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    scenarios = ("persistence", "partial", "change", "position", "changes", "mixed", "stray")
    root = tmp_path / "seed_1"
    MakeBiosWorld(str(root / "world"), seed=1, conversations=1, turns=6, scenarios=scenarios).run()
    file = str(root / "world" / "conversations.jsonl")
    RunCoreset(file, str(root / "run"), BioScript(), progress=False).run()
    shutil.copytree(root, tmp_path / "seed_2")
    for seed in (1, 2):
        settings = dict.fromkeys(BIOS_SETTINGS, 0.5)
        write_json(tmp_path / f"seed_{seed}" / "experiment.json", {"seed": seed, "settings": settings})
    table = CoresetTable(str(tmp_path / "t.json"), "a command", str(tmp_path), [1, 2], chosen="Nothing.")
    table.run()
    result, page = read_json(tmp_path / "t.json"), (tmp_path / "t.md").read_text()
    assert len(result["rows"]) == 18 * 2 and (tmp_path / "t.svg").is_file()
    mixed = read_json(tmp_path / "seed_2/run/summary.json")["figures"]["mixed"]
    row = next(row for row in result["rows"] if row["system"] == "icl" and row["seed"] == 2)
    assert row["recall_10"] == mixed["10"]["icl"]["recall"]
    assert row["precision"] == pytest.approx(sum(mixed[n]["icl"]["precision"] for n in ("3", "10", "20")) / 3)
    assert len(result["orders"]["1"]) == 16 and result["orders"]["1"][-1] in ("first_document", "most_frequent")
    by_turn = mixed["10"]["icl"]["by_turn"]
    mean = sum(by_turn["precision"][:5] + by_turn["recall"][:5]) / 10
    assert windowed_curve(tmp_path / "seed_2", "mixed", "icl") == {"5": pytest.approx(mean)}
    other = mixed["10"]["icl"]["errors_by_turn"]["other"]
    errors = next(row for row in result["errors"] if row["system"] == "icl")
    assert (
        errors["turns"] == "1 to 6" and errors["other"] == pytest.approx(sum(other) / 6) and "## Errors by turn" in page
    )
    assert "Of the 15 pairs of agents" in page and "scratchpad (0.39, 0.65)" in page and "dials of ours" in page
    write_json(tmp_path / "seed_2/run/summary.json", {"figures": {"mixed": {"3": {}}}})
    with pytest.raises(DataError, match="no_feedback"):
        table.run()


def test_the_table_of_wrong_remarks(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    agents = [name for name in StraysTable.systems if name != "everything"]
    for seed in (1, 2):
        root = tmp_path / f"seed_{seed}"
        for wrong in (0, 3):
            place, keys = root / f"wrong_{wrong}", {"documents": (4,), "scenarios": ("strays",), "turns": 21}
            MakeBiosWorld(str(place / "world"), seed=seed, conversations=1, wrong=wrong, **keys).run()
            script = BioScript(noise=0.0, misjudges=0.0, forgets=0.0)
            file = str(place / "world/conversations.jsonl")
            RunCoreset(file, str(place / "run"), script, agents=agents, progress=False).run()
        settings = {**dict.fromkeys(STRAYS_SETTINGS, 0.5), "documents": 4}
        write_json(root / "experiment.json", {"seed": seed, "settings": settings})
    table = StraysTable(str(tmp_path / "t.json"), "a command", str(tmp_path), [1, 2], wrong=[0, 3], chosen="Nothing.")
    table.run()
    result, page = read_json(tmp_path / "t.json"), (tmp_path / "t.md").read_text()
    assert len(result["rows"]) == 10 * 2 and (tmp_path / "t.svg").is_file()
    rows = {(row["system"], row["seed"]): row for row in result["rows"]}
    for seed in (1, 2):
        ceiling = rows["holding_remarks", seed]
        assert ceiling["precision_0"] == ceiling["precision_3"] == 1.0
        assert rows["full_memory", seed]["precision_0"] == 1.0 > rows["full_memory", seed]["precision_3"]
        figures = read_json(tmp_path / f"seed_{seed}/wrong_3/run/summary.json")["figures"]["strays"]["4"]
        assert rows["random_window", seed]["recall_3"] == figures["random_window"]["recall"]
    assert "precision_3" in page and "4 people of one name" in page
    with pytest.raises(DataError, match="wrong_7"):
        replace(table, wrong=[7]).run()
