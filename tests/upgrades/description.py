"""What a promised ledger holds, as JSON: the script writes it to expected.json, the test compares later reads.

Only `weft` itself and the verbs of an open ledger are used here, so that a fixture outlives internal names. The words
below stand in the ledgers of every schema folder: they are never changed.
"""

import json
from functools import cache
from hashlib import sha256
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import apsw

import weft

FOLDER = Path(__file__).parent
LEDGER, HEAD, DUMP, FACTS = "ledger.db.gz", "ledger.db-head", "ledger.sql.gz", "facts.jsonl.gz"
BUNDLE, EXPECTED = "threads.weft", "expected.json"
SCHEMA = "promised_ledger"
"""The PostgreSQL schema that the dump makes; whoever restores it puts another name in its place."""
QUERIES = ("lighthouse", "cart login")
"""Words of the native and of the imported history."""
ALIASES = ("lead", "second")
RETRY_KEY = "make-the-lamp-once"
RETRIED = ("code", "lamp", {"language": "typescript", "source": "export default () => 'on'"})
"""A program that was made with a retry key: asked for again, it is the same one."""
RETRIED_TURN: dict[str, Any] = {
    "session": "once",
    "query": "Is this said once?",
    "response": [{"role": "assistant", "content": "It is."}],
    "model": "model-a",
    "usage": {"input_tokens": 4, "output_tokens": 2},
    "key": "say-it-once",
}
"""A turn that was recorded with a retry key, since schema 12."""
HELD_AGENT = "keeper"


class SteppingClock:
    """A clock that moves on by a second with each reading. Sleeping moves it at once."""

    def __init__(self, start_ms: int) -> None:
        self._now_ms = self._start_ms = start_ms

    def now_ms(self) -> int:
        self._now_ms += 1_000
        return self._now_ms

    def monotonic(self) -> float:
        return (self.now_ms() - self._start_ms) / 1_000

    def sleep(self, seconds: float) -> None:
        self._now_ms += round(seconds * 1_000)


@cache
def shipped_schema_number() -> int:
    """The schema number of a ledger that this version makes."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        weft.open(path).close()
        return schema_number(path)


def schema_number(path: Path) -> int:
    connection = apsw.Connection(str(path), apsw.SQLITE_OPEN_READONLY)
    try:
        return int(connection.pragma("user_version"))
    finally:
        connection.close()


def describe(ledger: weft.Ledger, events: int | None = None) -> dict[str, Any]:
    """Everything that the promise covers. Of the log, its first `events` events: an opened copy may have added some."""
    sessions = sorted(ledger.sessions(every=True), key=lambda session: session.id)
    return {
        **_log(ledger, events),
        "turns": describe_turns(ledger),
        "sessions": {session.id: _session(ledger, session) for session in sessions},
        "aliases": {alias: ledger.session(alias).label for alias in ALIASES},
        "search": {words: _hits(ledger, words) for words in QUERIES},
        "usage": _usage(ledger),
        "programs": [_program(program) for program in weft.Programs(ledger).all(deleted=True)],
        "tagged": sorted(node.id for node in weft.Programs(ledger).tagged("promised")),
        "erased": sorted(tombstone.ref for tombstone in ledger.erasure.done()),
        "branches": sorted([branch.session_id, str(branch.head)] for branch in ledger.merges.branches()),
    }


def describe_turns(ledger: weft.Ledger) -> dict[str, Any]:
    """Every current turn: the digest of the thread that ends with it, and a digest of the words in it."""
    return {turn.id: _turn(ledger, turn) for turn in sorted(ledger.log(), key=lambda turn: turn.id)}


def _log(ledger: weft.Ledger, events: int | None) -> dict[str, Any]:
    lines = [recorded.line for recorded in islice(ledger.changes(), events)]
    return {"events": len(lines), "facts": sha256(b"\n".join(lines)).hexdigest()}


def _turn(ledger: weft.Ledger, turn: weft.Turn) -> dict[str, Any]:
    said = [[message.role, message.text, message.thinking] for message in ledger.messages(turn.id)]
    calls = [[call.name, call.arguments, call.status, call.result, call.error] for call in ledger.tool_calls(turn.id)]
    return {
        "digest": ledger.thread(turn.id).digest,
        "status": turn.status,
        "depth": turn.depth,
        "origin": turn.origin,
        "words": _digest([said, calls]),
    }


def _session(ledger: weft.Ledger, session: weft.Session) -> dict[str, Any]:
    context = ledger.context(session=session.id)
    # what is recorded: the prompt of the session's owner, which later versions show before it is sent, is not
    recorded = [message for message in context.messages if message.sequence >= -1]
    return {
        "label": session.label,
        "head": session.head,
        "status": session.status,
        "lifecycle": session.lifecycle,
        "reflog": [[move.turn_id, move.why] for move in ledger.reflog(session.id)],
        "context": _digest([[message.role, message.text] for message in recorded]),
    }


def _hits(ledger: weft.Ledger, words: str) -> list[list[str]]:
    return sorted([hit.turn_id, hit.role, hit.place] for hit in ledger.search(words))


def _usage(ledger: weft.Ledger) -> dict[str, Any]:
    """Tokens alone: prices change from version to version."""
    report = ledger.usage.report("model")
    rows = {row.key: [row.responses, row.input, row.output, row.cached, row.total] for row in report.rows}
    return {"total": report.total.total, "by model": dict(sorted(rows.items()))}


def _program(program: weft.Program) -> dict[str, Any]:
    return {
        "id": program.id,
        "name": program.name,
        "kind": str(program.kind),
        "state": program.state,
        "version": program.version,
        "tags": program.tags,
        "deleted": program.deleted,
        "config": _digest(program.config),
    }


def _digest(value: Any) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
