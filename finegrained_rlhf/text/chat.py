"""Chat templates: how a conversation, or one text, becomes what a chat model reads, and where its turn ends.

The template is the tokenizer's own (`chat_template`, Jinja) or one from a file; what it writes ends where the answer
begins.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Protocol

from finegrained_rlhf.core.errors import ConfigError, DataError, ModelError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.core.markers import at_least
from finegrained_rlhf.text.plain_text import literal_texts

PROMPT_RECORD = "prompt.json"
_WORDS = ("auto", "on", "off")
_ANSWER = "the answer of the assistant"


class SpokenTurn(Protocol):
    """One message (`feedback.prompt_files.Message` is one)."""

    @property
    def role(self) -> str:
        """Who speaks."""

    @property
    def content(self) -> str:
        """What is said."""


@dataclass(frozen=True)
class FusionConfig(Settings):
    """How a prompt with passages is cut into pieces that an encoder–decoder reads one by one (fusion-in-decoder).

    A piece is the question, or the conversation, with one passage. Longer ones than `max_prompt_tokens` lose the end of
    their passage, down to `passage_tokens`, then the utterances between the first and the newest, oldest first.

    Attributes:
        passages: at most so many of a prompt, the first ones.
        passage_tokens: what is left of a passage at least, before the conversation is cut.
    """

    passages: Annotated[int, at_least(1)] = 50
    passage_tokens: Annotated[int, at_least(1)] = 192


@dataclass(frozen=True)
class PromptConfig(Settings):
    """How prompts are put to the policy.

    Attributes:
        chat_template: `auto`: conversations by the tokenizer's chat template, texts as they are, unless the policy was
            trained otherwise and says so; `on`: texts too, as one message of the user; `off`: no template; or a Jinja
            FILE in place of the tokenizer's, for texts too.
        system: system message for conversations that have none; None is that of the policy's training, if any; empty
            text is none.
        fusion: encode each passage of a prompt alone, with the question; None reads a prompt as one text, unless the
            policy was trained otherwise and says so.
        template_arguments: what the template is given beside the messages, by name (`enable_thinking` of Qwen3 and
            SmolLM3); of an argument that is not named, what the policy was trained with.
    """

    chat_template: str = "auto"
    system: str | None = None
    fusion: FusionConfig | None = None
    template_arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.chat_template not in _WORDS and not Path(self.chat_template).is_file():
            words = ", ".join(_WORDS)
            raise ConfigError(f"prompt.chat_template: expected {words} or a Jinja file, got {self.chat_template!r}")
        if self.system and self.chat_template == "off":
            raise ConfigError("prompt.system needs a chat template, and prompt.chat_template is off")
        if self.template_arguments and self.chat_template == "off":
            raise ConfigError("prompt.template_arguments: no template reads them, since prompt.chat_template is off")
        others = {"system": self.system, "template_arguments": self.template_arguments}
        if self.fusion is not None and (any(others.values()) or self.chat_template not in ("auto", "off")):
            key = next((key for key, value in others.items() if value), "chat_template")
            raise ConfigError(f"prompt.{key}: prompts that are read in pieces (prompt.fusion) have no chat template")

    def over(self, recorded: PromptConfig) -> PromptConfig:
        """These settings, with those of the policy's training where they leave it open (`auto`, no system message)."""
        template = recorded.chat_template if self.chat_template == "auto" else self.chat_template
        system = recorded.system if self.system is None and template != "off" else self.system
        fusion = recorded.fusion if self.fusion is None else self.fusion
        arguments = {} if template == "off" else {**recorded.template_arguments, **self.template_arguments}
        return PromptConfig(template, system, fusion, arguments)


def record_prompt(directory: Path, config: PromptConfig) -> None:
    """Write beside a policy's weights how its prompts were put in training, where that is not the default."""
    if config != PromptConfig():
        later = ("fusion", "template_arguments")
        record = {key: value for key, value in asdict(config).items() if key not in later or value}
        write_json(directory / PROMPT_RECORD, record)


def recorded_prompt(directory: Path) -> PromptConfig:
    """How the prompts of the policy in a directory were put in training; the default where nothing says so.

    Raises:
        ModelError: the record is damaged.
    """
    path = directory / PROMPT_RECORD
    try:
        if not path.is_file():
            return PromptConfig()
        settings = dict(read_json(path))
        fusion = settings.pop("fusion", None)
        return PromptConfig(**settings, fusion=None if fusion is None else FusionConfig(**fusion))
    except (DataError, ConfigError, TypeError, ValueError) as error:
        raise ModelError(f"{path}: not a record of how prompts are put ({error})") from None


