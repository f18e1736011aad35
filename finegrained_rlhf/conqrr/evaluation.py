"""Evaluation of rewrites as a configuration: what `finegrained evaluate-rewrites` builds and runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from finegrained_rlhf.conqrr.data import (
    QueryKind,
    RewriteData,
    RewriteExample,
    as_rewrite_data,
    query_of,
    read_cut,
    read_rewrites,
)
from finegrained_rlhf.conqrr.measures import (
    CompareSystems,
    QueryScores,
    comparison_table,
    find_passages,
    gold_ranks,
    grades_of,
    require_numbered,
    rows_by_question,
    score_queries,
    write_scai_run,
)
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_json, write_jsonl
from finegrained_rlhf.core.markers import CorpusPath, IndexPath, InputFile, OutputDirectory, OutputFile
from finegrained_rlhf.retrieval.corpus import Corpus
from finegrained_rlhf.retrieval.protocol import Retriever, RetrieverConfig
from finegrained_rlhf.retrieval.ranking import RankingMetrics
from finegrained_rlhf.retrieval.record import RecordedConfig, read_index_record
from finegrained_rlhf.retrieval.runs import Run, write_judgements, write_trec_run
from finegrained_rlhf.runtime.directory.provenance import commit_of
from finegrained_rlhf.runtime.job import as_config
from finegrained_rlhf.text.tables import markdown_table

UnindexedGold = Literal["error", "count"]


@dataclass(frozen=True)
class EvaluateRewrites(Settings):
    """A job: what the questions, dialogues, human rewrites and files of rewrites find in an index.

    Attributes:
        data: questions with gold passages: a file in the project's format, or a `RewriteData` of another one.
        index: directory of the index.
        output: results file (JSON).
        retriever: settings that the index must have been built with; by default those that it has.
        baselines: which queries without a model are evaluated: `question`, `context`, `rewrite` (the human's), `asked`,
            `published` (`conqrr.data.query_of` says what each is).
        rewrites: files of rewrites (JSON lines with `id` and `rewrite`) by the name of their system. Lines of questions
            that are not evaluated are an error; questions without a line count as 0.
        corpus: the passages, for the overlap of queries with gold passages; null leaves it out.
        k: passages a query.
        metrics: which, and how turns without gold count.
        unindexed_gold: what becomes of gold passages that the index does not have: `error`, or `count`, for an index
            of a part of the corpus that was judged: they count as not found, and the results say how many they are.
            An index without any of them is an error either way.
        runs: directory for a TREC run of each system and `qrels.txt`, the judgements with their grades; null writes
            none.
        scai_runs: directory for a run file of the SCAI-QReCC shared task of each system, `NAME/run.json`; null writes
            none. The conversations need numbers, as QReCC's have.
        per_question: file (JSON lines) for the query, the ranks and the metrics of every system question by question;
            null writes none.
        comparison: which systems are tested against which (paired, dialogues as clusters); null tests none.
        progress: show bars.
    """

    data: InputFile | RewriteData
    index: IndexPath
    output: OutputFile
    retriever: RetrieverConfig = field(default_factory=RecordedConfig)
    baselines: Sequence[QueryKind] = ("question", "context", "rewrite")
    rewrites: Mapping[str, InputFile] = field(default_factory=dict)
    corpus: CorpusPath | None = None
    k: int = 100
    metrics: RankingMetrics = field(default_factory=RankingMetrics)
    unindexed_gold: UnindexedGold = "error"
    runs: OutputDirectory | None = None
    scai_runs: OutputDirectory | None = None
    per_question: OutputFile | None = None
    comparison: CompareSystems | None = field(default_factory=CompareSystems)
    progress: bool = True

    def __post_init__(self) -> None:
        kinds = get_args(QueryKind)
        if strange := [kind for kind in self.baselines if kind not in kinds]:
            raise ConfigError(f"baselines: expected some of {', '.join(kinds)}, got {strange[0]!r}")
        if twice := [name for name in self.rewrites if name in self.baselines]:
            raise ConfigError(f"rewrites: {twice[0]!r} is the name of a baseline; give another one")
        if not self.baselines and not self.rewrites:
            raise ConfigError("give baselines=[…] or rewrites.NAME=FILE: there is nothing to evaluate")
        if self.k < self.metrics.deepest:
            raise ConfigError(f"k: expected at least {self.metrics.deepest}, the depth of a metric, got {self.k}")
        if self.comparison is not None:
            self.comparison.check([*self.baselines, *self.rewrites], self.metrics.names)

    def run(self) -> dict[str, Any]:
        """Search, score, write the results, print a table.

        Raises:
            DataError: a broken file; questions without any gold passage; gold passages that are not in the index.
            ConfigError: the index was built with other settings.
        """
        reading = as_rewrite_data(self.data).read()
        examples = reading.examples
        queries: dict[str, dict[str, str]] = {kind: _without_model(examples, kind) for kind in self.baselines}
        queries |= {name: read_rewrites(path) for name, path in self.rewrites.items()}
        if self.scai_runs is not None:
            require_numbered(examples, as_rewrite_data(self.data).path)
        retriever = self.retriever.open(Path(self.index))
        gold = list(dict.fromkeys(passage for example in examples for passage in example.gold))
        unindexed = self._unindexed(retriever, gold)
        texts = self._gold_texts(set(gold).difference(unindexed))
        stop_words = frozenset[str]() if texts is None else _stop_words()
        if self.runs is not None:
            write_judgements(Path(self.runs) / "qrels.txt", grades_of(examples))
        scores: dict[str, QueryScores] = {}
        ranks: dict[str, dict[str, list[int]]] = {}
        for name, system_queries in queries.items():
            hits = find_passages(retriever, system_queries, self.k, self.progress)
            self._write_runs(name, examples, system_queries, hits)
            try:
                cut = read_cut(self.rewrites[name]) if name in self.rewrites else None
                scores[name] = score_queries(examples, system_queries, hits, self.metrics, texts, stop_words, cut)
                ranks[name] = gold_ranks(examples, hits)
            except DataError as error:
                raise error.at(file=self.rewrites.get(name, as_rewrite_data(self.data).path)) from None
        values = {name: score.values for name, score in scores.items()}
        if self.per_question is not None:
            write_jsonl(self.per_question, rows_by_question(examples, queries, ranks, values))
        record = read_index_record(self.index)
        result = {
            "commit": commit_of(Path(__file__).parent),
            "settings": as_config(self),
            "data": reading.report(),
            "retriever": {"kind": record.kind, "settings": dict(record.settings), "passages": record.corpus.passages},
            "gold": {"passages": len(gold), "not_in_index": len(unindexed)},
            "k": self.k,
            "metrics": asdict(self.metrics),
            "systems": {name: score.to_json() for name, score in scores.items()},
            "comparisons": [] if self.comparison is None else self.comparison.compared(examples, values),
        }
        write_json(self.output, result)
        tables = (overall_table(result), comparison_table(result["comparisons"]))
        print("\n".join([*filter(None, tables), f"results: {self.output}"]))
        return result

    def _write_runs(self, name: str, examples: Sequence[RewriteExample], queries: Mapping[str, str], hits: Run) -> None:
        if self.runs is not None:
            write_trec_run(Path(self.runs) / f"{name}.trec", hits, name)
        if self.scai_runs is not None:
            write_scai_run(Path(self.scai_runs) / name / "run.json", examples, queries, hits)

    def _unindexed(self, retriever: Retriever, gold: Sequence[str]) -> list[str]:
        """The gold passages that the index does not have, where they may be missing."""
        missing = retriever.missing(gold)
        if missing and (self.unindexed_gold == "error" or len(missing) == len(gold)):
            some = ", ".join([*map(repr, missing[:3]), *(["…"] if len(missing) > 3 else [])])
            rest = "" if len(missing) == len(gold) else "; unindexed_gold=count evaluates on a part of the corpus"
            raise DataError(
                f"{len(missing)} of {len(gold)} gold passages of {as_rewrite_data(self.data).path} are not in the "
                f"index ({some}); the index may be of another corpus{rest}",
                file=self.index,
                field="gold",
            )
        return missing

    def _gold_texts(self, wanted: Collection[str]) -> dict[str, str] | None:
        if self.corpus is None:
            return None
        return {name: passage.contents for name, passage in Corpus(self.corpus).find(wanted).items()}


def _without_model(examples: Sequence[RewriteExample], kind: QueryKind) -> dict[str, str]:
    return {example.id: query for example in examples if (query := query_of(example, kind)) is not None}


def _stop_words() -> frozenset[str]:
    """The longer of bm25s's lists of English stop words.

    Raises:
        ConfigError: bm25s is not installed.
    """
    try:
        from bm25s.stopwords import STOPWORDS_EN_PLUS
    except ImportError:
        raise ConfigError(
            "the overlap needs bm25s: pip install -e '.[retrieval]' in a checkout, or corpus=null"
        ) from None
    return frozenset(STOPWORDS_EN_PLUS)


def overall_table(result: Mapping[str, Any]) -> str:
    """A Markdown table of the systems of a results file: metrics, missing queries, length, overlap and repeats."""
    rows = [
        {
            "system": name,
            **score["overall"],
            "missing": score["missing"],
            "tokens": score["tokens"],
            "overlap": score["overlap"],
            "repeats": score["repeats"],
            "rouge1": score["rouge1"],
            "repeated_bigrams": score["repeated_bigrams"],
            "cut": score["cut"],
        }
        for name, score in result["systems"].items()
    ]
    return markdown_table(rows, [*rows[0]])
