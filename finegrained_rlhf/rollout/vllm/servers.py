"""A vLLM server over its own HTTP routes (0.32): tokens by `/inference/v1/generate`, weights from a directory.

The server reads weights by `reload_weights` (`/collective_rpc`), which works on every device; `/update_weight_version`
names them, and each answer says by which weights it was drawn. LoRA adapters go by `/v1/load_lora_adapter`.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.generation.outcomes import FailedReplyError, ReplyError
from finegrained_rlhf.rollout.vllm.config import VLLMConfig
from finegrained_rlhf.rollout.vllm.places import LOADING, Answer, Asked
from finegrained_rlhf.rollout.vllm.weights import Weights
from finegrained_rlhf.runtime.remote.answers import BUSY, UnintelligibleAnswer, excerpt, wait_before
from finegrained_rlhf.runtime.remote.client import Call, RemoteClient, RemoteError

logger = logging.getLogger(__name__)

START = "VLLM_SERVER_DEV_MODE=1 vllm serve DIR --enable-scale-out --generation-config vllm --logprobs-mode raw_logprobs"
"""How a server is started that can be asked for tokens and given weights."""
_EMPTIES = 20  # tries to empty a cache whose blocks are still held


class _OtherWeights(ReplyError):
    """An answer that other weights drew."""


class VLLMServer:
    """A server; see `Place` for what the methods do.

    Args:
        url: as http://HOST:PORT.
        config: key and patience.

    Raises:
        ConfigError: the address is none, or the key is not there.
    """

    def __init__(self, url: str, config: VLLMConfig) -> None:
        self.name, self.adapters, self._config = url, True, config
        key = config.remote(url, "/").key()
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._client = RemoteClient(config.remote(url, "/inference/v1/generate"), lambda key: self._headers)
        self._adapter: str | None = None

    def version(self) -> str:
        """See `Place.version`.

        Raises:
            RemoteError: the server stays away, or says no version.
        """
        about = self._call("GET", "/weight_info")
        if not isinstance(about, dict) or not isinstance(about.get("weight_version"), str):
            raise RemoteError(f"{self.name}/weight_info: expected a weight_version, got {about!r}")
        return str(about["weight_version"])

    def load(self, weights: Weights) -> None:
        """See `Place.load`. What is killed on the way leaves a version that nobody asks for."""
        self._call("POST", "/update_weight_version", {"new_version": LOADING})
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(weights.model)}}
        self._call("POST", "/collective_rpc", reload)
        for _ in range(_EMPTIES):  # keys and values of the former weights
            if self._call("POST", "/reset_prefix_cache")["success"]:
                break
            time.sleep(0.25)
        else:
            raise RemoteError(
                f"{self.name} goes on with requests while its weights are exchanged; it can serve one run alone"
            )
        self._call("POST", "/update_weight_version", {"new_version": weights.version})
        self._adapter = None

    def adapt(self, weights: Weights) -> bool:
        """See `Place.adapt`. The adapter's name is its version."""
        new = {"lora_name": weights.adapter, "lora_path": str(weights.adapter_path)}
        status, answer = self._ask("POST", "/v1/load_lora_adapter", new, tries=3)
        if not 200 <= status < 300 and b"already been loaded" not in answer:
            logger.warning("%s takes no LoRA adapter (status %d, %s)", self.name, status, excerpt(answer))
            return False
        if self._adapter not in (None, weights.adapter):
            self._ask("POST", "/v1/unload_lora_adapter", {"lora_name": self._adapter}, tries=1)
        self._adapter = weights.adapter
        return True

    def begin(self, asked: Sequence[Asked], weights: Weights) -> Callable[[], list[Answer | None]]:
        """See `Place.begin`."""
        answers: list[Answer | None] = [None] * len(asked)
        failures: list[ReplyError] = []
        named = {} if weights.adapter is None else {"model": weights.adapter}
        calls = [Call({"token_ids": list(a.prompt_ids), "sampling_params": dict(a.sampling), **named}) for a in asked]

        def fail(number: int, error: ReplyError) -> None:
            if not isinstance(error, _OtherWeights):
                failures.append(error)

        def keep(number: int, answer: Answer) -> None:
            try:
                answers[number] = answer.check(asked[number])
            except UnintelligibleAnswer as error:
                failures.append(FailedReplyError(str(error)))
            except ReplyError as error:
                failures.append(error)

        wait = self._client.begin(calls, lambda answer: _read(answer, weights.version), keep, fail)

        def collect() -> list[Answer | None]:
            try:
                wait()
            except RemoteError as error:  # an adapter that it had before a restart is not found
                if "status 404" not in str(error) or weights.adapter is None or self._has(weights.adapter):
                    raise
            if failures:
                raise RemoteError(f"{self.name}: {failures[0]}")
            return answers

        return collect

    def _has(self, adapter: str) -> bool:
        return any(model.get("id") == adapter for model in self._call("GET", "/v1/models")["data"])

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer of a route that must answer well, read as JSON; None where it is empty."""
        status, answer = self._ask(method, path, body, tries=3)
        if status == 404:
            raise ConfigError(f"{self.name} has no {path}; start it with: {START}")
        if status in (401, 403):
            raise ConfigError(f"{self.name} wants another key (status {status}): rollout.vllm.key_variable")
        if not 200 <= status < 300:
            raise RemoteError(f"{self.name}{path}: status {status}, {excerpt(answer)}")
        try:
            return json.loads(answer) if answer else None
        except ValueError:
            raise RemoteError(f"{self.name}{path}: an answer that is no JSON: {excerpt(answer)}") from None

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None, tries: int) -> tuple[int, bytes]:
        """Status and answer; a server that is away is waited for, one that fails is asked `tries` times."""
        import httpx

        config, made, began = self._client.config, 0, time.monotonic()
        with httpx.Client(headers=self._headers, timeout=config.timeout_s) as http:
            while True:
                made += 1
                try:
                    answer = http.request(method, self.name + path, json=body)
                    if answer.status_code not in BUSY or (answer.status_code == 500 and made >= tries):
                        return answer.status_code, answer.content
                    reason = f"status {answer.status_code}, {excerpt(answer.content)}"
                except httpx.RequestError as error:
                    reason = str(error) or type(error).__name__
                seconds, spent = wait_before(made, config.backoff_s, config.longest_wait_s), time.monotonic() - began
                if spent + seconds > config.budget_s:
                    raise RemoteError(
                        f"{self.name}{path}: given up after {spent:.0f} s (budget_s), the last try: {reason}"
                    )
                if made == 1:
                    logger.warning(
                        "%s cannot be reached (%s): tried again for %g s (rollout.vllm.budget_s)",
                        self.name, reason, config.budget_s,
                    )  # fmt: skip
                time.sleep(seconds)


def _read(answer: Mapping[str, Any], version: str) -> Answer:
    """The one response of an answer of `/inference/v1/generate`, drawn by these weights."""
    try:
        (choice,) = answer["choices"]
        ids, parts = choice["token_ids"], choice["logprobs"]["content"]
        if choice["finish_reason"] == "abort":
            raise ValueError("it was aborted")
        spans = {str(span["version"]) for span in choice["weight_versions"]}
        if [part["token_id"] for part in parts] != ids:
            raise ValueError("log-probabilities of other tokens")
        reason, logprobs = str(choice["finish_reason"]), [float(part["logprob"]) for part in parts]
    except (KeyError, TypeError, ValueError) as error:
        raise UnintelligibleAnswer(f"an answer that is no response: {type(error).__name__} {error}") from None
    if spans != {version}:
        raise _OtherWeights(f"drawn by the weights {', '.join(sorted(spans))}")
    return Answer([int(token) for token in ids], logprobs, tuple(spans), reason)
