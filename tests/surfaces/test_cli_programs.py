"""Programs on the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.postgres import shared_server
from tests.surfaces.shell import Answer, Shell
from weft.runtime.inference.model_requests import ProviderKind
from weft.verbs.program_verbs import PROVIDER_TYPES


@pytest.fixture
def stocked(weft: Shell) -> Shell:
    for line in (
        "provider create cf-gateway --type cloudflare-ai-gateway",
        "model create claude-fast --backend claude-sonnet-4-5 --provider cf-gateway",
        "model create gemini-flash --backend gemini-flash --provider cf-gateway",
    ):
        assert weft(*line.split()).code == 0
    return weft


def test_the_commands_of_the_program_types_work_as_written(weft: Shell) -> None:
    """In the order of that page, without those that ask a model or compare vectors."""
    assert weft("provider", "create", "cf-gateway", "--type", "cloudflare-ai-gateway").code == 0
    assert weft("provider", "list").out.startswith("cf-gateway\tpublished")
    created = "model create claude-fast --backend claude-sonnet-4-5 --provider cf-gateway"
    assert weft(*created.split()).code == 0
    assert weft(*"model configure claude-fast --temperature 0 --situation coding".split()).code == 0
    session = weft.json("session", "create", "--model", "claude-fast")
    assert session["programType"] == "session"
    assert session["config"]["defaultModel"] == "@(claude-fast)"
    made = weft("agent", "create", "researcher", "--prompt", "You are...", "--model", "claude-fast")
    assert made.code == 0
    task = weft.json("task", "create", "Research quantum computing", "--assignee", "researcher")["id"]
    assert weft("agent", "assign", "researcher", task).code == 0
    assert weft.json("agent", "status", "researcher")["config"]["currentTask"] == task
    assert weft("task", "start", task).code == 0
    assert [one["id"] for one in weft.json("task", "list", "--status", "in_progress")] == [task]
    assert weft("tag", "add", "claude-fast", "tag1", "tag2").out == "tag1\ntag2\n"
    assert weft("tag", "remove", "claude-fast", "tag1").out == "tag2\n"
    assert weft("tag", "add", "claude-fast", "Z\u00fcrich").code == 0
    assert weft("tag", "remove", "claude-fast", "Zu\u0308rich").out == "tag2\n"
    assert weft("tag", "list", "claude-fast").out == "tag2\n"
    answer = weft("tag", "remove", "claude-fast", "tag2", "tag1")
    assert (answer.code, answer.out) == (3, "")
    assert "no tag on claude-fast 'tag1' in this ledger" in answer.err
    assert "`weft tag list claude-fast`" in answer.err
    assert weft("tag", "add", "claude-fast", "tag3").code == 0
    for _ in range(2):
        assert weft("tag", "remove", "claude-fast", "tag3", "--key", "k").out == "tag2\n"
    assert weft("tag", "add", session["id"], "trusted").code == 0
    assert [one["name"] for one in weft.json("nodes", "--tag", "trusted")] == [session["id"]]
    assert [one["id"] for one in weft.json("program", "list", "--type", "model")] == ["claude-fast"]
    shape = weft.json("program", "get", "claude-fast")
    assert shape["lifecycle"] == "published"
    assert shape["config"]["situations"] == {"coding": {"temperature": 0}}
    assert weft("verify").code == 0


def test_a_draft_is_not_published(weft: Shell) -> None:
    assert weft.json("provider", "create", "p", "--type", "google", "--draft")["lifecycle"] == "draft"
    assert weft.json("program", "publish", "p")["lifecycle"] == "published"
    again = weft("program", "publish", "p")
    assert again.code == 4
    assert "hint: it can deprecate (to deprecated)" in again.err


def test_a_local_server_is_named_with_the_variable_of_its_key(weft: Shell) -> None:
    line = "provider create here --type openai-compatible --base-url http://localhost:1/v1 --key-env MY_KEY"
    assert weft.json(*line.split())["config"] == {
        "providerType": "openai-compatible",
        "baseUrl": "http://localhost:1/v1",
        "apiKey": "${MY_KEY}",
    }
    refused = weft("provider", "create", "other", "--type", "google", "--set", "apiKey=sk-123")
    assert refused.code == 5
    assert "sk-123" not in refused.err


def test_types_of_providers_are_told_and_others_are_refused(weft: Shell) -> None:
    assert PROVIDER_TYPES.split(", ") == list(ProviderKind)
    answer = weft("provider", "create", "odd", "--type", "open-ai")
    assert (answer.code, "nothing here speaks" in answer.err) == (5, True)
    assert "did you mean openai?" in answer.err
    assert weft.json("provider", "list") == []


def test_each_kind_shows_its_own_programs_and_no_others(stocked: Shell) -> None:
    stocked("agent", "create", "ada", "--model", "claude-fast")
    stocked("human", "create", "ann")
    for kind, name in (("provider", "cf-gateway"), ("model", "claude-fast"), ("agent", "ada"), ("human", "ann")):
        assert stocked.json(kind, "show", name) == stocked.json("program", "get", name)
    refused = stocked("model", "show", "cf-gateway")
    assert (refused.code, "cf-gateway" in refused.err) != (0, True)


def test_a_key_that_is_left_behind_is_told(weft: Shell) -> None:
    line = "provider create here --type openai-compatible --base-url http://localhost:1/v1 --key-env MY_KEY"
    weft(*line.split())
    assert "left" not in weft("provider", "configure", "here", "--base-url", "http://localhost:1/v2").err
    assert "left apiKey behind" in weft("provider", "configure", "here", "--base-url", "http://localhost:2/v1").err


def test_lists_say_when_there_is_nothing(weft: Shell) -> None:
    for group in ("provider", "model", "agent", "task", "code", "human"):
        answer = weft(group, "list")
        assert (answer.code, answer.out) == (0, "")
        assert f"weft {group} create" in answer.err
        assert weft.json(group, "list") == []
    assert "weft tag add" in weft("nodes", "--tag", "x").err
    assert "weft human ask" in weft("human", "requests").err
    assert "weft info create" in weft("info", "query").err


def test_two_tasks_of_one_title_get_names_of_their_own(weft: Shell) -> None:
    names = [weft.json("task", "create", "Tidy up!")["id"] for _ in range(3)]
    assert names == ["task-tidy-up", "task-tidy-up-2", "task-tidy-up-3"]
    keyed = [weft.json("task", "create", "Once", "--key", "k")["ulid"] for _ in range(2)]
    assert keyed[0] == keyed[1]
    assert weft("task", "list", "--status", "nonsense").code == 2


def test_a_task_looks_into_its_folder(weft: Shell, folder: Path) -> None:
    criterion = '{"type": "file_exists", "path": "notes.md"}'
    weft.json("task", "create", "Write", "--name", "write", "--criterion", criterion)
    assert weft("task", "start", "write").code == 0
    refused = weft("task", "complete", "write")
    assert refused.code == 4
    assert "'notes.md' is not there" in refused.err
    (folder / "notes.md").write_text("x")
    done = weft("task", "complete", "write", "--answer", "-", stdin="all written")
    assert (done.code, done.out) == (0, "task write is completed\n  held file_exists: 'notes.md' is there\n")
    assert weft.json("program", "get", "write")["result"] == "all written"


def test_people_are_asked_and_answer(weft: Shell) -> None:
    weft.json("human", "create", "bln", "--permission", "approve")
    request = weft.json("human", "ask", "bln", "May it go out?", "--data", '{"to": "all"}')
    assert request["status"] == "pending"
    assert weft("human", "approve", "nobody", request["id"]).code == 3
    answer = weft("human", "approve", "bln", request["id"][-8:], "--reason", "yes")
    assert (answer.code, answer.out) == (0, f"request {request['id'][-8:]} is approved\n")
    assert weft("human", "reject", "bln", request["id"]).code == 4
    assert [one["status"] for one in weft.json("human", "requests", "bln")] == ["approved"]


def test_rights_hold_on_the_command_line(stocked: Shell) -> None:
    stocked.json("human", "create", "guest")
    refused = stocked("program", "deprecate", "claude-fast", "--as", "guest")
    assert refused.code == 4
    assert "it needs the permission 'configure(claude-fast)'" in refused.err


def test_a_change_that_comes_late_is_refused(stocked: Shell) -> None:
    assert stocked("model", "configure", "claude-fast", "--temperature", "0.5", "--expected", "1").code == 0
    late = stocked("model", "configure", "claude-fast", "--temperature", "0.9", "--expected", "1")
    assert late.code == 4
    assert "is at version 2, not 1" in late.err
    assert stocked("model", "configure", "claude-fast", "--situation", "coding").code == 2
    assert stocked("program", "configure", "claude-fast", "--set", "nothing").code == 2


def test_versions_are_shown_and_taken_back(stocked: Shell) -> None:
    stocked("model", "configure", "claude-fast", "--temperature", "0.5")
    assert stocked("program", "diff", "claude-fast").out == "added    temperature: 0.5\n"
    assert "temperature" not in stocked.json("program", "get", "claude-fast:1")["config"]
    assert stocked.json("program", "revert", "claude-fast", "1")["version"] == 3
    assert [one["version"] for one in stocked.json("program", "history", "claude-fast")] == [3, 2, 1, 1]
    assert stocked("program", "diff", "claude-fast", "1", "3").err == "they do not differ\n"
    assert stocked("program", "delete", "cf-gateway").code == 4
    assert stocked("program", "delete", "gemini-flash").code == 0
    assert len(stocked.json("program", "list", "--type", "model", "--all")) == 2


def test_paused_and_completed_sessions_say_so(weft: Shell) -> None:
    weft.record("hello")
    assert weft("session", "pause", "main").code == 0
    assert "weft session resume" in weft("record", "--query", "x").err
    assert weft("session", "resume", "main").code == 0
    assert weft("session", "complete", "main").code == 0
    assert "fork it" in weft("record", "--query", "x").err
    assert weft("session", "resume", "main").code == 4


PROGRAMS = """
id: flash
programType: model
tags: [fast]
config:
  modelId: gemini-flash
  provider: "@(gateway)"
  metadata: {note: on}            # a text, as YAML 1.2 says
