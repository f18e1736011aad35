"""The rows of a world: what is measured of each reward of its grid, and what is true of the samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from finegrained_lab.experiments.predict.faults import COMPONENT, IN_BATTERY
from finegrained_lab.experiments.predict.grid import RewardModelGrid
from finegrained_lab.experiments.predict.policies import read_reward
from finegrained_lab.experiments.predict.rewards import Measures, row_of
from finegrained_lab.experiments.predict.texts import Shown
from finegrained_lab.worlds.factworld.changes import BATTERY
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.markers import OutputFile
from finegrained_rlhf.factworld.oracle import judge, pool, source_of
from finegrained_rlhf.factworld.report import RATES, mean_error
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER, shared_segmenter

SURFACE = tuple(change.name for change in BATTERY if change.family == "surface")


def factworld_truth(shown: Shown) -> Measures:
    """The oracle's counts: found and of how many, for each rate; the mean error; fewer errors are better."""
    segmenter = shared_segmenter(DEFAULT_SEGMENTER)
    counts: dict[str, dict[str, tuple[float, ...]]] = {}
    for record in shown.pool:
        source, own = source_of(record, segmenter), counts.setdefault(record.id, {})
        for text in dict.fromkeys(record.outputs):
            one = pool([judge(source, text, segmenter)])
            rates = (one.relevance_errors, one.sub_sentences, one.factual_errors, one.sentences, one.given, one.asked)
            own[text] = tuple(map(float, rates))
    return Measures(counts, _mean_error, lambda row: -(row[0] + row[2] + row[5] - row[4]))


def _mean_error(sums: Sequence[float]) -> float:
    relevance, sub_sentences, factual, sentences, given, asked = sums
    rates = (relevance / max(sub_sentences, 1), factual / max(sentences, 1), given / max(asked, 1))
    return mean_error(dict(zip(RATES, rates, strict=True)))


@dataclass(frozen=True)
class MeasureRewards(Settings):
    """Write a row a reward of a grid.

    Attributes:
        grid: with all its components scored.
        weights: of the components.
        output: JSON.
    """

    grid: RewardModelGrid
    weights: Mapping[str, float]
    output: OutputFile

    def run(self) -> None:
        """Measure and write.

        Raises:
            DataError: a component is not scored.
        """
        truth = factworld_truth(self.grid.shown)
        rows: list[dict[str, Any]] = []
        for noise in self.grid.noises:
            for fault in self.grid.faults:
                rewards = {size: read_reward(self.grid, self.weights, size, noise, fault) for size in self.grid.models}
                for size, reward in rewards.items():
                    others = [other for name, other in rewards.items() if name != size]
                    row = row_of(reward, truth, others, SURFACE)
                    what = {"fault": fault, "component": COMPONENT[fault], "in_battery": IN_BATTERY.get(fault)}
                    rows.append({**what, "size": size, "noise": noise, "seed": self.grid.seed, **row})
        write_json(self.output, rows)
        print(f"{len(rows)} rewards -> {self.output}")
