"""A small history from another tool, as an importer would hand it over."""

from typing import Any

import orjson

from weft import Ledger
from weft.kernel.enums import FileKind, LinkReason, MessageRole, ToolCallStatus
from weft.ledger.imports import ImportCounts
from weft.ledger.imports.imported_turns import (
    NativeCall,
    NativeCompaction,
    NativeLink,
    NativeMessage,
    NativeSession,
    NativeTurn,
    Tokens,
)
from weft.ledger.model import FileNote, LintNote, TextPart

ORIGIN = "toy"


def native_turn(key: str, answer: str = "yes", **more: Any) -> NativeTurn:
    """A prompt with its answer; `calls` follow it."""
    calls = tuple(more.pop("calls", ()))
    said = [key, answer, [(call.id, call.name, call.arguments) for call in calls]]
    prompt = NativeMessage(role=MessageRole.USER, parts=(TextPart(f"ask {key}"),), native=key, at=more.get("started"))
    tokens = more.pop("tokens", Tokens(input=10, output=5))
    reply = NativeMessage(
        role=MessageRole.ASSISTANT,
        parts=(TextPart(answer),),
        native=f"{key}-answer",
        model="model-1",
        context={"rules": ["be kind", {"file": "x"}], "branch": "main"},
        tokens=tokens,
        lints=(LintNote(message="unused"),),
        files=(FileNote(kind=FileKind.READ, path="notes.md", line_start=1, line_end=2),),
    )
    return NativeTurn(key=key, records=(orjson.dumps(said),), items=(prompt, reply, *calls), **more)


def native_call(id: str, **more: Any) -> NativeCall:
    return NativeCall(id=id, name="run", arguments={"command": "ls"}, result="ok", status=ToolCallStatus.OK, **more)


def take(
    ledger: Ledger,
    session: str,
    *turns: NativeTurn,
    file: str = "a.jsonl",
    reread: bool = False,
    mapping: int = 1,
    remap: bool = False,
    **told: Any,
) -> ImportCounts:
    import_writer, counts = ledger.imports.writer(ORIGIN, mapping, remap=remap), ImportCounts()
    import_writer.take(NativeSession(id=session, **told), turns, file, counts, reread=reread)
    return counts


def rich_import(ledger: Ledger) -> None:
    """Rows in every view that importing fills: a version superseded, a spawned session, a link, a kept stretch."""
    first = native_turn("t1", started=1_000, ended=2_000, end=10)
    child = native_call("c1", spawned="main/child", at=2_500, done=2_600)
    second = native_turn("t2", parent=0, calls=[child], started=2_400, ended=3_000, offset=10, end=20)
    take(ledger, "main", first, second, title="A title")
    rewritten = native_turn("t2", "no", parent=0, calls=[child], started=2_400, ended=3_000, offset=10, end=20)
    take(ledger, "main", first, rewritten, title="A title", reread=True)
    linked = native_turn("k1", link=NativeLink(to="t2", why=LinkReason.CONTINUATION), end=5)
    take(ledger, "main/child", linked, file="b.jsonl", parent="main")
    summary = NativeCompaction(summary="all of it", trigger="auto", tokens_before=99)
    compacted = native_turn("t3", parent=1, compaction=summary, offset=20, end=30)
    take(ledger, "main", first, rewritten, compacted, title="A title", reread=True)
    ledger.imports.writer(ORIGIN, 1).keep(NativeSession(id="main"), "a.jsonl", b"what no turn is made of")
