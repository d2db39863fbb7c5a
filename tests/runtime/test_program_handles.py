"""`ledger.programs[name]`: every kind is invoked by its handle, awaited and blocking, with the same verbs."""

import asyncio
import inspect
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

import weft
import weft.aio
from tests.ledger.histories import problems
from tests.runtime.inference.asking import CANARY
from tests.runtime.invoking import VARIABLES, stock
from tests.runtime.scripted import CHAT_STREAM, Script, Scripted, answer, chat, scripted
from weft.aio.open_ledger import AsyncLedgerPrograms, AsyncProgramHandle
from weft.kernel.authority import Principal, PrincipalKind, rights
from weft.kernel.errors import (
    CredentialMissing,
    CredentialWithheld,
    InvalidInput,
    NotAllowed,
    NotFound,
    StoreError,
    Unsupported,
    VersionConflict,
)
from weft.programs import Programs
from weft.runtime.egress.credentials import Keyring
from weft.runtime.egress.execution_context import acting, context_for
from weft.runtime.sandbox.bubblewrap import Sandbox
from weft.surfaces.opening import environment_variable
from weft.surfaces.program_handles import LedgerPrograms, LoopThread, ProgramHandle

MODELS = answer(200, {"object": "list", "data": [{"id": "m-1"}, {"id": "m-2"}]})


class Bench:
    """The programs of an open ledger in one of the two forms, and a scripted server."""

    def __init__(self, programs: Any, ledger: Any, server: Scripted, *, is_blocking: bool) -> None:
        self.programs, self.ledger, self.server, self.is_blocking = programs, ledger, server, is_blocking

    async def do(self, call: Callable[[], Any]) -> Any:
        """Call a verb: a blocking one in a thread, so that the server can answer it."""
        return await asyncio.to_thread(call) if self.is_blocking else await call()

    async def create(self, kind: str, name: str, config: dict[str, Any]) -> None:
        await self.do(lambda: self.programs.create(kind, name, config))

    async def invoke(self, name: str, *message: Any, **arguments: Any) -> Any:
        return await self.do(lambda: self.programs[name].invoke(*message, **arguments))


Body = Callable[[Bench], Awaitable[None]]
Form = Callable[..., None]


async def awaited(path: Path, body: Body, server: Scripted, variable: Any) -> None:
    async with weft.aio.open(path, variable=variable) as ledger:
        await ledger._pool.run(lambda: stock(ledger.programs._sync, server.url))
        await body(Bench(ledger.programs, ledger, server, is_blocking=False))


async def blocking(path: Path, body: Body, server: Scripted, variable: Any) -> None:
    ledger = await asyncio.to_thread(weft.open, path, variable=variable)
    try:
        await asyncio.to_thread(stock, ledger.programs, server.url)
        await body(Bench(ledger.programs, ledger, server, is_blocking=True))
    finally:
        await asyncio.to_thread(ledger.close)


@pytest.fixture(params=[awaited, blocking], ids=["awaited", "blocking"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Form:
    def run_body(body: Body, *scripts: Script, variable: Any = VARIABLES.get) -> None:
        async def main() -> None:
            async with scripted(*scripts or (chat(),)) as server:
                await request.param(tmp_path / "ledger.db", body, server, variable)

        asyncio.run(main())
        with weft.open(tmp_path / "ledger.db") as ledger:
            assert problems(ledger) == []

    return run_body


# --- every kind -------------------------------------------------------------------------------------------------


def test_a_model_answers(run: Form) -> None:
    async def body(bench: Bench) -> None:
        reply = await bench.invoke("fast", "hello", situation="coding")
        assert (reply.text, reply.kind, reply.result["session"]) == ("Hello there", "model", "model:fast")
        assert bench.server.received[-1].headers["authorization"] == f"Bearer {CANARY}"
        assert bench.server.received[-1].body["max_completion_tokens"] == 90

    run(body)


HISTORY = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "And now?"},
]


def test_a_model_takes_a_list_of_messages_and_streams_its_answer(run: Form) -> None:
    async def body(bench: Bench) -> None:
        pieces: list[str] = []
        reply = await bench.invoke("fast", HISTORY, on_token=lambda token: pieces.append(token.text))
        again = await bench.invoke("fast", HISTORY)
        assert (reply.text, "".join(pieces), again.text) == ("Hello there", "Hello there", "Hello there")
        for received in bench.server.received:
            assert [(one["role"], one["content"]) for one in received.body["messages"]] == [
                (one["role"], one["content"]) for one in HISTORY
            ]
        assert reply.result["session"].startswith("model:fast:")
        assert reply.result["session"] != again.result["session"]
        single = await bench.invoke("fast", [{"role": "user", "content": "Hi"}])
        assert single.result["session"] == "model:fast"
        for wrong in ([], HISTORY[:3], [*HISTORY[1:3], HISTORY[0], HISTORY[3]]):
            with pytest.raises(InvalidInput):
                await bench.invoke("fast", wrong)

    run(body, CHAT_STREAM, chat(), chat())


