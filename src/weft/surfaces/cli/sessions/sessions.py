"""What a terminal shows of `weft sessions`, and of what is done with one: `session`, its label and names, where it
stands and stood.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from weft.kernel.typed_names import shell_word
from weft.ledger.model import Session
from weft.ledger.read.session_list import meaningful_title
from weft.surfaces.cli import turn_lists
from weft.surfaces.cli.arguments import NO_PROJECT
from weft.surfaces.cli.command_line import Call
from weft.surfaces.cli.command_line import undo as undo_line
from weft.surfaces.cli.ledgers.import_job import note_import
from weft.surfaces.cli.programs.program_call import line_of, result_lines
from weft.surfaces.cli.progress import abbreviated, counted
from weft.surfaces.cli.screen import MINUTE, Line, Screen, Span, local_minute, local_time, session_time
from weft.surfaces.cli.turn_lists import short
from weft.surfaces.cli.user_files import find_ledger
from weft.surfaces.cli.verb_commands import group_of, show_listing, shows
from weft.surfaces.plain_text import cut, safe
from weft.verbs import session_verbs as verbs
from weft.verbs.answers import Listing, SessionEntry
from weft.verbs.declaration import Column, Shown, Table, opt

if TYPE_CHECKING:
    from weft.ledger.api import Ledger, Unification
    from weft.ledger.model import Branch, HeadMove, SessionAlias
    from weft.programs import Program
    from weft.runtime.invoke.invocation import InvocationResult


# --- `weft sessions`: every label, what it is about and where it stands.

SESSIONS_HEADER = ("session", "origin", "project", "turns", "tokens", "last change", "title")
SESSIONS_SPARE = ("origin", "tokens", "project", "turns")
STATUS_STYLES = {"archived": "dim", "deleted": "bad"}
PROJECT_COLUMNS = 20
NOTHING = "no sessions yet: `weft record --session main …` makes one with its first turn"


@shows(verbs.sessions)
def show_sessions(call: Call, page: verbs.SessionPage, limit: int | None) -> None:
    note_import(call, find_ledger(call.ledger))
    if page.items:
        rows = _columns(page.items, call.screen.terminal)
        call.screen.table(*rows, numbers=("turns", "tokens"), spare=SESSIONS_SPARE)
    for entry in page.items:
        if entry.listed.branches:
            label = entry.listed.session.label
            call.note(f"{label} was moved elsewhere, too: `weft settle {shell_word(label)}` joins them")
    turn_lists.note_left_out(call, page.provisional, "counted")
    if page.further:
        call.note(
            f"{counted(page.further, 'more session')}: `weft sessions -n N` lists more, --project and --since fewer"
            + call.page_hint(page.next)
        )
    if page.hidden:
        verb = "is" if page.hidden == 1 else "are"
        call.note(f"{counted(page.hidden, 'session')} of subagents {verb} not shown: --subagents lists them")
    if page.without_turn:
        verb = "is" if page.without_turn == 1 else "are"
        sessions = counted(page.without_turn, "session")
        call.note(f"{sessions} of imports or rooms without a turn {verb} not shown: --all lists them")
    if not (page.items or page.hidden or page.further or page.without_turn):
        is_filtered = page.why_none == "filters" or limit is not None
        call.note(NO_PROJECT if page.why_none == "project" else "no such sessions" if is_filtered else NOTHING)


def _columns(entries: Sequence[SessionEntry], terminal: bool) -> tuple[list[list[Span | str]], Sequence[str]]:
    """A table's rows and header. On a terminal a column that is empty, or tells only what is made here, is left out."""
    labels = {entry.listed.session.label for entry in entries}
    rows: list[list[Span | str]] = []
    for entry in entries:
        rows.append(_row(entry, terminal, entry.listed.session.parent_session in labels))
        rows += [_branch_row(branch, terminal) for branch in entry.listed.branches]
    if not terminal:
        return rows, SESSIONS_HEADER
    dull = {"origin": {"weft"}, "project": {""}, "tokens": {""}}
    columns = [i for i, name in enumerate(SESSIONS_HEADER) if {str(row[i]) for row in rows} != dull.get(name)]
    return [[row[i] for i in columns] for row in rows], [SESSIONS_HEADER[i] for i in columns]


