"""Chat templates: what the policy reads, where its turn ends, and what is refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from chat_toy import CLOSED, MODES, TEMPLATE, THINKING, chat_tokenizer, talk

from finegrained_rlhf.core.errors import ConfigError, DataError, ModelError
from finegrained_rlhf.text.chat import ChatFormat, PromptConfig, record_prompt, recorded_prompt

AUTO = PromptConfig()


def turns(*texts: str) -> list[Any]:
    return [SimpleNamespace(**turn) for turn in talk(*texts)]


def test_a_conversation_as_the_policy_reads_it() -> None:
    chat = ChatFormat(chat_tokenizer(), PromptConfig(system="be kind"))
    text = chat.text(turns("who ran", "the dog", "and who sat"))
    assert text == (
        "<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\nwho ran<|im_end|>\n"
        "<|im_start|>assistant\nthe dog<|im_end|>\n<|im_start|>user\nand who sat<|im_end|>\n<|im_start|>assistant\n"
    )
    given = [SimpleNamespace(role="system", content="the cat"), *turns("who")]
    assert chat.text(given).startswith("<|im_start|>system\nthe cat<|im_end|>\n<|im_start|>user")


def test_ids_are_those_of_transformers_itself() -> None:
    tokenizer = chat_tokenizer()
    chat = ChatFormat(tokenizer, AUTO)
    ours = chat.ids(chat.text(turns("who ran", "the dog", "and who sat")))
    theirs = tokenizer.apply_chat_template(talk("who ran", "the dog", "and who sat"), add_generation_prompt=True)
    assert ours == theirs["input_ids"]
    assert chat.end_id == tokenizer.convert_tokens_to_ids("<|im_end|>") and chat.end_id in ours


def test_control_tokens_in_a_message_are_words() -> None:
    tokenizer = chat_tokenizer()
    chat = ChatFormat(tokenizer, AUTO)
    ids = chat.ids(chat.text(turns("the <|im_end|> <|im_start|> cat")))
    assert ids.count(chat.end_id) == 1
    assert "< |im_end|>" in chat.text(turns("the <|im_end|>"))


def test_when_a_template_is_used(tmp_path: Path) -> None:
    with_one, without = chat_tokenizer(), chat_tokenizer(None)
    (tmp_path / "chat.jinja").write_text(TEMPLATE.replace("user", "user"))
    file = PromptConfig(str(tmp_path / "chat.jinja"))
    used = {
        (name, setting.chat_template): (bool(chat := ChatFormat(tokenizer, setting)), chat.for_texts)
        for name, tokenizer in (("with", with_one), ("without", without))
        for setting in (AUTO, PromptConfig("off"))
    }
    assert used == {
        ("with", "auto"): (True, False),
        ("with", "off"): (False, False),
        ("without", "auto"): (False, False),
        ("without", "off"): (False, False),
    }
    on = ChatFormat(with_one, PromptConfig("on"))
    assert on and on.for_texts
    from_file = ChatFormat(without, file)
    assert from_file and from_file.for_texts and without.chat_template == TEMPLATE


@pytest.mark.parametrize(
    ("config", "template", "said"),
    [
        (PromptConfig("on"), None, "prompt.chat_template: the policy's tokenizer has no chat template"),
        (PromptConfig(system="be kind"), None, "prompt.system: the policy's tokenizer has no chat template"),
        (AUTO, "{% for m in messages %}", "prompt.chat_template: the tokenizer's chat template refuses"),
        (AUTO, "nothing", "does not write what the assistant says"),
    ],
)
def test_a_template_that_cannot_be_used(config: PromptConfig, template: str | None, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        print(ChatFormat(chat_tokenizer(template), config).end_id)
    assert "\n" not in str(caught.value)


def test_settings_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="expected auto, on, off or a Jinja file, got 'absent.jinja'"):
        PromptConfig("absent.jinja")
    with pytest.raises(ConfigError, match="prompt.system needs a chat template"):
        PromptConfig("off", "be kind")


def test_a_conversation_that_the_template_refuses() -> None:
    with pytest.raises(DataError, match="refuses this conversation: no tools here"):
        ChatFormat(chat_tokenizer(), AUTO).text([SimpleNamespace(role="tool", content="x")])


def test_a_template_without_an_end_of_turn() -> None:
    bare = "{% for message in messages %}{{ message.role + ': ' + message.content + '\n' }}{% endfor %}"
    assert ChatFormat(chat_tokenizer(bare), AUTO).end_id is None


def test_what_training_remembers(tmp_path: Path) -> None:
    record_prompt(tmp_path, AUTO)
    assert not list(tmp_path.iterdir()) and recorded_prompt(tmp_path) == AUTO
    trained = PromptConfig("on", "be kind")
    record_prompt(tmp_path, trained)
    assert recorded_prompt(tmp_path) == trained
    assert AUTO.over(trained) == trained
    assert PromptConfig(system="").over(trained) == PromptConfig("on", "")
    assert PromptConfig("off").over(trained) == PromptConfig("off")
    (tmp_path / "prompt.json").write_text('{"template": "on"}')
    with pytest.raises(ModelError, match="not a record of how prompts are put"):
        recorded_prompt(tmp_path)


def test_a_template_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "template.jinja"
    file.write_bytes(b"{{ messages }}\xff")
    with pytest.raises(ConfigError, match=r"prompt\.chat_template: .*template\.jinja cannot be read as UTF-8 text"):
        ChatFormat(chat_tokenizer(), PromptConfig(str(file)))


def test_arguments_of_the_template() -> None:
    """Both forms, by the tokenizer's own template: what transformers itself writes with the argument."""
    for template in (THINKING, MODES):
        tokenizer, asked = chat_tokenizer(template), talk("who ran", "the dog", "and who sat")
        written = set()
        for arguments in ({}, {"enable_thinking": True}, {"enable_thinking": False}):
            chat = ChatFormat(tokenizer, PromptConfig(template_arguments=arguments))
            text = chat.text([SimpleNamespace(**turn) for turn in asked])
            theirs = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True, **arguments)
            assert text == theirs and chat.end_id == tokenizer.convert_tokens_to_ids("<|im_end|>")
            assert text.rstrip().endswith("</think>") == (arguments == {"enable_thinking": False})
            written.add(text)
        assert len(written) == 2
    assert (
        ChatFormat(chat_tokenizer(THINKING), PromptConfig(template_arguments={"enable_thinking": False}))
        .text(turns("who ran"))
        .endswith(f"assistant\n{CLOSED}")
    )


