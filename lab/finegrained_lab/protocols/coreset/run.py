"""Running CORESET's conversations: every agent on the same ones, each with a memory of its own; and what is measured.

Measured are precision and recall of the predicted set, expense, and curves over turns (source: Sun et al., section 4
and appendix B).
"""

from __future__ import annotations

import statistics
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from finegrained_lab.protocols.answers import KeptModel, check_kept_answers
from finegrained_lab.protocols.coreset.conversations import (
    AmbiguousConversation,
    ScriptedTurn,
    read_conversations,
)
from finegrained_lab.protocols.forecast import Asks, Forecast
from finegrained_lab.protocols.rounds import FAILURES, Attempt, RoundLog
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.generation.asking import TRIES
from finegrained_rlhf.core.generation.outcomes import OutcomeCounts
from finegrained_rlhf.core.generation.protocol import TextGenerator
from finegrained_rlhf.core.generation.wrappers import MeteredGenerator
from finegrained_rlhf.core.markers import InputFile, OutputDirectory, OutputFile, at_least, at_most
from finegrained_rlhf.personalization.learners.base import LEARN_TRIES, UNLEARNT
from finegrained_rlhf.personalization.learners.conversation import QUESTION_TASK, ConversationAgent, PossibleAnswers
from finegrained_rlhf.personalization.learners.coreset import (
    DEFAULT_AGENTS,
    ConversationSettings,
    check_conversation_agent,
    make_conversation_agent,
)
from finegrained_rlhf.personalization.retrieval import ContextEncoder
from finegrained_rlhf.personalization.selection import LARGEST_EXACT
from finegrained_rlhf.personalization.store.memory import UserMemory
from finegrained_rlhf.runtime.console import ProgressBar
from finegrained_rlhf.text.scores import exact_match, normalise
from finegrained_rlhf.text.tables import markdown_table


@dataclass(frozen=True)
class AnsweredTurn:
    """One turn, answered by one agent.

    Attributes:
        agent: its name.
        conversation: its id.
        scenario: of the conversation.
        documents: how many there are, N.
        turn: from 1.
        answers: z, that were given.
        truth: z*, the answers of the documents that can be meant.
        precision: share of the answers that are true.
        recall: share of the true ones that were given.
        remarks: that hold when the turn is answered.
        holding: turns, from 1, whose remarks these are.
        rests_on: turns, from 1, whose remarks the language model was shown.
        satisfiable: False where the newest remark contradicted all documents.
        place: of the document that a single answer is from, from 1, the first that has it; 0 for none, or for a set.
        calls: of the agent's language model, for this turn.
        tokens_in: of their prompts.
        tokens_out: of their replies.
        odd: of their replies, those that could not be used, asked for again or not.
        unanswered: that the agent gave no reply that can be used at all, and why; empty where it did. Then there is no
            answer.
    """

    agent: str
    conversation: str
    scenario: str
    documents: int
    turn: int
    answers: tuple[str, ...]
    truth: tuple[str, ...]
    precision: float
    recall: float
    remarks: int
    holding: tuple[int, ...] = ()
    rests_on: tuple[int, ...] = ()
    satisfiable: bool = True
    place: int = 0
    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    odd: int = 0
    unanswered: str = ""


def set_precision_recall(answers: Sequence[str], truth: Sequence[str]) -> tuple[float, float]:
    """|z ∩ z*| / |z| and |z ∩ z*| / |z*|, of answers without regard to case, articles and marks.

    Args:
        answers: z; none gives a precision of 0.
        truth: z*.

    Raises:
        ValueError: there is no true answer.
    """
    answered, true = {normalise(one) for one in answers}, {normalise(one) for one in truth}
    if not true:
        raise ValueError("expected at least one true answer")
    common = len(answered & true)
    return common / len(answered) if answered else 0.0, common / len(true)