def test_a_message_narrows_the_permissions_of_its_turn(run: Form) -> None:
    async def body(bench: Bench) -> None:
        permissions = {"tools": {"allow": ["read", "shell"]}, "sandbox": {"network": True}}
        await bench.do(lambda: bench.programs.create_session("main", model="fast", config={"permissions": permissions}))
        limits = {"allow": ["read", "edit"], "deny": ["read(.env)"], "sandbox": "read-only"}
        reply = await bench.invoke("main", "hello", credentials=["THERE_KEY"], **limits)
        granted = (await bench.do(lambda: bench.ledger.turn(reply.sent.turn.id))).permissions_granted
        assert granted["layers"][-1] == {
            "layer": "message", "source": granted["layers"][-1]["source"],
            "allow": ["read", "edit"], "deny": ["read(.env)"],
        }  # fmt: skip
        assert (granted["credentials"], granted["sandbox"]) == (
            ["THERE_KEY"], {"files": "read-only", "network": False}
        )  # fmt: skip
        for refused in ({"sandbox": "none"}, {"allow": ["a:b"]}, {"credentials": 5}):
            with pytest.raises(InvalidInput):
                await bench.invoke("main", "hello", **refused)
        for name in ("main", "fast"):
            with pytest.raises(CredentialWithheld):
                await bench.invoke(name, "hello", credentials=[])

    run(body, chat(), chat())


def test_a_session_answers_with_its_model_or_another(run: Form) -> None:
    async def body(bench: Bench) -> None:
        await bench.do(lambda: bench.programs.create_session("main", model="fast"))
        assert (await bench.invoke("main", "hello")).text == "Hello there"
        result = (await bench.invoke("main", "again", model="other")).result
        assert (result["model"], result["modelId"]) == ("other", "m-1")
        assert bench.server.received[-1].body["model"] == "m-2"
        contents = [item["content"] for item in bench.server.received[-1].body["messages"]]
        assert contents == ["hello", "Hello there", "again"]

    run(body)


def test_an_answer_is_handed_over_as_it_comes(run: Form) -> None:
    async def body(bench: Bench) -> None:
        pieces: list[str] = []
        reply = await bench.invoke("fast", "hello", on_token=lambda token: pieces.append(token.text))
        assert len(pieces) > 1
        assert "".join(pieces) == reply.text == "Hello there"

    run(body, CHAT_STREAM)


def test_an_agent_answers_and_works_on_its_task(run: Form) -> None:
    async def body(bench: Bench) -> None:
        await bench.create("agent", "ada", {"soul": "You greet.", "defaultModel": "fast"})
        assert (await bench.invoke("ada", "hello")).result["session"] == "ada:main"
        spec = {"successCriteria": [{"type": "contains", "text": "there"}]}
        await bench.create("task", "greet", {"title": "Greet", "spec": spec})
        done = await bench.invoke("ada", task="greet")
        assert (done.program, done.result["state"], done.text) == ("greet", "completed", "Hello there")

    run(body)


def test_a_task_has_its_assignee_work(run: Form) -> None:
    async def body(bench: Bench) -> None:
        await bench.create("agent", "ada", {"defaultModel": "fast"})
        await bench.create("task", "greet", {"title": "Greet", "assignee": "ada"})
        assert (await bench.invoke("greet")).result["assignee"] == "ada"
        assert (await bench.do(bench.programs["greet"].get)).state == "completed"

    run(body)


def test_code_runs(run: Form, sandbox: Sandbox) -> None:
    async def body(bench: Bench) -> None:
        source = "def main(input):\n    return input['n'] * 2"
        await bench.create("code", "double", {"source": source, "language": "python"})
        assert (await bench.invoke("double", input={"n": 21})).result == {"result": 42}

    run(body)


def test_a_provider_lists_its_models(run: Form) -> None:
    async def body(bench: Bench) -> None:
        assert (await bench.invoke("there")).result == {"models": ["m-1", "m-2"]}

    run(body, MODELS)


def test_information_answers(run: Form) -> None:
    async def body(bench: Bench) -> None:
        await bench.create("information", "ada", {"infoType": "fact", "content": {"born": 1815}})
        assert (await bench.invoke("ada")).result == {"born": 1815}
        assert (await bench.invoke("ada", input={"path": "$.born"})).result == [1815]
        assert (await bench.invoke("ada")).text is None

    run(body)


