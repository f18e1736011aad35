"""What a launcher's file asks for is followed, refused or said to change nothing; a worker ends with its launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env
from other_processes import alive, wait_until
from script_runs import ROOT, run_process

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.runtime import launcher
from finegrained_rlhf.runtime.launcher import check_agreement, explained, follow, launch_request

FILE = """\
compute_environment: LOCAL_MACHINE
machine_rank: 0
num_machines: 1
num_processes: 2
rdzv_backend: static
same_network: true
main_training_function: main
use_cpu: true
"""
FSDP = """\
distributed_type: FSDP
mixed_precision: {precision}
fsdp_config:
  fsdp_auto_wrap_policy: {wrap}
  fsdp_offload_params: {offload}
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_transformer_layer_cls_to_wrap: T5Block
  fsdp_version: {version}
  fsdp_reshard_after_forward: {reshard}
"""
LAYERS, WHOLE = "TRANSFORMER_BASED_WRAP", "NO_WRAP"
PROBE = """\
import sys
from finegrained_rlhf.core.errors import FineGrainedError
from finegrained_rlhf.runtime.launcher import follow
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.runtime.processes import Processes
try:
    ours = {"precision": "fp32", "sharding": "none"}
    here = Processes(ProcessConfig(**follow({"processes": ours}, sys.argv[1:])["processes"]))
except FineGrainedError as error:
    sys.exit(f"error: {error}")
if here.is_main:
    print(here.description)
