"""From a turn to a session file that another tool goes on from.

The file is made in memory and read again by the importer of that tool, as it will be when it comes back. What that
reading gives is linked to the turns it was written from (`ImportWriter.claim`); only then the file appears in its
place, whole, under a name that nothing had. Should the machine stop in between, there is a link too many and no file.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct

from weft.exchange.importers.port import Importer, NativeTurn, Report, load_importers
from weft.exchange.resuming.claude_code import ClaudeCodeWriter
from weft.exchange.resuming.codex import CodexWriter
from weft.exchange.resuming.dialogue import Records, Writer, encoded, load_thread_turn
from weft.exchange.resuming.formats import Format, load_format
from weft.exchange.resuming.names import random_uuid, timed_uuid
from weft.exchange.resuming.verbatim import as_source, verbatim_records
from weft.kernel.clock import Clock, RandomBytes
from weft.kernel.errors import InvalidInput, NotApplicable
from weft.kernel.typed_names import shell_word
from weft.ledger.api import Ledger
from weft.ledger.model import Turn
from weft.ledger.upkeep.ledger_copy import EXPORT, remembered
from weft.store.private_files import make_folder, open_private

_no_letter = re.compile(r"[^A-Za-z0-9]")


class Resume(Struct, frozen=True, kw_only=True):
    """A session file that is ready to be written, or was."""

    tool: str
    structure: str
    """The versions of the tool whose structure it has."""
    turn_id: str
    session: str
    """Its id in that tool."""
    path: str
    workspace: str
    command: str
    turns: int
    verbatim: int
    """How many of them are the tool's own records."""
    records: int
    lost: dict[str, int]
    """What the format cannot carry, and how often."""
    data: bytes
    claims: tuple[tuple[NativeTurn, str], ...]
    """The file's turns as they will be imported, each with the turn that it was written from."""


def prepare_resume(
    ledger: Ledger,
    rev: str,
    tool: str,
    root: Path,
    clock: Clock,
    random: RandomBytes,
    *,
    workspace: str | None = None,
) -> Resume:
    """Everything but the writing. `root` is where the tool keeps its things."""
    format = load_format(tool)
    (importer,) = load_importers(tool)
    turns, cuts = _thread(ledger, rev)
    place = _workspace(ledger, turns, workspace)
    now = clock.now_ms()
    session = random_uuid(random(16)) if tool == "claude-code" else timed_uuid(now, random(16))
    path = _path(root, tool, session, place, now)
    kept = verbatim_records(ledger, importer, ledger.imports.writer(tool, importer.mapping), turns)
    for verbatim in (kept, {}):
        writer = _writer(format, session, place, now)
        pieces = [("", writer.begin(_title(ledger, turns[-1])))]
        for turn in turns:
            pieces.append(
                (turn.id, writer.write(load_thread_turn(ledger, turn, cuts.get(turn.id), verbatim.get(turn.id))))
            )
        data, spans = _joined(pieces)
        claims = _claims(importer, data, path.name, spans)
        if _is_one_line(claims, turns[-1].id):
            break
    else:
        raise NotApplicable(f"{rev} cannot be told to {tool} as one line of turns", "name a turn before it: REV~1")
    return Resume(
        tool=tool,
        structure=format.structure,
        turn_id=turns[-1].id,
        session=session,
        path=str(path),
        workspace=place,
        command=format.command.format(workspace=shell_word(place), session=session),
        turns=len(turns),
        verbatim=writer.verbatim,
        records=data.count(b"\n"),
        lost=dict(sorted(writer.lost.items())),
        data=data,
        claims=claims,
    )


def _writer(format: Format, session: str, workspace: str, now: int) -> Writer:
    if format.tool == "claude-code":
        return ClaudeCodeWriter(format, session, workspace)
    return CodexWriter(format, session, workspace, now)


def _is_one_line(claims: Sequence[tuple[NativeTurn, str]], tip: str) -> bool:
    """Does each turn follow the one before it, up to the one that is to be gone on from? Records that a tool left in
    disorder may not: then the thread is told anew."""
    follows = [turn.parent for turn, _ in claims] == [None, *range(len(claims) - 1)]
    return bool(claims) and follows and claims[-1][1] == tip


