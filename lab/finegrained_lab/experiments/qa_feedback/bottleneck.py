"""Rewards with a bottleneck on real feedback: what people said, changes of a family never trained on, trivial answers.

Five folds by question. In each, heads are fitted on every family of changes but one and judge the changes of that one
to questions they never saw; people's marks are held against heads that were fitted on all families. Fits of one row
share their encoder and everything read of an answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from finegrained_lab.experiments.intervals import borders, resampled
from finegrained_lab.experiments.qa_feedback.scores import Measured, difference, measure
from finegrained_lab.experiments.qa_feedback.split import Fold, split_by_question
from finegrained_lab.experiments.results_table import Results
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.core.markers import InputFile, ModelName, Seed
from finegrained_rlhf.feedback.reading import read_feedback
from finegrained_rlhf.rewards.stress.changes import MakesChanges, run_changes
from finegrained_rlhf.rewards.stress.makers import BUILT_IN
from finegrained_rlhf.rewards.stress.measure import share_of
from finegrained_rlhf.rewards.stress.reading import read_items
from finegrained_rlhf.text.tables import markdown_table
from reward_models.config import BottleneckConfig
from reward_models.kinds import KINDS

if TYPE_CHECKING:
    from reward_models.trust.items import JudgedRecord

FAMILIES = ("copy", "swap", "insert", "delete", "mismatch", "degenerate")
"""Of changes: trained on five, tested on the sixth."""
OTHERS = ("pad", "cut")
"""Families that nothing is ever trained on."""
ROLES = ("relevance", "factuality", "completeness")
GOALS: Mapping[str, tuple[str, float]] = {
    "relevance": ("balanced_accuracy", 0.65),
    "factuality": ("balanced_accuracy", 0.83),
    "completeness": ("pair_accuracy", 0.70),
    "preference": ("pair_accuracy", 0.60),
}
"""What today's rows of counted words have; no more than `SLACK` may be lost."""
COMPONENTS = tuple(GOALS)
SLACK = 0.03
BASELINES = ("counts", "overlap")


@dataclass(frozen=True)
class BottleneckRow(Settings):
    """One row of the table.

    Attributes:
        encoder: the frozen encoder, a directory.
        config: of the heads; its `planted` are the families trained on beside people's marks, and those that are
            rotated where there are any.
        oracle: take what the gold answer says as what is needed, of the held-out questions too. No reward, but what
            could be reached if it were known what is needed.
        folds: which folds are run.
        searched: questions of each fold that a price is searched for.
    """

    encoder: ModelName
    config: BottleneckConfig = BottleneckConfig()
    oracle: bool = False
    folds: Sequence[int] = (0, 1, 2, 3, 4)
    searched: int = 12


@dataclass(frozen=True)
class RunBottleneckFolds(Settings):
    """Fits and measures every row in every fold; what is there is not made again.

    Attributes:
        feedback: feedback file with gold answers.
        output_dir: where `ROW/fold_K.json` is written, and vectors of texts are kept (`ENCODER.npz`).
        rows: by name.
        split: folds.
        seed: of folds, changes and search.
    """

    feedback: InputFile
    output_dir: str
    rows: Mapping[str, BottleneckRow]
    split: int = 5
    seed: Seed = 0

    def run(self) -> None:
        """Write what is missing."""
        from finegrained_lab.experiments.qa_feedback.bottleneck_folds import FoldRun, keep, recall
        from reward_models.bottleneck.model import SentenceEncoder

        records = read_feedback(self.feedback)
        items = {item.record.id: item for item in read_items(self.feedback)}
        folds = split_by_question(records, self.split, 0.125, self.seed)
        makers: list[MakesChanges] = list(BUILT_IN)
        changes = run_changes([item.record for item in items.values()], makers, self.seed)
        for name, row in self.rows.items():
            todo = [k for k in row.folds if not self.place(name, k).is_file()]
            if not todo:
                continue
            encoder = SentenceEncoder(row.encoder)
            kept = Path(self.output_dir) / f"{encoder.digest[:12]}.npz"
            recall(encoder, kept)
            for number in todo:
                print(f"bottleneck: {name}, fold {number}", flush=True)
                measured = FoldRun(row, encoder, folds[number], items, changes, self.seed).measure()
                self.place(name, number).parent.mkdir(parents=True, exist_ok=True)
                write_json(self.place(name, number), measured)
                keep(encoder, kept)

    def place(self, row: str, fold: int) -> Path:
        """Where a fold of a row is written."""
        return Path(self.output_dir) / row / f"fold_{fold}.json"


