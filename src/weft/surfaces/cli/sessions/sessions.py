"""`weft sessions`, and what is done with one: `session`, which makes it with a model, sends
to it, unifies and completes it; its label and names with `rename`, `alias`, `archive` and
`delete`; where it stands with `move`, `restore`, `reflog` and `settle`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.kernel.contents import decode_utf8
from weft.kernel.enums import AliasReason
from weft.kernel.errors import NotApplicable
from weft.kernel.typed_names import shell_word
from weft.ledger.api import ListedSession, SessionFilter, SessionList
from weft.ledger.model import Branch, HeadMove, Session, SessionAlias
from weft.ledger.read.session_list import meaningful_title
from weft.surfaces.cli import arguments, turn_lists
from weft.surfaces.cli.arguments import NO_PROJECT, complete_labels, ensure_known_origin, read_input
from weft.surfaces.cli.command_line import Call, group, undo
from weft.surfaces.cli.command_line import command as weft_command
from weft.surfaces.cli.ledgers.import_job import note_import
from weft.surfaces.cli.programs.program_call import (
    acting,
    answer,
    answer_invoked,
    as_actor,
    changing,
    complete_programs,
    given,
    invoked,
    message_text,
    session_argument,
    set_fields,
    with_fields,
)
from weft.surfaces.cli.progress import abbreviated, counted, progress
from weft.surfaces.cli.screen import MINUTE, Line, Screen, Span, local_minute, local_time, session_time
from weft.surfaces.cli.turn_lists import find_session, named_or_latest, short
from weft.surfaces.cli.user_files import find_ledger
from weft.surfaces.plain_text import cut, safe
from weft.surfaces.wire.answers import SessionEntry, UnfinishedTurn
from weft.surfaces.wire.forms import JsonValue

if TYPE_CHECKING:
    from weft.ledger.api import Ledger, Unification


# --- `weft sessions`: every label, what it is about and where it stands.

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.ledger.imports import ProvisionalTurn

    Tails = dict[str, list[ProvisionalTurn]]

SESSIONS_HEADER = ("session", "origin", "project", "turns", "tokens", "last change", "title")
SESSIONS_SPARE = ("origin", "tokens", "project", "turns")
STATUS_STYLES = {"archived": "dim", "deleted": "bad"}
ON_A_TERMINAL = 50
PROJECT_COLUMNS = 20


@weft_command("sessions")
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="Subagents, archived and deleted sessions too, and those of imports and rooms without a turn.",
)
@click.option("--subagents", is_flag=True, help="Subagents too, each below the session that started it.")
@click.option("--origin", metavar="NAME", help="Only sessions of this tool; weft for those made here.")
@click.option(
    "--project", metavar="NAME", help="Only sessions of this project: its name, its repository or a folder of it."
)
@click.option("--since", metavar="TIME", help="Only sessions that changed since then; a day means all of it.")
@click.option("-n", "--limit", type=click.IntRange(min=0), metavar="N", help="At most N sessions.")
@arguments.after_option()
def sessions_command(
    call: Call,
    every: bool,
    subagents: bool,
    origin: str | None,
    project: str | None,
    since: str | None,
    limit: int | None,
    after: str | None,
) -> None:
    """List sessions and where they stand.

    The latest first. On a terminal at most 50, unless --limit says otherwise; if there are more, the cursor of the next
    page stands on the error stream, unless that is a terminal: there a larger -n shows more. A session whose last turn
    another tool is still writing is marked as provisional. Sessions without a date come last.

    A row is label, origin, project, turns, tokens, last change and title; a session without a title goes by what it was
    first asked. On a terminal long labels are cut to what must be typed, and columns that tell nothing, or that a
    narrow terminal has no room for, are left out. Sessions of subagents, and those of imports and rooms that have no
    turn, are shown only when asked for; a note says how many there are.
    """
    short = call.screen.terminal and not call.json
    wanted = SessionFilter(
        origin=origin,
        project=project,
        since=since,
        every=every,
        subagents=subagents or every,
    )
    most = ON_A_TERMINAL if limit is None and short else limit
    with call.reading() as ledger:
        listing = ledger.listing().sessions(wanted, limit=most, after=after)
        tails = _tails(ledger)
        nothing = "" if listing.sessions else _nothing(ledger, wanted, is_filtered=limit is not None)
    if call.json:
        call.documents(_entry(listed, tails) for listed in listing.sessions)
        call.next_page(listing.next)
        return
    note_import(call, find_ledger(call.ledger))
    if listing.sessions:
        rows = _columns(listing.sessions, call.screen.terminal, tails)
        call.screen.table(*rows, numbers=("turns", "tokens"), spare=SESSIONS_SPARE)
    for listed in listing.sessions:
        if listed.branches:
            label = listed.session.label
            call.note(f"{label} was moved elsewhere, too: `weft settle {shell_word(label)}` joins them")
    turn_lists.note_left_out(call, sum(map(len, tails.values())), "counted")
    _notes(call, listing, nothing)


def _tails(ledger: Ledger) -> Tails:
    tails: Tails = {}
    for tail in ledger.imports.provisional():
        tails.setdefault(tail.session_id, []).append(tail)
    return tails


def _entry(listed: ListedSession, tails: Tails) -> SessionEntry:
    unfinished = [UnfinishedTurn(turn=tail) for tail in tails.get(listed.session.id, ())]
    return SessionEntry(listed=listed, provisional=unfinished)


def _nothing(ledger: Ledger, wanted: SessionFilter, *, is_filtered: bool) -> str:
    """What is told where no session is listed."""
    ensure_known_origin(ledger, wanted.origin)
    if wanted.project is not None:
        of_project = SessionFilter(project=wanted.project, every=True, subagents=True)
        if not ledger.listing().sessions(of_project, limit=1).sessions:
            return NO_PROJECT
    is_filtered |= any(value is not None for value in (wanted.origin, wanted.project, wanted.since))
    return "no such sessions" if is_filtered else _NOTHING


def _notes(call: Call, listing: SessionList, nothing: str) -> None:
    if listing.further:
        call.note(
            f"{counted(listing.further, 'more session')}: `weft sessions -n N` lists more, --project and --since fewer"
            + call.page_hint(listing.next)
        )
    if listing.hidden:
        verb = "is" if listing.hidden == 1 else "are"
        call.note(f"{counted(listing.hidden, 'session')} of subagents {verb} not shown: --subagents lists them")
    if listing.empty:
        verb = "is" if listing.empty == 1 else "are"
        sessions = counted(listing.empty, "session")
        call.note(f"{sessions} of imports or rooms without a turn {verb} not shown: --all lists them")
    if not (listing.sessions or listing.hidden or listing.further or listing.empty):
        call.note(nothing)


_NOTHING = "no sessions yet: `weft record --session main …` makes one with its first turn"


def _columns(
    sessions: list[ListedSession], terminal: bool, tails: Tails
) -> tuple[list[list[Span | str]], Sequence[str]]:
    """A table's rows and header. On a terminal a column that is empty, or tells only what is made here, is left out."""
    labels = {listed.session.label for listed in sessions}
    rows: list[list[Span | str]] = []
    for listed in sessions:
        rows.append(_row(listed, terminal, listed.session.parent_session in labels, tails))
        rows += [_branch_row(branch, terminal) for branch in listed.branches]
    if not terminal:
        return rows, SESSIONS_HEADER
    dull = {"origin": {"weft"}, "project": {""}, "tokens": {""}}
    columns = [i for i, name in enumerate(SESSIONS_HEADER) if {str(row[i]) for row in rows} != dull.get(name)]
    return [[row[i] for i in columns] for row in rows], [SESSIONS_HEADER[i] for i in columns]


