"""pi: one JSON-lines file per session, its entries a tree."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from weft.exchange.importers.pi.dsh import is_dsh_header, read_dsh
from weft.exchange.importers.pi.index import MESSAGE_ROLES, RECORD_ROLES, Index, Indexer, PiTurn
from weft.exchange.importers.pi.turns import PiBuilder
from weft.exchange.importers.port import (
    NativeCompaction,
    NativeLink,
    NativeSession,
    NativeTurn,
    Place,
    Report,
    Source,
    Transcript,
)
from weft.exchange.importers.records.jsonl import first_objects, records
from weft.exchange.importers.records.values import mapping, millis, names, present, sequence, text, whole
from weft.exchange.importers.records.walk import walk_turns
from weft.kernel.enums import AgentRole, LinkReason

STAMPED = re.compile(r"\d{4}-\d\d-\d\dT[0-9-]+Z?_(.+)")
"""A session's file or folder: when it was made, and its id."""

SUBAGENT = ("modelRole", "resolvedModel", "readOnly", "spawns")
"""What oh-my-pi tells of a subagent beside its name and task."""


class Pi:
    origin = "pi"
    mapping = 1

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        def folder(variable: str, usual: str) -> Path:
            setting = environment.get(variable)
            return home / usual if not setting else home / setting[2:] if setting.startswith("~/") else Path(setting)

        places = [Place(folder("PI_CODING_AGENT_DIR", ".pi/agent") / "sessions", "pi")]
        if environment.get("PI_CODING_AGENT_SESSION_DIR"):
            places.append(Place(folder("PI_CODING_AGENT_SESSION_DIR", ""), "pi"))
        places.append(Place(home / ".omp/agent/sessions", "oh-my-pi"))
        places.append(Place(folder("OPENCLAW_STATE_DIR", ".openclaw") / "agents", "OpenClaw"))
        return places

    def recognises(self, source: Source) -> bool:
        objects = first_objects(source.head)
        if is_dsh(objects):
            return True
        if any(is_header(value) for value in objects):
            rest = [value for value in objects if value.get("type") not in ("session", "title")]
            return not rest or any(is_entry(value) for value in rest)
        return any(has_pi_words(value) for value in objects)

    def is_part(self, source: Source) -> bool:
        return False

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        if is_dsh(first_objects(source.head)):
            yield from read_dsh(source, report)
            return
        indexer = Indexer(report, fallback_id(source.path))
        for record in records(source, report):
            indexer.take(record)
        index = indexer.finish()
        if report.found:
            session = session_of(index, indexer.session_id, source.path)
            yield Transcript(session=session, turns=_turns(source, index, report))


def is_dsh(objects: list[dict[str, Any]]) -> bool:
    rest = [value for value in objects if value.get("type") != "session"]
    is_numbered = not rest or any("seq" in value and "data" in value for value in rest)
    return is_numbered and any(is_dsh_header(value) for value in objects)


def is_header(value: dict[str, Any]) -> bool:
    return value.get("type") == "session" and text(value.get("id")) is not None and "timestamp" in value


def is_entry(value: dict[str, Any]) -> bool:
    """Pi's own kinds; only the first, linear version has entries without an id."""
    kind = value.get("type")
    if kind == "message":
        return text(mapping(value.get("message")).get("role")) in MESSAGE_ROLES
    return isinstance(kind, str) and kind in RECORD_ROLES and "timestamp" in value


def has_pi_words(value: dict[str, Any]) -> bool:
    """A message as no other tool writes it, for a file whose header is lost."""
    message = mapping(value.get("message"))
    if value.get("type") != "message" or "timestamp" not in value:
        return False
    blocks = map(mapping, sequence(message.get("content")))
    return message.get("role") == "toolResult" or any(block.get("type") == "toolCall" for block in blocks)


def fallback_id(path: Path) -> str:
    stamped = STAMPED.fullmatch(path.stem)
    return stamped[1] if stamped else path.stem


def session_of(index: Index, id: str, path: Path) -> NativeSession:
    header, init = index.header, index.init
    folder = STAMPED.fullmatch(path.parent.name)
    return NativeSession(
        id=id,
        title=index.title,
        workspace=text(header.get("cwd")),
        created=millis(header.get("timestamp")) or millis(header.get("createdAt")),
        parent=folder[1] if folder and init else None,  # oh-my-pi keeps subagents in the folder of who started them
        task=text(init.get("task")),
        agent=text(init.get("agent")),
        metadata=present(
            format=header.get("version"),
            forked_from=_parent_session(header),
            labels=index.labels,
            exit=index.exit,
            other_usage=index.other_usage,
            subagent={name: init[name] for name in SUBAGENT if name in init},
        ),
    )


def _parent_session(header: dict[str, Any]) -> str | None:
    return text(header.get("parentSession")) or text(header.get("branchedFrom"))


def _link(index: Index) -> NativeLink | None:
    """The session that this one goes on from; not where it was copied from, for then the same turns are in both."""
    named = _parent_session(index.header)
    created = millis(index.header.get("timestamp"))
    if named is None or created is None or index.first_time is None or index.first_time < created:
        return None
    parent = fallback_id(Path(re.split(r"[/\\]", named)[-1]))
    return NativeLink(to=parent, why=LinkReason.CONTINUATION, session=parent)


def _turns(source: Source, index: Index, report: Report) -> Iterator[NativeTurn]:
    last = len(index.plan.turns) - 1
    return walk_turns(
        source,
        index.plan,
        report,
        builder_of=lambda number, planned: PiBuilder(starts=index.call_starts),
        turn_of=lambda number, planned, builder: _turn(index, planned, builder, is_last=number == last),
    )


def _turn(index: Index, planned: PiTurn, builder: PiBuilder, is_last: bool) -> NativeTurn:
    entries, settings = index.plan.entries_of(planned), planned.settings
    return builder.turn(
        planned,
        entries,
        names=tuple(entry.id for entry in entries if entry.id is not None),
        link=_link(index) if planned.parent is None and planned is index.plan.turns[0] else None,
        compaction=_compaction(index, planned, builder),
        closed=not is_last or planned.is_finished or index.exit is not None,
        started=builder.times[0] if builder.times else None,
        ended=builder.times[-1] if builder.times else None,
        role=AgentRole.WORKER if index.init else AgentRole.UNIFIED,
        workspace=text(index.header.get("cwd")),
        tools=settings.tools or names(index.init.get("tools")) or None,
        config=settings.config(),
        metadata=present(context_reset=settings.is_reset or None),
    )


def _compaction(index: Index, planned: PiTurn, builder: PiBuilder) -> NativeCompaction | None:
    if not planned.is_compaction:
        return None
    entry = builder.compaction or {}
    return NativeCompaction(
        summary=builder.summary,
        through=index.plan.last_summarised(planned),
        first_kept=planned.first_kept,
        tokens_before=whole(entry.get("tokensBefore")),
        tokens_after=whole(entry.get("tokensAfter")),
        metadata=present(
            details=entry.get("details"),
            from_extension=entry.get("fromHook") or entry.get("fromExtension") or None,
            method=entry.get("method"),
            retained=len(sequence(entry.get("retainedTail"))) or None,
        ),
    )
