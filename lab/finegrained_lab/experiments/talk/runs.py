"""The runs on TalkWorld: a chat model that learns from its demonstrations, and what RLOO makes of it by each reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from finegrained_lab.experiments.talk.trace import named_turns
from finegrained_lab.worlds.talk import KINDS, MakeTalkWorld, TalkTool, TurnVerdicts, is_luck, verdicts
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.markers import InputFile, OutputDirectory, Seed, above, at_least
from finegrained_rlhf.core.records import Sample
from finegrained_rlhf.models.config import PolicyConfig, ValueConfig
from finegrained_rlhf.models.tiny import TinyLlamaConfig
from finegrained_rlhf.rewards import RewardConfig
from finegrained_rlhf.rollout import RolloutConfig
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.text.chat import PromptConfig
from finegrained_rlhf.training.ppo.advantages import GroupAdvantages
from finegrained_rlhf.training.ppo.config import KLConfig, PPOConfig
from finegrained_rlhf.training.ppo.job import TrainPPO
from finegrained_rlhf.training.sft import TrainSFT

Arm = Literal["dense", "outcome", "sooner", "shuffled"]
ARMS: tuple[Arm, ...] = ("dense", "outcome", "sooner", "shuffled")
REWARD = "turns"
"""The one component."""
LONGEST = 144
"""Tokens of a whole conversation behind its prompt, and more than enough."""
TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message.role + '|>' + message.content + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
_ONE_THREAD = ProcessConfig(precision="fp32", threads=1)


@dataclass(frozen=True)
class PrepareTalk(Settings):
    """Make a world (`world/`), a tiny chat model (`model/`), and train it on the demonstrations (`sft/`).

    Attributes:
        output_dir: of the three.
        seed: of world, weights and training.
        steps: of supervised training, of 64 turns.
        model: sizes.
    """

    output_dir: OutputDirectory
    seed: Seed = 0
    steps: Annotated[int, at_least(1)] = 300
    model: TinyLlamaConfig = field(default_factory=lambda: TinyLlamaConfig(max_length=352))

    def run(self) -> dict[str, Any]:
        """Write all, and `sft.json`: what the model does before it is rewarded."""
        root = Path(self.output_dir)
        world = MakeTalkWorld(str(root / "world"), seed=self.seed)
        world.run()
        _save_chat_model(root / "model", world.vocabulary(), self.model, self.seed)
        TrainSFT(
            output_dir=str(root / "sft"),
            data=str(root / "world/demonstrations.jsonl"),
            policy=PolicyConfig(str(root / "model")),
            total_steps=self.steps,
            batch_size=64,
            micro_batch_size=64,
            max_answer_tokens=8,
            max_prompt_tokens=128,
            dropout=0.0,
            checkpoint_every=self.steps,
            optimizer=OptimizerConfig(lr=6e-3, warmup_steps=20),
            processes=_ONE_THREAD,
            seed=self.seed,
        ).run()
        measured = {split: measure(root / "sft", root / f"world/{split}.jsonl") for split in ("dev", "test")}
        write_json(root / "sft.json", measured)
        return measured


@dataclass(frozen=True)
class TrainTalk(Settings):
    """Train a prepared model by RLOO on the oracle's verdicts, paid as the arm says, and measure it.

    Attributes:
        prepared: directory of `PrepareTalk`.
        output_dir: run directory; `measured.json` in it has the numbers.
        arm: `dense`: each turn's verdict where it ends, and a turn is compared with the same turn of the prompt's other
            conversations from there on; `outcome`: their sum at the end; `sooner`, `shuffled`: `dense` with the
            verdicts of other turns (`TurnVerdicts`).
        lr: learning rate.
        beta: of the KL penalty.
        steps: of 4 prompts with 4 conversations each.
        seed: of the draws.
        splits: prompts to measure on.
    """

    prepared: InputFile
    output_dir: OutputDirectory
    arm: Arm
    lr: Annotated[float, above(0)]
    beta: Annotated[float, at_least(0)]
    steps: Annotated[int, at_least(1)] = 40
    seed: Seed = 0
    splits: Sequence[str] = ("test",)

    def __post_init__(self) -> None:
        if self.arm not in ARMS:
            raise ConfigError(f"arm: expected {', '.join(ARMS)}, got {self.arm!r}")

    def run(self) -> dict[str, Any]:
        """Train, and write the numbers."""
        root, world = Path(self.output_dir), Path(self.prepared) / "world"
        outcome = self.arm == "outcome"
        TrainPPO(
            output_dir=str(root),
            data=str(world / "train.jsonl"),
            policy=PolicyConfig(str(Path(self.prepared) / "sft")),
            value=ValueConfig("none", None),
            reward=RewardConfig(
                {REWARD: TurnVerdicts(self.arm if self.arm in ("sooner", "shuffled") else "own")},  # type: ignore[arg-type]
                {REWARD: 1.0},
                credit="outcome" if outcome else "end",
            ),
            rollout=RolloutConfig(4, 4, max_new_tokens=LONGEST, temperature=1.0, top_k=0),
            ppo=PPOConfig(
                epochs=1,
                score_sampling_distribution=True,
                loss_average="constant",
                micro_batch_prompts=4,
                kl=KLConfig(beta=self.beta, limit=None),
            ),
            algorithm=GroupAdvantages(credit="outcome" if outcome else "returns"),
            optimizer=OptimizerConfig(lr=self.lr, warmup_steps=3),
            environment=TalkTool(),
            total_steps=self.steps,
            max_prompt_tokens=128,
            checkpoint_every=self.steps,
            samples_every=1,
            processes=_ONE_THREAD,
            seed=self.seed,
        ).run()
        measured = {split: measure(root, world / f"{split}.jsonl") for split in self.splits}
        measured["trace"] = named_turns(RunDirectory(root), world / "world.jsonl", REWARD)
        write_json(root / "measured.json", measured)
        return measured


def measure(checkpoint: Path, data: Path, seed: int = 1) -> dict[str, float]:
    """What the oracle says of one sampled conversation a prompt.

    Returns:
        `errors`: wrong turns that were no luck, mean; `planted`, `luck`, `others`: share of wrong turns among those
        that demonstrations get wrong, those of luck, and the rest; `perfect`: share of conversations without errors.
    """
    from finegrained_rlhf.inference.inputs import prompts_for
    from finegrained_rlhf.rollout import make_engine
    from finegrained_rlhf.rollout.turns import in_turns

    policy = PolicyConfig(str(checkpoint)).load()
    prompts = prompts_for(policy, str(data), 128, "refuse", PromptConfig())
    engine = in_turns(make_engine(policy), policy, TalkTool(), prompts)
    rollout = engine.decode(engine.encode(prompts), [Sample(1)], max_new_tokens=LONGEST, seed=seed)
    wrong: dict[str, list[bool]] = {"planted": [], "others": [], "luck": []}
    perfect = 0
    for prompt, text, turns in zip(prompts, rollout.texts, rollout.turns, strict=True):
        messages = [prompt.metadata["question"], *(message["content"] for message in turns.messages)]
        right, errors = verdicts(prompt.id, messages, [text[start:end] for start, end in turns.spans]), 0
        for number, good in enumerate(right):
            luck = number < len(messages) and is_luck(messages[number])
            what = "luck" if luck else "planted" if number == KINDS[messages[0].split()[0]] else "others"
            wrong[what].append(not good)
            errors += not good and not luck
        perfect += errors == 0
    return {
        "errors": (sum(wrong["planted"]) + sum(wrong["others"])) / len(prompts),
        **{what: sum(each) / len(each) for what, each in wrong.items()},
        "perfect": perfect / len(prompts),
    }


def _save_chat_model(path: Path, corpus: Sequence[str], sizes: TinyLlamaConfig, seed: int) -> None:
    from finegrained_rlhf.models.tiny_networks import build_llama, build_tokenizer, causal_tokenizer

    tokenizer = causal_tokenizer(build_tokenizer(corpus), sizes.max_length)
    tokens: Mapping[str, Any] = {
        "extra_special_tokens": [*(f"<|{role}|>" for role in ("user", "assistant", "tool")), "<|end|>"]
    }
    tokenizer.add_special_tokens(tokens)
    tokenizer.chat_template = TEMPLATE
    build_llama(tokenizer, sizes, seed=seed).save_pretrained(path)
    tokenizer.save_pretrained(path)
