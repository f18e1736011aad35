"""Folders of Markdown files with planted facts, and questions about them, made anew by seed.

A style says what files are about: entities, and attributes with several ways to state and to ask them that share few
words. A file states some attributes of its entity; a question asks one that is stated, or one that is not: an attribute
that only other files state, an entity that no file knows, or something that no file is about.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

Value = Callable[[random.Random], str]


@dataclass(frozen=True)
class Attribute:
    """Ways to state and to ask something; `{e}` is the entity, `{v}` the value."""

    states: Sequence[str]
    asks: Sequence[str]
    value: Value


@dataclass(frozen=True)
class Style:
    """What the files of a folder are about."""

    entity: Value
    title: str
    sections: Sequence[str]
    filler: Sequence[str]
    attributes: Sequence[Attribute]
    off: Sequence[str]
    listed: float = 0.0  # share of files whose facts are items of a list


@dataclass(frozen=True)
class Asked:
    """A question; `file` and `fact` are None where no file answers it, `kind` says why."""

    text: str
    kind: str
    file: str | None = None
    fact: str | None = None


ONSETS = "b br c cl d dr f fl g gr h k l m n p pr r s st t tr v w z".split()
VOWELS = "a e i o u ae ia".split()
CODAS = "l ld m n nd r rn rt s st th x ck".split()
FIRST = (
    "Ada Bruno Celia Dario Edith Farid Greta Hugo Ines Jonas Karin Lev Mira Nadia Oskar Petra Quentin Rosa Stefan Tilda"
).split()


def word(rng: random.Random) -> str:
    """A made-up name."""
    parts = rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(ONSETS[:15]) + rng.choice(VOWELS[:5])
    return (parts + rng.choice(CODAS)).capitalize()


def person(rng: random.Random) -> str:
    """The name of a made-up person."""
    return f"{rng.choice(FIRST)} {word(rng)}"


def pick(*words: str) -> Value:
    """One of these."""
    return lambda rng: rng.choice(words)


def number(low: int, high: int, form: str = "{}") -> Value:
    """A whole number between the two, both included, in a form."""
    return lambda rng: form.format(rng.randint(low, high))


def named(form: str) -> Value:
    """A made-up name in a form."""
    return lambda rng: form.format(word(rng))


COLOURS = pick("crimson", "teal", "ochre", "ivory", "violet", "olive green", "cobalt blue", "saffron")
OFF = (
    "Who won the football world cup in 1998?",
    "How do I descale an espresso machine?",
    "What is the boiling point of nitrogen?",
    "Which planet has the most moons?",
    "How many strings does a violin have?",
    "What should I feed a hedgehog in winter?",
    "Who wrote the novel Middlemarch?",
    "How long does it take to boil an egg?",
)
A = Attribute


def make_folder(
    folder: Path, seed: int, style: str, form: Style, files: int = 200, answerable: int = 15, not_answerable: int = 5
) -> list[Asked]:
    """Write the files of a folder and give the questions about them, those that are answered there first.

    Args:
        folder: that is made.
        seed: of names, facts and questions.
        style: its name; another one gives other facts.
        form: what it is about.
        files: that are written.
        answerable: questions that a file answers.
        not_answerable: questions that none does: of five three ask of an entity what only other files state, one asks
            of an entity that no file knows, one is about something else.
    """
    rng = random.Random(f"{style} {seed}")
    folder.mkdir(parents=True, exist_ok=True)
    entities: list[str] = []
    while len(entities) < files + not_answerable:
        if (name := form.entity(rng)) not in entities:
            entities.append(name)
    stated: list[dict[int, tuple[str, str]]] = []
    for place, name in enumerate(entities[:files]):
        facts = {}
        for number_ in sorted(rng.sample(range(len(form.attributes)), 5)):
            attribute = form.attributes[number_]
            facts[number_] = (rng.choice(attribute.states), attribute.value(rng))
        stated.append(facts)
        text = _text(form, name, [s.format(e=name, v=v) for s, v in facts.values()], rng)
        (folder / f"{place:03d}-{name.lower().replace(' ', '-')}.md").write_text(text, encoding="utf-8")
    names = sorted(path.name for path in folder.glob("*.md"))
    asked = []
    for place in rng.sample(range(files), answerable):
        which = rng.choice(list(stated[place]))
        statement, value = stated[place][which]
        question = rng.choice(form.attributes[which].asks).format(e=entities[place])
        asked.append(Asked(question, "stated", names[place], statement.format(e=entities[place], v=value)))
    for turn in range(not_answerable):
        which = rng.randrange(len(form.attributes))
        if turn % 5 < 3:
            place = rng.choice([i for i in range(files) if which not in stated[i]])
            asked.append(Asked(rng.choice(form.attributes[which].asks).format(e=entities[place]), "not stated"))
        elif turn % 5 == 3:
            asked.append(
                Asked(rng.choice(form.attributes[which].asks).format(e=entities[files + turn]), "unknown entity")
            )
        else:
            asked.append(Asked(rng.choice(form.off), "off topic"))
    return asked


def _text(form: Style, name: str, facts: list[str], rng: random.Random) -> str:
    """A file: a title, sections with filler and facts in them."""
    sections = rng.sample(form.sections, min(len(form.sections), 3))
    lines = [f"# {form.title.format(e=name)}", "", " ".join(rng.sample(form.filler, 2)), ""]
    listed = rng.random() < form.listed
    parts: list[list[str]] = [[] for _ in sections]
    for fact in rng.sample(facts, len(facts)):
        rng.choice(parts).append(fact)
    for section, held in zip(sections, parts, strict=True):
        lines += [f"## {section}", ""]
        if listed:
            lines += [" ".join(rng.sample(form.filler, 2)), "", *(f"- {fact}" for fact in held), ""]
        else:
            sentences = held + rng.sample(form.filler, 3)
            rng.shuffle(sentences)
            lines += [" ".join(s if s.endswith(".") else f"{s}." for s in sentences), ""]
    return "\n".join(lines)
