"""What an edit says of a draft: marked spans, each with a category by rule.

A rule of form is no judge: it cannot say why something was changed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher

from finegrained_rlhf.feedback.records import SpanError

IRRELEVANT, WRONG, MISSING = "irrelevant", "wrong", "missing"
"""Types of span: words that the user took out; words that they replaced; the word at which they put something in."""
_WORD = re.compile(r"\w+|[^\w\s]")
_AFTER, _BEFORE, _INSTEAD = "added after it: ", "added before it: ", "replaced by: "


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


def words_after(draft: str, errors: Sequence[SpanError]) -> list[str]:
    """The words and marks of the edited text, from the draft and what `edit_errors` made of it.

    Raises:
        ValueError: a mark is none of `edit_errors`.
    """
    text, at = "", 0
    for error in errors:
        explanation = error.explanation or ""
        prefix = next((known for known in (_AFTER, _BEFORE, _INSTEAD) if explanation.startswith(known)), "")
        if (error.error_type == IRRELEVANT) == bool(prefix):
            raise ValueError("expected marks as edit_errors makes them")
        new = explanation.removeprefix(prefix)
        kept = error.end if prefix == _AFTER else error.start
        text += f"{draft[at:kept]} {new} " if new else f"{draft[at:kept]} "
        at = kept if prefix in (_AFTER, _BEFORE) else error.end
    return _WORD.findall(text + draft[at:])
