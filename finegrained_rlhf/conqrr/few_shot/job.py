"""Few-shot rewrites of a file of questions: the job behind `finegrained rewrite-few-shot`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from finegrained_rlhf.conqrr.data import RewriteData, as_rewrite_data
from finegrained_rlhf.conqrr.few_shot.prompting import (
    FewShotConfig,
    few_shot_prompt,
    line_is_whole,
    ranked_demonstrations,
    rewrite_in,
)
from finegrained_rlhf.conqrr.few_shot.writers import PromptWriter
from finegrained_rlhf.conqrr.records import RewriteExample
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.core.markers import InputFile, OutputFile, at_least


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
