"""Another framework's trainer in a process of its own, and how it is spoken to. Knows no framework and no model.

`PYTHON SCRIPT DIRECTORY` reads `DIRECTORY/task.json`. From then on every line of its input is a request and every line
of its output an answer, both JSON objects. Without a request it says `{"versions": {…}}`; then, one after the other:

    {"do": "check"}     {"losses": [a step], "gradient_norms": [a step]}, after it wrote `task["check"]["weights"]`
    {"do": "step"}      {"seconds": {a phase or processor}, "lengths": [a response]}, `task["timing"]["steps"]` times

Instead of any answer it may say `{"missing": "…"}`, a package that it lacks, or `{"error": "…"}`.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

from finegrained_rlhf.core.errors import ConfigError, ConsistencyError

SCRIPTS = {"trl": Path(__file__).with_name("peer_trl.py")}
_MALLOC = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 60)}  # as `keep_freed_memory`, for both sides


class PeerProcess:
    """The running process; ends with the block.

    Args:
        name: of the framework, a key of `SCRIPTS`.
        python: that runs it.
        directory: of the task; what the process prints beside its answers goes to `peer.log` there.
    """

    def __init__(self, name: str, python: str, directory: Path) -> None:
        self.name, self.python, self.log = name, python, directory / "peer.log"
        command = [python, str(SCRIPTS[name]), str(directory)]
        try:
            with self.log.open("w", encoding="utf-8") as log:
                pipe, environment = subprocess.PIPE, _MALLOC | dict(os.environ)
                self._process = subprocess.Popen(
                    command, stdin=pipe, stdout=pipe, stderr=log, env=environment, encoding="utf-8"
                )
        except OSError as error:
            raise ConfigError(f"peer_python={python}: cannot be started ({error.strerror})") from None

    def __enter__(self) -> PeerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, request: str) -> dict[str, Any]:
        """Send a request and wait for its answer. Errors as `answer`."""
        assert self._process.stdin is not None
        try:
            print(json.dumps({"do": request}), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            pass  # it has ended; what it said last, or did not, is the answer
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """The next answer.

        Raises:
            ConfigError: this Python lacks the framework.
            ConsistencyError: the process failed or ended.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            lines = [text for text in self.log.read_text(encoding="utf-8").splitlines() if text.strip()]
            last = lines[-1].strip() if lines else "it printed nothing"
            raise ConsistencyError(f"peer={self.name} ended with status {self._process.wait()}: {last}")
        answer: dict[str, Any] = json.loads(line)
        if "missing" in answer:
            raise ConfigError(
                f"peer={self.name}: {self.python} cannot import it ({answer['missing']}); install it into an "
                "environment of its own and name its Python by peer_python=PATH"
            )
        if "error" in answer:
            raise ConsistencyError(f"peer={self.name} failed: {answer['error']}")
        return answer
