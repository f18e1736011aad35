"""Every YAML of `conf/` composes, resolves and binds: each job is built, with placeholders for given paths."""

from __future__ import annotations

import functools
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hydra import initialize_config_dir
from hydra.utils import get_object
from hydra_once import compose
from kinds import some_of_each_kind
from omegaconf import DictConfig, OmegaConf
from seldom import seldom

ROOT = Path(__file__).parents[2]
CONF = ROOT / "conf"

from finegrained_rlhf.core.errors import ConfigError  # noqa: E402
from finegrained_rlhf.core.files import read_json  # noqa: E402
from finegrained_rlhf.launch.checks.experiments import owner  # noqa: E402
from finegrained_rlhf.launch.checks.schema import keys_of_job  # noqa: E402
from finegrained_rlhf.launch.commands import names  # noqa: E402
from finegrained_rlhf.launch.configurations import conf_directories, conf_file  # noqa: E402
from finegrained_rlhf.launch.pipeline import collector  # noqa: E402
from finegrained_rlhf.launch.steps import build, expanded, resolved  # noqa: E402
from finegrained_rlhf.runtime.job import RESERVED_KEYS  # noqa: E402
from guards.doubles import read_doubles  # noqa: E402

SCRIPTS = sorted(names())
KINDS = ("relevance", "factuality", "completeness", "preference")


def names_in(group: str) -> list[str]:
    places = [directory / group for directory in conf_directories()]
    return sorted(
        path.relative_to(place).with_suffix("").as_posix() for place in places for path in place.rglob("*.yaml")
    )


# Which script an experiment is for, as its file says. Pipelines name the scripts of their steps themselves.
EXPERIMENTS = {name: script for name in names_in("experiment") if (script := owner(name)) is not None}
PIPELINES = names_in("pipeline")
GROUPS = {
    "policy": ("train_ppo", "train_sft", "train_conqrr"),
    "prompt": ("train_ppo", "train_sft", "generate", "evaluate", "sample_outputs", "stress_test"),
    "value": ("train_ppo",),
    "algorithm": ("train_ppo",),
    "environment": ("train_ppo",),
    "reward": ("train_ppo", "evaluate", "generate", "stress_test", "serve_rewards"),
    "reward_model": ("train_reward_model",),
    "oracle": ("evaluate",),
    "scorer": ("measure_revisions",),
    "tracking": ("train_ppo", "train_sft", "train_reward_model", "train_dialki", "train_conqrr"),
    "optimizer": ("train_conqrr",),
    "preset": ("train_ppo",),
    "baseline": ("train_dialki", "evaluate_inscit"),
    "retriever": (
        *("build_index", "search", "rewrite", "train_conqrr", "retrieve_evidence", "make_dpr_data"),
        "make_question_dpr_data",
    ),
    "rewrite_reward": ("train_conqrr",),
    "budget": ("run_experiment",),
    "text_scorer": (),  # of the rewards that `reward` chooses
    "judge": (),
    "writer": ("rewrite_few_shot",),
    "mixer": ("generate", "sample_outputs"),
    "select": ("make_annotation_tasks",),
    "preannotate": ("make_annotation_tasks",),
    "text_generator": (),  # of what `llm` chooses
    "context_encoder": (),
    "advising_user": (),  # of what `user` chooses
    "editing_user": (),
    "text_similarity": (),
    "public_feedback": (),  # of what `source` chooses
    "taxonomy": ("inspect_feedback", "evaluate_reward_model", "make_annotation_tasks"),  # kinds go with their own
}
NEEDED = {
    "train_reward_model": ["reward_model=relevance"],
    "read_public_feedback": ["public_feedback@source=mqm"],
    "evaluate_detox": ["judge_model=given"],
    "evaluate_inscit": ["baseline=last_turn"],
    "make_reader_inputs": ["retrieved=given"],
    "fuse_runs": ["inputs=[one,other]"],
    "edits_to_feedback": ["data=given"],
    "run_experiment": ["output_dir=given"],
    "run_pahf": ["phases=[one,two,three,four]"],
    "make_disambig_docs": ["llm.remote.url=http://127.0.0.1:9/"],
}
OWN = {
    **dict.fromkeys(("bertqa", "bertqa_span", "multi_sentence"), "train_dialki"),
    "last_turn": "evaluate_inscit",
}
"""Options that are one script's, where their group is several scripts'."""
NOT_OF = {("policy", "fid"): ("train_conqrr",)}
"""Options that a script of their group cannot use: its prompts have no passages."""
TOGETHER = {
    ("value", "none"): ["algorithm=rloo"],
    ("reward_model", "segment"): ["reward_model.kind=relevance"],
    ("retriever", "dense"): ["retriever.encoder.path=given"],  # or two towers
    ("reward", "served"): ["reward.components.relevance.remote.url=http://127.0.0.1:8711"],
}
"""Options that only another group's option can use, or that need one of several keys."""
OF_OWN_TAXONOMY = {
    "personalization/style_reward_model": [f"reward_model.kind={kind}" for kind in ("irrelevant", "wrong", "missing")]
}
"""Experiments that choose a taxonomy, and what says which of its categories is learnt."""
ALONE = ("preset", "reward_model", "value")
"""Groups whose options say something about another group's."""


