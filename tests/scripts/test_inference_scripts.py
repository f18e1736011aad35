"""finegrained generate, finegrained sample-outputs and finegrained evaluate as a user runs them, and their
configurations against signatures.
"""

import json
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf
from script_runs import ROOT, Done, run_script

from finegrained_rlhf.core.files import read_json, read_jsonl
from finegrained_rlhf.factworld.make import MakeFactWorld
from finegrained_rlhf.factworld.oracle import FactWorldOracle
from finegrained_rlhf.inference.config import DecodingConfig
from finegrained_rlhf.inference.jobs import Evaluate, Generate, SampleOutputs
from finegrained_rlhf.models.tiny import read_corpus
from finegrained_rlhf.models.tiny_networks import make_tiny_models
from finegrained_rlhf.runtime.job import RESERVED_KEYS
from finegrained_rlhf.runtime.process_config import ProcessConfig


def job(name: str, *overrides: str) -> object:
    with initialize_config_dir(version_base=None, config_dir=str(ROOT / "conf")):
        config = OmegaConf.to_container(compose(name, overrides=list(overrides)), resolve=True)
    assert isinstance(config, dict)
    return instantiate({key: value for key, value in config.items() if key not in RESERVED_KEYS}, _convert_="all")


def test_the_configurations_name_the_defaults_of_their_jobs() -> None:
    processes = ProcessConfig()
    assert job("generate", "checkpoint=a", "input=b", "output=c") == Generate(
        "a", "b", "c", DecodingConfig(), processes=processes
    )
    assert job("sample_outputs", "checkpoint=a", "data=b", "output=c") == SampleOutputs(
        "a", "b", "c", processes=processes
    )
    assert job("evaluate", "checkpoint=a", "data=b", "output=c") == Evaluate("b", "c", "a", processes=processes)


def test_an_evaluation_takes_rewards_and_an_oracle_by_group() -> None:
    paths = [f"reward.components.{name}.path={name}" for name in ("relevance", "factuality", "completeness")]
    made = job("evaluate", "outputs=a", "data=b", "output=c", "reward=fine_grained", "oracle=factworld", *paths)
    assert isinstance(made, Evaluate) and isinstance(made.oracle, FactWorldOracle)
    assert made.reward is not None
    assert made.reward.weights == {"relevance": 0.3, "factuality": 0.5, "completeness": 0.3}
    none = job("evaluate", "outputs=a", "data=b", "output=c", "oracle=none")
    assert isinstance(none, Evaluate) and none.oracle is None


def script(name: str, *arguments: str, standard_input: str = "") -> Done:
    return run_script(name, *arguments, stdin=standard_input)


@pytest.mark.scripts
def test_outputs_are_sampled_evaluated_and_generated(tmp_path: Path) -> None:
    MakeFactWorld(str(tmp_path), train=3, dev=0, test=0, sft_train=0, sft_dev=0).run()
    data, outputs, output = tmp_path / "train.json", tmp_path / "outputs.jsonl", tmp_path / "results.json"
    checkpoint = make_tiny_models(read_corpus(data), tmp_path / "tiny", 0)["t5"]

    done = script("sample_outputs", f"checkpoint={checkpoint}", f"data={data}", f"output={outputs}", "max_new_tokens=6")
    assert done.returncode == 0, done.stderr
    assert [len(row["outputs"]) for row in read_jsonl(outputs)] == [4, 4, 4]

    done = script("evaluate", f"outputs={outputs}", f"data={data}", f"output={output}", "oracle=factworld")
    assert done.returncode == 0, done.stderr
    assert read_json(output)["examples"] == 3 and "factual_error_rate" in read_json(output)

    lines = 'Who, what\'s "that"?\n\nkey=value\n'
    done = script(
        "generate", f"checkpoint={checkpoint}", "input=-", "output=-", "max_new_tokens=3", standard_input=lines
    )
    assert done.returncode == 0, done.stderr
    prompts = [json.loads(line)["prompt"] for line in done.stdout.splitlines()]
    assert prompts == ['Who, what\'s "that"?', "key=value"]

    done = script("generate", f"checkpoint={tmp_path}", "input=-", "output=-", standard_input=lines)
    assert done.returncode == 2 and done.stderr.strip().splitlines() == [done.stderr.strip()]
    assert str(tmp_path) in done.stderr
