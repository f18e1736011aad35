"""TRL's side of `ppo_step.py peer=trl`: its GRPO trainer, in a process whose Python has TRL. Imports nothing of ours.

    PYTHON benchmarks/peer_trl.py DIRECTORY

DIRECTORY holds `task.json` and `model/`; what the two say to each other is in `peer_process.py`. Written for TRL 1.16:
phases and losses are measured around methods of its trainer that have no public name.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ANSWERS = os.fdopen(os.dup(1), "w", encoding="utf-8")
METHODS = ("_generate_single_turn", "_calculate_rewards", "_get_per_token_logps_and_entropies", "_compute_loss")


def say(**answer: Any) -> None:
    """One answer, a line of JSON."""
    print(json.dumps(answer), file=ANSWERS, flush=True)


def hear() -> str:
    """The next request; the process ends where there is none."""
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return str(json.loads(line)["do"])


def trainer_class() -> Any:
    """TRL's GRPO trainer that keeps the seconds of its phases and the losses of its passes."""
    import torch
    from trl import GRPOTrainer

    lacking = [name for name in METHODS if not hasattr(GRPOTrainer, name)]
    if lacking:
        raise AttributeError(f"this TRL has no GRPOTrainer.{lacking[0]}; peer_trl.py was written for 1.16")

    class Measured(GRPOTrainer):  # type: ignore[misc]
        seconds: dict[str, float]
        losses: list[Any]

        def begin(self) -> None:
            """Forget the last step."""
            self.seconds, self.losses = {"rollout": 0.0, "scoring": 0.0, "rewards": 0.0}, []

        @contextmanager
        def phase(self, name: str) -> Iterator[None]:
            start = wait()
            yield
            self.seconds[name] += wait() - start

        def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
            with self.phase("rollout"):
                return super()._generate_single_turn(*args, **kwargs)

        def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
            with self.phase("rewards"):
                return super()._calculate_rewards(*args, **kwargs)

        def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
            if torch.is_grad_enabled():  # a part of the update
                return super()._get_per_token_logps_and_entropies(*args, **kwargs)
            with self.phase("scoring"):
                return super()._get_per_token_logps_and_entropies(*args, **kwargs)

        def _compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            loss = super()._compute_loss(*args, **kwargs)
            self.losses.append(loss.detach())
            return loss

    return Measured


def head_over_responses() -> None:
    """Let the head read responses alone on any device; without Triton, TRL 1.16 runs it over prompts as well."""
    from trl.trainer import utils

    if not hasattr(utils, "_use_triton"):
        raise AttributeError("this TRL has no trainer.utils._use_triton; peer_trl.py was written for 1.16")
    utils._use_triton = lambda device: True


