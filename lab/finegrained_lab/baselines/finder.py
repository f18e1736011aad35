"""Answering by BERTQA: the best of all windows' n best answers, its words, and the passage that it lies in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from finegrained_lab.baselines.bertqa import BertQaModel, ChosenWindows, TokenScores, windows_to_search
from finegrained_lab.baselines.windows import TITLE, WindowedExample, WindowEncoder
from finegrained_rlhf.core.errors import ModelError
from finegrained_rlhf.dialki.finder import Finder, Found
from finegrained_rlhf.dialki.inputs.text_reader import TextReader
from finegrained_rlhf.dialki.model.search import passages_above
from finegrained_rlhf.dialki.model.spans import top_spans
from finegrained_rlhf.dialki.records import NO_PASSAGE
from finegrained_rlhf.dialki.scores import Searched
from finegrained_rlhf.dialogue.records import Knowledge


@dataclass(frozen=True)
class TokenAnswer:
    """An answer as document tokens.

    Attributes:
        first: its first token; −1 where there is no answer.
        last: its last token, inclusive.
        score: the sum of its begin and end logits, or probabilities.
        begin: probability of the first token in its window, `[CLS]` being one of the choices.
        end: probability of the last one.
    """

    first: int
    last: int
    score: float
    begin: float
    end: float


class BertQaFinder(Finder[BertQaModel]):
    """A trained BERTQA that answers dialogues."""

    @staticmethod
    def new_encoder(model: BertQaModel) -> WindowEncoder:
        """The encoder of windows."""
        return WindowEncoder(model.tokenizer, model.config.inputs, model.windows)

    @torch.inference_mode()
    def answer(self, items: Sequence[WindowedExample]) -> list[Found]:
        """The best answer of each dialogue in its whole document."""
        chosen = [windows_to_search(item) for item in items]
        with self.processes.autocast():
            scores = self.model.scores(chosen, self.group_size)
        ranked = [self._ranked(item, rows) for item, rows in zip(items, self._offered(chosen, scores), strict=True)]
        texts = answer_texts(self.model.tokenizer, [(item, row[0]) for item, row in zip(items, ranked, strict=True)])
        return [self._answer(item, row, text) for item, row, text in zip(items, ranked, texts, strict=True)]

    def _offered(
        self, chosen: Sequence[ChosenWindows], scores: Sequence[TokenScores]
    ) -> list[list[tuple[int, TokenAnswer]]]:
        """For each dialogue, each window's n best answers and its "no answer", with the window."""
        windows = [(n, w) for n, item in enumerate(chosen) for w in item.windows]
        offered: list[list[tuple[int, TokenAnswer]]] = [[] for _ in chosen]
        config = self.model.windows
        for part in scores:
            begin, end = part.begin.softmax(1), part.end.softmax(1)
            by_logits = self.model.config.search.score_by == "logits"
            of_begin, of_end = (part.begin, part.end) if by_logits else (begin, end)
            top = top_spans(of_begin, of_end, part.choices, config.max_answer, config.n_best)
            if not bool(torch.isfinite(begin).all() & torch.isfinite(end).all()):
                raise ModelError("the model's scores are not finite; its weights are damaged or its precision too low")
            columns = (top.begin, top.end, top.score, begin.gather(1, top.begin), end.gather(1, top.end))
            none = (of_begin[:, 0] + of_end[:, 0], begin[:, 0], end[:, 0])
            rows = zip(part.rows.tolist(), *(c.tolist() for c in columns), *(c.tolist() for c in none), strict=True)
            for row, firsts, lasts, values, begins, ends, *nothing in rows:
                n, w = windows[row]
                shift = chosen[n].example.starts[w] - len(chosen[n].example.context)
                offered[n].append((w, TokenAnswer(-1, -1, *nothing)))
                for first, last, *numbers in zip(firsts, lasts, values, begins, ends, strict=True):
                    if numbers[0] > -np.inf:
                        offered[n].append((w, TokenAnswer(first + shift, last + shift, *numbers)))
        return offered

    def _ranked(self, item: WindowedExample, offered: Sequence[tuple[int, TokenAnswer]]) -> list[TokenAnswer]:
        """The n best different answers of a dialogue, best first; "no answer" among them where there may be none.

        That there is none scores what it scores in the window that says so least, since every window must agree.
        """
        best: dict[tuple[int, int], TokenAnswer] = {}
        for _, answer in offered:
            key = (answer.first, answer.last)
            if answer.first >= 0 and (key not in best or answer.score > best[key].score):
                best[key] = answer
        config = self.model.windows
        ranked = sorted(best.values(), key=lambda answer: (-answer.score, answer.first, answer.last))[: config.n_best]
        if NO_PASSAGE in item.record.passages:
            none = min((answer for _, answer in offered if answer.first < 0), key=lambda answer: answer.score)
            ranked.insert(0 if none.score - ranked[0].score > config.no_answer else 1, none)
        return ranked

    def _answer(self, item: WindowedExample, ranked: Sequence[TokenAnswer], text: str) -> Found:
        """The record of a dialogue's n best answers: the first of them is its answer.

        An answer's probability is its share among the n best (of exp(score) where scores are logits), a passage's that
        of its best answer.
        """
        best, config = ranked[0], self.model.config
        places = [_place(item, answer) for answer in ranked]
        scores = np.array([answer.score for answer in ranked])
        weights = np.exp(scores - scores.max()) if config.search.score_by == "logits" else scores
        shares = weights / weights.sum() if weights.sum() > 0 else np.full(len(weights), 1 / len(weights))
        of_passages = dict.fromkeys(range(len(item.record.passages)), 0.0)
        for place, share in zip(places, shares.tolist(), strict=True):
            of_passages[place.passage] = max(share, of_passages[place.passage])
        searched, probabilities = tuple(of_passages), tuple(of_passages.values())
        spans = sum(len(passage.spans) for passage in item.record.passages)
        return Found(
            id=item.record.id,
            knowledge=places[0],
            text=text,
            probability=of_passages[places[0].passage],
            begin=best.begin,
            end=best.end,
            score=best.score,
            passages=passages_above(probabilities, config.threshold, config.search.most, searched),
            searched=searched,
            probabilities=probabilities,
            coverage=Searched(len(searched), len(searched), spans, spans),  # windows cover the whole document
        )


