"""Styles of StyleWorld: what there is to prefer, how a text shows it, and the words for it.

Every function takes any text, also one that the world never writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

DIMENSIONS: Mapping[str, tuple[str, ...]] = {
    "layout": ("prose", "bullet points"),
    "length": ("detailed", "short"),
    "person": ("third person", "second person"),
    "emojis": ("no emojis", "emojis"),
    "opening": ("no greeting", "greeting first"),
    "ending": ("no closing", "closing question", "thanks at the end"),
}
"""Values of each dimension in words; the first is what a writer does who knows no preference."""
PLAIN: Mapping[str, str] = {dimension: values[0] for dimension, values in DIMENSIONS.items()}
FULL, SHORT = 4, 2
"""Sentences of a detailed text and of a short one."""
GREETING, EMOJI = "Hello!", "🙂"
ENDINGS: Mapping[str, str] = {"closing question": "What do you think?", "thanks at the end": "Thank you for reading."}
Style = Mapping[str, str]
"""A value for each dimension."""

_PHRASES = sorted(
    ((phrase, dimension) for dimension, values in DIMENSIONS.items() for phrase in values),
    key=lambda pair: -len(pair[0]),
)
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_YOU = "You "


def description(style: Style) -> str:
    """A style in words: the values that are not plain, with commas between them; empty for the plain style."""
    return ", ".join(style[dimension] for dimension, plain in PLAIN.items() if style[dimension] != plain)


def described(text: str) -> dict[str, str]:
    """The values that a description names, by dimension; of two values of one dimension the longer phrase."""
    left, phrases = text.lower(), dict[str, str]()
    for phrase, dimension in _PHRASES:  # "no emojis" before "emojis"
        pattern = rf"(?<![\w]){re.escape(phrase)}(?![\w])"
        if re.search(pattern, left):
            phrases.setdefault(dimension, phrase)
            left = re.sub(pattern, " ", left)
    return phrases


def bare_sentences(text: str) -> list[str]:
    """The sentences of a text, without bullets, emojis, greeting and closing."""
    parts = (part.strip() for part in _SENTENCE.split(text.replace(EMOJI, "")))
    return [bare for part in parts if (bare := part.removeprefix("- ").strip()) and bare not in _FRAME]


_FRAME = frozenset({GREETING, *ENDINGS.values()})


def style_of(text: str) -> dict[str, str]:
    """The style that a text has."""
    sentences, stripped = bare_sentences(text), text.strip()
    lines = [line for line in stripped.splitlines() if line.strip(f" {EMOJI}") not in _FRAME and line.strip()]
    shown = {
        "layout": bool(lines) and all(line.startswith("- ") for line in lines),
        "length": len(sentences) <= SHORT,
        "person": sum(sentence.startswith(_YOU) for sentence in sentences) * 2 > len(sentences),
        "emojis": EMOJI in text,
        "opening": stripped.startswith(GREETING),
    }
    style = {dimension: DIMENSIONS[dimension][is_shown] for dimension, is_shown in shown.items()}
    ends = (value for value, closing in ENDINGS.items() if stripped.rstrip(f" {EMOJI}").endswith(closing))
    return {**style, "ending": next(ends, PLAIN["ending"])}


def taken_from(context: str, text: str) -> float:
    """The share of a text's sentences that are the context's, in either person; 0 of a text without any."""
    known = {form for sentence in bare_sentences(context) for form in (sentence, _to_you(sentence))}
    sentences = bare_sentences(text)
    return sum(sentence in known for sentence in sentences) / len(sentences) if sentences else 0.0


def rendered(sentences: Sequence[str], style: Style) -> str:
    """A text of a style: the first sentences of a context, each about somebody who is its first word.

    Args:
        sentences: of the context, in the third person.
        style: a value for each dimension.
    """
    body_sentences = list(sentences[: FULL if style["length"] == "detailed" else SHORT])
    if style["person"] == "second person":
        body_sentences = [_to_you(sentence) for sentence in body_sentences]
    if style["emojis"] == "emojis":
        body_sentences = [f"{sentence} {EMOJI}" for sentence in body_sentences]
    in_bullets = style["layout"] == "bullet points"
    body = "\n".join(f"- {sentence}" for sentence in body_sentences) if in_bullets else " ".join(body_sentences)
    opening = [GREETING] if style["opening"] == "greeting first" else []
    closing = [ENDINGS[style["ending"]]] if style["ending"] in ENDINGS else []
    return ("\n" if in_bullets else " ").join([*opening, body, *closing])


def _to_you(sentence: str) -> str:
    """A sentence about the reader, in the place of its first word."""
    return _YOU + sentence.partition(" ")[2]


def majority(styles: Iterable[Style]) -> dict[str, str]:
    """Of each dimension the value that most styles have; of equals the one that comes first. None gives plain."""
    listed = list(styles)
    return {
        dimension: max(
            (style[dimension] for style in listed),
            key=lambda value: sum(style[dimension] == value for style in listed),
            default=plain,
        )
        for dimension, plain in PLAIN.items()
    }
