"""Pages of Wikipedia made a corpus.

Pages are read as INSCIT publishes them, `[{title, passages: [{id, titles, text}]}]`, a file of many pages each, one at
a time, and written as the corpus's JSON lines. A corpus file is written whole or not at all, so that a run that was
killed goes on with the first one that is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.checks import as_list, as_object, get_field, require_text, text_list
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import read_json, write_jsonl
from finegrained_rlhf.core.markers import InputFile, OutputDirectory
from finegrained_rlhf.dialogue.records import PART_SEPARATOR
from finegrained_rlhf.retrieval.corpus import Corpus
from finegrained_rlhf.runtime.console import tracked


@dataclass(frozen=True)
class MakeCorpus(Settings):
    """Write a corpus of pages, a file for each file of them; the job of `finegrained make-corpus`.

    Texts keep their line breaks. A passage without titles, such as an outline, has an empty one.

    Attributes:
        pages: directory of `.json` files.
        output_dir: directory of the corpus; files that are there are kept.
    """

    pages: InputFile
    output_dir: OutputDirectory

    def run(self) -> int:
        """Write what is missing, check the whole; prints how many passages there are, and returns it.

        Raises:
            DataError: there is no page file, one is damaged, or an id occurs twice in the corpus.
        """
        files = sorted(Path(self.pages).glob("*.json"))
        if not files:
            raise DataError("holds no .json file", file=self.pages)
        for file in tracked(files, "pages", len(files), "files", after_s=2.0):
            target = Path(self.output_dir) / f"{file.stem}.jsonl"
            if not target.exists():
                write_jsonl(target, list(page_passages(file)))
        scan = Corpus(self.output_dir).scan()
        print(f"{scan.passages:,} passages of {len(files)} files -> {self.output_dir}")
        return scan.passages


def page_passages(path: str | Path) -> Iterator[dict[str, Any]]:
    """The passages of a page file, as rows of a corpus.

    Raises:
        DataError: naming file, page and field.
    """
    try:
        pages = as_list(read_json(path), "(pages)")
    except DataError as error:
        raise error.at(file=path) from None
    for number, value in enumerate(pages):
        try:
            page = as_object(value, "(page)")
            for i, part in enumerate(as_list(get_field(page, "passages"), "passages")):
                yield _row(as_object(part, f"passages[{i}]"), f"passages[{i}].")
        except DataError as error:
            raise error.at(file=path, record=number) from None


def _row(passage: Any, where: str) -> dict[str, Any]:
    titles = text_list(get_field(passage, "titles", where), f"{where}titles")
    return {
        "id": require_text(get_field(passage, "id", where), f"{where}id"),
        "text": require_text(get_field(passage, "text", where), f"{where}text", empty=True),
        "title": PART_SEPARATOR.join(title.strip() for title in titles),
    }
