"""ATIF: a trajectory is one JSON document, or a line of many."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import orjson

from weft.exchange.importers.atif.names import before, embedded, embedded_id, is_trajectory, referred, trajectory_id
from weft.exchange.importers.atif.turns import SOURCES, Turns
from weft.exchange.importers.documents import read_document, report_damage
from weft.exchange.importers.port import NativeCall, NativeLink, NativeSession, Place, Report, Source, Transcript
from weft.exchange.importers.records.jsonl import BOM, first_objects, read_whole, records
from weft.exchange.importers.records.values import JsonObject, mapping, present, sequence, text
from weft.kernel.enums import AgentRole, LinkReason

BEGINS = re.compile(rb'\s*\{\s*"[a-z_]+"\s*:')
SIGN = re.compile(rb'"schema_version"\s*:\s*"ATIF-v?\d')
KNOWN_SECTIONS = frozenset(
    {
        "schema_version", "session_id", "trajectory_id", "agent", "notes", "final_metrics", "continued_trajectory_ref",
        "extra",
    }
)  # fmt: skip
LISTS = frozenset({"steps", "subagent_trajectories"})
DEEPEST = 16


class Atif:
    origin = "atif"
    mapping = 1

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        """Harbor writes them into the folders of its jobs: name those."""
        return []

    def recognises(self, source: Source) -> bool:
        head = source.head.removeprefix(BOM)
        if source.size <= len(source.head):
            try:
                return is_trajectory(mapping(orjson.loads(head)))
            except orjson.JSONDecodeError:
                pass
        if any(is_trajectory(value) for value in first_objects(head, 4)):
            return True
        return BEGINS.match(head) is not None and SIGN.search(head) is not None

    def is_part(self, source: Source) -> bool:
        return False

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        if source.path.suffix in (".jsonl", ".ndjson"):
            for record in records(source, report):
                if is_trajectory(record.value):
                    report.mapped["line"] += 1
                    yield from _Reading(record.value, None, record.end, report).transcripts()
                else:
                    report.kept["line"] += 1
                    report.unknown["line"] += 1
            return
        document = read_document(read_whole(source))
        report_damage(document, report)
        value = mapping(document.value)
        if value:
            yield from _Reading(value, source.path, source.size, report).transcripts()
        elif document.damage is None:
            report.found += 1
            report.damaged += 1
            report.problem(None, f"a JSON {type(document.value).__name__}, not a trajectory")


class _Reading:
    """One trajectory with those of its subagents."""

    def __init__(self, value: JsonObject, path: Path | None, size: int, report: Report) -> None:
        self._value, self._path, self._size, self._report = value, path, size, report

    def transcripts(self) -> Iterator[Transcript]:
        id = trajectory_id(self._value)
        earlier = None if self._path is None else before(self._path)
        link = None
        if earlier is not None and earlier != id:
            link = NativeLink(to=earlier, why=LinkReason.CONTINUATION, session=earlier)
        yield from self._trajectory(self._value, id, None, None, 0, link)

    def _trajectory(
        self,
        value: JsonObject,
        id: str,
        parent: str | None,
        call: str | None,
        depth: int,
        link: NativeLink | None = None,
    ) -> Iterator[Transcript]:
        self._sections(value)
        inside = embedded(value)
        folder = None if self._path is None else self._path.parent
        agent = mapping(value.get("agent"))
        turns = Turns(agent, lambda ref: referred(ref, id, inside, folder))
        self._steps(value, turns)
        role = AgentRole.WORKER if parent is not None else AgentRole.UNIFIED
        made = turns.finished(id, self._size, mapping(value.get("final_metrics")), role)
        if made:
            made[0].link = link
        yield Transcript(session=_session(value, id, parent, call), turns=made)
        calls = (item for turn in made for item in turn.items if isinstance(item, NativeCall))
        spawns = {call.spawned: call.id for call in calls}
        self._embedded(value, inside)
        for name, each in inside.items() if depth < DEEPEST else ():
            child = embedded_id(id, name)
            yield from self._trajectory(each, child, id, spawns.get(child), depth + 1)

    def _sections(self, value: JsonObject) -> None:
        for name in value:
            if name in LISTS:
                continue
            is_known = name in KNOWN_SECTIONS
            self._report.found += 1
            (self._report.mapped if is_known else self._report.kept)[name] += 1
            if not is_known:
                self._report.unknown[name] += 1

    def _steps(self, value: JsonObject, turns: Turns) -> None:
        for number, step in enumerate(sequence(value.get("steps")), 1):
            self._report.found += 1
            if not isinstance(step, dict):
                self._report.damaged += 1
                self._report.problem(None, f"step {number} is a JSON {type(step).__name__}, not an object")
                continue
            source = text(step.get("source")) or "none"
            if source not in SOURCES:
                self._report.kept[f"step.{source}"] += 1
                self._report.unknown[f"step.{source}"] += 1
                continue
            self._report.mapped[f"step.{source}"] += 1
            turns.take(number, step)

    def _embedded(self, value: JsonObject, inside: dict[str, JsonObject]) -> None:
        """Those that cannot be told apart are kept, and counted as such."""
        lost = len(sequence(value.get("subagent_trajectories"))) - len(inside)
        if lost > 0:
            self._report.found += lost
            self._report.kept["subagent without id"] += lost


def _session(value: JsonObject, id: str, parent: str | None, call: str | None) -> NativeSession:
    agent = mapping(value.get("agent"))
    extra = mapping(agent.get("extra"))
    folders, branches = sequence(extra.get("cwds")), sequence(extra.get("git_branches"))
    return NativeSession(
        id=id,
        workspace=text(folders[0]) if folders else text(extra.get("cwd")),
        git_branch=text(branches[0]) if branches else None,
        version=text(agent.get("version")),
        parent=parent,
        spawn_call=call,
        agent=text(agent.get("name")),
        metadata=present(
            schema=text(value.get("schema_version")),
            run=text(value.get("session_id")),
            notes=text(value.get("notes")),
            final_metrics=value.get("final_metrics"),
            continued_in=text(value.get("continued_trajectory_ref")),
            extra=value.get("extra"),
        ),
    )