@dataclass(frozen=True)
class BottleneckTable(Results):
    """The table of `RunBottleneckFolds`, beside today's rows and the goals.

    Attributes:
        feedback: feedback file.
        directory: that `RunBottleneckFolds` wrote.
        names: what each row is, for the page, in the page's order.
        split: folds.
        seed: of the folds.
        heading: of the page.
    """

    about: ClassVar[str] = (
        "QA-FEEDBACK's published dev feedback in five folds by question. Rows of people's marks as in "
        "`reward_models.md`; intervals: 95%, bootstrap over questions. A change is ranked right if the component does "
        "at the place what is known of the change (docs/stress_test.md). Heads of a row with planted changes judge a "
        "family that they were not trained on (`copy`, `swap`, `insert`, `delete`, `mismatch`, `degenerate` in turn; "
        "`pad` and `cut` never). Totals weigh means over segments and the standardised completeness as the head of "
        "preferences does; where trivial answers and the price are shown, `copy` is left out of what is planted. The "
        "cut lead is the first 35 words of the first passage; the best sentence the one nearest to the question by its "
        "vector; the foreign answer another question's gold answer. The price: the best of 200 truth-free edits "
        "against the median of the record's four answers (no policy is sampled), for the first questions of each fold."
    )

    feedback: InputFile
    directory: str
    names: Mapping[str, str]
    split: int = 5
    seed: Seed = 0
    heading: str = "Rewards with a bottleneck"

    def run(self) -> dict[str, Any]:
        """Measure what is there, write results and page.

        Raises:
            DataError: no row has a fold.
        """
        folds = split_by_question(read_feedback(self.feedback), self.split, 0.125, self.seed)
        today = {name: _today(folds, name) for name in BASELINES}
        rows = []
        for name in self.names:
            places = sorted((Path(self.directory) / name).glob("fold_*.json"))
            if places:
                rows.append(_row(name, [read_json(place) for place in places], today["counts"], self.seed))
        if not rows:
            raise DataError("no row has a fold that was run", file=self.directory)
        people = {name: {kind: _shown(records, kind) for kind, records in of.items()} for name, of in today.items()}
        return self.write({**self.made_by(), "names": dict(self.names), "today": people, "rows": rows})

    def page(self, result: Mapping[str, Any]) -> str:
        """The page of a results file."""
        parts = [self.opening(result, self.heading, self.about)]
        having = {row["row"]: f"Folds: {row['folds']}." for row in result["rows"]}
        listed = [f"- `{name}`: {words} {having.get(name, 'Not run.')}" for name, words in result["names"].items()]
        parts += ["\n".join(listed), f"## What a question needs\n\n{_need_table(result['rows'])}"]
        parts += [f"## What people said\n\n{_people_table(result)}"]
        parts += [f"## Changes of unseen families\n\n{_changes_table(result['rows'])}"]
        parts += [f"## Trivial answers\n\n{_trivial_table(result['rows'])}"]
        parts += [f"## What had to be reached\n\n{_goal_table(result['rows'])}"]
        return "\n\n".join(part.strip() for part in parts) + "\n"


def _today(folds: Sequence[Fold], name: str) -> dict[str, list[JudgedRecord]]:
    from finegrained_lab.experiments.qa_feedback.baselines import baseline, counted
    from finegrained_rlhf.text.segmentation import SpacySegmenter

    segmenter, by_kind = SpacySegmenter(), {}
    for kind in KINDS.values():
        items = [counted(kind, fold.test, segmenter) for fold in folds]
        by_kind[kind.name] = [
            one
            for k, test in enumerate(items)
            for one in baseline(name, kind, [item for j, of in enumerate(items) if j != k for item in of], test)
        ]
    return by_kind


def _shown(records: Sequence[JudgedRecord], kind: str) -> dict[str, Any]:
    metric = GOALS[kind][0]
    return {"metric": metric, "questions": len(records), **asdict(measure(records, KINDS[kind].form)[metric])}


