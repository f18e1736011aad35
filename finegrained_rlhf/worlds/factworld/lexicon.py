"""The words of FactWorld.

Knows every attribute, value and entity name and the sentences they stand in. Knows nothing of passages, errors or
models. Word lists of two attributes never share a word, so a value tells its attribute.
"""

from __future__ import annotations

from collections.abc import Sequence

from finegrained_rlhf.worlds.words import word_lists

VALUES = word_lists(
    {
        "color": "red blue green black white yellow purple brown pink gray violet beige",
        "metal": "iron copper silver gold zinc nickel lead tin steel bronze brass cobalt",
        "fruit": "apple pear plum peach cherry mango lemon grape melon fig kiwi banana",
        "animal": "dog cat horse cow sheep goat pig duck hen rabbit donkey camel",
        "job": "baker farmer doctor teacher pilot sailor tailor lawyer painter singer writer miner",
        "city": "Paris Rome London Madrid Berlin Vienna Oslo Cairo Tokyo Delhi Lima Boston",
        "sport": "tennis golf rugby soccer hockey boxing rowing judo chess skiing cricket archery",
        "tool": "hammer saw drill axe shovel rake pliers wrench chisel knife ladder rope",
        "music": "piano violin guitar flute drum harp trumpet cello banjo organ oboe lute",
        "shape": "circle square triangle star cross oval cube cone ring spiral arrow heart",
    }
)
ATTRIBUTES: tuple[str, ...] = tuple(VALUES)
POPULAR: dict[str, str] = {attribute: values[0] for attribute, values in VALUES.items()}
ENTITIES: tuple[str, ...] = tuple(
    "Arlo Bela Cato Dina Enzo Fara Gino Hana Ivor Jana Kito Lena Milo Nora Otis Pia Remo Sami Tara Vito".split()
)


def clause(attribute: str, entity: str, value: str) -> str:
    """The clause that states one fact, without capital or full stop: `the color of Arlo is red`."""
    return f"the {attribute} of {entity} is {value}"


def sentence(clauses: Sequence[str]) -> str:
    """Clauses as one sentence: `The color of Arlo is red, and the city of Arlo is Rome.` is one of two."""
    text = ", and ".join(clauses)
    return f"{text[:1].upper()}{text[1:]}."


def entity_question(attributes: Sequence[str], entity: str) -> str:
    """The question that asks for `attributes`, as in `What are the color, the shape and the city of Arlo?`."""
    items = [f"the {attribute}" for attribute in attributes]
    listed = items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
    return f"What {'is' if len(items) == 1 else 'are'} {listed} of {entity}?"
