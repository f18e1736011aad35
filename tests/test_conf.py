"""Every YAML of `conf/` composes, resolves and binds: each job is built, with placeholders for given paths."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

ROOT = Path(__file__).parents[1]
CONF = ROOT / "conf"
sys.path.append(str(ROOT / "scripts"))

from _steps import build, expanded, resolved  # noqa: E402

from finegrained_rlhf.core.errors import ConfigError  # noqa: E402
from finegrained_rlhf.runtime.job import RESERVED_KEYS  # noqa: E402

SCRIPTS = sorted(path.stem for path in CONF.glob("*.yaml") if path.stem not in ("app", "sweep_settings"))
KINDS = ("relevance", "factuality", "completeness", "preference")

# Which script an experiment is for. Those of several steps name their scripts themselves.
EXPERIMENTS = {
    "smoke": "train_ppo",
    "qa_feedback": "train_ppo",
    "qa_feedback_preference": "train_ppo",
    "qa_feedback_tiny": "train_ppo",
    "factworld_base": "train_ppo",
    "factworld_ppo": "train_ppo",
    "factworld_preference": "train_ppo",
    "qa_feedback_sft": "train_sft",
    "factworld_sft": "train_sft",
    "qa_feedback_reward_model": "train_reward_model",
    "factworld_reward_model": "train_reward_model",
    "doc2dial": "train_dialki",
    "wow": "train_dialki",
    "doc2dial_responses": "train_sft",
    "dstc11_dialki": "train_dialki",
    "dialogue_world_dialki": "train_dialki",
    "dialogue_world_generator": "train_sft",
    "qrecc_t5qr": "train_conqrr",
    "qrecc_mix": "train_conqrr",
    "qrecc_rl": "train_conqrr",
    "rewrite_world_t5qr": "train_conqrr",
    "rewrite_world_conqrr": "train_conqrr",
    "factworld_customize": "sweep",
    "qa_feedback_customize": "sweep",
}
GROUPS = {
    "policy": ("train_ppo", "train_sft", "train_conqrr"),
    "value": ("train_ppo",),
    "reward": ("train_ppo", "evaluate", "generate"),
    "reward_model": ("train_reward_model",),
    "oracle": ("evaluate",),
    "tracking": ("train_ppo", "train_sft", "train_reward_model", "train_dialki", "train_conqrr"),
    "optimizer": ("train_conqrr",),
    "preset": ("train_ppo",),
    "baseline": ("train_dialki",),
    "retriever": ("build_index", "search", "rewrite", "train_conqrr"),
}
NEEDED = {"train_reward_model": ["reward_model=relevance"]}


@pytest.fixture(scope="module", autouse=True)
def hydra() -> Iterator[None]:
    with initialize_config_dir(str(CONF), version_base=None):
        yield


def filled(cfg: DictConfig) -> DictConfig:
    """Give every `???` a value of the kind that it asks for."""
    for key in OmegaConf.missing_keys(cfg):
        OmegaConf.update(cfg, key, "given")
    if "outputs" in cfg and cfg.get("checkpoint", "given") is None:
        cfg.checkpoint = "given"
    return cfg


def job_of(script: str, overrides: list[str]) -> Any:
    cfg = filled(compose(script, overrides=overrides))
    config = resolved(cfg)
    for _, step in expanded(config.pop("prepare", None) or {}):
        build_step(step)
    for key in RESERVED_KEYS:
        config.pop(key, None)
    for part in ("sweep", "doctor"):
        if part in config:
            build(config.pop(part))
    return build(config)


def build_step(step: dict[str, Any]) -> None:
    if "job" in step:
        assert hasattr(build(step["job"]), "run")
    else:
        assert hasattr(job_of(step["script"], [str(arg) for arg in step.get("args", [])]), "run")


@pytest.mark.parametrize("script", [name for name in SCRIPTS if name != "run_experiment"])
def test_every_script_has_a_configuration_that_binds(script: str) -> None:
    assert (ROOT / "scripts" / f"{script}.py").is_file()
    assert callable(job_of(script, NEEDED.get(script, [])).run)


@pytest.mark.parametrize("experiment", sorted(EXPERIMENTS))
def test_every_experiment_binds(experiment: str) -> None:
    script = EXPERIMENTS[experiment]
    for kind in KINDS if script == "train_reward_model" else ("",):
        job_of(script, [f"experiment={experiment}", *([f"reward_model={kind}"] if kind else [])])


@pytest.mark.parametrize("experiment", sorted(EXPERIMENTS))
def test_what_an_experiment_asks_for_must_be_given(experiment: str) -> None:
    """A `???` in an experiment does not undo a default of the script: what it marks must be missing there already."""
    cfg = compose(
        EXPERIMENTS[experiment], overrides=[*NEEDED.get(EXPERIMENTS[experiment], []), f"experiment={experiment}"]
    )
    for path in marked(OmegaConf.to_container(OmegaConf.load(CONF / "experiment" / f"{experiment}.yaml"))):
        parent, _, key = path.rpartition(".")
        assert OmegaConf.is_missing(OmegaConf.select(cfg, parent) if parent else cfg, key), path


def marked(value: Any, path: str = "") -> Iterator[str]:
    """The dotted paths at which a raw configuration says `???`."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from marked(item, f"{path}.{key}" if path else key)
    elif value == "???":
        yield path


