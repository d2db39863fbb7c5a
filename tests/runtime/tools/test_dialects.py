"""Models of each wire dialect call tools through the whole chain: broker, gate, policy, a person, sandbox and back. One
tool reads an image, the other is that of an MCP server, whose name no provider takes as it is."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.runtime.broker.crash_driver import Doom
from tests.runtime.inference.asking import model, provider
from tests.runtime.inference.test_asking import anthropic, google, responses
from tests.runtime.mcp.configured import Workplace
from tests.runtime.mcp.configured import scripted as scripted_server
from tests.runtime.scripted import GOOGLE, MESSAGE, RESPONSES, Script, answer, chat, chat_saying, scripted
from tests.runtime.tools.test_coding_session import work
from tests.sandbox import machine_sandbox
from weft.programs import Programs
from weft.runtime.inference.model_requests import ModelSettings, OpenAIApi, ProviderKind

Calls = list[tuple[str, dict[str, Any]]]
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(200))
CALLS: Calls = [("read", {"path": "dot.png"}), ("other--say", {"text": "from the server"})]


def chat_calls(calls: Calls) -> Script:
    uses = [
        {"id": f"id-{name}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for name, arguments in calls
    ]
    return chat_saying({"content": None, "tool_calls": uses}, "tool_calls")


def responses_calls(calls: Calls) -> Script:
    output = [
        {
            "type": "function_call",
            "id": f"fc_{number}",
            "call_id": f"id-{name}",
            "name": name,
            "arguments": json.dumps(arguments),
            "status": "completed",
        }
        for number, (name, arguments) in enumerate(calls)
    ]
    return answer(200, {**RESPONSES, "output": output})


def anthropic_calls(calls: Calls) -> Script:
    uses = [{"type": "tool_use", "id": f"id-{name}", "name": name, "input": given} for name, given in calls]
    return answer(200, {**MESSAGE, "content": uses, "stop_reason": "tool_use"})


def google_calls(calls: Calls) -> Script:
    parts = [{"functionCall": {"name": name, "args": arguments}} for name, arguments in calls]
    candidate = {"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}
    return answer(200, {**GOOGLE, "candidates": [candidate]})


def openai_chat(url: str) -> ModelSettings:
    return model(url, name="gpt-x", provider=provider(f"{url}/v1", ProviderKind.OPENAI, api=OpenAIApi.CHAT))


DIALECTS = {
    "openai chat": (openai_chat, chat_calls, chat()),
    "openai responses": (responses, responses_calls, answer(200, RESPONSES)),
    "anthropic": (anthropic, anthropic_calls, answer(200, MESSAGE)),
    "google": (google, google_calls, answer(200, GOOGLE)),
}


@pytest.mark.slow("the first of them loads a vendor's library")
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_model_calls_tools_through_the_whole_chain(tmp_path: Path, dialect: str) -> None:
    machine_sandbox()
    settings, calls, says = DIALECTS[dialect]
    workspace = tmp_path / "work"
    workspace.mkdir()
    (workspace / "dot.png").write_bytes(PNG)
    asyncio.run(converse(tmp_path, workspace, settings, calls(CALLS), says))


async def converse(folder: Path, workspace: Path, settings: Callable[[str], ModelSettings], *scripts: Script) -> None:
    with weft.open(folder / "ledger.db") as ledger:
        Programs(ledger).create("agent", "coder", {"toolset": "full"})
        async with scripted(*scripts) as server, Workplace(scripted_server("plain")) as place:
            await place.approve()
            message = await work(ledger, server.url, workspace, Doom(), settings(server.url), place.servers)
            first, second = (json.dumps(received.body) for received in server.received)
        assert '"other--say"' in first
        assert "other/say" not in second
        assert "from the server" in second
        assert base64.b64encode(PNG).decode() in second or base64.urlsafe_b64encode(PNG).decode() in second
        turn = ledger.inbox.get(message).turn
        assert turn is not None
        assert [(call.name, call.outcome) for call in ledger.tool_calls(turn)] == [("read", "ok"), ("other/say", "ok")]
        decisions = {(one.tool, one.decision) for one in ledger.approvals.decisions(turn)}
        assert decisions == {("read", "allow"), ("other/say", "ask"), ("other/say", "allow")}
        assert list(ledger.verify()) == []
