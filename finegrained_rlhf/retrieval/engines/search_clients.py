"""The official clients of search servers, opensearch-py and elasticsearch, behind one small interface.

Neither library tries again here, since neither waits between its tries (opensearch-py) or follows `Retry-After`.

The libraries are imported when a server is asked for the first time.
"""

from __future__ import annotations

import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.runtime.remote.answers import beginning_of, retry_after


@dataclass(frozen=True)
class Connection:
    """What a client needs to reach a server.

    Attributes:
        url: with scheme and host; perhaps a port and a path before every other one.
        headers: of every request.
        tls: certificates to trust; None without TLS.
        timeout_s: seconds of silence after which a request is given up.
    """

    url: SplitResult
    headers: Mapping[str, str]
    tls: ssl.SSLContext | None
    timeout_s: float

    @property
    def port(self) -> int:
        """Of the address, or its scheme's."""
        return self.url.port or (443 if self.url.scheme == "https" else 80)

    @property
    def prefix(self) -> str:
        """The path before every other one; empty without one."""
        return self.url.path.rstrip("/")


class RequestFailed(Exception):
    """A request without a good answer.

    Attributes:
        reason: for people.
        status: of HTTP; None without an answer that can be understood.
        answer: what the server said.
        asked: seconds that it asks to be left alone.
    """

    def __init__(self, reason: str, status: int | None = None, answer: Any = None, asked: float | None = None) -> None:
        super().__init__(reason)
        self.reason, self.status, self.answer, self.asked = reason, status, answer, asked


