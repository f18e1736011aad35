"""From a composed configuration to plain containers, and from those to the objects that they describe."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from finegrained_rlhf.core.errors import ConfigError, FineGrainedError


def resolved(cfg: DictConfig) -> dict[str, Any]:
    """The configuration as plain containers, interpolations resolved.

    Raises:
        ConfigError: a key must be given and is not, or an interpolation points nowhere.
    """
    try:
        missing = sorted(OmegaConf.missing_keys(cfg))
        if missing:
            keys = ", ".join(f"{key}=…" for key in missing)
            raise ConfigError(f"give a value for {keys}  (--help explains the keys)")
        container = OmegaConf.to_container(cfg, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(str(error).splitlines()[0]) from None
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def build(config: Mapping[str, Any]) -> Any:
    """The object that a mapping with `_target_` describes.

    Raises:
        FineGrainedError: what its constructor refuses; an unknown or missing key, or an unknown `_target_`.
    """
    try:
        return instantiate(config, _convert_="all")
    except InstantiationException as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, FineGrainedError):
            cause = cause.__cause__
        if cause is not None:
            raise cause from None
        raise ConfigError(_explain(error)) from None


def _explain(error: InstantiationException) -> str:
    """One line for what went wrong while an object was built."""
    lines = str(error).splitlines()
    where = next((line.split("full_key:")[1].strip() for line in lines if "full_key:" in line), "")
    reason = str(error.__cause__ or lines[0]).splitlines()[0]
    match = re.search(r"(unexpected keyword argument|missing \d+ required .*argument\w*:?) (.*)", reason)
    if match:
        reason = f"{'unknown key' if 'unexpected' in match.group(1) else 'missing key'} {match.group(2)}"
    return f"{where}: {reason}" if where else reason
