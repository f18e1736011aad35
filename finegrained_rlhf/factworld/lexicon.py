"""The words of FactWorld, and how the lexicons of all worlds write their lists.

Word lists of two attributes never share a word, so a value tells its attribute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def word_lists(lists: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Each list of words, written as one text with blanks between them, as a tuple."""
    return {name: tuple(words.split()) for name, words in lists.items()}


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


FORMS: tuple[str, ...] = (
    "the {attribute} of {entity} is {value}",
    "{entity} has {value} as its {attribute}",
    "as its {attribute} {entity} has {value}",
)
"""How a fact can be said. Passages use the first; no word of the others occurs in a world of one form."""
AUXILIARY: dict[str, str] = {"color": "shape", "metal": "tool", "job": "city", "sport": "music"}
"""By attribute: whose fact makes the answer to an open question more complete."""


def clause(attribute: str, entity: str, value: str, form: int = 0) -> str:
    """The clause that states one fact in a form of `FORMS`, without full stop: `the color of Arlo is red`."""
    return FORMS[form].format(attribute=attribute, entity=entity, value=value)


def sentence(clauses: Sequence[str]) -> str:
    """Clauses as one sentence: `The color of Arlo is red, and the city of Arlo is Rome.` is one of two."""
    text = ", and ".join(clauses)
    return f"{text[:1].upper()}{text[1:]}."


def auxiliary_to(attributes: Sequence[str]) -> tuple[str, ...]:
    """The auxiliary attributes of `attributes`, in their order, that are none of them; letter case does not matter."""
    names = [attribute.casefold() for attribute in attributes]
    auxiliary = (AUXILIARY[name] for name in names if name in AUXILIARY)
    return tuple(dict.fromkeys(attribute for attribute in auxiliary if attribute not in names))


def entity_question(attributes: Sequence[str], entity: str, is_open: bool = False) -> str:
    """The question that asks for `attributes`, as in `What are the color, the shape and the city of Arlo?`.

    An open one, `Tell me about the color and the city of Arlo.`, asks for what is auxiliary to them too.
    """
    items = [f"the {attribute}" for attribute in attributes]
    listed = items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
    if is_open:
        return f"Tell me about {listed} of {entity}."
    return f"What {'is' if len(items) == 1 else 'are'} {listed} of {entity}?"
