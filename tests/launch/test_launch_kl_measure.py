"""What `ppo.kl.measure=auto` stands for: in a run's configuration, and where a run goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("hydra")  # absent on a bare machine, where the engine's other tests run

from hydra import initialize_config_dir  # noqa: E402
from hydra_once import compose  # noqa: E402

from finegrained_rlhf.launch.build import build  # noqa: E402
from finegrained_rlhf.launch.steps import keys_of_job, resolved  # noqa: E402
from finegrained_rlhf.runtime.training_run import TrainingRun, configured  # noqa: E402

CONF = Path(__file__).parents[2] / "conf"


def paper(*keys: str) -> dict[str, Any]:
    """The smallest experiment as the paper draws (temperature 0.7, top-k 20) and stops (10 nats)."""
    drawn = ("experiment=smoke", "ppo.kl.limit=10", "rollout.temperature=0.7", "rollout.top_k=20")
    with initialize_config_dir(str(CONF), version_base=None):
        config = resolved(compose("train_ppo", [*drawn, *keys]))
    return dict(keys_of_job(config))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ([], "exact"),  # the paper's PPO: temperature 0.7 and top-k 20, a limit of 10 nats
        (["ppo.kl.limit=null"], "sampled"),
        (["ppo.kl.limit=null", "ppo.kl.controller=adaptive"], "exact"),
        (["ppo.score_sampling_distribution=true", "ppo.kl.controller=adaptive"], "sampled"),
        (["rollout.temperature=1", "rollout.top_k=0"], "sampled"),
        (["rollout.temperature=1", "rollout.top_k=0", "rollout.top_p=0.9"], "exact"),
        (["ppo.kl.measure=sampled", "ppo.kl.controller=adaptive"], "sampled"),
        (["ppo.kl.limit=null", "ppo.kl.measure=exact"], "exact"),
    ],
)
def test_auto_is_exact_where_something_reads_what_is_no_kl(keys: list[str], expected: str) -> None:
    config = paper(*keys)
    job = build(config)
    assert (job.kl.measure, job.kl.exact) == (expected, expected == "exact")
    assert replace(job.kl, measure=job.ppo.kl.measure) == job.ppo.kl


@pytest.mark.parametrize(
    ("begun", "now", "resume", "expected"),
    [
        ("sampled", "auto", "auto", "sampled"),
        ("exact", "auto", "auto", "exact"),
        ("auto", "auto", "auto", "auto"),
        ("sampled", "auto", "never", "auto"),
        ("sampled", "exact", "auto", "exact"),  # which is refused where runs are compared
    ],
)
def test_auto_goes_on_as_the_run_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: str, now: str, resume: str, expected: str
) -> None:
    keys = [f"output_dir={tmp_path}", f"ppo.kl.measure={now}", f"resume={resume}"]
    config = paper(*keys)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"ppo": {"kl": {"measure": begun}}}))
    seen: list[tuple[Any, Any]] = []
    monkeypatch.setattr(TrainingRun, "run", lambda job: seen.append((job.ppo, job.configuration()["ppo"])))
    with configured(config):
        build(config).run()
    ((ppo, recorded),) = seen
    assert ppo.kl.measure == recorded["kl"]["measure"] == expected
    config["ppo"]["kl"]["measure"] = expected
    assert recorded == config["ppo"]