class ChatFormat:
    """The chat template of a tokenizer, as the settings have it.

    Attributes:
        for_texts: whether a text, too, is put as a message of the user.

    Args:
        tokenizer: of the policy; a template from a file is set in it, so that it is saved with the policy.
        config: the settings.

    Raises:
        ConfigError: a template is asked for and there is none, or it cannot be used.
    """

    def __init__(self, tokenizer: Any, config: PromptConfig) -> None:
        self._tokenizer, self._system = tokenizer, config.system
        if config.chat_template not in _WORDS:
            tokenizer.chat_template = _template_of(config.chat_template)
        self._where = config.chat_template if config.chat_template not in _WORDS else "the tokenizer's chat template"
        self._active = config.chat_template != "off" and bool(getattr(tokenizer, "chat_template", None))
        self.for_texts = config.chat_template not in ("auto", "off")
        if not self._active and (self.for_texts or config.system):
            key = "chat_template" if self.for_texts else "system"
            raise ConfigError(f"prompt.{key}: the policy's tokenizer has no chat template: prompt.chat_template=FILE")
        self._literal = literal_texts(tokenizer)
        self._arguments = dict(config.template_arguments)
        self._check_arguments()

    def __bool__(self) -> bool:
        """Whether there is a template to be used."""
        return self._active

    def text(self, messages: Sequence[SpokenTurn]) -> str:
        """A conversation as the policy reads it, up to where its answer begins.

        Control tokens inside of messages are written apart (`< |im_end|>`), so that they are words.

        Raises:
            DataError: the template refuses the conversation.
        """
        rendered = [{"role": turn.role, "content": self._literal(turn.content)} for turn in messages]
        if self._system and all(turn["role"] != "system" for turn in rendered):
            rendered.insert(0, {"role": "system", "content": self._literal(self._system)})
        return self._render(rendered, generate=True)

    def ids(self, text: str) -> list[int]:
        """Token ids of what the template has written, control tokens included; none is added around it."""
        ids: list[int] = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return ids

    def _check_arguments(self) -> None:
        """Refuse arguments that no template is given, or that this one does not read."""
        for name in self._arguments:
            key = f"prompt.template_arguments.{name}"
            if not self._active:
                raise ConfigError(f"{key}: the policy's tokenizer has no chat template: prompt.chat_template=FILE")
            if name == "messages" or name in inspect.signature(self._tokenizer.apply_chat_template).parameters:
                raise ConfigError(f"{key}: this name is not the template's to read")
            if not re.search(rf"\b{re.escape(name)}\b", self._tokenizer.get_chat_template()):
                raise ConfigError(f"{key}: {self._where} reads no such argument")

    def _render(self, messages: Sequence[Mapping[str, str]], generate: bool) -> str:
        try:
            text = self._tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=generate, **self._arguments
            )
        except Exception as error:  # a template is a program of its author's: Jinja's errors, and any of Python's
            reason = " ".join(str(error).split()) or type(error).__name__
            raise DataError(f"{self._where} refuses this conversation: {reason}", field="messages") from None
        assert isinstance(text, str)
        return text

    def reply_ids(self, role: str, content: str) -> list[int]:
        """Token ids of what the template writes between the end of one turn of the assistant and the next: a message.

        Raises:
            ConfigError: the template ends no turn by a control token.
            DataError: it refuses the message.
        """
        if self.end_id is None:
            raise ConfigError(f"{self._where} ends no turn of the assistant by a control token")
        before = [{"role": "user", "content": "question"}, {"role": "assistant", "content": _ANSWER}]
        text = self._render([*before, {"role": role, "content": self._literal(content)}], generate=True)
        ids = self.ids(text.partition(_ANSWER)[2])
        return ids[ids.index(self.end_id) + 1 :]

    @cached_property
    def end_id(self) -> int | None:
        """Id of the control token that ends the assistant's turn; None where the template writes none.

        It is the first one that the template writes behind an answer.

        Raises:
            ConfigError: the template cannot be used.
        """
        messages = [{"role": "user", "content": "question"}, {"role": "assistant", "content": _ANSWER}]
        try:
            text = self._render(messages, generate=False)
        except DataError as error:
            raise ConfigError(f"prompt.chat_template: {error.problem}") from None
        _, marker, behind = text.rpartition(_ANSWER)
        if not marker:
            raise ConfigError(f"prompt.chat_template: {self._where} does not write what the assistant says")
        added = getattr(self._tokenizer, "added_tokens_decoder", {}).items()
        control = {*self._tokenizer.all_special_ids, *(token for token, what in added if what.special)}
        control.discard(self._tokenizer.unk_token_id)
        return next((token for token in self.ids(behind) if token in control), None)


def _template_of(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"prompt.chat_template: {file} cannot be read as UTF-8 text ({error})") from None