def _row(listed: ListedSession, terminal: bool, below: bool, tails: Tails) -> list[Span | str]:
    session, when = listed.session, session_time(listed.session)
    title = listed.title
    if session.id in tails:
        title = f"[{turn_lists.PROVISIONAL_MARK}] {title or turn_lists.provisional_subject(tails[session.id][0])}"
    if session.status != "active":
        title = f"[{session.status}] {title}"
    label = f"{'  ' if below else ''}{listed.short_label}" if terminal else session.label
    return [
        Span(label, "label"),
        session.origin,
        cut(safe(listed.project), PROJECT_COLUMNS) if terminal else listed.project,
        str(listed.depth),
        abbreviated(listed.total_tokens) if terminal else str(listed.total_tokens),
        when[:MINUTE] if terminal else when,
        Span(" ".join(title.split()), STATUS_STYLES.get(session.status, "")),
    ]


def _branch_row(branch: Branch, terminal: bool) -> list[Span | str]:
    """Where another ledger left the session that stands above it."""
    when = local_time(branch.changed_at)
    place = "no turn" if branch.head is None else short(branch.head)
    name = f"  {branch.name}" if terminal else branch.name
    return [Span(name, "label"), "", "", "", "", when[:MINUTE] if terminal else when, f"[moved elsewhere] to {place}"]


