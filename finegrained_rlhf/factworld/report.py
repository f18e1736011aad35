"""From the run directories of a FactWorld experiment (`pipeline=factworld/demo`) to its report.

Reads what the steps wrote (metrics, evaluations); measures nothing itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import read_json, read_jsonl, write_json, write_text
from finegrained_rlhf.core.markers import InputFile, Seed
from finegrained_rlhf.feedback.reading import read_feedback
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.text.tables import markdown_table

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


def run_seconds(run: RunDirectory) -> float:
    """Seconds that a run spent in training steps and validations."""
    steps = sum(row["time/step_s"] for row in read_jsonl(run.metrics))
    validations = sum(row.get("time/validate_s", 0.0) for row in read_jsonl(run.eval)) if run.eval.is_file() else 0.0
    return steps + validations


@dataclass(frozen=True)
class FactWorldReport(Settings):
    """Collects one seed's experiment into `report.json` and `report.md`.

    Attributes:
        directory: of the experiment; holds `sft`, `preference_rlhf`, `fine_grained_rlhf`, `reward_models/KIND` (runs),
            `evaluation/SYSTEM.json` and the feedback file.
        seed: of the draw.
        noise: dial of the annotator.
    """

    directory: InputFile
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
