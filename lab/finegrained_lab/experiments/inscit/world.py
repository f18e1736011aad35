"""Chapter 5 of the thesis, on the published data and on InscitWorld: tables 5.6 to 5.9, and the human table in truth.

Reads what the steps of an experiment wrote; runs no model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from finegrained_lab.experiments.compared_table import ComparedTable
from finegrained_lab.experiments.comparison import Claim, beside_printed, compared_page, printed
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.text.tables import cell, markdown_table

LAST_TURN = "last_turn"
FID = ("bm25_fid", "dpr_fid")
OWN = "bm25_own_fid"
DIALKI = ("bm25_dialki_fid", "dpr_dialki_fid")
SHUFFLED = "dpr_dialki_shuffled_fid"
GOLD = "gold_fid"
TYPED = ("gold_typed_fid", "gold_predicted_type_fid")
TRUTH = ("consistency", "utility", "coverage", "comprehensiveness", "true")
SCORES = ("pi_f1", "bleu", "rg_f1")


HITS = ("hit_rate@20", "hit_rate@50")
PUBLISHED: Mapping[str, tuple[str, Mapping[str, Mapping[str, float]]]] = {
    "Table 5.6": (
        "dev",
        printed(
            SCORES,
            {
                LAST_TURN: "10.5 4.2 14.1",
                FID[0]: "14.1 9.4 22.5",
                DIALKI[0]: "17.0 13.8 24.8",
                FID[1]: "17.1 8.8 21.6",
                DIALKI[1]: "21.5 16.6 26.6",
            },
        ),
    ),
    "Table 5.7": ("test", printed(SCORES, {FID[1]: "17.5 9.6 22.2", DIALKI[1]: "23.7 16.0 27.8"})),
    "Table 5.8, dev": (
        "dev",
        printed(
            HITS,
            {"bm25": "35.3 48.0", "dpr_fine_tuned": "62.5 70.1", "dpr_pretrained": "66.4 76.3", "dpr": "71.1 79.8"},
        ),
    ),
    "Table 5.8, test": (
        "test",
        printed(
            HITS,
            {"bm25": "35.6 48.1", "dpr_fine_tuned": "51.3 60.8", "dpr_pretrained": "68.4 77.5", "dpr": "69.9 77.5"},
        ),
    ),
    "Table 5.9, dev": (
        "dev",
        printed(SCORES[1:], {TYPED[0]: "32.6 48.7", TYPED[1]: "32.6 46.3", GOLD: "32.0 45.3"}),
    ),
    "Table 5.9, test": (
        "test",
        printed(SCORES[1:], {TYPED[0]: "31.6 47.4", TYPED[1]: "31.7 45.4", GOLD: "30.6 44.3"}),
    ),
}
"""What the thesis prints, by table: of which split, then by system or retriever, in per cent."""

_READERS = (
    "`last_turn` repeats the turn before. `…_fid`: a T5 as fusion-in-decoder reads passages and names its evidence. "
    "`…_dialki_fid`: DIALKI chooses at most four of the candidates, and a T5 that was trained on gold evidence answers "
    "from them. `gold_fid`: that T5 with the label's evidence; `gold_typed_fid`, `gold_predicted_type_fid`: one that "
    "is told the type of the response, the label's or what a classifier says."
)
_CLAIMS = (
    Claim("fusion-in-decoder beats Last Turn", "table 5.6", "pi_f1", FID[0], ">", LAST_TURN, (14.1, 10.5)),
    Claim("and with a trained retriever", "table 5.6", "pi_f1", FID[1], ">", LAST_TURN, (17.1, 10.5)),
    Claim("a trained retriever helps it", "table 5.6", "pi_f1", FID[1], ">", FID[0], (17.1, 14.1)),
    Claim("DIALKI finds evidence better", "table 5.6", "pi_f1", DIALKI[1], ">", FID[1], (21.5, 17.1)),
    Claim("and better answers follow", "table 5.6", "rg_f1", DIALKI[1], ">", FID[1], (26.6, 21.6)),
    Claim("the same with BM25", "table 5.6", "pi_f1", DIALKI[0], ">", FID[0], (17.0, 14.1)),
    Claim("gold evidence gives better answers", "section 5.5", "rg_f1", GOLD, ">", DIALKI[1], (37.4, 26.6)),
    Claim("the label's type helps", "table 5.9", "rg_f1", TYPED[0], ">", GOLD, (48.7, 45.3)),
    Claim("a predicted type helps less", "table 5.9", "rg_f1", TYPED[0], ">", TYPED[1], (48.7, 46.3)),
    Claim("but it helps", "table 5.9", "rg_f1", TYPED[1], ">", GOLD, (46.3, 45.3)),
)


@dataclass(frozen=True)
class InscitTable(ComparedTable):
    """All systems on the published test turns."""

    title: ClassVar[str] = "INSCIT: retrieve, identify, answer (tables 5.6 to 5.9)"
    world: ClassVar[str] = "this run"
    systems: ClassVar[tuple[str, ...]] = (LAST_TURN, *FID, *DIALKI, GOLD, *TYPED)
    baseline: ClassVar[str] = LAST_TURN
    columns: ClassVar[tuple[str, ...]] = SCORES
    splits: ClassVar[tuple[str, ...]] = ("test", "dev")
    """Of which there are scores; of none, there are those of test alone, whose names do not say it."""
    retrievers: ClassVar[tuple[str, ...]] = ("bm25", "dpr_fine_tuned", "dpr_pretrained", "dpr")
    runs: ClassVar[tuple[str, ...]] = (
        *("dpr_nq", "dpr_topiocqa", "dialki_bm25", "dialki_dpr", "types_model"),
        *("readers/bm25", "readers/dpr", "readers/gold", "readers/gold_typed"),
    )
    about: ClassVar[str] = f"Test turns, with gold history and gold earlier evidence; percent. {_READERS}"
    claims: ClassVar[tuple[Claim, ...]] = _CLAIMS

    def row(self, root: Path, system: str, seed: int) -> dict[str, Any]:
        """What `finegrained evaluate-inscit` says of a system."""
        return _scores(root, f"test_{system}" if self.splits else system, system, seed)

    def measure(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """Rows with their spread, dev beside test, what retrievers and identifiers find, how well types are told."""
        seeds = list(roots.items())
        found = [(split, name) for split in self.splits or ("",) for name in self.retrievers]
        of_dev = [
            _scores(root, f"dev_{name}", name, seed) for name in self.systems for seed, root in seeds if self.splits
        ]
        return {
            **super().measure(roots),
            **({"dev": of_dev} if of_dev else {}),
            "retrieval": [_retrieval(root, split, name, seed) for split, name in found for seed, root in seeds],
            "candidates": [_candidates(root, name, seed) for name in ("bm25", "dpr") for seed, root in seeds],
            "types": [_types(root, seed) for seed, root in seeds],
        }

    def body(self, result: Mapping[str, Any]) -> str:
        """Spread, differences, every run; retrieval, candidates, types; the thesis's tables with its numbers beside."""
        parts = [compared_page(result, self.columns, self.baseline).strip()]
        for name, title in (
            ("dev", "Dev turns, on which thresholds and checkpoints were chosen"),
            ("retrieval", "What retrievers find (table 5.8)"),
            ("candidates", "What bounds an identifier: gold among the candidates"),
            ("types", "Response types (section 5.5)"),
        ):
            rows = [{key: cell(value) for key, value in row.items()} for row in result.get(name, ())]
            if rows:
                parts.append(f"## {title}\n\n{markdown_table(rows, list(rows[0])).strip()}")
        of = {"test": result["rows"], "dev": result.get("dev", ())}
        for title, (split, numbers) in PUBLISHED.items() if self.splits else ():
            listed = [{**row, "system": row["retriever"]} for row in result["retrieval"] if row["split"] == split]
            parts.append(beside_printed(title, numbers, [*of[split], *listed]).strip())
        return "\n\n".join(parts)


