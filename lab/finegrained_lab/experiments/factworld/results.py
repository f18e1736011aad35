"""From the reports of several seeds of FactWorld to a results table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finegrained_lab.experiments.comparison import spread_heading, spread_table
from finegrained_lab.experiments.results_table import Results
from finegrained_lab.experiments.run_settings import settings_of_runs
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.core.markers import InputFile
from finegrained_rlhf.factworld.report import COLUMNS, REWARD_MODELS, SYSTEMS
from finegrained_rlhf.text.tables import markdown_table, summarise_rows


@dataclass(frozen=True)
class FactWorldTable(Results):
    """Collects the reports of several seeds into a results file and the page beside it.

    Attributes:
        reports: one directory a seed, each with a `report.json`.
    """

    reports: Sequence[InputFile]

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
