"""The memory plan of runs whose processes split optimizer state, gradients and weights: by hand, and at full size."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from memory_toy import PLAN, SHAPE, job_of, save_models
from script_runs import ROOT

from benchmarks import memory_plans
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.models.config import LoraConfig, PolicyConfig, ValueConfig
from finegrained_rlhf.preflight.memory import formulas as memory
from finegrained_rlhf.preflight.memory import preflight as module
from finegrained_rlhf.preflight.memory import sharding
from finegrained_rlhf.preflight.memory.plan import Activations, Blocks, Plan, Tables
from finegrained_rlhf.preflight.memory.preflight import Machine, plan_of, preflight
from finegrained_rlhf.preflight.memory.probe import blocks_of, largest_outside, shape_of, tables_in
from finegrained_rlhf.preflight.memory.report import memory_verdict, peak, remedies, report, sharding_line
from finegrained_rlhf.runtime.process_config import SHARDING, ProcessConfig
from finegrained_rlhf.runtime.processes import Processes

POLICY = replace(SHAPE, blocks=Blocks(800, 800, 800, 200), largest_outside=90, largest_beside=90)
VALUE = replace(POLICY, parameters=600, trained=600, blocks=Blocks(400, 400, 400, 100))
FOUR = replace(PLAN, policy=POLICY, value=VALUE, processes=4)
GRADIENTS, FULL = (replace(FOUR, sharding=mode) for mode in SHARDING[1:])


# By hand ------------------------------------------------------------------------------------------------------------


def test_what_lasts_where_gradients_are_split() -> None:
    """As below, but that the reference stays whole, as do adapters' weights: nothing in their blocks is trained."""
    assert memory.lasting_bytes(FOUR) == 4 * (2 * 1000 + 600 + 500) + 8 * 1600
    policy, value, own = 4 * 200 + 4 * 200, 4 * 200 + 4 * 100, 200 + 100 + 190
    assert memory.lasting_bytes(GRADIENTS) == policy + 4 * 1000 + value + 4 * 500 + 8 * own
    assert [memory.gradient_bytes(plan) for plan in (FOUR, GRADIENTS)] == [6400, 4 * own]
    large = replace(GRADIENTS, policy=replace(POLICY, largest_outside=1500))
    assert memory.gradient_bytes(large) == 4 * (300 + 400)  # a share is never more than everything
    adapters = replace(
        GRADIENTS, reference_copy=False, policy=replace(POLICY, trained=90, blocks=Blocks(800, 0, 800)), value=None
    )
    assert sharding.held_bytes(adapters) == 4 * 1000 + 12 * 90


def test_what_lasts_of_blocks() -> None:
    """1,200 of 1,600 lie in blocks and are split evenly; of the other 400 up to 190 belong to one process."""
    policy, value, own = 4 * 200 + 4 * 200, 4 * 200 + 4 * 100, 200 + 100 + 190
    assert memory.gradient_bytes(FULL) == 4 * own
    assert memory.lasting_bytes(FULL) == 2 * policy + value + 4 * 500 + 8 * own
    stored = replace(FULL, bf16=True, stored_in_bf16=820)  # 20 of them outside blocks
    reference = 4 * 180 + 2 * 20 + 2 * 200
    assert memory.lasting_bytes(stored) == policy + reference + value + 4 * 500 + 8 * own
    pairs = replace(FULL, groups=2)  # each pair has the blocks; the rest has one owner among all four
    halves, own = 4 * 200 + 4 * 400, 400 + 200 + 190
    assert memory.lasting_bytes(pairs) == 2 * halves + 4 * 200 + 4 * 200 + 4 * 500 + 8 * own
    assert sharding_line(pairs).count("over the 2 processes of each of 2 groups") == 1
    adapters = replace(stored, reference_copy=False, policy=replace(POLICY, trained=90, blocks=Blocks(800, 0, 800)))
    outside = (90 + 200) // 4 + 1 + 90
    assert memory.lasting_bytes(adapters) == reference + value + 4 * 500 + 8 * (100 + outside + 1)  # rounded up twice