# --- `weft session`: a session as a program: made with a model, promoted, merged, paused, resumed, completed.

MAX_ENTRY_BYTES = 64 * 1024 * 1024
"""So much of a log's first line is read."""
session_command = group(
    "session",
    """Create sessions, send to them, pause, resume, unify and complete them.

    A session program is the ledger's own session: `weft sessions` lists them. A paused one takes no turns until it is
    resumed, a completed one none any more.
    """,
)


@session_command.verb("create")
@click.argument("label", required=False)
@click.option("--model", metavar="NAME", shell_complete=complete_programs("model"), help="The model that it asks.")
@click.option("--owner", metavar="NAME", shell_complete=complete_programs("agent"), help="The agent that owns it.")
@set_fields
@acting
def create_session(
    call: Call,
    label: str | None,
    model: str | None,
    owner: str | None,
    fields: tuple[str, ...],
    actor: str,
    retry_key: str | None,
) -> None:
    """Make a session; without a label it gets one."""
    with changing(call, actor) as programs:
        created = programs.create_session(
            label, model=model, owner=owner, config=with_fields({}, fields), key=retry_key
        )
        answer(call, created)


@session_command.verb("configure")
@session_argument()
@click.option("--model", metavar="NAME", shell_complete=complete_programs("model"), help="Ask this model from now on.")
@click.option(
    "--owner",
    metavar="NAME",
    shell_complete=complete_programs("agent", "human"),
    help="Make this agent or person its owner.",
)
@set_fields
@acting
def configure_session(
    call: Call,
    session: str,
    model: str | None,
    owner: str | None,
    fields: tuple[str, ...],
    actor: str,
    retry_key: str | None,
) -> None:
    """Change some fields of a session's configuration."""
    changes = with_fields(given(defaultModel=model, owner=owner), fields)
    with changing(call, actor) as programs:
        opened = programs.ledger.session(session)
        answer(call, programs.change(opened.id, changes, key=retry_key))


@session_command.verb("send")
@session_argument()
@click.argument("message")
@click.option(
    "--model", metavar="NAME", shell_complete=complete_programs("model"), help="Ask this model this time only."
)
@click.option("--situation", metavar="NAME", help="Ask with the parameters of this situation.")
@click.option("--stream", is_flag=True, help="Show the answer as it comes.")
@as_actor
def send_to_session(
    call: Call, session: str, message: str, model: str | None, situation: str | None, stream: bool, actor: str
) -> None:
    """Send a message to a session; its model answers, and both become a turn. - reads it from standard input.

    The model is the session's own, or else its owner's; --model asks another one for this message, which sees the same
    history. A paused session and a completed one refuse. `weft send` does more: it queues, runs tools and survives this
    process.
    """
    from weft.runtime.invoke.invocation import Invocation

    with call.reading() as ledger:
        opened = ledger.session(session)
    asked = Invocation(message=message_text(message), model=model, situation=situation)
    answer_invoked(call, invoked(call, actor, opened.id, asked, stream=stream), shown=stream)


