"""Facts from elsewhere at their edges: what is refused, what is mended, and that views always equal a rebuild."""

import base64
import json
import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.ledger.conftest import NOON, OpenLedger
from tests.ledger.histories import exported, grow, import_into, problems, texts
from weft.kernel import contents as kernel_contents
from weft.kernel.clock import FixedClock, UlidSource, offset
from weft.kernel.contents import content_ref
from weft.kernel.errors import InvalidFact
from weft.kernel.events import UnknownEvent
from weft.ledger.api.ledger import Ledger
from weft.ledger.upkeep import facts_file

ULIDS = UlidSource(lambda: NOON, os.urandom)


class TickingClock(FixedClock):
    """Every look at it takes a millisecond."""

    def now_ms(self) -> int:
        self.sleep(0.001)
        return super().now_ms()


class Chain:
    """Events of one stream, each naming the one before it, as JSON lines."""

    def __init__(self, stream: str, name: str | None = None, **envelope: Any) -> None:
        self.name = name or ULIDS.mint()
        self.stream = f"{stream}:{self.name}"
        self.prev: str | None = None
        self.envelope = {"v": 1, "actor": "local", "ts": "2026-11-15T00:00:00.000Z", **envelope}
        self.lines = b""

    def add(self, kind: str, **fields: Any) -> "Chain":
        event = {**self.envelope, "kind": kind, "stream": self.stream, "prev": self.prev, **fields}
        event = {name: value for name, value in event.items() if value is not ...}
        self.prev = sha256(kernel_contents.dumps(event)).hexdigest()
        self.lines += kernel_contents.dumps({"event_id": self.prev, **event}) + b"\n"
        return self

    def run(self, turn_type: str = "normal", **fields: Any) -> "Chain":
        return self.add("run_started", turn_type=turn_type, role="unified", **fields)

    def message(self, id: str, text: str) -> "Chain":
        said = {"id": id, "role": "user", "parts": [{"type": "text", "text": text}]}
        return self.add("history_append", list="main", message=said)


def content(data: bytes) -> tuple[bytes, str]:
    """A content as a line, and its reference."""
    salt = os.urandom(16)
    ref = content_ref(salt, data).hex()
    line = {"ref": ref, "salt": salt.hex(), "base64": base64.b64encode(data).decode()}
    return json.dumps(line).encode() + b"\n", ref


MISSING = "0" * 64


def split(facts: bytes) -> tuple[list[bytes], list[bytes]]:
    """Events and contents."""
    lines = facts.splitlines(keepends=True)
    return [line for line in lines if b"event_id" in line], [line for line in lines if b"event_id" not in line]


@pytest.fixture
def empty(open_ledger: OpenLedger, tmp_path: Path) -> Ledger:
    return open_ledger(tmp_path / "other.db")


def refused(ledger: Ledger, facts: bytes, why: str, line: int) -> None:
    before = ledger.upkeep.stats()["events"]
    with pytest.raises(InvalidFact, match=f"^line {line}: .*{why}"):
        import_into(ledger, facts)
    assert ledger.upkeep.stats()["events"] == before
    assert problems(ledger) == []


def test_events_without_a_time_are_dated_as_a_rebuild_dates_them(open_ledger: OpenLedger) -> None:
    ledger = open_ledger(clock=TickingClock(NOON))
    run = Chain("run", ts=...).run().add("run_finished", exit="success")
    import_into(ledger, run.lines)
    assert problems(ledger) == []
    assert ledger.upkeep.rebuild() == 0


def test_contents_that_came_late_are_shown_though_that_import_broke_off(
    disk: Ledger, empty: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts_file, "BATCH_LINES", 4)
    (turn,) = grow(disk, "main", "a", persona="ann")
    events, contents = split(exported(disk))
    import_into(empty, b"".join(events))
    with pytest.raises(InvalidFact):
        import_into(empty, b"".join([*contents, *contents[:4], b"{}\n"]))
    assert import_into(empty, exported(disk))[:2] == (0, 0)
    assert texts(empty.messages(turn)) == ["a", "re: a"]
    assert empty.session("main").persona_id == "ann"
    assert problems(empty) == []


