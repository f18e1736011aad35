"""The page of `pipeline=personalization/small_models`: what small pretrained models answer by constrained choice.

Reads what `AskChoices` wrote; asks no language model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from finegrained_lab.experiments.intervals import difference_interval, share_interval
from finegrained_lab.experiments.personalization.choices.items import SAYS
from finegrained_lab.experiments.personalization.choices.measures import (
    CALIBRATED,
    EXAMPLES,
    NEAREST,
    SHIPPED,
    SHUFFLED,
)
from finegrained_lab.experiments.results_table import Results
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.core.markers import InputFile
from finegrained_rlhf.text.tables import markdown_table

MOST_FREQUENT = "most frequent"
Items = Sequence[Mapping[str, Any]]
Counts = tuple[list[float], list[float]]
"""Right answers and questions of each group."""
TITLE = "Small pretrained models: conflicts and preferences by constrained choice"
ABOUT = (
    "Pretrained language models of 135 and 270 million parameters answer questions about generated worlds with one of "
    "a few allowed answers: the one that they find most probable (the sum of its tokens' log-probabilities). "
    f"`{EXAMPLES}`: behind answered examples, drawn anew for every eight questions; `{SHUFFLED}`: behind the same "
    "examples with each other's answers, a control; `no examples`: behind a sentence on what is asked; "
    f"`{SHIPPED}`: the prompt that `ModelConflicts` sends, which has no example. `{CALIBRATED.strip(', ')}`: less the "
    "log-probability of the answer behind the same prompt with N/A for all that is asked about (Zhao et al. 2021). "
    f"`{MOST_FREQUENT}`: the answer to what is asked that is right most often, by hindsight; `{NEAREST}`: the answer "
    "of the example with the most words in common. In brackets 95% intervals, by drawing the groups of eight questions "
    "again."
)


@dataclass(frozen=True)
class SmallModelsTable(Results):
    """Collects `AskChoices` of several models.

    Attributes:
        models: name of a model → file of its answers.
    """

    models: Mapping[str, InputFile]

    def run(self) -> dict[str, Any]:
        """Write results and page, print the page.

        Raises:
            DataError: the models were not asked the same questions.
        """
        asked = {name: read_json(file) for name, file in self.models.items()}
        questions = {name: _questions(one["tasks"]) for name, one in asked.items()}
        for name, own in questions.items():
            if own != next(iter(questions.values())):
                raise DataError("the models were asked different questions", file=self.models[name])
        first = next(iter(asked.values()))["tasks"]
        tasks = {task: _measured({name: one["tasks"][task] for name, one in asked.items()}) for task in first}
        computed = {name: {key: one[key] for key in ("precision", "seconds")} for name, one in asked.items()}
        return self.write({**self.made_by(), "computed": computed, "tasks": tasks})

    def page(self, result: Mapping[str, Any]) -> str:
        """The page of a results file."""
        took = [
            f"{name}: {one['seconds'] / 60:.0f} minutes of a processor core in {one['precision']}"
            for name, one in result["computed"].items()
        ]
        parts = [
            self.opening(result, TITLE, ABOUT),
            _verdict(result),
            *(_task(task, of) for task, of in result["tasks"].items()),
            f"## What it took\n\n{'; '.join(took)}. No model is trained.",
        ]
        return "\n\n".join(parts) + "\n"


def _questions(tasks: Mapping[str, Any]) -> dict[str, list[tuple[Any, ...]]]:
    return {
        name: [(one["seed"], one["group"], one["asked"], one["answer"]) for one in of["items"]]
        for name, of in tasks.items()
    }


def _measured(by_model: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The rows of a task, the differences of the models' from baseline and control, and how prompts were chosen."""
    items: Items = next(iter(by_model.values()))["items"]
    frequent = {
        asked: Counter(one["answer"] for one in items if one["asked"] == asked).most_common(1)[0][0]
        for asked in {one["asked"] for one in items}
    }
    constant = [one["answer"] == frequent[one["asked"]] for one in items]
    baseline, differences = _counts(items, constant), list[dict[str, Any]]()
    rows = [{"model": "–", "row": MOST_FREQUENT, **_row(items, constant)}]
    for name, of in by_model.items():
        right = {row: [one["picked"][row] == one["answer"] for one in of["items"]] for row in of["items"][0]["picked"]}
        rows += [{"model": name, "row": row, **_row(of["items"], answers)} for row, answers in right.items()]
        for row in (EXAMPLES, EXAMPLES + CALIBRATED):
            own = _counts(of["items"], right[row])
            control = _counts(of["items"], right[row.replace(EXAMPLES, SHUFFLED)])
            gaps = {"baseline": _difference(own, baseline), "control": _difference(own, control)}
            differences.append({"model": name, "row": row, **gaps})
    prompts = {name: {"dev": of["dev"], "chosen": of["chosen"]} for name, of in by_model.items()}
    return {"questions": len(items), "rows": rows, "differences": differences, "prompts": prompts}


