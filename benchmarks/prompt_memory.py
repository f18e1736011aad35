"""Memory of PPO of a fusion-in-decoder reader on many prompts: resident memory over a whole run of two steps.

Examples:
    python -m benchmarks.prompt_memory directory=DIR out=benchmarks/results/prompt_memory.json
    python -m benchmarks.prompt_memory directory=DIR out=small.json conversations=40

Needs the lab's packages (`finegrained_lab`) and Linux. Makes InscitWorld's conversations, retrieves eight passages for
every turn by BM25, and runs `experiment=inscit/world_ppo` with a tiny T5, in fp32 on one thread, in a process of its
own. Files in `directory` are kept and used again.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.command import read_arguments, run_main
from benchmarks.machine import describe_machine
from benchmarks.rehearsal import resident
from finegrained_rlhf.core.errors import FineGrainedError
from finegrained_rlhf.core.files import write_json

KEYS = ("out", "directory", "conversations", "steps")


def run(*words: str) -> int:
    """Run a command of the library in a session of its own; returns the most memory of its processes, in bytes.

    Raises:
        FineGrainedError: it failed.
    """
    command, output = [sys.executable, "-m", "finegrained_rlhf", *words], subprocess.PIPE
    lines: list[str] = []
    with subprocess.Popen(
        command, stdout=output, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        most, reader = 0, threading.Thread(target=lambda: lines.extend(process.stdout or ()))
        reader.start()
        while process.poll() is None:
            most = max(most, resident(process.pid))
            time.sleep(0.1)
        reader.join()
    if process.returncode:
        raise FineGrainedError(f"{words[0]} ended with {process.returncode}: {''.join(lines)[-2000:]}")
    return most


def prepare(directory: Path, conversations: int) -> Path:
    """Make world, models, index and the reader's inputs; what is there is kept."""
    world, models, inputs = directory / "world", directory / "models", directory / "train.jsonl"
    data, corpus = f"data={world}/train.json", f"corpus={world}/corpus.jsonl"
    steps = (
        (world, "make-inscit-world", f"train={conversations}", "articles.count=800", "dev=80", "test=80"),
        (models, "make-tiny-models", f"data={world}/corpus.txt", "t5.structured=true", "t5.matching=true"),
        (directory / "bm25", "build-index", corpus),
    )
    for made, name, *words in steps:
        if not made.exists():
            run(name, f"output_dir={made}", *words)
    retrieved = directory / "retrieved.json"
    if not retrieved.exists():
        run("retrieve-evidence", data, f"index={directory}/bm25", "query=recent", "k=50", f"output={retrieved}")
    if not inputs.exists():
        read = (data, f"retrieved={retrieved}", corpus, "passages=8", "earlier=false", "add_gold=true")
        run("make-reader-inputs", *read, f"output={inputs}")
    return inputs


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Make what is missing, run the steps, write `out`."""
    given = read_arguments(arguments, KEYS, needed=("out", "directory"))
    directory, steps = Path(given["directory"]), int(given.get("steps", 2))
    conversations = int(given.get("conversations", 3200))
    directory.mkdir(parents=True, exist_ok=True)
    inputs = prepare(directory, conversations)
    started = time.perf_counter()
    peak = run(
        "train-ppo",
        "experiment=inscit/world_ppo",
        f"output_dir={directory}/run",
        "resume=never",
        f"data={inputs}",
        "validation_data=null",
        "validate_every=null",
        f"policy.path={directory}/models/t5",
        *(f"reward.components.{name}.world={directory}/world" for name in ("grounded", "used", "asked")),
        f"monitor.world={directory}/world",
        f"total_steps={steps}",
    )
    result = {
        "machine": describe_machine(torch.device("cpu"), "fp32"),
        "conversations": conversations,
        "prompts": sum(1 for _ in inputs.open(encoding="utf-8")),
        "input_bytes": inputs.stat().st_size,
        "steps": steps,
        "seconds": time.perf_counter() - started,
        "peak_bytes": peak,
    }
    write_json(given["out"], result)
    print(f"{result['prompts']} prompts, {steps} steps: {peak / 2**30:.2f} GiB at most, {result['seconds']:.0f} s")
    return result


if __name__ == "__main__":
    run_main(main)
