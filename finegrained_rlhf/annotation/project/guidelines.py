"""A page of guidelines, made of a taxonomy: what annotators are told."""

from __future__ import annotations

from collections.abc import Sequence

from finegrained_rlhf.feedback.taxonomy import Category, ErrorType, MissingType, Taxonomy
from finegrained_rlhf.report.elements.html import Html, el, join
from finegrained_rlhf.report.elements.page import PageSection, page, table

_STYLE = ".swatch{display:inline-block;width:1em;height:1em;border-radius:3px;vertical-align:-2px;margin-right:.4em}"
_UNITS = {
    "sub_sentence": "Mark the shortest words that hold the error; one piece of information and one type each.",
    "sentence": "Mark the words that hold the error; what counts later is the sentence that they stand in.",
    "response": "Any mark counts for the answer as a whole.",
    "own": "Mark the step, or the piece, that holds the error.",
}


def guidelines_page(taxonomy: Taxonomy, project: str) -> str:
    """A whole HTML document: what to mark, in which order, and what to do beside it."""
    categories = list(taxonomy.categories.values())
    order = el(
        "p",
        "Marks do not overlap. Where two kinds of error fall on the same words, mark the one that stands first here: ",
        ", then ".join(category.title or category.name for category in categories),
        ".",
    )
    sections = [_category(category) for category in categories]
    if taxonomy.missing:
        rows = [_row(kind, ()) for kind in taxonomy.missing.values()]
        lead = "Highlight the sentences of the passages that the answer should have used and did not."
        sections.append(PageSection("missing", "What is missing", lead, table(["type", "key", "meaning"], rows)))
    steps = [el("li", text) for text in _steps(taxonomy)]
    sections.append(PageSection("steps", "Step by step", "", el("ol", *steps)))
    header = join(el("h1", f"Guidelines: {project}"), order if len(categories) > 1 else None)
    return page(f"Guidelines: {project}", header, sections, _STYLE)


def _category(category: Category) -> PageSection:
    rows = [
        _row(
            kind, [name for name, needed in (("evidence", kind.needs_evidence), ("quote", kind.needs_quote)) if needed]
        )
        for kind in category.types.values()
    ]
    body = table(["type", "key", "meaning"], rows)
    return PageSection(category.name, category.title or category.name, _UNITS[category.density], body)


def _row(kind: ErrorType | MissingType, needs: Sequence[str]) -> list[Html | str]:
    needed = ", ".join(needs)
    meaning = f"{kind.description} (name the {needed})" if needed else kind.description
    swatch = el("span", class_="swatch", style=f"background:{kind.colour}")
    return [join(swatch, kind.label), el("kbd", kind.key), meaning]


def _steps(taxonomy: Taxonomy) -> list[str]:
    steps = ["Read the question, the passages where there are any, and the answer."]
    if taxonomy.categories:
        steps.append("Mark the errors; tick that there is none only after you have looked for each type.")
    if taxonomy.missing:
        steps.append("Highlight what is missing; tick that nothing is only after you have read all passages.")
    if taxonomy.correction:
        steps.append(
            "Correct the answer with as few changes as you can; leave it empty where nothing of it can be kept."
        )
    if taxonomy.preferences and taxonomy.comparison == "pairs":
        steps.append("Say of each pair of answers which is better, all errors weighed, or that they are equally good.")
    elif taxonomy.preferences:
        steps.append("Rank the answers, all errors weighed; answers that are equally good share a place.")
    return steps
