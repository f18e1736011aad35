"""Answers of several policies to one question with what a run's reward gives them: one request after another.

Everything a page shows can be computed from what is returned: a total is the sum over components of weight · worth.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from finegrained_rlhf.core.errors import ConfigError, DataError, ModelError
from finegrained_rlhf.core.generation.outcomes import ReplyError
from finegrained_rlhf.core.generation.protocol import Generation, words_and_marks
from finegrained_rlhf.core.records import Decoding, Prompt, Sample
from finegrained_rlhf.feedback.prompt_files import PromptInput
from finegrained_rlhf.inference.best_of import BestOf, RewardedResponse
from finegrained_rlhf.inference.generate import open_generator
from finegrained_rlhf.inference.generator import PolicyGenerator, Response
from finegrained_rlhf.inference.inputs import prompts_for
from finegrained_rlhf.preflight.memory.preflight import device_bytes
from finegrained_rlhf.rewards.composition import RewardComposer
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.chat import PromptConfig
from finegrained_rlhf.web.playground.choices import ENDPOINT, Choices

WAITING = 8
"""Requests that may wait for the models; one more is refused."""
PROMPT_TOKENS = 4096
"""Longest question in tokens, passages included; a longer one is refused."""
T = TypeVar("T")
Key = tuple[str, str]


class BusyError(ConfigError):
    """Too many requests wait already."""


class NoRoomError(ModelError):
    """A model does not fit into memory."""


@dataclass(frozen=True)
class Answer:
    """One answer with its rewards.

    Attributes:
        policy: its name; "" where a person wrote it.
        rewarded: the response with what its reward is made of.
    """

    policy: str
    rewarded: RewardedResponse


@dataclass(frozen=True)
class Component:
    """What a component is, and how its values enter the reward.

    Attributes:
        name: of the component.
        weight: configured.
        model: class of the scorer, and the directory that it reads where it says so.
        paid: where a value is paid, in words.
    """

    name: str
    weight: float
    model: str
    paid: str


class Playground:
    """Models that are loaded when they are first asked, and one thread that asks them.

    Args:
        choices: what can be asked.
    """

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self._thread = ThreadPoolExecutor(1, "playground")
        self._places = threading.BoundedSemaphore(WAITING)
        self._processes: Processes | None = None
        self._loaded: dict[Key, tuple[float, Any]] = {}

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Run a function behind those that wait already.

        Raises:
            BusyError: `WAITING` of them do.
        """
        if not self._places.acquire(blocking=False):
            raise BusyError(f"{WAITING} requests wait for the models already; try again when some are answered")
        future = self._thread.submit(function, *arguments)
        future.add_done_callback(lambda _: self._places.release())
        return future

    def answers(
        self, item: PromptInput, policies: Sequence[str], reward: str, decoding: Decoding, longest: int, seed: int
    ) -> list[Answer]:
        """Let policies answer, and score what they answered.

        Args:
            item: the question.
            policies: names, each of which answers.
            reward: name of the run whose reward scores.
            decoding: of each policy.
            longest: tokens of an answer, end of sequence included.
            seed: of the sampling.

        Raises:
            ModelError: a model cannot be read, or does not fit.
            DataError: a name is unknown, or the question lacks what a scorer reads.
            ConfigError: the reward cannot be used here.
            RemoteError: the endpoint is away.
            ReplyError: it refuses the question, or an answer of it was cut off.
        """
        needed: list[Key] = [("reward", reward), *(("policy", name) for name in policies if name != ENDPOINT)]
        self._open(("reward", reward), needed)  # what cannot be scored is not asked
        written, prompt = [], Prompt(item.id, item.text, (), item.metadata)
        for name in policies:
            if name == ENDPOINT:
                written += [(name, response) for response in self._asked(item, decoding)]
                continue
            generator: PolicyGenerator = self._open(("policy", name), needed)
            with _fitting(name):
                (prompt,) = prompts_for(generator.policy, [item], PROMPT_TOKENS, "refuse", PromptConfig())
                (groups,) = generator.stream([prompt], decoding, max_new_tokens=longest, seed=seed)
            written += [(name, response) for response in groups[0]]
        return self._score(prompt, reward, written, needed)

    def scores(self, item: PromptInput, reward: str, written: Sequence[tuple[str, Response]]) -> list[Answer]:
        """Score answers that are there already; a `Response` says how long they are, and whether they ended.

        Raises:
            ModelError: a model cannot be read, or does not fit.
            DataError: a name is unknown, or the question lacks what a scorer reads.
            ConfigError: the reward cannot be used here.
        """
        return self._score(Prompt(item.id, item.text, (), item.metadata), reward, written, [("reward", reward)])

    def _asked(self, item: PromptInput, decoding: Decoding) -> list[Response]:
        """What the endpoint answers, decoded by its own settings; where pages decode greedily, once."""
        if self.choices.endpoint is None:
            raise DataError("no endpoint is played (text_generator@play=endpoint)", file=ENDPOINT)
        made: list[Generation | ReplyError] = []
        count = decoding.n if isinstance(decoding, Sample) else 1
        self.choices.endpoint.generate_each([item.text] * count, None, lambda _, one: made.append(one))
        for one in made:
            if isinstance(one, ReplyError):
                raise one
        return [Response(one.text.strip(), one.tokens_out, True) for one in made if isinstance(one, Generation)]

    def tokens(self, policy: str, text: str) -> int:
        """The length of a text in tokens of a policy, as `reward.overlong` counts it; of the endpoint, in words."""
        if policy == ENDPOINT:
            return len(words_and_marks(text))
        generator: PolicyGenerator = self._open(("policy", policy), [("policy", policy)])
        return len(generator.tokenizer(text, add_special_tokens=False).input_ids)

    def components(self, reward: str) -> list[Component]:
        """The components of a reward, penalties for form behind them."""
        chooser: BestOf = self._open(("reward", reward), [("reward", reward)])
        given = self.choices.components(reward)
        return [
            Component(name, float(weight), _model(given.get(name, {})), _paid(chooser.composer, name))
            for name, weight in chooser.composer.config.all_weights.items()
        ]

    def _score(
        self, prompt: Prompt, reward: str, written: Sequence[tuple[str, Response]], needed: Sequence[Key]
    ) -> list[Answer]:
        chooser: BestOf = self._open(("reward", reward), needed)
        with _fitting(reward):
            chooser.composer.check_prompts([prompt])
            (group,) = chooser.reward([prompt], [[response for _, response in written]])
        return [Answer(name, rewarded) for (name, _), rewarded in zip(written, group, strict=True)]

    def _open(self, key: Key, needed: Sequence[Key]) -> Any:
        """What is loaded under a key, anew where its run has changed it since.

        Where it does not fit, what this request does not need makes room.
        """
        changed = self._changed(key)
        if key in self._loaded and self._loaded[key][0] == changed:
            return self._loaded[key][1]
        self._loaded.pop(key, None)
        try:
            made = self._load(key)
        except NoRoomError:
            for other in set(self._loaded) - set(needed):
                del self._loaded[other]
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            made = self._load(key)
        self._loaded[key] = changed, made
        return made

    def _changed(self, key: Key) -> float:
        """When a policy was exported, or a run's reward written."""
        kind, name = key
        files = _weights(self.choices.policy(name)) if kind == "policy" else [self.choices.configuration(name)]
        return max(file.stat().st_mtime for file in files)

    def _load(self, key: Key) -> Any:
        kind, name = key
        if self._processes is None:
            self._processes = Processes(ProcessConfig())
        if kind == "policy":
            path = self.choices.policy(name)
            self._check_room([path], name)
            with _fitting(name):
                return open_generator(str(path), self._processes)
        config = self.choices.reward(name)
        paths = [component.get("path") for component in self.choices.components(name).values()]
        self._check_room([Path(path) for path in paths if isinstance(path, str)], name)
        chooser = BestOf(RewardComposer(config), self._processes)
        with _fitting(name):
            chooser.composer.setup(self._processes.device)
        return chooser

    def _check_room(self, paths: Sequence[Path], name: str) -> None:
        """Raise where the weights are larger than the memory that is free: the system would end the process."""
        assert self._processes is not None
        needed = sum(file.stat().st_size for path in paths for file in _weights(path))
        if not needed:
            return
        cuda = self._processes.device.type == "cuda"
        free = torch.cuda.mem_get_info(self._processes.device)[0] if cuda else device_bytes(self._processes)
        if needed > free:
            sizes = f"its weights take {needed / 1e9:.2f} GB, and {free / 1e9:.2f} GB of memory are free"
            raise NoRoomError(f"{name} does not fit: {sizes}")


def _weights(path: Path) -> list[Path]:
    """The weights of a model, or of the one that a run exported."""
    return next(
        (files for place in (path, path / "policy", path / "model") if (files := [*place.glob("*.safetensors")])), []
    )


@contextmanager
def _fitting(name: str) -> Iterator[None]:
    """One line for memory that ends while a model is loaded or asked."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError):
        raise NoRoomError(
            f"{name} does not fit into memory; ask for fewer or shorter answers, or a smaller model"
        ) from None


def _model(component: Mapping[str, Any]) -> str:
    """The class of a scorer, and the model that it reads."""
    kind, path = str(component.get("_target_", "penalty for form")), component.get("path")
    return kind.rpartition(".")[2] + (f" {path}" if isinstance(path, str) else "")


def _paid(composer: RewardComposer, name: str) -> str:
    """Where training pays a component's values."""
    credit, setting = composer.config.credit, composer.settings(name)
    if name not in composer.config.components:
        return "at the last token"
    if setting.density == "response" or credit == "outcome":
        return "together, at the last token"
    return {
        "end": "at the token that ends its segment",
        "decided": "at the token that decides its segment, or at the last one",
        "revised": "at the tokens where it changes while the answer grows, the rest at the last one",
    }[credit]