@pytest.fixture(scope="module", autouse=True)
def hydra() -> Iterator[None]:
    with initialize_config_dir(str(CONF), version_base=None):
        yield


def filled(cfg: DictConfig) -> DictConfig:
    """Give every `???` a value of the kind that it asks for."""
    for key in OmegaConf.missing_keys(cfg):
        OmegaConf.update(cfg, key, "given")
    if "outputs" in cfg and cfg.outputs is None and cfg.get("checkpoint", "given") is None:
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
def test_every_command_has_a_configuration_that_binds(script: str) -> None:
    assert callable(job_of(script, NEEDED.get(script, [])).run)


@pytest.mark.parametrize("experiment", sorted(EXPERIMENTS))
def test_every_experiment_binds(experiment: str) -> None:
    script = EXPERIMENTS[experiment]
    words = [f"reward_model={kind}" for kind in KINDS] if script == "train_reward_model" else [""]
    for word in OF_OWN_TAXONOMY.get(experiment, words):
        job_of(script, [f"experiment={experiment}", *([word] if word else [])])


@pytest.mark.parametrize("experiment", sorted(EXPERIMENTS))
def test_what_an_experiment_asks_for_must_be_given(experiment: str) -> None:
    """A `???` in an experiment does not undo a default of the script: what it marks must be missing there already."""
    cfg = compose(
        EXPERIMENTS[experiment], overrides=[*NEEDED.get(EXPERIMENTS[experiment], []), f"experiment={experiment}"]
    )
    for path in marked(OmegaConf.to_container(OmegaConf.load(conf_file(f"experiment/{experiment}.yaml")))):
        parent, _, key = path.rpartition(".")
        assert OmegaConf.is_missing(OmegaConf.select(cfg, parent) if parent else cfg, key), path


