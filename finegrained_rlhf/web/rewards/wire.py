"""The wire format, version 1: what is sent and answered, as the OpenAPI document of a server shows it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.rewards.served import WIRE


def _whole(text: str) -> str:
    """Refuse half a character (a lone surrogate), which JSON can write and no tokenizer reads."""
    text.encode("utf-8")
    return text


Text = Annotated[str, AfterValidator(_whole)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class WirePassage(_Strict):
    """A passage; its text is its spans with a blank between them."""

    title: Text = ""
    spans: Annotated[list[Text], Field(min_length=1)]


class WireMetadata(BaseModel):
    """What scorers read of a prompt; further keys are for scorers of your own."""

    model_config = ConfigDict(extra="allow")

    question: Text | None = None
    passages: list[WirePassage] | None = None
    references: list[Text] | None = None
    messages: list[dict[str, Any]] | None = None


class WirePrompt(_Strict):
    """What a response answers."""

    id: Text = ""
    text: Text = ""
    metadata: WireMetadata = WireMetadata()

    def prompt(self) -> Prompt:
        """The prompt as scorers take it."""
        known = {name: value for name, value in self.metadata.model_dump().items() if value is not None}
        if self.metadata.passages is not None:
            known["passages"] = [Passage("", one.title, tuple(one.spans)) for one in self.metadata.passages]
        return Prompt(self.id, self.text, (), known)


class WireResponse(_Strict):
    """A response to one of the request's prompts."""

    prompt: Annotated[int, Field(ge=0, strict=True, description="number of the prompt, from 0")]
    text: Text


class ScoresRequest(_Strict):
    """Responses that a component is to score; without any, its prompts are checked and the component is described."""

    component: str
    prompts: list[WirePrompt] = []
    responses: list[WireResponse] = []

    @model_validator(mode="after")
    def _check_numbers(self) -> ScoresRequest:
        for number, response in enumerate(self.responses):
            if response.prompt >= len(self.prompts):
                raise ValueError(f"responses.{number}.prompt: there are {len(self.prompts)} prompts")
        return self


class Component(BaseModel):
    """What a server has under a name."""

    name: str
    version: Annotated[str, Field(description="of weights, settings and precision: two versions are not to be mixed")]
    error_free_from: Annotated[float, Field(description="the smallest value of a segment without an error")] = 0.0
    value_range: tuple[float, float] | None = None
    reads_on: Annotated[bool, Field(description="whether text behind `decided_at` may change a segment's value")] = True
    look_ahead: Annotated[int | None, Field(description="further words that decide a segment's end; null: the end")]
    counted: list[str] = []


class ResponseScores(BaseModel):
    """The segments of a response, in order."""

    segments: Annotated[list[tuple[int, int]], Field(description="start and end in characters (code points)")]
    values: list[float]
    decided_at: Annotated[
        list[int | None], Field(description="the character with which each segment stands; null: the response's last")
    ]


class ScoresAnswer(BaseModel):
    """The scores of a request's responses, in their order."""

    wire: int = WIRE
    component: Component
    whole_response: Annotated[bool, Field(description="whether a value is of the whole response")]
    results: Annotated[list[ResponseScores | None], Field(description="null: there is no score of this response")]
    counts: Annotated[dict[str, float], Field(description="what the component counted, by name in `counted`")]


class Problem(BaseModel):
    """Why there is no answer."""

    error: str
