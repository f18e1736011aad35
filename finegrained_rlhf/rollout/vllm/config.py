"""Where vLLM draws: its servers, or this process, and what it is given there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import OutputDirectory, above, at_least, harmless
from finegrained_rlhf.runtime.remote.client import RemoteConfig


@dataclass(frozen=True)
class VLLMConfig(Settings):
    """Where vLLM draws. What is said of servers is not read in this process, and `options` not of servers.

    Attributes:
        urls: servers, each as http://HOST:PORT, which share out the prompts; none: vLLM draws in this process.
        key_variable: environment variable that holds the servers' key (their `--api-key`); null for none.
        directory: of this run alone, where weights are written for vLLM to read; servers must see it under the same
            path. null: in the run directory, which does for servers on this machine.
        dtype: of the weights as they are written, and of a model in this process. A server has its own `--dtype`.
        concurrency: requests, which are responses, under way at once at one server, in one process.
        timeout_s: seconds after which a response is given up and asked for again, and those that loading weights may
            take.
        budget_s: seconds for which a server that does not answer is waited for.
        options: further arguments of vLLM's `LLM` in this process, as `tensor_parallel_size`.
    """

    urls: Annotated[Sequence[str], harmless] = ()
    key_variable: Annotated[str | None, harmless] = None
    directory: OutputDirectory | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    concurrency: Annotated[int, at_least(1), harmless] = 256
    timeout_s: Annotated[float, above(0), harmless] = 600.0
    budget_s: Annotated[float, above(0), harmless] = 600.0
    options: Annotated[Mapping[str, Any], harmless] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(set(self.servers())) < len(self.urls):
            raise ConfigError(f"rollout.vllm.urls: expected each server once, got {list(self.urls)}")
        for url in self.servers():
            self.remote(url, "/")

    def servers(self) -> list[str]:
        """The servers, without a slash at the end."""
        return [url.rstrip("/") for url in self.urls]

    def remote(self, url: str, path: str) -> RemoteConfig:
        """A path of a server as a service.

        Args:
            url: one of `servers`.
            path: begins with a slash.

        Raises:
            ConfigError: the address is none.
        """
        try:
            return RemoteConfig(
                url + path,
                self.key_variable,
                self.concurrency,
                timeout_s=self.timeout_s,
                budget_s=self.budget_s,
                longest_wait_s=5.0,
                longest_answer_mib=64.0,
            )
        except ConfigError as error:
            raise ConfigError(f"rollout.vllm.urls: {url!r}: {error}") from None