def _row(
    name: str, folds: Sequence[Mapping[str, Any]], counts: Mapping[str, Sequence[JudgedRecord]], seed: int
) -> dict[str, Any]:
    people = {}
    for kind in COMPONENTS:
        records = [_judged_record(one) for fold in folds for one in fold["judged"][kind]]
        gap = difference(records, counts[kind], KINDS[kind].form, GOALS[kind][0])
        people[kind] = {**_shown(records, kind), "less_counts": asdict(gap)}
    flags: dict[tuple[str, ...], list[tuple[str, bool]]] = defaultdict(list)
    for fold in folds:
        for one in fold["changes"]:
            flags[one["family"], one["name"], one["role"], one["direction"]].append((one["record"], one["right"]))
    changes = [
        {"family": key[0], "change": key[1], "role": key[2], "direction": key[3], **share_of(values, seed)}
        for key, values in sorted(flags.items())
    ]
    asked = {id: one for fold in folds for id, one in fold["trivial"].items()}
    prices = [fold["price"] for fold in folds if fold["price"]["bought"] is not None]
    bought = [(one["record"], one["total"] > one["median"]) for fold in prices for one in fold["examples"]]
    return {
        "row": name,
        "folds": len(folds),
        "need": _need_of(folds),
        "people": people,
        "changes": changes,
        "trivial": _trivial_of(asked, seed),
        "price": {
            "questions": sum(one["questions"] for one in prices),
            "percentile": float(np.mean([one["bought"] for one in prices])),
            "below_median": share_of([(id, not above) for id, above in bought], seed),
        },
    }


