"""A directory with an index of three documents, without weights, as `finegrained serve` shows it."""

from __future__ import annotations

from pathlib import Path

from finegrained_rlhf.inscit import Ask
from finegrained_rlhf.inscit.asking.job import open_assistant

FILES = {
    "ferry.md": "# Ferry of Vellin\n\n## Times\n\nThe first boat leaves at 6:40. Dogs 🐕 travel for free.\n\n"
    "## Crew\n\nThe captain is Mira Toll. She likes rain.\n",
    "museum.md": "# Museum of Orsk\n\n<img src=x onerror=alert(1)> 🧨 The museum opened in 1931.\n\n"
    "Its director is Jonas Reed.\n",
    "mill.md": "# Mill of Tarn\n\nThe mill grinds rye. Its owner is Petra Holm.\n",
}
QUESTION = "When did the museum of Orsk open?"


def make_served(directory: Path) -> Path:
    """Write the documents and their index; returns the directory to serve."""
    docs = directory / "docs"
    docs.mkdir()
    for name, text in FILES.items():
        (docs / name).write_text(text, encoding="utf-8")
    served = directory / "outputs"
    open_assistant(Ask(docs=str(docs), index=str(served / "ask/docs"), encoder="none", model="none"))
    return served
