"""The stores of user memory for every test that is asked of both; the one on a PostgreSQL server is slow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from stores import PostgresStore, SqliteStore, Store, postgres_server

from finegrained_rlhf.personalization.store.protocol import MemoryStore


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, Path]]:
    with postgres_server() as found:
        yield found


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made = SqliteStore(tmp_path) if request.param == "sqlite" else PostgresStore(*request.getfixturevalue("server"))
    yield made
    made.drop()


@pytest.fixture
def memory(store: Store) -> Iterator[MemoryStore]:
    opened = store.open()
    yield opened
    opened.close()
