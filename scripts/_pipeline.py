"""Experiments of several steps. A step is a script with arguments, composed and run in this process."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from _app import build, resolved, run_config
from hydra import compose
from omegaconf import DictConfig

from finegrained_rlhf.core.errors import ConfigError

_STEP_KEYS = {"script", "args", "job", "unless", "each"}


def run_pipeline(cfg: DictConfig) -> None:
    """Run every step for every seed, then `collect`. Each step prints the command line that it equals."""
    started = time.perf_counter()
    seeds = [cfg.seed] if cfg.seeds is None else list(cfg.seeds)
    for seed in seeds:
        one = copy.deepcopy(cfg)
        one.seed, one.seeds, one.collect = seed, None, None
        if cfg.seeds is not None:
            one.output_dir = f"{cfg.output_dir}/seed_{seed}"
        steps = list(expanded(resolved(one)["steps"]))
        for number, step in enumerate(steps, start=1):
            run_step(step, f"[seed {seed}, step {number} of {len(steps)}]", started)
    if cfg.collect is not None:
        build(resolved(cfg)["collect"]).run()


def expanded(steps: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Steps with `each` repeated for every combination; `{name}` in their texts becomes the value.

    Raises:
        ConfigError: a step has an unknown key, or not exactly one of `script` and `job`.
    """
    for step in steps:
        unknown = sorted(set(step) - _STEP_KEYS)
        if unknown or ("script" in step) == ("job" in step):
            what = f"unknown key {unknown[0]}" if unknown else "expected one of script and job"
            raise ConfigError(f"steps: {what} in {step}")
        each: Mapping[str, Any] = step.get("each") or {}
        for values in itertools.product(*each.values()):
            yield _filled({k: v for k, v in step.items() if k != "each"}, dict(zip(each, values, strict=True)))


def _filled(value: Any, names: Mapping[str, Any]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, names) for item in value]
    if isinstance(value, str):
        for name, text in names.items():
            value = value.replace(f"{{{name}}}", str(text))
    return value


def run_step(step: Mapping[str, Any], label: str, started: float) -> None:
    """Run one step unless its result exists."""
    minutes = (time.perf_counter() - started) / 60
    if "unless" in step and Path(step["unless"]).exists():
        print(f"\n{label} {minutes:.1f} min: {step['unless']} exists, skipped", flush=True)
    elif "job" in step:
        print(f"\n{label} {minutes:.1f} min: {step['job']['_target_'].rpartition('.')[2]}", flush=True)
        build(step["job"]).run()
    else:
        args = [str(arg) for arg in step.get("args", [])]
        print(f"\n{label} {minutes:.1f} min: scripts/{step['script']}.py {' '.join(args)}", flush=True)
        run_config(compose(step["script"], overrides=args))
