"""A language model behind an OpenAI-compatible endpoint that reads an answer and quotes what is wrong in it.

Knows the endpoint's requests and answers, and how quotes become spans. Does not know how segments are paid.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any, Literal, get_args

import torch

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.records import Prompt, SegmentScores
from finegrained_rlhf.rewards.remote.quotes import spans_of
from finegrained_rlhf.runtime.remote.answers import UnintelligibleAnswer, beginning_of
from finegrained_rlhf.runtime.remote.cache import AnswerCache
from finegrained_rlhf.runtime.remote.client import Call, RemoteClient, RemoteConfig
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER, Segmenter, Span, shared_segmenter

logger = logging.getLogger(__name__)

Granularity = Literal["sub_sentence", "sentence"]
Quote = tuple[str, str]
"""What is wrong, word for word, and the name of the error."""

INSTRUCTIONS = """\
You check an answer for errors. The kinds of error are:
$taxonomy
Quote every part of the answer that has one of these errors, word for word and as short as possible, and name its \
kind. An answer without an error has no quotes. Where the same words occur more than once, quote \
enough before them to tell which are meant. Judge only by what is given."""
TEMPLATE = """\
Question: $question

Passages:
$passages

Answer: $answer"""


class Judge:
    """What a language model quotes of answers to prompts.

    Args:
        remote: the endpoint, up to and with `/chat/completions`.
        model: as the endpoint names it.
        cache_file: SQLite file in which quotes are kept.
        taxonomy: what each kind of error is, by its name.
        instructions: the system message; `$taxonomy` becomes the kinds, one a line.
        template: the user message; `$question`, `$passages` and `$answer` become those of the prompt and the response.
        max_tokens: of an answer; one that is cut off is asked for again.
        version: any word; kept quotes of another version are not taken.

    Raises:
        ConfigError: a text lacks a placeholder or has an unknown one, or the key is not there.
    """

    def __init__(
        self,
        remote: RemoteConfig,
        model: str,
        cache_file: str | Path,
        taxonomy: Mapping[str, str],
        instructions: str = INSTRUCTIONS,
        template: str = TEMPLATE,
        max_tokens: int = 1024,
        version: str = "1",
    ) -> None:
        if not taxonomy or max_tokens < 1:
            raise ConfigError(f"need a taxonomy and max_tokens >= 1, got {dict(taxonomy)} and {max_tokens}")
        _check_template("instructions", instructions, needed={"taxonomy"}, known={"taxonomy"})
        _check_template("template", template, needed={"answer"}, known={"question", "passages", "answer"})
        self.taxonomy, self.model, self.cache_file = dict(taxonomy), model, cache_file
        self._template, self._reads = template, _placeholders(template)
        kinds = "\n".join(f"- {name}: {meaning}" for name, meaning in taxonomy.items())
        self._system = Template(instructions).substitute(taxonomy=kinds)
        self._max_tokens = max_tokens
        self._client = RemoteClient(remote, lambda key: {"Authorization": f"Bearer {key}"})
        about = {"url": remote.url, "model": model, "system": self._system, "max_tokens": max_tokens}
        self.identity = f"judge {json.dumps(about, ensure_ascii=False)} version={version}"
        self._kept: AnswerCache | None = None

    def check(self, prompt: Prompt) -> None:
        """Refuse a prompt that lacks what the template reads.

        Raises:
            DataError: it does.
        """
        for name in self._reads - {"answer"}:
            if prompt.metadata.get(name) is None:
                raise DataError(f"the judge's template reads the {name} of each prompt", record=prompt.id, field=name)

    def open(self) -> None:
        """Open the file of kept quotes."""
        self._kept = AnswerCache(self.cache_file, self.identity)

    def quotes(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[list[Quote]]:
        """What is wrong in R responses; one that was judged before is not asked about again.

        Raises:
            FineGrainedError: the endpoint gives no answer that can be read; what it gave before is kept.
        """
        if self._kept is None:
            self.open()
        kept = self._kept
        assert kept is not None
        messages = [self._message(prompt, text) for prompt, text in zip(prompts, responses, strict=True)]
        found = kept.get(messages)
        missing = [message for message in dict.fromkeys(messages) if message not in found]

        def keep(number: int, quotes: list[Quote]) -> None:
            kept.put(missing[number], quotes)
            found[missing[number]] = quotes

        self._client.ask([Call(self._body(message)) for message in missing], self._read, keep)
        return [[(quote, kind) for quote, kind in found[message]] for message in messages]

    def _message(self, prompt: Prompt, response: str) -> str:
        self.check(prompt)
        passages = "\n".join(
            f"[{number}] {passage.title}: {passage.text}" if passage.title else f"[{number}] {passage.text}"
            for number, passage in enumerate(prompt.metadata.get("passages") or (), start=1)
        )
        question = str(prompt.metadata.get("question", ""))
        return Template(self._template).substitute(question=question, passages=passages, answer=response)

    def _body(self, message: str) -> dict[str, Any]:
        error = {
            "type": "object",
            "properties": {"quote": {"type": "string"}, "kind": {"type": "string", "enum": list(self.taxonomy)}},
            "required": ["quote", "kind"],
            "additionalProperties": False,
        }
        schema = {
            "type": "object",
            "properties": {"errors": {"type": "array", "items": error}},
            "required": ["errors"],
            "additionalProperties": False,
        }
        return {
            "model": self.model,
            "messages": [{"role": "system", "content": self._system}, {"role": "user", "content": message}],
            "temperature": 0,
            "max_tokens": self._max_tokens,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "errors", "strict": True, "schema": schema},
            },
        }

    def _read(self, answer: Mapping[str, Any]) -> list[Quote]:
        choices = answer.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        message = choice.get("message")
        content = message.get("content") if isinstance(message, dict) else None
        finished = choice.get("finish_reason")
        if finished == "length":
            raise UnintelligibleAnswer(f"a judgement that {self._max_tokens} tokens cut off (max_tokens)")
        if finished not in ("stop", None):
            raise UnintelligibleAnswer(f"a judgement that ended by {finished!r}")
        try:
            errors = json.loads(content)["errors"]  # type: ignore[arg-type]
            quotes = [(error["quote"], error["kind"]) for error in errors]
        except (TypeError, ValueError, KeyError, RecursionError):
            errors, quotes = None, []
        if not isinstance(errors, list):
            raise UnintelligibleAnswer(f"a judgement that is not as the schema says: {beginning_of(str(content))}")
        known = (isinstance(q, str) and isinstance(kind, str) and kind in self.taxonomy for q, kind in quotes)
        if not all(known):
            raise UnintelligibleAnswer("a judgement with a quote that is no text, or of an unknown kind")
        return quotes


class JudgeScorer:
    """Scores segments by what a judge quotes: −1 where a quote of a kind that counts lies, 1 elsewhere.

    A quote that is not in the answer is refused, and counted in `unmatched`. A quote that occurs several times is its
    first place, the same quote again the next one: a judge that marks a repetition quotes more than the repeated words.

    Args:
        judge: that reads the answers.
        counts: the kinds of error that make a segment wrong; None counts all of the judge's.
        granularity: what a segment is.
        segmenter: `english`, `rules`, a spaCy pipeline, or a segmenter of one's own.

    Raises:
        ConfigError: the granularity is unknown, or a kind is none of the judge's.
    """

    error_free_from = 0.0
    value_range = (-1.0, 1.0)

    def __init__(
        self,
        judge: Judge,
        counts: Sequence[str] | None = None,
        granularity: Granularity = "sentence",
        segmenter: str | Segmenter = DEFAULT_SEGMENTER,
    ) -> None:
        if granularity not in get_args(Granularity):
            raise ConfigError(f"granularity must be {' or '.join(get_args(Granularity))}, got {granularity!r}")
        if unknown := sorted(set(counts or ()) - set(judge.taxonomy)):
            raise ConfigError(f"counts: the judge's taxonomy has {', '.join(judge.taxonomy)}, not {unknown[0]!r}")
        self.judge, self.counts = judge, frozenset(judge.taxonomy if counts is None else counts)
        self.granularity = granularity
        self.quoted, self.unmatched = 0, 0
        self._segmenter = shared_segmenter(segmenter) if isinstance(segmenter, str) else segmenter

    def setup(self, device: torch.device | str = "cpu") -> None:
        """Open the judge's file of kept quotes."""
        self.judge.open()

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Refuse prompts that lack what the judge reads.

        Raises:
            DataError: there is one.
        """
        for prompt in prompts:
            self.judge.check(prompt)

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        """Score each segment of R responses; a response without a segment is not asked about.

        Raises:
            FineGrainedError: the judge gives no answer.
        """
        cut = self._segmenter.sentences if self.granularity == "sentence" else self._segmenter.sub_sentences
        spans = tuple(tuple(cut(response)) for response in responses)
        asked = [i for i, row in enumerate(spans) if row]
        quotes = self.judge.quotes([prompts[i] for i in asked], [responses[i] for i in asked])
        wrong: dict[int, list[Span]] = {}
        for i, row in zip(asked, quotes, strict=True):
            wrong[i] = self._matched(responses[i], [quote for quote, kind in row if kind in self.counts])
        values = tuple(
            tuple(-1.0 if any(a < end and start < b for a, b in wrong[i]) else 1.0 for start, end in row)
            for i, row in enumerate(spans)
        )
        return SegmentScores(spans, values)

    def _matched(self, text: str, quotes: Sequence[str]) -> list[Span]:
        found = []
        for span in spans_of(quotes, text):
            self.quoted += 1
            if span is not None:
                found.append(span)
                continue
            self.unmatched += 1
            if self.unmatched & (self.unmatched - 1) == 0:  # at 1, 2, 4, 8, …
                logger.warning(
                    "%d of %d quotes of the judge are not in the answer and count for nothing",
                    self.unmatched,
                    self.quoted,
                )
        return found


def _placeholders(template: str) -> set[str]:
    return set(Template(template).get_identifiers())


def _check_template(name: str, template: str, needed: set[str], known: set[str]) -> None:
    if not Template(template).is_valid():
        raise ConfigError(f"{name}: a $ that is no placeholder; $$ stands for the sign")
    there = _placeholders(template)
    if lacking := sorted(needed - there):
        raise ConfigError(f"{name}: expected ${lacking[0]} in it")
    if unknown := sorted(there - known):
        raise ConfigError(f"{name}: has ${unknown[0]}; known are {', '.join(f'${word}' for word in sorted(known))}")
