"""Encoders in several processes, one a GPU or a share of the CPU's cores, for a corpus.

Every process opens the encoder itself, of whatever kind it is, and gets whole pieces of work, which are those of one
process: batches, precision and so vectors are the same. (The pool of sentence-transformers knows its own models alone,
and leaves bf16 autocast behind in the process that asks.)
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finegrained_rlhf.core.errors import ModelError
from finegrained_rlhf.retrieval.dense.config import EncoderConfig, TextEncoder


class EncoderProcesses:
    """Processes that encode passages; a context, at whose end they are gone. They start with the first piece.

    Args:
        config: of the encoder; `processes` of it are started. On `cuda` without a number, and where no device is named
            and there are GPUs, process i takes GPU i, in turn where there are fewer; on the CPU they share the threads
            that torch has here.
    """

    def __init__(self, config: EncoderConfig) -> None:
        import torch

        context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        arguments = (config, context.Value("i", 0), torch.get_num_threads())
        self._pool = ProcessPoolExecutor(config.processes, context, initializer=_begin, initargs=arguments)

    def __enter__(self) -> EncoderProcesses:
        return self

    def __exit__(self, *raised: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def encode_pieces(self, pieces: Sequence[Sequence[tuple[str, ...]]]) -> Iterator[NDArray[np.float32]]:
        """Vectors of each piece, fp32 [n, dimension], in the order of the pieces.

        Args:
            pieces: passages by their `TextEncoder.parts`, n of them in each.

        Raises:
            ModelError: no readable encoder, it gives numbers that are not finite, or a process was killed.
        """
        try:
            yield from self._pool.map(_encode_piece, pieces)
        except BrokenProcessPool:
            raise ModelError(
                "encoder.processes: a process that encodes has ended, perhaps for want of memory; take fewer, or a "
                "smaller encoder.batch_size, and run the same command again"
            ) from None


def device_of_process(config: EncoderConfig, number: int, gpus: int) -> str:
    """The device that a process of the encoder takes.

    Args:
        config: of the encoder.
        number: of the process, from 0.
        gpus: that are there.
    """
    named = config.device or ("cuda" if gpus else "cpu")
    return f"cuda:{number % gpus}" if named == "cuda" and gpus else named


_own: dict[str, Any] = {}  # of a process: the settings of its encoder, and the encoder once it is open


def _begin(config: EncoderConfig, started: Any, threads: int) -> None:
    """Say which of the processes this one is; end it when the one that started it ends, even by `kill -9`."""
    import torch

    with started.get_lock():
        number = started.value
        started.value += 1
    device = device_of_process(config, number, torch.cuda.device_count())
    if device == "cpu":
        torch.set_num_threads(max(1, threads // config.processes))
    _own["config"] = replace(config, device=device, processes=1)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _encode_piece(parts: Sequence[tuple[str, ...]]) -> NDArray[np.float32]:
    if "encoder" not in _own:
        _own["encoder"] = _own["config"].load()
    encoder: TextEncoder = _own["encoder"]
    return encoder.encode_parts(parts)
