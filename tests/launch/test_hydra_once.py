"""What tests compose by `hydra_once` is what plain Hydra composes, the first time and from what was kept."""

from __future__ import annotations

from pathlib import Path

import hydra
import pytest
from hydra import initialize_config_dir
from hydra.errors import ConfigCompositionException
from hydra_once import merged_once, plain_hydra
from omegaconf import OmegaConf

CONF = Path(__file__).parents[2] / "conf"
SMOKE = "experiment=smoke"


@pytest.mark.parametrize(
    ("script", "overrides"),
    [
        pytest.param("train_ppo", [SMOKE, "seed=3"], marks=pytest.mark.slow),
        ("train_ppo", [SMOKE, "seed=4", "~reward.weights.relevance", "+reward.weights.style=1", "policy=lora"]),
        pytest.param("train_ppo", ["policy=lora", "value=shared", "rollout={top_k: 3}", SMOKE], marks=pytest.mark.slow),
        ("train_ppo", ["algorithm=rloo", "reward=preference", "~tracking", "output_dir=x", "data=${output_dir}"]),
        ("train_reward_model", ["reward_model=relevance", "output_dir=${data}", "data=x"]),
        pytest.param("run_experiment", ["pipeline=factworld/demo", "seed=5", "steps.sft=null"], marks=pytest.mark.slow),
        ("sweep", [SMOKE, "seed=0"]),
    ],
)
def test_it_composes_what_plain_hydra_does(script: str, overrides: list[str]) -> None:
    with initialize_config_dir(str(CONF), version_base=None):
        with plain_hydra():
            expected = hydra.compose(script, overrides, return_hydra_config=True)
        with merged_once():
            first, second = (hydra.compose(script, overrides, return_hydra_config=True) for _ in range(2))
    assert first == expected and second == expected
    for found in (first, second):
        assert OmegaConf.to_yaml(found) == OmegaConf.to_yaml(expected)  # unresolved, in the same order
        assert OmegaConf.is_struct(found) and OmegaConf.is_struct(found.hydra) == OmegaConf.is_struct(expected.hydra)
    first.output_dir = "elsewhere"
    assert second.output_dir == expected.output_dir


@pytest.mark.parametrize("wrong", ["policy=none_such", "~policy=lora", "+policy=lora", "seeed=3", "tracking@x=wandb"])
def test_it_refuses_what_plain_hydra_does(wrong: str) -> None:
    said = []
    with initialize_config_dir(str(CONF), version_base=None):
        for way in (plain_hydra, merged_once, merged_once):
            with way(), pytest.raises(ConfigCompositionException) as refused:
                hydra.compose("train_ppo", [SMOKE, wrong])
            said.append(str(refused.value))
    assert said[0] == said[1] == said[2]