def experiments_of_steps() -> list[str]:
    return sorted(path.stem for path in (CONF / "experiment").glob("*.yaml") if path.stem not in EXPERIMENTS)


@pytest.mark.parametrize("experiment", experiments_of_steps())
def test_every_step_of_an_experiment_binds(experiment: str) -> None:
    cfg = compose("run_experiment", overrides=[f"experiment={experiment}"])
    cfg.seeds = None
    config = resolved(filled(cfg))
    steps = list(expanded(config["steps"]))
    assert steps
    for _, step in steps:
        build_step(step)
    if config["collect"] is not None:
        assert hasattr(build(config["collect"]), "run")


def options() -> list[tuple[str, str, str]]:
    return [
        (group, path.stem, script)
        for group, scripts in GROUPS.items()
        for path in sorted((CONF / group).glob("*.yaml"))
        for script in scripts
    ]


def test_no_group_is_forgotten_and_none_is_called_data() -> None:
    groups = {path.name for path in CONF.iterdir() if path.is_dir()}
    assert groups == {*GROUPS, "experiment", "hydra"} and "data" not in groups


@pytest.mark.parametrize(("group", "option", "script"), options())
def test_every_option_of_every_group_binds(group: str, option: str, script: str) -> None:
    job_of(script, [*([] if group == "reward_model" else NEEDED.get(script, [])), f"{group}={option}"])


@pytest.mark.parametrize("script", ["train_ppo", "train_sft", "train_reward_model", "train_dialki"])
def test_every_training_script_has_the_common_keys(script: str) -> None:
    cfg = compose(script, overrides=NEEDED.get(script, []))
    assert {"output_dir", "seed", "total_steps", "resume", "data"} <= cfg.keys()
    assert cfg.resume == "auto" and OmegaConf.is_missing(cfg, "data")


@pytest.mark.parametrize("experiment", sorted(name for name, script in EXPERIMENTS.items() if script == "train_ppo"))
def test_the_doctor_takes_the_command_line_of_a_run(experiment: str) -> None:
    words = [f"experiment={experiment}", "policy=lora", "ppo.epochs=3"]
    run, doctor = (OmegaConf.to_container(compose(script, overrides=words)) for script in ("train_ppo", "doctor"))
    assert isinstance(doctor, dict) and doctor.pop("doctor")
    assert doctor == run


@pytest.mark.parametrize("script", [name for name in SCRIPTS if name != "run_experiment"])
def test_a_key_that_nothing_reads_is_an_error(script: str) -> None:
    config = resolved(filled(compose(script, overrides=NEEDED.get(script, []))))
    for key in ("prepare", "settings", "sweep", "doctor"):
        config.pop(key, None)
    with pytest.raises(ConfigError, match="unknown key 'nothing'"):
        build(config | {"nothing": 1})


def test_the_papers_configuration_of_sft() -> None:
    """REFERENCE: 10 epochs, batch 4, lr 5e-5 linear, bf16, best by RougeLSum, 1024 tokens in, 200 out."""
    job = job_of("train_sft", ["experiment=qa_feedback_sft"])
    assert (job.epochs, job.batch_size, job.processes.precision) == (10, 4, "bf16")
    assert (job.optimizer.lr, job.optimizer.schedule) == (5e-5, "linear")
    assert (job.max_prompt_tokens, job.max_answer_tokens) == (1024, 200)
    assert job.steps(1000) == 2500 and job.loop_config(1000).validate_every == 250


