"""Histories to put into bundles: everything that a thread can have, recorded here and imported."""

from tests.ledger.histories import grow
from tests.ledger.imported import rich_import
from weft.ledger.api.ledger import Ledger


def rich_thread(ledger: Ledger) -> None:
    """A thread `alt` with a fork inside a turn, calls, a late result, a compaction and erased contents; and others
    beside it that are nobody's business."""
    ledger.record_turn(session="main", persona="ann", query="the first question", response="the first answer")
    with ledger.begin_turn(session="main") as writer:
        writer.message("look at the file", role="user")
        writer.request("model-1", params={"temperature": 1})
        writer.response("let me see")
        call = writer.tool_call("read", {"path": "notes.md"}, id="c0")
        writer.tool_result(call, "what the file says")
        writer.response("beyond the fork point")
    ledger.fork(ledger.events("main")[4].id, label="alt")
    grow(ledger, "alt", "to be erased", "this stays")
    with ledger.begin_turn(session="alt") as writer:
        writer.tool_call("slow", {"wait": "long"}, id="c1")
        writer.interrupt("timeout")
    ledger.record_late_result("alt", "c1", "what came late")
    ledger.compactions.record(session="alt", summary="a summary of it all")
    grow(ledger, "alt", "after the compaction")
    grow(ledger, "other", "nobody's business")
    ledger.erasure.erase(ledger.resolve("alt~4"), reason="asked for")


def imported_thread(ledger: Ledger) -> str:
    """A thread that crosses a link; the label of its session."""
    rich_import(ledger)
    return next(session.label for session in ledger.sessions() if session.head and session.title is None)
