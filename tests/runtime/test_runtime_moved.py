"""Names of classes in configurations that were written before the classes moved or were renamed."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.moved import MOVED, with_current_names


@pytest.mark.parametrize("name", sorted(set(MOVED.values())))
def test_every_current_name_is_there(name: str) -> None:
    if name.startswith("finegrained_lab."):
        pytest.importorskip("finegrained_lab")
    package, _, door = name.rpartition(".")
    assert isinstance(getattr(import_module(package), door), type)


def test_one_step_leads_to_the_current_name() -> None:
    assert not set(MOVED.values()) & set(MOVED)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("finegrained_rlhf.training.dpr.trainer.DprBatchConfig", "finegrained_rlhf.training.supervised.BatchConfig"),
        ("finegrained_rlhf.worlds.factworld.FactWorldOracle", "finegrained_rlhf.factworld.FactWorldOracle"),
        ("finegrained_rlhf.worlds.tone.ToxicityOracle", "finegrained_lab.worlds.tone.ToxicityOracle"),
        ("finegrained_rlhf.models.PolicyConfig", "finegrained_rlhf.models.PolicyConfig"),
    ],
)
def test_a_run_reads_its_configuration_under_the_current_names(old: str, new: str, tmp_path: Path) -> None:
    def config(name: str) -> dict[str, Any]:
        return {"_target_": "x.Y", "batches": {"_target_": name, "batch_size": 3}, "list": [{"_target_": name}, name]}

    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config(old)))
    expected: dict[str, Any] = {**config(new), "list": [{"_target_": new}, old]}
    assert RunDirectory(tmp_path).read_config() == with_current_names(config(old)) == expected
