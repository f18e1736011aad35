"""A policy of ours as a `TextGenerator`: one prompt in, one greedy answer out, with the tokenizer's own counts.

Where the answer is to be one of some values, it is the one that the policy finds most probable, which cannot fail.
"""

from __future__ import annotations

import json
from pathlib import Path

from finegrained_rlhf.core.errors import ConfigError, DataError, ModelError
from finegrained_rlhf.core.generation.protocol import Generation
from finegrained_rlhf.core.generation.schema import ReplySchema
from finegrained_rlhf.core.markers import ModelName
from finegrained_rlhf.feedback.prompt_files import PromptInput
from finegrained_rlhf.inference.generator import PolicyGenerator, load_policy, most_probable, text_ids
from finegrained_rlhf.inference.inputs import prompts_for
from finegrained_rlhf.text.chat import PromptConfig


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
            DataError: the prompt is empty or too long.
            ModelError: there is no policy, or it cannot be read.
        """
        if not isinstance(self._policy, PolicyGenerator):
            self._policy = load_policy(self._policy, self._device)
        policy = self._policy
        if not prompt.strip():
            raise DataError("the prompt is empty")
        items = [PromptInput(text_ids([prompt])[0], prompt)]
        prompts = prompts_for(policy.policy, items, self._max_prompt_tokens, "refuse", PromptConfig())
        if schema is not None and (choice := schema.only_choice()) is not None:
            name, field = choice
            answers = [json.dumps({name: value}, ensure_ascii=False) for value in field.values]
            return most_probable(policy.policy, prompts[0], answers)
        for groups in policy.stream(prompts, max_new_tokens=self._max_new_tokens):
            response = groups[0][0]
            return Generation(response.text, len(prompts[0].input_ids), response.tokens)
        raise ModelError("the policy gave no answer")
