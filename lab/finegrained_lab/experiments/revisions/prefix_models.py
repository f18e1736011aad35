"""Reward models trained on prefixes beside those trained on whole answers: accuracy by segment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finegrained_lab.experiments.intervals import difference_interval, share_interval
from finegrained_lab.experiments.results_table import Results
from finegrained_lab.experiments.revisions.table import units
from finegrained_lab.figures import Bars, draw_bars
from finegrained_rlhf.text.tables import markdown_table

if TYPE_CHECKING:
    from reward_models.trust.items import JudgedRecord

TRAINED = {"whole": ("reward_models", "minilm_counts"), "prefixes": ("prefix_models", "prefix_counts")}
"""By what models were trained on: their names in the worlds and on real records."""
READ = {"whole": "false", "prefixes": "true"}
PLACES = ("1", "2", "3", "4 and later", "all")
BASE = ("whole", "whole")


def _counts(records: Sequence[JudgedRecord], place: str) -> tuple[list[float], list[float]]:
    """Of each record: right labels and labels of the segments at a place."""
    chosen = (
        slice(3, None)
        if place.startswith("4")
        else slice(None)
        if place == "all"
        else slice(int(place) - 1, int(place))
    )
    right, of = [], []
    for record in records:
        pairs = list(zip(record.has_error, record.claims, strict=True))[chosen]
        right.append(float(sum(truth == claim for truth, claim in pairs)))
        of.append(float(len(pairs)))
    return right, of


@dataclass(frozen=True)
class PrefixModelsTable(Results):
    """Collects what models said of labelled segments, in whole answers and in prefixes.

    Attributes:
        worlds: by name the directory of its seeds or folds, each with `judged/MODELS_KIND_PREFIXES.jsonl`.
    """

    worlds: Mapping[str, str]

    def run(self) -> dict[str, Any]:
        """Write results, page and figure.

        Raises:
            DataError: a world has no seeds or folds, or a file is damaged.
        """
        rows = []
        for world, directory in self.worlds.items():
            for kind in ("relevance", "factuality"):
                found = {
                    (trained, read): self._records(directory, names, kind, READ[read])
                    for trained, names in TRAINED.items()
                    for read in READ
                }
                rows += self._rows(world, kind, found)
        result = {**self.made_by(), "rows": rows}
        self.write(result)
        self.draw(result)
        return result

    def _records(self, directory: str, names: Sequence[str], kind: str, prefixes: str) -> dict[str, list[JudgedRecord]]:
        """By seed or fold, of those in which all four combinations are there."""
        from reward_models.trust.items import read_judged_records

        needed = [(n, p) for pair in zip(*TRAINED.values(), strict=True) for n in pair for p in READ.values()]
        files = {}
        for unit in units(directory):
            there = {(n, p): unit / "judged" / f"{n}_{kind}_{p}.jsonl" for n, p in needed}
            own = [key for key, file in there.items() if file.is_file()]
            if len(own) == 4:
                files[unit.name] = next(there[key] for key in own if key[0] in names and key[1] == prefixes)
        return {name: read_judged_records(file) for name, file in files.items()}

    def _rows(
        self, world: str, kind: str, found: Mapping[tuple[str, str], Mapping[str, list[JudgedRecord]]]
    ) -> list[dict[str, Any]]:
        pooled = {key: [record for records in of.values() for record in records] for key, of in found.items()}
        if not pooled[BASE]:
            return []
        from finegrained_lab.experiments.qa_feedback.scores import measure

        rows = []
        for (trained, read), records in pooled.items():
            values: dict[str, Any] = {}
            for place in PLACES:
                own, base = _counts(records, place), _counts(pooled[BASE], place)
                low, high = share_interval(*own)
                entry = {"labels": sum(own[1]), "mean": sum(own[0]) / sum(own[1]), "min": low, "max": high}
                gap = difference_interval(own, base)
                values[place] = {**entry, "less_whole": entry["mean"] - sum(base[0]) / sum(base[1]), "gap": list(gap)}
            balanced = measure(records, "segment")["balanced_accuracy"]
            names = list(found[trained, read])
            rows.append(
                {
                    "world": world,
                    "kind": kind,
                    "trained": trained,
                    "read": read,
                    "units": names,
                    "places": values,
                    "balanced": {"mean": balanced.value, "min": balanced.low, "max": balanced.high},
                }
            )
        return rows

    def page(self, result: Mapping[str, Any]) -> str:
        """The page of a results file."""
        about = (
            "Accuracy on labelled segments of held-out records (FactWorld: the noisy annotator's dev labels; real "
            "records: people's). *Trained on*: whole answers, or prefixes "
            "(`reward_model.inputs.prefixes=true`): each label stands in the answer as it was when its segment's end "
            "was decided. *Read in*: where the segment is judged. In brackets 95% intervals over questions, of the "
            "differences paired; seeds or folds are pooled, and what differs between them is not in the intervals. "
            "The place of a segment is its number among the labelled ones."
        )
        parts = [self.opening(result, "Reward models trained on prefixes", about)]
        parts.append("![Accuracy by training and reading](prefix_models.svg)")
        for world, kind in dict.fromkeys((row["world"], row["kind"]) for row in result["rows"]):
            rows = [row for row in result["rows"] if (row["world"], row["kind"]) == (world, kind)]
            labels = {place: int(rows[0]["places"][place]["labels"]) for place in PLACES}
            table = [
                {
                    "trained on": row["trained"],
                    "read in": row["read"],
                    **{f"{p} ({labels[p]:,})": _interval(row["places"][p]) for p in PLACES},
                    "balanced, all": _interval(row["balanced"]),
                }
                for row in rows
            ]
            gaps = [
                {
                    "trained on": row["trained"],
                    "read in": row["read"],
                    **{
                        f"{p} ({labels[p]:,})": f"{row['places'][p]['less_whole']:+.3f} "
                        f"[{row['places'][p]['gap'][0]:+.3f}, {row['places'][p]['gap'][1]:+.3f}]"
                        for p in PLACES
                    },
                }
                for row in rows
                if (row["trained"], row["read"]) != BASE
            ]
            parts.append(
                f"## {world}, {kind} ({', '.join(rows[0]['units'])})\n\n{markdown_table(table, list(table[0]))}\n"
                "Less the accuracy of the model trained and read whole:\n\n"
                f"{markdown_table(gaps, list(gaps[0])).strip()}"
            )
        return "\n\n".join(parts) + "\n"

    def draw(self, result: Mapping[str, Any]) -> None:
        """Accuracy over all segments, a panel a world and kind."""
        panels = []
        for world, kind in dict.fromkeys((row["world"], row["kind"]) for row in result["rows"]):
            rows = [row for row in result["rows"] if (row["world"], row["kind"]) == (world, kind)]
            bars = {f"{row['trained']} read {row['read']}": row["places"]["all"] for row in rows}
            panels.append(Bars(f"{world}, {kind}", bars))
        draw_bars(Path(self.output).with_suffix(".svg"), panels)


def _interval(share: Mapping[str, float]) -> str:
    return f"{share['mean']:.3f} [{share['min']:.3f}, {share['max']:.3f}]"