def conversation_figures(turns: Sequence[AnsweredTurn]) -> dict[str, Any]:
    """The figures of one agent in one scenario with N documents.

    Returns:
        `precision`, `recall`: means over all turns; `by_turn`: the same at every turn, lists over t; `by_remarks`: the
        same by the number of remarks that hold; `tokens_in`, `tokens_out`, `calls`: of a conversation, mean;
        `unsatisfiable`: share of turns whose newest remark contradicted all documents; `places`: share of single
        answers by the document that they are from, in order, empty where none was asked for; `errors`: shares of turns
        with each of `ERRORS`, two of which a turn may have; `errors_by_turn`: the same at every turn.

    Raises:
        ValueError: there is no turn, or conversations differ in length.
    """
    by_turn = _grouped(turns, lambda one: one.turn)
    conversations = len({one.conversation for one in turns})
    if not turns or any(len(own) != conversations for own in by_turn.values()):
        raise ValueError("expected conversations of one length")
    curves = [_means(by_turn[t]) for t in sorted(by_turn)]
    by_remarks = _grouped(turns, lambda one: one.remarks)
    picked = [one.place for one in turns if one.place]
    places = Counter(picked)
    return {
        **_means(turns),
        "by_turn": {name: [curve[name] for curve in curves] for name in ("precision", "recall")},
        "by_remarks": {str(count): _means(by_remarks[count]) for count in sorted(by_remarks)},
        **{
            name: sum(getattr(one, name) for one in turns) / conversations
            for name in ("tokens_in", "tokens_out", "calls")
        },
        "unsatisfiable": statistics.fmean(not one.satisfiable for one in turns),
        "places": [places[i] / len(picked) for i in range(1, turns[0].documents + 1)] if picked else [],
        "errors": _error_shares(turns),
        "errors_by_turn": {name: [_error_shares(by_turn[t])[name] for t in sorted(by_turn)] for name in ERRORS},
    }


def without_model(conversation: AmbiguousConversation, turn: ScriptedTurn) -> dict[str, tuple[str, ...]]:
    """The answers of those who hear nothing and ask no language model.

    Returns:
        `everything`: the answer of every document; `most_frequent`: the one that most documents have, of several the
        first; `first_document`: that of the first; `oracle`: those that are true.
    """
    all_answers = [one.facts[turn.attribute] for one in conversation.documents]
    return {
        "everything": tuple(dict.fromkeys(all_answers)),
        "most_frequent": (Counter(all_answers).most_common(1)[0][0],),
        "first_document": (all_answers[0],),
        "oracle": conversation.true_answers(turn),
    }


def _grouped(turns: Sequence[AnsweredTurn], key: Callable[[AnsweredTurn], int]) -> dict[int, list[AnsweredTurn]]:
    groups: dict[int, list[AnsweredTurn]] = defaultdict(list)
    for one in turns:
        groups[key(one)].append(one)
    return groups


def _means(turns: Sequence[AnsweredTurn]) -> dict[str, float]:
    return {name: statistics.fmean(getattr(one, name) for one in turns) for name in ("precision", "recall")}


def _error_shares(turns: Sequence[AnsweredTurn]) -> dict[str, float]:
    found = [turn_errors(one) for one in turns]
    return {name: statistics.fmean(name in errors for errors in found) for name in ERRORS}


SHOWN_COLUMNS = ("precision", "recall", "tokens_in", "tokens_out", "calls", "unsatisfiable", "odd", "unanswered")
ERRORS = ("missed", "believed", "other")
"""Why answers are not the true ones: a remark that holds was not shown to the language model; one that does not hold
was; neither."""
_NOTEBOOKS = ("scratchpad", "summarised_memory")  # of which it is not known what they took in


def turn_errors(one: AnsweredTurn) -> set[str]:
    """The errors of a turn, some of `ERRORS`; none where the answers are the true ones, or one was asked for and given.

    Of a turn without a reply, and of an agent that keeps notes of its own, it is not known what it went by: `other`.
    """
    if one.place or one.precision == one.recall == 1.0:
        return set()
    if one.unanswered or one.agent in _NOTEBOOKS:
        return {"other"}
    missed, believed = set(one.holding) - set(one.rests_on), set(one.rests_on) - set(one.holding)
    return {name for name, turns in (("missed", missed), ("believed", believed)) if turns} or {"other"}


