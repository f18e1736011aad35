"""When the same reward is paid on real questions: at the last token, where segments end, or as it changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from finegrained_lab.experiments.gate import SFT, gate_page, judge_gate
from finegrained_lab.experiments.qa_feedback.distilled.pool import (
    COLUMNS,
    JUDGE,
    JUDGED_BY,
    PARTS,
    RECALLED,
    TOTAL,
    UNSUPPORTED,
    Pooled,
    pool_of,
    totals_of_known,
)
from finegrained_lab.experiments.qa_feedback.distilled.systems import (
    differences,
    differences_page,
    means,
    sampled_systems,
    trivial_systems,
)
from finegrained_lab.experiments.qa_feedback.measures import Measured
from finegrained_lab.experiments.results_table import Results
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, read_jsonl
from finegrained_rlhf.feedback.outputs import read_outputs
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.text.tables import markdown_table

_TRAINING = ("reward/total", "kl", "gradient_norm")
_LAST = 10


@dataclass(frozen=True)
class RealCreditTable(Results):
    """Every point of `pipeline=qa_feedback/credit` on dev and test questions, and each system's chosen point.

    Attributes:
        directory: of the runs, `{credit}_lr{lr}_beta{beta}`, with `…_dev.jsonl` and `…_test.jsonl` beside them.
        start: what they started from: `dev.jsonl`, `sft.jsonl`, `reward_model`, `judge`.
        credits: the systems.
        lrs, betas: the grid of each.
    """

    title: ClassVar[str] = "Real questions: the same reward paid at the end, where segments end, and as it changes"
    about: ClassVar[str] = (
        "SmolLM2-135M after SFT on gold answers (`sft`), then RLOO with returns by token, whose reward is that of "
        "one bottleneck's three components. `outcome` pays the whole answer's worth at its last token, `end` each "
        "segment where it ends, `revised` what each prefix is worth, corrected until all of it is paid. Rows are means "
        "over the samples of a question. `judge` is another encoder's bottleneck, which learnt from feedback on "
        "other questions; `bottleneck` the reward model as people's comparisons weigh it, no judge of what learnt from "
        "it; the other columns need none (`measures.md`). `gold`: the human answer, `cut_gold` its first 30 words, "
        "`cut_lead` the first 35 words of the first passage, `best_sentence` the passage sentence nearest to the "
        "question."
    )

    directory: str
    start: str
    credits: Sequence[str]
    lrs: Sequence[float]
    betas: Sequence[float]

    def run(self) -> dict[str, Any]:
        """Measure every point, choose one a system on dev questions, write results and page.

        Raises:
            DataError: a point is missing, or answered other questions.
            ModelError: there is no reward model or judge.
        """
        from reward_models.bottleneck.model import load_bottleneck

        start = Path(self.start)
        model, judge = (load_bottleneck(str(start / name)) for name in ("reward_model", JUDGE))
        samples = {"dev": start / "dev.jsonl", "test": start / "sft.jsonl"}
        sft = {part: pool_of(model, read_outputs(path), 0, judge) for part, path in samples.items()}
        points: list[dict[str, Any]] = []
        measured: dict[tuple[str, float, float], list[Measured]] = {}
        for credit, lr, beta in product(self.credits, self.lrs, self.betas):
            name = f"{credit}_lr{lr}_beta{beta}"
            pools = {part: self._pool(name, part, sft[part], model, judge) for part in samples}
            dev, test = (sampled_systems({name: of}, COLUMNS)[name] for of in pools.values())
            point = {"system": credit, "lr": lr, "beta": beta, "dev": _worth(means(dev, COLUMNS))}
            points.append({**point, **self._training(name), **means(test, COLUMNS)})
            measured[credit, lr, beta] = test
        chosen = {
            credit: max((p for p in points if p["system"] == credit), key=itemgetter("dev")) for credit in self.credits
        }
        systems = {SFT: sampled_systems({SFT: sft["test"]}, COLUMNS)[SFT]}
        systems |= {credit: measured[credit, point["lr"], point["beta"]] for credit, point in chosen.items()}
        trivial = trivial_systems({TOTAL: model, JUDGE: judge}, sft["test"])
        names = list(systems)
        compared = [(ours, theirs) for i, theirs in enumerate(names) for ours in names[i + 1 :]]
        return self.write(
            {
                **self.made_by(),
                "questions": {part: len(of) for part, of in sft.items()},
                "sft_on_dev": _worth(means(sampled_systems({SFT: sft["dev"]}, COLUMNS)[SFT], COLUMNS)),
                "best_points": {name: {key: point[key] for key in ("lr", "beta")} for name, point in chosen.items()},
                "rows": [{"system": name, **means(of, COLUMNS)} for name, of in (systems | trivial).items()],
                "points": points,
                "differences": [
                    {"system": f"{ours} − {theirs}", **differences(systems[ours], systems[theirs], COLUMNS)}
                    for ours, theirs in compared
                ],
                "gate": judge_gate(
                    totals_of_known(judge, sft["test"], JUDGE),
                    read_json(start / JUDGE / "stress.json"),
                    JUDGED_BY,
                    PARTS,
                ),
            }
        )

    def _pool(self, name: str, part: str, sft: Sequence[Pooled], *models: Any) -> list[Pooled]:
        path = Path(self.directory) / f"{name}_{part}.jsonl"
        if not path.is_file():
            raise DataError("this point of the grid has not answered yet", file=path)
        records = read_outputs(path)
        if [one.id for one in records] != [one.record.id for one in sft]:
            raise DataError("expected answers to SFT's questions in the same order", file=path)
        return pool_of(models[0], records, 0, models[1])

    def _training(self, name: str) -> dict[str, float]:
        """Means over a run's last steps."""
        rows = read_jsonl(RunDirectory(Path(self.directory) / name).metrics)[-_LAST:]
        return {f"training/{key}": fmean(row[key] for row in rows) for key in _TRAINING}

    def page(self, result: Mapping[str, Any]) -> str:
        """The chosen points, their differences, the whole grid, and whether the judge counts."""
        questions, chosen = result["questions"], result["best_points"]
        points = "; ".join(f"`{name}` lr {of['lr']:g}, β {of['beta']:g}" for name, of in chosen.items())
        training = [f"training/{key}" for key in _TRAINING]
        grid = [{**point, **{key: f"{point[key]:g}" for key in ("lr", "beta")}} for point in result["points"]]
        parts = [
            self.opening(result, self.title, self.about),
            f"{questions['test']} held-out questions. Chosen for each system by the share of gold facts less that of "
            f"unsupported names on {questions['dev']} dev questions (SFT: {result['sft_on_dev']:.3f}): {points}. One "
            "seed of training: nothing is known of the spread between runs.",
            markdown_table(result["rows"], ["system", *COLUMNS]),
            "## Differences, with 95% intervals over questions",
            differences_page(result["differences"], COLUMNS),
            "## Every point of the grid\n\n`dev`: what chose. `training/…`: means over a run's last ten steps.",
            markdown_table(grid, ["system", "lr", "beta", "dev", *training, *COLUMNS]),
            gate_page(result["gate"]),
        ]
        return "\n\n".join(part.strip() for part in parts) + "\n"


def _worth(row: Mapping[str, float | None]) -> float:
    """Gold facts less unsupported names and numbers: what chooses among the points of a system."""
    return (row[RECALLED] or 0.0) - (row[UNSUPPORTED] or 0.0)
