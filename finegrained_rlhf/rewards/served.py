"""A component that a server of rewards answers (`finegrained serve-rewards`): texts go there, values come back.

Segments are cut where the scorer is. The wire format is `docs/serve_rewards.md`'s. A server that is away is waited for
and asked again, which changes nothing: a request is answered the same however often it is made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.markers import at_least, harmless
from finegrained_rlhf.core.records import Prompt, SegmentScores
from finegrained_rlhf.rewards.protocol import BaseScorer
from finegrained_rlhf.runtime.remote.answers import UnintelligibleAnswer
from finegrained_rlhf.runtime.remote.client import Call, RemoteClient, RemoteConfig, RemoteError

if TYPE_CHECKING:
    import torch

WIRE = 1
"""Version of the wire format."""
FIELDS = ("question", "passages", "references", "messages")


class ServedScorer(BaseScorer):
    """A component whose values a server gives: those of the scorer that it has under that name.

    What the scorer declares (`error_free_from`, `value_range`, `reads_on`, `look_ahead`, `counted`) is the server's,
    and known after `setup`: before a run, thresholds of gates and constraints cannot be checked against its values.

    Args:
        remote: the server, as `http://HOST:PORT`; its key is sent as a bearer token.
        component: its name at the server.
        version: what the server must serve; None takes what it serves when the run begins. It may not change in a run.
        batch_size: responses in one request; several are under way at once (`remote.concurrency`).
        fields: metadata of a prompt that are sent, where it has them.

    Raises:
        ConfigError: the key is not there.
    """

    def __init__(
        self,
        remote: RemoteConfig,
        component: str,
        version: str | None = None,
        batch_size: Annotated[int, at_least(1), harmless] = 64,
        fields: Sequence[str] = FIELDS,
    ) -> None:
        self.remote, self.component, self.version = remote, component, version
        self.batch_size, self.fields = batch_size, tuple(fields)
        self.counted: tuple[str, ...] = ()
        self.served_version = ""
        scores = replace(remote, url=f"{remote.url.rstrip('/')}/v{WIRE}/scores")
        self._client = RemoteClient(scores, lambda key: {"Authorization": f"Bearer {key}"})

    def setup(self, device: torch.device | str = "cpu") -> None:
        """Ask what the server has; `device` is the server's own matter.

        Raises:
            RemoteError: it cannot be reached, or has no such component.
            ConfigError: it serves another version.
        """
        self._request([], [])()

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Let the server refuse prompts to which it could score no response.

        Raises:
            RemoteError: it refuses one, or cannot be reached.
            DataError: metadata of a prompt cannot be sent.
        """
        self._request(prompts, [])()

    def start(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Callable[[], SegmentScores]:
        """Send R responses; the function that is returned waits for their scores.

        Raises:
            DataError: metadata of a prompt cannot be sent.
            RemoteError: the server stays away, or refuses a request.
            ConfigError: it serves another version than before.
        """
        return self._request(prompts, responses)

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        """Start, and wait. Raises what `start` raises."""
        return self.start(prompts, responses)()

    def resume(self, version: str) -> None:
        """Take up a run that was rewarded by `version` so far.

        Raises:
            ConfigError: the server has another one, and `version` does not ask for that.
        """
        if self.served_version not in (version, self.version):
            raise self._changed(version, "was rewarded by")

    def _request(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Callable[[], SegmentScores]:
        """A request for each `batch_size` prompts, at least one; the function waits for the answers.

        Args:
            prompts: R prompts, or those to be checked.
            responses: R texts, or none.
        """
        parts = [slice(at, at + self.batch_size) for at in range(0, max(len(prompts), 1), self.batch_size)]
        calls = [Call(self._body(prompts[part], responses[part])) for part in parts]
        answers: dict[int, SegmentScores] = {}
        wait = self._client.begin(calls, self._read, answers.__setitem__)

        def collect() -> SegmentScores:
            wait()
            for number, part in enumerate(parts):
                if len(answers[number].spans) != len(responses[part]):
                    raise RemoteError(
                        f"{self.remote.url}: expected scores of {len(responses[part])} responses by {self.component}, "
                        f"got those of {len(answers[number].spans)}"
                    )
            return _joined([answers[number] for number in range(len(parts))])

        return collect

    def _body(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Mapping[str, Any]:
        """A request; prompts with several responses are sent once."""
        distinct = list({id(prompt): prompt for prompt in prompts}.values())
        number = {id(prompt): place for place, prompt in enumerate(distinct)}
        return {
            "component": self.component,
            "prompts": [wire_prompt(prompt, self.fields) for prompt in distinct],
            "responses": [
                {"prompt": number[id(prompt)], "text": text} for prompt, text in zip(prompts, responses, strict=False)
            ],
        }

    def _read(self, answer: Mapping[str, Any]) -> SegmentScores:
        try:
            about = answer["component"]
            if answer["wire"] != WIRE or about["name"] != self.component:
                raise UnintelligibleAnswer(f"an answer of wire format {answer['wire']} about {about['name']}")
            self._take_up(about)
            return _scores(answer)
        except (KeyError, TypeError, ValueError) as error:
            raise UnintelligibleAnswer(f"an answer that is no scores: {type(error).__name__} {error}") from None

    def _take_up(self, about: Mapping[str, Any]) -> None:
        """Take what the server's scorer declares; of later answers, require the same version."""
        known = self.served_version or self.version
        if known and about["version"] != known:
            raise self._changed(known, "is rewarded by", about["version"])
        if not self.served_version:
            self.error_free_from, self.reads_on = float(about["error_free_from"]), bool(about["reads_on"])
            self.look_ahead, self.counted = about["look_ahead"], tuple(about["counted"])
            bounds = about["value_range"]
            self.value_range = None if bounds is None else (float(bounds[0]), float(bounds[1]))
            self.served_version = str(about["version"])

    def _changed(self, known: str, what: str, now: str | None = None) -> ConfigError:
        now = now or self.served_version
        return ConfigError(
            f"{self.remote.url}: component {self.component} is version {now} and this run {what} {known}; values of "
            f"two versions are not mixed: serve {known} again, or begin a run anew (or go on with version={now} and "
            "resume_changed=allow)"
        )


def wire_prompt(prompt: Prompt, fields: Sequence[str]) -> dict[str, Any]:
    """A prompt as it is sent; passages with their spans.

    Args:
        prompt: with its metadata.
        fields: of the metadata, which are sent.

    Raises:
        DataError: one of them is no JSON.
    """
    metadata = {name: prompt.metadata[name] for name in fields if prompt.metadata.get(name) is not None}
    if "passages" in metadata:
        metadata["passages"] = [
            {"title": passage.title, "spans": list(getattr(passage, "spans", (passage.text,)))}
            for passage in metadata["passages"]
        ]
    for name, value in metadata.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise DataError(f"cannot be sent as JSON ({error})", record=prompt.id, field=f"metadata.{name}") from None
    return {"id": prompt.id, "text": prompt.text, "metadata": metadata}


def _scores(answer: Mapping[str, Any]) -> SegmentScores:
    rows = answer["results"]
    known = [row or {"segments": (), "values": ()} for row in rows]
    return SegmentScores(
        [tuple((int(start), int(end)) for start, end in row["segments"]) for row in known],
        [tuple(map(float, row["values"])) for row in known],
        whole_response=bool(answer["whole_response"]),
        unscored=frozenset(number for number, row in enumerate(rows) if row is None),
        counts={name: float(count) for name, count in answer["counts"].items()},
    )


def _joined(parts: Sequence[SegmentScores]) -> SegmentScores:
    """The scores of consecutive responses as one."""
    spans: list[tuple[tuple[int, int], ...]] = []
    values: list[tuple[float, ...]] = []
    unscored, counts = set[int](), dict[str, float]()
    for part in parts:
        unscored |= {len(spans) + number for number in part.unscored}
        spans += part.spans
        values += part.values
        for name, count in part.counts.items():
            counts[name] = counts.get(name, 0.0) + count
    return SegmentScores(spans, values, any(part.whole_response for part in parts), frozenset(unscored), counts)
