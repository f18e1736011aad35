"""A trained policy as a plain text generator: what users, `finegrained generate`, `finegrained sample-outputs` and
evaluation share.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finegrained_rlhf.core.errors import ConfigError, DataError, ModelError
from finegrained_rlhf.core.generation.outcomes import FailedReplyError
from finegrained_rlhf.core.generation.protocol import Generation
from finegrained_rlhf.core.generation.schema import ReplySchema
from finegrained_rlhf.core.markers import ModelName
from finegrained_rlhf.core.records import Decoding, Greedy, Prompt, pad_rows
from finegrained_rlhf.feedback.prompt_files import PromptInput
from finegrained_rlhf.inference.inputs import prompts_for
from finegrained_rlhf.models.loading import check_vocabulary, open_policy
from finegrained_rlhf.runtime.console import ProgressBar
from finegrained_rlhf.text.alignment import decode_text
from finegrained_rlhf.text.chat import PromptConfig
from finegrained_rlhf.text.plain_text import TooLong

if TYPE_CHECKING:
    import torch

    from finegrained_rlhf.models.policy import Policy
    from finegrained_rlhf.rollout.engine import RolloutEngine
    from finegrained_rlhf.runtime.processes import Processes


@dataclass(frozen=True)
class Response:
    """One response.

    Attributes:
        text: without special tokens.
        tokens: number of tokens, the end of sequence not counted.
        finished: the policy ended it; False where the limit of tokens cut it off.
        before: white space that stands between the prompt and the text, and that decoding the response by itself drops:
            tokenizers that write words take the blank away in front of the first.
    """

    text: str
    tokens: int
    finished: bool
    before: str = ""

    @property
    def continuation(self) -> str:
        """What follows the prompt, white space included."""
        return self.before + self.text


class PolicyGenerator:
    """A policy that answers texts.

    Attributes:
        policy: the model with its tokenizer.
        tokenizer: the tokenizer.

    Args:
        policy: in evaluation mode, on its device.
        engine: draws the responses; the engine over transformers' `generate` by default.
        processes: gives the precision; None computes in the policy's own.
    """

    def __init__(self, policy: Policy, engine: RolloutEngine | None = None, processes: Processes | None = None) -> None:

        from finegrained_rlhf.rollout.select import make_engine

        self.policy = policy
        self.tokenizer: Any = policy.tokenizer
        self._engine: RolloutEngine = engine or make_engine(policy)
        self._processes = processes

    def generate(
        self,
        texts: Sequence[str],
        decoding: Decoding | None = None,
        *,
        max_new_tokens: int = 200,
        batch_size: int = 16,
        seed: int = 0,
        max_prompt_tokens: int = 1024,
        prompt_too_long: TooLong = "truncate",
    ) -> list[list[str]]:
        """Answer each text.

        Args:
            texts: prompts; of a policy trained on conversations what the user says, else exactly as it shall read them.
            decoding: greedy by default, or `Sample(n, temperature, top_k, top_p)`.
            max_new_tokens: longest response in tokens, end of sequence included.
            batch_size: prompts decoded at once.
            seed: of the sampling. A text's samples do not depend on the other texts, on their order or on the batch.
            max_prompt_tokens: longest prompt in tokens.
            prompt_too_long: `truncate` (counted, with a warning) or `refuse`.

        Returns:
            For each text its responses: one, or `decoding.n`.

        Raises:
            DataError: a text is empty, or too long and to be refused.
        """
        if isinstance(texts, str):
            raise TypeError("generate takes a list of texts, got one string")
        for number, text in enumerate(texts):
            if not text.strip():
                raise DataError("the prompt is empty", record=number, field="text")
        items = [PromptInput(name, text) for name, text in zip(text_ids(texts), texts, strict=True)]
        prompts = prompts_for(self.policy, items, max_prompt_tokens, prompt_too_long, PromptConfig())
        batches = self.stream(prompts, decoding, max_new_tokens=max_new_tokens, batch_size=batch_size, seed=seed)
        return [[response.text for response in group] for batch in batches for group in batch]

    def stream(
        self,
        prompts: Sequence[Prompt],
        decoding: Decoding | None = None,
        *,
        max_new_tokens: int = 200,
        batch_size: int = 16,
        seed: int = 0,
    ) -> Iterator[list[list[Response]]]:
        """Answer prompts batch by batch: each batch as it is done, the responses of each of its prompts in a list.

        Raises:
            ModelError: tokenizer and model do not belong together.
        """
        if batch_size < 1 or max_new_tokens < 1:
            raise ConfigError(f"batch_size and max_new_tokens must be at least 1, got {batch_size}, {max_new_tokens}")
        check_vocabulary(self.policy, [prompt.input_ids for prompt in prompts])
        for start in range(0, len(prompts), batch_size):
            yield self._batch(prompts[start : start + batch_size], decoding or Greedy(), max_new_tokens, seed)

    def _batch(
        self, prompts: Sequence[Prompt], decoding: Decoding, max_new_tokens: int, seed: int
    ) -> list[list[Response]]:
        with self._autocast():
            memory = self._engine.encode(prompts)
            rollout = self._engine.decode(memory, [decoding], max_new_tokens=max_new_tokens, seed=seed)
        ended = rollout.ended(self.policy.eos_ids)
        groups: list[list[Response]] = [[] for _ in prompts]
        rows = zip(
            rollout.prompt_index.tolist(),
            rollout.texts,
            rollout.response_ids.tolist(),
            rollout.lengths().tolist(),
            ended.tolist(),
            strict=True,
        )
        for prompt, text, ids, length, finished in rows:
            before = _blank_between(self.tokenizer, prompts[prompt].input_ids[-1:], ids[:length], text)
            groups[prompt].append(Response(text, length - finished, finished, before))
        return groups

    def _autocast(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._processes is None else self._processes.autocast()


def _blank_between(tokenizer: Any, last: Sequence[int], ids: Sequence[int], text: str) -> str:
    """The white space between a prompt's last token and a response that the response's own text lacks."""
    together, left = decode_text(tokenizer, (*last, *ids)), decode_text(tokenizer, last)
    between = together[len(left) : len(together) - len(text)]
    return between if left and together == left + between + text and between.isspace() else ""


def text_ids(texts: Sequence[str]) -> list[str]:
    """An id for each text that depends on the text alone; the second of two equal texts gets `-2`, and so on."""
    counts: Counter[str] = Counter()
    ids = []
    for text in texts:
        name = f"text-{hashlib.blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=6).hexdigest()}"
        counts[name] += 1
        ids.append(name if counts[name] == 1 else f"{name}-{counts[name]}")
    return ids


def load_policy(run_or_dir: str | Path, device: str | torch.device | None = None) -> PolicyGenerator:
    """A trained policy, ready to answer texts.

    Args:
        run_or_dir: run directory, checkpoint, or any directory with a sequence-to-sequence or causal language model in
            the Hugging Face layout.
        device: where it computes; a GPU where there is one by default.

    Raises:
        ModelError: there is no model, or it cannot be read.
    """
    import torch

    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return PolicyGenerator(open_policy(run_or_dir).to(device))


def most_probable(policy: Policy, prompt: Prompt, answers: Sequence[str]) -> Generation:
    """Of some answers the one whose tokens have the largest sum of log-probabilities; of equals the first."""
    import torch

    tokenizer: Any = policy.tokenizer
    rows = [tokenizer(answer, add_special_tokens=False).input_ids for answer in answers]
    ids, mask = pad_rows(rows, policy.pad_id, policy.device)
    with torch.no_grad():
        memory = policy.encode([prompt])
        index = torch.zeros(len(rows), dtype=torch.long)
        sums = policy.logprobs(memory, index, ids, mask).logprobs.double().sum(dim=1)
    best = int(sums.argmax())
    return Generation(answers[best], len(prompt.input_ids), len(rows[best]))


class LocalGenerator:
    """A policy that answers prompts; it is loaded when it is first asked.

    Args:
        policy: a run directory, a checkpoint or a model directory; or a policy that is loaded already.
        max_new_tokens: longest answer in tokens, end of sequence included.
        max_prompt_tokens: longest prompt in tokens; a longer one is refused, since its end is what is asked.
        device: where it computes; a GPU where there is one by default.

    Raises:
        ConfigError: a limit below 1.
    """

    def __init__(
        self,
        policy: ModelName | Path | PolicyGenerator,
        max_new_tokens: int = 256,
        max_prompt_tokens: int = 4096,
        device: str | None = None,
    ) -> None:
        if max_new_tokens < 1 or max_prompt_tokens < 2:
            raise ConfigError(f"expected limits of 1 and 2 or more, got {max_new_tokens} and {max_prompt_tokens}")
        self._policy, self._device = policy, device
        self._max_new_tokens, self._max_prompt_tokens = max_new_tokens, max_prompt_tokens

    def generate(self, prompt: str, schema: ReplySchema | None = None) -> Generation:
        """The policy's answer. One that the limit of tokens cuts off is given as far as it goes.

        Where the schema is one choice, the answer is the JSON object with the value that makes it most probable.

        Raises:
            DataError: the prompt is empty.
            FailedReplyError: it is too long.
            ModelError: there is no policy, or it cannot be read.
        """
        if not isinstance(self._policy, PolicyGenerator):
            self._policy = load_policy(self._policy, self._device)
        policy = self._policy
        if not prompt.strip():
            raise DataError("the prompt is empty")
        items = [PromptInput(text_ids([prompt])[0], prompt)]
        try:
            prompts = prompts_for(policy.policy, items, self._max_prompt_tokens, "refuse", PromptConfig())
        except DataError as error:  # the model is asked about others
            raise FailedReplyError(error.problem.partition(" (")[0]) from None
        if schema is not None and (choice := schema.only_choice()) is not None:
            name, field = choice
            answers = [json.dumps({name: value}, ensure_ascii=False) for value in field.values]
            return most_probable(policy.policy, prompts[0], answers)
        for groups in policy.stream(prompts, max_new_tokens=self._max_new_tokens):
            response = groups[0][0]
            return Generation(response.text, len(prompts[0].input_ids), response.tokens)
        raise ModelError("the policy gave no answer")


@dataclass(frozen=True)
class Answering:
    """How prompts are answered.

    Attributes:
        decoding: greedy by default.
        max_new_tokens: longest response in tokens, end of sequence included.
        batch_size: prompts decoded at once in a process.
        seed: of the sampling.
        progress: show a progress bar in the main process.
    """

    decoding: Decoding = Greedy()
    max_new_tokens: int = 200
    batch_size: int = 16
    seed: int = 0
    progress: bool = True

    def stream(self, generator: PolicyGenerator, prompts: Sequence[Prompt]) -> Iterator[list[list[Response]]]:
        """The responses of each prompt of a batch, batch by batch as they are done."""
        return generator.stream(
            prompts, self.decoding, max_new_tokens=self.max_new_tokens, batch_size=self.batch_size, seed=self.seed
        )


def respond(
    generator: PolicyGenerator, prompts: Sequence[Prompt], processes: Processes, answering: Answering
) -> tuple[list[Prompt], list[list[Response]]]:
    """This process's share of the prompts, and the responses to each of them.

    The samples depend on (seed, prompt id, sample) alone, not on the number of processes.
    """
    share = [prompts[i] for i in processes.share(len(prompts))]
    groups: list[list[Response]] = []
    with ProgressBar("generating", len(share), "prompts", answering.progress and processes.is_main) as bar:
        for batch in answering.stream(generator, share):
            groups += batch
            bar.update(len(batch))
    return share, groups