def wait() -> float:
    """The time when the device has done all its work."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


class Side:
    """Makes trainers for one task.

    Args:
        directory: of the task.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.task: dict[str, Any] = json.loads((directory / "task.json").read_text(encoding="utf-8"))
        self.lengths: list[int] = []

    def trainer(self, part: dict[str, Any], precision: str, callback: Any, rollout: Any = None) -> Any:
        """A trainer for the check or for the measured steps.

        Args:
            part: `task["check"]` or `task["timing"]`.
            precision: `fp32` or `bf16`.
            callback: of transformers' trainer.
            rollout: gives responses in place of the trainer's own generation.
        """
        from datasets import Dataset
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(self.directory / "model", trust_remote_code=False)
        texts = [prompt["text"] for prompt in part["data"]]
        if tokenizer(texts)["input_ids"] != [prompt["ids"] for prompt in part["data"]]:
            raise ValueError("the tokenizer gives other prompt ids here than in the benchmark's own process")
        made = trainer_class()(
            str(self.directory / "model"),
            [self.token_rewards],
            args=self.configuration(part, precision),
            train_dataset=Dataset.from_dict({"prompt": texts}),
            processing_class=tokenizer,
            callbacks=[callback],
            rollout_func=rollout,
        )
        made.begin()
        callback.trainer = made
        return made

    def configuration(self, part: dict[str, Any], precision: str) -> Any:
        """TRL's settings for a part of the task: one update on all responses, with Adam and losses as ours."""
        from trl import GRPOConfig

        task, rows = self.task, part["prompts"] * part["samples"]
        return GRPOConfig(
            output_dir=str(self.directory / "trl"),
            per_device_train_batch_size=part["micro_batch"],
            gradient_accumulation_steps=rows // part["micro_batch"],
            num_generations=part["samples"],
            max_completion_length=task["new_tokens"],
            generation_kwargs={"min_new_tokens": task["new_tokens"]},
            num_iterations=1,
            max_steps=part["steps"],
            learning_rate=part["adam"]["lr"],
            adam_epsilon=part["adam"]["eps"],
            adam_beta1=part["adam"]["betas"][0],
            adam_beta2=part["adam"]["betas"][1],
            weight_decay=part["adam"]["weight_decay"],
            max_grad_norm=part["adam"]["max_grad_norm"],
            optim="adamw_torch_fused",
            lr_scheduler_type="constant",
            loss_type="dapo",
            scale_rewards="group",
            epsilon=task["clip"],
            beta=task["beta"],
            use_bias_correction_kl=False,
            temperature=task["temperature"],
            top_k=task["top_k"],
            use_cpu=task["device"] == "cpu",
            bf16=precision == "bf16",
            model_init_kwargs={"dtype": "float32"},
            gradient_checkpointing=False,
            shuffle_dataset=False,
            seed=task["seed"],
            report_to="none",
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
        )

    def token_rewards(self, completion_ids: list[list[int]], **_: Any) -> list[float]:
        """The sum of the rewards of a completion's tokens."""
        self.lengths = [len(ids) for ids in completion_ids]
        return [sum(self.task["rewards"][token] for token in ids) for ids in completion_ids]

    def check(self) -> None:
        """Learn from the given responses; answers with losses and gradient norms, and leaves the weights in a file.

        The weights are those after the first step.
        """
        from safetensors.torch import save_file
        from transformers import TrainerCallback

        part, losses = self.task["check"], []
        given = iter(part["responses"])

        def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
            rows = next(given)
            if prompts != [row["text"] for row in rows]:
                raise ValueError("TRL took the prompts in another order than the benchmark")
            prompt_ids, ids = [row["prompt_ids"] for row in rows], [row["ids"] for row in rows]
            return {"prompt_ids": prompt_ids, "completion_ids": ids, "logprobs": None}

        class Keep(TrainerCallback):
            trainer: Any

            def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
                losses.append(float(sum(self.trainer.losses)))
                self.trainer.begin()
                if state.global_step == 1:
                    weights = {name: p.detach().cpu().contiguous() for name, p in model.named_parameters()}
                    save_file(weights, part["weights"])

        trainer = self.trainer(part, "fp32", Keep(), rollout)
        trainer.train()
        norms = [float(line["grad_norm"]) for line in trainer.state.log_history if "grad_norm" in line]
        say(losses=losses, gradient_norms=norms)

    def measure(self) -> None:
        """Train on responses of TRL's own; answers a request with the seconds of each step, by phase."""
        from transformers import TrainerCallback

        side = self

        class Turns(TrainerCallback):
            trainer: Any
            start: float
            processor: float

            def on_step_begin(self, *_: Any, **__: Any) -> None:
                hear()
                self.trainer.begin()
                self.start, self.processor = wait(), time.process_time()

            def on_step_end(self, *_: Any, **__: Any) -> None:
                seconds, total = self.trainer.seconds, wait() - self.start
                seconds |= {"update": total - sum(seconds.values()), "total": total}
                say(seconds={**seconds, "processor": time.process_time() - self.processor}, lengths=side.lengths)

        self.trainer(self.task["timing"], self.task["precision"], Turns()).train()


def main() -> None:
    """Answer requests until there are no more."""
    os.dup2(2, 1)  # whatever a library prints is no answer
    try:
        import torch
        import transformers
        import trl

        side = Side(Path(sys.argv[1]))
        torch.set_num_threads(side.task["threads"])
        if side.task["head"] == "responses":
            head_over_responses()
        say(versions={"trl": trl.__version__, "transformers": transformers.__version__, "torch": torch.__version__})
        hear()
        side.check()
        side.measure()
    except ImportError as error:
        say(missing=str(error))
    except Exception as error:
        say(error=f"{type(error).__name__}: {error}")
        raise


if __name__ == "__main__":
    main()