here.close()
"""


def fsdp(version: int, reshard: str, precision: str = "bf16", wrap: str = LAYERS, offload: str = "false") -> str:
    return FSDP.format(version=version, reshard=reshard, precision=precision, wrap=wrap, offload=offload)


def launched(directory: Path, file: str, *arguments: str, preloaded: bool = True) -> subprocess.CompletedProcess[str]:
    """What `accelerate launch` with a file makes of a script that builds its processes as every command does."""
    (directory / "file.yaml").write_text(FILE + file, encoding="utf-8")
    (directory / "probe.py").write_text(PROBE, encoding="utf-8")
    return run_process(
        *("-m", "accelerate.commands.launch", "--config_file", str(directory / "file.yaml")),
        *("--main_process_port", "0", str(directory / "probe.py"), *arguments),
        preloaded=preloaded,
        PYTHONPATH=str(ROOT),
    )


def variables_of(directory: Path, file: str) -> dict[str, str]:
    """The environment that accelerate itself makes of a file for the processes that it starts."""
    (directory / "file.yaml").write_text(FILE + file, encoding="utf-8")
    words = ["--config_file", str(directory / "file.yaml"), "--main_process_port", "0", "script.py"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arguments, _, _ = _validate_launch_command(launch_command_parser().parse_args(words))
        return prepare_multi_gpu_env(arguments)


@pytest.mark.parametrize(
    ("file", "settings"),
    [
        ("distributed_type: MULTI_GPU\nmixed_precision: 'no'\n", {}),
        ("distributed_type: MULTI_GPU\nmixed_precision: bf16\n", {"precision": "bf16"}),
        (fsdp(1, "FULL_SHARD"), {"precision": "bf16", "sharding": "full"}),
        (fsdp(1, "SHARD_GRAD_OP", "'no'"), {"sharding": "gradients"}),
        (fsdp(2, "true"), {"precision": "bf16", "sharding": "full"}),
        (fsdp(2, "false"), {"precision": "bf16", "sharding": "gradients"}),
    ],
    ids=["plain", "bf16", "fsdp1", "fsdp1 gradients", "fsdp2", "fsdp2 gradients"],
)
def test_a_file_that_is_followed(tmp_path: Path, file: str, settings: dict[str, str]) -> None:
    request = launch_request(variables_of(tmp_path, file))
    assert request.settings == {f"processes.{key}": value for key, value in settings.items()}
    assert request.names.keys() == request.settings.keys()
    assert ("fsdp_transformer_layer_cls_to_wrap" in request.without_effect) == ("FSDP" in file)


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("distributed_type: MULTI_GPU\nmixed_precision: fp16\n", "mixed_precision: fp16, which cannot be followed"),
        (fsdp(1, "SHARD_ALL"), "SHARD_ALL, which cannot be followed; processes.sharding knows FULL_SHARD"),
        (fsdp(2, "true", offload="true"), "fsdp_offload_params: true, which cannot be followed"),
        (fsdp(2, "true", wrap=WHOLE), "fsdp_auto_wrap_policy: NO_WRAP, which cannot be followed; processes.sharding"),
    ],
    ids=["fp16", "strategy", "offload", "wrap"],
)
def test_a_file_that_is_refused(tmp_path: Path, file: str, line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        launch_request(variables_of(tmp_path, file))


@pytest.mark.parametrize(("processes", "group"), [("4", 2), ("2", None)])
def test_hybrid_sharding_is_over_the_processes_of_a_node(tmp_path: Path, processes: str, group: int | None) -> None:
    variables = variables_of(tmp_path, fsdp(1, "HYBRID_SHARD", "'no'"))
    request = launch_request({**variables, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": "2"})
    assert request.settings == {"processes.sharding": "full", "processes.shard_group": group}


def test_a_launch_by_a_file(tmp_path: Path) -> None:
    """Two processes and their first line; what is typed holds against the file."""
    done = launched(tmp_path, fsdp(2, "true"), "processes.precision=fp32")
    assert done.returncode == 0, done.stderr
    first = "2 processes, each on CPU, fp32, sharding full; of accelerate's settings "
    followed = (
        "mixed_precision: bf16 is overridden by processes.precision; fsdp_reshard_after_forward: true is followed"
    )
    assert done.stdout.startswith(f"{first}{followed}; without effect here: fsdp_transformer_layer_cls_to_wrap, ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("distributed_type: MULTI_CPU\nmixed_precision: 'no'\n", "num_processes: 2 and started one process"),
        (
            "distributed_type: DEEPSPEED\nmixed_precision: bf16\ndeepspeed_config:\n  zero_stage: 3\n"
            "  gradient_accumulation_steps: 4\n  gradient_clipping: 1.0\n",
            "DeepSpeed",  # accelerate's own words where it is not installed, ours where it is
        ),
        (fsdp(2, "true", offload="true"), "fsdp_offload_params: true"),
    ],
    ids=["multi_cpu", "deepspeed", "offload"],
)
def test_a_real_launch_is_refused(tmp_path: Path, file: str, line: str) -> None:
    done = launched(tmp_path, file, preloaded=False)
    assert done.returncode != 0 and line in done.stderr and not done.stdout


@pytest.mark.parametrize(
    ("variables", "theirs", "ours"),
    [
        (
            {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "2"},
            "DEEPSPEED",
            "sharding=gradients",
        ),
        (
            {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "1"},
            "DEEPSPEED",
            "zero_stage 1 is processes.sharding=gradients",
        ),
        ({"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}, "DEEPSPEED", "sharding=full"),
        ({"ACCELERATE_USE_MEGATRON_LM": "true"}, "MEGATRON_LM", "processes.sharding"),
        (
            {"ACCELERATE_USE_PARALLELISM_CONFIG": "true", "PARALLELISM_CONFIG_TP_SIZE": "2"},
            "parallelism_config_tp_size: 2",
            "processes.sharding",
        ),
        ({"ACCELERATE_DYNAMO_BACKEND": "INDUCTOR"}, "dynamo_backend: INDUCTOR", "set no"),
        ({"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4"}, "gradient_accumulation_steps: 4", "ppo.micro_batch_prompts"),
        ({"ACCELERATE_MIXED_PRECISION": "fp8"}, "mixed_precision: fp8", "processes.precision"),
        ({"ACCELERATE_USE_FSDP": "true", "FSDP_IGNORED_MODULES": "x"}, "fsdp_ignored_modules", "processes.sharding"),
    ],
)
def test_what_cannot_be_followed_names_both_keys(variables: dict[str, str], theirs: str, ours: str) -> None:
    with pytest.raises(ConfigError) as refused:
        launch_request(variables)
    assert theirs in str(refused.value) and ours in str(refused.value) and "\n" not in str(refused.value)


def test_checkpointing_is_followed_where_a_command_has_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "2",
        "FSDP_ACTIVATION_CHECKPOINTING": "1",
    }.items():
        monkeypatch.setenv(name, value)
    config = {"processes": {"precision": "fp32", "sharding": "none"}, "policy": {"gradient_checkpointing": False}}
    assert follow(config) == {
        "processes": {"precision": "fp32", "sharding": "full"},
        "policy": {"gradient_checkpointing": True},
    }
    assert config["policy"] == {"gradient_checkpointing": False}
    assert follow({"data": "x"}) == {"data": "x"}  # a command that shares no work
    with pytest.raises(ConfigError, match=r"fsdp_activation_checkpointing: true.*no policy.gradient_checkpointing"):
        follow({"processes": {"precision": "fp32", "sharding": "none"}})


def test_python_code_that_differs_from_the_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "_TYPED", set())
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    check_agreement({"processes.precision": "bf16"})
    with pytest.raises(ConfigError, match=r"mixed_precision: bf16.*processes.precision is fp32"):
        check_agreement({"processes.precision": "fp32"})
    assert explained({"processes.precision": "bf16"}).endswith("mixed_precision: bf16 is followed")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    check_agreement({"processes.precision": "fp32", "processes.sharding": "full"})
    assert explained({"processes.precision": "bf16"}) == ""


def below(parent: Path, words: list[str], program: str, **environment: str) -> subprocess.Popen[str]:
    """A process that starts another one, which runs a program of Python; its output is that of both."""
    parent.write_text(
        "import subprocess, sys\nprint(subprocess.Popen([sys.executable, '-c', sys.argv.pop()]).wait())\n",
        encoding="utf-8",
    )
    return subprocess.Popen(
        [sys.executable, str(parent), *words, program],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


WISHES = [
    (["--num_processes", "3", "x.py"], "num_processes: 3 and started one process"),
    (["--cpu", "--num_processes", "1", "--gradient_accumulation_steps", "4", "x.py"], "accumulation_steps: 4"),
]
"""Command lines of accelerate of which the processes that it starts get no variable."""


@pytest.fixture
def unread() -> Iterator[None]:
    """The launcher's command line is read anew, before and after the test."""
    launcher._launcher_arguments.cache_clear()
    yield
    launcher._launcher_arguments.cache_clear()


