"""Two kinds of job whose processes load a model of 100 MB and keep their rows of it; a script that watches memory.

    python tests/helpers/loading_toy.py DIRECTORY KIND true|false

builds a trainer in one of two processes, which load in turn or not, and writes what memory that took.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rl_toy import prompts, tokenizer
from torch.distributed.fsdp import fully_shard

from finegrained_rlhf.core.files import write_json, write_jsonl
from finegrained_rlhf.core.records import Prompt, SegmentScores
from finegrained_rlhf.models.config import PolicyConfig, ValueConfig
from finegrained_rlhf.models.tiny import TinyLlamaConfig
from finegrained_rlhf.models.tiny_networks import build_llama
from finegrained_rlhf.models.weights import sharded
from finegrained_rlhf.rewards import BaseScorer, RewardConfig
from finegrained_rlhf.rollout import RolloutConfig
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.ppo.advantages import GroupAdvantages
from finegrained_rlhf.training.ppo.config import PPOConfig
from finegrained_rlhf.training.ppo.job import TrainPPO
from finegrained_rlhf.training.ppo.parts import PPOData
from finegrained_rlhf.training.sft.job import TrainSFT

_M_MMAP_THRESHOLD = -3  # of glibc's malloc.h
_PROCESSES = ProcessConfig(precision="fp32", threads=1, timeout_s=120.0, sharding="full")
_TINY = TinyLlamaConfig(16, 24, num_layers=1, num_heads=2, max_length=64, tied=False)
_LARGE = TinyLlamaConfig(512, 2048, num_layers=6, num_heads=8, num_key_value_heads=8, max_length=64, tied=False)


class Nothing(BaseScorer):
    """Pays nothing."""

    def score(self, prompts: Any, responses: Any) -> SegmentScores:
        return SegmentScores([((0, len(text)),) for text in responses], [(0.0,) for _ in responses])


@dataclass(frozen=True)
class OwnPrompts(TrainPPO):
    """A job whose prompts are given."""

    def read_data(self, policy: Any) -> PPOData:
        return PPOData(tuple(prompts("llama")), tuple[Prompt, ...]())


def save_models(directory: Path) -> float:
    """Save a large and a tiny model in bf16, and a file of texts; returns the bytes of the large one in fp32.

    Checkpoints in fp32 are mapped into memory, and all processes read them from the same pages.
    """
    for name, sizes in (("tiny", _TINY), ("large", _LARGE)):
        model = build_llama(tokenizer("llama"), sizes, 0)
        model.to(torch.bfloat16).save_pretrained(directory / name)
        tokenizer("llama").save_pretrained(directory / name)
    write_jsonl(directory / "texts.jsonl", [{"text": f"who saw {prompt.text}"} for prompt in prompts("llama")])
    return 4.0 * sum(parameter.numel() for parameter in model.parameters())


def job(kind: str, directory: Path, size: str) -> Any:
    """RLOO, which has a policy and its reference, or supervised fine-tuning, which has the policy alone."""
    policy = PolicyConfig(str(directory / size))
    settings: dict[str, Any] = {"policy": policy, "total_steps": 2, "processes": _PROCESSES}
    settings |= {"data": str(directory / "texts.jsonl"), "optimizer": OptimizerConfig(lr=1e-3)}
    if kind == "sft":
        return TrainSFT(**settings, output_dir=str(directory / "run"), whole_texts=True, max_answer_tokens=16)
    return OwnPrompts(
        **settings,
        output_dir=str(directory / "run"),
        value=ValueConfig("none"),
        reward=RewardConfig({"nothing": Nothing()}, {"nothing": 1.0}),
        rollout=RolloutConfig(prompts_per_step=2, samples_per_prompt=2, max_new_tokens=4),
        ppo=PPOConfig(epochs=1),
        algorithm=GroupAdvantages(),
    )


class Memory:
    """Watches the memory that this process has to itself, every few milliseconds.

    Attributes:
        seen: seconds on a clock that all processes share, and bytes since the start.
    """

    def __init__(self) -> None:
        self.seen: list[tuple[float, float]] = []
        self._begun, self._over = _own_bytes(), threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.002):
            self.seen.append((time.monotonic(), _own_bytes() - self._begun))


def _own_bytes() -> float:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024.0 * float(status.split("RssAnon:")[1].split()[0])


@contextmanager
def all_at_once(self: Processes) -> Iterator[None]:
    """In place of `Processes.in_turn`: nobody waits."""
    yield


def waiting(directory: Path, rank: int) -> Any:
    """`fully_shard` which, before its first matrix, waits up to two seconds for the other process to be there too.

    So two processes that may be whole at the same time are, however busy the machine is.
    """

    def shard(*given: Any, **named: Any) -> Any:
        (directory / f"whole_{rank}").touch()
        end = time.monotonic() + 2.0
        while not (directory / f"whole_{1 - rank}").exists() and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.1)
        sharded.fully_shard = fully_shard
        return fully_shard(*given, **named)

    return shard


def main(directory: Path, kind: str, in_turn: bool) -> None:
    """Build the job's trainer, and write down the memory that this took."""
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"  # so that `keep_freed_memory` leaves malloc alone,
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 65536)  # and what is freed is gone at once
    if not in_turn:
        Processes.in_turn = all_at_once  # type: ignore[method-assign]
    processes = Processes(_PROCESSES)
    job(kind, directory, "tiny").build(processes)  # so that what is imported does not count
    sharded.fully_shard = waiting(directory, processes.rank)
    processes.barrier()
    with Memory() as memory:
        built = job(kind, directory, "large").build(processes)
        processes.barrier()
    assert built is not None
    write_json(directory / f"memory_{processes.rank}.json", memory.seen)
    processes.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
