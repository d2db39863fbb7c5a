"""The audit of turns: what was used against what was allowed, streamed turn by turn in order of
arrival; what a turn was allowed, read out of what was recorded of it; and everything an actor
did.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum, StrEnum
from typing import Any, Final, TypedDict

from msgspec import Struct
from msgspec.structs import replace

from weft.kernel.authority import (
    RuleAction,
    narrowing_pattern,
    pattern_matcher,
    split_tool_rule,
    strictest,
    subject_matches,
)
from weft.kernel.clock import ms_from_iso
from weft.kernel.errors import Action, ContentMissing, InvalidInput, NotFound, quoted
from weft.kernel.events import Event, ToolCallRequested, UnknownEvent, Words, kind_of
from weft.ledger.arguments import checked_text
from weft.ledger.model import other_server, repeated_id
from weft.ledger.read.revisions import resolve, session_beside_turns
from weft.ledger.read.sessions import agent_names, on_behalf_of
from weft.ledger.views.rows import TURN, StoredEvent, TurnRow, agent_id, json_of, list_in, name_of, recorded, text_of
from weft.store.fact_log import LogRow, refuse_disorder
from weft.store.port import ReadTxn, Store
from weft.store.sql import rows_in

# --- What a turn was allowed, read out of what was recorded of it: pure functions of values, in the forms agents use.

_ACTIONS = tuple(action.value for action in RuleAction)
_KEYS = {
    **dict.fromkeys(("allow", "allowed", "tools", "allowedTools", "allowed_tools"), "allow"),
    **dict.fromkeys(("deny", "denied", "disallowedTools", "disallowed_tools"), "deny"),
    "ask": "ask",
}
_PLAIN_RIGHTS = ("rights", "scopes")
_ANYTHING_GOES = "bypassPermissions"
_SUBJECTS = ("file_path", "filePath", "path", "notebook_path", "url", "uri", "pattern", "query")
_COMMANDS = ("command", "cmd", "script")
_OPAQUE = ("$(", "`", "<(", ">(", "<<")
_APART = re.compile(r"&&|\|\||[;&|\n]")


LONGEST_SUBJECT_CHARACTERS = 300
"""Of what a tool was used on, as a right that was used names it."""


class MissingArguments(Enum):
    """Arguments that are no longer here: withheld, erased or lost."""

    ARGUMENTS = "arguments"


MISSING: Final = MissingArguments.ARGUMENTS


class PermissionVerdict(StrEnum):
    ALLOWED = "allowed"
    UNAVAILABLE = "tool_not_available"
    DENIED = "tool_denied"
    UNCOVERED = "tool_not_permitted"
    UNKNOWN = "not_known"


class GrantRule(Struct, frozen=True, gc=False):
    """A tool, or some uses of it, and what is to happen with them. `text` is how it was granted."""

    text: str
    tool: str
    pattern: str | None = None
    action: str = "allow"


class TurnGrant(Struct, frozen=True):
    """What was granted. `closed`: what no rule allows is not permitted; else somebody may have been asked."""

    rules: tuple[GrantRule, ...] = ()
    rights: tuple[str, ...] = ()
    closed: bool = True
    everything: bool = False
    last_wins: bool = False
    layers: tuple[TurnGrant, ...] = ()
    """Grants that all must allow a call, where several were recorded; `rules` are those of all of them."""

    @property
    def texts(self) -> tuple[str, ...]:
        """Everything that was granted, one text each."""
        return tuple(dict.fromkeys([*(rule.text for rule in self.rules if rule.action == "allow"), *self.rights]))


class ToolUse(Struct, frozen=True):
    """A tool call, as far as rules look at it."""

    name: str
    server: str | None = None
    arguments: Any = MISSING

    @property
    def names(self) -> tuple[str, ...]:
        """What lists may call it: tools of a server have several spellings."""
        server = other_server(self.server, self.name)
        if server is None or self.name.startswith("mcp__"):
            return (self.name,)
        return (self.name, f"mcp__{server}__{self.name}", f"{server}__{self.name}", f"{server}.{self.name}",
                f"{server}/{self.name}")  # fmt: skip


# --- reading grants ---------------------------------------------------------------------------------------------


def parse_grant(value: Any) -> TurnGrant | None:
    """What this JSON grants; None where nothing was recorded."""
    if value is None:
        return None
    if isinstance(value, list | tuple):
        return _parse_list(value)
    if isinstance(value, dict):
        return _parse_dict(value)
    return TurnGrant(rights=(_item_text(value),), closed=False)


def _parse_list(items: Sequence[Any]) -> TurnGrant:
    rules: list[GrantRule] = []
    rights: list[str] = []
    listed = False
    for item in items:
        rule = _rule_of(item) if isinstance(item, str) else _rule_record(item)
        listed |= isinstance(item, dict)
        if rule is None:
            rights.append(_item_text(item))
        else:
            rules.append(rule)
    return TurnGrant(tuple(rules), tuple(rights), closed=bool(rules) and not listed, last_wins=listed)


def _rule_of(text: str, action: str = "allow", *, tool_only: bool = False) -> GrantRule | None:
    """`NAME` or `NAME(PATTERN)`; anything else, such as `repo:write`, is a right that is no tool."""
    rule = split_tool_rule(text)
    if rule is None:
        return GrantRule(text, text.strip(), None, action) if tool_only else None
    return GrantRule(text, *rule, action)


def _rule_record(item: Any) -> GrantRule | None:
    """`{"permission" or "tool": NAME, "pattern": …, "action": allow, ask or deny}`."""
    if not isinstance(item, dict):
        return None
    name, action = item.get("permission") or item.get("tool"), item.get("action", "allow")
    if not isinstance(name, str) or action not in _ACTIONS:
        return None
    pattern = narrowing_pattern(item.get("pattern"))
    return GrantRule(name if pattern is None else f"{name}({pattern})", name, pattern, str(action))


def _parse_dict(value: dict[str, Any]) -> TurnGrant:
    if isinstance(value.get("layers"), list):
        return _parse_layers(value["layers"])
    if value and all(_is_action(item) for item in value.values()):
        return TurnGrant(tuple(_by_tool(value)), closed=False, last_wins=True)
    rules: list[GrantRule] = []
    rights: list[str] = []
    closed = everything = False
    for key, item in value.items():
        if key in _KEYS and isinstance(item, list | tuple):
            rules += _rules_of(item, _KEYS[key])
            closed |= _KEYS[key] == "allow"
        elif key in _PLAIN_RIGHTS and isinstance(item, list | tuple):
            rights += map(_item_text, item)
        elif item is True:
            rights.append(key)
        elif item is not False and item is not None:
            rights.append(f"{key}={_item_text(item)}")
            everything |= key == "mode" and item == _ANYTHING_GOES
    open_ended = "mode" in value or "ask" in value
    return TurnGrant(tuple(rules), tuple(rights), closed=closed and not open_ended, everything=everything)


def _parse_layers(items: Sequence[Any]) -> TurnGrant:
    """What a turn of weft's own was granted: layers with `allow`, `deny` or both. Without any, everything."""
    layers = tuple(_parse_layer(item) for item in items if isinstance(item, dict))
    rules = tuple(rule for layer in layers for rule in layer.rules)
    return TurnGrant(rules, everything=all(layer.everything for layer in layers), layers=layers)


