"""What single deviations change in training on FactWorld (see DEVIATIONS.md).

Example: python benchmarks/deviations_training.py outputs/demo outputs/deviations

Repeats the fine-grained run of a finished FactWorld experiment with one switch each: same models, prompts, seed and
steps. Then trains a policy of sub-words on the same demonstrations and counts how often its samples drift. Every run is
the script of that name and continues where it was killed. About fifteen minutes on one CPU core.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import yaml

from benchmarks.deviations_ends import total_drift
from finegrained_rlhf.core.files import read_jsonl
from finegrained_rlhf.core.records import Sample
from finegrained_rlhf.factworld.report import RATES, exported_validation, mean_error
from finegrained_rlhf.inference.inputs import read_prompts
from finegrained_rlhf.models.config import PolicyConfig
from finegrained_rlhf.rollout import GenerateEngine
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory

SWITCHES = {
    "default": (),
    "value_target": ("ppo.value_target=truncated",),
    "loss_average": ("ppo.loss_average=sequence",),
    "scored": ("ppo.score_sampling_distribution=true",),
}
LATE = 4
SUB_WORDS, SUB_WORD_STEPS, SAMPLED_PROMPTS, MAX_TOKENS = 400, 1200, 64, 120


def script(name: str, *arguments: str) -> None:
    """Run a command of this project on one thread."""
    subprocess.run([sys.executable, "-m", "finegrained_rlhf", name, *arguments], check=True)


def fine_grained(root: Path, output: Path, *switches: str) -> None:
    """The experiment's fine-grained run into `output`, with some settings changed."""
    config = yaml.safe_load((root / "fine_grained_rlhf/config.yaml").read_text(encoding="utf-8"))
    components = ("relevance", "factuality", "completeness")
    script(
        "train_ppo",
        "experiment=factworld/fine_grained",
        f"output_dir={output}",
        f"data={root}/world/train.json",
        f"validation_data={root}/world/dev.json",
        f"policy.path={root}/sft",
        f"value.path={root}/sft",
        *(f"reward.components.{name}.path={root}/reward_models/{name}" for name in components),
        f"total_steps={config['total_steps']}",
        f"optimizer.lr={config['optimizer']['lr']}",
        f"ppo.kl.beta={config['ppo']['kl']['beta']}",
        f"seed={config['seed']}",
        "processes.threads=1",
        *switches,
    )


def result(path: Path) -> str:
    """True errors on the dev questions of the policy that a run exports and of its last validations, and its KL."""
    run = RunDirectory(path)
    validation, last = exported_validation(run), read_jsonl(run.metrics)[-1]
    late = [mean_error(row) for row in read_jsonl(run.eval)[-LATE:]]
    rates = ", ".join(f"{name} {validation[name]:.3f}" for name in RATES)
    return (
        f"mean error {mean_error(validation):.3f} ({rates}) at step {validation['step']}, "
        f"{sum(late) / len(late):.3f} over the last {LATE} validations; KL of step {last['step']} {last['kl']:.2f}"
    )


def sub_word_policy(root: Path, output: Path) -> str:
    """Drift of the segment ends in samples of a policy that was fine-tuned on sub-words."""
    if not (output / "models/t5").is_dir():
        script(
            "make_tiny_models",
            f"data={root}/world/corpus.txt",
            f"output_dir={output}/models",
            "tokenizer=bpe",
            f"vocab_size={SUB_WORDS}",
        )
    script(
        "train_sft",
        "experiment=factworld/sft",
        f"output_dir={output}/sft",
        f"data={root}/world/sft_train.json",
        f"validation_data={root}/world/sft_dev.json",
        f"policy.path={output}/models/t5",
        f"max_answer_tokens={MAX_TOKENS}",
        f"total_steps={SUB_WORD_STEPS}",
        "validate_every=200",
        "processes.threads=1",
    )
    policy = PolicyConfig(str(output / "sft")).load()
    prompts = read_prompts(root / "world/train.json", policy.tokenizer, 256)[:SAMPLED_PROMPTS]
    engine = GenerateEngine(policy)
    rollout = engine.decode(engine.encode(prompts), [Sample(4, 0.7, 20)], max_new_tokens=MAX_TOKENS)
    lengths = rollout.lengths().tolist()
    rows = [row[:length] for row, length in zip(rollout.response_ids.tolist(), lengths, strict=True)]
    return str(total_drift(policy.tokenizer, rows))


def main() -> None:
    """Train, and print a line for each run as it ends."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("directory", type=Path, help="a finished pipeline=factworld/demo")
    parser.add_argument("output", type=Path, help="where the runs are written")
    arguments = parser.parse_args()
    root, output = arguments.directory.resolve(), arguments.output.resolve()
    lines = {"experiment": result(root / "fine_grained_rlhf")}
    for name, switches in SWITCHES.items():
        fine_grained(root, output / name, *switches)
        lines[name] = result(output / name)
    lines["sub-words"] = sub_word_policy(root, output / "sub_words")
    for name, line in lines.items():
        print(f"{name:14} {line}")


if __name__ == "__main__":
    main()
