"""Codex files: how they are known, where they lie, and what they tell of their session."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson
import pytest
import zstandard

import weft
from tests.exchange.fixtures.codex.rollouts import (
    AT,
    AT_MS,
    OTHER,
    SESSION,
    Line,
    asked,
    calls,
    context,
    event,
    import_file,
    import_lines,
    item,
    line,
    messages,
    meta,
    said,
    shown,
    source_of,
    started,
    told,
    turn_id,
    user,
    words_of,
)
from weft.exchange.importers.codex import Codex
from weft.exchange.importers.foreign_values import SOURCE_LIMITS
from weft.exchange.importers.port import Report, load_importers
from weft.exchange.importing.run import ImportRun
from weft.exchange.importing.sources import candidates
from weft.kernel.clock import SystemClock
from weft.kernel.enums import AgentRole, FileKind, MessageRole, MessageSource
from weft.kernel.foreign_input import ReadBudget

FIXTURES = Path(__file__).parents[1] / "fixtures" / "codex"


def recognised(folder: Path, data: bytes, name: str = "some.jsonl") -> bool:
    path = folder / name
    path.write_bytes(data)
    return Codex().recognises(source_of(path))


def lines(*records: Line) -> bytes:
    return b"".join(orjson.dumps(record) + b"\n" for record in records)


def test_places_are_the_two_session_folders_of_the_home_directory() -> None:
    places = Codex().places(Path("/home/ada"), {})
    assert [place.path for place in places] == [
        Path("/home/ada/.codex/sessions"),
        Path("/home/ada/.codex/archived_sessions"),
    ]


def test_codex_home_overrides_the_places() -> None:
    places = Codex().places(Path("/home/ada"), {"CODEX_HOME": "/srv/codex"})
    assert [place.path for place in places] == [Path("/srv/codex/sessions"), Path("/srv/codex/archived_sessions")]


@pytest.mark.parametrize("name", ["generation_a.json", "generation_b.jsonl"])
def test_the_old_generations_are_recognised(name: str) -> None:
    assert Codex().recognises(source_of(FIXTURES / name))


def test_a_file_is_known_even_when_its_first_line_is_damaged(tmp_path: Path) -> None:
    assert recognised(tmp_path, b'{"timestamp":"2026\n' + lines(user("hello"), said("hi"), context()))


def test_a_file_is_known_by_a_first_line_that_is_longer_than_the_sample(tmp_path: Path) -> None:
    assert recognised(tmp_path, lines(meta(base_instructions={"text": "x" * 100_000})))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n\n",
        b"not json",
        b"\xff\xfe\x00\x00",
        b"[1,2]\n",
        b'{"type":"user","uuid":"1","message":{"role":"user","content":"hi"}}\n',
        b'{"type":"session","id":"1","timestamp":"x","cwd":"/"}\n{"type":"message","id":"2","message":{"role":"user"}}\n',
        b'{"type":"session.start","data":{"sessionId":"1"}}\n',
        b'{"session_id":"1","ts":1,"text":"a line of history.jsonl"}\n',
        b'{"type":["a"],"payload":{"type":{}}}\n',
        b'{"sessionId":"1","messages":[]}',
    ],
)
def test_other_files_are_not_recognised(tmp_path: Path, data: bytes) -> None:
    assert not recognised(tmp_path, data)


def test_the_index_of_names_is_a_part_and_gives_its_title(tmp_path: Path) -> None:
    folder = tmp_path / "sessions" / "2026" / "01" / "02"
    folder.mkdir(parents=True)
    index = tmp_path / "session_index.jsonl"
    index.write_bytes(
        lines({"id": SESSION, "thread_name": "old", "updated_at": AT})
        + b"broken\n"
        + lines({"id": SESSION, "thread_name": "Mend the fence", "updated_at": AT})
    )
    found = import_lines(folder, [meta(), *asked(turn_id(1), "hi", "hello")])
    assert Codex().is_part(source_of(index))
    assert not Codex().recognises(source_of(index))
    assert found.session.title == "Mend the fence"


def test_a_later_name_of_the_index_goes_before_the_one_that_the_thread_told(tmp_path: Path) -> None:
    folder = tmp_path / "sessions"
    folder.mkdir()
    told = [meta(), *asked(turn_id(1), "hi", "hello"), event("thread_name_updated", thread_name="Told")]
    for later, title in (("2026-01-02T03:04:05.007Z", "Indexed"), ("2026-01-02T03:04:05.005Z", "Told")):
        named = {"id": SESSION, "thread_name": "Indexed", "updated_at": later}
        (tmp_path / "session_index.jsonl").write_bytes(lines(named))
        assert import_lines(folder, told).session.title == title


def test_a_thread_that_is_renamed_in_the_index_alone_is_renamed_by_the_next_import(tmp_path: Path) -> None:
    folder = tmp_path / "codex" / "sessions"
    folder.mkdir(parents=True)
    others = [folder / f"rollout-2026-{OTHER}.jsonl", folder / f"rollout-2026-{SESSION}.jsonl"]
    for path, id in zip(others, (OTHER, SESSION), strict=True):
        path.write_bytes(lines(meta(id), *asked(turn_id(1, 0x3000), f"hi {id}", "hello")))
        os.utime(path, (1_700_000_000, 1_700_000_000))
    index = folder.parent / "session_index.jsonl"
    with weft.open(tmp_path / "ledger.db") as ledger:
        for round, name in enumerate(("One", "Two", "Three", "Four", "One")):
            at = datetime.now(UTC) + timedelta(seconds=round)
            named = {"id": SESSION, "thread_name": name, "updated_at": at.isoformat()}
            with index.open("ab") as file:
                file.write(lines(named))
            done = ImportRun(ledger, load_importers("codex"), SystemClock()).run([folder])
            assert {session.title for session in ledger.sessions()} == {None, name}
            assert done.origins["codex"].unchanged == (0 if round == 0 else 1)
        assert list(ledger.verify()) == []


def test_a_session_tells_where_when_and_by_which_version_it_ran(tmp_path: Path) -> None:
    git = {"commit_hash": "abc", "branch": "main", "repository_url": "https://example.test/r.git"}
    found = import_lines(tmp_path, [meta(git=git, source="cli"), *asked(turn_id(1), "hi", "hello")])
    session = found.session
    assert (session.id, session.workspace, session.git_branch) == (SESSION, "/shop", "main")
    assert (session.version, session.created, session.parent) == ("0.140.0", AT_MS, None)
    assert session.metadata["originator"] == "codex_cli_rs"
    assert session.metadata["git"] == git
    turn = found.turns[0]
    assert (turn.workspace, turn.git_branch, turn.version, turn.role) == ("/shop", "main", "0.140.0", AgentRole.UNIFIED)


def test_the_last_name_of_a_thread_is_its_title(tmp_path: Path) -> None:
    names = [event("thread_name_updated", thread_id=SESSION, thread_name=name) for name in ("One", "Two")]
    other = event("thread_name_updated", thread_id=OTHER, thread_name="Elsewhere")
    found = import_lines(tmp_path, [meta(), *asked(turn_id(1), "hi", "hello"), *names, other])
    assert found.session.title == "Two"


def test_a_file_in_the_archive_is_archived(tmp_path: Path) -> None:
    folder = tmp_path / "archived_sessions"
    folder.mkdir()
    assert import_lines(folder, [meta(), *asked(turn_id(1), "hi", "hello")]).session.archived


def test_a_session_without_its_first_line_is_named_by_its_file(tmp_path: Path) -> None:
    name = f"rollout-2026-01-02T03-04-05-{OTHER}.jsonl"
    assert import_lines(tmp_path, [user("hi"), said("hello")], name=name).session.id == OTHER


def test_session_meta_again_means_resumed_and_the_last_version_wins(tmp_path: Path) -> None:
    first, second = turn_id(1), turn_id(2)
    again = meta(cli_version="0.141.0", git={"branch": "feature"})
    found = import_lines(tmp_path, [meta(), *asked(first, "a", "b"), again, *asked(second, "c", "d")])
    assert found.keys() == [first, second]
    assert [turn.version for turn in found.turns] == ["0.140.0", "0.141.0"]
    assert found.session.version == "0.141.0"
    assert found.session.git_branch == "feature"
    assert found.turns[1].link is None


def test_a_subagent_names_its_parent_and_works_as_a_worker(tmp_path: Path) -> None:
    spawn = {"parent_thread_id": SESSION, "depth": 1, "agent_path": "/lead/map", "agent_role": "explorer"}
    own = meta(OTHER, source={"subagent": {"thread_spawn": spawn}}, agent_nickname="Ada")
    found = import_lines(tmp_path, [own, *asked(turn_id(1, 0x3000), "look", "seen")])
    session = found.session
    assert (session.parent, session.agent, session.task) == (SESSION, "explorer", "/lead/map")
    assert found.turns[0].role == AgentRole.WORKER
    assert messages(found.turns[0])[0].source == MessageSource.AGENT
    assert found.turns[0].link is None


def test_a_review_is_a_subagent_too(tmp_path: Path) -> None:
    found = import_lines(tmp_path, [meta(source={"subagent": "review"}), *asked(turn_id(1), "review", "fine")])
    assert found.session.agent == "review"
    assert found.turns[0].role == AgentRole.WORKER


def test_generation_a_is_one_object_with_items() -> None:
    found = import_file(FIXTURES / "generation_a.json")
    assert found.session.id == "5973b6c0-94b8-487b-a530-2aeb6098ae0e"
    assert found.session.created == 1746638661123
    assert found.keys() == [
        "msg_first_prompt_000001",
        "5973b6c0-94b8-487b-a530-2aeb6098ae0e/1-" + found.keys()[1][-16:],
    ]
    first, second = found.turns
    assert shown(first) == [
        "user: wie spät? ⏰",
        "assistant: thinking: look at the clock",
        "call shell call_clock",
        "assistant: noon",
    ]
    assert calls(first)[0].arguments == {"command": ["date"]}
    assert calls(first)[0].detail == {"exit_code": 0, "duration_ms": 200}
    assert messages(first)[0].context == {"base_instructions": "Be brief."}
    assert shown(second) == ["user: thanks", "assistant: welcome"]
    assert first.closed
    assert not second.closed


def test_generation_a_gives_the_places_of_its_items_in_bytes() -> None:
    path = FIXTURES / "generation_a.json"
    found = import_file(path)
    data = path.read_bytes()
    second = found.turns[1]
    assert orjson.loads(data[second.offset : second.end].splitlines()[0].rstrip(b","))["content"][0]["text"] == "thanks"


def test_generation_a_cut_in_the_middle_gives_what_is_whole(tmp_path: Path) -> None:
    data = (FIXTURES / "generation_a.json").read_bytes()
    path = tmp_path / "rollout.json"
    path.write_bytes(data[: data.index(b'"thanks"')])
    found = import_file(path)
    assert [shown(turn)[-1] for turn in found.turns] == ["assistant: noon"]
    assert found.report.damaged == 1
    assert found.report.problems


def test_generation_b_has_bare_items_and_lines_of_state() -> None:
    found = import_file(FIXTURES / "generation_b.jsonl")
    assert found.session.id == "7d0c1a52-1111-4222-8333-444455556666"
    assert found.session.git_branch == "main"
    assert [shown(turn) for turn in found.turns] == [
        ["user: list the files", "assistant: ", "call local_shell call_1", "assistant: a.txt"],
        ["user: and now?"],
    ]
    assert found.report.kept["record_type/state"] == 2
    prompt = messages(found.turns[0])[0]
    assert prompt.context["base_instructions"] == "Be kind."
    assert prompt.context["injected"][0]["role"] == "user"
    assert prompt.at is None


def test_unknown_kinds_are_kept_and_harm_nothing(tmp_path: Path) -> None:
    strange = [line("holo_sync", {"a": 1}), event("quantum_status"), item("telepathy", text="?"), {"a": 1}]
    strange.append(line("event_msg", {"type": 7}))
    found = import_lines(tmp_path, [meta(), *asked(turn_id(1), "hi", "hello")[:-1], *strange])
    assert shown(found.turns[0]) == ["user: hi", "assistant: hello"]
    assert found.report.unknown == {
        "holo_sync": 1,
        "event_msg/quantum_status": 1,
        "response_item/telepathy": 1,
        "untyped": 1,
        "event_msg/untyped": 1,
    }


def test_a_file_without_any_turn_still_has_a_session(tmp_path: Path) -> None:
    found = import_lines(tmp_path, [meta(), event("token_count", info=None)])
    assert found.session.id == SESSION
    assert found.turns == []
    assert found.report.kept == {"event_msg/token_count": 1}


def test_an_empty_file_has_nothing(tmp_path: Path) -> None:
    assert import_lines(tmp_path, []).report.found == 0


def test_damaged_lines_are_told_by_their_number_and_the_rest_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "rollout.jsonl"
    turn = asked(turn_id(1), "hi", "hello")
    glued = orjson.dumps(turn[0]) + orjson.dumps(turn[1]) + b"\n"
    path.write_bytes(lines(meta()) + glued + b"garbage\n[1]\n" + lines(*turn[2:]) + b'{"timestamp":"20')
    found = import_file(path)
    assert shown(found.turns[0]) == ["user: hi", "assistant: hello"]
    assert found.report.damaged == 2
    assert [problem.line for problem in found.report.problems] == [3, 4]
    assert found.report.open_tail


def test_texts_that_are_not_utf8_are_still_taken(tmp_path: Path) -> None:
    path = tmp_path / "rollout.jsonl"
    path.write_bytes(lines(meta()) + lines(user("caf@")).replace(b"caf@", b"caf\xe9") + lines(said("x")))
    assert words_of(messages(import_file(path).turns[0])[0])[0].startswith("caf")


def test_a_lone_surrogate_is_still_an_identity(tmp_path: Path) -> None:
    path = tmp_path / "rollout.jsonl"
    path.write_bytes(lines(meta()) + lines(user("half @")).replace(b"@", b"\\ud83d"))
    found = import_file(path)
    assert b"\\ud83d" in found.turns[0].records[0]


def test_a_prompt_without_a_usable_time_keeps_its_words_for_it(tmp_path: Path) -> None:
    found = import_lines(tmp_path, [meta(), user("hi", at="yesterday")])
    assert messages(found.turns[0])[0].literal_time == "yesterday"
    assert found.turns[0].literal_time == "yesterday"


def test_pictures_are_image_parts_and_their_paths_attachments(tmp_path: Path) -> None:
    blocks = [
        {"type": "input_text", "text": "what is this?"},
        {"type": "input_text", "text": "<image name=[Image #1]>"},
        {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"},
        {"type": "input_text", "text": "</image>"},
        {"type": "hologram", "data": 1},
    ]
    prompt = item("message", role="user", content=blocks)
    found = import_lines(
        tmp_path, [meta(), started(turn_id(1)), prompt, told("what is this?", local_images=["/tmp/a.png"])]
    )
    message = messages(found.turns[0])[0]
    assert "image: data:image/png;base64,AAAA" in words_of(message)
    assert message.source == MessageSource.HUMAN
    assert [(note.kind, note.path) for note in message.files] == [(FileKind.ATTACHED, "/tmp/a.png")]
    assert message.metadata["blocks"] == [{"type": "hologram", "data": 1}]
    assert message.role == MessageRole.USER


def test_a_compressed_rollout_is_read(tmp_path: Path) -> None:
    data = lines(meta(), *asked(turn_id(1), "hello", "hi"))
    path = tmp_path / "rollout-2026-01-02T03-04-05-x.jsonl.zst"
    path.write_bytes(zstandard.ZstdCompressor().compress(data))
    (candidate,) = candidates(tmp_path, lambda path, error: None)
    with candidate.open(0, ReadBudget(SOURCE_LIMITS)) as source:
        assert Codex().recognises(source)
        (found,) = Codex().read(source, Report(source.name))
        assert len(list(found.turns)) == 1
