"""The memory plans of `dry_run` for T5-large, T5-3B, T5-11B and an 8B Llama, by sharding and number of GPUs.

Examples:
    python benchmarks/memory_plans.py out=plans
    python benchmarks/memory_plans.py out=plans models=t5-3b gpus=2,4 gb=80

The paper's setting; the Llama is drawn from by vLLM servers, scored by a server of rewards, and has a value model of
its own size (docs/multi_node.md). Writes the models' configurations and a prompt file under `out`, no weights, so that
`finegrained train-ppo … dry_run=true` can be asked too, and plans the same job for every mode of `processes.sharding`.
Prints a table. See docs/doctor.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hydra import compose, initialize_config_dir
from transformers import LlamaConfig, LongformerConfig, T5Config

from benchmarks.command import read_arguments, run_main
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.launch.build import build, resolved
from finegrained_rlhf.launch.filling import fill_defaults
from finegrained_rlhf.models.tiny_networks import build_tokenizer, causal_tokenizer
from finegrained_rlhf.preflight.memory.plan import Plan
from finegrained_rlhf.preflight.memory.preflight import Machine, plan_of
from finegrained_rlhf.preflight.memory.report import GIB, USABLE, peak
from finegrained_rlhf.runtime.job import RESERVED_KEYS
from finegrained_rlhf.runtime.process_config import SHARDING
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.tables import markdown_table
from finegrained_rlhf.training.ppo.job import TrainPPO

CONF = Path(__file__).resolve().parents[1] / "conf"
SIZES: dict[str, dict[str, int]] = {
    "t5-base": {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12, "d_kv": 64},
    "t5-large": {"d_model": 1024, "d_ff": 4096, "num_layers": 24, "num_heads": 16, "d_kv": 64},
    "t5-3b": {"d_model": 1024, "d_ff": 16384, "num_layers": 24, "num_heads": 32, "d_kv": 128},
    "t5-11b": {"d_model": 1024, "d_ff": 65536, "num_layers": 24, "num_heads": 128, "d_kv": 128},
}
"""As in the `config.json` of google-t5's models; the vocabulary has 32,128 rows."""
LLAMA = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}
"""As Llama 3's of 8 billion parameters; input and output embeddings are two matrices."""
CONTENT_WORDS = 1013
"""Of a prompt's passage: with the words around it 1,024 tokens."""
REWARDS = ("relevance", "factuality", "completeness")
POLICIES = ("t5-large", "t5-3b", "t5-11b", "llama-8b")
SETTING = (
    "rollout.prompts_per_step=8",
    "policy.gradient_checkpointing=true",
    "policy.frozen_dtype=bfloat16",
    "ppo.micro_batch_prompts=1",
    "rollout.prompts_per_batch=1",
)
"""Beside `experiment=qa_feedback/fine_grained`: prompts of a step on all GPUs, and the settings that save memory."""
SERVERS = (
    "reward=served",
    "reward.components.relevance.remote.url=http://node4:8600",
    "rollout.engine=vllm",
    "rollout.vllm.urls=[http://node2:8000,http://node3:8000]",
    "rollout.vllm.dtype=bfloat16",
    "rollout.importance_cap=2",
    "rollout.ahead=1",
)
"""What of a Llama's run lies elsewhere: its responses and its rewards."""


def write_configurations(root: Path, policies: Sequence[str] = POLICIES) -> Path:
    """Directories of models without weights (`config.json`, policies a tokenizer of few words), and `prompts.json`."""
    words = [f"w{number}" for number in range(100)]
    tokenizer = build_tokenizer([" ".join(words)])
    if "llama-8b" in policies:
        LlamaConfig(**LLAMA).save_pretrained(root / "llama-8b")
        causal_tokenizer(tokenizer, 8192).save_pretrained(root / "llama-8b")
    for name in {*policies, "t5-base"} & {*SIZES}:
        config = T5Config(vocab_size=32128, decoder_start_token_id=0, tie_word_embeddings=True, **SIZES[name])
        config.save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    for name in REWARDS:
        LongformerConfig(vocab_size=50265, max_position_embeddings=4098, attention_window=[512] * 12).save_pretrained(
            root / name
        )
    passage = {"wikipage": "w1", "content": " ".join((words * 11)[:CONTENT_WORDS])}
    text = f"question: w2 context: wikipage: w1 text: {passage['content']}"
    prompts = [{"text": text, "answer": ["w3"], "passages": [passage], "question": f"w{i}"} for i in range(64)]
    write_json(root / "prompts.json", prompts)
    return root


