"""Writes the asynchronous mirror of the public API. `make docs` runs it; a test compares both.

In src/weft/aio/, `__init__.py` has the functions, `ledger.py` the ledger, `objects.py` what its verbs give and
`programs.py` the programs of a ledger and what is similar in it, `graph.py` its graph.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import io
import subprocess
import sys
import textwrap
import tokenize
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from weft.graph.graph import Graph
from weft.ledger.api import inbox, merges, reading, recording, reports, resources, rooms, upkeep
from weft.ledger.api.ledger import Ledger
from weft.ledger.imports import import_writer
from weft.ledger.read import full_threads, session_list, turns
from weft.ledger.write import turn_writer
from weft.programs.programs import Programs
from weft.programs.similarity import Similarity
from weft.surfaces import opening

SOURCE = Path(__file__).resolve().parents[1] / "src" / "weft" / "aio"
MIRRORED: dict[str, type] = {
    "Ledger": Ledger,
    "TurnWriter": turn_writer.TurnWriter,
    "Thread": turns.Thread,
    "FullThreads": full_threads.FullThreads,
    "ListReader": session_list.ListReader,
    "ImportWriter": import_writer.ImportWriter,
    "Heads": recording.Heads,
    "Labels": recording.Labels,
    "Tree": reading.Tree,
    "Compactions": merges.Compactions,
    "Merges": merges.Merges,
    "Imports": merges.Imports,
    "UsageReports": reports.UsageReports,
    "AuditReports": reports.AuditReports,
    "Secrets": upkeep.Secrets,
    "Erasures": upkeep.Erasures,
    "Upkeep": upkeep.Upkeep,
    "Inbox": inbox.Inbox,
    "Approvals": inbox.Approvals,
    "Policies": inbox.Policies,
    "Resources": resources.Resources,
    "Rooms": rooms.Rooms,
    "Programs": Programs,
    "Similarity": Similarity,
    "Graph": Graph,
}
HOMES = {
    "ledger": tuple(
        "Ledger Heads Labels Tree Compactions Merges Imports UsageReports AuditReports Secrets Erasures Upkeep "
        "Inbox Approvals Policies Resources Rooms".split()
    ),
    "objects": ("TurnWriter", "Thread", "FullThreads", "ListReader", "ImportWriter"),
    "programs": ("Programs", "Similarity"),
    "graph": ("Graph",),
}
"""Which module has which mirrors."""
OVER_A_LEDGER = HOMES["programs"] + HOMES["graph"]
"""Made by whoever wants one, of an open ledger; the others are given by verbs."""
ATTRIBUTES = {
    "TurnWriter": {"id": "str", "session": "str | None"},
    "ImportWriter": {"origin": "str", "mapping": "str", "secret": "ImportSecret"},
}
AT_HAND = {
    "Ledger": ("path", "replica", "authority", "trust", "acting_as", "originals"),
    "Thread": ("id", "depth"),
    "FullThreads": ("strands",),
    "Programs": ("acting_as",),
}
"""What reads nothing: properties, and another mirror of the same ledger."""
ADDED = {"Ledger": ("sync", "crossing")}
"""What a mirror has beyond the verbs: for whoever awaits calls of their own."""
WAITING = ("record_turn", "record_turns", "record", "cherry_pick", "summarize")
FUNCTIONS = ("copy", "examine", "restore", "salvage")
LEFT_OUT = {"Ledger": ("close", "acting_as", "originals", "follow")}  # written by hand
HEAD = '''"""{about}

