"""Sessions: listed, made with a model, sent to, unified and completed; their labels and other names; out of sight and
back; where they stand, stood, and how one is settled that several ledgers moved.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from weft.kernel.enums import AliasReason
from weft.kernel.errors import InvalidInput, NotApplicable, NotFound, quoted
from weft.kernel.typed_names import shell_word
from weft.ledger.model import Branch, HeadMove
from weft.verbs.answers import Answer, JsonValue, Listing, SessionEntry, UnfinishedTurn
from weft.verbs.declaration import (
    SESSION,
    Column,
    Cursor,
    Fields,
    LatestSession,
    MoveReason,
    OpenMode,
    Reason,
    RequestError,
    RetryKey,
    SessionName,
    Shown,
    Table,
    TypedForm,
    VerbGroup,
    arg,
    fields_set,
    opt,
    program,
    verb,
)

if TYPE_CHECKING:
    from weft.ledger.api import Ledger, ListedSession, SessionFilter, Unification
    from weft.ledger.imports import ProvisionalTurn
    from weft.ledger.model import Session, SessionAlias
    from weft.programs import Program
    from weft.runtime.invoke.invocation import InvocationContext, InvocationResult

    Tails = dict[str, list[ProvisionalTurn]]


# --- Which session is meant.

NOTHING_YET = "no turns yet: `weft import` brings in the sessions of other tools, `weft record` makes one"
SESSIONS_AT_A_TIME = 16
"""Sessions without a turn are passed over, so many at a time."""


def latest_session(ledger: Ledger, *, with_turn: bool = True) -> ListedSession | None:
    """The session that is listed first: the one that changed last and is no subagent's. One without a turn is passed
    over, unless `with_turn` is false. None: there is no such session."""
    from weft.ledger.api import SessionFilter

    listing = ledger.listing()
    page = listing.sessions(SessionFilter(), limit=SESSIONS_AT_A_TIME)
    while True:
        for listed in page.sessions:
            if listed.session.head is not None or not with_turn:
                return listed
        if page.next is None:
            return None
        page = listing.sessions(SessionFilter(), limit=SESSIONS_AT_A_TIME, after=page.next)


def named_or_latest(ledger: Ledger, name: str | None, *, with_turn: bool = True) -> str | None:
    """The name that was given; without one, the label of the latest session, if there is one. `@{1}` alone is a place
    where that stood."""
    if name is not None:
        return place_in_latest(ledger, name)
    listed = latest_session(ledger, with_turn=with_turn)
    return None if listed is None else listed.session.label


def require_named_or_latest(ledger: Ledger, name: str | None, *, with_turn: bool = True) -> str:
    """The same for what has no answer without a session: raises NotFound where there is none."""
    found = named_or_latest(ledger, name, with_turn=with_turn)
    if found is None:
        is_empty = latest_session(ledger, with_turn=False) is None
        raise nothing_found(ledger, "session" if is_empty else "session with a turn")
    return found


def place_in_latest(ledger: Ledger, name: str) -> str:
    return require_named_or_latest(ledger, None) + name if name.startswith("@{") else name


def nothing_found(ledger: Ledger, what: str) -> NotFound:
    """No active session is to be had: because there is no turn, or because those with turns are set aside."""
    if any(session.head is not None for session in ledger.sessions(every=True)):
        hint = "`weft sessions --all` lists the others; `weft archive --undo` brings one back"
        return NotFound(f"active {what}", None, hint)
    return NotFound(what, None, NOTHING_YET)


def find_session(ledger: Ledger, name: str) -> Session:
    """As `Ledger.session`, and if nothing has that name any more, the latest deleted session that had it."""
    try:
        return ledger.session(name)
    except NotFound:
        sessions = ledger.sessions(every=True)
        gone = [session for session in sessions if session.label == name] or _beginning(sessions, name)
        if not gone:
            raise
        return gone[0]


def _beginning(sessions: list[Session], name: str) -> list[Session]:
    """The deleted sessions of the one label that begins so."""
    from weft.ledger.read.sessions import SHORTEST, fitting

    labels = fitting({session.label for session in sessions}, name) if len(name) >= SHORTEST else []
    return [session for session in sessions if labels == [session.label]]


# --- `sessions`: every label, what it is about and where it stands.

ON_A_TERMINAL = 50


class SessionPage(Listing[SessionEntry], frozen=True, kw_only=True):
    """`provisional`: how many turns other tools are still writing, in all sessions; `further`: how many sessions there
    are beyond the limit; `hidden`: sessions of subagents, and `without_turn`: sessions of imports and rooms without a
    turn, that were not asked for."""

    provisional: int
    further: int
    hidden: int
    without_turn: int
    why_none: Literal["", "filters", "project"] = ""
    """Where none is listed: the filters leave none, or no project has that name."""


@verb("sessions")
def sessions(
    ledger: Ledger,
    every: Annotated[
        bool,
        opt("Subagents, archived and deleted sessions too, and those of imports and rooms without a turn.", "--all"),
    ] = False,
    subagents: Annotated[bool, opt("Subagents too, each below the session that started it.")] = False,
    origin: Annotated[str | None, opt("Only sessions of this tool; weft for those made here.", metavar="NAME")] = None,
    project: Annotated[
        str | None,
        opt("Only sessions of this project: its name, its repository or a folder of it.", metavar="NAME"),
    ] = None,
    since: Annotated[
        str | None, opt("Only sessions that changed since then; a day means all of it.", metavar="TIME")
    ] = None,
    limit: Annotated[
        int | None, opt("At most N sessions.", "-n", "--limit", metavar="N", least=0, on_terminal=ON_A_TERMINAL)
    ] = None,
    after: Cursor = None,
) -> SessionPage:
    """List sessions and where they stand.

    The latest first. On a terminal at most 50, unless --limit says otherwise; if there are more, the cursor of the next
    page stands on the error stream, unless that is a terminal: there a larger -n shows more. A session whose last turn
    another tool is still writing is marked as provisional. Sessions without a date come last.

    A row is label, origin, project, turns, tokens, last change and title; a session without a title goes by what it was
    first asked. On a terminal long labels are cut to what must be typed, and columns that tell nothing, or that a
    narrow terminal has no room for, are left out. Sessions of subagents, and those of imports and rooms that have no
    turn, are shown only when asked for; a note says how many there are.
    """
    from weft.ledger.api import SessionFilter

    wanted = SessionFilter(origin=origin, project=project, since=since, every=every, subagents=subagents or every)
    listing = ledger.listing().sessions(wanted, limit=limit, after=after)
    tails: Tails = {}
    for tail in ledger.imports.provisional():
        tails.setdefault(tail.session_id, []).append(tail)
    return SessionPage(
        items=[_entry(listed, tails) for listed in listing.sessions],
        next=listing.next,
        provisional=sum(map(len, tails.values())),
        further=listing.further,
        hidden=listing.hidden,
        without_turn=listing.empty,
        why_none="" if listing.sessions else _why_none(ledger, wanted),
    )


def _entry(listed: ListedSession, tails: Tails) -> SessionEntry:
    unfinished = [UnfinishedTurn(turn=tail) for tail in tails.get(listed.session.id, ())]
    return SessionEntry(listed=listed, provisional=unfinished)


def _why_none(ledger: Ledger, wanted: SessionFilter) -> Literal["", "filters", "project"]:
    from weft.ledger.api import SessionFilter

    ensure_known_origin(ledger, wanted.origin)
    if wanted.project is not None:
        of_project = SessionFilter(project=wanted.project, every=True, subagents=True)
        if not ledger.listing().sessions(of_project, limit=1).sessions:
            return "project"
    is_filtered = any(value is not None for value in (wanted.origin, wanted.project, wanted.since))
    return "filters" if is_filtered else ""


def ensure_known_origin(ledger: Ledger, origin: str | None, *, any_case: bool = False) -> None:
    """Refuse an origin that found nothing and is neither a tool that is imported from nor one in the ledger."""
    if origin is None:
        return
    from weft.exchange.importers.port import importer_names
    from weft.ledger.api import HERE

    wanted = origin.casefold() if any_case else origin
    names = {HERE, *importer_names()}
    if wanted in names:
        return
    names |= {session.origin for session in ledger.sessions(every=True) if session.origin is not None}
    if wanted not in ({name.casefold() for name in names} if any_case else names):
        raise RequestError(
            "{origin}: no tool is called {tool}; known are {tools}",
            tool=quoted(origin),
            tools=", ".join(sorted(names)),
        )


# --- `session`: a session as a program: made with a model, promoted, merged, paused, resumed, completed.

session_group = VerbGroup(
    "session",
    """Create sessions, send to them, pause, resume, unify and complete them.

    A session program is the ledger's own session: `weft sessions` lists them. A paused one takes no turns until it is
    resumed, a completed one none any more.
    """,
)
MAX_ENTRY_BYTES = 64 * 1024 * 1024
"""So much of a log's first line is read."""
CONFIGURE = "program:session:configure"


