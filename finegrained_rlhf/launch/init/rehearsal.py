"""The trainings of a project on ten records: each a command of its own, as people type it, in a temporary directory."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.files import read_json, read_jsonl, write_json, write_jsonl
from finegrained_rlhf.launch.children import complaint, ended_by_signals, last_output, run_logged
from finegrained_rlhf.launch.init.files import Project
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory

RECORDS = 10
_STEPS, _PPO_STEPS, _PROMPTS = 8, 2, 4
_NOTHING = 1e-12
"""What is no movement: a policy that was updated differs by more."""


@dataclass
class Rehearsal:
    """What came of it.

    Attributes:
        metrics: of each step, by experiment.
        problems: what is wrong, a line each.
    """

    metrics: dict[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def seconds(self, experiment: str, batch: int) -> float | None:
        """The seconds of a step with a whole batch, by the shortest step of the rehearsal; None where it has none."""
        key = "time/total_s" if experiment == "my_ppo" else "time/step_s"
        steps = [float(step[key]) for step in self.metrics.get(experiment, ())]
        return min(steps) * batch / (_PROMPTS if experiment == "my_ppo" else RECORDS) if steps else None


def duration(seconds: float) -> str:
    """Seconds, minutes or hours in words."""
    if seconds < 120:
        return f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 7200 else f"about {seconds / 3600:.1f} h"


def rehearse(project: Project, scratch: Path, say: Callable[[str], None] = lambda line: None) -> Rehearsal:
    """Train the reward model for a few steps on ten records, then the policy by it for two.

    Args:
        project: whose configuration is right.
        scratch: an empty directory, for all that is written.
        say: is given each line of what moved.
    """
    done, reward = Rehearsal(), []
    if project.has("my_reward_model"):
        records = read_json(Path(project.data("feedback", "train")))
        write_json(scratch / "feedback.json", _mixed(records))
        more = [f"data={scratch}/feedback.json", "validation_data=null", "held_out=0", f"reward_model.steps={_STEPS}"]
        more += [f"reward_model.batches.batch_size={RECORDS}", "reward_model.optimizer.warmup_ratio=0"]
        more += ["reward_model.optimizer.schedule=constant", f"checkpoint_every={_STEPS}"]
        if not _ran(project, scratch, "train-reward-model", "my_reward_model", more, done):
            return done
        _judge_reward_model(done, say)
        reward = [f"reward.components.{_component(project)}.path={scratch}/my_reward_model"]
    if project.has("my_ppo"):
        write_jsonl(scratch / "prompts.jsonl", read_jsonl(project.data("prompts", "train"))[:RECORDS])
        more = [f"data={scratch}/prompts.jsonl", "validation_data=null", f"total_steps={_PPO_STEPS}", *reward]
        more += [f"rollout.prompts_per_step={_PROMPTS}", "optimizer.warmup_steps=0", "samples_every=1"]
        more += ["optimizer.schedule=constant", f"checkpoint_every={_PPO_STEPS}"]
        if _ran(project, scratch, "train-ppo", "my_ppo", more, done):
            _judge_policy(done, scratch, say)
    return done


def _mixed(records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Ten records, half of them with marks where there are so many."""
    marked = [record for record in records if record.get("feedback", {}).get("errors")]
    others = [record for record in records if not record.get("feedback", {}).get("errors")]
    count = max(RECORDS // 2, RECORDS - len(others))
    return [*marked[:count], *others[: RECORDS - len(marked[:count])]]


def _component(project: Project) -> str:
    """The component of the reward that the reward model is."""
    from omegaconf import OmegaConf

    return str(next(iter(OmegaConf.load(project.place / "conf" / "reward" / "my_reward.yaml").components)))


def _ran(project: Project, scratch: Path, script: str, experiment: str, more: Sequence[str], done: Rehearsal) -> bool:
    output, log = scratch / experiment, scratch / f"{experiment}.log"
    command = [sys.executable, "-m", "finegrained_rlhf", *project.command(script, experiment, *more)]
    with ended_by_signals():
        status = run_logged([*command, f"output_dir={output}"], log)
    if status != 0:
        done.problems.append(f"finegrained {script}: {complaint(last_output(log)).removeprefix('error: ')}")
        return False
    done.metrics[experiment] = read_jsonl(RunDirectory(output).metrics)
    return True


def _judge_reward_model(done: Rehearsal, say: Callable[[str], None]) -> None:
    losses = [float(step["loss"]) for step in done.metrics["my_reward_model"]]
    say(f"reward model: loss {losses[0]:.3f} → {losses[-1]:.3f} in {len(losses)} steps on {RECORDS} records")
    if not all(map(math.isfinite, losses)) or min(losses[1:]) >= losses[0]:
        done.problems.append("the reward model's loss does not fall on the ten records that it is shown: see its rate")


def _judge_policy(done: Rehearsal, scratch: Path, say: Callable[[str], None]) -> None:
    steps = done.metrics["my_ppo"]
    paid = ", ".join(f"{step['reward/total']:.3f}" for step in steps)
    say(f"policy: KL {steps[0]['kl']:.2g} → {steps[-1]['kl']:.2g} from where it began; mean reward {paid}")
    say(f"answers: {steps[-1]['response_length']:.0f} tokens, {steps[-1]['truncated']:.0%} of them cut off")
    sample = read_jsonl(scratch / "my_ppo" / "samples" / f"step_{_PPO_STEPS}.jsonl")[0]
    paid = ", ".join(f"{segment['raw']:+.2f}" for segment in sample["segments"]) or "nothing"
    say(f"one of them: {sample['response'][:80]!r}, paid {paid}")
    if all(step["groups/no_advantage"] == 1 for step in steps):
        problem = "all answers to a prompt earn the same: the policy cannot learn which is better"
        if "my_reward_model" in done.metrics:  # so early that it says one thing of all answers
            say(f"{problem}, as long as the reward model has had {_STEPS} steps")
        else:
            done.problems.append(problem)
    elif not all(math.isfinite(step["kl"]) for step in steps) or abs(steps[-1]["kl"]) < _NOTHING:
        done.problems.append("the policy does not move: see its rate")
