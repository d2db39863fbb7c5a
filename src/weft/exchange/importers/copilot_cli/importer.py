"""GitHub Copilot CLI: where its sessions lie, and how their events become turns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from weft.exchange.importers.copilot_cli.index import ROLES, CopilotTurn, Index, Indexer, Lane
from weft.exchange.importers.copilot_cli.turns import CopilotBuilder
from weft.exchange.importers.port import (
    NativeCompaction,
    NativeSession,
    NativeTurn,
    Place,
    Report,
    Source,
    Tokens,
    Transcript,
)
from weft.exchange.importers.records.jsonl import first_objects, records
from weft.exchange.importers.records.planned_turns import Entry
from weft.exchange.importers.records.values import mapping, millis, present, text, whole
from weft.exchange.importers.records.walk import walk_turns
from weft.exchange.importers.sidecars import open_beneath
from weft.kernel.enums import AgentRole

FILE = "events.jsonl"
TITLE = re.compile(rb"^(?:summary|name|title):(.+)$", re.MULTILINE)
SMALL_BYTES = 1 << 16
NAMELESS = frozenset({b"|", b"|-", b">", b">-", b"null", b"~"})


class CopilotCli:
    origin = "copilot-cli"
    mapping = 1

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        folder = environment.get("COPILOT_HOME")
        return [Place((Path(folder) if folder else home / ".copilot") / "session-state", "GitHub Copilot CLI")]

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
            session=session_of(index, id, path), turns=_turns(source, index, index.main, None, rests, report, id)
        )
        for call, lane in index.agents.items():
            session = agent_session(index, lane, id, call)
            yield Transcript(session=session, turns=_turns(source, index, lane, call, rests, report, session.id))


def is_event(value: dict[str, Any]) -> bool:
    kind = text(value.get("type")) or ""
    return kind in ROLES and isinstance(value.get("data"), dict) and "timestamp" in value and "parentId" in value


def session_of(index: Index, id: str, path: Path) -> NativeSession:
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
        with open_beneath(path.with_name("workspace.yaml"), path.parent) as file:
            match = TITLE.search(file.read(SMALL_BYTES)) if path.name == FILE else None
    except OSError:
        return None
    title = b"" if match is None else match[1].strip(b" \t\r")
    if len(title) > 2 and title[:1] in (b"'", b'"') and title.endswith(title[:1]):
        title = title[1:-1]
    return None if title in NAMELESS else text(title.decode(errors="replace").strip())


def agent_session(index: Index, lane: Lane, parent: str, call: str) -> NativeSession:
    agent = lane.agent
    return NativeSession(
        id=f"{parent}/{call}",
        title=text(agent.get("agentDisplayName")),
        workspace=index.settings.workspace,
        parent=parent,
        spawn_call=call,
        task=text(agent.get("agentDescription")),
        agent=text(agent.get("agentName")),
        metadata=present(
            outcome=agent.get("outcome"),
            error=agent.get("error"),
            tokens=agent.get("totalTokens"),
            calls=agent.get("totalToolCalls"),
            duration_ms=agent.get("durationMs"),
        ),
    )


def _turns(
    source: Source,
    index: Index,
    lane: Lane,
    call: str | None,
    rests: Iterator[dict[str, Tokens]],
    report: Report,
    id: str,
) -> Iterator[NativeTurn]:
    """Of the session called `id`; of a subagent, by the call that started it."""
    last = len(lane.plan.turns) - 1

    def builder_of(number: int, planned: CopilotTurn) -> CopilotBuilder:
        builder = CopilotBuilder(
            session=id,
            is_subagent=call is not None,
            agents=frozenset(index.agents),
            model=planned.settings.model,
            rests=rests,
        )
        if call is not None and number == 0 and planned.prompt is None and call in index.tasks:
            builder.task(call, index.tasks[call])
        return builder

    def turn_of(number: int, planned: CopilotTurn, builder: CopilotBuilder) -> NativeTurn:
        settings, entries = planned.settings, lane.plan.entries_of(planned)
        is_over = planned.is_finished or lane.agent.get("outcome") in ("completed", "failed")
        return builder.turn(
            planned,
            entries,
            names=_names(entries),
            compaction=_compaction(planned, builder.compaction),
            closed=number < last or is_over,
            role=AgentRole.UNIFIED if call is None else AgentRole.WORKER,
            workspace=settings.workspace,
            git_branch=settings.branch,
            version=settings.version,
            permissions=present(asked=list(builder.permissions.values()), allow_all=settings.allows_all),
            config=settings.config(),
            metadata=present(**builder.notes),
        )

    return walk_turns(source, lane.plan, report, builder_of, turn_of)


def _names(entries: list[Entry]) -> tuple[str, ...]:
    return tuple(entry.id for entry in entries if entry.id is not None and len(entry.id) >= 32)


def _compaction(planned: CopilotTurn, data: dict[str, Any]) -> NativeCompaction | None:
    if not planned.is_compaction:
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