def marked(value: Any, path: str = "") -> Iterator[str]:
    """The dotted paths at which a raw configuration says `???`."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from marked(item, f"{path}.{key}" if path else key)
    elif value == "???":
        yield path


def steps_of(pipeline: str) -> list[dict[str, Any]]:
    cfg = compose("run_experiment", overrides=[f"pipeline={pipeline}"])
    cfg.seeds = None
    config = resolved(filled(cfg))
    if config["collect"] is not None:
        job = collector(config)
        assert job.configuration == config
        assert job.made_by()["configuration"]["settings"] == config["settings"]
    return [step for _, step in expanded(config["steps"])]


def test_every_kind_of_step_of_a_pipeline_binds() -> None:
    of_pipelines = [steps_of(pipeline) for pipeline in PIPELINES]
    collects = [OmegaConf.load(conf_file(f"pipeline/{pipeline}.yaml")).get("collect") for pipeline in PIPELINES]
    assert all(steps or collect for steps, collect in zip(of_pipelines, collects, strict=True))  # what collects may run
    steps = [step for steps in of_pipelines for step in steps]
    jobs = [step for step in steps if "job" in step]
    scripts = [step for step in steps if "job" not in step]
    for step in (*jobs, *some_of_each_kind(scripts, lambda step: (step.get("script"), step.get("args", [])))):
        build_step(step)


def test_results_lie_below_the_output_directory_unless_told_otherwise() -> None:
    for pipeline in PIPELINES:
        collect = OmegaConf.load(conf_file(f"pipeline/{pipeline}.yaml")).get("collect")
        if collect is not None:
            output = OmegaConf.to_container(collect, resolve=False)["output"]  # type: ignore[index,call-overload]
            assert output.startswith(("${results_dir}/", "${output_dir}/")), pipeline


@pytest.mark.needs("finegrained_lab")
def test_results_go_where_the_user_says() -> None:
    words = ["pipeline=conqrr/canard", "output_dir=own"]
    assert compose("run_experiment", overrides=words).collect.output == "own/results/conqrr/canard.json"
    given = compose("run_experiment", overrides=[*words, "results_dir=docs/results"])
    assert given.collect.output == "docs/results/conqrr/canard.json"


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_every_step_of_a_pipeline_binds(pipeline: str) -> None:
    """Those too that differ from another in nothing but the values of keys."""
    for step in steps_of(pipeline):
        build_step(step)


@pytest.mark.parametrize("experiment", names_in("experiment"))
def test_every_experiment_says_which_script_it_belongs_to(experiment: str) -> None:
    assert owner(experiment) in SCRIPTS
    assert "steps" not in OmegaConf.load(conf_file(f"experiment/{experiment}.yaml"))


def options() -> list[tuple[str, str, str]]:
    return [
        (group, name, script)
        for group, scripts in GROUPS.items()
        for name in names_in(group)
        for script in scripts
        if script in SCRIPTS and OWN.get(name, script) == script and script not in NOT_OF.get((group, name), ())
    ]


def test_no_group_is_forgotten_and_none_is_called_data() -> None:
    groups = {path.name for directory in conf_directories() for path in directory.iterdir() if path.is_dir()}
    known = {*GROUPS, "experiment", "pipeline", "hydra"}
    assert groups == known if find_spec("finegrained_lab") else groups < known
    assert "data" not in groups


def rows_of_options() -> list[tuple[str, list[str]]]:
    """Command lines that choose an option of every group of a script at once, until no option is left anywhere."""
    rows: list[tuple[str, list[str]]] = []
    left = {(group, option) for group, option, _ in options()}
    for script in SCRIPTS:
        groups = [group for group, scripts in GROUPS.items() if script in scripts and group not in ALONE]
        columns = [
            [(group, name) for of, name, whose in options() if (of, whose) == (group, script)] for group in groups
        ]
        for number in range(max(map(len, columns), default=0)):
            chosen = [column[number % len(column)] for column in columns]
            if number and not left & set(chosen):
                continue
            needed = [word for option in chosen for word in TOGETHER.get(option, [])]
            decided = {word.partition("=")[0] for word in (*needed, *(NEEDED.get(script, []) if number == 0 else []))}
            own = NEEDED.get(script, [])
            taken = [one for one in chosen if one[0] not in decided or "=".join(one) in own]
            left -= set(taken)
            rows.append((script, [*needed, *(f"{group}={option}" for group, option in taken)]))
    alone = [row for row in options() if row[0] in ALONE]
    return rows + [(script, [*TOGETHER.get((group, name), []), f"{group}={name}"]) for group, name, script in alone]


def test_the_rows_hold_every_option_and_every_group_of_every_script() -> None:
    rows = rows_of_options()
    assert {f"{group}={option}" for group, option, _ in options()} <= {word for _, words in rows for word in words}
    words = [(script, word.partition("=")[0]) for script, words in rows for word in words]
    chosen = {(script, key) for script, key in words if "." not in key}
    assert chosen == {(script, group) for group, _, script in options()}


@pytest.mark.parametrize(("script", "words"), rows_of_options(), ids=lambda value: str(value)[:60])
def test_options_of_the_groups_bind_together(script: str, words: list[str]) -> None:
    chosen = {word.partition("=")[0] for word in words}
    job_of(script, [*(word for word in NEEDED.get(script, []) if word.partition("=")[0] not in chosen), *words])


@pytest.mark.slow
@pytest.mark.parametrize(("group", "option", "script"), options())
def test_every_option_of_every_group_binds(group: str, option: str, script: str) -> None:
    needed = [] if group == "reward_model" else NEEDED.get(script, [])
    job_of(script, [*needed, *TOGETHER.get((group, option), []), f"{group}={option}"])


@pytest.mark.parametrize("script", ["train_ppo", "train_sft", "train_reward_model", "train_dialki"])
def test_every_training_script_has_the_common_keys(script: str) -> None:
    cfg = compose(script, overrides=NEEDED.get(script, []))
    assert {"output_dir", "seed", "total_steps", "resume", "data"} <= cfg.keys()
    assert cfg.resume == "auto" and OmegaConf.is_missing(cfg, "data")


@pytest.mark.parametrize(
    "experiment",
    seldom(
        sorted(name for name, script in EXPERIMENTS.items() if script == "train_ppo"),
        ["detox/fine_grained", "factworld/fine_grained", "inscit/world_ppo", "qa_feedback/smollm2_fine_grained"],
    ),
)
def test_the_doctor_takes_the_command_line_of_a_run(experiment: str) -> None:
    words = [f"experiment={experiment}", "policy=lora", "ppo.epochs=3"]
    run, doctor = (OmegaConf.to_container(compose(script, overrides=words)) for script in ("train_ppo", "doctor"))
    assert isinstance(doctor, dict) and doctor.pop("doctor")
    assert doctor == run


@pytest.mark.parametrize("script", [name for name in SCRIPTS if name != "run_experiment"])
def test_a_key_that_nothing_reads_is_an_error(script: str) -> None:
    config = resolved(filled(compose(script, overrides=NEEDED.get(script, []))))
    for key in (*RESERVED_KEYS, "sweep", "doctor"):
        config.pop(key, None)
    with pytest.raises(ConfigError, match="unknown key 'nothing'"):
        build(config | {"nothing": 1})


def test_the_papers_configuration_of_sft() -> None:
    """REFERENCE: 10 epochs, batch 4, lr 5e-5 linear, bf16, best by RougeLSum, 1024 tokens in, 200 out."""
    job = job_of("train_sft", ["experiment=qa_feedback/sft"])
    assert (job.epochs, job.batch_size, job.processes.precision) == (10, 4, "bf16")
    assert (job.optimizer.lr, job.optimizer.schedule) == (5e-5, "linear")
    assert (job.max_prompt_tokens, job.max_answer_tokens) == (1024, 200)
    assert job.steps(1000) == 2500 and job.loop_config(1000).validate_every == 250


def test_the_papers_configuration_of_ppo() -> None:
    """Thesis, appendix A.1, and what only the original code fixes."""
    job = job_of("train_ppo", ["experiment=qa_feedback/fine_grained"])
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
    holistic = job_of("train_ppo", ["experiment=qa_feedback/preference"])
    assert (holistic.ppo.kl.beta, holistic.ppo.lambda_, list(holistic.reward.weights)) == (0.2, 0.99, ["preference"])


def weights_of(experiment: str, *preset: str) -> tuple[float, ...]:
    weights = job_of("train_ppo", [f"experiment={experiment}", *(f"preset={name}" for name in preset)]).reward.weights
    return tuple(weights[name] for name in ("relevance", "factuality", "completeness"))


def test_the_papers_presets_and_factworlds() -> None:
    """Thesis, section 6.4.5: w1 = 0.4, 0.3, 0.2 for short, medium, long; w2 = 0.5, w3 = 0.3. Medium is the default."""
    paper = [weights_of("qa_feedback/fine_grained", name) for name in ("short", "medium", "long")]
    assert paper == [(0.4, 0.5, 0.3), (0.3, 0.5, 0.3), (0.2, 0.5, 0.3)]
    ours = [weights_of("factworld/fine_grained", f"factworld_{name}") for name in ("short", "medium", "long")]
    assert ours[0][0] > ours[1][0] > ours[2][0]
    assert paper[1] == weights_of("qa_feedback/fine_grained") and ours[1] == weights_of("factworld/fine_grained")


def test_customization_trains_as_the_other_tables_do() -> None:
    """A point of the sweep differs from the tables' fine-grained run in its directory and its weights only."""
    cfg = compose("run_experiment", overrides=["pipeline=factworld/rlhf", "seed=9", "seeds=null"])
    cfg.output_dir = f"{cfg.output_dir}/seed_9"
    steps = dict(expanded(resolved(cfg)["steps"]))
    table = resolved(compose("train_ppo", overrides=list(steps["fine_grained_rlhf"]["args"])))
    point = resolved(compose("sweep", overrides=["experiment=factworld/customize", "preset=factworld_long", "seed=9"]))
    assert point["sweep"]["evaluation"]["data"] == steps["evaluation"]["args"][1].partition("=")[2]
    assert point["reward"]["weights"]["relevance"] < table["reward"]["weights"]["relevance"]
    for config in (point, table):
        for key in ("output_dir", "settings", "sweep"):
            config.pop(key, None)
        config["reward"].pop("weights")
    assert point == table


