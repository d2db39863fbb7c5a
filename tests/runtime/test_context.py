"""Who acts, in whose name, with which rights and keys."""

from __future__ import annotations

import asyncio
import copy
import pickle
from functools import partial
from random import Random
from threading import Thread
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
import weft.aio
from weft.kernel.authority import EVERYTHING, LONGEST_CHAIN, Layer, Principal, PrincipalKind, Rights, rights
from weft.kernel.errors import CredentialMissing, CredentialWithheld, InvalidInput, NotAllowed
from weft.runtime.egress.credentials import Credential, Keyring, Secret, origin_of
from weft.runtime.egress.execution_context import (
    ExecutionContext,
    acting,
    context_for,
    context_from_env,
    context_from_record,
    current_context,
    run_with_context,
)

PERSON = Principal(PrincipalKind.HUMAN, "bln")
AGENT = Principal(PrincipalKind.AGENT, "scout")
WORKER = Principal(PrincipalKind.SESSION, "worker")
CANARY = "sk-canary-7f3a"
PLACE = "https://api.anthropic.com"
KNOWN = Credential(id="anthropic", origin=PLACE, env="ANTHROPIC_API_KEY")


def person(*credentials: Credential, **variables: str) -> ExecutionContext:
    return context_from_env(PERSON, variables.get, credentials=credentials or (KNOWN,))


def key_of(context: ExecutionContext, name: str = "anthropic", url: str = PLACE + "/v1/messages") -> str:
    return asyncio.run(context.credential(name, url)).reveal()


def test_without_a_context_nobody_acts() -> None:
    with pytest.raises(InvalidInput, match="nobody acts"):
        current_context()


def test_a_context_reaches_everything_that_is_awaited_or_started_inside() -> None:
    async def deep() -> ExecutionContext:
        await asyncio.sleep(0)
        return current_context()

    async def work() -> tuple[ExecutionContext, ExecutionContext]:
        return await deep(), await asyncio.create_task(deep())

    made = context_for(PERSON)
    assert asyncio.run(run_with_context(made, work)) == (made, made)
    with pytest.raises(InvalidInput):
        current_context()


def test_two_tasks_act_in_their_own_names() -> None:
    async def name(principal: Principal) -> str:
        with acting(context_for(principal)):
            await asyncio.sleep(0)
            return str(current_context().principal)

    async def both() -> list[str]:
        return list(await asyncio.gather(name(PERSON), name(AGENT)))

    assert asyncio.run(both()) == ["human:bln", "agent:scout"]


def test_delegating_keeps_the_whole_chain() -> None:
    made = context_for(PERSON).delegate(AGENT).delegate(WORKER)
    assert made.principal == WORKER
    assert made.on_behalf_of == (AGENT, PERSON)
    assert context_for(PERSON).on_behalf_of == ()


def test_a_chain_that_delegates_in_a_circle_is_stopped() -> None:
    made = context_for(PERSON)
    for _ in range(LONGEST_CHAIN - 1):
        made = made.delegate(AGENT)
    with pytest.raises(InvalidInput, match="chain"):
        made.delegate(AGENT)


def test_deny_wins_and_every_layer_must_allow() -> None:
    made = context_for(PERSON, rights=rights(["tool:*", "model:*"], ["tool:shell"])).child(rights=rights(["tool:*"]))
    assert made.allows("tool:read")
    assert not made.allows("tool:shell")
    assert not made.allows("model:x")
    with pytest.raises(NotAllowed, match="agent:scout for human:bln may not use 'tool:shell'"):
        made.delegate(AGENT).ensure_allowed("tool:shell")


@pytest.mark.parametrize("given", ["tool:*", [""], [1]])
def test_a_right_that_is_no_list_of_patterns_is_refused(given: Any) -> None:
    with pytest.raises(InvalidInput):
        rights(given)


def test_a_layer_without_a_word_allows_nothing() -> None:
    assert not Rights((Layer(),)).allows("tool:x")
    assert EVERYTHING.allows("tool:x")


