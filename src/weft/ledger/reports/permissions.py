"""What a turn was allowed, read out of what was recorded of it: pure functions of values, in the forms agents use.

A grant is tool rules and other rights. A rule is `NAME` or `NAME(PATTERN)`. The matcher of `weft.kernel.authority`,
which the runtime's rights use too, compares rules with calls. docs/audit.md lists every form. What cannot be decided is
unknown, and never allowed by default.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum, StrEnum
from typing import Any, Final

from msgspec import Struct

from weft.kernel.authority import (
    RuleAction,
    narrowing_pattern,
    pattern_matcher,
    split_tool_rule,
    strictest,
    subject_matches,
)

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


class Missing(Enum):
    """Arguments that are no longer here: withheld, erased or lost."""

    ARGUMENTS = "arguments"


MISSING: Final = Missing.ARGUMENTS


class PermissionVerdict(StrEnum):
    ALLOWED = "allowed"
    UNAVAILABLE = "tool_not_available"
    DENIED = "tool_denied"
    UNCOVERED = "tool_not_permitted"
    UNKNOWN = "not_known"


class Rule(Struct, frozen=True, gc=False):
    """A tool, or some uses of it, and what is to happen with them. `text` is how it was granted."""

    text: str
    tool: str
    pattern: str | None = None
    action: str = "allow"


class Grant(Struct, frozen=True):
    """What was granted. `closed`: what no rule allows is not permitted; else somebody may have been asked."""

    rules: tuple[Rule, ...] = ()
    rights: tuple[str, ...] = ()
    closed: bool = True
    everything: bool = False
    last_wins: bool = False
    layers: tuple[Grant, ...] = ()
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
        if not self.server or self.name.startswith("mcp__"):
            return (self.name,)
        server = self.server
        return (self.name, f"mcp__{server}__{self.name}", f"{server}__{self.name}", f"{server}.{self.name}",
                f"{server}/{self.name}")  # fmt: skip


# --- reading grants ---------------------------------------------------------------------------------------------


def parse_grant(value: Any) -> Grant | None:
    """What this JSON grants; None where nothing was recorded."""
    if value is None:
        return None
    if isinstance(value, list | tuple):
        return _parse_list(value)
    if isinstance(value, dict):
        return _parse_dict(value)
    return Grant(rights=(_text(value),), closed=False)


def _parse_list(items: Sequence[Any]) -> Grant:
    rules: list[Rule] = []
    rights: list[str] = []
    listed = False
    for item in items:
        rule = _rule(item) if isinstance(item, str) else _rule_record(item)
        listed |= isinstance(item, dict)
        if rule is None:
            rights.append(_text(item))
        else:
            rules.append(rule)
    return Grant(tuple(rules), tuple(rights), closed=bool(rules) and not listed, last_wins=listed)


def _rule(text: str, action: str = "allow", *, tool_only: bool = False) -> Rule | None:
    """`NAME` or `NAME(PATTERN)`; anything else, such as `repo:write`, is a right that is no tool."""
    rule = split_tool_rule(text)
    if rule is None:
        return Rule(text, text.strip(), None, action) if tool_only else None
    return Rule(text, *rule, action)


def _rule_record(item: Any) -> Rule | None:
    """`{"permission" or "tool": NAME, "pattern": …, "action": allow, ask or deny}`."""
    if not isinstance(item, dict):
        return None
    name, action = item.get("permission") or item.get("tool"), item.get("action", "allow")
    if not isinstance(name, str) or action not in _ACTIONS:
        return None
    pattern = narrowing_pattern(item.get("pattern"))
    return Rule(name if pattern is None else f"{name}({pattern})", name, pattern, str(action))


def _parse_dict(value: dict[str, Any]) -> Grant:
    if isinstance(value.get("layers"), list):
        return _parse_layers(value["layers"])
    if value and all(_is_action(item) for item in value.values()):
        return Grant(tuple(_by_tool(value)), closed=False, last_wins=True)
    rules: list[Rule] = []
    rights: list[str] = []
    closed = everything = False
    for key, item in value.items():
        if key in _KEYS and isinstance(item, list | tuple):
            rules += _rules_of(item, _KEYS[key])
            closed |= _KEYS[key] == "allow"
        elif key in _PLAIN_RIGHTS and isinstance(item, list | tuple):
            rights += map(_text, item)
        elif item is True:
            rights.append(key)
        elif item is not False and item is not None:
            rights.append(f"{key}={_text(item)}")
            everything |= key == "mode" and item == _ANYTHING_GOES
    open_ended = "mode" in value or "ask" in value
    return Grant(tuple(rules), tuple(rights), closed=closed and not open_ended, everything=everything)


def _parse_layers(items: Sequence[Any]) -> Grant:
    """What a turn of weft's own was granted: layers with `allow`, `deny` or both. Without any, everything."""
    layers = tuple(_parse_layer(item) for item in items if isinstance(item, dict))
    rules = tuple(rule for layer in layers for rule in layer.rules)
    return Grant(rules, everything=all(layer.everything for layer in layers), layers=layers)


