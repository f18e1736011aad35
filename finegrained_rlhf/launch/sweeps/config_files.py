"""Resolved configurations as files that commands take by `--config-dir` and `--config-name`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from finegrained_rlhf.core.files import write_text
from finegrained_rlhf.launch.configurations import typed

_HEAD = """# Written by finegrained sweep; read by {command} --config-dir DIRECTORY --config-name {name}
defaults:
  - app
  - _self_
  - override hydra/job_logging: none
  - override hydra/hydra_logging: none

"""


def read_config(path: Path) -> dict[str, Any]:
    """A configuration that `write_config` wrote."""
    return {k: v for k, v in yaml.safe_load(path.read_text(encoding="utf-8")).items() if k != "defaults"}


def write_config(path: Path, script: str, config: Mapping[str, Any]) -> None:
    """Write a resolved configuration so that a command takes it by `--config-dir` and `--config-name`."""
    write_text(path, _HEAD.format(command=typed(script), name=path.stem) + as_yaml(config))


def as_yaml(config: Mapping[str, Any]) -> str:
    """Plain containers as Hydra reads them back: texts that look like numbers are quoted."""
    return OmegaConf.to_yaml(OmegaConf.create(dict(config)))
