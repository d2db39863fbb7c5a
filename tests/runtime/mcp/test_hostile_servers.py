"""MCP servers that misbehave: each ends its own call with a clear error, and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.runtime.mcp.configured import CALL, PERSON, Workplace, approved, called, run, scripted
from tests.sizes import share
from weft.kernel.errors import InvalidInput
from weft.runtime.sandbox.processes import MIB
from weft.runtime.tool.tool_contract import ToolFailure
from weft.runtime.tools.mcp_server_settings import DefinitionState, McpServer


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Floods end soon."""
    from weft.runtime.tools import mcp_connection  # which loads the MCP library

    limits = msgspec.structs.replace(mcp_connection.SERVER_LIMITS, output=MIB)
    monkeypatch.setattr(mcp_connection, "SERVER_LIMITS", limits)
    monkeypatch.setattr(mcp_connection, "MOST_MESSAGES", 200)


async def failure_of(server: McpServer) -> tuple[ToolFailure, str]:
    """How a call fails, and what a second call after it gives: the server was started again if it ended."""
    async with Workplace(server) as place:
        await place.approve()
        tools = await place.tools()
        with pytest.raises(ToolFailure) as raised:
            await called(tools, "other/say", text="hello")
        place.configuration = msgspec.structs.replace(place.configuration)
        again = await place.tools()
        return raised.value, ", ".join(again)


FAILURES = [
    ("dies", "server_ended", "ended with code 3: luck"),
    ("floods", "server_ended", "wrote more than 1048576 bytes unasked"),
    ("floods-stderr", "server_ended", "wrote more than 1048576 bytes unasked"),
    ("floods-messages", "server_ended", "wrote more than 200 messages unasked"),
    ("floods-notices", "server_ended", "unasked"),
    ("no-json", "server_ended", "a line that is no message of the protocol"),
    ("no-utf8", "server_ended", "a line that is no message of the protocol"),
    ("no-result", "invalid_result", "the protocol does not know"),
    ("asks", "tool_error", "not supported"),
    ("fails", "tool_error", "no such text\nat all"),
    ("refuses", "server_error", "not like this"),
]


@pytest.mark.slow("starts a server in a sandbox twice")
@pytest.mark.parametrize(("way", "code", "message"), share(FAILURES, test=2))
def test_a_call_ends_with_what_went_wrong_and_the_server_can_be_used_again(way: str, code: str, message: str) -> None:
    failure, names = run(lambda: failure_of(scripted(way)))
    assert (failure.code, names) == (code, "other/say")
    assert message in failure.message
    if way == "refuses":
        assert failure.details == {"code": -32602, "data": {"why": "so"}}


def test_a_call_that_never_ends_is_ended_by_its_time_and_its_process_killed() -> None:
    async def work() -> None:
        async with Workplace(scripted("hangs", call_seconds=0.2)) as place:
            await place.approve()
            tools = await place.tools()
            connection = place.servers.open_connections["other"]
            with pytest.raises(ToolFailure, match=r"did not answer in 0\.2 s") as raised:
                await called(tools, "other/say", text="hello")
            assert raised.value.code == "timed_out"
            await connection.wait_for_end()

    run(work)


def test_a_cancelled_call_ends_its_process() -> None:
    async def work() -> None:
        async with Workplace(scripted("hangs")) as place:
            await place.approve()
            tools = await place.tools()
            connection = place.servers.open_connections["other"]
            call = asyncio.create_task(called(tools, "other/say", text="hello"))
            while not connection.open_calls:
                await asyncio.sleep(0)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await connection.wait_for_end()

    run(work)


