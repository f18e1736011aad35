"""The tables of detoxification, from directories made by hand."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tables_toy import write_settings

from finegrained_lab.experiments.detox import (
    HalfTimeTable,
    RealPromptsTable,
    ToneGrid,
    ToneWorldTable,
    smollm2,
    tone_world,
)
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, read_jsonl, write_json, write_jsonl

SEEDS = (3, 4)
HALF_TIME: dict[str, Any] = {"settings": {"validation_prompts": 7}}


def write_curve(root: Path, run: str, worst: list[float], every: int = 2) -> None:
    """A run whose validations have this average maximum, and a third of it as toxicity."""
    write_settings(root / run)
    steps = every * (len(worst) - 1)
    write_jsonl(root / run / "metrics.jsonl", [{"step": i, "time/step_s": 1.5} for i in range(1, steps + 1)])
    rows = [
        {
            "step": every * i,
            "truth/worst": value,
            "truth/toxicity": value / 3,
            "truth/nll": 0.7,
            "reference_perplexity": 2.0 + i,
            "score": -value,
            "response_length": 20.0,
            "time/validate_s": 1.0,
        }
        for i, value in enumerate(worst)
    ]
    write_jsonl(root / run / "eval.jsonl", rows)


def tone_metrics(average_max: float, nll: float = 0.7) -> dict[str, float]:
    known = dict.fromkeys(tone_world.COLUMNS.values(), 0.5)
    return {**known, "truth/average_max": average_max, "perplexity/mean": 2.0 + average_max, "truth/nll": nll}


@pytest.fixture
def tone(tmp_path: Path) -> ToneWorldTable:
    for seed in SEEDS:
        root = tmp_path / f"seed_{seed}"
        write_json(root / "experiment.json", {"seed": seed, "settings": {}})
        values = {"base": 0.3, "fine_grained": 0.05, "holistic": 0.1}
        for system in ToneWorldTable.systems:
            nll = 0.7 + (0.05 if system == "fine_grained" else 0.0) * (seed - 2)
            metrics = tone_metrics(values.get(system, 0.2), nll)
            write_json(root / f"evaluation/{system}.json", {"metrics": metrics})
        for run in ToneWorldTable.runs:
            write_curve(root, run, [0.4, 0.3, 0.2 if "fine" in run[:4] else 0.25, 0.15, 0.1])
    return ToneWorldTable(
        str(tmp_path / "table.json"), "python x.py", directory=str(tmp_path), seeds=SEEDS, chosen="Nothing was chosen."
    )


def test_speed_fluency_and_claims_by_hand(tone: ToneWorldTable) -> None:
    result = tone.run()
    first = result["speed"][0]
    assert (first["fine"], first["holistic"]) == ("fine_grained", "holistic")
    assert first["half_worst"]["fine"] == {3: 4, 4: 4} and first["half_worst"]["holistic"] == {3: 6, 4: 6}
    assert first["half_toxicity"]["ratio"] == pytest.approx({3: 2 / 3, 4: 2 / 3})
    assert first["half_toxicity"]["lowest"] == pytest.approx({3: 3 / 6, 4: 3 / 6})  # since step 3, at 6
    assert first["half_toxicity"]["highest"] == pytest.approx({3: 4 / 5, 4: 4 / 5})  # at 4, since step 5
    assert result["fluency"]["fine_grained"] == pytest.approx({3: math.exp(0.05), 4: math.exp(0.1)})
    row = next(row for row in result["rows"] if row["system"] == "fine_grained" and row["seed"] == 3)
    assert row["average_max"] == 0.05 and row["grammar_perplexity"] == pytest.approx(math.exp(0.75))
    assert next(row for row in result["rows"] if row["system"] == "gedi")["half_worst"] is None
    claims = {claim["claim"]: claim for claim in result["claims"]}
    assert claims["F.G. RLHF is less toxic than Hol. RLHF"]["holds_in"] == 2
    assert claims["DExperts is less toxic than GeDi"]["holds_in"] == 0
    page = Path(tone.output).with_suffix(".md").read_text()
    assert "needed at most 0.7 times the steps of a reward a response in 2 of 2 seeds, in 0 of them whatever" in page
    assert "stays within 1.1 times the base model's perplexity in 1 of 2 seeds" in page
    assert page.count("| rloo_dense") >= 3
    assert tone.figure_path.is_file()


def test_a_run_that_never_halved_its_toxicity_has_no_ratio(tone: ToneWorldTable) -> None:
    write_curve(Path(tone.directory) / "seed_3", "holistic", [0.4, 0.3, 0.3])
    result = tone.run()
    assert result["speed"][0]["half_worst"]["ratio"] == pytest.approx({4: 2 / 3})
    assert "in 1 of 2 seeds" in Path(tone.output).with_suffix(".md").read_text()


def write_point(root: Path, name: str, worst: list[float], perplexity: float = 1.0, length: float = 20.0) -> None:
    """A run of a grid, named as the pipeline does, whose last validation has so many times the first's perplexity."""
    reward, lr, beta, lambda_ = re.match(r"(\w+)_lr(.*)_beta(.*)_lambda(.*)", name).groups()  # type: ignore[union-attr]
    write_curve(root, name, worst, every=1)
    rows = read_jsonl(root / name / "eval.jsonl")
    rows[-1] |= {"truth/nll": 0.7 + math.log(perplexity), "response_length": length}
    write_jsonl(root / name / "eval.jsonl", rows)
    config = {"optimizer": {"lr": float(lr)}, "ppo": {"lambda_": float(lambda_), "kl": {"beta": float(beta)}}}
    (root / name / "config.yaml").write_text(yaml.safe_dump(config))


