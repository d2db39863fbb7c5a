"""Every refusal is a typed error of one tree that says what to do; every error is raised somewhere, and tested."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.sources import LOAD, Module, shipped
from weft.kernel import errors
from weft.kernel.errors import WeftError

pytestmark = LOAD
ROOT = Path(__file__).parents[2]
TESTS = {file: file.read_text() for file in sorted((ROOT / "tests").rglob("test_*.py")) if file != Path(__file__)}
MODULES = {module.__name__ for module in (errors, errors, errors, errors)}
BRANCHES = {"WeftError", "LedgerError", "Conflict", "OutsideError"}
"""They say who must act; what is raised is below them."""


def tree(kind: type[WeftError] = WeftError) -> Iterator[type[WeftError]]:
    yield kind
    for below in kind.__subclasses__():
        if below.__module__ in MODULES:
            yield from tree(below)


KINDS = {kind.__name__: kind for kind in tree()}
SAMPLES: dict[str, tuple[Any, ...]] = {
    "NoCanonicalForm": ("$.x", "is NaN"),
    "InvalidJson": ("no value", 0),
    "ContentTooLarge": (1,),
    "LimitExceeded": ("its bytes", 2, 1, "split it"),
    "InvalidFact": ("line 1", "is no object"),
    "NotFound": ("turn", "x"),
    "AmbiguousName": ("x", ["a", "b"]),
    "HeadMoved": ("main", None, "t"),
    "SessionBusy": ("main", "t", "somebody"),
    "LeaseLost": ("t",),
    "KeyTaken": ("k",),
    "LabelTaken": ("main", "a session"),
    "TurnClosed": ("t", "failed"),
    "NotALedger": ("x.db", "it is a picture"),
    "LedgerMissing": ("x.db",),
    "LedgerTooNew": (9, 1),
    "LedgerTooOld": (1, 9),
    "ReadOnlyLedger": ("x.db",),
    "CopyUnfinished": ("x.db",),
    "InUse": ("x.db", "process 1"),
    "WeakDurability": ("synchronous", "FULL", "OFF"),
    "FactDamaged": ("content", "x", "does not hash"),
    "ContentMissing": ("x",),
    "LogCut": (2, 1, "is shorter"),
    "ContentGone": ("x",),
    "InvalidConfig": ("config.x", "is missing", "give it"),
    "VariableMissing": ("KEY", "config.apiKey"),
    "SchemaMismatch": ("information 'x'", ["$: is no object"]),
    "IllegalTransition": ("task", "x", "pending", "complete", {"start": "active"}),
    "CriteriaUnmet": ("x", [0], ["file_exists: 'a' is not there"]),
    "VersionConflict": ("x", 1, 2),
    "PeerRefused": ("Damaged", "its log is cut"),
    "CodeFailed": ("x", "it raised"),
    "InvalidBundle": ("it has no end",),
    "WithheldShows": (["message x"],),
    "CredentialMissing": ("anthropic", "there is none"),
    "CredentialWithheld": ("anthropic", "it is for another origin"),
    "AgentBusy": ("ada", "is at work"),
    "TokenRefused": ("it has expired",),
    "NotAllowed": ("tool:x", ["agent:a"]),
    "LedgerMoved": ("ledger.db", "was moved"),
    "SeveralNames": ("ledger.db", 2),
    "UnknownObjects": ("ledger.db", ["view x"]),
    "ArchiveRefused": ("it is no tar archive",),
    "EngineUnreachable": ("unix:///engine.sock", "nobody listens there"),
    "EngineObjectMissing": ("volume", "x"),
    "EngineRefused": ("make a container", 500, "no space left"),
    "FilesElsewhere": ("01AAAAAAAAAAAAAAAAAAAAAAAA", "the ledger …AAAAAAAA has them", "check them out there"),
    "ApprovalNeeded": ("01AAAAAAAAAAAAAAAAAAAAAAAA", "book", "01BBBBBBBBBBBBBBBBBBBBBBBB"),
    "NotTrusted": ("ledger.db", "run a program", "you did not make it", "trust it"),
}


@pytest.mark.parametrize("name", KINDS)
def test_every_error_says_what_happened_and_what_to_do(name: str) -> None:
    error = KINDS[name](*SAMPLES.get(name, ("it went wrong",)))
    assert str(error)
    assert error.hint or name == "WeftError"
    assert KINDS[name]("x", "do this").hint == "do this" if name not in SAMPLES else True


def test_every_error_is_imported_from_one_module() -> None:
    assert {name: getattr(errors, name, None) for name in KINDS} == KINDS


def test_the_branches_are_drawn_where_they_are_defined() -> None:
    drawn = set(re.findall(r"^[│├└─ ]*(\w+)", (errors.__doc__ or "").split("\n\n")[1], re.M))
    assert drawn == {name for name, kind in KINDS.items() if kind.__subclasses__()} | {"NotFound"}


@cache
def written(node: ast.AST) -> str:
    """A name as it is written; `ast.unparse` does the same for all else, and takes a hundred times as long."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{written(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ast.unparse(node)


