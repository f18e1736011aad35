"""Documents cut into passages: consecutive blocks below one heading, with the sentences of each and their places."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from finegrained_rlhf.dialogue.records import PART_SEPARATOR, Passage
from finegrained_rlhf.inscit.documents.readers import Block, Document
from finegrained_rlhf.text.segmentation import Segmenter, Span, shared_segmenter

WORDS = 120
"""Words of a passage, about: it ends behind the sentence that reaches them."""
_LONGEST = 1_500  # characters of a sentence at most; more is cut where there is white space
_NO_WORD = re.compile(r"\S{400}")  # such a piece is no language, and takes tokenizers of words for ever
_TITLE = 160  # characters of a title


@dataclass(frozen=True)
class DocumentPassage:
    """A passage of a document.

    Attributes:
        id: `FILE#NUMBER`.
        file: relative to the folder, parts separated by `/`.
        titles: of the document and of the headings around the passage, outermost first.
        text: of the document from the passage's first character to its last.
        start: of that in the document's text.
        sentences: spans in the document's text, in order.
    """

    id: str
    file: str
    titles: tuple[str, ...]
    text: str
    start: int
    sentences: tuple[Span, ...]

    @property
    def end(self) -> int:
        """Behind its last character."""
        return self.start + len(self.text)

    def sentence(self, span: Span) -> str:
        """The text of a sentence, as it stands in the document."""
        return self.text[span[0] - self.start : span[1] - self.start]

    def record(self) -> Passage:
        """As retrievers read it: its sentences as spans."""
        texts = tuple(" ".join(self.sentence(span).split()) for span in self.sentences)
        return Passage(self.id, PART_SEPARATOR.join(self.titles), texts)


def cut_document(document: Document, file: str, words: int = WORDS) -> list[DocumentPassage]:
    """The passages of a document, in order.

    Args:
        document: that is cut.
        file: its name in the folder.
        words: of a passage, about.
    """
    segmenter = shared_segmenter("english")
    passages: list[DocumentPassage] = []
    for titles, blocks in _sections(document, file):
        group: list[Span] = []
        count = 0
        for span in (one for block in blocks for one in _sentences(document.text, block, segmenter)):
            group.append(span)
            count += len(document.text[span[0] : span[1]].split())
            if count >= words:
                passages.append(_passage(document, file, titles, group, len(passages)))
                group, count = [], 0
        if group:
            passages.append(_passage(document, file, titles, group, len(passages)))
    return passages


def _passage(
    document: Document, file: str, titles: tuple[str, ...], spans: Sequence[Span], number: int
) -> DocumentPassage:
    start, end = spans[0][0], spans[-1][1]
    return DocumentPassage(f"{file}#{number}", file, titles, document.text[start:end], start, tuple(spans))


def _sections(document: Document, file: str) -> Iterator[tuple[tuple[str, ...], list[Block]]]:
    """Blocks between headings with the titles above them; a heading with nothing below it is a block itself."""
    plain = [block for block in document.blocks if not block.level]
    name = re.sub(r"[_-]+", " ", file.rsplit("/", 1)[-1].rsplit(".", 1)[0])
    first = document.title or name
    if not plain:
        yield (_title(first),), list(document.blocks)
        return
    path: list[tuple[int, str]] = []
    blocks: list[Block] = []
    last: Block | None = None
    for block in document.blocks:
        if not block.level:
            blocks.append(block)
            continue
        if blocks:
            yield _titles(path, first), blocks
        elif last is not None and block.level <= last.level:
            yield _titles(path[:-1], first), [last]
        blocks, last = [], block
        path = [one for one in path if one[0] < block.level] + [(block.level, document.text[block.start : block.end])]
    if blocks:
        yield _titles(path, first), blocks
    elif last is not None:
        yield _titles(path[:-1], first), [last]


def _titles(path: Sequence[tuple[int, str]], first: str) -> tuple[str, ...]:
    """The headings around a block; the document's own title where no heading of the first level has it."""
    titles = [text for _, text in path]
    own = [] if path and path[0][0] == 1 else [first]
    return tuple(dict.fromkeys(_title(text) for text in (*own, *titles)))


def _title(text: str) -> str:
    return " ".join(re.sub(r"[*_`]+", "", text).split())[:_TITLE] or "untitled"


def _sentences(text: str, block: Block, segmenter: Segmenter) -> Iterator[Span]:
    """The sentences of a block; a piece of text that never ends is cut before it is looked at."""
    for start, end in _pieces(text, block.start, block.end, 4 * _LONGEST):
        words = not _NO_WORD.search(text, start, end)
        spans = segmenter.sentences(text[start:end]) if words else [(0, end - start)]
        for first, last in spans:
            yield from _pieces(text, start + first, start + last, _LONGEST)


def _pieces(text: str, start: int, end: int, longest: int) -> Iterator[Span]:
    while end - start > longest:
        blank = max(
            text.rfind(" ", start + longest // 2, start + longest),
            text.rfind("\n", start + longest // 2, start + longest),
        )
        cut = blank if blank > 0 else start + longest
        yield start, cut
        start = cut
        while start < end and text[start].isspace():
            start += 1
    if start < end:
        yield start, end