def write_resume(ledger: Ledger, resume: Resume) -> None:
    """The links first, then the file: written beside its place, and put there only if nothing is there. It holds what
    was said, so an erasure names it later."""
    (importer,) = load_importers(resume.tool)
    ledger.imports.writer(resume.tool, importer.mapping).claim(resume.claims)
    path = Path(resume.path)
    make_folder(path.parent)
    beside = path.with_name(f".{path.name}.part")
    try:
        with open(open_private(beside), "wb") as file:
            file.write(resume.data)
            file.flush()
            os.fsync(file.fileno())
        with remembered(ledger._store, path, EXPORT):
            os.link(beside, path)
    except FileExistsError as error:
        raise InvalidInput(f"{error.filename2 or path} is there already", "nothing is overwritten; try again") from None
    finally:
        beside.unlink(missing_ok=True)


def _thread(ledger: Ledger, rev: str) -> tuple[list[Turn], dict[str, str]]:
    point = ledger.point(rev)
    thread = ledger.thread(point.turn_id)
    turns = list(thread.turns)
    if point.event_id is not None and point.event_id != thread.digest:
        raise NotApplicable(f"{rev} is inside a turn, and a session goes on from whole ones", "name the turn itself")
    if turns[-1].status not in ("completed", "failed"):
        raise NotApplicable(f"{rev} has not ended yet", "wait until it has, or name the turn before it: REV~1")
    return turns, thread.cuts


def _workspace(ledger: Ledger, turns: Sequence[Turn], given: str | None) -> str:
    """The folder, as the system calls it: tools look for their sessions by that name, whichever way led there."""
    place = given if given is not None else _recorded_workspace(ledger, turns)
    return os.path.realpath(place) if os.path.isabs(place) else place


def _recorded_workspace(ledger: Ledger, turns: Sequence[Turn]) -> str:
    workspace = next((turn.workspace_path for turn in reversed(turns) if turn.workspace_path), None)
    session = turns[-1].session_id
    if workspace is None and session is not None:
        workspace = ledger.session(session).workspace_path
    if workspace is None:
        raise InvalidInput("no folder was recorded for this session", "say where to go on: `--in DIR`")
    return workspace


def _title(ledger: Ledger, turn: Turn) -> str | None:
    return ledger.session(turn.session_id).title if turn.session_id is not None else None


def _path(root: Path, tool: str, session: str, workspace: str, now: int) -> Path:
    """Where the tool itself would look for it."""
    if tool == "claude-code":
        return root / "projects" / _no_letter.sub("-", workspace) / f"{session}.jsonl"
    at = datetime.fromtimestamp(now / 1000, UTC)
    return root / "sessions" / f"{at:%Y/%m/%d}" / f"rollout-{at:%Y-%m-%dT%H-%M-%S}-{session}.jsonl"


def _joined(pieces: Sequence[tuple[str, Records]]) -> tuple[bytes, list[tuple[int, str]]]:
    """The lines, and where those of each turn begin."""
    data, spans = bytearray(), []
    for turn, records in pieces:
        if turn and records:
            spans.append((len(data), turn))
        for record in records:
            data += encoded(record) + b"\n"
    return bytes(data), spans


def _claims(
    importer: Importer, data: bytes, name: str, spans: Sequence[tuple[int, str]]
) -> tuple[tuple[NativeTurn, str], ...]:
    """The file as its importer reads it. A turn of it stands for the last of ours that begins before its end."""
    with TemporaryDirectory(prefix="weft-") as folder:
        path = Path(folder, name)
        path.write_bytes(data)
        read = [list(each.turns) for each in importer.read(as_source(path), Report(name))]
    starts = [start for start, _ in spans]
    turns = read[0] if len(read) == 1 else []
    return tuple((turn, spans[bisect_left(starts, turn.end) - 1][1]) for turn in turns)
