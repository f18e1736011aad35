"""How well rankings put gold passages on top: MRR, recall, hit rate, nDCG and others, turn by turn and on average.

- `mrr`: 1 / rank of the first gold passage, 0 where none is in the run. The whole run counts, however deep it is.
- `recall@k`: share of the gold passages among the first k.
- `hit_rate@k`: 1 where at least one gold passage is among the first k. It is the thesis's R@k.
- `ndcg@k`: Σ rel_i / log2(i + 1) over the first k ranks i, divided by the same sum of the best possible order. rel_i is
  the grade of the passage; the other metrics know only gold or not. `ndcg` is the same over the whole run.
- `map`, `map@k`: average precision, Σ precision@i over the ranks i of the gold passages found (up to k), divided by the
  number of gold passages.
- `r_precision`: precision@R of a turn with R gold passages.
- `precision@k`: share of gold among the first k ranks; a run with fewer hits counts as if the others were wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.retrieval.runs import Judgements, Run, in_trec_order

_AT_DEPTH = {"recall": "recall", "hit_rate": "success", "ndcg": "ndcg_cut", "map": "map_cut", "precision": "P"}
_WHOLE_RUN = {"mrr": "recip_rank", "map": "map", "r_precision": "Rprec", "ndcg": "ndcg"}
"""Metrics as trec_eval calls them, those with a depth `@k` and those without."""


@dataclass(frozen=True)
class RankingMetrics(Settings):
    """Which metrics, and over which turns they are averaged.

    Attributes:
        form: `updated`: turns without a gold passage do not count (the thesis's tables but 4.2). `original`: all turns
            count, those without gold as 0. The two differ by a factor (thesis, footnote 8).
        missing: a turn without hits counts as 0 (`zero`) or not at all (`drop`), as in the reference script.
        recall_at: depths k of recall@k and hit_rate@k.
        ndcg_at: depths k of ndcg@k.
        also: further metrics, in the order of tables: `map`, `map@k`, `r_precision`, `ndcg`, `precision@k`, or another
            depth of the others.
    """

    form: Literal["updated", "original"] = "updated"
    missing: Literal["zero", "drop"] = "zero"
    recall_at: tuple[int, ...] = (10, 100)
    ndcg_at: tuple[int, ...] = (3, 10)
    also: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("recall_at", "ndcg_at"):
            depths = tuple(getattr(self, name))
            object.__setattr__(self, name, depths)
            if any(depth < 1 for depth in depths):
                raise ConfigError(f"{name}: expected depths of at least 1, got {list(depths)}")
        object.__setattr__(self, "also", tuple(self.also))
        for name in self.also:
            if not _known(name):
                known = "map, map@k, r_precision, ndcg, precision@k, or recall, hit_rate, ndcg @k"
                raise ConfigError(f"also: expected some of {known} with whole numbers k from 1, got {name!r}")
        if twice := [name for name in self.also if self.names.count(name) > 1]:
            raise ConfigError(f"also: {twice[0]} is there already")

    @property
    def deepest(self) -> int:
        """The greatest depth k of a metric, at least 1: a run must be as deep for its values to be right."""
        return max((int(name.partition("@")[2] or 1) for name in self.names), default=1)

    @property
    def names(self) -> tuple[str, ...]:
        """The metrics in the order of tables."""
        recall = [f"{name}@{depth}" for name in ("recall", "hit_rate") for depth in self.recall_at]
        return ("mrr", *recall, *(f"ndcg@{depth}" for depth in self.ndcg_at), *self.also)

    def of_turns(
        self, run: Run, judgements: Judgements, turns: Iterable[str], grades: Judgements | None = None
    ) -> dict[str, dict[str, float]]:
        """The metrics of each turn that counts.

        Args:
            run: the hits of each turn; a turn without hits may be absent.
            judgements: a turn without gold may be absent.
            turns: ids of all turns that are evaluated.
            grades: what nDCG counts, where that is more than the gold of `judgements`, as trec_eval's `-l` makes it:
                grades below the level count in nDCG and nowhere else. None: `judgements`.

        Returns:
            Metric name → value in [0, 1] by turn, in the order of `turns`.

        Raises:
            DataError: a turn of the run or of the judgements is not among `turns`, an id occurs twice there, or a
                hit is broken.
            ConfigError: pytrec_eval is not installed.
        """
        order = list(turns)
        known = set(order)
        if len(known) < len(order):
            raise DataError(f"{len(order) - len(known)} turns to evaluate occur twice; expected every id once")
        grades = judgements if grades is None else grades
        for what, by_turn in (("run", run), ("judgements", judgements), ("grades", grades)):
            if strange := sorted(set(by_turn) - known):
                problem = f"a turn of the {what} is not among those to evaluate ({len(strange)} in all)"
                raise DataError(problem, record=strange[0])
        gold = {turn for turn in order if any(relevance > 0 for relevance in judgements.get(turn, {}).values())}
        counted = [
            turn
            for turn in order
            if (self.form == "original" or turn in gold) and (self.missing == "zero" or run.get(turn))
        ]
        wanted = [turn for turn in counted if turn in gold and run.get(turn)]
        scored = self._trec_eval(run, judgements, grades, wanted)
        return {turn: scored.get(turn) or dict.fromkeys(self.names, 0.0) for turn in counted}

    def _trec_eval(
        self, run: Run, judgements: Judgements, grades: Judgements, turns: Sequence[str]
    ) -> dict[str, dict[str, float]]:
        """The values of turns that have gold and hits: nDCG by the grades, the rest by the judgements."""
        wanted = {name: _measure(name, "_") for name in self.names}
        scores = {turn: {hit.id: hit.score for hit in in_trec_order(run[turn])} for turn in turns}
        values: dict[str, dict[str, float]] = {turn: {} for turn in turns}
        for judged, graded in ((judgements, False), (grades, True)):
            measures = {_measure(name, ".") for name in self.names if name.startswith("ndcg") == graded}
            if not measures or not turns:
                continue
            relevance = {turn: dict(judged.get(turn, {})) for turn in turns}
            for turn, of_turn in _pytrec_eval().RelevanceEvaluator(relevance, measures).evaluate(scores).items():
                values[turn] |= of_turn
        return {turn: {name: values[turn][key] for name, key in wanted.items()} for turn in turns}


def _known(name: str) -> bool:
    kind, at, depth = name.partition("@")
    if not at:
        return kind in _WHOLE_RUN
    return kind in _AT_DEPTH and depth.isascii() and depth.isdigit() and not depth.startswith("0")


def _measure(name: str, joint: str) -> str:
    """trec_eval's name of a metric; `joint` stands before its depth: `.` in a request, `_` in an answer."""
    kind, at, depth = name.partition("@")
    return f"{_AT_DEPTH[kind]}{joint}{depth}" if at else _WHOLE_RUN[kind]


def mean_of_turns(values: Mapping[str, Mapping[str, float]], turns: Iterable[str] | None = None) -> dict[str, float]:
    """The mean of each metric over turns, and how many they are.

    Args:
        values: of each turn, as `RankingMetrics.of_turns` gives them.
        turns: the turns of a group; those without values do not count. None takes all.

    Returns:
        Metric name → mean, and `turns` → their number; nothing but the number where there are none.
    """
    chosen = [values[turn] for turn in (values if turns is None else dict.fromkeys(turns)) if turn in values]
    names = chosen[0] if chosen else ()
    return {"turns": len(chosen), **{name: math.fsum(of[name] for of in chosen) / len(chosen) for name in names}}


def _pytrec_eval() -> Any:
    try:
        import pytrec_eval
    except ImportError:
        raise ConfigError("ranking metrics need pytrec_eval: pip install -e '.[retrieval]' in a checkout") from None
    return pytrec_eval
