"""A search server: where it is, and requests that are sent again while it is busy, up to a limit."""

from __future__ import annotations

import json
import logging
import os
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

import httpx

from finegrained_rlhf.core.errors import ConfigError, FineGrainedError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import InputFile, above, at_least
from finegrained_rlhf.runtime.remote.answers import (
    BUSY,
    UnintelligibleAnswer,
    beginning_of,
    json_object,
    retry_after,
    wait_before,
)

logger = logging.getLogger(__name__)

Product = Literal["opensearch", "elasticsearch"]
Lines = Sequence[Mapping[str, Any]]


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
        client: what the server must be: `elasticsearch`, which says so in every answer, or `opensearch`, which is not
            asked for.
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
        if self.client not in get_args(Product):
            raise ConfigError(f"server.client: expected one of {', '.join(get_args(Product))}, got {self.client!r}")


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
    """A server that is asked until it answers, over connections that are kept.

    Neither proxies nor passwords of the environment are used, and no redirection is followed.

    Args:
        config: where it is.

    Raises:
        ConfigError: a user is given and the password is not, or there are no certificates.
    """

    def __init__(self, config: SearchServerConfig) -> None:
        self.config = config
        password = os.environ.get(config.password_variable)
        if config.user is not None and password is None:
            raise ConfigError(f"server.user is {config.user}: expected a password in ${config.password_variable}")
        self._http = httpx.Client(
            headers={"User-Agent": "finegrained-rlhf", "Accept": "application/json"},
            auth=None if config.user is None else httpx.BasicAuth(config.user, str(password)),
            verify=_tls(config) if config.url.startswith("https:") else False,
            timeout=config.timeout_s,
            trust_env=False,
        )

    def patience(self, what: str) -> Patience:
        """For requests that are answered but have to be repeated in part."""
        return Patience(self.config, self.address(what))

    def address(self, what: str) -> str:
        """The URL of something, for errors."""
        return f"{self.config.url.rstrip('/')}/{what}"

    def ask(self, method: str, what: str, body: Mapping[str, Any] | Lines | None = None) -> dict[str, Any]:
        """Send a request until it is answered.

        Args:
            method: of HTTP.
            what: is asked: `INDEX` or `INDEX/ACTION`.
            body: a JSON object, or several, a line each.

        Returns:
            The JSON object that the server answers.

        Raises:
            SearchServerError: unreachable, busy or unintelligible in all tries.
            RefusedRequest: the server does not do it.
            ConfigError: user or password are wrong, the certificate is not trusted, or the server is not the product
                that it must be.
        """
        patience, content, headers = self.patience(what), None, {}
        if body is not None:
            lines = [json.dumps(line, ensure_ascii=False) for line in ([body] if isinstance(body, Mapping) else body)]
            content = "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")
            kind = "application/json" if isinstance(body, Mapping) else "application/x-ndjson"
            headers = {"Content-Type": kind}
        while True:
            asked = None
            try:
                answer = self._http.request(method, self.address(what), content=content, headers=headers)
                if answer.status_code < 300:
                    return self._object(answer)
                reason, asked = self._refusal(what, answer), retry_after(answer.headers.get("Retry-After"))
            except UnintelligibleAnswer as error:
                reason = str(error)
            except httpx.TimeoutException:
                reason = "no answer in time"
            except httpx.RequestError as error:
                self._check_certificate(error)
                reason = str(error) or type(error).__name__
            patience.wait(reason, asked)

    def _object(self, answer: httpx.Response) -> dict[str, Any]:
        if self.config.client == "elasticsearch" and answer.headers.get("X-Elastic-Product") != "Elasticsearch":
            raise ConfigError("server.client: this server is no Elasticsearch; expected opensearch")
        return json_object(answer.content)

    def _refusal(self, what: str, answer: httpx.Response) -> str:
        """Why a request is not answered by now; what no other try changes is an error."""
        status = answer.status_code
        try:
            said: Any = json_object(answer.content)
        except UnintelligibleAnswer:
            said = answer.text
        reason = f"status {status}, {reason_of(said)}"
        if status in BUSY:
            return reason
        if status in (401, 403):
            raise ConfigError(
                f"{self.config.url}: refuses the user {self.config.user} ({reason}); see server.user and "
                f"${self.config.password_variable}"
            )
        raise RefusedRequest(f"{self.address(what)}: {reason}", status, said)

    def _check_certificate(self, error: BaseException) -> None:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, ssl.SSLCertVerificationError):
            cause = cause.__cause__ or cause.__context__
        if cause is not None:
            raise ConfigError(
                f"{self.config.url}: its certificate is not trusted ({cause.verify_message}); give server.ca_file, or "
                "server.verify=false for one that it signed itself"
            ) from None


def reason_of(answer: Any) -> str:
    """What an error of the server says, on one line."""
    error = answer.get("error", answer) if isinstance(answer, Mapping) else answer
    if isinstance(error, Mapping):
        error = f"{error.get('type', 'error')}: {error.get('reason', 'without a reason')}"
    return beginning_of(str(error)) or "an empty answer"


def speakable(text: str) -> str:
    """A text as UTF-8 can say it: half a surrogate pair becomes `?`."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _tls(config: SearchServerConfig) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=config.ca_file)
    except (OSError, ssl.SSLError):
        raise ConfigError(f"server.ca_file: {config.ca_file} is no file of certificates") from None
    if not config.verify:
        logger.warning("%s: its certificate is not verified (server.verify=false)", config.url)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