def test_what_lasts_of_tables() -> None:
    """`full` splits 120 of the 200 outside blocks too; of the other 80 up to 30 belong to one process."""
    shape = replace(POLICY, tables=Tables(120, 120, 20), largest_beside=10)
    plan = replace(FULL, policy=shape, value=replace(VALUE, tables=Tables(100, 100), largest_beside=5))
    policy, value, own = 4 * 80 + 4 * 230, 4 * 100 + 4 * 125, 230 + 125 + 180 // 4 + 10
    assert memory.gradient_bytes(plan) == 4 * (own + 1)  # rounded up twice
    assert memory.lasting_bytes(plan) == 2 * policy + value + 4 * 500 + 8 * (own + 1)
    assert sharding.held_bytes(replace(plan, sharding="gradients")) == sharding.held_bytes(GRADIENTS)
    stored = replace(plan, bf16=True, stored_in_bf16=820)
    reference = 4 * 80 + (2 * 820 + 4 * 100) // 4
    assert memory.lasting_bytes(stored) == policy + reference + value + 4 * 500 + 8 * (own + 1)
    assert sharding.gathered_bytes(replace(plan, bf16=True), shape) == 2 * 800 + 4 * 120
    head = shape.vocabulary * shape.width
    assert sharding.table_bytes(FULL) == (0, 4 * 0, 0) == sharding.table_bytes(replace(plan, sharding="gradients"))
    assert sharding.table_bytes(plan) == (4 * 220, 4 * (min(120, head) + 100), 4 * (220 + 120))
    exact = replace(plan, exact_kl=True, exact_kl_loss=True)
    assert sharding.table_bytes(exact)[0] - sharding.table_bytes(plan)[0] == 4 * 120
    assert sharding.block_bytes(plan) == sharding.block_bytes(FULL)
    assert memory.snapshot_bytes(plan) - memory.snapshot_bytes(FULL) == 2 * 4 * shape.vocabulary * shape.width
    assert sharding.copied_parameters(plan, shape, stored=False) == 1000 - 800  # a head is rounded from what is whole
    assert "transformer blocks, embeddings and head (92.0% of the policy)" in sharding_line(plan)


