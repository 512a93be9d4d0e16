"""From a request to prompt tokens, and from a completion's text to reasoning and content."""

from typing import Any

import pytest
from toy_tokenizer import END, VOCABULARY_TOKENS, text_of, toy_tokenizer

from api.schemas import GenerationRequest
from worker.engine.machine import chip, power_mode, power_mode_of
from worker.engine.prompt import PromptError, prompt_tokens, split_reasoning

# Shows what the template was given besides the messages.
SHOWING = (
    "{% for m in messages %}{{ m.role }}={{ m.content }};"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments.city }});{% endfor %}{% endfor %}"
    "{% if tools %}tools:{{ tools|length }};{% endif %}"
    "{% if enable_thinking is defined %}thinking:{{ enable_thinking }};{% endif %}"
    "{% if reasoning_effort %}effort:{{ reasoning_effort }};{% endif %}"
    "{% if style %}style:{{ style }};{% endif %}"
)
TOOL = {"type": "function", "function": {"name": "w"}}


def rendered(**values: Any) -> str:
    base: dict[str, Any] = {"request_id": "r-1", "messages": [{"role": "user", "content": "hi"}]}
    if "prompt" in values:
        base.pop("messages")
    request = GenerationRequest.model_validate({**base, **values})
    return text_of(prompt_tokens(request, toy_tokenizer(template=SHOWING)))


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({}, "user=hi;thinking:False;"),
        ({"thinking": True}, "user=hi;thinking:True;"),
        ({"reasoning_effort": "low"}, "user=hi;thinking:False;effort:low;"),
        ({"chat_template_kwargs": {"style": "terse"}}, "user=hi;thinking:False;style:terse;"),
        ({"tools": [TOOL]}, "user=hi;tools:1;thinking:False;"),
        ({"tools": [TOOL], "tool_choice": "none"}, "user=hi;thinking:False;"),
        ({"prompt": "hi"}, "user=hi;thinking:False;"),
        ({"prompt": "hi", "raw": True}, "hi"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]},
            "user=ab;thinking:False;",
        ),
    ],
)
def test_what_the_template_is_given(values: dict[str, Any], text: str) -> None:
    assert rendered(**values) == text


def test_arguments_of_tool_calls_reach_the_template_as_an_object() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "w", "arguments": '{"city":"Rome"}'}}
    turns = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "18C"},
    ]
    assert rendered(messages=turns) == "assistant=;w(Rome);tool=18C;thinking:False;"


def test_messages_that_render_to_nothing_are_refused() -> None:
    request = GenerationRequest(request_id="r-1", prompt="hi")
    with pytest.raises(PromptError) as caught:
        prompt_tokens(request, toy_tokenizer(template="{% if false %}{% endif %}"))
    assert caught.value.error.code == "empty_prompt"
    assert caught.value.error.status == 400


def test_a_raw_prompt_may_hold_special_tokens() -> None:
    request = GenerationRequest(request_id="r-1", prompt=f"a{END}b", raw=True)
    assert prompt_tokens(request, toy_tokenizer()) == [VOCABULARY_TOKENS.index(token) for token in ("a", END, "b")]


@pytest.mark.parametrize(
    ("text", "opened", "reasoning", "content"),
    [
        ("answer", False, None, "answer"),
        ("<think>\nwhy\n</think>\n\nanswer", False, "why", "answer"),
        ("why\n</think>\nanswer", True, "why", "answer"),
        ("why", True, "why", ""),
        ("<think>why", False, "why", ""),
        ("  <think>why</think>answer", False, "why", "answer"),
        ("<think></think>answer", False, "", "answer"),
        ("a <think>b</think>", False, None, "a <think>b</think>"),
        ("x</think>y</think>z", True, "x", "y</think>z"),
    ],
)
def test_reasoning_is_split_from_content(text: str, opened: bool, reasoning: str | None, content: str) -> None:
    assert split_reasoning(text, opened, "<think>", "</think>") == (reasoning, content)


def test_without_markers_all_is_content() -> None:
    assert split_reasoning("<think>a</think>b", True, None, None) == (None, "<think>a</think>b")


def test_the_machine_has_a_name_and_a_power_mode() -> None:
    assert len(chip()) > 3
    assert power_mode() in ("low power", "normal", "high power", "unknown")


@pytest.mark.parametrize(
    ("entry", "mode"),
    [
        ("lowpowermode         0", "normal"),
        ("lowpowermode         1", "low power"),
        ("powermode            0", "normal"),
        ("powermode            1", "low power"),
        ("powermode            2", "high power"),
        ("standby              1", "normal"),
    ],
)
def test_the_power_mode_is_read_from_what_macos_shows(entry: str, mode: str) -> None:
    shown = (
        f"System-wide power settings:\nCurrently in use:\n {entry}\n sleep                1 (sleep prevented by x)\n"
    )
    assert power_mode_of(shown) == mode