@verb("session create", right=CONFIGURE, method="programs.create_session", opens=OpenMode.WRITING, takes_actor=True)
def session_create(
    ledger: Ledger,
    label: Annotated[str | None, arg("Its label; without one it gets one.")] = None,
    model: Annotated[str | None, opt("The model that it asks.", metavar="NAME", names=program("model"))] = None,
    owner: Annotated[str | None, opt("The agent that owns it.", metavar="NAME", names=program("agent"))] = None,
    fields: Fields = None,
    retry_key: RetryKey = None,
) -> Program:
    """Make a session; without a label it gets one."""
    from weft.programs import Programs

    return Programs(ledger).create_session(
        label, model=model, owner=owner, config=fields_set({}, fields), key=retry_key
    )


@verb("session configure", right=CONFIGURE, method="programs.change", opens=OpenMode.WRITING, takes_actor=True)
def session_configure(
    ledger: Ledger,
    session: SessionName,
    model: Annotated[str | None, opt("Ask this model from now on.", metavar="NAME", names=program("model"))] = None,
    owner: Annotated[
        str | None, opt("Make this agent or person its owner.", metavar="NAME", names=program("agent", "human"))
    ] = None,
    fields: Fields = None,
    retry_key: RetryKey = None,
) -> Program:
    """Change some fields of a session's configuration."""
    from weft.programs import Programs

    named = {"defaultModel": model, "owner": owner}
    changes = fields_set({name: value for name, value in named.items() if value is not None}, fields)
    return Programs(ledger).change(ledger.session(session).id, changes, key=retry_key)


