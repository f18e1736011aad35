"""Holes of dense reward: what a policy learns where the form of an answer costs nothing, and where it does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from finegrained_lab.experiments.factworld.answers import TRUTH, evaluation_path
from finegrained_lab.experiments.factworld.evaluated import EvaluatedTable
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, read_jsonl
from finegrained_rlhf.feedback.outputs import read_outputs
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory

OPEN, EMPTY, END, OVERLONG = "open", "empty", "end", "overlong"
CUT_OPEN, CUT_END = "cut_open", "cut_end"
_LAST = 5
"""Training steps at the end of a run whose sampled responses are counted."""


@dataclass(frozen=True)
class HolesTable(EvaluatedTable):
    """What closing each hole of a dense reward changes."""

    title = "FactWorld: holes of dense reward"
    about = (
        "True errors by the oracle on held-out test questions, greedy decoding. A look at the holes on one seed, not a "
        "comparison of methods: short runs from a policy that supervised training has not finished. `open`: the "
        "paper's reward, in which an answer without a word, without an end or of any length costs nothing; "
        "`empty`: relevance and factuality give -1 to an answer without a word "
        "(`reward.settings.NAME.empty=-1`, this project's default); `end`: an answer without its end costs 1 "
        "(`reward.end_penalty=1`); `overlong`: every token behind the 24th costs 0.1 (`reward.overlong`). `cut_open` "
        "and `cut_end`: `open` and `end` with responses cut at 20 tokens in training. `without_words` and `finished`: "
        "share of greedy answers without a word, and with an end; `sampled_ended` and `sampled_tokens`: share with an "
        "end, and tokens, of the responses sampled in the last five training steps (`sft`: in the first of `open`)."
    )
    runs = (OPEN, EMPTY, END, OVERLONG, CUT_OPEN, CUT_END)
    systems = ("sft", *runs)
    baseline = OPEN
    columns = (*TRUTH, "without_words", "finished", "mean_tokens", "sampled_ended", "sampled_tokens")

    def row(self, root: Path, system: str, seed: int) -> dict[str, Any]:
        """With the form of greedy answers, and of sampled ones: the last of a run, the first where it is the start.

        Raises:
            DataError: a result is missing.
        """
        path = evaluation_path(root, system)
        finished = read_json(path).get("finished_share")
        if finished is None:
            raise DataError("missing: evaluate a policy", file=path, field="finished_share")
        answers = [record.outputs[0] for record in read_outputs(path.with_suffix(".outputs.jsonl"))]
        trained = system in self.runs
        steps = read_jsonl(RunDirectory(root / (system if trained else OPEN)).metrics)
        counted = steps[-_LAST:] if trained else steps[:1]
        return super().row(root, system, seed) | {
            "without_words": fmean(not answer.strip() for answer in answers),
            "finished": finished,
            "sampled_ended": fmean(step["eos_rate"] for step in counted),
            "sampled_tokens": fmean(step["response_length"] for step in counted),
        }
