"""How well queries find the gold passages of questions: on average, by topic, length and source, question by question.

How they are worded beside the human's rewrites is measured too: a retriever's reward does not see a phrase that is
repeated to the limit of tokens. Systems are tested against each other in pairs, dialogues as clusters. Also writes the
run file of the SCAI-QReCC shared task (`run.json`).
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

from finegrained_rlhf.conqrr.data import RewriteExample
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.markers import Seed, at_least
from finegrained_rlhf.metrics.functions import repeated_bigram_share, rouge1_scores, words_with_letters
from finegrained_rlhf.metrics.significance import holm, paired_test
from finegrained_rlhf.retrieval.protocol import Hit, Retriever
from finegrained_rlhf.retrieval.ranking import RankingMetrics, mean_of_turns
from finegrained_rlhf.retrieval.runs import Judgements, Run, in_trec_order
from finegrained_rlhf.runtime.console import ProgressBar
from finegrained_rlhf.text.scores import word_tokens
from finegrained_rlhf.text.tables import markdown_table


@dataclass(frozen=True)
class Wording:
    """Measures of the queries of one system.

    Attributes:
        rouge1: mean ROUGE-1 F1 with the human's rewrite, over queries whose question has one; None without any.
        length_ratio: their words over those of the human's rewrites; None without any.
        repeated_bigrams: share of the queries in which two words that stand together do so a second time; None without
            queries.
        cut: share of the queries that the limit of tokens cut off; None where that is not known.
    """

    rouge1: float | None
    length_ratio: float | None
    repeated_bigrams: float | None
    cut: float | None


def repeats_a_bigram(text: str) -> bool:
    """Whether two words that stand together do so again, in lower case; punctuation is no word.

    A word three times in a row is a repetition too.
    """
    return repeated_bigram_share(words_with_letters(text)) > 0


def wording_of(
    queries: Mapping[str, str], references: Mapping[str, str], cut: Collection[str] | None = None
) -> Wording:
    """Measure queries that are not blank.

    Args:
        queries: by question id.
        references: the human's rewrites by question id.
        cut: ids of the questions whose rewrite was cut off; None where that is not known.
    """
    paired = [(text, references[name]) for name, text in queries.items() if name in references]
    rouge = rouge1_scores([text for text, _ in paired], [reference for _, reference in paired]) if paired else []
    human = sum(len(word_tokens(reference)) for _, reference in paired)
    return Wording(
        rouge1=statistics.fmean(rouge) if rouge else None,
        length_ratio=sum(len(word_tokens(text)) for text, _ in paired) / human if human else None,
        repeated_bigrams=statistics.fmean(map(repeats_a_bigram, queries.values())) if queries else None,
        cut=None if cut is None or not queries else statistics.fmean(name in cut for name in queries),
    )


_QUERIES = 64  # searched together
_LONGEST = 4

GROUPINGS = ("topic", "questions", "topic and questions", "source")
"""Ways to divide the questions; each question is in one group of each, or in none."""


@dataclass(frozen=True)
class QueryScores:
    """What the queries of one system found.

    Attributes:
        overall: means of the metrics over all turns that count, and `turns`, their number.
        groups: the same by grouping (`GROUPINGS`) and group, with the group's own `tokens` and `overlap` where there
            are such (thesis, table 4.4); groups without turns are left out.
        missing: evaluated questions without a query (or with a blank one); they count as 0.
        tokens: mean length of a query in words (thesis, table 4.4); None without queries.
        overlap: mean share of a query's words, stop words left out, that occur in a gold passage of its question; None
            where passages were not given or no query has such a word.
        repeats: share of the later questions of dialogues for which the first passage found is a gold passage of an
            earlier question and not of this one; None where there is no later question.
        wording: how the queries are worded: likeness to the human's rewrites, repetitions, cut ones.
        values: the metrics of each question that counts, by its id; not part of the JSON.
    """

    overall: Mapping[str, float]
    groups: Mapping[str, Mapping[str, Mapping[str, float]]]
    missing: int
    tokens: float | None
    overlap: float | None
    repeats: float | None
    wording: Wording
    values: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "overall": dict(self.overall),
            "groups": {name: {key: dict(mean) for key, mean in by.items()} for name, by in self.groups.items()},
            "missing": self.missing,
            "tokens": self.tokens,
            "overlap": self.overlap,
            "repeats": self.repeats,
            **asdict(self.wording),
        }


def find_passages(
    retriever: Retriever, queries: Mapping[str, str], k: int = 100, progress: bool = True
) -> dict[str, list[Hit]]:
    """The k best passages for each query, by the question's id.

    Blank queries find nothing; equal ones are searched once.
    """
    texts = list(dict.fromkeys(text for text in queries.values() if text.strip()))
    hits: dict[str, list[Hit]] = {}
    with ProgressBar("searching", len(texts), "queries", progress) as bar:
        for start in range(0, len(texts), _QUERIES):
            batch = texts[start : start + _QUERIES]
            hits.update(zip(batch, retriever.search(batch, k), strict=True))
            bar.update(len(batch))
    return {name: hits.get(text, []) for name, text in queries.items()}


def judgements_of(examples: Iterable[RewriteExample]) -> dict[str, dict[str, int]]:
    """The gold passages of questions as judgements, each 1."""
    return {example.id: dict.fromkeys(example.gold, 1) for example in examples if example.gold}


def grades_of(examples: Iterable[RewriteExample]) -> dict[str, dict[str, int]]:
    """The passages of questions with their grades, which nDCG counts; 1 of each gold passage where there are none."""
    graded = {example.id: dict(example.grades) or dict.fromkeys(example.gold, 1) for example in examples}
    return {name: grades for name, grades in graded.items() if grades}


def score_queries(
    examples: Sequence[RewriteExample],
    queries: Mapping[str, str],
    run: Mapping[str, Sequence[Hit]],
    metrics: RankingMetrics | None = None,
    passages: Mapping[str, str] | None = None,
    stop_words: frozenset[str] = frozenset(),
    cut: Collection[str] | None = None,
) -> QueryScores:
    """Score the queries of one system.

    Args:
        examples: all questions that are evaluated.
        queries: by question id; a question without one found nothing.
        run: what each query found.
        metrics: which, and how turns without gold count.
        passages: texts of the gold passages, by id, for the overlap.
        stop_words: lower-case words that do not count for the overlap.
        cut: ids of the questions whose query the limit of tokens cut off; None where that is not known.

    Raises:
        DataError: a query is of no question that is evaluated, or no question counts.
    """
    known = {example.id for example in examples}
    if strange := [name for name in queries if name not in known]:
        raise DataError(f"a query of a question that is not evaluated ({len(strange)} in all)", record=strange[0])
    judgements: Judgements = judgements_of(examples)
    turns = [example.id for example in examples]
    values = (metrics or RankingMetrics()).of_turns(run, judgements, turns, grades_of(examples))
    if not values:
        raise DataError("no question has a gold passage: there is nothing to evaluate", field="gold")
    counted = [example for example in examples if example.id in values]
    written = {example.id: text for example in counted if (text := queries.get(example.id, "")).strip()}
    tokens = {name: word_tokens(text) for name, text in written.items()}
    lengths = {name: float(len(words)) for name, words in tokens.items()}
    shares = {} if passages is None else _overlaps(counted, tokens, passages, stop_words)

    def of_group(members: Sequence[str]) -> dict[str, float]:
        attributes = {"tokens": _mean(lengths, members), "overlap": _mean(shares, members)}
        return mean_of_turns(values, members) | {name: mean for name, mean in attributes.items() if mean is not None}

    return QueryScores(
        overall=mean_of_turns(values),
        groups={
            name: {group: of_group(members) for group, members in by.items()} for name, by in groups_of(counted).items()
        },
        missing=len(counted) - len(written),
        tokens=_mean(lengths, lengths),
        overlap=_mean(shares, shares),
        repeats=_repeats(examples, run, values),
        wording=wording_of(written, {e.id: e.rewrite for e in counted if e.rewrite is not None}, cut),
        values=values,
    )


def _mean(values: Mapping[str, float], names: Iterable[str]) -> float | None:
    present = [values[name] for name in names if name in values]
    return statistics.fmean(present) if present else None


def groups_of(examples: Iterable[RewriteExample]) -> dict[str, dict[str, list[str]]]:
    """Ids of questions by grouping and group, groups in order.

    - `topic`: `concentrated` or `shifted` (thesis, table 4.3), where it is known: later questions with gold passages.
    - `questions`: how many questions the dialogue has so far, this one included: `1-2`, `3-4`, `5+`.
    - `topic and questions`: both (figure 4.4).
    - `source`: where the dialogue comes from (table 4.1).
    """
    groups: dict[str, dict[str, list[str]]] = {name: {} for name in GROUPINGS}
    for example in examples:
        questions = _length_group(example)
        member = {"questions": questions, "source": example.source}
        if example.topic_shift is not None:
            topic = "shifted" if example.topic_shift else "concentrated"
            member |= {"topic": topic, "topic and questions": f"{topic}, {questions}"}
        for name, group in member.items():
            if group:
                groups[name].setdefault(group, []).append(example.id)
    return {name: dict(sorted(by.items())) for name, by in groups.items() if by}


def _length_group(example: RewriteExample) -> str:
    questions = len(example.history) // 2 + 1
    if questions > _LONGEST:
        return f"{_LONGEST + 1}+"
    low = questions - (questions - 1) % 2
    return f"{low}-{low + 1}"


def _repeats(
    examples: Iterable[RewriteExample], run: Mapping[str, Sequence[Hit]], counted: Container[str]
) -> float | None:
    """Over later questions that count, the share whose first passage answers an earlier question and not this one."""
    earlier: dict[str, set[str]] = {}
    repeated = []
    for example in sorted(examples, key=lambda example: example.turn):
        answered = earlier.setdefault(example.dialogue, set())
        if example.id in counted and example.history:
            first = [hit.id for hit in in_trec_order(run.get(example.id, ()))[:1]]
            repeated.append(bool(answered.intersection(first).difference(example.gold)))
        answered.update(example.gold)
    return statistics.fmean(repeated) if repeated else None


def _overlaps(
    examples: Iterable[RewriteExample],
    tokens: Mapping[str, Sequence[str]],
    passages: Mapping[str, str],
    stop_words: frozenset[str],
) -> dict[str, float]:
    """By the id of each question with a query and gold, the share of the query's words that a gold passage has.

    Stop words and tokens without a letter or digit are no words here.
    """
    words: dict[str, frozenset[str]] = {}
    shares = {}
    for example in examples:
        written = [
            token for token in tokens.get(example.id, ()) if token not in stop_words and any(map(str.isalnum, token))
        ]
        gold = [passage for passage in example.gold if passage in passages]
        if not written or not gold:
            continue
        for passage in gold:
            if passage not in words:
                words[passage] = frozenset(word_tokens(passages[passage]))
        there = frozenset().union(*(words[passage] for passage in gold))
        shares[example.id] = sum(token in there for token in written) / len(written)
    return shares


Values = Mapping[str, Mapping[str, float]]
"""Metrics by question id, of the questions that count."""


@dataclass(frozen=True)
class CompareSystems(Settings):
    """Which systems are tested against which, and how.

    Attributes:
        against: a system that every other one is compared with; None compares all pairs.
        metrics: names of metrics; the p-values of each are corrected for themselves.
        draws: of the randomization test.
        seed: of the draws.
    """

    against: str | None = None
    metrics: Sequence[str] = ("mrr",)
    draws: Annotated[int, at_least(1)] = 10_000
    seed: Seed = 0

    def __post_init__(self) -> None:
        if not self.metrics:
            raise ConfigError("comparison.metrics: expected at least one metric; comparison=null compares nothing")

    def check(self, systems: Sequence[str], known: Sequence[str]) -> None:
        """Raise ConfigError where `against` is none of the systems, or one of `metrics` is not measured."""
        if self.against is not None and self.against not in systems:
            raise ConfigError(f"comparison.against: expected one of {', '.join(systems)}, got {self.against!r}")
        if strange := [name for name in self.metrics if name not in known]:
            raise ConfigError(f"comparison.metrics: expected some of {', '.join(known)}, got {strange[0]!r}")

    def compared(self, examples: Sequence[RewriteExample], values: Mapping[str, Values]) -> list[dict[str, Any]]:
        """The tests, dialogues being the clusters: an object a metric and pair, in the order of the systems.

        `p_t_holm` and `p_randomization_holm` are Holm's over all pairs of one metric. Only questions that count for
        both systems are compared.

        Args:
            examples: all questions.
            values: of each system.
        """
        names = list(values)
        pairs = (
            list(combinations(names, 2))
            if self.against is None
            else [(name, self.against) for name in names if name != self.against]
        )
        table: list[dict[str, Any]] = []
        for metric in self.metrics:
            rows = [row for pair in pairs if (row := self._test(examples, values, pair, metric)) is not None]
            for key in ("p_t", "p_randomization"):
                tested = [row for row in rows if row[key] is not None]
                corrected = holm([row[key] for row in tested])
                for row in rows:
                    row[f"{key}_holm"] = None
                for row, value in zip(tested, corrected, strict=True):
                    row[f"{key}_holm"] = value
            table += rows
        return table

    def _test(
        self, examples: Sequence[RewriteExample], values: Mapping[str, Values], pair: tuple[str, str], metric: str
    ) -> dict[str, Any] | None:
        system, against = (values[name] for name in pair)
        both = [example for example in examples if example.id in system and example.id in against]
        if not both:
            return None
        differences = [system[example.id][metric] - against[example.id][metric] for example in both]
        clusters = [example.dialogue for example in both]
        test = paired_test(differences, clusters, draws=self.draws, seed=self.seed)
        return {"metric": metric, "system": pair[0], "against": pair[1], "questions": len(both), **asdict(test)}


def comparison_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table of what `CompareSystems.compared` gave; empty without rows."""
    shown = [
        {
            "metric": row["metric"],
            "system": row["system"],
            "against": row["against"],
            "difference": f"{row['difference']:+.3f}",
            "p (t)": _p(row["p_t"]),
            "p (randomization)": _p(row["p_randomization"]),
            "Holm (t)": _p(row["p_t_holm"]),
            "Holm (randomization)": _p(row["p_randomization_holm"]),
        }
        for row in rows
    ]
    return markdown_table(shown, [*shown[0]]) if shown else ""


