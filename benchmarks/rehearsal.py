"""Chapter 5's pipeline on a corpus of a million passages: seconds, memory and disk of each step, killed on the way.

Examples:
    python -m benchmarks.rehearsal directory=DIR out=benchmarks/results/rehearsal_1m.json
    python -m benchmarks.rehearsal directory=DIR out=small.json passages=20000 kill_after=2

Needs the lab's packages (`finegrained_lab`) and Linux; no network. `pipeline=inscit/paper` runs in a process of its own
on InscitWorld's conversations, whose passages lie among `passages` generated ones of `words` words on average; its
models are tiny and untrained, so that what is measured is what grows with the corpus. Each of `KILLED` is killed with
-9 when it has run for `kill_after` seconds, once, and the same command goes on. A command that finds `out` does
nothing; one that was stopped goes on in `directory`, and does not know what it had measured.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.command import read_arguments, run_main
from benchmarks.machine import describe_machine
from benchmarks.retrieval_workload import passages as generated
from finegrained_rlhf.core.errors import FineGrainedError
from finegrained_rlhf.core.files import atomic_path, read_json, write_json
from finegrained_rlhf.text.tables import markdown_table

KEYS = ("out", "directory", "passages", "words", "kill_after")
KILLED = ("store", "bm25", "retrieved_bm25", "dense")
"""The steps that are killed; of several with one name, the first that takes long enough."""
WORLD = ("articles=40", "train=6", "dev=3", "test=3", "passages=3", "candidates=6")
TRAINED = ("dpr_epochs=1", "dpr_best_from=0", "dialki_epochs=1", "reader_steps=2", "type_epochs=1")
_STEP = re.compile(r"^\[.*step (\d+) of (\d+): (.+?)\](.*)")


@dataclass
class Measured:
    """A step by number and name: seconds of the run in which it ended, most memory of all processes together, disk."""

    step: str
    seconds: float
    peak_bytes: int
    disk_bytes: int


class Watched:
    """A command in a session of its own, whose steps are timed while it runs.

    Args:
        words: the command line.
        disk: the directory whose growth is what steps write.
    """

    def __init__(self, words: Sequence[str], disk: Path) -> None:
        self._disk = disk
        self.measured: list[Measured] = []
        self.skipped = 0
        self._process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self.session = self._process.pid
        self._step, self._since, self._peak, self._before = "", time.perf_counter(), 0, size(disk)
        self._errors: list[str] = []
        self._readers = [threading.Thread(target=reads) for reads in (self._read, self._read_errors)]
        for reader in self._readers:
            reader.start()

    def wait(self, kills: set[str], after: float) -> str | None:
        """Until it ends, or is killed in a step of `kills`, whose number and name are the answer."""
        while self._process.poll() is None:
            self._peak = max(self._peak, resident(self.session))
            long = time.perf_counter() - self._since > after
            if long and self._step.partition(" ")[2] in kills:
                os.killpg(self.session, signal.SIGKILL)
                self._process.wait()
                return self._step
            time.sleep(0.25)
        for reader in self._readers:
            reader.join()
        self._ended()
        if self._process.returncode:
            raise FineGrainedError(
                f"the pipeline ended with {self._process.returncode}: {''.join(self._errors)[-2000:]}"
            )
        return None

    def _read(self) -> None:
        for line in self._process.stdout or ():
            if found := _STEP.match(line):
                self._ended()
                if found[4].strip() == "is done":
                    self.skipped += 1
                else:
                    self._step = f"{found[1]} {found[3]}"
                    print(line.split("]")[0] + "]", file=sys.stderr, flush=True)

    def _read_errors(self) -> None:
        self._errors += self._process.stderr or ()

    def _ended(self) -> None:
        now, whole = time.perf_counter(), size(self._disk)
        if self._step:
            self.measured.append(Measured(self._step, now - self._since, self._peak, whole - self._before))
        self._step, self._since, self._peak, self._before = "", now, 0, whole


def size(directory: Path) -> int:
    """Bytes of the files below a directory; those that vanish meanwhile are left out."""
    found = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                found += os.lstat(os.path.join(folder, name)).st_size
            except OSError:
                continue
    return found


def resident(session: int) -> int:
    """Bytes of memory that the processes of a session hold, mapped files included."""
    found = 0
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal():
            continue
        try:
            if int((process / "stat").read_text().rpartition(")")[2].split()[3]) == session:
                found += int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:  # it has ended
            continue
    return found


def prepare(directory: Path, passages: int, words: int) -> Path:
    """Make conversations, tiny models and the corpus; what is there is kept."""
    world, models, corpus = directory / "world", directory / "models", directory / "corpus.jsonl"
    if not models.exists():
        made = [f"settings.{word}" for word in WORLD] + ["seeds=null", "collect=null"]
        made += [f"settings.{name}_steps=1" for name in ("dpr", "dialki", "few", "reader", "gold", "type")]
        subprocess.run([*command("inscit/world"), f"output_dir={world}", *made], check=True, stdout=subprocess.DEVNULL)
        models.mkdir()
        for name, source in (
            ("bert", "models/bert"),
            ("t5", "models/t5"),
            ("nq", "dpr/model"),
            ("topiocqa", "dpr/model"),
        ):
            (models / name).symlink_to((world / source).resolve())
    if not corpus.exists():
        with atomic_path(corpus) as temporary, open(temporary, "w", encoding="utf-8") as stream:
            stream.write((world / "world/corpus.jsonl").read_text(encoding="utf-8"))
            for id, text in generated(passages, length=words):
                stream.write(json.dumps({"id": id, "text": text}) + "\n")
    return corpus


def command(pipeline: str) -> list[str]:
    """The command that runs a pipeline with this interpreter."""
    return [sys.executable, "-u", "-m", "finegrained_rlhf", "run-experiment", f"pipeline={pipeline}"]


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Run the rehearsal, write `out` and print a table."""
    given = read_arguments(arguments, KEYS, needed=("out", "directory"))
    directory, out = Path(given["directory"]), Path(given["out"])
    if out.exists():
        return dict(read_json(out))
    passages, words = int(given.get("passages", 1_000_000)), int(given.get("words", 60))
    after = float(given.get("kill_after", 20))
    directory.mkdir(parents=True, exist_ok=True)
    corpus = prepare(directory, passages, words)
    settings = [
        f"data={directory}/world/world",
        f"corpus={corpus}",
        f"models={directory}/models",
        "retrieved=6",
        *TRAINED,
    ]
    settings += ["precision=fp32", f"threads={torch.get_num_threads()}"]
    line = [*command("inscit/paper"), f"output_dir={directory}/out", *(f"settings.{word}" for word in settings)]
    steps: dict[str, Measured] = {}
    kills: list[dict[str, Any]] = []
    left = set(KILLED)
    while True:
        watched = Watched(line, directory / "out")
        killed = watched.wait(left, after)
        again = sorted(steps.keys() & {one.step for one in watched.measured})
        steps |= {one.step: one for one in watched.measured}
        if kills:
            kills[-1] |= {"found_done": watched.skipped, "made_again": again}
        if killed is None:
            break
        kills.append({"step": killed, "after_seconds": after})
        left.discard(killed.partition(" ")[2])
    result: dict[str, Any] = {
        "machine": describe_machine(torch.device("cpu"), "fp32"),
        "passages": passages,
        "words": words,
        "corpus_bytes": corpus.stat().st_size,
        "disk_bytes": size(directory / "out"),
        "peak_bytes": max(one.peak_bytes for one in steps.values()),
        "seconds": sum(one.seconds for one in steps.values()),
        "kills": kills,
        "steps": [asdict(one) for one in steps.values()],
        "retrieval": read_json(directory / "out/paper.json")["retrieval"],
    }
    write_json(out, result)
    slowest = sorted(steps.values(), key=lambda one: -one.seconds)[:12]
    rows = [
        {"step": one.step, "seconds": one.seconds, "memory, GB": one.peak_bytes / 1e9, "disk, GB": one.disk_bytes / 1e9}
        for one in slowest
    ]
    print(markdown_table(rows, ["step", "seconds", "memory, GB", "disk, GB"]))
    return result


if __name__ == "__main__":
    run_main(main)
