"""Questions with few allowed answers about BiosWorld and StyleWorld, and the prompts that ask them.

Knows what is true of each. Knows no model.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from finegrained_lab.worlds.bios.lexicon import FACTS, FIRST_NAMES, LAST_NAMES, biography, statement
from finegrained_lab.worlds.bios.make import draw_people
from finegrained_lab.worlds.style.make import SOURCES, MakeStyleWorld
from finegrained_lab.worlds.style.styles import DIMENSIONS, Style, bare_sentences, description, rendered
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.personalization.prompts import filled

TaskName = Literal["conflict", "conflict_documents", "style_value", "style_source"]
PromptFormat = Literal["lines", "question", "json"]
TASKS: tuple[TaskName, ...] = get_args(TaskName)
FORMATS: tuple[PromptFormat, ...] = get_args(PromptFormat)
SAYS: Mapping[TaskName, str] = {
    "conflict": "do two remarks of BiosWorld contradict each other? Half of them state one fact with two values, about "
    "a quarter the same value twice, and a quarter two facts",
    "conflict_documents": "does no one of three biographies fit two remarks about two different facts? It is what "
    "CORESET asks; in half of the questions none fits",
    "style_value": "which value of one dimension of StyleWorld has an edited text? Six dimensions in turn; draft and "
    "edited text have styles at random",
    "style_source": "which of the five readers' preferences does an edit show? The draft has a style at random; the "
    "text is about anything",
}
"""What is asked, in words."""
OVERLAP = 0.3
"""Share of facts that are another person's, as in `MakeBiosWorld`."""
_CONTENT_FREE = "N/A"


@dataclass(frozen=True)
class ChoiceItem:
    """A question with a few allowed answers.

    Attributes:
        head: what it is about, in a sentence.
        material: what it is asked about, text by label.
        asked: what is asked, in a word or two.
        question: the same as a question.
        options: the allowed answers.
        answer: the true one.
    """

    head: str
    material: Mapping[str, str]
    asked: str
    question: str
    options: tuple[str, ...]
    answer: str

    def without_content(self) -> ChoiceItem:
        """The same question about nothing (Zhao et al. 2021, *Calibrate Before Use*)."""
        return replace(self, material=dict.fromkeys(self.material, _CONTENT_FREE))


@dataclass(frozen=True)
class ChoicePrompt:
    """A prompt and what may follow it.

    Attributes:
        before: the sentence about what is asked, and the answered examples; the same for several questions.
        asked: the question that is to be answered.
        options: what may follow, an option each.
    """

    before: str
    asked: str
    options: tuple[str, ...]


def choice_prompt(form: PromptFormat, shots: Sequence[ChoiceItem], item: ChoiceItem) -> ChoicePrompt:
    """An item behind answered examples.

    Args:
        form: `lines`: a line a label, then the answer behind what is asked; `question`: the same with a question;
            `json`: an object a line, as the prompts of `finegrained_rlhf.personalization` ask for.
        shots: the examples, of the same task.
        item: that is asked.
    """
    ends = '"}' if form == "json" else ""
    answered = [_asked(form, one) + _option(form, one.answer) + ends for one in shots]
    before = "\n\n".join([item.head, *answered]) + "\n\n"
    return ChoicePrompt(before, _asked(form, item), tuple(_option(form, option) for option in item.options))


def _asked(form: PromptFormat, item: ChoiceItem) -> str:
    if form == "json":
        return json.dumps({**item.material, item.asked: ""}, ensure_ascii=False).removesuffix('"}')
    lines = [f"{label}: {text}" for label, text in item.material.items()]
    end = f"{item.asked}:" if form == "lines" else f"Question: {item.question}\nAnswer:"
    return "\n".join([*lines, end])


def _option(form: PromptFormat, option: str) -> str:
    return json.dumps(option, ensure_ascii=False)[1:-1] if form == "json" else f" {option}"


def conflict_prompt(item: ChoiceItem) -> ChoicePrompt:
    """The question of a conflict as CORESET asks it of a language model, without an example.

    Args:
        item: of `conflict` or `conflict_documents`.
    """
    people = [text for label, text in item.material.items() if label.startswith("Person")]
    *chosen, remark = (text for label, text in item.material.items() if label.startswith("Remark"))
    shown = {"documents": people} if people else {}
    prompt = filled("conflict", "", {**shown, "chosen": chosen, "remark": remark})
    asked = f'{str(prompt)[len(prompt.system) :]}\n{{"conflict": "'
    return ChoicePrompt(prompt.system, asked, item.options)


def shuffled_answers(shots: Sequence[ChoiceItem], rng: random.Random) -> list[ChoiceItem]:
    """The examples with each other's answers, in an order drawn at random: a control that teaches the form alone."""
    answers = [one.answer for one in shots]
    rng.shuffle(answers)
    return [replace(one, answer=answer) for one, answer in zip(shots, answers, strict=True)]


@dataclass(frozen=True)
class ChoiceGroup:
    """Questions behind the same examples.

    Attributes:
        shots: answered examples.
        items: that are asked.
        number: of the group, with its seed and task the key of its random numbers.
    """

    shots: tuple[ChoiceItem, ...]
    items: tuple[ChoiceItem, ...]
    number: int


