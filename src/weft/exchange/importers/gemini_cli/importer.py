"""Gemini CLI: what its files are, and how a chat becomes turns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import Enum, auto
from pathlib import Path
from typing import Any

from weft.exchange.importers.gemini_cli import layout, saved
from weft.exchange.importers.gemini_cli.containers import Reader, index_document, index_lines
from weft.exchange.importers.gemini_cli.index import Index, Indexer, Plan
from weft.exchange.importers.gemini_cli.kinds import TYPES
from weft.exchange.importers.gemini_cli.turns import Making
from weft.exchange.importers.jsonl import BOM, first_objects
from weft.exchange.importers.loading import loaded
from weft.exchange.importers.port import Place, Report, Source
from weft.exchange.importers.transcript import NativeCompaction, NativeSession, NativeTurn, Transcript
from weft.exchange.importers.values import canonical, mapping, millis, present, sequence, text
from weft.kernel.enums import AgentRole


class Container(Enum):
    DOCUMENT = auto()
    LINES = auto()
    SAVED = auto()
    LOG = auto()


DOCUMENT = re.compile(rb"\s*\{\s*\"")
LOGGED = re.compile(rb'\s*\[\s*\{[^{}]*"sessionId"\s*:[^{}]*"messageId"\s*:')
CONTENT = re.compile(rb'\s*(?:\{\s*"history"\s*:\s*)?\[\s*\{\s*"(?:role|parts)"\s*:')


class GeminiCli:
    origin = "gemini-cli"
    mapping = 1

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        told = environment.get("GEMINI_CLI_HOME")
        return [Place((Path(told) if told else home) / ".gemini" / "tmp", "Gemini CLI")]

    def recognises(self, source: Source) -> bool:
        return container(source) is not None

    def is_part(self, source: Source) -> bool:
        return False

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        kind = container(source)
        if kind is Container.LOG:
            yield from saved.read_log(source, report)
            return
        fallback = layout.STAMPED.fullmatch(source.path.stem)
        indexer = Indexer(report, fallback[1] if fallback else source.path.stem)
        if kind is Container.SAVED:
            indexer.tell({"sessionId": saved.saved_session(source)})
            saved.index_saved(source, indexer, report)
        elif kind is Container.DOCUMENT:
            index_document(source, indexer, report)
        else:
            index_lines(source, indexer, report)
        index = indexer.finish()
        if report.found:
            session = told_session(index, indexer.session_id, source, is_saved=kind is Container.SAVED)
            yield Transcript(session=session, turns=_turns(source, indexer, session, report))


def container(source: Source) -> Container | None:
    head = source.head.removeprefix(BOM)
    if LOGGED.match(head):
        return Container.LOG
    if CONTENT.match(head):
        return Container.SAVED if source.path.name.startswith("checkpoint-") else None
    objects, is_named_lines = first_objects(head), source.path.suffix == ".jsonl"
    if any(_is_line(value) for value in objects) and (is_named_lines or len(objects) > 1):
        return Container.LINES
    if not DOCUMENT.match(head) or not _is_document(head, len(head) >= source.size):
        return None
    return Container.LINES if is_named_lines else Container.DOCUMENT


def _is_line(value: dict[str, Any]) -> bool:
    """What begins a log of changes, or changes it, and is in no other tool's files."""
    is_header = text(value.get("sessionId")) is not None and text(value.get("projectHash")) is not None
    is_change = len(value) == 1 and (isinstance(value.get("$set"), dict) or text(value.get("$rewindTo")) is not None)
    is_answer = value.get("type") == "gemini" and "timestamp" in value and text(value.get("id")) is not None
    return (is_header and "type" not in value) or is_change or is_answer


def _is_document(head: bytes, is_whole: bool) -> bool:
    if is_whole:
        try:
            value = mapping(loaded(head))
        except ValueError:
            value = {}
        if value:
            messages = value.get("messages")
            is_told = text(value.get("sessionId")) is not None and isinstance(messages, list)
            types = {text(mapping(message).get("type")) for message in sequence(messages)}
            return is_told and ("projectHash" in value or bool(types & TYPES))
    is_named = b'"sessionId"' in head and b'"projectHash"' in head
    return is_named or (b'"messages"' in head and re.search(rb'"type"\s*:\s*"gemini"', head) is not None)


def told_session(index: Index, id: str, source: Source, is_saved: bool) -> NativeSession:
    told = index.told
    is_subagent = told.get("kind") == "subagent"
    return NativeSession(
        id=id,
        title=text(told.get("summary")) or (saved.saved_name(source) if is_saved else None),
        workspace=layout.workspace(source.path, text(told.get("projectHash"))),
        created=millis(told.get("startTime")),
        told_at=millis(told.get("lastUpdated")),
        parent=layout.parent_session(source.path) if is_subagent else None,
        metadata=present(
            project=told.get("projectHash"),
            directories=told.get("directories"),
            kind=told.get("kind"),
            extension=told.get("activeExtensionName"),
            scratchpad=told.get("memoryScratchpad"),
        ),
    )


def _turns(source: Source, indexer: Indexer, session: NativeSession, report: Report) -> Iterator[NativeTurn]:
    index = indexer.index
    is_subagent = index.told.get("kind") == "subagent"
    with source.path.open("rb") as file:
        reader = Reader(file)
        for number, plan in enumerate(index.plans):
            making = Making(session.id, is_subagent)
            for place, entry in enumerate(plan.entries):
                is_fresh = place >= plan.shared
                if place == plan.shared:
                    making.forget_costs()
                _take(making, reader, index, entry, report, is_fresh, plan.is_compaction and place == 0)
            yield _turn(indexer, plan, making, session, is_last=number == len(index.plans) - 1)


def _take(
    making: Making, reader: Reader, index: Index, number: int, report: Report, is_fresh: bool, is_summary: bool
) -> None:
    entry = index.entries[number]
    is_counted = is_fresh and entry.nested is None
    try:
        message = reader.message(entry)
    except ValueError:
        report.damaged += is_counted
        report.problem(entry.line, "changed while it was read")
        return
    making.take(message, is_summary)
    if is_counted:
        report.mapped[entry.kind] += 1


def _turn(indexer: Indexer, plan: Plan, making: Making, session: NativeSession, is_last: bool) -> NativeTurn:
    entries = [indexer.index.entries[number] for number in plan.entries[plan.shared :]]
    is_subagent = indexer.index.told.get("kind") == "subagent"
    return NativeTurn(
        key=plan.key,
        records=tuple(making.records) or (canonical([plan.key]),),
        names=tuple(indexer.name(number) for number in plan.entries if indexer.index.entries[number].id),
        items=making.finished(),
        parent=plan.parent,
        compaction=_compaction(indexer.index, plan, making),
        closed=not is_last or plan.is_compaction or making.is_interrupted,
        error=None if making.is_interrupted else making.error,
        interrupted=making.is_interrupted,
        started=min(making.times, default=None),
        ended=max(making.times, default=None),
        role=AgentRole.WORKER if is_subagent else AgentRole.UNIFIED,
        workspace=session.workspace,
        offset=min(entry.offset for entry in entries),
        end=max(entry.end for entry in entries),
    )


def _compaction(index: Index, plan: Plan, making: Making) -> NativeCompaction | None:
    if not plan.is_compaction:
        return None
    kept = plan.first_kept
    through = None if kept is None else kept if plan.is_split else index.plans[kept].parent
    before, after = plan.sizes or (None, None)
    return NativeCompaction(
        summary=making.summary or "", through=through, first_kept=kept, tokens_before=before, tokens_after=after
    )
