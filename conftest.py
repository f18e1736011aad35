"""What every test shares: no network, one thread, and the data beside a developer's checkout."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
from cpu_times import CpuTimes
from garbage import collect_rarely
from script_runs import PRELOADED_PYTHON, fork_server
from smoke import keys_of, made_once, run_smoke

ROOT = Path(__file__).parent
LAB = ROOT / "lab"


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--cpu-times=FILE`."""
    parser.addoption(
        "--cpu-times", metavar="FILE", help="append each test's processor time, children included, to FILE"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Time tests where asked to; let xdist's workers be forked from a process that has imported everything."""
    if path := config.getoption("--cpu-times"):
        config.pluginmanager.register(CpuTimes(Path(path)))
    if not config.getoption("tx", None) or hasattr(config, "workerinput"):
        prepare_for_tests()
        return
    fork_server(*config.args)
    if config.option.dist == "load":  # what -n alone means: here the tests of a file share what they build
        config.option.dist, config.option.loadscopereorder = "loadfile", False
    config.option.tx = [f"popen//python={PRELOADED_PYTHON}" for _ in config.option.tx]


def prepare_for_tests() -> None:
    """What a process needs that runs tests itself; the one that hands them out imports no torch."""
    import torch

    torch.set_num_threads(1)
    if find_spec("hypothesis"):
        from hypothesis import HealthCheck, settings

        settings.register_profile(
            "suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], print_blob=True
        )
        settings.load_profile("suite")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on published data are slow ones, before `-m` chooses; the library comes first, and files that run scripts.

    Those take longest, and no worker should be left with one at the end.
    """
    for item in items:
        if "shared_data" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
        absent = [name for mark in item.iter_markers("needs") for name in mark.args if not find_spec(name)]
        if absent:
            item.add_marker(pytest.mark.skip(reason=f"needs {', '.join(absent)}"))
    long = {item.path for item in items if item.get_closest_marker("scripts")}
    items.sort(key=lambda item: (LAB in item.path.parents, item.path not in long))


def pytest_collection_finish() -> None:
    """What was imported stays to the end: garbage is looked for without it, and rarely."""
    collect_rarely()


@pytest.fixture(scope="session", autouse=True)
def configurations_once() -> Iterator[None]:
    """Every configuration file is parsed once in a worker, and the same groups are merged once."""
    if not find_spec("hydra"):
        yield
        return
    from hydra_once import merged_once

    with merged_once():
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Public data for tests, `../shared/data` from the project's root; a clone without it skips these tests."""
    path = ROOT.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip("needs ../shared/data beside the project: see docs/data_formats.md for where the files come from")
    return path


@pytest.fixture(scope="session")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a whole run of `experiment=smoke`, made once for all workers: tests leave it as it is."""
    return made_once(tmp_path_factory, "smoke", run_smoke)


@pytest.fixture(scope="session")
def smoke_keys(smoke: Path) -> list[str]:
    """Arguments behind `experiment=smoke` that take the world and the models from there."""
    return keys_of(smoke)
