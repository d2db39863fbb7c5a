"""Real sessions of every origin, written for each tool: built like that tool's own files, and known again.

`make test` takes some of the threads, WEFT_PROVE=1 all of them.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.exchange.corpus import CORPUS, LONG_AGO, ORIGINS, needs_corpus, opened, take
from tests.exchange.structure import (
    Structure,
    check_claude_code,
    check_codex,
    claude_records,
    codex_records,
    learn_claude_code,
    learn_codex,
    loaded,
)
from tests.sizes import PROVING, share
from weft import Ledger
from weft.exchange.resuming import FORMATS, Resume, load_format, prepare_resume, write_resume
from weft.kernel.clock import FixedClock
from weft.ledger.model import Session

pytestmark = needs_corpus

TOOLS = tuple(FORMATS)
CHECKS = {"claude-code": check_claude_code, "codex": check_codex}
RECORDS = {"claude-code": claude_records, "codex": codex_records}
LEARN = {"claude-code": learn_claude_code, "codex": learn_codex}
SMALL = 300_000
"""Bytes of a file that `make test` takes."""
SOME = 40


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    """Sessions of every origin, imported once."""
    files = [path for origin in ORIGINS for path in sorted((CORPUS / origin).rglob("*")) if path.is_file()]
    small = [path for path in files if PROVING or path.stat().st_size <= SMALL]
    chosen = share(small, test=90)
    with opened(tmp_path_factory.mktemp("resumed") / "ledger.db") as ledger:
        take(ledger, *chosen)
        yield ledger


@pytest.fixture(scope="module")
def sessions(whole: Ledger) -> list[Session]:
    """Those to be written, before anything is."""
    found = sorted((session for session in whole.sessions(every=True) if session.head), key=lambda each: each.id)
    return share(found, test=SOME)


@pytest.fixture(scope="module", params=TOOLS)
def written(
    request: pytest.FixtureRequest, whole: Ledger, sessions: list[Session], tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[Session, Resume]]:
    root, clock = tmp_path_factory.mktemp(request.param), FixedClock(LONG_AGO * 1000)
    random = Random(5 + TOOLS.index(request.param)).randbytes
    made = [
        (session, prepare_resume(whole, session.label, request.param, root, clock, random, workspace="/srv/work"))
        for session in sessions
    ]
    for _, each in made:
        write_resume(whole, each)
        os.utime(each.path, (LONG_AGO, LONG_AGO))
    return made


def test_hundreds_of_threads_are_written(written: list[tuple[Session, Resume]]) -> None:
    assert len(written) >= (600 if PROVING else 20)
    assert len({session.origin for session, _ in written}) >= (9 if PROVING else 3)


def test_every_written_session_is_built_like_real_ones(written: list[tuple[Session, Resume]]) -> None:
    for session, each in written:
        try:
            CHECKS[each.tool](each.data)
        except AssertionError as error:
            raise AssertionError(f"{session.origin} {session.label} as {each.tool}: {error}") from error


@pytest.fixture(scope="module")
def learned() -> dict[str, Structure]:
    return {tool: LEARN[tool](CORPUS / tool) for tool in TOOLS}


def test_every_record_told_anew_has_the_keys_and_types_of_real_ones(
    written: list[tuple[Session, Resume]], learned: dict[str, Structure]
) -> None:
    faults = {
        f"{session.origin} as {each.tool}: {fault}"
        for session, each in written
        if not each.verbatim
        for kind, record in RECORDS[each.tool](loaded(each.data))
        for fault in learned[each.tool].faults(kind, record)
    }
    assert faults == set()


def test_a_format_names_whatever_real_records_always_have(learned: dict[str, Structure]) -> None:
    claude, codex = (load_format(tool) for tool in TOOLS)
    shapes = {
        "claude-code": {"prompt": "user/prompt", "result": "user/result", "answer": "assistant", "message": "message",
                        "boundary": "system/compact_boundary", "summary": "user/summary",
                        "end": "system/turn_duration", "title": "ai-title"},
        "codex": {"session_meta": "session_meta", "turn_context": "turn_context", "compacted": "compacted",
                  "task_started": "event_msg/task_started", "task_complete": "event_msg/task_complete",
                  "user_message": "event_msg/user_message", "agent_message": "event_msg/agent_message",
                  "function_call": "response_item/function_call",
                  "function_call_output": "response_item/function_call_output"},
    }  # fmt: skip
    for format in (claude, codex):
        for shape, kind in shapes[format.tool].items():
            required = learned[format.tool].required(kind)
            assert required, f"real files tell of {kind}"
            assert required <= format.needs(shape), f"{format.tool} {shape}"


def test_imported_again_no_turn_is_new(whole: Ledger, written: list[tuple[Session, Resume]]) -> None:
    before = {turn.id: turn.digest for turn in whole.log()}
    heads = {session.label: whole.session(session.label).head for session, _ in written}
    summary = take(whole, *(Path(each.path) for _, each in written))
    assert summary.problems == []
    assert sum(totals.counts.turns for totals in summary.origins.values()) == 0
    assert {turn.id: turn.digest for turn in whole.log()} == before
    for session, each in written:
        assert whole.session(each.session).head == heads[session.label] == each.turn_id
