"""From the run directories of a FactWorld experiment to its report, and from several seeds to a results table.

Reads what the steps wrote (metrics, evaluations); measures nothing itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import read_json, read_jsonl, write_json, write_text
from finegrained_rlhf.core.markers import Seed
from finegrained_rlhf.experiments.results_table import Results, run_seconds
from finegrained_rlhf.experiments.run_settings import settings_of_runs
from finegrained_rlhf.feedback.reading import read_feedback
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.text.tables import markdown_table, spread_heading, spread_table, summarise_rows

SYSTEMS = ("sft", "preference_rlhf", "fine_grained_rlhf")
REWARD_MODELS = ("relevance", "factuality", "completeness", "preference")
RATES = ("relevance_error_rate", "factual_error_rate", "completeness")
COLUMNS = (*RATES, "mean_error", "rouge_lsum", "mean_tokens", "episodes", "feedback_items", "seconds")


def mean_error(rates: Mapping[str, Any]) -> float:
    """Mean of factual error rate, relevance error rate and 1 − completeness."""
    relevance, factual, completeness = (float(rates[name]) for name in RATES)
    return (relevance + factual + 1.0 - completeness) / 3.0


def episodes_to_level(run: RunDirectory, level: float) -> int | None:
    """Episodes after which a PPO run's validation first had a mean error at or below `level`; None if it never had."""
    steps = read_jsonl(run.metrics)
    per_step = float(steps[0]["episodes_per_step"]) if steps else 0.0
    for row in read_jsonl(run.eval):
        if mean_error(row) <= level:
            return round(row["step"] * per_step)
    return None


def exported_validation(run: RunDirectory, export: str = "policy") -> dict[str, Any]:
    """The validation of the step whose policy was exported.

    Raises:
        DataError: the run has none.
    """
    step = read_json(run.final(export) / "export.json")["step"]
    for row in read_jsonl(run.eval):
        if row["step"] == step:
            return row
    raise DataError(f"no validation of step {step}", file=run.eval)


@dataclass(frozen=True)
class FactWorldReport(Settings):
    """Collects one seed's experiment into `report.json` and `report.md`.

    Attributes:
        directory: of the experiment; holds `sft`, `preference_rlhf`, `fine_grained_rlhf`, `reward_models/KIND` (runs),
            `evaluation/SYSTEM.json` and the feedback file.
        seed: of the draw.
        noise: dial of the annotator.
    """

    directory: str
    seed: Seed
    noise: float

    def run(self) -> dict[str, Any]:
        """Write the report and print its table."""
        root = Path(self.directory)
        feedback_items = len(read_feedback(root / "feedback.json"))
        report: dict[str, Any] = {"seed": self.seed, "annotator_noise": self.noise}
        for system in SYSTEMS:
            report[system] = self._system(root, system, feedback_items)
        report["reward_models"] = {kind: self._reward_model(root, kind) for kind in REWARD_MODELS}
        preference = exported_validation(RunDirectory(root / "preference_rlhf"))
        report["preference_level"] = mean_error(preference)
        report["episodes_to_preference_level"] = episodes_to_level(
            RunDirectory(root / "fine_grained_rlhf"), mean_error(preference)
        )
        write_json(root / "report.json", report)
        page = self._page(report)
        write_text(root / "report.md", page)
        print(f"\n{page}\nreport: {root / 'report.json'} and {root / 'report.md'}")
        return report

    def _system(self, root: Path, system: str, feedback_items: int) -> dict[str, Any]:
        run = RunDirectory(root / system)
        measured = read_json(root / "evaluation" / f"{system}.json")
        trained = system != "sft"
        row = {name: measured[name] for name in (*RATES, "rouge_lsum", "mean_tokens")}
        row["mean_error"] = mean_error(measured)
        row["episodes"] = round(read_jsonl(run.metrics)[-1]["episodes"]) if trained else 0
        row["feedback_items"] = feedback_items if trained else 0
        row["seconds"] = run_seconds(run)
        return row

    def _reward_model(self, root: Path, kind: str) -> dict[str, Any]:
        run = RunDirectory(root / "reward_models" / kind)
        measured = read_json(run.results)["dev"]
        return {**{f"dev_{name}": value for name, value in measured.items()}, "seconds": run_seconds(run)}

    def _page(self, report: Mapping[str, Any]) -> str:
        systems = [{"system": system, **report[system]} for system in SYSTEMS]
        models = [{"reward model": kind, **report["reward_models"][kind]} for kind in REWARD_MODELS]
        episodes = report["episodes_to_preference_level"]
        reached = f"after {episodes} episodes" if episodes is not None else "at no validation"
        return (
            f"# FactWorld, seed {self.seed}, annotator noise {self.noise:g}\n\n"
            "True errors by the oracle, held-out questions, greedy decoding.\n\n"
            f"{markdown_table(systems, ['system', *COLUMNS])}\n"
            f"{markdown_table(models, ['reward model', 'dev_accuracy', 'seconds'])}\n"
            f"On the dev questions fine-grained RLHF reached the preference policy's mean error "
            f"({report['preference_level']:.3f}) {reached}.\n"
        )


@dataclass(frozen=True)
class FactWorldTable(Results):
    """Collects the reports of several seeds into a results file and the page beside it.

    Attributes:
        reports: one directory a seed, each with a `report.json`.
    """

    reports: Sequence[str]

    def run(self) -> dict[str, Any]:
        """Write both files and print the page."""
        reports = [read_json(Path(directory) / "report.json") for directory in self.reports]
        rows = [
            {"system": system, "seed": report["seed"], **report[system]} for system in SYSTEMS for report in reports
        ]
        for row in rows:
            if row["system"] == "fine_grained_rlhf":
                report = next(r for r in reports if r["seed"] == row["seed"])
                row["episodes_to_preference_level"] = report["episodes_to_preference_level"]
        summary = {system: summarise_rows([r for r in rows if r["system"] == system], COLUMNS) for system in SYSTEMS}
        result = {
            **self.made_by(),
            "seeds": [report["seed"] for report in reports],
            "run_settings": settings_of_runs(
                {report["seed"]: Path(root) for report, root in zip(reports, self.reports, strict=True)},
                [*SYSTEMS, *(f"reward_models/{kind}" for kind in REWARD_MODELS)],
            ),
            "annotator_noise": reports[0]["annotator_noise"],
            "rows": rows,
            "summary": summary,
            "reward_models": {str(report["seed"]): report["reward_models"] for report in reports},
        }
        return self.write(result)

    def page(self, result: Mapping[str, Any]) -> str:
        """The page of a results file."""
        models = [
            {"seed": seed, **{kind: values["dev_accuracy"] for kind, values in kinds.items()}}
            for seed, kinds in result["reward_models"].items()
        ]
        columns, seeds = ["system", "seed", *COLUMNS, "episodes_to_preference_level"], result["seeds"]
        about = (
            "True errors by the oracle on held-out questions under greedy decoding; annotator noise "
            f"{result['annotator_noise']:g}; both RLHF systems with the same episodes and feedback."
        )
        return (
            f"{self.opening(result, 'FactWorld: SFT, preference RLHF, fine-grained RLHF', about)}\n\n"
            f"## {spread_heading(seeds)}{' ' + ', '.join(map(str, seeds)) if len(seeds) > 1 else ''}\n\n"
            f"{spread_table(result['summary'], 'system', COLUMNS, seeds)}\n"
            f"## Every run\n\n{markdown_table(result['rows'], columns)}\n"
            f"## Dev accuracy of the reward models\n\n{markdown_table(models, ['seed', *REWARD_MODELS])}"
        )
