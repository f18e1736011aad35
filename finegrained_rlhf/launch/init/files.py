"""What `finegrained init` writes: a directory for `--config-dir`, feedback and prompt files, and a page of commands."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.files import write_jsonl, write_text
from finegrained_rlhf.feedback.reading import write_feedback
from finegrained_rlhf.launch.init.records import BAD, Asked, Understood
from finegrained_rlhf.launch.init.settings import Model, Plan, is_adapted, policy_plan, reward_model_plan, sft_plan
from finegrained_rlhf.text.segmentation import shared_segmenter

KIND = "marks"
"""The category of the taxonomy that holds a file's labels, and the component of the reward."""


@dataclass(frozen=True)
class Project:
    """A project in its directory, by the names of its files.

    Attributes:
        name: of the directory, as it is typed.
        place: where it is written; commands read it as `name`.
    """

    name: str
    place: Path

    @property
    def conf(self) -> str:
        """What `--config-dir` is given."""
        return f"{self.name}/conf"

    def data(self, kind: str, part: str) -> str:
        """A file of the data: `feedback` or `prompts` or `answers`, `train` or `dev`."""
        return f"{self.name}/data/{kind}_{part}.{'json' if kind == 'feedback' else 'jsonl'}"

    def has(self, experiment: str) -> bool:
        """Whether it has an experiment."""
        return (self.place / "conf" / "experiment" / f"{experiment}.yaml").is_file()

    def command(self, script: str, experiment: str, *more: str) -> list[str]:
        """The words of a command behind `finegrained`."""
        return [script, "--config-dir", self.conf, f"experiment={experiment}", *more]

    def write(self, path: str, text: str) -> None:
        """Write a file of it by the name that commands use."""
        write_text(self.place / Path(path).relative_to(self.name), text)


def write_data(project: Project, found: Understood, parts: Mapping[str, set[Asked]], chat: bool) -> None:
    """The feedback and the prompts of each part; answers to learn from where there are enough."""
    for part, asked in parts.items():
        prompts = [(one, list(dict.fromkeys(found.prompts[one]))) for one in found.prompts if one in asked]
        files = {
            "prompts": [{**one.row(chat), **({"answer": texts} if texts else {})} for one, texts in prompts],
            "answers": [{**one.row(chat), "answer": texts} for one, texts in prompts if texts],
        }
        for kind, rows in files.items():
            if rows:
                write_jsonl(project.place / Path(project.data(kind, part)).relative_to(project.name), rows)
        records = [record for one, record in found.feedback if one in asked]
        if records:
            write_feedback(project.place / Path(project.data("feedback", part)).relative_to(project.name), records)


def density_of(found: Understood) -> str:
    """What gets a label: the whole answer, where thumbs judge it; sub-sentences, where most marks are shorter than half
    the sentence that they begin in; else sentences.
    """
    if set(found.types) == {BAD}:
        return "response"
    short = 0
    for _, record in found.feedback:
        text, sentences = record.predictions[0], shared_segmenter("english").sentences(record.predictions[0])
        for error in record.feedback.errors if record.feedback else ():
            at = next((s for s in sentences if s[0] <= error.start < s[1]), (0, len(text)))
            short += 2 * (error.end - error.start) < at[1] - at[0]
    return "sub_sentence" if 2 * short > found.types.total() else "sentence"


