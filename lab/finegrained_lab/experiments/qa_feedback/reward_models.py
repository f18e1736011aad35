"""Reward models on human feedback, in folds by question: every model and every baseline on questions it never saw.

Reads what the models said of their held-out folds, and fits the baselines here. Runs no model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from finegrained_lab.experiments.qa_feedback.folds import FoldModel, fold_models
from finegrained_lab.experiments.qa_feedback.scores import MAJORITY, difference, measure, metrics_of
from finegrained_lab.experiments.results_table import Results
from finegrained_lab.experiments.run_settings import settings_of_runs
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.factworld.report import run_seconds
from finegrained_rlhf.feedback.reading import read_feedback
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.text.segmentation import SpacySegmenter
from finegrained_rlhf.text.tables import markdown_table
from reward_models.kinds import KINDS, kind_named

if TYPE_CHECKING:
    from reward_models.trust.items import JudgedRecord

    Judges = Mapping[str, Sequence[JudgedRecord]]


PAPER: Mapping[str, Mapping[str, float]] = {
    "relevance": {"accuracy": 0.696, "f1_has_error": 0.685},
    "factuality": {"accuracy": 0.778, "f1_has_error": 0.675},
    "completeness": {"pair_accuracy": 0.709},
    "preference": {"pair_accuracy": 0.572},
}
"""The thesis, section 6.3: Longformer-base trained on 2,853 records, on all 500 dev records."""
PAPER_ROW = "paper: 2,853 records"
COMPARED = "counts"
"""The baseline that differences are taken from."""
CONTROL = "shuffled"
GOALS: Mapping[str, tuple[str, float]] = {
    "relevance": ("balanced_accuracy", 0.60),
    "factuality": ("balanced_accuracy", 0.55),
    "completeness": ("pair_accuracy", 0.60),
}
_CURVE = re.compile(r"(?P<name>.+)_(?P<records>\d+)$")


@dataclass(frozen=True)
class RewardModelsTable(Results):
    """The table of a cross-validation.

    Attributes:
        directory: of the cross-validation: `folds/fold_K/{train,tune,test}.json` and `fold_K/NAME/KIND`.
        tuned_on: the folds whose `tune.json` settings were chosen on.
        names: what each NAME is, for the page.
        segmenter: that cuts answers for the baselines, as in the models' training.
        keep: rows of the results file whose models are not in the directory stay in it, with how they were made; the
            baselines, which are fitted anew, must come out the same.
    """

    about: ClassVar[str] = (
        "QA-FEEDBACK's published dev feedback in folds by question: each model and baseline is trained on the other "
        "folds and measured on the one it never saw; the items of all folds together. Intervals: 95%, bootstrap over "
        "questions. Accuracy, balanced accuracy and F1 are of labelled segments; span precision, recall and F1 of "
        "what people marked; `ece` is the expected calibration error of the probability of an error, or of the "
        "predicted winner; chance orders half of the pairs. `majority` says of every segment what most training "
        "labels are; `length`, `overlap` and `counts` (both) are ridge logistic regressions on counted words, fitted "
        "on the same labels; they count shared words of passages for all kinds. `less counts` is the difference from "
        "the last on the same questions, in balanced accuracy or pair accuracy. A row of fewer questions than the "
        "baselines' is of fewer folds. The paper's figures are on all 500 dev records."
    )

    directory: str
    tuned_on: Sequence[int] = (0,)
    names: Mapping[str, str] = field(default_factory=dict)
    segmenter: str = "rules"
    keep: bool = False

    def run(self) -> dict[str, Any]:
        """Measure, write results and page, print the page.

        Raises:
            DataError: no model has judged its held-out fold, or the rows to be kept are of other data.
        """
        models = [model for model in fold_models(self.directory) if model.judged.is_file()]
        if not models:
            raise DataError("no model has judged its held-out fold", file=self.directory)
        judges = self._judges(models)
        tuned = {record.id for fold in self.tuned_on for record in read_feedback(self._fold(fold) / "tune.json")}
        roots = {fold: Path(self.directory) / f"fold_{fold}" for fold in sorted({model.fold for model in models})}
        result = {
            **self.made_by(),
            "run_settings": _settings(roots, models),
            "seconds": {f"{m.fold}/{m.name}/{m.kind}": run_seconds(RunDirectory(m.directory)) for m in models},
            "names": dict(self.names),
            "tuned_on": len(tuned),
            "rows": [row for kind, by_name in judges.items() for row in _rows(kind, by_name)],
            "rows_without_tuned": [
                row
                for kind, by_name in judges.items()
                for row in _rows(kind, {n: [r for r in rs if r.record not in tuned] for n, rs in by_name.items()})
            ],
        }
        return self.write(with_kept(result, read_json(self.output), self.output) if self.keep else result)

    def _fold(self, fold: int) -> Path:
        return Path(self.directory) / "folds" / f"fold_{fold}"

    def _judges(self, models: Sequence[FoldModel]) -> dict[str, dict[str, list[JudgedRecord]]]:
        """Of each kind and judge, its judgements of all folds that it has."""
        from finegrained_lab.experiments.qa_feedback.baselines import BASELINES, baseline, counted
        from reward_models.trust.items import read_judged_records

        segmenter, judges = SpacySegmenter(self.segmenter), {}
        held_out = [read_feedback(path / "test.json") for path in sorted(self._fold(0).parent.glob("fold_*"))]
        for kind in map(kind_named, KINDS):
            names = [name for name in BASELINES if name != MAJORITY or kind.form == "segment"]
            by_name: dict[str, list[JudgedRecord]] = {name: [] for name in names}
            folds = [counted(kind, records, segmenter) for records in held_out]
            for number, test in enumerate(folds):
                train = [item for other, items in enumerate(folds) if other != number for item in items]
                for name in names:
                    by_name[name] += baseline(name, kind, train, test)
            for model in models:
                if model.kind == kind.name:
                    by_name.setdefault(model.name, []).extend(read_judged_records(model.judged))
            judges[kind.name] = by_name
        return judges

    def page(self, result: Mapping[str, Any]) -> str:
        """The page of a results file."""
        records = max(row["questions"] for row in result["rows"])
        parts = [self.opening(result, f"Reward models on {records:,} records of human feedback", self.about)]
        having = {row["system"] for row in result["rows"]}
        parts += [f"- `{name}`: {words}" for name, words in result["names"].items() if name in having]
        if absent := [f"`{name}` ({words})" for name, words in result["names"].items() if name not in having]:
            parts.append(f"Not run: {'; '.join(absent)}.")
        for making in result.get("kept", ()):
            parts.append(f"Kept from the making at commit `{making['commit']}`: {', '.join(making['rows'])}.")
        for kind in KINDS:
            rows = [row for row in result["rows"] if row["kind"] == kind and "records" not in row]
            parts.append(f"## {kind.capitalize()}\n\n{_table(kind, rows)}")
            curve = [row for row in result["rows"] if row["kind"] == kind and "records" in row]
            if curve:
                parts.append(f"Trained on fewer records:\n\n{_curve(curve, rows)}")
        parts.append(f"## What had to be reached\n\n{_goals(result['rows'])}")
        parts.append(
            f"## Without the {result['tuned_on']} questions that settings were chosen on\n\n"
            + _page_table([_short(row) for row in result["rows_without_tuned"] if "records" not in row])
        )
        hours = sum(result["seconds"].values()) / 3600
        parts.append(f"## What it took\n\nTraining steps of {len(result['seconds'])} models: {hours:.1f} hours.")
        return _joined(parts)


def with_kept(result: dict[str, Any], earlier: Mapping[str, Any], file: str) -> dict[str, Any]:
    """A result with those rows of an earlier one that it has no model of, their settings and seconds.

    `kept` says of each making that rows are kept of: its commit, command line, machine, configuration, and the rows.

    Args:
        result: new.
        earlier: of the results file.
        file: its name, for errors.

    Raises:
        DataError: a baseline is not the same in both.
    """
    from finegrained_lab.experiments.qa_feedback.baselines import BASELINES

    def key(row: Mapping[str, Any]) -> str:
        return f"{row['system']}/{row['kind']}"

    def order(row: Mapping[str, Any]) -> tuple[int, int, str]:
        places = {name: place for place, name in enumerate(BASELINES)}
        return list(KINDS).index(row["kind"]), places.get(row["system"], len(places)), row["system"]

    new = {key(row): row for row in result["rows"]}
    for row in earlier["rows"]:
        if row["system"] in BASELINES and not _same(row, new[key(row)]):
            raise DataError(f"{key(row)} is another baseline there: its rows are of other data", file=file)
    stay = [name for name in map(key, earlier["rows"]) if name not in new]
    merged = dict(result)
    for part in ("rows", "rows_without_tuned"):
        merged[part] = sorted([*result[part], *(row for row in earlier[part] if key(row) in stay)], key=order)
    merged["run_settings"] = {
        part: {run: value for run, value in earlier["run_settings"][part].items() if run in stay} | of_runs
        for part, of_runs in result["run_settings"].items()
    }
    seconds = {run: value for run, value in earlier["seconds"].items() if run.partition("/")[2] in stay}
    merged["seconds"] = seconds | result["seconds"]
    before = earlier.get("kept", [])
    own = [name for name in stay if not any(name in making["rows"] for making in before)]
    described = {name: earlier[name] for name in ("commit", "command_line", "hardware", "configuration")}
    makings = [*before, {**described, "rows": own}]
    kept = [{**making, "rows": [name for name in making["rows"] if name in stay]} for making in makings]
    return merged | {"kept": [making for making in kept if making["rows"]]}


def _same(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two rows have the same metrics on as many questions."""
    return row["questions"] == other["questions"] and all(
        math.isclose(value["value"], other["metrics"][name]["value"], abs_tol=1e-6)
        for name, value in row["metrics"].items()
    )


