"""Texts and edits of StyleWorld as files: what a policy learns to write, and what its reader makes of its drafts."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from finegrained_lab.protocols.prelude.inputs.contexts import SourcedContext, read_contexts, read_preferences
from finegrained_lab.worlds.style.reader import StyleReader
from finegrained_lab.worlds.style.styles import (
    DIMENSIONS,
    PLAIN,
    Style,
    bare_sentences,
    described,
    description,
    majority,
    rendered,
    style_of,
    taken_from,
)
from finegrained_rlhf.core.checks import get_field, require_text
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import read_jsonl, write_json, write_jsonl
from finegrained_rlhf.core.markers import InputFile, OutputFile, Seed, at_least, at_most
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.feedback.outputs import read_texts
from finegrained_rlhf.personalization.span_feedback import NOTE_TITLE, EditCost, edit_cost
from finegrained_rlhf.text.templates import task_text


@dataclass(frozen=True, kw_only=True)
class WriteStyleTexts(Settings):
    """Write a prompt file whose answers are in styles drawn at random, whatever a reader would want.

    A policy that learns from it can write every style, and has no preference of its own.

    Attributes:
        contexts: file of contexts.
        output: JSON-lines file: `id`, `question` (the context), `passages` (none), `answer`.
        preferences: file of the true preference by source; with it each prompt has its reader's as a passage for
            rewards, and what the policy reads, `text`, is as without it.
        noted: share of the texts whose style stands in the prompt, as a passage that the policy reads.
        seed: of the styles.

    Raises:
        ConfigError: preferences and notes are two uses of one passage.
    """

    contexts: InputFile
    output: OutputFile
    preferences: InputFile | None = None
    noted: Annotated[float, at_least(0.0), at_most(1.0)] = 0.0
    seed: Seed = 0

    def __post_init__(self) -> None:
        if self.noted and self.preferences is not None:
            raise ConfigError("expected either noted or preferences: both would be the prompt's passage")

    def run(self) -> int:
        """Read, draw, write, print one line; returns how many texts there are.

        Raises:
            DataError: the contexts are damaged.
        """
        contexts = read_contexts(self.contexts)
        styles = [self._style(one.id) for one in contexts]
        rows = [
            prompt_row(one, rendered(bare_sentences(one.text), style), note=self._note(one.id, style))
            for one, style in zip(contexts, styles, strict=True)
        ]
        if self.preferences is not None:
            known = [preference for _, preference in read_wanted(self.contexts, self.preferences)]
            rows = [
                {**row, "text": task_text(row["question"], ()), "passages": [[NOTE_TITLE, preference]]}
                for row, preference in zip(rows, known, strict=True)
            ]
        write_jsonl(self.output, rows)
        print(f"{len(rows)} texts in styles at random -> {self.output}")
        return len(rows)

    def _note(self, context: str, style: Style) -> str:
        shown = stable_hash(self.seed, "note of a text", context) / 2**63 < self.noted
        return description(style) if shown else ""

    def _style(self, context: str) -> Style:
        rng = random.Random(stable_hash(self.seed, "style of a text", context))
        return {dimension: rng.choice(values) for dimension, values in DIMENSIONS.items()}


@dataclass(frozen=True, kw_only=True)
class WriteMajorityStyle(Settings):
    """Write drafts in the one style that most of some edited texts have: what is known without telling sources apart.

    Attributes:
        edits: file of edits.
        contexts: file of contexts to write from.
        output: drafts as `finegrained generate` writes them.
    """

    edits: InputFile
    contexts: InputFile
    output: OutputFile

    def run(self) -> Style:
        """Read, write, print one line; returns the style.

        Raises:
            DataError: a file is damaged.
        """
        edited = [require_text(get_field(row, "edited"), "edited", empty=True) for row in read_jsonl(self.edits)]
        style = majority(map(style_of, edited))
        contexts = read_contexts(self.contexts)
        rows = ({"id": one.id, "response": rendered(bare_sentences(one.text), style)} for one in contexts)
        write_jsonl(self.output, rows)
        print(f"{len(contexts)} drafts: {description(style) or 'plain'} -> {self.output}")
        return style


@dataclass(frozen=True, kw_only=True)
class EditDrafts(Settings):
    """Let the reader edit drafts, and measure what that costs.

    Attributes:
        contexts: file of contexts.
        preferences: file of the true preference by source.
        drafts: what a policy wrote, as `finegrained generate` writes it; a response to every context.
        output: JSON-lines file of edits, `context`, `draft`, `edited`, which `finegrained edits-to-feedback` reads.
        results: JSON file of what `measured` says.
        texts: JSON-lines prompt file whose answers are the edited texts; None writes none.
        pairs: the same, of the drafts that were edited, with the draft as a second answer; None writes none.
        noted: the file of edits once more, with the reader's preference, as a memory would know it; None writes none.
    """

    contexts: InputFile
    preferences: InputFile
    drafts: str
    output: OutputFile
    results: OutputFile
    texts: OutputFile | None = None
    pairs: OutputFile | None = None
    noted: OutputFile | None = None

    def run(self) -> dict[str, Any]:
        """Edit, measure, write, print one line.

        Raises:
            DataError: a file is damaged, a context has no draft, or a source no preference.
        """
        wanted, drafts = read_wanted(self.contexts, self.preferences), read_texts(self.drafts, "response")
        reader, rows = StyleReader(strict=True), []
        for one, preference in wanted:
            if one.id not in drafts:
                raise DataError(f"no response to {one.id}", file=self.drafts)
            draft = drafts[one.id]
            rows.append({"context": one.text, "draft": draft, "edited": reader.edit(one.text, preference, draft)})
        measures = measured(rows, [preference for _, preference in wanted])
        write_jsonl(self.output, rows)
        if self.texts is not None:
            pairs = zip(wanted, rows, strict=True)
            write_jsonl(self.texts, (prompt_row(one, row["edited"]) for (one, _), row in pairs))
        if self.pairs is not None:
            touched = [(one, row) for (one, _), row in zip(wanted, rows, strict=True) if row["draft"] != row["edited"]]
            write_jsonl(self.pairs, (prompt_row(one, row["edited"], row["draft"] or " ") for one, row in touched))
        if self.noted is not None:
            known = (preference for _, preference in wanted)
            write_jsonl(self.noted, ({**row, "preference": one} for row, one in zip(rows, known, strict=True)))
        write_json(self.results, measures)
        shown = ", ".join(
            f"{name} {measures[name]:.3f}" for name in ("cost", "normalised", "untouched", "style", "taken")
        )
        print(f"{len(rows)} drafts: {shown} -> {self.output}")
        return measures


@dataclass(frozen=True, kw_only=True)
class HoldDrafts(Settings):
    """Hold more drafts of a context against the text that its reader made of one: nobody is asked again.

    Attributes:
        edits: file of edits, one a context, in their order.
        contexts: file of contexts.
        drafts: files of drafts that no reader saw, as `finegrained generate` writes them.
        output: file of edits: the given ones, and one for each of the drafts.
    """

    edits: InputFile
    contexts: InputFile
    drafts: Sequence[str]
    output: OutputFile

    def run(self) -> int:
        """Read, write, print one line; returns how many edits there are.

        Raises:
            DataError: a file is damaged, the edits are not these contexts', or a context has no draft.
        """
        contexts, edits = read_contexts(self.contexts), list(read_jsonl(self.edits))
        if [one.text for one in contexts] != [row["context"] for row in edits]:
            raise DataError("expected one edit of each context, in their order", file=self.edits)
        rows = list(edits)
        for file in self.drafts:
            drafts = read_texts(file, "response")
            if missing := [one.id for one in contexts if one.id not in drafts]:
                raise DataError(f"no response to {missing[0]}", file=file)
            rows += [{**row, "draft": drafts[one.id]} for one, row in zip(contexts, edits, strict=True)]
        write_jsonl(self.output, rows)
        print(f"{len(rows)} drafts and what they should have been -> {self.output}")
        return len(rows)


def read_wanted(contexts: str, preferences: str) -> list[tuple[SourcedContext, str]]:
    """Each context of a file with what its reader prefers.

    Raises:
        DataError: a file is damaged, or a source has no preference.
    """
    true = read_preferences(preferences)
    contexts_and_preferences = []
    for one in read_contexts(contexts):
        if one.source not in true:
            raise DataError(f"no preference of the source {one.source}", file=preferences)
        contexts_and_preferences.append((one, true[one.source]))
    return contexts_and_preferences


def measured(edits: Iterable[Mapping[str, str]], preferences: Iterable[str]) -> dict[str, Any]:
    """Means over edits.

    Returns:
        `cost` (Levenshtein's distance of draft and edited text in words and marks), `normalised` (over those of the
        longer text), `untouched` (share of drafts that were left), `style` (share of the dimensions in which a draft is
        as it is wanted) and each one's share, `taken` (share of its sentences that are the context's), `words`.
    """
    pairs = list(zip(edits, preferences, strict=True))
    costs: list[EditCost] = [edit_cost(edit["draft"], edit["edited"]) for edit, _ in pairs]
    styles = [(style_of(edit["draft"]), {**PLAIN, **described(preference)}) for edit, preference in pairs]
    count = len(pairs)
    right = {name: sum(had[name] == wanted[name] for had, wanted in styles) / count for name in DIMENSIONS}
    return {
        "drafts": count,
        "cost": sum(cost.distance for cost in costs) / count,
        "normalised": sum(cost.normalised for cost in costs) / count,
        "untouched": sum(edit["draft"] == edit["edited"] for edit, _ in pairs) / count,
        "style": sum(right.values()) / len(right),
        "taken": sum(taken_from(edit["context"], edit["draft"]) for edit, _ in pairs) / count,
        "words": sum(len(edit["draft"].split()) for edit, _ in pairs) / count,
        **right,
    }


def prompt_row(one: SourcedContext, *answers: str, note: str = "") -> dict[str, Any]:
    """A row of a prompt file: a context, what was written, and as a passage what is known of the user."""
    return {
        "id": one.id,
        "question": one.text,
        "passages": [[NOTE_TITLE, note]] if note else [],
        "answer": list(answers),
    }
