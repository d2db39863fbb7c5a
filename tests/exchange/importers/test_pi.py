"""Session files of pi and its relatives: how they are known, where they lie, and what they tell of their session."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.exchange.fixtures.pi.sessions import (
    AT,
    AT_MS,
    SESSION,
    assistant,
    dialogue,
    entry,
    header,
    lines,
    read_one,
    source_of,
    turns_of,
    user,
    write,
)
from weft.exchange.importers.pi import Pi
from weft.kernel.enums import AgentRole, LinkReason, MessageRole, MessageSource


def test_places_are_the_session_folders_of_pi_and_its_relatives() -> None:
    places = [place.path for place in Pi().places(Path("/home/ada"), {})]
    assert places == [
        Path("/home/ada/.pi/agent/sessions"),
        Path("/home/ada/.omp/agent/sessions"),
        Path("/home/ada/.openclaw/agents"),
    ]


def test_the_places_follow_the_environment() -> None:
    environment = {
        "PI_CODING_AGENT_DIR": "/srv/pi",
        "PI_CODING_AGENT_SESSION_DIR": "~/mine",
        "OPENCLAW_STATE_DIR": "/srv/claw",
    }
    places = [place.path for place in Pi().places(Path("/home/ada"), environment)]
    assert places == [
        Path("/srv/pi/sessions"),
        Path("/home/ada/mine"),
        Path("/home/ada/.omp/agent/sessions"),
        Path("/srv/claw/agents"),
    ]


TITLE = {"type": "title", "v": 1, "title": "", "updatedAt": AT, "pad": " " * 100}


@pytest.mark.parametrize(
    "data",
    [
        lines(*dialogue()),
        lines(header()),
        lines(TITLE, *dialogue()),
        b"\xef\xbb\xbf" + lines(*dialogue()),
        lines(*dialogue()[4:], {**dialogue()[4], "message": {"role": "toolResult", "content": []}}),
        b"not json\n" + lines(*dialogue()),
        lines(
            {"type": "session", "version": 0, "id": "s", "createdAt": 1}, {"type": "turn/start", "seq": 1, "data": {}}
        ),
    ],
)
def test_session_files_are_recognised(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "some.jsonl"
    path.write_bytes(data)
    assert Pi().recognises(source_of(path))
    assert not Pi().is_part(source_of(path))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]\n7\n",
        lines({"type": "user", "uuid": "u", "message": {"role": "user", "content": "Hi"}, "timestamp": AT}),
        lines({"type": "session_meta", "payload": {"id": "x"}, "timestamp": AT}),
        lines({"type": "session", "id": "x", "timestamp": AT}, {"kind": "something else", "value": 1}),
        lines({"type": "message", "id": "1", "parentId": None, "timestamp": AT, "message": {"role": "user"}}),
        lines({"type": "session", "id": 7, "timestamp": AT}),
        b"\x00\xff" * 100,
    ],
)
def test_files_of_others_are_not_recognised(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "some.jsonl"
    path.write_bytes(data)
    assert not Pi().recognises(source_of(path))


def test_the_header_and_the_last_name_tell_of_the_session(tmp_path: Path) -> None:
    found = read_one(
        write(
            tmp_path,
            *dialogue(),
            entry("session_info", "i1", "a2", name="First name"),
            entry("session_info", "i2", "i1", name=" Better name "),
            entry("label", "l1", "i2", targetId="u1", label="start"),
            entry("label", "l2", "l1", targetId="a1", label="gone"),
            entry("label", "l3", "l2", targetId="a1"),
        )
    )
    told = found.session
    assert (told.id, told.title, told.workspace, told.created) == (SESSION, "Better name", "/shop", AT_MS)
    assert told.metadata == {"format": 3, "labels": {"u1": "start"}}
    assert len(found.turns) == 2


def test_without_a_header_the_file_name_is_the_session(tmp_path: Path) -> None:
    path = write(tmp_path, *dialogue()[3:], name="2026-01-02T03-04-05-006Z_abc-1.jsonl")
    assert read_one(path).session.id == "abc-1"


def test_settings_in_force_are_told_of_each_turn(tmp_path: Path) -> None:
    first, second = turns_of(
        tmp_path,
        *dialogue()[:5],
        entry("model_change", "m2", "a1", model="acme/small/latest", role="default"),
        entry("mode_change", "o1", "m2", mode="plan"),
        entry("service_tier_change", "s1", "o1", serviceTier={"acme": "flex"}),
        entry("active_tools_change", "k1", "s1", activeToolNames=["read", "bash"]),
        user("u2", "k1", "Go on."),
    )
    assert first.config == {"model": "large", "provider": "acme", "thinking": "high"}
    changed = {"model": "small/latest", "mode": "plan", "service_tier": {"acme": "flex"}}
    assert second.config == {**first.config, **changed}
    assert (first.tools, second.tools) == (None, ("read", "bash"))
    assert (first.workspace, first.version) == ("/shop", None)


def test_the_first_version_has_its_settings_in_the_header(tmp_path: Path) -> None:
    old = {
        "type": "session",
        "id": "old",
        "timestamp": AT,
        "cwd": "/w",
        "provider": "p",
        "modelId": "m",
        "thinkingLevel": "off",
    }
    (turn,) = turns_of(
        tmp_path, old, {"type": "message", "timestamp": AT, "message": {"role": "user", "content": "Hi"}}
    )
    assert turn.config == {"model": "m", "provider": "p", "thinking": "off"}


def test_a_cleared_context_is_noted_on_the_next_turn(tmp_path: Path) -> None:
    turns = turns_of(
        tmp_path,
        *dialogue(),
        entry("reset_boundary", "r1", "a2"),
        user("u3", "r1", "Afresh."),
        assistant("a3", "u3", "Yes."),
        user("u4", "a3", "More."),
    )
    assert [turn.metadata for turn in turns] == [None, None, {"context_reset": True}, None]
    assert turns[2].parent == 1


def test_a_session_that_goes_on_from_another_is_linked_to_it(tmp_path: Path) -> None:
    parent = "/home/ada/.pi/agent/sessions/--w--/2025-12-31T01-02-03-004Z_before.jsonl"
    turns = turns_of(tmp_path, header(parentSession=parent), user("u1", None, "Go on."), user("u2", "u1", "And on."))
    link = turns[0].link
    assert link is not None
    assert (link.session, link.why) == ("before", LinkReason.CONTINUATION)
    assert turns[1].link is None


@pytest.mark.parametrize("name", ["parentSession", "branchedFrom"])
def test_a_copy_of_another_session_is_not_linked_for_it_has_the_same_turns(tmp_path: Path, name: str) -> None:
    later = header(**{name: "C:\\sessions\\2025_x.jsonl", "timestamp": "2026-02-01T00:00:00Z"})
    found = read_one(write(tmp_path, later, *dialogue()[1:]))
    assert found.turns[0].link is None
    assert found.session.metadata["forked_from"] == "C:\\sessions\\2025_x.jsonl"


def test_a_copy_under_another_session_has_the_same_records(tmp_path: Path) -> None:
    other = [header(id="other", cwd="/elsewhere", version=4), *dialogue()[1:]]
    for line in other[1:]:
        line["timestamp"] = "2027-01-01T00:00:00Z"
        if "message" in line:
            line["message"] |= {"usage": {}, "timestamp": 5}
    one, two = turns_of(tmp_path, *dialogue()), turns_of(tmp_path, *other)
    assert [(turn.key, turn.records) for turn in one] == [(turn.key, turn.records) for turn in two]


INIT = entry(
    "session_init",
    "i1",
    None,
    systemPrompt=["You are a scout.", "Be brief."],
    task="Find the tests.",
    tools=["read", "grep"],
    agent="scout",
    modelRole="smol",
    readOnly=True,
)


def test_a_subagent_of_oh_my_pi_tells_its_task_tools_and_system_prompt(tmp_path: Path) -> None:
    folder = tmp_path / "2026-01-01T00-00-00-000Z_above"
    folder.mkdir()
    path = write(
        folder, TITLE, header(), INIT, user("u1", "i1", "Find the tests.", attribution="agent"), name="Scout.jsonl"
    )
    found = read_one(path)
    (turn,) = found.turns
    assert (found.session.parent, found.session.task, found.session.agent) == ("above", "Find the tests.", "scout")
    assert found.session.metadata["subagent"] == {"modelRole": "smol", "readOnly": True}
    assert (turn.key, turn.role, turn.tools) == ("u1", AgentRole.WORKER, ("read", "grep"))
    system, prompt = turn.items
    assert (system.role, [part.text for part in system.parts]) == (  # type: ignore[union-attr]
        MessageRole.SYSTEM,
        ["You are a scout.", "Be brief."],
    )
    assert prompt.source is MessageSource.AGENT  # type: ignore[union-attr]


def test_titles_of_oh_my_pi_are_titles(tmp_path: Path) -> None:
    slot = {**TITLE, "title": "Slotted"}
    assert read_one(write(tmp_path, slot, *dialogue())).session.title == "Slotted"
    changed = entry("title_change", "c1", "a2", title="Changed", source="user")
    assert read_one(write(tmp_path, slot, *dialogue(), changed)).session.title == "Changed"


def test_how_a_session_ended_closes_its_last_turn(tmp_path: Path) -> None:
    ended = entry("custom", "x1", "u3", customType="session_exit", data={"reason": "dispose", "kind": "normal"})
    found = read_one(write(tmp_path, *dialogue(), user("u3", "a2", "And?"), ended))
    assert found.turns[-1].closed
    assert found.session.metadata["exit"] == {"reason": "dispose", "kind": "normal"}


def test_model_calls_beside_the_conversation_are_told_of_the_session(tmp_path: Path) -> None:
    aside = entry("model_usage", "x1", "a2", purpose="title", model="tiny", usage={"input": 1})
    found = read_one(write(tmp_path, *dialogue(), aside))
    assert found.session.metadata["other_usage"][0]["purpose"] == "title"


def test_a_file_with_nothing_but_its_header_is_an_empty_session(tmp_path: Path) -> None:
    assert read_one(write(tmp_path, header())).turns == []
