"""What a task's events make of it: how changes of several devices are merged, steps back, and the form of an export.

Offsets of a state are UTF-16 units, as browsers count; those of an export are characters. Knows no database.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from finegrained_rlhf.annotation.annotations import utf16_offsets
from finegrained_rlhf.annotation.reading import STATUSES
from finegrained_rlhf.core.checks import require
from finegrained_rlhf.core.errors import DataError

STEPS = 100
"""Steps back that a page is given."""
_BURST_S = 3.0
_MANY = 10_000
_Count = Annotated[int, Field(ge=0, lt=2**31)]
_Words = Annotated[str, Field(max_length=200_000)]
State = dict[str, Any]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Span(_Strict):
    start: _Count
    end: _Count
    type: Annotated[str, Field(max_length=200)]
    evidence: Annotated[list[Annotated[list[_Count], Field(min_length=2, max_length=2)]], Field(max_length=_MANY)]
    note: _Words


class StateUpdate(_Strict):
    """Fields of a task's state, as the page keeps them; those that are not given stay."""

    spans: Annotated[list[_Span], Field(max_length=_MANY)] = []
    noError: bool = False
    missing: Annotated[dict[str, str], Field(max_length=_MANY)] = {}
    nothingMissing: bool = False
    correction: _Words = ""
    places: Annotated[list[_Count | None], Field(max_length=1000)] = []
    pairs: Annotated[list[_Count | None], Field(max_length=_MANY)] = []
    accepted: Annotated[list[_Count], Field(max_length=_MANY)] = []
    refused: Annotated[list[_Count], Field(max_length=_MANY)] = []
    edited: Annotated[list[_Count], Field(max_length=_MANY)] = []
    status: Literal["new", "draft", "done", "skipped"] = "new"
    seconds: Annotated[float, Field(ge=0, lt=1e9)] = 0


def merged(now: Mapping[str, Any], before: Mapping[str, Any], update: Mapping[str, Any]) -> State:
    """The state after a change that was made to another state: what both changed is joined.

    Marks, missing sentences, places and suggestions are joined one by one, seconds are added; of a text, a tick or the
    status the change that came last stays (the one before is in the log).

    Args:
        now: the state that is there.
        before: of each field of the update, what it was where the change was made.
        update: what it became there.
    """
    made = dict(now)
    for name, new in update.items():
        old, current = before.get(name), now.get(name, before.get(name))
        if current == old or old is None or name in ("noError", "nothingMissing", "correction", "status"):
            made[name] = new
        elif name == "seconds":
            made[name] = max(0.0, current + new - old)
        elif name == "missing":
            made[name] = _joined(current, old, new)
        elif name == "spans":
            spans = _joined(*({_place(span): span for span in spans} for spans in (current, old, new)))
            made[name] = sorted(spans.values(), key=_place)
        elif name in ("places", "pairs"):
            made[name] = [c if n == o else n for c, o, n in zip(current, old, new, strict=False)]
        else:
            made[name] = sorted(_joined(*(dict.fromkeys(numbers) for numbers in (current, old, new))))
    return made


def _place(span: Mapping[str, Any]) -> tuple[int, int, str]:
    return span["start"], span["end"], span["type"]


def _joined(current: Mapping[Any, Any], old: Mapping[Any, Any], new: Mapping[Any, Any]) -> dict[Any, Any]:
    gone = set(old) - set(new)
    changed = {key: value for key, value in new.items() if key not in old or old[key] != value}
    return {**{key: value for key, value in current.items() if key not in gone}, **changed}


def steps_back(events: Sequence[Mapping[str, Any]]) -> list[State]:
    """What the page's *Undo* goes back by: of each step the fields that it changed, as they were.

    Keys typed one after the other are one step.

    Args:
        events: of a task, in order, each with `at`, `update` and `before` (what the fields were on the server).
    """
    steps: list[State] = []
    typed: tuple[str, float] | None = None
    for event in events:
        before = {name: value for name, value in event["before"].items() if name not in ("seconds", "status")}
        if not before:
            continue
        box = _typed(before, event["update"])
        if typed is None or box != typed[0] or event["at"] - typed[1] > _BURST_S:
            steps.append(before)
        typed = None if box is None else (box, event["at"])
    return steps[-STEPS:]


