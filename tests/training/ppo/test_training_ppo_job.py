"""A PPO job draws what is new in its models from its seed, in every process alike."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from doctor_toy import case_maker, make_smoke
from torch import Tensor
from transformers import GPT2Config, GPT2Model

from finegrained_rlhf.core.errors import ModelError
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.processes import Processes


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_smoke(tmp_path_factory.mktemp("job") / "smoke")


def trained(smoke: Path, scratch: Path, generator: int, *overrides: str) -> dict[str, Tensor]:
    """The parameters of a run that is built where torch's generator stands elsewhere, as in another process."""
    job = case_maker(smoke, scratch)(*overrides).job
    assert job is not None
    torch.manual_seed(generator)
    trainer = job.build(Processes(), RunDirectory(scratch / str(generator)).create())
    return {name: parameter.detach().clone() for name, parameter in trainer.optimizer.named.items()}


@pytest.mark.parametrize("value", ["separate", pytest.param("shared", marks=pytest.mark.slow)])
def test_new_adapters_and_heads_follow_from_the_seed_alone(smoke: Path, tmp_path: Path, value: str) -> None:
    words = ["policy=lora", "policy.lora.rank=4", f"value={value}", *["value.path=null"][: value == "shared"]]
    first, second = (trained(smoke, tmp_path, generator, *words) for generator in (1, 2))
    other = trained(smoke, tmp_path, 3, *words, "seed=1")
    adapters = [name for name in first if ".lora_A" in name]
    assert len(adapters) >= 4
    for name in first:
        assert torch.equal(first[name], second[name]), name
    assert all(not torch.equal(first[name], other[name]) for name in adapters)


def test_a_value_model_has_positions_for_what_it_values(smoke: Path, tmp_path: Path) -> None:
    policy, value = smoke / "prepared/models/gpt2", tmp_path / "value"
    config = GPT2Config.from_pretrained(policy)
    config.n_positions = 40
    GPT2Model(config).save_pretrained(value)
    with pytest.raises(ModelError, match=r"this gpt2 value model has 40 positions \(max_position_embeddings\)"):
        trained(smoke, tmp_path, 1, f"policy.path={policy}", f"value.path={value}")
