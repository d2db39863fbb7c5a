"""pi: one JSON-lines file per session, its entries a tree."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from weft.exchange.importers.jsonl import first_objects, record_at, records
from weft.exchange.importers.pi.dsh import is_dsh_header, read_dsh
from weft.exchange.importers.pi.index import Entry, Index, Indexer, Plan
from weft.exchange.importers.pi.kinds import ROLES, TYPES
from weft.exchange.importers.pi.settings import names
from weft.exchange.importers.pi.turns import Making
from weft.exchange.importers.port import Place, Report, Source
from weft.exchange.importers.transcript import (
    NativeCompaction,
    NativeLink,
    NativeSession,
    NativeTurn,
    Transcript,
)
from weft.exchange.importers.values import canonical, mapping, millis, present, sequence, text, whole
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
            told = environment.get(variable)
            return home / usual if not told else home / told[2:] if told.startswith("~/") else Path(told)

        found = [Place(folder("PI_CODING_AGENT_DIR", ".pi/agent") / "sessions", "pi")]
        if environment.get("PI_CODING_AGENT_SESSION_DIR"):
            found.append(Place(folder("PI_CODING_AGENT_SESSION_DIR", ""), "pi"))
        found.append(Place(home / ".omp/agent/sessions", "oh-my-pi"))
        found.append(Place(folder("OPENCLAW_STATE_DIR", ".openclaw") / "agents", "OpenClaw"))
        return found

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
            session = told_session(index, indexer.session_id, source.path)
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
        return text(mapping(value.get("message")).get("role")) in ROLES
    return isinstance(kind, str) and kind in TYPES and "timestamp" in value


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


def told_session(index: Index, id: str, path: Path) -> NativeSession:
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
    made = millis(index.header.get("timestamp"))
    if named is None or made is None or index.first_time is None or index.first_time < made:
        return None
    parent = fallback_id(Path(re.split(r"[/\\]", named)[-1]))
    return NativeLink(to=parent, why=LinkReason.CONTINUATION, session=parent)


def _turns(source: Source, index: Index, report: Report) -> Iterator[NativeTurn]:
    with source.path.open("rb") as file:
        for number, plan in enumerate(index.plans):
            making = Making(index.call_starts)
            entries = [index.entries[each] for each in plan.entries]
            for entry in entries[: plan.shared]:
                _take(making, file, entry, report, is_fresh=False)
            making.forget_costs()
            for entry in entries[plan.shared :]:
                _take(making, file, entry, report, is_fresh=True)
            yield _turn(index, plan, making, is_last=number == len(index.plans) - 1)


def _take(making: Making, file: BinaryIO, entry: Entry, report: Report, is_fresh: bool) -> None:
    try:
        value = record_at(file, entry.offset, entry.end)
    except (ValueError, RecursionError):
        if is_fresh:
            report.damaged += 1
            report.problem(entry.line, "changed while it was read")
        return
    making.take(entry.kind, value)
    if is_fresh:
        report.mapped[entry.kind] += 1


def _turn(index: Index, plan: Plan, making: Making, is_last: bool) -> NativeTurn:
    first = index.entries[plan.entries[plan.shared]]
    settings = plan.settings
    return NativeTurn(
        key=plan.key,
        records=tuple(making.records) or (canonical([plan.key]),),
        names=tuple(id for number in plan.entries if (id := index.entries[number].id) is not None),
        items=making.finished(),
        parent=plan.parent,
        link=_link(index) if plan.parent is None and plan is index.plans[0] else None,
        compaction=_compaction(index, plan, making),
        closed=not is_last or plan.is_finished or index.exit is not None,
        error=making.error,
        interrupted=making.is_interrupted,
        started=making.times[0] if making.times else None,
        ended=making.times[-1] if making.times else None,
        role=AgentRole.WORKER if index.init else AgentRole.UNIFIED,
        workspace=text(index.header.get("cwd")),
        tools=settings.tools or names(index.init.get("tools")),
        config=settings.config(),
        metadata=present(context_reset=settings.is_reset or None),
        offset=first.offset,
        end=index.entries[plan.entries[-1]].end,
    )


def _compaction(index: Index, plan: Plan, making: Making) -> NativeCompaction | None:
    if not plan.is_compaction:
        return None
    entry = making.compaction or {}
    kept = plan.first_kept
    through = None if kept is None else kept if plan.is_split else index.plans[kept].parent
    return NativeCompaction(
        summary=making.summary,
        through=through,
        first_kept=kept,
        tokens_before=whole(entry.get("tokensBefore")),
        tokens_after=whole(entry.get("tokensAfter")),
        metadata=present(
            details=entry.get("details"),
            from_extension=entry.get("fromHook") or entry.get("fromExtension") or None,
            method=entry.get("method"),
            retained=len(sequence(entry.get("retainedTail"))) or None,
        ),
    )
