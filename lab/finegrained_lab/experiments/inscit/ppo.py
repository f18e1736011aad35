"""PPO of a reader on InscitWorld against the reader that it begins with. Reads what the steps wrote; runs no model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from finegrained_lab.experiments.compared_table import CurvesTable
from finegrained_lab.experiments.inscit.world import SCORES, TRUTH
from finegrained_rlhf.core.files import read_json

SFT, DENSE, WHOLE = "dpr_fid", "ppo_dense", "ppo_whole"


@dataclass(frozen=True)
class InscitPPOTable(CurvesTable):
    """A fusion-in-decoder reader before and after PPO, on the test turns of each seed's world."""

    title: ClassVar[str] = "InscitWorld: PPO of a fusion-in-decoder reader"
    world: ClassVar[str] = "InscitWorld"
    systems: ClassVar[tuple[str, ...]] = (SFT, DENSE, WHOLE)
    baseline: ClassVar[str] = SFT
    columns: ClassVar[tuple[str, ...]] = (*SCORES, *TRUTH, "silent", "passages")
    runs: ClassVar[tuple[str, ...]] = ("ppo/dense", "ppo/whole")
    curved: ClassVar[tuple[str, ...]] = ("ppo/dense", "ppo/whole")
    validated: ClassVar[tuple[str, ...]] = ("reward/total", *(f"truth/{name}" for name in TRUTH))
    caption: ClassVar[str] = "The truth about answers to dev turns while PPO trains"
    about: ClassVar[str] = (
        "Test turns, with gold history; greedy decoding. `dpr_fid`: the reader of [the chapter's table](world.md), "
        "which reads what the trained retriever finds, names its evidence and answers; PPO begins with it. "
        "`ppo_dense`: every sentence is paid for what its evidence states, every named passage for being used, each "
        "where it ends, and the answer for the facts that were asked for. `ppo_whole`: the same numbers, all at the "
        "last token. The rewards are the world's truth, so this says what PPO makes of dense rewards, and nothing "
        "about reward models. pi_f1, bleu and rg_f1 are percent; what follows is true of the answers by the oracle, "
        "from 0 to 1 (`consistency`, `utility`, `coverage`, `comprehensiveness`, `true`). `silent`: answers that state "
        "nothing. `passages`: named in an answer."
    )

    def row(self, root: Path, system: str, seed: int) -> dict[str, Any]:
        """What `finegrained evaluate-inscit` and the oracle say of a system."""
        scores, truth = read_json(root / "scores" / f"{system}.json"), read_json(root / "truth" / f"{system}.json")
        predictions = read_json(root / "said" / f"{system}.json")
        named = sum(len(one["output"]["evidence"]) for one in predictions) / len(predictions)
        row = {"system": system, "seed": seed, **{name: scores[name] for name in SCORES}}
        return {**row, **{name: truth[name] for name in (*TRUTH, "silent")}, "passages": named}

    def measure(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """Rows with their spread, the differences from SFT, and how training went."""
        return {**super().measure(roots), **self.training(roots)}

    def body(self, result: Mapping[str, Any]) -> str:
        """Spread, differences, every run, minutes."""
        return "\n\n".join([super().body(result), self.longest(result)])

    def draw(self, result: Mapping[str, Any], path: Path) -> None:
        """Three measures of the truth by step: mean and range over seeds."""
        titles = {f"truth/{name}": name for name in ("consistency", "utility", "comprehensiveness")}
        self.draw_bands(result, path, titles)
