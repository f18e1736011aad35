"""Revision mass: how much of what reward models say of segments is changed by the text behind them, a row a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finegrained_lab.experiments.intervals import share_interval
from finegrained_lab.experiments.results_table import Results
from finegrained_lab.experiments.revisions.measure import PARTS
from finegrained_lab.figures import Bars, draw_bars
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_jsonl
from finegrained_rlhf.text.tables import markdown_table

REWARD = ("reward_models_relevance", "reward_models_factuality")
"""The scorers of segments of a world's reward, whose weights are equal."""
LEAST = 0.05
"""A reward that changes less than this is not worth the arms beside `end` and `revised`."""
WORDS = {
    "reward_models": "encoder",
    "prefix_models": "encoder, trained on prefixes",
    "counts": "word features",
    "minilm_counts": "MiniLM and word features",
    "prefix_counts": "MiniLM and word features, trained on prefixes",
}


def units(directory: str) -> list[Path]:
    """The seeds or folds of a directory.

    Raises:
        DataError: there is none.
    """
    found = sorted(path for path in Path(directory).glob("*_*") if path.name.split("_")[0] in ("seed", "fold"))
    if not found:
        raise DataError("expected seed_N/ or fold_N/ here", file=directory)
    return found


def share_of(rows: Sequence[Mapping[str, Any]], name: str) -> dict[str, float] | None:
    """A share of `PARTS` over questions: `mean`, and `min` and `max` of its 95% interval; None of nothing."""
    part, of = ([float(row[key]) for row in rows] for key in PARTS[name])
    if not sum(of):
        return None
    low, high = share_interval(part, of)
    return {"mean": sum(part) / sum(of), "min": low, "max": high}


@dataclass(frozen=True)
class RevisionsTable(Results):
    """Collects what `finegrained measure-revisions` found of several worlds.

    Attributes:
        worlds: by name the directory of its seeds or folds, each with `revisions/MODELS_KIND.jsonl`; None leaves one
            out.
        chosen_on: the seed on which settings are chosen, whose mass decides what is run, by its directory; None where
            nothing is.
    """

    worlds: Mapping[str, str | None]
    chosen_on: str | None = None

    def run(self) -> dict[str, Any]:
        """Write results, page and figure.

        Raises:
            DataError: a world has no seeds, or a file is damaged.
        """
        rows = []
        for world, directory in self.worlds.items():
            if directory is None:
                continue
            files: dict[str, list[Path]] = {}
            for unit in units(directory):
                for file in sorted((unit / "revisions").glob("*.jsonl")):
                    files.setdefault(file.stem, []).append(file)
            for stem, of in sorted(files.items()):
                read = [row for file in of for row in read_jsonl(file)]
                models, _, kind = stem.rpartition("_")
                shares = {name: share_of(read, name) for name in PARTS}
                texts = {name: sum(row[name] for row in read) for name in ("segments", "broken", "readings")}
                names = [file.parent.parent.name for file in of]
                rows.append({"world": world, "models": models, "kind": kind, "units": names, **texts, **shares})
        result: dict[str, Any] = {**self.made_by(), "rows": rows, "least": LEAST, "reward_mass": None}
        if self.chosen_on is not None:
            files_of = [Path(self.chosen_on) / "revisions" / f"{stem}.jsonl" for stem in REWARD]
            result["reward_mass"] = share_of(_questions([read_jsonl(file) for file in files_of]), "mass_at_end")
        self.write(result)
        self.draw(result)
        return result

    def page(self, result: Mapping[str, Any]) -> str:
        """The page of a results file."""
        about = (
            "Every segment of answers is read three times: in the whole answer (value w), in the answer up to the "
            "segment's end, which is when `reward.credit=end` pays it, and in the answer as it stood when its end was "
            "decided, which is when `decided` pays it. *Mass*: Σ |w − value then| / Σ |w|; values are ±1, so that a "
            "segment whose judgement flips counts 2. *Moved*: segments with text behind them that the answer up to "
            "their end does not show as they are. *Decided early*: segments decided before the answer ended; all "
            "others have no mass there by construction. In brackets 95% intervals over questions; seeds or folds are "
            "pooled, and what differs between them is not in the intervals."
        )
        segments = [row for row in result["rows"] if row["segments"]]
        answers = [row for row in result["rows"] if row["readings"]]
        columns = {
            "mass up to the end": "mass_at_end",
            "mass where decided": "mass_decided",
            "moved": "moved",
            "decided early": "decided_early",
        }
        shown = [{**_named(row), "segments": row["segments"], **_cells(row, columns)} for row in segments]
        apart = [
            {**_named(row), "beginnings": row["readings"], **_cells(row, {"apart": "answer_apart"})} for row in answers
        ]
        broken = sum(row["broken"] for row in segments)
        return (
            f"{self.opening(result, 'Revision mass', about)}\n\n"
            f"![Revision mass up to the segment's end, by reward model]({Path(self.output).stem}.svg)\n\n"
            f"{_verdict(result)}Segments that the text which decides them did not show: {broken}.\n\n"
            f"## Models that judge segments\n\n{markdown_table(shown, list(shown[0]))}\n"
            "## Models of whole answers\n\n`credit=end` pays them at the last token, where nothing changes any more. "
            "`revised` also pays what their beginnings are worth: Σ |w − value of the beginning| / Σ |w| over the "
            "beginnings that end where a sentence ends and are not the whole answer.\n\n"
            f"{markdown_table(apart, list(apart[0])) if apart else 'None was measured.'}"
        )

    def draw(self, result: Mapping[str, Any]) -> None:
        """The mass up to the end, a panel a world."""
        panels = []
        for world in dict.fromkeys(row["world"] for row in result["rows"]):
            rows = [row for row in result["rows"] if row["world"] == world and row["segments"]]
            bars = {f"{WORDS[row['models']].replace(', trained on', ' on')}, {row['kind']}": row for row in rows}
            panels.append(Bars(f"{world}: mass up to the end", {k: row["mass_at_end"] for k, row in bars.items()}))
        draw_bars(Path(self.output).with_suffix(".svg"), panels)


def _questions(files: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Sums of several models on the same questions, a row a question."""
    sums: dict[str, dict[str, Any]] = {}
    for row in (row for rows in files for row in rows):
        of = sums.setdefault(row["record"], dict.fromkeys(row, 0))
        of.update({key: of[key] + value for key, value in row.items() if key != "record"})
    return list(sums.values())


def _verdict(result: Mapping[str, Any]) -> str:
    """Whether the reward's mass is worth more arms; nothing where no reward was asked for."""
    mass, least = result["reward_mass"], result["least"]
    if mass is None:
        return ""
    told = "below" if mass["max"] < least else "above" if mass["min"] > least else "not told from"
    return (
        f"The reward's mass (relevance and factuality, of equal weights) on the dev questions of the seed on which "
        f"settings are chosen: **{_interval(mass)}**, by its interval {told} the {least:.0%} below which arms beside "
        "`end` and `revised` are not worth their runs. "
    )


def _named(row: Mapping[str, Any]) -> dict[str, str]:
    what = row["units"][0].split("_")[0]
    count = len(row["units"])
    units_of = f"{count} {what}{'s' if count > 1 else ''}"
    return {"data": f"{row['world']} ({units_of})", "model": WORDS[row["models"]], "kind": row["kind"]}


def _cells(row: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, str]:
    return {title: _interval(row[name]) for title, name in columns.items()}


def _interval(share: Mapping[str, float] | None) -> str:
    return "–" if share is None else f"{share['mean']:.3f} [{share['min']:.3f}, {share['max']:.3f}]"
