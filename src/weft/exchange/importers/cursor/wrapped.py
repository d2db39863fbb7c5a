"""Prompts as Cursor wraps them for the model: the person's words in `<user_query>`, all else in tags around them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import Struct, field

QUERY = re.compile(r"<user_query>[ \t]*\n?(.*?)\n?[ \t]*</user_query>", re.DOTALL)
TAGGED = re.compile(r"<([A-Za-z_][\w-]{0,60})(?:\s[^>\n]{0,400})?>(.*?)</\1>", re.DOTALL)
WORKSPACE = re.compile(r"^Workspace Path: (.+)$", re.MULTILINE)
TIME = re.compile(r"([A-Z][a-z]{2,8} \d{1,2}, \d{4}, \d{1,2}:\d\d [AP]M) \(UTC([+-]\d{1,2})?(?::(\d\d))?\)")
"""Such as `Sunday, Apr 26, 2026, 9:53 PM (UTC-4)`."""
FILE = re.compile(r"<(?:file|code_selection|file_contents)(?:\s[^>\n]{0,400}?path=\"([^\"\n]+)\"[^>\n]*)?>([^<\n]*)")


class Prompt(Struct):
    """A prompt, unwrapped."""

    words: str
    context: dict[str, Any] = field(default_factory=dict)
    """By tag, what stands around them."""
    is_injected: bool = False
    """No person's words are in it."""
    at: int | None = None
    literal_time: str | None = None
    workspace: str | None = None
    paths: list[str] = field(default_factory=list)


def unwrapped(said: str) -> Prompt:
    queries = QUERY.findall(said)
    rest = QUERY.sub("", said)
    context: dict[str, Any] = {}
    for name, inside in TAGGED.findall(rest):
        context.setdefault(name, []).append(inside.strip())
    left = TAGGED.sub("", rest).strip()
    if not queries and (left or not context):
        return Prompt(said)
    if left:
        context["text"] = [left]
    told = "\n".join(context.get("timestamp", ()))
    path = WORKSPACE.search("\n".join(context.get("user_info", ())))
    return Prompt(
        words="\n\n".join(queries) if queries else said,
        context=context if queries else {},
        is_injected=not queries,
        at=_time(told),
        literal_time=told if told and _time(told) is None else None,
        workspace=path[1].strip() if path else None,
        paths=_paths("\n".join(context.get("attached_files", ()))),
    )


def _paths(attached: str) -> list[str]:
    found = (path or words.strip() for path, words in FILE.findall(attached))
    return list(dict.fromkeys(path for path in found if path and len(path) < 1000))


def _time(told: str) -> int | None:
    """To the minute, as it was written, with its zone."""
    match = TIME.search(told)
    if match is None:
        return None
    for form in ("%b %d, %Y, %I:%M %p", "%B %d, %Y, %I:%M %p"):
        try:
            local = datetime.strptime(match[1], form).replace(tzinfo=UTC)
        except ValueError:
            continue
        hours, minutes = int(match[2] or 0), int(match[3] or 0)
        away = timedelta(hours=hours, minutes=-minutes if hours < 0 else minutes)
        return round((local - away).timestamp() * 1000)
    return None
