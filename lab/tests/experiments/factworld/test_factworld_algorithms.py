"""The table of algorithms: equal processor time by hand, what the page says of its numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import tables_toy as toy

from finegrained_lab.experiments.factworld.tables.algorithms import (
    PAIRS,
    RUNS,
    AlgorithmsTable,
    advice,
    best_until,
    dense_against_holistic,
)
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_jsonl, write_jsonl
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory


def test_equal_time_is_that_of_the_fastest_system(tmp_path: Path) -> None:
    """Ten steps of 1.5 s for the fastest: a system of 3 s a step has done five of them, one of 1.6 s nine."""
    root = toy.write_seed(tmp_path / "seed_1", 1)
    for run in RUNS:
        toy.write_run(root, run, [0.4, 0.3, 0.1])
    for run, seconds in (("ppo", 3.0), ("ppo_heads", 1.6)):
        steps = read_jsonl(root / run / "metrics.jsonl")
        write_jsonl(root / run / "metrics.jsonl", [{**row, "time/processor_s": seconds} for row in steps])
    for system in AlgorithmsTable.systems:
        toy.write_evaluation(root, system, {"a": toy.GOOD, "b": toy.WRONG})
    table = AlgorithmsTable(str(tmp_path / "table.json"), "python …", str(tmp_path), [1], chosen="On seed 0.")
    by_system = {row["system"]: row for row in table.run()["rows"]}
    assert by_system["ppo"]["equal_time_error"] == by_system["ppo_heads"]["equal_time_error"] == pytest.approx(0.3)
    assert by_system["rloo_dense"]["equal_time_error"] == pytest.approx(0.1)
    assert by_system["sft"]["equal_time_error"] == pytest.approx(0.4) and by_system["sft"]["steps"] == 0
    assert (by_system["ppo"]["processor_s"], by_system["rloo_dense"]["processor_s"]) == (30.0, 15.0)
    worse = [{**row, "score": -row["step"]} for row in read_jsonl(root / "ppo" / "eval.jsonl")]
    write_jsonl(root / "ppo" / "eval.jsonl", worse)
    assert best_until(RunDirectory(root / "ppo"), 1e9)["step"] == 0  # the best reward counts, not the last validation
    toy.write_run(root, "gdpo_dense", [0.4, 0.3, 0.1])
    steps = read_jsonl(root / "gdpo_dense" / "metrics.jsonl")
    del steps[3]["time/processor_s"]
    write_jsonl(root / "gdpo_dense" / "metrics.jsonl", steps)
    with pytest.raises(DataError, match="record 3, field time/processor_s: missing: train the run anew"):
        table.run()


def test_what_the_page_says_follows_from_the_rows() -> None:
    errors = dict.fromkeys(RUNS, (0.3, 0.3)) | {"rloo_dense": (0.1, 0.2), "ppo": (0.2, 0.15)}
    rows = [
        {"system": run, "seed": seed, "mean_error": error, "equal_time_error": 1 - error, "processor_s": 10.0}
        for run, of in errors.items()
        for seed, error in enumerate(of)
    ]
    rows = [{**row, "processor_s": 5.0} if row["system"] == "grpo_holistic" else row for row in rows]
    said = advice(rows, RUNS)
    assert (
        "After equal episodes `rloo_dense` has the lowest mean error over seeds, 0.150; in some seed no worse: `ppo`."
        in said
    )
    assert "After equal processor time `ppo_heads` has the lowest" in said and "0.700; in some seed" in said
    assert "`grpo_holistic` needs the least processor time for its steps, 0.50 of `ppo`'s." in said
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in dense_against_holistic(rows).splitlines()]
    assert ["RLOO", "0.150", "0.300", "2 of 2 seeds"] in lines and ["GRPO", "0.300", "0.300", "0 of 2 seeds"] in lines
    assert len(lines) == 2 + len(PAIRS)
