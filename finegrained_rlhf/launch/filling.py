"""Defaults of classes in a configuration, before the values of the command line are applied to it.

A YAML file says which class a part is and what differs from it; the rest is in the class. Hydra composes files only, so
what it composes of them is filled here: `ppo.epochs=2`, sweeps, completion and `${ppo.kl.beta}` then find every key,
and a run's `config.yaml` holds every value.
"""

from __future__ import annotations

import logging
from functools import wraps
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.hydra import Hydra
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.errors import ConfigCompositionException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from finegrained_rlhf.core.extensions import extensions
from finegrained_rlhf.core.fields import TARGET, class_of, filled, is_ours, named_class, settings_of
from finegrained_rlhf.launch.checks.schema import UNSET

logger = logging.getLogger(__name__)
_HYDRA = "hydra"
_OF_A_MULTIRUN = ("--multirun", "You must specify")
"""In what Hydra says of several values of a key, or of no option of a group, which a multirun may give."""
_fills = False
_get_mode, _apply = Hydra.get_mode, ConfigLoaderImpl._apply_overrides_to_config


class _Extensions(SearchPathPlugin):
    """Configurations of packages that join, behind ours."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for extension in extensions():
            if extension.conf.is_dir():
                search_path.append(extension.package, f"file://{extension.conf}")


def fill_defaults() -> None:
    """Let Hydra fill every configuration that it composes in this process from now on, and know packages that join.

    A command line is composed once. Where a value of it cannot be applied, the error has the configuration.
    """
    global _fills
    if not _fills:
        Plugins.instance().register(_Extensions)
        compose = ConfigLoaderImpl._compose_config_from_defaults_list

        @wraps(compose)
        def composed(self: ConfigLoaderImpl, *arguments: Any, **options: Any) -> DictConfig:
            return fill(compose(self, *arguments, **options))

        ConfigLoaderImpl._compose_config_from_defaults_list = composed  # type: ignore[method-assign]
        ConfigLoaderImpl._apply_overrides_to_config = staticmethod(_applied)  # type: ignore[method-assign]
        Hydra.get_mode = _mode  # type: ignore[method-assign,assignment]
        _fills = True


def _applied(overrides: list[Override], cfg: DictConfig) -> None:
    try:
        _apply(overrides, cfg)
    except ConfigCompositionException as error:
        error.configuration = cfg  # type: ignore[attr-defined]  # for what says which key was meant
        raise


def _mode(hydra: Hydra, config_name: str | None, overrides: list[str]) -> RunMode | None:
    """Whether files ask for a multirun. Hydra composes to learn it, and again to run: a single run takes the first."""
    loader = hydra.config_loader
    load = loader.load_configuration
    try:
        cfg = load(config_name, overrides, RunMode.RUN)
    except ConfigCompositionException as error:
        if any(words in str(error) for words in _OF_A_MULTIRUN):
            return _get_mode(hydra, config_name, overrides)
        raise

    def kept(**options: Any) -> DictConfig:
        loader.load_configuration = load  # type: ignore[method-assign]
        return cfg if options["run_mode"] == RunMode.RUN else load(**options)

    loader.load_configuration = kept  # type: ignore[method-assign,assignment]
    return cfg.hydra.mode


def fill(cfg: DictConfig) -> DictConfig:
    """A composed configuration with the defaults of the project's classes; what must be given is `???`."""
    written = OmegaConf.to_container(cfg, resolve=False)
    assert isinstance(written, dict)
    own = {str(key): value for key, value in written.items() if key != _HYDRA}
    with open_dict(cfg):
        for key, value in filled(without_paths_of_others(own), missing=UNSET).items():
            if key not in own or value != own[key]:
                cfg[key] = value
    return cfg


def without_paths_of_others(config: dict[str, Any]) -> dict[str, Any]:
    """A composed configuration without the `path` of a component that only another reward has.

    An experiment may have set it for the reward that it was written for: it is left out, and said, where the file of
    the reward gives the component no class and no weight.
    """
    reward, target = config.get("reward"), config.get(TARGET)
    if not isinstance(reward, dict) or not isinstance(reward.get("components"), dict) or not isinstance(target, str):
        return config
    others = {name for name, part in reward["components"].items() if isinstance(part, dict) and [*part] == ["path"]}
    others -= set(reward.get("weights") or {})
    if not others or not is_ours(target) or class_of(settings_of(named_class(target))["reward"].annotation) is None:
        return config  # without a class of its own, these are keys that change the reward of a run
    for name in sorted(others):
        logger.warning("reward.components.%s.path is not read: the reward has no component %s", name, name)
    components = {name: part for name, part in reward["components"].items() if name not in others}
    return {**config, "reward": {**reward, "components": components}}