def _typed(before: State, update: Mapping[str, Any]) -> str | None:
    """The box that a change was typed into; None where it was none."""
    if list(before) == ["correction"]:
        return "correction"
    if list(before) == ["spans"] and [_place(s) for s in before["spans"]] == [_place(s) for s in update["spans"]]:
        pairs = zip(before["spans"], update["spans"], strict=True)
        noted = [place for place, (old, new) in enumerate(pairs) if old != new]
        if len(noted) == 1 and before["spans"][noted[0]]["evidence"] == update["spans"][noted[0]]["evidence"]:
            return f"note {noted[0]}"
    return None


def exported_task(task: Mapping[str, Any], state: Mapping[str, Any], taxonomy: Mapping[str, Any]) -> dict[str, Any]:
    """A task as the page saves it to a file, key for key.

    Args:
        task: of the payload of its annotator.
        state: of the task, with the fields that were ever changed.
        taxonomy: as tools are given it.
    """
    text = "" if task["marked"] is None else task["answers"][task["marked"]]
    characters, wide = utf16_offsets(text), text.encode("utf-16-le", "surrogatepass")
    gaps: dict[tuple[str, int], list[int]] = {}
    for place, kind in state.get("missing", {}).items():
        passage, sentence = map(int, place.split(","))
        gaps.setdefault((kind, passage), []).append(sentence)
    compares = taxonomy["preferences"] and len(task["answers"]) > 1
    pairs, places = taxonomy["comparison"] == "pairs", state.get("places") or [None]
    accepted, refused, edited = (len(state.get(name, ())) for name in ("accepted", "refused", "edited"))
    many = len(task["answers"])
    return {
        **{name: task[name] for name in ("item", "hash", "order", "marked")},
        "status": state.get("status", "new"),
        "seconds": round(state.get("seconds", 0), 1),
        "spans": [
            {
                "start": characters.get(span["start"], span["start"]),
                "end": characters.get(span["end"], span["end"]),
                "text": wide[2 * span["start"] : 2 * span["end"]].decode("utf-16-le", "surrogatepass"),
                **{name: span[name] for name in ("type", "evidence", "note")},
            }
            for span in state.get("spans", ())
        ],
        "no_error": state.get("noError", False),
        "missing": [{"type": t, "passage": p, "sentences": sorted(s)} for (t, p), s in gaps.items()],
        "nothing_missing": state.get("nothingMissing", False),
        "correction": state.get("correction", text) if taxonomy["correction"] and task["marked"] is not None else None,
        **({"preferences": state.get("pairs") or [None] * (many * (many - 1) // 2)} if compares and pairs else {}),
        "ranking": _ranking(places) if compares and not pairs and None not in places else None,
        "suggestions": {
            "shown": len(task["suggestions"]),
            "accepted": accepted + edited,
            "refused": refused,
            **({"edited": edited} if edited else {}),
        },
    }


def _ranking(places: Sequence[int]) -> list[list[int]]:
    return [[i for i, one in enumerate(places) if one == place] for place in sorted(set(places))]


def state_of(row: Mapping[str, Any], task: Mapping[str, Any]) -> State:
    """The inverse of `exported_task`, for a file that somebody saved.

    Raises:
        DataError: the row is of another text or order, or is no task of an export.
    """
    for name in ("hash", "order", "marked"):
        require(row.get(name) == task[name], "the task has another text, or another order, here", name)
    text = "" if task["marked"] is None else task["answers"][task["marked"]]
    units = [0, *accumulate(1 + (ord(character) > 0xFFFF) for character in text)]
    places: list[int | None] = [None] * len(task["answers"])
    try:
        require(row["status"] in STATUSES, f"expected one of {', '.join(STATUSES)}, got {row['status']!r}", "status")
        for place, group in enumerate(row.get("ranking") or ()):
            for answer in group:
                places[answer] = place + 1
        made = {
            "spans": [
                {
                    **{"start": units[span["start"]], "end": units[span["end"]], "type": span["type"]},
                    **{"evidence": span["evidence"], "note": span["note"]},
                }
                for span in row["spans"]
            ],
            "noError": row["no_error"],
            "missing": {f"{gap['passage']},{s}": gap["type"] for gap in row["missing"] for s in gap["sentences"]},
            "nothingMissing": row["nothing_missing"],
            "correction": text if row.get("correction") is None else row["correction"],
            "places": places,
            "pairs": row.get("preferences") or [],
            "status": row["status"],
            "seconds": float(row.get("seconds") or 0),
        }
        return StateUpdate.model_validate(made).model_dump(exclude_unset=True)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        problem = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"is no task of an export ({problem})") from None
