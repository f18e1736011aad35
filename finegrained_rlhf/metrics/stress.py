"""What a `stress.json` says of a reward, and when it speaks against training on it.

The file is written by `finegrained stress-test` beside the models of the reward (`finegrained_rlhf/rewards/stress`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.checks import is_number
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.text.tables import markdown_table

STRESS = "stress.json"
WEAK = 0.8
"""A change that is ranked right in a smaller share of its pairs is worth a warning."""
BROKEN = 0.5
"""One whose whole interval lies below is refused: a coin would do better, and `stay` asks for less than that."""
SOLD = 0.1
"""In so large a share of questions an answer without truth may beat the median sample; more is worth a warning, and a
refusal where the whole interval lies above a half."""
TOTAL = "total"


@dataclass(frozen=True)
class Weakness:
    """One row of a stress test that speaks against a reward.

    Attributes:
        words: what it shows, with its numbers.
        severe: whether it is reason enough not to train.
    """

    words: str
    severe: bool


def read_stress(model: str | Path) -> Mapping[str, Any] | None:
    """The `stress.json` beside a model, or beside the run that its directory lies in; None where there is none.

    Raises:
        DataError: it is no report of a stress test.
    """
    file = next((p / STRESS for p in (Path(model), Path(model).parent) if (p / STRESS).is_file()), None)
    if file is None:
        return None
    values = read_json(file)
    if not isinstance(values, Mapping) or not isinstance(values.get("changes"), Mapping):
        raise DataError("expected the report of a stress test, with `changes`", file=file)
    return values


def role_in(values: Mapping[str, Any], component: str) -> str:
    """The role under which a report has a component's rows."""
    roles = values.get("roles")
    return str(roles.get(component, component)) if isinstance(roles, Mapping) else component


def rows_of(values: Mapping[str, Any], role: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each change that says something of a role, and its `direction`, `pairs`, `ranked_right`, `low` and `high`."""
    for name, change in values["changes"].items():
        row = change.get("components", {}).get(role) if isinstance(change, Mapping) else None
        if isinstance(row, Mapping) and is_number(row.get("ranked_right")):
            yield name, {"direction": change.get("direction"), **row}


def weaknesses(values: Mapping[str, Any], role: str) -> list[Weakness]:
    """The rows of a role that are below the thresholds; `total` has the price among its rows."""
    found = []
    for name, row in rows_of(values, role):
        if row["ranked_right"] < WEAK:
            severe = row["direction"] != "stay" and is_number(row.get("high")) and row["high"] < BROKEN
            found.append(Weakness(f"{name} is ranked right in {_share(row, 'ranked_right')}", severe))
    search = values.get("search")
    if role == TOTAL and isinstance(search, Mapping) and is_number(search.get("above_median")):
        if search["above_median"] > SOLD:
            severe = is_number(search.get("low")) and search["low"] > BROKEN
            what = f"an answer without truth beats the median sample in {_share(search, 'above_median')}"
            found.append(Weakness(f"{what} of the questions", severe))
    return found


def read_reports(components: Mapping[str, Any]) -> dict[str, Mapping[str, Any] | None]:
    """The report beside the model of each component that has a `path`; None where there is none.

    Raises:
        DataError: as `read_stress`.
    """
    paths = {name: getattr(scorer, "path", None) for name, scorer in components.items()}
    return {name: read_stress(path) for name, path in paths.items() if isinstance(path, str)}


def weak_rewards(reports: Mapping[str, Mapping[str, Any] | None]) -> dict[str, list[Weakness]]:
    """What speaks against each component that has a report, and against their sum (`total`, by the first report)."""
    known = {name: values for name, values in reports.items() if values is not None}
    weak = {name: weaknesses(values, role_in(values, name)) for name, values in known.items()}
    return {**weak, **{TOTAL: weaknesses(values, TOTAL) for values in [*known.values()][:1]}}


def _share(row: Mapping[str, Any], key: str) -> str:
    borders = [row.get("low"), row.get("high")]
    interval = f" ({borders[0]:.0%} to {borders[1]:.0%})" if all(map(is_number, borders)) else ""
    return f"{row[key]:.0%}{interval}"


def stress_table(values: Mapping[str, Any]) -> str:
    """A report as Markdown: a line a change and role, and the price."""
    columns = ("change", "family", "must", "role", "pairs", "ranked_right", "low", "high")
    rows = [
        {
            "change": name,
            "family": change["family"],
            "must": str(row["direction"]).replace("_", " "),
            "role": role,
            **row,
        }
        for name, change in values["changes"].items()
        for role in change["components"]
        for at, row in rows_of(values, role)
        if at == name
    ]
    search = values.get("search") or {}
    price = "Price: not searched for, since there are no answers to compare with."
    if is_number(search.get("bought")):
        price = (
            f"Price: the best of {search['calls']} answers without truth stands at the {search['bought']:.0%} point of "
            f"{values.get('compared_with', 'answers')} and above their median in {_share(search, 'above_median')} of "
            f"{search['questions']} questions."
        )
    return f"{markdown_table(rows, columns)}\n{price}"