def _row(entry: SessionEntry, terminal: bool, below: bool) -> list[Span | str]:
    listed, session, when = entry.listed, entry.listed.session, session_time(entry.listed.session)
    title = listed.title
    if entry.provisional:
        subject = title or turn_lists.provisional_subject(entry.provisional[0].turn)
        title = f"[{turn_lists.PROVISIONAL_MARK}] {subject}"
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


# --- `weft session`: a session as a program.


@shows(
    verbs.session_create,
    verbs.session_configure,
    verbs.session_pause,
    verbs.session_resume,
    verbs.session_complete,
)
def show_changed_session(call: Call, program: Program) -> None:
    call.screen.show(*line_of(program))


@shows(verbs.session_send)
def show_sent(
    call: Call,
    invoked: InvocationResult,
    stream: Annotated[bool, opt("Show the answer as it comes.")] = False,
) -> None:
    for line in () if stream else result_lines(invoked.result):
        call.screen.show(*line)


@shows(verbs.session_history)
def show_history(call: Call, history: verbs.SessionHistory | verbs.WrittenLog) -> None:
    if isinstance(history, verbs.WrittenLog):
        call.note(f"written to {history.path}")
        return
    for entry in history.items:
        message = entry.value["message"]
        by = f" {message['model']}" if "model" in message else ""
        call.screen.show(Span(f"{message['role']}{by}", "label"), Span(f" {entry.value.get('timestamp', '')}", "dim"))
        for line in message["content"].split("\n"):
            call.screen.show(f"  {line}")
    if history.session is not None and not history.items:
        call.note(f"nothing was said yet; `weft session send {shell_word(history.session)} TEXT` begins")


@shows(verbs.session_promote)
def show_promoted(call: Call, promoted: Session, key: str) -> None:
    call.screen.show(Span(key, "label"), " leads to ", Span(promoted.label, "label"))


@shows(verbs.session_unify)
def show_unified(call: Call, unified: Unification | Session) -> None:
    if isinstance(unified, Session):
        call.screen.show(Span(unified.label, "label"), " is a session of its own again")
        return
    stays, names = Span(unified.session.label, "label"), ", ".join(unified.names)
    archived = Span(unified.archived.label, "label")
    verb = "leads" if len(unified.names) == 1 else "lead"
    call.screen.show(Span(names, "label"), f" {verb} to ", stays)
    call.screen.show(
        Span(short(unified.summary.id), "id"), " on ", stays, " tells of ", archived, ", which is archived"
    )
    call.note(undo_line("session", "unify", unified.archived.label, "--undo"))


# --- Labels and other names.


@shows(verbs.rename)
def show_renamed(call: Call, renamed: verbs.MovedSession) -> None:
    before, label = renamed.before.label, renamed.session.label
    call.screen.show(Span(before, "label"), " is now ", Span(label, "label"))
    call.note(undo_line("rename", label, before))


@shows(verbs.alias)
def show_alias(call: Call, answer: Session | Listing[SessionAlias], alias: str) -> None:
    if isinstance(answer, Listing):
        show_listing(call, verbs.ALIASES, answer)
    else:
        call.screen.show(Span(alias, "label"), " is another name for ", Span(answer.label, "label"))


@shows(verbs.archive)
def show_archived(
    call: Call, answer: Session | Sequence[Session] | Listing[Session], undo: bool, dry_run: bool
) -> None:
    if isinstance(answer, Listing):
        show_listing(call, ARCHIVED, answer)
        if answer.items:
            sessions = counted(len(answer.items), "session")
            call.note(f"{sessions} archived; `weft archive --undo SESSION` makes one active again")
        return
    changed = [answer] if isinstance(answer, Session) else answer
    for session in changed:
        call.screen.show(
            Span(session.label, "label"), " would be " if dry_run else " is ", "active" if undo else "archived"
        )
    if not changed:
        call.note("no such sessions")
    if changed and not (undo or dry_run):
        call.note(undo_line("archive", "--undo", *(session.label for session in changed)))