def _p(value: float | None) -> str:
    return "–" if value is None else "<.0001" if value < 1e-4 else f"{value:.4f}"


def gold_ranks(examples: Sequence[RewriteExample], run: Run) -> dict[str, list[int]]:
    """By question id the ranks, from 1, of the gold passages that its query found, best first, in trec_eval's order."""
    gold = {example.id: set(example.gold) for example in examples}
    return {
        name: [rank for rank, hit in enumerate(in_trec_order(hits), 1) if hit.id in gold.get(name, ())]
        for name, hits in run.items()
    }


def rows_by_question(
    examples: Sequence[RewriteExample],
    queries: Mapping[str, Mapping[str, str]],
    ranks: Mapping[str, Mapping[str, Sequence[int]]],
    values: Mapping[str, Values],
) -> Iterator[dict[str, Any]]:
    """An object a question: `id`, `dialogue`, `turn`, `source`, `question`, `rewrite` (the human's), `gold`, `systems`.

    `systems` has of each system the `query` (None where there is none), the `ranks` of the gold passages that it found,
    best first, from 1, and the `metrics`; None where the question does not count.

    Args:
        examples: all questions.
        queries: of each system, by question id.
        ranks: of each system, as `gold_ranks` gives them.
        values: of each system.
    """
    for example in examples:
        systems = {}
        for name in values:
            of_turn = values[name].get(example.id)
            systems[name] = {
                "query": queries[name].get(example.id),
                "ranks": list(ranks[name].get(example.id, ())),
                "metrics": None if of_turn is None else dict(of_turn),
            }
        yield {
            "id": example.id,
            "dialogue": example.dialogue,
            "turn": example.turn,
            "source": example.source,
            "question": example.question,
            "rewrite": example.rewrite,
            "gold": list(example.gold),
            "systems": systems,
        }


