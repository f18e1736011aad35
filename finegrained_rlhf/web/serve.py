"""What `finegrained serve` builds and runs: the application behind a socket of this machine."""

from __future__ import annotations

import threading
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.markers import InputFile, at_least, at_most
from finegrained_rlhf.web.address import is_loopback, listening

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
        names: host names by which browsers ask the proxy, beside those of loopback.
        memory: FILE of a `UserMemory`, or `postgresql://…`, one of whose users sees, corrects and forgets what is known
            of them; None has no such page.
        user: who that is, by name: whoever may open the page.
        user_header: the header in which the proxy says who asks, instead of `user`; it must set it itself in every
            request.

    Raises:
        ConfigError: another machine could reach the address and no proxy is promised, or a proxy has no name; or a
            memory without a user.
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
    ) -> None:
        if not behind_proxy and not is_loopback(host):
            raise ConfigError(
                f"host: {host} can be reached by other machines without TLS or a password; "
                "listen at 127.0.0.1, or give behind_proxy=true behind a proxy that has both"
            )
        if behind_proxy and not names:
            raise ConfigError("names: give the host names by which browsers ask the proxy, as in names=[marks.example]")
        if (user is None) + (user_header is None) != (2 if memory is None else 1):
            raise ConfigError("user: expected with memory, or user_header in its place, and neither without a memory")
        if user_header is not None and not behind_proxy:
            raise ConfigError("user_header: anybody could say who they are; it needs behind_proxy=true")
        self.memory, self.user, self.user_header = memory, user, user_header
        self.directory, self.port, self.host, self.open = Path(directory), port, host, open
        self.behind_proxy, self.names = behind_proxy, tuple(names)

    def run(self) -> None:
        """Bind, say where, and serve.

        Raises:
            ConfigError: a package of the extra `web` is missing, or the port is taken.
            DataError: there is no such directory.
        """
        if not self.directory.is_dir():
            raise DataError("no such directory; expected one with runs below it", file=self.directory)
        try:
            import uvicorn

            from finegrained_rlhf.web.application import Settings, create_app
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("finegrained_rlhf"):
                raise
            raise ConfigError(f"serve needs {error.name}: pip install '.[web]' in a checkout") from None
        app = create_app(Settings(self.directory.resolve(), self.names, self.memory, self.user, self.user_header))
        with listening(self.host, self.port) as listener:
            port = listener.getsockname()[1]
            url = f"http://{'localhost' if is_loopback(self.host) else self.names[0]}:{port}/"
            print(f"serving {self.directory} at {url}  (Ctrl-C ends it)", flush=True)
            if self.open:
                threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
            config = uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=self.behind_proxy,
                timeout_graceful_shutdown=_CLOSING_S,
            )
            try:
                uvicorn.Server(config).run(sockets=[listener])
            except KeyboardInterrupt:
                pass  # the usual end
        print("stopped", flush=True)
