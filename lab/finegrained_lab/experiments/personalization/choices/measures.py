"""Asking a language model questions with few allowed answers: a prompt by a seed of development, then unseen seeds."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

from finegrained_lab.experiments.personalization.choices.items import (
    TASKS,
    ChoiceGroup,
    ChoiceItem,
    ChoicePrompt,
    PromptFormat,
    TaskName,
    choice_prompt,
    conflict_prompt,
    draw_groups,
    shuffled_answers,
)
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.markers import ModelName, OutputFile, Seed, at_least
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.personalization.retrieval import HashedWords

if TYPE_CHECKING:
    from finegrained_lab.experiments.personalization.choices.scorer import ChoiceScorer

Picked = dict[str, list[str]]
"""By row, the answer of each item."""
Prompts = Callable[[ChoiceItem], ChoicePrompt]
EXAMPLES, SHUFFLED, NONE, SHIPPED = "examples", "shuffled", "no examples", "CORESET's prompt"
"""Rows of a model, each also calibrated."""
NEAREST = "nearest example"
"""A row that asks no model."""
CALIBRATED = ", calibrated"


@dataclass(frozen=True, kw_only=True)
class AskChoices(Settings):
    """Ask a model the questions of `choice_items.TASKS`, by which allowed answer it finds most probable.

    Every row is there twice: by log-probability, and calibrated, less the log-probability of the answer behind the same
    prompt without content. The form of the prompt and the number of examples are those with the highest mean share of
    right answers of both on the seed of development.

    Attributes:
        model: a causal language model: a model directory, or a run.
        output: JSON file of what `run` returns.
        dev_seed: of the questions on which the prompt is chosen.
        seeds: of the unseen questions.
        forms: of the prompt that are tried.
        shots: numbers of examples that are tried, by task.
        dev_groups: groups of questions of development, of each task.
        groups: of unseen questions, of each task and seed.
        size: questions of a group, which has its own examples.
    """

    model: ModelName
    output: OutputFile
    dev_seed: Seed
    seeds: Sequence[Seed]
    forms: Sequence[PromptFormat]
    shots: Mapping[TaskName, Sequence[int]]
    dev_groups: Annotated[int, at_least(1)] = 4
    groups: Annotated[int, at_least(1)] = 7
    size: Annotated[int, at_least(1)] = 8

    def __post_init__(self) -> None:
        if not self.forms or not self.seeds or not self.shots or not all(self.shots.values()):
            raise ConfigError("expected at least one seed, form and task, and a number of examples of each task")
        if self.dev_seed in self.seeds:
            raise ConfigError(f"seeds: {self.dev_seed} is the seed on which the prompt is chosen")
        if min(number for numbers in self.shots.values() for number in numbers) < 1:
            raise ConfigError("shots: expected at least one example; the row without any is always there")

    def run(self) -> dict[str, Any]:
        """Choose, ask, write, print a line a task.

        Returns:
            `precision` of the computation; `seconds` of the processor; by task `dev`, a row a prompt that was tried
            (`form`, `shots`, `plain`, `calibrated`: shares of right answers), `chosen`, the best of them, and `items`,
            one a question (`seed`, `group`, `asked`, `answer` and `picked` by row).

        Raises:
            ModelError: there is no such model, or it cannot be read.
        """
        from finegrained_lab.experiments.personalization.choices.scorer import ChoiceScorer
        from finegrained_rlhf.models.loading import open_policy

        began = time.process_time()
        scorer = ChoiceScorer(open_policy(self.model))
        tasks: dict[str, Any] = {}
        for task in (one for one in TASKS if one in self.shots):
            dev = list(self._tried(scorer, task))
            chosen = max(dev, key=lambda row: row["plain"] + row["calibrated"])
            items = [one for seed in self.seeds for one in self._asked(scorer, task, seed, chosen)]
            tasks[task] = {"dev": dev, "chosen": {key: chosen[key] for key in ("form", "shots")}, "items": items}
            right = {row: fmean(one["picked"][row] == one["answer"] for one in items) for row in items[0]["picked"]}
            shown = ", ".join(f"{row} {share:.3f}" for row, share in right.items())
            print(f"{task} ({chosen['form']}, {chosen['shots']} examples, {len(items)} questions): {shown}", flush=True)
        result = {"precision": scorer.precision, "seconds": time.process_time() - began, "tasks": tasks}
        write_json(self.output, result)
        return result

    def _tried(self, scorer: ChoiceScorer, task: TaskName) -> Iterator[dict[str, Any]]:
        """The right answers of every prompt on the seed of development."""
        for form in self.forms:
            for shots in self.shots[task]:
                right: dict[str, list[bool]] = {"plain": [], "calibrated": []}
                for group in draw_groups(task, self.dev_seed, self.dev_groups, self.size, shots):
                    picked = _both(scorer, group.items, lambda one: choice_prompt(form, group.shots, one))  # noqa: B023
                    for name, answers in zip(right, picked, strict=True):
                        right[name] += [one.answer == answer for one, answer in zip(group.items, answers, strict=True)]
                yield {"form": form, "shots": shots, **{name: fmean(of) for name, of in right.items()}}

    def _asked(
        self, scorer: ChoiceScorer, task: TaskName, seed: int, chosen: Mapping[str, Any]
    ) -> Iterator[dict[str, Any]]:
        """The answers of every row to the questions of a seed."""
        for group in draw_groups(task, seed, self.groups, self.size, chosen["shots"]):
            picked = {**_without_model(group), **self._of_model(scorer, task, seed, chosen["form"], group)}
            for number, item in enumerate(group.items):
                answers = {row: of[number] for row, of in picked.items()}
                place = {"seed": seed, "group": group.number, "asked": item.asked}
                yield {**place, "answer": item.answer, "picked": answers}

    def _of_model(
        self, scorer: ChoiceScorer, task: TaskName, seed: int, form: PromptFormat, group: ChoiceGroup
    ) -> Picked:
        rng = random.Random(stable_hash("shuffled", seed, task, group.number))
        shuffled = shuffled_answers(group.shots, rng)
        asked: dict[str, Prompts] = {
            EXAMPLES: lambda one: choice_prompt(form, group.shots, one),
            SHUFFLED: lambda one: choice_prompt(form, shuffled, one),
            NONE: lambda one: choice_prompt(form, (), one),
        }
        if task in ("conflict", "conflict_documents"):
            asked[SHIPPED] = conflict_prompt
        picked: Picked = {}
        for name, prompts in asked.items():
            picked[name], picked[name + CALIBRATED] = _both(scorer, group.items, prompts)
        return picked


def _both(scorer: ChoiceScorer, items: Sequence[ChoiceItem], prompts: Prompts) -> tuple[list[str], list[str]]:
    """The most probable answer of each item, and the one whose probability the content raises most."""
    free = items[0].without_content()
    *scored, base = scorer.logprobs([prompts(one) for one in (*items, free)])
    raised = [[value - of for value, of in zip(row, base, strict=True)] for row in scored]
    plain, calibrated = (
        [one.options[row.index(max(row))] for one, row in zip(items, rows, strict=True)] for rows in (scored, raised)
    )
    return plain, calibrated


def _without_model(group: ChoiceGroup) -> Picked:
    """The answer of the example that has the most words in common with an item."""
    encoder = HashedWords()
    shown, asked = (
        encoder.encode([" ".join(one.material.values()) for one in of]) for of in (group.shots, group.items)
    )
    return {NEAREST: [group.shots[int(row.argmax())].answer for row in asked @ shown.T]}