@session_command.verb("history")
@session_argument(required=False)
@click.option("--write", is_flag=True, help="Write the log entries into the session's logFile instead.")
def session_history(call: Call, session: str | None, write: bool) -> None:
    """Show what was said in a session, without tool calls and thinking.

    Without SESSION it is the latest. With --json each message is a log entry with uuid, parentUuid, sessionId,
    timestamp, message (role, content, model, usage) and, of an answer, requestId, provider, latencyMs and situation;
    what is not known is not there. `weft export --format jsonl` writes the same.
    """
    if write:
        if session is None:
            raise click.UsageError("name the session whose log is written")
        _write_log(call, session)
        return
    with call.reading() as ledger:
        name = named_or_latest(call, ledger, session)
        entries = [] if name is None else _history(ledger, name)
    if call.json:
        call.documents(map(JsonValue, entries))
        return
    for entry in entries:
        message = entry["message"]
        by = f" {message['model']}" if "model" in message else ""
        call.screen.show(Span(f"{message['role']}{by}", "label"), Span(f" {entry.get('timestamp', '')}", "dim"))
        for line in message["content"].split("\n"):
            call.screen.show(f"  {line}")
    if name is not None and not entries:
        call.note(f"nothing was said yet; `weft session send {shell_word(name)} TEXT` begins")


def _history(ledger: Ledger, name: str) -> list[dict[str, Any]]:
    opened = ledger.session(name)
    return [] if opened.head is None else list(_entries(ledger, opened.label))


def _write_log(call: Call, session: str) -> None:
    """The log as it is now, in place of the one that was written before."""
    from weft.exchange.exporters.export import export
    from weft.kernel.errors import InvalidInput, NotApplicable
    from weft.programs import Programs
    from weft.programs.program_writer import ensure_vouched

    with call.copying() as ledger:
        opened = ledger.session(session)
        config = ensure_vouched(Programs(ledger).get(opened.id, "session")).config
        name = config.get("logFile") if isinstance(config, dict) else None
        if not isinstance(name, str):
            hint = f"`weft session configure {shell_word(session)} --set logFile=FILE`"
            raise NotApplicable(f"session {opened.label!r} has no logFile", hint)
        if Path(name).exists() and not _is_log(Path(name)):
            raise InvalidInput(f"{name} is there and is no log of a session", "move it away, or name another logFile")
        _make_folder_of(Path(name))
        export(ledger, opened.label, "jsonl", name, force=True)
    call.note(f"written to {name}")


def _make_folder_of(path: Path) -> None:
    from weft.kernel.errors import InvalidInput

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"the folder {path.parent} cannot be made: {error.strerror}", "name another") from None


def _is_log(path: Path) -> bool:
    """Whether a file begins with a log entry, or is empty."""
    import orjson

    with path.open("rb") as file:
        first = file.readline(MAX_ENTRY_BYTES)
    try:
        return not first or "sessionId" in orjson.loads(first)
    except (orjson.JSONDecodeError, TypeError):
        return False


def _entries(ledger: Ledger, session: str) -> Iterator[dict[str, Any]]:
    from io import BytesIO

    import orjson

    from weft.exchange.exporters.export import export

    log = BytesIO()
    export(ledger, session, "jsonl", log)
    return map(orjson.loads, log.getvalue().splitlines())


@session_command.verb("promote")
@session_argument()
@click.argument("key")
@as_actor
def promote_key(call: Call, session: str, key: str, actor: str) -> None:
    """Let the key of a person or an agent lead to a session, once it is known whose session it is.

    The key becomes an alias of the session, with the reason identity_promotion.

    A key that is another session's label or alias is refused; repeated, the command changes nothing.
    """
    with call.writing() as ledger:
        promoted = call.in_name_of(actor, ledger).labels.promote(session, key)
    call.answer(promoted, [Span(key, "label"), " leads to ", Span(promoted.label, "label")])


