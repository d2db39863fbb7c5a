"""SWE-agent and mini-swe-agent: one JSON document a run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from weft.exchange.importers.documents import read_document, report_damage
from weft.exchange.importers.port import NativeSession, Place, Report, Source, Transcript
from weft.exchange.importers.records.jsonl import BOM, read_whole
from weft.exchange.importers.records.values import fingerprint, mapping, present, text
from weft.exchange.importers.swe_agent.mini import mini_run, read_mini
from weft.exchange.importers.swe_agent.trajectory import beginning, config_of, read_runs

FORMAT = re.compile(rb'"trajectory_format"\s*:\s*"mini-swe-agent')
MINI = re.compile(rb'\s*\{\s*"(info|messages)"')
RUN = re.compile(rb'\s*\{\s*"(environment|trajectory|history|info|replay_config|attempts)"\s*:')
STEPS = re.compile(rb'"(trajectory|attempts|history)"\s*:\s*\[\s*(\{\s*"|\])')
STEP_SIGNS = (b'"observation"', b'"action"', b'"thought"', b'"is_demo"', b'"history"')
ENDINGS = (".traj.json", ".traj", ".json")


class SweAgent:
    origin = "swe-agent"
    mapping = 1

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        """mini-swe-agent's last run; batches lie wherever their user wanted them."""
        config_folder = environment.get("MSWEA_GLOBAL_CONFIG_DIR")
        roots = [Path(config_folder)] if config_folder else [home / ".config", home / "Library/Application Support"]
        found = [Place(root if config_folder else root / "mini-swe-agent", "mini-swe-agent") for root in roots]
        if folder := environment.get("SWE_AGENT_TRAJECTORY_DIR"):
            found.append(Place(Path(folder), "SWE-agent"))
        return found

    def recognises(self, source: Source) -> bool:
        head = source.head.removeprefix(BOM)
        if source.size <= len(source.head) and (document := _whole(head)) is not None:
            return is_mini(document) or is_run(document)
        return _begins_as_mini(source, head) or _begins_as_run(source, head)

    def is_part(self, source: Source) -> bool:
        return False

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        document = read_document(read_whole(source))
        report_damage(document, report)
        value = mapping(document.value)
        if value and "messages" in value:
            yield from _mini(value, source, report)
        elif value:
            id = named(source.path, beginning(value))
            yield Transcript(session=_session(id, source, value), turns=read_runs(value, id, source.size, report))
        elif document.damage is None:
            report.found += 1
            report.damaged += 1
            report.problem(None, f"a JSON {type(document.value).__name__}, not a run")


def _whole(head: bytes) -> dict[str, Any] | None:
    try:
        value = orjson.loads(head)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def is_mini(document: dict[str, Any]) -> bool:
    named = text(document.get("trajectory_format")) or ""
    return named.startswith("mini-swe-agent") and isinstance(document.get("messages"), list)


def is_run(document: dict[str, Any]) -> bool:
    steps = document.get("trajectory")
    if isinstance(document.get("attempts"), list):
        return "info" in document
    return isinstance(steps, list) and (isinstance(document.get("history"), list) or "environment" in document)


def _begins_as_mini(source: Source, head: bytes) -> bool:
    if MINI.match(head) is None:
        return False
    if FORMAT.search(head) or b'"mini_version"' in head:
        return True
    with source.path.open("rb") as file:
        file.seek(max(source.size - 512, 0))
        return FORMAT.search(file.read()) is not None


def _begins_as_run(source: Source, head: bytes) -> bool:
    if RUN.match(head) is None:
        return False
    is_named = source.path.suffix == ".traj"
    return STEPS.search(head) is not None and (is_named or sum(sign in head for sign in STEP_SIGNS) >= 2)


def named(path: Path, beginning: Any) -> str:
    """A run has no id: it is known by where it lies and by how it begins, which stay as they are while it grows."""
    return f"{place_of(path)}@{fingerprint(beginning)}"


def place_of(path: Path) -> str:
    """The folder of its batch, and the task."""
    name = path.name
    stem = next((name.removesuffix(ending) for ending in ENDINGS if name.endswith(ending)), name)
    folder = path.parent.parent if path.parent.name == stem else path.parent
    return f"{folder.name}/{stem}" if folder.name else stem


def _session(id: str, source: Source, document: dict[str, Any]) -> NativeSession:
    config, info = config_of(document.get("replay_config")), mapping(document.get("info"))
    return NativeSession(
        id=id,
        title=text(mapping(config.get("problem_statement")).get("id")) or place_of(source.path).rpartition("/")[2],
        version=text(info.get("swe_agent_version")),
        metadata=present(environment=text(document.get("environment"))),
    )


def _mini(document: dict[str, Any], source: Source, report: Report) -> Iterator[Transcript]:
    run = mini_run(document, report)
    instance = text(document.get("instance_id"))
    id = run.id or named(source.path, run.beginning)
    turns = list(read_mini(run, id, source.size, report))
    session = NativeSession(
        id=id,
        title=instance,
        version=text(run.info.get("mini_version")),
        created=turns[0].started if turns else None,
        metadata=present(format=text(document.get("trajectory_format"))),
    )
    yield Transcript(session=session, turns=turns)
