"""A language model behind an OpenAI-compatible endpoint as a `TextGenerator`: one user message in, its answer out.

Knows chat completions. Does not know what prompts and answers say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from finegrained_rlhf.core.checks import is_number
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.generation.protocol import Generation, words_and_marks
from finegrained_rlhf.core.generation.schema import ReplySchema
from finegrained_rlhf.runtime.remote.answers import UnintelligibleAnswer
from finegrained_rlhf.runtime.remote.client import Call, RemoteClient, RemoteConfig, RemoteError


class EndpointGenerator:
    """A model that an endpoint serves. Tokens are those of the endpoint; words and marks where it does not say.

    Attributes:
        identity: endpoint, model and every setting that changes answers, without the key: for an `AnswerCache`.

    Args:
        remote: the endpoint, up to and with `/chat/completions`.
        model: as the endpoint names it.
        max_tokens: of an answer; one that is cut off there is an error.
        temperature: 0 is greedy decoding.
        top_p: of nucleus sampling.

    Raises:
        ConfigError: a setting outside its range, or the key is not there.
    """

    def __init__(
        self,
        remote: RemoteConfig,
        model: str,
        max_tokens: int = 4000,
        temperature: float = 0.0,
        top_p: float = 1.0,
    ) -> None:
        if max_tokens < 1 or temperature < 0 or not 0 < top_p <= 1:
            raise ConfigError(
                "expected max_tokens >= 1, temperature >= 0 and 0 < top_p <= 1, got "
                f"{max_tokens}, {temperature} and {top_p}"
            )
        self._settings = {"model": model, "max_tokens": max_tokens, "temperature": temperature, "top_p": top_p}
        self._client = RemoteClient(remote, lambda key: {"Authorization": f"Bearer {key}"})
        self.identity = f"chat {json.dumps({'url': remote.url, **self._settings}, ensure_ascii=False)}"

    def generate(self, prompt: str, schema: ReplySchema | None = None) -> Generation:
        """The endpoint's answer to a prompt; asked again while it is busy, within `RemoteConfig.budget_s`.

        Raises:
            RemoteError: none came in that time; or the answer was cut off or filtered, which asking again does not
                change.
            ConfigError: the key is refused.
        """
        found: list[Generation] = []
        body = {**self._settings, "messages": [{"role": "user", "content": prompt}]}
        self._client.ask(
            [Call(body)], lambda answer: self._read(prompt, answer), lambda number, answer: found.append(answer)
        )
        return found[0]

    def _read(self, prompt: str, answer: Mapping[str, Any]) -> Generation:
        choices = answer.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        finished, message = choice.get("finish_reason"), choice.get("message")
        if finished not in ("stop", None):
            where = f"; max_tokens is {self._settings['max_tokens']}" if finished == "length" else ""
            raise RemoteError(f"{self._client.config.url}: an answer that ended by {finished!r}{where}")
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, str):
            raise UnintelligibleAnswer("an answer without a text")
        usage = answer.get("usage")
        counts = usage if isinstance(usage, dict) else {}
        return Generation(
            content, _count(counts.get("prompt_tokens"), prompt), _count(counts.get("completion_tokens"), content)
        )


def _count(said: Any, text: str) -> int:
    return int(said) if is_number(said) and said >= 0 else len(words_and_marks(text))