@verb("session send", right="turn:record", opens=OpenMode.ACTING, takes_actor=True)
async def session_send(
    acting: InvocationContext,
    session: SessionName,
    message: Annotated[
        str,
        arg("What is said.", typed=TypedForm.TEXT, missing="nothing was said: pipe the message in", what="the message"),
    ],
    model: Annotated[str | None, opt("Ask this model this time only.", metavar="NAME", names=program("model"))] = None,
    situation: Annotated[str | None, opt("Ask with the parameters of this situation.", metavar="NAME")] = None,
) -> InvocationResult:
    """Send a message to a session; its model answers, and both become a turn. - reads it from standard input.

    The model is the session's own, or else its owner's; --model asks another one for this message, which sees the same
    history. A paused session and a completed one refuse. `weft send` does more: it queues, runs tools and survives this
    process.
    """
    from weft.runtime.invoke.handlers import invoke
    from weft.runtime.invoke.invocation import Invocation

    opened = await acting.across(lambda: acting.programs.ledger.session(session))
    return await invoke(acting, opened.id, Invocation(message=message, model=model, situation=situation))


class SessionHistory(Listing[JsonValue], frozen=True, kw_only=True):
    session: str | None
    """None: there is no session."""


class WrittenLog(Answer, frozen=True, kw_only=True):
    IS_SILENT: ClassVar[bool] = True
    path: str


