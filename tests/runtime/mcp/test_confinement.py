"""What a server is given, and what it is not: files, variables, keys; and whose tools it may be."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.mcp.configured import CALL, Workplace, called, run, scripted
from weft.kernel.authority import Principal, PrincipalKind
from weft.kernel.errors import CredentialMissing, CredentialWithheld, InvalidInput
from weft.runtime.egress.credentials import Credential
from weft.runtime.egress.execution_context import context_from_env
from weft.runtime.tool.tool_contract import ToolCallContext
from weft.runtime.tools.mcp_server_settings import VariableSource, variable_source

KEY = "sk-canary-of-a-server"
CREDENTIAL = Credential(
    id="tracker", origin="https://example.org", env="TRACKER_KEY", given_to=("human:*", "agent:scout")
)


def surroundings(**options: Any) -> dict[str, Any]:
    async def work() -> Any:
        server = scripted("surroundings", **options)
        async with Workplace(server, variables={"PATH": os.environ["PATH"], "SECRET": KEY, "MINE": "mine"}) as place:
            await place.approve()
            return json.loads((await called(await place.tools(), "other/say", text="")).result)

    found: dict[str, Any] = run(work)
    return found


@pytest.mark.slow("starts a server in each of two sandboxes")
def test_a_server_gets_the_variables_that_it_was_given_and_its_folder_without_the_ledger(tmp_path: Path) -> None:
    (tmp_path / ".weft").mkdir()
    (tmp_path / ".weft" / "ledger.db").write_text("")
    (tmp_path / "file").write_text("")
    for profile in ("workspace", "read-only"):
        seen = surroundings(
            folder=str(tmp_path),
            profile=profile,
            variables=dict([variable_source("OWN=env:MINE"), variable_source("NO")]),
        )
        assert seen["folder"] == str(tmp_path)
        assert sorted(seen["files"]) == [".weft", "file"]
        own = {name: value for name, value in seen["variables"].items() if name not in ("LC_CTYPE", "PWD")}
        assert set(own) == {"PATH", "HOME", "OWN", "GIT_CONFIG_SYSTEM"}
        assert own["OWN"] == "mine"


def test_a_server_with_a_granted_host_is_given_the_proxy_to_it() -> None:
    seen = surroundings(profile="network:example.org")
    assert seen["variables"]["HTTPS_PROXY"].startswith("http://127.0.0.1:")
    assert "SECRET" not in seen["variables"]


def test_nobody_lifts_the_sandbox_without_a_name() -> None:
    with pytest.raises(InvalidInput, match="the profile none is no sandbox"):
        scripted("surroundings", profile="none")


def test_without_a_sandbox_a_server_still_gets_no_other_variable() -> None:
    seen = surroundings(profile="none", granted_by="human:ada")
    assert "SECRET" not in seen["variables"]
    assert seen["folder"] == "/"


def test_a_key_that_a_server_tells_is_hidden_and_only_those_who_may_have_it_may_call() -> None:
    person = context_from_env(Principal(PrincipalKind.HUMAN, "ada"), {"TRACKER_KEY": KEY}.get, credentials=[CREDENTIAL])
    server = scripted("tells-key", variables={"SERVER_KEY": VariableSource(credential="tracker")})

    async def work() -> None:
        async with Workplace(server, acting=person) as place:
            await place.approve()
            tools = await place.tools()
            tool: Any = tools["other/say"]
            assert (await called(tools, "other/say", text="")).result == "the key is …"
            scout = person.delegate(Principal(PrincipalKind.AGENT, "scout"))
            await tool.plan({"text": ""}, ToolCallContext(turn="t", call="c", acting=scout))
            for other in (
                person.delegate(Principal(PrincipalKind.AGENT, "other")),
                person.delegate(Principal(PrincipalKind.AGENT, "scout"), credentials=[]),
            ):
                with pytest.raises(CredentialWithheld):
                    await tool.plan({"text": ""}, ToolCallContext(turn="t", call="c", acting=other))

    run(work)


def test_a_server_whose_credential_is_missing_is_not_started() -> None:
    async def work() -> None:
        server = scripted("tells-key", variables={"SERVER_KEY": VariableSource(credential="nobody")})
        async with Workplace(server) as place:
            with pytest.raises(CredentialMissing):
                await place.approve()

    run(work)
    assert CALL.acting is None