def require_numbered(examples: Sequence[RewriteExample], path: str | Path) -> None:
    """Raise DataError where a conversation has no number, without which the task's evaluator does not take a run."""
    for example in examples:
        if not (example.dialogue.isascii() and example.dialogue.isdigit()):
            problem = f"expected the number of a conversation for a run of SCAI-QReCC, got {example.dialogue!r}"
            raise DataError(problem, file=path, record=example.id, field="dialogue")


def write_scai_run(path: str | Path, examples: Sequence[RewriteExample], queries: Mapping[str, str], run: Run) -> None:
    """Write `run.json`, atomically, with a record for every question, in their order.

    `Model_rewrite` is the query (left out where there is none), `Model_passages` what it found, best first, `{}` where
    that is nothing, so that the question counts as 0 as it does here. There is no `Model_answer`.

    Args:
        path: the file.
        examples: all questions, of conversations with numbers (`require_numbered`).
        queries: by question id.
        run: what they found.
    """
    rows: list[dict[str, Any]] = []
    for example in examples:
        row: dict[str, Any] = {"Conversation_no": int(example.dialogue), "Turn_no": example.turn}
        if example.id in queries:
            row["Model_rewrite"] = queries[example.id]
        row["Model_passages"] = {hit.id: hit.score for hit in in_trec_order(run.get(example.id, ()))}
        rows.append(row)
    write_json(path, rows)
