"""OpenHands: four containers, two forms of events, one mapping."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from weft.exchange.importers.openhands.conversations import (
    LINES,
    Container,
    Conversation,
    Treatment,
    classify,
    container,
    is_part,
    is_v1,
    parts_of,
    read_folder,
    read_lines,
    read_list,
    whole_of,
)
from weft.exchange.importers.openhands.turns import Span, TurnEvents
from weft.exchange.importers.openhands.v0 import V0
from weft.exchange.importers.openhands.v1 import V1, Stats
from weft.exchange.importers.port import NativeSession, NativeTurn, Place, Report, Source, Transcript
from weft.exchange.importers.records.values import mapping, millis, present, text

READERS = {Container.LIST: read_list, Container.LINES: read_lines, Container.FOLDER: read_folder}
SETTINGS = ("model", "temperature", "top_p", "reasoning_effort", "max_output_tokens", "usage_id")


class OpenHands:
    origin = "openhands"
    mapping = 1

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        folder = environment.get("OPENHANDS_CONVERSATIONS_DIR")
        store = environment.get("FILE_STORE_PATH")
        root = home / store[2:] if store and store.startswith("~/") else Path(store) if store else home / ".openhands"
        return [
            Place(Path(folder) if folder else home / ".openhands" / "conversations", "OpenHands"),
            Place(root / "sessions", "OpenHands before 1.0"),
            Place(root / "users", "OpenHands before 1.0"),
            Place(home / ".openhands-state" / "sessions", "OpenHands before 0.40"),
        ]

    def recognises(self, source: Source) -> bool:
        return container(source) is not None

    def is_part(self, source: Source) -> bool:
        return is_part(source)

    def whole(self, source: Source) -> Path | None:
        return whole_of(source.path)

    def parts(self, path: Path) -> list[Path]:
        return parts_of(path)

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        kind = container(source)
        if kind is None:
            kind = Container.LINES if source.path.suffix in LINES else Container.LIST
        for found in READERS[kind](source, report):
            yield _transcript(found, source, report)


def _transcript(conversation: Conversation, source: Source, report: Report) -> Transcript:
    turns = _turns(conversation, source, report)
    workspace = text(mapping(conversation.state.get("workspace")).get("working_dir"))
    for turn in turns:
        turn.workspace = turn.workspace or workspace
        turn.config = turn.config or _config(conversation.state)
    return Transcript(session=_session(conversation, workspace), turns=turns, raw=conversation.raw)


def _turns(conversation: Conversation, source: Source, report: Report) -> list[NativeTurn]:
    newer = any(is_v1(event.value) for event in conversation.events) or bool(conversation.state)
    turn_events = TurnEvents("" if newer else f"{conversation.id}/")
    stats = Stats(conversation.state.get("stats"))
    forms: dict[bool, V0 | V1] = {True: V1(turn_events, stats), False: V0(turn_events)}
    for number, event in enumerate(conversation.events):
        kind, standing = classify(event.value)
        (report.mapped if standing is Treatment.MAPPED else report.kept)[kind] += 1
        if standing is Treatment.UNKNOWN:
            report.unknown[kind] += 1
        elif standing is Treatment.MAPPED:
            id = event.value.get("id")
            named = text(id) or (str(id) if isinstance(id, int) else f"#{number}")
            forms[is_v1(event.value)].take(event.value, Span(named, event.offset, event.end))
    if (left := stats.left()) is not None:
        turn_events.spend(left)
    turn_events.state(text(conversation.state.get("execution_status")) or text(conversation.state.get("agent_status")))
    if (failed := text(conversation.details.get("error"))) is not None and turn_events.drafts:
        turn_events.drafts[-1].error = turn_events.drafts[-1].error or failed
    return turn_events.turns(source.size)


def _session(conversation: Conversation, workspace: str | None) -> NativeSession:
    details = conversation.details
    return NativeSession(
        id=conversation.id,
        title=text(details.get("title")) or text(details.get("instance_id")),
        workspace=workspace,
        git_branch=text(details.get("selected_branch")),
        created=millis(details.get("created_at")) if isinstance(details.get("created_at"), str) else None,
        metadata=present(
            repository=text(details.get("selected_repository")),
            trigger=text(details.get("trigger")),
            agent=text(mapping(conversation.state.get("agent")).get("kind")),
            model=text(details.get("llm_model")),
            cost=details.get("accumulated_cost"),
        ),
    )


def _config(state: dict[str, Any]) -> dict[str, Any] | None:
    """The model's settings, chosen by name: keys lie beside them."""
    model = mapping(mapping(state.get("agent")).get("llm"))
    fields = present(**{name: model.get(name) for name in SETTINGS})
    policy = text(mapping(state.get("confirmation_policy")).get("kind"))
    return present(model=fields, confirmation=policy, iterations=state.get("max_iterations"))
