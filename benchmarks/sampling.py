"""Drawing a token from a whole vocabulary: top-p and top-k, against transformers' own way, in processor time.

Examples:
    python benchmarks/sampling.py out=sampling.json
    python benchmarks/sampling.py rows=4 repeats=2

One draw of 16 rows, the fastest of several, on one thread. Logits are normal: with a standard deviation of 1 top-p
keeps half of the vocabulary (no trained model is so unsure), with 5 a few tokens, as a trained model does. See
docs/benchmarks.md.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from benchmarks.command import read_arguments, run_main
from benchmarks.machine import describe_machine
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.records import Sample
from finegrained_rlhf.models.distribution import draw, warp_logits
from finegrained_rlhf.text.tables import markdown_table

VOCABULARIES = (50_257, 151_936)
SPREADS = {"unsure": 1.0, "sure": 5.0}
DECODINGS = {"top_k=20": Sample(1, 0.7, 20), "top_p=.95": Sample(1, 0.7, 0, 0.95)}


def transformers_draw(logits: Tensor, decoding: Sample) -> Tensor:
    """One token a row, int64 [R], as transformers' `generate` draws it."""
    none = torch.zeros(0)
    scores = TemperatureLogitsWarper(decoding.temperature)(none, logits)
    if decoding.top_k:
        scores = TopKLogitsWarper(decoding.top_k)(none, scores)
    if decoding.top_p < 1:
        scores = TopPLogitsWarper(decoding.top_p)(none, scores)
    return torch.multinomial(scores.softmax(dim=-1), 1).squeeze(1)


def milliseconds(work: Callable[[], Tensor], repeats: int) -> float:
    """Processor time of the fastest of `repeats` calls after a first."""
    work()
    found = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return 1000 * min(found)


def measure(rows: int, repeats: int) -> list[dict[str, Any]]:
    """One line for each vocabulary, spread and decoding."""
    generator = torch.Generator().manual_seed(0)
    uniform = torch.rand(rows, generator=generator, dtype=torch.float64)
    lines = []
    for size in VOCABULARIES:
        normal = torch.randn(rows, size, generator=generator)
        for spread, scale in SPREADS.items():
            logits = scale * normal
            for name, decoding in DECODINGS.items():
                kept = warp_logits(logits, decoding).isfinite().sum(dim=1).double().mean()
                theirs = milliseconds(lambda: transformers_draw(logits, decoding), repeats)  # noqa: B023
                ours = milliseconds(lambda: draw(logits, decoding, uniform), repeats)  # noqa: B023
                line = {"vocabulary": size, "model": spread, "draws": name, "tokens kept": round(float(kept))}
                lines.append({**line, "plain ms": theirs, "ours ms": ours, "plain / ours": theirs / ours})
    return lines


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Measure, print the table, write the JSON file; returns the document.

    Raises:
        ConfigError: a wrong argument.
    """
    given = read_arguments(arguments, ("rows", "repeats", "out"))
    try:
        rows, repeats = int(given.get("rows", "16")), int(given.get("repeats", "5"))
    except ValueError:
        raise ConfigError("rows and repeats: expected whole numbers") from None
    if rows < 1 or repeats < 1:
        raise ConfigError("rows and repeats: expected at least 1")
    torch.set_num_threads(1)
    lines = measure(rows, repeats)
    print(markdown_table(lines, list(lines[0])))
    document = {"rows": rows, "machine": describe_machine(torch.device("cpu"), "fp32"), "draws": lines}
    if "out" in given:
        write_json(given["out"], document)
    return document


if __name__ == "__main__":
    run_main(main)