def _check_history(session: str | None, write: bool) -> None:
    if write and session is None:
        raise RequestError("name the session whose log is written")


@verb("session history", opens=OpenMode.COPYING, reads_without=("write",), check=_check_history)
def session_history(
    ledger: Ledger,
    session: LatestSession = None,
    write: Annotated[bool, opt("Write the log entries into the session's logFile instead.")] = False,
) -> SessionHistory | WrittenLog:
    """Show what was said in a session, without tool calls and thinking.

    Without SESSION it is the latest. With --json each message is a log entry with uuid, parentUuid, sessionId,
    timestamp, message (role, content, model, usage) and, of an answer, requestId, provider, latencyMs and situation;
    what is not known is not there. `weft export --format jsonl` writes the same.
    """
    if write and session is not None:
        return _write_log(ledger, session)
    name = named_or_latest(ledger, session)
    if name is None:
        return SessionHistory(items=(), session=None)
    opened = ledger.session(name)
    entries = () if opened.head is None else map(JsonValue, _log_entries(ledger, opened.label))
    return SessionHistory(items=list(entries), session=name)


def _log_entries(ledger: Ledger, session: str) -> Iterator[dict[str, Any]]:
    from io import BytesIO

    import orjson

    from weft.exchange.exporters.export import export

    log = BytesIO()
    export(ledger, session, "jsonl", log)
    return map(orjson.loads, log.getvalue().splitlines())


def _write_log(ledger: Ledger, session: str) -> WrittenLog:
    """The log as it is now, in place of the one that was written before."""
    ledger.authority.ensure_allowed("resource:change")  # it lies outside of the ledger, which asks for nothing then
    from weft.exchange.exporters.export import export
    from weft.programs import Programs
    from weft.programs.program_writer import ensure_vouched

    opened = ledger.session(session)
    config = ensure_vouched(Programs(ledger).get(opened.id, "session")).config
    name = config.get("logFile") if isinstance(config, dict) else None
    if not isinstance(name, str):
        hint = f"`weft session configure {shell_word(session)} --set logFile=FILE`"
        raise NotApplicable(f"session {opened.label!r} has no logFile", hint)
    path = Path(name)
    if path.exists() and not _is_log(path):
        raise InvalidInput(f"{name} is there and is no log of a session", "move it away, or name another logFile")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"the folder {path.parent} cannot be made: {error.strerror}", "name another") from None
    export(ledger, opened.label, "jsonl", name, force=True)
    return WrittenLog(path=name)


def _is_log(path: Path) -> bool:
    """Whether a file begins with a log entry, or is empty."""
    import orjson

    with path.open("rb") as file:
        first = file.readline(MAX_ENTRY_BYTES)
    try:
        return not first or "sessionId" in orjson.loads(first)
    except (orjson.JSONDecodeError, TypeError):
        return False


@verb("session promote", right="session:rename", method="labels.promote", opens=OpenMode.WRITING, takes_actor=True)
def session_promote(
    ledger: Ledger, session: SessionName, key: Annotated[str, arg("The key of a person or an agent.")]
) -> Session:
    """Let the key of a person or an agent lead to a session, once it is known whose session it is.

    The key becomes an alias of the session, with the reason identity_promotion.

    A key that is another session's label or alias is refused; repeated, the command changes nothing.
    """
    return ledger.labels.promote(session, key)


def _check_unify(into: str | None, summary: str | None, undo: bool, retry_key: str | None) -> None:
    if undo and (into, summary, retry_key) != (None,) * 3:
        raise RequestError("{undo} takes a session and nothing else")
    if into is None and not undo:
        raise RequestError("name the session that stays: {into} SESSION")


