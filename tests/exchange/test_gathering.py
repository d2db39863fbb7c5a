"""Sessions that lie in several files: whichever of them changes, a watch and the next import see it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.exchange.fixtures.claude_code.lines import SESSION, Lines
from tests.exchange.fixtures.factory_droid.sessions import dialogue as droid
from tests.exchange.fixtures.factory_droid.sessions import write as write_droid
from tests.exchange.fixtures.kiro.sessions import beside as kiro_beside
from tests.exchange.fixtures.kiro.sessions import log as kiro_log
from tests.exchange.fixtures.kiro.sessions import write_log as write_kiro
from tests.exchange.fixtures.opencode.sessions import dialogue, info
from tests.exchange.fixtures.opencode.sessions import write_folder as write_opencode
from tests.exchange.fixtures.openhands.conversations import STATE, v0, v1, write_v0_folder, write_v1_folder
from tests.exchange.live_files import standing
from tests.exchange.timeline import Stage
from weft import Ledger
from weft.exchange.importers.port import load_importers
from weft.exchange.importing.run import ImportRun
from weft.kernel.clock import SystemClock

OLD = 1_500_000_000


class Home:
    """Files of one origin, written long ago unless they are written on a stage."""

    def __init__(self, ledger: Ledger, folder: Path, origin: str) -> None:
        self.folder, self.ledger = folder, ledger
        self.stage = Stage(ledger, folder, load_importers(origin))

    def age(self) -> None:
        for path in self.folder.rglob("*.json*"):
            os.utime(path, (OLD, OLD))

    def follow(self, *actions: Any, seconds: float = 400) -> None:
        now = self.stage.clock.monotonic()
        self.stage.follow(*((now + at, act) for at, act in actions), end=now + seconds)

    def write(self, path: Path, text: str, at: float, *, told: bool = True) -> tuple[float, Any]:
        """A file that is written while it is watched."""

        def act() -> list[Path]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            now = self.stage.clock.now_ms() * 1_000_000
            os.utime(path, ns=(now, now))
            return [path] if told else []

        return at, act

    def is_as_imported_cold(self, path: Path) -> bool:
        with weft.open(path) as cold:
            cold.imports.share_with(self.ledger)
            ImportRun(cold, self.stage.importers, self.stage.clock).run([self.folder])
            assert standing(self.ledger) == standing(cold)
        assert self.ledger.imports.provisional() == []
        return list(self.ledger.verify()) == []


def words(ledger: Ledger) -> list[str]:
    (session,) = ledger.sessions(every=True)
    return [message.text for message in ledger.thread(session.label).messages]


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("version", [0, 1])
def test_openhands_events_that_come_are_read(
    ledger: Ledger, sources: Path, tmp_path: Path, version: int, told: bool
) -> None:
    home = Home(ledger, sources, "openhands")
    totals = "ConversationStateUpdateEvent"  # which response they are of is known only when the next one has come
    events = [event for event in v1() if event["kind"] != totals] if version else v0()
    early, late = events[:6], events[6:]
    state = {**STATE, "execution_status": "running"}
    main = write_v1_folder(sources, early, state) if version else write_v0_folder(sources, early)
    home.age()
    folder = main.parent / "events" if version else main.parent
    names = [f"event-{6 + n:05}-{each['id']}.json" if version else f"{each['id']}.json" for n, each in enumerate(late)]
    writes = [
        home.write(folder / name, json.dumps(event), 5 + n, told=told)
        for n, (name, event) in enumerate(zip(names, late, strict=True))
    ]
    home.follow(*writes, seconds=500)
    assert main.stat().st_mtime == OLD
    assert home.is_as_imported_cold(tmp_path / "cold.db")
    assert len(list(ledger.log())) > 1


@pytest.mark.parametrize("told", [True, False])
def test_opencode_messages_and_parts_that_come_are_read(
    ledger: Ledger, sources: Path, tmp_path: Path, told: bool
) -> None:
    home = Home(ledger, sources, "opencode")
    whole = write_opencode(tmp_path / "whole", dialogue())
    main = write_opencode(sources, dialogue()[:1])
    home.age()
    files = sorted(path for path in whole.parents[2].rglob("*.json") if path.parent.parent.name in ("message", "part"))
    writes = [
        home.write(sources / path.relative_to(tmp_path / "whole"), path.read_text(), 5 + n, told=told)
        for n, path in enumerate(files)
    ]
    home.follow(*writes, seconds=500)
    assert main.stat().st_mtime == OLD
    assert home.is_as_imported_cold(tmp_path / "cold.db")
    assert len(words(ledger)) > 2


def test_the_next_import_sees_a_message_beside_a_session_file_that_stayed_as_it_was(
    ledger: Ledger, sources: Path
) -> None:
    home = Home(ledger, sources, "opencode")
    write_opencode(sources, dialogue()[:1])
    home.age()
    run = ImportRun(ledger, home.stage.importers, home.stage.clock)
    run.run([sources])
    before = len(words(ledger))
    main = write_opencode(sources, dialogue(), info())
    os.utime(main, (OLD, OLD))
    ImportRun(ledger, home.stage.importers, home.stage.clock).run([sources])
    assert len(words(ledger)) > before
    again = ImportRun(ledger, home.stage.importers, home.stage.clock).run([sources])
    assert again.origins["opencode"].unchanged == again.origins["opencode"].files == 1


def test_the_card_of_a_claude_code_subagent_is_read_when_it_comes(
    ledger: Ledger, sources: Path, tmp_path: Path
) -> None:
    home = Home(ledger, sources, "claude-code")
    folder = sources / "project" / SESSION / "subagents"
    lines = Lines().user("p1", "look there", isSidechain=True, agentId="ag").answer("a1", "seen", isSidechain=True)
    folder.mkdir(parents=True)
    (folder / "agent-ag.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines.lines))
    home.age()
    card = json.dumps({"agentType": "explorer", "description": "to look around"})
    home.follow(home.write(folder / "agent-ag.meta.json", card, 5), seconds=30)
    (session,) = ledger.sessions(every=True)
    assert (session.agent, session.task_description) == ("explorer", "to look around")
    assert home.is_as_imported_cold(tmp_path / "cold.db")


def test_a_fragment_that_is_rewritten_replaces_nothing_that_another_file_of_its_session_tells(
    ledger: Ledger, sources: Path
) -> None:
    use = {"type": "tool_use", "id": "c1", "name": "Read", "input": {"file_path": "a"}}
    whole = Lines().user("u1", "look").answer("a1", use).result("t1", "c1").answer("a2", "all of it").end("e1")
    (sources / "whole.jsonl").write_bytes(whole.bytes())
    importing = load_importers("claude-code")
    ImportRun(ledger, importing, SystemClock()).run([sources])
    first = Lines().user("x1", "before").answer("x2", "said").end("x3")
    then = Lines().result("t1", "c1", parent="a1").answer("a2", "a part").end("e1")
    for age, part in enumerate([first, then]):
        path = sources / "part.jsonl"
        path.write_bytes(part.bytes())
        os.utime(path, (OLD + age, OLD + age))
        ImportRun(ledger, importing, SystemClock()).run([sources])
    assert {turn.native_id for turn in ledger.log()} == {"u1", "x1", "t1"}
    assert list(ledger.verify()) == []


@pytest.mark.parametrize("is_watched", [True, False])
@pytest.mark.parametrize("origin", ["factory-droid", "kiro"])
def test_what_stands_beside_a_session_is_read_again_whenever_it_changes(
    ledger: Ledger, sources: Path, tmp_path: Path, origin: str, is_watched: bool
) -> None:
    """A droid's settings, and what Kiro tells of a session; several times, for it must not be a matter of luck."""
    home = Home(ledger, sources, origin)
    is_droid = origin == "factory-droid"
    main = write_droid(sources, droid(), {"round": 0}) if is_droid else write_kiro(sources, kiro_log(), kiro_beside())
    part = main.with_name(f"{main.stem}.settings.json") if is_droid else main.with_suffix(".json")
    home.age()
    ImportRun(ledger, home.stage.importers, home.stage.clock).run([sources])
    for round in range(1, 6):
        stamp = f"2026-05-28T20:3{round}:00Z"
        told = {"round": round} if is_droid else kiro_beside(updated_at=stamp, title=f"Round {round}")
        write = home.write(part, json.dumps(told), 5)
        if is_watched:
            home.follow(write, seconds=30)
        else:
            home.stage.clock.tick(5_000)
            write[1]()
            home.stage.clock.tick(5_000)
            ImportRun(ledger, home.stage.importers, home.stage.clock).run([sources])
        (session,) = ledger.sessions(every=True)
        found = session.metadata["settings"]["round"] if is_droid else session.title
        assert found == (round if is_droid else f"Round {round}")
    assert home.is_as_imported_cold(tmp_path / "cold.db")
    home.stage.clock.tick(5_000)
    again = ImportRun(ledger, home.stage.importers, home.stage.clock).run([sources])
    assert again.origins[origin].unchanged == again.origins[origin].files == 1
