"""`weft audit`: did an agent use a tool that it should not have had?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from weft.ledger.api import GROUPS, AuditFinding, AuditTally, Severity
from weft.surfaces.cli import arguments
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.exits import DIFFERENT, OK
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.history import short
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.times import local_time
from weft.surfaces.wire.reports import audit_answer

if TYPE_CHECKING:
    from weft.ledger.api import Deed

STYLES = {Severity.PROBLEM: "bad", Severity.UNKNOWN: "warn", Severity.NOTE: "dim"}
HEADER = ("finding", "session", "turn", "tool or right", "turns", "what")
DEEDS = ("event", "when", "actor", "kind", "where", "tool")


@weft_command("audit")
@click.argument("names", nargs=-1, metavar="[SESSION|TURN]...", shell_complete=arguments.complete_labels)
@click.option("--actor", metavar="AGENT", help="Only what this agent did, by its name or id.")
@click.option("--tool", metavar="NAME", help="Only this tool, or those that fit a pattern such as 'mcp__github__*'.")
@click.option("--since", metavar="TIME", help="Only from this time on; a day means all of it.")
@click.option("--until", metavar="TIME", help="Only until this time; a day means all of it.")
@click.option("--by", type=click.Choice(GROUPS), default="session", help="What unused rights are gathered by.")
@click.option("--problems", is_flag=True, help="Only what was used without being allowed.")
@click.option("--strict", is_flag=True, help="Exit with 1 also for what is not known.")
@click.option("--events", is_flag=True, help="Every event of --actor, or of anybody, in order of arrival instead.")
def command(call: Call, names: tuple[str, ...], problems: bool, strict: bool, events: bool, **options: Any) -> int:
    """Show what agents used against what they were allowed.

    Tools that were called and not there, denied or not permitted; rights used and not granted; then what is not known,
    because nobody recorded it, and what was granted or there and never used. Without names: every turn. A session
    stands for the turns it made. Exits with 1 if anything was used without being allowed.
    """
    if events:
        if names or options["tool"] or problems or strict:
            raise click.UsageError("--events takes --actor, --since and --until only")
        _answer_deeds(call, options)
        return OK
    tally = AuditTally()
    with call.reading() as ledger:
        findings = ledger.audit.findings(*names, tally=tally, **options)
        shown = (finding for finding in findings if not problems or finding.severity is Severity.PROBLEM)
        _answer(call, shown, tally)
    return DIFFERENT if tally.problems or (strict and tally.not_known) else OK


def _answer(call: Call, found: Iterable[AuditFinding], tally: AuditTally) -> None:
    if call.json:
        findings = list(found)  # which fills the tally
        call.document(audit_answer(findings, tally))
        return
    call.screen.table(map(_row, found), HEADER, spare=("turns", "turn"))
    call.note(*_said(tally))


def _row(finding: AuditFinding) -> tuple[Span | str, ...]:
    return (
        Span(finding.kind.value, STYLES[finding.severity]),
        Span(finding.session or finding.persona_id or "", "label"),
        Span("" if finding.turn_id is None else short(finding.turn_id), "id"),
        finding.tool or finding.right or "",
        str(finding.turns),
        finding.detail,
    )


def _said(tally: AuditTally) -> Iterator[Span | str]:
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


def _deed(deed: Deed) -> tuple[str, ...]:
    when = local_time(deed.arrived_at if deed.happened_at is None else deed.happened_at)
    actor = " for ".join((deed.actor, *deed.on_behalf_of))
    return str(deed.n), when, actor, deed.kind, _where(deed), deed.tool or ""


def _where(deed: Deed) -> str:
    kind, _, name = deed.stream.partition(":")
    return f"{'turn' if kind == 'run' else kind} {short(name)}"


def _lines(deeds: Iterable[Deed]) -> Iterator[list[Span | str]]:
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
