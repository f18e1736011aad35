"""The table of encoders of contexts: rows by run and agent, what was learnt, where it failed."""

from __future__ import annotations

import shutil
from pathlib import Path

from finegrained_lab.experiments.personalization import PreludeEncodersTable
from finegrained_lab.protocols import RunPrelude
from finegrained_lab.worlds.style import MakeStyleWorld, StyleReader, StyleWriter
from finegrained_rlhf.core.files import write_json


def test_rows_what_was_learnt_and_where_it_failed(tmp_path: Path) -> None:
    settings = {"contexts": 40, "foreign": 0.3, "slips": 0.0, "misreads": 0.0, "notices": 1.0}
    for seed in (1, 2):
        root = tmp_path / f"seed_{seed}"
        MakeStyleWorld(str(root / "world"), seed=seed, contexts=40).run()
        files = [str(root / "world" / name) for name in ("contexts.jsonl", "preferences.json")]
        agents = ["oracle", "no_learning", "icl_edit_5", "cipher_1", "cipher_5"]
        keys = {"agents": agents, "plots": False, "progress": False}
        RunPrelude(
            *files,
            str(root / "words"),
            StyleWriter(slips=0.0, misreads=0.0, notices=1.0, seed=seed),
            StyleReader(),
            **keys,
        ).run()
        for encoder in ("minilm", "mpnet"):  # the same run in their place
            shutil.copytree(root / "words", root / encoder)
        write_json(root / "experiment.json", {"seed": seed, "settings": settings})
    table = PreludeEncodersTable(str(tmp_path / "t.json"), "a command", str(tmp_path), [1, 2], chosen="Nothing.")
    result, page = table.run(), (tmp_path / "t.md").read_text(encoding="utf-8")
    assert len(result["rows"]) == 2 * 11 and "(0% of what a preference says" in page
    by_row = result["summary"]
    assert by_row["cipher_5, words"] == by_row["cipher_5, mpnet"] and by_row["oracle"]["cost"]["mean"] == 0
    assert by_row["cipher_5, words"]["cost"]["mean"] < by_row["no_learning"]["cost"]["mean"]
    learnt = [row for row in result["learnt"] if row["encoder"] == "words"]
    assert len(learnt) == 5 and all(0 <= row["right"] <= 1 for row in learnt)
    costs = [row["cost"] for row in result["failures"] if row["encoder"] == "mpnet"]
    assert len(costs) == 5 and costs == sorted(costs, reverse=True)
    assert all(row["round"] >= 20 for row in result["failures"])
