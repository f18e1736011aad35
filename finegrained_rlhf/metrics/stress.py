"""What a `stress.json` says of a reward, and when it speaks against training on it.

The file is written by `finegrained stress-test` beside the models of the reward (`finegrained_rlhf/rewards/stress`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.checks import is_number
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, sha256_of
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
OTHER_WEIGHTS = "it was attacked with other weights than it has now (finegrained stress-test attacks it anew)"
"""Said of a component whose model was trained anew since."""


@dataclass(frozen=True)
class Weakness:
    """One row of a stress test that speaks against a reward.

    Attributes:
        words: what it shows, with its numbers.
        severe: whether it is reason enough not to train.
    """

    words: str
    severe: bool


def weights_digest(model: str | Path) -> str | None:
    """The SHA-256 of a model's weights files, in its directory or its run's; None where neither has any."""
    folder = Path(model) / "model" if (Path(model) / "model").is_dir() else Path(model)
    files = sorted(file for file in folder.glob("*") if file.suffix in (".safetensors", ".bin"))
    digests = [f"{file.name} {sha256_of(file)}" for file in files]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest() if digests else None


def read_stress(model: str | Path) -> Mapping[str, Any] | None:
    """The `stress.json` beside a model, or beside the run that its directory lies in; None where there is none.

    Returns:
        Its values, and as `other_weights` whether the model was trained anew since: then it says nothing of the model.

    Raises:
        DataError: it is no report of a stress test.
    """
    file = next((p / STRESS for p in (Path(model), Path(model).parent) if (p / STRESS).is_file()), None)
    if file is None:
        return None
    values = read_json(file)
    try:
        sound = all(is_number(row["ranked_right"]) for row in rows_of(values)) and bool(stress_table(values))
        sound = sound and isinstance(values.get("models", {}), Mapping)
    except (KeyError, TypeError, AttributeError, ValueError):
        sound = False
    if not sound:
        raise DataError("expected the report of a stress test; finegrained stress-test writes it anew", file=file)
    now = weights_digest(model) if values.get("models") else None
    return {**values, "other_weights": now is not None and now not in values["models"].values()}


def role_in(values: Mapping[str, Any], component: str) -> str:
    """The role under which a report has a component's rows."""
    roles = values.get("roles")
    return str(roles.get(component, component)) if isinstance(roles, Mapping) else component


def rows_of(values: Mapping[str, Any], only: str | None = None) -> list[dict[str, Any]]:
    """A row for each change and role: `change`, `family`, `must`, `role`, `pairs`, `ranked_right`, `low`, `high`.

    Args:
        values: of a `stress.json`.
        only: the role whose rows are wanted; None: all.
    """
    return [
        {"change": name, "family": change["family"], "must": change["direction"].replace("_", " "), "role": role, **row}
        for name, change in values["changes"].items()
        for role, row in change["components"].items()
        if only in (None, role)
    ]


def weaknesses(values: Mapping[str, Any], role: str) -> list[Weakness]:
    """The rows of a role that are below the thresholds; `total` has the price among its rows."""
    weak = []
    for row in rows_of(values, role):
        if row["ranked_right"] < WEAK:
            severe = row["must"] != "stay" and row["high"] is not None and row["high"] < BROKEN
            weak.append(Weakness(f"{row['change']} is ranked right in {share_in_words(row, 'ranked_right')}", severe))
    search = values.get("search") or {}
    if role == TOTAL and search.get("bought") is not None and search["above_median"] > SOLD:
        what = f"an answer without truth beats the median sample in {share_in_words(search, 'above_median')}"
        weak.append(Weakness(f"{what} of the questions", search["low"] is not None and search["low"] > BROKEN))
    return weak


def model_paths(components: Mapping[str, Any]) -> dict[str, str]:
    """The `path` of each component that has one: a directory, or a name on the Hub."""
    paths = {name: getattr(scorer, "path", None) for name, scorer in components.items()}
    return {name: str(path) for name, path in paths.items() if isinstance(path, str | Path)}


def read_reports(components: Mapping[str, Any]) -> dict[str, Mapping[str, Any] | None]:
    """The report beside the model of each component that has a `path`; None where there is none.

    Raises:
        DataError: as `read_stress`.
    """
    return {name: read_stress(path) for name, path in model_paths(components).items()}


def weak_rewards(reports: Mapping[str, Mapping[str, Any] | None]) -> dict[str, list[Weakness]]:
    """What speaks against each component whose report has rows of it, and their sum (`total`, by the first report).

    A report of other weights says that alone, and nothing is known of the sum then.
    """
    known = {name: values for name, values in reports.items() if values is not None}
    old = {name: [Weakness(OTHER_WEIGHTS, False)] for name, values in known.items() if values.get("other_weights")}
    roles = {name: role_in(values, name) for name, values in known.items() if name not in old}
    weak = {name: weaknesses(known[name], role) for name, role in roles.items() if rows_of(known[name], role)}
    total = {TOTAL: weaknesses(next(iter(known.values())), TOTAL)} if known and not old else {}
    return {**old, **weak, **total}


def share_in_words(row: Mapping[str, Any], key: str) -> str:
    """A share with its interval, where it has one: `41% (35% to 48%)`."""
    borders = [row.get("low"), row.get("high")]
    interval = f" ({borders[0]:.0%} to {borders[1]:.0%})" if all(map(is_number, borders)) else ""
    return f"{row[key]:.0%}{interval}"


def stress_table(values: Mapping[str, Any]) -> str:
    """A report as Markdown: a line a change and role, and the price."""
    columns = ("change", "family", "must", "role", "pairs", "ranked_right", "low", "high")
    return f"{markdown_table(rows_of(values), columns)}\nPrice: {price_in_words(values)}"


def price_in_words(values: Mapping[str, Any]) -> str:
    """What the search of a report came to, or why there was none."""
    search = values["search"]
    if search["bought"] is None:
        no_edits = "stress_test.edits=0" if not search["calls"] else "no question has answers to compare with"
        return f"not searched for: {no_edits}."
    return (
        f"the best of {search['calls']} answers without truth stands at the {search['bought']:.0%} point of "
        f"{values['compared_with']}, and above their median in {share_in_words(search, 'above_median')} of "
        f"{search['questions']} questions."
    )
