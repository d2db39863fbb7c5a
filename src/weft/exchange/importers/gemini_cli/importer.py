"""Gemini CLI: what its files are, and how a chat becomes turns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import Enum, auto
from pathlib import Path
from typing import Any

from weft.exchange.importers.gemini_cli.containers import (
    STAMPED,
    index_document,
    index_lines,
    index_saved,
    parent_session,
    read_log,
    saved_name,
    saved_session,
    workspace,
)
from weft.exchange.importers.gemini_cli.index import GeminiTurn, Index, Indexer
from weft.exchange.importers.gemini_cli.messages import TYPES
from weft.exchange.importers.gemini_cli.turns import GeminiBuilder
from weft.exchange.importers.port import NativeCompaction, NativeSession, NativeTurn, Place, Report, Source, Transcript
from weft.exchange.importers.records.jsonl import BOM, first_objects
from weft.exchange.importers.records.values import json_value, mapping, millis, present, sequence, text
from weft.exchange.importers.records.walk import walk_turns
from weft.kernel.enums import AgentRole


class Container(Enum):
    DOCUMENT = auto()
    LINES = auto()
    SAVED = auto()
    LOG = auto()


DOCUMENT = re.compile(rb"\s*\{\s*\"")
LOGGED = re.compile(rb'\s*\[\s*\{(?>[^{}]*?"sessionId"\s*:)[^{}]*"messageId"\s*:')
CONTENT = re.compile(rb'\s*(?:\{\s*"history"\s*:\s*)?\[\s*\{\s*"(?:role|parts)"\s*:')


class GeminiCli:
    origin = "gemini-cli"
    mapping = 1

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        folder = environment.get("GEMINI_CLI_HOME")
        return [Place((Path(folder) if folder else home) / ".gemini" / "tmp", "Gemini CLI")]

    def recognises(self, source: Source) -> bool:
        return container(source) is not None

    def is_part(self, source: Source) -> bool:
        return False

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        kind = container(source)
        if kind is Container.LOG:
            yield from read_log(source, report)
            return
        fallback = STAMPED.fullmatch(source.path.stem)
        indexer = Indexer(report, fallback[1] if fallback else source.path.stem)
        if kind is Container.SAVED:
            indexer.add_facts({"sessionId": saved_session(source)})
            index_saved(source, indexer, report)
        elif kind is Container.DOCUMENT:
            index_document(source, indexer, report)
        else:
            index_lines(source, indexer, report)
        index = indexer.finish()
        if report.found:
            session = session_of(index, indexer.session_id, source, is_saved=kind is Container.SAVED)
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
            value = mapping(json_value(head))
        except ValueError:
            value = {}
        if value:
            messages = value.get("messages")
            is_named = text(value.get("sessionId")) is not None and isinstance(messages, list)
            types = {text(mapping(message).get("type")) for message in sequence(messages)}
            return is_named and ("projectHash" in value or bool(types & TYPES))
    is_named = b'"sessionId"' in head and b'"projectHash"' in head
    return is_named or (b'"messages"' in head and re.search(rb'"type"\s*:\s*"gemini"', head) is not None)


def session_of(index: Index, id: str, source: Source, is_saved: bool) -> NativeSession:
    facts = index.facts
    is_subagent = facts.get("kind") == "subagent"
    return NativeSession(
        id=id,
        title=text(facts.get("summary")) or (saved_name(source) if is_saved else None),
        workspace=workspace(source.path, text(facts.get("projectHash"))),
        created=millis(facts.get("startTime")),
        told_at=millis(facts.get("lastUpdated")),
        parent=parent_session(source.path) if is_subagent else None,
        metadata=present(
            project=facts.get("projectHash"),
            directories=facts.get("directories"),
            kind=facts.get("kind"),
            extension=facts.get("activeExtensionName"),
            scratchpad=facts.get("memoryScratchpad"),
        ),
    )


def _turns(source: Source, indexer: Indexer, session: NativeSession, report: Report) -> Iterator[NativeTurn]:
    index = indexer.index
    is_subagent = index.facts.get("kind") == "subagent"
    last = len(index.plan.turns) - 1

    def builder_of(number: int, planned: GeminiTurn) -> GeminiBuilder:
        summary = index.plan.entries[planned.entries[0]] if planned.is_compaction else None
        return GeminiBuilder(session=session.id, is_subagent=is_subagent, summary_entry=summary)

    def turn_of(number: int, planned: GeminiTurn, builder: GeminiBuilder) -> NativeTurn:
        return builder.turn(
            planned,
            index.plan.entries_of(planned),
            names=tuple(indexer.name(entry) for entry in planned.entries if index.plan.entries[entry].id),
            compaction=_compaction(index, planned, builder),
            closed=number < last or planned.is_compaction or builder.is_interrupted,
            role=AgentRole.WORKER if is_subagent else AgentRole.UNIFIED,
            workspace=session.workspace,
        )

    return walk_turns(source, index.plan, report, builder_of, turn_of)


def _compaction(index: Index, planned: GeminiTurn, builder: GeminiBuilder) -> NativeCompaction | None:
    if not planned.is_compaction:
        return None
    before, after = planned.sizes or (None, None)
    return NativeCompaction(
        summary=builder.summary or "",
        through=index.plan.last_summarised(planned),
        first_kept=planned.first_kept,
        tokens_before=before,
        tokens_after=after,
    )
