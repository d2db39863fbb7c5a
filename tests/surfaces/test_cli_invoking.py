"""Programs invoked on the command line, against a scripted server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.inference.asking import CANARY
from tests.runtime.scripted import CHAT_STREAM, MESSAGE, Scripted, answer, chat, chat_saying, failure, message_stream
from tests.sandbox import machine_sandbox
from tests.surfaces.serving import serving
from tests.surfaces.shell import Shell
from weft.runtime.sandbox.bubblewrap import Sandbox

ON_DISK = True  # no sandbox takes a workspace in memory


@pytest.fixture
def server() -> Iterator[Scripted]:
    with serving(chat()) as found:
        yield found


@pytest.fixture(scope="session")
def sandbox() -> Sandbox:
    return machine_sandbox()


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THERE_KEY", CANARY)
    monkeypatch.setenv("USER", "tester")


def stock(weft: Shell, url: str) -> None:
    for line in (
        f"provider create there --type openai-compatible --base-url {url} --key-env THERE_KEY",
        "model create claude-fast --backend m-1 --provider there",
        "model configure claude-fast --temperature 0 --situation coding",
        "model create gemini-flash --backend m-2 --provider there",
    ):
        made = weft(*line.split())
        assert made.code == 0, made.err


def test_the_examples_that_ask_a_model_work_as_written(weft: Shell, server: Scripted) -> None:
    stock(weft, server.url)
    found = weft("model", "invoke", "claude-fast", "--message", "Hello")
    assert (found.code, found.out) == (0, "Hello there\n")
    session = weft.json("session", "create", "--model", "claude-fast")["id"]
    assert weft("session", "send", session, "Hello").out == "Hello there\n"
    assert weft("session", "send", session, "What does gemini think?", "--model", "gemini-flash").code == 0
    assert [item.body["model"] for item in server.received] == ["m-1", "m-1", "m-2"]
    shown = weft("session", "history", session).out
    assert [line for line in shown.splitlines() if line.startswith("  ")] == [
        "  Hello", "  Hello there", "  What does gemini think?", "  Hello there",
    ]  # fmt: skip
    assert weft("verify").code == 0


def test_a_gateway_is_asked_with_its_token_and_the_providers_key(weft: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDFLARE_ACCOUNT_ID", "account")
    monkeypatch.setenv("CLOUDFLARE_GATEWAY_ID", "gate")
    monkeypatch.setenv("GATE_TOKEN", "sk-canary-gateway")
    with serving(message_stream()) as server:
        assert weft("provider", "create", "cf-gateway", "--type", "cloudflare-ai-gateway").code == 0
        named = ("--set", "token=${GATE_TOKEN}", "--key-env", "THERE_KEY")
        assert weft("provider", "configure", "cf-gateway", "--base-url", server.url, *named).code == 0
        created = "model create claude-fast --backend claude-sonnet-4-5 --provider cf-gateway"
        assert weft(*created.split()).code == 0
        found = weft("model", "invoke", "claude-fast", "--message", "Hello")
        assert (found.code, found.out) == (0, "Hello there\n"), found.err
        (received,) = server.received
    assert received.path.startswith("/v1/account/gate/anthropic/v1/messages")
    assert received.headers["cf-aig-authorization"] == "Bearer sk-canary-gateway"
    assert received.headers["x-api-key"] == CANARY


def test_an_answer_is_shown_as_it_comes(weft: Shell) -> None:
    with serving(CHAT_STREAM) as server:
        stock(weft, server.url)
        found = weft("model", "invoke", "claude-fast", "--message", "Hello", "--stream")
        assert (found.code, found.out) == (0, "Hello there\n")
        told = weft.json("model", "invoke", "claude-fast", "--message", "-", "--stream", stdin="Hello")
        assert told["result"]["text"] == "Hello there"


def test_a_sessions_history_has_the_shape_of_the_log(weft: Shell, server: Scripted) -> None:
    stock(weft, server.url)
    session = weft.json("session", "create", "talk", "--model", "claude-fast")
    assert weft.json("session", "history", "talk") == []
    assert "weft session send" in weft("session", "history", "talk").err
    assert weft("session", "send", "talk", "Hello", "--situation", "coding").code == 0
    first, second = weft.json("session", "history", "talk")
    assert first.keys() == {"uuid", "sessionId", "timestamp", "message"}
    assert first["message"] == {"role": "user", "content": "Hello"}
    assert second["parentUuid"] == first["uuid"]
    assert second["sessionId"] == first["sessionId"] == session["ulid"]
    assert second["message"] == {
        "role": "assistant",
        "content": "Hello there",
        "model": "m-1",
        "usage": {"inputTokens": 12, "outputTokens": 5, "cacheReadTokens": 8, "cacheWriteTokens": 0},
    }
    assert (second["requestId"], second["provider"], second["situation"]) == ("req-7", "there", "coding")
    assert second["latencyMs"] >= 0
    exported = weft("export", "talk", "--as", "jsonl").out
    assert '"situation":"coding"' in exported


def test_a_failure_is_told_with_who_must_act_and_no_key(weft: Shell, folder: Path) -> None:
    with serving(failure(401, f"key {CANARY} is wrong")) as server:
        stock(weft, server.url)
        found = weft("model", "invoke", "claude-fast", "--message", "Hello")
    assert (found.code, found.out) == (8, "")
    assert CANARY not in found.err
    for file in folder.rglob("*"):
        assert not file.is_file() or CANARY.encode() not in file.read_bytes(), file


def test_what_cannot_be_asked_is_refused_with_a_hint(weft: Shell, server: Scripted) -> None:
    stock(weft, server.url)
    assert weft("model", "invoke", "claude-fast").code == 5
    assert weft("model", "invoke", "nobody", "--message", "x").code == 3
    assert weft("model", "invoke", "claude-fast", "--message", "x", "--situation", "cooking").code == 5
    assert weft("session", "send", "nobody", "x").code == 3
    weft.json("session", "create", "bare")
    bare = weft("session", "send", "bare", "x")
    assert bare.code == 4
    assert "weft session configure bare --model NAME" in bare.err
    assert weft("session", "send", "bare", "x", "--model", "claude-fast").code == 0
    assert weft("session", "complete", "bare").code == 0
    assert weft("session", "send", "bare", "x", "--model", "claude-fast").code == 4
    assert len(server.received) == 1


def test_the_person_at_the_terminal_is_in_the_chain(weft: Shell, server: Scripted) -> None:
    stock(weft, server.url)
    weft.json("agent", "create", "ada", "--model", "claude-fast")
    turn = weft.json("model", "invoke", "claude-fast", "--message", "x", "--as", "ada")["result"]["turn"]
    shown = weft.json("show", turn)
    assert "agent:ada" in str(shown)


def test_a_provider_lists_its_models(weft: Shell) -> None:
    with serving(answer(200, {"data": [{"id": "m-1"}, {"id": "m-2"}]}), answer(200, {"data": []})) as server:
        stock(weft, server.url)
        assert weft("provider", "models", "there").out == "m-1\nm-2\n"
        assert weft.json("program", "invoke", "there")["result"] == {"models": []}
        assert "has no models" in weft("provider", "models", "there").err


def test_any_program_is_invoked_by_one_command(weft: Shell, server: Scripted, sandbox: Sandbox) -> None:
    stock(weft, server.url)
    weft.json("info", "create", "ada", "--content", '{"born": 1815}')
    weft.json("code", "create", "twice", "--language", "python", "--source", "def main(input):\n    return input * 2")
    assert weft("program", "invoke", "claude-fast", "--message", "Hello").out == "Hello there\n"
    assert weft.json("program", "invoke", "ada", "--input", '{"path": "$.born"}')["result"] == [1815]
    assert weft.json("program", "invoke", "@(twice)", "--input", "4")["result"] == {"result": 8}
    assert weft("program", "invoke", "nobody").code == 3


def test_code_that_fails_is_shown_with_its_lines_and_what_it_printed(weft: Shell, sandbox: Sandbox) -> None:
    source = "def main(input):\n    print('one\\x1b[31m')\n    return input * 2"
    weft.json("code", "create", "twice", "--language", "python", "--source", source)
    failed = weft("program", "invoke", "twice", "--input", "null")
    assert failed.code == 8
    lines = failed.err.splitlines()
    assert lines[0].startswith("weft: code 'twice': Traceback")
    assert any(line.startswith("  TypeError") for line in lines)
    assert "  printed: one\\x1b[31m" in lines
    assert weft("program", "invoke", "twice", "--input", "null", "--json").error["printed"] == "one\x1b[31m\n"


def test_people_are_told_and_asked_where_they_can_see_it(weft: Shell) -> None:
    weft.json("human", "create", "bln", "--permission", "approve")
    told = weft("human", "notify", "bln", "It is done")
    assert told.err == "to bln: It is done\n"
    assert weft.json("human", "ask", "bln", "May it go out?", "--data", "[1]")["status"] == "pending"
    assert [one["status"] for one in weft.json("human", "requests", "bln")] == ["told", "pending"]


def test_a_task_is_run_to_its_report(weft: Shell, server: Scripted) -> None:
    stock(weft, server.url)
    weft.json("agent", "create", "researcher", "--prompt", "You are...", "--model", "claude-fast")
    short = '{"type": "word_count", "max": 3}'
    weft.json("task", "create", "Greet", "--name", "greet", "--assignee", "researcher", "--criterion", short)
    assert weft("agent", "assign", "researcher", "greet").code == 0
    done = weft("task", "run", "greet")
    assert done.code == 0
    assert done.out.splitlines()[0] == "task greet is completed"
    assert done.out.splitlines()[2] == "  held word_count: the final answer has 2 words, wanted: at most 3"
    long = '{"type": "word_count", "min": 30}'
    weft.json("task", "create", "Tell", "--name", "tell", "--assignee", "researcher", "--criterion", long)
    failed = weft("task", "run", "tell", "--json")
    assert failed.code == 1
    assert failed.json["criteria"][0] == {
        "criterion": 0,
        "type": "word_count",
        "passed": False,
        "observed": 2,
        "words": "word_count: the final answer has 2 words, wanted: at least 30",
    }
    assert weft("agent", "reset", "researcher").code == 0
    assert weft("program", "invoke", "researcher", "--message", "Hello").out == "Hello there\n"
    assert weft("verify").code == 0


def test_a_command_among_the_criteria_is_run_in_the_sandbox(weft: Shell, folder: Path, sandbox: Sandbox) -> None:
    criterion = '{"type": "command", "command": "test -s notes.md"}'
    weft.json("task", "create", "Write", "--name", "write", "--criterion", criterion)
    assert weft("task", "start", "write").code == 0
    refused = weft("task", "complete", "write")
    assert refused.code == 4
    assert "ended with 1" in refused.err
    (folder / "notes.md").write_text("x")
    assert weft("task", "complete", "write").out.startswith("task write is completed\n  held command: ")


def test_whoever_waits_is_told_of_tries_that_failed(weft: Shell) -> None:
    with serving(failure(429, f"slow down, {CANARY}"), chat()) as server:
        stock(weft, server.url)
        found = weft("model", "invoke", "claude-fast", "--message", "Hello")
    assert (found.code, found.out) == (0, "Hello there\n")
    assert "slow down" in found.err
    assert "; claude-fast is asked again in 0." in found.err
    assert CANARY not in found.err


def test_a_context_says_how_many_tokens_it_is_and_who_counted_them(weft: Shell) -> None:
    counted, broken = answer(200, {"input_tokens": 1234}), failure(404, "no such place")
    with serving(answer(200, MESSAGE), counted, counted, broken) as server:
        created = f"provider create there --type anthropic --base-url {server.url} --key-env THERE_KEY"
        assert weft(*created.split()).code == 0
        assert weft(*"model create fast --backend claude-x --provider there".split()).code == 0
        assert weft("send", "Hello", "--model", "fast", "--session", "main").code == 0
        assert weft("session", "configure", "main", "--set", "defaultModel=fast").code == 0
        plain = weft("context").out.splitlines()[0]
        assert plain.startswith("2 messages, ")
        assert plain.endswith(" tokens (estimated)")
        assert len(server.received) == 1
        assert weft("context", "--count").out.splitlines()[0] == "2 messages, 1,234 tokens (counted by there)"
        asked = server.received[1]
        assert (asked.path, asked.headers["x-api-key"]) == ("/v1/messages/count_tokens", CANARY)
        told = weft.json("context", "--count")
        assert (told["tokens"], told["counted_by"], len(told["messages"])) == (1234, "there", 2)
        failed = weft("context", "--count")
    assert failed.out.splitlines()[0] == plain
    assert "the tokens are estimated: there: 404: no such place" in failed.err
    assert weft.json("context", "main")["tokens"] is None
    assert weft("context", "main", "--count").code == 2


def test_an_answer_by_a_schema_is_configured_sent_and_held_to(weft: Shell) -> None:
    schema = '{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}'
    fitting, wrong = chat_saying({"content": '{"city": "Paris"}'}), chat_saying({"content": "Paris"})
    with serving(fitting, wrong, chat()) as server:
        stock(weft, server.url)
        assert weft("model", "configure", "claude-fast", "--set", f"responseSchema={schema}").code == 0
        found = weft("send", "Which?", "--model", "claude-fast", "--session", "main", "--quiet")
        assert (found.code, found.out) == (0, '{"city": "Paris"}\n'), found.err
        assert server.received[0].body["response_format"]["type"] == "json_schema"
        unfit = weft("send", "Which?", "--model", "claude-fast", "--session", "main")
        assert (unfit.code, len(server.received)) == (8, 2)
        assert "there: the answer is not the JSON that its schema asks for" in unfit.err
        plain = weft("send", "Hi", "--model", "claude-fast", "--session", "main", "--set", "responseSchema=null")
        assert plain.code == 0, plain.err
        assert "response_format" not in server.received[2].body
        shown = weft("config", "main", "--model", "claude-fast").out
        assert any(line.startswith("responseSchema\t") for line in shown.splitlines())
        assert weft("verify").code == 0


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ('{"type": "object", "properties": 5}', "is no JSON Schema"),
        ('{"type": "string"}', "is not object"),
        ("[]", "is no object"),
        ('{"type": "object"}', "claude-3-5-haiku-latest takes no schema of its answer"),
    ],
)
def test_a_schema_that_cannot_be_sent_is_refused_when_it_is_configured(weft: Shell, schema: str, why: str) -> None:
    assert weft("provider", "create", "claudes", "--type", "anthropic", "--base-url", "http://127.0.0.1:9").code == 0
    named = ("--backend", "claude-3-5-haiku-latest", "--provider", "claudes", "--set", f"responseSchema={schema}")
    refused = weft("model", "create", "old", *named)
    assert refused.code != 0
    assert why in refused.err
