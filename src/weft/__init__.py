"""Weft: version control for AI agents, and the runtime that goes with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.opening import copy as copy
    from weft.opening import examine as examine
    from weft.opening import open as open
    from weft.opening import restore as restore
    from weft.opening import salvage as salvage

__version__ = "0.1.0"

_HOMES = {
    **dict.fromkeys(("open", "copy", "examine", "restore", "salvage"), "weft.opening"),
    "Ledger": "weft.ledger.api.ledger",
    "OpenLedger": "weft.open_ledger",
    "WeftError": "weft.kernel.errors",
    **dict.fromkeys(("Codeblock", "Compaction", "HeadMove", "Message", "RecordedTurn", "Session"), "weft.ledger.model"),
    **dict.fromkeys(("Point", "StoredContent", "ToolCall", "Turn"), "weft.ledger.model"),
    **dict.fromkeys(("TextPart", "ImagePart", "ToolUsePart", "ToolResultPart", "ReasoningPart"), "weft.ledger.model"),
    "Context": "weft.ledger.read.contexts",
    "Page": "weft.ledger.read.pages",
    "Thread": "weft.ledger.read.threads",
    "TurnWriter": "weft.ledger.write.turn_writer",
    "Receipt": "weft.kernel.chain",
    **dict.fromkeys(("Program", "Programs"), "weft.programs"),
    **dict.fromkeys(("LedgerPrograms", "ProgramHandle"), "weft.program_handles"),
    "InvocationResult": "weft.runtime.invoke.invocation",
}
__all__ = ["__version__", *_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    """Names are loaded when they are first used, so that `import weft` stays quick."""
    if name not in _HOMES:
        raise AttributeError(f"module 'weft' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value