def _joined(parts: Sequence[str]) -> str:
    """Paragraphs, with the items of a list kept together."""
    text = parts[0]
    for before, part in zip(parts, parts[1:], strict=False):
        text += ("\n" if before.startswith("- ") and part.startswith("- ") else "\n\n") + part.strip()
    return text + "\n"


def _settings(roots: Mapping[int, Path], models: Sequence[FoldModel]) -> dict[str, Any]:
    """Resolved settings of every run; of each NAME/KIND over the folds that have it."""
    collected: dict[str, Any] = {"runs": {}, "differ": {}}
    for run in dict.fromkeys(f"{model.name}/{model.kind}" for model in models):
        having = {m.fold: roots[m.fold] for m in models if f"{m.name}/{m.kind}" == run}
        settings = settings_of_runs(having, [run])
        collected["runs"] |= settings["runs"]
        collected["differ"] |= settings["differ"]
    return collected


def _rows(kind: str, judges: Judges) -> list[dict[str, Any]]:
    """A row a judge: metrics with intervals, and the first one's difference from counting words."""
    form = kind_named(kind).form
    rows = []
    for name, records in judges.items():
        if not records:
            continue
        headline = GOALS.get(kind, ("pair_accuracy",))[0]
        curve = _CURVE.match(name)
        row: dict[str, Any] = {
            "kind": kind,
            "system": name,
            **({"records": int(curve["records"]), "of": curve["name"]} if curve else {}),
            "questions": len(records),
            "items": sum(len(r.has_error) + len(r.gaps) for r in records),
            "metrics": {metric: asdict(value) for metric, value in measure(records, form).items()},
        }
        if name not in (COMPARED, MAJORITY):
            row["difference"] = {"of": headline, **asdict(difference(records, judges[COMPARED], form, headline))}
        rows.append(row)
    return rows