def test_settings_of_a_child_are_its_own() -> None:
    above = context_for(PERSON, config={"timeout": 30})
    assert above.child(config={"timeout": 5}).config["timeout"] == 5
    assert above.config["timeout"] == 30


def test_a_key_is_looked_up_in_the_context_then_in_its_variable() -> None:
    assert key_of(person(ANTHROPIC_API_KEY=f" {CANARY}\n")) == CANARY
    held = context_for(PERSON, keyring=Keyring([KNOWN], lambda _: "other"), secrets={"anthropic": Secret(CANARY)})
    assert key_of(held) == CANARY


def test_a_key_is_read_from_what_its_command_prints() -> None:
    async def run(words: tuple[str, ...]) -> str:
        return f"{CANARY}\n" if words == ("pass", "show", "x") else ""

    known = [
        Credential(id="a", origin=PLACE, command=("pass", "show", "x")),
        Credential(id="b", origin=PLACE, command=("true",)),
    ]
    made = context_for(PERSON, keyring=Keyring(known, run=run))
    assert key_of(made, "a") == CANARY
    with pytest.raises(CredentialMissing, match="printed nothing"):
        key_of(made, "b")
    with pytest.raises(CredentialMissing, match="cannot be run"):
        key_of(context_for(PERSON, keyring=Keyring(known)), "a")


def test_only_the_named_variable_is_looked_at() -> None:
    asked: list[str] = []

    def variable(name: str) -> str:
        asked.append(name)
        return CANARY

    key_of(context_from_env(PERSON, variable, credentials=[KNOWN]))
    assert asked == ["ANTHROPIC_API_KEY"]


@pytest.mark.parametrize(
    "url", ["https://evil.example/v1", "http://api.anthropic.com", "https://api.anthropic.com:444"]
)
def test_a_changed_url_drops_the_key(url: str) -> None:
    with pytest.raises(CredentialWithheld, match="it is for https://api"):
        key_of(person(ANTHROPIC_API_KEY=CANARY), url=url)


def test_a_principal_has_only_the_keys_it_was_given() -> None:
    made = person(ANTHROPIC_API_KEY=CANARY)
    assert key_of(made.delegate(AGENT, credentials=["anthropic"])) == CANARY
    for fewer in (made.delegate(AGENT, credentials=[]), made.child(credentials=["other"])):
        with pytest.raises(CredentialWithheld, match="was not given it"):
            key_of(fewer.child(credentials=["anthropic"]))


def test_a_credential_for_some_principals_is_withheld_from_a_chain_with_another() -> None:
    known = Credential(id="a", origin=PLACE, env="K", given_to=("human:*", "agent:scout"))
    made = person(known, K=CANARY)
    assert key_of(made.delegate(AGENT), "a") == CANARY
    with pytest.raises(CredentialWithheld, match="session:worker was not given it"):
        key_of(made.delegate(AGENT).delegate(WORKER), "a")


def test_what_cannot_be_found_is_told_with_what_to_do() -> None:
    with pytest.raises(CredentialMissing, match="there is none of this name"):
        key_of(person(), "nothing")
    with pytest.raises(CredentialMissing, match="ANTHROPIC_API_KEY is not set"):
        key_of(person(ANTHROPIC_API_KEY=" "))


def test_a_key_that_no_header_can_hold_is_refused_without_showing_it() -> None:
    with pytest.raises(CredentialMissing) as caught:
        key_of(person(ANTHROPIC_API_KEY=f"{CANARY}\r\nX-Evil: 1"))
    assert CANARY not in str(caught.value)


def test_a_secret_shows_itself_to_nobody() -> None:
    secret = Secret(CANARY)
    made = context_for(PERSON, secrets={"anthropic": secret})
    shown = [repr(secret), str(secret), f"{secret}", repr(made), str(made.record()), repr([secret])]
    assert not any(CANARY in text for text in shown)
    for write_down in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(InvalidInput, match="not written down"):
            write_down(secret)
    with pytest.raises(TypeError):
        msgspec.json.encode({"a": secret})


