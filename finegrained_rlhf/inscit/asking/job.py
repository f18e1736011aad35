"""Asking a folder of documents as a configuration: what `finegrained ask` builds and runs, and how Python opens it."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field, replace
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from finegrained_rlhf.core.checks import is_number
from finegrained_rlhf.core.errors import ConfigError, DataError, FineGrainedError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import read_json, write_json, write_jsonl
from finegrained_rlhf.core.generation.protocol import TextGenerator
from finegrained_rlhf.core.markers import InputFile, ModelName, OutputDirectory, OutputFile, at_least, at_most
from finegrained_rlhf.retrieval.bm25.retriever import Bm25Config
from finegrained_rlhf.retrieval.protocol import RetrieverConfig

if TYPE_CHECKING:
    from finegrained_rlhf.inscit.asking.assistant import DocumentAssistant, Rewriter
    from finegrained_rlhf.inscit.asking.evidence import EvidenceWeights
    from finegrained_rlhf.inscit.asking.measures import GoldQuestion
    from finegrained_rlhf.inscit.asking.readers import Reader
    from finegrained_rlhf.inscit.asking.records import DocumentAnswer

AUTO, NONE = "auto", "none"
ENCODERS, RERANKERS, MODELS = ("models/minilm", "models/mpnet"), ("models/mpnet",), ("models/smollm2",)
"""What `auto` takes, the first that is there: what `finegrained prepare-models` makes."""
_STREAM = "-"
ReaderKind = Literal["quote", "write", "run"]


@dataclass(frozen=True, kw_only=True)
class AskSettings(Settings):
    """How an index is searched, and who judges, reads and rewrites.

    Attributes:
        retrievers: more retrievers by name, beside BM25 and the dense one of `encoder`.
        encoder: of sentences: `auto` takes models/minilm or models/mpnet where one is there, `none` searches and judges
            by words alone, another word is its directory.
        reranker: a larger encoder that looks at the best sentences again: `auto` takes models/mpnet where it is there
            and not the encoder already; `none`, or its directory.
        dialki: run of `finegrained train-dialki`, on passages of one span, that selects the evidence among the most
            probable sentences; in place of a reranker.
        dialki_selection: its thresholds, the `results` of `finegrained identify-evidence tune=…`; null: the best one.
        reader: `quote` answers with a sentence as it stands; `write` lets a model write; `run` is a reader of ours, a
            run of `finegrained train-sft` for INSCIT.
        model: of the reader: a model or run directory; `auto` takes models/smollm2 where it is there and the reader
            writes; `none` takes none. With `quote` it weighs sentences by how probable the question is behind them.
        llm: a model behind an endpoint that writes in place of `model` (`text_generator@llm=endpoint`).
        rewriter: run of `finegrained train-conqrr` that rewrites questions of a conversation.
        rewrite_by_llm: `llm` does it.
        passages: that are looked at.
        threshold: the probability of the best sentence from which on a question is answered; null: that of `weights`.
        weights: JSON file that `measure` wrote; null: the shipped ones.
    """

    retrievers: Mapping[str, RetrieverConfig] = field(default_factory=dict)
    encoder: str = AUTO
    reranker: str = AUTO
    dialki: ModelName | None = None
    dialki_selection: InputFile | None = None
    reader: ReaderKind = "quote"
    model: str = AUTO
    llm: TextGenerator | None = None
    rewriter: ModelName | None = None
    rewrite_by_llm: bool = False
    passages: Annotated[int, at_least(1)] = 8
    threshold: Annotated[float, at_least(0), at_most(1)] | None = None
    weights: InputFile | None = None

    def __post_init__(self) -> None:
        if self.dialki is None and self.dialki_selection is not None:
            raise ConfigError("dialki_selection: needs dialki")
        if self.dialki is not None and self.reranker not in (AUTO, NONE):
            raise ConfigError("dialki: stands in place of reranker; name one of them")
        if self.rewrite_by_llm and (self.llm is None or self.rewriter is not None):
            raise ConfigError("rewrite_by_llm: needs llm, and no rewriter beside it")
        if self.reader == "run" and (self.model in (AUTO, NONE) or self.llm is not None):
            raise ConfigError("reader=run: needs model=RUN, and no llm")


@dataclass(frozen=True, kw_only=True)
class Ask(AskSettings):
    """Ask a folder of documents: one question, those of a file, or one after the other from standard input.

    Attributes:
        docs: the folder; text, Markdown, HTML, PDF and DOCX below it are read.
        question: to be answered; None and no `questions`: lines of standard input are the questions of a conversation.
        questions: JSON lines file with a `question` a line; where it also has `fact` (words that a citation must hold,
            null where the documents do not say it) and perhaps `file`, measures are printed.
        output: `-` for standard output, or a JSON lines file of answers.
        format: of answers on standard output: `text`, or `json`, an object a line.
        index: directory of the index; null: `outputs/ask/` and the folder's name.
        measure: file for weights with the threshold that serves the `questions` best.
        words: of a passage, about.
        seconds: that reading a file may take.
    """

    docs: InputFile
    question: str | None = None
    questions: InputFile | None = None
    output: OutputFile = _STREAM
    format: Literal["text", "json"] = "text"
    index: OutputDirectory | None = None
    measure: OutputFile | None = None
    words: Annotated[int, at_least(1)] = 120
    seconds: Annotated[float, at_least(1)] = 30.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.question is not None and self.questions is not None:
            raise ConfigError("question: expected either question or questions")
        if self.measure is not None and self.questions is None:
            raise ConfigError("measure: needs questions with facts")

    def run(self) -> None:
        """Bring the index up to date and answer.

        Raises:
            DataError: no such folder, nothing in it can be read, or a broken question.
            ConfigError: the index is another folder's, or a package is missing.
        """
        from finegrained_rlhf.inscit.asking.measures import read_questions

        gold = None if self.questions is None else read_questions(self.questions)
        with redirect_stdout(sys.stderr):  # libraries greet there
            assistant, lines = open_assistant(self)
        for line in lines:
            print(line, file=sys.stderr, flush=True)
        if gold is not None:
            self._answer_all(assistant, gold)
        elif self.question is not None:
            self._say([assistant.ask(self.question)])
        else:
            self._talk(assistant)

    def _say(self, answers: Sequence[DocumentAnswer]) -> None:
        if self.output != _STREAM:
            write_jsonl(self.output, [answer.row() for answer in answers])
            return
        for answer in answers:
            lines = [json.dumps(answer.row(), ensure_ascii=False)] if self.format == "json" else answer.lines()
            print("\n".join(lines).encode("utf-8", "replace").decode(), flush=True)

    def _talk(self, assistant: DocumentAssistant) -> None:
        """A conversation over standard input; a question that cannot be asked is a line, not an end."""
        session, answers = assistant.session(), []
        if sys.stdin.isatty():
            print("A question a line; Ctrl-D ends it.", file=sys.stderr)
        if isinstance(sys.stdin, TextIOWrapper):
            sys.stdin.reconfigure(errors="surrogateescape")  # a line that is not UTF-8 is refused, not the others
        for line in sys.stdin:
            if not line.strip():
                continue
            try:
                answers.append(session.ask(line.strip()))
            except FineGrainedError as error:
                print(f"error: {error}", file=sys.stderr)
                continue
            if self.output == _STREAM:
                self._say(answers[-1:])
        if self.output != _STREAM:
            self._say(answers)

    def _answer_all(self, assistant: DocumentAssistant, gold: Sequence[GoldQuestion]) -> None:
        from finegrained_rlhf.inscit.asking.measures import best_threshold, measured

        answers = [assistant.ask(one.question) for one in gold]
        self._say(answers)
        if any(one.fact is not None for one in gold):
            print(json.dumps(measured(gold, answers)), file=sys.stderr)
        if self.measure is None:
            return
        scores: list[tuple[float, bool | None]] = []
        for one, answer in zip(gold, answers, strict=True):
            best = answer.searched.passages[0] if answer.searched.passages else None
            text = [best.citation] if best is not None else []
            held = None if one.fact is None else one.held(text)
            scores.append((best.probability if best is not None else 0.0, held))
        threshold, worth = best_threshold(scores)
        write_json(self.measure, asdict(replace(assistant.scorer.weights, threshold=threshold)))
        print(
            f"threshold {threshold:.4f} ({worth:.3f} right on {len(gold)} questions) -> {self.measure}", file=sys.stderr
        )


def open_assistant(settings: Ask) -> tuple[DocumentAssistant, list[str]]:
    """Bring the index of a folder up to date and open an assistant for it.

    Args:
        settings: as of `finegrained ask`; what is asked does not matter.

    Returns:
        The assistant, and lines that say what was read, what was left out, and which models are used.

    Raises:
        DataError: no such folder, or nothing in it can be read.
        ConfigError: the index is another folder's, or a package is missing.
        ModelError: an encoder or a model cannot be read.
    """
    from finegrained_rlhf.inscit.documents.folder import FolderConfig, update_index

    directory = index_of(settings)
    config = FolderConfig(_retrievers(settings), settings.words, seconds=settings.seconds)
    report = update_index(settings.docs, directory, config)
    assistant, lines = open_index(directory, settings)
    return assistant, [*report.lines(), *lines]


def open_index(directory: str | Path, settings: AskSettings) -> tuple[DocumentAssistant, list[str]]:
    """Open an assistant for an index as it is; the folder itself is not looked at.

    Args:
        directory: of the index.
        settings: with an encoder and retrievers that it was made with.

    Returns:
        The assistant, and lines that say which models are used. Raises what `open_assistant` does.
    """
    from finegrained_rlhf.inscit.asking.assistant import DocumentAssistant
    from finegrained_rlhf.inscit.asking.evidence import SHIPPED, EvidenceScorer, Reranker
    from finegrained_rlhf.inscit.documents.folder import DocumentIndex, FolderConfig
    from finegrained_rlhf.inscit.identifier import EvidenceIdentifier
    from finegrained_rlhf.retrieval.dense.config import EncoderConfig

    path = _chosen(settings.encoder, ENCODERS)
    index = DocumentIndex(directory, FolderConfig(_retrievers(settings)))
    encoder = None if path is None else EncoderConfig(path=path).load()
    other = None if path is None or settings.dialki is not None else _chosen(settings.reranker, RERANKERS)
    reranker = None
    if other is not None and other != path:
        reranker = Reranker(EncoderConfig(path=other).load(), SHIPPED["encoder"])
    weights = SHIPPED["words" if encoder is None else "encoder" if reranker is None else "reranker"]
    if settings.weights is not None:
        weights = _read_weights(settings.weights)
    if settings.threshold is not None:
        weights = replace(weights, threshold=settings.threshold)
    scorer = EvidenceScorer(index.passages(), encoder, weights, reranker)
    reader, line = _reader(settings)
    found = "BM25 alone: no sentence encoder (make models makes models/minilm)" if path is None else f"BM25 and {path}"
    if reranker is not None:
        found = f"{found}, judged again by {other}"
    identifier = None
    if settings.dialki is not None:
        identifier = EvidenceIdentifier.open(settings.dialki, settings.dialki_selection)
        found = f"{found}, evidence by {settings.dialki}"
    asked = (scorer, reader, _rewriter(settings), identifier)
    assistant = DocumentAssistant(index, index.retrievers(), *asked, passages=settings.passages)
    return assistant, [f"searched by {found}; {line}"]


def index_of(settings: Ask) -> Path:
    """The directory of a folder's index."""
    if settings.index is not None:
        return Path(settings.index)
    docs = Path(os.path.expanduser(settings.docs)).resolve()
    digest = hashlib.sha256(str(docs).encode("utf-8", "surrogateescape")).hexdigest()
    return Path("outputs/ask") / f"{docs.name[:60]}-{digest[:8]}"  # a name may have 255 bytes