def _shown(value: Mapping[str, float], signed: bool = False) -> str:
    return f"{value['value']:{'+' if signed else ''}.3f} [{value['low']:.2f}, {value['high']:.2f}]"


def _table(kind: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """The page's table of a kind, the paper's figures last."""
    metrics = metrics_of(kind_named(kind).form)
    shown = []
    for row in rows:
        cells = {metric: _shown(row["metrics"][metric]) for metric in metrics}
        gap = row.get("difference")
        words = "" if gap is None else _shown(gap, signed=True)
        shown.append({"system": row["system"], "questions": row["questions"], **cells, f"less {COMPARED}": words})
    paper = {metric: f"{value:.3f}" for metric, value in PAPER[kind].items()}
    shown.append({"system": PAPER_ROW, "questions": "500", **paper})
    return markdown_table(shown, ["system", "questions", *metrics, f"less {COMPARED}"])


def _curve(curve: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> str:
    """The learning curve, its last point the model of all training records."""
    full = [row for row in rows if row["system"] in {point["of"] for point in curve}]
    points = [*sorted(curve, key=lambda point: (point["of"], point["records"])), *full]
    return _page_table([{"records": point.get("records", "all"), **_short(point)} for point in points])


def _short(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with its headline metrics alone."""
    metrics = metrics_of(kind_named(row["kind"]).form)[:3]
    shown = {metric: _shown(row["metrics"][metric]) for metric in metrics if metric != "ece"}
    return {"kind": row["kind"], "system": row["system"], "questions": row["questions"], **shown}


def _goals(rows: Sequence[Mapping[str, Any]]) -> str:
    """Whether each goal was reached, by which models and by the best baseline."""
    shown = []
    for kind, (metric, least) in GOALS.items():
        for row in rows:
            if row["kind"] == kind and "records" not in row and row["system"] not in (CONTROL, MAJORITY):
                value = row["metrics"][metric]["value"]
                goal = {"kind": kind, "goal": f"{metric} ≥ {least:.2f}", "system": row["system"]}
                shown.append({**goal, "value": f"{value:.3f}", "reached": "yes" if value >= least else "no"})
    return _page_table(shown)


def _page_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table of all columns that any row has, in the order of their first row."""
    return markdown_table(rows, list(dict.fromkeys(name for row in rows for name in row)))
