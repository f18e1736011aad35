"""Running PAHF's four phases: every setting on the same scenes in the same order, each with a memory of its own.

`phase_curves` reads `rounds.jsonl` as curves: how often an agent is right, and how often it needed the user, through
the four phases.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from finegrained_lab.figures import Lines, draw_lines
from finegrained_lab.protocols.answers import KeptModel, check_kept_answers, user_with_kept_answers
from finegrained_lab.protocols.forecast import Asks, Forecast
from finegrained_lab.protocols.pahf.measures import (
    LEARNING,
    MEASURES,
    SceneRound,
    phase_figures,
    setting_figures,
    success_by_user,
    without_agent,
)
from finegrained_lab.protocols.pahf.scenes import Scene, read_scenes
from finegrained_lab.protocols.pahf.users import AdvisingUser, ModelUser
from finegrained_lab.protocols.rounds import FAILURES, Attempt, RoundLog
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import read_jsonl, sha256_of, write_json
from finegrained_rlhf.core.generation.asking import TRIES
from finegrained_rlhf.core.generation.outcomes import OutcomeCounts
from finegrained_rlhf.core.generation.protocol import TextGenerator
from finegrained_rlhf.core.generation.wrappers import MeteredGenerator
from finegrained_rlhf.core.markers import InputFile, OutputDirectory, OutputFile, at_least, at_most
from finegrained_rlhf.personalization.learners.base import LEARN_TRIES, UNLEARNT
from finegrained_rlhf.personalization.learners.pahf import CHOICE_TASK, FEEDBACK_SETTINGS, Pahf
from finegrained_rlhf.personalization.retrieval import ContextEncoder, ExactIndex, FaissIndex, NoteIndex
from finegrained_rlhf.personalization.store.memory import UserMemory
from finegrained_rlhf.report.charts.plots import load_pyplot
from finegrained_rlhf.runtime.console import ProgressBar
from finegrained_rlhf.text.tables import markdown_table

IndexName = Literal["exact", "faiss"]
INDEXES: Mapping[IndexName, Callable[[], NoteIndex]] = {"exact": ExactIndex, "faiss": FaissIndex}
_GAP = 0.6  # between phases
_X_LABEL = "phase.iteration (learn, test, learn what has changed, test)"


def phase_curves(rounds: Path) -> tuple[dict[str, dict[str, dict[str, list[float]]]], dict[float, str]]:
    """The figures of every iteration of every phase.

    Args:
        rounds: FILE of rounds, as `RunPahf` writes it.

    Returns:
        By measure and setting: `episodes` (places on the axis), `mean` over users, `min` and `max`, one standard error
        over users below and above it; NaN for feedback in a test, where nobody is asked. And the word at each place:
        `1.2` is iteration 2 of phase 1.

    Raises:
        DataError: the file is missing or damaged.
    """
    played = [SceneRound(**one) for one in read_jsonl(rounds)]
    places, words = _places(played)
    curves: dict[str, dict[str, dict[str, list[float]]]] = {name: {} for name in MEASURES}
    for setting in dict.fromkeys(one.setting for one in played):
        own = [one for one in played if one.setting == setting]
        phases = sorted({one.phase for one in own})
        by_phase = {phase: phase_figures([one for one in own if one.phase == phase]) for phase in phases}
        for name in MEASURES:
            means, errors = (_in_turn(by_phase, key, name == "success") for key in (name, f"{name}_se"))
            curves[name][setting] = _with_errors(list(places.values()), means, errors)
    return curves, words


def _places(played: Sequence[SceneRound]) -> tuple[dict[tuple[int, int], float], dict[float, str]]:
    """Where each phase and iteration is on the axis, in order, and the word there."""
    turns = sorted({(one.phase, one.iteration) for one in played})
    places = {turn: place + _GAP * (turn[0] - 1) for place, turn in enumerate(turns)}
    several = {phase for phase, iteration in turns if iteration > 1}
    return places, {places[turn]: f"{turn[0]}.{turn[1]}" if turn[0] in several else f"{turn[0]}" for turn in turns}


def draw_phase_curves(rounds: Path, path: Path, users: Path) -> None:
    """Draw the figures of every setting side by side, and the success rate of every single user.

    Args:
        rounds: FILE of rounds.
        path: to write, `.svg` or `.png`: means over users.
        users: to write: a plot a setting, in it a line a user.

    Raises:
        ConfigError: matplotlib is not installed.
        DataError: the file is missing or damaged.
    """
    curves, words = phase_curves(rounds)
    panels = [Lines(title, "share of scenes", bands=curves[name]) for name, title in MEASURES.items()]
    draw_lines(path, panels, x_label=_X_LABEL, ticks=words)
    played = [SceneRound(**one) for one in read_jsonl(rounds)]
    places, _ = _places(played)
    panels = []
    for setting in dict.fromkeys(one.setting for one in played):
        of_users = success_by_user([one for one in played if one.setting == setting]).values()
        runs = [{places[turn]: share for turn, share in own.items()} for own in of_users]
        panels.append(Lines(setting, "success rate", runs={"a user": runs}, limits=(0.0, 1.02)))
    draw_lines(users, panels, x_label=_X_LABEL, ticks=words, columns=2)


def _in_turn(by_phase: Mapping[int, Mapping[str, Sequence[float]]], key: str, tests_too: bool) -> list[float]:
    """A figure through all iterations of all phases."""
    return [
        value if tests_too or phase in LEARNING else math.nan
        for phase, figures in by_phase.items()
        for value in figures[key]
    ]


def _with_errors(places: list[float], means: list[float], errors: list[float]) -> dict[str, list[float]]:
    low = [mean - error for mean, error in zip(means, errors, strict=True)]
    high = [mean + error for mean, error in zip(means, errors, strict=True)]
    return {"episodes": places, "mean": means, "min": low, "max": high}


SHOWN_FIGURES = ("success1", "acpe1", "success2", "success3", "acpe3", "success4", "frequency1", "frequency3")


def pahf_asks(setting: str, learning: int, tests: int) -> list[Asks]:
    """What an agent asks its language model for.

    Args:
        setting: of feedback.
        learning: scenes of phases in which it learns, all iterations together.
        tests: scenes of the others.
    """
    before, after = setting in ("pre", "both"), setting in ("post", "both")
    cues, remarks = before or after, learning * (before + after)
    actions = learning * (1 + cues + before) + tests * (1 + cues)  # cues, whether to ask, and the choice
    return [Asks("actions", actions), Asks("notes", 3 * remarks, TRIES * LEARN_TRIES)]


def user_asks(setting: str, learning: int) -> list[Asks]:
    """What a user's language model is asked for; arguments as for `pahf_asks`."""
    before, after = setting in ("pre", "both"), setting in ("post", "both")
    return [Asks("answers", learning * before), Asks("corrections", learning * after)]


