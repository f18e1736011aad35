"""Where a server listens: whether others reach it, a socket there, and an application that answers at it."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from finegrained_rlhf.core.errors import ConfigError

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1", "[::1]")
"""Names by which only this machine asks."""


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address; a name other than `localhost` counts as reachable."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        ConfigError: the port is taken, or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(f"port: {port} is taken on {host}; give another one, or port=0 for a free one") from None
        raise ConfigError(f"host: cannot listen at {host}:{port} ({error.strerror or error})") from None


@contextmanager
def of_extra(command: str) -> Iterator[None]:
    """Where a command imports what the extra `web` brings.

    Raises:
        ConfigError: a package of it is missing.
    """
    try:
        import uvicorn  # noqa: F401

        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("finegrained_rlhf"):
            raise
        raise ConfigError(f"{command} needs {error.name}: pip install '.[web]' in a checkout") from None


def answer(
    app: Any,
    listener: socket.socket,
    tls: tuple[str | None, str | None],
    *,
    behind_proxy: bool,
    closing_s: int | None = None,
) -> None:
    """Let an application answer at a socket until Ctrl-C or SIGTERM.

    Args:
        app: of ASGI.
        listener: from `listening`.
        tls: files with the chain of certificates and with the certificate's key; None for neither.
        behind_proxy: whether what a proxy says of the client is believed.
        closing_s: seconds after which open connections are closed in the end; None waits for them.
    """
    import uvicorn

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=behind_proxy,
        ssl_certfile=tls[0],
        ssl_keyfile=tls[1],
        timeout_graceful_shutdown=closing_s,
    )
    try:
        uvicorn.Server(config).run(sockets=[listener])
    except KeyboardInterrupt:
        pass  # the usual end
