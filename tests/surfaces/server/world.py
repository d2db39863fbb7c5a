"""A ledger that has something of every kind that routes name: the owner's, that of people who take part, and private.

It is written once for a process; every test that changes something opens a copy.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import weft
from tests.surfaces.server.site import Site
from weft.ledger.api import Ledger
from weft.programs import Programs

MODEL = {"modelId": "m-1", "provider": "gateway", "temperature": 0.5}
CHANGING = ["session:create", "configure", "approve", "assign"]
PEOPLE = {"ann": CHANGING, "bob": [], "carl": [], "eve": CHANGING}
"""`ann` owns a session and a private agent; `bob` takes part in a room of hers, `carl` did; `eve` is a stranger to it.
Both make things of their own, and may not read those of others."""
KNOWN_NAMES: dict[str, tuple[str, ...]] = {
    "session": ("main", "side", "talk", "spare one", "spare/two", "archived", "gone", "main~1", "unbegun", "at rest"),
    "provider": ("gateway", "unused"),
    "model": ("balanced", "other"),
    "agent": ("researcher", "private agent"),
    "human": tuple(PEOPLE),
    "task": ("first", "second"),
    "toolset": ("tools",),
    "room": ("own room", "old room"),
    "participant": ("researcher", "bob"),
    "code": ("tool", "draft tool"),
    "information": ("note", "draft note", "valid note", "schema"),
    "trigger": ("weekly", "paused"),
}
"""By kind of what a parameter names, names that are there."""


def tell_public(ledger: Ledger) -> None:
    """Programs of every kind that everybody may look at, and people."""
    programs = Programs(ledger)
    for name, permissions in PEOPLE.items():
        programs.create("human", name, {"permissions": permissions})
    programs.create("provider", "gateway", {"providerType": "openai", "baseUrl": "https://gateway.example/v1"})
    programs.create("provider", "unused", {"providerType": "anthropic"})
    for name in ("balanced", "other"):
        programs.create("model", name, MODEL)
    programs.change("balanced", {"temperature": 0.1}, reason="too lively")
    programs.create("agent", "researcher", {"systemPrompt": "You research.", "defaultModel": "balanced"})
    programs.create("code", "tool", {"language": "python", "source": "print(1)"})
    programs.create("code", "draft tool", {"language": "python", "source": "print(2)"}, draft=True)
    programs.create("information", "schema", {"infoType": "schema", "content": {"type": "object"}})
    programs.create("information", "note", {"infoType": "fact", "content": {"qubit": "two levels"}})
    draft = {"infoType": "fact", "content": {"qubit": "two"}, "schema": "schema"}
    for name in ("draft note", "valid note"):
        programs.create("information", name, draft, draft=True)
    programs.validate("valid note")
    programs.create("task", "first", {"title": "First"})
    programs.create("task", "second", {"title": "Second", "dependencies": ["first"]})
    for name in ("weekly", "paused"):
        programs.create("trigger", name, {"on": {"cron": {"expression": "0 7 * * 1"}}, "message": "look"})
    programs.step_trigger("paused", "pause", reason="later")
    programs.add_tags("balanced", "trusted", "cheap")
    programs.create("toolset", "tools", {"tools": {"allow": ["read"]}})
    ledger.rooms.create("common room")  # with the first room comes the agent that sorts messages


def tell_private(ledger: Ledger) -> None:
    """Sessions of the owner and of ann, a private agent and a room of hers."""
    programs = Programs(ledger)
    for name in ("main", "side", "spare one", "spare/two", "archived", "gone"):
        for query in ("what is a qubit?", "and two of them?"):
            ledger.record_turn(session=name, query=query, response=f"about {name}: two levels")
    place = "/home/owner/notes.txt"
    call = {"id": "c1", "name": "edit", "arguments": {"file_path": place, "content": "one\ntwo\n"}, "result": "ok"}
    answer = {"role": "assistant", "content": "noted", "files": [{"kind": "written", "path": place}]}
    ledger.record_turn(session="side", query="note that", response=answer, tool_calls=[call])
    programs.create_session("talk", model="balanced", owner="researcher")
    ledger.record_turn(session="talk", query="begin", response="begun")
    programs.create_session("unbegun", model="other")
    programs.create_session("at rest", model="other")
    ledger.record_turn(session="at rest", query="begin", response="begun")
    programs.step_session("at rest", "pause")
    ledger.fork("main~1", label="forked")
    ledger.move_head("side", new=ledger.resolve("side~1"), reason="back")
    ledger.labels.add_alias("also main", "main")
    ledger.labels.add_alias("also spare", "spare one")
    ledger.labels.archive("archived")
    ledger.labels.delete("gone")
    anns = ledger.acting_as("ann")
    anns.record_turn(session="ann's own", query="a private question", response="a private answer")
    Programs(anns).create("agent", "private agent", {"systemPrompt": "Quiet.", "visibility": "private"})
    room = anns.rooms.create("a room of ann", people=["bob", "carl"])
    anns.rooms.post(room.id, "said among us")
    anns.rooms.remove(room.id, "carl")
    anns.rooms.post(room.id, "said afterwards")
    programs.add_tags("main", "trusted")
    programs.share_agent("private agent", "carl")
    own = ledger.rooms.create("own room", agents=["researcher"], people=["bob"])
    ledger.rooms.post(own.id, "said at home")
    ledger.rooms.archive(ledger.rooms.create("old room").id)


@cache
def _written(*, is_whole: bool) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="weft-world-"))
    with weft.open(folder / "world.db", variable=None) as ledger:
        tell_public(ledger)
        if is_whole:
            tell_private(ledger)
    return folder


@contextmanager
def open_world(folder: Path, *, is_whole: bool = True) -> Iterator[Site]:
    """A copy of it, served; without `is_whole` what everybody may look at, alone."""
    shutil.copytree(_written(is_whole=is_whole), folder, dirs_exist_ok=True)
    with weft.open(folder / "world.db", variable=None) as ledger:
        site = Site(ledger)
        try:
            yield site
        finally:
            site.close()


def known_names(kinds: tuple[str, ...]) -> tuple[str, ...]:
    """Names of these kinds; of all programs, where there are none."""
    return tuple(name for kind, names in KNOWN_NAMES.items() if kind in kinds or not kinds for name in names)


EXAMPLES: dict[str, list[dict[str, Any]]] = {
    "agent_assign": [{"name": "researcher", "task": "first"}],
    "agent_create": [{"name": "new"}],
    "agent_share": [{"name": "private agent", "principals": ["bob"]}],
    "agent_unshare": [{"name": "private agent", "principals": ["carl"]}],
    "agent_visibility": [{"name": "researcher", "visibility": "private"}],
    "approval_show": [{"id": "01M7V7CCQ0HX4VXG5TEKS1HFX2"}],
    "approve": [{"id": "01M7V7CCQ0HX4VXG5TEKS1HFX2"}],
    "human_create": [{"name": "new"}],
    "human_presence": [{"name": "bob", "presence": "away"}],
    "reject": [{"id": "01M7V7CCQ0HX4VXG5TEKS1HFX2"}],
    "room_decline": [{"room": "own room", "person": "carl"}],
    "room_invite": [{"room": "own room", "people": ["eve"]}],
    "room_remove": [{"room": "own room", "who": "researcher"}],
    "room_restore": [{"room": "old room"}],
    "room_title": [{"room": "own room", "title": "another title"}],
    "task_create": [{"title": "Third"}],
    "toolset_create": [{"name": "new", "allow": ["shell"]}],
    "toolset_delete": [{"name": "tools"}],
    "toolset_edit": [{"name": "tools", "allow": ["shell"]}],
    "toolset_show": [{"name": "tools"}],
    "blame": [{"path": "notes.txt", "recorded": True}],
    "files": [{"path": "notes.txt"}],
    "alias": [{"session": "main", "alias": "second name"}],
    "cherry_pick": [{"turn": ["side"], "onto": "main"}],
    "fork": [{"rev": "main~1", "label": "branch"}],
    "info_activate": [{"name": "valid note"}],
    "merge": [{"branch": "forked", "into": "main", "text": "what it found"}],
    "model_create": [{"name": "new", "backend": "m-2", "provider": "gateway"}],
    "move": [{"session": "main", "rev": "main~1"}],
    "nodes": [{"tags": ["trusted"]}],
    "program_configure": [{"name": "balanced", "fields": {"temperature": 0.2}}],
    "program_publish": [{"name": "draft tool"}],
    "program_revert": [{"name": "balanced", "version": 1}],
    "provider_create": [{"name": "new", "kind": "openai"}],
    "rename": [{"label": "new label"}],
    "session_complete": [{"session": "talk"}],
    "session_pause": [{"session": "talk"}],
    "session_promote": [{"session": "main", "key": "key of ann"}],
    "session_resume": [{"session": "at rest"}],
    "session_unify": [{"session": "side", "into": "main"}],
    "summarize": [{"branch": "forked", "into": "main", "text": "what it found"}],
    "tag_add": [{"node": "main", "tags": ["new"]}],
    "tag_remove": [{"node": "main", "tags": ["trusted"]}],
    "trigger_configure": [{"name": "weekly", "message": "look again"}],
    "trigger_create": [{"name": "new", "every": "2h", "message": "look"}],
    "trigger_resume": [{"name": "paused"}],
}
"""By verb, requests that succeed; of others, the one that names what is there for each parameter that is required."""