def test_views_are_made_anew_only_when_a_missing_content_came(
    disk: Ledger, empty: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(disk, "main", "a")
    events, contents = split(exported(disk))
    import_into(empty, b"".join(events))
    rebuilt: list[int] = []
    rebuild = empty.upkeep._rebuild_views
    monkeypatch.setattr(empty.upkeep, "_rebuild_views", lambda report: rebuilt.append(rebuild(report)))
    import_into(empty, content(b"of no event")[0])
    assert rebuilt == []
    for _ in range(2):
        import_into(empty, contents[0])
        assert len(rebuilt) == 1
    import_into(empty, b"".join(contents))
    import_into(empty, content(b"of no event either")[0])
    assert len(rebuilt) == 2
    assert problems(empty) == []


def test_a_session_made_active_again_elsewhere_comes_in_beside_the_one_that_took_its_label(
    disk: Ledger, empty: Ledger
) -> None:
    grow(disk, "x", "theirs")
    theirs = disk.session("x").id
    disk.labels.delete("x")
    import_into(empty, exported(disk))
    (mine,) = grow(empty, "x", "mine")
    disk.heads.restore(theirs)
    import_into(empty, exported(disk))
    assert empty.session("x").head == mine
    assert empty.session(f"{disk.replica[-6:].lower()}/x").id == theirs
    assert problems(empty) == []


def test_a_second_name_for_an_agent_changes_nothing(ledger: Ledger) -> None:
    names = [content(name) for name in (b"ann", b"bob")]
    agent = Chain("program").add("agent_created", name=names[0][1]).add("agent_created", name=names[1][1])
    elsewhere = Chain("resource").add("agent_created", name=names[1][1])
    import_into(ledger, b"".join(line for line, _ in names) + agent.lines + elsewhere.lines)
    assert ledger.create_session("s", persona=agent.name).persona_id == "ann"
    assert problems(ledger) == []


def compaction(ledger: Ledger) -> tuple[Chain, dict[str, Any]]:
    turn = ledger.record_turn(session="main", query="q", response="r")
    chain = Chain("run").run("compaction", fork={"turn": turn.id, "event": turn.digest})
    return chain, {"summary": MISSING, "summarized_through": turn.id, "compaction_type": "summary", "model": "m"}


def test_a_run_takes_one_compaction_and_only_a_compaction_turn_does(ledger: Ledger) -> None:
    chain, fields = compaction(ledger)
    twice = chain.add("compaction_recorded", **fields).add("compaction_recorded", **fields)
    refused(ledger, twice.lines, "already", 3)
    refused(ledger, Chain("run").run().add("compaction_recorded", **fields).lines, "takes no compaction", 2)


def test_a_compaction_turn_does_not_end_without_its_compaction(ledger: Ledger) -> None:
    chain, _ = compaction(ledger)
    refused(ledger, chain.add("run_finished", exit="success").lines, "without its compaction", 2)


def test_a_session_grows_only_from_its_own_events(ledger: Ledger) -> None:
    ledger.create_session("other")
    made = list(ledger.changes())[-1]
    chain = Chain("session").add("session_created", label=MISSING, persona="local")
    chain.prev = made.id
    refused(ledger, chain.add("session_archived", status="archived").lines, "an event of session:", 2)


def test_a_message_has_its_number_behind_its_turn(ledger: Ledger) -> None:
    run = Chain("run").run()
    run.message(offset(run.name, 2), MISSING)
    refused(ledger, run.lines, "its message 1 is", 2)
    good = Chain("run").run()
    good.message(offset(good.name, 1), MISSING).message(offset(good.name, 2), MISSING)
    assert import_into(ledger, good.lines)[0] == 3


def test_a_message_of_a_later_form_keeps_its_number(ledger: Ledger) -> None:
    line, ref = content(b"hello")
    run = Chain("run").run()
    later = {"id": offset(run.name, 1), "role": "oracle", "parts": [{"type": "hologram", "depth": 3}]}
    run.add("history_append", list="main", message=later).message(offset(run.name, 2), ref)
    import_into(ledger, line + run.add("run_finished", exit="success").lines)
    assert ledger.message(offset(run.name, 2)).text == "hello"
    assert ledger.messages(run.name)[0].turn_id == run.name
    assert sum(isinstance(found.event, UnknownEvent) for found in ledger.changes()) == 1
    assert problems(ledger) == []


@pytest.mark.parametrize("stream", ["nowhere", "run:x", "Run:01ARZ3NDEKTSV4RRFFQ69G5FAV", ":"])
def test_an_unknown_kind_needs_a_stream_that_could_be_one(ledger: Ledger, stream: str) -> None:
    chain = Chain("conversation")
    chain.stream = stream
    refused(ledger, chain.add("moon_landed").lines, "names no stream", 1)


def test_an_unknown_kind_needs_a_time_that_is_one(ledger: Ledger) -> None:
    refused(ledger, Chain("conversation", ts="yesterday").add("moon_landed").lines, "is no time", 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"role": "not a name"}, {"role": 5}, {"turn_type": None}, {"role": "later", "workspace": "/home/ann"},
        {"role": "later", "tools": "read"}, {"role": "later", "session": "main"}, {"reason": ["later"]},
    ],
)  # fmt: skip
def test_a_known_kind_with_values_that_do_not_fit_is_refused(ledger: Ledger, fields: dict[str, Any]) -> None:
    run = Chain("run").add("run_started", **{"turn_type": "normal", "role": "unified", **fields})
    refused(ledger, run.lines, "no value of this field", 1)