def test_a_person_is_asked(run: Form) -> None:
    async def body(bench: Bench) -> None:
        shown: list[tuple[str, str]] = []
        await bench.create("human", "ann", {"permissions": ["approve"]})
        asked = await bench.invoke("ann", "May it?", asks=True, show=lambda *words: shown.append(words))
        assert (asked.result["status"], shown) == ("pending", [("ann", "May it?")])
        with pytest.raises(Unsupported, match="no terminal"):
            await bench.invoke("ann", "It is done")
        requests = await bench.do(lambda: bench.programs.requests("ann"))
        assert [request.text for request in requests] == ["May it?", "It is done"]  # kept all the same

    run(body)


# --- the other verbs --------------------------------------------------------------------------------------------


def test_a_handle_has_the_verbs_of_all_kinds(run: Form) -> None:
    async def body(bench: Bench) -> None:
        handle = bench.programs["fast"]
        assert (await bench.do(lambda: handle.config))["modelId"] == "m-1"
        changed = await bench.do(lambda: handle.change({"temperature": 0}, expected=1, reason="calm"))
        assert (changed.version, changed.config["temperature"]) == (2, 0)
        (difference,) = await bench.do(handle.diff)
        assert (difference.path, difference.before, difference.after) == ("temperature", 0.5, 0)
        with pytest.raises(VersionConflict):
            await bench.do(lambda: handle.configure({"modelId": "x", "provider": "there"}, expected=1))
        await bench.do(lambda: handle.configure({"modelId": "x", "provider": "there"}))
        assert (await bench.do(lambda: handle.revert(1))).config["temperature"] == 0.5
        assert [change.version for change in await bench.do(handle.history)] == [4, 3, 2, 1, 1]
        assert (await bench.do(handle.deprecate)).state == "deprecated"
        assert (await bench.do(handle.delete)).deleted
        with pytest.raises(NotFound):
            await bench.do(handle.get)
        draft = bench.programs["draft"]
        await bench.do(lambda: bench.programs.create("code", "draft", {"source": "1"}, draft=True))
        assert (await bench.do(draft.publish)).state == "published"

    run(body)


def test_a_handle_takes_an_address_with_a_version(run: Form) -> None:
    async def body(bench: Bench) -> None:
        await bench.do(lambda: bench.programs["fast"].change({"modelId": "m-9"}))
        await bench.invoke("@(fast:1)", "hello")
        await bench.invoke("fast", "hello")
        assert [request.body["model"] for request in bench.server.received] == ["m-1", "m-9"]

    run(body)


def described(owner: type) -> dict[str, tuple[list[str], str | None]]:
    members = {name: inspect.getattr_static(owner, name) for name in dir(owner) if not name.startswith("_")}
    functions = {name: getattr(member, "fget", member) for name, member in members.items()}
    return {
        name: (
            [str(parameter) for parameter in inspect.signature(function).parameters.values()],
            function.__doc__,
        )
        for name, function in functions.items()
    }


def test_both_forms_of_a_handle_have_the_same_verbs() -> None:
    assert described(ProgramHandle) == described(AsyncProgramHandle)
    ours, theirs = described(LedgerPrograms)["invoke"], described(AsyncLedgerPrograms)["invoke"]
    assert ours == theirs
    verbs = {name for name in described(Programs) if hasattr(ProgramHandle, name)}
    for name in verbs - {"get"}:
        parameters = [word for word in described(Programs)[name][0] if word != "name: 'str'"]
        assert parameters == described(ProgramHandle)[name][0], name


# --- who acts, and with which variables -------------------------------------------------------------------------