def test_the_papers_configuration_of_ppo() -> None:
    """Thesis, appendix A.1, and what only the original code fixes."""
    job = job_of("train_ppo", ["experiment=qa_feedback"])
    assert job.total_steps * job.rollout.prompts_per_step * job.rollout.samples_per_prompt == 80_000
    sampling = job.rollout
    assert (sampling.samples_per_prompt, sampling.top_k, sampling.temperature, sampling.top_p) == (4, 20, 0.7, 1.0)
    assert (job.max_prompt_tokens, sampling.max_new_tokens) == (1024, 200)
    ppo = job.ppo
    assert (ppo.epochs, ppo.discount, ppo.lambda_, ppo.clip, ppo.value_clip) == (4, 1.0, 0.95, 0.2, 0.2)
    assert (ppo.value_coefficient, ppo.whiten_rewards, ppo.whiten_advantages) == (1.0, True, True)
    assert (ppo.kl.beta, ppo.kl.controller, ppo.kl.limit, ppo.kl.patience) == (0.3, "fixed", 10.0, 5)
    optimizer = job.optimizer
    assert (optimizer.lr, optimizer.eps, optimizer.warmup_steps, optimizer.schedule) == (1e-5, 1e-5, 100, "linear")
    assert (optimizer.max_grad_norm, job.validate_every) == (None, 50)
    assert dict(job.reward.weights) == {"relevance": 0.3, "factuality": 0.5, "completeness": 0.3}
    holistic = job_of("train_ppo", ["experiment=qa_feedback_preference"])
    assert (holistic.ppo.kl.beta, holistic.ppo.lambda_, list(holistic.reward.weights)) == (0.2, 0.99, ["preference"])


def weights_of(experiment: str, *preset: str) -> tuple[float, ...]:
    weights = job_of("train_ppo", [f"experiment={experiment}", *(f"preset={name}" for name in preset)]).reward.weights
    return tuple(weights[name] for name in ("relevance", "factuality", "completeness"))


def test_the_papers_presets_and_factworlds() -> None:
    """Thesis, section 6.4.5: w1 = 0.4, 0.3, 0.2 for short, medium, long; w2 = 0.5, w3 = 0.3. Medium is the default."""
    paper = [weights_of("qa_feedback", name) for name in ("short", "medium", "long")]
    assert paper == [(0.4, 0.5, 0.3), (0.3, 0.5, 0.3), (0.2, 0.5, 0.3)]
    ours = [weights_of("factworld_ppo", f"factworld_{name}") for name in ("short", "medium", "long")]
    assert ours[0][0] > ours[1][0] > ours[2][0]
    assert paper[1] == weights_of("qa_feedback") and ours[1] == weights_of("factworld_ppo")


def test_customization_trains_as_the_other_tables_do() -> None:
    """A point of the sweep differs from the tables' fine-grained run in its directory and its weights only."""
    cfg = compose("run_experiment", overrides=["experiment=factworld_rlhf", "seed=9", "seeds=null"])
    cfg.output_dir = f"{cfg.output_dir}/seed_9"
    steps = dict(expanded(resolved(cfg)["steps"]))
    table = resolved(compose("train_ppo", overrides=list(steps["fine_grained_rlhf"]["args"])))
    point = resolved(compose("sweep", overrides=["experiment=factworld_customize", "preset=factworld_long", "seed=9"]))
    assert point["sweep"]["evaluation"]["data"] == steps["evaluation"]["args"][1].partition("=")[2]
    assert point["reward"]["weights"]["relevance"] < table["reward"]["weights"]["relevance"]
    for config in (point, table):
        for key in ("output_dir", "settings", "sweep"):
            config.pop(key, None)
        config["reward"].pop("weights")
    assert point == table


