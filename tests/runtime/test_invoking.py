"""Code, providers, information and people of a ledger, invoked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.conftest import NewPostgresLedger
from tests.runtime.inference.asking import CANARY
from tests.runtime.invoking import VARIABLES, Bench, as_tester, run
from tests.runtime.scripted import HANG, answer, chat, failure
from weft.kernel.authority import rights
from weft.kernel.errors import (
    CodeFailed,
    CredentialRefused,
    InvalidConfig,
    InvalidInput,
    NotAllowed,
    NotApplicable,
    ProviderUnreachable,
    ReplyMalformed,
    Unsupported,
    VariableMissing,
)
from weft.runtime.assembly.turn_configuration import provider_settings
from weft.runtime.sandbox.bubblewrap import Sandbox
from weft.surfaces.wire.hints import phrase

MODELS = answer(200, {"object": "list", "data": [{"id": "m-1"}, {"id": "m-2"}]})


async def make(bench: Bench, kind: str, name: str, config: dict[str, Any], **more: Any) -> None:
    await bench.shop.across(lambda: bench.programs.create(kind, name, config, **more))


def test_code_runs_on_its_input(path: Path, sandbox: Sandbox) -> None:
    async def body(bench: Bench) -> None:
        await make(
            bench, "code", "double", {"source": "def main(input):\n    return input['n'] * 2", "language": "python"}
        )
        await make(
            bench, "code", "greet", {"source": "export default (who) => { console.log('x'); return `Hi ${who}` }"}
        )
        assert (await bench.invoke("double", input={"n": 21})).result == {"result": 42}
        assert (await bench.invoke("greet", "Ada")).result == {"result": "Hi Ada", "printed": "x\n"}
        with pytest.raises(CodeFailed, match="double"):
            await bench.invoke("double", input={})

    run(path, body, chat())


def test_code_needs_the_right_to_it_and_to_be_published(path: Path) -> None:
    async def body(bench: Bench) -> None:
        await make(bench, "code", "double", {"source": "x"})
        await make(bench, "code", "raw", {"source": "x"}, draft=True)
        with pytest.raises(NotAllowed):
            await bench.invoke("double")
        with pytest.raises(NotApplicable, match="draft"):
            await bench.invoke("raw")

    run(path, body, chat(), context=as_tester().child(rights=rights(["model:*"])))


def test_a_provider_lists_its_models_with_its_key(path: Path) -> None:
    async def body(bench: Bench) -> None:
        assert (await bench.invoke("there")).result == {"models": ["m-1", "m-2"]}
        received = bench.server.received[-1]
        assert (received.path, received.headers["authorization"]) == ("/models", f"Bearer {CANARY}")

    run(path, body, MODELS)


def test_the_pages_of_a_list_are_all_read(path: Path) -> None:
    async def body(bench: Bench) -> None:
        config = {"providerType": "anthropic", "baseUrl": bench.server.url, "apiKey": "${THERE_KEY}"}
        await make(bench, "provider", "claude", config)
        assert (await bench.invoke("claude")).result == {"models": ["a", "b"]}
        assert bench.server.received[-1].headers["x-api-key"] == CANARY
        assert "after_id=a" in bench.server.received[-1].path

    more = answer(200, {"data": [{"id": "a"}], "has_more": True})
    run(path, body, more, answer(200, {"data": [{"id": "b"}], "has_more": False}))


def test_what_goes_wrong_with_a_list_says_who_must_act(path: Path) -> None:
    async def body(bench: Bench) -> None:
        with pytest.raises(CredentialRefused) as refused:
            await bench.invoke("there")
        assert CANARY not in str(refused.value)
        with pytest.raises(ReplyMalformed):
            await bench.invoke("there")
        await bench.shop.across(lambda: bench.programs.change("there", {"readSeconds": 0.2}))
        with pytest.raises(ProviderUnreachable):
            await bench.invoke("there")
        gateway = {"providerType": "cloudflare-ai-gateway", "accountId": "a", "gatewayId": "g"}
        await make(bench, "provider", "gate", gateway)
        with pytest.raises(Unsupported, match="lists no models"):
            await bench.invoke("gate")

    run(path, body, failure(401, f"key {CANARY}"), answer(200, [1]), [HANG])


def test_headers_that_came_with_another_ledger_are_refused_and_not_left_out_in_silence(path: Path) -> None:
    async def body(bench: Bench) -> None:
        found = bench.programs.get("there")
        headed = msgspec.structs.replace(found, config={**found.config, "headers": {"x-team": "red"}})
        with pytest.raises(InvalidConfig, match="headers"):
            provider_settings(headed, VARIABLES.get, as_tester())
        assert bench.server.received == []

    run(path, body, MODELS)


def test_information_answers(path: Path) -> None:
    async def body(bench: Bench) -> None:
        await make(bench, "information", "ada", {"infoType": "fact", "content": {"born": 1815, "field": "engines"}})
        assert (await bench.invoke("ada")).result == {"born": 1815, "field": "engines"}
        assert (await bench.invoke("ada", input={"path": "$.born"})).result == [1815]
        assert (await bench.invoke("ada", input={"path": "$.died"})).result == []
        assert (await bench.invoke("ada", "engi")).result == {"born": 1815, "field": "engines"}
        assert (await bench.invoke("ada", "steam")).result is None
        with pytest.raises(InvalidInput):
            await bench.invoke("ada", input=[1])

    run(path, body, chat())


def test_a_toolset_says_that_it_cannot_be_invoked(path: Path) -> None:
    async def body(bench: Bench) -> None:
        await make(bench, "toolset", "reading", {"tools": {"allow": ["read"]}})
        with pytest.raises(NotApplicable, match="'reading' is a toolset, which cannot be invoked"):
            await bench.invoke("reading")

    run(path, body, chat())


def test_a_person_is_told_on_the_terminal_and_asked_durably(path: Path) -> None:
    async def body(bench: Bench) -> None:
        await make(bench, "human", "bln", {"name": "Brian", "permissions": ["approve"]})
        told = await bench.invoke("bln", "It is done")
        assert told.result == {"request": told.result["request"], "status": "told", "channel": "terminal"}
        asked = await bench.invoke("bln", "May it go out?", asks=True, input={"to": "all"}, about="fast", key="k")
        assert asked.result["status"] == "pending"
        again = await bench.invoke("bln", "May it go out?", asks=True, input={"to": "all"}, about="fast", key="k")
        assert again.result["request"] == asked.result["request"]
        assert bench.shown == [("bln", "It is done"), ("bln", "May it go out?")]
        request = bench.programs.request(asked.result["request"])
        assert (request.data, request.program, request.status) == ({"to": "all"}, "fast", "pending")

    run(path, body, chat())


def test_a_webhook_gets_what_a_person_is_told(path: Path) -> None:
    async def body(bench: Bench) -> None:
        preferences = {"notificationChannel": "webhook", "webhook": f"{bench.server.url}/hook"}
        await make(bench, "human", "bln", {"preferences": preferences})
        assert (await bench.invoke("bln", "It is done")).result["channel"] == "webhook"
        received = bench.server.received[-1]
        assert (received.path, received.body["text"]) == ("/hook", "It is done")
        with pytest.raises(ProviderUnreachable, match="answered 500") as failed:
            await bench.invoke("bln", "And this")
        assert "weft human requests bln" in phrase(failed.value.advice)
        assert [one.text for one in bench.programs.requests("bln")] == ["It is done", "And this"]

    run(path, body, answer(200, {}), failure(500))


def test_a_command_is_one_of_this_machine_and_gets_the_text_on_its_input(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = path.parent / "heard"
    monkeypatch.setitem(VARIABLES, "WEFT_NOTIFY_COMMAND", f"/bin/sh -c 'cat > {heard}'")
    monkeypatch.setitem(VARIABLES, "BROKEN", "/bin/false")

    async def body(bench: Bench) -> None:
        for name, more in (("bln", {}), ("eve", {"command": "touch gone"}), ("joe", {"command": "${BROKEN}"})):
            await make(bench, "human", name, {"preferences": {"notificationChannel": "command", **more}})
        await bench.invoke("bln", "It is done")
        assert heard.read_text() == "It is done\n"
        with pytest.raises(InvalidConfig, match="is a command itself"):
            await bench.invoke("eve", "It is done")
        with pytest.raises(Unsupported, match="ended with 1"):
            await bench.invoke("joe", "It is done")
        monkeypatch.delitem(VARIABLES, "WEFT_NOTIFY_COMMAND")
        with pytest.raises(VariableMissing):
            await bench.invoke("bln", "It is done")

    run(path, body, chat())


@pytest.mark.parametrize("store", ["disk", "postgres"])
def test_a_list_of_messages_that_grows_goes_on_from_what_was_recorded_of_it(
    store: str, path: Path, new_postgres_ledger: NewPostgresLedger
) -> None:
    async def body(bench: Bench) -> None:
        ledger, messages, turns = bench.programs.ledger, list[dict[str, str]](), list[str]()
        for text in ("Hi", "Who?", "And now?"):
            messages.append({"role": "user", "content": text})
            reply = await bench.invoke("fast", list(messages))
            sent = bench.server.received[-1].body["messages"]
            assert [one for one in sent if one["role"] != "system"] == messages
            messages.append({"role": "assistant", "content": reply.result["text"]})
            turns.append(reply.result["turn"])
        assert await bench.shop.across(lambda: tuple(ledger.thread(turns[-1]).ancestry)) == tuple(turns)
        again = await bench.invoke("fast", messages[:5])
        assert await bench.shop.across(lambda: ledger.turn(again.result["turn"]).parent_id) == turns[1]
        other = [*messages[:2], {"role": "user", "content": "Else?"}, *messages[3:4], messages[4]]
        changed = await bench.invoke("fast", other)
        ancestry = await bench.shop.across(lambda: tuple(ledger.thread(changed.result["turn"]).ancestry))
        assert (ancestry[0], ancestry[1] in turns, len(ancestry)) == (turns[0], False, 3)
        assert len(await bench.shop.across(lambda: list(ledger.find_turns()))) == 6

    run(path if store == "disk" else new_postgres_ledger(), body, *(chat() for _ in range(5)))


@pytest.mark.parametrize("store", ["disk", "postgres"])
def test_what_came_before_a_list_of_messages_is_a_thread_of_the_ledger(
    store: str, path: Path, new_postgres_ledger: NewPostgresLedger
) -> None:
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": "Ada"},
        {"role": "user", "content": "And now?"},
    ]

    async def body(bench: Bench) -> None:
        reply = await bench.invoke("fast", messages)
        ledger = bench.programs.ledger
        thread = await bench.shop.across(lambda: list(ledger.messages(reply.result["session"])))
        assert [one.role for one in thread if one.role != "system"] == ["user", "assistant"]
        depth = await bench.shop.across(lambda: ledger.turn(reply.result["turn"]).depth)
        assert depth == 3
        sent = bench.server.received[-1].body["messages"]
        assert [one for one in sent if one["role"] != "system"] == messages

    run(path if store == "disk" else new_postgres_ledger(), body, chat())
