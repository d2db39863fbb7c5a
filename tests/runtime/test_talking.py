"""Models and sessions of a ledger, invoked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import weft
from tests.runtime.inference.asking import CANARY
from tests.runtime.invoking import VARIABLES, Bench, as_tester, run
from tests.runtime.scripted import CHAT_STREAM, chat, failure
from weft.exchange.sync import pull
from weft.kernel.authority import Principal, PrincipalKind
from weft.kernel.errors import (
    CredentialMissing,
    CredentialWithheld,
    InvalidConfig,
    InvalidInput,
    NotApplicable,
    ProviderFailed,
    VariableMissing,
)
from weft.programs import Programs
from weft.runtime.assembly.turn_configuration import model_settings
from weft.runtime.egress.credentials import Credential, Keyring
from weft.runtime.egress.execution_context import context_for
from weft.runtime.inference.local_models import SYSTEM_PROMPT
from weft.surfaces.wire.hints import phrase


def test_a_model_infers_with_its_parameters_as_a_root_turn_of_its_own_session(address: str | Path) -> None:
    async def body(bench: Bench) -> None:
        found = await bench.invoke("fast", "Say hello")
        assert found.result["text"] == "Hello there"
        assert found.result["session"] == "model:fast"
        assert (found.result["requestId"], found.result["provider"]) == ("req-7", "there")
        received = bench.server.received[-1]
        assert received.headers["authorization"] == f"Bearer {CANARY}"
        assert (received.body["model"], received.body["temperature"]) == ("m-1", 0.5)
        again = await bench.invoke("@(fast)", "Again", situation="coding")
        assert bench.sent() == [("user", "Again")]
        assert bench.server.received[-1].body["temperature"] == 0
        assert again.result["situation"] == "coding"

    run(address, body, chat())


def test_a_reply_is_told_as_it_comes(path: Path) -> None:
    async def body(bench: Bench) -> None:
        bench.shop.on_token = bench.tokens.append
        found = await bench.invoke("fast", "Say hello")
        assert "".join(token.text for token in bench.tokens) == found.result["text"] == "Hello there"

    run(path, body, CHAT_STREAM)


def test_a_session_sends_to_its_model_or_to_another_for_one_message(address: str | Path) -> None:
    async def body(bench: Bench) -> None:
        await bench.shop.across(lambda: bench.programs.create_session("talk", model="fast"))
        await bench.invoke("talk", "one")
        await bench.invoke("talk", "What does the other think?", model="@(other)")
        assert bench.server.received[-1].body["model"] == "m-2"
        last = await bench.invoke("talk", "three")
        assert bench.server.received[-1].body["model"] == "m-1"
        assert [text for role, text in await bench.said(last.result["turn"]) if role == "user"] == [
            "one", "What does the other think?", "three",
        ]  # fmt: skip
        assert bench.programs.get("talk").config["defaultModel"] == "@(fast)"

    run(address, body, chat())


def test_the_soul_of_a_sessions_owner_is_its_system_prompt(path: Path) -> None:
    async def body(bench: Bench) -> None:
        def make() -> None:
            bench.programs.create("agent", "ada", {"systemPrompt": "Be brief", "defaultModel": "fast"})
            bench.programs.create_session("hers", owner="ada")

        await bench.shop.across(make)
        found = await bench.invoke("hers", "one")
        assert bench.sent() == [("system", "Be brief"), ("user", "one")]
        turn = await bench.shop.ledger.turn(found.result["turn"])
        assert turn.effective_config["chain"] == ["human:tester", "agent:ada"]

    run(path, body, chat())


def test_a_session_that_takes_no_turns_refuses_before_anything_is_asked(path: Path) -> None:
    async def body(bench: Bench) -> None:
        await bench.shop.across(lambda: bench.programs.create_session("talk", model="fast"))
        await bench.shop.across(lambda: bench.programs.create_session("bare"))
        await bench.invoke("talk", "one")
        await bench.shop.across(lambda: bench.programs.step_session("talk", "pause"))
        with pytest.raises(NotApplicable, match="paused") as paused:
            await bench.invoke("talk", "two")
        assert "weft session resume talk" in phrase(paused.value.advice)
        await bench.shop.across(lambda: bench.programs.step_session("talk", "complete"))
        with pytest.raises(NotApplicable, match="completed") as completed:
            await bench.invoke("talk", "two")
        assert "fork" in completed.value.hint
        with pytest.raises(NotApplicable, match="has no model"):
            await bench.invoke("bare", "two")
        with pytest.raises(InvalidInput, match="no message"):
            await bench.invoke("fast")
        assert len(bench.server.received) == 1

    run(path, body, chat())


def test_drafts_are_not_asked(path: Path) -> None:
    async def body(bench: Bench) -> None:
        config = {"modelId": "m", "provider": "there"}
        await bench.shop.across(lambda: bench.programs.create("model", "raw", config, draft=True))
        with pytest.raises(NotApplicable, match="is a draft") as refused:
            await bench.invoke("raw", "hello")
        assert "weft program publish raw" in phrase(refused.value.advice)

    run(path, body, chat())


def test_a_failure_is_a_failure_and_no_key_is_in_any_file(path: Path) -> None:
    async def body(bench: Bench) -> None:
        with pytest.raises(ProviderFailed) as failed:
            await bench.invoke("fast", "hello")
        assert CANARY not in str(failed.value)
        (turn,) = await bench.shop.ledger.tree.heads()  # type: ignore[attr-defined]
        assert turn.status == "failed"
        assert await bench.said(turn.id) == [("user", "hello")]

    run(path, body, failure(500, f"your key {CANARY} is odd"))
    for file in path.parent.iterdir():
        assert CANARY.encode() not in file.read_bytes(), file


def test_placeholders_are_put_in_at_use_and_never_stored(path: Path) -> None:
    async def body(bench: Bench) -> None:
        port = bench.server.url.rpartition(":")[2]
        url = f"http://${{THERE_HOST}}:{port}"
        await bench.shop.across(lambda: bench.programs.change("there", {"baseUrl": url, "apiKey": "${THERE_KEY}"}))
        assert (await bench.invoke("fast", "hello")).result["text"] == "Hello there"
        assert bench.programs.get("there").config["baseUrl"] == url
        await bench.shop.across(lambda: bench.programs.change("there", {"baseUrl": "http://${NOT_SET}"}))
        with pytest.raises(VariableMissing, match="NOT_SET"):
            await bench.invoke("fast", "hello")
        await bench.shop.across(lambda: bench.programs.change("there", {"baseUrl": "http://${THERE_KEY}"}))
        with pytest.raises(InvalidConfig, match="looks like a key"):
            await bench.invoke("fast", "hello")

    run(path, body, chat())


def test_a_key_that_is_known_for_another_server_is_withheld(path: Path) -> None:
    async def body(bench: Bench) -> None:
        await bench.shop.across(lambda: bench.programs.change("there", {"apiKey": "${OPENAI_API_KEY}"}))
        with pytest.raises(CredentialWithheld, match=r"for https://api\.openai\.com"):
            await bench.invoke("fast", "hello")
        await bench.shop.across(lambda: bench.programs.change("there", {"apiKey": "${NOT_SET}"}))
        with pytest.raises(CredentialMissing, match="NOT_SET is not set"):
            await bench.invoke("fast", "hello")
        assert bench.server.received == []

    run(path, body, chat())


def test_another_url_drops_the_key(path: Path) -> None:
    async def body(bench: Bench) -> None:
        moved = await bench.shop.across(lambda: bench.programs.change("there", {"baseUrl": "http://127.0.0.1:9"}))
        assert "apiKey" not in moved.config
        kept = {"baseUrl": bench.server.url, "apiKey": "${THERE_KEY}"}
        again = await bench.shop.across(lambda: bench.programs.change("there", kept))
        assert again.config["apiKey"] == "${THERE_KEY}"
        same = await bench.shop.across(lambda: bench.programs.change("there", {"baseUrl": f"{bench.server.url}/v1"}))
        assert same.config["apiKey"] == "${THERE_KEY}"

    run(path, body, chat())


@pytest.mark.parametrize(
    ("changes", "is_kept"),
    [
        ({"gatewayId": "other"}, True),
        ({"name": "Ours"}, True),
        ({"accountId": "theirs"}, False),
        ({"providerType": "openai"}, False),
        ({"baseUrl": "https://gateway.example/v1"}, False),
        ({"accountId": "theirs", "apiKey": "${OUR_KEY}"}, True),
    ],
)
def test_a_provider_that_becomes_somebody_elses_leaves_its_key_behind(
    path: Path, changes: dict[str, str], is_kept: bool
) -> None:
    with weft.open(path) as ledger:
        config = {"providerType": "cloudflare-ai-gateway", "accountId": "ours", "apiKey": "${OUR_KEY}"}
        Programs(ledger).create("provider", "gate", config)
        assert ("apiKey" in Programs(ledger).change("gate", changes).config) is is_kept


def test_what_a_model_falls_back_on_is_there_and_stays(path: Path) -> None:
    with weft.open(path) as ledger:
        programs = Programs(ledger)
        programs.create("provider", "there", {"providerType": "anthropic"})
        spare = {"modelId": "m", "provider": "there"}
        programs.create("model", "spare", spare)
        for fallbacks in (["nothing"], ["there"], "spare", ["spare"] * 9):
            with pytest.raises(InvalidConfig, match=r"config\.fallbacks"):
                programs.create("model", "main", {**spare, "fallbacks": fallbacks})
        programs.create("model", "main", {**spare, "fallbacks": ["spare"]})
        with pytest.raises(NotApplicable, match="named by 'main'"):
            programs.delete("spare")


def test_fallbacks_are_asked_when_a_provider_fails(path: Path) -> None:
    async def body(bench: Bench) -> None:
        await bench.shop.across(lambda: bench.programs.change("fast", {"fallbacks": ["@(other)"]}))
        found = await bench.invoke("fast", "hello")
        assert [item.body["model"] for item in bench.server.received] == ["m-1", "m-2"]
        assert (found.result["model"], found.result["modelId"]) == ("other", "m-1")  # m-1 is what the server says

    run(path, body, failure(500), chat())


def test_a_providers_type_must_be_known_when_it_is_used(path: Path) -> None:
    async def body(bench: Bench) -> None:
        await bench.shop.across(lambda: bench.programs.change("there", {"providerType": "carrier-pigeon"}))
        with pytest.raises(InvalidConfig, match="carrier-pigeon"):
            await bench.invoke("fast", "hello")

    run(path, body, chat())


@pytest.mark.slow("starts the embedded model")
@pytest.mark.load("local model")
def test_the_embedded_model_is_a_provider_without_a_key(path: Path) -> None:
    async def body(bench: Bench) -> None:
        def make() -> None:
            bench.programs.create("provider", "here", {"providerType": "local"})
            bench.programs.create("model", "small", {"modelId": "small", "provider": "here", "maxTokens": 8})

        await bench.shop.across(make)
        assert (await bench.invoke("here")).result == {"models": ["SmolLM2-135M-Instruct"]}
        found = await bench.invoke("small", "Say hello")
        assert found.result["text"]
        assert 0 < found.result["usage"]["output_tokens"] <= 8
        assert bench.server.received == []

    run(path, body, chat())


def test_another_ledger_does_not_choose_which_variables_go_where(tmp_path: Path, path: Path) -> None:
    def stranger(url: str) -> str:
        with weft.open(tmp_path / "stranger.db") as ledger:
            theirs = Programs(ledger)
            config = {"providerType": "openai-compatible", "baseUrl": url, "apiKey": "${THERE_KEY}"}
            theirs.create("provider", "gift", config)
            theirs.create(
                "provider", "path", {"providerType": "openai-compatible", "baseUrl": f"{url}/${{THERE_HOST}}"}
            )
            for name, provider in (("small", "gift"), ("long", "path")):
                theirs.create("model", name, {"modelId": "m-3", "provider": provider})
            theirs.create("human", "ann", {"preferences": {"notificationChannel": "command", "command": "${PAGER}"}})
            return str(ledger.path)

    async def body(bench: Bench) -> None:
        address = await bench.shop.across(lambda: stranger(bench.server.url))
        await bench.shop.across(lambda: pull(bench.programs.ledger, address, weft.open))
        for name in ("small", "long", "ann"):
            with pytest.raises(NotApplicable, match="configured in another ledger") as refused:
                await bench.invoke(name, "hello")
            assert f"weft pending take {name}" in phrase(refused.value.advice)
        await bench.shop.across(lambda: bench.programs.take_over("small", "long"))
        with pytest.raises(NotApplicable, match="provider 'gift' was configured in another ledger"):
            await bench.invoke("small", "hello")
        with pytest.raises(NotApplicable, match="provider 'path' was configured in another ledger"):
            await bench.invoke("long", "hello")
        assert bench.server.received == []
        taken = await bench.shop.across(lambda: bench.programs.revert("gift", 1))
        assert (taken.version, taken.foreign) == (2, False)
        assert (await bench.invoke("small", "hello")).result["text"] == "Hello there"
        assert (await bench.shop.across(lambda: bench.programs.revert("gift", 2))).version == 2

    run(path, body, chat())


def test_a_credential_that_was_added_here_serves_what_another_ledger_configured(tmp_path: Path, path: Path) -> None:
    async def body(bench: Bench) -> None:
        def theirs() -> None:
            with weft.open(tmp_path / "other.db") as ledger:
                config = {"providerType": "openai-compatible", "baseUrl": bench.server.url, "apiKey": "${THERE_KEY}"}
                Programs(ledger).create("provider", "gift", config)
                Programs(ledger).create("model", "small", {"modelId": "m-3", "provider": "gift"})
            pull(bench.programs.ledger, str(tmp_path / "other.db"), weft.open)

        await bench.shop.across(theirs)
        await bench.shop.across(lambda: bench.programs.take_over("gift", "small"))
        added = Credential(id="mine", origin=bench.server.url, env="THERE_KEY")
        keyring = Keyring((added,), VARIABLES.get)
        bench.shop._context = context_for(Principal(PrincipalKind.HUMAN, "tester"), keyring=keyring)
        await bench.invoke("small", "hello")
        assert bench.server.received[-1].headers["authorization"] == f"Bearer {CANARY}"

    run(path, body, chat())


@pytest.mark.load("local model")
@pytest.mark.slow("starts the embedded model, which answers twice")
def test_an_embedded_model_is_told_what_it_is_and_no_other_model_is(path: Path) -> None:
    async def body(bench: Bench) -> None:
        def make() -> None:
            bench.programs.create("provider", "here", {"providerType": "local"})
            bench.programs.create("model", "small", {"modelId": "small", "provider": "here", "maxTokens": 4})
            bench.programs.create_session("talk", model="small")

        await bench.shop.across(make)
        ledger: Any = bench.shop.ledger
        first = await bench.invoke("talk", "one")
        seen = (await ledger.context(first.result["turn"])).messages
        assert [(message.role, message.text) for message in seen] == [("system", SYSTEM_PROMPT), ("user", "one")]
        config = (await ledger.turn(first.result["turn"])).effective_config
        assert config["parameters"] == {"temperature": 0.3, "min_p": 0.15, "top_p": 1.0, "max_tokens": 4}
        other = await bench.invoke("talk", "two", model="@(fast)")
        assert [role for role, _ in bench.sent()] == ["user", "assistant", "user"]
        seen = (await ledger.context(other.result["turn"])).messages
        assert [message.role for message in seen] == ["user", "assistant", "user"]
        again = await bench.invoke("talk", "three")
        seen = (await ledger.context(again.result["turn"])).messages
        assert [message.role for message in seen].count("system") == 1
        assert seen[0].text == SYSTEM_PROMPT

    run(path, body, chat())


def test_min_p_goes_to_servers_that_take_it(path: Path) -> None:
    async def body(bench: Bench) -> None:
        def make() -> None:
            bench.programs.create("model", "narrow", {"modelId": "m-1", "provider": "there", "minP": 0.2})
            bench.programs.create("provider", "vendor", {"providerType": "anthropic", "baseUrl": bench.server.url})
            bench.programs.create("model", "far", {"modelId": "m-2", "provider": "vendor", "minP": 0.2})

        await bench.shop.across(make)
        await bench.invoke("narrow", "hello")
        assert bench.server.received[-1].body["min_p"] == 0.2
        with pytest.raises(InvalidInput, match="vendor does not take min_p"):
            await bench.invoke("far", "hello")
        assert len(bench.server.received) == 1

    run(path, body, chat())


def test_the_embedded_model_ends_where_nobody_says_how_long_an_answer_may_be(path: Path) -> None:
    with weft.open(path) as ledger:
        programs = Programs(ledger)
        programs.create("provider", "here", {"providerType": "local"})
        for name, given in (("plain", {}), ("longer", {"maxTokens": 900})):
            programs.create("model", name, {"modelId": "SmolLM2-135M-Instruct", "provider": "here", **given})
        found = [
            model_settings(programs.get(name), programs.get, VARIABLES.get, as_tester()).model.parameters.max_tokens
            for name in ("plain", "longer")
        ]
        assert found == [512, 900]
