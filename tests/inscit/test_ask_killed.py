"""`finegrained ask` killed in its middle: what was read is kept, what was there stays whole, the command goes on."""

from __future__ import annotations

import json
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from script_runs import run_script, start_script

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.inscit.documents.folder import DocumentIndex, FolderConfig, update_index
from finegrained_rlhf.retrieval.bm25.retriever import Bm25Config

CONFIG = FolderConfig({"bm25": Bm25Config()})
FILES = 90


def write(docs: Path, note: str) -> None:
    docs.mkdir(exist_ok=True)
    for number in range(FILES):
        says = "".join(f"Gate {number} has post {post}. " for post in range(40))
        (docs / f"{number:02d}.md").write_text(f"{note}# Gate {number}\n\n{says}\n")


def shas(index: Path) -> set[str]:
    """Digests of the files that were read so far."""
    try:
        with closing(sqlite3.connect(f"file:{index / 'documents.sqlite'}?mode=ro", uri=True)) as base:
            return {sha for (sha,) in base.execute("SELECT sha FROM files")}
    except sqlite3.OperationalError:  # not there yet
        return set()


def passages(index: Path) -> list[str]:
    generation = json.loads((index / "ask.json").read_text())["fingerprint"]
    return (index / "passages" / generation / "passages.jsonl").read_text().splitlines()


@pytest.mark.slow
def test_killed_and_started_again(tmp_path: Path) -> None:
    docs, index = tmp_path / "docs", tmp_path / "index"
    command = (f"docs={docs}", f"index={index}", "encoder=none", "question=Which gate has post 7?")

    def kill(when: Callable[[], bool]) -> None:
        running, deadline = start_script("ask", *command), time.monotonic() + 200
        while not when():
            assert running.poll(0.001) is None, f"it ended before: {running.printed('stderr')}"
            assert time.monotonic() < deadline
        running.send_signal(signal.SIGKILL)
        assert running.wait().returncode == -signal.SIGKILL

    write(docs, "")
    kill(lambda: len(shas(index)) >= 10)
    before = shas(index)
    assert 10 <= len(before) < FILES
    with pytest.raises(DataError, match="holds no index"):
        DocumentIndex(index, CONFIG)
    done = run_script("ask", *command)
    assert done.returncode == 0 and f"{FILES} files, {FILES - len(before)} of them new" in done.stderr, done.stderr
    before, kept = shas(index), passages(index)
    write(docs, "A line above.\n\n")  # every place is another
    kill(lambda: len(shas(index) - before) >= 10)
    assert len(shas(index) - before) < FILES and passages(index) == kept
    opened = DocumentIndex(index, CONFIG)
    for one in opened.passages():
        assert opened.source(one.file)[one.start : one.end] == one.text
    kill(lambda: len(list(index.glob("passages/*/passages.jsonl"))) == 2)
    (index / ".ask.json.killed.tmp").touch()
    done = run_script("ask", *command)
    assert done.returncode == 0 and f"{FILES} files, 0 of them new" in done.stderr, done.stderr
    update_index(docs, tmp_path / "whole", CONFIG, progress=False)
    assert passages(index) == passages(tmp_path / "whole") and shas(index) == shas(tmp_path / "whole")
    assert len(list((index / "passages").iterdir())) == 2 and not list(index.rglob("*.tmp"))
    with closing(sqlite3.connect(index / "documents.sqlite")) as base:
        assert base.execute("SELECT count(*) FROM documents").fetchone() == (
            2 * FILES,
        )  # and those of the index before