class SearchClient(ABC):
    """A library's client. Each method sends one request, once, and raises `RequestFailed`."""

    _client: Any
    _streaming_bulk: Any

    @abstractmethod
    def create(self, index: str, settings: Mapping[str, Any], mappings: Mapping[str, Any]) -> None:
        """Make an index."""

    @abstractmethod
    def change(self, index: str, settings: Mapping[str, Any]) -> None:
        """Set settings of an index."""

    @abstractmethod
    def msearch(self, index: str, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Search; `lines` are a header and a body for each search. The answers are under `responses`."""

    @abstractmethod
    def _errors(self) -> AbstractContextManager[None]:
        """Makes the library's errors `RequestFailed`."""

    def mappings(self, index: str) -> dict[str, Any]:
        """By the name of the index."""
        with self._errors():
            return _object(self._client.indices.get_mapping(index=index))

    def count(self, index: str) -> dict[str, Any]:
        """Documents that can be found, under `count`."""
        with self._errors():
            return _object(self._client.count(index=index))

    def refresh(self, index: str) -> None:
        """Make what was sent findable."""
        with self._errors():
            _object(self._client.indices.refresh(index=index))

    def bulk(self, index: str, documents: Sequence[tuple[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
        """Send documents by their ids; what became of each, in order: its `status`, perhaps an `error`.

        A request has at most 100 MB, the limit of servers; more documents are sent in several.
        """
        actions = ({"_id": id, "_source": dict(document)} for id, document in documents)
        options = {"chunk_size": max(1, len(documents)), "raise_on_error": False, "max_retries": 0}
        with self._errors():
            try:
                answers = self._streaming_bulk(self._client, actions, index=index, **options)
                results = [result["index"] for _, result in answers]
            except (AttributeError, KeyError, TypeError):  # the libraries' helpers trust the form of an answer
                results = []
        if len(results) != len(documents) or not all(isinstance(result, dict) for result in results):
            raise RequestFailed("an answer without an item for each of them")
        return results


class OpenSearchClient(SearchClient):
    """opensearch-py. Its errors hold no headers, so its connection keeps `Retry-After` here.

    Raises:
        ConfigError: the library is not installed.
    """

    def __init__(self, to: Connection) -> None:
        try:
            import opensearchpy
            from opensearchpy.helpers import streaming_bulk
        except ImportError:
            raise _missing("opensearch-py") from None

        class HeedingConnection(opensearchpy.Urllib3HttpConnection):
            asked: float | None = None

            def get_response_headers(self, response: Any) -> Any:
                type(self).asked = retry_after(response.headers.get("Retry-After"))
                return super().get_response_headers(response)

        self._connection, self._library, self._streaming_bulk = HeedingConnection, opensearchpy, streaming_bulk
        host = {"host": to.url.hostname, "port": to.port, "use_ssl": to.tls is not None, "url_prefix": to.prefix}
        self._client = opensearchpy.OpenSearch(
            [host],
            connection_class=HeedingConnection,
            headers=dict(to.headers),
            ssl_context=to.tls,
            timeout=to.timeout_s,
            max_retries=0,
        )

    def create(self, index: str, settings: Mapping[str, Any], mappings: Mapping[str, Any]) -> None:
        """Make an index."""
        with self._errors():
            _object(self._client.indices.create(index=index, body={"settings": settings, "mappings": mappings}))

    def change(self, index: str, settings: Mapping[str, Any]) -> None:
        """Set settings of an index."""
        with self._errors():
            _object(self._client.indices.put_settings(index=index, body=settings))

    def msearch(self, index: str, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Search."""
        with self._errors():
            return _object(self._client.msearch(index=index, body=list(lines)))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        library = self._library
        try:
            yield
        except library.ConnectionTimeout:
            raise RequestFailed("no answer in time") from None
        except library.ConnectionError as error:
            raise RequestFailed(str(error.info)) from error.info
        except library.TransportError as error:
            answer = error.info if isinstance(error.info, Mapping) else error.error
            status = int(error.status_code)
            reason = f"status {status}, {reason_of(answer)}"
            raise RequestFailed(reason, status, answer, self._connection.asked) from None
        except library.SerializationError as error:
            raise RequestFailed(f"an answer that is no JSON: {beginning_of(str(error.args[0]))}") from None


class ElasticsearchClient(SearchClient):
    """elasticsearch. Its major version must be the server's.

    Raises:
        ConfigError: the library is not installed.
    """

    def __init__(self, to: Connection) -> None:
        try:
            import elasticsearch
            from elastic_transport import NodeConfig
            from elasticsearch.helpers import streaming_bulk
        except ImportError:
            raise _missing("elasticsearch") from None
        self._library, self._streaming_bulk = elasticsearch, streaming_bulk
        node = NodeConfig(
            to.url.scheme,
            str(to.url.hostname),
            to.port,
            path_prefix=to.prefix,
            ssl_context=to.tls,
            verify_certs=to.tls is not None and to.tls.verify_mode is not ssl.CERT_NONE,
        )
        self._client = elasticsearch.Elasticsearch(
            [node], headers=dict(to.headers), request_timeout=to.timeout_s, max_retries=0
        )

    def create(self, index: str, settings: Mapping[str, Any], mappings: Mapping[str, Any]) -> None:
        """Make an index."""
        with self._errors():
            _object(self._client.indices.create(index=index, settings=settings, mappings=mappings))

    def change(self, index: str, settings: Mapping[str, Any]) -> None:
        """Set settings of an index."""
        with self._errors():
            _object(self._client.indices.put_settings(index=index, settings=settings))

    def msearch(self, index: str, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Search."""
        with self._errors():
            return _object(self._client.msearch(index=index, searches=list(lines)))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        library = self._library
        try:
            yield
        except library.UnsupportedProductError:
            raise ConfigError("server.client: this server is no Elasticsearch; expected opensearch") from None
        except library.ApiError as error:
            status, answer = error.meta.status, error.body
            reason = f"status {status}, {reason_of(answer)}"
            raise RequestFailed(reason, status, answer, retry_after(error.meta.headers.get("Retry-After"))) from None
        except library.ConnectionTimeout:
            raise RequestFailed("no answer in time") from None
        except library.SerializationError as error:
            raise RequestFailed(f"an answer that is no JSON: {_undecodable(str(error))}") from None
        except library.TransportError as error:
            raise RequestFailed(str(error.__cause__ or error)) from error.__cause__


CLIENTS: Mapping[str, Callable[[Connection], SearchClient]] = {
    "opensearch": OpenSearchClient,
    "elasticsearch": ElasticsearchClient,
}


def reason_of(answer: Any) -> str:
    """What an error of the server says, on one line."""
    error = answer.get("error", answer) if isinstance(answer, Mapping) else answer
    if isinstance(error, Mapping):
        error = f"{error.get('type', 'error')}: {error.get('reason', 'without a reason')}"
    return beginning_of(str(error)) or "an empty answer"


def speakable(text: str) -> str:
    """A text as UTF-8 can say it: half a surrogate pair becomes `?`."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _object(answer: Any) -> dict[str, Any]:
    answer = getattr(answer, "body", answer)  # elasticsearch's answers hold headers beside it
    if not isinstance(answer, dict):
        raise RequestFailed(f"an answer that is no JSON object: {beginning_of(str(answer)) or 'an empty answer'}")
    return answer


def _undecodable(message: str) -> str:
    """The beginning of an answer in elastic-transport's message, `Unable to deserialize as JSON: b'…'`."""
    return beginning_of(message.removeprefix("Unable to deserialize as JSON: ").removeprefix("b").strip("'\""))


def _missing(package: str) -> ConfigError:
    return ConfigError(f"this search server needs {package}: pip install -e '.[search]' in a checkout")
