"""The table of holes: form of greedy answers and of the last sampled ones, beside the true errors."""

from __future__ import annotations

from pathlib import Path

import pytest
import tables_toy as toy

from finegrained_lab.experiments.factworld import HolesTable
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import write_jsonl


def test_holes_by_hand(tmp_path: Path) -> None:
    """One answer of two is empty; of seven steps the last five count, for SFT the first."""
    root = toy.write_seed(tmp_path / "seed_1", 1)
    for number, system in enumerate(HolesTable.systems):
        toy.write_evaluation(root, system, {"a": toy.GOOD, "b": " "}, finished_share=0.1 * number)
    for run in HolesTable.runs:
        toy.write_run(root, run, [0.3, 0.2])
        steps = [{"step": i, "eos_rate": 0.1 * i, "response_length": float(i), "time/step_s": 2.0} for i in range(1, 8)]
        write_jsonl(root / run / "metrics.jsonl", steps)
    table = HolesTable(str(tmp_path / "table.json"), "python …", str(tmp_path), [1], chosen="On seed 0.")
    result = table.run()
    by_system = {row["system"]: row for row in result["rows"]}
    assert list(by_system) == ["sft", "open", "empty", "end", "overlong", "cut_open", "cut_end"]
    assert (by_system["sft"]["without_words"], by_system["sft"]["sampled_ended"]) == (0.5, 0.1)
    assert by_system["open"]["finished"] == pytest.approx(0.1)
    assert by_system["end"]["sampled_ended"] == pytest.approx((0.3 + 0.4 + 0.5 + 0.6 + 0.7) / 5)
    assert by_system["end"]["sampled_tokens"] == 5.0
    assert "sampled_ended" in table.page(result) and "Difference from open" in table.page(result)
    toy.write_evaluation(root, "end", {"a": toy.GOOD})
    with pytest.raises(DataError, match="finished_share: missing"):
        table.run()
