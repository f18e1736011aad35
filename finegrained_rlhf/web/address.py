"""Where a server listens: whether others reach it, and a socket there."""

from __future__ import annotations

import errno
import ipaddress
import socket

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
