"""The command itself, with trained reward models, under the batches of 64 clients, and killed while it scores."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

pytest.importorskip("fastapi")

import torch
from script_runs import ENVIRONMENT, ROOT
from served_toy import served
from servers import free_port
from smoke import COMPONENTS

from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.feedback.prompt_files import read_prompt_file
from reward_models.scorers import SegmentScorer, SequenceScorer

CLIENTS, BATCHES, BATCH = 64, 4, 4
KEY = "of-this-test"


@contextmanager
def command(models: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """`finegrained serve-rewards` with the models of `experiment=smoke`, once it answers."""
    words = [sys.executable, "-m", "finegrained_rlhf", "serve-rewards", f"port={port}", "key_variable=REWARD_KEY"]
    words += [f"reward.components.{name}.path={models / name}" for name in COMPONENTS]
    process = subprocess.Popen(words, cwd=ROOT, env={**ENVIRONMENT, "REWARD_KEY": KEY}, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 400
        while True:
            assert process.poll() is None and time.monotonic() < deadline
            try:
                httpx.get(f"http://127.0.0.1:{port}/healthz")
                break
            except httpx.TransportError:
                time.sleep(0.1)
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_64_clients_lose_and_mix_nothing_while_the_server_is_killed(
    smoke: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REWARD_KEY", KEY)
    models, port, draw = smoke / "prepared" / "reward_models", free_port(), random.Random(0)
    inputs = read_prompt_file(smoke / "prepared" / "world" / "train.json")
    prompts = [Prompt(one.id, one.text, (), one.metadata) for one in inputs]
    answers = [text for one in inputs for text in one.metadata["references"]]
    batches = [
        (draw.choices(prompts, k=BATCH), [" ".join(draw.sample(answers, draw.randrange(3))) for _ in range(BATCH)])
        for _ in range(CLIENTS * BATCHES)
    ]
    own = {name: SegmentScorer(str(models / name)) for name in ("relevance", "factuality")}
    own["completeness"] = SequenceScorer(str(models / "completeness"))
    with torch.no_grad():
        expected = [[scorer.score(*batch) for scorer in own.values()] for batch in batches]
    done = 0
    lock = threading.Lock()

    def train(client: int) -> list:
        nonlocal done
        remote = {"key_variable": "REWARD_KEY", "budget_s": 800.0, "longest_wait_s": 1.0}
        scorers = [served(f"http://127.0.0.1:{port}", name, remote) for name in COMPONENTS]
        for scorer in scorers:
            scorer.setup("cpu")
        given = []
        for batch in batches[client::CLIENTS]:
            started = [scorer.start(*batch) for scorer in scorers]
            given.append([collect() for collect in started])
            with lock:
                done += 1
        return given

    with ThreadPoolExecutor(CLIENTS) as pool:
        results = None
        for part in (1, 2):
            with command(models, port) as process:
                results = results or [pool.submit(train, client) for client in range(CLIENTS)]
                while done < part * len(batches) // 4:
                    time.sleep(0.005)
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
        assert done < len(batches)
        with command(models, port) as process:
            for client, result in enumerate(results):
                for rows, own_rows in zip(result.result(), expected[client::CLIENTS], strict=True):
                    for one, own_one in zip(rows, own_rows, strict=True):
                        assert [*map(tuple, one.spans)] == [*map(tuple, own_one.spans)]
                        for values, own_values in zip(one.values, own_one.values, strict=True):
                            assert values == pytest.approx(own_values, abs=1e-6)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
