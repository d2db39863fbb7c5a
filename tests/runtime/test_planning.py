"""Turns planned from what is durable: the session, its messages and their overrides, the layers of configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.runtime.invoking import Bench, as_tester, run
from tests.runtime.scripted import chat, failure
from weft.kernel.authority import LOCAL, rights
from weft.kernel.errors import InvalidInput, NotApplicable, NotFound
from weft.ledger.api import Runs, SessionStanding
from weft.runtime.assembly.configuration_layers import MessageOverrides, combined_overrides, read_overrides
from weft.runtime.assembly.turn_configuration import ConfiguredModel
from weft.runtime.broker.broker import Broker
from weft.runtime.broker.turn_plans import TurnPlan
from weft.runtime.inference.model_requests import ModelParameters
from weft.runtime.invoke.invocation import ConfiguredPlanner, sender_context


def test_overrides_of_messages_that_are_answered_together_are_one() -> None:
    first = MessageOverrides(
        model="a", situation="s", parameters=ModelParameters(temperature=0.1, top_p=0.5), deny=("X",)
    )
    second = MessageOverrides(parameters=ModelParameters(temperature=0.9), deny=("Y", "X"), system="Be brief")
    both = combined_overrides([first, second])
    assert both == MessageOverrides(
        model="a",
        situation="s",
        parameters=ModelParameters(temperature=0.9, top_p=0.5),
        deny=("X", "Y"),
        system="Be brief",
    )
    assert (
        combined_overrides([first, MessageOverrides(model="b")]).situation is None
    )  # it was meant for the other model
    assert read_overrides(both.record(), "m") == both
    assert MessageOverrides().record() is None
    with pytest.raises(InvalidInput, match="the overrides of message m"):
        read_overrides({"modle": "a"}, "m")


def planner_of(bench: Bench, **more: Any) -> ConfiguredPlanner:
    return ConfiguredPlanner(
        bench.programs,
        bench.shop.ledger,
        bench.shop.inference,
        variable={"THERE_KEY": "key"}.get,
        acting=lambda message: sender_context(as_tester(), bench.programs, message),
        **more,
    )


def standing_of(bench: Bench, session: str) -> SessionStanding:
    ledger = bench.programs.ledger
    return Runs(ledger).standing(ledger.session(session).id)


def planned(bench: Bench, session: str, **more: Any) -> TurnPlan:
    standing = standing_of(bench, session)
    return planner_of(bench, **more).plan(standing, standing.queued[-1:])


def test_a_plan_has_what_the_layers_and_the_message_say_in_its_senders_name(path: Path) -> None:
    async def body(bench: Bench) -> None:
        programs, inbox = bench.programs, bench.programs.ledger.inbox

        def plan() -> None:
            soul = {"identity": {"soul": "You are Ada."}, "defaultModel": "fast"}
            programs.create("agent", "ada", soul)
            inbox.admit("x", session="hers", persona="ada", overrides={"parameters": {"temperature": 0.9}})
            hers = planned(bench, "hers")
            assert (hers.model.id, hers.system, hers.persona) == ("fast", "You are Ada.", "ada")
            assert hers.parameters.given() == {"temperature": 0.9}
            config = hers.setting.effective_config
            assert config["chain"] == ["human:tester", "agent:ada"]
            assert config["sources"]["temperature"]["layer"] == "message"
            programs.acting_as("ada").ledger.inbox.admit("y", session="talk", overrides={"model": "other"})
            sent = planned(bench, "talk")
            assert (sent.model.id, str(sent.acting.principal)) == ("other", "agent:ada")
            inbox.admit("z", session="talk", overrides={"model": "other", "system": "Short", "is_root": True})
            alone = planned(bench, "talk")
            assert (alone.system, alone.is_root, str(alone.acting.principal)) == ("Short", True, "human:tester")

        await bench.shop.across(plan)

    run(path, body, chat())


def test_models_that_are_no_programs_are_those_that_the_surface_knows(path: Path) -> None:
    async def body(bench: Bench) -> None:
        asked: list[str | None] = []
        fast = await bench.shop.model("fast")

        def others(name: str | None, session: str | None, acting: Any) -> ConfiguredModel | None:
            asked.append(name)
            return None if name == "unheard" else ConfiguredModel(fast.model, acting)

        def plan() -> None:
            inbox = bench.programs.ledger.inbox
            inbox.admit("x", session="talk")
            with pytest.raises(NotApplicable, match="session 'talk' has no model"):
                planned(bench, "talk")
            default = planned(bench, "talk", other_models=others)
            sources = default.setting.effective_config["sources"]
            assert sources["model"] == {"layer": "provider", "source": "the default model"}
            inbox.admit("y", session="talk", overrides={"model": "local"})
            assert planned(bench, "talk", other_models=others).model.id == "fast"
            inbox.admit("z", session="talk", overrides={"model": "unheard"})
            with pytest.raises(NotFound, match="unheard"):
                planned(bench, "talk", other_models=others)
            assert asked == [None, "local", "unheard"]

        await bench.shop.across(plan)

    run(path, body, chat())


def test_a_retry_goes_on_only_from_failed_turns_after_the_head(path: Path) -> None:
    async def body(bench: Bench) -> None:
        programs, ledger = bench.programs, bench.programs.ledger
        await bench.shop.across(lambda: programs.create_session("talk", model="fast"))
        await bench.shop.across(lambda: programs.create_session("other", model="fast"))
        await bench.invoke("talk", "one")
        with pytest.raises(Exception, match="no"):
            await bench.invoke("talk", "two")
        secret = await bench.shop.across(lambda: ledger.record_turn(session="secret", query="s", error="broke").id)

        def plan() -> None:
            (dead,) = ledger.inbox.list(states=["dead"])
            assert dead.turn is not None
            ledger.inbox.retry(dead.turn)
            assert planned(bench, "talk").parent == dead.turn
            ledger.inbox.admit("three", session="other", route={"retry": {"of": secret, "afresh": False}})
            with pytest.raises(NotApplicable, match="has moved on since turn"):
                planned(bench, "other")  # what another session holds is not read by naming it
            waiting = standing_of(bench, "talk").queued
            ledger.record_turn(session="talk", query="meanwhile")
            with pytest.raises(NotApplicable, match="has moved on since turn"):
                planner_of(bench).plan(standing_of(bench, "talk"), waiting)

        await bench.shop.across(plan)

    run(path, body, chat(), failure(400), chat())


def test_a_turn_that_was_asked_to_stop_is_cut_by_whoever_goes_on_with_it(path: Path) -> None:
    async def body(bench: Bench) -> None:
        ledger = bench.programs.ledger
        await bench.shop.across(lambda: bench.programs.create_session("talk", model="fast"))

        def begin() -> str:
            message = ledger.inbox.admit("one", session="talk")
            run, _ = Runs(ledger).begin(message.session_id, expected=(None, None), messages=[message.message])
            ledger.inbox.interrupt("talk")
            run.leave()
            return message.message

        message = await bench.shop.across(begin)
        broker = Broker(ledger, bench.shop.ledger.crossing, planner_of(bench))
        end = await broker.wait_for_answer(message, standing_of(bench, "talk").id)
        assert end is not None
        assert str(end.cut) == "canceled"
        assert bench.server.received == []
        turn = await bench.shop.across(lambda: ledger.turn(end.turn))
        assert (turn.status, turn.interruption_reason) == ("completed", "canceled")

    run(path, body, chat())


def test_a_turn_has_no_more_rights_than_its_sender_was_limited_to(path: Path) -> None:
    async def body(bench: Bench) -> None:
        def plan() -> None:
            ledger = bench.programs.ledger
            narrow = ledger.acting_as(LOCAL.child(rights(("turn:record", "session:*", "model:other", "tool:read"))))
            narrow.inbox.admit("x", session="talk", overrides={"model": "other"})
            limited = planned(bench, "talk")
            tools = ("tool:read", "tool:shell", "model:other", "model:fast", "code:any")
            assert [limited.acting.allows(right) for right in tools] == [True, False, True, False, False]
            ledger.inbox.admit("y", session="talk", overrides={"model": "other"})
            assert planned(bench, "talk").acting.allows("tool:shell")

        await bench.shop.across(plan)

    run(path, body, chat())