def _parse_layer(layer: dict[str, Any]) -> Grant:
    allow, deny = layer.get("allow"), layer.get("deny")
    rules = [*_rules_of(_items(allow), "allow"), *_rules_of(_items(deny), "deny")]
    return Grant(tuple(rules), closed=allow is not None, everything=allow is None)


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _rules_of(items: Iterable[Any], action: str) -> Iterator[Rule]:
    for item in items:
        rule = _rule(item, action, tool_only=True) if isinstance(item, str) else _rule_record(item)
        if rule is not None:
            yield rule


def _is_action(item: Any) -> bool:
    if isinstance(item, dict):
        return bool(item) and all(action in _ACTIONS for action in item.values() if isinstance(action, str))
    return isinstance(item, str) and item in _ACTIONS


def _by_tool(value: dict[str, Any]) -> Iterator[Rule]:
    """`{"bash": {"git *": "allow"}, "edit": "ask"}`."""
    for tool, item in value.items():
        for pattern, action in item.items() if isinstance(item, dict) else ((None, item),):
            spelled = narrowing_pattern(pattern)
            yield Rule(tool if spelled is None else f"{tool}({spelled})", tool, spelled, str(action))


def _text(item: Any) -> str:
    return (
        item if isinstance(item, str) else json.dumps(item, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    )


# --- judging calls ----------------------------------------------------------------------------------------------


def is_available(use: ToolUse, tools: Iterable[str]) -> bool:
    return any(pattern_matcher(tool)(name) for tool in tools for name in use.names)


def judge(
    use: ToolUse, tools: Sequence[str] | None, grant: Grant | None, *, partial: bool = False
) -> PermissionVerdict:
    """Was this call allowed? `partial`: the list of tools names some that there were, not all."""
    if grant is not None and (found := _permitted(use, grant)) is not PermissionVerdict.UNKNOWN:
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


def _permitted(use: ToolUse, grant: Grant) -> PermissionVerdict:
    """By the rules alone. Every part of a compound command needs leave of its own; the worst of them counts."""
    if not grant.rules and not grant.everything and not grant.layers:
        return PermissionVerdict.UNKNOWN
    found = [
        _permitted_part(use, part, layer) for part in parts_of(use.arguments) for layer in grant.layers or (grant,)
    ]
    return max(found, key=_WORST.index)


_WORST = (PermissionVerdict.ALLOWED, PermissionVerdict.UNKNOWN, PermissionVerdict.UNCOVERED, PermissionVerdict.DENIED)


def _permitted_part(use: ToolUse, part: str | Missing | None, grant: Grant) -> PermissionVerdict:
    matches = [(rule.action, _matches(rule, use, part)) for rule in grant.rules]
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
    wide, narrow = _rule(granted), _rule(right)
    if wide is None or narrow is None or narrow.pattern is None or not pattern_matcher(wide.tool)(narrow.tool):
        return False
    return wide.pattern is None or subject_matches(wide.pattern, narrow.pattern)


def used_rights(tool: str, arguments: Any) -> Iterator[str]:
    """What a call made use of: `TOOL(SUBJECT)` for each thing that it is about, the bare name where that cannot be told
    or would be long."""
    for part in parts_of(arguments):
        is_short = isinstance(part, str) and 0 < len(part) <= LONGEST_SUBJECT_CHARACTERS and "\n" not in part
        yield f"{tool}({part})" if is_short else tool


def rules_used(use: ToolUse, grant: Grant) -> Iterator[str]:
    """The texts of the rules that this call made use of."""
    for rule in grant.rules:
        if rule.action == "allow" and any(_matches(rule, use, part) for part in parts_of(use.arguments)):
            yield rule.text


def _matches(rule: Rule, use: ToolUse, part: str | Missing | None) -> bool | None:
    """None: it cannot be said any more, or not from the outside."""
    if not any(pattern_matcher(rule.tool)(name) for name in use.names):
        return False
    if rule.pattern is None:
        return True
    if part is MISSING:
        return None
    return part is not None and subject_matches(rule.pattern, str(part))


def parts_of(arguments: Any) -> tuple[str | Missing | None, ...]:
    """What patterns are held against: the commands of a shell line, else the one thing that a call is about. None is
    a command that could run anything: no pattern covers it."""
    if arguments is MISSING:
        return (MISSING,)
    if not isinstance(arguments, dict):
        return (_text(arguments),)
    for key in _COMMANDS:
        if isinstance(command := arguments.get(key), str):
            return commands_of(command)
        if isinstance(command, list) and all(isinstance(word, str) for word in command):
            return commands_of(_unwrapped(command))
    for key in _SUBJECTS:
        if isinstance(subject := arguments.get(key), str):
            return (subject,)
    texts = [item for item in arguments.values() if isinstance(item, str)]
    return (texts[0] if len(texts) == 1 else _text(arguments),)


def _unwrapped(words: list[str]) -> str:
    """`["bash", "-lc", "git status"]` runs its last word."""
    if len(words) == 3 and words[0].rpartition("/")[2] in ("bash", "sh", "zsh") and words[1] in ("-c", "-lc"):
        return words[2]
    return " ".join(words)


def commands_of(line: str) -> tuple[str | None, ...]:
    """The commands that a shell line runs one after the other; quotes hold them together."""
    if any(mark in line for mark in _OPAQUE):
        return (None,)
    bare = _unquoted(line)
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


def _unquoted(line: str) -> str | None:
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
