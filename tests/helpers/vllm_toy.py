"""A server that speaks as vLLM 0.32 does (its own classes wrote tests/data/vllm_0_32.json), drawing by transformers."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model
from transformers import AutoModelForCausalLM

from finegrained_rlhf.rollout import VLLMConfig

WIRE = Path(__file__).resolve().parents[1] / "data" / "vllm_0_32.json"
_LOADING = threading.Lock()  # transformers does not load in two threads at once


class FakeVLLM:
    """What a server has and did.

    Args:
        directory: of the model that it is started with.
        adapters: whether it takes LoRA adapters.

    Attributes:
        version: of its weights.
        loaded: versions that it was given, in order; adapters by their names.
        drawn: how many responses it gave, of whatever weights.
        troubled: for whoever makes trouble once.
        before: called before each response is drawn, with the server and the number of those drawn; may raise
            `Dropped`, change the version, or wait.
    """

    def __init__(self, directory: Path, adapters: bool = False) -> None:
        self.directory, self.takes_adapters = directory, adapters
        self.loaded: list[str] = []
        self.drawn, self.weights_only, self.troubled = 0, False, False
        self.before: Callable[[FakeVLLM, int], None] = lambda server, number: None
        self.lock = threading.RLock()
        self.restart()

    def restart(self) -> None:
        """Lose what was sent: as after kill -9."""
        with self.lock:
            self.version, self.names = "default", dict[str, Any]()
            self.model = self._open(self.directory)
            self.path = self.directory

    def _open(self, path: Path | str) -> Any:
        with _LOADING:
            return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Status and answer of a route."""
        if path == "/update_weight_version":
            self.version = body["new_version"]
            return 200, {"success": True, "new_version": self.version}
        if path == "/collective_rpc":
            assert body["method"] == "reload_weights"
            with self.lock:
                self.path = body["kwargs"]["weights_path"]
                load_model(self.model, Path(self.path) / "model.safetensors")
            self.loaded.append(Path(self.path).name)
            return 200, {"results": [None]}
        if path == "/reset_prefix_cache":
            return 200, {"success": True}
        if path == "/v1/load_lora_adapter" and self.takes_adapters:
            return self._adapt(body)
        if path == "/v1/unload_lora_adapter" and self.takes_adapters:
            self.names.pop(body["lora_name"], None)
            return 200, f"Success: LoRA adapter '{body['lora_name']}' removed successfully."
        if path == "/inference/v1/generate" and not self.weights_only:
            return self._generate(body)
        return 404, {"detail": "Not Found"}

    def get(self, path: str) -> tuple[int, Any]:
        """The same of what is read."""
        if path == "/weight_info":
            return 200, {"weight_version": self.version}
        names = [str(self.directory), *self.names]
        return 200, {"object": "list", "data": [{"id": name, "object": "model"} for name in names]}

    def _adapt(self, body: dict[str, Any]) -> tuple[int, Any]:
        from peft import PeftModel

        with self.lock:
            self.names[body["lora_name"]] = PeftModel.from_pretrained(self._open(self.path), body["lora_path"]).eval()
        self.loaded.append(body["lora_name"])
        return 200, f"Success: LoRA adapter '{body['lora_name']}' added successfully."

    @torch.no_grad()
    def _generate(self, body: dict[str, Any]) -> tuple[int, Any]:
        name, asked, ids = body.get("model"), body["sampling_params"], list(body["token_ids"])
        self.before(self, self.drawn)
        with self.lock:
            if name is not None and name not in self.names:
                message = f"The model `{name}` does not exist."
                error = {"message": message, "type": "NotFoundError", "param": "model", "code": 404}
                return 404, {"error": error}
            model = self.model if name is None else self.names[name]
            spans: list[dict[str, Any]] = []
            self.drawn += 1
            generator = torch.Generator().manual_seed(asked.get("seed", 0))
            content: list[dict[str, Any]] = []
            while len(content) < asked["max_tokens"]:
                if not spans or spans[-1]["version"] != self.version:
                    spans.append({"version": self.version, "start": len(content), "end": 0})
                spans[-1]["end"] = len(content) + 1
                logits = model(torch.tensor([ids])).logits[0, -1].float()
                token = int(logits.argmax()) if asked["temperature"] == 0 else _draw(logits, asked, generator)
                logprob = float(logits.log_softmax(0)[token])
                content.append({"token_id": token, "logprob": logprob, "rank": int((logits >= logits[token]).sum())})
                content[-1]["top_logprobs"] = [dict(content[-1])]
                ids.append(token)
                if token in asked["stop_token_ids"]:
                    break
        stopped = ids[-1] if ids[-1] in asked["stop_token_ids"] else None
        drawn = [part["token_id"] for part in content]
        choice = {"index": 0, "finish_reason": "length" if stopped is None else "stop", "stop_reason": stopped}
        choice |= {"token_ids": drawn, "routed_experts": None, "sampling_mask": None, "weight_versions": spans}
        return 200, {"choices": [{**choice, "logprobs": {"content": content}}]}


def _draw(logits: torch.Tensor, asked: dict[str, Any], generator: torch.Generator) -> int:
    scores = logits / asked["temperature"]
    if asked["top_k"]:
        scores[scores < scores.topk(min(asked["top_k"], len(scores))).values[-1]] = -torch.inf
    return int(torch.multinomial(scores.softmax(0), 1, generator=generator))


class Dropped(Exception):
    """The connection ends without an answer."""


@contextmanager
def fake_vllm(directory: Path, **settings: Any) -> Iterator[tuple[FakeVLLM, str]]:
    """A server of these weights, and its address."""
    fake = FakeVLLM(directory, **settings)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *words: object) -> None:
            pass

        def do_GET(self) -> None:
            self._answer(*fake.get(self.path))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            try:
                self._answer(*fake.post(self.path, json.loads(body) if body else {}))
            except Dropped:
                self.close_connection = True

        def _answer(self, status: int, answer: Any) -> None:
            content = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield fake, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def quick(*urls: str, **settings: Any) -> VLLMConfig:
    """Servers that are not waited for long."""
    return VLLMConfig(urls=urls, **{"timeout_s": 60.0, "budget_s": 60.0, **settings})


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait, 30 seconds at most."""
    until = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.005)


def shape(value: Any) -> Any:
    """Keys and types; of a list its first item's. Null or a number may stand for each other."""
    if isinstance(value, dict):
        return {name: shape(one) for name, one in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return "null or number" if value is None or isinstance(value, int | float) else type(value).__name__
