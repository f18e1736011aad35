"""Small hand-made directories of FactWorld experiments, as the tables read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from finegrained_lab.experiments.factworld.base import SHARED_RUNS
from finegrained_rlhf.core.files import write_json, write_jsonl
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.outputs import OutputRecord, write_outputs

PASSAGE = Passage("", "Arlo", ("The color of Arlo is blue.", "The city of Arlo is Rome.", "The job of Arlo is pilot."))
QUESTION = "What are the color and the city of Arlo?"
GOOD = "The color of Arlo is blue. The city of Arlo is Rome."
WRONG = "The color of Arlo is red, and the job of Arlo is pilot. The city of Arlo is Rome."
"""Two sentences of three sub-sentences: a factual error, a relevance error alone, none."""
SHORT = "The color of Arlo is blue."


def write_seed(root: Path, seed: int, noise: float = 1.0) -> Path:
    """A seed's directory with what all tables share."""
    write_json(root / "experiment.json", {"seed": seed, "settings": {"noise": noise, "ppo_steps": 10}})
    for run in SHARED_RUNS:
        write_settings(root / run, seed)
        write_jsonl(root / run / "metrics.jsonl", [{"step": 1, "time/step_s": 3.0}])
    return root


def write_settings(run: Path, seed: int = 1, **settings: Any) -> None:
    """The configuration of a run: its directory, its seed, and what else is given."""
    run.mkdir(parents=True, exist_ok=True)
    content = {"output_dir": str(run), "seed": seed, "optimizer": {"lr": 0.001}, **settings}
    (run / "config.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")


def write_run(root: Path, name: str, errors: Sequence[float], exported: int = -1, every: int = 5) -> None:
    """A PPO run of 64 episodes and 1.5 processor seconds a step, validated every 5 steps, with the given true error in
    all three rates."""
    run = root / name
    write_settings(run)
    steps = (len(errors) - 1) * every
    row = {"episodes_per_step": 64.0, "time/step_s": 2.0, "time/processor_s": 1.5}
    write_jsonl(run / "metrics.jsonl", [{"step": i, "kl": 0.1 * i, **row} for i in range(1, steps + 1)])
    rows = [validation(i * every, error) for i, error in enumerate(errors)]
    write_jsonl(run / "eval.jsonl", rows)
    write_json(run / "policy" / "export.json", {"step": rows[exported]["step"]})


def validation(step: int, error: float) -> dict[str, Any]:
    """One line of eval.jsonl: four sub-sentences and two sentences an answer."""
    row: dict[str, Any] = {"step": step, "relevance_error_rate": error, "factual_error_rate": error}
    row |= {"completeness": 1.0 - error, "correct_share": 1.0 - error, "response_length": 20.0 + step}
    for name, segments in (("relevance", 4.0), ("factuality", 2.0), ("completeness", 1.0)):
        row |= {f"reward/{name}/raw": segments * (1.0 - 2.0 * error), f"segments/{name}": segments}
    return row | {"reward/total": 3.0 - error, "score": 3.0 - error, "time/validate_s": 1.0}


def write_evaluation(root: Path, system: str, answers: Mapping[str, str], **metrics: float) -> None:
    """A system's answers to questions about Arlo, and what was measured of them."""
    measured = {
        "examples": len(answers),
        "relevance_error_rate": 0.2,
        "factual_error_rate": 0.3,
        "completeness": 0.9,
        "correct_share": 0.8,
        "rouge_lsum": 0.7,
        "mean_tokens": 25.0,
        "reward/relevance/error_free_share": 0.75,
        "reward/relevance/segments": 3.0 * len(answers),
        "reward/factuality/error_free_share": 0.65,
        "reward/completeness/mean_score": 0.5,
    } | metrics
    write_json(root / "evaluation" / f"{system}.json", measured)
    records = [OutputRecord(key, QUESTION, (PASSAGE,), (GOOD,), "", (answer,)) for key, answer in answers.items()]
    write_outputs(root / "evaluation" / f"{system}.outputs.jsonl", records)
