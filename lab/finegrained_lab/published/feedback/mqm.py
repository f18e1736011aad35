"""MQM (Freitag et al., 2021): spans of translations that professionals marked, with category and severity.

The tables of google/wmt-mqm-human-evaluation (`*/mqm*.tsv`) have a row an error, which `<v>…</v>` encloses in the
target, or in the source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from finegrained_lab.published.feedback.read import PublicReading
from finegrained_rlhf.core.checks import require
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import InputFile
from finegrained_rlhf.feedback.records import Feedback, FeedbackRecord, SpanError

COLUMNS = ("system", "doc", "seg_id", "rater", "source", "target", "category", "severity")
CATEGORIES = ("Accuracy", "Fluency", "Terminology", "Style", "Locale", "Other")
SEVERITIES = ("Major", "Minor")


@dataclass(frozen=True)
class MqmSpans(Settings):
    """Translations with the spans of all their raters; `taxonomy=mqm`.

    A type is a top category and a severity (`Accuracy-Major`); the whole category is the explanation. `Non-translation`
    marks the whole target as `Accuracy-Major`. Neutral errors, and those that are marked in the source alone, are left
    out and counted.

    Attributes:
        data: TSV FILE with a head.
    """

    data: InputFile

    def read(self) -> PublicReading:
        """See `PublicFeedback.read`."""
        reading, groups = PublicReading(), dict[tuple[str, str, str], list[tuple[int, dict[str, str]]]]()
        for number, row in enumerate(self._rows()):
            groups.setdefault((row["system"], row["doc"], row["seg_id"]), []).append((number, row))
        for name, rows in groups.items():
            record = self._record(":".join(name), rows, reading)
            if record is not None:
                reading.records.append(record)
        return reading

    def _rows(self) -> list[dict[str, str]]:
        try:
            lines = Path(self.data).read_text(encoding="utf-8").split("\n")
        except (FileNotFoundError, IsADirectoryError):
            raise DataError("no such file", file=self.data) from None
        except UnicodeDecodeError as error:
            raise DataError(f"not UTF-8 text ({error.reason} at byte {error.start})", file=self.data) from None
        head = [name.strip() for name in lines[0].lstrip("\ufeff").split("\t")]
        if missing := [name for name in COLUMNS if name not in head]:
            raise DataError(f"expected a column {missing[0]!r}, got {', '.join(head)}", file=self.data, record="head")
        rows = []
        for number, line in enumerate(line for line in lines[1:] if line.strip()):
            cells = line.rstrip("\r").split("\t")
            if len(cells) < len(head):
                problem = f"expected {len(head)} columns, got {len(cells)}"
                raise DataError(problem, file=self.data, record=number)
            rows.append(dict(zip(head, cells, strict=False)))
        return rows

    def _record(
        self, name: str, rows: list[tuple[int, dict[str, str]]], reading: PublicReading
    ) -> FeedbackRecord | None:
        text = _bare(rows[0][1]["target"])
        errors: dict[tuple[int, int, str, str], list[str]] = {}
        for number, row in rows:
            try:
                require(_bare(row["target"]) == text, "another target than in the first row of this segment", "target")
                span = _span(row, text, reading)
            except DataError as error:
                raise error.at(file=self.data, record=number) from None
            if span is not None:
                errors.setdefault((*span, row["category"]), []).append(row["rater"])
        if not text.strip() or not rows[0][1]["source"].strip():
            reading.left_out["empty source or target"] += 1
            return None
        marks = tuple(
            SpanError(start, end, kind, category, annotators=tuple(dict.fromkeys(raters)))
            for (start, end, kind, category), raters in sorted(errors.items())
        )
        people = tuple(dict.fromkeys(row["rater"] for _, row in rows))
        return FeedbackRecord(name, _bare(rows[0][1]["source"]), (), (text,), Feedback(marks, (), None, people))


def _bare(text: str) -> str:
    return text.replace("<v>", "").replace("</v>", "")


def _span(row: Mapping[str, str], text: str, reading: PublicReading) -> tuple[int, int, str] | None:
    category, severity = row["category"].strip(), row["severity"].strip().capitalize()
    if category.lower() == "no-error":
        return None
    top = category.partition("/")[0].strip()
    if top.lower().startswith("non-translation"):
        return 0, len(text), "Accuracy-Major"
    if severity not in SEVERITIES:
        reading.left_out[f"severity {severity}"] += 1
        return None
    top = next((one for one in CATEGORIES if top.lower().startswith(one.lower())), "Other")
    before, opened, rest = row["target"].partition("<v>")
    marked, closed, _ = rest.partition("</v>")
    if not opened or not closed or not marked.strip():
        reading.left_out["marked in the source, or nowhere"] += 1
        return None
    start = len(before) + len(marked) - len(marked.lstrip())
    return start, len(before) + len(marked.rstrip()), f"{top}-{severity}"
