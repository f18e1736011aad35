"""Who answers few-shot prompts: a policy of ours, or a language model behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

from finegrained_rlhf.conqrr.rewriting.config import WrittenRewrite
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import ModelName, OutputFile, at_least
from finegrained_rlhf.feedback.prompt_files import PromptInput
from finegrained_rlhf.models.config import PolicyConfig
from finegrained_rlhf.runtime.console import ProgressBar
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.runtime.remote.answers import UnintelligibleAnswer
from finegrained_rlhf.runtime.remote.cache import AnswerCache
from finegrained_rlhf.runtime.remote.client import Call, RemoteClient, RemoteConfig
from finegrained_rlhf.text.chat import PromptConfig


class PromptWriter(Protocol):
    """Answers prompts."""

    def answers(self, prompts: Mapping[str, str], max_new_tokens: int) -> dict[str, WrittenRewrite]:
        """The answer to each prompt as it was said, by the prompt's id.

        Args:
            prompts: texts by id.
            max_new_tokens: longest answer in tokens.
        """
        ...


@dataclass(frozen=True)
class PolicyWriter(Settings):
    """A language model in a directory, which decodes greedily.

    Attributes:
        checkpoint: run directory, checkpoint, model directory or Hub name.
        max_prompt_tokens: longest prompt; a longer one is refused, since its end is the question.
        batch_size: prompts decoded at once.
        prompt: chat template and system message; `chat_template: on` for models that were tuned to follow instructions.
        processes: precision and CPU threads; one process.
    """

    checkpoint: ModelName
    max_prompt_tokens: int = 2048
    batch_size: int = 16
    prompt: PromptConfig = field(default_factory=PromptConfig)
    processes: ProcessConfig = field(default_factory=ProcessConfig)

    def answers(self, prompts: Mapping[str, str], max_new_tokens: int) -> dict[str, WrittenRewrite]:
        """See `PromptWriter`.

        Raises:
            ModelError: there is no model, or it cannot be read.
            DataError: a prompt is too long.
            ConfigError: started in several processes.
        """
        from finegrained_rlhf.inference.generator import PolicyGenerator
        from finegrained_rlhf.inference.inputs import prompts_for
        from finegrained_rlhf.runtime.processes import Processes

        processes = Processes(self.processes)
        if processes.count > 1:
            raise ConfigError("finegrained rewrite-few-shot runs in one process")
        policy = PolicyConfig(self.checkpoint).load(processes.device)
        items = [PromptInput(name, text) for name, text in prompts.items()]
        encoded = prompts_for(policy, items, self.max_prompt_tokens, "refuse", self.prompt)
        rewrites: list[WrittenRewrite] = []
        batches = PolicyGenerator(policy, processes=processes).stream(
            encoded, max_new_tokens=max_new_tokens, batch_size=self.batch_size
        )
        with ProgressBar("rewriting", len(encoded), "questions") as bar:
            for batch in batches:
                rewrites += [WrittenRewrite(group[0].text, group[0].finished) for group in batch]
                bar.update(len(batch))
        return dict(zip(prompts, rewrites, strict=True))


@dataclass(frozen=True)
class EndpointWriter(Settings):
    """A language model behind an OpenAI-compatible endpoint; each prompt is one message of the user.

    Answers are kept: a second run asks nothing twice, and a run that was killed goes on.

    Attributes:
        remote: the endpoint, up to and with `/chat/completions`.
        model: as the endpoint names it.
        cache_file: SQLite file in which answers are kept.
        temperature: 0 is the model's most probable answer.
        version: any word; kept answers of another version are not taken.
    """

    remote: RemoteConfig
    model: str
    cache_file: OutputFile
    temperature: Annotated[float, at_least(0)] = 0.0
    version: str = "1"

    def answers(self, prompts: Mapping[str, str], max_new_tokens: int) -> dict[str, WrittenRewrite]:
        """See `PromptWriter`.

        Raises:
            ConfigError: the key is not there, or is refused.
            FineGrainedError: the endpoint gives no answer that can be read; what it gave before is kept.
        """
        about = {"url": self.remote.url, "model": self.model, "max_tokens": max_new_tokens, "t": self.temperature}
        kept = AnswerCache(self.cache_file, f"few-shot rewrites {json.dumps(about)} version={self.version}")
        try:
            written = kept.get(prompts.values())
            missing = [text for text in dict.fromkeys(prompts.values()) if text not in written]
            client = RemoteClient(self.remote, lambda key: {"Authorization": f"Bearer {key}"})
            with ProgressBar("rewriting", len(missing), "questions") as bar:

                def keep(number: int, answer: list[Any]) -> None:
                    kept.put(missing[number], answer)
                    written[missing[number]] = answer
                    bar.update(1)

                client.ask([Call(self._body(text, max_new_tokens)) for text in missing], _answer_of, keep)
        finally:
            kept.close()
        return {name: WrittenRewrite(*written[text]) for name, text in prompts.items()}

    def _body(self, text: str, max_new_tokens: int) -> dict[str, Any]:
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": text}],
            "temperature": self.temperature,
            "max_tokens": max_new_tokens,
        }


def _answer_of(answer: Mapping[str, Any]) -> list[Any]:
    """The text of an answer, empty where the model declined, and whether it ended by itself."""
    choices: Any = answer.get("choices")
    choice: Any = choices[0] if isinstance(choices, Sequence) and choices else None
    message: Any = choice.get("message") if isinstance(choice, Mapping) else None
    if not isinstance(message, Mapping) or not isinstance(message.get("content"), str | None):
        raise UnintelligibleAnswer("an answer without choices[0].message.content")
    return [message.get("content") or "", choice.get("finish_reason") != "length"]
