"""What single deviations change, measured on one rollout of a finished FactWorld experiment (see DEVIATIONS.md).

Example: python benchmarks/deviations.py outputs/demo

Reads the SFT policy, its prompts and the three reward models; trains nothing. Each number compares this project's
formula with the original's (written out here) on the same 64 episodes; `eps` reads the optimizer's state at the end
of the experiment's fine-grained run.
"""

from __future__ import annotations

import argparse
import copy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.deviations_ends import total_drift
from finegrained_rlhf.core.records import RewardTrace, Rollout, Sample
from finegrained_rlhf.core.seeding import seed_everything
from finegrained_rlhf.inference.inputs import read_prompts
from finegrained_rlhf.models.config import PolicyConfig, ValueConfig
from finegrained_rlhf.models.dropout import set_dropout
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.rewards import RewardComposer, RewardConfig
from finegrained_rlhf.rl.advantages import generalised_advantages, truncated_returns
from finegrained_rlhf.rl.losses import clipped_policy_loss
from finegrained_rlhf.rl.stats import masked_mean, masked_var, masked_whiten
from finegrained_rlhf.rollout import GenerateEngine
from reward_models.scorers import SegmentScorer, SequenceScorer

LAMBDA, CLIP, T5_DROPOUT = 0.95, 0.2, 0.1
EPS, MICRO_BATCHES, BETA_2 = 1e-5, 8, 0.999
WEIGHTS = {"relevance": 0.3, "factuality": 0.5, "completeness": 0.3}


def scored(policy: Policy, rollout: Rollout) -> Tensor:
    """Log-probabilities [R, T] of the rollout under `policy` as it is now."""
    memory = policy.encode(rollout.prompts)
    return policy.logprobs(memory, rollout.prompt_index, rollout.response_ids, rollout.response_mask).logprobs


def dropout(policy: Policy, rollout: Rollout) -> str:
    """The ratio before any update, with T5's dropout in the update."""
    noisy = copy.deepcopy(policy)
    set_dropout(noisy.model, T5_DROPOUT)
    noisy.train()
    seed_everything(0, "dropout")
    with torch.no_grad():
        log_ratio = (scored(noisy, rollout) - rollout.logprobs)[rollout.response_mask.bool()]
    outside = ((log_ratio.exp() - 1).abs() > CLIP).double().mean()
    return (
        f"mean |log ratio| {float(log_ratio.abs().mean()):.3f}; {float(outside):.1%} of the tokens outside 1 ± {CLIP}"
    )


def distribution(policy: Policy, rollout: Rollout, decoding: Sample) -> str:
    """Log-probability of the sampled tokens under the two distributions."""
    sampler = copy.deepcopy(policy)
    sampler.scored = decoding
    with torch.no_grad():
        tempered = scored(sampler, rollout)
    means = (float(masked_mean(values, rollout.response_mask)) for values in (rollout.logprobs, tempered))
    return "mean log-probability a token {:.4f} plain, {:.4f} as sampled".format(*means)


def whitening(trace: RewardTrace, mask: Tensor) -> str:
    """What the original's divisor leaves of the rewards' unit variance."""
    sigma = float(masked_var(trace.total, mask, masked_mean(trace.total, mask)).sqrt())
    return f"token rewards have standard deviation {sigma:.3f}: 1 after whitening here, {sigma**0.5:.3f} there"


def padding(trace: RewardTrace, values: Tensor, mask: Tensor) -> str:
    """Advantages when whitened padding stays and the recursion runs over it."""
    ours, _ = generalised_advantages(
        masked_whiten(trace.total, mask, shift_mean=False), values, mask, discount=1.0, lambda_=LAMBDA
    )
    mean = masked_mean(trace.total, mask)
    scale = torch.rsqrt(masked_var(trace.total, mask, mean) + 1e-8)
    unmasked = ((trace.total.double() - mean) * scale + mean).float()
    theirs, _ = generalised_advantages(unmasked, values, torch.ones_like(mask), discount=1.0, lambda_=LAMBDA)
    return relative(theirs, ours, mask, "advantages")


def value_target(trace: RewardTrace, values: Tensor, mask: Tensor) -> str:
    """The code's value target against the thesis's."""
    rewards = masked_whiten(trace.total, mask, shift_mean=False)
    _, ours = generalised_advantages(rewards, values, mask, discount=1.0, lambda_=LAMBDA)
    return relative(truncated_returns(rewards, mask, discount=1.0), ours, mask, "value targets")


def relative(theirs: Tensor, ours: Tensor, mask: Tensor, what: str) -> str:
    """Mean difference in units of the standard deviation of ours."""
    spread = masked_var(ours, mask, masked_mean(ours, mask)).sqrt()
    difference = masked_mean((theirs - ours).abs(), mask) / spread
    return f"{what} differ by {float(difference):.2f} of their standard deviation on average"