def overrides(root: Path, policy: str) -> list[str]:
    """Words behind `finegrained train-ppo` for the paper's run with such a policy, all its parameters trained."""
    data, causal = root / "prompts.json", policy == "llama-8b"
    paths = [f"reward.components.{name}.path={root / name}" for name in REWARDS]
    value = root / (policy if causal else "t5-base")
    places = [f"data={data}", f"validation_data={data}", f"policy.path={root / policy}", f"value.path={value}"]
    words = ["experiment=qa_feedback/fine_grained", *SETTING, *places, f"output_dir={root}/run"]
    return [*words, *(SERVERS if causal else paths)]


def job_of_words(words: Sequence[str]) -> TrainPPO:
    """The job that `finegrained train-ppo` makes of these words."""
    fill_defaults()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        keys = resolved(compose("train_ppo", list(words)))
    job: Any = build({key: value for key, value in keys.items() if key not in RESERVED_KEYS})
    assert isinstance(job, TrainPPO)
    return job


def plans(root: Path, policy: str, machines: Sequence[Machine]) -> Iterator[tuple[Machine, Plan]]:
    """A plan for each number of GPUs, nothing split."""
    job = job_of_words(overrides(root, policy))
    for machine in machines:
        yield machine, plan_of(job, Processes(job.processes), machine=machine)


def rows(root: Path, policy: str, machines: Sequence[Machine]) -> Iterator[dict[str, object]]:
    """The expected peak of one GPU in GiB by mode, bold where it fits; on one GPU there is nothing to split."""
    for machine, plan in plans(root, policy, machines):
        row: dict[str, object] = {"policy": policy, "GPUs": machine.gpus}
        for mode in SHARDING if machine.gpus > 1 else SHARDING[:1]:
            needed = peak(replace(plan, sharding=mode))[0]
            row[mode] = f"**{needed / GIB:.1f}**" if needed <= USABLE * machine.gb * 10**9 else f"{needed / GIB:.1f}"
        yield row


def main(arguments: Sequence[str]) -> None:
    """Write the configurations, plan, print the table.

    Raises:
        ConfigError: a wrong argument.
    """
    given = read_arguments(arguments, ("out", "models", "gpus", "gb"), needed=("out",))
    names = given.get("models", ",".join(POLICIES)).split(",")
    counts, size = given.get("gpus", "1,2,4,8").split(","), given.get("gb", "80")
    if unknown := [name for name in names if name not in (*SIZES, "llama-8b")]:
        raise ConfigError(f"models: expected some of {', '.join([*SIZES, 'llama-8b'])}, got {unknown[0]!r}")
    if wrong := [word for word in (*counts, size) if not word.isdigit() or int(word) < 1]:
        raise ConfigError(f"gpus, gb: expected whole numbers above 0, got {wrong[0]!r}")
    root = write_configurations(Path(given["out"]).absolute(), names)
    machines = [Machine(int(count), int(size)) for count in counts]
    found = [row for name in names for row in rows(root, name, machines)]
    whole = f"{size} GB ({int(size) * 1e9 / GIB:.1f} GiB)"
    print(f"Expected peak of one GPU in GiB; bold: at most {USABLE:.0%} of {whole}\n")
    print(markdown_table(found, ["policy", "GPUs", *SHARDING]))


if __name__ == "__main__":
    run_main(main)