def _need_of(folds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How well the sentences that gold answers say are told, what was chosen in each fold, and the total's weights."""
    questions = [one for fold in folds for one in fold["need"].values()]
    made: dict[str, Any] = {"questions": len(questions), "nothing_needed": sum(not one["needed"] for one in questions)}
    for metric in ("auc", "average_precision"):
        values = np.array([[one[metric]] for one in questions if metric in one])
        drawn = resampled(values, 0)[..., 0] / len(values)
        made[metric] = asdict(Measured(float(values.mean()), *borders(drawn)))
    return {**made, "choices": [fold["choice"] for fold in folds], "weights": [fold["weights"] for fold in folds]}


def _judged_record(row: Mapping[str, Any]) -> JudgedRecord:
    from reward_models.trust.items import JudgedRecord

    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
    return JudgedRecord(**values)


def _trivial_of(asked: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Means by answer, and in which share of questions gold is above each of the others."""
    names = list(next(iter(asked.values()))["values"])
    means = {
        name: {
            role: float(np.mean([v for one in asked.values() if (v := one["values"][name][role]) is not None] or [0.0]))
            for role in (*ROLES, "total")
        }
        for name in names
    }

    def above(name: str, ids: Sequence[str]) -> dict[str, Any] | None:
        flags = [(id, asked[id]["values"]["gold"]["total"] > asked[id]["values"][name]["total"]) for id in ids]
        return share_of(flags, seed) if flags else None

    lacking = [id for id, one in asked.items() if one["lead_lacks_gold"]]
    others = [id for id in asked if id not in set(lacking)]
    supported = [id for id in lacking if not asked[id]["gold_facts_unsupported"]]
    by_role = {}
    for role in (*ROLES, "total"):
        pairs = [(id, *(asked[id]["values"][name][role] for name in ("gold", "cut lead"))) for id in lacking]
        flags = [(id, gold > lead) for id, gold, lead in pairs if gold is not None and lead is not None]
        by_role[role] = share_of(flags, seed) if flags else None
    return {
        "means": means,
        "gold_above_lead_that_lacks_by": by_role,
        "gold_facts": [sum(one[key] for one in asked.values()) for key in ("gold_facts_unsupported", "gold_facts")],
        "gold_above_lead_that_lacks_supported": above("cut lead", supported),
        "gold_above": {name: above(name, list(asked)) for name in names if name != "gold"},
        "gold_above_lead_that_lacks": above("cut lead", lacking),
        "gold_above_other_leads": above("cut lead", others),
    }


def _interval(value: Mapping[str, float] | None, key: str = "ranked_right") -> str:
    return "–" if value is None else f"{value[key]:.3f} [{value['low']:.2f}, {value['high']:.2f}]"


def _need_table(rows: Sequence[Mapping[str, Any]]) -> str:
    shown = []
    for row in rows:
        need, choices = row["need"], row["need"]["choices"]
        means = [np.mean([of[role] for of in need["weights"]]) for role in ROLES]
        line = {"row": row["row"], "AUC": _interval(need["auc"], "value")}
        line["average precision"] = _interval(need["average_precision"], "value")
        line["chosen (fold by fold)"] = "; ".join(map(_choice, choices)) if choices[0] else "gold"
        shown.append(line | {"weights of the total": " / ".join(f"{mean:.2f}" for mean in means)})
    need, (unsupported, stated) = rows[0]["need"], rows[0]["trivial"]["gold_facts"]
    return (
        "How well the sentences that a gold answer says are told from the others of its question, in held-out "
        "questions; what inner folds chose (place, shared, vectors with their ridge; to learn from people's corrected "
        "answers beside gold answers); the mean weights of "
        "relevance, factuality and completeness in the total. Gold answers say no sentence of their passages in "
        f"{need['nothing_needed']} of {need['questions']} questions, and {unsupported:.0f} of their {stated:.0f} "
        f"names, numbers and dates stand in no passage.\n\n{markdown_table(shown, list(shown[0]))}"
    )


def _choice(choice: Mapping[str, Any]) -> str:
    ridge = choice["vector_ridge"]
    parts = [*(["corrected"] if choice["corrected"] else []), *choice["read"]]
    return ", ".join([*parts, *([f"vectors {ridge:.0f}"] if ridge else [])]) or "–"


def _people_table(result: Mapping[str, Any]) -> str:
    rows = []
    for name, of in result["today"].items():
        rows.append({"row": f"{name} (today)", **{kind: _interval(of[kind], "value") for kind in COMPONENTS}})
    for row in result["rows"]:
        shown = {kind: _interval(row["people"][kind], "value") for kind in COMPONENTS}
        less = {f"{kind} less counts": _interval(row["people"][kind]["less_counts"], "value") for kind in COMPONENTS}
        rows.append({"row": row["row"], **shown, **less})
    columns = ["row", *COMPONENTS]
    table = markdown_table(rows, columns)
    gaps = markdown_table(rows[len(result["today"]) :], ["row", *(f"{kind} less counts" for kind in COMPONENTS)])
    return f"Balanced accuracy of labelled segments, share of ordered pairs.\n\n{table}\n\n{gaps}"


def _changes_table(rows: Sequence[Mapping[str, Any]]) -> str:
    lines: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in rows:
        for one in row["changes"]:
            key = (one["family"], one["change"], one["role"], one["direction"])
            named = dict(zip(("family", "change", "component", "must"), key, strict=True))
            lines.setdefault(key, {**named, "pairs": one["pairs"]})[row["row"]] = _interval(one)
    return markdown_table(
        list(lines.values()), ["family", "change", "component", "must", "pairs", *(r["row"] for r in rows)]
    )


def _trivial_table(rows: Sequence[Mapping[str, Any]]) -> str:
    shown = [
        {"row": row["row"], "answer": name, **{role: f"{values[role]:.2f}" for role in values}}
        | ({"gold above it": _interval(row["trivial"]["gold_above"][name])} if name != "gold" else {})
        for row in rows
        for name, values in row["trivial"]["means"].items()
    ]
    return markdown_table(shown, ["row", "answer", *ROLES, "total", "gold above it"])


def _goals(row: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    """(what, as the page shows it, the lower bound less what had to be reached)."""
    for kind, (metric, of) in GOALS.items():
        value, gap = row["people"][kind], row["people"][kind]["less_counts"]
        shown = f"{value['value']:.3f}, less counts {_interval(gap, 'value')}"
        yield f"{kind}: {metric} not more than {SLACK} below counts (about {of:.2f})", shown, gap["low"] + SLACK
    for one in row["changes"]:
        if one["direction"] == "fall":
            yield f"{one['change']}, {one['role']}: right in 0.80", _interval(one), one["low"] - 0.8
    if lead := row["trivial"]["gold_above_lead_that_lacks"]:
        yield "gold above a cut lead that lacks its facts in 0.90", _interval(lead), lead["low"] - 0.9
    if below := row["price"]["below_median"]:
        yield "price below the median answer in 0.90", _interval(below), below["low"] - 0.9


def _goal_table(rows: Sequence[Mapping[str, Any]]) -> str:
    shown = [
        {"row": row["row"], "goal (lower bound)": what, "value": value, "reached": "yes" if over >= 0 else "no"}
        for row in rows
        for what, value, over in _goals(row)
    ]
    leads = []
    for row in rows:
        trivial = row["trivial"]
        line = {"gold above a cut lead": row["row"]}
        by_role = trivial["gold_above_lead_that_lacks_by"]
        line |= {f"that lacks its facts, {role}": _interval(of) for role, of in by_role.items()}
        line["the same, passages have all its facts"] = _interval(trivial["gold_above_lead_that_lacks_supported"])
        leads.append({**line, "others": _interval(trivial["gold_above_other_leads"])})
    return f"{markdown_table(shown, list(shown[0]))}\n\n{markdown_table(leads, list(leads[0]))}"
