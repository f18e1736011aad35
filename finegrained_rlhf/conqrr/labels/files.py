"""Passage labels on disk: a cache that knows what it was made from, and files for training."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from finegrained_rlhf.conqrr.data import RewriteData, as_rewrite_data
from finegrained_rlhf.conqrr.labels.choose import LabelConfig, Labelling, label_passages
from finegrained_rlhf.conqrr.records import PassageLabel
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import read_json, read_jsonl, sha256_of, write_json, write_jsonl
from finegrained_rlhf.core.markers import CorpusPath, IndexPath, InputFile, OutputDirectory, OutputFile
from finegrained_rlhf.feedback.outputs import get_field
from finegrained_rlhf.feedback.records import require, require_text
from finegrained_rlhf.retrieval.corpus import Corpus
from finegrained_rlhf.retrieval.protocol import RetrieverConfig
from finegrained_rlhf.retrieval.record import IndexRecord, read_index_record
from finegrained_rlhf.retrieval.recorded import RecordedConfig

_VERSION = 1  # of the labelling; a change of what it gives makes old caches void


@dataclass(frozen=True)
class LabelPassages(Settings):
    """A job: labels for a file of questions, from the cache where they were made before.

    Attributes:
        data: the questions: a file in the project's format, or a `RewriteData` of another one.
        corpus: file or directory of passages.
        index: directory of an index of that corpus.
        cache: directory of the cache; `labels-FINGERPRINT.json`, one file for each set of inputs and settings.
        output: JSON-lines file of the labels, for training; null writes none.
        retriever: how the index is opened.
        labelling: how passages are labelled. (Not `settings`: that key of a configuration never reaches a job.)
        progress: show bars.
    """

    data: InputFile | RewriteData
    corpus: CorpusPath
    index: IndexPath
    cache: OutputDirectory
    output: OutputFile | None = None
    retriever: RetrieverConfig = field(default_factory=RecordedConfig)
    labelling: LabelConfig = field(default_factory=LabelConfig)
    progress: bool = True

    def run(self) -> Labelling:
        """Make the labels or read them, write the output, print the counts.

        Raises:
            DataError: a broken file of questions, corpus or index.
            ConfigError: the index is of another corpus.
        """
        labelling, path, made = self.load()
        if self.output is not None:
            write_labels(self.output, labelling.labels)
        origin = "labelled" if made else "read from the cache"
        print(
            f"{json.dumps(labelling.report())}\n{origin}: {path}" + (f"\nlabels: {self.output}" if self.output else "")
        )
        return labelling

    def load(self) -> tuple[Labelling, Path, bool]:
        """The labels, their file in the cache, and whether they were made now.

        Raises:
            FineGrainedError: as `run`.
        """
        record = read_index_record(self.index)
        inputs = self.inputs(record)
        path = Path(self.cache) / f"labels-{inputs_digest(inputs)}.json"
        corpus = Corpus(self.corpus)
        scan = corpus.scan(record.corpus, self.progress)
        if scan.fingerprint != record.corpus.fingerprint:
            raise ConfigError(
                f"{self.index}: the index is not of the corpus {self.corpus}; finegrained build-index makes one"
            )
        if path.is_file():
            return _read_cache(path, inputs), path, False
        examples = as_rewrite_data(self.data).read().examples
        retriever = self.retriever.open(Path(self.index))
        labelling = label_passages(examples, retriever, corpus, scan.passages, self.labelling, self.progress)
        write_json(
            path,
            {
                "inputs": inputs,
                "skipped": labelling.skipped,
                "counts": labelling.counts,
                "labels": [asdict(label) for label in labelling.labels],
            },
        )
        return labelling, path, True

    def inputs(self, record: IndexRecord) -> dict[str, Any]:
        """Everything that the labels depend on, ready for JSON: files by their content, not by their names."""
        data = as_rewrite_data(self.data)
        settings = {name: value for name, value in asdict(data).items() if name not in data.file_fields}
        return {
            "version": _VERSION,
            "data": {**settings, "files": {name: _digest(path) for name, path in data.files.items()}},
            "retriever": {
                "kind": record.kind,
                "settings": dict(record.settings),
                "corpus": record.corpus.fingerprint,
            },
            "settings": asdict(self.labelling),
        }


def inputs_digest(inputs: Any) -> str:
    """16 hexadecimal digits of a JSON value; the order of keys does not matter."""
    text = json.dumps(inputs, sort_keys=True, ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def write_labels(path: str | Path, labels: Iterable[PassageLabel]) -> None:
    """Write one label a line, atomically, with the record's field names."""
    write_jsonl(path, (asdict(label) for label in labels))


def read_labels(path: str | Path) -> dict[str, PassageLabel]:
    """Labels by the id of their question.

    Raises:
        DataError: naming file, record (from 0) and field; a question that occurs twice.
    """
    labels: dict[str, PassageLabel] = {}
    for i, row in enumerate(read_jsonl(path)):
        try:
            texts = {name: require_text(get_field(row, name), name) for name in ("example", "positive", "negative")}
            score = row.get("score")
            number = isinstance(score, int | float) and not isinstance(score, bool)
            require(score is None or number, f"expected a number or null, got {score!r}", "score")
            require(texts["example"] not in labels, f"{texts['example']} has a label already", "example")
        except DataError as error:
            raise error.at(file=path, record=i) from None
        labels[texts["example"]] = PassageLabel(**texts, score=None if score is None else float(score))
    return labels


def _read_cache(path: Path, inputs: Any) -> Labelling:
    cached = read_json(path)
    try:
        if cached["inputs"] != json.loads(json.dumps(inputs)):
            raise DataError("holds labels of other inputs; delete it", file=path)
        labels = tuple(PassageLabel(**row) for row in cached["labels"])
        return Labelling(labels, cached["skipped"], cached["counts"])
    except (KeyError, TypeError) as error:
        raise DataError(f"is no cache of labels ({error}); delete it", file=path) from None


def _digest(path: Path) -> str:
    try:
        return sha256_of(path)
    except OSError:
        raise DataError("no such file", file=path) from None