---
- {id: gateway, type: program, programType: provider, lifecycle: published, config: {providerType: openai}}
- {id: idea, programType: information, lifecycle: draft, config: {infoType: fact, content: {a: 1}}}
"""


def test_files_of_programs_are_applied_once(weft: Shell, folder: Path) -> None:
    (folder / "programs.yaml").write_text(PROGRAMS)
    would = weft("apply", "programs.yaml", "--dry-run")
    assert would.out.splitlines() == [
        "create    provider gateway",
        "create    information idea",
        "create    model flash",
    ]
    assert weft.json("program", "list") == []
    assert weft("apply", "programs.yaml").out == would.out
    assert {one["action"] for one in weft.json("apply", "programs.yaml")} == {"unchanged"}
    found = weft.json("program", "get", "flash")
    assert (found["tags"], found["config"]["metadata"]["note"], found["version"]) == (["fast"], "on", 1)
    assert weft.json("program", "get", "idea")["lifecycle"] == "draft"


def test_what_is_piped_in_is_applied(weft: Shell, folder: Path) -> None:
    assert weft("apply", "-", stdin="{id: ann, programType: human, config: {name: Ann}}").out == "create    human ann\n"
    shown = weft("program", "get", "ann", "--json").out
    assert weft("apply", "-", stdin=shown).out == "unchanged human ann\n"
    refused = weft("apply", "-", stdin="a: [")
    assert (refused.code, "standard input is no YAML" in refused.err) == (5, True)


def test_applying_changes_what_differs_and_prunes_what_is_gone(weft: Shell, folder: Path) -> None:
    weft("provider", "create", "by-hand", "--type", "google")
    (folder / "programs.yaml").write_text(PROGRAMS)
    weft("apply", "programs.yaml")
    less = {
        "programs": [{"id": "gateway", "programType": "provider", "config": {"providerType": "azure"}, "tags": ["eu"]}]
    }
    (folder / "less.json").write_text(json.dumps(less))
    assert weft("apply", "less.json", "--dry-run", "--prune").out.splitlines() == [
        "change    provider gateway (providerType, tags)",
        "delete    information idea",
        "delete    model flash",
    ]
    assert weft("apply", "less.json", "--prune").code == 0
    assert [one["id"] for one in weft.json("program", "list")] == ["by-hand", "gateway"]
    assert weft("verify").code == 0


@pytest.mark.parametrize(
    "text",
    [
        "id: [",
        "just words",
        "{id: a, programType: daemon}",
        "{id: a, programType: provider, config: {}}",
        "{id: a, programType: provider, colour: red, config: {providerType: x}}",
        "{id: a, id: b, programType: provider, config: {providerType: x}}",
        "a: &x 1\nb: *x",
        "!!python/object/apply:os.system ['true']",
        "- {id: a, programType: provider, config: {providerType: x}}\n- {id: a, programType: human}",
        "- {id: a, programType: task, config: {title: A, dependencies: [b]}}\n"
        "- {id: b, programType: task, config: {title: B, dependencies: [a]}}",
        "{id: a, programType: model, config: {modelId: m, provider: nobody}}",
        "{id: a, programType: provider, lifecycle: retired, config: {providerType: x}}",
    ],
)
def test_a_file_that_does_not_fit_changes_nothing(weft: Shell, folder: Path, text: str) -> None:
    good = "---\n{id: good, programType: human}\n---\n"
    (folder / "programs.yaml").write_text(good + text)
    answer = weft("apply", "programs.yaml")
    assert answer.code == 5, answer.err
    assert "hint: " in answer.err
    assert weft.json("program", "list") == []


def test_nothing_heavy_is_loaded_to_list_programs(weft: Shell) -> None:
    code = (
        "import sys; from weft.surfaces.cli.main import run; run(['program', 'list']);"
        "print([name for name in ('yaml', 'jsonschema_rs', 'psycopg') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], cwd=weft.folder, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_every_kind_goes_its_ways_by_verbs(stocked: Shell) -> None:
    weft = stocked
    for line, state in (
        ("agent create ada --prompt x --model claude-fast", "idle"),
        ("agent pause ada", "paused"),
        ("agent resume ada", "idle"),
        ("task create greet --name greet", "pending"),
        ("task assign greet ada", "pending"),
        ("task start greet", "active"),
        ("task fail greet --reason nobody-is-there", "failed"),
        ("human create bln", "available"),
        ("human presence bln away", "away"),
        ("human presence bln available", "available"),
        ("info create fact --type fact --content 1 --draft", "draft"),
        ("info validate fact", "validated"),
        ("info activate fact", "active"),
        ("info archive fact", "archived"),
    ):
        answer = weft(*line.split(), "--json")
        assert answer.code == 0, (line, answer.err)
        assert state in (answer.json.get("lifecycle"), answer.json.get("state")), (line, answer.json)
    for line in ("agent resume ada", "task start greet", "human presence bln offline --as ada", "info validate fact"):
        refused = weft(*line.split())
        assert refused.code == 4, line
        assert "hint: " in refused.err
    assert weft.json("task", "list", "--status", "failed")[0]["config"]["assignee"] == "@(ada)"


@pytest.mark.parametrize("is_postgres", [False, True])
def test_a_session_in_which_something_was_said_is_switched_to_its_first_model(
    weft: Shell, monkeypatch: pytest.MonkeyPatch, is_postgres: bool
) -> None:
    if is_postgres:
        monkeypatch.setenv("WEFT_LEDGER", shared_server().address())
    weft("init")
    weft("provider", "create", "gate", "--type", "cloudflare-ai-gateway")
    for name in ("fast", "slow"):
        assert weft("model", "create", name, "--backend", name, "--provider", "gate").code == 0
    weft("record", "--session", "talk", "--query", "hello", "--response", "hi")
    weft("session", "create", "new", "--model", "fast")

    def switches(session: str) -> list[str]:
        changes = weft.json("program", "history", session)
        return [change["kind"] for change in changes if change["kind"] == "session_model_switched"]

    for model in ("fast", "slow"):
        assert weft("session", "configure", "talk", "--set", f"defaultModel=@({model})").code == 0
    assert len(switches("talk")) == 2
    assert switches("new") == []
    assert weft("verify").code == 0


def test_a_session_is_given_to_another_and_its_log_is_written(stocked: Shell, folder: Path) -> None:
    weft = stocked
    weft("agent", "create", "researcher", "--prompt", "You research.")
    weft("session", "create", "talk", "--model", "claude-fast")
    for options in (["--set", "owner=@(researcher)"], ["--owner", "researcher"]):
        given = weft.json("session", "configure", "talk", *options)
        assert given["config"] == {"owner": "@(researcher)", "defaultModel": "@(claude-fast)"}
    assert weft.json("context", "--session", "talk")["messages"][0]["content"] == [
        {"type": "text", "text": "You research."}
    ]
    weft.record("hello", session="talk", response="there")
    assert "has no logFile" in weft("session", "history", "talk", "--write").err
    weft("session", "configure", "talk", "--set", "logFile=talk.jsonl")
    for _ in range(2):
        assert weft("session", "history", "talk", "--write").code == 0
    written = [json.loads(line) for line in (folder / "talk.jsonl").read_text().splitlines()]
    assert written == weft.json("session", "history", "talk")
    (folder / "talk.jsonl").write_text("my notes\n")
    refused = weft("session", "history", "talk", "--write")
    assert (refused.code, "is no log of a session" in refused.err) == (5, True)
    assert (folder / "talk.jsonl").read_text() == "my notes\n"
    weft("session", "configure", "talk", "--set", "logFile=sessions/talk.jsonl")
    assert weft("session", "history", "talk", "--write").code == 0
    assert (folder / "sessions" / "talk.jsonl").read_bytes().splitlines()
    weft("session", "configure", "talk", "--set", "logFile=talk.jsonl/deeper/talk.jsonl")
    refused = weft("session", "history", "talk", "--write")
    assert (refused.code, "cannot be made" in refused.err) == (5, True), refused.err


def test_all_faults_are_told_line_by_line(weft: Shell) -> None:
    text = "- {id: a, programType: task, config: {titel: A}}\n- {id: b, programType: human, config: {nam: B}}"
    refused = weft("apply", "-", stdin=text)
    assert refused.code == 5
    first, *lines = refused.err.splitlines()
    assert first == "weft: the files: 3 faults"
    assert [line.split(": ")[0] for line in lines[:3]] == [
        "  standard input[0].config.title",
        "  standard input[0].config.titel",
        "  standard input[1].config.nam",
    ]
    assert "did you mean name?" in refused.err


def test_a_file_that_says_what_no_file_decides_is_told_so(weft: Shell) -> None:
    done = weft("apply", "-", stdin="{id: ann, programType: human, state: away, config: {}}")
    assert done.out == "create    human ann\n"
    assert "human ann: it is available, not away: no file changes the state of a human" in done.err
    assert weft.json("apply", "-", stdin="{id: ann, programType: human, state: away, config: {}}")[0]["notes"]


def test_information_is_listed(weft: Shell) -> None:
    weft("info", "create", "ada", "--content", '{"born": 1815}')
    weft("info", "create", "person", "--type", "schema", "--content", "{}")
    weft("info", "create", "idea", "--content", "1", "--draft")
    assert [one["id"] for one in weft.json("info", "list")] == ["ada", "person"]
    assert [one["id"] for one in weft.json("info", "list", "--type", "schema")] == ["person"]
    assert [one["id"] for one in weft.json("info", "list", "--all")] == ["ada", "idea", "person"]
    assert weft("info", "list").out.startswith("ada\tactive")


def test_thinking_that_a_model_cannot_be_told_is_refused_before_it_is_written(weft: Shell) -> None:
    assert weft("provider", "create", "vendor", "--type", "openai", "--key-env", "VENDOR_KEY").code == 0
    assert weft("provider", "create", "claudes", "--type", "anthropic", "--base-url", "http://127.0.0.1:9").code == 0

    def make(name: str, backend: str, provider: str, thinking: str) -> Answer:
        return weft(
            "model", "create", name, "--backend", backend, "--provider", provider, "--set", f"thinking={thinking}"
        )

    assert "does not think" in make("plain", "gpt-4o", "vendor", "high").err
    assert "takes no budget" in make("sized", "gpt-5", "vendor", "4000").err
    assert weft.json("model", "list") == []
    assert make("deep", "claude-sonnet-4-5", "claudes", "4000").code == 0
    assert make("new", "gpt-11", "vendor", "high").code == 0
    refused = weft("model", "configure", "deep", "--max-tokens", "4000")
    assert (refused.code != 0, "no less than maxTokens" in refused.err) == (True, True)
    budget = 'thinkingConfig={"budgetTokens": 4000}'
    words = ("--backend", "claude-sonnet-4-5", "--provider", "claudes", "--max-tokens", "4000", "--set", budget)
    assert "no less than maxTokens" in weft("model", "create", "spent", *words).err
    assert weft("model", "configure", "new", "--backend", "gpt-4o").code != 0
    assert weft("model", "configure", "new", "--backend", "gpt-4o", "--set", "thinking=null").code == 0
    assert weft("model", "configure", "new", "--set", "api=chat").code == 0
    assert "cannot be told '1h'" in weft("model", "configure", "new", "--set", "promptCache=1h").err
    assert weft("model", "configure", "deep", "--set", "promptCache=1h").code == 0
    assert weft("session", "create", "notes", "--model", "new").code == 0
    assert "protocol\topenai-chat\tprovider vendor" in weft("config", "notes").out
