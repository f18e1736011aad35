"""What differs between the configuration that a directory was begun with and the present one, where it matters.

Knows keys and digests of files. Knows no job.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from finegrained_rlhf.core.fields import TARGET, filled, is_ours, places
from finegrained_rlhf.runtime.directory.fingerprints import leaves
from finegrained_rlhf.runtime.job import RESERVED_KEYS

_ABSENT = object()


@dataclass(frozen=True)
class Change:
    """One difference.

    Attributes:
        key: dotted.
        before: the value then, or a digest of the file's content.
        now: the present one.
    """

    key: str
    before: str
    now: str

    def __str__(self) -> str:
        return f"{self.key}: {self.before} -> {self.now}"


def changes(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    inputs_before: Mapping[str, Any] | None = None,
    inputs_now: Mapping[str, Any] | None = None,
    *,
    strict: bool = True,
) -> list[Change]:
    """The differences that decide what comes out, by key.

    What a configuration leaves out is what its class takes for it. What a class marks as harmless, or as written, is
    not compared, nor what is below it. A path that leads to the same content as before is no difference; an unchanged
    path that leads to other content is. Classes are compared by their names, so that moving a module changes nothing.

    Args:
        before: configuration then, plain containers.
        now: the present one.
        inputs_before: `fingerprints.inputs_of` then; None where it was not kept.
        inputs_now: the same now.
        strict: whether a key that only one of them has counts; else (another version of the code may have had fewer
            keys) only another default than null does, and the coming and going of whole objects (`_target_`) that say
            more than the defaults of a class of ours.
    """
    whole_old, whole_new = filled(before), filled(now)
    old, new = _plain(whole_old), _plain(whole_new)
    harmless = {place.key for whole in (whole_old, whole_new) for place in places(whole) if place.is_harmless}
    then, present = inputs_before or {}, inputs_now or {}
    found = []
    plain_parts = set() if strict else _plain_parts(old, new) | _plain_parts(new, old)
    said_then = _plain(before)
    for key in sorted(old.keys() | new.keys()):
        if _is_harmless(key, harmless) or key in plain_parts:
            continue
        one, other = (side.get(key, _ABSENT) for side in (old, new))
        if not strict and one is None and key not in said_then:
            one = _ABSENT
        digests = [inputs[key]["sha256"] if key in inputs else None for inputs in (then, present)]
        if None not in digests:
            if digests[0] != digests[1]:
                found.append(Change(key, f"{one} (content {digests[0]})", f"{other} (content {digests[1]})"))
        elif not _same(key, one, other, strict):
            found.append(Change(key, _shown(one), _shown(other)))
    return found


def _plain_parts(one: Mapping[str, Any], other: Mapping[str, Any]) -> set[str]:
    """The keys of parts of which the other side has nothing, and which hold the defaults of their class alone."""
    found: set[str] = set()
    for key, target in one.items():
        part, _, last = key.rpartition(".")
        held = part in other or any(name.startswith(f"{part}.") for name in other)
        if last != TARGET or not is_ours(str(target)) or held:
            continue
        values = {name: value for name, value in one.items() if name.startswith(f"{part}.")}
        if values == dict(leaves(_listed(filled({TARGET: target})), part)):
            found |= values.keys()
    return found


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves of a configuration as they would be read back from YAML."""
    return dict(leaves({key: part for key, part in _listed(config).items() if key not in RESERVED_KEYS}))


def _listed(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _listed(item) for key, item in value.items()}
    return [_listed(item) for item in value] if isinstance(value, list | tuple) else value


def _is_harmless(key: str, harmless: Collection[str]) -> bool:
    """Whether a key is one of those, or lies below one; the name of the job's own class is not compared."""
    return key == TARGET or any(key == name or key.startswith((f"{name}.", f"{name}[")) for name in harmless)


def _same(key: str, one: Any, other: Any, strict: bool) -> bool:
    is_class = key.endswith("._target_")
    if one is _ABSENT or other is _ABSENT:
        value = other if one is _ABSENT else one
        return value in (None, {}, []) or not (strict or is_class)
    if is_class:
        return str(one).rpartition(".")[2] == str(other).rpartition(".")[2]
    return bool(one == other)


def _shown(value: Any) -> str:
    return "absent" if value is _ABSENT else "null" if value is None else str(value)