def test_a_known_kind_that_lacks_a_field_is_refused(ledger: Ledger) -> None:
    run = Chain("run").run().add("tool_call", tool="t", args=MISSING)
    refused(ledger, run.lines, "is missing", 2)


def test_a_later_member_of_a_closed_set_is_kept_raw(ledger: Ledger) -> None:
    session = Chain("session").add("session_created", label=MISSING, persona="local")
    import_into(ledger, session.add("session_archived", status="lent", until="2027").lines)
    assert [type(found.event) is UnknownEvent for found in ledger.changes()] == [False, True]
    assert ledger.session(session.name).status == "active"
    assert problems(ledger) == []


def test_tokens_are_counted_from_none(ledger: Ledger) -> None:
    run = Chain("run").run().add("run_finished", exit="success", usage={"input_tokens": -5})
    refused(ledger, run.lines, "less than none", 2)
    chain, fields = compaction(ledger)
    refused(ledger, chain.add("compaction_recorded", **fields, tokens_before=-1).lines, "less than none", 2)


def test_a_run_does_not_end_well_with_an_open_call(ledger: Ledger) -> None:
    run = Chain("run").run()
    run.add("tool_call", tool="t", call_id=MISSING, args=MISSING, correlation_id=run.name)
    refused(ledger, run.add("run_finished", exit="success").lines, "has no outcome", 3)


def test_labels_and_aliases_from_elsewhere_can_be_typed(ledger: Ledger) -> None:
    line, ref = content(b"evil\x1b[2J\nmain~1@{2} ")
    alias_line, alias = content("tab\there^\u202e".encode())
    session = Chain("session").add("session_created", label=ref, persona="local")
    import_into(ledger, line + alias_line + session.add("alias_added", alias=alias, reason="manual").lines)
    (found,) = ledger.sessions()
    assert found.label == "evil\ufffd[2J\ufffdmain-1-2}"
    assert ledger.session(found.label).id == ledger.session("tab\ufffdhere-\ufffd").id == session.name
    assert problems(ledger) == []


def test_an_alias_that_is_taken_here_stays_where_it_is(disk: Ledger, empty: Ledger) -> None:
    for ledger, label in ((disk, "theirs"), (empty, "mine")):
        ledger.create_session(label)
        ledger.labels.add_alias("al", label)
    disk.create_session("nick")
    empty.labels.add_alias("nick", "mine")
    import_into(empty, exported(disk))
    assert empty.session("al").label == empty.session("nick").label == "mine"
    assert empty.session(f"{disk.replica[-6:].lower()}/nick").id == disk.session("nick").id
    assert problems(empty) == []


def test_a_clash_with_a_session_of_no_replica_shows_as_imported(ledger: Ledger) -> None:
    ledger.create_session("x")
    line, ref = content(b"x")
    session = Chain("session").add("session_created", label=ref, persona="local")
    import_into(ledger, line + session.lines)
    assert ledger.session("imported/x").id == session.name
    assert problems(ledger) == []


def test_an_agent_with_an_endless_name_comes_in_with_its_beginning(ledger: Ledger) -> None:
    line, ref = content(b"x" * (2 << 20))
    agent = Chain("program").add("agent_created", name=ref)
    import_into(ledger, line + agent.lines)
    assert ledger.create_session("s", persona=agent.name).persona_id == "x" * 512
    assert problems(ledger) == []
