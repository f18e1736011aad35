"""What the launcher of a run was asked for (`accelerate launch`, torchrun), in this project's own keys.

accelerate hands its file and its flags on as environment variables. Each is followed by a key of ours, refused in one
line that names both keys, or said to change nothing here.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NoReturn

from finegrained_rlhf.core.errors import ConfigError

logger = logging.getLogger(__name__)

_TRUE = ("1", "true", "yes", "y", "on", "t")
_STRATEGIES = {"FULL_SHARD": "full", "SHARD_GRAD_OP": "gradients", "NO_SHARD": "none", "NO_RESHARD": "gradients"}
_STRATEGIES |= {"1": "full", "2": "gradients", "3": "none"}
_HYBRID = {"HYBRID_SHARD": "full", "HYBRID_SHARD_ZERO2": "gradients", "4": "full", "5": "gradients"}
"""Of FSDP 1: in shards over the processes of a node."""
_ZERO = {"0": "none", "1": "gradients", "2": "gradients", "3": "full"}
_WITHOUT_EFFECT = {
    "fsdp_transformer_layer_cls_to_wrap": "FSDP_TRANSFORMER_CLS_TO_WRAP",
    "fsdp_state_dict_type": "FSDP_STATE_DICT_TYPE",
    "fsdp_backward_prefetch": "FSDP_BACKWARD_PREFETCH",
    "fsdp_forward_prefetch": "FSDP_FORWARD_PREFETCH",
    "fsdp_cpu_ram_efficient_loading": "FSDP_CPU_RAM_EFFICIENT_LOADING",
    "fsdp_sync_module_states": "FSDP_SYNC_MODULE_STATES",
    "fsdp_use_orig_params": "FSDP_USE_ORIG_PARAMS",
}
"""Of FSDP: how fast or in which form, never what is computed. Layers are always what is wrapped, and checkpoints have
this project's form."""
_TYPED: set[str] = set()
"""Our keys that the user typed although the launcher's file asks for another value."""