`make docs` writes this module from the synchronous API, and a test compares the two.
"""

from __future__ import annotations

{imports}
'''
OPENING = '''
class Opening:
    """A ledger on its way: `async with open(…) as ledger`, or `ledger = await open(…)` and `await ledger.close()`."""

    def __init__(self, threads: int, arguments: dict[str, Any]) -> None:
        self._threads, self._arguments = threads, arguments
        self._ledger: AsyncOpenLedger | None = None

    def __await__(self) -> Generator[Any, None, AsyncOpenLedger]:
        return self._open().__await__()

    async def _open(self) -> AsyncOpenLedger:
        pool = crossing.Pool(self._threads)
        step = pool.start(partial(opening.open, **self._arguments))
        try:
            return AsyncOpenLedger(await asyncio.shield(step), pool, SharedInference(self._arguments["variable"]))
        except BaseException:  # also a cancelled task leaves no ledger open
            await asyncio.wait({step})
            failed = step.cancelled() or step.exception() is not None
            await pool.close((lambda: None) if failed else step.result().close)
            raise

    async def __aenter__(self) -> AsyncOpenLedger:
        self._ledger = await self._open()
        return self._ledger

    async def __aexit__(self, *_: object) -> None:
        if self._ledger is not None:
            await self._ledger.close()
'''
LEDGER = '''
    def __init__(self, sync: SyncLedger, pool: crossing.Pool) -> None:
        super().__init__(sync, pool)
        self._news = crossing.News(pool, sync.newest)
        self._is_original = True

    @property
    def sync(self) -> SyncLedger:
        """The ledger whose verbs this one awaits."""
        return self._sync

    @property
    def crossing(self) -> crossing.Pool:
        """The threads in which its verbs run."""
        return self._pool

    def acting_as(self, who: Authority | str) -> Self:
        """The same open ledger, changed in the name of somebody else, as the synchronous one. Reads nothing."""
        ledger = type(self)(self._sync.acting_as(who), self._pool)
        ledger._is_original = False
        return ledger

    def originals(self) -> Self:
        """The same open ledger, which shows what was recorded, as the synchronous one. Reads nothing."""
        ledger = type(self)(self._sync.originals(), self._pool)
        ledger._is_original = False
        return ledger

    def follow(
        self, session: str, *, after: StreamPosition | str | None = None, wait: float | None = None
    ) -> AsyncIterator[StreamItem]:
        """As the synchronous one; the text of a turn that runs in this process comes piece by piece, at once."""
        from weft.runtime.answer_streams import follow

        return follow(self, session, after=after, wait=wait)

    async def __aenter__(self) -> Ledger:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Everything that was begun ends first, awaited or not; then as the synchronous one."""
        if self._is_original:
            await self._pool.close(self._sync.close)
