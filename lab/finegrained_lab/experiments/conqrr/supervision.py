"""What human rewrites are worth on RewriteWorld: figure 4.3 and table 4.9 of the thesis in small.

Reads what the steps of the experiment wrote; runs no model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from finegrained_lab.experiments.compared_table import CurvesTable, read_curve
from finegrained_lab.experiments.comparison import Claim
from finegrained_lab.experiments.conqrr.rewrite_world import COLUMNS, evaluation_row, kept_rows
from finegrained_lab.figures import Lines, draw_lines
from finegrained_rlhf.text.tables import markdown_table

SHARES = (0, 1, 10, 100)
"""Per cent of the human rewrites that training may use."""
MODELS = {
    "t5qr": [f"t5qr_{share}" for share in SHARES],
    "rl": [f"rl_{share}" for share in SHARES],
    "mix": [f"mix_{share}" for share in SHARES[1:]],  # without a rewrite there is no cross-entropy: it is RL
}
QUERIES = ("question", "context", "mix_10", "rewrite")
"""What a dense retriever is asked with."""
FIRST = {f"first_{query}": ("first", query) for query in (*QUERIES, "t5qr_10", "rl_10")}
TUNED = {f"tuned_{query}": (query, query) for query in QUERIES}
DENSE = FIRST | TUNED
"""Dense retriever and query of each system that is not searched by BM25."""
TRAINED = tuple(name for names in MODELS.values() for name in names if name != "t5qr_0")
SETTINGS = ("train", "more")


@dataclass(frozen=True)
class SupervisionTable(CurvesTable):
    """Rewriters by how many human rewrites they had, and a dense retriever by what it was trained on."""

    title: ClassVar[str] = "RewriteWorld: what human rewrites are worth"
    world: ClassVar[str] = "RewriteWorld"
    stated_settings: ClassVar[tuple[str, ...]] = SETTINGS
    systems: ClassVar[tuple[str, ...]] = (
        *("question", "context", *MODELS["t5qr"], *MODELS["rl"], *MODELS["mix"], "rewrite"),
        *DENSE,
    )
    baseline: ClassVar[str] = "t5qr_10"
    columns: ClassVar[tuple[str, ...]] = COLUMNS
    runs: ClassVar[tuple[str, ...]] = (*TRAINED, *(f"dense/{name}" for name in ("first", *QUERIES)))
    curved: ClassVar[tuple[str, ...]] = (*MODELS["rl"], *MODELS["mix"])
    validated: ClassVar[tuple[str, ...]] = ("accuracy", "rouge1")
    caption: ClassVar[str] = "MRR by BM25 on the test questions, by the share of the human rewrites in training"
    about: ClassVar[str] = (
        "`t5qr_N`, `rl_N`, `mix_N`: T5QR, and CONQRR (RL) and (mix) that begin with it, with N% of the human rewrites "
        "of the training dialogues; `t5qr_0` is the T5 that all begin with, untrained, and `rl_0` begins with it. "
        "Passage labels come from the answer, among what the dialogue finds, so that they use no rewrite. The search "
        "is BM25's (the thesis's figure 4.3 has a dense one), beside `question`, `context` (all turns) and `rewrite` "
        "(the human's). `first_…` and `tuned_…` are searched by two towers of tiny BERTs. `first` has been trained on "
        "questions that stand alone and their gold passages, and stays as it is, as the thesis's retriever, which was "
        "trained on MS MARCO; `tuned` is trained on with the labelled passages of the training dialogues, on that kind "
        "of query which it is then asked with (table 4.9). `mrr_concentrated` and `mrr_shifted` are over questions "
        "that stay with the topic and that leave it; first questions are in neither. `repeats`: share of later "
        "questions for which the passage of an earlier one comes first; `words`: mean length of a query; `overlap`: "
        "share of its words that the gold passage has."
    )
    claims: ClassVar[tuple[Claim, ...]] = (
        Claim("with no rewrite, CONQRR beats T5QR", "figure 4.3", "mrr", "rl_0", ">", "t5qr_0"),
        Claim("with 1% of them, CONQRR (RL) does", "figure 4.3", "mrr", "rl_1", ">", "t5qr_1"),
        Claim("… and CONQRR (mix)", "figure 4.3", "mrr", "mix_1", ">", "t5qr_1"),
        Claim("RL is better with all rewrites than with 10%", "figure 4.3", "mrr", "rl_100", ">", "rl_10"),
        Claim("… better than T5QR", "figure 4.3", "mrr", "rl_100", ">", "t5qr_100"),
        Claim("… better than mix", "figure 4.3", "mrr", "rl_100", ">", "mix_100"),
        Claim("mix is worse with all rewrites than with 10%", "figure 4.3", "mrr", "mix_10", ">", "mix_100"),
        *(
            Claim(
                f"with a trained retriever, where the topic {what}, the dialogue beats CONQRR (mix)",
                *("table 4.9", column, "tuned_context", ">", "tuned_mix_10", numbers),
            )
            for what, column, numbers in (
                ("stays", "mrr_concentrated", (0.643, 0.588)),
                ("shifts", "mrr_shifted", (0.312, 0.259)),
            )
        ),
        Claim(
            "… and where it stays, the human's rewrite",
            *("table 4.9", "mrr_concentrated", "tuned_context", ">", "tuned_rewrite", (0.643, 0.510)),
        ),
        Claim(
            "… where it shifts, the human's rewrite beats the dialogue",
            *("table 4.9", "mrr_shifted", "tuned_rewrite", ">", "tuned_context", (0.380, 0.312)),
        ),
    )

    def introduction(self, result: Mapping[str, Any]) -> str:
        """With the sizes."""
        settings = result["settings"]
        return (
            f"{settings['train']} training dialogues of three questions on average; `first` has read the human "
            "rewrites of "
            f"{settings['more']} dialogues, of these and others. {self.about}"
        )

    def row(self, root: Path, system: str, seed: int) -> dict[str, Any]:
        """What the system's evaluation says."""
        if system not in DENSE:
            return evaluation_row(root / "evaluation.json", system, seed)
        retriever, query = DENSE[system]
        return evaluation_row(root / "dense" / f"evaluation_{retriever}.json", system, seed, query)

    def measure(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """Rows, their spread, differences from T5QR, learning curves of the rewriters and retrievers, minutes."""
        retrievers = {
            name: [read_curve(root / "dense" / name, ("mrr",)) for root in roots.values()]
            for name in ("first", *QUERIES)
        }
        return {**super().measure(roots), **self.training(roots), "retrievers": retrievers}

    def body(self, result: Mapping[str, Any]) -> str:
        """Spread, differences, every run, validations, minutes."""
        kept = kept_rows(result["curves"], result["seeds"], "system", "accuracy")
        towers = kept_rows(result["retrievers"], result["seeds"], "retriever", "mrr")
        return (
            f"{super().body(result)}\n"
            "## In-batch accuracy of CONQRR on the dev questions\n\nThe policy of the best validation is kept; it may "
            f"be the one that training began with (step 0).\n\n{markdown_table(kept, [*kept[0]])}\n"
            "## MRR of the dense retrievers on their dev queries\n\nAmong the passages of the dev records. `first` is "
            f"validated on human rewrites; the best is kept.\n\n{markdown_table(towers, [*towers[0]])}\n"
            f"{self.longest(result)}\n"
        )

    def draw(self, result: Mapping[str, Any], path: Path) -> None:
        """MRR by share of the rewrites, a band a model: mean and range over seeds."""
        summary = result["summary"]
        bands = {}
        for model, names in MODELS.items():
            rows = [summary[name]["mrr"] for name in names]
            points = [float(SHARES.index(int(name.split("_")[1]))) for name in names]
            bands[model] = {"episodes": points, **{key: [row[key] for row in rows] for key in ("mean", "min", "max")}}
        ticks = {float(i): f"{share}%" for i, share in enumerate(SHARES)}
        panel = Lines("MRR by BM25", "MRR", bands=bands)
        draw_lines(path, [panel], x_label="human rewrites in training", ticks=ticks)
