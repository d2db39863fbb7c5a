"""What a conversation decides without asking anybody: lines, blocks, models."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

import weft
from tests.ledger.imported import native_turn, take
from weft.kernel.authority import Principal, PrincipalKind
from weft.kernel.enums import ProgramKind
from weft.kernel.errors import NotFound, ProviderFailed, RequestRefused, VariableMissing
from weft.ledger.reports.prices import shipped_prices
from weft.programs.program_records import Program
from weft.runtime.egress.execution_context import ExecutionContext, context_for
from weft.runtime.inference.local_models import MODEL_FILES
from weft.runtime.inference.model_requests import ModelParameters, ProviderKind
from weft.runtime.replies import ReplyToken
from weft.surfaces.cli.chat.conversation import Conversation
from weft.surfaces.cli.chat.models import (
    EMBEDDED,
    VENDORS,
    ModelChoice,
    default_name,
    embedded,
    fetched,
    find_choice,
    of_program,
)
from weft.surfaces.cli.chat.terminal import failure, greeting, prompt_name, split_blocks
from weft.surfaces.cli.chat.typed_input import (
    COMMANDS,
    Command,
    TypedMessage,
    Unknown,
    completions,
    free_label,
    needs_more,
    read_typed,
)
from weft.surfaces.cli.credentials import person_acting
from weft.surfaces.cli.programs.program_call import RepeatedText


@pytest.mark.parametrize(
    ("lines", "meant"),
    [
        ([""], None),
        (["  "], None),
        (["hello"], TypedMessage("hello")),
        (["one\\", "two"], TypedMessage("one\ntwo")),
        (['"""one', "", "two", '"""'], TypedMessage("one\n\ntwo")),
        (['"""/help"""'], TypedMessage("/help")),
        (["//etc"], TypedMessage("/etc")),
        (["/help"], Command("help")),
        (["/FORK  a label "], Command("fork", "a label")),
        (["/exit"], Command("quit")),
        (["/modle x"], Unknown("modle", "model")),
        (["/zzzz"], Unknown("zzzz", None)),
    ],
)
def test_lines_mean_a_message_a_command_or_nothing(lines: list[str], meant: object) -> None:
    assert not needs_more(lines)
    assert read_typed(lines) == meant


@pytest.mark.parametrize("lines", [[], ["one\\"], ['"""'], ['"""one', "two\\"]])
def test_some_lines_go_on(lines: list[str]) -> None:
    assert needs_more(lines)


def test_commands_are_completed_and_then_what_they_take() -> None:
    labels, models = ["chat", "chat-2", "main"], ["local", "fast"]
    assert completions("/s", labels, models) == ["/steer ", "/sessions", "/switch ", "/show "]
    assert completions("/switch ch", labels, models) == ["chat", "chat-2"]
    assert completions("/model ", labels, models) == ["local", "fast"]
    assert completions("/tree x", labels, models) == completions("hello", labels, models) == []
    assert len(completions("/", labels, models)) == len(COMMANDS)


def test_a_label_that_is_taken_gets_the_next_number() -> None:
    assert free_label("chat", []) == "chat"
    assert free_label("chat", ["chat", "chat-2", "chat-4"]) == "chat-3"


@pytest.mark.parametrize(
    ("text", "settled"),
    [
        ("", ""),
        ("one", ""),
        ("one\n\n", ""),
        ("one\n\ntwo", "one\n\n"),
        ("- one\n\n  more of it", ""),
        ("```\nx\n\ny", ""),
        ("```\nx\n\ny\n```\n\nafter", "```\nx\n\ny\n```\n\n"),
        ("````\n```\n\nx\n````\n\nafter", "````\n```\n\nx\n````\n\n"),
        ("~~~\n```\n\nx", ""),
    ],
)
def test_a_block_is_settled_when_nothing_can_change_it(text: str, settled: str) -> None:
    assert split_blocks(text) == (settled, text[len(settled) :])


def no_variable(_: str) -> None:
    """An environment without any variable."""


def program(kind: ProgramKind, name: str, **config: Any) -> Program:
    return Program(
        id=f"id-of-{name}", name=name, kind=kind, state="published", config=config, version=1, tags=[], created_at=0,
        updated_at=0, created_by="local",
    )  # fmt: skip


FAST = program(
    ProgramKind.MODEL, "fast", modelId="m-1", provider="@(mine)", temperature=0.5, situations={"code": {"maxTokens": 9}}
)
MINE = program(
    ProgramKind.PROVIDER, "mine", providerType="openai-compatible", baseUrl="http://${HOST}:1/v1", apiKey="${MINE_KEY}"
)


def among(*programs: Program) -> Callable[[str], Program]:
    """Finds a program by its address, as a ledger does."""

    def find(address: str) -> Program:
        found = next((one for one in programs if address in (one.name, f"@({one.name})")), None)
        if found is None:
            raise NotFound("program", address)
        return found

    return find


def acting() -> ExecutionContext:
    return context_for(Principal(PrincipalKind.HUMAN, "ann"))


def test_a_model_program_is_asked_at_its_provider_with_its_key() -> None:
    choice = of_program(FAST, among(MINE), {"HOST": "127.0.0.1"}.get, acting())
    settings = choice.settings
    assert (settings.id, settings.name, settings.provider.id) == ("fast", "m-1", "mine")
    assert settings.parameters == ModelParameters(temperature=0.5)
    assert settings.provider.credential == "MINE_KEY"
    assert choice.context.key_of("http://127.0.0.1:1/v1") == "MINE_KEY"
    with pytest.raises(VariableMissing):
        of_program(FAST, among(MINE), no_variable, acting())


def test_what_cannot_be_a_model_is_refused() -> None:
    with pytest.raises(NotFound, match="mine"):
        find_choice("fast", [FAST], among(), no_variable, acting())
    with pytest.raises(NotFound) as refused:
        find_choice("nothing", [FAST], among(MINE), {"OPENAI_API_KEY": "x"}.get, acting())
    assert refused.value.hint == "there are: local, openai, fast"


@pytest.mark.parametrize(
    ("name", "kind", "model"),
    [
        ("local", ProviderKind.LOCAL, "SmolLM2-135M-Instruct"),
        ("openai", ProviderKind.OPENAI, "gpt-5.4"),
        ("openai/o3", ProviderKind.OPENAI, "o3"),
        ("gpt-5-mini", ProviderKind.OPENAI, "gpt-5-mini"),
        ("google/gemini-3-pro", ProviderKind.GOOGLE, "gemini-3-pro"),
        ("@(fast)", ProviderKind.OPENAI_COMPATIBLE, "m-1"),
    ],
)
def test_a_model_is_named_in_several_ways(name: str, kind: ProviderKind, model: str) -> None:
    variables = {"OPENAI_API_KEY": "x", "GEMINI_API_KEY": "y", "HOST": "localhost"}
    choice = find_choice(name, [FAST], among(MINE), variables.get, acting())
    assert (choice.settings.provider.kind, choice.settings.name) == (kind, model)
    found = find_choice(choice.name, [FAST], among(MINE), variables.get, acting())
    assert found.settings == choice.settings


@pytest.mark.parametrize(
    ("asked", "configured", "last", "key", "expected"),
    [
        (None, None, None, "", EMBEDDED),
        (None, None, None, "x", "anthropic"),
        (None, None, EMBEDDED, "x", "anthropic"),
        (None, None, "fast", "x", "fast"),
        (None, None, "gone", "x", "anthropic"),
        (None, None, "anthropic/claude-opus-5", "x", "anthropic/claude-opus-5"),
        (None, None, "anthropic/claude-opus-5", " ", EMBEDDED),
        (None, "fast", EMBEDDED, "x", "fast"),
        ("local", "fast", "fast", "x", "local"),
    ],
)
def test_who_answers_by_default(
    asked: str | None, configured: str | None, last: str | None, key: str, expected: str
) -> None:
    assert default_name(asked, configured, last, [FAST], {"ANTHROPIC_API_KEY": key}.get) == expected


def test_every_usual_model_has_a_price() -> None:
    prices = shipped_prices()
    for vendor in VENDORS:
        assert prices.price(vendor.default, 1_790_000_000_000) is not None, vendor


def test_the_embedded_model_says_what_it_is_and_which_others_are_here() -> None:
    file = MODEL_FILES[0]

    def shown(choice: ModelChoice) -> str:
        lines = greeting("chat", True, choice, (), [file.name])
        return "\n".join("".join(part if isinstance(part, str) else part.text for part in line) for line in lines)

    assert "A tiny model that comes with weft for trying things out, not for work" in shown(embedded(acting()))
    assert f"/model {file.name} uses it" in shown(embedded(acting()))
    assert "tiny" not in shown(fetched(file, acting()))


def test_a_failure_says_who_must_act() -> None:
    def told(error: Any) -> str:
        return "\n".join("".join(str(getattr(span, "text", span)) for span in line) for line in failure(error))

    assert "you must act: mend the request" in told(RequestRefused("no"))
    assert "the provider must act: try again later" in told(ProviderFailed("no"))
    assert told(NotFound("session", "x", "look")) == "no session 'x' in this ledger\nhint: look"


@pytest.mark.parametrize(
    ("attempts", "shown", "others"),
    [
        ([["Hel", "lo "], ["Hello", " there"]], "Hello there", 0),
        ([["Hello"], ["Hel"], ["Hel", "lo"]], "Hello", 0),
        ([["Bon", "jour"], ["Hel", "lo"]], "Hello", 1),
        ([["Hello there"], ["Hello"]], "Hello", 1),
    ],
)
def test_what_was_shown_of_a_reply_is_not_shown_again(attempts: list[list[str]], shown: str, others: int) -> None:
    text, screen, replaced = RepeatedText(), "", 0
    for number, pieces in enumerate(attempts, 1):
        for piece in pieces:
            has_begun = bool(text.shown)
            is_other, new = text.add(ReplyToken(piece, attempt=number))
            if is_other and has_begun:
                screen, replaced = "", replaced + 1
            screen += new
    if other := text.end():
        screen, replaced = other, replaced + 1
    assert (screen, replaced) == (shown, others)


@pytest.mark.parametrize(
    ("label", "title", "prompt"),
    [
        ("chat", "Hello", "chat"),
        ("c0fff321-1111-4222-8333-444455556666", None, "c0fff321-1111-4222-8333-444455556666"),
        ("c0fff321-1111-4222-8333-444455556666", "Mend the parser", "Mend the parser (c0fff321)"),
        (
            "01K9ZQ3V7M8N2P4R6T8W0Y1Z2A",
            f"A {'very ' * 20}long title",
            "A very very very very very very very… (01K9ZQ3V)",
        ),
        ("decade", "Ten years", "decade"),
    ],
)
def test_a_prompt_is_in_words_where_the_label_is_an_id(label: str, title: str | None, prompt: str) -> None:
    assert prompt_name(label, title, label[:8]) == prompt


def test_a_prompt_shows_of_an_id_what_names_the_session() -> None:
    first, second = "c0fff321-1111-4222-8333-444455556666", "c0fff321-1111-4222-8333-444455556667"
    with weft.open(":memory:") as ledger, closing(Conversation(ledger, lambda _: None, person=person_acting)) as talk:
        assert talk.shortened_label() == "chat"
        take(ledger, first, native_turn("one"), title="Mend the parser")
        talk.label, talk.is_new = first, False
        assert talk.shortened_label() == "c0fff321"
        take(ledger, second, native_turn("two"), file="2.jsonl")
        assert talk.shortened_label() == first
        ledger.labels.add_alias("c0fff321", second)
        assert talk.shortened_label() == first
