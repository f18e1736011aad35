"""Write the pages that put two kinds of reward side by side on every test bed, from the committed results files alone.

Example: python docs/site/side_by_side.py        (writes docs/dense_against_holistic.md and its sibling)

Knows results files and the rows that `docs/site/side_by_side.yaml` names; a table that no checkout gives is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from finegrained_lab.experiments.comparison import Claim, check_claims, margins
from finegrained_lab.experiments.results_table import made_of_changed_files
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.text.tables import markdown_table

ROOT = Path(__file__).resolve().parents[2]
COMPARISONS, RESULTS = ROOT / "docs/site/side_by_side.yaml", ROOT / "docs/results"
_KEYS = {"bed", "algorithm", "table", "systems", "column", "better", "grids", "settings", "judge", "flaw", "note"}
_ONE_SEED = "–"
_TUNED = "both tuned by the same budget"


def pages() -> Iterator[tuple[Path, str]]:
    """Each page's place and text.

    Raises:
        DataError: a row names a table, system or column that is not there, or a table of changed files.
    """
    for page in yaml.safe_load(COMPARISONS.read_text(encoding="utf-8")):
        yield ROOT / f"docs/{page['page']}.md", page_of(page, RESULTS)


def page_of(page: Mapping[str, Any], results: Path) -> str:
    """The text of a page.

    Args:
        page: of the YAML file.
        results: `docs/results`.

    Raises:
        DataError: as `pages`.
    """
    rows = [row_of(row, page["arms"], results) for row in page["rows"]]
    counted = [row for row in rows if row[_TUNED].startswith("yes") and row["counts"] == "yes"]
    ahead = {arm: sum(row["better in every seed"] == arm for row in counted) for arm in page["arms"]}
    single = sum(row["better in every seed"] == _ONE_SEED for row in counted)
    first, second = page["arms"]
    fair = f"None of the {len(rows)} rows counts and has both arms tuned by the same budget."
    if counted:
        fair = (
            f"Of the {len(rows)} rows {len(counted)} count and have both arms tuned by the same budget: in "
            f"{ahead[first]} of these {first} is better in every seed, in {ahead[second]} {second}, in "
            f"{len(counted) - sum(ahead.values()) - single} neither"
            + (f"; {single} are of one seed and say nothing of others." if single else ".")
        )
    return (
        f"# {page['title']}\n\nWritten by `python docs/site/side_by_side.py` from the committed results files; do not "
        f"edit. {page['about']}\n\n{fair}\n\n{markdown_table(rows, list(rows[0])).strip()}\n\n"
        "Figures are means over seeds, the difference with its standard error over seeds; one seed has none, and is no "
        f"ground for a verdict. `{_TUNED}`: yes where both arms had as many runs of a committed grid, which is linked "
        "with the number of runs; a grid is of few seeds, and says nothing of settings that it does not hold (the best "
        "point of some arms is at its end). Rows share arms and algorithms, and are not independent. "
        "`counts`: no where an arm has a flaw that is named, or where a learned judge "
        "says which is better and does not pass its gate. What the statements of the thesis come to stands in "
        "[What has been proven where](proven.md).\n"
    )


def row_of(row: Mapping[str, Any], arms: Sequence[str], results: Path) -> dict[str, str]:
    """A row of a page.

    Raises:
        DataError: it has an unknown key, or names what is not there.
    """
    if unknown := set(row) - _KEYS:
        raise DataError(f"unknown key {', '.join(sorted(unknown))}", record=row["bed"])
    result, (left, right), column = _table(row["table"], results), row["systems"], row["column"]
    rows = result["rows"]
    if not any("seed" in one for one in rows):  # a table of one seed names it among its settings alone
        rows = [{"seed": result["configuration"]["seed"], **one} for one in rows]
    of = {system: [one for one in rows if one["system"] == system] for system in (left, right)}
    for system, found in of.items():
        if not found or any(one.get(column) is None for one in found):
            raise DataError(f"{row['table']} has no {column} of {system}", record=row["bed"])
    claim = check_claims([Claim("", "", column, left, row["better"], right)], rows)[0]
    other = check_claims([Claim("", "", column, right, row["better"], left)], rows)[0]
    (gap,) = margins(rows, left, right, [column])
    seeds = claim["seeds"]
    every = {arms[0]: claim["holds_in"], arms[1]: other["holds_in"]}
    spread = f" ± {gap['error']:.3f}" if seeds > 1 else ""
    return {
        "test bed": f"[{row['bed']}](results/{row['table']}.md)",
        "algorithm": row["algorithm"],
        "measure": f"{column} ({'lower' if row['better'] == '<' else 'higher'} is better)",
        arms[0]: f"{claim['means'][0]:.3f}",
        arms[1]: f"{claim['means'][1]:.3f}",
        "difference": f"{gap['mean']:+.3f}{spread}",
        f"{arms[0]} is better in": f"{claim['holds_in']} of {seeds}",
        "better in every seed": next((a for a, holds in every.items() if holds == seeds), "neither")
        if seeds > 1
        else _ONE_SEED,
        _TUNED: _tuned(row, results),
        "counts": _counts(result, row),
        "note": row.get("note", "–"),
    }


def _table(name: str, results: Path) -> dict[str, Any]:
    result = read_json(results / f"{name}.json")
    if made_of_changed_files(result):
        raise DataError(f"{name} was made of files that differ from {result['commit']}: make it again")
    return result


def _tuned(row: Mapping[str, Any], results: Path) -> str:
    """Whether both arms' settings were chosen by as many runs; counted in the grids, or as the row says."""
    if "grids" not in row:
        return f"no: {row['settings']}"
    tables = {name: _table(name, results)["points" if name == row["table"] else "rows"] for name in row["grids"]}
    runs = [sum(one["system"] == system for of in tables.values() for one in of) for system in row["systems"]]
    links = ", ".join(f"[grid](results/{name}.md)" for name in tables)
    if runs[0] == runs[1] > 0:
        rates = {one["lr"] for of in tables.values() for one in of if one["system"] in row["systems"] and "lr" in one}
        return f"yes: {runs[0]} runs each{', at one rate' if len(rates) == 1 else ''} ({links})"
    return f"no: {runs[0]} against {runs[1]} runs ({links})"


def _counts(result: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """Whether a row says which is better: not where an arm has a flaw, nor where a judge's gate is not passed."""
    if "flaw" in row:
        return f"no: {row['flaw']}"
    if "judge" not in row or result.get("gate", {}).get("passed"):
        return "yes"
    return "no: its judge does not pass" if "gate" in result else "no: its judge was put to no test"


def main() -> None:
    """Write both pages."""
    for path, text in pages():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT), file=sys.stderr)


if __name__ == "__main__":
    main()