def test_without_a_function_no_variable_is_set(run: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THERE_KEY", CANARY)

    async def body(bench: Bench) -> None:
        with pytest.raises(CredentialMissing):
            await bench.invoke("fast", "hello")
        assert bench.server.received == []

    run(body, variable=None)


def test_a_context_is_an_argument_or_that_of_the_caller(run: Form) -> None:
    person = context_for(Principal(PrincipalKind.HUMAN, "tester"), keyring=Keyring((), VARIABLES.get))
    narrow = person.child(rights=rights(["provider:*"]))

    async def body(bench: Bench) -> None:
        with pytest.raises(NotAllowed):
            await bench.invoke("fast", "hello", context=narrow)
        with acting(narrow), pytest.raises(NotAllowed):
            await bench.invoke("fast", "hello")
        with acting(narrow):
            assert (await bench.invoke("fast", "hello", context=person)).text == "Hello there"
        assert (await bench.invoke("fast", "hello")).text == "Hello there"

    run(body)


def test_an_agent_invokes_with_what_its_permissions_leave(run: Form) -> None:
    async def body(bench: Bench) -> None:
        await bench.create("agent", "ada", {"permissions": {"credentials": []}})
        acting_as = bench.programs.acting_as("ada")
        with pytest.raises(Exception, match="was not given it"):
            await bench.do(lambda: acting_as["fast"].invoke("hello"))
        await bench.create("human", "ann", {})
        assert (await bench.do(lambda: bench.programs.acting_as("ann")["fast"].invoke("hello"))).text == "Hello there"

    run(body)


def test_keys_are_looked_up_in_the_environment_unless_that_is_switched_off(
    run: Form, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)

    async def body(bench: Bench) -> None:
        assert (await bench.invoke("fast", "hello")).text == "Hello there"

    run(body, variable=environment_variable)
    assert signature(weft.open).parameters["variable"].default is environment_variable
    assert signature(weft.aio.open).parameters["variable"].default is environment_variable


def test_variable_must_be_a_function() -> None:
    with pytest.raises(InvalidInput, match="variable"):
        weft.open(":memory:", variable={"A": "b"})  # type: ignore[arg-type]


# --- the thread behind the blocking form ------------------------------------------------------------------------


def test_a_closed_ledger_invokes_nothing_and_leaves_no_thread() -> None:
    ledger = weft.open(":memory:")
    ledger.programs.create("information", "ada", {"infoType": "fact", "content": 1})
    assert ledger.programs["ada"].invoke().result == 1
    assert "weft-invoke" in {thread.name for thread in threading.enumerate()}
    ledger.close()
    assert "weft-invoke" not in {thread.name for thread in threading.enumerate()}
    with pytest.raises(StoreError, match="closed"):
        ledger.programs["ada"].invoke()


def test_a_blocking_call_inside_of_an_invocation_is_refused_and_does_not_wait_for_ever(run: Form) -> None:
    async def body(bench: Bench) -> None:
        errors: list[BaseException] = []

        def show(*_: str) -> None:
            try:
                bench.programs["there"].invoke()
            except InvalidInput as error:
                errors.append(error)

        await bench.create("human", "ann", {})
        if bench.is_blocking:
            await bench.invoke("ann", "hello", show=show)
            assert "inside of an invocation" in str(errors[0])

    run(body)


def test_closing_the_loop_cancels_what_still_runs() -> None:
    loop, begun = LoopThread("test-loop"), threading.Event()
    errors: list[BaseException] = []

    async def wait_for_ever() -> None:
        begun.set()
        await asyncio.Event().wait()

    def caller() -> None:
        with pytest.raises(asyncio.CancelledError) as cancelled:
            loop.run(wait_for_ever)
        errors.append(cancelled.value)

    thread = threading.Thread(target=caller)
    thread.start()
    begun.wait()
    loop.close()
    thread.join()
    assert len(errors) == 1


def test_an_interrupted_caller_cancels_the_work_and_waits_for_its_end() -> None:
    loop, begun, ended = LoopThread("test-loop"), threading.Event(), threading.Event()

    async def wait_for_ever() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    def interrupt() -> None:
        begun.wait()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a process that runs tests may ignore it
    try:
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            loop.run(wait_for_ever)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.is_set()
    loop.close()


def test_many_threads_invoke_at_once(run: Form) -> None:
    async def body(bench: Bench) -> None:
        replies = await asyncio.gather(*(bench.invoke("fast", f"hello {i}") for i in range(6)))
        assert [reply.text for reply in replies] == ["Hello there"] * 6

    run(body)


def test_opening_a_ledger_loads_neither_programs_nor_what_asks_models() -> None:
    program = (
        "import sys, weft\nledger = weft.open(':memory:')\n"
        "print(*(name for name in sys.modules if name.startswith(('weft.programs', 'weft.runtime', 'asyncio'))))"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert re.sub(r"\s+", "", shown.stdout) == ""


def test_a_turn_names_its_vendor_and_the_provider_that_was_asked(run: Form) -> None:
    async def body(bench: Bench) -> None:
        url = bench.server.url
        await bench.create("provider", "ours", {"providerType": "openai", "baseUrl": url, "api": "chat"})
        await bench.create("model", "theirs", {"modelId": "m-1", "provider": "ours"})
        known = (await bench.invoke("theirs", "hello")).sent.turn.id
        unknown = (await bench.invoke("fast", "hello")).sent.turn.id
        turns = [await bench.do(partial(bench.ledger.turn, id)) for id in (known, unknown)]
        assert [(turn.provider, turn.provider_program) for turn in turns] == [("openai", "ours"), (None, "there")]
        report = await bench.do(lambda: bench.ledger.usage.report(by="provider"))
        assert sorted(row.key for row in report.rows) == ["(unknown)", "openai"]

    run(body, chat(), chat())
