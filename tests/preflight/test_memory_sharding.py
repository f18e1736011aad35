"""The memory plan of runs whose processes split optimizer state, gradients and weights: by hand, and at full size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from memory_toy import PLAN, SHAPE, job_of, save_models

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.models.loading import PolicyConfig, ValueConfig
from finegrained_rlhf.models.lora import LoraConfig
from finegrained_rlhf.preflight.memory import formulas as memory
from finegrained_rlhf.preflight.memory import sharding
from finegrained_rlhf.preflight.memory.blocks import blocks_of, largest_trained
from finegrained_rlhf.preflight.memory.plan import Blocks
from finegrained_rlhf.preflight.memory.preflight import Machine, plan_of, preflight
from finegrained_rlhf.preflight.memory.report import memory_verdict, peak, remedies, report
from finegrained_rlhf.runtime.processes import SHARDING, ProcessConfig, Processes

POLICY = replace(SHAPE, blocks=Blocks(800, 800, 800, 200), largest_tensor=120, largest_outside=90)
VALUE = replace(POLICY, parameters=600, trained=600, blocks=Blocks(400, 400, 400, 100), largest_tensor=110)
FOUR = replace(PLAN, policy=POLICY, value=VALUE, processes=4)
OPTIMIZER, GRADIENTS, FULL = (replace(FOUR, sharding=mode) for mode in SHARDING[1:])


# By hand ------------------------------------------------------------------------------------------------------------


def test_what_lasts_of_optimizer_state_and_gradients() -> None:
    """1,600 parameters over four processes in runs of whole tensors of at most 120: up to 520 belong to one."""
    weights = 4 * (2 * 1000 + 600 + 500)
    assert memory.lasting_bytes(FOUR) == weights + 8 * 1600
    assert memory.lasting_bytes(OPTIMIZER) == memory.lasting_bytes(GRADIENTS) == weights + 8 * 520
    assert [memory.gradient_bytes(plan) for plan in (FOUR, OPTIMIZER, GRADIENTS)] == [6400, 6400, 4 * 520]
    large = replace(GRADIENTS, policy=replace(POLICY, largest_tensor=1500))
    assert memory.gradient_bytes(large) == 6400  # a share is never more than everything


def test_what_lasts_of_blocks() -> None:
    """1,200 of 1,600 lie in blocks and are split evenly; of the other 400 up to 190 belong to one process."""
    policy, value, own = 4 * 200 + 4 * 200, 4 * 200 + 4 * 100, 200 + 100 + 190
    assert memory.gradient_bytes(FULL) == 4 * own
    assert memory.lasting_bytes(FULL) == 2 * policy + value + 4 * 500 + 8 * own
    stored = replace(FULL, bf16=True, stored_in_bf16=820)  # 20 of them outside blocks
    reference = 4 * 180 + 2 * 20 + 2 * 200
    assert memory.lasting_bytes(stored) == policy + reference + value + 4 * 500 + 8 * own
    adapters = replace(stored, reference_copy=False, policy=replace(POLICY, trained=90, blocks=Blocks(800, 0, 800)))
    outside = (90 + 200) // 4 + 1 + 90
    assert memory.lasting_bytes(adapters) == reference + value + 4 * 500 + 8 * (100 + outside + 1)  # rounded up twice


def test_gradients_on_their_way(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sharding.moving_bytes(FOUR) == sharding.moving_bytes(OPTIMIZER) == 0
    assert sharding.moving_bytes(GRADIENTS) == 4 * (1600 - 520)  # all gradients and not more
    monkeypatch.setattr(sharding, "BUCKET_ELEMENTS", 10)
    small = replace(GRADIENTS, policy=replace(POLICY, largest_tensor=5), value=replace(VALUE, largest_tensor=8))
    assert sharding.moving_bytes(small) == 4 * (3 + 1) * 10
    assert sharding.moving_bytes(replace(small, value=replace(VALUE, largest_tensor=20))) == 4 * (3 + 1) * 20


def test_an_update_holds_three_blocks() -> None:
    assert sharding.block_bytes(GRADIENTS) == 0
    assert sharding.block_bytes(FULL) == 200 * (3 * 4 + 4 + 4)
    assert sharding.block_bytes(replace(FULL, bf16=True)) == 200 * (3 * 2 + 2 + 4)
    frozen = replace(POLICY, blocks=Blocks(800, 0, 800, 200))
    assert sharding.block_bytes(replace(FULL, policy=frozen, value=None)) == 200 * 3 * 4


def test_update_by_hand() -> None:
    """As in `test_training_memory_formulas`, with shares of the gradients and what is on its way beside activations."""
    activations = 2 * (10 + 2 * 100 + 3 * 200) + 60 * 50 * 4 * 5 + 2 * 60 * 8 * 4
    assert memory.update_bytes(OPTIMIZER) == memory.update_bytes(FOUR) == 6400 + activations
    assert memory.update_bytes(GRADIENTS) == 4 * 520 + 4 * (1600 - 520) + activations
    assert memory.update_bytes(FULL) == 200 * 20 + 4 * 490 + 4 * (400 - 190) + activations


def test_models_are_gathered_one_at_a_time() -> None:
    wide = replace(FULL, policy=replace(POLICY, vocabulary=5000))
    whole, joined = 4 * 800, 4 * 3 * 3 * 8 * 6
    copied = 4 * 400 - joined  # the engine's copy of the decoder is one of all its layers
    unsplit = replace(wide, sharding="gradients")
    assert memory.rollout_bytes(wide, 4, 3) - memory.rollout_bytes(unsplit, 4, 3) == whole + copied
    assert memory.scoring_bytes(wide) - memory.scoring_bytes(unsplit) == whole
    large = replace(wide, value=replace(VALUE, blocks=Blocks(10**6, 10**6, 10**6, 10)))
    alone = 4 * 10**6 + memory.reading_bytes(large, VALUE)
    assert memory.scoring_bytes(large) == alone  # nothing of the policy beside it
    assert memory.cast_bytes(replace(FULL, bf16=True), POLICY, head=True) == 2 * (1000 - 800)


@pytest.mark.parametrize("mode", SHARDING)
def test_one_process_splits_nothing(mode: str) -> None:
    assert report(replace(FOUR, processes=1, sharding=mode), 10**9, "It") == report(
        replace(FOUR, processes=1), 10**9, "It"
    )


def test_the_report_says_what_is_split_and_what_to_split() -> None:
    needed = {plan.sharding: peak(plan)[0] for plan in (FOUR, OPTIMIZER, GRADIENTS, FULL)}
    assert needed["none"] > needed["optimizer"] == needed["gradients"]  # so small that all gradients are on their way
    table = report(GRADIENTS, 10**9, "It")
    assert "processes.sharding=gradients splits gradients and optimizer state over 4 processes" in table
    assert "sharding" not in report(FOUR, 10**9, "It")
    room = needed["optimizer"] * 10 // 9 + 1
    assert "processes.sharding=optimizer: " in memory_verdict(FOUR, room, "It")
    assert memory_verdict(OPTIMIZER, room, "It").endswith("fits.")
    with_all = memory_verdict(FULL, 1, "It")
    assert "processes.sharding=" not in with_all and "does not fit" in with_all
    assert "processes.sharding=full with ppo.micro_batch_prompts=1, " in (refused := memory_verdict(FOUR, 1, "It"))
    assert "GiB, does not fit either." in refused
    least = replace(OPTIMIZER, micro_batch_prompts=1, checkpointing=True, prompts_per_batch=1)
    least = replace(least, rewards=(replace(least.rewards[0], rows=1),))
    assert not remedies(least) and "processes.sharding=full: " in memory_verdict(least, 1, "It")
    both = peak(replace(least, prompts_per_batch=4))[0] * 10 // 9 + 1
    assert " with ppo.micro_batch_prompts=1, " in memory_verdict(FOUR, both, "It").split("processes.sharding=")[1]
    assert "More processes" in memory_verdict(replace(FOUR, processes=1), 1, "It")


# Against models -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_models(tmp_path_factory.mktemp("models"))


def test_blocks_of_models(models: Path) -> None:
    """T5: four encoder blocks, four decoder blocks of width 256, feed-forward 1,024; GPT-2: four blocks."""
    width, inner = 256, 1024
    attention, feed_forward = 4 * width * width, 2 * width * inner
    t5 = 4 * (attention + feed_forward) + 4 * (2 * attention + feed_forward)
    policy = PolicyConfig(str(models / "t5")).load()
    assert blocks_of(policy) == Blocks(t5, t5, t5, 2 * attention + feed_forward)
    assert blocks_of(ValueConfig("separate", str(models / "t5")).load(policy)).matrices == t5
    assert largest_trained(policy) == largest_trained(policy, outside_blocks=True) == len(policy.tokenizer) * width
    gpt2 = 4 * (attention + feed_forward)
    assert blocks_of(PolicyConfig(str(models / "gpt2")).load()) == Blocks(gpt2, gpt2, gpt2, gpt2 // 4)
    adapted = PolicyConfig(str(models / "t5"), lora=LoraConfig(rank=4)).load()
    assert blocks_of(adapted) == Blocks(t5, 0, t5, 2 * attention + feed_forward)
    assert largest_trained(adapted) == largest_trained(adapted, outside_blocks=True) < 4 * inner + 1


def test_a_plan_for_gpus_that_are_not_here(models: Path) -> None:
    job = job_of(models, "untied", prompts=3, dry_run_on="2x3", processes=ProcessConfig(sharding="gradients"))
    plan = plan_of(job, Processes(job.processes), machine=Machine.of(job))
    assert (plan.processes, plan.prompts, plan.cuda, plan.sharding) == (2, 2, True, "gradients")
    text = preflight(job, Processes(job.processes))
    assert "one process (of 2)" in text and "A GPU of 3 GB has 2.79 GiB: fits." in text
    for wrong in ("8", "0x80", "8x", "eight"):
        with pytest.raises(ConfigError, match="dry_run_on: expected"):
            job_of(models, "untied", dry_run_on=wrong)
