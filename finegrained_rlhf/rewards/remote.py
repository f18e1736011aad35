"""Scorers of texts that ask a service, or repeat what one said before; no score is ever made up.

What is kept is not asked again, the rest is asked and kept. The Perspective API (Jigsaw) is announced to end on
2026-12-31; its requests, answers and limits are as https://developers.perspectiveapi.com describes them (read 2026).
The API of another server that speaks as it does can stand in its place: `url`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finegrained_rlhf.core.checks import is_number
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.markers import OutputFile
from finegrained_rlhf.runtime.remote.answers import UnintelligibleAnswer
from finegrained_rlhf.runtime.remote.cache import AnswerCache
from finegrained_rlhf.runtime.remote.client import Call, RemoteClient, RemoteConfig

if TYPE_CHECKING:
    import torch


class RemoteTextScorer(ABC):
    """A service that scores texts, one a request, as a `TextScorer`.

    Args:
        remote: where it is, and how fast and how long it may be asked.
        identity: what gives the scores, with every setting that changes them; without a secret.
        cache_file: SQLite file in which scores are kept.

    Raises:
        ConfigError: the key is not there.
    """

    def __init__(self, remote: RemoteConfig, identity: str, cache_file: str | Path) -> None:
        self.identity, self.cache_file = identity, cache_file
        self._client = RemoteClient(remote, self.headers)
        self._kept: AnswerCache | None = None

    @abstractmethod
    def headers(self, key: str) -> Mapping[str, str]:
        """The headers that carry the key."""

    @abstractmethod
    def body(self, text: str) -> Mapping[str, Any]:
        """The request that asks for a text's score.

        Raises:
            DataError: the service would refuse the text.
        """

    @abstractmethod
    def read(self, answer: Mapping[str, Any]) -> float:
        """The score in an answer.

        Raises:
            UnintelligibleAnswer: there is none.
        """

    def setup(self, device: torch.device | str = "cpu") -> None:
        """Open the file of kept scores.

        Raises:
            DataError: it is no such file, or cannot be written.
        """
        self._kept = AnswerCache(self.cache_file, self.identity)

    def score_texts(self, texts: Sequence[str]) -> list[float]:
        """The score of each text, in order; each text is asked for once, and never again once it was answered.

        Raises:
            FineGrainedError: the service gives no score; those that it gave before are kept.
        """
        if self._kept is None:
            self.setup()
        kept = self._kept
        assert kept is not None
        scores = kept.get(texts)
        missing = [text for text in dict.fromkeys(texts) if text not in scores]

        def keep(number: int, score: float) -> None:
            kept.put(missing[number], score)
            scores[missing[number]] = score

        self._client.ask([Call(self.body(text)) for text in missing], self.read, keep)
        return [float(scores[text]) for text in texts]


class RecordedScorer:
    """Scores that a service gave before, from the file in which they were kept. Nothing is ever asked.

    Args:
        cache_file: the SQLite file.
        source: what gave the scores, as the file names it; None where the file has the scores of one source only.

    Raises:
        DataError: the file is missing or is no such file, or holds no scores of that source.
    """

    def __init__(self, cache_file: OutputFile | Path, source: str | None = None) -> None:
        looked = AnswerCache(cache_file, source or "", read_only=True)
        there = looked.counts()
        looked.close()
        if source is None and len(there) != 1:
            raise DataError(
                f"expected the scores of one source, or its name (source): {_named(there)}", file=cache_file
            )
        if source is not None and source not in there:
            raise DataError(f"has no scores of source={source!r}: {_named(there)}", file=cache_file, field="source")
        self.cache_file, self.identity = cache_file, source or next(iter(there))
        self._kept: AnswerCache | None = None

    def setup(self, device: torch.device | str = "cpu") -> None:
        """Open the file."""
        self._kept = AnswerCache(self.cache_file, self.identity, read_only=True)

    def score_texts(self, texts: Sequence[str]) -> list[float]:
        """The kept score of each text, in order.

        Raises:
            DataError: some text has none.
        """
        if self._kept is None:
            self.setup()
        assert self._kept is not None
        scores = self._kept.get(texts)
        missing = [text for text in dict.fromkeys(texts) if text not in scores]
        if missing:
            raise DataError(
                f"{len(missing)} of {len(set(texts))} texts have no kept score by {self.identity}, the first of "
                f"{len(missing[0])} characters; a recorded scorer asks nobody",
                file=self.cache_file,
            )
        return [float(scores[text]) for text in texts]


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


def _named(there: Mapping[str, int]) -> str:
    return "; ".join(f"{count:,} scores by {source}" for source, count in there.items()) or "the file holds no scores"
