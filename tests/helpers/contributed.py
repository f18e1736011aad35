"""`python contributed.py CHANGE`, in a tree with CONTRIBUTING's changes: sees that one of them works.

Run by the fork server, whose modules of the project are the checkout's: they are forgotten, and come from the tree.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from finegrained_rlhf.training.ppo.advantages import Estimate, RewardedRollout

TREE = Path.cwd()
HELPERS = TREE / "tests/helpers"
_OURS = ("finegrained_rlhf", "finegrained_lab", "reward_models", "benchmarks")


def use_the_tree() -> None:
    """Import the project and the helpers of tests from the tree, whatever is imported already."""
    own = {path.stem for path in HELPERS.glob("*.py")}
    for name in [name for name in sys.modules if name.partition(".")[0] in {*_OURS, *own}]:
        del sys.modules[name]
    sys.path[:0] = [str(TREE), str(TREE / "lab"), str(HELPERS)]
    import finegrained_rlhf

    assert Path(finegrained_rlhf.__file__).is_relative_to(TREE)


def composed(*overrides: str) -> dict[str, Any]:
    """What `train-ppo` builds of a command line, by name."""
    from hydra import compose, initialize_config_dir

    from finegrained_rlhf.launch.build import build
    from finegrained_rlhf.launch.filling import fill_defaults
    from finegrained_rlhf.launch.steps import resolved

    fill_defaults()
    with initialize_config_dir(str(TREE / "conf"), version_base=None):
        config = resolved(compose("train_ppo", ["experiment=smoke", *overrides]))
    return {name: build(config[name]) for name in ("reward", "algorithm", "ppo")}


def step_with(algorithm: Any, directory: str, **options: Any) -> tuple[RewardedRollout, Estimate]:
    """What an algorithm was given in one step of PPO on tiny data, and what it gave; the step has moved the policy."""
    import torch
    from ppo_toy import make_trainer

    seen = []

    class Watched(type(algorithm)):  # type: ignore[misc]
        def estimate(self, given: RewardedRollout, *others: Any) -> Estimate:
            seen.append((given, super().estimate(given, *others)))
            return seen[-1][1]

    watched = Watched(**vars(algorithm))
    trainer = make_trainer(TREE / directory, algorithm=watched, **options)
    parameters = list(trainer.models.policy.model.parameters())
    before = [parameter.detach().clone() for parameter in parameters]
    trainer.train_step(1)
    assert any(not torch.equal(old, new) for old, new in zip(before, parameters, strict=True))
    (step,) = seen
    return step


def key() -> None:
    """Rewards beyond the limit are cut; without one they are not."""
    config, algorithm = (composed("ppo.reward_limit=0.5")[name] for name in ("ppo", "algorithm"))
    assert config.reward_limit == 0.5 and composed()["ppo"].reward_limit is None
    largest = {
        limit: float(step_with(algorithm, f"key_{limit}", reward_limit=limit)[1].rewards.abs().max())
        for limit in (None, 0.1)
    }
    assert largest[None] > 0.2 and abs(largest[0.1] - 0.1) < 1e-6, largest


def reward() -> None:
    """It composes as one of a run, and scores a long answer, a short one and none."""
    found = composed("reward=brevity", "reward.components.brevity.words=2")["reward"]
    assert dict(found.weights) == {"brevity": 0.1}
    scores = found.components["brevity"].score([None] * 3, ["one two three four", "one", ""])
    assert list(scores.values) == [(-2.0,), (0.0,), (0.0,)] and scores.whole_response


def algorithm() -> None:
    """A step of it trains, on advantages over the median of each prompt's rewards."""
    chosen = composed("algorithm=median", "rollout.samples_per_prompt=3")["algorithm"]
    given, made = step_with(chosen, "algorithm", samples=3)
    scores, rows = (given.rewards() * given.mask).sum(dim=1).tolist(), given.rollout.prompt_index.tolist()
    for row, prompt in enumerate(rows):
        middle = sorted(score for score, other in zip(scores, rows, strict=True) if other == prompt)[1]
        tokens = made.advantages[row, given.mask[row].bool()].tolist()
        assert all(abs(advantage - (scores[row] - middle)) < 1e-5 for advantage in tokens)
    assert made.values is None and float(made.advantages.abs().max()) > 0


def family() -> None:
    """Log-probabilities are those of the whole model, and what is decoded is what `generate` says."""
    import torch
    from families_toy import WINDOW, batch, family_policy, transformers_rows

    from finegrained_rlhf.core.records import Greedy
    from finegrained_rlhf.rollout import make_engine

    policy = family_policy("starcoder2")
    asked, rows, ids, mask = batch()
    assert max(len(prompt.input_ids) for prompt in asked) > WINDOW
    with torch.no_grad():
        logprobs = policy.logprobs(policy.encode(asked), rows, ids, mask).logprobs
        whole = transformers_rows(policy.model, asked, rows, ids).log_softmax(dim=-1)
        expected = whole.gather(-1, ids.unsqueeze(-1)).squeeze(-1) * mask
        torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=0)
        engine = make_engine(policy)
        rollout = engine.decode(engine.encode(asked), [Greedy()], max_new_tokens=8, seed=0, step=1)
        for row, prompt in enumerate(asked):
            inputs = torch.tensor([prompt.input_ids])
            said = policy.model.generate(inputs, do_sample=False, max_new_tokens=8)[0, inputs.shape[1] :].tolist()
            assert rollout.response_ids[row, rollout.response_mask[row].bool()].tolist() == said


if __name__ == "__main__":
    use_the_tree()
    change = globals()[sys.argv[1]]
    assert isinstance(change, FunctionType)
    change()