def _place(item: WindowedExample, answer: TokenAnswer) -> Knowledge:
    """The passage that most words of an answer are from (of equals the first), and the spans that it touches there."""
    if answer.first < 0:
        return Knowledge(item.record.passages.index(NO_PASSAGE), 0, 0)
    inside = slice(answer.first, answer.last + 1)
    passages, spans = item.document.passages[inside], item.document.spans[inside]
    passage = int(np.bincount(passages[spans != TITLE]).argmax())
    touched = spans[(passages == passage) & (spans != TITLE)]
    return Knowledge(passage, int(touched.min()), int(touched.max()))


def answer_texts(tokenizer: object, answers: Sequence[tuple[WindowedExample, TokenAnswer]]) -> list[str]:
    """The words of answers, character by character as the record has them.

    Args:
        tokenizer: a fast one, which knows where in a text its tokens are.
        answers: with the dialogues that they belong to.

    Raises:
        ModelError: the tokenizer is not a fast one.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise ModelError("BERTQA needs a fast tokenizer, which knows where in a text its tokens are")
    reader = TextReader(tokenizer)
    texts: list[list[str]] = [[] for _ in answers]
    for words, (item, answer) in zip(texts, answers, strict=True):
        if answer.first < 0:
            continue
        document, passages = item.document, item.record.passages
        inside = np.arange(answer.first, answer.last + 1)
        keys = zip(document.passages[inside].tolist(), document.spans[inside].tolist(), strict=True)
        places: dict[tuple[int, int], list[int]] = {}
        for key, place in zip(keys, document.places[inside].tolist(), strict=True):
            places.setdefault(key, []).append(place)
        for (p, j), run in places.items():
            text = f" {passages[p].title if j == TITLE else passages[p].spans[j]}"
            offsets = reader.title_offsets(text) if j == TITLE else reader.text_offsets(text)
            words.append(text[offsets[run[0]][0] : offsets[run[-1]][1]].strip())
    return [
        " ".join(words) if answer.first >= 0 else NO_PASSAGE.text
        for words, (_, answer) in zip(texts, answers, strict=True)
    ]