@pytest.mark.parametrize(
    ("kind", "lr", "decay", "epochs", "steps", "batch"),
    [
        ("relevance", 5e-6, 1e-2, 50, None, 24),
        ("factuality", 5e-6, 1e-3, 50, None, 24),
        ("completeness", 5e-5, 1e-3, None, 6000, 12),
        ("preference", 1e-5, 1e-2, None, 6000, 12),
    ],
)
def test_the_papers_configuration_of_reward_models(
    kind: str, lr: float, decay: float, epochs: int | None, steps: int | None, batch: int
) -> None:
    job = job_of("train_reward_model", ["experiment=qa_feedback_reward_model", f"reward_model={kind}"])
    model = job.reward_model
    assert (model.optimizer.lr, model.optimizer.weight_decay, model.optimizer.warmup_ratio) == (lr, decay, 0.1)
    assert (model.epochs, model.steps, model.batches.batch_size, model.max_length) == (epochs, steps, batch, 2048)
    assert (job.validate_every, job.processes.precision) == (200, "bf16")


@pytest.mark.parametrize(
    ("experiment", "length", "spans", "passages", "alpha", "epochs"),
    [("doc2dial", 512, 5, 8, 1.0, 20), ("wow", 384, 1, 10, 0.5, 10)],
)
def test_the_papers_configuration_of_dialki(
    experiment: str, length: int, spans: int, passages: int, alpha: float, epochs: int
) -> None:
    """Thesis, section 3.3.2, and what only the original code fixes."""
    job = job_of("train_dialki", [f"experiment={experiment}"])
    assert (job.format, job.epochs, job.history_labels) == (experiment, epochs, "all")
    model = job.dialki
    assert (model.inputs.max_length, model.inputs.max_context) == (length, 126)
    assert (model.search.max_spans, model.search.max_passages, model.search.score_by) == (spans, 20, "probabilities")
    assert (model.contextualize, model.user_turns) == (True, 2)
    assert (job.losses.history, job.losses.adversarial) == (alpha, 5.0)
    assert (job.batches.batch_size, job.batches.passages) == (4, passages)
    optimizer = job.optimizer
    assert (optimizer.lr, optimizer.weight_decay, optimizer.warmup_steps) == (3e-5, 0.0, 1000)
    assert (optimizer.max_grad_norm, optimizer.schedule) == (1.0, "linear")


def test_the_baselines_of_dialki() -> None:
    """Thesis, section 3.3.3: the next loss alone, whatever an experiment says; BERTQA's numbers are Doc2Dial's."""
    for experiment in ("doc2dial", "wow"):
        for baseline in ("bertqa", "multi_sentence"):
            job = job_of("train_dialki", [f"experiment={experiment}", f"baseline={baseline}"])
            assert (job.losses.history, job.losses.adversarial, job.dialki.contextualize) == (0, 0, False)
            assert job.format == experiment and job.dialki.inputs.max_length == (
                512 if experiment == "doc2dial" else 384
            )
            assert (job.dialki.windows is None, job.dialki.units) == (
                (False, "passages") if baseline == "bertqa" else (True, "sentences")
            )
    windows = job_of("train_dialki", ["baseline=bertqa"]).dialki.windows
    assert (windows.stride, windows.max_answer, windows.n_best) == (128, 50, 20)


def test_the_engine_needs_no_optional_package() -> None:
    """A bare GPU machine has torch, transformers, accelerate, numpy and safetensors only."""
    modules = (
        "core.records core.stats core.noise rl.losses rl.kl rl.advantages models.policy models.value models.loading "
        "rollout.engine rollout.generate rewards.composition runtime.loop runtime.optimizer training.ppo"
    )
    program = (
        "import importlib, sys\n"
        f"for name in {modules!r}.split(): importlib.import_module('finegrained_rlhf.' + name)\n"
        "optional = 'spacy wandb hydra omegaconf datasets evaluate peft rouge_score nltk pandas matplotlib'.split()\n"
        "print([name for name in optional if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240)
    assert done.stdout.strip() == "[]", done.stderr


def test_no_job_has_a_field_of_a_reserved_name() -> None:
    """A reserved key never reaches a job: a field of its name would silently keep its default."""
    seen = set()
    for script in SCRIPTS:
        target = compose(script, overrides=NEEDED.get(script, [])).get("_target_")
        if target is not None:
            keys = set(inspect.signature(get_object(target)).parameters)
            assert not keys & RESERVED_KEYS, f"{target}: {sorted(keys & RESERVED_KEYS)}"
            seen.add(script)
    assert {"train_ppo", "label_passages", "make_factworld"} <= seen
