"""The audit of turns: what was used against what was allowed, streamed turn by turn in order of arrival.

A call is judged by what its own turn recorded: the tools that were there and what was granted. What was granted and
never used is gathered by turn, session or persona. What nobody recorded is told as not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any, TypedDict

from msgspec import Struct
from msgspec.structs import replace

from weft.kernel.advice import Action
from weft.kernel.authority import pattern_matcher
from weft.kernel.errors import ContentMissing, InvalidInput, NotFound
from weft.kernel.weft_error import quoted
from weft.ledger.arguments import checked_text
from weft.ledger.model import repeated_id
from weft.ledger.read.revisions import resolve, session_beside_turns
from weft.ledger.read.sessions import agent_names
from weft.ledger.reports.permissions import (
    MISSING,
    Grant,
    PermissionVerdict,
    ToolUse,
    covers_right,
    is_available,
    judge,
    parse_grant,
    rules_used,
    used_rights,
)
from weft.ledger.views.program_rows import agent_id
from weft.ledger.views.rows import TURN, TurnRow
from weft.ledger.views.values import json_of, list_in, name_of, text_of
from weft.store.facts import refuse_disorder
from weft.store.port import ReadTxn, Store
from weft.store.sql import rows_in

CHUNK = 256
GROUPS = ("turn", "session", "persona")
COMPLETE_LISTS = frozenset({"pi"})
"""Origins that name every tool of a turn; others name those that were added, or turned on."""
REMEMBERED = 512


class AuditSeverity(StrEnum):
    """How bad an audit finding is."""

    PROBLEM = "problem"
    UNKNOWN = "unknown"
    NOTE = "note"


class FindingKind(StrEnum):
    """What an audit finds. The first four are problems."""

    TOOL_NOT_AVAILABLE = "tool_not_available"
    TOOL_DENIED = "tool_denied"
    TOOL_NOT_PERMITTED = "tool_not_permitted"
    RIGHT_NOT_GRANTED = "right_not_granted"
    NOT_KNOWN = "not_known"
    """A call that nobody can judge."""
    USE_NOT_RECORDED = "use_not_recorded"
    """Rights were granted, and which of them were used nobody recorded."""
    RIGHT_UNUSED = "right_unused"
    TOOL_UNUSED = "tool_unused"


PROBLEMS = tuple(FindingKind)[:4]


class AuditFinding(Struct, frozen=True, kw_only=True):
    """One thing that an audit found, and where. Of a group, `turns` says in how many of its turns."""

    kind: FindingKind
    severity: AuditSeverity
    detail: str
    persona_id: str | None = None
    session: str | None = None
    session_id: str | None = None
    turn_id: str | None = None
    started_at: int | None = None
    origin: str | None = None
    tool: str | None = None
    call_id: str | None = None
    right: str | None = None
    turns: int = 1


class AuditTally:
    """What an audit looked at, counted while it goes on."""

    def __init__(self) -> None:
        self.turns = self.calls = self.allowed = self.not_known = 0
        self.found: dict[str, int] = {kind.value: 0 for kind in FindingKind}

    @property
    def problems(self) -> int:
        return sum(self.found[kind.value] for kind in PROBLEMS)


class AuditChoice(TypedDict, total=False):
    """What an audit is limited to."""

    actor: str | None
    """The agent whose turns they are, by name or id."""
    tool: str | None
    """A tool's name, or a pattern such as `mcp__github__*`."""
    since: int | str | None
    until: int | str | None
    by: str
    """What unused rights and tools are gathered by: turn, session (unless told otherwise) or persona."""


class Scope(Struct, frozen=True, kw_only=True):
    """Which turns are looked at."""

    turns: frozenset[str]
    sessions: frozenset[int]
    persona: str | None = None
    since: int | None = None
    until: int | None = None
    tool: str | None = None
    by: str = "session"

    def wants(self, turn: TurnRow) -> bool:
        named = not (self.turns or self.sessions) or turn.id in self.turns or turn.session in self.sessions
        return named and (self.until is None or turn.started_at < self.until)

    def wants_tool(self, *names: str) -> bool:
        return self.tool is None or any(pattern_matcher(self.tool)(name) for name in names)