def test_a_chain_can_be_written_down_and_read_again() -> None:
    made = person(ANTHROPIC_API_KEY=CANARY).child(rights=rights(["tool:*"], ["tool:shell"]), config={"a": 1})
    made = made.delegate(AGENT, credentials=["anthropic"]).delegate(WORKER)
    written = msgspec.json.encode(made.record())
    assert CANARY.encode() not in written
    again = context_from_record(msgspec.json.decode(written), Keyring([KNOWN], lambda _: CANARY))
    assert again == made
    assert key_of(again) == CANARY


@pytest.mark.parametrize(
    "record",
    [
        {"chain": [], "rights": {"layers": []}, "credentials": None},
        {"chain": [{"kind": "god", "id": "x"}], "rights": {"layers": []}, "credentials": None},
        {"chain": [{"kind": "human", "id": "x"}], "credentials": None},
        [],
    ],
)
def test_a_record_that_is_none_is_refused(record: Any) -> None:
    with pytest.raises(InvalidInput):
        context_from_record(record)


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://API.Anthropic.com/v1", "https://api.anthropic.com"),
        ("https://api.anthropic.com:443", "https://api.anthropic.com"),
        ("http://127.0.0.1:8080/v1", "http://127.0.0.1:8080"),
        ("http://[::1]:80/", "http://[::1]"),
    ],
)
def test_an_origin_has_one_form(url: str, origin: str) -> None:
    assert origin_of(url) == origin


@pytest.mark.parametrize("url", ["api.anthropic.com", "ftp://x", "https://", "https://u:pw@x", "https://x:99999", ""])
def test_what_has_no_origin_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        origin_of(url)
    assert "pw" not in str(caught.value)


NAMES = ["tool:shell", "tool:read", "model:claude", "model:gpt", "credential:a"]
PATTERNS = ["*", "tool:*", "model:*", "tool:shell", "model:claude", "credential:a", "????:*"]
LAYERS = st.builds(Layer, *[st.lists(st.sampled_from(PATTERNS), max_size=3).map(tuple)] * 2)


@given(st.lists(LAYERS, max_size=6), LAYERS)
def test_a_layer_more_never_allows_more(layers: list[Layer], more: Layer) -> None:
    before = Rights(tuple(layers))
    after = before.narrowed(Rights((more,)))
    assert {name for name in NAMES if after.allows(name)} == {
        name for name in NAMES if before.allows(name) and more.allows(name)
    }


@pytest.mark.slow("asks thousands of chains about rights")
@pytest.mark.parametrize("chains", [3_000, pytest.param(1_000_000, marks=pytest.mark.prove)])
def test_random_chains_of_delegation_never_widen_a_right(chains: int) -> None:
    chance = Random(20_251_115)
    keys = ["a", "b", "c"]
    start = context_for(PERSON, keyring=Keyring(Credential(id=key, origin=PLACE, env=key) for key in keys))
    grants = [rights(chance.sample(PATTERNS, 2), chance.sample(PATTERNS, chance.randrange(2))) for _ in range(40)]
    given_up = 0
    for _ in range(chains):
        made = start
        allowed, held = set(NAMES), set(keys)
        for _ in range(chance.randrange(1, 7)):
            layer = chance.choice(grants) if chance.random() < 0.6 else EVERYTHING
            fewer = chance.sample(keys, chance.randrange(4)) if chance.random() < 0.5 else None
            is_child = chance.random() < 0.5
            made = (
                made.child(rights=layer, credentials=fewer)
                if is_child
                else made.delegate(Principal(PrincipalKind.AGENT, "x"), rights=layer, credentials=fewer)
            )
            now = {name for name in NAMES if made.allows(name)}
            kept = held if made.credentials is None else set(made.credentials)
            assert now <= allowed
            assert kept <= held
            allowed, held = now, kept
        given_up += not allowed
        assert made.chain[0] == PERSON
    assert 0 < given_up < chains


def test_a_key_in_place_of_a_variables_name_is_refused_without_being_shown() -> None:
    with pytest.raises(InvalidInput, match="no name of a variable") as refused:
        Keyring([Credential(id="mine", origin="https://host", env="sk-live-0123456789")])
    assert "sk-live" not in str(refused.value)