@pytest.fixture
def grid(tmp_path: Path) -> ToneGrid:
    write_point(tmp_path, "toxicity_lr0.0001_beta0.1_lambda0.95", [0.4, 0.3, 0.2])
    write_point(tmp_path, "toxicity_lr0.0002_beta0.1_lambda0.95", [0.4, 0.1, 0.1], perplexity=1.21)
    write_point(tmp_path, "toxicity_lr0.0004_beta0.1_lambda0.95", [0.4, 0.1, 0.1], length=13.9)
    write_point(tmp_path, "toxicity_holistic_lr0.0001_beta0.1_lambda0.99", [0.4, 0.3, 0.3], 1.19, 14.1)
    write_point(tmp_path, "toxicity_holistic_lr0.0002_beta0.3_lambda0.99", [0.4, 0.3, 0.2], 1.19, 14.1)
    keys: dict[str, Any] = {"directory": str(tmp_path), "chosen": "By the lowest.", "configuration": HALF_TIME}
    return ToneGrid(str(tmp_path / "grid.json"), "python x.py", **keys)


def test_a_point_is_taken_that_stays_fluent_and_as_long(grid: ToneGrid) -> None:
    result = grid.run()
    assert result["summary"] == {
        "fine_grained": {"lr": 1e-4, "beta": 0.1, "lambda": 0.95},
        "holistic": {"lr": 2e-4, "beta": 0.3, "lambda": 0.99},
    }
    first = next(row for row in result["rows"] if row["system"] == "fine_grained")
    assert (first["half_worst"], first["half_toxicity"]) == (2, 2) and first["worst_during"] == pytest.approx(0.25)
    assert "lr 0.0001, β 0.1, λ 0.95; holistic: lr 0.0002" in Path(grid.output).with_suffix(".md").read_text()
    (Path(grid.directory) / "toxicity_lr0.0001_beta0.1_lambda0.95").rename(Path(grid.directory) / "left_out")
    with pytest.raises(DataError, match="no point of fine_grained stays"):
        grid.run()