@dataclass(frozen=True)
class RunPahf(Settings):
    """Run the settings of PAHF through four phases (learn, test, learn what has changed, test).

    Writes `summary.json`, the figures by setting and phase and how often one is right who looks at nothing,
    `rounds.jsonl`, every round as it comes, `curves.svg`, success, feedback and ACPE by phase and iteration, and
    `users.svg`, the success of each user, to `output_dir`.

    A round in which agent or user gives no reply that can be used is an error of the agent, and no end of the run.
    Remarks that could not be learnt from are tried again after each iteration.

    Attributes:
        phases: four files of scenes, as `read_scenes` takes them.
        output_dir: where the results go.
        llm: the agent's language model.
        user: who answers and corrects; never asked by `llm`.
        feedback: the settings to run.
        iterations: of a learning phase, over all its scenes.
        k: notes that are retrieved.
        similarity: τ, a cosine; notes at least so like a new one may be merged with it or replaced by it.
        encoder: of notes and scenes; None is words.
        index: how the nearest notes are found: `exact`, or `faiss`, which must be installed; both find the same.
        task: of the agent, in a sentence for the language model.
        answers: SQLite file of the agent's kept answers, so that a run that is killed goes on without asking again; a
            user's lie beside it (`FILE.user.sqlite`). For language models with an `identity`, such as endpoints. None
            keeps none.
        failures: the share of the latest 500 rounds that may go unanswered; more, and more than chance allows, end the
            run.
        plots: draw `curves.svg` and `users.svg`; needs matplotlib.
        progress: show a progress bar.
    """

    every_process: ClassVar[bool] = False

    phases: Sequence[InputFile]
    output_dir: OutputDirectory
    llm: TextGenerator
    user: AdvisingUser
    feedback: Sequence[str] = FEEDBACK_SETTINGS
    iterations: Annotated[int, at_least(1)] = 3
    k: Annotated[int, at_least(1)] = 10
    similarity: Annotated[float, at_least(-1.0), at_most(1.0)] = 0.3
    encoder: ContextEncoder | None = None
    index: IndexName = "exact"
    task: str = CHOICE_TASK
    answers: OutputFile | None = None
    failures: float = FAILURES
    plots: bool = True
    progress: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.phases, str) or len(self.phases) != 4:
            raise ConfigError(f"phases: expected four files, got {self.phases!r}")
        if (
            not self.feedback
            or set(self.feedback) - set(FEEDBACK_SETTINGS)
            or len({*self.feedback}) < len(self.feedback)
        ):
            raise ConfigError(f"feedback: expected some of {', '.join(FEEDBACK_SETTINGS)}, each once")
        OutcomeCounts(self.failures)
        check_kept_answers(self.llm, self.answers)

    def run(self) -> dict[str, Any]:
        """Run every setting, write the results, print a table.

        Returns:
            What `summary.json` has: `settings`, each with `odd`, the agent's replies that could not be used,
            `unanswered`, the rounds without one, and `not_learnt`, the remarks that were never learnt from; `baselines`
            by phase, `scenes` and `left_out` by phase, `unchanged_in_tests`: whether every memory's files were,
            byte by byte, the same after a test as before; and
            `failures` by phase and scene, over all settings and iterations.

        Raises:
            FailureBudgetError: too many rounds are unanswered.
            FineGrainedError: a file is not as it should be, or a language model is out of reach.
            ConfigError: the plots need matplotlib, or the index faiss, and it is not installed.
        """
        if self.plots:
            load_pyplot("plots=true")  # before the work, not after it
        INDEXES[self.index]()
        files = [read_scenes(path) for path in self.phases]
        scenes = {phase: file.scenes for phase, file in enumerate(files, start=1)}
        if isinstance(self.user, ModelUser):
            self.user.check(scenes)
        agent, (user, player) = KeptModel(self.llm, self.answers), user_with_kept_answers(self.user, self.answers)
        run, directory = replace(self, user=user), Path(self.output_dir)
        forecast = self._forecast(agent, player, {phase: len(own) for phase, own in scenes.items()})
        settings, unchanged = {}, True
        with RoundLog[SceneRound](directory / "rounds.jsonl", self.failures, forecast) as log:
            for setting in self.feedback:
                settings[setting], kept = run._play(setting, agent.asked, scenes, log)
                unchanged = unchanged and kept
        summary = {
            "settings": settings,
            "baselines": {f"phase{phase}": without_agent(own) for phase, own in scenes.items()},
            "scenes": {f"phase{phase}": len(own) for phase, own in scenes.items()},
            "left_out": {f"phase{phase}": file.left_out for phase, file in enumerate(files, start=1)},
            "unchanged_in_tests": unchanged,
            "failures": log.failures_by(lambda one: f"{one.phase}/{one.scene}"),
        }
        if self.plots:
            draw_phase_curves(directory / "rounds.jsonl", directory / "curves.svg", directory / "users.svg")
        write_json(directory / "summary.json", summary)
        rows = [{"agent": name, **settings.get(name, {}), **row} for name, row in final_figures(summary).items()]
        table = markdown_table(rows, ["agent", *SHOWN_FIGURES, "odd", "unanswered", "not_learnt"])
        print(f"{table}\n{len(log.rounds)} rounds -> {directory / 'summary.json'}")
        return summary

    def _forecast(self, agent: KeptModel, user: KeptModel | None, scenes: Mapping[int, int]) -> Forecast:
        learning = self.iterations * sum(scenes[phase] for phase in LEARNING)
        tests = sum(count for phase, count in scenes.items() if phase not in LEARNING)
        asks = [one for setting in self.feedback for one in pahf_asks(setting, learning, tests)]
        models: dict[str, tuple[KeptModel, Sequence[Asks]]] = {"the agent": (agent, asks)}
        if user is not None:
            models["the user"] = user, [one for setting in self.feedback for one in user_asks(setting, learning)]
        return Forecast(f"{learning + tests} scenes in each of {len(self.feedback)} settings", models)

    def _play(
        self, setting: str, llm: TextGenerator, scenes: dict[int, tuple[Scene, ...]], log: RoundLog[SceneRound]
    ) -> tuple[dict[str, Any], bool]:
        """Play one setting, whose memory begins empty and is gone at the end: figures; whether tests left it alone."""
        turns = {phase: self.iterations if phase in LEARNING else 1 for phase in scenes}
        total = sum(turns[phase] * len(own) for phase, own in scenes.items())
        begin, unchanged = len(log.rounds), True
        with (
            tempfile.TemporaryDirectory() as directory,
            ProgressBar(setting, total, "scenes", self.progress) as bar,
        ):
            memory, meter = UserMemory(Path(directory) / "users.db", durable=False), MeteredGenerator(llm)
            index = INDEXES[self.index]()
            agent = Pahf(memory, meter, setting, self.k, self.similarity, self.encoder, task=self.task, index=index)
            users = {scene.user for own in scenes.values() for scene in own}
            for phase, own in scenes.items():
                before = _hashes(directory)
                for iteration in range(1, turns[phase] + 1):
                    for scene in own:
                        log.add(*self._round(agent, setting, meter, scene, (phase, iteration)))
                        bar.update()
                    if phase in LEARNING:
                        for user in sorted(users):
                            agent.catch_up(user)
                unchanged = unchanged and (phase in LEARNING or _hashes(directory) == before)
            not_learnt = sum(len(memory.reader(user).pending()) for user in users)
            memory.close()
        played = log.rounds[begin:]
        counts = {"unanswered": sum(bool(one.unanswered) for one in played), "not_learnt": not_learnt}
        return {**setting_figures(played), **asdict(meter.expense), **counts}, unchanged

    def _round(
        self, agent: Pahf, setting: str, meter: MeteredGenerator, scene: Scene, at: tuple[int, int]
    ) -> tuple[SceneRound, str]:
        """A round, and why it is unanswered."""
        phase, iteration = at
        before, learns, attempt, put = meter.expense, phase in LEARNING, Attempt(), list[str]()

        def ask(question: str) -> str:
            put.append(question)
            with attempt.answered_by("user", within=True):
                return self.user.answer(scene, question, phase)

        key, action, corrected = f"{phase}.{iteration}/{scene.id}", None, False
        with attempt.answered_by("agent"):
            action = agent.act(scene.user, scene.instruction, scene.options, ask if learns else None, key)
        correct = action is not None and action.option == scene.intent
        if action is not None and learns and not correct and setting in ("post", "both"):
            with attempt.answered_by("user"):
                remark = self.user.correct(scene, action.option, phase)
                corrected = True
                with suppress(*UNLEARNT):  # it is caught up
                    agent.observe_feedback(scene.user, action, remark)
        after = meter.expense
        one = SceneRound(
            setting=setting,
            phase=phase,
            iteration=iteration,
            scene=scene.id,
            user=scene.user,
            option="" if action is None else action.option,
            correct=correct,
            asked=bool(put),
            given=corrected,
            question="" if action is None else action.question,
            cues="" if action is None else action.cues,
            calls=after.calls - before.calls,
            tokens_in=after.tokens_in - before.tokens_in,
            tokens_out=after.tokens_out - before.tokens_out,
            odd=after.odd - before.odd,
            unanswered=attempt.unanswered,
        )
        return one, attempt.problem


