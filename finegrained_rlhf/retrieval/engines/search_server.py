"""A search server: where it is, and requests that are sent again while it is busy, up to a limit."""

from __future__ import annotations

import base64
import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from finegrained_rlhf.core.errors import ConfigError, FineGrainedError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import InputFile, above, at_least
from finegrained_rlhf.retrieval.engines.search_clients import CLIENTS, Connection, RequestFailed, SearchClient
from finegrained_rlhf.runtime.remote.answers import BUSY, wait_before

T = TypeVar("T")


class SearchServerError(FineGrainedError):
    """A search server cannot be reached, stays busy, or answers something that cannot be understood."""


class RefusedRequest(SearchServerError):
    """A search server does not do what it is asked.

    Attributes:
        status: of HTTP.
        answer: what it said.
    """

    def __init__(self, problem: str, status: int, answer: Any) -> None:
        super().__init__(problem)
        self.status, self.answer = status, answer


@dataclass(frozen=True)
class SearchServerConfig(Settings):
    """Where a search server is and how long to wait for it.

    Attributes:
        url: `http://HOST:9200` or `https://…`, without a password; without a port it is the scheme's.
        client: the library that speaks to it: `opensearch` (opensearch-py) or `elasticsearch`.
        user: of basic authentication; null for none.
        password_variable: environment variable that holds the password, which is thereby never written down.
        ca_file: certificates to trust; null: those of the system.
        verify: check the server's certificate; false for a server that signed its own.
        timeout_s: seconds of silence after which a request is given up and tried again.
        retries: further tries of a request.
        backoff_s: seconds before the first of them; doubled each time, with some chance in it.
        longest_wait_s: most seconds between two tries, also where the server asks for more.
    """

    url: str = "http://localhost:9200"
    client: str = "opensearch"
    user: str | None = None
    password_variable: str = "OPENSEARCH_PASSWORD"
    ca_file: InputFile | None = None
    verify: bool = True
    timeout_s: Annotated[float, above(0)] = 60.0
    retries: Annotated[int, at_least(0)] = 6
    backoff_s: Annotated[float, above(0)] = 0.5
    longest_wait_s: Annotated[float, above(0)] = 30.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"server.url: expected http://HOST:PORT or https://HOST:PORT, got {self.url!r}")
        if parts.username is not None:
            raise ConfigError("server.url: expected no user or password in it; give server.user and the variable")
        if self.client not in CLIENTS:
            raise ConfigError(f"server.client: expected one of {', '.join(CLIENTS)}, got {self.client!r}")


class Patience:
    """How often something may still be tried again.

    Args:
        config: the limits.
        what: is tried, for the error.
    """

    def __init__(self, config: SearchServerConfig, what: str) -> None:
        self._config, self._what = config, what
        self._started, self._failed = time.monotonic(), 0

    def restore(self) -> None:
        """Count from the beginning, after progress."""
        self._failed = 0

    def wait(self, reason: str, retry_after: float | None = None) -> None:
        """Sleep before the next try.

        Args:
            reason: why the last one failed.
            retry_after: seconds that the server asks for.

        Raises:
            SearchServerError: all tries are used up.
        """
        self._failed += 1
        if self._failed > self._config.retries:
            seconds = time.monotonic() - self._started
            raise SearchServerError(
                f"{self._what}: given up after {self._failed} tries in {seconds:.0f} s, the last one: {reason}"
            )
        time.sleep(wait_before(self._failed, self._config.backoff_s, self._config.longest_wait_s, retry_after))


class SearchServer:
    """A server that is asked until it answers.

    Args:
        config: where it is.

    Raises:
        ConfigError: the client's library is missing, a user is given and the password is not, or there are no
            certificates.
    """

    def __init__(self, config: SearchServerConfig) -> None:
        self.config = config
        headers = {"User-Agent": "finegrained-rlhf"}
        if config.user is not None:
            password = os.environ.get(config.password_variable)
            if password is None:
                raise ConfigError(f"server.user is {config.user}: expected a password in ${config.password_variable}")
            token = base64.b64encode(f"{config.user}:{password}".encode()).decode("ascii")
            headers["Authorization"] = f"Basic {token}"
        url = urlsplit(config.url)
        tls = _tls(config) if url.scheme == "https" else None
        self._client = CLIENTS[config.client](Connection(url, headers, tls, config.timeout_s))

    def patience(self, what: str) -> Patience:
        """For requests that are answered but have to be repeated in part."""
        return Patience(self.config, self.address(what))

    def address(self, what: str) -> str:
        """The URL of something, for errors."""
        return f"{self.config.url.rstrip('/')}/{what}"

    def ask(self, what: str, request: Callable[[SearchClient], T]) -> T:
        """Send a request until it is answered.

        Args:
            what: is asked, for errors: `INDEX/ACTION`.
            request: of a client.

        Returns:
            What `request` returns.

        Raises:
            SearchServerError: unreachable, busy or unintelligible in all tries.
            RefusedRequest: the server does not do it.
            ConfigError: user or password are wrong, the certificate is not trusted, or the server is not the client's.
        """
        patience = self.patience(what)
        while True:
            try:
                return request(self._client)
            except RequestFailed as failed:
                self._check_certificate(failed)
                if failed.status is not None and failed.status not in BUSY:
                    raise self._refused(what, failed) from None
                reason, retry_after = failed.reason, failed.asked
            patience.wait(reason, retry_after)

    def _refused(self, what: str, failed: RequestFailed) -> FineGrainedError:
        if failed.status in (401, 403):
            return ConfigError(
                f"{self.config.url}: refuses the user {self.config.user} ({failed.reason}); see server.user and "
                f"${self.config.password_variable}"
            )
        return RefusedRequest(f"{self.address(what)}: {failed.reason}", int(failed.status or 0), failed.answer)

    def _check_certificate(self, failed: RequestFailed) -> None:
        cause: BaseException | None = failed
        while cause is not None and not isinstance(cause, ssl.SSLCertVerificationError):
            cause = cause.__cause__ or next((part for part in cause.args if isinstance(part, BaseException)), None)
        if cause is not None:
            raise ConfigError(
                f"{self.config.url}: its certificate is not trusted ({cause.verify_message}); give server.ca_file, or "
                "server.verify=false for one that it signed itself"
            ) from None


def _tls(config: SearchServerConfig) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=config.ca_file)
    except (OSError, ssl.SSLError):
        raise ConfigError(f"server.ca_file: {config.ca_file} is no file of certificates") from None
    if not config.verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