def coreset_asks(name: str, conversations: Sequence[AmbiguousConversation], k: int | None) -> list[Asks]:
    """What an agent of that name asks its language model for.

    Args:
        name: of the agent.
        conversations: that it goes through.
        k: remarks that it retrieves; None: all.
    """
    turns = [
        (turn, sum(before.remark is not None for before in conversation.turns[:number]))
        for conversation in conversations
        for number, turn in enumerate(conversation.turns)
    ]
    asks = [Asks("answers", len(turns))]
    if name in _NOTEBOOKS:
        noted = sum(name == "scratchpad" or turn.remark is not None for turn, _ in turns)
        asks.append(Asks("notes", noted, TRIES * LEARN_TRIES))
    if name.endswith("_model"):
        remarks = [min(said, k or said, LARGEST_EXACT) for turn, said in turns if not turn.one]
        asks.append(Asks("conflicts", sum(2 ** (n - 1) if n and "largest" in name else n for n in remarks)))
    return asks


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
            how many `conversations` there were of each. An agent's figures have `not_learnt`, the remarks that it had
            not learnt from at the end.

        Raises:
            FailureBudgetError: too many turns are unanswered.
            FineGrainedError: a file is not as it should be, or a language model is out of reach.
        """
        chosen = self._chosen()
        llm, directory = KeptModel(self.llm, self.answers), Path(self.output_dir)
        asks = [one for name in self.agents for one in coreset_asks(name, chosen, self.k)]
        rounds = f"{sum(len(one.turns) for one in chosen)} turns of each of {len(self.agents)} agents"
        forecast = Forecast(rounds, {"the agents": (llm, asks)})
        with RoundLog[AnsweredTurn](directory / "turns.jsonl", self.failures, forecast) as log:
            for conversation in chosen:
                for one in _told_nothing(conversation):
                    log.keep(one)
            pending = {name: self._play(name, llm.asked, chosen, log) for name in self.agents}
        turns = log.rounds
        summary: dict[str, Any] = {"figures": {}, "conversations": {}}
        rows: list[dict[str, Any]] = []
        for scenario, count in dict.fromkeys((one.scenario, len(one.documents)) for one in chosen):
            own = [one for one in turns if (one.scenario, one.documents) == (scenario, count)]
            by_agent = {
                agent: _figures([one for one in own if one.agent == agent])
                for agent in dict.fromkeys(one.agent for one in own)
            }
            names = {one.conversation for one in own}
            for agent, left in pending.items():
                by_agent[agent]["not_learnt"] = sum(left[name] for name in names)
            summary["figures"].setdefault(scenario, {})[str(count)] = by_agent
            summary["conversations"].setdefault(scenario, {})[str(count)] = len(names)
            rows += [
                {
                    **{"scenario": scenario, "documents": count, "agent": agent, **of["errors"]},
                    **{name: of[name] for name in SHOWN_COLUMNS},
                }
                for agent, of in by_agent.items()
            ]
        summary["failures"] = log.failures_by(lambda one: f"{one.conversation}/{one.turn}")
        write_json(directory / "summary.json", summary)
        table = markdown_table(rows, ["scenario", "documents", "agent", *SHOWN_COLUMNS, *ERRORS])
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
    ) -> dict[str, int]:
        """Play the turns of one agent, whose memory begins empty and is gone at the end.

        Returns:
            By conversation, the remarks that it had not learnt from at the end.
        """
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
            pending = {one.id: len(memory.reader(one.id).pending()) for one in conversations}
            memory.close()
        return pending


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
    with attempt.answered_by("user"), suppress(*UNLEARNT):  # it is caught up
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
        "holding": tuple(i + 1 for i in turn.holding),
        "place": places[0] if places else 0,
    }