@pytest.mark.parametrize(
    ("arguments", "template", "said"),
    [
        ({"enable_thinkin": False}, THINKING, "enable_thinkin: the tokenizer's chat template reads no such argument"),
        ({"enable_thinking": False}, TEMPLATE, "enable_thinking: the tokenizer's chat template reads no such argument"),
        ({"tokenize": True}, THINKING, "tokenize: this name is not the template's to read"),
        ({"messages": []}, THINKING, "messages: this name is not the template's to read"),
        ({"enable_thinking": False}, None, "enable_thinking: the policy's tokenizer has no chat template"),
    ],
)
def test_arguments_that_nothing_reads(arguments: dict[str, Any], template: str | None, said: str) -> None:
    with pytest.raises(ConfigError, match=f"prompt.template_arguments.{said}"):
        ChatFormat(chat_tokenizer(template), PromptConfig(template_arguments=arguments))


def test_arguments_are_remembered_and_named_ones_win(tmp_path: Path) -> None:
    trained = PromptConfig("on", template_arguments={"enable_thinking": False, "tone": "kind"})
    record_prompt(tmp_path, trained)
    assert recorded_prompt(tmp_path) == trained and AUTO.over(trained) == trained
    own = PromptConfig(template_arguments={"enable_thinking": True}).over(trained)
    assert own.template_arguments == {"enable_thinking": True, "tone": "kind"}
    assert PromptConfig("off").over(trained) == PromptConfig("off")
    with pytest.raises(ConfigError, match="template_arguments: no template reads them"):
        PromptConfig("off", template_arguments={"enable_thinking": True})
