"""What may follow in a response, looked up in its prompt: an answer that copies a passage goes on as the passage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

MATCHED = 2
"""Tokens that must stand in the prompt as in the response before anything is looked up."""


class PromptLookup:
    """Finds the end of a response in a prompt (Saxena, *Prompt Lookup Decoding*, 2023).

    Args:
        prompt: token ids.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        self._prompt = prompt
        self._behind: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        for place in range(MATCHED, len(prompt)):
            self._behind[tuple(prompt[place - MATCHED : place])].append(place)

    def draft(self, response: Sequence[int], most: int) -> Sequence[int]:
        """The tokens behind the longest piece of the prompt that the response ends with, of several the first.

        As many as that piece is long: what has been copied for some while is likely to be copied further.

        Args:
            response: token ids so far.
            most: tokens wanted at most, 0 or more.
        """
        places = self._behind.get(tuple(response[-MATCHED:]), ()) if most > 0 else ()
        if not places:
            return ()
        length, place = max((self._matched(response, place, most), -place) for place in places)
        return self._prompt[-place : min(length, most) - place]

    def _matched(self, response: Sequence[int], place: int, most: int) -> int:
        """How many tokens before a place of the prompt are the response's last; not counted beyond `most`."""
        count = MATCHED
        while count < min(most, place, len(response)) and self._prompt[place - 1 - count] == response[-1 - count]:
            count += 1
        return count