'''
WRITER = """
    async def __aenter__(self) -> TurnWriter:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.shield(self._run(partial(self._sync.__exit__, kind, error, trace)))
"""
GROUP = """    @cached_property
    def {name}(self) -> {returns}:
        return {returns}(self._sync.{name}, self._pool)
"""
BY_HAND = {"Ledger": LEDGER, "TurnWriter": WRITER}
CHANGES = """        async def found() -> AsyncIterator[StoredEvent]:
            seconds = checked_seconds(wait, "wait")
            if seconds:
                await self._news.beyond(checked_count(after, "after"), seconds)
            async for change in self._each(partial(self._sync.changes, after)):
                yield change

        return found()"""


class Names:
    """What annotations and defaults mention, and where it comes from."""

    def __init__(self) -> None:
        self.needed: dict[str, tuple[str, str]] = {}

    def add(self, node: ast.AST | None, module: ModuleType) -> None:
        homes = _homes(module)
        for part in ast.walk(node) if node is not None else ():
            if isinstance(part, ast.Name) and not hasattr(builtins, part.id) and part.id not in MIRRORED:
                self.needed[part.id] = homes.get(part.id, (module.__name__, part.id))

    def imports(self) -> str:
        made = [
            f"from {home} import {name}" if name == known else f"from {home} import {name} as {known}"
            for known, (home, name) in sorted(self.needed.items())
        ]
        return "\n".join(made)


@cache
def _homes(module: ModuleType) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
    return found


def definition(member: Any) -> tuple[ast.FunctionDef, ModuleType]:
    function: Any = getattr(member, "fget", None) or getattr(member, "func", None) or member
    module = sys.modules[function.__module__]
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    found = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return found, module


def public(owner: type) -> Iterator[tuple[str, Any]]:
    order = [name for base in reversed(owner.__mro__) for name in vars(base) if not name.startswith("_")]
    yield from ((name, inspect.getattr_static(owner, name)) for name in dict.fromkeys(order))


def arguments_of(node: ast.FunctionDef) -> str:
    """The call that hands everything on as it came."""
    given = node.args
    parts = [arg.arg for arg in given.args if arg.arg != "self"]
    words = [arg.arg for arg in given.kwonlyargs]
    if given.vararg is None:
        made = [f"{name}={_handed(name)}" for name in (*parts, *words)]
    else:
        made = [*parts, f"*{given.vararg.arg}", *(f"{name}={_handed(name)}" for name in words)]
    return ", ".join([*made, *([f"**{given.kwarg.arg}"] if given.kwarg else [])])


def _handed(name: str) -> str:
    return {"progress": "crossing.in_event_loop(progress)", "wait": "0", "other": "crossing.behind(other)"}.get(
        name, name
    )


def method(owner: str, name: str, member: Any, names: Names) -> str:
    node, module = definition(member)
    names.add(node.args, module)
    names.add(node.returns, module)
    returns = ast.unparse(node.returns) if node.returns else "None"
    if isinstance(member, cached_property):
        names.needed["cached_property"] = ("functools", "cached_property")
        return GROUP.format(name=name, returns=returns)
    signature = ast.unparse(node.args).replace("other: LedgerBase", "other: Ledger")
    text = ast.get_docstring(node)
    doc = "" if text is None else f'        """{text.replace(chr(10), chr(10) + " " * 8)}"""\n'
    lead = "    @property\n" if isinstance(member, property) else ""
    target = f"self._sync.{name}"
    if name in AT_HAND.get(owner, ()) and not lead:
        handed = arguments_of(node).replace("who=who, ", "")
        made = f"{returns}(self.ledger.acting_as(who), {handed})"
        return f"    def {name}({signature}) -> {returns}:\n{doc}        return {made}\n"
    if name in AT_HAND.get(owner, ()):
        return f"{lead}    def {name}({signature}) -> {returns}:\n{doc}        return {target}\n"
    if returns.startswith("Iterator["):
        return _iterator(owner, name, node, signature, returns, doc, lead)
    if isinstance(member, property):
        made = f"Coroutine[Any, Any, {returns}]"
        names.needed["Coroutine"] = ("collections.abc", "Coroutine")
        return f"{lead}    def {name}(self) -> {made}:\n{doc}        return self._run(lambda: {target})\n"
    return f"    async def {name}({signature}) -> {returns}:\n{doc}{_body(owner, name, node, returns, target)}"


def _iterator(owner: str, name: str, node: ast.FunctionDef, signature: str, returns: str, doc: str, lead: str) -> str:
    made = f"{lead}    def {name}({signature}) -> Async{returns}:\n{doc}"
    if (owner, name) == ("Ledger", "changes"):
        return f"{made}{CHANGES}\n"
    call = f"lambda: self._sync.{name}" if lead else f"partial(self._sync.{name}, {arguments_of(node)})"
    return f"{made}        return self._each({call})\n"


def _body(owner: str, name: str, node: ast.FunctionDef, returns: str, target: str) -> str:
    handed = arguments_of(node)
    call = f"partial({target}, {handed})" if handed else target
    if name == "begin_turn":
        made = f"await crossing.begun(self._pool, wait, {call})"
    elif name == "hold_agent":
        made = f"await crossing.held(self._pool, {call}, self._sync.release_agent)"
    elif name in WAITING:
        return f"        asked = {call}\n        return await crossing.patiently(self._pool, wait, asked)\n"
    else:
        made = f"await self._run({call})"
    if returns in MIRRORED:
        made = f"{returns}({made}, self._pool)"
    kept = "" if returns == "None" else "return "
    return f"        {kept}{made}\n"


def constructor(owner: str, names: Names) -> str:
    """Of what is made over an open ledger: the same, over an asynchronous one."""
    node, module = definition(MIRRORED[owner].__init__)  # type: ignore[misc]
    names.add(node.args, module)
    handed = arguments_of(node).replace("ledger=ledger", "ledger._sync")
    return (
        f"    def __init__({ast.unparse(node.args)}) -> None:\n"
        f"        super().__init__(Sync{owner}({handed}), ledger._pool)\n"
        "        self.ledger = ledger\n"
    )


def mirror(owner: str, names: Names) -> str:
    kind = MIRRORED[owner]
    doc = inspect.cleandoc(kind.__doc__ or "").replace("\n", "\n    ")
    made = [
        f'class {owner}(crossing.Mirror["{owner}"]):\n    """{doc}"""\n\n    _sync: Sync{owner}\n',
        BY_HAND.get(owner, ""),
    ]
    made += [constructor(owner, names)] if owner in OVER_A_LEDGER else []
    for attribute, annotation in ATTRIBUTES.get(owner, {}).items():
        made.append(
            f"    @property\n    def {attribute}(self) -> {annotation}:\n        return self._sync.{attribute}\n"
        )
    made += [method(owner, name, member, names) for name, member in public(kind) if name not in LEFT_OUT.get(owner, ())]
    return "\n".join(made)


SOURCE_OF = "source._sync if isinstance(source, Ledger) else source"


def function(name: str, names: Names) -> str:
    node, module = definition(getattr(opening, name))
    names.add(node.args, module)
    names.add(node.returns, module)
    returns, signature = ast.unparse(node.returns or ast.Name("None")), ast.unparse(node.args)
    doc = f'    """{(ast.get_docstring(node) or "").replace(chr(10), chr(10) + "    ")}"""\n'
    handed = arguments_of(node).replace(
        "source=source", "source=source._sync if isinstance(source, Ledger) else source"
    )
    call = f"partial(opening.{name}, {handed})"
    if returns.startswith("Iterator["):
        return f"def {name}({signature}) -> Async{returns}:\n{doc}    return crossing.each_alone({call})\n"
    return f"async def {name}({signature}) -> {returns}:\n{doc}    return await crossing.alone({call})\n"


def opened(names: Names) -> str:
    node, module = definition(opening.open)
    names.add(node.args, module)
    doc = (ast.get_docstring(node) or "").replace("\n", "\n    ")
    signature = ast.unparse(node.args)
    given = [arg.arg for arg in (*node.args.args, *node.args.kwonlyargs)]
    handed = ", ".join(f'"{name}": {name}' for name in given)
    return (
        f"def open({signature}, threads: int=crossing.THREADS) -> Opening:\n"
        f'    """{doc}\n\n    At most so many `threads` work for it at once."""\n'
        f"    return Opening(threads, {{{handed}}})\n"
    )


ABOUT = {
    "__init__": "The asynchronous mirror of the public API: the same verbs, awaited. docs/python.md says how.",
    "ledger": "The ledger and its groups of verbs, awaited.",
    "objects": "What the verbs of the ledger return that has verbs of its own, awaited.",
    "programs": "The programs of a ledger, and what is similar in it, awaited.",
    "graph": "The graph of a ledger, awaited.",
}
ALWAYS = {
    "Any": ("typing", "Any"),
    "ImportSecret": ("weft.kernel.contents", "ImportSecret"),
    "checked_count": ("weft.ledger.arguments", "checked_count"),
    "checked_seconds": ("weft.ledger.arguments", "checked_seconds"),
    "AsyncIterator": ("collections.abc", "AsyncIterator"),
    "Generator": ("collections.abc", "Generator"),
    "partial": ("functools", "partial"),
    "Self": ("typing", "Self"),
    "StreamItem": ("weft.ledger.broker.session_stream", "StreamItem"),
    "StreamPosition": ("weft.ledger.broker.session_stream", "StreamPosition"),
    "TracebackType": ("types", "TracebackType"),
    "crossing": ("weft.aio", "crossing"),
    "opening": ("weft.surfaces", "opening"),
    "AsyncOpenLedger": ("weft.aio.open_ledger", "AsyncOpenLedger"),
    "SharedInference": ("weft.aio.open_ledger", "SharedInference"),
    **{owner: (kind.__module__, owner) for owner, kind in MIRRORED.items()},
}


def renamed(source: str) -> str:
    """The parts call a mirror by the name of what it mirrors, and that one by `Sync` and its name. In the module the
    mirror is `AsyncLedger`, and what it mirrors `Ledger`. Texts stay as they are."""
    lines = source.splitlines(keepends=True)
    for token in reversed(list(tokenize.generate_tokens(io.StringIO(source).readline))):
        owner = token.string.removeprefix("Sync")
        if token.type == tokenize.NAME and owner in MIRRORED:
            (row, start), (_, end) = token.start, token.end
            name = owner if token.string != owner else f"Async{owner}"
            lines[row - 1] = lines[row - 1][:start] + name + lines[row - 1][end:]
    return "".join(lines)


def module(name: str) -> str:
    """One of them; what it does not use of its imports is taken away again."""
    names = Names()
    if name == "__init__":
        parts = [OPENING, opened(names), *(function(each, names) for each in FUNCTIONS)]
    else:
        parts = [mirror(owner, names) for owner in HOMES[name]]
    mirrors = {owner: home for home, owners in HOMES.items() if home != name for owner in owners}
    parts = [renamed(part) for part in parts]
    names.needed |= {
        **ALWAYS,
        **{f"Async{owner}": (f"weft.aio.{home}", f"Async{owner}") for owner, home in mirrors.items()},
    }
    for unwanted in ("Iterator", "LedgerBase"):
        names.needed.pop(unwanted, None)
    head = HEAD.format(about=ABOUT[name], imports="import asyncio\n" + names.imports())
    public_names = ", ".join(
        f'"{each}"' for each in sorted(("AsyncLedger", "AsyncOpenLedger", "AsyncPrograms", "open", *FUNCTIONS))
    )
    again = f"\n__all__ = [{public_names}]\n"
    return formatted("\n\n".join([head, *parts, again if name == "__init__" else ""]), SOURCE / "mirror.py")


def formatted(source: str, target: Path) -> str:
    """What only annotations name is not loaded: whoever awaits one verb does not wait for the modules of all others."""
    check = ("check", "--fix-only", "--unsafe-fixes", "-q", "--select")
    for arguments in ((*check, "F401,UP017"), (*check, "TC001"), (*check, "I"), ("format",)):
        command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(target), "-"]
        source = subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout
    return source


def main() -> None:
    for name in ABOUT:
        (SOURCE / f"{name}.py").write_text(module(name))
        print(f"wrote src/weft/aio/{name}.py")


if __name__ == "__main__":
    main()
