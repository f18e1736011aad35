"""DSTC11 track 5 by its own measures: which set of snippets a turn needs, by what needs no training.

A system scores every snippet of some entities; a rule makes a set of the scores: those that reach a share of the
highest, and at most so many. The rule is chosen on turns of `train`, what is measured is `dev`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from finegrained_lab.experiments.dialki.lexical import bm25, snowball
from finegrained_lab.experiments.results_table import Results
from finegrained_lab.published.dialogues.dstc11_track import (
    Entity,
    EntityMatcher,
    Label,
    Snippet,
    Track,
    TrackTurn,
    read_track,
    track_scores,
    write_labels,
)
from finegrained_rlhf.core.markers import InputFile, ModelName, OutputDirectory, at_least
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.retrieval.bm25.retriever import Bm25Config
from finegrained_rlhf.text.tables import markdown_table

Score = Callable[[str, Sequence[str]], Sequence[float]]
"""A query and N texts → N scores."""
Scored = tuple[frozenset[Snippet], Mapping[Snippet, float]]
"""The snippets that a turn needs, and the score of every candidate."""
Entities = Literal["matched", "labels"]
ENTITIES: tuple[Entities, ...] = ("matched", "labels")
COLUMNS = ("selection_exact_match", "selection_precision", "selection_recall", "selection_f1")
FIRST = "first_right"
SHARES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
MOST = (1, 2, 3, 4, 5, 6, 8, 10, 15)
PUBLISHED = {"the track's baseline": (0.391, 0.789), "the best entry": (0.657, 0.855)}
"""Exact match and F1 on the track's test part, which is not published with labels."""


@dataclass(frozen=True)
class Rule:
    """Which of the scored snippets are named.

    Attributes:
        share: of the highest score, that one must reach; what scores 0 or less is never named.
        most: at most so many, the highest first.
    """

    share: float
    most: int

    def __call__(self, scores: Mapping[Snippet, float]) -> frozenset[Snippet]:
        """The set."""
        least = self.share * max(scores.values(), default=0.0)
        kept = [snippet for snippet, score in scores.items() if score >= least and score > 0]
        return frozenset(sorted(kept, key=lambda snippet: (-scores[snippet], snippet))[: self.most])


def choose_rule(scored: Sequence[Scored]) -> Rule:
    """The rule with the highest F1 over turns; of equal ones the one with the smaller sets."""
    rules = [Rule(share, most) for most in MOST for share in reversed(SHARES)]
    wanted = [Label(True, needed) for needed, _ in scored]
    found = {rule: track_scores(wanted, [Label(True, rule(of)) for _, of in scored]) for rule in rules}
    return max(rules, key=lambda rule: found[rule]["selection_f1"])


def by_words(config: Bm25Config) -> Score:
    """BM25 over the texts given."""
    return lambda query, texts: bm25(query, texts, config)


def by_cosine(encoder: Any) -> Score:
    """The cosine of the vectors of query and text."""

    def score(query: str, texts: Sequence[str]) -> Sequence[float]:
        values: list[float] = np.asarray(encoder(list(texts)) @ encoder([query])[0]).tolist()
        return values

    return score


def score_turns(
    track: Track, turns: Iterable[TrackTurn], score: Score, entities: Callable[[TrackTurn], Iterable[Entity]]
) -> list[Scored]:
    """Score all snippets of a turn's entities against its last turn."""
    scored: list[Scored] = []
    for turn in turns:
        texts = {snippet: text for entity in sorted(entities(turn)) for snippet, text in track.texts[entity].items()}
        values = score(turn.turns[-1], list(texts.values())) if texts else []
        scored.append((turn.label.snippets, dict(zip(texts, values, strict=True))))
    return scored


def first_right(scored: Sequence[Scored]) -> float:
    """The share of turns whose snippet with the highest score, of equal ones the first, is one that they need."""
    return float(np.mean([bool(of) and max(of, key=lambda one: of[one]) in needed for needed, of in scored]))


