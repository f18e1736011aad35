"""The plain side: one PPO step with transformers alone, written as the original code does it.

Every response is a row of its own with its prompt repeated in front, in generation, in scoring and in the update; full
logits, `log_softmax` and `gather`; transformers' own Longformer, padded as it pads. Formulas (losses, advantages,
whitening) are the project's, so that both sides compute one function.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig

from benchmarks.machine import cudnn_attention
from benchmarks.ours import ADAM, Step
from benchmarks.plain_rewards import PlainRewards, spans
from benchmarks.workload import PAD, WEIGHTS, Workload, end_ids
from finegrained_rlhf.core.records import Prompt, pad_rows
from finegrained_rlhf.inference.measure import PhaseTimer
from finegrained_rlhf.rl.advantages import generalised_advantages
from finegrained_rlhf.rl.kl import log_ratio_kl
from finegrained_rlhf.rl.losses import clipped_policy_loss, clipped_value_loss
from finegrained_rlhf.rl.stats import masked_whiten
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.training.order import items_of_step
from finegrained_rlhf.training.ppo.config import PPOConfig

TOP_K, TEMPERATURE = 20, 0.7


@dataclass(frozen=True)
class Drawn:
    """Responses, one row each.

    Attributes:
        prompts: the prompt of each of the R rows.
        prompt_ids: int64 [R, L].
        prompt_mask: int64 [R, L].
        ids: int64 [R, T].
        mask: int64 [R, T].
        texts: R decoded responses.
    """

    prompts: Sequence[Prompt]
    prompt_ids: Tensor
    prompt_mask: Tensor
    ids: Tensor
    mask: Tensor
    texts: Sequence[str]


@dataclass(frozen=True)
class Learned:
    """What the update trains on; tensors fp32 [R, T].

    Attributes:
        drawn: the responses.
        logprobs: behaviour log-probabilities.
        values: before the update.
        advantages: whitened.
        returns: value targets.
    """

    drawn: Drawn
    logprobs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor


class Plain:
    """One PPO step as the original does it.

    Args:
        workload: weights and prompts.
        lengths: `fixed` or `spread`.
        adam: of policy and value model.
    """

    name = "plain"

    def __init__(self, workload: Workload, lengths: str, adam: OptimizerConfig = ADAM) -> None:
        self.profile, self.device, self.tokenizer = workload.profile, workload.device, workload.tokenizer
        self.lengths, self.config = lengths, PPOConfig(epochs=workload.profile.epochs)
        self.data, self.ends = workload.prompts(lengths), end_ids(workload.profile, lengths)
        self.start = workload.start
        self._steps = 0
        self.policy = copy.deepcopy(workload.policy)
        self.reference = copy.deepcopy(workload.policy).requires_grad_(False)
        self.value, self.value_head = copy.deepcopy(workload.value), copy.deepcopy(workload.value_head)
        self.rewards = PlainRewards(workload)
        trained = nn.ModuleDict({"policy": self.policy, "value": self.value, "head": self.value_head})
        self.trained = dict(trained.named_parameters())
        self.optimizer = torch.optim.AdamW(
            self.trained.values(), lr=adam.lr, betas=adam.betas, eps=adam.eps, weight_decay=adam.weight_decay
        )
        torch.manual_seed(self.profile.seed)

    def autocast(self) -> AbstractContextManager[Any]:
        """As `Processes.autocast`."""
        if self.profile.precision == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()

    def step(self) -> Step:
        """One training step, on the prompts that the other side draws in its step of the same number."""
        self._steps += 1
        prompts = items_of_step(self.data, self._steps, self.profile.prompts, self.profile.seed)
        timer = PhaseTimer(self.device)
        with cudnn_attention(), timer.phase("total"):
            with timer.phase("rollout"):
                drawn = self.draw(prompts)
            self.learn_from(drawn, timer)
        return Step(timer.seconds, int(drawn.mask.sum()))

    def learn_from(self, drawn: Drawn, timer: PhaseTimer, rewards: Tensor | None = None) -> None:
        """Everything after the rollout; given token rewards fp32 [R, T] are used as they are."""
        with timer.phase("rewards"):
            rewards = self.token_rewards(drawn) if rewards is None else rewards
        with timer.phase("scoring"):
            logprobs, reference, values = self.score(drawn)
        learned = self.experience(drawn, rewards, logprobs, reference, values)
        with timer.phase("update"):
            self.update(learned)

    # Rollout -----------------------------------------------------------------------------------------------------

    def prompt_rows(self, prompts: Sequence[Prompt]) -> tuple[Tensor, Tensor]:
        """Ids and mask as `generate` takes them, int64 [P, L]."""
        return pad_rows([prompt.input_ids for prompt in prompts], PAD, self.device)

    @torch.no_grad()
    def generate(self, prompts: Sequence[Prompt], **settings: Any) -> Tensor:
        """Raw response ids of transformers' `generate`."""
        ids, mask = self.prompt_rows(prompts)
        config = GenerationConfig(
            max_new_tokens=self.profile.new_tokens,
            min_new_tokens=self.profile.new_tokens if self.lengths == "fixed" else None,
            num_beams=1,
            eos_token_id=list(self.ends),
            pad_token_id=PAD,
            decoder_start_token_id=self.start,
            **settings,
        )
        with self.autocast():
            output = self.policy.generate(input_ids=ids, attention_mask=mask, generation_config=config)
        return output[:, 1 if self.policy.config.is_encoder_decoder else ids.shape[1] :]

    def draw(self, prompts: Sequence[Prompt]) -> Drawn:
        """Sample N responses to each prompt."""
        count = self.profile.samples
        ids = self.generate(prompts, do_sample=True, top_k=TOP_K, temperature=TEMPERATURE, num_return_sequences=count)
        ended = torch.isin(ids, torch.tensor(self.ends, device=ids.device)).long()
        mask = ((ended.cumsum(dim=1) - ended) == 0).long()
        texts = self.tokenizer.batch_decode(ids * mask, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return self.as_drawn([prompt for prompt in prompts for _ in range(count)], ids * mask, mask, texts)

    def as_drawn(self, prompts: Sequence[Prompt], ids: Tensor, mask: Tensor, texts: Sequence[str]) -> Drawn:
        """Responses with the prompt of each row in front."""
        prompt_ids, prompt_mask = pad_rows([prompt.input_ids for prompt in prompts], PAD, self.device)
        return Drawn(prompts, prompt_ids, prompt_mask, ids, mask, texts)

    # Rewards -----------------------------------------------------------------------------------------------------

    def token_rewards(self, drawn: Drawn) -> Tensor:
        """Σ_k w_k R_k at the token that ends each segment, found by tokenising the text up to there, fp32 [R, T]."""
        placed = torch.zeros(drawn.ids.shape)
        lengths = drawn.mask.sum(dim=1).tolist()
        for name, weight in WEIGHTS.items():
            with self.autocast():
                scores = self.rewards.score(name, drawn.prompts, drawn.texts)
            for row, (text, values) in enumerate(zip(drawn.texts, scores, strict=True)):
                heads = [text[:end] for _, end in spans(name, text)]
                ends = [len(ids) - 1 for ids in self.tokenizer(heads, add_special_tokens=False)["input_ids"]]
                if name == "completeness":
                    ends = [lengths[row] - 1]
                for end, value in zip(ends, values, strict=True):
                    placed[row, end] += weight * value
        return placed.to(self.device)

    # Scoring -----------------------------------------------------------------------------------------------------

    def micro_batches(self, rows: int) -> list[slice]:
        """As many episodes at a time as the other side takes, or as the profile says."""
        prompts = self.profile.plain_micro_batch_prompts or self.profile.micro_batch_prompts
        size = prompts * self.profile.samples
        return [slice(start, start + size) for start in range(0, rows, size)]

    def policy_logprobs(self, model: Any, drawn: Drawn, rows: slice, entropy: bool = False) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the responses under a policy and, where asked for, entropy; fp32 [r, T]."""
        ids, mask = drawn.ids[rows], drawn.mask[rows]
        with self.autocast():
            logits = self.response_logits(model, drawn, rows)
        log_p = logits.float().log_softmax(dim=-1)
        chosen = log_p.gather(-1, ids.unsqueeze(-1)).squeeze(-1) * mask
        return chosen, -(log_p.exp() * log_p).sum(dim=-1) * mask if entropy else torch.zeros_like(chosen)

    def values(self, drawn: Drawn, rows: slice) -> Tensor:
        """V(s_t), fp32 [r, T]."""
        with self.autocast():
            return self.value_head(self.value_states(drawn, rows)).float() * drawn.mask[rows]

    def inputs(self, drawn: Drawn, rows: slice) -> dict[str, Tensor]:
        """Prompt and shifted response of each row, for a pass of policy or value model."""
        return {
            "input_ids": drawn.prompt_ids[rows],
            "attention_mask": drawn.prompt_mask[rows],
            "decoder_input_ids": shift_right(drawn.ids[rows], self.start),
        }

    def response_logits(self, model: Any, drawn: Drawn, rows: slice) -> Tensor:
        """Logits [r, T, V] of the response tokens."""
        return model(**self.inputs(drawn, rows), use_cache=False).logits

    def value_states(self, drawn: Drawn, rows: slice) -> Tensor:
        """States [r, T, D] that V(s_t) is read from."""
        return self.value(**self.inputs(drawn, rows), use_cache=False).last_hidden_state

    @torch.no_grad()
    def score(self, drawn: Drawn) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities under policy and reference, and values, fp32 [R, T]."""
        pieces = []
        for rows in self.micro_batches(len(drawn.prompts)):
            now, _ = self.policy_logprobs(self.policy, drawn, rows, entropy=True)
            reference, _ = self.policy_logprobs(self.reference, drawn, rows)
            pieces.append((now, reference, self.values(drawn, rows)))
        now, reference, values = (torch.cat(column) for column in zip(*pieces, strict=True))
        return now, reference, values

    # Update ------------------------------------------------------------------------------------------------------

    def experience(self, drawn: Drawn, rewards: Tensor, logprobs: Tensor, reference: Tensor, values: Tensor) -> Learned:
        """KL penalty, whitening, advantages and value targets."""
        mask, config = drawn.mask, self.config
        rewards = rewards - config.kl.beta * log_ratio_kl(logprobs, reference, mask)
        rewards = masked_whiten(rewards, mask, shift_mean=False)
        advantages, returns = generalised_advantages(
            rewards, values, mask, discount=config.discount, lambda_=config.lambda_
        )
        return Learned(drawn, logprobs, values, masked_whiten(advantages, mask), returns)

    def update(self, learned: Learned) -> None:
        """All epochs, one optimizer step each."""
        drawn, config = learned.drawn, self.config
        tokens = float(drawn.mask.sum())
        for _ in range(config.epochs):
            for rows in self.micro_batches(len(drawn.prompts)):
                mask = drawn.mask[rows]
                now, _ = self.policy_logprobs(self.policy, drawn, rows)
                policy_loss = clipped_policy_loss(
                    now, learned.logprobs[rows], learned.advantages[rows], mask, clip=config.clip
                ).loss
                value_loss = clipped_value_loss(
                    self.values(drawn, rows),
                    learned.values[rows],
                    learned.returns[rows],
                    mask,
                    clip=config.value_clip,
                ).loss
                ((policy_loss + config.value_coefficient * value_loss) / tokens).backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)


def shift_right(ids: Tensor, start: int) -> Tensor:
    """Decoder inputs [R, T]: the start token, then all but the last response token."""
    return torch.cat([torch.full_like(ids[:, :1], start), ids[:, :-1]], dim=1)
