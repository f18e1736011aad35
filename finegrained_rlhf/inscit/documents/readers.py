"""Documents of several formats as one text with blocks and headings, whose places are characters of that text.

Of text and Markdown the text is the file's own, as Python's `read_text` gives it, so that a place in it is a place in
the file. Of HTML, PDF and DOCX it is what was extracted, which the index keeps. Nothing in a document is executed or
fetched.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

from finegrained_rlhf.core.errors import DataError

LONGEST = 20_000_000
"""Characters of a document at most."""
_UNPACKED = 200_000_000  # bytes of a DOCX's members, as its directory says and as they are read
_PAGES = 5_000
_LIST = re.compile(r"[ \t]*(?:>[ \t]?)*(?:(?:[-*+•]|\d{1,9}[.)])[ \t]+)?(?:\[[ xX]\][ \t]+)?")
_TITLE = re.compile(r"^title:[ \t]*(.+?)[ \t]*$", re.MULTILINE)
_HIDDEN = "title script style template noscript svg iframe object nav select textarea button datalist".split()
_HEADINGS = tuple(f"h{level}" for level in range(1, 7))
_HTML_BLOCKS = (
    *_HEADINGS,
    *"body main p li pre blockquote dt dd figcaption div section article aside header footer ul ol table".split(),
)


@dataclass(frozen=True)
class Block:
    """A paragraph, an item of a list, a row of a table or a heading.

    Attributes:
        start: its first character in the document's text.
        end: behind its last one.
        level: of a heading, from 1; 0 of anything else.
    """

    start: int
    end: int
    level: int = 0


@dataclass(frozen=True)
class Document:
    """What was read of a file.

    Attributes:
        text: in whose characters all places are.
        blocks: in order, apart from one another; none is blank.
        title: that the file gives itself outside of its text, else "".
    """

    text: str
    blocks: tuple[Block, ...]
    title: str = ""


class NotNow(DataError):
    """A file that was not read for another reason than its content: another run may read it."""


def printable(text: str) -> str:
    """A text for a line of a terminal: control characters and what UTF-8 cannot hold as escapes."""
    text = text.encode("utf-8", "backslashreplace").decode()
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", lambda found: found[0].encode("unicode_escape").decode(), text)


def read_text(data: bytes) -> Document:
    """Plain text: paragraphs are parted by blank lines."""
    text = _decoded(data)
    return Document(
        text, tuple(_trimmed(text, ((m.start(), m.end(), 0) for m in re.finditer(r"(?:[^\n]+\n?)+", text))))
    )


def read_markdown(data: bytes) -> Document:
    """CommonMark with tables: items of lists, rows of tables and lines of code are blocks of their own."""
    try:
        from markdown_it import MarkdownIt
    except ModuleNotFoundError:
        raise _missing("markdown-it-py") from None
    text = _decoded(data)
    lines = list(accumulate((len(line) + 1 for line in text.split("\n")), initial=0))
    front = re.match(r"\ufeff?---\n(?=[\w-]+:)(.*?)\n---[ \t]*(?:\n|\Z)", text[:100_000], re.DOTALL)
    skipped = text.count("\n", 0, front.end()) if front else 0
    parser = MarkdownIt("commonmark").enable("table").disable("inline")
    found: list[tuple[int, int, int]] = []
    for token in parser.parse(_unmarked(text)[lines[skipped] :]):
        if token.map is None or token.type not in _LEAVES:
            continue
        first, last = token.map[0] + skipped, token.map[1] + skipped
        if token.type == "heading_open":
            found.append((lines[first], lines[last], int(token.tag[1])))
        elif token.type in ("paragraph_open", "html_block"):
            found.append((lines[first], lines[last], 0))
        else:  # code, and rows of a table
            if token.type == "fence":
                end = text[lines[last - 1] : lines[last]].strip(" \t\n>")
                closed = last > first + 1 and end.startswith(token.markup) and not end.strip(token.markup[0])
                first, last = first + 1, last - closed
            found += [(lines[n], lines[n + 1], 0) for n in range(first, last)]
    title = _TITLE.search(front[1]) if front else None
    return Document(text, tuple(_trimmed(text, sorted(set(found)))), title[1].strip("\"'") if title else "")


_LEAVES = ("heading_open", "paragraph_open", "html_block", "fence", "code_block", "tr_open")


def read_html(data: bytes) -> Document:
    """The visible text of a page; scripts, styles, controls of forms and navigation are left out."""
    try:
        import bs4
    except ModuleNotFoundError:
        raise _missing("beautifulsoup4") from None
    soup = bs4.BeautifulSoup(data, "html.parser")
    title = " ".join(soup.title.get_text(" ").split()) if soup.title else ""
    for tag in soup(_HIDDEN):
        tag.decompose()
    for tag in soup("br"):
        tag.replace_with("\n")
    for tag in soup(("td", "th")):
        if not tag.get_text(strip=True):
            tag.append("\xa0")  # an empty cell is a column too
    parts: list[tuple[str, int]] = []
    before: tuple[object, object] = (None, None)
    for words in soup.find_all(string=True):
        if type(words) is not bs4.NavigableString:  # a comment, a declaration
            continue
        block = next((one for one in words.parents if one.name in _HTML_BLOCKS), soup)
        cell = next((one for one in words.parents if one.name in ("td", "th")), None)
        place = block if cell is None else cell.find_parent("tr") or cell.parent
        if place is before[0]:
            parts[-1] = (parts[-1][0] + (" | " if cell is not before[1] else "") + words, parts[-1][1])
        elif words.strip() or words == "\xa0":
            parts.append((str(words), _HEADINGS.index(block.name) + 1 if block.name in _HEADINGS else 0))
        else:
            continue
        before = place, cell
    return _joined(parts, title)


def read_pdf(data: bytes) -> Document:
    """The text of each page; one that is encrypted is refused."""
    try:
        import pypdf
    except ModuleNotFoundError:
        raise _missing("pypdf") from None
    reader = pypdf.PdfReader(io.BytesIO(data), strict=False)
    if reader.is_encrypted:
        raise DataError("is encrypted")
    if len(reader.pages) > _PAGES:
        raise DataError(f"has {len(reader.pages):,} pages, more than {_PAGES:,}")
    parts = []
    for page in reader.pages:
        text = page.extract_text() or ""
        parts += [(part, 0) for part in re.split(r"\n[ \t]*\n", text)]
    title = (reader.metadata.title if reader.metadata else None) or ""
    return _joined(parts, title if isinstance(title, str) else "")


def read_docx(data: bytes) -> Document:
    """Paragraphs, headings by their style, and rows of tables."""
    try:
        import docx
    except ModuleNotFoundError:
        raise _missing("python-docx") from None
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if sum(member.file_size for member in archive.infolist()) > _UNPACKED:
            raise DataError(f"unpacks to more than {_UNPACKED:,} bytes")
    document = docx.Document(io.BytesIO(data))
    parts: list[tuple[str, int]] = []
    for item in document.iter_inner_content():
        if hasattr(item, "rows"):
            rows = [{cell._tc: cell.text for cell in row.cells}.values() for row in item.rows]  # a merged cell once
            parts += [(" | ".join(cells), 0) for cells in rows]
        else:
            level = re.fullmatch(r"Heading ([1-9])|Title", item.style.name if item.style is not None else "")
            parts.append((item.text, int(level[1] or 1) if level else 0))
    return _joined(parts, document.core_properties.title or "")


READERS: dict[str, Callable[[bytes], Document]] = {
    **dict.fromkeys((".md", ".markdown", ".mdown"), read_markdown),
    **dict.fromkeys((".txt", ".text", ".rst", ".log"), read_text),
    **dict.fromkeys((".html", ".htm", ".xhtml"), read_html),
    ".pdf": read_pdf,
    ".docx": read_docx,
}
"""What reads a file, by the end of its name."""


def read_document(name: str, data: bytes) -> Document:
    """A file's document.

    Args:
        name: of the file; its end says the format.
        data: its bytes.

    Raises:
        DataError: it cannot be read; says in one line why.
        NotNow: a package of the extra `ask`, or memory, is missing.
    """
    try:
        document = READERS[Path(name).suffix.lower()](data)
    except DataError:
        raise
    except RecursionError:
        raise DataError("is nested too deeply") from None
    except MemoryError:
        raise NotNow("takes too much memory to read") from None
    except Exception as error:  # each library has errors of its own kinds
        reason = " ".join(str(error).split())[:160]
        raise DataError(f"cannot be read ({type(error).__name__}{f': {reason}' if reason else ''})") from None
    if len(document.text) > LONGEST:
        raise DataError(f"has {len(document.text):,} characters, more than {LONGEST:,}")
    if not document.blocks:
        raise DataError("holds no text")
    return document


def _missing(package: str) -> NotNow:
    return NotNow(f"needs {package}: pip install '.[ask]' in a checkout")


def _decoded(data: bytes) -> str:
    """Text as `read_text` gives it: any end of a line is one character."""
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise DataError(f"is not text in UTF-8 (byte {error.start})") from None
    if "\0" in text:
        raise DataError("is not text: it holds NUL characters")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _unmarked(text: str) -> str:
    """A text of as many characters without the mark of UTF-8 before it."""
    return " " + text[1:] if text.startswith("\ufeff") else text


def _trimmed(text: str, spans: Iterable[tuple[int, int, int]]) -> Iterator[Block]:
    """Blocks without white space and marks of lists around them; blank ones are left out."""
    text, after = _unmarked(text), 0
    for start, end, level in spans:
        start, end = max(start, after), min(end, len(text))
        if level:
            marks = re.compile(r"[ \t]*#*[ \t]*").match(text, start, end)
            words = re.sub(r"(?:[ \t]+#+)?[ \t]*(?:\n[ \t]*[=-]+[ \t]*)?\s*\Z", "", text[start:end])
        else:
            marks, words = _LIST.match(text, start, end), text[start:end].rstrip()
        end = start + len(words)
        start = marks.end() if marks else start
        if text[start:end].strip(" \t\n|-:=*_"):
            yield Block(start, end, level)
            after = end


def _joined(parts: Iterable[tuple[str, int]], title: str) -> Document:
    """A document of texts and their levels, blank lines between them."""
    words = [
        (clean, level) for text, level in parts if (clean := " ".join(text.replace("\0", " ").split())).strip(" |")
    ]
    starts = list(accumulate((len(text) + 2 for text, _ in words), initial=0))
    blocks = tuple(
        Block(start, after - 2, level) for (start, after), (_, level) in zip(pairwise(starts), words, strict=True)
    )
    # A half of a character, as broken files have them, could not be written.
    text = "\n\n".join(text for text, _ in words).encode("utf-8", "replace").decode()
    return Document(text, blocks, " ".join(title.split()).encode("utf-8", "replace").decode())
