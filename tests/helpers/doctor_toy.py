"""What the preflight's tests share: a small sound run that each of them breaks in one place, and an odd scorer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("hydra")  # absent on a bare machine, where the engine's other tests run

from hydra import initialize_config_dir  # noqa: E402
from hydra_once import compose  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402

ROOT = Path(__file__).parents[2]

from finegrained_rlhf.core.records import Prompt, SegmentScores  # noqa: E402
from finegrained_rlhf.launch.preflight.doctor import _plain, case_of, missing_keys  # noqa: E402
from finegrained_rlhf.launch.preflight.dry_run import prepared  # noqa: E402
from finegrained_rlhf.launch.steps import expanded, resolved, run_step  # noqa: E402
from finegrained_rlhf.preflight.doctor.case import Case, Finding  # noqa: E402
from finegrained_rlhf.preflight.doctor.config import DoctorConfig  # noqa: E402
from finegrained_rlhf.preflight.doctor.run import CHECKS, examine, failures  # noqa: E402
from finegrained_rlhf.runtime.processes import Processes  # noqa: E402

CHEAP = ("versions", "device", "configuration", "output_dir", "data", "prompts", "models", "memory", "disk")
STEP = ("responses", "rewards", "alignment", "start", "training step")


def make_smoke(root: Path) -> Path:
    """Put the world and the tiny models of `experiment=smoke` under `root/prepared`."""
    with initialize_config_dir(str(ROOT / "conf"), version_base=None):
        config = resolved(compose("train_ppo", overrides=["experiment=smoke", f"output_dir={root}"]))
        for step in expanded(config["prepare"]):
            run_step(step, step.name, Processes())
    return root


def case_maker(smoke: Path, scratch: Path, experiment: str = "smoke") -> Callable[..., Case]:
    """A function that makes the case of an experiment from overrides and options of the doctor."""

    def make(*overrides: str, **options: Any) -> Case:
        with initialize_config_dir(str(ROOT / "conf"), version_base=None):
            cfg = compose("doctor", overrides=[f"experiment={experiment}", f"output_dir={smoke}", *overrides])
            OmegaConf.set_struct(cfg, False)
            cfg.pop("doctor")
            with prepared(cfg, Processes(), _plain) as (config, hint):
                settings = DoctorConfig(**{"prompts": 2, "two_processes": False, **options})
                return case_of(config, missing_keys(cfg), settings, scratch, hint)

    return make


def diagnose(case: Case, *names: str) -> list[Finding]:
    """What the named checks find; all where none is named."""
    return list(examine(case, [check for check in CHECKS if not names or check.name in names]))


def failed(findings: list[Finding]) -> Finding:
    """The only failure."""
    (found,) = [finding for finding in findings if finding.status == "fail"]
    return found


def warned(findings: list[Finding]) -> Finding:
    """The only warning; nothing has failed."""
    (found,) = [finding for finding in findings if finding.status == "warn"]
    assert not failures(findings)
    return found


def odd(fault: str) -> tuple[str, str]:
    """Overrides that add a component `odd` with this fault."""
    scorer = f"{{_target_: doctor_toy.OddScorer, fault: '{fault}'}}"
    return f"+reward.components.odd={scorer}", "+reward.weights.odd=1"


class OddScorer:
    """Gives every response one value, in one of several wrong ways.

    Args:
        fault: `none`, `setup`, `constant`, `nan`, `raises`, `few` or `outside`.
    """

    def __init__(self, fault: str = "none") -> None:
        self.fault = fault

    def setup(self, device: torch.device) -> None:
        """Nothing to load; `setup` is a fault of its own."""
        if self.fault == "setup":
            raise RuntimeError("no such device")

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        values: list[Any] = [float(len(text)) for text in responses]
        if self.fault == "constant":
            values = [1.0] * len(responses)
        if self.fault == "nan":
            values[-1] = math.nan
        if self.fault == "raises":
            raise KeyError("passages")
        if self.fault == "few":
            responses, values = responses[1:], values[1:]
        beyond = 5 if self.fault == "outside" else 0
        spans = [((0, len(text) + beyond),) for text in responses]
        return SegmentScores(spans, [(value,) for value in values], whole_response=self.fault != "outside")