def scope_of(
    txn: ReadTxn,
    names: Sequence[str],
    moments: tuple[int | None, int | None],
    choice: AuditChoice,
    parse_time: Callable[[str], int],
) -> Scope:
    by = choice.get("by", "session")
    if by not in GROUPS:
        raise InvalidInput(f"by is {quoted(by)}", f"it is one of {', '.join(GROUPS)}")
    turns: set[str] = set()
    sessions: set[int] = set()
    for name in names:
        row = session_beside_turns(txn, checked_text(name, "name"))
        if row is not None:
            sessions.add(row.n)
        else:
            turns.add(resolve(txn, name, parse_time).turn.id)
    actor, tool = choice.get("actor"), choice.get("tool")
    return Scope(
        turns=frozenset(turns),
        sessions=frozenset(sessions),
        persona=None if actor is None else actor_id(txn, actor),
        since=moments[0],
        until=moments[1],
        tool=None if tool is None else checked_text(tool, "tool"),
        by=by,
    )


def actor_id(txn: ReadTxn, name: str) -> str:
    """The id of an agent, by its name or its id. The default agents are their own ids."""
    wanted = checked_text(name, "actor")
    known = agent_id(txn.sql, wanted)
    if known is not None:
        return known
    if wanted in ("local", "imported") or txn.sql.one("SELECT 1 FROM turn WHERE persona = ? LIMIT 1", (wanted,)):
        return wanted
    raise NotFound("agent", wanted, Action.LIST_PERSONAS)


def audit(store: Store, scope: Scope, tally: AuditTally) -> Iterator[AuditFinding]:
    """Problems as they are met; then, by group, what was not known and what was granted and never used."""
    groups: dict[str, Group] = {}
    reading, after = AuditReader(scope, tally), 0
    while True:
        with store.read() as txn:
            rows = _turns(txn, scope, after)
            found = [finding for turn in reading.turns(txn, rows) for finding in turn.judge(groups)]
        yield from _counted(found, tally)
        if scope.by == "turn":
            yield from _counted(_endings(groups), tally)
            groups.clear()
        if len(rows) < CHUNK:
            break
        refuse_disorder("turn", after, [(row.n,) for row in rows])
        after = rows[-1].n
    yield from _counted(_endings(groups), tally)


class SuggestedGrant(Struct, frozen=True, kw_only=True):
    """The smallest grant that what an agent did would have needed: patterns of tools, as permissions take them."""

    persona_id: str
    turns: int
    calls: int
    allow: tuple[str, ...]


def suggest(store: Store, scope: Scope) -> list[SuggestedGrant]:
    """By agent, from the calls that ran. A use that is covered by another one is left out."""
    reading, after = AuditReader(scope, AuditTally()), 0
    grants: dict[str, SuggestedGrant] = {}
    while True:
        with store.read() as txn:
            rows = _turns(txn, scope, after)
            for turn in reading.turns(txn, rows):
                before = grants.get(turn.persona) or SuggestedGrant(persona_id=turn.persona, turns=0, calls=0, allow=())
                calls = reading.tally.calls
                allow = tuple(dict.fromkeys((*before.allow, *turn.uses())))
                grants[turn.persona] = SuggestedGrant(
                    persona_id=turn.persona,
                    turns=before.turns + 1,
                    calls=before.calls + reading.tally.calls - calls,
                    allow=allow,
                )
        if len(rows) < CHUNK:
            break
        refuse_disorder("turn", after, [(row.n,) for row in rows])
        after = rows[-1].n
    return [replace(grant, allow=_smallest(grant.allow)) for grant in grants.values() if grant.allow]


