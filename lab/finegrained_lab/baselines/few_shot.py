"""Rewrites by a language model that was not trained for them: the job behind `finegrained rewrite-few-shot`.

The prompt is an instruction, a few demonstrations and the conversation; a policy of ours answers it, or a language
model behind an OpenAI-compatible endpoint.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

from finegrained_rlhf.conqrr.data import RewriteData, RewriteExample, as_rewrite_data
from finegrained_rlhf.conqrr.rewriting import WrittenRewrite
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.core.markers import InputFile, ModelName, OutputFile, Seed, at_least
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.feedback.prompt_files import PromptInput
from finegrained_rlhf.models.config import PolicyConfig
from finegrained_rlhf.runtime.console import ProgressBar
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.runtime.remote.answers import UnintelligibleAnswer
from finegrained_rlhf.runtime.remote.cache import AnswerCache
from finegrained_rlhf.runtime.remote.chat import CUT_OFF
from finegrained_rlhf.runtime.remote.client import Call, RemoteClient, RemoteConfig
from finegrained_rlhf.text.chat import PromptConfig

INSTRUCTION = (
    "Rewrite the last question of each conversation so that it can be understood without the conversation. "
    "Keep its meaning, add only what the conversation says, and write nothing but the question, on one line."
)
"""The default; the wording is this project's own, of no paper."""
_THOUGHT = re.compile(r"<think>.*?(</think>|\Z)", re.DOTALL)
_LABEL = re.compile(r"^(rewrite|rewritten question|question|q)\s*:\s*", re.IGNORECASE)
_QUOTES = {'"': '"', "'": "'", "“": "”", "«": "»", "`": "`"}


@dataclass(frozen=True)
class FewShotConfig(Settings):
    """What stands in the prompt.

    Attributes:
        shots: demonstrations; 0 gives the instruction alone.
        seed: of the choice of demonstrations.
        instruction: what is asked.
        max_words: longest conversation in words, the last question not counted: whole turns are dropped, oldest first.
    """

    shots: Annotated[int, at_least(0)] = 4
    seed: Seed = 0
    instruction: str = INSTRUCTION
    max_words: Annotated[int, at_least(0)] = 300

    def __post_init__(self) -> None:
        if not self.instruction.strip():
            raise ConfigError("few_shot.instruction: expected some text")


def ranked_demonstrations(examples: Sequence[RewriteExample], seed: int) -> list[RewriteExample]:
    """The questions that can be demonstrations, one a dialogue, in a random order that the seed and their ids fix.

    A demonstration is a later question with a human rewrite that is another text than the question.
    """
    useful = [e for e in examples if e.history and e.rewrite is not None and e.rewrite.strip() != e.question.strip()]
    useful.sort(key=lambda example: (stable_hash(seed, "demonstration", example.id), example.id))
    first: dict[str, RewriteExample] = {}
    for example in useful:
        first.setdefault(example.dialogue, example)
    return list(first.values())


def few_shot_prompt(example: RewriteExample, ranked: Sequence[RewriteExample], config: FewShotConfig) -> str:
    """The prompt for a question: instruction, demonstrations, the conversation and a cue.

    Args:
        example: the question.
        ranked: demonstrations, as `ranked_demonstrations` orders them. The first `config.shots` of other dialogues are
            taken, so that all questions have the same ones, unless one is of their own dialogue.
        config: what stands in the prompt.

    Raises:
        DataError: there are too few demonstrations.
    """
    chosen = [one for one in ranked if one.dialogue != example.dialogue][: config.shots]
    if len(chosen) < config.shots:
        problem = f"expected {config.shots} dialogues with a demonstration beside its own, got {len(chosen)}"
        raise DataError(problem, record=example.id)
    shown = [f"{_conversation(one, config.max_words)}\nRewrite: {_line(one.rewrite or '')}" for one in chosen]
    return "\n\n".join([config.instruction.strip(), *shown, f"{_conversation(example, config.max_words)}\nRewrite:"])


