"""Finding a user's notes: FAISS against comparing all of them, in a whole `respond`.

Example: python benchmarks/note_index.py out=benchmarks/results/note_index.json

CIPHER with k = 5 and a scripted language model answers a user of 100, 1,000 or 5,000 notes, each with a vector of
hashed words (1,024 numbers). `respond` is the median of responses between which nothing changes; `after a note` of
those before each of which one note was written; `first` is the first one of a process, in which FAISS reads all notes.
Both sides must rest on the same notes. Times are processor time, which other programs on the machine disturb less.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.command import read_arguments, run_main
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.generation.wrappers import ScriptedGenerator
from finegrained_rlhf.personalization import Cipher, FaissIndex, HashedWords, UserMemory
from finegrained_rlhf.personalization.retrieval import ExactIndex, to_bytes
from finegrained_rlhf.personalization.store.protocol import NoteChange, UserHandle
from finegrained_rlhf.runtime.directory.provenance import nameless_hardware
from finegrained_rlhf.text.tables import markdown_table

NOTES, ROUNDS, K = (100, 1_000, 5_000), 30, 5
USER, WORDS = "ada", 60


def context(number: int) -> str:
    """A text of 60 words; always the same one."""
    return " ".join(f"w{i}" for i in np.random.default_rng(number).integers(0, 5_000, WORDS))


def write(handle: UserHandle, number: int, encoder: HashedWords) -> None:
    """A round of the user, and the note that it left."""
    event = handle.record(
        f"{number}", "edit", {"context": context(number), "draft": "", "edited": "", "preference": ""}
    )
    vector = to_bytes(encoder.encode([context(number)])[0])
    handle.apply(event, [NoteChange(event.key, {"encoder": encoder.identity, "preference": "short"}, vector)])


def measure(count: int, rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds of each index, with a number of notes.

    Raises:
        SystemExit: the two rest on different notes.
    """
    with tempfile.TemporaryDirectory() as folder:
        memory, encoder = UserMemory(Path(folder) / "users.db", durable=False), HashedWords()
        handle = memory.user(USER)
        for number in range(count):
            write(handle, number, encoder)
        llm = ScriptedGenerator(lambda prompt: "A text.")
        agents = {name: Cipher(memory, llm, K, index=index) for name, index in _indexes().items()}
        times: dict[str, dict[str, list[float]]] = {name: {} for name in agents}
        for turn in range(1 + 2 * rounds):
            if turn > rounds:
                write(handle, count + turn, encoder)
            rests_on = set()
            for name, agent in agents.items():
                begin = time.process_time()
                rests_on.add(agent.respond(USER, context(10**6 + turn)).retrieved)
                kind = "first" if not turn else "respond" if turn <= rounds else "after a note"
                times[name].setdefault(kind, []).append(1000 * (time.process_time() - begin))
            if len(rests_on) > 1:
                raise SystemExit(f"{count} notes: the indexes differ")
        memory.close()
    return {name: {kind: statistics.median(own) for kind, own in by.items()} for name, by in times.items()}


def _indexes() -> dict[str, Any]:
    return {"exact": ExactIndex(), "faiss": FaissIndex()}


def main(arguments: Sequence[str]) -> None:
    """Measure, print a table, write JSON.

    Raises:
        ConfigError: a wrong argument, or faiss is not installed.
    """
    given = read_arguments(arguments, ("out", "notes", "rounds"), needed=("out",))
    notes = [int(count) for count in given["notes"].split(",")] if "notes" in given else NOTES
    rounds = int(given.get("rounds", ROUNDS))
    found = {str(count): measure(count, rounds) for count in notes}
    rows = [{"notes": count, "index": name, **times} for count, by in found.items() for name, times in by.items()]
    print(markdown_table(rows, ["notes", "index", "first", "respond", "after a note"]))
    write_json(given["out"], {"milliseconds": found, "rounds": rounds, "k": K, "hardware": nameless_hardware()})


if __name__ == "__main__":
    run_main(main)
