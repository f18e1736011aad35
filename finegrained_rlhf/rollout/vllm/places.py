"""What a place where vLLM draws must do, whether a server or this process; and what is asked there and answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from finegrained_rlhf.core.generation.outcomes import FailedReplyError
from finegrained_rlhf.core.records import Decoding, Greedy
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.rollout.vllm.weights import Weights
from finegrained_rlhf.runtime.remote.answers import UnintelligibleAnswer

LOADING = "fg-loading"
"""The version of a place whose weights are being exchanged."""


@dataclass(frozen=True)
class Asked:
    """One response that is asked for: to which token ids, by which of vLLM's sampling parameters."""

    prompt_ids: Sequence[int]
    sampling: Mapping[str, Any]


@dataclass(frozen=True)
class Answer:
    """A response.

    Attributes:
        ids: its tokens, the end of sequence included.
        logprobs: of each under the softmax of the model's logits.
        versions: of all weights that drew it.
        reason: why it ended, as vLLM says: `stop`, `length`, `abort`.
    """

    ids: Sequence[int]
    logprobs: Sequence[float]
    versions: tuple[str, ...]
    reason: str

    def check(self, asked: Asked) -> Answer:
        """Itself.

        Raises:
            UnintelligibleAnswer: it is no response to what was asked; asked again, it may be.
            FailedReplyError: vLLM has no room for prompt and response.
        """
        limit, ends = asked.sampling["max_tokens"], asked.sampling["stop_token_ids"]
        length = len(self.ids)
        if not 0 < length <= limit or length != len(self.logprobs) or not self.versions:
            raise UnintelligibleAnswer(
                f"an answer of {length} tokens, {len(self.logprobs)} log-probabilities and "
                f"{len(self.versions)} versions of weights to a request for at most {limit} tokens"
            )
        if length < limit and self.reason == "length":
            raise FailedReplyError(
                f"a response was cut off after {length} of {limit} tokens: vLLM's max_model_len has no room for its "
                f"prompt of {len(asked.prompt_ids)} tokens and rollout.max_new_tokens"
            )
        if length < limit and self.ids[-1] not in ends:
            raise UnintelligibleAnswer(f"an answer of {length} of {limit} tokens that has no end of sequence")
        return self


class Place(Protocol):
    """Where vLLM draws.

    Attributes:
        name: its address.
        adapters: whether it takes LoRA adapters as such.
    """

    name: str
    adapters: bool

    def version(self) -> str:
        """Of the weights that it draws by; `LOADING` while they are exchanged."""

    def load(self, weights: Weights) -> None:
        """Exchange the model's weights.

        Raises:
            RemoteError: they cannot be loaded.
        """

    def adapt(self, weights: Weights) -> bool:
        """Put the adapter on; False where it takes none, or not this one."""

    def begin(self, asked: Sequence[Asked], weights: Weights) -> Callable[[], list[Answer | None]]:
        """Ask for responses.

        Returns:
            A function that waits for them. None stands for one that other weights drew, or that is missing since the
            place has other weights now.

        Raises:
            RemoteError: the place stays away, or refuses a request.
        """


def sampling_of(decoding: Decoding, limit: int, eos_ids: Sequence[int], *names: int | str) -> dict[str, Any]:
    """The sampling parameters of one response, as vLLM names them: ended by these ids alone, with log-probabilities.

    Args:
        decoding: greedy, or sampling by a seed that follows from `names`.
        limit: most tokens.
        eos_ids: of the policy.
        *names: what tells this response from all others.
    """
    ends = {"max_tokens": limit, "stop_token_ids": list(eos_ids), "ignore_eos": True}
    given = {**ends, "logprobs": 0, "detokenize": False}
    if isinstance(decoding, Greedy):
        return {**given, "temperature": 0.0}
    drawn = {"temperature": decoding.temperature, "top_k": decoding.top_k, "top_p": decoding.top_p}
    return {**given, **drawn, "seed": stable_hash(*names) % 2**31}
