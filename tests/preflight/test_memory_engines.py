"""What `dry_run` counts of vLLM and of servers of rewards, by hand and from a job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from memory_toy import PLAN, job_of, save_models

from finegrained_rlhf.preflight.memory import formulas as memory
from finegrained_rlhf.preflight.memory.preflight import Machine, plan_of, preflight
from finegrained_rlhf.preflight.memory.report import GIB, memory_verdict, phases, report
from finegrained_rlhf.rewards import RewardConfig, ServedScorer
from finegrained_rlhf.rollout import RolloutConfig
from finegrained_rlhf.rollout.vllm.config import VLLMConfig
from finegrained_rlhf.runtime import RemoteConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.ppo.job import TrainPPO

GPU = replace(PLAN, cuda=True, fast=False, validation_prompts=2)
SHARE = 60 * GIB


def peaks(plan: Any) -> dict[str, int]:
    return {phase.name: memory.lasting_bytes(plan) + phase.needed for phase in phases(plan)}


def test_vllm_in_this_process_is_counted_while_it_is_awake() -> None:
    servers = peaks(replace(GPU, servers=("http://a:1",)))
    awake = peaks(replace(GPU, engine_bytes=SHARE))
    asleep = peaks(replace(GPU, engine_bytes=SHARE, engine_sleeps=True))
    assert awake == {phase: needed + SHARE for phase, needed in servers.items()}
    drawing = {"rollout", "validation"}
    assert asleep == {phase: needed + SHARE * (phase in drawing) for phase, needed in servers.items()}


def test_a_share_beside_which_the_update_has_no_room_does_not_fit() -> None:
    update = memory.update_bytes(GPU)
    plan = replace(GPU, engine_bytes=SHARE)
    assert update < GIB / 100  # so that the share alone decides
    assert memory_verdict(plan, 70 * GIB, "A GPU").endswith(": fits.")
    verdict = memory_verdict(plan, 60 * GIB, "A GPU")
    assert "does not fit" in verdict and "rollout.vllm.options.gpu_memory_utilization is vLLM's share" in verdict
    assert "More processes" not in verdict and "prompts_per_batch" not in verdict
    large = replace(plan, policy=replace(plan.policy, parameters=10**9), engine_bytes=40 * GIB)
    wide = replace(large, policy_activations=replace(large.policy_activations, outside=40 * GIB))
    assert "+rollout.vllm.options.enable_sleep_mode=true: " in memory_verdict(wide, 60 * GIB, "A GPU")
    for without in (replace(wide, cuda=False), replace(wide, engine_sleeps=True)):
        assert "enable_sleep_mode" not in memory_verdict(without, 60 * GIB, "A GPU")


def test_the_report_says_where_responses_are_drawn() -> None:
    awake, asleep = (
        report(replace(GPU, engine_bytes=SHARE, engine_sleeps=s), 80 * GIB, "A GPU") for s in (False, True)
    )
    assert "takes 60.00 GiB of the device (rollout.vllm.options.gpu_memory_utilization) all the time" in awake
    assert "| vLLM " in awake and "| vLLM " not in asleep
    assert "while it draws; asleep, its weights lie in host memory" in asleep
    one, two = (report(replace(GPU, servers=urls), 80 * GIB, "A GPU") for urls in (("u",), ("u", "v")))
    assert "Responses are drawn by 1 vLLM server (u): nothing of it lies here." in one
    assert "Responses are drawn by 2 vLLM servers (u, v): nothing of it lies here." in two
    assert "vLLM" not in report(GPU, 80 * GIB, "A GPU")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_models(tmp_path_factory.mktemp("models"))


def drawn(models: Path, *urls: str, **options: Any) -> TrainPPO:
    vllm = VLLMConfig(urls, options=options)
    return job_of(
        models, "gpt2", rollout=RolloutConfig(2, 2, max_new_tokens=8, engine="vllm", importance_cap=2.0, vllm=vllm)
    )


def test_the_share_is_of_the_whole_device(models: Path) -> None:
    machine = Machine(1, 80)
    for options, share, sleeps in (
        ({}, 0.92, False),
        ({"gpu_memory_utilization": 0.5}, 0.5, False),
        ({"gpu_memory_utilization": 0.5, "enable_sleep_mode": True}, 0.5, True),
    ):
        job = drawn(models, **options)
        plan = plan_of(job, Processes(job.processes), machine=machine)
        assert (plan.engine_bytes, plan.engine_sleeps) == (round(share * 80e9), sleeps)
    processes = Processes(job.processes)
    here = plan_of(job, processes)
    if processes.device.type == "cpu":  # where vLLM cannot sleep
        assert (here.engine_bytes, here.engine_sleeps) == (round(0.5 * psutil.virtual_memory().total), False)
    far = plan_of(drawn(models, "http://a:1/", "http://b:1"), processes, machine=machine)
    assert (far.engine_bytes, far.servers) == (0, ("http://a:1", "http://b:1"))
    own = plan_of(job_of(models, "gpt2"), processes, machine=machine)
    assert not own.elsewhere and own.engine_bytes == 0


def test_a_served_component_takes_nothing_here(models: Path) -> None:
    near = job_of(models, "untied")
    far = {name: ServedScorer(RemoteConfig("http://host:8600"), name) for name in ("relevance", "style")}
    every = job_of(models, "untied", reward=RewardConfig(far, dict.fromkeys(far, 0.5)))
    half = {"relevance": far["relevance"], "preference": near.reward.components["preference"]}
    mixed = job_of(models, "untied", reward=RewardConfig(half, dict.fromkeys(half, 0.5)))
    said = preflight(every, Processes(every.processes))
    line = "Scored on a server, taking nothing here: relevance at http://host:8600, style at http://host:8600."
    assert line in said.splitlines() and "no model here" in said
    text = preflight(mixed, Processes(mixed.processes))
    assert "Scored on a server, taking nothing here: relevance at http://host:8600.\n" in text
    assert "| preference " in text and "| relevance " not in text
    assert "on a server" not in preflight(near, Processes(near.processes))