@verb(
    "session unify",
    right="turn:merge",
    method="merges.unify",
    opens=OpenMode.WRITING,
    takes_actor=True,
    check=_check_unify,
)
def session_unify(
    ledger: Ledger,
    session: SessionName,
    into: Annotated[str | None, opt("The session that stays.", metavar="SESSION", names=SESSION)] = None,
    summary: Annotated[
        str | None,
        opt(
            "What the other session is told, instead of a list of what was asked.",
            metavar="TEXT",
            from_file="Read it from here; - is standard input.",
            missing="no summary was piped in",
        ),
    ] = None,
    undo: Annotated[bool, opt("Make an archived session active again, with its names.")] = False,
    retry_key: RetryKey = None,
) -> Unification | Session:
    """Make one session out of two that belong together.

    SESSION is archived. Its label and its aliases lead to the other session, where a turn tells when it was used, what
    was asked there and what is unresolved. Turns stay where they are. Refused while a turn of either is being recorded.

    It is archived as unified/SESSION, and its routing key leads to the other session, too:
    docs/branches.md#one-session-out-of-two.
    """
    if undo:
        ledger.authority.ensure_allowed("turn:merge")  # the ledger asks for what is done to each of the sessions
        return ledger.merges.separate(session)
    assert into is not None, "the check asks for it"
    return ledger.merges.unify(session, into=into, summary=summary, key=retry_key)


def _step(ledger: Ledger, session: str, step: str, reason: str | None, retry_key: str | None) -> Program:
    from weft.programs import Programs

    return Programs(ledger).step_session(ledger.session(session).id, step, reason=reason, key=retry_key)


@verb("session pause", right=CONFIGURE, method="programs.step_session", opens=OpenMode.WRITING, takes_actor=True)
def session_pause(ledger: Ledger, session: SessionName, reason: Reason = None, retry_key: RetryKey = None) -> Program:
    """Pause a session: it takes no turns."""
    return _step(ledger, session, "pause", reason, retry_key)


@verb("session resume", right=CONFIGURE, method="programs.step_session", opens=OpenMode.WRITING, takes_actor=True)
def session_resume(ledger: Ledger, session: SessionName, reason: Reason = None, retry_key: RetryKey = None) -> Program:
    """Resume a paused session."""
    return _step(ledger, session, "resume", reason, retry_key)


@verb("session complete", right=CONFIGURE, method="programs.step_session", opens=OpenMode.WRITING, takes_actor=True)
def session_complete(
    ledger: Ledger, session: SessionName, reason: Reason = None, retry_key: RetryKey = None
) -> Program:
    """Complete a session: it takes no more turns, and can still be forked."""
    return _step(ledger, session, "complete", reason, retry_key)


# --- Labels and other names.


class MovedSession(Answer, frozen=True, kw_only=True):
    """A session after it was changed, and as it was before."""

    DOCUMENT: ClassVar[str] = "session"

    session: Session
    before: Session


@verb("rename", right="session:rename", method="labels.rename", opens=OpenMode.WRITING)
def rename(ledger: Ledger, session: SessionName, label: Annotated[str, arg("The new label.")]) -> MovedSession:
    """Rename a session.

    Its turns, its reflog and its aliases stay.
    """
    before = ledger.session(session)
    return MovedSession(before=before, session=ledger.labels.rename(session, label))


ALIASES = Table(
    (
        Column("alias", shown=Shown.LABEL),
        Column("session", shown=Shown.LABEL, spare=1),
        Column("why", "reason"),
    ),
    "no session has a second name: weft alias ALIAS SESSION gives one",
)


def _check_alias(alias: str | None, session: str | None, reason: AliasReason | None) -> None:
    if alias is None and reason is not None:
        raise RequestError("{reason} is for a new name: weft alias ALIAS SESSION --reason …")
    if alias is not None and session is None:
        raise RequestError("name the session too: weft alias ALIAS SESSION")