@pytest.mark.parametrize(("words", "line"), WISHES)
@pytest.mark.parametrize("start", [["python", "-m", "accelerate.commands.launch"], ["/bin/accelerate", "launch"]])
def test_the_command_line_of_the_launcher_is_read(
    monkeypatch: pytest.MonkeyPatch, unread: None, start: list[str], words: list[str], line: str
) -> None:
    monkeypatch.setattr(psutil.Process, "cmdline", lambda self: [*start, *words])
    with pytest.raises(ConfigError, match=line):
        launcher.check_process_count(1)


@pytest.mark.slow
@pytest.mark.parametrize(("words", "line"), WISHES)
def test_the_command_line_of_the_process_above_is_read(tmp_path: Path, words: list[str], line: str) -> None:
    check = "from finegrained_rlhf.runtime.launcher import check_process_count; check_process_count(1)"
    printed, _ = below(tmp_path / "accelerate-launch", words, check).communicate(timeout=60)
    assert "ConfigError" in printed and line in printed


def test_the_file_of_the_launcher_says_how_many(monkeypatch: pytest.MonkeyPatch, unread: None, tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text(FILE + "distributed_type: MULTI_CPU\nmixed_precision: 'no'\n", encoding="utf-8")
    words = ["accelerate", "launch", "--config_file", str(tmp_path / "file.yaml"), "x.py"]
    monkeypatch.setattr(psutil.Process, "cmdline", lambda self: words)
    launcher.check_process_count(2)
    with pytest.raises(ConfigError, match="num_processes: 2 and started one process"):
        launcher.check_process_count(1)


def test_another_parent_asks_for_nothing(unread: None) -> None:
    launcher.check_process_count(1)
    assert launcher._launcher_arguments() is None


def test_a_worker_ends_when_its_launcher_is_killed(tmp_path: Path) -> None:
    wait = (
        "import os, time; from finegrained_rlhf.runtime.launcher import end_with_launcher; end_with_launcher(0.05); "
        "print(os.getpid()); time.sleep(60)"
    )
    running = below(tmp_path / "launcher.py", [], wait, TORCHELASTIC_RUN_ID="one")
    assert running.stdout is not None
    worker = int(running.stdout.readline())
    running.send_signal(signal.SIGKILL)
    wait_until(lambda: not alive(worker), "the worker lives on", 20)
    assert "has ended: so does the process" in running.stdout.read()
    running.wait()