@dataclass(frozen=True)
class InscitWorldTable(InscitTable):
    """All systems on the test turns of each seed's world."""

    title: ClassVar[str] = "InscitWorld: retrieve, identify, answer (tables 5.6 to 5.9)"
    world: ClassVar[str] = "InscitWorld"
    systems: ClassVar[tuple[str, ...]] = (LAST_TURN, *FID, *DIALKI, SHUFFLED, GOLD, *TYPED)
    columns: ClassVar[tuple[str, ...]] = (*SCORES, *TRUTH)
    splits: ClassVar[tuple[str, ...]] = ()
    retrievers: ClassVar[tuple[str, ...]] = ("bm25_last_turn", "bm25_first_last", "bm25_context", "bm25", "dpr")
    runs: ClassVar[tuple[str, ...]] = (
        *("dpr", "dialki", "dialki_shuffled", "types_model"),
        *("readers/few", "readers/joint", "readers/gold", "readers/gold_typed"),
    )
    about: ClassVar[str] = (
        f"Test turns, with gold history and gold earlier evidence. {_READERS} One reader and one DIALKI read the lists "
        "of both retrievers, and both are trained on the trained retriever's. `dpr_dialki_shuffled_fid`: as "
        "`dpr_dialki_fid`, behind a DIALKI that learnt from the evidence of other turns. pi_f1, bleu and rg_f1 are "
        "percent, as in the thesis. The others are true of the answers by the world's oracle, from 0 to 1: "
        "`consistency` (the evidence states what is said), `utility` (the evidence is used), `coverage` (of what a "
        "label states), `comprehensiveness` (of the facts asked for) and `true` (of what is said)."
    )
    claims: ClassVar[tuple[Claim, ...]] = (
        *_CLAIMS,
        Claim("answers behind DIALKI are consistent", "table 5.7", "consistency", DIALKI[1], ">", FID[1], (4.74, 2.52)),
        Claim("and use their evidence more", "table 5.7", "utility", DIALKI[1], ">", FID[1], (4.33, 2.35)),
    )

    def row(self, root: Path, system: str, seed: int) -> dict[str, Any]:
        """What `finegrained evaluate-inscit` and the oracle say of a system."""
        truth = read_json(root / "truth" / f"{system}.json")
        return {**super().row(root, system, seed), **{name: truth[name] for name in TRUTH}}


