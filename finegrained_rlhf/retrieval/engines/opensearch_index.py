"""Filling an index of an OpenSearch or Elasticsearch server, and checking what it holds.

Which corpus and settings an index is of stands in its mapping (`_meta`). Documents are sent by id, so that sending one
again changes nothing; how far the server has acknowledged them stands in `progress.json` of the index directory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.retrieval.corpus import Corpus, Place
from finegrained_rlhf.retrieval.engines.search_server import (
    RefusedRequest,
    SearchServer,
    SearchServerError,
    reason_of,
    speakable,
)
from finegrained_rlhf.runtime.console import ProgressBar
from finegrained_rlhf.runtime.remote.answers import BUSY

_LONGEST_ID = 512  # bytes of a document's id that the server takes
_LARGEST = 50 * 2**20  # bytes of the passages of one request; servers take requests of 100 MB
_PROGRESS = "progress.json"


class ServerIndex:
    """An index of a server.

    Args:
        server: that has it.
        name: of the index.
        meta: the corpus and settings that it must be of, ready for JSON.
    """

    def __init__(self, server: SearchServer, name: str, meta: Mapping[str, Any]) -> None:
        self._server, self._name, self._meta = server, name, dict(meta)

    def create(self, settings: Mapping[str, Any], properties: Mapping[str, Any]) -> bool:
        """Make the index where there is none.

        Args:
            settings: of the index.
            properties: its fields.

        Returns:
            False where it is there already, with the same corpus and settings.

        Raises:
            ConfigError: the server has an index of this name with something else in it.
            SearchServerError: the server refuses or fails.
        """
        if self._read_meta() is not None:
            self.check()
            return False
        mappings = {"dynamic": "strict", "_meta": self._meta, "properties": properties}
        try:
            self._server.ask("PUT", self._name, {"settings": {"index": settings}, "mappings": mappings})
        except RefusedRequest as refused:
            if refused.status != 400:
                raise
            if self._read_meta() is None:  # it may be there by a try whose answer was lost
                reason = reason_of(refused.answer)
                problem = f"{self._server.config.url}: refuses to make the index {self._name}: {reason}"
                raise ConfigError(problem) from None
        self.check()
        return True

    def check(self) -> None:
        """Require the index to be of the corpus and settings.

        Raises:
            ConfigError: it is of others.
            DataError: there is no such index.
        """
        meta = self._read_meta()
        if meta is None:
            raise DataError(f"{self._server.config.url} has no index {self._name}; finegrained build-index makes it")
        if meta != self._meta:
            other = [name for name in sorted({*meta, *self._meta}) if meta.get(name) != self._meta.get(name)]
            differences = "; ".join(f"{name} {meta.get(name)!r}, here {self._meta.get(name)!r}" for name in other)
            raise ConfigError(
                f"{self._server.config.url}: the index {self._name} is of another corpus or other settings "
                f"({differences}); give another name or delete it"
            )

    def count(self) -> int:
        """Documents that can be found."""
        answer = self._server.ask("POST", f"{self._name}/_count")
        if not isinstance(answer.get("count"), int):
            raise SearchServerError(f"{self._server.address(self._name)}/_count: an answer without a count")
        return int(answer["count"])

    def publish(self) -> None:
        """Make all documents findable, now and in future."""
        settings = {"index": {"refresh_interval": None}}
        self._server.ask("PUT", f"{self._name}/_settings", settings)
        self._server.ask("POST", f"{self._name}/_refresh")

    def add(self, passages: Sequence[Passage]) -> None:
        """Send passages until the server has acknowledged each of them.

        Raises:
            DataError: the server refuses a passage.
            SearchServerError: it fails or stays busy.
        """
        waiting = list(passages)
        if len(waiting) > 1 and sum(len(passage.contents.encode("utf-8", "replace")) for passage in waiting) > _LARGEST:
            for half in (waiting[: len(waiting) // 2], waiting[len(waiting) // 2 :]):
                self.add(half)
            return
        patience = self._server.patience(f"{self._name}/_bulk")
        while waiting:
            lines = [line for passage in waiting for line in _document(passage)]
            left, reason = self._not_taken(waiting, self._server.ask("POST", f"{self._name}/_bulk", lines))
            if len(left) < len(waiting):
                patience.restore()
            if left:
                patience.wait(f"{len(left)} of {len(waiting)} passages were not taken ({reason})")
            waiting = left

    def _not_taken(self, sent: Sequence[Passage], answer: Mapping[str, Any]) -> tuple[list[Passage], str]:
        """The passages that have to be sent again, and why."""
        left, reason = [], ""
        items = answer.get("items")
        given = [item.get("index") for item in items if isinstance(item, dict)] if isinstance(items, list) else []
        results = [result for result in given if isinstance(result, dict)]
        if len(results) != len(sent):
            return list(sent), "an answer without an item for each of them"
        for passage, result in zip(sent, results, strict=True):
            status = result.get("status", 500)
            if status in BUSY:
                left.append(passage)
                reason = reason_of(result)
            elif status >= 300:
                raise DataError(
                    f"{self._server.config.url}: the index {self._name} refuses it: {reason_of(result)}",
                    record=passage.id,
                )
        return left, reason

    def _read_meta(self) -> dict[str, Any] | None:
        """What the index says it is of; None where there is no index."""
        try:
            answer = self._server.ask("GET", f"{self._name}/_mapping")
        except RefusedRequest as refused:
            if refused.status == 404:
                return None
            raise
        mappings = [entry.get("mappings", {}) for entry in answer.values() if isinstance(entry, dict)]
        return dict(mappings[0].get("_meta") or {}) if mappings else {}


def document_id(passage: str) -> str:
    """The server's id of a passage: its own, or a hash where that is too long for the server."""
    data = passage.encode("utf-8", "replace")
    return data.decode("utf-8") if len(data) <= _LONGEST_ID else hashlib.blake2b(data, digest_size=32).hexdigest()


def _document(passage: Passage) -> tuple[dict[str, Any], dict[str, str]]:
    """The two lines that send a passage."""
    content = {"id": speakable(passage.id), "contents": speakable(passage.contents)}
    return {"index": {"_id": document_id(passage.id)}}, content


def fill(index: ServerIndex, corpus: Corpus, directory: Path, *, passages: int, bulk: int, progress: bool) -> None:
    """Send a corpus to an index, from where an earlier call was stopped, and see that all of it arrived.

    Args:
        index: that exists.
        corpus: to send.
        directory: where the progress is kept.
        passages: in the corpus.
        bulk: passages a request.
        progress: show a bar.

    Raises:
        DataError: a broken corpus, a refused passage, or the index does not hold as many documents as were sent; the
            next call then sends all of them again.
        SearchServerError: the server fails; the next call goes on.
    """
    notes = directory / _PROGRESS
    progress_so_far: dict[str, Any] = read_json(notes) if notes.is_file() else {"sent": 0, "place": asdict(Place())}
    sent = int(progress_so_far["sent"])
    with ProgressBar("sending", passages, "passages", progress, done=sent) as bar:
        for block, after in corpus.blocks(bulk, Place(**progress_so_far["place"])):
            index.add(block)
            sent += len(block)
            write_json(notes, {"sent": sent, "place": asdict(after)})
            bar.update(len(block))
    index.publish()
    notes.unlink(missing_ok=True)
    if (there := index.count()) != passages:
        raise DataError(f"{passages} passages were sent, the index has {there}; run the same command again")


def forget_progress(directory: Path) -> None:
    """Have the next `fill` begin with the first passage."""
    (directory / _PROGRESS).unlink(missing_ok=True)
