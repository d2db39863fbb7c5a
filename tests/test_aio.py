"""The asynchronous mirror has the same verbs with the same types, keeps the same promises, and blocks no loop."""

import asyncio
import inspect
import re
import threading
from collections.abc import Awaitable, Callable, Coroutine
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

import weft
import weft.aio
from scripts import generate_aio
from tests.ledger.histories import grow_at_once, problems, queries
from tests.programs.similarity.test_similarity import Words
from weft.aio import graph, ledger, objects, programs
from weft.kernel.errors import InvalidInput, LedgerMissing, SessionBusy, StoreError, VersionConflict
from weft.store.sqlite import SqliteStore
from weft.surfaces import opening

MODULES = {module.__name__: module for module in (graph, ledger, objects, programs)}
MIRRORS: dict[str, type] = {
    name: getattr(MODULES[f"weft.aio.{home}"], f"Async{name}")
    for home, names in generate_aio.HOMES.items()
    for name in names
}
Body = Callable[[weft.aio.AsyncLedger], Awaitable[None]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def run(path: Path, body: Body, **options: Any) -> None:
    async def main() -> None:
        async with weft.aio.open(path, **options) as ledger:
            await body(ledger)

    asyncio.run(main())


# --- it is the same ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", generate_aio.ABOUT)
def test_the_mirror_is_what_the_synchronous_api_makes_it(name: str) -> None:
    written = (generate_aio.SOURCE / f"{name}.py").read_text()
    assert generate_aio.module(name) == written, "run `make docs`"


def public(owner: type) -> dict[str, Any]:
    return {name: inspect.getattr_static(owner, name) for name in dir(owner) if not name.startswith("_")}


def signature(member: Any) -> tuple[list[tuple[str, Any, Any]], str]:
    function: Any = getattr(member, "fget", None) or getattr(member, "func", None) or member
    found = inspect.signature(function)
    given = [(p.name, p.kind, str(p.annotation)) for p in found.parameters.values() if p.name != "threads"]
    return given, str(found.return_annotation)


def mirrored(annotation: str) -> str:
    """The same type with mirrors in place of what they mirror."""
    names = "|".join(generate_aio.MIRRORED)
    return re.sub(rf"\b({names})\b", r"Async\1", annotation.replace("LedgerBase", "Ledger"))


def awaited(owner: str, name: str, member: Any, returns: str) -> str:
    """What the mirror must answer where the other answers `returns`."""
    returns = mirrored(returns)
    if returns.startswith("Iterator["):
        return f"Async{returns}"
    if isinstance(member, property) and name not in generate_aio.AT_HAND.get(owner, ()):
        return f"Coroutine[Any, Any, {returns}]"
    return returns


@pytest.mark.parametrize("owner", MIRRORS)
def test_every_verb_has_its_mirror_with_the_same_arguments_and_types(owner: str) -> None:
    ours, theirs = public(generate_aio.MIRRORED[owner]), public(MIRRORS[owner])
    extra = {*generate_aio.ATTRIBUTES.get(owner, ()), *generate_aio.ADDED.get(owner, ())}
    assert theirs.keys() == ours.keys() | extra
    for name, member in ours.items():
        given, returns = signature(member)
        arguments, answers = signature(theirs[name])
        assert [(n, kind, mirrored(note)) for n, kind, note in given] == arguments, name
        assert answers == awaited(owner, name, member, returns), name
        is_plain = answers.startswith(("AsyncIterator", "Coroutine")) or isinstance(member, property | cached_property)
        is_plain = is_plain or name in generate_aio.AT_HAND.get(owner, ())
        assert inspect.iscoroutinefunction(theirs[name]) is not is_plain, name


@pytest.mark.parametrize("name", ["open", *generate_aio.FUNCTIONS])
def test_so_has_every_function(name: str) -> None:
    ours, theirs = signature(getattr(opening, name)), signature(getattr(weft.aio, name))
    assert [word for word, *_ in ours[0]] == [word for word, *_ in theirs[0]]
    assert name in weft.aio.__all__
    functions = {word for word in weft.__all__ if inspect.isfunction(getattr(opening, word, None))}
    assert functions - {"context_from_env"} == {"open", *generate_aio.FUNCTIONS}  # it opens nothing


def test_every_mirror_has_its_place() -> None:
    assert MIRRORS.keys() == generate_aio.MIRRORED.keys()
    assert weft.aio.AsyncPrograms is programs.AsyncPrograms
    for name in generate_aio.OVER_A_LEDGER:
        given, _ = signature(generate_aio.MIRRORED[name].__init__)  # type: ignore[misc]
        arguments, _ = signature(MIRRORS[name].__init__)  # type: ignore[misc]
        assert [(n, kind, mirrored(note)) for n, kind, note in given] == arguments


def test_attributes_of_objects_are_mirrored(path: Path) -> None:
    with weft.open(path) as ledger, ledger.begin_turn(session="main") as writer:
        attributes = {"TurnWriter": vars(writer), "ImportWriter": vars(ledger.imports.writer("x", 1))}
        attributes |= {"Thread": vars(ledger.thread(writer.id)), "ListReader": vars(ledger.listing())}
        attributes["FullThreads"] = vars(ledger.full_threads(writer.id))
    for owner, held in attributes.items():
        assert {name for name in held if name[0] != "_"} == set(generate_aio.ATTRIBUTES.get(owner, ())), owner


# --- it works ---------------------------------------------------------------------------------------------------


def test_turns_are_recorded_and_read(path: Path) -> None:
    async def body(ledger: weft.aio.AsyncLedger) -> None:
        turn = await ledger.record_turn(session="main", query="hi", response="good morning")
        thread = await ledger.thread("main")
        assert [message.text async for message in thread.messages] == ["hi", "good morning"]
        assert [found.id async for found in thread.turns] == [turn.id]
        assert (thread.id, thread.depth, await thread.digest) == (turn.id, 1, turn.digest)
        assert [problem async for problem in ledger.verify(receipt=turn.receipt)] == []
        assert [change.n async for change in ledger.changes()] == list(range(1, turn.receipt.n + 1))
        assert (await ledger.session("main")).head == turn.id
        assert await (await ledger.listing()).subjects([turn.id]) == {turn.id: "hi"}
        assert [finding async for finding in ledger.audit.findings()] == []
        stored = await ledger.put_content(b"x" * 3_000_000)
        assert sum([len(piece) async for piece in ledger.read_content(stored.ref)]) == 3_000_000
        with pytest.raises(InvalidInput):
            await ledger.record_turn(session="", query="x")

    run(path, body)
    with weft.open(path) as ledger:
        assert problems(ledger) == []


def test_a_turn_is_recorded_step_by_step(path: Path) -> None:
    async def body(ledger: weft.aio.AsyncLedger) -> None:
        async with await ledger.begin_turn(session="main") as writer:
            await writer.message("go")
            call = await writer.tool_call("t", {"x": 1})
            await writer.tool_result(call, "done")
            await writer.response("yes")
            ended = await writer.finish()
        assert (writer.id, writer.session) == (ended.id, "main")
        with pytest.raises(RuntimeError, match="inside"):
            async with await ledger.begin_turn(session="main") as failed:
                raise RuntimeError("inside")
        assert (await ledger.turn(failed.id)).status == "failed"

    run(path, body)


def test_many_tasks_share_a_few_threads(path: Path) -> None:
    seen: set[str] = set()

    async def body(ledger: weft.aio.AsyncLedger) -> None:
        sync = ledger._sync.record_turn

        def noting(**turn: Any) -> Any:
            seen.add(threading.current_thread().name)
            return sync(**turn)

        ledger._sync.record_turn = noting  # type: ignore[method-assign]
        await asyncio.gather(*(ledger.record_turn(session=f"s{i % 5}", query=str(i)) for i in range(60)))

    run(path, body, threads=3)
    assert len(seen) <= 3
    with weft.open(path) as ledger:
        assert sum(len(queries(ledger, f"s{i}")) for i in range(5)) == 60
        assert problems(ledger) == []


def test_whoever_waits_takes_no_thread_from_those_waited_for(path: Path) -> None:
    async def body(ledger: weft.aio.AsyncLedger) -> None:
        async def news(after: int) -> list[int]:
            return [change.n async for change in ledger.changes(after, wait=60)]

        feeds = [asyncio.create_task(news(await ledger.newest())) for _ in range(5)]
        writer = await ledger.begin_turn(session="main")
        waiting = asyncio.create_task(ledger.record_turn(session="main", query="after", wait=60))
        also = asyncio.create_task(ledger.begin_turn(session="main", wait=60))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await writer.finish()
        await (await also).finish()
        await waiting
        assert all([await feed for feed in feeds])
        with pytest.raises(SessionBusy):
            async with await ledger.begin_turn(session="main"):
                await ledger.record_turn(session="main", query="x", wait=0)
        assert [change async for change in ledger.changes(await ledger.newest(), wait=0.05)] == []

    run(path, body, threads=1)


def test_progress_is_told_in_the_loop(path: Path) -> None:
    async def body(ledger: weft.aio.AsyncLedger) -> None:
        await ledger.record_turn(session="main", query="x")
        here, seen = threading.current_thread(), []
        await ledger.upkeep.rebuild(progress=lambda *step: seen.append((threading.current_thread(), step)))
        await asyncio.sleep(0)
        assert seen
        assert {thread for thread, _ in seen} == {here}

    run(path, body)


def test_an_iterator_that_is_left_early_is_closed(path: Path) -> None:
    async def body(ledger: weft.aio.AsyncLedger) -> None:
        for i in range(200):
            await ledger.record_turn(session="main", query=str(i))
        changes = ledger.changes()
        async for change in changes:
            if change.n == 3:
                break
        await changes.aclose()  # type: ignore[attr-defined]
        await ledger.record_turn(session="main", query="on")

    run(path, body)


# --- cancelling and closing -------------------------------------------------------------------------------------


class Held:
    """The writers' lock, held by somebody else."""

    def __init__(self, path: Path) -> None:
        self._store = SqliteStore(path)

    def __enter__(self) -> None:
        self._store._exclusive().__enter__()

    def __exit__(self, *_: object) -> None:
        self._store._exclusive().__exit__()
        self._store.close()


async def begun(ledger: weft.aio.AsyncLedger, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """A task whose call is on its way in a thread."""
    task = asyncio.create_task(work)
    while not ledger._pool._under_way:
        await asyncio.sleep(0.001)
    return task


def test_a_cancelled_write_is_finished_once(path: Path) -> None:
    async def body(ledger: weft.aio.AsyncLedger) -> None:
        await ledger.record_turn(session="main", query="first")
        with Held(path):
            task = await begun(ledger, ledger.record_turn(session="main", query="cancelled"))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        again = await ledger.record_turn(session="main", query="next")
        assert again.depth == 3

    run(path, body)
    with weft.open(path) as ledger:
        assert queries(ledger, "main") == ["first", "cancelled", "next"]
        assert problems(ledger) == []


def test_a_turn_that_is_begun_for_a_cancelled_task_holds_no_session(path: Path) -> None:
    async def body(ledger: weft.aio.AsyncLedger) -> None:
        with Held(path):
            task = await begun(ledger, ledger.begin_turn(session="main"))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await ledger._pool.rest()
        (left,) = await ledger.log()
        assert left.status == "failed"
        assert (await ledger.record_turn(session="main", query="free", wait=0)).depth == 1

    run(path, body)


def test_a_cancelled_reader_leaves_the_ledger_usable(path: Path) -> None:
    with weft.open(path) as ledger:
        grow_at_once(ledger, "main", *map(str, range(300)))

    async def body(ledger: weft.aio.AsyncLedger) -> None:
        async def read() -> int:
            return sum([1 async for _ in ledger.verify()] + [1 async for _ in (await ledger.thread("main")).messages])

        for delay in (0.0, 0.002, 0.01):
            task = asyncio.create_task(read())
            await asyncio.sleep(delay)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert await read() == 600

    run(path, body, threads=2)


def test_closing_waits_for_what_was_begun(path: Path) -> None:
    async def main() -> None:
        ledger = await weft.aio.open(path)
        with Held(path):
            task = await begun(ledger, ledger.record_turn(session="main", query="kept"))
            closing = asyncio.create_task(ledger.close())
            await asyncio.sleep(0.05)
            assert not closing.done()
        await closing
        assert (await task).depth == 1
        await ledger.close()
        with pytest.raises(StoreError):
            await ledger.record_turn(session="main", query="late")

    asyncio.run(main())
    with weft.open(path) as ledger:
        assert queries(ledger, "main") == ["kept"]


def test_a_ledger_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(LedgerMissing):
            await weft.aio.open(tmp_path / "none.db", create=False)
        with pytest.raises(InvalidInput):
            async with weft.aio.open(tmp_path / "x.db", threads=-1):
                raise AssertionError

    asyncio.run(main())
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("weft-aio")]


def test_ledgers_are_copied_examined_saved_and_put_back(path: Path, tmp_path: Path) -> None:
    async def main() -> None:
        async with weft.aio.open(path) as ledger:
            turn = await ledger.record_turn(session="main", query="x")
            await ledger.upkeep.backup(tmp_path / "backup.db")
            assert (await weft.aio.copy(ledger, tmp_path / "copy.db")).events == turn.receipt.n
        assert (await weft.aio.copy(path, tmp_path / "again.db")).events == turn.receipt.n
        assert {found.grade async for found in weft.aio.examine(path)} == {"good"}
        assert (await weft.aio.salvage(path, tmp_path / "saved.db")).is_whole
        assert (await weft.aio.restore(tmp_path / "backup.db", path)).events == turn.receipt.n
        async with weft.aio.open(path) as ledger, weft.aio.open(tmp_path / "other.db") as other:
            await other.imports.share_with(ledger)

    asyncio.run(main())


# --- programs ---------------------------------------------------------------------------------------------------


def test_programs_are_made_changed_and_found(path: Path) -> None:
    async def body(ledger: weft.aio.AsyncLedger) -> None:
        programs = weft.aio.AsyncPrograms(ledger)
        await programs.create("human", "bln", {"permissions": ["configure"]})
        person = programs.acting_as("bln")
        made = await person.create("information", "ada", {"infoType": "fact", "content": {"born": 1815}})
        acting = person.ledger
        assert (made.created_by, acting.authority.principal.id, acting.path) == ("bln", "bln", ledger.path)
        assert await person.add_tags("ada", "first", "second") == ["first", "second"]
        assert [one.name for one in await programs.query(path="$.born", equals=1815)] == ["ada"]
        await asyncio.gather(*(programs.change("bln", {"name": f"B{i}"}) for i in range(4)))
        assert (await programs.get("bln")).version == 5
        with pytest.raises(VersionConflict):
            await programs.change("bln", {"name": "late"}, expected=1)

    run(path, body)
    with weft.open(path) as ledger:
        assert problems(ledger) == []


def test_a_hold_that_is_taken_for_a_cancelled_task_is_given_back(path: Path) -> None:
    async def body(ledger: weft.aio.AsyncLedger) -> None:
        programs = weft.aio.AsyncPrograms(ledger)
        await programs.create("agent", "ada", {})
        begun, go_on = threading.Event(), threading.Event()
        take = programs._sync.hold_agent

        def slowly(agent: str, *, task: str | None = None) -> Any:
            begun.set()
            go_on.wait()
            return take(agent, task=task)

        programs._sync.hold_agent = slowly  # type: ignore[method-assign]
        task = asyncio.ensure_future(programs.hold_agent("ada"))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        await ledger._pool.rest()
        programs._sync.hold_agent = take  # type: ignore[method-assign]
        assert (await programs.hold_agent("ada")).epoch == 2

    run(path, body)


def test_what_is_similar_is_found(path: Path) -> None:
    async def body(ledger: weft.aio.AsyncLedger) -> None:
        turns = [await ledger.record_turn(session="main", query=text) for text in ("a b", "b a", "c d")]
        similarity = programs.AsyncSimilarity(ledger, Words())
        assert await similarity.embed_missing("turn", progress=lambda *_: None) == 3
        nearest = await similarity.find_similar_to_node(turns[0].id, limit=1)
        assert [found.node.id for found in nearest] == [turns[1].id]

    run(path, body)