@dataclass(frozen=True)
class Dstc11TrackTable(Results):
    """Set prediction on DSTC11 track 5, with the entities found in the dialogue and with those of the labels.

    Attributes:
        data: directory of the track's files.
        encoders: untrained sentence encoders, the cosine of each a row.
        answers: where each system's answers to `dev` are written in the track's form.
        tuned_on: turns of `train` that the rule is chosen on.
    """

    title: ClassVar[str] = "DSTC11 track 5 as its task is: sets of snippets"
    about: ClassVar[str] = (
        "Which snippets (sentences of reviews, FAQs) a knowledge-seeking turn needs, all of them, of a held-out tenth "
        "(`dev`); that it seeks knowledge is known. Measures of the track: a record is an exact match if both sets are "
        "the same; precision, recall and F1 count snippets over all records. `matched`: candidates are those of the "
        "entities whose names are found in the dialogue; `labels`: of the entities that the labels name, which no "
        "system knows. The query is the last turn. A rule makes a set of scores (those that reach a share of the "
        "highest, at most so many); it is chosen on turns of `train`, for each row by itself."
    )

    data: InputFile
    answers: OutputDirectory
    encoders: Sequence[ModelName] = ()
    tuned_on: Annotated[int, at_least(1)] = 300

    def run(self) -> dict[str, Any]:
        """Measure, write each system's answers, results and page.

        Raises:
            DataError: broken files.
            ModelError: there is no encoder.
        """
        dev = read_track(self.data, "dev")
        asked = [turn for turn in dev.turns if turn.label.target]
        train = [turn for turn in read_track(self.data, "train").turns if turn.label.target]
        tuning = sorted(train, key=lambda turn: stable_hash("dstc11 track", str(turn.number)))[: self.tuned_on]
        matcher = EntityMatcher(dev.names)
        entities: dict[Entities, Callable[[TrackTurn], Iterable[Entity]]] = {
            "matched": lambda turn: matcher(turn.turns),
            "labels": lambda turn: {snippet.entity for snippet in turn.label.snippets},
        }
        rows = []
        for name, score in self._systems():
            for which in ENTITIES:
                rule = choose_rule(score_turns(dev, tuning, score, entities[which]))
                scored = score_turns(dev, asked, score, entities[which])
                found = [Label(True, rule(of)) for _, of in scored]
                write_labels(Path(self.answers) / f"{name}_{which}.json", found)
                own = {"share": rule.share, "most": rule.most, FIRST: first_right(scored)}
                rows.append(self._row(name, which, asked, found) | own)
        rows += [self._row(name, "labels", asked, found) for name, found in _known(dev, asked)]
        named = [matcher(turn.turns) == {one.entity for one in turn.label.snippets} for turn in asked]
        return self.write(
            {
                **self.made_by(),
                "turns": {"dev": len(asked), "tuned_on": len(tuning)},
                "snippets_a_turn": float(np.mean([len(turn.label.snippets) for turn in asked])),
                "entities_matched": float(np.mean(named)),
                "rows": rows,
            }
        )

    def _systems(self) -> Iterable[tuple[str, Score]]:
        yield "bm25", by_words(Bm25Config(stemmer="none", stop_words="none"))
        yield "bm25_porter", by_words(Bm25Config())
        yield "bm25_snowball", by_words(snowball())
        for encoder in self.encoders:
            from reward_models.bottleneck.model import SentenceEncoder

            yield f"cosine_{Path(encoder).name}", by_cosine(SentenceEncoder(str(encoder)))

    @staticmethod
    def _row(name: str, which: Entities, asked: Sequence[TrackTurn], found: Sequence[Label]) -> dict[str, Any]:
        scores = track_scores([turn.label for turn in asked], found)
        named = float(np.mean([len(label.snippets) for label in found]))
        return {"system": name, "entities": which, **{key: scores[key] for key in COLUMNS}, "snippets": named}

    def page(self, result: Mapping[str, Any]) -> str:
        """The rows, what one right sentence is worth, and what was published."""
        columns = ["system", "entities", *COLUMNS, "snippets", FIRST, "share", "most"]
        rows = [{"share": None, "most": None, FIRST: None, **row} for row in result["rows"]]
        published = "; ".join(f"{name} {exact:.3f} and {f1:.3f}" for name, (exact, f1) in PUBLISHED.items())
        turns = result["turns"]
        return (
            f"{self.opening(result, self.title, self.about)}\n\nTurns: {turns['dev']} of dev, rules chosen on "
            f"{turns['tuned_on']} of train. A turn needs {result['snippets_a_turn']:.2f} snippets; the entities that "
            f"are found are those of its labels in {result['entities_matched']:.1%}.\n\n"
            f"{markdown_table(rows, columns)}\n`snippets`: how many a system names for a turn; `{FIRST}`: "
            "the snippet with the highest score is one of those needed, which is the `dev_exact_match` of the pages of "
            "trained models (`dstc11.md`, `dstc11_minilm.md`) where entities are those of the labels; `share`, `most`: "
            "its rule. Two answers know the labels: `one_needed_snippet` always names one right snippet, "
            "`all_of_the_entities` every snippet of the right entities.\n\nPublished on the track's test part (exact "
            f"match and F1, with entities and detection of their own, not compared with these): {published}.\n"
        )


def _known(track: Track, asked: Sequence[TrackTurn]) -> Iterable[tuple[str, list[Label]]]:
    """Answers that need the labels: one right snippet, and everything of the right entities."""
    yield "one_needed_snippet", [Label(True, frozenset({min(turn.label.snippets)})) for turn in asked]
    entities = [{snippet.entity for snippet in turn.label.snippets} for turn in asked]
    yield (
        "all_of_the_entities",
        [Label(True, frozenset(snippet for entity in of for snippet in track.texts[entity])) for of in entities],
    )
