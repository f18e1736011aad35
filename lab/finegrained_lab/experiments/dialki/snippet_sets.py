"""Sets of snippets made of scores: every candidate of a turn has one, and a rule says which are named."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from finegrained_lab.experiments.dialki.lexical import bm25
from finegrained_lab.published.dialogues.dstc11_track import Entity, Label, Snippet, Track, TrackTurn, track_scores
from finegrained_rlhf.dialki.records import DialogueExample
from finegrained_rlhf.dialogue.records import Knowledge, Passage, Role, Turn
from finegrained_rlhf.retrieval.bm25.retriever import Bm25Config

if TYPE_CHECKING:
    from finegrained_rlhf.dialki.finder import KnowledgeFinder

Score = Callable[[Track, TrackTurn, Mapping[Snippet, str]], Sequence[float]]
"""A turn and its N candidates → N scores."""
Scored = tuple[frozenset[Snippet], Mapping[Snippet, float]]
"""The snippets that a turn needs, and the score of every candidate."""
SHARES = (0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
MOST = (1, 2, 3, 4, 5, 6, 8, 10, 15)


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


def set_scores(scored: Sequence[Scored], rule: Rule) -> dict[str, float]:
    """The track's measures of the sets that a rule makes."""
    return track_scores([Label(True, needed) for needed, _ in scored], [Label(True, rule(of)) for _, of in scored])


def choose_rule(scored: Sequence[Scored]) -> Rule:
    """The rule with the highest F1 over turns; of equal ones the one with the smaller sets."""
    rules = [Rule(share, most) for most in MOST for share in reversed(SHARES)]
    return max(rules, key=lambda rule: set_scores(scored, rule)["selection_f1"])


def score_turns(
    track: Track, turns: Iterable[TrackTurn], score: Score, entities: Callable[[TrackTurn], Iterable[Entity]]
) -> list[Scored]:
    """Score all snippets of a turn's entities."""
    scored: list[Scored] = []
    for turn in turns:
        texts = {snippet: text for entity in sorted(entities(turn)) for snippet, text in track.texts[entity].items()}
        values = score(track, turn, texts) if texts else []
        scored.append((turn.label.snippets, dict(zip(texts, values, strict=True))))
    return scored


def first_right(scored: Sequence[Scored]) -> float:
    """The share of turns whose snippet with the highest score, of equal ones the first, is one that they need."""
    return float(np.mean([bool(of) and max(of, key=lambda one: of[one]) in needed for needed, of in scored]))


def by_words(config: Bm25Config) -> Score:
    """BM25 of the last turn over the candidates."""
    return lambda _, turn, texts: bm25(turn.turns[-1], list(texts.values()), config)


def by_cosine(encoder: Any) -> Score:
    """The cosine of the vectors of last turn and candidate."""

    def score(_: Track, turn: TrackTurn, texts: Mapping[Snippet, str]) -> Sequence[float]:
        values: list[float] = np.asarray(encoder(list(texts.values())) @ encoder([turn.turns[-1]])[0]).tolist()
        return values

    return score


def by_dialki(checkpoint: str | Path) -> Score:
    """A trained DIALKI's probability of a candidate: of its passage, times those that it begins and ends there.

    A candidate that does not fit into the model's input has probability 0.

    Raises:
        ModelError: there is none.
    """
    from finegrained_rlhf.dialki.finder import KnowledgeFinder

    finder = KnowledgeFinder.load(checkpoint)

    def score(track: Track, turn: TrackTurn, texts: Mapping[Snippet, str]) -> Sequence[float]:
        example, places = dialogue_of(track, turn, texts)
        found = _span_probabilities(finder, example)
        return [found.get(place, 0.0) for place in places]

    return score


def _span_probabilities(finder: KnowledgeFinder, example: DialogueExample) -> dict[Knowledge, float]:
    """p(passage) p(begin) p(end) of every span by itself that was read."""
    import torch

    from finegrained_rlhf.dialki.inputs.batches import collate, passages_to_search

    item = finder.encoder.encode([example])[0][0]
    chosen = passages_to_search(item, len(example.passages))
    batch = collate([chosen], finder.model.pad_id, finder.model.device, finder.group_size)
    with torch.inference_mode(), finder.processes.autocast():
        _, scores = finder.scores(batch)
    passage = scores.passage.masked_fill(~scores.passage_mask, -torch.inf).double().softmax(1)[0, :, None]
    begin, end = (
        part.masked_fill(~scores.span_mask, -torch.inf).double().softmax(2)[0] for part in (scores.begin, scores.end)
    )
    found: dict[Knowledge, float] = {}
    for row, values in zip(chosen.passages, (passage * begin * end).tolist(), strict=False):
        for span in range(item.candidates[row]):
            place = Knowledge(row, span, span)
            place = place if item.whole is None else item.whole.back(place)
            found[place] = max(values[span], found.get(place, 0.0))
    return found


def dialogue_of(track: Track, turn: TrackTurn, texts: Mapping[Snippet, str]) -> tuple[DialogueExample, list[Knowledge]]:
    """A turn with its candidates as passages (a review, an FAQ), and where in them each candidate is."""
    documents: dict[tuple[str, ...], list[str]] = {}
    names: dict[tuple[str, ...], str] = {}
    places = []
    for snippet, text in texts.items():
        key = (*snippet.entity, *snippet.place[:2])
        names[key] = track.names[snippet.entity]
        spans = documents.setdefault(key, [])
        places.append(Knowledge(list(documents).index(key), len(spans), len(spans)))
        spans.append(text)
    passages = tuple(Passage("-".join(key), names[key], tuple(spans)) for key, spans in documents.items())
    roles: tuple[Role, Role] = ("user", "agent")  # by turns, the user's last
    last = len(turn.turns) - 1
    turns = tuple(Turn(roles[(last - i) % 2], words) for i, words in enumerate(turn.turns))
    return DialogueExample(id=str(turn.number), turns=turns, passages=passages, gold=(), response=None), places