def _smallest(rights: Iterable[str]) -> tuple[str, ...]:
    """Without those that a bare name among them stands for."""
    bare = {right for right in rights if "(" not in right}
    return tuple(sorted(right for right in rights if right in bare or right.partition("(")[0] not in bare))


def _counted(found: Iterable[AuditFinding], tally: AuditTally) -> Iterator[AuditFinding]:
    for finding in found:
        tally.found[finding.kind.value] += 1
        yield finding


def _endings(groups: dict[str, Group]) -> Iterator[AuditFinding]:
    for group in groups.values():
        yield from group.findings()


def _turns(txn: ReadTxn, scope: Scope, after: int) -> list[TurnRow]:
    where = ["n > ?", "current = 1"]
    values: list[Any] = [after]
    if scope.persona is not None:
        where.append("persona = ?")
        values.append(scope.persona)
    if scope.since is not None:
        where.append("started_at >= ?")
        values.append(scope.since)
    query = f"{TURN.select} WHERE {' AND '.join(where)} ORDER BY n LIMIT {CHUNK}"
    return [TurnRow(*row) for row in txn.sql.all(query, values)]


class Group:
    """What was granted in a turn, a session or by a persona, and what of it was used."""

    def __init__(self, about: dict[str, Any]) -> None:
        self._about = about
        self._rights: dict[str, int] = {}
        self._tools: dict[str, int] = {}
        self._used_rights: set[str] = set()
        self._used_tools: set[str] = set()
        self._unknown: dict[tuple[FindingKind, str], int] = {}

    def grant(self, rights: Iterable[str], tools: Iterable[str]) -> None:
        for granted, names in ((self._rights, rights), (self._tools, tools)):
            for name in names:
                granted[name] = granted.get(name, 0) + 1

    def use(self, rights: Iterable[str] = (), tools: Iterable[str] = ()) -> None:
        self._used_rights.update(rights)
        self._used_tools.update(tools)

    def wonder(self, kind: FindingKind, why: str) -> None:
        self._unknown[kind, why] = self._unknown.get((kind, why), 0) + 1

    def findings(self) -> Iterator[AuditFinding]:
        for (kind, why), turns in self._unknown.items():
            yield self._finding(kind, AuditSeverity.UNKNOWN, why, turns)
        unused_rights: list[str] = []
        for right, turns in self._rights.items():
            if not any(covers_right(right, used) for used in self._used_rights):
                unused_rights.append(right)
                kind = FindingKind.RIGHT_UNUSED
                yield self._finding(kind, AuditSeverity.NOTE, f"{right} was granted and never used", turns, right=right)
        for tool, turns in self._tools.items():
            if tool not in self._used_tools and not any(covers_right(right, tool) for right in unused_rights):
                kind = FindingKind.TOOL_UNUSED
                yield self._finding(kind, AuditSeverity.NOTE, f"{tool} was there and never used", turns, tool=tool)

    def _finding(
        self, kind: FindingKind, severity: AuditSeverity, detail: str, turns: int, **what: str
    ) -> AuditFinding:
        return AuditFinding(kind=kind, severity=severity, detail=detail, turns=turns, **{**self._about, **what})


class AuditReader:
    """Turns with their calls, a few hundred at a time. Toolsets and grants repeat, so they are remembered."""

    def __init__(self, scope: Scope, tally: AuditTally) -> None:
        self.scope, self.tally = scope, tally
        self._grants: dict[int, Grant | None] = {}
        self._tools: dict[str, tuple[str, ...]] = {}

    def turns(self, txn: ReadTxn, rows: list[TurnRow]) -> Iterator[TurnAudit]:
        wanted = [row for row in rows if self.scope.wants(row)]
        if not wanted:
            return
        names = agent_names(txn.sql, (row.persona for row in wanted))
        made_by = {row.session for row in wanted if row.session is not None}
        sessions = {n: (id, label) for n, id, label in rows_in(txn.sql, _SESSIONS, made_by)}
        for row in wanted:
            self.tally.turns += 1
            session = sessions.get(row.session, (None, None))
            yield TurnAudit(self, txn, row, names[row.persona], session)

    def grant(self, txn: ReadTxn, n: int | None) -> Grant | None:
        if n is None:
            return None
        if n not in self._grants:
            if len(self._grants) > REMEMBERED:
                self._grants.clear()
            self._grants[n] = parse_grant(_json_or_none(txn, n))
        return self._grants[n]

    def tools(self, txn: ReadTxn, column: str | None) -> tuple[str, ...] | None:
        if column is None:
            return None
        if column not in self._tools:
            if len(self._tools) > REMEMBERED:
                self._tools.clear()
            found = _json_or_none(txn, int(column[1:])) if column[0] == "#" else _listed(txn, column)
            if not isinstance(found, list):
                return None
            self._tools[column] = tuple(map(str, found))
        return self._tools[column]