def loss_average(policy: Policy, rollout: Rollout, advantages: Tensor) -> str:
    """Direction of the policy gradient, averaged over tokens and within each response first."""
    mask = rollout.response_mask
    gradients = []
    for weights in (None, (1.0 / mask.sum(dim=1, keepdim=True)).expand_as(advantages)):
        policy.zero_grad(set_to_none=True)
        loss = clipped_policy_loss(
            scored(policy, rollout), rollout.logprobs, advantages, mask, clip=CLIP, weights=weights
        ).loss
        loss.backward()
        gradients.append(torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None]))
    cosine = torch.cosine_similarity(gradients[0], gradients[1], dim=0)
    return f"cosine of the two policy gradients {float(cosine):.3f}"


def response_rows(rollout: Rollout) -> list[list[int]]:
    """The sampled ids of each response, end of sequence included."""
    lengths = rollout.lengths().tolist()
    return [row[:length] for row, length in zip(rollout.response_ids.tolist(), lengths, strict=True)]


def whole_response(policy: Policy, rollout: Rollout) -> str:
    """Where the original puts the reward of a whole response: at the number of ids that are not the pad token."""
    last = rollout.lengths() - 1
    moved = []
    for pad in (policy.pad_id, policy.eos_ids[0]):
        ids = rollout.response_ids.masked_fill(rollout.response_mask == 0, pad)
        moved.append(int(((ids != pad).sum(dim=1) - 1 != last).sum()))
    rows = len(rollout.texts)
    return f"{moved[0]} of {rows} on another token; {moved[1]} of {rows} where the pad token is the end of sequence"


def adam_eps(root: Path) -> str:
    """The last update of the fine-grained run with gradients of n times the size, that is with eps / n."""
    checkpoint = max((root / "fine_grained_rlhf/checkpoints").glob("step_*"), key=lambda path: int(path.name[5:]))
    state = load_file(checkpoint / "optimizer.safetensors")
    updates: tuple[list[Tensor], list[Tensor]] = [], []
    for name in (key.removeprefix("exp_avg/") for key in state if key.startswith("exp_avg/")):
        root_v = (state[f"exp_avg_sq/{name}"] / (1 - BETA_2 ** float(state[f"step/{name}"]))).sqrt()
        for kept, eps in zip(updates, (EPS, EPS / MICRO_BATCHES), strict=True):
            kept.append((state[f"exp_avg/{name}"] / (root_v + eps)).flatten())
    ours, theirs = (torch.cat(kept).double() for kept in updates)
    longer, cosine = theirs.norm() / ours.norm() - 1, torch.cosine_similarity(ours, theirs, dim=0)
    return f"the last update {float(longer):.1%} longer with n = {MICRO_BATCHES}, cosine {float(cosine):.3f}"


def main() -> None:
    """Roll out once and print a line for each deviation."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("directory", type=Path, help="a finished pipeline=factworld/demo")
    root: Path = parser.parse_args().directory
    policy = PolicyConfig(str(root / "sft")).load()
    seed_everything(0, "models")
    value = ValueConfig("separate", str(root / "sft")).load(policy)
    assert value is not None
    prompts = read_prompts(root / "world/train.json", policy.tokenizer, 256)[:16]
    decoding, engine = Sample(4, temperature=0.7, top_k=20), GenerateEngine(policy)
    rollout = engine.decode(engine.encode(prompts), [decoding], max_new_tokens=96)
    models = root / "reward_models"
    components = {
        "relevance": SegmentScorer(str(models / "relevance")),
        "factuality": SegmentScorer(str(models / "factuality")),
        "completeness": SequenceScorer(str(models / "completeness")),
    }
    composer = RewardComposer(RewardConfig(components, WEIGHTS))
    composer.setup(policy.device)
    mask = rollout.response_mask
    with torch.no_grad():
        trace = composer.compose(rollout, composer.score(rollout.row_prompts(), rollout.texts))
        values = value(policy.encode(prompts), rollout.prompt_index, rollout.response_ids) * mask
    rewards = masked_whiten(trace.total, mask, shift_mean=False)
    advantages = masked_whiten(generalised_advantages(rewards, values, mask, discount=1.0, lambda_=LAMBDA)[0], mask)
    lines = {
        "whitening": whitening(trace, mask),
        "padding": padding(trace, values, mask),
        "segment ends": str(total_drift(policy.tokenizer, response_rows(rollout))),
        "whole response": whole_response(policy, rollout),
        "dropout": dropout(policy, rollout),
        "scored distribution": distribution(policy, rollout, decoding),
        "value target": value_target(trace, values, mask),
        "loss average": loss_average(policy, rollout, advantages),
        "normalisation": adam_eps(root),
    }
    print(f"{mask.shape[0]} episodes, {int(mask.sum())} tokens")
    for name, line in lines.items():
        print(f"{name:20} {line}")


if __name__ == "__main__":
    main()
