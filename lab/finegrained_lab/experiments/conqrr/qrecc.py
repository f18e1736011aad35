"""Chapter 4 of the thesis on QReCC: tables 4.1 to 4.4 and 4.9, beside the numbers that the thesis prints.

Reads what the steps of the experiment wrote; runs no model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from finegrained_lab.experiments.compared_table import ComparedTable
from finegrained_lab.experiments.comparison import Claim, beside_printed, printed
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json

METRICS = {"mrr": "mrr", "r10": "hit_rate@10", "r100": "hit_rate@100"}
SOURCES, TOPICS = ("quac", "nq", "trec"), ("concentrated", "shifted")
WORDS = tuple(f"{source}_{what}" for source in SOURCES for what in ("words", "overlap"))
SPARSE, DENSE, TUNED = "bm25", "de", "tuned"
"""The sparse retriever, the dual encoder, and dual encoders that were trained on."""
BY_SOURCE = tuple(f"{of}{name}" for of in ("", *(f"{source}_" for source in SOURCES)) for name in METRICS)
BY_TOPIC = tuple(f"{topic}_{name}" for topic in TOPICS for name in METRICS)


PUBLISHED: Mapping[str, Mapping[str, Mapping[str, float]]] = {
    "table 4.1": printed(
        BY_SOURCE,
        {
            "bm25_t5qr": "0.328 52.5 84.7 0.33 52.7 85.0 0.345 54.2 83.9 0.230 44.5 82.3",
            "bm25_mix": "0.373 58.5 90.2 0.379 59.2 90.9 0.385 58.8 88.9 0.229 44.7 82.7",
            "bm25_rl": "0.383 60.1 88.9 0.395 61.6 90.2 0.378 58.0 86.7 0.198 43.5 75.9",
            "bm25_rewrite": "0.398 62.6 98.5 0.403 62.9 98.4 0.408 63.8 99.0 0.273 53.8 98.9",
            "de_t5qr": "0.361 56.2 75.9 0.349 55.7 76.1 0.417 58.7 74.2 0.343 55.9 79.2",
            "de_mix": "0.395 61.9 81.8 0.387 62.0 82.4 0.439 62.2 79.0 0.361 58.9 81.0",
            "de_rl": "0.418 65.1 84.7 0.416 65.9 85.8 0.453 64.1 80.9 0.327 55.2 79.6",
            "de_rewrite": "0.422 64.8 84.0 0.409 64.5 84.1 0.483 65.8 83.2 0.411 66.0 86.5",
        },
    ),
    "table 4.2, original form": printed(
        tuple(f"original_{name}" for name in METRICS),
        {
            "bm25_t5qr": "0.164 26.2 42.3",
            "bm25_mix": "0.186 29.2 45.0",
            "bm25_rl": "0.191 30.0 44.4",
            "bm25_rewrite": "0.199 32.8 49.4",
        },
    ),
    "table 4.3": printed(
        BY_TOPIC,
        {
            "bm25_context": "0.620 81.4 94.9 0.154 39.1 68.6",
            "bm25_t5qr": "0.352 54.4 84.0 0.252 45.1 79.1",
            "bm25_mix": "0.419 63.1 91.2 0.252 45.9 82.1",
            "bm25_rl": "0.444 66.2 90.3 0.233 44.5 78.4",
            "bm25_rewrite": "0.440 66.7 98.8 0.318 56.7 98.4",
            "de_context": "0.551 78.1 93.2 0.179 35.7 61.4",
            "de_t5qr": "0.353 55.7 75.4 0.329 50.8 69.2",
            "de_mix": "0.404 63.8 83.4 0.334 53.2 72.6",
            "de_rl": "0.445 69.3 87.8 0.303 50.4 73.3",
            "de_rewrite": "0.424 65.5 84.5 0.397 61.0 79.8",
        },
    ),
    "table 4.4": printed(
        WORDS,
        {
            "bm25_t5qr": "10.9 35.8 8.9 40.4 8.2 37.8",
            "bm25_mix": "12.1 37.2 9.5 42.1 8.5 38.8",
            "bm25_rl": "11.2 40.2 10.1 44.6 9.4 39.4",
            "de_mix": "12.1 37.2 9.6 41.7 8.7 39.1",
            "de_rl": "28.2 51.1 21.7 55.8 18.3 44.3",
            "bm25_rewrite": "12.1 37.2 9.3 43.0 8.4 41.7",
        },
    ),
    "table 4.9": printed(
        BY_TOPIC,
        {
            "tuned_context": "0.643 87.7 96.9 0.312 56.2 81.9",
            "tuned_mix": "0.588 84.0 96.9 0.259 48.3 77.2",
            "tuned_rewrite": "0.510 79.9 95.2 0.380 61.3 86.0",
        },
    ),
}
"""What the thesis prints: MRR as it is, recall and overlap in per cent."""
QUERIES = ("context", "t5qr", "mix", "rl", "rewrite")
SYSTEMS = (*(f"{of}_{query}" for of in (SPARSE, DENSE) for query in QUERIES), *PUBLISHED["table 4.9"])


def _claim(text: str, table: str, column: str, left: str, right: str) -> Claim:
    """That the left query has more than the right one, with the numbers that the table prints."""
    numbers = PUBLISHED[table]
    return Claim(text, table, column, left, ">", right, (numbers[left][column], numbers[right][column]))


@dataclass(frozen=True)
class QreccTable(ComparedTable):
    """All queries on QReCC's test questions, by both retrievers."""

    title: ClassVar[str] = "QReCC: rewriting for a retriever (tables 4.1 to 4.4 and 4.9)"
    world: ClassVar[str] = "QReCC"
    about: ClassVar[str] = (
        "Queries on the published test questions. `bm25_…` is searched by the sparse retriever, `de_…` by the dual "
        "encoder, as it is; `tuned_…` by one that was trained on with that kind of query (table 4.9). `context` is "
        "all turns, `rewrite` the human's; `t5qr` learnt human rewrites, `mix` and `rl` are CONQRR with that "
        "retriever. `mrr`, `r10`, `r100`: over questions with a gold passage; `original_…`: over all (table 4.2); "
        "recall and overlap in per cent; `words`: of a query."
    )
    systems: ClassVar[tuple[str, ...]] = SYSTEMS
    baseline: ClassVar[str] = "bm25_t5qr"
    columns: ClassVar[tuple[str, ...]] = (*METRICS, *BY_TOPIC)
    runs: ClassVar[tuple[str, ...]] = (
        *("t5qr", "t5qr_few", "bm25_mix", "bm25_rl", "de_mix", "de_rl"),
        *("tuned/context", "tuned/rewrite", "tuned/mix"),
    )
    claims: ClassVar[tuple[Claim, ...]] = (
        _claim("with BM25, CONQRR (RL) beats T5QR", "table 4.1", "mrr", "bm25_rl", "bm25_t5qr"),
        _claim("… and CONQRR (mix) does", "table 4.1", "mrr", "bm25_mix", "bm25_t5qr"),
        _claim("with a dual encoder, CONQRR (RL) beats T5QR", "table 4.1", "mrr", "de_rl", "de_t5qr"),
        _claim("… and CONQRR (mix) does", "table 4.1", "mrr", "de_mix", "de_t5qr"),
        _claim("out of its domain T5QR beats RL", "table 4.1", "trec_mrr", "bm25_t5qr", "bm25_rl"),
        _claim("where the topic stays, RL beats the human", "table 4.3", "concentrated_mrr", "bm25_rl", "bm25_rewrite"),
        _claim("… and the dialogue beats RL", "table 4.3", "concentrated_mrr", "bm25_context", "bm25_rl"),
        _claim(
            "where it shifts, the human beats the dialogue", "table 4.3", "shifted_mrr", "bm25_rewrite", "bm25_context"
        ),
        _claim("RL's rewrites for a dual encoder are longer", "table 4.4", "quac_words", "de_rl", "de_mix"),
        _claim("a trained encoder prefers the dialogue", "table 4.9", "concentrated_mrr", "tuned_context", "tuned_mix"),
        _claim("… but the human where it shifts", "table 4.9", "shifted_mrr", "tuned_rewrite", "tuned_context"),
    )

    def row(self, root: Path, system: str, seed: int) -> dict[str, Any]:
        """What the evaluations say of a query and its retriever.

        Raises:
            DataError: an evaluation does not know it, or a number is missing.
        """
        retriever, query = system.split("_", 1)
        path = root / "evaluation" / (f"{system}.json" if retriever == TUNED else f"{retriever}.json")
        scores = _scores(path, query)
        row: dict[str, Any] = {"system": system, "seed": seed, **_means(scores["overall"])}
        for grouping, members in (("source", SOURCES), ("topic", TOPICS)):
            for group, means in scores["groups"].get(grouping, {}).items():
                if group in members:
                    row |= {f"{group}_{name}": value for name, value in _means(means).items()}
        for source in SOURCES:
            of_group = scores["groups"].get("source", {}).get(source, {})
            if "overlap" in of_group:
                row |= {f"{source}_words": of_group["tokens"], f"{source}_overlap": 100 * of_group["overlap"]}
        if retriever == SPARSE:
            original = _means(_scores(root / "evaluation" / "bm25_original.json", query)["overall"])
            row |= {f"original_{name}": value for name, value in original.items()}
        return row

    def body(self, result: Mapping[str, Any]) -> str:
        """The thesis's tables with its numbers beside, then what every table has."""
        rows = result["rows"]
        tables = [beside_printed(f"{name[0].upper()}{name[1:]}", PUBLISHED[name], rows) for name in PUBLISHED]
        return "\n".join([*tables, super().body(result)])


def _scores(path: Path, query: str) -> Mapping[str, Any]:
    systems: Mapping[str, Mapping[str, Any]] = read_json(path)["systems"]
    if query not in systems:
        raise DataError(f"expected scores of {query}", file=path, field="systems")
    return systems[query]


def _means(means: Mapping[str, float]) -> dict[str, float]:
    """MRR, and recall in per cent."""
    return {column: means[name] * (1 if column == "mrr" else 100) for column, name in METRICS.items()}
