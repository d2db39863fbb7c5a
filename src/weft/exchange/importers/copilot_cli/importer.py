"""GitHub Copilot CLI: where its sessions lie, and how their events become turns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from weft.exchange.importers.copilot_cli.index import Entry, Index, Indexer, Lane, Plan
from weft.exchange.importers.copilot_cli.kinds import KINDS
from weft.exchange.importers.copilot_cli.turns import Making
from weft.exchange.importers.jsonl import first_objects, record_at, records
from weft.exchange.importers.port import Place, Report, Source
from weft.exchange.importers.transcript import NativeCompaction, NativeSession, NativeTurn, Tokens, Transcript
from weft.exchange.importers.values import canonical, mapping, millis, present, text, whole
from weft.kernel.enums import AgentRole

FILE = "events.jsonl"
TOLD = re.compile(rb"^(?:summary|name|title):[ \t]*(['\"]?)(.+?)\1[ \t\r]*$", re.MULTILINE)
SMALL = 1 << 16
NAMELESS = frozenset({b"|", b"|-", b">", b">-", b"null", b"~"})


class CopilotCli:
    origin = "copilot-cli"
    mapping = 1

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        told = environment.get("COPILOT_HOME")
        return [Place((Path(told) if told else home / ".copilot") / "session-state", "GitHub Copilot CLI")]

    def recognises(self, source: Source) -> bool:
        return any(is_event(value) for value in first_objects(source.head))

    def is_part(self, source: Source) -> bool:
        return False

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        indexer = Indexer(report)
        for record in records(source, report):
            indexer.take(record)
        if not report.found:
            return
        path = source.path
        fallback = path.parent.name if path.name == FILE else path.stem
        id = text(indexer.index.start.get("sessionId")) or fallback
        index = indexer.finish(id)
        rests = iter(index.rests)
        yield Transcript(
            session=told_session(index, id, path), turns=_turns(source, index, index.main, (id, None), rests, report)
        )
        for call, lane in index.agents.items():
            session = agent_session(index, lane, id, call)
            yield Transcript(session=session, turns=_turns(source, index, lane, (session.id, call), rests, report))


def is_event(value: dict[str, Any]) -> bool:
    kind = text(value.get("type")) or ""
    return kind in KINDS and isinstance(value.get("data"), dict) and "timestamp" in value and "parentId" in value


def told_session(index: Index, id: str, path: Path) -> NativeSession:
    start, end = index.start, index.end
    context = mapping(start.get("context"))
    return NativeSession(
        id=id,
        title=index.title or _title_beside(path),
        workspace=text(context.get("cwd")) or index.settings.workspace,
        git_branch=text(context.get("branch")),
        version=text(start.get("copilotVersion")),
        created=millis(start.get("startTime")),
        metadata=present(
            producer=start.get("producer"),
            repository=context.get("repository"),
            git_root=context.get("gitRoot"),
            commit=context.get("headCommit"),
            end=end.get("shutdownType"),
            metrics=end.get("modelMetrics"),
            changes=end.get("codeChanges"),
            premium_requests=end.get("totalPremiumRequests"),
        ),
    )


def _title_beside(path: Path) -> str | None:
    """What the session is called, in the file beside its events."""
    try:
        with path.with_name("workspace.yaml").open("rb") as file:
            found = TOLD.search(file.read(SMALL)) if path.name == FILE else None
    except OSError:
        return None
    return None if found is None or found[2] in NAMELESS else text(found[2].decode(errors="replace").strip())


def agent_session(index: Index, lane: Lane, parent: str, call: str) -> NativeSession:
    told = lane.told
    return NativeSession(
        id=f"{parent}/{call}",
        title=text(told.get("agentDisplayName")),
        workspace=index.settings.workspace,
        parent=parent,
        spawn_call=call,
        task=text(told.get("agentDescription")),
        agent=text(told.get("agentName")),
        metadata=present(
            outcome=told.get("outcome"),
            error=told.get("error"),
            tokens=told.get("totalTokens"),
            calls=told.get("totalToolCalls"),
            duration_ms=told.get("durationMs"),
        ),
    )


def _turns(
    source: Source,
    index: Index,
    lane: Lane,
    who: tuple[str, str | None],
    rests: Iterator[dict[str, Tokens]],
    report: Report,
) -> Iterator[NativeTurn]:
    """Of a session, or of a subagent by the call that started it."""
    session, call = who
    with source.path.open("rb") as file:
        for number, plan in enumerate(lane.plans):
            making = Making(session, call is not None, frozenset(index.agents), plan.settings.model, rests)
            if call is not None and number == 0 and plan.prompt is None and call in index.tasks:
                making.task(call, index.tasks[call])
            for entry in plan.entries:
                try:
                    event = record_at(file, entry.offset, entry.end)
                except (ValueError, RecursionError):
                    report.damaged += 1
                    report.problem(entry.line, "changed while it was read")
                    continue
                making.take(entry.kind, event)
                report.mapped[entry.kind] += 1
            is_over = plan.is_finished or lane.told.get("outcome") in ("completed", "failed")
            yield _turn(plan, making, call is not None, closed=number < len(lane.plans) - 1 or is_over)


def _turn(plan: Plan, making: Making, is_agent: bool, closed: bool) -> NativeTurn:
    settings, entries = plan.settings, plan.entries
    asked = list(making.permissions.values())
    return NativeTurn(
        key=plan.key,
        records=tuple(making.records) or (canonical([plan.key]),),
        names=_names(entries),
        items=making.finished(),
        parent=plan.parent,
        compaction=_compaction(plan, making.compaction),
        closed=closed,
        error=None if making.is_interrupted else making.error,
        interrupted=making.is_interrupted,
        started=min(making.times, default=None),
        ended=max(making.times, default=None),
        role=AgentRole.WORKER if is_agent else AgentRole.UNIFIED,
        workspace=settings.workspace,
        git_branch=settings.branch,
        version=settings.version,
        permissions=present(asked=asked, allow_all=settings.allows_all),
        config=settings.config(),
        metadata=present(**making.notes),
        offset=min((entry.offset for entry in entries), default=0),
        end=max((entry.end for entry in entries), default=0),
    )


def _names(entries: list[Entry]) -> tuple[str, ...]:
    return tuple(entry.id for entry in entries if entry.id is not None and len(entry.id) >= 32)


def _compaction(plan: Plan, data: dict[str, Any]) -> NativeCompaction | None:
    if not plan.is_compaction:
        return None
    used = mapping(data.get("compactionTokensUsed"))
    return NativeCompaction(
        summary=text(data.get("summaryContent")) or "",
        model=text(used.get("model")),
        trigger=text(data.get("trigger")),
        tokens_before=whole(data.get("preCompactionTokens")),
        tokens_after=whole(data.get("postCompactionTokens")),
        duration_ms=whole(used.get("duration")),
        metadata=present(checkpoint=data.get("checkpointPath"), instructions=data.get("customInstructions")),
    )