@dataclass(frozen=True)
class InscitListsTable(InscitWorldTable):
    """Readers of BM25's lists, trained on the trained retriever's and on BM25's own."""

    title: ClassVar[str] = "InscitWorld: a reader trained on the lists that it reads"
    systems: ClassVar[tuple[str, ...]] = (LAST_TURN, FID[0], OWN, FID[1])
    baseline: ClassVar[str] = FID[0]
    retrievers: ClassVar[tuple[str, ...]] = ("bm25", "dpr")
    runs: ClassVar[tuple[str, ...]] = ("dpr", "readers/few", "readers/joint", "readers/bm25")
    about: ClassVar[str] = (
        "Test turns, with gold history. `last_turn` repeats the turn before. `…_fid`: a T5 as fusion-in-decoder reads "
        "eight passages, names its evidence and answers. `dpr_fid` and `bm25_fid` are one reader, trained on the "
        "trained retriever's lists; `bm25_own_fid` began where it began (with three passages of the trained "
        "retriever's lists) and learnt for as many steps on BM25's lists. In training both find gold among their "
        "passages, which is added where a retriever missed it. pi_f1, bleu and rg_f1 are percent, the others are true "
        "of the answers by the world's oracle, from 0 to 1, as in [the chapter's table](world.md)."
    )
    claims: ClassVar[tuple[Claim, ...]] = (
        Claim("fusion-in-decoder beats Last Turn", "table 5.6", "pi_f1", OWN, ">", LAST_TURN, (14.1, 10.5)),
        Claim("a trained retriever helps it", "table 5.6", "pi_f1", FID[1], ">", OWN, (17.1, 14.1)),
    )

    def measure(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """Rows with their spread, the differences from `bm25_fid`, and what the two retrievers find."""
        seeds = roots.items()
        return {
            **ComparedTable.measure(self, roots),
            "retrieval": [_retrieval(root, "", name, seed) for name in self.retrievers for seed, root in seeds],
        }


def _scores(root: Path, name: str, system: str, seed: int) -> dict[str, Any]:
    scores = read_json(root / "scores" / f"{name}.json")
    return {"system": system, "seed": seed, **{column: scores[column] for column in SCORES}}


def _retrieval(root: Path, split: str, name: str, seed: int) -> dict[str, Any]:
    file = f"{split}_{name}" if split else name
    measures = read_json(root / "retrieval" / f"{file}.json")["retrieval"]
    columns: Sequence[str] = ("hit_rate@1", "hit_rate@20", "hit_rate@50", "recall@20", "mrr")
    about = {"retriever": name, **({"split": split} if split else {}), "seed": seed}
    return {**about, **{column: measures[column] for column in columns}}


def _candidates(root: Path, name: str, seed: int) -> dict[str, Any]:
    measures = read_json(root / "candidates" / f"test_{name}.json")
    row: dict[str, Any] = {"retriever": name, "seed": seed}
    for kind in ("retrieved", "earlier_and_retrieved"):
        row |= {f"{kind}: {key}": measures[kind][key] for key in ("recall", "pi_f1_bound")}
    return row


def _types(root: Path, seed: int) -> dict[str, Any]:
    scores = read_json(root / "types_test.json")
    return {"seed": seed, **{name: scores[name] for name in ("instances", "majority", "accuracy", "macro_f1")}}