def _counts(items: Items, right: Sequence[bool]) -> Counts:
    """By group; its questions share their examples, so that they are drawn again together."""
    groups = [(one["seed"], one["group"]) for one in items]
    hits, of = Counter[Any](), Counter(groups)
    for group, is_right in zip(groups, right, strict=True):
        hits[group] += is_right
    return [float(hits[group]) for group in of], [float(number) for number in of.values()]


def _row(items: Items, right: Sequence[bool]) -> dict[str, Any]:
    """A share with its interval, and the share of each seed."""
    counts, by_seed = _counts(items, right), dict[str, list[bool]]()
    for one, is_right in zip(items, right, strict=True):
        by_seed.setdefault(str(one["seed"]), []).append(is_right)
    share = sum(counts[0]) / sum(counts[1])
    return {
        "right": [share, *share_interval(*counts)],
        "by_seed": {seed: sum(own) / len(own) for seed, own in by_seed.items()},
    }


def _difference(ours: Counts, theirs: Counts) -> list[float]:
    return [(sum(ours[0]) - sum(theirs[0])) / sum(ours[1]), *difference_interval(ours, theirs)]


def _verdict(result: Mapping[str, Any]) -> str:
    """Which rows lie above baseline and control by their intervals."""
    rows = [(task, one) for task, of in result["tasks"].items() for one in of["differences"]]
    above = [
        f"{one['model']}, {task}, `{one['row']}`"
        for task, one in rows
        if one["baseline"][1] > 0 and one["control"][1] > 0
    ]
    said = (
        f"rows with examples {'is' if len(above) == 1 else 'are'} above both the most frequent answer and shuffled "
        f"examples**, by 95% intervals of the differences; above the first alone {len(rows) * 0.025:.1f} would be by "
        "chance"
    )
    return f"**{len(above) or 'None'} of {len(rows)} {said}{': ' if above else ''}{'; '.join(above)}."


def _task(task: str, of: Mapping[str, Any]) -> str:
    seeds = list(of["rows"][0]["by_seed"])
    rows = [
        {
            **{key: row[key] for key in ("model", "row")},
            "right": _cell(row["right"]),
            **{f"seed {seed}": f"{row['by_seed'][seed]:.2f}" for seed in seeds},
        }
        for row in of["rows"]
    ]
    gaps = [
        {
            **{key: one[key] for key in ("model", "row")},
            f"less `{MOST_FREQUENT}`": _cell(one["baseline"], "+"),
            f"less `{SHUFFLED}`": _cell(one["control"], "+"),
        }
        for one in of["differences"]
    ]
    tried = [
        {
            "model": name,
            **{key: row[key] for key in ("form", "shots")},
            **{key: f"{row[key]:.2f}" for key in ("plain", "calibrated")},
            "chosen": "yes" if {key: row[key] for key in ("form", "shots")} == prompts["chosen"] else "",
        }
        for name, prompts in of["prompts"].items()
        for row in prompts["dev"]
    ]
    says = {str(name): words for name, words in SAYS.items()}[task]
    tables = [markdown_table(of_table, list(of_table[0])).strip() for of_table in (rows, gaps, tried)]
    heading = f"## `{task}`\n\n{of['questions']} questions: {says}."
    return "\n\n".join([heading, *tables[:2], "Prompts that were tried on the seed of development:", tables[2]])


def _cell(share: Sequence[float], sign: str = "") -> str:
    return f"{share[0]:{sign}.2f} [{share[1]:{sign}.2f}, {share[2]:{sign}.2f}]"
