"""What `finegrained serve` builds and runs: the application behind a socket of this machine."""

from __future__ import annotations

import threading
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.markers import InputFile, ModelName, at_least, at_most
from finegrained_rlhf.inscit.asking.job import AskSettings
from finegrained_rlhf.runtime.remote.chat import EndpointGenerator
from finegrained_rlhf.web.address import answer, is_loopback, listening, of_extra

_CLOSING_S = 2
"""Seconds that open connections have to end after Ctrl-C."""


class Serve:
    """Serve the web application until Ctrl-C.

    Args:
        directory: whose runs are shown; nothing outside it is read.
        port: to listen at; 0 takes a free one.
        host: address to listen at: one of this machine's loopback, or with `behind_proxy` any.
        open: open the browser.
        behind_proxy: a proxy with TLS stands before it and says who may come in; `names` are then needed.
        names: host names by which browsers ask, beside those of loopback.
        certificate: PEM FILE of a certificate chain, for TLS without a proxy; `key` and `names` are then needed.
        key: PEM FILE of its private key.
        trust: MODULE.CLASS or a list: what rewards of runs may name in the playground beside this project's classes,
            such as one that asks a server; on the command line alone.
        ask: how the page "Ask" answers, as `finegrained ask` does; None: with the models that are found by themselves.
        play: a model behind an endpoint, one more policy of the playground (`text_generator@play=endpoint`).
        policies: models of the Hub, model directories or runs anywhere, more policies of the playground; who asks can
            choose among these names alone.
        memory: FILE of a `UserMemory`, or `postgresql://…`, one of whose users sees, corrects and forgets what is known
            of them; None has no such page.
        user: who that is, by name: whoever may open the page.
        user_header: the header in which the proxy says who asks, instead of `user`; it must set it itself in every
            request.

    Raises:
        ConfigError: another machine could reach the address and neither TLS nor a proxy is given, or names are missing;
            or a memory without a user.
    """

    def __init__(
        self,
        directory: InputFile = ".",
        port: Annotated[int, at_least(0), at_most(65535)] = 8700,
        host: str = "127.0.0.1",
        open: bool = True,
        behind_proxy: bool = False,
        names: Sequence[str] = (),
        memory: str | None = None,
        user: str | None = None,
        user_header: str | None = None,
        certificate: InputFile | None = None,
        key: InputFile | None = None,
        trust: str | Sequence[str] | None = None,
        ask: AskSettings | None = None,
        play: EndpointGenerator | None = None,
        policies: Sequence[ModelName] = (),
    ) -> None:
        self.tls = certificate is not None
        if self.tls != (key is not None):
            raise ConfigError("certificate=FILE and key=FILE belong together")
        if not behind_proxy and not self.tls and not is_loopback(host):
            raise ConfigError(
                f"host: {host} can be reached by other machines without TLS or a password; "
                "listen at 127.0.0.1, give certificate=FILE key=FILE, or behind_proxy=true behind a proxy that has both"
            )
        if (behind_proxy or self.tls) and not names:
            raise ConfigError("names: give the host names by which browsers ask, as in names=[marks.example]")
        if (user is None) + (user_header is None) != (2 if memory is None else 1):
            raise ConfigError("user: expected with memory, or user_header in its place, and neither without a memory")
        if user_header is not None and not behind_proxy:
            raise ConfigError("user_header: anybody could say who they are; it needs behind_proxy=true")
        self.memory, self.user, self.user_header = memory, user, user_header
        self.certificate, self.key, self.ask, self.play = certificate, key, ask, play
        self.policies = tuple(policies)
        self.trust = (trust,) if isinstance(trust, str) else tuple(trust or ())
        self.directory, self.port, self.host, self.open = Path(directory), port, host, open
        self.behind_proxy, self.names = behind_proxy, tuple(names)

    def run(self) -> None:
        """Bind, say where, and serve.

        Raises:
            ConfigError: a package of the extra `web` is missing, or the port is taken.
            DataError: there is no such directory.
            ModelError: one of `policies` is no language model, or neither cached nor to be fetched.
        """
        if not self.directory.is_dir():
            raise DataError("no such directory; expected one with runs below it", file=self.directory)
        with of_extra("serve"):
            from finegrained_rlhf.web.application import Settings, create_app
            from finegrained_rlhf.web.playground.choices import named_policies
        settings = Settings(
            self.directory.resolve(),
            self.names,
            memory=self.memory,
            user=self.user,
            user_header=self.user_header,
            reachable=self.behind_proxy or self.tls,
            tls=self.tls,
            trusted=self.trust,
            answering=self.ask,
            played=self.play,
            policies=named_policies(self.policies),
        )
        app = create_app(settings)
        with listening(self.host, self.port) as listener:
            port = listener.getsockname()[1]
            name = "localhost" if is_loopback(self.host) else self.names[0]
            url = f"http{'s' if self.tls else ''}://{name}:{port}/"
            print(f"serving {self.directory} at {url}  (Ctrl-C ends it)", flush=True)
            if first := app.state.marking.first_link(needed=self.tls):
                what = "to come in" if self.tls else "to mark together"
                print(f"{what}, make the first owner's account at {url}{first}", flush=True)
            if self.open:
                threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
            tls = self.certificate, self.key
            answer(app, listener, tls, behind_proxy=self.behind_proxy, closing_s=_CLOSING_S)
        print("stopped", flush=True)
