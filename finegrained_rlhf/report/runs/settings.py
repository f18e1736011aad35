"""The configuration of a run in a report: all its keys, what differs between runs, whether two rewards are the same."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from finegrained_rlhf.report.elements.html import Html, el, isolated
from finegrained_rlhf.report.elements.page import details, table
from finegrained_rlhf.report.runs.record import RunRecord

_ABSENT = "–"
_OF_A_PLACE = ("output_dir", "prepare", "resume", "tracking")
"""Keys that say where and how a run was started, not what it is; `sweep` and `hydra` are no keys of a run at all."""


def dotted_keys(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """The dotted keys of nested mappings with their values; an empty mapping is a value."""
    if isinstance(value, Mapping) and value:
        for name, child in value.items():
            yield from dotted_keys(child, f"{key}.{name}" if key else str(name))
    else:
        yield key, value


def changed_keys(runs: Mapping[str, RunRecord]) -> dict[str, list[str]]:
    """The keys in which the configurations of runs differ: the value of each run as text, a dash where it has none.

    A path below a run's own directory counts as the same place in every run.
    """
    flat = [{key: _text(value, record) for key, value in dotted_keys(record.config)} for record in runs.values()]
    keys = dict.fromkeys(key for config in flat for key in config if key.split(".")[0] not in _OF_A_PLACE)
    rows = {key: [config.get(key, _ABSENT) for config in flat] for key in keys}
    return {key: values for key, values in rows.items() if len(set(values)) > 1}


def difference_table(runs: Mapping[str, RunRecord]) -> Html:
    """The differences as a table, a column a run; a sentence where there are none."""
    known = {name: record for name, record in runs.items() if record.config}
    rows = changed_keys(known)
    if not rows:
        return el("p", "The configurations are the same." if len(known) > 1 else "Unknown.", class_="none")
    head = ["key", *(isolated(name) for name in known)]
    return table(head, [[isolated(key), *map(isolated, values)] for key, values in rows.items()], words=len(head))


def configuration_details(record: RunRecord) -> Html | None:
    """Every key of a run's configuration, to unfold; None where it is missing."""
    if not record.config:
        return None
    rows = [[isolated(key), isolated(_text(value, None))] for key, value in dotted_keys(record.config)]
    return details(f"{len(rows)} keys", table(["key", "value"], rows, words=2))


def reward_identity(record: RunRecord, component: str | None = None) -> str:
    """What the values of a reward mean: two runs whose identities differ are not measured in one unit.

    Args:
        record: of the run.
        component: for its raw values the scorer alone decides; None is the weighted total, to which components,
            weights, settings and gates belong. Schedules and constraints don't: they change what training pays, while
            validations are weighed as configured.
    """
    reward = record.config.get("reward")
    reward = reward if isinstance(reward, Mapping) else {}
    components = reward.get("components")
    components = components if isinstance(components, Mapping) else {}
    if component is not None:
        return _text(components.get(component), record)
    parts = {key: reward.get(key) or None for key in ("components", "weights", "settings", "end_penalty")}
    overlong = reward.get("overlong")
    limited = isinstance(overlong, Mapping) and overlong.get("limit")
    gates = {name: gate for name, gate in _named(reward, "gates").items() if gate.get("by") is not None}
    return _text({**parts, "overlong": overlong if limited else None, "gates": gates or None}, record)


def moving_words(config: Mapping[str, Any], name: str) -> str:
    """What moves the weight of a component of a run, in words: schedule, gate, constraint; empty where nothing does."""
    reward = config.get("reward")
    reward = reward if isinstance(reward, Mapping) else {}
    schedule, gate, constraint = (_named(reward, place).get(name, {}) for place in ("schedule", "gates", "constraints"))
    phrases = []
    steps, weights = schedule.get("steps"), schedule.get("weights")
    if isinstance(steps, list) and isinstance(weights, list) and steps:
        points = ", ".join(f"{weight} at {step}" for step, weight in zip(steps, weights, strict=False))
        phrases.append(f"{schedule.get('interpolation', 'linear')} {points}")
    if gate.get("by") is not None:
        phrases.append(f"where the {gate.get('of', 'mean')} of {gate['by']} is at least {gate.get('at_least')}")
    if constraint.get("at_least") is not None:
        phrases.append(f"{constraint.get('of', 'mean')} at least {constraint['at_least']}")
    return "; ".join(phrases)


def _named(reward: Mapping[str, Any], place: str) -> dict[str, Mapping[str, Any]]:
    parts = reward.get(place)
    parts = parts if isinstance(parts, Mapping) else {}
    return {name: part for name, part in parts.items() if isinstance(part, Mapping)}


def by_identity(runs: Mapping[str, RunRecord], component: str | None = None) -> list[dict[str, RunRecord]]:
    """The runs in groups whose values of the reward, or of one component, are in one unit; in order of first use."""
    groups: dict[str, dict[str, RunRecord]] = {}
    for name, record in runs.items():
        groups.setdefault(reward_identity(record, component), {})[name] = record
    return list(groups.values())


def _text(value: Any, record: RunRecord | None) -> str:
    """A value in one line; the run's own directory becomes `{run}`."""
    shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
    if record is not None:
        for place in (str(record.config.get("output_dir") or ""), str(record.path)):
            if len(place) > 1:
                shown = shown.replace(place, "{run}")
    return shown
