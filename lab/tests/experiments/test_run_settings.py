"""What a results file keeps of the settings behind it, and what its page says of how it came about."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tables_toy import write_settings

from finegrained_lab.experiments.results_table import Results
from finegrained_lab.experiments.run_settings import settings_of_runs, settings_words
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json

ROOT = Path(__file__).parents[3]


def roots(tmp_path: Path, **changed: Any) -> dict[int, Path]:
    """Two seeds of one run; the second one has what is changed."""
    for seed in (3, 4):
        settings: dict[str, Any] = {"data": str(tmp_path / f"seed_{seed}" / "train.json"), "label_seed": seed}
        write_settings(tmp_path / f"seed_{seed}" / "sft", seed, **settings, **(changed if seed == 4 else {}))
    return {seed: tmp_path / f"seed_{seed}" for seed in (3, 4)}


def test_a_seed_and_its_directory_are_no_difference(tmp_path: Path) -> None:
    found = settings_of_runs(roots(tmp_path), ["sft"])
    assert found == {
        "runs": {
            "sft": {
                "output_dir": "DIRECTORY/sft",
                "seed": "SEED",
                "optimizer": {"lr": 0.001},
                "data": "DIRECTORY/train.json",
                "label_seed": "SEED",
            }
        },
        "differ": {},
    }
    words = settings_words({"run_settings": found})
    assert words == "Resolved settings of every run: `run_settings` in the JSON file, the same for all seeds."
    assert settings_words({"run_settings": found, "seeds": [3]}) == words.replace(", the same for all seeds", "")


def test_a_table_without_runs_points_at_its_configuration() -> None:
    result = {"run_settings": settings_of_runs({0: Path("nowhere")}, []), "configuration": {"seed": 0}}
    assert settings_words(result) == "Settings: `configuration` in the JSON file."


def test_a_setting_that_only_equals_the_seed_stays(tmp_path: Path) -> None:
    found = settings_of_runs({3: roots(tmp_path)[3]}, ["sft"])["runs"]["sft"]
    write_settings(tmp_path / "seed_3" / "sft", 3, epochs=3)
    assert settings_of_runs({3: tmp_path / "seed_3"}, ["sft"])["runs"]["sft"]["epochs"] == 3
    assert found["seed"] == "SEED"


def test_seeds_with_other_settings_are_told(tmp_path: Path) -> None:
    found = settings_of_runs(roots(tmp_path, optimizer={"lr": 0.01}, patience=2), ["sft"])
    assert found["differ"] == {"sft": {"optimizer.lr": {"3": 0.001, "4": 0.01}, "patience": {"3": "not set", "4": 2}}}
    assert "not the same for all seeds: `optimizer.lr` of sft, `patience` of sft" in settings_words(
        {"run_settings": found}
    )


@pytest.mark.parametrize(
    ("content", "problem"), [(None, "cannot be read"), ("- a\n", "expected the configuration of a run, a mapping")]
)
def test_a_run_without_settings_is_named(tmp_path: Path, content: str | None, problem: str) -> None:
    found = roots(tmp_path)
    path = found[4] / "sft" / "config.yaml"
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(DataError, match=rf"seed_4/sft/config\.yaml: .*{problem}"):
        settings_of_runs(found, ["sft"])


class Plain(Results):
    """A page of nothing but its opening."""

    def page(self, result: Mapping[str, Any]) -> str:
        return self.opening(result, "Title", "About.")


@pytest.mark.parametrize(
    ("before", "words"),
    [
        ((), "On seed 0. The table was made once. "),
        (["seed 1, too short."], "On seed 0. The table was made once before: seed 1, too short. "),
        (["seed 1", "seed 2"], "On seed 0. The table was made twice before: seed 1; seed 2. "),
        (["a", "b", "c"], "On seed 0. The table was made 3 times before: a; b; c. "),
    ],
)
def test_a_page_says_what_was_chosen_and_what_came_before(tmp_path: Path, before: list[str], words: str) -> None:
    job = Plain(str(tmp_path / "table.json"), "python it", chosen="On seed 0.\n", made_before=before)
    job.write(job.made_by())
    assert words in (tmp_path / "table.md").read_text() and read_json(tmp_path / "table.json")["chosen"] == "On seed 0."


def test_every_committed_table_says_it() -> None:
    for pipeline in sorted((ROOT / "lab/finegrained_lab/conf/pipeline").rglob("*.yaml")):
        collect = yaml.safe_load(pipeline.read_text(encoding="utf-8")).get("collect") or {}
        path = Path(collect.get("output", "").replace("${results_dir}", "docs/results"))
        if path.parts[:2] == ("docs", "results") and (ROOT / path).is_file():
            result, page = read_json(ROOT / path), (ROOT / path).with_suffix(".md").read_text(encoding="utf-8")
            assert result["chosen"] and result["chosen"] in page, path
            assert all(entry.rstrip(".") in page for entry in result["made_before"]), path
