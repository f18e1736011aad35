"""vLLM in this process: its `LLM`, made of the policy's files when they are first written."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.rollout.vllm.config import VLLMConfig
from finegrained_rlhf.rollout.vllm.places import Answer, Asked
from finegrained_rlhf.rollout.vllm.weights import Weights
from finegrained_rlhf.runtime.remote.answers import UnintelligibleAnswer
from finegrained_rlhf.runtime.remote.client import RemoteError


class LocalVLLM:
    """vLLM in this process; see `Place` for what the methods do. It sleeps between rollouts where it may.

    Args:
        config: what it is given.
        lora_rank: of the adapters that will be put on; None: there will be none.

    Raises:
        ConfigError: vLLM is not installed.
    """

    def __init__(self, config: VLLMConfig, lora_rank: int | None) -> None:
        if find_spec("vllm") is None:
            raise ConfigError(
                "rollout.engine=vllm without rollout.vllm.urls draws in this process, and vLLM is not installed: "
                "`make env-vllm` makes an environment with it (.venv-vllm); or name servers: rollout.vllm.urls=[URL]"
            )
        self.name, self.adapters = "vLLM in this process", lora_rank is not None
        self._config, self._rank = config, lora_rank
        self._llm: Any = None
        self._adapter: Any = None
        self._numbers, self._asleep = 0, False

    def version(self) -> str:
        """See `Place.version`."""
        return "" if self._llm is None else str(self._llm.get_weight_version())

    def load(self, weights: Weights) -> None:
        """See `Place.load`."""
        path = str(weights.model)
        if self._llm is None:
            self._llm = self._open(path)
        else:
            self._wake()
            self._llm.collective_rpc("reload_weights", kwargs={"weights_path": path})
            if not self._llm.reset_prefix_cache():
                raise RemoteError("vLLM kept keys and values of former weights")
        self._llm.update_weight_version(weights.version)

    def adapt(self, weights: Weights) -> bool:
        """See `Place.adapt`."""
        from vllm.lora.request import LoRARequest

        former, self._numbers = self._adapter, self._numbers + 1
        self._adapter = LoRARequest(weights.adapter, self._numbers, str(weights.adapter_path))
        self._wake()
        self._llm.llm_engine.add_lora(self._adapter)
        if former is not None:
            self._llm.llm_engine.remove_lora(former.lora_int_id)
        return True

    def begin(self, asked: Sequence[Asked], weights: Weights) -> Callable[[], list[Answer | None]]:
        """See `Place.begin`; the responses are there when it returns."""
        from vllm import SamplingParams

        self._wake()
        prompts = [{"prompt_token_ids": list(one.prompt_ids)} for one in asked]
        sampling = [SamplingParams(**one.sampling) for one in asked]
        adapter = self._adapter if weights.adapter else None
        drawn = self._llm.generate(prompts, sampling, lora_request=adapter, use_tqdm=False)
        if self._config.options.get("enable_sleep_mode"):  # the device's memory is the update's then
            self._llm.sleep(level=1)
            self._asleep = True
        try:
            answers: list[Answer | None] = [_read(one).check(a) for one, a in zip(drawn, asked, strict=True)]
        except UnintelligibleAnswer as error:
            raise RemoteError(f"{self.name}: {error}") from None
        return lambda: answers

    def _wake(self) -> None:
        if self._asleep:
            self._llm.wake_up()
            self._asleep = False

    def _open(self, path: str) -> Any:
        os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")  # this process has threads and maybe a GPU
        from vllm import LLM

        adapters = (
            {}
            if self._rank is None
            else {"enable_lora": True, "max_lora_rank": _rank_of_vllm(self._rank), "max_loras": 1}
        )
        given = {"dtype": self._config.dtype, "skip_tokenizer_init": True, "generation_config": "vllm", **adapters}
        return LLM(model=path, **{**given, **self._config.options})


def _rank_of_vllm(rank: int) -> int:
    """The smallest of the ranks for which vLLM has room."""
    return next((known for known in (8, 16, 32, 64, 128, 256, 320, 512) if known >= rank), rank)


def _read(drawn: Any) -> Answer:
    """The one response of vLLM's output."""
    one = drawn.outputs[0]
    logprobs = [part[token].logprob for token, part in zip(one.token_ids, one.logprobs, strict=True)]
    versions = {span.version for span in one.weight_versions or ()}
    return Answer(list(one.token_ids), logprobs, tuple(versions), str(one.finish_reason))
