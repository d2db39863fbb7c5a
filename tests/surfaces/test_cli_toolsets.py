"""Toolsets, the tools of a turn, and an agent that works in a folder: through the command line."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import Any

import pytest

from tests.credentials import Maker
from tests.runtime.inference.asking import CANARY
from tests.runtime.scripted import HANG, Script, chat, chat_saying, failure
from tests.sizes import share
from tests.surfaces.approving import opened
from tests.surfaces.serving import serving
from tests.surfaces.shell import Shell, running
from tests.surfaces.test_cli_broker import beside, stock, wait_until
from tests.surfaces.test_cli_self_running import approving
from weft.ledger.api import Ledger, Runs
from weft.programs.program_kinds import BUILT_IN_TOOLSETS
from weft.runtime.sandbox.profiles import parse_profile
from weft.runtime.tool.toolsets import BUILT_IN, BUILT_IN_TOOLS, limits_of, sandbox_config
from weft.surfaces.cli.user_files import configuration_folder


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THERE_KEY", CANARY)
    monkeypatch.setenv("USER", "tester")


def calling(name: str, **arguments: Any) -> Script:
    function = {"name": name, "arguments": json.dumps(arguments)}
    asked = [{"id": f"call-{name}", "type": "function", "function": function}]
    return chat_saying({"content": "Let me see", "tool_calls": asked}, "tool_calls", usage=None)


def test_toolsets_are_made_shown_changed_and_deleted_but_not_the_built_in_ones(weft: Shell) -> None:
    assert tuple(BUILT_IN) == BUILT_IN_TOOLSETS
    made = weft("toolset", "create", "review", "--allow", "read", "--allow", "shell(git *)", "--sandbox", "read-only")
    assert made.code == 0, made.err
    shown = weft.json("toolset", "show", "review")
    assert (shown["allow"], shown["deny"], shown["sandbox"]) == (["read", "shell(git *)"], [], "read-only")
    assert weft("toolset", "edit", "review", "--deny", "read(.env)", "--sandbox", "network:example.com").code == 0
    shown = weft.json("toolset", "show", "review")
    assert (shown["allow"], shown["deny"], shown["version"]) == (["read", "shell(git *)"], ["read(.env)"], 2)
    assert shown["sandbox"] == "network:example.com"
    assert weft("toolset", "edit", "review", "--deny-nothing").code == 0
    listed = {one["name"]: one for one in weft.json("toolset", "list")}
    assert list(listed) == [*BUILT_IN, "review"]
    assert (listed["worker"]["is_built_in"], listed["review"]["deny"]) == (True, [])
    odd = weft("toolset", "create", "odd", *(f"--allow={tool}" for tool in ("raed", "git/*", "code/*", "s*")))
    assert (odd.code, odd.err.splitlines()) == (
        0,
        ["no tool now fits raed; did you mean read?", "no tool now fits git/*"],
    )
    assert "no tool now fits gerp" in weft("toolset", "edit", "odd", "--deny", "gerp(x)").err
    assert weft("toolset", "delete", "odd").code == 0
    assert "there is no toolset 'later', so" in weft("agent", "create", "ada", "--toolset", "later").err
    assert weft("agent", "configure", "ada", "--toolset", "review").err == ""
    for refused, code in (
        (("create", "Worker", "--allow", "read"), 5),
        (("edit", "worker", "--allow", "read"), 4),
        (("delete", "full"), 4),
        (("create", "open", "--allow", "read", "--sandbox", "none"), 5),
        (("create", "odd", "--allow", "(x"), 5),
        (("edit", "review"), 2),
        (("create", "empty"), 2),
    ):
        assert weft("toolset", *refused).code == code, refused
    assert "no configuration does" in weft("toolset", "create", "open", "--allow", "read", "--sandbox", "none").err
    assert weft("toolset", "delete", "review").out == "toolset review is deleted\n"
    assert weft("toolset", "show", "review").code == 3


@pytest.mark.parametrize("text", ["workspace", "read-only", "network:a.example,b.example:8443", "network:*"])
def test_the_sandbox_of_a_toolset_is_the_profile_that_was_named(text: str) -> None:
    profile = parse_profile(text)
    limits = limits_of({"sandbox": sandbox_config(profile)}).sandbox
    assert limits.profile() == profile
    assert parse_profile(limits.text) == profile


def test_the_tools_of_a_turn_are_told_with_what_permissions_leave_of_them(weft: Shell) -> None:
    weft.json("agent", "create", "ada")
    none = weft.json("tools", "--agent", "ada", "--in", ".")
    assert (none["toolset"], none["tools"]) == (None, [])
    of_agent, of_nobody = weft("tools", "--agent", "ada").err, weft("tools").err
    assert "`weft agent configure ada --toolset NAME`" in of_agent
    assert "`weft agent run` uses the toolset worker then" in of_agent
    assert ("say --agent or --session" in of_nobody, "configure" in of_nobody) == (True, False)
    weft.json("session", "create", "mine")
    assert "`weft session configure mine --set toolset=NAME`" in weft("tools", "--session", "mine").err
    assert weft("session", "configure", "mine", "--set", "toolset=worker").code == 0
    assert weft.json("tools", "--session", "mine")["toolset"] == "worker"
    weft.json("agent", "configure", "ada", "--toolset", "worker", "--set", 'permissions.tools.deny=["shell(rm *)"]')
    told = weft.json("tools", "--agent", "ada", "--in", ".")
    tools = {one["name"]: one for one in told["tools"]}
    assert (told["toolset"], told["sandbox"], told["workspace"]) == ("worker", "workspace", str(weft.folder))
    assert (tools["read"]["use"], tools["read"]["source"], tools["read"]["is_read_only"]) == ("all", "built in", True)
    assert (tools["shell"]["use"], tools["shell"]["deny"]) == ("some", ["shell(rm *)"])
    assert tools["fetch_url"]["use"] == "none"
    assert {name for name, tool in tools.items() if tool["source"] == "built in"} == set(BUILT_IN_TOOLS)
    narrowed = weft.json("tools", "--agent", "ada", "--in", ".", "--toolset", "manager")
    assert "write" not in {one["name"] for one in narrowed["tools"]}
    assert {one["name"]: one["use"] for one in narrowed["tools"]}["shell"] == "none"
    assert weft("tools", "--agent", "ada", "--toolset", "nothing").code == 3


def test_the_code_programs_that_an_agent_lists_are_tools_where_a_toolset_has_them(weft: Shell) -> None:
    weft.json("code", "create", "double", "--language", "python", "--source", "def main(input):\n    return 2 * input")
    weft.json("agent", "create", "ada", "--set", 'tools=["@(double)"]')
    offered = {
        toolset: {
            one["name"]: one["use"] for one in weft.json("tools", "--agent", "ada", "--toolset", toolset)["tools"]
        }
        for toolset in ("worker", "manager")
    }
    assert (offered["worker"]["code/double"], offered["manager"]["code/double"]) == ("all", "none")


def test_an_agent_without_a_toolset_has_the_tools_that_it_lists_and_no_others(weft: Shell) -> None:
    weft.json("code", "create", "double", "--language", "python", "--source", "def main(input):\n    return 2 * input")
    with serving(calling("code/double", input=21), chat(), chat()) as server:
        stock(weft, server.url)
        weft.json("agent", "create", "ada", "--model", "fast", "--set", 'tools=["@(double)"]')
        assert [one["name"] for one in weft.json("tools", "--agent", "ada")["tools"]] == ["code/double"]
        assert "what the agent itself lists" in weft("tools", "--agent", "ada").err
        shown: list[str] = []
        with beside(weft, approving(shown)):
            answer = weft("send", "--agent", "ada", "Double it")
        sent = {"turn": weft.json("log", "-n", "1")[0]["id"]}
        assert (answer.out, "tool code/double ok, allowed by a person" in answer.err) == (
            "Hello there\n",
            True,
        ), answer.err
        assert "their files are equal" in weft("diff", "--files").err
        assert shown[0].startswith("code/double version 1")
        assert [tool["function"]["name"] for tool in server.received[0].body["tools"]] == ["code--double"]
        assert "42" in json.dumps(server.received[1].body["messages"][-1])
        turn = weft.json("show", sent["turn"])
        assert (turn["tools_available"], turn["toolset_name"]) == (["code/double"], None)
        assert weft.json("send", "--agent", "ada", "Nothing", "--deny", "code/*")["text"] == "Hello there"
        assert "tools" not in server.received[2].body
    assert weft("verify").code == 0


def test_an_agent_works_in_a_folder_and_its_calls_are_told(weft: Shell) -> None:
    (weft.folder / "work").mkdir()
    (weft.folder / "work" / "a.txt").write_text("milk\n")
    denied = calling("fetch_url", url="https://example.com/")
    scripts = (calling("read", path="a.txt"), denied, calling("read", path="b.txt"), chat())
    with serving(*scripts, *scripts) as server:
        stock(weft, server.url)
        weft.json("agent", "create", "ada", "--model", "fast")
        told = weft.json("agent", "run", "ada", "Look", "--in", "work")
        assert (told["session"], told["toolset"], told["text"]) == ("ada:main", "worker", "Hello there")
        outcomes = [(call["tool"], call["about"], call["outcome"]) for call in told["calls"]]
        assert outcomes == [
            ("read", "a.txt", "ok"),
            ("fetch_url", "https://example.com/", "denied"),
            ("read", "b.txt", "denied"),
        ]
        offered = [tool["function"]["name"] for tool in server.received[0].body["tools"]]
        assert ("shell" in offered, "fetch_url" in offered) == (True, False)
        assert "milk" in json.dumps(server.received[1].body)
        shown = weft("agent", "run", "ada", "Again", "--in", "work", "--session", "ada:other")
        assert (shown.code, shown.out) == (0, "Hello there\n")
        assert "tool read(a.txt) ok, allowed by the policy\n" in shown.err
        assert "tool fetch_url(https://example.com/) cannot run: " in shown.err
        assert "tool read(b.txt) cannot run: " in shown.err
        assert weft("agent", "run", "ada", "Look", "--in", "work", "--toolset", "nothing").code == 3
        assert weft.json("inbox") == weft.json("inbox", "--dead") == []
    weft.json("session", "create", "mine")
    assert weft("agent", "run", "ada", "Look", "--in", "work", "--session", "mine").code == 4
    assert weft("agent", "run", "ada", "Look", "--in", "nowhere").code == 5
    assert weft("agent", "run", "nobody", "Look", "--in", "work").code == 3


def test_why_calls_were_refused_is_said_once(weft: Shell) -> None:
    (weft.folder / "work").mkdir()
    denied = calling("fetch_url", url="https://example.com/")
    with serving(denied, denied, denied, chat()) as server:
        stock(weft, server.url)
        weft.json("agent", "create", "ada", "--model", "fast")
        shown = weft("agent", "run", "ada", "Look", "--in", "work")
    lines = [line for line in shown.err.splitlines() if line.startswith("tool fetch_url")]
    first, *others = lines
    assert first.startswith("tool fetch_url(https://example.com/) cannot run: ")
    assert others == ["tool fetch_url(https://example.com/) cannot run, as before"] * 2


def test_a_secret_in_a_file_is_sent_neither_by_the_run_that_reads_it_nor_later(weft: Shell) -> None:
    token = Maker(5).github()
    (weft.folder / "work").mkdir()
    (weft.folder / "work" / "notes.md").write_text(f"use {token} for the tests\n")
    with serving(calling("read", path="notes.md"), chat(), chat()) as server:
        stock(weft, server.url)
        weft.json("agent", "create", "ada", "--model", "fast")
        assert weft("agent", "run", "ada", "Look", "--in", "work").code == 0
        assert weft("send", "--session", "ada:main", "And now?").code == 0
        bodies = [json.dumps(received.body) for received in server.received]
    assert len(bodies) == 3
    assert [token in body for body in bodies] == [False] * 3
    assert ["use [secret: GitHub token] for the tests" in body for body in bodies] == [False, True, True]


def test_a_run_that_is_interrupted_ends_its_turn_with_what_it_has(weft: Shell) -> None:
    (weft.folder / "work").mkdir()
    with serving([HANG]) as server:
        stock(weft, server.url)
        weft.json("agent", "create", "ada", "--model", "fast")
        command = ("agent", "run", "ada", "Look", "--in", "work")
        with running(weft.folder, *command, stderr=subprocess.PIPE) as run, opened(weft) as ledger:
            while not server.hanging.is_set():
                Runs(ledger).wait_for_news(ledger.newest(), 0.05)
            run.send_signal(signal.SIGINT)
            assert run.wait() == 130
            assert run.stderr is not None
            assert run.stderr.read().strip() == b"weft: interrupted"
    shown = weft.json("show", "ada:main")
    assert (shown["status"], shown["interruption_reason"]) == ("completed", "canceled")


@pytest.mark.parametrize("is_kept", share([True, False], test=1))
def test_a_run_keeps_the_files_of_its_turns_unless_they_are_not_wanted(weft: Shell, is_kept: bool) -> None:
    (weft.folder / "work").mkdir()
    configuration_folder().mkdir(parents=True, exist_ok=True)
    (configuration_folder() / "resources.toml").write_text(f"[snapshots]\nturns = {str(is_kept).lower()}\n")

    def grant(ledger: Ledger) -> None:
        wait_until(ledger, lambda: bool(ledger.approvals.list(states=("open",))))
        (request,) = ledger.approvals.list(states=("open",))
        ledger.approvals.grant(request.id, plan_digest=request.plan_digest)

    with serving(calling("write", path="new.txt", content="x\n"), chat()) as server:
        stock(weft, server.url)
        weft.json("agent", "create", "ada", "--model", "fast")
        with beside(weft, grant):
            assert weft("agent", "run", "ada", "Write", "--in", "work").code == 0
    resources = weft.json("resource", "list")
    kept = [weft.json("resource", "show", one["id"])["snapshots"] for one in resources]
    assert [[(one["state"], one["is_before"]) for one in snapshots] for snapshots in kept] == (
        [[("ok", False), ("ok", True)]] if is_kept else []
    )
    assert [(one["owner"]["name"], one["place"]) for one in resources] == (
        [("ada:main", str(weft.folder / "work"))] if is_kept else []
    )


def test_a_run_waits_for_a_person_and_ends_as_they_say(weft: Shell) -> None:
    (weft.folder / "work").mkdir()

    def answering(ledger: Ledger, granted: bool) -> None:
        wait_until(ledger, lambda: bool(ledger.approvals.list(states=("open",))))
        (request,) = ledger.approvals.list(states=("open",))
        if granted:
            ledger.approvals.grant(request.id, plan_digest=request.plan_digest)
        else:
            ledger.approvals.deny(request.id, abort=True, reason="not now")

    writing = calling("write", path="new.txt", content="x\n")
    with serving(writing, chat(), writing, failure(400, "too hot")) as server:
        stock(weft, server.url)
        weft.json("agent", "create", "ada", "--model", "fast")
        with beside(weft, lambda ledger: answering(ledger, True)):
            allowed = weft("agent", "run", "ada", "Write", "--in", "work")
        assert (allowed.code, allowed.out) == (0, "Hello there\n"), allowed.err
        assert allowed.err.count("waits for a person") == 1
        assert "waits for a person: 'ada' wants to use 'write' in session 'ada:main'" in allowed.err
        assert "`weft approve " in allowed.err
        assert "tool write(new.txt) ok, allowed by a person" in allowed.err
        assert (weft.folder / "work" / "new.txt").read_text() == "x\n"
        (weft.folder / "work" / "new.txt").unlink()
        with beside(weft, lambda ledger: answering(ledger, False)):
            ended = weft("agent", "run", "ada", "Write", "--in", "work")
        assert (ended.code, "tool write(new.txt) denied: a person refused it: not now" in ended.err) == (4, True), ended
        assert not (weft.folder / "work" / "new.txt").exists()
        assert weft("agent", "run", "ada", "Fail", "--in", "work").code == 8
    assert weft.json("show", "ada:main")["interruption_reason"] == "approval_denied"


def names_in(request: Any) -> set[str]:
    return {tool["function"]["name"] for tool in request.body.get("tools") or ()}


def test_allowing_is_enough_and_what_withholds_a_tool_is_said_with_the_way_to_change_it(
    weft: Shell,
) -> None:
    with serving(*[chat()] * 8) as server:
        stock(weft, server.url)
        allowed = 'permissions.tools.allow=["read","write","shell(ls *)"]'
        assert weft("agent", "create", "ada", "--model", "fast", "--set", allowed).code == 0

        def send(*words: str) -> tuple[set[str], str]:
            answer = weft("send", "Begin", "--agent", "ada", *words)
            assert answer.code == 0, answer.err
            return names_in(server.received[-1]), answer.err

        names, told = send()
        assert names == set()
        assert "without read, write, shell: the turn works in no folder" in told
        assert "--in DIR" in told
        assert "without read, write, shell: the turn works in no folder" in weft("show", "ada:main").out
        (withheld,) = weft.json("show", "ada:main")["effective_config"]["withheld"]
        assert (withheld["by"], withheld["tools"]) == ("no_folder", ["read", "write", "shell"])
        assert "without read, write, shell" in weft("tools", "--agent", "ada").err
        names, told = send("--in", ".")
        assert (names, "without" in told) == ({"read", "write", "shell"}, False)
        assert "Tools:" not in weft("show", "ada:main").out
        names, told = send("--in", ".", "--sandbox", "read-only")
        assert names == {"read", "shell"}
        assert "without write: the sandbox is read-only" in told
        listed = weft.json("tools", "--agent", "ada", "--in", ".")
        assert (listed["gives_allowed"], listed["withheld"]) == (True, [])
        assert "a turn has what agent ada is allowed" in weft("tools", "--agent", "ada", "--in", ".").err
        assert weft("agent", "configure", "ada", "--set", 'permissions.tools.allow=["raed"]').code == 0
        assert "no tool that there is fits what the agent and the permissions allow" in send("--in", ".")[1]


def test_what_somebody_else_allows_an_agent_opens_nothing(weft: Shell) -> None:
    with serving(chat(), chat()) as server:
        stock(weft, server.url)
        assert weft("agent", "create", "ada", "--model", "fast").code == 0
        assert weft("human", "create", "eva", "--permission", "configure(ada)").code == 0
        set_by = weft("agent", "configure", "ada", "--set", 'permissions.tools.allow=["shell","write"]', "--as", "eva")
        assert set_by.code == 0, set_by.err
        told = weft("send", "Begin", "--agent", "ada", "--in", ".")
        assert told.code == 0, told.err
        assert names_in(server.received[-1]) == set()
        assert "no tools: somebody else than the ledger's owner has configured the agent" in told.err
        assert "weft agent configure ada --toolset NAME" in told.err
