"""The tools that `weft resume` writes sessions for, and the one of them that a turn comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.kernel.typed_names import shell_line

if TYPE_CHECKING:
    from weft.ledger.api import Ledger

TOOLS = {"claude-code": "Claude Code", "codex": "Codex"}
"""What `--as` takes, and what each tool calls itself."""


def origin_of(ledger: Ledger, rev: str) -> str | None:
    """What a turn or its session was imported from; None for what was recorded here."""
    point = ledger.point(rev)
    session = None if point.session is None else ledger.session(point.session)
    return ledger.turn(point.turn_id).origin or (None if session is None else session.origin)


def ways_on(label: str, origin: str | None) -> str:
    """How a session goes on here, and in the tool that it comes from; without one, in each tool that can be named."""
    chat, resume = (f"weft {shell_line((command, label))}" for command in ("chat", "resume"))
    if origin is not None and origin in TOOLS:
        return f"with `{chat}`, or in {TOOLS[origin]} with `{resume}`"
    (first, title), *others = TOOLS.items()
    rest = ", ".join(f"{other}: `--as {tool}`" for tool, other in others)
    return f"with `{chat}`, or in {title} with `{resume} --as {first}` ({rest})"