@session_command.verb("unify")
@session_argument()
@click.option("--into", metavar="SESSION", shell_complete=complete_labels, help="The session that stays.")
@click.option("--summary", metavar="TEXT", help="What the other session is told, instead of a list of what was asked.")
@click.option("--summary-from", metavar="FILE", type=click.Path(), help="Read it from here; - is standard input.")
@click.option("--undo", "back", is_flag=True, help="Make an archived session active again, with its names.")
@acting
def unify_session(
    call: Call,
    session: str,
    into: str | None,
    summary: str | None,
    summary_from: str | None,
    back: bool,
    actor: str,
    retry_key: str | None,
) -> None:
    """Make one session out of two that belong together.

    SESSION is archived. Its label and its aliases lead to the other session, where a turn tells when it was used, what
    was asked there and what is unresolved. Turns stay where they are. Refused while a turn of either is being recorded.

    It is archived as unified/SESSION, and its routing key leads to the other session, too:
    docs/branches.md#one-session-out-of-two.
    """
    if back:
        if (into, summary, summary_from, retry_key) != (None,) * 4:
            raise click.UsageError("--undo takes a session and nothing else")
        with call.writing() as ledger:
            separated = call.in_name_of(actor, ledger).merges.separate(session)
        call.answer(separated, [Span(separated.label, "label"), " is a session of its own again"])
        return
    if into is None:
        raise click.UsageError("name the session that stays: --into SESSION")
    if summary is not None and summary_from is not None:
        raise click.UsageError("give the summary once: --summary or --summary-from")
    if summary_from is not None:
        summary = decode_utf8(read_input(summary_from, "no summary was piped in"), "summary").rstrip("\n")
    with call.writing() as ledger:
        unified = call.in_name_of(actor, ledger).merges.unify(session, into=into, summary=summary, key=retry_key)
    _answer_unified(call, unified)


def _answer_unified(call: Call, unified: Unification) -> None:
    stays, names = Span(unified.session.label, "label"), ", ".join(unified.names)
    archived = Span(unified.archived.label, "label")
    verb = "leads" if len(unified.names) == 1 else "lead"
    call.answer(
        unified,
        [Span(names, "label"), f" {verb} to ", stays],
        [Span(short(unified.summary.id), "id"), " on ", stays, " tells of ", archived, ", which is archived"],
    )
    call.note(undo("session", "unify", unified.archived.label, "--undo"))


def _step(verb: str, help: str) -> None:
    @session_argument()
    @click.option("--reason", metavar="TEXT", help="Why.")
    @acting
    def step(call: Call, session: str, reason: str | None, actor: str, retry_key: str | None) -> None:
        with changing(call, actor) as programs:
            opened = programs.ledger.session(session)
            answer(call, programs.step_session(opened.id, verb, reason=reason, key=retry_key))

    step.__doc__ = help
    session_command.verb(verb)(step)


_step("pause", "Pause a session: it takes no turns.")
_step("resume", "Resume a paused session.")
_step("complete", "Complete a session: it takes no more turns, and can still be forked.")


# --- `weft rename`: another label for a session.


@weft_command("rename")
@arguments.session()
@click.argument("label")
def rename_command(call: Call, session: str, label: str) -> None:
    """Rename a session.

    Its turns, its reflog and its aliases stay.
    """
    with call.writing() as ledger:
        before = ledger.session(session).label
        renamed = ledger.labels.rename(session, label)
    call.answer(renamed, [Span(before, "label"), " is now ", Span(renamed.label, "label")])
    call.note(undo("rename", renamed.label, before))


# --- `weft alias`: a second name for a session.

ALIAS_HEADER = ("alias", "session", "why")
ALIAS_SPARE = ("session",)