def made(module: Module) -> Iterator[str]:
    """Names of all errors that a module makes, or chooses for others': in a table, or as what a function returns."""
    tables = module.nodes_of(ast.AnnAssign) if "type[OutsideError]" in module.source else ()
    for node in tables:
        if node.value and "type[OutsideError]" in ast.unparse(node.annotation):
            yield from (name.id for name in ast.walk(node.value) if isinstance(name, ast.Name) and name.id in KINDS)
    for function in module.nodes_of(ast.FunctionDef) if "-> type[" in module.source else ():
        if function.returns is not None and ast.unparse(function.returns) in ("type[WeftError]", "type[OutsideError]"):
            yield from (
                last_word(node.value) for node in ast.walk(function) if isinstance(node, ast.Return) and node.value
            )
    calls, raising = module.nodes_of(ast.Call), module.nodes_of(ast.Raise)
    for what in (*(node.func for node in calls), *(node.exc for node in raising if node.exc is not None)):
        name = last_word(what)
        if name in KINDS:
            yield name


def last_word(node: ast.AST) -> str:
    """A name as it is written, without what stands before its last dot; nothing for what is no name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def test_every_error_is_raised_somewhere() -> None:
    used = {name for module in shipped() if module.name not in MODULES for name in made(module)}
    assert KINDS.keys() - used == BRANCHES


@pytest.mark.parametrize("name", sorted(KINDS.keys() - BRANCHES))
def test_every_error_is_met_by_a_test(name: str) -> None:
    code = KINDS[name].code
    met = re.compile(
        rf"(?:raises|isinstance|refused)\([^)]*\b{name}\b|except [^:]*\b{name}\b|, {name}[,)]|\"{name}\"|== \"{code}\""
    )
    found = (met.search(text) for text in TESTS.values() if name in text or code in text)
    assert any(found), f"no test provokes {name}"


# What else is raised, and why it reaches nobody who calls the library.
INSIDE = {
    "zstandard.ZstdError": "becomes FactDamaged where a pack is read",
    "FileRefused": "an importer reports a problem of the source",
    "NotImplementedError": "a base class",
    "AssertionError": "a fault of our own",
    "AttributeError": "what Python asks of a module",
    "RowsRefused": "the store asks itself to go again",
    "TransactionLost": "the store asks itself to go again",
    "MalformedCell": "pages are read on",
    "TooManyCells": "the text is shown as it is written",
    "apsw.CorruptError": "becomes Damaged where it leaves the store",
    "DryRunDone": "a dry run takes everything back",
    "SystemExit": "the end of a program",
    "ToolFailure": "a call of a tool ended badly: the model is told",
    "NotPlain": "what a shell line runs cannot be told",
    "StartAgain": "what was hidden moved while a sandbox was made: it is made again",
    "OddRepository": "a repository that is shown read-only",
    "UnreadableSettings": "settings of git that are shown as none",
    "ServerLost": "a process in the sandbox is started again",
    "RulesChanged": "a folder is looked through again",
    "HoldLost": "somebody else works on a resource: the work stops, and the wish stays open",
    "NotYet": "a call of a tool waits and is asked again",
    "psycopg.OperationalError": "the server is asked again",
    "WebPageAnswered": "becomes ReplyMalformed where a model is asked",
    "UnusualTurn": "a turn goes the general way",
    "WorkerLost": "the writer of an import reads on by itself",
    "ImporterFailed": "a problem of the source",
    "pickle.UnpicklingError": "becomes WorkerLost",
    "EOFError": "the end of what is typed",
    "OSError": "what the kernel refused, as Python tells it",
    "Refused": "of the contract's own tests",
    "Stop": "of the contract's own tests",
    "KeyboardInterrupt": "of the contract's own tests",
    "msgspec.ValidationError": "a stored line that is none, told by whoever reads it",
    "FunctionElsewhere": "a turn needs a function of another program: becomes NotApplicable in the broker",
    "Declined": "the person at the terminal answered no: exit code 4",
    "NobodyToAsk": "a person has to answer, and none is at a terminal: exit code 4",
    "click.UsageError": "the command line is wrong: exit code 2",
    "httpcore2.ConnectError": "becomes ProviderUnreachable where a model is asked",
    "FileNotFoundError": "told by the command line as any other path",
    "NoForm": "a value that PostgreSQL cannot hold: becomes StoreFailed in the store",
    "UnreadableIndex": "of git's index: whoever looks after a command takes it away",
    "RequestError": "of verbs: what was given does not go together; each surface tells it in its own spelling",
    "LedgerMovedOn": "of the MCP server's cursors: becomes a tool's error",
    "Refusal": "of the HTTP server: a request is answered with a problem before a verb is called",
    "UnreadableRecord": "of another version of the server: the client answers with its JSON",
    "MCPError": "of the MCP server: told to its client as the protocol has it",
    "StopAsyncIteration": "the end of the lines that the MCP server reads",
    "MalformedSettings": "of a coding agent's settings: becomes InvalidInput where they are read",
    "TimeoutError": "of a stream of bytes to another ledger: becomes ConnectionCut in its channel",
}
IMPORTERS = ("ValueError", "OSError", "EOFError", "Unreadable", "UnreadableValue")
"""Within importers: a source that cannot be read is a finding of the import, not its end."""


def raised(module: Module) -> Iterator[tuple[int, str]]:
    for node in module.nodes_of(ast.Raise):
        if isinstance(node.exc, ast.Call | ast.Name):
            what = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            name = written(what)
            if name.rpartition(".")[2][0].isupper():
                yield node.lineno, name


def test_every_refusal_is_of_the_tree() -> None:
    assert [(module.path, *found) for module in shipped() for found in strange(module)] == []


def strange(module: Module) -> list[tuple[int, str]]:
    *folders, name = module.path.split("/")
    is_reading = "importers" in folders or name == "contents.py"
    return [
        (line, name)
        for line, name in raised(module)
        if name.rpartition(".")[2] not in KINDS and name not in INSIDE and not (is_reading and name in IMPORTERS)
    ]


def without_hint(module: Module) -> Iterator[tuple[int, str]]:
    """Errors made without a word of what to do, by a class that has none of its own."""
    for node in module.nodes_of(ast.Call):
        if isinstance(node.func, ast.Name | ast.Attribute) and (name := written(node.func)) in KINDS:
            given = len(node.args) + len(node.keywords)
            if KINDS[name].__init__ is WeftError.__init__ and given < 2 and not KINDS[name].usual_action.sentence:
                yield node.lineno, name


def test_every_refusal_says_what_to_do() -> None:
    assert [(module.path, *found) for module in shipped() for found in without_hint(module)] == []