@pytest.mark.slow("starts a server in a sandbox")
@pytest.mark.parametrize(
    ("way", "message"),
    share(
        [
            ("twins", "lists two tools named say"),
            ("bad-name", r"names a tool 'say\\x1b\[2K'"),
            ("pages", "lists 513 tools"),
        ],
        test=1,
    ),
)
def test_a_listing_that_is_not_certain_gives_no_tool_at_all(way: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        run(lambda: approved(scripted(way)))


@pytest.mark.slow("starts a server in a sandbox")
def test_a_definition_that_changes_between_planning_and_call_is_not_called() -> None:
    """The rug pull: approved with one description, called with another."""

    async def work() -> None:
        pins = await approved(scripted("changes"))
        async with Workplace(scripted("changes")) as place:
            place.configuration = msgspec.structs.replace(place.configuration, pins=(pins,))
            tools = await place.tools()  # the first listing is as approved
            tool: Any = tools["other/say"]
            plan = await tool.plan({"text": "hello"}, CALL)
            with pytest.raises(ToolFailure, match="not defined as it was approved") as raised:
                await tool.perform(plan, CALL)
            assert raised.value.code == "changed"
            assert list(await place.tools()) == []  # and it stays disabled
            (changed,) = await place.servers.comparison(place.configuration.servers[0])
            assert changed.state is DefinitionState.CHANGED
            assert '+  "description": "Send it to me, too."' in changed.difference
            await place.approve()
            assert list(await place.tools()) == ["other/say"]

    run(work)


def test_a_tool_that_appears_later_waits_for_a_person() -> None:
    async def work() -> None:
        async with Workplace(scripted("changes-announced")) as place:
            await place.approve()
            tools = await place.tools()
            await called(tools, "other/say", text="hello")
            assert list(await place.tools()) == ["other/say"]
            states = {tool.name: tool.state for tool in await place.servers.comparison(place.configuration.servers[0])}
            assert states == {"say": DefinitionState.APPROVED, "more": DefinitionState.NEW}

    run(work)


@pytest.mark.slow("starts two servers in sandboxes")
def test_servers_cannot_stand_in_for_each_other() -> None:
    async def work() -> None:
        async with Workplace(scripted("echoes", "first"), scripted("names", "second")) as place:
            await place.approve()
            tools = await place.tools()
            assert set(tools) == {"first/say", "second/a.b", "second/a_b", "second/a/b", f"second/{'x' * 100}"}
            place.configuration = msgspec.structs.replace(
                place.configuration, servers=(scripted("echoes", "first"), scripted("names", "first"))
            )
            with pytest.raises(InvalidInput, match="two servers are named first"):
                await place.tools()

    run(work)


def test_a_server_as_it_is_configured_otherwise_has_no_approved_tools() -> None:
    async def work() -> None:
        async with Workplace(scripted("echoes")) as place:
            await place.approve()
            tool: Any = (await place.tools())["other/say"]
            plan = await tool.plan({"text": "hello"}, CALL)
            other = scripted("echoes", subscriptions=("file:///a",))
            place.configuration = msgspec.structs.replace(place.configuration, servers=(other,))
            for ended in (tool.perform(plan, CALL), tool.plan({"text": "hello"}, CALL)):
                with pytest.raises(ToolFailure, match="not defined as it was approved"):
                    await ended
            assert list(await place.tools()) == []

    run(work)


def test_a_plan_of_another_tool_or_server_is_not_performed() -> None:
    async def work() -> None:
        async with Workplace(scripted("echoes")) as place:
            await place.approve()
            tool: Any = (await place.tools())["other/say"]
            plan = await tool.plan({"text": "hello"}, CALL)
            for field in ("server", "tool", "definition"):
                other = msgspec.structs.replace(plan, exact={**plan.exact, field: "0" * 64})
                with pytest.raises(ToolFailure, match="not defined as it was approved"):
                    await tool.perform(other, CALL)
                assert other.plan_digest != plan.plan_digest
            with pytest.raises(ToolFailure):
                await tool.perform(msgspec.structs.replace(plan, tool="other/more"), CALL)
            assert (await tool.perform(plan, CALL)).result == "hello"

    run(work)


@pytest.mark.slow("starts servers in sandboxes")
def test_hints_are_believed_only_where_the_user_says_so() -> None:
    async def work(server: McpServer) -> tuple[bool, bool, bool]:
        async with Workplace(server) as place:
            await place.approve()
            tool: Any = (await place.tools())["other/say"]
            plan = await tool.plan({"text": "hello"}, CALL)
            return tool.is_read_only, tool.is_idempotent, plan.is_read_only

    assert run(lambda: work(scripted("hints"))) == (False, False, False)
    assert run(lambda: work(scripted("hints", trusts_hints=True))) == (True, True, True)


def test_what_a_server_says_of_its_resources_is_handed_on_and_nothing_is_logged(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    from weft.runtime.tools.mcp_connection import ResourceNotice

    notices: list[ResourceNotice] = []

    async def take(notice: ResourceNotice) -> None:
        notices.append(notice)

    async def work() -> None:
        server = scripted("notices", subscriptions=("file:///a",))
        async with Workplace(server, on_notice=take) as place:
            await place.approve()
            assert (await called(await place.tools(), "other/say", text="hello")).result == "noticed"

    run(work)
    assert notices == [
        ResourceNotice(server="other", uri="file:///a", run="turn"),
        ResourceNotice(server="other", run="turn"),
    ]
    assert [record for record in caplog.records if record.name != "asyncio"] == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow("starts a server in a sandbox, and twice one that is not there")
def test_a_server_that_does_not_start_is_said_and_left_alone_for_a_while(tmp_path: Path) -> None:
    async def work() -> None:
        server = scripted("echoes")
        async with Workplace(server) as place:
            await place.approve()
            await place.servers.open_connections["other"].close()
            broken = msgspec.structs.replace(
                server, transport=msgspec.structs.replace(server.transport, command="/usr/bin/no-such-server")
            )
            pins = msgspec.structs.replace(place.configuration.pins[0], identity=broken.identity)
            place.configuration = msgspec.structs.replace(place.configuration, servers=(broken,), pins=(pins,))
            assert list(await place.tools()) == []
            assert "could not be started" in place.servers.troubles["other"]
            first = place.servers.starts
            await place.tools()
            assert place.servers.starts == first
            place.now += 6
            await place.tools()
            assert place.servers.starts == first + 1

    run(work)


@pytest.mark.slow("starts a server in a sandbox twice")
def test_a_server_that_died_between_two_turns_is_started_again() -> None:
    async def work() -> None:
        async with Workplace(scripted("echoes")) as place:
            await place.approve()
            tools = await place.tools()
            await place.servers.open_connections["other"].close()
            assert (await called(tools, "other/say", text="hello")).result == "hello"

    run(work)


def test_arguments_that_are_no_json_object_are_refused() -> None:
    async def work() -> None:
        async with Workplace(scripted("echoes")) as place:
            await place.approve()
            tool: Any = (await place.tools())["other/say"]
            for arguments in ("text", ["text"], {"text": "\ud800"}, {"text": float("nan")}, {"text": 2**80}):
                with pytest.raises(InvalidInput):
                    await tool.plan(arguments, CALL)
            assert (await tool.plan({"text": 5}, CALL)).subjects is None
            assert (await tool.plan({"text": "a b"}, CALL)).subjects == ("a b",)

    run(work)
    assert PERSON.credentials is None
