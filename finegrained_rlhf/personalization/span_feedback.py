"""What an edit costs, and edits of an application as a feedback file: what `finegrained edits-to-feedback` runs.

The cost is Levenshtein's distance between draft and edited text over tokens. An edit gives marked spans of the draft,
each with a category by rule. A rule of form is no judge: it cannot say why something was changed.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Annotated, Any, ClassVar

from finegrained_rlhf.core.checks import as_object, get_field, require_text
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import read_jsonl
from finegrained_rlhf.core.generation.protocol import words_and_marks
from finegrained_rlhf.core.markers import InputFile, OutputFile, Seed, at_least
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.reading import write_feedback
from finegrained_rlhf.feedback.records import SECOND, Feedback, FeedbackRecord, SpanError
from finegrained_rlhf.personalization.store.opening import open_memory
from finegrained_rlhf.personalization.store.protocol import Event
from finegrained_rlhf.text.edits import levenshtein

EDIT = "edit"
"""The kind of event that a user's edit of a draft is."""
FIRST_EDIT = "first_edit"
"""What another edit of a draft rests on: the key of the first one (`Event.used`)."""
Tokenise = Callable[[str], Sequence[str]]


@dataclass(frozen=True)
class EditCost:
    """The cost of one edit.

    Attributes:
        distance: tokens to insert, delete or replace.
        longest: tokens of the longer of the two texts.
    """

    distance: int
    longest: int

    @property
    def normalised(self) -> float:
        """Distance / longest, from 0 to 1; 0 where both are empty (Gao et al. 2024, appendix C)."""
        return self.distance / self.longest if self.longest else 0.0


def latest_edits(edits: Iterable[Event]) -> dict[str, Event]:
    """The latest edit of each draft, by the key of its first, in the order of the first ones.

    Args:
        edits: events of one user, the oldest first.
    """
    return {str((edit.used or {}).get(FIRST_EDIT, edit.key)): edit for edit in edits}


def edit_cost(draft: str, edited: str, tokenise: Tokenise = words_and_marks) -> EditCost:
    """The cost c_t = Δ_edit(y_t, y'_t) of an edit (Gao et al. 2024, protocol 1).

    Args:
        draft: y_t.
        edited: y'_t.
        tokenise: a text's tokens; words and marks by default. White space then costs nothing.
    """
    left, right = list(tokenise(draft)), list(tokenise(edited))
    return EditCost(levenshtein(left, right), max(len(left), len(right)))


IRRELEVANT, WRONG, MISSING = "irrelevant", "wrong", "missing"
"""Types of span: words that the user took out; words that they replaced; the word at which they put something in."""
_WORD = re.compile(r"\w+|[^\w\s]")
_AFTER, _BEFORE, _INSTEAD = "added after it: ", "added before it: ", "replaced by: "
NOTE_TITLE = "what is known of the user"
"""Of the passage that says by which preference a draft was written."""


def edit_errors(draft: str, edited: str) -> tuple[SpanError, ...]:
    """The changes that make an edited text of a draft, as marked spans of the draft, in their order.

    The texts are compared by words and marks (Ratcliff and Obershelp's longest common blocks); white space is no
    change. Words that are gone are `irrelevant`, and words in whose place others stand are `wrong`. Words that were
    added are `missing` at the word before them, or at the one after them where they come first. The explanation has the
    words of the user.

    Args:
        draft: what was written, with a word at least.
        edited: what the user made of it.

    Raises:
        ValueError: the draft has no word and no mark.
    """
    before, after = (list(_WORD.finditer(text)) for text in (draft, edited))
    if not before:
        raise ValueError("expected a draft with a word or mark")
    words = ([match.group() for match in before], [match.group() for match in after])
    errors = []
    for operation, i1, i2, j1, j2 in SequenceMatcher(None, *words, autojunk=False).get_opcodes():
        new = edited[after[j1].start() : after[j2 - 1].end()] if j1 < j2 else ""
        if operation == "delete":
            errors.append(SpanError(before[i1].start(), before[i2 - 1].end(), IRRELEVANT))
        elif operation == "replace":
            errors.append(SpanError(before[i1].start(), before[i2 - 1].end(), WRONG, _INSTEAD + new))
        elif operation == "insert":
            at = before[max(i1 - 1, 0)]
            errors.append(SpanError(at.start(), at.end(), MISSING, (_AFTER if i1 else _BEFORE) + new))
    return tuple(errors)


