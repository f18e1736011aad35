"""A language model behind an OpenAI-compatible endpoint as a `TextGenerator`: a prompt in, the model's answer out."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

from finegrained_rlhf.core.checks import is_number
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.generation.outcomes import (
    FailedReplyError,
    RefusedReplyError,
    ReplyError,
    UnreadableReplyError,
)
from finegrained_rlhf.core.generation.protocol import Generation, RolePrompt, words_and_marks
from finegrained_rlhf.core.generation.schema import ReplySchema
from finegrained_rlhf.runtime.remote.answers import UnintelligibleAnswer
from finegrained_rlhf.runtime.remote.client import Call, RemoteClient, RemoteConfig

logger = logging.getLogger(__name__)

ResponseFormat = Literal["json_schema", "json_object"]
TokenLimit = Literal["max_tokens", "max_completion_tokens"]
CUT_OFF = ("length", "max_tokens")
"""How servers say, in any case of letters, that an answer was cut off at its limit."""
_FILTERED = ("content_filter", "content_policy", "content management policy", "responsibleai", "moderation", "safety")
_ENDS = ("stop", "eos", "eos_token", "stop_sequence", "end_turn")  # of several servers
_MOST_TOKENS = 10**9  # what says more of one answer counts nothing
_NO_FORMAT = ("response_format", "json_schema", "json_object", "structured output", "guided_json")


class EndpointGenerator:
    """A model that an endpoint serves. Tokens are those of the endpoint; words and marks where it does not say.

    Attributes:
        identity: endpoint, model and every setting that changes answers, without the key: for an `AnswerCache`.

    Args:
        remote: the endpoint, up to and with `/chat/completions`.
        model: as the endpoint names it.
        max_tokens: of an answer; one that is cut off there cannot be read. Models that think need more. None leaves the
            limit to the endpoint.
        temperature: 0 is greedy decoding; None leaves it away, for models that take none.
        top_p: of nucleus sampling; None leaves it away.
        system: the system message; None sends none.
        token_limit: name under which `max_tokens` is sent.
        response_format: what is sent where a reply has a schema: the schema itself, or that it is to be JSON; None
            sends nothing. An endpoint that refuses it is asked without, and a line says so once.
        extra_body: more parameters of each request, such as `reasoning_effort` or `chat_template_kwargs`.
        system_role: send what a prompt says of the task (`RolePrompt.system`) in the system message, and the material
            in the user's; False sends all in the user's.

    Raises:
        ConfigError: a setting outside its range, or the key is not there.
    """

    def __init__(
        self,
        remote: RemoteConfig,
        model: str,
        max_tokens: int | None = 4000,
        temperature: float | None = 0.0,
        top_p: float | None = 1.0,
        system: str | None = None,
        token_limit: TokenLimit = "max_tokens",
        response_format: ResponseFormat | None = "json_schema",
        extra_body: Mapping[str, Any] | None = None,
        system_role: bool = False,
    ) -> None:
        within = (max_tokens is None or max_tokens >= 1) and (temperature is None or temperature >= 0)
        if not within or not (top_p is None or 0 < top_p <= 1):
            raise ConfigError(
                "expected max_tokens >= 1, temperature >= 0 and 0 < top_p <= 1, got "
                f"{max_tokens}, {temperature} and {top_p}"
            )
        if token_limit not in get_args(TokenLimit):
            raise ConfigError(f"token_limit: expected {' or '.join(get_args(TokenLimit))}, got {token_limit!r}")
        if response_format is not None and response_format not in get_args(ResponseFormat):
            known = ", ".join(get_args(ResponseFormat))
            raise ConfigError(f"response_format: expected {known} or null, got {response_format!r}")
        named = {"model": model, token_limit: max_tokens, "temperature": temperature, "top_p": top_p}
        settings = {name: value for name, value in named.items() if value is not None}
        extra = dict(extra_body or {})
        if twice := sorted({*settings, "messages", "response_format", "stream"} & extra.keys()):
            raise ConfigError(f"extra_body: {twice[0]} is none of its parameters; it has a key of its own, or none")
        self._settings, self._limit = {**settings, **extra}, f"{token_limit}={max_tokens}"
        self._system, self._format, self._system_role = system, response_format, system_role
        self._client = RemoteClient(remote, lambda key: {"Authorization": f"Bearer {key}"})
        about = {"url": remote.url, **self._settings}
        about |= {} if system is None else {"system": system}
        about |= {} if response_format == "json_schema" else {"response_format": response_format}
        about |= {"system_role": True} if system_role else {}
        self.identity = f"chat {json.dumps(about, ensure_ascii=False)}"

    @property
    def url(self) -> str:
        """The endpoint."""
        return self._client.config.url

    def generate(self, prompt: str, schema: ReplySchema | None = None) -> Generation:
        """The endpoint's answer to a prompt; asked again while it is busy, within `RemoteConfig.budget_s`.

        Raises:
            RefusedReplyError: the model or a filter refused, which asking again does not change.
            UnreadableReplyError: the answer was cut off.
            FailedReplyError: the endpoint refuses this request, or fails at it while it answers others.
            RemoteError: no answer came in that time.
            ConfigError: the key is refused.
        """
        made: list[Generation | ReplyError] = []
        self.generate_each([prompt], schema, lambda number, one: made.append(one))
        if isinstance(made[0], ReplyError):
            raise made[0]
        return made[0]

    def stream(self, prompt: str, take: Callable[[str], None]) -> Generation:
        """See `StreamingGenerator`: the endpoint is asked again only while nothing of an answer has come.

        Raises:
            ReplyError: as for `generate`; or the answer broke off.
            RemoteError: no answer came in time.
            ConfigError: the key is refused.
        """
        made: list[Generation] = []
        failed: list[ReplyError] = []
        call = Call({**self._body(prompt, None, None), "stream": True}, take=take)
        keep = lambda _, answer: made.append(self._counted(prompt, *answer))  # noqa: E731
        self._client.ask([call], self._read, keep, lambda _, error: failed.append(error))
        if failed:
            raise failed[0]
        return made[0]

    def generate_each(
        self,
        prompts: Sequence[str],
        schema: ReplySchema | None,
        take: Callable[[int, Generation | ReplyError], None],
    ) -> None:
        """Ask about several prompts at once.

        Args:
            prompts: to be answered.
            schema: of each answer.
            take: is given the number of a prompt and its answer, or why there is none, as soon as it is known.

        Raises:
            RemoteError: the endpoint gives no answer in time.
            ConfigError: the key is refused.
        """
        again = self._round(list(range(len(prompts))), prompts, schema, take)
        if again:  # once: then there is no format to refuse
            if self._format is not None:
                logger.warning("%s refuses response_format=%s: it is asked without from now on", self.url, self._format)
                self._format = None
            self._round(again, prompts, schema, take)

    def _round(
        self,
        numbers: Sequence[int],
        prompts: Sequence[str],
        schema: ReplySchema | None,
        take: Callable[[int, Generation | ReplyError], None],
    ) -> list[int]:
        """Ask about some of the prompts, by number. Returns those that are refused for their response format."""
        again: list[int] = []
        form = self._format if schema is not None else None

        def keep(place: int, made: tuple[str, Mapping[str, Any]]) -> None:
            take(numbers[place], self._counted(prompts[numbers[place]], *made))

        def fail(place: int, error: ReplyError) -> None:
            refused = isinstance(error, FailedReplyError)
            if refused and form is not None and _says(error.reply, _NO_FORMAT):
                again.append(numbers[place])
            elif refused and _says(error.reply, _FILTERED):
                take(numbers[place], RefusedReplyError("the endpoint's filter refused the prompt", error.reply))
            else:
                take(numbers[place], error)

        self._client.ask([Call(self._body(prompts[n], schema, form)) for n in numbers], self._read, keep, fail)
        return again

    def _body(self, prompt: str, schema: ReplySchema | None, sent: ResponseFormat | None) -> dict[str, Any]:
        said = [self._system or ""]
        if self._system_role and isinstance(prompt, RolePrompt):
            said.append(prompt.system.strip())
            prompt = prompt[len(prompt.system) :].strip()
        system = "\n\n".join(filter(None, said))
        messages = [{"role": "system", "content": system}] if system else []
        body = {**self._settings, "messages": [*messages, {"role": "user", "content": prompt}]}
        if schema is None or sent is None:
            return body
        form: dict[str, Any] = {"type": sent}
        if sent == "json_schema":
            form["json_schema"] = {"name": schema.name, "strict": True, "schema": schema.json_schema()}
        return {**body, "response_format": form}

    def _read(self, answer: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """The text of an answer and what it says of tokens."""
        usage = answer.get("usage")
        usage = usage if isinstance(usage, dict) else {}
        try:
            return self._text(answer), usage
        except ReplyError as error:
            tokens = [_reported(usage.get(name)) for name in ("prompt_tokens", "completion_tokens")]
            if tokens[0] is not None and tokens[1] is not None:
                error.paid = tokens[0], tokens[1]
            raise

    def _text(self, answer: Mapping[str, Any]) -> str:
        choices = answer.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        finished, message = choice.get("finish_reason"), choice.get("message")
        if not isinstance(message, dict):
            raise UnintelligibleAnswer("an answer without a message")
        content = _joined(message.get("content"))
        reason = "stop" if finished is None else str(finished).lower()
        if reason in CUT_OFF:
            raise UnreadableReplyError(f"an answer that {self._limit} cut off ({reason!r})", str(content or ""))
        ends = reason in _ENDS
        if not ends or message.get("refusal"):
            ended = "is a refusal" if ends else f"ended by {finished!r}"
            raise RefusedReplyError(f"an answer that {ended}", str(message.get("refusal") or content or ""))
        if not isinstance(content, str):
            raise RefusedReplyError("an answer without a text")
        return content

    def _counted(self, prompt: str, content: str, usage: Mapping[str, Any]) -> Generation:
        prompt_text = prompt if self._system is None else f"{self._system} {prompt}"
        return Generation(
            content, _count(usage.get("prompt_tokens"), prompt_text), _count(usage.get("completion_tokens"), content)
        )


def _says(answer: str, words: Sequence[str]) -> bool:
    return any(word in answer.lower() for word in words)


def _joined(content: Any) -> Any:
    """The text of an answer in parts, if all of them are texts; anything else as it is."""
    parts = content if isinstance(content, list) else []
    texts = [one["text"] for one in parts if isinstance(one, dict) and isinstance(one.get("text"), str)]
    return "".join(texts) if texts and len(texts) == len(parts) else content


def _reported(tokens: Any) -> int | None:
    return int(tokens) if is_number(tokens) and 0 <= tokens <= _MOST_TOKENS else None


def _count(reported: Any, text: str) -> int:
    tokens = _reported(reported)
    return len(words_and_marks(text)) if tokens is None else tokens
