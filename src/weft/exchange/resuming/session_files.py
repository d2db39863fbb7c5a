"""From a turn to a session file that another tool goes on from.

Records that the tool wrote itself are taken from what was kept of its files when they were
imported.
"""

from __future__ import annotations

import os
import re
import tomllib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import BinaryIO

from msgspec import Struct

from weft.exchange.importers.foreign_files import read_sample, record_at
from weft.exchange.importers.port import HEAD_BYTES, Importer, NativeTurn, Report, Source, load_importers
from weft.exchange.resuming.session_records import (
    ClaudeCodeWriter,
    CodexWriter,
    Format,
    Records,
    Writer,
    encoded,
    load_format,
    load_thread_turn,
    random_uuid,
    timed_uuid,
)
from weft.kernel.clock import Clock, RandomBytes
from weft.kernel.errors import InvalidInput, NotApplicable
from weft.kernel.typed_names import shell_word
from weft.ledger.api import Ledger
from weft.ledger.imports import ImportWriter, SourceRange
from weft.ledger.model import Turn
from weft.ledger.upkeep.ledger_copy import EXPORT, remembered
from weft.store.private_files import make_folder, open_private

# --- The records that a tool wrote itself, taken from what was kept of its files when they were imported.


def verbatim_records(
    ledger: Ledger, importer: Importer, writer: ImportWriter, turns: Iterable[Turn]
) -> dict[str, Records]:
    """The records of those turns that are of this origin, as far as their sources are still whole."""
    turn_ids: dict[str, set[str]] = {}
    for turn in turns:
        if turn.origin == importer.origin and turn.session_id is not None:
            turn_ids.setdefault(turn.session_id, set()).add(turn.id)
    records_by_turn: dict[str, Records] = {}
    with TemporaryDirectory(prefix="weft-") as folder:
        for session, ids in turn_ids.items():
            for number, (name, data) in enumerate(_files(ledger.imports.kept_sources(session))):
                path = Path(folder, str(len(records_by_turn)), str(number), PurePath(name).name or "source")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
                records_by_turn |= _records(importer, writer, as_source(path), ids - records_by_turn.keys())
                path.unlink()
    return records_by_turn


def as_source(path: Path) -> Source:
    return Source(path=path, name=str(path), size=path.stat().st_size, head=read_sample(path, HEAD_BYTES))


def _files(source_ranges: Iterable[SourceRange]) -> Iterator[tuple[str, bytes]]:
    """Every file that is kept without a gap, as it was when it was last read, and as it was before it was rewritten."""
    open_files: dict[str | None, bytearray | None] = {}
    for source_range in source_ranges:
        data = open_files.get(source_range.file)
        if source_range.start == 0:
            if data:
                yield str(source_range.file), bytes(data)
            data = bytearray()
        is_whole = data is not None and source_range.start == len(data) and not source_range.erased
        open_files[source_range.file] = data + source_range.data if is_whole and data is not None else None
    for file, remaining in open_files.items():
        if remaining:
            yield str(file), bytes(remaining)


def _records(importer: Importer, writer: ImportWriter, source: Source, turn_ids: set[str]) -> dict[str, Records]:
    records_by_turn: dict[str, Records] = {}
    if not turn_ids:
        return records_by_turn
    with source.path.open("rb") as file:
        for transcript in importer.read(source, Report(source.name)):
            for turn, id in writer.identify(transcript.turns):
                if id in turn_ids and id not in records_by_turn and turn.places:
                    records = _read(file, turn.places)
                    if records is not None:
                        records_by_turn[id] = records
    return records_by_turn


def _read(file: BinaryIO, places: Iterable[tuple[int, int]]) -> Records | None:
    try:
        return [record_at(file, start, end) for start, end in places]
    except (ValueError, RecursionError):
        return None


# --- From a turn to a session file that another tool goes on from.

_no_letter = re.compile(r"[^A-Za-z0-9]")


CODEX_SETTINGS = "config.toml"


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
    stored_records = verbatim_records(ledger, importer, ledger.imports.writer(tool, importer.mapping), turns)
    provider = _codex_provider(root) if tool == "codex" else None
    for verbatim in (stored_records, {}):
        writer = _writer(format, session, place, now, provider)
        turn_records = [("", writer.begin_session(_title(ledger, turns[-1])))]
        for turn in turns:
            turn_records.append(
                (turn.id, writer.write(load_thread_turn(ledger, turn, cuts.get(turn.id), verbatim.get(turn.id))))
            )
        data, spans = _joined(turn_records)
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


def _writer(format: Format, session: str, workspace: str, now: int, provider: str | None) -> Writer:
    if format.tool == "claude-code":
        return ClaudeCodeWriter(format, session, workspace)
    return CodexWriter(format, session, workspace, now, provider)


def _codex_provider(root: Path) -> str | None:
    """The provider that Codex asks by default, by its configuration; a session of another one is not offered there.
    None where none is configured."""
    place = root / CODEX_SETTINGS
    try:
        settings = tomllib.loads(place.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput(f"{place} cannot be read: {error}", "mend it: Codex needs it, too") from error
    profiles, chosen = settings.get("profiles"), settings.get("profile")
    profile = profiles.get(chosen) if isinstance(profiles, dict) and isinstance(chosen, str) else None
    for table in (profile, settings):
        if isinstance(table, dict) and isinstance(name := table.get("model_provider"), str) and name:
            return name
    return None


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


def _workspace(ledger: Ledger, turns: Sequence[Turn], chosen: str | None) -> str:
    """The folder, as the system calls it: tools look for their sessions by that name, whichever way led there."""
    place = chosen if chosen is not None else _recorded_workspace(ledger, turns)
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
    moment = datetime.fromtimestamp(now / 1000, UTC)
    return root / "sessions" / f"{moment:%Y/%m/%d}" / f"rollout-{moment:%Y-%m-%dT%H-%M-%S}-{session}.jsonl"


def _joined(turn_records: Sequence[tuple[str, Records]]) -> tuple[bytes, list[tuple[int, str]]]:
    """The lines, and where those of each turn begin."""
    data, spans = bytearray(), []
    for turn, records in turn_records:
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
        read = [list(transcript.turns) for transcript in importer.read(as_source(path), Report(name))]
    starts = [start for start, _ in spans]
    turns = read[0] if len(read) == 1 else []
    return tuple((turn, spans[bisect_left(starts, turn.end) - 1][1]) for turn in turns)