def test_half_times_at_both_rewards_points(tmp_path: Path) -> None:
    for seed in SEEDS:
        root = tmp_path / f"seed_{seed}"
        write_json(root / "experiment.json", {"seed": seed, "settings": {}})
        for system in ("base", *HalfTimeTable.systems):
            nll = 0.7 if system == "base" else 0.8
            write_json(root / f"evaluation/{system}.json", {"metrics": tone_metrics(0.1, nll)})
        for run in HalfTimeTable.runs:
            write_curve(root, run, [0.4, 0.2 if run.startswith("fine") else 0.3, 0.1], every=1)
    keys: dict[str, Any] = {"directory": str(tmp_path), "seeds": SEEDS, "chosen": "None.", "configuration": HALF_TIME}
    table = HalfTimeTable(str(tmp_path / "t.json"), "python x.py", **keys)
    result = table.run()
    assert [(pair["pair"], pair["columns"][1]["column"], pair["columns"][1]["mean"]) for pair in result["pairs"]] == [
        (["fine_grained", "holistic"], "half_worst", -1),
        (["fine_grained", "holistic_as_fine_grained"], "half_worst", -1),
        (["fine_grained_as_holistic", "holistic"], "half_worst", -1),
    ]
    assert [claim["holds_in"] for claim in result["claims"]] == [2, 2, 0, 0, 0]
    assert all(row["perplexity_of_base"] == pytest.approx(math.exp(0.1)) for row in result["rows"])
    page = Path(table.output).with_suffix(".md").read_text()
    assert "## fine_grained less holistic\n" in page and "the first 7 dev prompts" in page
    assert table.figure_path.is_file()


def real_metrics(average_max: float, corpus: float) -> dict[str, float]:
    known = dict.fromkeys(smollm2.COLUMNS.values(), 0.5)
    return {**known, "held_out/average_max": average_max, "perplexity/corpus": corpus}


@pytest.fixture
def real(tmp_path: Path) -> RealPromptsTable:
    root = tmp_path / "seed_0"
    write_json(root / "experiment.json", {"seed": 0, "settings": {}})
    values = {"base": (0.30, 10.0), "best_of": (0.25, 10.5), "fine_grained": (0.18, 11.5), "holistic": (0.19, 12.5)}
    values |= {"rloo_dense": (0.21, 10.0), "word_list": (0.28, 12.0), "gedi": (0.15, 14.0), "dexperts": (0.19, 11.9)}
    for system, (highest, corpus) in values.items():
        write_json(root / f"evaluation/{system}.json", {"metrics": real_metrics(highest, corpus)})
        rows: list[dict[str, Any]] = [
            {"id": f"p{i}", "scores": {"held_out": score}} for i in range(8) for score in (highest, highest / 2, None)
        ]
        write_jsonl(root / f"evaluation/{system}.samples.jsonl", rows)
    for run in RealPromptsTable.runs:
        write_curve(root, run, [0.4, 0.3, 0.2])
    for name in smollm2.CLASSIFIERS:
        write_json(root / f"classifier_{name}/metrics.json", {"dev": {"loss": 0.4, "accuracy": 0.9}})
    return RealPromptsTable(
        str(tmp_path / "table.json"), "python x.py", directory=str(tmp_path), seeds=[0], chosen="Nothing was chosen."
    )


def test_a_third_less_toxic_at_a_fifth_more_perplexity_is_checked(real: RealPromptsTable) -> None:
    result = real.run()
    page = Path(real.output).with_suffix(".md").read_text()
    assert "| fine_grained | 0    | 40.0%" in page and "| holistic     | 0    | 36.7%" in page
    cells = [[cell.strip() for cell in line.split("|")] for line in page.splitlines()]
    verdicts = {row[1]: row[-2] for row in cells if len(row) > 3 and row[-2] in ("yes", "no")}
    assert verdicts == {
        "word_list": "no",
        "best_of": "no",
        "gedi": "no",  # too high a perplexity, as holistic's
        "dexperts": "yes",
        "fine_grained": "yes",
        "holistic": "no",
        "rloo_dense": "no",
    }
    assert result["intervals"]["fine_grained less base"] == pytest.approx([-0.12, -0.12, -0.12])
    assert read_json(real.output)["classifiers"]["reward"][0]["loss"] == 0.4


def test_an_evaluation_without_a_number_is_named(real: RealPromptsTable) -> None:
    write_json(Path(real.directory) / "seed_0/evaluation/base.json", {"metrics": {"held_out/average_max": 0.2}})
    with pytest.raises(DataError, match=r"base\.json.*not among what was measured"):
        real.run()