_CALLS = (
    "SELECT call_id, repeated, tool, server, params FROM tool_call c WHERE turn = ?"
    " AND (NOT EXISTS (SELECT 1 FROM tool_decision d WHERE d.turn = ? AND d.call = c.event)"
    " OR EXISTS (SELECT 1 FROM tool_decision d WHERE d.turn = ? AND d.call = c.event AND d.decision = 'allow'))"
    " ORDER BY seq"
)
"""Of a turn whose calls were decided on, those that were allowed: what was refused or never answered used nothing."""
_SESSIONS = "SELECT n, id, label FROM session WHERE n IN"


def _listed(txn: ReadTxn, column: str) -> list[str]:
    return [name_of(txn, tool) or "" for tool in list_in(column)]


def _json_or_none(txn: ReadTxn, n: int) -> Any:
    """What is no longer here tells nothing."""
    try:
        return json_of(txn, n)
    except ContentMissing:
        return None


class TurnAudit:
    """One turn: what it had, what it did."""

    def __init__(
        self, reading: AuditReader, txn: ReadTxn, row: TurnRow, persona: str, session: tuple[str | None, str | None]
    ) -> None:
        self._reading, self._txn, self._row = reading, txn, row
        self._tools = reading.tools(txn, row.tools)
        self._grant = reading.grant(txn, row.permissions_granted)
        self._partial = row.origin is not None and row.origin not in COMPLETE_LISTS
        self._about: dict[str, Any] = {"persona_id": persona, "session_id": session[0], "session": session[1]}
        self._place: dict[str, Any] = {
            **self._about,
            "turn_id": row.id,
            "started_at": row.started_at,
            "origin": row.origin,
        }

    def judge(self, groups: dict[str, Group]) -> Iterator[AuditFinding]:
        group = self._group(groups)
        used = parse_grant(None if (n := self._row.permissions_used) is None else _json_or_none(self._txn, n))
        self._note_grants(group, used)
        for call, native, use in self._calls():
            yield from self._judge_call(group, call, native, use)
        if used is not None:
            yield from self._judge_rights(used)

    def _group(self, groups: dict[str, Group]) -> Group:
        by, row = self._reading.scope.by, self._row
        key = {"turn": row.id, "session": str(row.session), "persona": row.persona}[by]
        about: dict[str, dict[str, Any]] = {
            "turn": self._place,
            "session": self._about,
            "persona": {"persona_id": self._about["persona_id"]},
        }
        return groups.setdefault(key, Group(about[by]))

    def _note_grants(self, group: Group, used: Grant | None) -> None:
        scope, grant = self._reading.scope, self._grant
        rules = {rule.text for rule in grant.rules} if grant else set()
        if grant is not None and scope.tool is None:
            group.grant((text for text in grant.texts if text in rules or used is not None), ())
        elif grant is not None:
            group.grant(
                (rule.text for rule in grant.rules if rule.action == "allow" and scope.wants_tool(rule.tool)), ()
            )
        if used is not None:
            group.use(used.texts)
        elif grant is not None and grant.rights and scope.tool is None:
            group.wonder(FindingKind.USE_NOT_RECORDED, "which of the rights granted were used was not recorded")
        group.grant((), (tool for tool in self._tools or () if scope.wants_tool(tool)))

    def _calls(self) -> Iterator[tuple[str, str, ToolUse]]:
        if not self._row.calls:
            return
        patterned = self._grant is not None and any(rule.pattern for rule in self._grant.rules)
        for call_id, repeated, tool, server, params in self._rows():
            name = name_of(self._txn, tool) or ""
            use = ToolUse(name, name_of(self._txn, server), self._arguments(params) if patterned else None)
            if self._reading.scope.wants_tool(*use.names):
                native = _text_or_none(self._txn, call_id) or ""
                yield f"{self._row.id}:{repeated_id(native, repeated)}", native, use

    def _rows(self) -> list[tuple[Any, ...]]:
        return self._txn.sql.all(_CALLS, (self._row.n, self._row.id, self._row.id))

    def uses(self) -> Iterator[str]:
        """The rights that its calls made use of."""
        for _, _, tool, server, params in self._rows():
            name = name_of(self._txn, tool) or ""
            use = ToolUse(name, name_of(self._txn, server), None)
            if self._reading.scope.wants_tool(*use.names):
                self._reading.tally.calls += 1
                yield from used_rights(use.names[-1], self._arguments(params))

    @property
    def persona(self) -> str:
        return str(self._about["persona_id"])

    def _arguments(self, n: int) -> Any:
        try:
            return json_of(self._txn, n)
        except ContentMissing:
            return MISSING

    def _judge_call(self, group: Group, call: str, native: str, use: ToolUse) -> Iterator[AuditFinding]:
        tally = self._reading.tally
        tally.calls += 1
        verdict = judge(use, self._tools, self._grant, partial=self._partial)
        group.use((), [tool for tool in self._tools or () if is_available(use, (tool,))])
        if self._grant is not None:
            group.use(rules_used(use, self._grant))
        if verdict is PermissionVerdict.ALLOWED:
            tally.allowed += 1
        elif verdict is PermissionVerdict.UNKNOWN:
            tally.not_known += 1
            group.wonder(FindingKind.NOT_KNOWN, self._why_unknown(use))
        else:
            yield AuditFinding(
                kind=FindingKind(verdict.value),
                severity=AuditSeverity.PROBLEM,
                detail=_WORDS[verdict].format(use.name),
                tool=use.name,
                call_id=call,
                **self._place,
            )

    def _why_unknown(self, use: ToolUse) -> str:
        if self._tools is None and (self._grant is None or not self._grant.rules):
            return "calls of turns that recorded neither their tools nor rules for them"
        if self._grant is not None and self._grant.rules:
            return f"whether somebody was asked and allowed {use.name} was not recorded"
        return f"{use.name} is not among the tools that {self._row.origin} names, which need not be all there were"

    def _judge_rights(self, used: Grant) -> Iterator[AuditFinding]:
        if self._reading.scope.tool is not None:
            return
        granted = self._grant.texts if self._grant is not None else None
        for right in used.texts:
            if granted is None or any(covers_right(one, right) for one in granted) or self._grant_is_everything():
                continue
            yield AuditFinding(
                kind=FindingKind.RIGHT_NOT_GRANTED,
                severity=AuditSeverity.PROBLEM,
                detail=f"{right} was used and is not among the rights granted",
                right=right,
                **self._place,
            )

    def _grant_is_everything(self) -> bool:
        return self._grant is not None and self._grant.everything


def _text_or_none(txn: ReadTxn, n: int) -> str | None:
    try:
        return text_of(txn, n)
    except ContentMissing:
        return None


_WORDS = {
    PermissionVerdict.UNAVAILABLE: "{} was called and is not among the turn's tools",
    PermissionVerdict.DENIED: "{} was called and a rule denies it",
    PermissionVerdict.UNCOVERED: "{} was called and no rule allows it so",
}