@weft_command("alias")
@click.argument("alias", required=False)
@arguments.session(required=False)
@click.option(
    "--reason",
    type=click.Choice([reason.value for reason in AliasReason]),
    help="Why. Default: manual.",
)
def alias_command(call: Call, alias: str | None, session: str | None, reason: str | None) -> None:
    """Give a session a second name, or list such names.

    Without ALIAS and SESSION it lists all. Names are looked up as labels first, then as aliases; an alias never leads
    to another alias.
    """
    if alias is None:
        if reason is not None:
            raise click.UsageError("--reason is for a new name: weft alias ALIAS SESSION --reason …")
        _list(call)
        return
    if session is None:
        raise click.UsageError("name the session too: weft alias ALIAS SESSION")
    with call.writing() as ledger:
        renamed = ledger.labels.add_alias(alias, session, reason=reason or AliasReason.MANUAL)
    call.answer(renamed, [Span(alias, "label"), " is another name for ", Span(renamed.label, "label")])


def _list(call: Call) -> None:
    with call.reading() as ledger:
        aliases = ledger.labels.aliases()
    if call.json:
        call.documents(aliases)
    elif aliases:
        call.screen.table([_alias_row(alias) for alias in aliases], ALIAS_HEADER, spare=ALIAS_SPARE)
    else:
        call.note("no session has a second name: weft alias ALIAS SESSION gives one")


def _alias_row(alias: SessionAlias) -> tuple[Span | str, ...]:
    return Span(alias.alias, "label"), Span(alias.session, "label"), alias.reason


# --- `weft archive`: out of sight, not out of the ledger.


@weft_command("archive")
@click.argument("session", nargs=-1, shell_complete=complete_labels)
@click.option("--tree", is_flag=True, help="Every session that stands in the same tree.")
@click.option("--older-than", metavar="TIME", help="Only sessions that have not changed since, such as 90d.")
@click.option("--undo", "back", is_flag=True, help="Make them active again.")
@click.option("--list", "listed", is_flag=True, help="Show what is archived.")
@click.option("--dry-run", is_flag=True, help="List the sessions that would change; change none.")
@click.option("--reason", metavar="TEXT", help="Why.")
def archive_command(
    call: Call,
    session: tuple[str, ...],
    tree: bool,
    older_than: str | None,
    back: bool,
    listed: bool,
    dry_run: bool,
    reason: str | None,
) -> None:
    """Archive a session; its turns stay.

    An archived session is listed by `weft sessions --all` and `weft archive --list` only and takes no more turns. It
    keeps its label and can be shown, searched, forked and restored.
    """
    if listed:
        with call.reading() as ledger:
            _list_archived(call, [row for row in ledger.sessions(every=True) if row.status == "archived"])
        return
    if not session and older_than is None:
        from weft.kernel.errors import InvalidInput

        raise InvalidInput("no session is named", "name a session, or say --older-than, such as --older-than 90d")
    status = "active" if back else "archived"
    chosen: dict[str, Any] = {"tree": tree, "older_than": older_than, "back": back}
    if dry_run:
        with call.reading() as ledger:
            _show_changed(call, ledger.labels.archivable(list(session), **chosen), f"would be {status}", alone=False)
        return
    with call.writing() as ledger:
        changed = _change(ledger, session, chosen, reason)
    _show_changed(call, changed, f"is {status}", alone=len(session) == 1 and not (tree or older_than))
    if changed and not back:
        call.note(undo("archive", "--undo", *(row.label for row in changed)))


def _change(ledger: Ledger, names: tuple[str, ...], chosen: dict[str, Any], reason: str | None) -> list[Session]:
    change = ledger.labels.unarchive if chosen["back"] else ledger.labels.archive
    return [change(row.id, reason=reason) for row in ledger.labels.archivable(list(names), **chosen)]


def _show_changed(call: Call, sessions: list[Session], what: str, *, alone: bool) -> None:
    """One session that was named alone is a document of its own, others are a list."""
    if call.json:
        call.document(sessions[0] if alone else sessions)
        return
    for session in sessions:
        call.screen.show(Span(session.label, "label"), f" {what}")
    if not sessions:
        call.note("no such sessions")


def _list_archived(call: Call, sessions: list[Session]) -> None:
    if call.json:
        call.documents(sessions)
        return
    rows = [
        (Span(session.label, "label"), session_time(session), meaningful_title(session.title) or "")
        for session in sessions
    ]
    if rows:
        call.screen.table(rows, ("session", "last change", "title"))
        call.note(f"{counted(len(rows), 'session')} archived; `weft archive --undo SESSION` makes one active again")
    else:
        call.note("nothing is archived")