def rewrite_in(answer: str) -> str:
    """The rewrite in what a model said: its first line with text, without a label or quotation marks; may be empty.

    What a model thought before it (`<think>…</think>`) is no answer.
    """
    lines = (line.strip() for line in _THOUGHT.sub("", answer).splitlines())
    line = next((line for line in lines if line), "")
    line = _LABEL.sub("", line).strip()
    if len(line) > 1 and _QUOTES.get(line[0]) == line[-1]:
        line = line[1:-1].strip()
    return line


def line_is_whole(answer: str, finished: bool) -> bool:
    """Whether the first line of an answer ended before the limit of tokens did: the model stopped, or went on below."""
    return finished or "\n" in _THOUGHT.sub("", answer).strip(" \t").lstrip()


def _conversation(example: RewriteExample, max_words: int) -> str:
    kept: list[str] = []
    left = max_words
    for place in reversed(range(len(example.history))):
        text = _line(example.history[place])
        left -= len(text.split())
        if left < 0:
            break
        if text:
            kept.append(f"{'QA'[place % 2]}: {text}")
    return "\n".join(["Conversation:", *reversed(kept), f"Q: {_line(example.question)}"])


def _line(text: str) -> str:
    return " ".join(text.split())


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
    return [message.get("content") or "", str(choice.get("finish_reason")).lower() not in CUT_OFF]


@dataclass(frozen=True)
class RewriteFewShot(Settings):
    """Rewrite questions by a language model that sees a few human rewrites in its prompt.

    Attributes:
        data: the questions: a file in the project's format, or a `RewriteData` of another one.
        output: JSON lines `{id, rewrite, finished}`, as `finegrained evaluate-rewrites` reads them; `fallback: true`
            where the model gave no text and the question stands for it.
        writer: who answers.
        demonstrations: questions with human rewrites, of the training data: a file, or a `RewriteData`; None needs
            `few_shot.shots=0`.
        few_shot: what stands in the prompt.
        max_new_tokens: longest answer.
    """

    data: InputFile | RewriteData
    output: OutputFile
    writer: PromptWriter
    demonstrations: InputFile | RewriteData | None = None
    few_shot: FewShotConfig = field(default_factory=FewShotConfig)
    max_new_tokens: Annotated[int, at_least(1)] = 64

    def __post_init__(self) -> None:
        if self.demonstrations is None and self.few_shot.shots:
            raise ConfigError("demonstrations: expected a file of questions with rewrites, or few_shot.shots=0")

    def run(self) -> None:
        """Ask, read, write; say how many answers were empty or cut off.

        Raises:
            DataError: broken data, or too few demonstrations; nothing is written then.
            FineGrainedError: the writer gives no answer.
        """
        examples = as_rewrite_data(self.data).read().examples
        ranked = self._ranked()
        prompts = {example.id: self._prompt(example, ranked) for example in examples}
        answers = self.writer.answers(prompts, self.max_new_tokens)
        rows: list[dict[str, Any]] = []
        counts: Counter[str] = Counter()
        for example in examples:
            answer = answers[example.id]
            text = rewrite_in(answer.text)
            finished = line_is_whole(answer.text, answer.finished)
            row: dict[str, Any] = {"id": example.id, "rewrite": text or example.question, "finished": finished}
            if not text:
                row["fallback"] = True
            counts.update(fallback=not text, cut=not finished)
            rows.append(row)
        write_jsonl(self.output, rows)
        print(
            f"{len(rows)} questions rewritten -> {self.output}; {counts['fallback']} empty answers, whose question "
            f"stands for them; {counts['cut']} cut off"
        )

    def _ranked(self) -> list[RewriteExample]:
        if self.demonstrations is None or not self.few_shot.shots:
            return []
        return ranked_demonstrations(as_rewrite_data(self.demonstrations).read().examples, self.few_shot.seed)

    def _prompt(self, example: RewriteExample, ranked: Sequence[RewriteExample]) -> str:
        try:
            return few_shot_prompt(example, ranked, self.few_shot)
        except DataError as error:
            assert self.demonstrations is not None  # without any, no demonstration is asked for
            raise error.at(file=as_rewrite_data(self.demonstrations).path) from None
