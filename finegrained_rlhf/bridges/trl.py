"""TRL's GRPO trainer with dense rewards and advantages of ours: its generation, update, sharding, adapters and logging.

TRL's loss takes advantages of the shape [R, T] from a subclass. Importing this module imports TRL.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

from finegrained_rlhf.bridges.advantages import DenseAdvantages, Scored
from finegrained_rlhf.bridges.recording import RunRecorder
from finegrained_rlhf.bridges.trainers import TRLFunction, named, prompts_of_columns
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.core.records import Experience
from finegrained_rlhf.rewards.config import RewardConfig
from finegrained_rlhf.runtime.job import as_config
from finegrained_rlhf.training.ppo.advantages import AdvantageEstimator, GroupAdvantages
from finegrained_rlhf.training.ppo.metrics import KeptSamples

TRIED = ("1.16",)
"""Versions of TRL whose source was read for this and with which the tests of `make test-trl` ran."""
try:
    import trl
except ImportError as error:
    raise ConfigError(f"TRL cannot be imported ({error}); make env-trl makes an environment with it") from None
if ".".join(trl.__version__.split(".")[:2]) not in TRIED:
    raise ConfigError(
        f"TRL {trl.__version__} was not tried: its trainer's methods without a public name may differ; expected "
        f"{' or '.join(TRIED)}, which make env-trl installs"
    )

import torch  # noqa: E402 (TRL is asked for first)
from accelerate.utils import gather_object  # noqa: E402

_STATE = "reward_state.json"
_NAMES = {
    "learning_rate": "lr",
    "grad_norm": "gradient_norm",
    "entropy": "entropy",
    "clip_ratio/region_mean": "clip_fraction/policy",
    "clip_ratio/low_mean": "clip_fraction/policy_low",
    "clip_ratio/high_mean": "clip_fraction/policy_high",
    "step_time": "time/total_s",
}
"""What our metrics call a number of TRL's of the same meaning; every other one is `trl/NAME`."""