def test_gradients_on_their_way(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sharding.moving_bytes(FOUR) == 0
    assert sharding.moving_bytes(GRADIENTS) == 4 * (400 - 190)  # all gradients outside blocks and not more
    monkeypatch.setattr(sharding, "BUCKET_ELEMENTS", 10)
    small = replace(GRADIENTS, policy=replace(POLICY, largest_outside=5), value=replace(VALUE, largest_outside=8))
    assert sharding.moving_bytes(small) == 4 * (3 + 1) * 10
    assert sharding.moving_bytes(replace(small, value=replace(VALUE, largest_outside=20))) == 4 * (3 + 1) * 20


def test_an_update_holds_three_blocks_or_all_that_are_trained() -> None:
    assert sharding.block_bytes(FOUR) == 0
    assert sharding.block_bytes(GRADIENTS) == 4 * (800 + 400) + 200 * (4 + 4)
    assert sharding.block_bytes(replace(GRADIENTS, bf16=True)) == 2 * (800 + 400) + 200 * (2 + 4)
    trunk = replace(POLICY, trained=90, blocks=Blocks(800, 0, 800, 200))
    assert sharding.block_bytes(replace(GRADIENTS, policy=trunk)) == 4 * 400 + 100 * (4 + 4)
    assert sharding.block_bytes(FULL) == 200 * (3 * 4 + 4 + 4)
    assert sharding.block_bytes(replace(FULL, bf16=True)) == 200 * (3 * 2 + 2 + 4)
    frozen = replace(POLICY, blocks=Blocks(800, 0, 800, 200))
    assert sharding.block_bytes(replace(FULL, policy=frozen, value=None)) == 200 * 3 * 4


def test_update_by_hand() -> None:
    """As in `test_training_memory_formulas`, with shares of the gradients and what is on its way beside activations."""
    activations = 2 * (10 + 2 * 100 + 3 * 200) + 60 * 50 * 4 * 5 + 2 * 60 * 8 * 4
    assert memory.update_bytes(FOUR) == 6400 + activations
    assert memory.update_bytes(GRADIENTS) == 4 * 1200 + 200 * 8 + 4 * 490 + 4 * (400 - 190) + activations
    assert memory.update_bytes(FULL) == 200 * 20 + 4 * 490 + 4 * (400 - 190) + activations


def test_models_are_gathered_one_at_a_time() -> None:
    wide = replace(FULL, policy=replace(POLICY, vocabulary=5000))
    whole, joined = 4 * 800, 4 * 3 * 3 * 8 * 6
    copied = 4 * 400 - joined  # the engine's copy of the decoder is one of all its layers
    unsplit = replace(wide, sharding="none")
    assert memory.rollout_bytes(replace(wide, sharding="gradients"), 4, 3) == memory.rollout_bytes(wide, 4, 3)
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
    needed = {plan.sharding: peak(plan)[0] for plan in (FOUR, GRADIENTS, FULL)}
    assert needed["none"] > needed["gradients"] > needed["full"]
    table = report(GRADIENTS, 10**9, "It")
    assert "processes.sharding=gradients splits gradients and optimizer state, and weights in the matrices of" in table
    adapters = replace(GRADIENTS, reference_copy=False, policy=replace(POLICY, trained=90, blocks=Blocks(800, 0, 800)))
    assert "splits gradients and optimizer state over 4 processes" in report(adapters, 10**9, "It")
    assert "sharding" not in report(FOUR, 10**9, "It")
    room = needed["gradients"] * 10 // 9 + 1
    assert "processes.sharding=gradients: " in memory_verdict(FOUR, room, "It")
    assert memory_verdict(GRADIENTS, room, "It").endswith("fits.")
    with_all = memory_verdict(FULL, 1, "It")
    assert "processes.sharding=" not in with_all and "does not fit" in with_all
    assert "processes.sharding=full with ppo.micro_batch_prompts=1, " in (refused := memory_verdict(FOUR, 1, "It"))
    assert "GiB, does not fit either." in refused
    least = replace(GRADIENTS, micro_batch_prompts=1, checkpointing=True, prompts_per_batch=1)
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
    rows = len(policy.tokenizer) * width
    assert largest_outside(policy) == rows
    tied = policy.model.lm_head.weight is policy.model.shared.weight
    assert tables_in(policy.model) == Tables(rows * (2 - tied), rows * (2 - tied), rows * (not tied))
    assert shape_of(policy.model, policy.model.config).largest_beside < rows
    gpt2 = 4 * (attention + feed_forward)
    assert blocks_of(PolicyConfig(str(models / "gpt2")).load()) == Blocks(gpt2, gpt2, gpt2, gpt2 // 4)
    adapted = PolicyConfig(str(models / "t5"), lora=LoraConfig(rank=4)).load()
    assert blocks_of(adapted) == Blocks(t5, 0, t5, 2 * attention + feed_forward)
    assert largest_outside(adapted) < 4 * inner + 1


def test_a_plan_for_gpus_that_are_not_here(models: Path) -> None:
    job = job_of(models, "untied", prompts=3, dry_run_on="2x3", processes=ProcessConfig(sharding="gradients"))
    plan = plan_of(job, Processes(job.processes), machine=Machine.of(job))
    assert (plan.processes, plan.prompts, plan.cuda, plan.sharding) == (2, 2, True, "gradients")
    text = preflight(job, Processes(job.processes))
    assert "one process (of 2)" in text and "A GPU of 3 GB has 2.79 GiB: fits." in text
    for wrong in ("8", "0x80", "8x", "eight"):
        with pytest.raises(ConfigError, match="dry_run_on: expected"):
            job_of(models, "untied", dry_run_on=wrong)


# At full size, from configurations alone ----------------------------------------------------------------------------


COUNTED = {
    "t5-base": Activations(23658430, 28316672, 35484032, 3145728, 2457600),
    "t5-3b": Activations(23705536, 88084480, 109094272, 4194304, 3276800),
    "t5-11b": Activations(23693248, 289411072, 356341120, 4194304, 3276800),
    "llama-8b": Activations(68098822, 0, 462169688, 0, 29868032),
    "value of llama-8b": Activations(87751428, 0, 462169688, 0, 29868032),
}
"""What autograd keeps in bf16 of a prompt of 1,024 tokens (1,023 of the Llama) and four responses of 200: counted once,
because layers of this size take long. `test_what_layers_keep` counts them again."""
VALUES = {"t5-3b": "t5-base", "t5-11b": "t5-base", "llama-8b": "value of llama-8b"}
GB = 10**9


@pytest.fixture(scope="module")
def configurations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return memory_plans.write_configurations(tmp_path_factory.mktemp("full"))


@pytest.fixture
def planned(configurations: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], Plan]:
    """The plan of the paper's run with another policy, from `config.json` alone."""

    def plan(policy: str, gpus: int) -> Plan:
        monkeypatch.setattr(module, "policy_activations", lambda *args: COUNTED[policy])
        monkeypatch.setattr(module, "value_activations", lambda *args: COUNTED[VALUES[policy]])
        ((_, found),) = memory_plans.plans(configurations, policy, [Machine(gpus, 80)])
        return found

    return plan


def test_t5_3b_fits_two_gpus(planned: Callable[[str, int], Plan]) -> None:
    """All of its parameters trained. Without sharding it takes nearly all of them, with it there is room to spare."""
    plan = planned("t5-3b", 2)
    assert (plan.prompts, plan.samples, plan.prompt_tokens, plan.response_tokens) == (4, 4, 1024, 200)
    assert plan.policy.parameters == plan.policy.trained == 2_851_598_336
    assert plan.policy.blocks.matrices == 24 * 1024 * (12 * 4096 + 4 * 16384)
    for mode in SHARDING[1:]:
        text = report(replace(plan, sharding=mode), 80 * GB, "A GPU of 80 GB")
        assert f"processes.sharding={mode} splits" in text and text.endswith(": fits.")
    assert "processes.sharding=gradients: " in memory_verdict(plan, 68 * GB, "A GPU")


def test_t5_11b_fits_eight_gpus_when_weights_are_split(planned: Callable[[str, int], Plan]) -> None:
    plan = planned("t5-11b", 8)
    assert (plan.prompts, plan.policy.parameters) == (1, 11_307_321_344)
    assert plan.policy.blocks.matrices == 24 * 1024 * (12 * 16384 + 4 * 65536)
    for mode in SHARDING[:2]:
        assert "does not fit" in (verdict := memory_verdict(replace(plan, sharding=mode), 80 * GB, "A GPU"))
        assert "processes.sharding=full: " in verdict and verdict.count("processes.sharding=") == 1
    full = replace(plan, sharding="full")
    assert report(full, 80 * GB, "A GPU of 80 GB").endswith(": fits.")
    held = 16 * plan.policy.blocks.matrices // 8 + 2 * plan.policy.blocks.matrices // 8  # the reference is in bf16
    assert sharding.held_bytes(full) == pytest.approx(held, rel=0.06)
    assert "does not fit" in memory_verdict(replace(full, processes=4, prompts=2), 40 * GB, "A GPU")


def test_an_8b_llama_fits_eight_gpus_when_weights_are_split(planned: Callable[[str, int], Plan]) -> None:
    """Its responses and rewards lie on servers, which take nothing here; its value model is as large as it."""
    plan = planned("llama-8b", 8)
    assert (plan.prompts, plan.policy.parameters, plan.engine_bytes, plan.rewards) == (1, 8_030_261_248, 0, ())
    assert plan.policy.blocks.matrices == 32 * 4096 * (2 * 4096 + 2 * 1024 + 3 * 14336)
    text = report(replace(plan, sharding="full"), 80 * GB, "A GPU of 80 GB")
    assert text.endswith(": fits.") and "2 vLLM servers (http://node2:8000, http://node3:8000)" in text
    assert "relevance at http://node4:8600, factuality at http://node4:8600" in text
    assert "does not fit" in memory_verdict(replace(plan, sharding="gradients"), 80 * GB, "A GPU of 80 GB")


def counted_anew(configurations: Path, policy: str) -> tuple[Activations, Activations | None]:
    ((_, plan),) = memory_plans.plans(configurations, policy, [Machine(2, 80)])
    return plan.policy_activations, plan.value_activations


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["t5-3b", "llama-8b"])
def test_what_layers_keep(configurations: Path, policy: str) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:  # up to 12 GB, which its end gives back
        counted = pool.apply(counted_anew, (configurations, policy))
    if not torch.cuda.is_available():
        assert counted == (COUNTED[policy], COUNTED[VALUES[policy]])


@pytest.mark.parametrize(("policy", "gpus"), [("t5-3b", "2,4"), ("llama-8b", "4,8")])
def test_the_table_of_the_page(
    policy: str,
    gpus: str,
    planned: Callable[[str, int], Plan],
    configurations: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    planned(policy, 1)  # with the layers of the fixture
    memory_plans.main([f"out={configurations}", f"models={policy}", f"gpus={gpus}", "gb=80"])
    printed = [line.replace(" ", "") for line in capsys.readouterr().out.splitlines() if line.startswith(f"| {policy}")]
    page = [line.replace(" ", "") for line in (ROOT / "docs" / "doctor.md").read_text().splitlines()]
    assert len(printed) == 2 and all(line in page for line in printed)
    for wrong in (["models=t6"], ["gpus=0"], ["gb=many"]):
        with pytest.raises(ConfigError, match="expected"):
            memory_plans.main([f"out={configurations}", *wrong])