def _parse_layer(layer: dict[str, Any]) -> TurnGrant:
    allow, deny = layer.get("allow"), layer.get("deny")
    rules = [*_rules_of(_list_items(allow), "allow"), *_rules_of(_list_items(deny), "deny")]
    return TurnGrant(tuple(rules), closed=allow is not None, everything=allow is None)


def _list_items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _rules_of(items: Iterable[Any], action: str) -> Iterator[GrantRule]:
    for item in items:
        rule = _rule_of(item, action, tool_only=True) if isinstance(item, str) else _rule_record(item)
        if rule is not None:
            yield rule


def _is_action(item: Any) -> bool:
    if isinstance(item, dict):
        return bool(item) and all(action in _ACTIONS for action in item.values() if isinstance(action, str))
    return isinstance(item, str) and item in _ACTIONS


def _by_tool(value: dict[str, Any]) -> Iterator[GrantRule]:
    """`{"bash": {"git *": "allow"}, "edit": "ask"}`."""
    for tool, item in value.items():
        for pattern, action in item.items() if isinstance(item, dict) else ((None, item),):
            spelled = narrowing_pattern(pattern)
            yield GrantRule(tool if spelled is None else f"{tool}({spelled})", tool, spelled, str(action))


def _item_text(item: Any) -> str:
    return (
        item if isinstance(item, str) else json.dumps(item, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    )


# --- judging calls ----------------------------------------------------------------------------------------------


def is_available(use: ToolUse, tools: Iterable[str]) -> bool:
    return any(pattern_matcher(tool)(name) for tool in tools for name in use.names)


def judge(
    use: ToolUse, tools: Sequence[str] | None, grant: TurnGrant | None, *, partial: bool = False
) -> PermissionVerdict:
    """Was this call allowed? `partial`: the list of tools names some that there were, not all."""
    if grant is not None and (found := _verdict_by_rules(use, grant)) is not PermissionVerdict.UNKNOWN:
        if found is not PermissionVerdict.ALLOWED:
            return found
        permitted = True
    else:
        permitted = False
    if tools is None:
        return PermissionVerdict.ALLOWED if permitted else PermissionVerdict.UNKNOWN
    if is_available(use, tools):
        says_nothing = grant is None or (not grant.rules and not grant.everything)
        return PermissionVerdict.ALLOWED if permitted or says_nothing else PermissionVerdict.UNKNOWN
    if partial:
        return PermissionVerdict.ALLOWED if permitted else PermissionVerdict.UNKNOWN
    return PermissionVerdict.UNAVAILABLE


def _verdict_by_rules(use: ToolUse, grant: TurnGrant) -> PermissionVerdict:
    """By the rules alone. Every part of a compound command needs leave of its own; the worst of them counts."""
    if not grant.rules and not grant.everything and not grant.layers:
        return PermissionVerdict.UNKNOWN
    found = [
        _permitted_part(use, part, layer) for part in parts_of(use.arguments) for layer in grant.layers or (grant,)
    ]
    return max(found, key=_WORST.index)


_WORST = (PermissionVerdict.ALLOWED, PermissionVerdict.UNKNOWN, PermissionVerdict.UNCOVERED, PermissionVerdict.DENIED)


def _permitted_part(use: ToolUse, part: str | MissingArguments | None, grant: TurnGrant) -> PermissionVerdict:
    matches = [(rule.action, _rule_matches(rule, use, part)) for rule in grant.rules]
    sure = [action for action, is_match in matches if is_match]
    unsure = [action for action, is_match in matches if is_match is None]
    if grant.last_wins:
        sure = sure[-1:]
    action = strictest(sure)
    if action is RuleAction.DENY:
        return PermissionVerdict.DENIED
    if RuleAction.DENY in unsure or action is RuleAction.ASK:
        return PermissionVerdict.UNKNOWN
    if action is RuleAction.ALLOW or grant.everything:
        return PermissionVerdict.ALLOWED
    return PermissionVerdict.UNCOVERED if grant.closed and not unsure else PermissionVerdict.UNKNOWN


def covers_right(granted: str, right: str) -> bool:
    """Whether a right that was granted is, or stands for, one that was used: `shell` and `shell(git *)` both stand for
    `shell(git status)`."""
    if pattern_matcher(granted)(right):
        return True
    wide, narrow = _rule_of(granted), _rule_of(right)
    if wide is None or narrow is None or narrow.pattern is None or not pattern_matcher(wide.tool)(narrow.tool):
        return False
    return wide.pattern is None or subject_matches(wide.pattern, narrow.pattern)


def used_rights(tool: str, arguments: Any) -> Iterator[str]:
    """What a call made use of: `TOOL(SUBJECT)` for each thing that it is about, the bare name where that cannot be told
    or would be long."""
    for part in parts_of(arguments):
        is_short = isinstance(part, str) and 0 < len(part) <= LONGEST_SUBJECT_CHARACTERS and "\n" not in part
        yield f"{tool}({part})" if is_short else tool


def rules_used(use: ToolUse, grant: TurnGrant) -> Iterator[str]:
    """The texts of the rules that this call made use of."""
    for rule in grant.rules:
        if rule.action == "allow" and any(_rule_matches(rule, use, part) for part in parts_of(use.arguments)):
            yield rule.text


def _rule_matches(rule: GrantRule, use: ToolUse, part: str | MissingArguments | None) -> bool | None:
    """None: it cannot be said any more, or not from the outside."""
    if not any(pattern_matcher(rule.tool)(name) for name in use.names):
        return False
    if rule.pattern is None:
        return True
    if part is MISSING:
        return None
    return part is not None and subject_matches(rule.pattern, str(part))


def parts_of(arguments: Any) -> tuple[str | MissingArguments | None, ...]:
    """What patterns are held against: the commands of a shell line, else the one thing that a call is about. None is
    a command that could run anything: no pattern covers it."""
    if arguments is MISSING:
        return (MISSING,)
    if not isinstance(arguments, dict):
        return (_item_text(arguments),)
    for key in _COMMANDS:
        if isinstance(command := arguments.get(key), str):
            return commands_of(command)
        if isinstance(command, list) and all(isinstance(word, str) for word in command):
            return commands_of(_unwrap_shell(command))
    for key in _SUBJECTS:
        if isinstance(subject := arguments.get(key), str):
            return (subject,)
    texts = [item for item in arguments.values() if isinstance(item, str)]
    return (texts[0] if len(texts) == 1 else _item_text(arguments),)


def _unwrap_shell(words: list[str]) -> str:
    """`["bash", "-lc", "git status"]` runs its last word."""
    if len(words) == 3 and words[0].rpartition("/")[2] in ("bash", "sh", "zsh") and words[1] in ("-c", "-lc"):
        return words[2]
    return " ".join(words)


def commands_of(line: str) -> tuple[str | None, ...]:
    """The commands that a shell line runs one after the other; quotes hold them together."""
    if any(mark in line for mark in _OPAQUE):
        return (None,)
    bare = _blot_quoted(line)
    if bare is None:
        return (None,)
    found, start = [], 0
    for apart in _APART.finditer(bare):
        if apart[0] == "&" and _is_redirection(bare, apart.start()):
            continue
        found.append(line[start : apart.start()].strip())
        start = apart.end()
    found.append(line[start:].strip())
    return tuple(part for part in found if part) or ("",)


def _is_redirection(line: str, at: int) -> bool:
    """`2>&1` and `&>file` run nothing."""
    return line[at - 1 : at] in ("<", ">") or line[at + 1 : at + 2] == ">"


def _blot_quoted(line: str) -> str | None:
    """The line with all that is quoted blotted out, as long as before; None where a quote is never closed."""
    made, quote, escaped = [], "", False
    for sign in line:
        if escaped:
            escaped = False
            made.append("_")
        elif sign == "\\" and quote != "'":
            escaped = True
            made.append("_")
        elif quote:
            quote = "" if sign == quote else quote
            made.append("_")
        elif sign in "'\"":
            quote = sign
            made.append("_")
        else:
            made.append(sign)
    return None if quote else "".join(made)


# --- The audit of turns: what was used against what was allowed, streamed turn by turn in order of arrival.

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
        self.refused = self.malformed = 0
        """Calls that were refused before they ran, and those among them whose arguments fit no tool; they are not among
        `calls`."""
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


class AuditScope(Struct, frozen=True, kw_only=True):
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
) -> AuditScope:
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
    return AuditScope(
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
    if wanted in ("local", "imported") or txn.sql.fetch_row("SELECT 1 FROM turn WHERE persona = ? LIMIT 1", (wanted,)):
        return wanted
    raise NotFound("agent", wanted, Action.LIST_PERSONAS)


def audit(store: Store, scope: AuditScope, tally: AuditTally) -> Iterator[AuditFinding]:
    """Problems as they are met; then, by group, what was not known and what was granted and never used."""
    groups: dict[str, GrantUse] = {}
    reading, after = AuditReader(scope, tally), 0
    while True:
        with store.read() as txn:
            rows = _audited_turns(txn, scope, after)
            found = [finding for turn in reading.turns(txn, rows) for finding in turn.judge(groups)]
        yield from _count_findings(found, tally)
        if scope.by == "turn":
            yield from _count_findings(_group_findings(groups), tally)
            groups.clear()
        if len(rows) < CHUNK:
            break
        refuse_disorder("turn", after, [(row.n,) for row in rows])
        after = rows[-1].n
    yield from _count_findings(_group_findings(groups), tally)


class SuggestedGrant(Struct, frozen=True, kw_only=True):
    """The smallest grant that what an agent did would have needed: patterns of tools, as permissions take them."""

    persona_id: str
    turns: int
    calls: int
    allow: tuple[str, ...]


def suggest(store: Store, scope: AuditScope) -> list[SuggestedGrant]:
    """By agent, from the calls that ran. A use that is covered by another one is left out."""
    reading, after = AuditReader(scope, AuditTally()), 0
    grants: dict[str, SuggestedGrant] = {}
    while True:
        with store.read() as txn:
            rows = _audited_turns(txn, scope, after)
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
    return [replace(grant, allow=_smallest_rights(grant.allow)) for grant in grants.values() if grant.allow]


def _smallest_rights(rights: Iterable[str]) -> tuple[str, ...]:
    """Without those that a bare name among them stands for."""
    bare = {right for right in rights if "(" not in right}
    return tuple(sorted(right for right in rights if right in bare or right.partition("(")[0] not in bare))


def _count_findings(found: Iterable[AuditFinding], tally: AuditTally) -> Iterator[AuditFinding]:
    for finding in found:
        tally.found[finding.kind.value] += 1
        yield finding


def _group_findings(groups: dict[str, GrantUse]) -> Iterator[AuditFinding]:
    for group in groups.values():
        yield from group.findings()


def _audited_turns(txn: ReadTxn, scope: AuditScope, after: int) -> list[TurnRow]:
    where = ["n > ?", "current = 1"]
    values: list[Any] = [after]
    if scope.persona is not None:
        where.append("persona = ?")
        values.append(scope.persona)
    if scope.since is not None:
        where.append("started_at >= ?")
        values.append(scope.since)
    query = f"{TURN.select} WHERE {' AND '.join(where)} ORDER BY n LIMIT {CHUNK}"
    return [TurnRow(*row) for row in txn.sql.fetch_rows(query, values)]


class GrantUse:
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
            yield self._new_finding(kind, AuditSeverity.UNKNOWN, why, turns)
        unused_rights: list[str] = []
        for right, turns in self._rights.items():
            if not any(covers_right(right, used) for used in self._used_rights):
                unused_rights.append(right)
                kind = FindingKind.RIGHT_UNUSED
                yield self._new_finding(
                    kind, AuditSeverity.NOTE, f"{right} was granted and never used", turns, right=right
                )
        for tool, turns in self._tools.items():
            if tool not in self._used_tools and not any(covers_right(right, tool) for right in unused_rights):
                kind = FindingKind.TOOL_UNUSED
                yield self._new_finding(kind, AuditSeverity.NOTE, f"{tool} was there and never used", turns, tool=tool)

    def _new_finding(
        self, kind: FindingKind, severity: AuditSeverity, detail: str, turns: int, **what: str
    ) -> AuditFinding:
        return AuditFinding(kind=kind, severity=severity, detail=detail, turns=turns, **{**self._about, **what})


class AuditReader:
    """Turns with their calls, a few hundred at a time. Toolsets and grants repeat, so they are remembered."""

    def __init__(self, scope: AuditScope, tally: AuditTally) -> None:
        self.scope, self.tally = scope, tally
        self._grants: dict[int, TurnGrant | None] = {}
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

    def grant(self, txn: ReadTxn, n: int | None) -> TurnGrant | None:
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
            found = _json_or_none(txn, int(column[1:])) if column[0] == "#" else _listed_tools(txn, column)
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
_REFUSED = (
    "SELECT tool, server, EXISTS (SELECT 1 FROM tool_decision d WHERE d.turn = ? AND d.call = c.event"
    " AND d.source = 'arguments') FROM tool_call c WHERE turn = ?"
    " AND EXISTS (SELECT 1 FROM tool_decision d WHERE d.turn = ? AND d.call = c.event"
    " AND d.decision IN ('deny_continue', 'deny_abort'))"
    " AND NOT EXISTS (SELECT 1 FROM tool_decision d WHERE d.turn = ? AND d.call = c.event AND d.decision = 'allow')"
)
_SESSIONS = "SELECT n, id, label FROM session WHERE n IN"


def _listed_tools(txn: ReadTxn, column: str) -> list[str]:
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

    def judge(self, groups: dict[str, GrantUse]) -> Iterator[AuditFinding]:
        group = self._group_of_turn(groups)
        used = parse_grant(None if (n := self._row.permissions_used) is None else _json_or_none(self._txn, n))
        self._note_grants(group, used)
        self._count_refused()
        for call, native, use in self._tool_uses():
            yield from self._judge_call(group, call, native, use)
        if used is not None:
            yield from self._judge_rights(used)

    def _group_of_turn(self, groups: dict[str, GrantUse]) -> GrantUse:
        by, row = self._reading.scope.by, self._row
        key = {"turn": row.id, "session": str(row.session), "persona": row.persona}[by]
        about: dict[str, dict[str, Any]] = {
            "turn": self._place,
            "session": self._about,
            "persona": {"persona_id": self._about["persona_id"]},
        }
        return groups.setdefault(key, GrantUse(about[by]))

    def _note_grants(self, group: GrantUse, used: TurnGrant | None) -> None:
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

    def _tool_uses(self) -> Iterator[tuple[str, str, ToolUse]]:
        if not self._row.calls:
            return
        patterned = self._grant is not None and any(rule.pattern for rule in self._grant.rules)
        for call_id, repeated, tool, server, params in self._call_rows():
            name = name_of(self._txn, tool) or ""
            use = ToolUse(name, name_of(self._txn, server), self._call_arguments(params) if patterned else None)
            if self._reading.scope.wants_tool(*use.names):
                native = _text_or_none(self._txn, call_id) or ""
                yield f"{self._row.id}:{repeated_id(native, repeated)}", native, use

    def _count_refused(self) -> None:
        row, tally = self._row, self._reading.tally
        if not row.calls or row.origin is not None:
            return
        for tool, server, is_malformed in self._txn.sql.fetch_rows(_REFUSED, (row.id, row.n, row.id, row.id)):
            use = ToolUse(name_of(self._txn, tool) or "", name_of(self._txn, server), None)
            if self._reading.scope.wants_tool(*use.names):
                tally.refused += 1
                tally.malformed += bool(is_malformed)

    def _call_rows(self) -> list[tuple[Any, ...]]:
        return self._txn.sql.fetch_rows(_CALLS, (self._row.n, self._row.id, self._row.id))

    def uses(self) -> Iterator[str]:
        """The rights that its calls made use of."""
        for _, _, tool, server, params in self._call_rows():
            name = name_of(self._txn, tool) or ""
            use = ToolUse(name, name_of(self._txn, server), None)
            if self._reading.scope.wants_tool(*use.names):
                self._reading.tally.calls += 1
                yield from used_rights(use.names[-1], self._call_arguments(params))

    @property
    def persona(self) -> str:
        return str(self._about["persona_id"])

    def _call_arguments(self, n: int) -> Any:
        try:
            return json_of(self._txn, n)
        except ContentMissing:
            return MISSING

    def _judge_call(self, group: GrantUse, call: str, native: str, use: ToolUse) -> Iterator[AuditFinding]:
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

    def _judge_rights(self, used: TurnGrant) -> Iterator[AuditFinding]:
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


# --- Everything an actor did: its events, in order of arrival.

ROWS = 256


class ActorEvent(Struct, frozen=True, kw_only=True):
    """One event that an actor wrote. `happened_at` is null where its origin gave no time."""

    n: int
    event_id: str
    kind: str
    actor: str
    on_behalf_of: tuple[str, ...] = ()
    """The ids of those for whom it acted, the nearest first."""
    stream: str
    arrived_at: int
    happened_at: int | None = None
    turn_id: str | None = None
    session_id: str | None = None
    tool: str | None = None


def deeds(store: Store, actor: str | None, since: int | None, until: int | None) -> Iterator[ActorEvent]:
    """The log from its beginning to what was the newest event at the start, some rows at a time."""
    with store.read() as txn:
        end = txn.facts.tip().n
    mark = b"" if actor is None else f'"actor":"{actor}"'.encode()
    after = 0
    while after < end:
        with store.read() as txn:
            rows = txn.facts.log(after, ROWS)
            found = [deed for row in rows for deed in _deeds_of(txn, row, mark, actor)]
        yield from (deed for deed in found if _is_within(deed, since, until))
        after = rows[-1].n if rows else end


def _deeds_of(txn: ReadTxn, row: LogRow, mark: bytes, actor: str | None) -> Iterator[ActorEvent]:
    for n, line in enumerate(row.lines(), row.first):
        if mark in line:
            found = recorded(n, line)
            if actor is None or found.event.actor == actor:
                yield _actor_event(txn, row.at, found)


def _actor_event(txn: ReadTxn, at: int, found: StoredEvent) -> ActorEvent:
    event = found.event
    kind, _, name = event.stream.partition(":")
    return ActorEvent(
        n=found.n,
        event_id=found.id,
        kind=event.kind if isinstance(event, UnknownEvent) else kind_of(event),
        actor=event.actor,
        on_behalf_of=on_behalf_of(event),
        stream=event.stream,
        arrived_at=at,
        happened_at=ms_from_iso(event.ts) if isinstance(event.ts, str) else None,
        turn_id=name if kind == "run" else None,
        session_id=name if kind == "session" else None,
        tool=_tool_of_event(txn, event),
    )


def _tool_of_event(txn: ReadTxn, event: Event | UnknownEvent) -> str | None:
    if not isinstance(event, ToolCallRequested):
        return None
    if not isinstance(event.tool, Words):
        return event.tool
    n = txn.facts.find_content(bytes.fromhex(event.tool.content))
    return None if n is None else txn.facts.content(n).decode(errors="replace")


def _is_within(deed: ActorEvent, since: int | None, until: int | None) -> bool:
    at = deed.arrived_at if deed.happened_at is None else deed.happened_at
    return (since is None or at >= since) and (until is None or at < until)
