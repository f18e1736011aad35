"""What tests of refusals share: a folder as it was, and Hydra that reads its files once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra_once import merged_once


@pytest.fixture(autouse=True)
def quick_hydra(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Most of a refusal's time is Hydra's.

    Where it configures logging it closes all handlers; absl's, which a test before may have brought along, would close
    the file that pytest captures in.
    """
    monkeypatch.setattr("logging.config._clearExistingHandlers", lambda: None)
    with merged_once():
        yield


def tree(folder: Path) -> dict[str, bytes | None]:
    """Every file with its content, but for what Python keeps of the modules that it imports."""
    files = (path for path in sorted(folder.rglob("*")) if "__pycache__" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in files}