def preference_item(draft: str, edited: str, answer: str = "") -> ChoiceItem:
    """The question which of the five readers' preferences an edit shows: the task `style_source`.

    Args:
        draft: the text before.
        edited: what became of it.
        answer: the true preference; empty where it is not known.
    """
    preferences = tuple(description(source.style) for source in SOURCES.values())
    return ChoiceItem(
        "A draft, the text that a reader made of it, and the style that the reader wants.",
        {"Draft": draft, "Edited": edited},
        "Style",
        f"Which style does the reader want: {_listed(preferences, '; ')}?",
        preferences,
        answer,
    )


def draw_groups(task: TaskName, seed: int, groups: int, size: int, shots: int) -> list[ChoiceGroup]:
    """Questions of a task, in groups that share their examples.

    Items do not depend on the number of examples. Of examples and of items every answer is true about as often.

    Args:
        task: what is asked.
        seed: of the random numbers.
        groups: how many.
        size: items of a group.
        shots: examples of a group.
    """
    drawn = []
    for number in range(groups):
        rngs = {name: random.Random(stable_hash("choices", seed, task, number, name)) for name in ("items", "shots")}
        shown = [_DRAWN[task](rngs["shots"], number, place) for place in range(shots)]
        asked = [_DRAWN[task](rngs["items"], number, number * size + place) for place in range(size)]
        for name, one in (("shots", shown), ("items", asked)):
            rngs[name].shuffle(one)
        drawn.append(ChoiceGroup(tuple(shown), tuple(asked), number))
    return drawn


_VERDICTS = ("yes", "no")


def _conflict(rng: random.Random, group: int, place: int) -> ChoiceItem:
    """Two remarks that state one fact with two values; or the same value twice, or two facts."""
    name, contradicts = _name(rng), place % 2 == 0
    first, second = rng.sample(sorted(FACTS), 2)
    if contradicts or rng.random() < 0.5:
        values = rng.sample(FACTS[first].values, 2)
        said = [statement(name, first, values[0]), statement(name, first, values[contradicts])]
    else:
        said = [statement(name, fact, rng.choice(FACTS[fact].values)) for fact in (first, second)]
    return ChoiceItem(
        "Two remarks about one person, and whether they contradict each other.",
        {f"Remark {number}": remark for number, remark in enumerate(said, start=1)},
        "Contradiction",
        "Do the two remarks contradict each other?",
        _VERDICTS,
        _VERDICTS[not contradicts],
    )


def _conflict_documents(rng: random.Random, group: int, place: int) -> ChoiceItem:
    """Two remarks about different facts of one of three people; or of two, where nobody has both."""
    name, contradicts = _name(rng), place % 2 == 0
    while True:
        people = draw_people(3, OVERLAP, rng)
        facts, owners = rng.sample(sorted(FACTS), 2), rng.sample(people, 2)
        stated = {facts[0]: owners[0][facts[0]], facts[1]: owners[contradicts][facts[1]]}
        if contradicts != any(all(one[fact] == value for fact, value in stated.items()) for one in people):
            break
    material = {f"Person {number}": biography(name, one) for number, one in enumerate(people, start=1)}
    said = enumerate(stated.items(), start=1)
    return ChoiceItem(
        "Three people of one name, two remarks, and whether no one of the three fits both remarks.",
        {**material, **{f"Remark {number}": statement(name, *fact) for number, fact in said}},
        "Contradiction",
        "Do the two remarks contradict each other, so that none of the three people fits both?",
        _VERDICTS,
        _VERDICTS[not contradicts],
    )


def _style_value(rng: random.Random, group: int, place: int) -> ChoiceItem:
    """The value of one dimension, the same for the whole group, of an edited text."""
    dimension = list(DIMENSIONS)[group % len(DIMENSIONS)]
    values = DIMENSIONS[dimension]
    wanted = {**_style(rng), dimension: values[place % len(values)]}
    return ChoiceItem(
        f"A draft, the text that a reader made of it, and the {dimension} that the reader wants.",
        {label.capitalize(): text for label, text in _edit(rng, wanted).items()},
        dimension.capitalize(),
        f"Which {dimension} does the reader want: {_listed(values)}?",
        values,
        wanted[dimension],
    )


def _style_source(rng: random.Random, group: int, place: int) -> ChoiceItem:
    """The preference of one of the five readers."""
    style = list(SOURCES.values())[place % len(SOURCES)].style
    return preference_item(**_edit(rng, style), answer=description(style))


_DRAWN: Mapping[TaskName, Callable[[random.Random, int, int], ChoiceItem]] = {
    "conflict": _conflict,
    "conflict_documents": _conflict_documents,
    "style_value": _style_value,
    "style_source": _style_source,
}
"""An item by random numbers, the number of its group, and a number that says which answer is true."""


def _name(rng: random.Random) -> str:
    return f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}"


def _style(rng: random.Random) -> dict[str, str]:
    return {dimension: rng.choice(values) for dimension, values in DIMENSIONS.items()}


def _edit(rng: random.Random, wanted: Style) -> dict[str, str]:
    """A draft in another style than the one that is wanted, and the text in that, about any source's matters."""
    world = MakeStyleWorld("", seed=rng.randrange(2**31), contexts=len(SOURCES))
    sentences = bare_sentences(rng.choice(world.draw()["contexts"]).text)
    style = _style(rng)
    while style == wanted:
        style = _style(rng)
    return {"draft": rendered(sentences, style), "edited": rendered(sentences, wanted)}


def _listed(values: Sequence[str], between: str = ", ") -> str:
    return f"{between.join(values[:-1])}{between if len(values) > 2 else ' '}or {values[-1]}"
