"""The table of regret: a row a case with every seed's figures, and how many agree with the formulas."""

from __future__ import annotations

from pathlib import Path

import pytest

from finegrained_lab.experiments.personalization import RegretTable
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, write_json


def case(x: int, errors: float, z: float | None, policy: str, group: str, follows: bool = True) -> dict:
    kept = errors <= 10.0
    return {
        **{"statement": "theorem 1", "group": group, "x": x, "policy": policy, "formula": 6.0, "side": "≤"},
        **{"bound": 10.0, "follows": follows, "errors": errors, "error_se": 0.3, "questions": 2.0},
        **{"z": z, "agrees": True, "kept": kept, "is_bound": x == 3 and follows},
    }


def test_the_table(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    lines = [
        *(
            ("one switch, T", "keeps its memory"),
            ("one switch, T", "is corrected"),
            ("8 situations, K", "is corrected"),
        ),
        *(
            ("uniform prior, m = 2, k", "asks"),
            ("theorem 1, T", "pre"),
            ("theorem 1, T", "post"),
            ("theorem 1, T", "both"),
        ),
    ]
    for seed in (1, 2):
        cases = [case(x, 6.0 + 0.3 * seed, float(seed) + 0.5, *line[::-1]) for line in lines for x in (1, 2)]
        cases += [case(3, 6.0, None, "both", "theorem 1, T"), case(3, 12.0, 2.0, "late", "theorem 1, T", False)]
        write_json(tmp_path / f"seed_{seed}/run/summary.json", {"seed": seed, "runs": 9, "cases": cases})
        write_json(tmp_path / f"seed_{seed}/experiment.json", {"seed": seed, "settings": {"runs": 9}})
    table = RegretTable(str(tmp_path / "t.json"), "a command", str(tmp_path), [1, 2], chosen="Nothing.")
    table.run()
    result, page = read_json(tmp_path / "t.json"), (tmp_path / "t.md").read_text()
    assert len(result["rows"]) == 16 and (tmp_path / "t.svg").is_file() and "9 runs of each case" in page
    assert "1 of them as formulas" in page and page.count("yes (=)") == 1
    assert result["agreement"] == {
        **{"cases": 16, "measured": 32, "exact": 2, "random": 30, "beyond_2": 14, "furthest": 2.5},
        **{"bounded": 15, "bounded_kept": 15, "is_bound": 1, "outside": 1, "outside_broken": 1},
    }
    row = result["rows"][0]
    assert row["errors"] == pytest.approx(6.45) and row["se"] == pytest.approx(0.3 / 2**0.5) and row["kept"] == 2
    broken = [{**one, "agrees": False} if one["z"] is None else one for one in cases]
    for wrong in ({"seed": 5, "cases": cases}, {"seed": 2, "cases": cases[1:]}, {"seed": 2, "cases": broken}):
        write_json(tmp_path / "seed_2/run/summary.json", {"runs": 9, **wrong})
        with pytest.raises(DataError):
            table.run()
