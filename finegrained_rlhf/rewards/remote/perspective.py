"""The Perspective API (Jigsaw) as a scorer of texts. The service is announced to end on 2026-12-31.

Requests, answers and limits as https://developers.perspectiveapi.com describes them (read 2026). The API of another
server that speaks as it does can stand in its place: `url`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.checks import is_number
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.markers import OutputFile
from finegrained_rlhf.rewards.remote.scorer import RemoteTextScorer
from finegrained_rlhf.runtime.remote.answers import UnintelligibleAnswer
from finegrained_rlhf.runtime.remote.client import RemoteConfig

MAX_BYTES = 20_480
"""The longest comment that the service reads, in UTF-8."""


class PerspectiveScorer(RemoteTextScorer):
    """The score of one attribute, a probability.

    The key travels in a header and stands in no address. The service is told not to keep what it reads (`doNotStore`).

    Args:
        remote: where the service is; its quota is 1 item a second unless it granted more.
        cache_file: SQLite file in which scores are kept.
        attribute: `TOXICITY`, `SEVERE_TOXICITY`, …
        languages: of the texts; the service's own detection fails on fragments.
        version: any word for the state of the service. It changed without notice before, and kept scores of another
            version are not taken.

    Raises:
        ConfigError: an attribute or language that is no word, or the key is not there.
    """

    def __init__(
        self,
        remote: RemoteConfig,
        cache_file: OutputFile | Path,
        attribute: str = "TOXICITY",
        languages: Sequence[str] = ("en",),
        version: str = "1",
    ) -> None:
        if not attribute or not languages or not all(languages):
            raise ConfigError(f"need an attribute and languages, got {attribute!r} and {list(languages)}")
        self.attribute, self.languages = attribute, tuple(languages)
        identity = f"perspective {remote.url} {attribute} languages={','.join(languages)} version={version}"
        super().__init__(remote, identity, cache_file)

    def headers(self, key: str) -> Mapping[str, str]:
        """The header of Google's APIs that carries a key."""
        return {"X-Goog-Api-Key": key}

    def body(self, text: str) -> Mapping[str, Any]:
        """A request of `comments:analyze`.

        Raises:
            DataError: the text is longer than the service reads, or cannot be written as UTF-8.
        """
        try:
            size = len(text.encode("utf-8"))
        except UnicodeEncodeError as error:
            raise DataError(f"a text holds a lone surrogate at character {error.start}") from None
        if size > MAX_BYTES:
            raise DataError(f"a text of {size:,} bytes; Perspective reads {MAX_BYTES:,}")
        return {
            "comment": {"text": text, "type": "PLAIN_TEXT"},
            "languages": list(self.languages),
            "requestedAttributes": {self.attribute: {}},
            "doNotStore": True,
        }

    def read(self, answer: Mapping[str, Any]) -> float:
        """`attributeScores.ATTRIBUTE.summaryScore.value`.

        Raises:
            UnintelligibleAnswer: it is not there, or is no number from 0 to 1.
        """
        value: Any = answer
        for name in ("attributeScores", self.attribute, "summaryScore", "value"):
            value = value.get(name) if isinstance(value, Mapping) else None
        if not is_number(value) or not 0.0 <= value <= 1.0:
            raise UnintelligibleAnswer(f"an answer without a score of {self.attribute} from 0 to 1, but {value!r}")
        return float(value)
