"""Running CORESET's conversations: every agent on the same ones, each with a memory of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from finegrained_lab.protocols.answers import check_kept_answers, with_kept_answers
from finegrained_lab.protocols.coreset.conversations import (
    AmbiguousConversation,
    ScriptedTurn,
    read_conversations,
)
from finegrained_lab.protocols.coreset.measures import (
    AnsweredTurn,
    conversation_figures,
    set_precision_recall,
    without_model,
)
from finegrained_lab.protocols.rounds import FAILURES, Attempt, RoundLog
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.generation.outcomes import OutcomeCounts
from finegrained_rlhf.core.generation.protocol import TextGenerator
from finegrained_rlhf.core.generation.wrappers import MeteredGenerator
from finegrained_rlhf.core.markers import InputFile, OutputDirectory, OutputFile, at_least, at_most
from finegrained_rlhf.personalization.learners.base import UNLEARNT
from finegrained_rlhf.personalization.learners.conversation import QUESTION_TASK, ConversationAgent, PossibleAnswers
from finegrained_rlhf.personalization.learners.coreset_agents import (
    DEFAULT_AGENTS,
    ConversationSettings,
    check_conversation_agent,
    make_conversation_agent,
)
from finegrained_rlhf.personalization.retrieval.encoders import ContextEncoder
from finegrained_rlhf.personalization.store.memory import UserMemory
from finegrained_rlhf.runtime.console import ProgressBar
from finegrained_rlhf.text.scores import exact_match
from finegrained_rlhf.text.tables import markdown_table

SHOWN_COLUMNS = ("precision", "recall", "tokens_in", "tokens_out", "calls", "unsatisfiable", "odd", "unanswered")


@dataclass(frozen=True)
class RunCoreset(Settings):
    """Run agents through conversations about several entities of one name, and say how right their answers are.

    Writes `summary.json`, the figures by scenario, number of documents and agent, and `turns.jsonl`, every turn as it
    comes, to `output_dir`.

    A turn in which the agent gives no reply that can be used has no answer, and is no end of the run; what the user
    says of it is heard all the same. Turns that could not be learnt from are tried again before the next one.

    Attributes:
        conversations: file of conversations, as `read_conversations` takes it.
        output_dir: where the results go.
        llm: the language model of all agents.
        agents: names.
        scenarios: those to run; None is all of the file.
        k: remarks that CORESET retrieves; None retrieves all.
        threshold: the lowest cosine of remarks that do not contradict each other, for agents that look at vectors.
        with_documents: whether the language model is shown the documents when it looks for a conflict.
        encoder: of questions and remarks; None is words.
        task: of the agent, in a sentence for the language model.
        answers: SQLite file of kept answers, so that a run that is killed goes on without asking again; for a language
            model with an `identity`, such as an endpoint. None keeps none.
        failures: the share of the latest 500 turns that may go unanswered; more, and more than chance allows, end the
            run.
        progress: show a progress bar.
    """

    every_process: ClassVar[bool] = False

    conversations: InputFile
    output_dir: OutputDirectory
    llm: TextGenerator
    agents: Sequence[str] = DEFAULT_AGENTS
    scenarios: Sequence[str] | None = None
    k: Annotated[int | None, at_least(1)] = None
    threshold: Annotated[float, at_least(-1.0), at_most(1.0)] = 0.5
    with_documents: bool = True
    encoder: ContextEncoder | None = None
    task: str = QUESTION_TASK
    answers: OutputFile | None = None
    failures: float = FAILURES
    progress: bool = True

    def __post_init__(self) -> None:
        if not self.agents or len(set(self.agents)) < len(self.agents):
            raise ConfigError("agents: expected at least one, each once")
        for name in self.agents:
            check_conversation_agent(name)
        OutcomeCounts(self.failures)
        check_kept_answers(self.llm, self.answers)

    def run(self) -> dict[str, Any]:
        """Run every agent, write the results, print a table.

        Returns:
            What `summary.json` has: `figures` by scenario, number of documents and agent, those who ask no language
            model among them, each with `odd`, replies that could not be used, and `unanswered`, turns without one; and
            how many `conversations` there were of each.

        Raises:
            FailureBudgetError: too many turns are unanswered.
            FineGrainedError: a file is not as it should be, or a language model is out of reach.
        """
        chosen = self._chosen()
        llm = with_kept_answers(self.llm, self.answers)
        directory = Path(self.output_dir)
        with RoundLog[AnsweredTurn](directory / "turns.jsonl", self.failures) as log:
            for conversation in chosen:
                for one in _told_nothing(conversation):
                    log.keep(one)
            for name in self.agents:
                self._play(name, llm, chosen, log)
        turns = log.rounds
        summary: dict[str, Any] = {"figures": {}, "conversations": {}}
        rows: list[dict[str, Any]] = []
        for scenario, count in dict.fromkeys((one.scenario, len(one.documents)) for one in chosen):
            own = [one for one in turns if (one.scenario, one.documents) == (scenario, count)]
            by_agent = {
                agent: _figures([one for one in own if one.agent == agent])
                for agent in dict.fromkeys(one.agent for one in own)
            }
            summary["figures"].setdefault(scenario, {})[str(count)] = by_agent
            number = len({one.conversation for one in own})
            summary["conversations"].setdefault(scenario, {})[str(count)] = number
            rows += [
                {"scenario": scenario, "documents": count, "agent": agent, **{name: of[name] for name in SHOWN_COLUMNS}}
                for agent, of in by_agent.items()
            ]
        write_json(directory / "summary.json", summary)
        table = markdown_table(rows, ["scenario", "documents", "agent", *SHOWN_COLUMNS])
        print(f"{table}\n{len(turns)} turns -> {directory / 'summary.json'}")
        return summary

    def _chosen(self) -> list[AmbiguousConversation]:
        there = read_conversations(self.conversations)
        lacking = set(self.scenarios or ()) - {one.scenario for one in there}
        if lacking:
            problem = f"expected conversations of the scenario {sorted(lacking)[0]}"
            raise DataError(problem, file=self.conversations, field="scenario")
        chosen = [one for one in there if self.scenarios is None or one.scenario in self.scenarios]
        lengths: dict[tuple[str, int], int] = {}
        for one in chosen:
            length = lengths.setdefault((one.scenario, len(one.documents)), len(one.turns))
            if len(one.turns) != length:
                problem = (
                    f"expected {length} turns, as others of its scenario and number of documents, got {len(one.turns)}"
                )
                raise DataError(problem, file=self.conversations, record=one.id, field="turns")
        return chosen

    def _play(
        self,
        name: str,
        llm: TextGenerator,
        conversations: Sequence[AmbiguousConversation],
        log: RoundLog[AnsweredTurn],
    ) -> None:
        """Play the turns of one agent, whose memory begins empty and is gone at the end."""
        settings = ConversationSettings(self.k, self.threshold, self.with_documents, self.encoder, self.task)
        holding = {
            f"{one.id}/{number}": [f"{one.id}/{i}" for i in turn.holding]
            for one in conversations
            for number, turn in enumerate(one.turns)
        }
        total = sum(len(one.turns) for one in conversations)
        with tempfile.TemporaryDirectory() as directory, ProgressBar(name, total, "turns", self.progress) as bar:
            memory, meter = UserMemory(Path(directory) / "users.db", durable=False), MeteredGenerator(llm)
            agent = make_conversation_agent(name, memory, meter, holding.__getitem__, settings)
            for conversation in conversations:
                for number, turn in enumerate(conversation.turns):
                    log.add(*_answered(name, agent, meter, conversation, number, turn))
                    bar.update()
            memory.close()


def _answered(
    name: str,
    agent: ConversationAgent,
    meter: MeteredGenerator,
    conversation: AmbiguousConversation,
    number: int,
    turn: ScriptedTurn,
) -> tuple[AnsweredTurn, str]:
    """One turn: the answers, then what the user says of them; and why there are none."""
    before, documents, key = meter.expense, conversation.documents, f"{conversation.id}/{number}"
    attempt, answered = Attempt(), PossibleAnswers(key, turn.question, ())
    agent.catch_up(conversation.id)
    with attempt.answered_by("agent"):
        if turn.one:
            answered = replace(answered, answers=(agent.pick(documents, turn.question),))
        else:
            answered = agent.answer(conversation.id, documents, turn.question, key)
    with suppress(*UNLEARNT):  # it is caught up
        agent.observe_turn(conversation.id, answered, turn.remark)
    after = meter.expense
    one = AnsweredTurn(
        **_measured(name, conversation, number, turn, answered.answers),
        rests_on=tuple(int(one.rpartition("/")[2]) + 1 for one in answered.rests_on),
        satisfiable=answered.satisfiable,
        calls=after.calls - before.calls,
        tokens_in=after.tokens_in - before.tokens_in,
        tokens_out=after.tokens_out - before.tokens_out,
        odd=after.odd - before.odd,
        unanswered=attempt.unanswered,
    )
    return one, attempt.problem


def _figures(turns: Sequence[AnsweredTurn]) -> dict[str, Any]:
    odd, unanswered = sum(one.odd for one in turns), sum(bool(one.unanswered) for one in turns)
    return {**conversation_figures(turns), "odd": odd, "unanswered": unanswered}


def _told_nothing(conversation: AmbiguousConversation) -> Iterator[AnsweredTurn]:
    """The turns of those who ask no language model."""
    for number, turn in enumerate(conversation.turns):
        for name, answers in without_model(conversation, turn).items():
            yield AnsweredTurn(**_measured(name, conversation, number, turn, answers))


def _measured(
    name: str, conversation: AmbiguousConversation, number: int, turn: ScriptedTurn, answers: Sequence[str]
) -> dict[str, Any]:
    truth = conversation.true_answers(turn)
    precision, recall = set_precision_recall(answers, truth)
    single = turn.one and len(answers) == 1
    places = [
        i
        for i, one in enumerate(conversation.documents, start=1)
        if single and exact_match(one.facts[turn.attribute], answers[0])
    ]
    return {
        "agent": name,
        "conversation": conversation.id,
        "scenario": conversation.scenario,
        "documents": len(conversation.documents),
        "turn": number + 1,
        "answers": tuple(answers),
        "truth": truth,
        "precision": precision,
        "recall": recall,
        "remarks": len(turn.holding),
        "place": places[0] if places else 0,
    }