# --- `weft delete`: the label goes, the turns stay.


@weft_command("delete")
@arguments.session()
@click.option("--reason", metavar="TEXT", help="Why.")
def delete_command(call: Call, session: str, reason: str | None) -> None:
    """Delete a session's label; its turns stay.

    The turns keep their ids and can still be shown and forked; `weft restore` brings the session back.
    """
    with call.writing() as ledger:
        gone = ledger.labels.delete(session, reason=reason)
    call.answer(gone, [Span(gone.label, "label"), " is deleted; its turns stay"])
    call.note(undo("restore", gone.label))


# --- `weft move`: the head of a session, by compare and swap.

NO_TURN = "-"


@weft_command("move")
@arguments.session()
@arguments.rev(required=False)
@click.option("--expect", metavar="REV", help="Move only if the head stands there; '-' means that it has no turn.")
@click.option("--reset", is_flag=True, help="To no turn at all: the next turn is a new root.")
@click.option("--reason", metavar="TEXT", help="Why, for the reflog.")
def move_command(
    call: Call, session: str, rev: str | None, reset: bool, expect: str | None, reason: str | None
) -> None:
    """Move a session's head to another turn.

    REV is a turn, or the digest of an event inside one. Nothing is lost: the reflog remembers where the session stood,
    and `weft restore` goes back.
    """
    if (rev is None) != reset:
        raise click.UsageError("say where to: `weft move SESSION REV`, or `weft move SESSION --reset`")
    with call.writing() as ledger:
        before = ledger.session(session)
        moved = _move(ledger, session, rev, expect, reason)
    label = Span(moved.label, "label")
    call.answer(moved, [label, ": ", *_place(before), " -> ", *_place(moved)])
    call.note(undo("restore", moved.label))


def _move(ledger: Ledger, session: str, rev: str | None, expect: str | None, reason: str | None) -> Session:
    guard: dict[str, Any] = {}
    if expect is not None:
        guard["expected"] = None if expect == NO_TURN else ledger.resolve(expect)
    if rev is None:
        return ledger.heads.reset(session, reason=reason, **guard)
    point = ledger.point(rev)
    return ledger.move_head(session, new=point.event_id or point.turn_id, reason=reason, **guard)


def _place(session: Session) -> Line:
    if session.head is None:
        return [Span("no turn", "id")]
    inside = "" if session.head_event is None else f" at event {session.head_event}"
    return [Span(short(session.head), "id"), inside]


# --- `weft restore`: back to where a session stood.

_PLACE = re.compile(r"(.+)@\{(\d{1,15})\}")


@weft_command("restore")
@arguments.session()
@click.argument("number", type=click.IntRange(min=0), metavar="[N]", required=False)
@click.option("--reason", metavar="TEXT", help="Why, for the reflog.")
def restore_command(call: Call, session: str, number: int | None, reason: str | None) -> None:
    """Move a session back, or bring a deleted one back.

    N counts the lines of `weft reflog`: 1 is where the session stood before its last move. Without N an active session
    goes back by 1, a deleted or archived one becomes active again where it stood. SESSION may name the line itself, as
    `weft reflog` does: main@{2}.
    """
    if number is None and (place := _PLACE.fullmatch(session)):
        session, number = place[1], int(place[2])
    with call.writing() as ledger:
        restored = ledger.heads.restore(find_session(ledger, session).id, number, reason=reason)
    head = "no turn" if restored.head is None else short(restored.head)
    call.answer(restored, [Span(restored.label, "label"), " stands at ", Span(head, "id")])


# --- `weft reflog`: every place a session has stood.

REFLOG_HEADER = ("name", "turn", "when", "why", "reason")
REFLOG_SPARE = ("turn",)
LABEL_COLUMNS, OTHER_COLUMNS = 12, 46
"""So many columns a label has at least, and so many the rest of its line."""


