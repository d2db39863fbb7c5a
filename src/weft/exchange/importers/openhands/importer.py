"""OpenHands: four containers, two forms of events, one mapping."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from weft.exchange.importers.openhands.kinds import Standing, classify, is_v1
from weft.exchange.importers.openhands.layout import LINES, Container, container, is_part, parts_of, whole_of
from weft.exchange.importers.openhands.making import Making, Span
from weft.exchange.importers.openhands.reading import Conversation, read_folder, read_lines, read_list
from weft.exchange.importers.openhands.stats import Stats
from weft.exchange.importers.openhands.v0 import V0
from weft.exchange.importers.openhands.v1 import V1
from weft.exchange.importers.port import Place, Report, Source
from weft.exchange.importers.transcript import NativeSession, NativeTurn, Transcript
from weft.exchange.importers.values import mapping, millis, present, text

READERS = {Container.LIST: read_list, Container.LINES: read_lines, Container.FOLDER: read_folder}
SETTINGS = ("model", "temperature", "top_p", "reasoning_effort", "max_output_tokens", "usage_id")


class OpenHands:
    origin = "openhands"
    mapping = 1

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        told = environment.get("OPENHANDS_CONVERSATIONS_DIR")
        store = environment.get("FILE_STORE_PATH")
        root = home / store[2:] if store and store.startswith("~/") else Path(store) if store else home / ".openhands"
        return [
            Place(Path(told) if told else home / ".openhands" / "conversations", "OpenHands"),
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


def _transcript(found: Conversation, source: Source, report: Report) -> Transcript:
    turns = _turns(found, source, report)
    workspace = text(mapping(found.state.get("workspace")).get("working_dir"))
    for turn in turns:
        turn.workspace = turn.workspace or workspace
        turn.config = turn.config or _config(found.state)
    return Transcript(session=_session(found, workspace), turns=turns, raw=found.raw)


def _turns(found: Conversation, source: Source, report: Report) -> list[NativeTurn]:
    newer = any(is_v1(event.value) for event in found.events) or bool(found.state)
    making = Making("" if newer else f"{found.id}/")
    stats = Stats(found.state.get("stats"))
    forms: dict[bool, V0 | V1] = {True: V1(making, stats), False: V0(making)}
    for number, event in enumerate(found.events):
        kind, standing = classify(event.value)
        (report.mapped if standing is Standing.MAPPED else report.kept)[kind] += 1
        if standing is Standing.UNKNOWN:
            report.unknown[kind] += 1
        elif standing is Standing.MAPPED:
            id = event.value.get("id")
            named = text(id) or (str(id) if isinstance(id, int) else f"#{number}")
            forms[is_v1(event.value)].take(event.value, Span(named, event.offset, event.end))
    if (left := stats.left()) is not None:
        making.spend(left)
    making.state(text(found.state.get("execution_status")) or text(found.state.get("agent_status")))
    if (failed := text(found.details.get("error"))) is not None and making.drafts:
        making.drafts[-1].error = making.drafts[-1].error or failed
    return making.turns(source.size)


def _session(found: Conversation, workspace: str | None) -> NativeSession:
    details = found.details
    return NativeSession(
        id=found.id,
        title=text(details.get("title")) or text(details.get("instance_id")),
        workspace=workspace,
        git_branch=text(details.get("selected_branch")),
        created=millis(details.get("created_at")) if isinstance(details.get("created_at"), str) else None,
        metadata=present(
            repository=text(details.get("selected_repository")),
            trigger=text(details.get("trigger")),
            agent=text(mapping(found.state.get("agent")).get("kind")),
            model=text(details.get("llm_model")),
            cost=details.get("accumulated_cost"),
        ),
    )


def _config(state: dict[str, Any]) -> dict[str, Any] | None:
    """The model's settings, chosen by name: keys lie beside them."""
    model = mapping(mapping(state.get("agent")).get("llm"))
    told = present(**{name: model.get(name) for name in SETTINGS})
    policy = text(mapping(state.get("confirmation_policy")).get("kind"))
    return present(model=told, confirmation=policy, iterations=state.get("max_iterations"))