class FineGrainedGRPOTrainer(trl.GRPOTrainer):  # type: ignore[misc,name-defined]
    """TRL's `GRPOTrainer` whose advantages are ours: of any reward, by any estimator without a value model.

    TRL draws, updates, shards, logs and saves as its `GRPOConfig` says. `scale_rewards` and
    `multi_objective_aggregation` have no effect on training: `algorithm` says how rewards are compared. `output_dir` is
    a run directory of ours as well. In evaluation advantages are 0, so that `eval_loss` is the KL penalty.

    Args:
        model: as in `GRPOTrainer`.
        reward: components, weights, settings.
        args: TRL's settings; `num_generations` is the size of a group.
        algorithm: makes advantages of rewards; RLOO on the sum of each response where None.
        samples: which responses are written down with their trace; the defaults of `KeptSamples` where None.
        kwargs: further arguments of `GRPOTrainer`: data sets, whose columns are metadata of our prompts, `peft_config`,
            `rollout_func`, callbacks.

    Raises:
        ConfigError: the estimator cannot be used, or an argument is given that this trainer decides or cannot follow:
            `reward_funcs`, `reward_weights`, `tools`, `environment_factory`.
    """

    def __init__(
        self,
        model: Any,
        reward: RewardConfig,
        args: Any,
        *,
        algorithm: AdvantageEstimator | None = None,
        samples: KeptSamples | None = None,
        **kwargs: Any,
    ) -> None:
        for name in ("reward_funcs", "tools", "environment_factory"):
            if kwargs.get(name) is not None:
                raise ConfigError(f"{name}: the reward of a FineGrainedGRPOTrainer is its `reward`, of one turn")
        if args.reward_weights is not None:
            raise ConfigError("reward_weights: the weights are those of `reward`; leave it away")
        args = copy.copy(args)
        args.reward_weights = [float(weight) for weight in reward.all_weights.values()]
        self._own: Scored | None = None
        functions = [self._component(name) for name in reward.all_weights]
        super().__init__(model, functions, args, **kwargs)
        self.dense = DenseAdvantages(
            reward,
            algorithm or GroupAdvantages(),
            self._tokenizer,
            eos_ids=self.eos_token_ids,
            samples=self.num_generations,
            longest=args.max_completion_length,
            device=self.accelerator.device,
        )
        settings = {"reward": reward, "algorithm": self.dense.algorithm, "seed": args.seed}
        config = as_config(settings) | {"output_dir": str(args.output_dir), "trl": as_config(args.to_dict())}
        self.recorder = RunRecorder(
            str(args.output_dir), config, samples or KeptSamples(), self._tokenizer, self.eos_token_ids
        )

    # Rewards --------------------------------------------------------------------------------------------------------

    def _component(self, name: str) -> TRLFunction:
        """What TRL logs of a component: the sum of a response's values before the weight; NaN without a score."""

        def function(prompts: Sequence[Any], completion_ids: Sequence[Sequence[int]], **columns: Any) -> list[float]:
            if self._own is None:
                rows = prompts_of_columns(prompts, columns)
                self._own = self.dense.score(rows, [list(map(int, ids)) for ids in completion_ids])
            return self._sums(name, self._own)

        return named(name, function)

    def _sums(self, name: str, scored: Scored) -> list[float]:
        penalties = self.dense.composer.config.penalties.count_in(scored.rollout, self.eos_token_ids)
        scores = {**scored.scores, **penalties}
        used, gate = self.dense.composer.used_values(scores)[name], self.dense.composer.gate(name, scores)
        return [
            math.nan if row in scores[name].unscored else float(sum(values)) if gate is None or gate[row] else 0.0
            for row, values in enumerate(used)
        ]

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """TRL's batch of this process with advantages [R, T] in place of one number a response."""
        step, train = self.state.global_step + 1, bool(self.model.training)
        self._own = None
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if "tool_mask" in output:
            raise ConfigError("rollout_func gave an env_mask: responses in turns cannot be followed; leave it away")
        parts = gather_object([self._own])
        experience = self.dense.experience(parts, step, train=train)
        self._record(step, experience, train)
        here = self.accelerator.process_index
        start = sum(len(part.rollout.texts) for part in parts[:here])
        own = experience.advantages[start : start + len(inputs)]
        ids = output["completion_ids"]
        dense = torch.zeros(ids.shape, dtype=torch.float32, device=ids.device)
        width = min(own.shape[1], ids.shape[1])
        dense[:, :width] = own[:, :width].to(ids.device)
        output["advantages"] = dense
        self._show(experience)
        return output

    def _show(self, experience: Experience) -> None:
        """In TRL's table of completions a response's mean advantage in place of TRL's."""
        lengths = experience.rollout.lengths().clamp(min=1)
        means = (experience.advantages.sum(dim=1) / lengths).tolist()
        shown = self._logs["advantages"]
        for _ in range(min(len(means), len(shown))):
            shown.pop()
        shown.extend(means)

    # The run ----------------------------------------------------------------------------------------------------------

    def _record(self, step: int, experience: Experience, train: bool) -> None:
        if not self.accelerator.is_main_process:
            return
        self.recorder.begin(self.state.global_step, self.accelerator.num_processes)
        if train:
            self.recorder.add(step, experience)
        else:
            self.recorder.add_validation(self.state.global_step, experience)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As TRL's; what was measured in training goes into our metrics as well."""
        train = bool(self.model.training)
        super().log(logs, start_time)  # which puts TRL's own metrics into `logs`
        if train and self.accelerator.is_main_process:
            self.recorder.log({_NAMES.get(name, f"trl/{name}"): value for name, value in logs.items()})

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As TRL's."""
        result = super().train(*args, **kwargs)
        if self.accelerator.is_main_process:
            self.recorder.end(self.state.global_step, self.state.max_steps)
        return result

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """As TRL's; rewards and their trace become a validation of our run."""
        measured: dict[str, float] = super().evaluate(*args, **kwargs)
        if self.accelerator.is_main_process:
            self.recorder.end_validation(self.state.global_step)
        return measured

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.accelerator.is_main_process:
            self.recorder.flush()
            folder = self.recorder.run.path / f"checkpoint-{self.state.global_step}"
            write_json(folder / _STATE, self.dense.composer.state())

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            self.dense.composer.load_state(read_json(f"{checkpoint}/{_STATE}"))