@weft_command("reflog")
@arguments.session(required=False)
@click.option("-n", "--limit", type=click.IntRange(min=0), metavar="N", help="At most N moves.")
def reflog_command(call: Call, session: str | None, limit: int | None) -> None:
    """Show where a session has stood.

    Without SESSION it is the latest. The newest first; each line names the place as `weft show`, `weft move` and the
    others take it.
    """
    with call.reading() as ledger:
        name = named_or_latest(call, ledger, session, with_turn=False)
        if name is None:
            if call.json:
                call.documents(())
            return
        opened = find_session(ledger, name)
        with progress(call, "reflog", by_itself=True):
            moves = ledger.reflog(opened.id, limit=limit)
        label = _label(call.screen, ledger, opened) if moves and call.screen.terminal else opened.label
    if call.json:
        call.documents(moves)
    elif moves:
        call.screen.table(
            [_reflog_row(label, move, call.screen.terminal) for move in moves], REFLOG_HEADER, spare=REFLOG_SPARE
        )
    else:
        call.note(f"session {opened.label!r} has not moved yet: its first turn will be the first line here")


def _label(screen: Screen, ledger: Ledger, session: Session) -> str:
    """What to type for a session, as far as a terminal has room for it."""
    shown = ledger.listing().short_labels().get(session.label, session.label)
    return cut(safe(shown), max(LABEL_COLUMNS, screen.columns - OTHER_COLUMNS))


def _reflog_row(label: str, move: HeadMove, terminal: bool) -> tuple[Span | str, ...]:
    turn = "-" if move.turn_id is None else short(move.turn_id)
    name = Span(f"{label}@{{{move.number}}}", "label")
    when = (local_minute if terminal else local_time)(move.changed_at)
    return name, Span(turn, "id"), when, move.why, move.reason or ""


# --- `weft settle`: one head again for a session that several ledgers moved.


@weft_command("settle")
@arguments.session()
@click.option("--to", metavar="REV", shell_complete=arguments.complete_labels, help="At this turn.")
@click.option("--ours", is_flag=True, help="Where it stands here.")
@click.option("--theirs", is_flag=True, help="Where the other ledger's branch stands.")
@click.option("--fork", metavar="LABEL", help="Where it stands here; the other branch becomes a session of its own.")
@click.option("--reason", metavar="TEXT", help="Why, for the reflog.")
def settle_command(
    call: Call, session: str, to: str | None, ours: bool, theirs: bool, fork: str | None, reason: str | None
) -> None:
    """Settle a session that several ledgers moved: join its branches.

    Without an option the branches are shown. Settling is one more move, which names the ends of all branches; every
    ledger follows it with its next pull. No turn is lost.

    docs/sharing.md#two-ledgers-moved-one-session tells how such branches come about.
    """
    if (to is not None) + theirs + (ours or fork is not None) > 1:
        raise click.UsageError("choose one of --to, --ours, --theirs and --fork")
    if to is None and not (ours or theirs or fork):
        return _show(call, session)
    with call.writing() as ledger:
        settled = ledger.merges.settle(session, to=to, ours=ours, theirs=theirs, fork=fork, reason=reason)
    stands = "no turn" if settled.head is None else short(settled.head)
    call.answer(settled, [Span(settled.label, "label"), " stands at ", Span(stands, "id")])
    call.note("other ledgers follow with their next pull")
    return None


def _show(call: Call, session: str) -> None:
    with call.reading() as ledger:
        opened, branches = ledger.session(session), ledger.merges.branches(session)
    if not branches:
        raise NotApplicable(f"session {opened.label!r} has one branch", "nothing is to be settled")
    if call.json:
        call.documents(branches)
        return
    call.screen.show(*_line(opened.label, opened.head))
    for branch in branches:
        call.screen.show(*_line(branch.name, branch.head))
    call.note(f"choose: `weft settle {shell_word(opened.label)} --ours`, --theirs, --to REV or --fork LABEL")


def _line(name: str, head: str | None) -> Line:
    return [Span(name, "label"), " stands at ", Span("no turn" if head is None else short(head), "id")]
