"""Every committed results page is what its results file gives, and the figures that it shows lie beside it."""

from __future__ import annotations

import dataclasses
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from finegrained_lab.experiments.results_table import Results
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import read_json

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "docs" / "results"
SWEEPS = {"factworld/customization"}
"""Pages that `tests/report/test_sweep_results.py` checks."""


def committed() -> list[str]:
    """The results files with a page, `factworld/ablation` for one."""
    files = (path.relative_to(RESULTS) for path in RESULTS.rglob("*.json") if path.with_suffix(".md").is_file())
    return sorted({path.with_suffix("").as_posix() for path in files} - SWEEPS)


def collecting_job(name: str) -> Results:
    """The job that collects an experiment's results, as its pipeline configures it, with 0 for the seed."""
    text = (ROOT / "lab/finegrained_lab/conf/pipeline" / f"{name}.yaml").read_text().replace('"${seed}"', "0")
    collect: dict[str, Any] = yaml.safe_load(text)["collect"]
    module, _, kind = collect.pop("_target_").rpartition(".")
    job: type[Results] = getattr(import_module(module), kind)
    fields = {field.name for field in dataclasses.fields(job)}
    return job(**{key: value for key, value in collect.items() if key in fields - {"output"}}, output=_output(name))


def _output(name: str) -> str:
    return str(RESULTS / f"{name}.json")


def test_there_are_results_of_every_system() -> None:
    assert {name.partition("/")[0] for name in committed()} == {
        "annotation",
        "canard",
        "conqrr",
        "detox",
        "dialki",
        "factworld",
        "inscit",
        "personalization",
        "qa_feedback",
        "turns",
    }
    assert len(committed()) >= 13


@pytest.mark.parametrize("name", committed())
def test_a_page_follows_from_its_results(name: str) -> None:
    page = (RESULTS / f"{name}.md").read_text(encoding="utf-8")
    assert collecting_job(name).page(read_json(_output(name))) == page
    for figure in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page):
        assert (RESULTS / f"{name}.md").with_name(figure).is_file(), figure


def test_one_seed_is_never_shown_with_a_spread() -> None:
    single = [name for name in committed() if len(read_json(_output(name)).get("seeds", [])) == 1]
    assert single and not [name for name in single if "±" in (RESULTS / f"{name}.md").read_text(encoding="utf-8")]


@pytest.mark.parametrize("name", ["qa_feedback/bottleneck", "qa_feedback/measures"])
def test_no_oracle_knows_real_data(name: str) -> None:
    job = collecting_job(name)
    assert read_json(_output(name))["judged_by"] == job.judged_by == "labels"
    with pytest.raises(ConfigError, match="no oracle knows real data"):
        dataclasses.replace(job, judged_by="oracle")