@verb(
    "alias",
    right="session:rename",
    method="labels.add_alias",
    opens=OpenMode.WRITING,
    reads_without=("alias",),
    check=_check_alias,
    table=ALIASES,
)
def alias(
    ledger: Ledger,
    alias: Annotated[str | None, arg("The new name.")] = None,
    session: Annotated[str | None, arg("The session that it leads to.", names=SESSION)] = None,
    reason: Annotated[AliasReason | None, opt("Why. Default: manual.")] = None,
) -> Session | Listing[SessionAlias]:
    """Give a session a second name, or list such names.

    Without ALIAS and SESSION it lists all. Names are looked up as labels first, then as aliases; an alias never leads
    to another alias.
    """
    if alias is None or session is None:
        return Listing(items=ledger.labels.aliases())
    return ledger.labels.add_alias(alias, session, reason=reason or AliasReason.MANUAL)


# --- Out of sight, not out of the ledger.


def _check_archive(session: tuple[str, ...], older_than: str | None, listed: bool) -> None:
    if not (listed or session or older_than is not None):
        raise InvalidInput("no session is named", "name a session, or say --older-than, such as --older-than 90d")


@verb(
    "archive",
    right="session:archive",
    method="labels.archive",
    opens=OpenMode.WRITING,
    reads_with=("listed", "dry_run"),
    check=_check_archive,
)
def archive(
    ledger: Ledger,
    session: Annotated[tuple[str, ...], arg("The sessions.", names=SESSION)] = (),
    tree: Annotated[bool, opt("Every session that stands in the same tree.")] = False,
    older_than: Annotated[
        str | None, opt("Only sessions that have not changed since, such as 90d.", metavar="TIME")
    ] = None,
    undo: Annotated[bool, opt("Make them active again.")] = False,
    listed: Annotated[bool, opt("Show what is archived.", "--list")] = False,
    dry_run: Annotated[bool, opt("List the sessions that would change; change none.")] = False,
    reason: Reason = None,
) -> Session | Sequence[Session] | Listing[Session]:
    """Archive a session; its turns stay.

    An archived session is listed by `weft sessions --all` and `weft archive --list` only and takes no more turns. It
    keeps its label and can be shown, searched, forked and restored.
    """
    if listed:
        return Listing(items=[row for row in ledger.sessions(every=True) if row.status == "archived"])
    meant = ledger.labels.archivable(list(session), tree=tree, older_than=older_than, back=undo)
    if dry_run:
        return meant
    change = ledger.labels.unarchive if undo else ledger.labels.archive
    changed = [change(row.id, reason=reason) for row in meant]
    return changed[0] if len(session) == 1 and not (tree or older_than) else changed


@verb("delete", right="session:delete", method="labels.delete", opens=OpenMode.WRITING)
def delete(ledger: Ledger, session: SessionName, reason: Reason = None) -> Session:
    """Delete a session's label; its turns stay.

    The turns keep their ids and can still be shown and forked; `weft restore` brings the session back.
    """
    return ledger.labels.delete(session, reason=reason)


# --- The head of a session.

NO_TURN = "-"
_PLACE = re.compile(r"(.+)@\{(\d{1,15})\}")


def _check_move(rev: str | None, reset: bool) -> None:
    if (rev is None) != reset:
        raise RequestError("say where to: `weft move SESSION REV`, or `weft move SESSION --reset`")


@verb("move", right="session:move", method="move_head", opens=OpenMode.WRITING, check=_check_move)
def move(
    ledger: Ledger,
    session: SessionName,
    rev: Annotated[str | None, arg("The turn that it is moved to.", names=SESSION)] = None,
    expect: Annotated[
        str | None, opt("Move only if the head stands there; '-' means that it has no turn.", metavar="REV")
    ] = None,
    reset: Annotated[bool, opt("To no turn at all: the next turn is a new root.")] = False,
    reason: MoveReason = None,
) -> MovedSession:
    """Move a session's head to another turn.

    REV is a turn, or the digest of an event inside one. Nothing is lost: the reflog remembers where the session stood,
    and `weft restore` goes back.
    """
    before = ledger.session(session)
    guard: dict[str, Any] = {}
    if expect is not None:
        guard["expected"] = None if expect == NO_TURN else ledger.resolve(expect)
    if rev is None:
        return MovedSession(before=before, session=ledger.heads.reset(session, reason=reason, **guard))
    point = ledger.point(rev)
    moved = ledger.move_head(session, new=point.event_id or point.turn_id, reason=reason, **guard)
    return MovedSession(before=before, session=moved)


