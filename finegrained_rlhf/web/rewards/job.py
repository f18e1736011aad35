"""Serving rewards as a configuration: what `finegrained serve-rewards` builds and runs."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Annotated, Any

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.markers import InputFile, above, at_least, at_most
from finegrained_rlhf.rewards.config import RewardConfig
from finegrained_rlhf.runtime.directory.fingerprints import content_version
from finegrained_rlhf.runtime.job import as_config
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.runtime.training_run import given_configuration
from finegrained_rlhf.web.address import LOOPBACK_NAMES, answer, is_loopback, listening, of_extra


class ServeRewards:
    """Serve a reward's components until Ctrl-C or SIGTERM; what was begun is answered first.

    Weights, settings, gates and penalties are the trainers' matter: components give their plain values.

    Args:
        reward: whose components are served.
        host: address to listen at: one of this machine's loopback; any with TLS and a key, or with `behind_proxy`.
        port: to listen at; 0 takes a free one.
        behind_proxy: a proxy with TLS stands before it and says who may ask.
        certificate: file with the chain of certificates, for TLS.
        private_key: file with the certificate's key.
        key_variable: environment variable that holds a key which every request must have; None: see `key_file`.
        key_file: file with such keys, one a line; any of them is good.
        rows_at_once: responses that are scored together.
        rows_waiting: responses that may wait; what comes beyond them is refused (429) and asked again by the client.
        longest_body_mib: most MiB (2^20 bytes) of a request.
        processes: precision and CPU threads.

    Raises:
        ConfigError: other machines could reach the address without TLS or a key, or a certificate lacks its key.
    """

    def __init__(
        self,
        reward: RewardConfig,
        host: str = "127.0.0.1",
        port: Annotated[int, at_least(0), at_most(65535)] = 8600,
        behind_proxy: bool = False,
        certificate: InputFile | None = None,
        private_key: InputFile | None = None,
        key_variable: str | None = None,
        key_file: InputFile | None = None,
        rows_at_once: Annotated[int, at_least(1)] = 256,
        rows_waiting: Annotated[int, at_least(1)] = 16384,
        longest_body_mib: Annotated[float, above(0)] = 64.0,
        processes: ProcessConfig | None = None,
    ) -> None:
        if (certificate is None) != (private_key is None):
            raise ConfigError("certificate and private_key: expected both, or none")
        has_key = key_variable is not None or key_file is not None
        if not behind_proxy and not is_loopback(host) and not (certificate and has_key):
            raise ConfigError(
                f"host: {host} can be reached by other machines; expected TLS (certificate, private_key) and a key "
                "(key_variable or key_file), or behind_proxy=true behind a proxy that has both"
            )
        self.reward, self.host, self.port, self.behind_proxy = reward, host, port, behind_proxy
        self.certificate, self.private_key = certificate, private_key
        self.key_variable, self.key_file = key_variable, key_file
        self.rows_at_once, self.rows_waiting, self.longest_body_mib = rows_at_once, rows_waiting, longest_body_mib
        self.processes = processes or ProcessConfig()

    def keys(self) -> list[str]:
        """The keys, any of which a request may have.

        Raises:
            ConfigError: there is none where one should be, or one that no header can carry.
        """
        keys: list[str] = []
        if self.key_variable is not None:
            keys.append(os.environ.get(self.key_variable, "").strip())
        if self.key_file is not None:
            lines = Path(self.key_file).read_text(encoding="utf-8").splitlines()
            keys += [line.strip() for line in lines if line.strip()] or [""]
        if not all(key and key.isascii() and key.isprintable() for key in keys):
            where = (
                self.key_file if keys[0] or self.key_variable is None else f"environment variable {self.key_variable}"
            )
            raise ConfigError(f"{where}: expected keys of printable ASCII characters, at least one")
        return keys

    def run(self) -> None:
        """Load the scorers, say where they are served, and serve.

        Raises:
            ConfigError: a package of the extra `web` is missing, several processes were started, or see `keys`.
            FineGrainedError: a scorer cannot be loaded.
        """
        keys = self.keys()
        with of_extra("serve-rewards"):
            from finegrained_rlhf.web.rewards.application import create_app, described
        from finegrained_rlhf.runtime.processes import Processes
        from finegrained_rlhf.web.rewards.rounds import Rounds

        processes = Processes(self.processes)
        if processes.count > 1:
            raise ConfigError("serve-rewards runs in one process; start one for each GPU (CUDA_VISIBLE_DEVICES)")
        versions = self.versions(processes.precision)
        for scorer in self.reward.components.values():
            scorer.setup(processes.device)
        components = {name: described(name, scorer, versions[name]) for name, scorer in self.reward.components.items()}
        rounds = Rounds(self.reward.components, processes, self.rows_at_once, self.rows_waiting)
        local = is_loopback(self.host) and not self.behind_proxy
        app = create_app(
            rounds,
            components,
            keys=keys,
            body_bytes=int(self.longest_body_mib * 2**20),
            hosts=LOOPBACK_NAMES if local else ("*",),
        )
        with listening(self.host, self.port) as listener:
            port, scheme = listener.getsockname()[1], "https" if self.certificate else "http"
            served = ", ".join(f"{name} ({one.version})" for name, one in components.items())
            print(f"serving {served} at {scheme}://{self.host}:{port} in {processes.description}", flush=True)
            signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn sends it once more when it has ended
            answer(app, listener, (self.certificate, self.private_key), behind_proxy=self.behind_proxy)
        rounds.close()
        print("stopped", flush=True)

    def versions(self, precision: str) -> dict[str, str]:
        """A digest of what decides the values of each component: its settings, its files, and the precision."""
        reward: Any = given_configuration().get("reward") or as_config(self.reward)
        return {
            name: content_version({"component": component, "precision": precision})
            for name, component in reward["components"].items()
        }