@pytest.mark.parametrize("kind", ["human", "agent", "session", "system"])
def test_each_kind_of_principal_acts_and_delegates(kind: str) -> None:
    principal = Principal(PrincipalKind(kind), "name")
    made = context_for(principal).delegate(AGENT)
    assert [str(each) for each in made.chain] == [f"{kind}:name", "agent:scout"]
    assert made.on_behalf_of == (principal,)


def test_a_key_is_taken_from_the_context_then_from_its_credential_then_from_the_variable_of_its_name() -> None:
    made = weft.context_from_env(PERSON, variable={"OTHER_KEY": "o" * 9, "ANTHROPIC_API_KEY": CANARY}.get)
    assert made.get_credential("OTHER_KEY") == "o" * 9
    known = context_for(PERSON, keyring=Keyring([KNOWN], {"ANTHROPIC_API_KEY": CANARY, KNOWN.env or "": CANARY}.get))
    assert known.get_credential("anthropic") == CANARY
    child = made.child(credentials={"OTHER_KEY": "given"})
    assert (child.get_credential("OTHER_KEY"), made.get_credential("OTHER_KEY")) == ("given", "o" * 9)
    assert child.child().get_credential("OTHER_KEY") == "given"
    assert child.delegate(AGENT).get_credential("OTHER_KEY") == "given"
    assert "given" not in repr(child)
    with pytest.raises(CredentialWithheld):
        child.get_credential("ANTHROPIC_API_KEY")
    with pytest.raises(CredentialWithheld):
        made.child(credentials=[]).child(credentials={"OTHER_KEY": "given"}).get_credential("OTHER_KEY")
    with pytest.raises(CredentialMissing):
        made.get_credential("NOWHERE")
    with pytest.raises(CredentialMissing):
        weft.context_from_env(variable=None).get_credential("PATH")
    not_given = Credential(id="mine", origin=PLACE, env="OTHER_KEY", given_to=("human:*",))
    held = weft.context_from_env(PERSON, variable={"OTHER_KEY": "o"}.get, credentials=[not_given])
    assert held.get_credential("mine") == "o"
    with pytest.raises(CredentialWithheld):
        held.delegate(AGENT).get_credential("mine")


def test_a_value_given_to_a_child_is_what_a_request_is_sent_with() -> None:
    made, name = weft.context_from_env(PERSON, variable=None).key_in("ANTHROPIC_API_KEY", PLACE)
    child = made.child(credentials={name: CANARY})
    assert key_of(child, name) == CANARY


def test_the_environment_is_read_where_nothing_else_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", CANARY)
    assert weft.context_from_env().get_credential("SOME_KEY") == CANARY
    assert str(weft.context_from_env().principal) == "human:local"


def test_settings_are_asked_by_name() -> None:
    made = weft.context_from_env(PERSON, config={"timeout": 30}).child(config={"depth": 2})
    assert (made.get_config("timeout"), made.get_config("depth"), made.get_config("none"), made.get_config("x", 1)) == (
        30,
        2,
        None,
        1,
    )


def test_a_context_goes_on_through_what_is_awaited_and_into_threads() -> None:
    made = weft.context_from_env(PERSON)

    async def work() -> list[ExecutionContext]:
        async with weft.aio.open(":memory:") as ledger:
            return [
                weft.current_context(),
                await asyncio.create_task(asyncio.to_thread(weft.current_context)),
                await ledger.crossing.run(weft.current_context),
            ]

    assert asyncio.run(weft.run_with_context(made, work)) == [made] * 3
    assert asyncio.run(weft.run_with_context(made, partial(work))) == [made] * 3
    seen: list[ExecutionContext] = []
    thread = Thread(target=weft.run_with_context, args=(made, lambda: seen.append(weft.current_context())))
    thread.start()
    thread.join()
    assert seen == [made]
    assert weft.run_with_context(made, weft.current_context) == made
    with pytest.raises(InvalidInput):
        weft.current_context()
