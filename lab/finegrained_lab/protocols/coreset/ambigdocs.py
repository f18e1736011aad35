"""DisAmbigDocs: conversations from a file of AmbigDocs, whose one question about a name gets others beside it.

Sources: Lee et al., *AmbigDocs*, 2024 (the file is a list of objects with `qid`, `ambiguous_entity`, `question` and
`documents`, each of these with `title`, `text` and `answer`); Sun et al., section 6 and figure 7 (more questions by a
language model, which are then verified).
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from finegrained_lab.protocols.coreset.conversations import AmbiguousConversation
from finegrained_lab.protocols.coreset.scenarios import TURNS, draw_conversation_turns
from finegrained_rlhf.core.checks import as_list, as_object, get_field, require, require_text
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import read_json, write_jsonl
from finegrained_rlhf.core.generation.outcomes import ReplyError
from finegrained_rlhf.core.generation.protocol import TextGenerator
from finegrained_rlhf.core.generation.schema import ReplySchema, Text, Texts
from finegrained_rlhf.core.markers import InputFile, OutputFile, Seed, at_least
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.personalization.prompts import ask_for
from finegrained_rlhf.personalization.selection import SourceDocument
from finegrained_rlhf.runtime.console import ProgressBar
from finegrained_rlhf.text.scores import exact_match, normalise

_LONGEST = 20_000  # characters of a generated question, and of its answers
_QUESTION = ReplySchema({"question": Text(_LONGEST), "answers": Texts(_LONGEST)})


@dataclass(frozen=True)
class AmbiguousName:
    """An instance of AmbigDocs.

    Attributes:
        id: its `qid`.
        name: that the entities share.
        questions: each with an answer in every document; the facts of the documents are by these.
        documents: one an entity.
    """

    id: str
    name: str
    questions: tuple[str, ...]
    documents: tuple[SourceDocument, ...]


def read_ambigdocs(path: str | Path) -> list[AmbiguousName]:
    """The instances of a file of AmbigDocs, each with its one question.

    Args:
        path: `train.json`, `dev.json` or `test.json`: one JSON list.

    Raises:
        DataError: the file is missing or empty, or a record is not as it should be.
    """
    rows, names = read_json(path), list[AmbiguousName]()
    if not isinstance(rows, list) or not rows:
        raise DataError("expected a list of at least one instance", file=path)
    seen: set[str] = set()
    for number, row in enumerate(rows):
        try:
            one = _instance(as_object(row, "instance"))
            require(one.id not in seen, "expected an id that is used once", "qid")
        except DataError as error:
            raise error.at(file=path, record=number) from None
        seen.add(one.id)
        names.append(one)
    return names


def _instance(row: Mapping[str, Any]) -> AmbiguousName:
    name, question = (require_text(get_field(row, key), key) for key in ("ambiguous_entity", "question"))
    documents = []
    for i, one in enumerate(as_list(get_field(row, "documents"), "documents")):
        where = f"documents[{i}]."
        part = as_object(one, where.rstrip("."))
        title, text, answer = (
            require_text(get_field(part, key, where), where + key) for key in ("title", "text", "answer")
        )
        documents.append(SourceDocument(f"d{i + 1}", f"{title}: {text}", {question: answer}))
    require(len(documents) > 1, "expected at least two documents", "documents")
    return AmbiguousName(require_text(str(get_field(row, "qid")), "qid"), name, (question,), tuple(documents))


def with_another_question(instance: AmbiguousName, llm: TextGenerator) -> AmbiguousName | None:
    """The instance with one more question, as a language model asks and answers it.

    Returns:
        None where it does not pass: a reply that cannot be read, a question that was asked, another number of answers
        than documents, an answer that is not in its document, or the same answer in all of them.

    Raises:
        FineGrainedError: the language model gives no answer.
    """
    data = {
        "name": instance.name,
        "documents": [one.text for one in instance.documents],
        "questions": list(instance.questions),
    }
    try:
        reply = ask_for(llm, "another_question", "", data, _QUESTION, tries=1)
    except ReplyError:
        return None
    question, answers = reply["question"], reply["answers"]
    texts = [one.text for one in instance.documents]
    if (
        not question
        or any(exact_match(question, earlier) for earlier in instance.questions)
        or len(answers) != len(texts)
        or not all(_states(text, answer) for text, answer in zip(texts, answers, strict=True))
        or len({normalise(answer) for answer in answers}) < 2
    ):
        return None
    documents = tuple(
        replace(one, facts={**one.facts, question: answer})
        for one, answer in zip(instance.documents, answers, strict=True)
    )
    return replace(instance, questions=(*instance.questions, question), documents=documents)


def _states(text: str, answer: str) -> bool:
    """Whether a document has an answer word by word."""
    return bool(normalise(answer)) and f" {normalise(answer)} " in f" {normalise(text)} "


@dataclass(frozen=True)
class MakeDisambigDocs(Settings):
    """Make conversations of AmbigDocs, in the form that `finegrained run-coreset` reads.

    Attributes:
        data: file of AmbigDocs.
        output: file of conversations.
        llm: asks and answers further questions.
        questions: of each instance, the first one included.
        tries: of the language model for each instance; it is not asked again in the same words, so that a generator
            that decodes greedily fails alike, and 1 more than there are questions to find is enough for it.
        scenario: one of `protocols.coreset.scenarios.TURNS`.
        turns: of a conversation; None as in `TURNS`.
        instances: the first so many of the file; None is all.
        seed: of who is meant, what is asked and what is said.
        progress: show a progress bar.
    """

    every_process: ClassVar[bool] = False

    data: InputFile
    output: OutputFile
    llm: TextGenerator
    questions: Annotated[int, at_least(1)] = 5
    tries: Annotated[int, at_least(1)] = 8
    scenario: str = "mixed"
    turns: Annotated[int | None, at_least(1)] = None
    instances: Annotated[int | None, at_least(1)] = None
    seed: Seed = 0
    progress: bool = True

    def __post_init__(self) -> None:
        if self.scenario not in TURNS:
            raise ConfigError(f"scenario: expected one of {', '.join(TURNS)}, got {self.scenario!r}")

    def run(self) -> dict[str, int]:
        """Write the conversations; prints one line.

        Returns:
            `conversations`; `too_few_questions`: instances for which the language model did not find as many questions
            as asked for; `not_allowed`: instances whose documents do not allow the scenario.

        Raises:
            DataError: the file is not as it should be, or no instance gives a conversation.
            FineGrainedError: the language model gives no answer.
        """
        instances = read_ambigdocs(self.data)[: self.instances]
        made, counts = list[AmbiguousConversation](), {"too_few_questions": 0, "not_allowed": 0}
        with ProgressBar("conversations", len(instances), "instances", self.progress) as bar:
            for instance in instances:
                enriched = self._with_questions(instance)
                conversation = None if enriched is None else self._conversation(enriched)
                if conversation is not None:
                    made.append(conversation)
                else:
                    counts["too_few_questions" if enriched is None else "not_allowed"] += 1
                bar.update()
        if not made:
            raise DataError(f"no instance gives a conversation ({_words(counts)})", file=self.data)
        write_jsonl(self.output, (one.row() for one in made))
        print(f"{len(made)} conversations, {_words(counts)} -> {self.output}")
        return {"conversations": len(made), **counts}

    def _with_questions(self, instance: AmbiguousName) -> AmbiguousName | None:
        """The instance with as many questions as are wanted; None where they are not found."""
        for _ in range(self.tries):
            if len(instance.questions) >= self.questions:
                break
            instance = with_another_question(instance, self.llm) or instance
        return instance if len(instance.questions) >= self.questions else None

    def _conversation(self, instance: AmbiguousName) -> AmbiguousConversation | None:
        rng = random.Random(stable_hash(self.seed, "disambigdocs", instance.id))
        questions = {question: question for question in instance.questions}
        turns = draw_conversation_turns(self.scenario, instance.documents, questions, _remark, rng, self.turns)
        return None if turns is None else AmbiguousConversation(instance.id, self.scenario, instance.documents, turns)


def _remark(question: str, answer: str) -> str:
    """What a user says of who they mean."""
    return f'For the one that I mean, the answer to "{question}" is {answer}. Use this information for your answers.'


def _words(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items())
