"""A conversation or two in INSCIT's published layout, of our own making."""

from __future__ import annotations

from typing import Any


def passage(name: str, text: str = "", titles: tuple[str, ...] = ("Cheese",)) -> dict[str, Any]:
    return {"passage_id": name, "passage_text": text or f"About {name}.", "passage_titles": list(titles)}


MILK, GOAT, OUTLINE = passage("Types of cheese:19"), passage("Goat:2"), passage("Cheese:0", "- History", ())


def label(kind: str, response: str, *evidence: dict[str, Any]) -> dict[str, Any]:
    return {"responseType": kind, "response": response, "evidence": list(evidence)}


def conversations() -> dict[str, Any]:
    """Two conversations: of three turns, and of one; blanks in ids, a passage listed twice, types that differ."""
    asked = "What is cheese made from?"
    first = label("directAnswer", "It is made from milk.", MILK, MILK)
    other = label("clarification", "Which cheese do you mean?", MILK, GOAT)
    said = [asked, other["response"], "Goat cheese."]
    second = label("directAnswer", "From the milk of goats, of course.", GOAT)
    third = [*said, second["response"], "And who likes it?"]
    nothing = label("noAnswerNoRelevantInfo", "Sorry, I found nothing.")
    more = {**nothing, "extra": 1}
    outline = label("noAnswerButRelevantInfo", "This is what is known of its history.", OUTLINE)
    return {
        "food_level1_dial24": {
            "seedArticle": {"title": "Cheese", "topic": "food", "level": 1},
            "turns": [
                {"context": [asked], "prevEvidence": [], "labels": [first, other]},
                {"context": said, "prevEvidence": [[MILK, GOAT]], "labels": [second]},
                {
                    "context": third,
                    "prevEvidence": [[MILK, GOAT], [GOAT]],
                    "labels": [nothing, more],
                },
            ],
        },
        "top3_dial12": {
            "seedArticle": {"title": "Goat", "topic": "animals"},
            "turns": [{"context": ["How old is it?"], "prevEvidence": [], "labels": [outline]}],
        },
    }
