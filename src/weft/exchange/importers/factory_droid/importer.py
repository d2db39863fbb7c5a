"""Factory's droid: one file of JSON lines a session, and its settings beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from weft.exchange.importers.factory_droid.index import DroidTurn, Index
from weft.exchange.importers.factory_droid.turns import DroidBuilder, Setting
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
from weft.exchange.importers.records.jsonl import FileRefused, first_objects, records
from weft.exchange.importers.records.values import json_value, mapping, millis, present, sequence, text
from weft.exchange.importers.records.walk import walk_turns
from weft.exchange.importers.sidecars import read_beneath
from weft.kernel.enums import AgentRole, LinkReason

SETTINGS = ".settings.json"
STARTED = ("cwd", "owner", "title", "sessionTitle", "version", "hostId", "session")
"""What a droid's first line has beside its id; other tools begin sessions too."""


class FactoryDroid:
    origin = "factory-droid"
    mapping = 1

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        folder = environment.get("FACTORY_DIR")
        base = Path(folder) if folder else home / ".factory"
        return [Place(base / "sessions", "Factory's droid"), Place(base / "projects", "Factory's droid, by project")]

    def recognises(self, source: Source) -> bool:
        objects = first_objects(source.head, limit=16)
        if any(is_start(value) for value in objects):
            return True
        return any(is_message(value) for value in objects) and ".factory" in source.path.parts

    def is_part(self, source: Source) -> bool:
        """A session's settings are told with it."""
        name = source.path.name
        return name.endswith(SETTINGS) and source.path.with_name(f"{name.removesuffix(SETTINGS)}.jsonl").is_file()

    def whole(self, source: Source) -> Path | None:
        return source.path.with_name(f"{source.path.name.removesuffix(SETTINGS)}.jsonl")

    def parts(self, path: Path) -> list[Path]:
        return []

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        index = Index(report, source.path.stem)
        for record in records(source, report):
            index.take(record)
        index.finish()
        if report.found:
            settings = _settings(source.path, index, report)
            session = replace(session_of(index, settings), told_at=_written(source.path))
            yield Transcript(session=session, turns=_turns(source, index, settings, report))


def is_start(value: dict[str, Any]) -> bool:
    if value.get("type") != "session_start":
        return False
    inside = mapping(value.get("session")) or value
    return text(inside.get("id")) is not None and any(name in value for name in STARTED)


def is_message(value: dict[str, Any]) -> bool:
    return value.get("type") == "message" and "role" in mapping(value.get("message")) and "content" in value["message"]


def _written(path: Path) -> int | None:
    """When the settings beside it were."""
    try:
        return path.with_name(f"{path.stem}{SETTINGS}").stat().st_mtime_ns // 1_000_000
    except OSError:
        return None


def _settings(path: Path, index: Index, report: Report) -> dict[str, Any]:
    """From beside the file, else as the file itself has them last."""
    try:
        beside = mapping(json_value(read_beneath(path.with_name(f"{path.stem}{SETTINGS}"), path.parent)))
    except FileRefused as error:
        report.problem(None, f"{path.stem}{SETTINGS}: {error.strerror}")
        beside = {}
    except (OSError, ValueError):
        beside = {}
    record = index.session_records.get("session_settings", {})
    inside = mapping(record.get("settings")) or {name: value for name, value in record.items() if name != "type"}
    return beside or inside


def session_of(index: Index, settings: dict[str, Any]) -> NativeSession:
    start = index.start
    parent = text(start.get("callingSessionId"))
    title = text(start.get("sessionTitle")) or text(start.get("title"))
    todos = index.session_records.get("todo_state", {}).get("todos")
    return NativeSession(
        id=index.session,
        title=title,
        workspace=text(start.get("cwd")),
        git_branch=text(mapping(start.get("gitRepo")).get("branch")) or text(start.get("gitBranch")),
        created=millis(start.get("timestamp")),
        parent=parent,
        spawn_call=text(start.get("callingToolUseId")),
        task=title if parent is not None else None,
        archived=text(settings.get("archivedAt")) is not None,
        metadata=present(
            settings=settings,
            owner=start.get("owner"),
            host=start.get("hostId"),
            form=start.get("version"),
            forked_from=start.get("parent"),
            forked_at=start.get("forkedAtMessageId"),
            kind=start.get("decompSessionType"),
            mission=start.get("decompMissionId"),
            todos=todos,
        ),
    )


def _turns(source: Source, index: Index, settings: dict[str, Any], report: Report) -> Iterator[NativeTurn]:
    setting = Setting(
        model=text(settings.get("model")),
        provider=text(settings.get("apiProviderLock")) or text(settings.get("providerLock")),
        is_subagent=text(index.start.get("callingSessionId")) is not None,
    )
    last = len(index.plan.turns) - 1

    def turn_of(number: int, planned: DroidTurn, builder: DroidBuilder) -> NativeTurn:
        return builder.turn(
            planned,
            index.plan.entries_of(planned),
            names=tuple(builder.names),
            link=_link(index) if planned.parent is None else None,
            compaction=_compaction(index, number, builder),
            closed=number < last or bool(planned.ends) or planned.is_compaction,
            role=AgentRole.WORKER if setting.is_subagent else AgentRole.UNIFIED,
            workspace=text(index.start.get("cwd")),
            tools=_tools(settings),
            toolset=text(settings.get("interactionMode")),
            permissions=present(autonomy=settings.get("autonomyLevel") or settings.get("autonomyMode")),
            config=present(model=settings.get("model"), effort=settings.get("reasoningEffort")),
            metadata=builder.result,
        )

    return walk_turns(source, index.plan, report, lambda number, planned: DroidBuilder(setting=setting), turn_of)


def _compaction(index: Index, number: int, builder: DroidBuilder) -> NativeCompaction | None:
    if builder.compaction is None:
        return None
    through = index.turns.get(builder.anchor or "")
    return replace(builder.compaction, through=through if through is not None and through < number else None)


def _link(index: Index) -> NativeLink | None:
    """A fork names the session and the message that it grew from; where it holds copies of them, it names itself."""
    parent, at = text(index.start.get("parent")), text(index.start.get("forkedAtMessageId"))
    if parent is None or at in index.turns:
        return None
    return NativeLink(to=at or parent, why=LinkReason.FORK, session=parent)


def _tools(settings: dict[str, Any]) -> tuple[str, ...] | None:
    names = {name for id in sequence(settings.get("enabledToolIds")) if (name := text(id))}
    return tuple(sorted(names)) or None