def final_figures(summary: dict[str, Any]) -> dict[str, dict[str, float]]:
    """One row a setting and baseline, of what `summary.json` has.

    Returns:
        `success1` to `success4`, `acpe1`, `acpe3`, `frequency1`, `frequency3`: of the phase's last iteration; `first1`
        and `first3`: success of its first one. Who looks at nothing needs no user and makes the same errors each time.
    """
    rows: dict[str, dict[str, float]] = {}
    for setting, figures in summary["settings"].items():
        row = {f"success{phase}": figures[f"phase{phase}"]["success"][-1] for phase in (1, 2, 3, 4)}
        for phase in LEARNING:
            own = figures[f"phase{phase}"]
            row[f"first{phase}"] = own["success"][0]
            row |= {f"{name}{phase}": own[name][-1] for name in ("acpe", "frequency")}
        rows[setting] = row
    for name in ("chance", "constant", "constant_option", "oracle"):
        row = {f"success{phase}": summary["baselines"][f"phase{phase}"][name] for phase in (1, 2, 3, 4)}
        for phase in LEARNING:
            share = row[f"success{phase}"]
            row |= {f"first{phase}": share, f"acpe{phase}": 1.0 - share, f"frequency{phase}": 0.0}
        rows[name] = row
    return rows


def _hashes(directory: str) -> dict[str, str]:
    """SHA-256 of a memory's database and its log; `-shm`, which holds locks and no content, is left out."""
    files = sorted(path for path in Path(directory).iterdir() if not path.name.endswith("-shm"))
    return {path.name: sha256_of(path) for path in files}
