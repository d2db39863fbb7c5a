"""How far an import in the background is, for people and as JSON."""

from __future__ import annotations

from weft.surfaces.cli.call import Call
from weft.surfaces.cli.import_job import ImportJob, Status
from weft.surfaces.cli.import_places import time_text
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.shapes import to_json
from weft.surfaces.cli.sizes import size_text
from weft.surfaces.cli.turn_lines import counted
from weft.surfaces.cli.zones import local_time

STYLES = {"running": "good", "watching": "good", "finished": "good", "failed": "bad", "killed": "bad"}
NOTHING = "no import was started in the background; `weft import --background` starts one"


def show_begun(call: Call, status: Status) -> None:
    call.answer(status, ["import begun in the background, process ", Span(str(status.pid), "heading")])
    call.note(f"`weft import --status` tells how far it is, `weft import --stop` ends it; its log is {status.log}")


def show_status(call: Call, status: Status | None) -> int:
    """Exit code 1 says that it ended badly."""
    if status is None:
        if call.json:
            call.document({"state": "none"})
        call.note(NOTHING)
        return 0
    if call.json:
        call.document(to_json(status))
    else:
        call.screen.show(Span(status.state, STYLES.get(status.state, "")), f": {_told(status)}")
        if status.error:
            call.screen.show(Span(status.error, "bad"))
    if status.state in ("failed", "killed"):
        call.note(f"start it again with `weft import --background`: it goes on from where it was; log: {status.log}")
    return 1 if status.state in ("failed", "killed") else 0


def show_stopped(call: Call, status: Status | None) -> int:
    if status is None:
        if call.json:
            call.document({"state": "none"})
        call.note("no import is going on in the background")
        return 0
    if call.json:
        call.document(to_json(status))
    else:
        call.screen.show(Span(status.state), f": {_told(status)}")
    return 0


def _told(status: Status) -> str:
    parts = [how_far(status)]
    if status.sessions or status.turns:
        parts.append(f"{counted(status.sessions, 'session')}, {counted(status.turns, 'turn')}")
    if status.problems:
        parts.append(f"{counted(status.problems, 'problem')}, see {status.log}")
    parts.append(f"begun {local_time(status.started_at)}")
    if not status.is_alive:
        parts.append(f"ended {local_time(status.updated_at)}")
    return "; ".join(parts)


def how_far(status: Status) -> str:
    if status.state == "watching":
        return f"{counted(status.files, 'file')} followed"
    if not status.of_files:
        return "looking for files" if status.is_alive else "nothing new"
    done = f"{status.files:,} of {counted(status.of_files, 'file')}"
    size = f"{size_text(status.bytes)} of {size_text(status.of_bytes)}"
    left = "" if status.seconds_left is None else f", {time_text(status.seconds_left)} left"
    return f"{done}, {size}{left}"


def note_import(call: Call, ledger: str) -> None:
    """One line, where an import of this ledger is going on: what is listed is not all there will be."""
    if call.quiet or call.json:
        return
    status = ImportJob(ledger).status()
    if status is not None and status.state == "running":
        call.note(f"an import is going on: {how_far(status)}; `weft import --status` tells more")
