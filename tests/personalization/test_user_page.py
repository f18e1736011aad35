"""The page of a user's memory: every text is shown as it is and none acts, and what was used when can be followed."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_toy import HOSTILE

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.generation.wrappers import ScriptedGenerator
from finegrained_rlhf.personalization import Cipher, Draft, NoteDecision, ShowUserMemory, UserMemory
from finegrained_rlhf.personalization.store.protocol import NoteChange

TEXTS = [text.replace("\ud83d", "") for text in HOSTILE if text.strip()]


class Read(HTMLParser):
    """Tags with their attributes, and the text of each element of a description list."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def shown(tmp_path: Path, user: str, **keys: int) -> tuple[Read, str]:
    ShowUserMemory(str(tmp_path / "users.db"), user, str(tmp_path / "page.html"), **keys).run()
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    return Read(page), page


def test_a_page_of_rounds(tmp_path: Path) -> None:
    memory = UserMemory(tmp_path / "users.db", durable=False)
    learner = Cipher(memory, ScriptedGenerator(lambda prompt: '{"preference": "short"}'), k=1)
    for key in ("one", "two", "three"):
        learner.observe_edit("ada", f"bread {key}", learner.respond("ada", f"bread {key}", key), "an edited text")
    edit = {"context": "bread", "draft": "a b", "edited": "a b", "preference": ""}
    memory.user("ada").count_try(memory.user("ada").record("four", "edit", edit))
    memory.user("eve").record("k", "edit", {"context": "of somebody else", "draft": "", "edited": ""})
    memory.set_consent("ada", store=True, train=False)
    memory.close()
    page, text = shown(tmp_path, "ada")
    anchors = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    assert {"event-1", "event-2", "event-3", "event-4", "note-1", "note-3"} <= set(anchors)
    assert len(set(anchors)) == len(anchors) and all(link.removeprefix("#") in anchors for link in links)
    said = " ".join(page.texts)
    assert "training is not allowed" in said and "not yet learnt from: 1" in said and "somebody else" not in said
    assert (
        "not recorded" in said
        and "not yet, tried in vain: 1" in said
        and "1 of 4 drafts were left as they were." in said
    )
    assert sum(tag == "svg" for tag, _ in page.tags) >= 2
    second = text.partition('id="event-2"')[2].partition("</article>")[0]
    assert 'href="#note-1"' in second and 'href="#note-2"' in second  # went by the first, taught the second
    first = text.partition('id="note-1"')[2].partition("</article>")[0]
    assert "version 1 from" in first and 'href="#event-1"' in first and 'href="#event-2"' in first
    few, text = shown(tmp_path, "ada", last=1)
    assert "1 of 4 events" in text and 'id="event-3"' not in text and 'href="#event-3"' not in text


def test_only_its_owner_can_read_the_page(tmp_path: Path) -> None:
    memory = UserMemory(tmp_path / "users.db", durable=False)
    memory.user("ada")
    memory.close()
    shown(tmp_path, "ada")
    assert (tmp_path / "page.html").stat().st_mode & 0o777 == 0o600


def test_a_draft_that_was_edited_twice_costs_its_latest_edit(tmp_path: Path) -> None:
    memory = UserMemory(tmp_path / "users.db", durable=False)
    learner = Cipher(memory, ScriptedGenerator(lambda prompt: '{"preference": "short"}'))
    for edited in ("one two three", "one"):
        learner.observe_edit("ada", "bread", Draft("first", "one"), edited)
    memory.close()
    said = " ".join(shown(tmp_path, "ada")[0].texts)
    assert "1 of 1 drafts were left as they were." in said and "2 of 2 events" in said
    assert said.count("after an edit of this draft first") == 1


def test_notes_that_somebody_decided_on(tmp_path: Path) -> None:
    memory = UserMemory(tmp_path / "users.db", durable=False)
    handle = memory.user("ada")
    handle.apply(handle.record("k", "edit", {}), [NoteChange(key, {"preference": "short"}) for key in ("a", "b")])
    handle.decide(NoteDecision("a", "correct", {"preference": "in verse"}))
    handle.decide(NoteDecision("b", "hold"))
    memory.close()
    said = " ".join(shown(tmp_path, "ada")[0].texts)
    assert "in verse" in said and "version 1, until" in said and "not in use held" in said


def test_no_text_acts(tmp_path: Path) -> None:
    memory = UserMemory(tmp_path / "users.db", durable=False)
    user = TEXTS[0]
    learner = Cipher(memory, ScriptedGenerator(lambda prompt: TEXTS[1]))
    handle = memory.user(user)
    for number, text in enumerate(TEXTS):
        key, kind = f"key {number} {text[:100]}", f"kind {text[:100]}"
        body = {"context": text, "draft": text, "edited": f"{text}!", text: text, "more": [text]}
        event = handle.record(key, kind, body, {"notes": [key, "</a><script>"], "cues": text, text: 3})
        handle.apply(event, [NoteChange(key, {"preference": text, text: text})])
    learner.observe_edit(user, TEXTS[2], Draft("an edit", TEXTS[3], TEXTS[4]), TEXTS[3])
    memory.close()
    page, _ = shown(tmp_path, user)
    whole = "".join(page.texts)
    assert all(text.translate({0x07: "␇", 0x1B: "␛", 0x00: "␀", 0x9B: "\ufffd"}) in whole for text in TEXTS)
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert {tag for tag, _ in page.tags} <= set(
        "html head meta title style body main h1 h2 h3 nav a section p div table tbody tr td bdi span article dl dt dd "
        "details summary figure figcaption b svg path circle text title script".split()
    )
    names = {name for _, attributes in page.tags for name in attributes}
    assert not {name for name in names if name.startswith("on")} and "src" not in names
    assert all(attributes["href"].startswith("#") for tag, attributes in page.tags if tag == "a")


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none.db"):
        ShowUserMemory(str(tmp_path / "none.db"), "ada", str(tmp_path / "page.html")).run()
    UserMemory(tmp_path / "users.db", durable=False).close()
    with pytest.raises(DataError, match="no such user"):
        ShowUserMemory(str(tmp_path / "users.db"), "ada", str(tmp_path / "page.html")).run()
    with pytest.raises(ConfigError, match="last"):
        ShowUserMemory("users.db", "ada", "page.html", last=0)
    assert not (tmp_path / "page.html").exists() and not (tmp_path / "none.db").exists()
