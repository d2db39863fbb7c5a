"""`weft audit`: did an agent use a tool that it should not have had?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from weft.ledger.api import GROUPS, AuditFinding, AuditSeverity, AuditTally, FindingKind
from weft.surfaces.cli import arguments
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.exits import DIFFERENT, OK
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.history import short
from weft.surfaces.cli.progress import progress
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.times import local_time
from weft.surfaces.wire.reports import audit_answer

if TYPE_CHECKING:
    from weft.ledger.api import ActorEvent, Ledger

STYLES = {AuditSeverity.PROBLEM: "bad", AuditSeverity.UNKNOWN: "warn", AuditSeverity.NOTE: "dim"}
HEADER = ("finding", "session", "turn", "tool or right", "turns", "what")
PROBLEM_HEADER = ("finding", "session", "turn", "tool or right", "times", "what")
SHOWN_PROBLEMS, SHOWN_SUBJECTS = 20, 3
MEANINGS = {
    FindingKind.TOOL_NOT_AVAILABLE: "called, but not among its tools",
    FindingKind.TOOL_DENIED: "called, though denied",
    FindingKind.TOOL_NOT_PERMITTED: "called without permission",
    FindingKind.RIGHT_NOT_GRANTED: "right used, not granted",
    FindingKind.NOT_KNOWN: "called; whether allowed is not known",
    FindingKind.USE_NOT_RECORDED: "rights granted; which were used is not recorded",
    FindingKind.RIGHT_UNUSED: "right granted, never used",
    FindingKind.TOOL_UNUSED: "tool there, never called",
}
DEEDS = ("event", "when", "actor", "kind", "where", "tool")


@weft_command("audit")
@click.argument("names", nargs=-1, metavar="[SESSION|TURN]...", shell_complete=arguments.complete_labels)
@click.option("--actor", metavar="AGENT", help="Only what this agent did, by its name or id.")
@click.option("--tool", metavar="NAME", help="Only this tool, or those that fit a pattern such as 'mcp__github__*'.")
@click.option("--since", metavar="TIME", help="Only from this time on; a day means all of it.")
@click.option("--until", metavar="TIME", help="Only until this time; a day means all of it.")
@click.option("--by", type=click.Choice(GROUPS), default="session", help="What unused rights are gathered by.")
@click.option("--problems", is_flag=True, help="Only what was used without being allowed.")
@click.option("--list", "listed", is_flag=True, help="Every finding, not a summary, also on a terminal.")
@click.option("--strict", is_flag=True, help="Exit with 1 also for what is not known.")
@click.option("--events", is_flag=True, help="Every event of --actor, or of anybody, in order of arrival instead.")
@click.option("--suggest", is_flag=True, help="The smallest grant that each agent's calls would have needed instead.")
def command(
    call: Call,
    names: tuple[str, ...],
    problems: bool,
    listed: bool,
    strict: bool,
    events: bool,
    suggest: bool,
    **options: Any,
) -> int:
    """Show what agents used against what they were allowed.

    Tools that were called and not there, denied or not permitted; rights used and not granted; then what is not known,
    because nobody recorded it, and what was granted or there and never used. Without names: every turn. A session
    stands for the turns it made. Exits with 1 if anything was used without being allowed.

    On a terminal it begins with a summary, and lists what was not allowed; --list, --problems or names list the rest.
    """
    if suggest:
        if problems or listed or strict or events:
            raise click.UsageError("--suggest takes names, --actor, --tool, --since and --until only")
        _suggest(call, names, options)
        return OK
    if events:
        if names or options["tool"] or problems or listed or strict:
            raise click.UsageError("--events takes --actor, --since and --until only")
        _answer_deeds(call, options)
        return OK
    tally = AuditTally()
    with call.reading() as ledger:
        findings = ledger.audit.findings(*names, tally=tally, **options)
        shown = (finding for finding in findings if not problems or finding.severity is AuditSeverity.PROBLEM)
        if call.screen.terminal and not (call.json or listed or problems or names):
            _summarise(call, ledger, shown, tally)
        else:
            _answer(call, ledger, shown, tally)
    return DIFFERENT if tally.problems or (strict and tally.not_known) else OK


def _suggest(call: Call, names: tuple[str, ...], options: dict[str, Any]) -> None:
    with call.reading() as ledger, progress(call, "audit", by_itself=True):
        grants = ledger.audit.suggest(*names, **options)
    if call.json:
        call.documents(grants)
        return
    rows = [(Span(grant.persona_id, "label"), pattern) for grant in grants for pattern in grant.allow]
    call.screen.table(rows, ("agent", "allow"))
    if rows:
        call.note("name a toolset of these: `weft toolset create NAME --allow PATTERN …`; widen them where you see fit")


def _answer(call: Call, ledger: Ledger, found: Iterable[AuditFinding], tally: AuditTally) -> None:
    if call.json:
        findings = list(found)  # which fills the tally
        call.document(audit_answer(findings, tally))
        return
    labels = _shown_labels(call, ledger)
    if call.screen.terminal:  # where a table needs all of its rows
        with progress(call, "audit", by_itself=True):
            found = list(found)
    rows = (_row(finding, labels, finding.turns) for finding in found)
    call.screen.table(rows, HEADER, spare=("turns", "turn"))
    call.note(*_tally_line(tally))


def _shown_labels(call: Call, ledger: Ledger) -> dict[str, str]:
    """What to type for each session, by its label; other programs read the labels as they are."""
    return ledger.listing().short_labels() if call.screen.terminal else {}


class _Kind:
    """The findings of one kind, counted."""

    def __init__(self, severity: AuditSeverity) -> None:
        self.severity, self.count = severity, 0
        self.sessions: set[str] = set()
        self.subjects: Counter[str] = Counter()

    def add(self, finding: AuditFinding) -> None:
        self.count += 1
        self.sessions.add(finding.session_id or finding.persona_id or "")
        of_no_name = "any right" if finding.kind is FindingKind.USE_NOT_RECORDED else "any tool"
        self.subjects[finding.tool or finding.right or of_no_name] += finding.turns


def _summarise(call: Call, ledger: Ledger, found: Iterable[AuditFinding], tally: AuditTally) -> None:
    """How much of each kind there is and where most of it is; what was not allowed by turn and tool."""
    kinds: dict[FindingKind, _Kind] = {}
    problems: dict[AuditFinding, int] = {}
    with progress(call, "audit", by_itself=True):
        for finding in found:
            kinds.setdefault(finding.kind, _Kind(finding.severity)).add(finding)
            if finding.severity is AuditSeverity.PROBLEM:
                in_turn = replace(finding, call_id=None)
                if in_turn in problems or len(problems) < SHOWN_PROBLEMS:
                    problems[in_turn] = problems.get(in_turn, 0) + 1
    call.screen.show(*_tally_line(tally))
    if kinds:
        call.screen.show("")
        rows = [_kind_row(kind, kinds[kind]) for kind in FindingKind if kind in kinds]
        call.screen.table(rows, ("what", "findings", "sessions", "mostly"), numbers=("findings", "sessions"))
    if problems:
        call.screen.show("")
        labels = _shown_labels(call, ledger)
        call.screen.table(
            [_row(problem, labels, times) for problem, times in problems.items()],
            PROBLEM_HEADER,
            spare=("times", "turn"),
        )
    if more := tally.problems - sum(problems.values()):
        call.note(f"{more:,} more were not allowed: `weft audit --problems`")
    elif kinds:
        call.note("`weft audit --list` shows each; `weft audit SESSION` those of one session")


def _kind_row(kind: FindingKind, found: _Kind) -> tuple[Span | str, ...]:
    mostly = ", ".join(f"{name} ({turns:,})" for name, turns in found.subjects.most_common(SHOWN_SUBJECTS))
    return Span(MEANINGS[kind], STYLES[found.severity]), f"{found.count:,}", f"{len(found.sessions):,}", mostly


def _row(finding: AuditFinding, labels: dict[str, str], count: int) -> tuple[Span | str, ...]:
    session = finding.session or finding.persona_id or ""
    return (
        Span(finding.kind.value, STYLES[finding.severity]),
        Span(labels.get(session, session), "label"),
        Span("" if finding.turn_id is None else short(finding.turn_id), "id"),
        finding.tool or finding.right or "",
        str(count),
        finding.detail,
    )


def _tally_line(tally: AuditTally) -> Iterator[Span | str]:
    if not tally.turns:
        yield "no turns to audit: record some, or name others"
        return
    yield f"{counted(tally.turns, 'turn')}, {counted(tally.calls, 'call')}: {tally.allowed:,} allowed, "
    yield Span(f"{tally.problems:,} not allowed", "bad" if tally.problems else "good")
    yield f", {tally.not_known:,} not known"


def _answer_deeds(call: Call, options: dict[str, Any]) -> None:
    with call.reading() as ledger:
        deeds = ledger.audit.actor_history(options["actor"], since=options["since"], until=options["until"])
        if call.json:
            call.documents(deeds)
        else:
            call.screen.page(_lines(deeds)) if call.screen.terminal else call.screen.table(map(_deed, deeds), DEEDS)


def _deed(deed: ActorEvent) -> tuple[str, ...]:
    when = local_time(deed.arrived_at if deed.happened_at is None else deed.happened_at)
    actor = " for ".join((deed.actor, *deed.on_behalf_of))
    return str(deed.n), when, actor, deed.kind, _where(deed), deed.tool or ""


def _where(deed: ActorEvent) -> str:
    kind, _, name = deed.stream.partition(":")
    return f"{'turn' if kind == 'run' else kind} {short(name)}"


def _lines(deeds: Iterable[ActorEvent]) -> Iterator[list[Span | str]]:
    """As they are read: a log may be longer than memory."""
    for deed in deeds:
        n, when, actor, kind, where, tool = _deed(deed)
        yield [
            Span(f"{n:>8}", "id"),
            f"  {when}  ",
            Span(actor, "label"),
            f"  {kind:<20}  {where}  ",
            Span(tool, "tool"),
        ]
