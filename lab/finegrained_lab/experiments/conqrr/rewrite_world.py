"""CONQRR against T5QR on RewriteWorld: tables 4.1, 4.3 and 4.4 and figures 4.3 and 4.5 of the thesis in small.

Reads what the steps of the experiment wrote; runs no model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from finegrained_lab.experiments.compared_table import CurvesTable
from finegrained_lab.experiments.comparison import Claim, seeds_of
from finegrained_lab.experiments.results_table import setting_of
from finegrained_lab.figures import Bars, draw_bars
from finegrained_rlhf.conqrr.data import RewriteData, read_rewrites
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, read_jsonl
from finegrained_rlhf.text.tables import markdown_table

T5QR, LONGER, FULL = "t5qr", "t5qr_longer", "t5qr_full"
MIX, RL, SHUFFLED = "conqrr_mix", "conqrr_rl", "conqrr_shuffled"
KL, BARE, SLOW = "conqrr_kl", "conqrr_bare", "conqrr_slow"
PLAIN, PLAIN_RL, FIRST, FIRST_RL = "plain_t5qr", "plain_rl", "first_t5qr", "first_rl"
QUESTION, CONTEXT, HUMAN = "question", "context", "rewrite"
TRAINED = (T5QR, MIX, RL, KL, BARE, SLOW, SHUFFLED, PLAIN, PLAIN_RL, FIRST, FIRST_RL, FULL)
SYSTEMS = (QUESTION, CONTEXT, T5QR, LONGER, *TRAINED[1:], HUMAN)
COMPARED = {
    **dict.fromkeys((LONGER, MIX, RL, KL, BARE, SLOW, SHUFFLED, FULL), T5QR),
    PLAIN_RL: PLAIN,
    FIRST_RL: FIRST,
}
"""Systems whose gain is shown, and the T5QR that each is compared with."""
METRICS = {"mrr": "mrr", "recall_10": "hit_rate@10", "recall_100": "hit_rate@100"}
TOPICS = {"mrr_concentrated": "concentrated", "mrr_shifted": "shifted"}
COLUMNS = (*METRICS, *TOPICS, "repeats", "words", "overlap")
WORDING = ("rouge1", "repeated_bigrams", "cut")
"""How the queries are worded; evaluations made before these were measured do not have them."""
WANTED_GAIN = 0.15
"""What CONQRR's MRR should exceed T5QR's by (table 4.1: 17% with the RL loss, 14% with the mixed one)."""


@dataclass(frozen=True)
class RewriteWorldTable(CurvesTable):
    """All systems on the test dialogues of each seed's world."""

    title: ClassVar[str] = "RewriteWorld: rewriting by retrieval rewards with a tenth of the human rewrites"
    world: ClassVar[str] = "RewriteWorld"
    runs: ClassVar[tuple[str, ...]] = TRAINED
    curved: ClassVar[tuple[str, ...]] = (MIX, RL, KL, BARE, SLOW, SHUFFLED, PLAIN_RL, FIRST_RL)
    validated: ClassVar[tuple[str, ...]] = ("accuracy", "rouge1")
    systems: ClassVar[tuple[str, ...]] = SYSTEMS
    baseline: ClassVar[str] = T5QR
    columns: ClassVar[tuple[str, ...]] = COLUMNS
    caption: ClassVar[str] = "MRR on the test questions, by topic"
    about: ClassVar[str] = (
        "What BM25 finds for the questions of the test dialogues of each seed's world: with the question as it was "
        "asked (`question`), with all turns up to it (`context`), with the human's rewrite (`rewrite`), and with "
        "what a tiny T5 writes. `t5qr` imitates a share of the human rewrites. `conqrr_rl` begins with it and "
        "learns from whether BM25-light ranks the labelled passage of a question first among those of its batch, "
        "less what repeated word pairs cost; labels come from the answer, among what the dialogue finds. "
        "`conqrr_mix`: the same with cross-entropy beside. `conqrr_bare`: conqrr_rl without that cost, as in the "
        "thesis; `conqrr_kl`: conqrr_bare with a KL penalty, which holds it to t5qr. `conqrr_slow`: conqrr_rl with "
        "a tenth of its learning rate and fewer steps; `conqrr_shuffled`: conqrr_slow with the rewards of a step "
        "dealt out at random (at the rate of conqrr_rl they destroy the policy at once). `t5qr_longer`: t5qr by "
        "beam search with a length normalisation that makes its rewrites as long as those of conqrr_mix. "
        "`plain_t5qr` and `plain_rl`: t5qr and conqrr_rl from a T5 without a structured start. `first_t5qr` and "
        "`first_rl`: the settings that this table began with (more dialogues, fewer steps, no cost of "
        "repetitions). `t5qr_full` imitates all rewrites. `mrr_concentrated` and `mrr_shifted` are over questions "
        "that stay with the topic and that leave it; first questions are in neither. `repeats`: share of later "
        "questions for which the passage of an earlier one comes first; `words`: mean length of a query; "
        "`overlap`: share of its words that the gold passage has."
    )
    claims: ClassVar[tuple[Claim, ...]] = (
        Claim("CONQRR (RL) beats T5QR", "table 4.1", "mrr", RL, ">", T5QR, (0.383, 0.328)),
        Claim("CONQRR (mix) beats T5QR", "table 4.1", "mrr", MIX, ">", T5QR, (0.373, 0.328)),
        Claim("CONQRR (RL) beats CONQRR (mix)", "table 4.1", "mrr", RL, ">", MIX, (0.383, 0.373)),
        Claim("T5QR at the length of CONQRR (mix) is worse", "figure 4.5", "mrr", MIX, ">", LONGER),
        Claim(
            "where the topic stays, the dialogue beats the human's rewrite",
            "table 4.3",
            "mrr_concentrated",
            CONTEXT,
            ">",
            HUMAN,
            (0.620, 0.440),
        ),
        Claim("… and CONQRR (RL) does", "table 4.3", "mrr_concentrated", RL, ">", HUMAN, (0.444, 0.440)),
        Claim(
            "where it shifts, the human's rewrite beats the dialogue",
            "table 4.3",
            "mrr_shifted",
            HUMAN,
            ">",
            CONTEXT,
            (0.318, 0.154),
        ),
        Claim("… and CONQRR (mix) does", "table 4.3", "mrr_shifted", MIX, ">", CONTEXT, (0.252, 0.154)),
        Claim("… more than CONQRR (RL)", "table 4.3", "mrr_shifted", MIX, ">", RL, (0.252, 0.233)),
        Claim("CONQRR (RL) writes more than T5QR", "table 4.4", "words", RL, ">", T5QR, (11.2, 10.9)),
        Claim("… with more words of the passage", "table 4.4", "overlap", RL, ">", T5QR, (0.402, 0.358)),
    )

    def conditions(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """The share of the human rewrites that training used."""
        return {"label_share": float(setting_of(roots, "label_share"))}

    def introduction(self, result: Mapping[str, Any]) -> str:
        """With the share of the rewrites."""
        wording = (
            " `rouge1`: with the human's rewrite; `repeated_bigrams`: share of queries in which two words that stand "
            "together do so again; `cut`: share that the limit of tokens cut off."
        )
        about = self.about + (wording if len(self.shown_columns(result["rows"])) > len(COLUMNS) else "")
        return f"{about} Human rewrites that training may use: {result['label_share']:.0%}."

    def measure(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """Rows, their spread, gains over each system's T5QR, by how a question asks, learning curves, minutes."""
        compared = super().measure(roots)
        rows = compared["rows"]
        return {
            **compared,
            "gains": {system: gains_of(rows, system, start) for system, start in COMPARED.items()},
            "exact": {system: _exact(roots, system) for system in self.runs},
            **self.training(roots),
        }

    def row(self, root: Path, system: str, seed: int) -> dict[str, Any]:
        """What the evaluation says of a system."""
        return evaluation_row(root / "evaluation.json", system, seed)

    def shown_columns(self, rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        """With the wording of the queries, where all rows have it."""
        return (*self.columns, *(name for name in WORDING if all(name in row for row in rows)))

    def body(self, result: Mapping[str, Any]) -> str:
        """Gains, learning curves, spread, differences, every run, rewrites word by word, minutes."""
        seeds = len(result["seeds"])
        rows = [
            {
                "system": system,
                "over": COMPARED[system],
                "gain in MRR": f"{fmean(gains):+.1%}",
                "lowest": f"{min(gains):+.1%}",
                "highest": f"{max(gains):+.1%}",
                f"at least {WANTED_GAIN:.0%}": f"in {_enough(gains)} of {seeds} seeds",
            }
            for system, gains in result["gains"].items()
        ]
        exact = [
            {"system": system, **{kind: fmean(row[kind] for row in by_seed) for kind in by_seed[0]}}
            for system, by_seed in result["exact"].items()
        ]
        kept = kept_rows(result["curves"], result["seeds"], "system", "accuracy")
        return (
            f"## Over T5QR\n\n{markdown_table(rows, [*rows[0]])}\n"
            f"{self.curves_image}\n\n{super().body(result)}\n"
            "## In-batch accuracy on the dev questions\n\nThe policy of the best validation is kept; it may be the one "
            f"that training began with (step 0).\n\n{markdown_table(kept, [*kept[0]])}\n"
            "## Rewrites that are the human's word by word, by how the question asks\n\n"
            f"Mean over seeds.\n\n{markdown_table(exact, [*exact[0]])}\n"
            f"{self.longest(result)}\n"
        )

    def draw(self, result: Mapping[str, Any], path: Path) -> None:
        """Bars of the MRR, and the learning curves in a file of their own."""
        short = {CONTEXT: "context", T5QR: "T5QR", MIX: "mix", RL: "RL", KL: "KL", BARE: "bare", SHUFFLED: "shuffled"}
        short |= {HUMAN: "human"}
        panels = {"mrr": "all questions", "mrr_concentrated": "topic stays", "mrr_shifted": "topic shifts"}
        summary = result["summary"]
        draw_bars(path, [Bars(t, {short[s]: summary[s][column] for s in short}) for column, t in panels.items()])
        titles = {"accuracy": "in-batch accuracy", "rouge1": "ROUGE-1 with human rewrites"}
        self.draw_curves(result, {run: short[run] for run in result["curves"] if run in short}, titles)


def _enough(gains: Sequence[float]) -> int:
    return sum(gain >= WANTED_GAIN for gain in gains)


def gains_of(rows: Sequence[Mapping[str, Any]], system: str, start: str = T5QR) -> list[float]:
    """By how much a system's MRR exceeds that of a T5QR, as a share of the latter, seed by seed.

    Raises:
        DataError: the T5QR found nothing at all.
    """
    mrr = {(row["system"], row["seed"]): float(row["mrr"]) for row in rows}
    seeds = seeds_of(rows)
    if nothing := [seed for seed in seeds if mrr[start, seed] == 0]:
        raise DataError(f"the MRR of {start} is 0 with seed {nothing[0]}: there is no share of it", field="mrr")
    return [mrr[system, seed] / mrr[start, seed] - 1.0 for seed in seeds]


def evaluation_row(path: Path, system: str, seed: int, name: str | None = None) -> dict[str, Any]:
    """What an evaluation says of a system, in `COLUMNS` and, where they were measured, `WORDING`.

    Args:
        path: results of `finegrained evaluate-rewrites`.
        system: as the row says.
        seed: as the row says.
        name: of the system in the results, where it is another one.

    Raises:
        DataError: it does not know the system, or a number is missing.
    """
    systems = read_json(path)["systems"]
    name = name or system
    if name not in systems:
        raise DataError(f"expected scores of {name}", file=path, field="systems")
    scores = systems[name]
    row: dict[str, Any] = {"system": system, "seed": seed}
    try:
        row |= {column: float(scores["overall"][name]) for column, name in METRICS.items()}
        row |= {column: float(scores["groups"]["topic"][name]["mrr"]) for column, name in TOPICS.items()}
        row |= {"repeats": float(scores["repeats"])}
        row |= {"words": float(scores["tokens"] or 0.0), "overlap": float(scores["overlap"] or 0.0)}  # no word: null
        return row | {name: float(scores[name] or 0.0) for name in WORDING if name in scores}  # no query is cut: null
    except KeyError as error:
        raise DataError("is not among the scores", file=path, record=name, field=str(error.args[0])) from None


def _exact(roots: Mapping[int, Path], system: str) -> list[dict[str, float]]:
    """For each seed, the share of a system's rewrites that are the human's word by word, by how the question asks."""
    shares = []
    for root in roots.values():
        kinds = {row["id"]: row["kinds"] for row in read_jsonl(root / "world" / "world.jsonl")}
        rewrites = read_rewrites(root / "rewrites" / f"{system}.jsonl")
        groups: dict[str, list[bool]] = {"first": [], "named": [], "pronoun": [], "ellipsis": [], "shift": []}
        for example in RewriteData(str(root / "world" / "test.jsonl")).read().examples:
            kind = "first" if example.turn == 1 else kinds[example.dialogue][example.turn - 1]
            groups[kind].append(rewrites.get(example.id) == example.rewrite)
        shares.append({kind: fmean(members) for kind, members in groups.items() if members})
    return shares


def kept_rows(
    curves: Mapping[str, Sequence[Sequence[Mapping[str, float]]]], seeds: Sequence[int], name: str, column: str
) -> list[dict[str, Any]]:
    """The first, the best (the first of equal ones) and the last validation of each run and seed.

    Args:
        curves: by run, a curve a seed.
        seeds: in the same order.
        name: column of the runs' names.
        column: what the validations were judged by; more is better.
    """
    rows = []
    for run, of_run in curves.items():
        for seed, curve in zip(seeds, of_run, strict=True):
            best = max(curve, key=lambda row: row[column])
            values = {"at first": curve[0][column], "best": best[column], "at step": int(best["step"])}
            rows.append({name: run, "seed": seed, **values, "at last": curve[-1][column]})
    return rows
