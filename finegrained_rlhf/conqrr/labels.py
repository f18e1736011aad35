"""Weak labels: which passage should be found for a question, judged by the answer that follows it, and a negative one.

The passages of a corpus are read once, as a stream. On disk labels are a cache that knows what it was made from, and
files for training.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from finegrained_rlhf.conqrr.data import PassageLabel, QueryKind, RewriteData, RewriteExample, as_rewrite_data, query_of
from finegrained_rlhf.conqrr.inputs import labelled_share
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import read_json, read_jsonl, sha256_of, write_json, write_jsonl
from finegrained_rlhf.core.markers import (
    CorpusPath,
    IndexPath,
    InputFile,
    OutputDirectory,
    OutputFile,
    Seed,
    at_least,
    at_most,
)
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.outputs import get_field
from finegrained_rlhf.feedback.records import require, require_text
from finegrained_rlhf.retrieval.corpus import Corpus
from finegrained_rlhf.retrieval.protocol import Retriever, RetrieverConfig
from finegrained_rlhf.retrieval.record import IndexRecord, RecordedConfig, read_index_record
from finegrained_rlhf.runtime.console import ProgressBar, tracked
from finegrained_rlhf.text.scores import SpanMatcher, word_tokens

_QUERIES = 64  # searched together

NO_ANSWER = "no answer"
NOTHING_FOUND = "nothing found"
NOTHING_SHARED = "no passage found shares a word with the answer"


@dataclass(frozen=True)
class LabelConfig(Settings):
    """How passages are labelled (thesis, section 4.2.2).

    Attributes:
        label_with: what is searched with: the human's `rewrite`, or the dialogue `context` (section 4.3.3). A question
            without a rewrite is searched with its context.
        label_share: share of the rewrites that may be used, 0 to 1; the other questions are searched with their
            context. The same share and seed as in training name the same questions.
        gold: take a gold passage as positive where the data has one, at random where it has several.
        depth: how many passages are searched.
        hard_share: how often the negative comes from those found instead of from the whole corpus, 0 to 1.
        seed: of ties, negatives and the share.
    """

    label_with: Literal["rewrite", "context"] = "rewrite"
    label_share: Annotated[float, at_least(0), at_most(1)] = 1.0
    gold: bool = False
    depth: Annotated[int, at_least(1)] = 100
    hard_share: Annotated[float, at_least(0), at_most(1)] = 0.5
    seed: Seed = 0

    def queries(self, examples: Sequence[RewriteExample]) -> list[str]:
        """What each question is searched with."""
        used = labelled_share(examples, self.label_share, self.seed) if self.label_with == "rewrite" else frozenset()
        kinds: list[QueryKind] = ["rewrite" if example.id in used else "context" for example in examples]
        return [query_of(example, kind) or example.question for example, kind in zip(examples, kinds, strict=True)]

    def random(self, use: str, example: str) -> random.Random:
        """The random numbers for one use and one question: they depend on nothing else."""
        return random.Random(stable_hash(self.seed, use, example))


@dataclass(frozen=True)
class Labelling:
    """The labels of a file of questions.

    Attributes:
        labels: in the order of the questions.
        skipped: questions without a label, by reason.
        counts: labels by what they were made from: `gold` or `weak` positives (`tied`: chosen among several equally
            good ones), `hard` or `corpus` negatives.
    """

    labels: tuple[PassageLabel, ...]
    skipped: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)

    def report(self) -> dict[str, Any]:
        """Counts for the terminal or a run directory, ready for JSON; `mean_score` is that of weak labels."""
        scores = [label.score for label in self.labels if label.score is not None]
        return {
            "labels": len(self.labels),
            "counts": dict(sorted(self.counts.items())),
            "skipped": dict(sorted(self.skipped.items())),
            "mean_score": sum(scores) / len(scores) if scores else None,
        }


class _Question:
    """What the labelling of one question has found so far."""

    def __init__(self, example: RewriteExample, hits: Sequence[str], config: LabelConfig, size: int) -> None:
        self.example, self.hits = example, hits
        self.gold = example.gold if config.gold else ()
        self.seen_gold: list[str] = []
        self.matcher = None if example.answer is None else SpanMatcher(word_tokens(example.answer))
        self.score, self.best = 0.0, list[str]()
        # One more place than can be excluded, so that one of them will do.
        draws = min(size, len(self.gold) + 2)
        self.places = config.random("corpus", example.id).sample(range(size), draws)
        self.drawn: dict[int, str] = {}

    def offer(self, passage: str, tokens: Sequence[str]) -> None:
        """Compare a passage that was found with the answer."""
        if self.matcher is None or self.matcher.bound(tokens) < self.score:
            return
        score = self.matcher.best(tokens).f1
        if score > self.score:
            self.score, self.best = score, [passage]
        elif score == self.score and score > 0:
            self.best.append(passage)

    def label(self, config: LabelConfig, counts: Counter[str]) -> PassageLabel | str:
        """The label, or why there is none."""
        gold = [passage for passage in self.gold if passage in self.seen_gold]
        if not gold and self.matcher is None:
            return NO_ANSWER
        if not gold and not self.best:
            return NOTHING_SHARED if self.hits else NOTHING_FOUND
        draw = config.random("positive", self.example.id)
        positive = draw.choice(sorted(gold or self.best))
        counts["gold" if gold else "weak"] += 1
        counts["tied"] += not gold and len(self.best) > 1
        negative = self._negative({positive, *self.gold}, config, counts)
        return PassageLabel(self.example.id, positive, negative, None if gold else self.score)

    def _negative(self, excluded: set[str], config: LabelConfig, counts: Counter[str]) -> str:
        draw = config.random("negative", self.example.id)
        wants_hard = draw.random() < config.hard_share
        hard = [passage for passage in self.hits if passage not in excluded]
        if wants_hard and hard:
            counts["hard"] += 1
            return draw.choice(hard)
        others = (self.drawn[place] for place in self.places if self.drawn[place] not in excluded)
        negative = next(others, None)
        if negative is None:
            raise DataError("the corpus holds no other passage than the positive", record=self.example.id)
        counts["corpus"] += 1
        return negative


def label_passages(
    examples: Sequence[RewriteExample],
    retriever: Retriever,
    passages: Iterable[Passage],
    size: int,
    config: LabelConfig,
    progress: bool = True,
) -> Labelling:
    """Label questions.

    The positive is, among the passages found, the one whose best span has the highest token F1 with the answer (thesis,
    eq. 4.1); a question whose answer shares no word with any of them has no label. The negative is another passage,
    from those found or from the whole corpus, fixed here once and for all. Every choice depends on the seed and the
    question's id alone, not on the order of questions or passages.

    Args:
        examples: questions; those without an answer (and without a gold passage that counts) get no label.
        retriever: searches the corpus.
        passages: of the corpus, read once.
        size: how many they are.
        config: settings.
        progress: show bars.

    Raises:
        DataError: a passage that was found is not in the corpus, or the corpus has one passage only.
    """
    queries = config.queries(examples)
    wanted = [i for i, example in enumerate(examples) if example.answer is not None or (config.gold and example.gold)]
    results = _search(retriever, [queries[i] for i in wanted], config.depth, progress)
    questions = [_Question(examples[i], hits, config, size) for i, hits in zip(wanted, results, strict=True)]
    _compare(questions, passages, size, progress)
    skipped: Counter[str] = Counter({NO_ANSWER: len(examples) - len(wanted)})
    counts: Counter[str] = Counter()
    labels = []
    for question in questions:
        label = question.label(config, counts)
        if isinstance(label, PassageLabel):
            labels.append(label)
        else:
            skipped[label] += 1
    return Labelling(tuple(labels), dict(+skipped), dict(+counts))


def _search(retriever: Retriever, queries: Sequence[str], depth: int, progress: bool) -> list[list[str]]:
    """Ids of the passages found for each query, best first."""
    results: list[list[str]] = []
    with ProgressBar("searching", len(queries), "queries", progress) as bar:
        for start in range(0, len(queries), _QUERIES):
            batch = queries[start : start + _QUERIES]
            results += [[hit.id for hit in hits] for hits in retriever.search(batch, depth)]
            bar.update(len(batch))
    return results


def _compare(questions: Sequence[_Question], passages: Iterable[Passage], size: int, progress: bool) -> None:
    """Read the corpus once: show each passage to the questions that it was found for, and note what was drawn."""
    finders: dict[str, list[_Question]] = {}
    owners: dict[str, list[_Question]] = {}
    drawers: dict[int, list[_Question]] = {}
    for question in questions:
        for passage in question.hits:
            finders.setdefault(passage, []).append(question)
        for passage in question.gold:
            owners.setdefault(passage, []).append(question)
        for place in question.places:
            drawers.setdefault(place, []).append(question)
    for place, current in enumerate(tracked(passages, "comparing", size, "passages", progress)):
        for question in drawers.pop(place, ()):
            question.drawn[place] = current.id
        for question in owners.pop(current.id, ()):
            question.seen_gold.append(current.id)
        if current.id in finders:
            tokens = word_tokens(current.text)
            for question in finders.pop(current.id):
                question.offer(current.id, tokens)
    if finders:
        raise DataError(
            f"found {next(iter(finders))!r}, which the corpus does not hold; is the index of another corpus?"
        )
    if drawers:
        raise DataError(f"the corpus holds fewer than the {size} passages of its index")


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
