"""Token ids of what people wrote: nothing in a text is a special token, whatever it spells.

With the tokenizer alone, `[SEP]` in a user's turn would end the dialogue there, and `<agent>` would begin a turn.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from finegrained_rlhf.dialogue.tokens import TITLE_TOKENS

Offsets = list[tuple[int, int]]
_LEVELS = re.compile("|".join(f"({re.escape(token)})" for token in TITLE_TOKENS))


class TextReader:
    """Reads texts and titles with a tokenizer.

    In a title the marks of its levels (`dialogue.tokens.TITLE_TOKENS`) are the special tokens that they spell, where
    the tokenizer has them: a model saved before they were added reads them as it was trained to, as words.

    Args:
        tokenizer: of the model.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        known = tokenizer.get_vocab()
        self._levels = {token: int(known[token]) for token in TITLE_TOKENS if token in known}
        self._special = dict(zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True))
        self._unknown = tokenizer.unk_token_id

    def texts(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text."""
        if not texts:
            return []
        rows = self._read(texts).input_ids
        return [self._without_special(text, row) for text, row in zip(texts, rows, strict=True)]

    def titles(self, titles: Sequence[str]) -> list[list[int]]:
        """Token ids of each title."""
        pieces = [list(self._pieces(title)) for title in titles]
        read = iter(self.texts([text for row in pieces for text, _ in row if text not in self._levels]))
        return [
            [token for text, _ in row for token in ([self._levels[text]] if text in self._levels else next(read))]
            for row in pieces
        ]

    def text_offsets(self, text: str) -> Offsets:
        """The first character of each token of a text, and the one after its last; needs a fast tokenizer."""
        return [(int(a), int(b)) for a, b in self._read([text], return_offsets_mapping=True)["offset_mapping"][0]]

    def title_offsets(self, title: str) -> Offsets:
        """The same for a title."""
        offsets: Offsets = []
        for text, start in self._pieces(title):
            inside = [(0, len(text))] if text in self._levels else self.text_offsets(text)
            offsets += [(start + a, start + b) for a, b in inside]
        return offsets

    def _pieces(self, title: str) -> Iterator[tuple[str, int]]:
        """The marks of a title and the texts between them, with the character that each begins at."""
        start = 0
        for match in _LEVELS.finditer(title):
            if match.group() in self._levels:
                yield from self._between(title[start : match.start()], start)
                yield match.group(), match.start()
                start = match.end()
        yield from self._between(title[start:], start, last=True)

    @staticmethod
    def _between(text: str, start: int, last: bool = False) -> Iterator[tuple[str, int]]:
        """A text between two marks: the white space before a mark belongs to the mark."""
        text = text if last else text.rstrip()
        if text:
            yield text, start

    def _read(self, texts: Sequence[str], **more: bool) -> Any:
        return self._tokenizer(
            list(texts),
            add_special_tokens=False,
            split_special_tokens=True,
            return_attention_mask=False,
            verbose=False,
            **more,
        )

    def _without_special(self, text: str, row: Sequence[int]) -> list[int]:
        """A row of ids with the unknown token where a vocabulary of whole words still knows a special token."""
        if self._unknown is None or not any(token in text for token in self._special.values()):
            return list(row)
        return [self._unknown if token in self._special else token for token in row]