ARCHIVED = Table(
    (
        Column("session", "label", Shown.LABEL),
        Column("last change", session_time),
        Column("title", lambda session: meaningful_title(session.title) or ""),
    ),
    "nothing is archived",
)


@shows(verbs.delete)
def show_deleted(call: Call, gone: Session) -> None:
    call.screen.show(Span(gone.label, "label"), " is deleted; its turns stay")
    call.note(undo_line("restore", gone.label))


# --- The head of a session.


@shows(verbs.move)
def show_moved(call: Call, moved: verbs.MovedSession) -> None:
    label = moved.session.label
    call.screen.show(Span(label, "label"), ": ", *_place(moved.before), " -> ", *_place(moved.session))
    call.note(undo_line("restore", label))


def _place(session: Session) -> Line:
    if session.head is None:
        return [Span("no turn", "id")]
    inside = "" if session.head_event is None else f" at event {session.head_event}"
    return [Span(short(session.head), "id"), inside]


@shows(verbs.restore)
def show_restored(call: Call, restored: Session) -> None:
    call.screen.show(*_stand_line(restored.label, restored.head))


def _stand_line(name: str, head: str | None) -> Line:
    return [Span(name, "label"), " stands at ", Span("no turn" if head is None else short(head), "id")]


REFLOG_HEADER = ("name", "turn", "when", "why", "reason")
REFLOG_SPARE = ("turn",)
LABEL_COLUMNS, OTHER_COLUMNS = 12, 46
"""So many columns a label has at least, and so many the rest of its line."""


@shows(verbs.reflog)
def show_reflog(call: Call, reflog: verbs.Reflog, ledger: Ledger) -> None:
    session = reflog.session
    if session is None:
        return
    if not reflog.items:
        call.note(f"session {session.label!r} has not moved yet: its first turn will be the first line here")
        return
    terminal = call.screen.terminal
    label = _label(call.screen, ledger, session) if terminal else session.label
    rows = [_reflog_row(label, move, terminal) for move in reflog.items]
    call.screen.table(rows, REFLOG_HEADER, spare=REFLOG_SPARE)


def _label(screen: Screen, ledger: Ledger, session: Session) -> str:
    """What to type for a session, as far as a terminal has room for it."""
    shown = ledger.listing().short_labels().get(session.label, session.label)
    return cut(safe(shown), max(LABEL_COLUMNS, screen.columns - OTHER_COLUMNS))


def _reflog_row(label: str, move: HeadMove, terminal: bool) -> tuple[Span | str, ...]:
    turn = "-" if move.turn_id is None else short(move.turn_id)
    name = Span(f"{label}@{{{move.number}}}", "label")
    when = (local_minute if terminal else local_time)(move.changed_at)
    return name, Span(turn, "id"), when, move.why, move.reason or ""


@shows(verbs.settle)
def show_settled(call: Call, settled: Session | verbs.SessionBranches) -> None:
    if not isinstance(settled, verbs.SessionBranches):
        call.screen.show(*_stand_line(settled.label, settled.head))
        call.note("other ledgers follow with their next pull")
        return
    label = settled.session.label
    call.screen.show(*_stand_line(label, settled.session.head))
    for branch in settled.items:
        call.screen.show(*_stand_line(branch.name, branch.head))
    call.note(f"choose: `weft settle {shell_word(label)} --ours`, --theirs, --to REV or --fork LABEL")


session_command = group_of(
    verbs.session_group,
    verbs.session_create,
    verbs.session_configure,
    verbs.session_send,
    verbs.session_history,
    verbs.session_promote,
    verbs.session_unify,
    verbs.session_pause,
    verbs.session_resume,
    verbs.session_complete,
)