@dataclass(frozen=True)
class EditsToFeedback(Settings):
    """Write edits as span feedback for `finegrained train-reward-model` with `taxonomy=edits`.

    A record's question is the context, its one prediction the draft, and its corrected prediction the edited text; the
    spans are those of `edit_errors`. A draft that was left as it is has none; of one that was edited several times the
    latest edit counts. The preference that a draft was written
    by, where there was one, is a passage, which reward models of `taxonomy=edit_mass` read. No user is named in the
    file. It is a copy: `forget` does not reach it.

    Attributes:
        output: feedback FILE.
        data: FILE of edits, one a line: `context`, `draft`, `edited` and, where it is known, `preference`; None where a
            memory is read.
        memory: FILE of a `UserMemory`, or `postgresql://…`; None where `data` is read.
        users: whose edits of the memory are taken, by name. Those who have decided otherwise are left out, and counted;
            of those whose decision is not recorded, the application says who has agreed.
        hindsight: above 0, each edit gives more records: the edited text, which needs no edit, and it and the draft so
            often with some words cut out, from one drawn at random to another or to the end, which need them back.
            Nobody was asked about them. A reward model that never saw a text that lacks most takes one for free.
        preferences: whether the edited text is each record's second answer, preferred to the first, for
            `reward_model=preference`.
        seed: of what is cut out.
    """

    every_process: ClassVar[bool] = False

    output: OutputFile
    data: InputFile | None = None
    memory: str | None = None
    users: Sequence[str] = ()
    hindsight: Annotated[int, at_least(0)] = 0
    preferences: bool = False
    seed: Seed = 0

    def __post_init__(self) -> None:
        if (self.data is None) == (self.memory is None):
            raise ConfigError("expected either data, a file of edits, or memory, the file of a memory")
        if isinstance(self.users, str):
            raise ConfigError(f"users: expected a list of names, got {self.users!r}")
        if (self.memory is not None) != bool(self.users):
            raise ConfigError("users: expected names of users with a memory, and none without")

    def run(self) -> list[FeedbackRecord]:
        """Read, compare, write; prints how many spans of each type there are, and what was left out.

        Raises:
            DataError: a file is missing or damaged, a user is unknown, or no record is left.
        """
        records, types, blank = dict[str, FeedbackRecord](), Counter[str](), 0
        left_out = set[str]()
        for key, edit in self._edits(left_out):
            if not words_and_marks(edit["draft"]):
                blank += 1  # there is nothing that could be marked
                continue
            name = f"edit-{hashlib.blake2b(key.encode(), digest_size=8).hexdigest()}"
            notes = tuple(Passage.uncut("", text, NOTE_TITLE) for text in (edit["preference"],) if text.strip())
            for number, text in enumerate([edit["draft"], *self._more(key, edit["draft"], edit["edited"])]):
                feedback = Feedback(edit_errors(text, edit["edited"]), (), edit["edited"])
                types.update(error.error_type for error in feedback.errors)
                own = f"{name}-{number}" if number else name
                compared = self.preferences and text != edit["edited"] and bool(edit["edited"].strip())
                texts, better = ((text, edit["edited"]), (SECOND,)) if compared else ((text,), ())
                records[own] = FeedbackRecord(own, edit["context"], notes, texts, feedback, better)
        if not records:
            raise DataError(
                f"no edit is left: nothing is written (users who have not allowed training: {len(left_out)})",
                file=self.output,
            )
        write_feedback(self.output, records.values())
        spans = ", ".join(f"{count} {name}" for name, count in sorted(types.items())) or "no span"
        print(f"{len(records)} records, {spans} -> {self.output}")
        if blank:
            print(f"  left out: drafts without a word: {blank}")
        if left_out:
            print(f"  left out: users who have not allowed training: {len(left_out)}")
        return list(records.values())

    def _more(self, key: str, draft: str, edited: str) -> list[str]:
        """Other texts that the edited one says what is wrong with; each once, and not the draft."""
        if not self.hindsight:
            return []
        rng, texts = random.Random(stable_hash(self.seed, "hindsight", key)), [edited]
        for text in (draft, edited):
            words = list(_WORD.finditer(text))
            for _ in range(self.hindsight if words else 0):
                first = rng.randrange(len(words))
                end = words[rng.randrange(first, len(words))].end() if rng.random() < 0.5 else len(text)
                texts.append((text[: words[first].start()].rstrip(" ") + text[end:]).strip(" "))
        return [text for text in dict.fromkeys(texts) if words_and_marks(text) and text != draft]

    def _edits(self, left_out: set[str]) -> Iterator[tuple[str, dict[str, str]]]:
        """Each edit with what makes it unique; users who have not allowed training are put into `left_out`."""
        if self.data is not None:
            for number, row in enumerate(read_jsonl(self.data)):
                try:
                    yield f"{number}", _edit(row)
                except DataError as error:
                    raise error.at(file=self.data, record=number) from None
            return
        memory = open_memory(str(self.memory))
        try:
            for name in self.users:
                handle, decision = memory.known(name), memory.consent(name)
                if handle is None:
                    raise DataError("there is no such user in the memory", field="users")
                if decision is not None and not decision.train:
                    left_out.add(name)
                    continue
                for key, event in latest_edits(handle.events(EDIT)).items():
                    yield f"{name}\0{key}", _edit(event.body)
        finally:
            memory.close()


def _edit(row: Any) -> dict[str, str]:
    row = {"preference": "", **as_object(row, "edit")}
    return {
        name: require_text(get_field(row, name), name, empty=name != "context")
        for name in ("context", "draft", "edited", "preference")
    }
