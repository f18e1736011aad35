"""An RL run as a configuration: what `finegrained train-ppo` builds and runs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.markers import DataName, at_least, harmless
from finegrained_rlhf.inference.config import ResponseMonitor
from finegrained_rlhf.models.config import PolicyConfig, ValueConfig
from finegrained_rlhf.rewards.config import RewardConfig
from finegrained_rlhf.rollout.config import RolloutConfig
from finegrained_rlhf.rollout.environment import Environment
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.training_run import TrainingRun, configured
from finegrained_rlhf.text.chat import PromptConfig
from finegrained_rlhf.training.ppo.advantages import GAE, AdvantageEstimator, check_values
from finegrained_rlhf.training.ppo.config import KLConfig, PPOConfig

if TYPE_CHECKING:
    from finegrained_rlhf.models.policy import Policy
    from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
    from finegrained_rlhf.runtime.loop.types import LoopResult
    from finegrained_rlhf.runtime.processes import Processes
    from finegrained_rlhf.training.ppo.parts import PPOData
    from finegrained_rlhf.training.ppo.trainer import PPOTrainer


@dataclass(frozen=True, kw_only=True)
class TrainPPO(TrainingRun["PPOTrainer"]):
    """Reinforcement learning from fine-grained rewards. Fields of every training run: see `TrainingRun`.

    Attributes:
        data: prompt file, or data set of the Hub (`org/name:split`), to train on.
        policy: starting policy, also the reference.
        value: value model, or none.
        reward: components and weights.
        rollout: sampling.
        ppo: the update; with `algorithm=ppo` also the advantages.
        optimizer: of policy and value model together.
        algorithm: how token rewards become advantages.
        total_steps: training steps; a step draws `rollout.prompts_per_step` prompts.
        validation_data: prompt file for validation; None trains without.
        validation_prompts: use at most so many of them; None uses all.
        validation_decoding: `greedy`, or `sampling`: as many samples a prompt as in training, drawn as they are.
        max_prompt_tokens: longest prompt in tokens.
        prompt_too_long: `truncate` (counted, with a warning) or `refuse`.
        prompt: chat template and system message.
        environment: who replies to the policy's turns, a user or a tool; None: a response is one turn.
        validate_every: training steps between validations; None validates after every step.
        checkpoint_every: training steps between checkpoints; None writes one after every step.
        samples_every: training steps between files of sampled responses with their segment rewards.
        monitor: measures validation responses beside the reward, for example by FactWorld's oracle.
        allow_weak_rewards: train although the stress test of a reward model (`stress.json` beside it) speaks against
            it; the doctor refuses such a run otherwise, and the run itself warns.
        dry_run: say what memory the run needs instead of training it (`finegrained train-ppo`; in Python call
            `preflight`).
        dry_run_on: the GPUs that a dry run is for, `8x80` for eight of 80 GB; None: those of this machine.
    """

    shards_weights: ClassVar[bool] = True

    data: DataName
    policy: PolicyConfig
    value: ValueConfig
    reward: RewardConfig
    rollout: RolloutConfig
    ppo: PPOConfig
    optimizer: OptimizerConfig
    total_steps: Annotated[int, at_least(1), harmless] = field()
    algorithm: AdvantageEstimator = GAE()
    validation_data: DataName | None = None
    validation_prompts: Annotated[int | None, at_least(1)] = None
    validation_decoding: Literal["greedy", "sampling"] = "greedy"
    max_prompt_tokens: int = 1024
    prompt_too_long: Literal["truncate", "refuse"] = "truncate"
    prompt: PromptConfig = PromptConfig()
    environment: Environment | None = None
    validate_every: Annotated[int | None, at_least(1), harmless] = 50
    checkpoint_every: Annotated[int | None, at_least(1), harmless] = 50
    samples_every: Annotated[int, at_least(1), harmless] = 10
    monitor: ResponseMonitor | None = None
    allow_weak_rewards: Annotated[bool, harmless] = False
    dry_run: Annotated[bool, harmless] = False
    dry_run_on: Annotated[str | None, harmless] = None

    def __post_init__(self) -> None:
        if self.dry_run_on is not None and not re.fullmatch(r"[1-9]\d*x[1-9]\d*", str(self.dry_run_on)):
            raise ConfigError(
                f"dry_run_on: expected GPUs and the GB of each, as in 8x80, or null, got {self.dry_run_on!r}"
            )
        self.policy.check_frozen(self.processes.precision, reference=True)
        if self.reward.watch and self.validation_data is None:
            raise ConfigError("reward.watch scores answers at validations; expected validation_data=FILE, got none")
        limit, longest = self.reward.overlong.limit, self.rollout.max_new_tokens
        if limit is not None and limit >= longest:
            raise ConfigError(
                f"reward.overlong.limit: expected fewer than rollout.max_new_tokens={longest}, got {limit}; "
                "no response would be longer"
            )
        if self.ppo.mini_batches > self.rollout.prompts_per_step:
            raise ConfigError(
                f"ppo.mini_batches: expected at most rollout.prompts_per_step={self.rollout.prompts_per_step}, since "
                f"all responses to a prompt stay together, got {self.ppo.mini_batches}"
            )
        if self.processes.sharding == "full" and self.rollout.engine == "continuous":
            raise ConfigError(
                "rollout.engine=continuous keeps weights of its own, processes.sharding=full gathers them for each "
                "rollout: take engine=auto, or sharding=gradients"
            )
        if self.rollout.engine == "vllm" and self.ppo.score_sampling_distribution and not self.rollout.decoding().plain:
            raise ConfigError(
                "ppo.score_sampling_distribution=true weighs tokens by the distribution that they are drawn from, and "
                "vLLM gives that of the plain softmax: expected false, or temperature=1, top_k=0 and top_p=1"
            )
        if self.environment is not None:
            check_environment(self.environment, self.reward, self.rollout)
        if not isinstance(self.algorithm, AdvantageEstimator):
            raise ConfigError(f"algorithm: {type(self.algorithm).__name__} is no estimator of advantages")
        check_values(self.value.kind, self.algorithm)
        check_sampling(self.rollout, self.algorithm, self.reward.end_penalty)
        self.algorithm.check(self.ppo, self.rollout.samples_per_prompt)
        super().__post_init__()

    @property
    def value_heads(self) -> int:
        """Values of a token that the value model gives; 0 without one."""
        return self.algorithm.value_heads(list(self.reward.all_weights), self.ppo)

    @property
    def kl(self) -> KLConfig:
        """`ppo.kl` with `measure` decided: the trainer's, and what a run's memory follows from."""
        return self.ppo.kl.decided(self.ppo.score_sampling_distribution or self.rollout.decoding().plain)

    def run(self) -> LoopResult:
        """Train, or continue training; says where the policy is. `ppo.kl.measure=auto` goes on as the run began.

        Raises:
            ConfigError: it is a dry run; `preflight` says what such a run needs.
        """
        if self.dry_run:
            raise ConfigError("dry_run: this run is described, not trained: use preflight(job, processes)")
        begun = None if self.ppo.kl.measure != "auto" or self.resume == "never" else measure_of_run(self.output_dir)
        if begun is None:
            return super().run()
        config = self.configuration()
        kl = {**config["ppo"]["kl"], "measure": begun}
        job = replace(self, ppo=replace(self.ppo, kl=replace(self.ppo.kl, measure=begun)))
        with configured({**config, "ppo": {**config["ppo"], "kl": kl}}):
            return job.run()

    def train(self, built: PPOTrainer, processes: Processes, run: RunDirectory) -> LoopResult:
        """Run the loop."""
        from finegrained_rlhf.training.ppo.train import train_ppo

        return train_ppo(self, built, processes, run)

    def assemble(self, processes: Processes, run: RunDirectory) -> PPOTrainer:
        """Load data, models and scorers."""
        from finegrained_rlhf.training.ppo.train import assemble_ppo

        return assemble_ppo(self, processes, run)

    def read_data(self, policy: Policy) -> PPOData:
        """The prompts of the run, as this policy reads them.

        Raises:
            DataError: a prompt file is damaged, or a prompt too long and not to be cut.
            ModelError: the tokenizer does not belong to the model.
        """
        from finegrained_rlhf.training.ppo.train import read_ppo_data

        return read_ppo_data(self, policy)


def measure_of_run(path: str) -> Literal["sampled", "exact"] | None:
    """What `ppo.kl.measure` a run with checkpoints began with; None where it is `auto`, or nothing can go on there."""
    from finegrained_rlhf.runtime.directory.run_directory import RunDirectory

    run = RunDirectory(path)
    if not run.config_path.is_file() or not run.checkpoints.is_dir():
        return None
    measure = ((run.read_config().get("ppo") or {}).get("kl") or {}).get("measure")
    return measure if measure in ("sampled", "exact") else None


def check_environment(environment: Environment, reward: RewardConfig, rollout: RolloutConfig) -> None:
    """Require what responses in turns can be rewarded and drawn by.

    Args:
        environment: who replies.
        reward: what is paid, and when.
        rollout: sampling settings.

    Raises:
        ConfigError: it has no replies, prefixes are to be read, or rollouts to be kept.
    """
    if not isinstance(environment, Environment):
        raise ConfigError(f"environment: {type(environment).__name__} has no reply() and role")
    if reward.credit not in ("end", "outcome"):
        raise ConfigError(
            f"reward.credit={reward.credit} reads beginnings of responses that are one turn; with an environment "
            "expected end or outcome"
        )
    for name, setting in reward.settings.items():
        if setting.reading == "prefix":
            raise ConfigError(f"reward.settings.{name}.reading: with an environment expected whole, got prefix")
    if rollout.ahead:
        raise ConfigError("rollout.ahead=1 keeps responses that are one turn; with an environment expected 0")


def check_sampling(rollout: RolloutConfig, algorithm: AdvantageEstimator, end_penalty: float) -> None:
    """Require that what a rollout leaves out or charges can be left out and charged.

    Args:
        rollout: sampling settings.
        algorithm: makes advantages.
        end_penalty: `reward.end_penalty`.

    Raises:
        ConfigError: further draws where no responses to a prompt are compared; or cut responses are to be charged, and
            nothing is taken from them, or to be masked, and something is.
    """
    if rollout.resample and (algorithm.critic or getattr(algorithm, "baseline", None) == "batch_mean"):
        raise ConfigError(
            "rollout.resample draws on where the responses to a prompt have no advantage over each other, and this "
            "algorithm compares none; expected 0, or algorithm=rloo, grpo, dr_grpo or gdpo"
        )
    if rollout.truncated == "charged" and not end_penalty:
        raise ConfigError("rollout.truncated=charged takes reward.end_penalty from cut responses; expected more than 0")
    if rollout.truncated == "masked" and end_penalty:
        raise ConfigError(
            f"rollout.truncated=masked learns nothing of cut responses, which reward.end_penalty={end_penalty:g} "
            "charges; take truncated=charged, or end_penalty=0"
        )