def _chosen(named: str, usual: Sequence[str]) -> str | None:
    """A model: the named one, the first usual one that is there, or none."""
    if named == AUTO:
        return next((path for path in usual if (Path(path) / "config.json").is_file()), None)
    return None if named == NONE else named


def _retrievers(settings: AskSettings) -> dict[str, RetrieverConfig]:
    from finegrained_rlhf.retrieval.dense.config import EncoderConfig
    from finegrained_rlhf.retrieval.dense.retriever import DenseConfig

    retrievers: dict[str, RetrieverConfig] = {"bm25": Bm25Config()}
    if (encoder := _chosen(settings.encoder, ENCODERS)) is not None:
        retrievers["dense"] = DenseConfig(EncoderConfig(path=encoder))
    return {**retrievers, **settings.retrievers}


def _reader(settings: AskSettings) -> tuple[Reader, str]:
    """The reader, and a line about it."""
    from finegrained_rlhf.inscit.asking.readers import ChatReader, Likelihood, LocalReader, PolicyReader, QuotingReader

    if settings.llm is not None:
        return ChatReader(settings.llm), "an endpoint writes"
    usual = MODELS if settings.reader == "write" else ()
    path = _chosen(settings.model, usual)
    if path is None:
        if settings.reader != "quote":
            raise ConfigError(
                "model: a reader that writes needs one: model=DIR, or llm (make models makes models/smollm2)"
            )
        return QuotingReader(), "answers quote"
    from finegrained_rlhf.inference.generator import load_policy

    generator = load_policy(path)
    if settings.reader == "quote":
        return QuotingReader(Likelihood(generator)), f"answers quote what {path} weighs"
    return (LocalReader if settings.reader == "write" else PolicyReader)(generator), f"{path} writes"


def _rewriter(settings: AskSettings) -> Rewriter | None:
    from finegrained_rlhf.inscit.asking.rewriters import instructed, trained

    if settings.rewrite_by_llm and settings.llm is not None:
        return instructed(settings.llm)
    return None if settings.rewriter is None else trained(settings.rewriter)


def _read_weights(file: str) -> EvidenceWeights:
    from finegrained_rlhf.inscit.asking.evidence import FEATURES, RERANKED, EvidenceWeights

    row = read_json(file)
    weights = row.get("weights") if isinstance(row, dict) else None
    numbers = [row.get("bias"), row.get("threshold"), row.get("close")] if isinstance(row, dict) else [None]
    if not isinstance(weights, dict) or not set(weights) <= {*FEATURES, *RERANKED}:
        names = ", ".join([*FEATURES, *RERANKED])
        raise DataError(f"expected weights of {names}, as measure=FILE writes them", file=file)
    if not all(map(is_number, [*numbers, *weights.values()])):
        raise DataError("bias, threshold, close and weights: expected numbers", file=file)
    return EvidenceWeights(row["bias"], weights, row["threshold"], row["close"])