@verb("restore", right="session:move", method="heads.restore", opens=OpenMode.WRITING)
def restore(
    ledger: Ledger,
    session: SessionName,
    number: Annotated[int | None, arg("How many moves back.", metavar="[N]", least=0)] = None,
    reason: MoveReason = None,
) -> Session:
    """Move a session back, or bring a deleted one back.

    N counts the lines of `weft reflog`: 1 is where the session stood before its last move. Without N an active session
    goes back by 1, a deleted or archived one becomes active again where it stood. SESSION may name the line itself, as
    `weft reflog` does: main@{2}.
    """
    if number is None and (place := _PLACE.fullmatch(session)):
        session, number = place[1], int(place[2])
    return ledger.heads.restore(find_session(ledger, session).id, number, reason=reason)


class Reflog(Listing[HeadMove], frozen=True, kw_only=True):
    session: Session | None
    """None: there is no session."""


@verb("reflog", is_slow=True)
def reflog(
    ledger: Ledger,
    session: Annotated[LatestSession, arg(has_turn=False)] = None,
    limit: Annotated[int | None, opt("At most N moves.", "-n", "--limit", metavar="N", least=0)] = None,
) -> Reflog:
    """Show where a session has stood.

    Without SESSION it is the latest. The newest first; each line names the place as `weft show`, `weft move` and the
    others take it.
    """
    name = named_or_latest(ledger, session, with_turn=False)
    if name is None:
        return Reflog(items=(), session=None)
    opened = find_session(ledger, name)
    return Reflog(items=ledger.reflog(opened.id, limit=limit), session=opened)


class SessionBranches(Listing[Branch], frozen=True, kw_only=True):
    session: Session


def _check_settle(to: str | None, ours: bool, theirs: bool, fork: str | None) -> None:
    if (to is not None) + theirs + (ours or fork is not None) > 1:
        raise RequestError("choose one of {to}, {ours}, {theirs} and {fork}")


@verb(
    "settle",
    right="session:settle",
    method="merges.settle",
    opens=OpenMode.WRITING,
    reads_without=("to", "ours", "theirs", "fork"),
    check=_check_settle,
)
def settle(
    ledger: Ledger,
    session: SessionName,
    to: Annotated[str | None, opt("At this turn.", metavar="REV", names=SESSION)] = None,
    ours: Annotated[bool, opt("Where it stands here.")] = False,
    theirs: Annotated[bool, opt("Where the other ledger's branch stands.")] = False,
    fork: Annotated[
        str | None,
        opt("Where it stands here; the other branch becomes a session of its own.", metavar="LABEL"),
    ] = None,
    reason: MoveReason = None,
) -> Session | SessionBranches:
    """Settle a session that several ledgers moved: join its branches.

    Without an option the branches are shown. Settling is one more move, which names the ends of all branches; every
    ledger follows it with its next pull. No turn is lost.

    docs/sharing.md#two-ledgers-moved-one-session tells how such branches come about.
    """
    if to is not None or ours or theirs or fork:
        return ledger.merges.settle(session, to=to, ours=ours, theirs=theirs, fork=fork, reason=reason)
    opened, branches = ledger.session(session), ledger.merges.branches(session)
    if not branches:
        raise NotApplicable(f"session {opened.label!r} has one branch", "nothing is to be settled")
    return SessionBranches(items=branches, session=opened)