@dataclass(frozen=True)
class LaunchRequest:
    """What a launcher's file and flags ask for.

    Attributes:
        settings: our keys with the values that follow theirs, such as `{"processes.precision": "bf16"}`.
        names: their key, with its value, by ours: `{"processes.precision": "mixed_precision: bf16"}`.
        without_effect: keys of theirs that are set and change nothing here.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    without_effect: Sequence[str] = ()


def launch_request(environment: Mapping[str, str] | None = None) -> LaunchRequest:
    """What `accelerate launch` was asked for, as far as it goes beyond starting processes.

    Args:
        environment: variables of a launched process; by default those of this one.

    Raises:
        ConfigError: it asks for something that no key here can follow; names their key and the nearest of ours.
    """
    variables = os.environ if environment is None else environment
    _refuse_other_engines(variables)
    settings: dict[str, Any] = {}
    names: dict[str, str] = {}
    precision = variables.get("ACCELERATE_MIXED_PRECISION", "no").lower()
    if precision == "bf16":
        settings["processes.precision"], names["processes.precision"] = "bf16", "mixed_precision: bf16"
    elif precision != "no":
        _refuse(f"mixed_precision: {precision}", "processes.precision is bf16 or fp32: set bf16 or no")
    if not _is_true(variables.get("ACCELERATE_USE_FSDP")):
        return LaunchRequest(settings, names)
    settings["processes.sharding"], asked = _sharding(variables)
    names["processes.sharding"] = asked
    if asked.rpartition(" ")[2] in _HYBRID and (size := variables.get("LOCAL_WORLD_SIZE")):
        settings["processes.shard_group"] = int(size) if size != variables.get("WORLD_SIZE") else None
        names["processes.shard_group"] = asked
    if _is_true(variables.get("FSDP_ACTIVATION_CHECKPOINTING")):
        settings["policy.gradient_checkpointing"] = True
        names["policy.gradient_checkpointing"] = "fsdp_activation_checkpointing: true"
    _refuse_of_fsdp(variables)
    unused = [name for name, variable in _WITHOUT_EFFECT.items() if variables.get(variable, "false").lower() != "false"]
    return LaunchRequest(settings, names, unused)


def _refuse_other_engines(variables: Mapping[str, str]) -> None:
    if _is_true(variables.get("ACCELERATE_USE_DEEPSPEED")):
        stage = variables.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", "2")
        ours = f"zero_stage {stage} is processes.sharding={_ZERO.get(stage, 'full')}"
        _refuse(
            "distributed_type: DEEPSPEED", f"without DeepSpeed, {ours}: set distributed_type: MULTI_GPU and that key"
        )
    if _is_true(variables.get("ACCELERATE_USE_MEGATRON_LM")):
        _refuse("distributed_type: MEGATRON_LM", "models are shared out by processes.sharding alone")
    if _is_true(variables.get("ACCELERATE_USE_PARALLELISM_CONFIG")):
        sizes = {name: variables.get(f"PARALLELISM_CONFIG_{name}", "1") for name in ("TP_SIZE", "CP_SIZE", "SP_SIZE")}
        wide = [f"parallelism_config_{name.lower()}: {size}" for name, size in sizes.items() if size not in ("1", "")]
        _refuse(wide[0] if wide else "parallelism_config", "models are shared out by processes.sharding alone")
    if variables.get("ACCELERATE_DYNAMO_BACKEND", "NO").upper() not in ("NO", ""):
        _refuse(
            f"dynamo_backend: {variables['ACCELERATE_DYNAMO_BACKEND']}",
            "processes.compiled=true compiles blocks: set no, and that key",
        )
    steps = variables.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "1")
    if steps not in ("", "1", "auto"):
        _refuse_accumulation(steps)


def _refuse_accumulation(steps: Any) -> NoReturn:
    _refuse(
        f"gradient_accumulation_steps: {steps}",
        "an optimizer step takes its whole batch here, in micro-batches: set 1, and the size of these "
        "(ppo.micro_batch_prompts, ppo.micro_batch_tokens, …micro_batch_size)",
    )


def _refuse_of_fsdp(variables: Mapping[str, str]) -> None:
    if _is_true(variables.get("FSDP_OFFLOAD_PARAMS")):
        _refuse(
            "fsdp_offload_params: true", "weights stay on the device (processes.sharding=full shards them): set false"
        )
    policy = variables.get("FSDP_AUTO_WRAP_POLICY", "TRANSFORMER_BASED_WRAP").upper()
    if policy != "TRANSFORMER_BASED_WRAP":
        _refuse(
            f"fsdp_auto_wrap_policy: {policy}",
            "processes.sharding=full wraps the layers of the model: set TRANSFORMER_BASED_WRAP",
        )
    if variables.get("FSDP_IGNORED_MODULES"):
        _refuse("fsdp_ignored_modules", "processes.sharding chooses itself what stays whole: leave it out")


def _sharding(variables: Mapping[str, str]) -> tuple[str, str]:
    """Our value and their key: version 2 has a truth value, version 1 a strategy under either of two keys."""
    reshard = variables.get("FSDP_RESHARD_AFTER_FORWARD", "true")
    if variables.get("FSDP_VERSION", "1") != "1":
        return "full" if _is_true(reshard) else "gradients", f"fsdp_reshard_after_forward: {reshard}"
    key = "fsdp_sharding_strategy" if reshard.lower() in ("true", "false") else "fsdp_reshard_after_forward"
    strategy = variables.get(key.upper(), "FULL_SHARD").upper()
    known = _STRATEGIES | _HYBRID
    if strategy not in known:
        _refuse(f"{key}: {strategy}", "processes.sharding knows FULL_SHARD, SHARD_GRAD_OP and HYBRID_SHARD")
    return known[strategy], f"{key}: {strategy}"


def _refuse(setting: str, why: str) -> NoReturn:
    raise ConfigError(f"accelerate launch asks for {setting}, which cannot be followed; {why}")


def _is_true(value: str | None) -> bool:
    return value is not None and value.lower() in _TRUE


def follow(config: Mapping[str, Any], arguments: Sequence[str] = ()) -> dict[str, Any]:
    """A command's configuration as the launcher's file wants it; what the user typed holds against the file.

    Args:
        config: resolved; one without `processes` shares no work, and stays as it is.
        arguments: of the command line.

    Raises:
        ConfigError: as for `launch_request`; or the command has no key for what is asked for.
    """
    request, followed = launch_request(), dict(config)
    if "processes" not in config:
        return followed
    for key, value in request.settings.items():
        part, name = key.split(".")
        if any(word.lstrip("+").startswith(f"{key}=") for word in arguments):
            _TYPED.add(key)
        elif isinstance(followed.get(part), Mapping) and name in followed[part]:
            followed[part] = {**followed[part], name: value}
        else:
            _refuse(request.names[key], f"this command has no {key}: leave it out")
    return followed


def check_agreement(settings: Mapping[str, Any]) -> None:
    """Refuse settings that are not what the launcher's file asks for, unless the user typed them.

    Args:
        settings: values by our keys.

    Raises:
        ConfigError: they differ; names both keys.
    """
    request = launch_request()
    for key, value in settings.items():
        if key not in _TYPED and request.settings.get(key, value) != value:
            _refuse(request.names[key], f"{key} is {value}: make them agree")


def explained(settings: Mapping[str, Any]) -> str:
    """What of the launcher's file is followed, overridden or without effect, in a clause; empty where it asks nothing.

    Args:
        settings: the values that hold, by our keys.
    """
    request = launch_request()
    clauses = [
        f"{setting} is followed" if settings.get(key) == request.settings[key] else f"{setting} is overridden by {key}"
        for key, setting in request.names.items()
        if key in settings
    ]
    if request.without_effect:
        clauses.append(f"without effect here: {', '.join(request.without_effect)}")
    return f"; of accelerate's settings {'; '.join(dict.fromkeys(clauses))}" if clauses else ""


def check_process_count(count: int) -> None:
    """Refuse a launch that asked for several processes and started one, and gradient accumulation on its command line.

    Args:
        count: processes that there are.

    Raises:
        ConfigError: how to start as many as were asked for.
    """
    given = _launcher_arguments()
    if given is None:
        return
    if given["gradient_accumulation_steps"] not in (None, 1):
        _refuse_accumulation(given["gradient_accumulation_steps"])
    if count == 1 and given["num_processes"] is not None and given["num_processes"] > 1:
        raise ConfigError(
            f"accelerate launch was asked for num_processes: {given['num_processes']} and started one process; on CPUs "
            "give ACCELERATE_USE_CPU=true accelerate launch --multi_gpu --num_processes "
            f"{given['num_processes']}, or start one by num_processes: 1"
        )


@cache
def _launcher_arguments() -> dict[str, Any] | None:
    """Processes and accumulation that the `accelerate launch` above this process was asked for; None without one."""
    import psutil  # comes with accelerate
    from accelerate.commands.config.config_args import default_config_file, load_config_from_file
    from accelerate.commands.launch import launch_command_parser

    try:
        words = psutil.Process(os.getppid()).cmdline()
    except psutil.Error:
        return None
    start = _first_argument(words)
    if start is None:
        return None
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            parsed = launch_command_parser().parse_args(words[start:])
    except SystemExit:  # of another version's command line
        return None
    arguments = {name: getattr(parsed, name, None) for name in ("num_processes", "gradient_accumulation_steps")}
    path = parsed.config_file or (default_config_file if os.path.isfile(default_config_file) else None)
    if arguments["num_processes"] is None and path is not None:
        arguments["num_processes"] = load_config_from_file(path).num_processes
    return arguments


def _first_argument(words: Sequence[str]) -> int | None:
    for place, word in enumerate(words):
        name = os.path.basename(word)
        if name == "accelerate-launch" or word.endswith(
            ("accelerate.commands.launch", "accelerate/commands/launch.py")
        ):
            return place + 1
        if name in ("accelerate", "accelerate_cli.py") and words[place + 1 : place + 2] == ["launch"]:
            return place + 2
    return None


@cache
def end_with_launcher(every_s: float = 1.0, patience_s: float = 10.0) -> None:
    """Let this process end when the launcher that started it has died; once a process, and only below a launcher.

    A launcher that is killed (`kill -9`, out of memory) cannot end its workers: they would compute on, unseen, and hold
    the run directory. A process that a shell started lives on when the shell ends.

    Args:
        every_s: seconds between two looks.
        patience_s: seconds that SIGTERM has to end the process.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ and _launcher_arguments() is None:
        return
    launcher = os.getppid()

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(every_s)
        logger.error("the launcher of this process (%d) has ended: so does the process", launcher)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(patience_s)
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=watch, name="end_with_launcher", daemon=True).start()
