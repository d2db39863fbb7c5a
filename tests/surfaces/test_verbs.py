"""Each command is a verb that is declared once, or stands on one of two lists: interactive, or not declared yet."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import click
import msgspec
import pytest

import weft as library
import weft.aio as weft_aio
from tests.surfaces.shell import Shell
from tests.surfaces.test_cli_broker import stock
from weft import Ledger
from weft.kernel.authority import LOCAL, Layer, Rights
from weft.kernel.errors import NotAllowed, NotFound, Unsupported
from weft.programs.program_writer import VERB_RIGHTS
from weft.surfaces.cli import verb_commands
from weft.surfaces.cli.main import SUMMARIES
from weft.surfaces.cli.main import weft as weft_command
from weft.verbs import MODULE_OF, every_verb, find_verb, session_verbs
from weft.verbs.declaration import OpenMode, RequestError, Verb, opt, verb
from weft.verbs.program_verbs import TriggerSettings

ROOT = click.Context(weft_command, info_name="weft")
INTERACTIVE = {"chat", "room chat"}
"""They stay with the terminal; at most eight."""
UNDECLARED = frozenset(
    """
init | import | record | compact | substitute | graph emit | graph ingest | bisect
export | clone | pull | push | pending list | pending show | pending take | pending refuse | pending undo | pending
remote | replica | sync-stdio | bundle create | bundle verify | bundle sign | bundle open | key create | key list
key export | key trust | key delete | resume | provider models | model invoke | model get | agent run | agent status
agent resume | tools | task complete | task run | trigger run | trigger deliver | code create | info create
info query | human notify | human ask | human requests | human approve | human reject | policy propose | policy list
policy history | policy show | policy test | policy backtest | policy activate | policy reject | policy rollback
program invoke | embed | similar | route | embed-stats | apply | resource add | resource list | resource show
resource attach | resource detach | resource probe | resource snapshot | resource restore | resource owners
resource migrate | resource discard | resource exec | resource logs | resource kill | resource reconcile
sandbox run | config | trust | doctor | verify | rebuild | facts export | facts import | backup | copy | recover
erase | secrets | pack | send | broker | serve | retry | replay | room post | room follow | follow | token create
token attenuate | token show | token revoke | token list-revoked | token rotate | credential | mcp add | mcp list
mcp remove | mcp tools | mcp approve | mcp enable | mcp disable | mcp | completion | help | mcp config | mcp serve
human invite
""".replace("\n", " | ")
    .strip(" |")
    .split(" | ")
)
"""Not declared yet. This list only becomes shorter."""


def leaf_commands() -> Iterator[tuple[str, click.Command]]:
    for name in SUMMARIES:
        command = weft_command.get_command(ROOT, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from ((f"{name} {verb}", inner) for verb, inner in command.commands.items() if not inner.hidden)
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield name, command


COMMANDS = dict(leaf_commands())
VERBS = [*every_verb()]


def test_every_command_is_a_declared_verb_or_on_a_list() -> None:
    declared = {name for name in COMMANDS if find_verb(name) is not None}
    assert COMMANDS.keys() - declared - INTERACTIVE - UNDECLARED == set()
    assert declared & (INTERACTIVE | UNDECLARED) == set()
    assert (INTERACTIVE | UNDECLARED) - COMMANDS.keys() == set(), "gone: take it off the list"
    assert len(INTERACTIVE) <= 8


@pytest.mark.parametrize("name", MODULE_OF)
def test_a_verb_goes_by_the_name_of_its_command(name: str) -> None:
    verb = getattr(library.verbs, name)
    assert isinstance(verb, Verb)
    assert verb.__name__ == name == verb.name.replace(" ", "_").replace("-", "_")
    assert find_verb(verb.name) is verb
    command = COMMANDS[verb.name]
    assert command.help == verb.help
    words = {param.name for param in command.params}
    assert {one.name for one in verb.parameters if not one.details.is_untyped} <= words
    assert ("actor" in words) == verb.takes_actor


def right_of(method: str) -> str | None:
    """What the ledger requires for a verb of its own."""
    owner, _, name = method.rpartition(".")
    if owner == "programs":
        return VERB_RIGHTS[name]
    group = Ledger if not owner else inspect.getattr_static(Ledger, owner)
    kind = group if isinstance(group, type) else getattr(library, type_name(group))
    right: str | None = getattr(inspect.getattr_static(kind, name), "right", None)
    return right


def type_name(group: Any) -> str:
    function = getattr(group, "func", None) or group.fget
    return str(function.__annotations__["return"])


@pytest.mark.parametrize("verb", VERBS, ids=repr)
def test_a_verb_needs_the_right_that_the_ledger_requires(verb: Verb[..., Any]) -> None:
    assert (verb.right is None) == (verb.terms.opens not in (OpenMode.WRITING, OpenMode.ACTING))
    if verb.method is not None:
        assert verb.right is not None
        assert verb.right == right_of(verb.method) or verb.right.rpartition(":")[2] == right_of(verb.method)


@pytest.mark.parametrize("verb", VERBS, ids=repr)
def test_a_request_is_a_record_of_the_parameters_with_a_schema(verb: Verb[..., Any]) -> None:
    request = verb.request_type()
    schema = msgspec.json.schema(request)["$defs"][request.__name__]
    assert schema["properties"].keys() == {one.name for one in verb.parameters}
    assert set(schema.get("required", ())) == {one.name for one in verb.parameters if one.is_required}
    assert all("description" in field for field in schema["properties"].values())
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize("verb", VERBS, ids=repr)
def test_an_answer_is_annotated_and_what_shows_it_asks_for_what_there_is(verb: Verb[..., Any]) -> None:
    assert verb.answer_type() is not None
    look = verb_commands._LOOKS.get(verb.name, verb_commands._Look()).show
    if look is None:
        assert verb.table is not None
        return
    own = {param.name for param in COMMANDS[verb.name].params} | {"ledger", *verb.machines}
    assert set(list(inspect.signature(look).parameters)[2:]) <= own


def test_a_verb_is_called_with_a_ledger_blocking_and_awaited(weft: Shell) -> None:
    weft.record("hello")
    with library.open(weft.folder / ".weft/ledger.db") as ledger:
        renamed = library.verbs.rename(ledger, "main", "other")
        assert (renamed.before.label, renamed.session.label) == ("main", "other")
        assert [entry.listed.session.label for entry in library.verbs.sessions(ledger).items] == ["other"]
        with pytest.raises(RequestError, match="undo takes a session and nothing else"):
            library.verbs.session_unify(ledger, "other", into="x", undo=True)
        with pytest.raises(Unsupported, match="takes what programs are invoked with, and no ledger"):
            library.verbs.session_send(ledger, "other", "Hello")

    async def main() -> Any:
        async with weft_aio.open(weft.folder / ".weft/ledger.db") as ledger:
            with pytest.raises(Unsupported):
                await library.verbs.session_send.awaited(ledger, "other", "Hello")
            return await library.verbs.rename.awaited(ledger, "other", label="third")

    assert asyncio.run(main()).session.label == "third"


def test_a_verb_checks_the_record_of_a_group_of_parameters(weft: Shell) -> None:
    with library.open(weft.folder / ".weft/ledger.db") as ledger:
        made = library.verbs.trigger_create(ledger, "daily", TriggerSettings(every="1d", message="Good day"))
        assert made.config == {"on": {"interval": "1d"}, "message": "Good day"}
        with pytest.raises(RequestError, match="only webhook takes secret"):
            library.verbs.trigger_create(ledger, "other", TriggerSettings(every="1d", secret="KEY"))
        with pytest.raises(RequestError, match="only webhook takes secret"):
            library.verbs.trigger_create.check({"name": "other", "every": "1d", "secret": "KEY"})
        assert [trigger.name for trigger in library.verbs.trigger_list(ledger).items] == ["daily"]


def test_files_of_a_turn_are_written_by_whoever_may_change_resources_alone(weft: Shell) -> None:
    work, target = weft.folder / "work", weft.folder / "target"
    call = {"name": "Write", "arguments": {"file_path": str(work / "app.py"), "content": "x = 1\n"}, "result": "ok"}
    with library.open(weft.folder / "own.db", trust=library.user_trust()) as ledger:
        ledger.record_turn(session="main", query="Write it", workspace=str(work), tool_calls=[call])
        reader = ledger.acting_as(LOCAL.child(Rights((Layer(("*:read",)),))))
        for is_reconstructed in (True, False):
            with pytest.raises(NotAllowed, match="resource:change"):
                library.verbs.checkout(reader, "main", to=str(target), reconstruct=is_reconstructed)
        assert not target.exists()
        library.verbs.checkout(ledger, "main", to=str(target), reconstruct=True)
        assert (target / "app.py").read_text() == "x = 1\n"


def test_who_does_not_own_the_machine_reads_reports_and_records_and_no_file_of_it(weft: Shell) -> None:
    file, prices = weft.folder / "app.py", weft.folder / "prices.toml"
    file.write_text("x = 2\n")
    prices.write_text('[models."own"]\ninput = 1\noutput = 1\n')
    with library.open(weft.folder / "own.db", trust=library.user_trust()) as ledger:
        ledger.record_turn(session="main", query="Write it", model="own", usage={"input_tokens": 5})
        assert [line.text for line in library.verbs.blame(ledger, str(file)).items] == ["x = 2"]
        assert str(library.verbs.usage(ledger, prices=str(prices)).prices_from).startswith(str(prices))
        reader = ledger.acting_as(LOCAL.child(Rights((Layer(("*:read",)),))))
        with pytest.raises(NotFound, match="recorded text"):
            library.verbs.blame(reader, str(file), recorded=True)
        report = library.verbs.usage(reader)
        assert (report.total.total, report.zone) == (5, "UTC")
        assert library.verbs.context(reader, "main").tokens is None
        with pytest.raises(NotAllowed, match="machine"):
            library.verbs.blame(reader, str(file))
        with pytest.raises(NotAllowed, match="machine"):
            library.verbs.usage(reader, prices=str(prices))
        with pytest.raises(NotAllowed, match="machine"):
            library.verbs.context(reader, session="main")


Refused = Callable[[Any], Any]
REFUSED: dict[str, tuple[str, Refused]] = {
    "fork": ("session:create", lambda ledger: library.verbs.fork(ledger, "main", "other")),
    "fork of a session without a turn": ("session:create", lambda ledger: library.verbs.fork(ledger, "empty", "other")),
    "undo": ("session:move", lambda ledger: library.verbs.undo(ledger, "main", files="keep")),
    "redo": ("session:move", lambda ledger: library.verbs.undo(ledger, "undone", redo=True)),
    "unify": ("turn:merge", lambda ledger: library.verbs.session_unify(ledger, "main", into="more")),
    "unify undone": ("turn:merge", lambda ledger: library.verbs.session_unify(ledger, "unified/joined", undo=True)),
    "written history": ("resource:change", lambda ledger: library.verbs.session_history(ledger, "main", write=True)),
}


@pytest.mark.parametrize(("right", "call"), REFUSED.values(), ids=REFUSED)
def test_whoever_lacks_the_right_that_a_verb_declares_is_refused(weft: Shell, right: str, call: Refused) -> None:
    for session in ("main", "more", "undone", "joined"):
        weft.record("hello", session=session)
    weft("session", "create", "empty")
    weft("undo", "undone")
    weft("session", "unify", "joined", "--into", "more")
    log = weft.folder / "log.jsonl"
    weft("session", "configure", "main", "--set", f"logFile={log}")
    with library.open(weft.folder / ".weft/ledger.db", trust=library.user_trust()) as ledger:
        newest = ledger.newest()
        with pytest.raises(NotAllowed, match=right):
            call(ledger.acting_as(LOCAL.child(Rights((Layer(("*",), (right,)),)))))
        assert ledger.newest() == newest
        assert not log.exists()
        call(ledger)


@pytest.mark.parametrize("words", [("undo", "main"), ("session", "send", "main", "Hello")])
def test_a_person_who_may_only_read_a_session_is_refused(weft: Shell, words: tuple[str, ...]) -> None:
    stock(weft, "http://127.0.0.1:9/v1", "main")
    weft.record("hello")
    weft("human", "create", "rita", "--permission", "session:read(*)")
    refused = weft("--as", "rita", *words)
    assert refused.code == 4
    assert "rita may not" in refused.err


def test_a_thread_is_read_in_pages_by_whoever_gives_a_limit(weft: Shell) -> None:
    for number in range(5):
        weft.record(f"question {number}")
    with library.open(weft.folder / ".weft/ledger.db") as ledger:
        whole = library.verbs.read(ledger, "main")
        assert [turn.messages[0].text for turn in whole.items] == [f"question {number}" for number in range(5)]
        assert [len(turn.items) for turn in whole.items] == [2] * 5
        first = library.verbs.read(ledger, "main", limit=2)
        second = library.verbs.read(ledger, "main", limit=2, after=first.next)
        last = library.verbs.read(ledger, "main", limit=2, after=second.next)
        assert [*first.items, *second.items, *last.items] == list(whole.items)
        assert (last.next, last.first, whole.end) == (None, whole.items[0].turn.id, last.end)
        with pytest.raises(NotFound):
            library.verbs.read(ledger, "main", after="no such turn")
        log = library.verbs.log(ledger, limit=2)
        assert [entry.subject for entry in log.items] == ["question 4", "question 3"]
    assert len(whole.items) == 5, "all of it is read while the ledger is open"
    assert library.verbs.read.parameter("limit").details.is_untyped
    assert weft("read", "main", "--limit", "2").code == 2


def test_a_wrong_request_is_told_in_the_spelling_of_the_surface(weft: Shell) -> None:
    weft.record("hello")
    refused = weft("session", "unify", "main", "--undo", "--into", "x")
    assert refused.code == 2
    assert refused.err.startswith("weft: --undo takes a session and nothing else\n")


def test_no_verb_has_the_name_of_a_module() -> None:
    assert set(MODULE_OF) & set(MODULE_OF.values()) == set()


def test_a_function_that_reads_says_so() -> None:
    archive = session_verbs.archive
    assert archive.opening({"session": ("main",)}) is OpenMode.WRITING
    assert archive.opening({"listed": True}) is OpenMode.READING
    assert session_verbs.alias.opening({"alias": None}) is OpenMode.READING


def test_a_zero_is_a_value_that_was_given() -> None:
    @verb("counted", opens=OpenMode.WRITING, reads_without=("number",))
    def counted(
        ledger: Ledger, number: Annotated[int, opt("How many.")] = 0, keep: Annotated[bool, opt("Keep it.")] = False
    ) -> None:
        """Count."""

    assert counted.opening({"number": 0, "keep": False}) is OpenMode.WRITING
    assert counted.opening({"number": None, "keep": True}) is OpenMode.READING
    options = {param.name: param.default for param in verb_commands.command_of(counted).params}
    assert options["number"] == 0