def write_reward_model(project: Project, found: Understood, model: Model, examples: int) -> Plan:
    """Taxonomy, reward, and the training of the reward model; how it is trained."""
    pairs, passages = not found.types, any(one.passages for one in found.prompts)
    kind, plan = "preference" if pairs else KIND, reward_model_plan(model, examples)
    if not pairs:
        project.write(f"{project.conf}/taxonomy/my_task.yaml", _taxonomy(found, passages))
    scorer = "reward_models.SequenceScorer" if pairs else "reward_models.SegmentScorer"
    project.write(
        f"{project.conf}/reward/my_reward.yaml", _reward(kind, scorer, {"path": f"{project.name}/runs/{kind}"})
    )
    group = "preference" if pairs else "segment"
    longest = min(model.longest, 2048)
    project.write(
        f"{project.conf}/experiment/my_reward_model.yaml",
        f"""# @package _global_
# script: train_reward_model
# The reward model of {"preferences" if pairs else "the marks"}, from {model}.
defaults:
  - override /reward_model: {group}
{"" if pairs else "  - override /taxonomy: my_task" + chr(10)}\
output_dir: {_text(f"{project.name}/runs/{kind}")}
data: {_text(project.data("feedback", "train"))}
validation_data: {_text(project.data("feedback", "dev"))}
model: {_text(model.path)}
validate_every: {max(plan.steps // 10, 1)}
checkpoint_every: {max(plan.steps // 5, 1)}
reward_model:
{"" if pairs else f"  kind: {KIND}" + chr(10)}\
  epochs: null
  steps: {plan.steps}             # {plan.reason}
  max_length: {longest}
  batches:
    batch_size: {plan.batch}        # 16; 8 of fewer than 100 examples
  optimizer:
    lr: {plan.rate:.1e}          # by size: 1e-3 below 10 million parameters, 5e-5 below 100 million, else 1e-5
    warmup_ratio: 0.1    # of all steps
processes:
  precision: auto
""",
    )
    return plan


def _taxonomy(found: Understood, passages: bool) -> str:
    types = "".join(f"      {_text(name)}: {{}}  # {count} marks\n" for name, count in found.types.most_common())
    return f"""\
# What is marked in the answers, and how finely it is paid. To give a label a reward of its own, move it into
# another category, train a reward model of that (reward_model.kind=CATEGORY) and add it to reward/my_reward.yaml.
_target_: finegrained_rlhf.feedback.Taxonomy
name: my_task
categories:
  {KIND}:
    density: {density_of(found)}  # sub_sentence | sentence | response
    reads_passages: {str(passages).lower()}
    types:
{types}correction: false
preferences: false
"""


