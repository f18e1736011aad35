"""The words that mark the parts of a dialogue's input: who speaks, and the levels of a passage's title.

The only place that spells them. An encoder that reads such inputs has each as one special token. Source: the original
code of DIALKI, which adds these four to BERT's vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from finegrained_rlhf.dialogue.records import Role

ROLE_TOKENS: Mapping[Role, str] = {"user": "<user>", "agent": "<agent>"}
"""What begins a turn; the hidden state there stands for the turn."""
PARENT_TITLE = "<parent_title>"
"""Stands before each title above that of a passage."""
OWN_TITLE = "<text>"
"""Stands before a passage's own title, where there are others above it."""
TITLE_TOKENS = (PARENT_TITLE, OWN_TITLE)
"""What may stand inside `Passage.title`; the marks mean nothing in any other text."""
MARKER_TOKENS = (ROLE_TOKENS["agent"], ROLE_TOKENS["user"], *TITLE_TOKENS)
"""All of them, in the order in which they enter a vocabulary."""


def full_title(document: str, parents: Iterable[str], own: str) -> str:
    """`DOCUMENT <parent_title> PARENT … <text> OWN`: a passage's place in its document as one title.

    Args:
        document: name of the document.
        parents: titles above the passage's own, from the outermost; blank ones are left out, and one that occurs twice
            stands once.
        own: the passage's own title; may be empty.
    """
    above = [f"{PARENT_TITLE} {title}" for title in dict.fromkeys(parents) if title]
    return " ".join([document, *above, OWN_TITLE, own.strip()]).strip()


def plain_title(title: str) -> str:
    """A title for people, and for models without these tokens: a slash for each mark, single spaces."""
    for token in TITLE_TOKENS:
        title = title.replace(token, "/")
    return " ".join(title.split()).strip("/ ")
