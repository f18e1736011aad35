"""The responses of training steps: which prompts, and when they are drawn; one step ahead where that is asked.

Which prompts a step draws follows from (seed, step), never from how many processes there are.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from finegrained_rlhf.core.files import Write, write_all
from finegrained_rlhf.core.records import Decoding, Prompt, Rollout
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.models.policy import Policy, PromptMemory
from finegrained_rlhf.models.weights.sharded import whole_weights
from finegrained_rlhf.rollout.assembly import assemble, empty_rollout
from finegrained_rlhf.rollout.config import RolloutConfig
from finegrained_rlhf.rollout.engine import RolloutSampler
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.order import items_of_step, number_occurrences

logger = logging.getLogger(__name__)

_AHEAD = "rollout_ahead.safetensors"
"""In a checkpoint: the responses [R, T] of all processes to the prompts of the next step, whose draws are named in the
metadata."""
_KEPT = ("response_ids", "logprobs", "support")  # the last only where a truncated distribution is scored


class StepDraws:
    """Draws the responses of training steps.

    With `rollout.ahead=1` those of step s + 1 are drawn before the update of step s, or by an engine elsewhere while it
    is made, by the weights that the update of step s − 1 left; step 1 is drawn by the weights that the run begins with.
    The last step draws one ahead too, so that a run whose `total_steps` is raised goes on as if it had been planned so.

    Args:
        prompts: of training.
        sampler: draws.
        config: how, and whether ahead.
        policy: that is drawn from.
        processes: of the run.
        seed: of the run.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        sampler: RolloutSampler,
        config: RolloutConfig,
        policy: Policy,
        processes: Processes,
        seed: int,
    ) -> None:
        self._prompts, self.sampler, self._config = prompts, sampler, config
        self._policy, self._processes, self._seed = policy, processes, seed
        self._ahead: tuple[int, Callable[[], Rollout]] | None = None

    def prompts(self, step: int) -> list[Prompt]:
        """The prompts of a training step, from 1, over all processes."""
        return number_occurrences(items_of_step(self._prompts, step, self._config.prompts_per_step, self._seed))

    def others(self, step: int, count: int) -> list[Prompt]:
        """At most `count` prompts that a step does not draw, in the order in which they replace some that it does."""
        drawn = {prompt.id for prompt in self.prompts(step)}
        enough = min(count + len(drawn), len(self._prompts))
        order = items_of_step(self._prompts, 1, enough, stable_hash(self._seed, "resample", step))
        return [prompt for prompt in order if prompt.id not in drawn][:count]

    def draw(self, prompts: Sequence[Prompt], decoding: Decoding, step: int) -> Rollout:
        """The responses to this process's share of some prompts; every process must call this."""
        return self._begin(prompts, decoding, step)()

    def _begin(self, prompts: Sequence[Prompt], decoding: Decoding, step: int) -> Callable[[], Rollout]:
        with whole_weights(self._policy.model):
            return self.sampler.begin(prompts, [decoding], step)

    def rollout(self, step: int) -> Rollout:
        """This process's responses of a training step, before its update; every process must call this."""
        waiting, self._ahead = self._ahead, None
        now = (waiting[1] if waiting is not None and waiting[0] == step else self._of_step(step))()
        if self._config.ahead:
            self._ahead = step + 1, self._of_step(step + 1)
        return now

    def _of_step(self, step: int) -> Callable[[], Rollout]:
        return self._begin(self._share(self.prompts(step)), self._config.decoding(), step)

    def _share(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        return [prompts[i] for i in self._processes.share(len(prompts))]

    def state_to_save(self) -> Write:
        """The responses that were drawn ahead, of all processes as of now; every process must call this."""
        if self._ahead is None:
            return write_all(())
        step, rollout = self._ahead[0], self._ahead[1]()
        self._ahead = step, lambda: rollout
        whole = {name: tensor.cpu() for name in _KEPT if (tensor := getattr(rollout, name)) is not None}
        lengths = rollout.lengths().tolist()
        own = [{k: tensor[row, :n].clone() for k, tensor in whole.items()} for row, n in enumerate(lengths)]
        every = self._processes.gather_objects(own)
        if not self._processes.is_main:
            return write_all(())
        tensors = {name: pad_sequence([row[name] for row in every], batch_first=True) for name in every[0]}
        tensors["lengths"] = torch.tensor([len(row["response_ids"]) for row in every])
        named = json.dumps({"step": step, "draws": [prompt.draw for prompt in self.prompts(step)]})
        return lambda directory: save_file(tensors, directory / _AHEAD, metadata={"rollout": named})

    def load_state(self, checkpoint: Path) -> None:
        """Take back this process's share of what `state_to_save` kept, however many processes there were."""
        self._ahead = None
        if not self._config.ahead or not (checkpoint / _AHEAD).is_file():
            return
        with safe_open(checkpoint / _AHEAD, framework="pt") as file:
            named = json.loads(file.metadata()["rollout"])
            kept = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        step, decoding = named["step"], self._config.decoding()
        prompts = self.prompts(step)
        rows = len(prompts) * decoding.samples
        if named["draws"] != [prompt.draw for prompt in prompts] or len(kept["lengths"]) != rows:
            logger.warning("%s holds responses to other prompts than step %d has; it draws anew", checkpoint, step)
            return
        share = self._processes.share(len(prompts))
        own = slice(share.start * decoding.samples, share.stop * decoding.samples)
        rollout = self._read([prompts[i] for i in share], {k: v[own] for k, v in kept.items()}, decoding)
        self._ahead = step, lambda: rollout

    def _read(self, prompts: Sequence[Prompt], kept: Mapping[str, Tensor], decoding: Decoding) -> Rollout:
        device = self._policy.device
        if not prompts:
            return empty_rollout([decoding], device)
        mask = torch.arange(kept["response_ids"].shape[1]) < kept["lengths"][:, None]
        ids = torch.where(mask, kept["response_ids"], self._policy.pad_id)
        memory = PromptMemory(prompts, *self._policy.pad_prompts(prompts), None)
        tensors = (ids.to(device), mask.long().to(device), kept["logprobs"].to(device))
        rollout = assemble(memory, [decoding], *tensors, self._policy.tokenizer)
        support = kept["support"][:, : rollout.response_ids.shape[1]].to(device) if "support" in kept else None
        return replace(rollout, support=support)