def _reward(name: str, target: str, settings: Mapping[str, Any]) -> str:
    lines = "".join(f"    {key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in settings.items())
    return f"""# What answers are paid for: components, and what each weighs.
_target_: finegrained_rlhf.rewards.RewardConfig
components:
  {name}:
    _target_: {target}
{lines}weights: {{{name}: 1.0}}
settings:
  {name}:
    _target_: finegrained_rlhf.rewards.ComponentConfig
    empty: -1.0          # an answer without a word is worth no more than a wrong one
"""


def write_given_reward(project: Project, kind: str, named: str) -> None:
    """The reward of a judge, by the name that its endpoint gives it, or of a function or class, by its import path."""
    if kind == "judge":
        text = f"""# What a language model behind an OpenAI-compatible endpoint quotes as wrong.
defaults:
  - judged
  - _self_
components:
  relevance: &judge
    judge:
      model: {_text(named)}
      cache_file: {_text(f"{project.name}/judge.sqlite")}
      # remote: {{url: http://localhost:8000/v1/chat/completions}}
  factuality: *judge
"""
    elif kind == "function":
        called = {"function": {"_target_": named, "_partial_": True}}
        text = _reward("rule", "finegrained_rlhf.rewards.FunctionScorer", called)
    else:
        text = _reward("rule", named, {})
    project.write(f"{project.conf}/reward/my_reward.yaml", text)


def write_policy(project: Project, found: Understood, policy: Model, parts: Mapping[str, set[Asked]]) -> Plan:
    """The training of the policy, and its fine-tuning where there are answers to learn from; how it is trained."""
    plan = policy_plan(policy, len(parts["train"]))
    longest = min(max(policy.tokens(found.answers, 0.95) * 5 // 4, 16), 512)
    asked = min(policy.tokens((str(one.row(False)["text"]) for one in found.prompts), 1) + 64, policy.longest, 2048)
    shared = f"""\
policy:
  path: {_text(policy.path)}
max_prompt_tokens: {asked}     # the longest prompt of a sample, and 64 for a chat template
{"prompt:" + chr(10) + '  chat_template: "on"  # the policy has one' + chr(10) if policy.chat else ""}\
processes:
  precision: auto
"""
    lora = "  - override /policy: lora  # a billion parameters or more\n" if is_adapted(policy) else ""
    project.write(
        f"{project.conf}/experiment/my_ppo.yaml",
        f"""# @package _global_
# script: train_ppo
# Reinforcement learning of {policy} on the reward of reward/my_reward.yaml.
defaults:
  - override /reward: my_reward
  - override /algorithm: rloo  # no value model to train; others: docs/algorithms.md
  - override /value: none
{lora}\
output_dir: {_text(f"{project.name}/runs/ppo")}
data: {_text(project.data("prompts", "train"))}
validation_data: {_text(project.data("prompts", "dev"))}
total_steps: {plan.steps}           # {plan.reason}
validate_every: {max(plan.steps // 10, 1)}
checkpoint_every: {max(plan.steps // 5, 1)}
rollout:
  prompts_per_step: {plan.batch}   # at most 16, with four answers each
  max_new_tokens: {longest}     # a quarter more than 19 of 20 answers of the file have; 16 to 512
optimizer:
  lr: {plan.rate:.1e}            # 1e-3 below 10 million parameters, 3e-5 below 100, 1e-5 below 1,000, LoRA 1e-4
  warmup_steps: {plan.warmup}         # a tenth
{shared}""",
    )
    answered = [sum(1 for one in asked if found.prompts[one]) for asked in parts.values()]
    if min(answered):
        sft = sft_plan(policy, answered[0])
        project.write(
            f"{project.conf}/experiment/my_sft.yaml",
            f"""# @package _global_
# script: train_sft
# Answers that nobody found fault with, to begin from: then policy.path={project.name}/runs/sft for my_ppo.
{"defaults:" + chr(10) + lora if lora else ""}\
output_dir: {_text(f"{project.name}/runs/sft")}
data: {_text(project.data("answers", "train"))}
validation_data: {_text(project.data("answers", "dev"))}
batch_size: {sft.batch}
total_steps: {sft.steps}          # {sft.reason}
max_answer_tokens: {longest}
optimizer:
  lr: {sft.rate:.1e}
  warmup_steps: {sft.warmup}
{shared}""",
        )
    return plan


def write_readme(project: Project, lines: Sequence[str]) -> None:
    """The page of commands, and what was understood."""
    project.write(f"{project.name}/README.md", f"# {Path(project.name).name}\n\n{_page(project, lines)}")


def commands(project: Project) -> Iterator[str]:
    """The commands of the project in their order, as they are typed."""
    if project.has("my_reward_model"):
        yield typed(project.command("train-reward-model", "my_reward_model"))
    if project.has("my_ppo"):
        yield typed(project.command("train-ppo", "my_ppo"))
        yield typed(["report", f"run={project.name}/runs/ppo"])


def typed(words: Iterable[str]) -> str:
    """A command line as it is typed."""
    return shlex.join(["finegrained", *words])


def _page(project: Project, lines: Sequence[str]) -> str:
    sft = typed(project.command("train-sft", "my_sft"))
    first = (
        f"\nWhere the policy does not answer in this form yet, fine-tune it first, and give `my_ppo` what it becomes "
        f"(`policy.path={project.name}/runs/sft`):\n\n```bash\n{sft}\n```\n"
        if project.has("my_sft")
        else ""
    )
    listed = "\n".join(f"- {line}" for line in lines)
    return f"""```bash
{chr(10).join(commands(project))}
```
{first}
`{typed(["try", project.name])}` checks all of it on ten records. Rates, batches and steps, each with its reason,
stand in `conf/experiment/`; what is marked in `conf/taxonomy/`; weights in `conf/reward/`.

{listed}
"""


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
