"""A tiny trainable for the tests of the loop; run as a script it trains in its own process(es)."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from finegrained_rlhf.core.files import Write, write_all
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.loop.run import run_loop
from finegrained_rlhf.runtime.loop.types import LoopConfig
from finegrained_rlhf.runtime.optimizer import AdafactorConfig, AnyOptimizerConfig, OptimizerConfig
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.runtime.processes import Processes

ADAMW = OptimizerConfig(lr=0.05, weight_decay=0.1, warmup_steps=2, max_grad_norm=1.0)


class Toy:
    """A two-layer regression on noise drawn anew each step: what it learns depends on every seed and every moment."""

    def __init__(
        self,
        processes: Processes,
        total_steps: int = 12,
        scores: dict[int, float] | None = None,
        missed: dict[int, int] | None = None,
        rows: int = 7,
        optimizer: AnyOptimizerConfig = ADAMW,
    ) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        unused = torch.nn.Linear(3, 2)
        together = torch.nn.ModuleDict({"model": self.model, "unused": unused})
        self.optimizer = optimizer.build(together.named_parameters(), total_steps, processes)
        self.processes, self.rows = processes, rows
        self.scores, self.missed = scores, missed
        self.stop_reason: str | None = None
        self.fail_at: tuple[int, str] | None = None
        self.seconds = 0.0
        self.checkpoints = Path()
        self.memory = 0.0

    def train_step(self, step: int) -> dict[str, float]:
        time.sleep(self.seconds)
        if self.fail_at is not None and step == self.fail_at[0]:
            if self.fail_at[1] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fail_at[1] == "interrupt":
                raise KeyboardInterrupt
            if self.fail_at[1] == "apart" and self.processes.rank == 1:
                with torch.no_grad():
                    self.model[0].bias[3] += 1e-6  # type: ignore[index, operator]
            if self.fail_at[1] == "rank1" and self.processes.rank == 1:
                raise RuntimeError("rank 1 broke")
            if self.fail_at[1] == "block" and self.processes.rank == 0:
                os.replace(self.checkpoints, self.checkpoints.with_suffix(".old"))
                self.checkpoints.write_text("no directory")
            if self.fail_at[1] == "hang" and self.processes.rank == 1:
                time.sleep(60)
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(self.rows, 4, generator=generator)
        noise = float(torch.rand(()).double()) if self.processes.count == 1 else 0.0
        loss = torch.zeros((), dtype=torch.float64)
        for row in self.processes.share(len(inputs)):  # a backward pass each: processes make different numbers of them
            error = self.model(inputs[row]).squeeze(-1) - inputs[row].sum(-1)
            (error**2 / len(inputs)).backward()
            loss += error.detach().double() ** 2 / len(inputs)
        self.optimizer.step(step)
        total = float(self.processes.sum_(loss))
        self.memory = 0.5 * self.memory + total
        return {"loss": total, "noise": noise, "memory": self.memory, "lr": self.optimizer.lr(step)}

    def validate(self, step: int) -> dict[str, float]:
        if self.scores is None:
            return {}
        missed = {} if self.missed is None else {"constraints_missed": self.missed[step]}
        return {"score": self.scores.get(step, -1.0), **missed}

    def model_to_save(self) -> Write:
        state = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        writes = [lambda directory: save_file(state, directory / "model.safetensors")]
        return write_all(writes if self.processes.is_main else ())

    def state_to_save(self) -> Write:
        memory = json.dumps({"memory": self.memory})
        toy = [lambda directory: (directory / "toy.json").write_text(memory)] if self.processes.is_main else []
        return write_all([self.optimizer.to_save(), *toy])

    def load_state(self, checkpoint: Path) -> None:
        self.model.load_state_dict(load_file(checkpoint / "policy" / "model.safetensors"))
        self.optimizer.load(checkpoint)
        self.memory = json.loads((checkpoint / "toy.json").read_text())["memory"]


def weights(checkpoint: Path) -> bytes:
    """The exact bytes of a checkpoint's model."""
    return (checkpoint / "policy" / "model.safetensors").read_bytes()


def rows(path: Path) -> list[dict[str, float]]:
    """The lines of a metrics file without what depends on the clock."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines]


def main(options: dict) -> None:
    sharding = options.get("sharding", "none")
    processes = Processes(ProcessConfig(threads=1, timeout_s=options.get("timeout_s", 60.0), sharding=sharding))
    optimizer = AdafactorConfig(lr=0.01, schedule="constant") if options.get("adafactor") else ADAMW
    scores = {0: 0.0, 3: 1.0, 6: 3.0, 9: 2.0, 12: 2.5}
    toy = Toy(processes, options.get("total_steps", 12), scores, rows=options.get("rows", 7), optimizer=optimizer)
    toy.fail_at = tuple(options["fail_at"]) if "fail_at" in options else None
    toy.checkpoints = Path(options["output"]) / "checkpoints"
    toy.seconds = options.get("seconds", 0.0)
    config = LoopConfig(total_steps=options.get("total_steps", 12), seed=3, checkpoint_every=4, validate_every=3)
    run_loop(toy, RunDirectory(options["output"]), config, processes)
    processes.close()


def attempt(options: dict, seconds: float | None = None) -> bool:
    """Train in a forked process, killed after `seconds`; True when it ended by itself, False when it was killed."""
    child = os.fork()
    if child == 0:
        main(options)
        os._exit(0)
    deadline = time.monotonic() + (1e9 if seconds is None else seconds)
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return not os.WIFSIGNALED(status)
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    return not os.WIFSIGNALED(os.waitpid(child, 0)[1])


def torture(options: dict) -> None:
    """Disturb runs by kill -9: in given steps, and one at ever later moments until an attempt ends by itself."""
    Toy(Processes(ProcessConfig(threads=1)))  # imports what torch imports late, once for all children
    for step in options["steps"]:
        output = {"output": f"{options['output']}/step_{step}"}
        killed = not attempt({**output, "fail_at": [step, "kill"]})
        print(json.dumps({"step": step, "killed": killed, "ended": attempt(output)}), flush=True)
    delay, kills = 0.001, 0
    while not attempt({"output": f"{options['output']}/any", "seconds": 0.003}, delay):
        delay, kills = delay * 1.05 + 0.002, kills + 1
    print(json.dumps({"kills": kills}))


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    torture(arguments) if "steps" in arguments else main(arguments)