def flat(config: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(config, dict):
        return {prefix: config}
    return {k: v for key, item in config.items() for k, v in flat(item, f"{prefix}.{key}" if prefix else key).items()}


@functools.cache
def ppo_steps(pipeline: str) -> dict[str, dict[str, Any]]:
    """The resolved configuration of every PPO step of an experiment of steps, flat, by its run directory's name."""
    cfg = compose("run_experiment", overrides=[f"pipeline={pipeline}", "seeds=null"])
    steps = [step for _, step in expanded(resolved(cfg)["steps"]) if step.get("script") == "train_ppo"]
    configs = [resolved(compose("train_ppo", overrides=list(step["args"]))) for step in steps]
    return {Path(config["output_dir"]).name: flat(config) for config in configs}


RLHF = {"fine_grained_rlhf": "factworld/fine_grained", "preference_rlhf": "factworld/preference"}
FILES = {"output_dir", "data", "validation_data", "policy.path", "value.path"}


def rlhf_steps() -> list[tuple[str, str]]:
    return [
        (pipeline, system)
        for pipeline in PIPELINES
        if pipeline.startswith("factworld/")
        and not re.fullmatch(
            "factworld/(algorithm.*|.*grid|holes|.*models|annotation|(free_)?credit.*|preset.*|predict|(free_)?revisions)",
            pipeline,
        )
        for system in RLHF
        if (OmegaConf.load(conf_file(f"pipeline/{pipeline}.yaml")).get("steps") or {}).get(system, 0) is not None
    ]


@pytest.mark.parametrize(("pipeline", "system"), rlhf_steps())
def test_pipelines_train_with_the_settings_of_the_pages_commands(pipeline: str, system: str) -> None:
    """`finegrained train-ppo experiment=factworld/fine_grained` and `factworld/preference` hold the one set of
    settings.
    """
    step = ppo_steps(pipeline)[system]
    page = flat(resolved(filled(compose("train_ppo", overrides=[f"experiment={RLHF[system]}"]))))
    differ = {key for key in step.keys() | page.keys() if step.get(key) != page.get(key)}
    cadence = {"validate_every", "samples_every"} if pipeline == "factworld/demo" else set()
    assert {
        key for key in differ if not (key in FILES or re.fullmatch(r"reward\.components\.\w+\.path", key))
    } == cadence


def test_pipelines_train_the_preference_model_with_the_settings_of_the_pages_command() -> None:
    cfg = compose("run_experiment", overrides=["pipeline=factworld/models", "seeds=null"])
    step = dict(expanded(resolved(cfg)["steps"]))["preference_model"]
    made = flat(resolved(compose("train_reward_model", overrides=list(step["args"]))))
    page = flat(resolved(filled(compose("train_reward_model", overrides=["experiment=factworld/preference_model"]))))
    differ = {key for key in made.keys() | page.keys() if made.get(key) != page.get(key)}
    assert differ <= {"output_dir", "data", "validation_data", "model", "total_steps"}
    assert made["total_steps"] == page["reward_model.steps"] and page["total_steps"] is None


@pytest.mark.parametrize("system", sorted(RLHF))
def test_rlhf_on_factworld_takes_what_the_grid_chose(system: str) -> None:
    grid = {"fine_grained_rlhf": "grid", "preference_rlhf": "preference_grid"}[system]
    chosen = read_json(ROOT / f"docs/results/factworld/{grid}.json")["summary"][system]
    job = job_of("train_ppo", [f"experiment={RLHF[system]}"])
    assert {"lr": job.optimizer.lr, "beta": job.ppo.kl.beta} == chosen


@pytest.mark.needs("finegrained_lab")
def test_algorithms_take_what_their_grid_chose() -> None:
    chosen = read_json(ROOT / "docs/results/factworld/algorithms_grid.json")["summary"]
    runs = ppo_steps("factworld/algorithms")
    assert {name: {"lr": run["optimizer.lr"], "beta": run["ppo.kl.beta"]} for name, run in runs.items()} == chosen


SCORING = ("rollout.temperature", "rollout.top_k", "rollout.top_p", "ppo.score_sampling_distribution", "ppo.kl.limit")


@pytest.mark.parametrize("name", ["rloo", "grpo", "dr_grpo", "gdpo", "gspo", "cispo", "reinforce"])
def test_presets_without_a_value_model_score_what_they_sample_and_do_not_stop_early(name: str) -> None:
    preset = flat(resolved(filled(compose("train_ppo", overrides=[f"algorithm={name}"]))))
    assert [preset[key] for key in SCORING] == [1.0, 0, 1.0, True, None]
    given = ["experiment=qa_feedback/fine_grained", f"algorithm={name}", "rollout.top_p=0.9"]
    experiment = flat(resolved(filled(compose("train_ppo", overrides=given))))
    assert [experiment[key] for key in SCORING] == [0.7, 20, 0.9, True, None]


@pytest.mark.needs("finegrained_lab")
@pytest.mark.parametrize(
    ("pipeline", "runs", "drawn"),
    [
        ("factworld/algorithms", 9, [0.7, 20, 1.0]),
        ("detox/tone_world", 5, [1.0, 0, 0.9]),
        ("detox/smollm2", 3, [1.0, 0, 0.9]),
        ("personalization/style_training", 5, [1.0, 0, 1.0]),
    ],
)
def test_committed_tables_of_several_algorithms_keep_what_they_were_made_with(
    pipeline: str, runs: int, drawn: list[float]
) -> None:
    """The presets of groups took PPO's sampling, its plain softmax and its early stop when the tables were made."""
    steps = ppo_steps(pipeline)
    assert len(steps) == runs
    for step in steps.values():
        assert [step[key] for key in SCORING] == [*drawn, False, 10.0]


@pytest.mark.needs("finegrained_lab")
def test_the_demo_and_the_tables_train_as_they_always_did() -> None:
    """Numbers that the committed tables were made with."""
    demo, table, grid = (ppo_steps(f"factworld/{name}") for name in ("demo", "systems", "grid"))
    names = ("optimizer.lr", "ppo.kl.beta", "ppo.lambda_", "total_steps", "validate_every", "samples_every")
    found = {(name, system): [runs[system][key] for key in names] for name, runs in (("demo", demo), ("table", table))
             for system in RLHF}  # fmt: skip
    assert found == {
        ("demo", "fine_grained_rlhf"): [1e-4, 0.3, 0.95, 60, 10, 25],
        ("demo", "preference_rlhf"): [1e-4, 0.2, 0.99, 60, 10, 25],
        ("table", "fine_grained_rlhf"): [1e-4, 0.3, 0.95, 60, 5, 10],
        ("table", "preference_rlhf"): [1e-4, 0.2, 0.99, 60, 5, 10],
    }
    assert len(grid) == 24 and {run["optimizer.lr"] for run in grid.values()} == {3e-5, 1e-4, 3e-4}
    assert {run["ppo.kl.beta"] for run in grid.values()} == {0.03, 0.1, 0.3, 1.0}
    assert {(run["total_steps"], run["validate_every"]) for run in grid.values()} == {(60, 10)}


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
    job = job_of("train_reward_model", ["experiment=qa_feedback/reward_model", f"reward_model={kind}"])
    model = job.reward_model
    assert (model.optimizer.lr, model.optimizer.weight_decay, model.optimizer.warmup_ratio) == (lr, decay, 0.1)
    assert (model.epochs, model.steps, model.batches.batch_size, model.max_length) == (epochs, steps, batch, 2048)
    assert (job.validate_every, job.processes.precision) == (200, "bf16")


@pytest.mark.parametrize(
    ("experiment", "length", "spans", "passages", "alpha", "epochs"),
    [("doc2dial", 512, 5, 8, 1.0, 20), ("wow", 384, 1, 10, 0.5, 10)],
)
@pytest.mark.needs("finegrained_lab")
def test_the_papers_configuration_of_dialki(
    experiment: str, length: int, spans: int, passages: int, alpha: float, epochs: int
) -> None:
    """Thesis, section 3.3.2, and what only the original code fixes."""
    job = job_of("train_dialki", [f"experiment=dialki/{experiment}"])
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


@pytest.mark.needs("finegrained_lab")
def test_the_baselines_of_dialki() -> None:
    """Thesis, section 3.3.3: the next loss alone, whatever an experiment says; BERTQA's numbers are Doc2Dial's."""
    for experiment in ("doc2dial", "wow"):
        for baseline in ("bertqa", "bertqa_span", "multi_sentence"):
            job = job_of("train_dialki", [f"experiment=dialki/{experiment}", f"baseline={baseline}"])
            assert (job.losses.history, job.losses.adversarial, job.dialki.contextualize) == (0, 0, False)
            length = 2048 if baseline == "bertqa_span" else 512 if experiment == "doc2dial" else 384
            assert job.format == experiment and job.dialki.inputs.max_length == length
            units = {"bertqa": "passages", "bertqa_span": "document", "multi_sentence": "sentences"}[baseline]
            assert (hasattr(job.dialki, "windows"), job.dialki.units) == (baseline == "bertqa", units)
    windows = job_of("train_dialki", ["baseline=bertqa"]).dialki.windows
    assert (windows.stride, windows.max_answer, windows.n_best) == (128, 50, 20)


@pytest.mark.slow
def test_the_engine_needs_no_optional_package() -> None:
    """A bare GPU machine has torch, transformers, accelerate, numpy and safetensors only."""
    modules = (
        "core.records rl.stats rollout.noise rl.losses rl.kl rl.advantages models.policy models.value models.loading "
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
            lost = (keys & RESERVED_KEYS) - keys_of_job({"_target_": target, **dict.fromkeys(RESERVED_KEYS)}).keys()
            assert not lost, f"{target}: {sorted(lost)}"
            seen.add(script)
    assert {"train_ppo", "label_passages", "make_factworld"} <= seen


def test_no_file_repeats_a_default_of_a_class() -> None:
    """What stands in both differs, and is little: see `guards/doubles.py`."""
    doubles = read_doubles(CONF)
    assert not [(double.file, double.key) for double in doubles if double.equal]
    assert 40 < len(doubles) <= 91


def test_a_value_that_stands_in_both_is_seen(tmp_path: Path) -> None:
    text = "_target_: finegrained_rlhf.training.ppo.PPOConfig\nepochs: 4\nclip: 0.3\nkl: {beta: 0.3}\n"
    (tmp_path / "a.yaml").write_text(text)
    assert [(double.key, double.equal) for double in read_doubles(tmp_path)] == [("epochs", True), ("clip", False)]
