"""Running PRELUDE: every agent on the same contexts in the same order, each with a memory of its own.

An edit's cost is counted in words and marks, NLTK's words (PRELUDE's code) or tiktoken's tokens (its paper). The first
needs nothing; the others are imported when they are named.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar

from finegrained_lab.protocols.answers import KeptModel, check_kept_answers, user_with_kept_answers
from finegrained_lab.protocols.forecast import Asks, Forecast
from finegrained_lab.protocols.prelude.curves import draw_cost_curves
from finegrained_lab.protocols.prelude.inputs.contexts import SourcedContext, read_contexts, read_preferences
from finegrained_lab.protocols.prelude.measures import (
    Round,
    Similarity,
    agent_figures,
    closest_source,
    word_overlap,
)
from finegrained_lab.protocols.prelude.users import EditingUser
from finegrained_lab.protocols.rounds import FAILURES, Attempt, RoundLog
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.generation.asking import TRIES
from finegrained_rlhf.core.generation.outcomes import OutcomeCounts
from finegrained_rlhf.core.generation.protocol import TextGenerator, words_and_marks
from finegrained_rlhf.core.generation.wrappers import MeteredGenerator
from finegrained_rlhf.core.markers import InputFile, OutputDirectory, OutputFile, at_least
from finegrained_rlhf.personalization.learners.base import LEARN_TRIES, TASK, UNLEARNT, Draft, Learner
from finegrained_rlhf.personalization.learners.prelude import AGENTS, AgentSettings, check_agent, make_agent
from finegrained_rlhf.personalization.retrieval import ContextEncoder
from finegrained_rlhf.personalization.span_feedback import EditCost, Tokenise, edit_cost
from finegrained_rlhf.personalization.store.memory import UserMemory
from finegrained_rlhf.report.charts.plots import load_pyplot
from finegrained_rlhf.runtime.console import ProgressBar
from finegrained_rlhf.text.tables import markdown_table

COST_TOKENS = ("words", "nltk", "tiktoken")
"""`words` is the default: it needs neither a package nor a download."""
_ENCODING = "cl100k_base"  # of GPT-4, the paper's agent


def cost_tokeniser(name: str) -> Tokenise:
    """The tokens of a name.

    Args:
        name: one of `COST_TOKENS`. `nltk` is `word_tokenize`, which needs NLTK's data `punkt_tab`; `tiktoken` is
            GPT-4's encoding, which tiktoken downloads once.

    Raises:
        ConfigError: no such name, or what it needs is not there.
    """
    if name == "words":
        return words_and_marks
    if name not in COST_TOKENS:
        raise ConfigError(f"cost_tokens: expected one of {', '.join(COST_TOKENS)}, got {name!r}")
    try:
        if name == "nltk":
            split: Any = import_module("nltk").word_tokenize
        else:
            split = import_module("tiktoken").get_encoding(_ENCODING).encode_ordinary
        split("A text.")
    except ImportError:
        raise ConfigError(f"cost_tokens={name}: {name} is not installed: pip install {name}, or use words") from None
    except (LookupError, OSError, ValueError) as error:  # NLTK finds no data; tiktoken no file and no network
        data = "python -m nltk.downloader punkt_tab" if name == "nltk" else "set TIKTOKEN_CACHE_DIR to a filled cache"
        raise ConfigError(f"cost_tokens={name}: its data are not there ({type(error).__name__}): {data}") from None
    return lambda text: [str(token) for token in split(text)]


USER = "the user"
SHOWN = ("cost", "normalised", "untouched", "preference_accuracy", "retrieval_accuracy", "tokens_in", "tokens_out")
COUNTS = ("odd", "unanswered", "not_learnt")


def prelude_asks(name: str, rounds: int, explore_rounds: int) -> list[Asks]:
    """What an agent of that name asks its language model for in T rounds.

    Args:
        name: of the agent.
        rounds: T.
        explore_rounds: T_e of explore-then-exploit.
    """
    kind, _, k = name.rpartition("_")
    without_examples = kind in ("icl_edit", "cot_edit")  # where nothing can be written after them
    asks, learnt = [Asks("drafts", rounds, TRIES * (1 + without_examples))], TRIES * LEARN_TRIES
    if name == "explore_then_exploit":
        full = max(0, rounds - explore_rounds + 1)  # edits with which there are T_e
        asks.append(Asks("preferences", min(1, full), learnt * full))
    elif name == "continual":
        asks.append(Asks("preferences", rounds - 1))
    elif kind == "cipher":
        asks.append(Asks("preferences", rounds, learnt))
        asks.append(Asks("preferences", max(0, rounds - 2) if int(k) > 1 else 0))
    return asks


@dataclass(frozen=True)
class RunPrelude(Settings):
    """Run agents on the rounds of a file and say what the user's edits cost.

    Writes `summary.json`, the figures by agent, `rounds.jsonl`, every round as it comes, and `curves.svg`, what edits
    have cost so far, to `output_dir`.

    A round in which agent or user gives no reply that can be used is counted, and no end of the run. Edits that could
    not be learnt from are tried again before each round.

    Attributes:
        contexts: file of contexts, one a round, in their order.
        preferences: file of the true preference by source.
        output_dir: where the results go.
        llm: the language model of all agents.
        user: who edits.
        agents: names; `cipher_5` has k = 5.
        rounds: T; None is all.
        explore_rounds: T_e of explore-then-exploit.
        last: edits that `continual` infers from.
        delta: δ of CIPHER.
        encoder: φ, of contexts; None is words.
        similarity: of preferences, for the accuracy; None is the words that they share.
        cost_tokens: what edits are counted in: words | nltk | tiktoken.
        task: what is to be written, in a sentence for the language model.
        answers: SQLite file of the agents' kept answers, so that a run that is killed goes on without asking again; a
            user's lie beside it (`FILE.user.sqlite`). For language models with an `identity`, such as endpoints. None
            keeps none.
        failures: the share of the latest 500 rounds that may go unanswered; more, and more than chance allows, end the
            run.
        plots: draw `curves.svg`; needs matplotlib.
        progress: show a progress bar.
    """

    every_process: ClassVar[bool] = False

    contexts: InputFile
    preferences: InputFile
    output_dir: OutputDirectory
    llm: TextGenerator
    user: EditingUser
    agents: Sequence[str] = AGENTS
    rounds: Annotated[int | None, at_least(1)] = None
    explore_rounds: Annotated[int, at_least(1)] = 5
    last: Annotated[int, at_least(1)] = 5
    delta: Annotated[float, at_least(0)] = 0.0
    encoder: ContextEncoder | None = None
    similarity: Similarity | None = None
    cost_tokens: str = "words"
    task: str = TASK
    answers: OutputFile | None = None
    failures: float = FAILURES
    plots: bool = True
    progress: bool = True

    def __post_init__(self) -> None:
        if not self.agents or len(set(self.agents)) < len(self.agents):
            raise ConfigError("agents: expected at least one, each once")
        for name in self.agents:
            check_agent(name)
        OutcomeCounts(self.failures)
        check_kept_answers(self.llm, self.answers)
        cost_tokeniser(self.cost_tokens)

    def run(self) -> dict[str, Any]:
        """Run every agent, write the results, print a table.

        Returns:
            The figures by agent, with `odd`, its replies that could not be used, `unanswered`, the rounds without one,
            and `not_learnt`, the edits that were never learnt from.

        Raises:
            FailureBudgetError: too many rounds are unanswered.
            FineGrainedError: a file is not as it should be, or a language model is out of reach.
            ConfigError: the plots need matplotlib, and it is not installed.
        """
        if self.plots:
            load_pyplot("plots=true")  # before the work, not after it
        contexts, true = read_contexts(self.contexts)[: self.rounds], read_preferences(self.preferences)
        for number, one in enumerate(contexts):
            if one.source not in true:
                problem = f"a source without a preference in {self.preferences}: {one.source}"
                raise DataError(problem, file=self.contexts, record=number, field="source")
        if len({one.text for one in contexts}) < len(contexts):
            raise DataError("expected texts that are used once: a text has one preference", file=self.contexts)
        if self.similarity is not None:
            self.similarity("short", "short")  # what it needs is missed before anybody is asked
        agent, (user, players) = KeptModel(self.llm, self.answers), user_with_kept_answers(self.user, self.answers)
        run, directory = replace(self, user=user), Path(self.output_dir)
        forecast = self._forecast(agent, players, len(contexts))
        with RoundLog[Round](directory / "rounds.jsonl", self.failures, forecast) as log:
            by_agent = {name: run._play(name, agent.asked, contexts, true, log) for name in self.agents}
        if self.plots:
            draw_cost_curves(directory / "rounds.jsonl", directory / "curves.svg")
        failures = log.failures_by(lambda one: one.context)
        write_json(directory / "summary.json", {"agents": by_agent, "failures": failures})
        rows = [{"agent": name, **figures} for name, figures in by_agent.items()]
        table = markdown_table(rows, ["agent", *SHOWN, *COUNTS])
        print(f"{table}\n{len(contexts)} rounds -> {directory / 'summary.json'}")
        return by_agent

    def _forecast(self, agent: KeptModel, user: KeptModel | None, rounds: int) -> Forecast:
        asks = [one for name in self.agents for one in prelude_asks(name, rounds, self.explore_rounds)]
        models: dict[str, tuple[KeptModel, Sequence[Asks]]] = {"the agents": (agent, asks)}
        if user is not None:
            played, tries = rounds * len(self.agents), getattr(self.user, "tries", TRIES)
            models["the user"] = user, [Asks("drafts judged", played, tries), Asks("edits", played, tries)]
        return Forecast(f"{rounds} rounds of each of {len(self.agents)} agents", models)

    def _play(
        self,
        name: str,
        llm: TextGenerator,
        contexts: Sequence[SourcedContext],
        true: dict[str, str],
        log: RoundLog[Round],
    ) -> dict[str, Any]:
        """Play the rounds of one agent, whose memory begins empty and is gone at the end: its figures."""
        wanted = {one.text: true[one.source] for one in contexts}
        sources = {one.id: one.source for one in contexts}
        tokenise, similarity = cost_tokeniser(self.cost_tokens), self.similarity or word_overlap
        settings = AgentSettings(self.explore_rounds, self.last, self.delta, self.encoder, self.task, tokenise)
        begin = len(log.rounds)
        with (
            tempfile.TemporaryDirectory() as directory,
            ProgressBar(name, len(contexts), "rounds", self.progress) as bar,
        ):
            memory = UserMemory(Path(directory) / "users.db", durable=False)
            meter = MeteredGenerator(llm)
            agent = make_agent(name, memory, meter, wanted.__getitem__, settings)
            for number, one in enumerate(contexts):
                before, attempt = meter.expense, Attempt()
                agent.catch_up(USER)
                draft, edited, cost = self._round(agent, one, true[one.source], attempt)
                after = meter.expense
                played = Round(
                    agent=name,
                    number=number,
                    context=one.id,
                    source=one.source,
                    preference=draft.preference,
                    closest=closest_source(draft.preference, true, similarity),
                    draft=draft.text,
                    edited=edited,
                    distance=0 if cost is None else cost.distance,
                    normalised=1.0 if cost is None else cost.normalised,
                    retrieved=tuple(sources[key] for key in draft.retrieved if key in sources),
                    calls=after.calls - before.calls,
                    tokens_in=after.tokens_in - before.tokens_in,
                    tokens_out=after.tokens_out - before.tokens_out,
                    odd=after.odd - before.odd,
                    unanswered=attempt.unanswered,
                )
                log.add(played, attempt.problem)
                bar.update()
            agent.catch_up(USER)
            not_learnt = len(memory.reader(USER).pending())
            memory.close()
        rounds = log.rounds[begin:]
        unanswered = sum(bool(one.unanswered) for one in rounds)
        return {**agent_figures(rounds), **asdict(meter.expense), "unanswered": unanswered, "not_learnt": not_learnt}

    def _round(
        self, agent: Learner, one: SourcedContext, preference: str, attempt: Attempt
    ) -> tuple[Draft, str, EditCost | None]:
        """A draft, what the user makes of it, and its cost; None without both."""
        draft = Draft(one.id, "")
        with attempt.answered_by("agent"):
            draft = agent.respond(USER, one.text, key=one.id)
        if not attempt.unanswered:
            with attempt.answered_by("user"):
                edited = self.user.edit(one.text, preference, draft.text)
                with suppress(*UNLEARNT):  # it is caught up
                    agent.observe_edit(USER, one.text, draft, edited)
                return draft, edited, edit_cost(draft.text, edited, cost_tokeniser(self.cost_tokens))
        return draft, "", None
