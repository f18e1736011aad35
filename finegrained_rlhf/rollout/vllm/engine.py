"""The rollout engine over vLLM: the policy's weights go there when they have changed, and responses come back.

Each response names the weights that drew it. One of other weights, of a server that was restarted or that somebody else
uses as well, is asked for again once the server has ours; responses of two versions are never mixed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from finegrained_rlhf.core.errors import ConfigError, FineGrainedError, ModelError
from finegrained_rlhf.core.records import Decoding, Greedy, Prompt, Rollout, pad_rows
from finegrained_rlhf.models.policy import CausalPolicy, Policy, PromptMemory
from finegrained_rlhf.models.weights.saving import take_part
from finegrained_rlhf.rollout.assembly import assemble
from finegrained_rlhf.rollout.vllm.config import VLLMConfig
from finegrained_rlhf.rollout.vllm.local import LocalVLLM
from finegrained_rlhf.rollout.vllm.places import LOADING, Answer, Asked, Place, sampling_of
from finegrained_rlhf.rollout.vllm.servers import VLLMServer
from finegrained_rlhf.rollout.vllm.weights import WeightFiles, Weights, signature
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.runtime.remote.client import RemoteError

logger = logging.getLogger(__name__)

_REPAIRS = 3
"""How often in one rollout a server may be given weights that it had already."""


class VLLMEngine:
    """Draws responses with vLLM; see `RolloutEngine` for the contract, and `refresh`, which must be called before.

    Sampling is vLLM's, seeded by (seed, step, draw, sample): a response depends on no other one but for the rounding of
    the batch that it happens to be in.

    Args:
        policy: decoder-only; its weights are read and its tokenizer decodes.
        config: where vLLM draws.
        directory: where weights are written unless `config` names another.

    Raises:
        ConfigError: an encoder–decoder, a server's address is none, or vLLM is to draw here and is not installed.
    """

    def __init__(self, policy: Policy, config: VLLMConfig, directory: Path) -> None:
        if not isinstance(policy, CausalPolicy):
            raise ConfigError(
                f"rollout.engine=vllm draws from decoder-only models, and {type(policy.model).__name__} is none; take "
                "engine=auto"
            )
        rank = None if policy.adapter is None else policy.adapter.peft_config["default"].r
        self.policy = policy
        self.places: list[Place] = [VLLMServer(url, config) for url in config.servers()] or [LocalVLLM(config, rank)]
        for place in self.places:
            place.version()  # one that is not there, or cannot be given weights, is found before anything is loaded
        self._config, self._weights = config, Weights("", directory)
        self._files: WeightFiles | None = None  # in the main process
        self._directory = Path(config.directory or directory)
        self._seen: tuple[tuple[int, int], ...] | None = None
        self._under_way: list[_Draw] = []

    def refresh(self, processes: Processes) -> None:
        """Give vLLM the policy's weights where they have changed; every process must call this alike.

        What is under way is waited for first, so that it is drawn by the weights that it was asked of.

        Raises:
            ConfigError: vLLM is to draw in several processes, or a server is not started as it must be.
            RemoteError: a server stays away, or cannot load these weights.
        """
        if self._seen == (now := signature(self.policy.model)):
            return
        if not self._config.urls and processes.count > 1:
            raise ConfigError(
                f"rollout.engine=vllm draws here for one process, and there are {processes.count}: name servers, "
                "rollout.vllm.urls=[URL]"
            )
        for draw in self._under_way:
            draw.wait()
        self._under_way = []
        processes.barrier()  # nobody's responses are under way
        outcome: list[Weights | FineGrainedError] = []
        if processes.is_main:
            try:
                outcome = [self._send()]
            except FineGrainedError as error:
                outcome = [error]
        else:
            take_part(self.policy.model)
        (sent,) = processes.gather_objects(outcome)
        if isinstance(sent, FineGrainedError):
            raise sent
        self._weights, self._seen = sent, now

    def _send(self) -> Weights:
        adapters = self.policy.adapter is not None and all(place.adapters for place in self.places)
        began = time.monotonic()
        if self._files is None:
            self._files = WeightFiles(self.policy, self._directory, getattr(torch, self._config.dtype))
        weights = self._files.write(adapters)
        for place in self.places:
            if not self._put(place, weights):
                place.adapters = False
                logger.warning("adapters are added to the weights, which go over whole at every step")
                return self._send()
        self._files.keep(weights)
        if self._seen is None:
            what = "the adapter alone" if weights.adapter else "all weights"
            logger.info(
                "rollouts are drawn by vLLM, %s; %s go over from a directory when they have changed (%.1f s the first "
                "time)", ", ".join(place.name for place in self.places), what, time.monotonic() - began,
            )  # fmt: skip
        return weights

    def _put(self, place: Place, weights: Weights) -> bool:
        """Give a place the weights it lacks; False where it takes no adapter."""
        if place.version() != weights.version:
            place.load(weights)
        return weights.adapter is None or place.adapt(weights)

    def repair(self, place: Place, tried: int) -> None:
        """Give a place back the weights of now, that another process may be giving it at this moment.

        Raises:
            RemoteError: it lost them too often.
        """
        until = time.monotonic() + self._config.timeout_s
        while (version := place.version()) == LOADING and time.monotonic() < until:
            time.sleep(0.2)
        if tried > _REPAIRS:
            raise RemoteError(
                f"{place.name} drew by other weights than those of this run {tried} times in one rollout (now "
                f"{version}, expected {self._weights.version}): does another run use it? A server serves one run alone"
            )
        if version not in (self._weights.version, LOADING):
            logger.warning("%s has the weights %s and gets those of this run again", place.name, version)
        if not self._put(place, self._weights):
            raise RemoteError(f"{place.name} takes LoRA adapters no more, as it did when this run began")

    def encode(self, prompts: Sequence[Prompt]) -> PromptMemory:
        """See `RolloutEngine.encode`."""
        return self.policy.encode(prompts)

    def decode(
        self, memory: PromptMemory, decodings: Sequence[Decoding], *, max_new_tokens: int, seed: int = 0, step: int = 0
    ) -> Rollout:
        """See `RolloutEngine.decode`. Raises what the servers raise."""
        return self.begin(memory, decodings, max_new_tokens=max_new_tokens, seed=seed, step=step)()

    def begin(
        self, memory: PromptMemory, decodings: Sequence[Decoding], *, max_new_tokens: int, seed: int = 0, step: int = 0
    ) -> Callable[[], Rollout]:
        """Ask for responses as `decode` does, by the weights of now, and wait for none.

        Returns:
            A function that waits for them, whatever weights the policy has by then.

        Raises:
            ValueError: no decoding.
        """
        if not decodings:
            raise ValueError("need at least one decoding")
        shares: list[list[tuple[int, Asked]]] = [[] for _ in self.places]
        row = 0
        for number, prompt in enumerate(memory.prompts):
            drawn = 0
            for decoding in decodings:
                for sample in range(decoding.samples):
                    names = seed, step, prompt.draw, drawn + sample
                    sampling = sampling_of(decoding, max_new_tokens, self.policy.eos_ids, *names)
                    shares[number % len(shares)].append((row, Asked(prompt.input_ids, sampling)))
                    row += 1
                drawn += 0 if isinstance(decoding, Greedy) else decoding.samples
        draw = _Draw(self, shares)
        self._under_way.append(draw)
        return lambda: self._rollout(memory, decodings, draw.wait())

    def _rollout(self, memory: PromptMemory, decodings: Sequence[Decoding], answers: Sequence[Answer]) -> Rollout:
        device = self.policy.device
        ids, mask = pad_rows([answer.ids for answer in answers], self.policy.pad_id, device)
        logprobs: Tensor = torch.zeros(ids.shape)
        for row, answer in enumerate(answers):
            logprobs[row, : len(answer.logprobs)] = torch.tensor(answer.logprobs)
        if not torch.isfinite(logprobs).all() or (logprobs < -9998).any():  # as a server writes what is none
            raise ModelError("vLLM gave a token without a log-probability: the policy's logits are not finite")
        return assemble(memory, decodings, ids, mask, logprobs.to(device), self.policy.tokenizer)


class _Draw:
    """Responses under way, by one version of the weights."""

    def __init__(self, engine: VLLMEngine, shares: Sequence[Sequence[tuple[int, Asked]]]) -> None:
        self._engine, self._shares = engine, [list(share) for share in shares]
        self._answers: dict[int, Answer] = {}
        self._waits = [self._ask(number) for number in range(len(self._shares))]

    def _ask(self, number: int) -> Callable[[], list[Answer | None]]:
        place, share = self._engine.places[number], self._shares[number]
        return place.begin([asked for _, asked in share], self._engine._weights)

    def wait(self) -> list[Answer]:
        """All responses, by row."""
        for number, place in enumerate(self._engine.places):
            tried = 0
            while self._shares[number]:
                for (row, _), answer in zip(self._shares[number], self._waits[number](), strict=True):
                    if answer is not None:
                        self._answers[row] = answer
                self._shares[number] = [(row, asked) for row, asked in self._shares[number] if row not in self._answers]
                if self._shares[number]:
                    tried += 1
                    self._engine.repair(place, tried)
                    self._waits[number] = self._ask(number)
        return [self._answers[row] for row in sorted(self._answers)]
