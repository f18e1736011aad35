"""PPO, several value heads, RLOO, GRPO and GDPO, dense and holistic, by episodes and by processor time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from finegrained_lab.experiments.factworld.answers import MEASURES, OUTCOMES, TRUTH, read_judged, win_tie_lose
from finegrained_lab.experiments.factworld.base import trained_row
from finegrained_lab.experiments.factworld.evaluated import EvaluatedTable
from finegrained_lab.figures import Bars, draw_bars
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, read_jsonl
from finegrained_rlhf.factworld.report import mean_error
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.text.tables import markdown_table, summarise_rows

PPO = "ppo"
PAIRS = {"PPO": (PPO, "ppo_holistic"), "RLOO": ("rloo_dense", "rloo_holistic"),
         "GRPO": ("grpo_dense", "grpo_holistic"), "GDPO": ("gdpo_dense", "gdpo_holistic")}  # fmt: skip
"""By algorithm: its dense and its holistic system."""
RUNS = (PPO, "ppo_heads", "ppo_holistic", *(system for name in ("RLOO", "GRPO", "GDPO") for system in PAIRS[name]))
OLD = (
    " Every system sampled at temperature 0.7 from the top 20 and scored the softmax, which the presets of groups "
    "no longer do; [today's presets](presets.md) have a table of their own."
)
"""What marks the table that was made before group algorithms scored what they sample."""
ON_DEV = ("error_during_training", "equal_time_error", "processor_s", "best_step", "steps", "kl")


@dataclass(frozen=True)
class AlgorithmsTable(EvaluatedTable):
    """Which algorithm makes the most of the same rewards."""

    title = "FactWorld: algorithms"
    about = (
        "True errors by the oracle on held-out test questions, greedy decoding, of the policy that each run exports "
        "(best validation reward, at `best_step`); all systems with the same reward models, weights, episodes and "
        "epochs, each with the learning rate and β that one grid chose for it on dev questions of another seed "
        "([grid](algorithms_grid.md)). `…_dense`: rewards where segments end; `…_holistic`: the same rewards as one "
        "number a response. `ppo` is dense, `ppo_heads` too, with a value head a reward. `error_during_training`: the "
        "mean error on dev questions over all episodes. `equal_time_error`: the mean error on dev questions of the "
        "policy that each run would export after equal processor time, that in which the fastest system draws all "
        "episodes. `processor_s`: processor time of the training steps, on one thread. `kl`: the last step's, in nats "
        "an episode." + OLD
    )
    pairs: ClassVar[Mapping[str, tuple[str, str]]] = PAIRS
    runs = RUNS
    systems = ("sft", *RUNS)
    baseline = PPO
    columns = (*TRUTH, "mean_tokens", *ON_DEV)
    caption = "True mean error by algorithm: after equal episodes on test, after equal processor time on dev questions"

    def row(self, root: Path, system: str, seed: int) -> dict[str, Any]:
        """With what the run says of its training; `sft` is where all of them begin."""
        row = super().row(root, system, seed)
        if system not in self.runs:
            start = mean_error(best_until(RunDirectory(root / PPO), 0.0))
            return row | dict.fromkeys(ON_DEV, 0.0) | {"error_during_training": start, "equal_time_error": start}
        trained = trained_row(root, system)
        spent = processor_seconds(RunDirectory(root / system))
        return row | {
            "error_during_training": trained["error_during_training"],
            "equal_time_error": mean_error(best_until(RunDirectory(root / system), self._equal_time(root))),
            "processor_s": spent[-1],
            **{name: trained[name] for name in ("best_step", "steps", "kl")},
        }

    def _equal_time(self, root: Path) -> float:
        """Processor seconds in which the fastest system of a seed draws all episodes."""
        episodes = read_json(root / "experiment.json")["settings"]["ppo_steps"]
        spent = [processor_seconds(RunDirectory(root / run)) for run in self.runs]
        return min(seconds[-1] / len(seconds) for seconds in spent) * episodes

    def measure(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """With every system against PPO, question by question."""
        pairs = []
        for seed, root in roots.items():
            base = read_judged(root, self.baseline)
            pairs += [
                {"system": s, "seed": seed, **win_tie_lose(read_judged(root, s), base, MEASURES["errors"])}
                for s in self.systems
                if s != self.baseline
            ]
        others = [s for s in self.systems if s != self.baseline]
        by_system = {s: summarise_rows([p for p in pairs if p["system"] == s], OUTCOMES) for s in others}
        return {**super().measure(roots), "pairs": pairs, "pairs_summary": by_system}

    def body(self, result: Mapping[str, Any]) -> str:
        """What the numbers say, the table, and every question."""
        pairs = [
            {"system": s, **{name: of[name]["mean"] for name in OUTCOMES}} for s, of in result["pairs_summary"].items()
        ]
        return (
            f"## Which one\n\n{advice(result['rows'], self.runs)}\n\n"
            "Dense against holistic, the rest of an algorithm alike (mean error on the test questions):\n\n"
            f"{dense_against_holistic(result['rows'], self.pairs)}\n{super().body(result)}\n"
            f"## Against {self.baseline}, question by question\n\nShare of the test questions on which the oracle "
            "finds fewer, as many, more errors (sub-sentences with a relevance error, sentences with a factual error "
            f"and missing facts) than in {self.baseline}'s answer; mean over seeds.\n\n"
            f"{markdown_table(pairs, ['system', *OUTCOMES])}"
        )

    def draw(self, result: Mapping[str, Any], path: Path) -> None:
        """Mean error after equal episodes and after equal time."""
        titles = {"mean_error": "equal episodes (test)", "equal_time_error": "equal processor time (dev)"}
        summary = result["summary"]
        draw_bars(
            path,
            [Bars(t, {run.replace("_", " "): summary[run][name] for run in self.runs}) for name, t in titles.items()],
        )


TODAY = PAIRS | {
    name: (f"{system}_dense", f"{system}_holistic")
    for name, system in (("Dr. GRPO", "dr_grpo"), ("GSPO", "gspo"), ("CISPO", "cispo"))
}


@dataclass(frozen=True)
class PresetsTable(AlgorithmsTable):
    """The same question, each group algorithm as its preset samples and scores."""

    title = "FactWorld: algorithms, as their presets are"
    about = (
        AlgorithmsTable.about.removesuffix(OLD)
        .replace("(algorithms_grid.md)", "(presets_grid.md)")
        .replace(
            ", `ppo_heads` too, with a value head a reward",
            " and samples as the paper's; the others sample and score at temperature 1. All go once over a rollout, in "
            "four mini-batches; β is the grid's, also where a preset has none",
        )
        .replace("weights, episodes and epochs", "weights and episodes")
        .replace("the learning rate and β", "the β")
    )
    pairs = TODAY
    runs = tuple(system for pair in TODAY.values() for system in pair)
    systems = ("sft", *runs)


def processor_seconds(run: RunDirectory) -> list[float]:
    """Processor seconds of a run's training up to the end of each step.

    Raises:
        DataError: a step does not say how much it took.
    """
    spent, total = [], 0.0
    for number, row in enumerate(read_jsonl(run.metrics)):
        if "time/processor_s" not in row:
            raise DataError("missing: train the run anew", file=run.metrics, record=number, field="time/processor_s")
        total += row["time/processor_s"]
        spent.append(total)
    return spent


def best_until(run: RunDirectory, seconds: float) -> Mapping[str, Any]:
    """The validation with the best reward among those that training reached within some processor seconds."""
    spent = [0.0, *processor_seconds(run)]
    return max((row for row in read_jsonl(run.eval) if spent[row["step"]] <= seconds), key=lambda row: row["score"])


def advice(rows: Sequence[Mapping[str, Any]], runs: Sequence[str]) -> str:
    """Which systems have the lowest mean error, and which of the others no seed tells from them."""
    sentences = []
    for column, where in (("mean_error", "equal episodes"), ("equal_time_error", "equal processor time")):
        errors = {run: _numbers(rows, run, column) for run in runs}
        ranked = sorted(runs, key=lambda run: fmean(errors[run].values()))
        best = errors[ranked[0]]
        close = [run for run in ranked[1:] if any(errors[run][seed] <= best[seed] for seed in best)]
        others = f"; in some seed no worse: {', '.join(f'`{run}`' for run in close)}" if close else ""
        sentences.append(
            f"After {where} `{ranked[0]}` has the lowest mean error over seeds, {fmean(best.values()):.3f}{others}."
        )
    spent = {run: fmean(_numbers(rows, run, "processor_s").values()) for run in runs}
    least = min(spent, key=lambda run: spent[run])
    sentences.append(
        f"`{least}` needs the least processor time for its steps, {spent[least] / spent[PPO]:.2f} of `{PPO}`'s."
    )
    return " ".join(sentences)


def dense_against_holistic(rows: Sequence[Mapping[str, Any]], pairs: Mapping[str, tuple[str, str]] = PAIRS) -> str:
    """A table of the algorithms' dense and holistic errors and of the seeds in which dense has the lower one."""
    table = []
    for algorithm, (dense, holistic) in pairs.items():
        of_dense, of_holistic = (_numbers(rows, system, "mean_error") for system in (dense, holistic))
        lower = sum(of_dense[seed] < of_holistic[seed] for seed in of_dense)
        table.append(
            {
                "algorithm": algorithm,
                "dense": fmean(of_dense.values()),
                "holistic": fmean(of_holistic.values()),
                "dense is lower in": f"{lower} of {len(of_dense)} seeds",
            }
        )
    return markdown_table(table, ["algorithm", "dense", "holistic", "dense is lower in"])


def _numbers(rows: Sequence[Mapping[str, Any]], system: str, column: str) -> dict[int, float]:
    return {row["seed"]: float(row[column]) for row in rows if row["system"] == system}
