"""Sessions that got another name in the tool that made them: the last name holds, however long the one before was."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.exchange.corpus import take
from tests.exchange.fixtures.chatgpt import conversations as chatgpt
from tests.exchange.fixtures.claude_ai import exports as claude_ai
from tests.exchange.fixtures.cursor import sessions as cursor
from tests.exchange.fixtures.gemini_cli import chats as gemini
from tests.exchange.fixtures.opencode import sessions as opencode
from weft import Ledger

AT = 1_780_000_000_000
NAMES = ("A rather long name, as tools make them up", "Short", "Z", "Neither long nor short", "Short")


def write_opencode(folder: Path, name: str, at: int, stamp: str) -> Any:
    opencode.write_folder(folder, opencode.dialogue(), opencode.info(title=name, time={"created": AT, "updated": at}))


def write_claude_ai(folder: Path, name: str, at: int, stamp: str) -> Any:
    claude_ai.write(folder, claude_ai.conversation(*claude_ai.dialogue(), name=name, updated_at=stamp))


def write_chatgpt(folder: Path, name: str, at: int, stamp: str) -> Any:
    told = chatgpt.conversation(*chatgpt.dialogue(), title=name, update_time=at / 1000)
    chatgpt.write(folder, told, name=f"conversations-{at}.json")


def write_gemini(folder: Path, name: str, at: int, stamp: str) -> Any:
    gemini.write_document(folder, *gemini.dialogue()[1:], summary=name, lastUpdated=stamp)


def write_cursor(folder: Path, name: str, at: int, stamp: str) -> Any:
    (folder / "state.vscdb").unlink(missing_ok=True)
    cursor.write_state(folder, cursor.session_rows(*cursor.dialogue(), name=name, lastUpdatedAt=at))


@pytest.mark.parametrize("write", [write_opencode, write_claude_ai, write_chatgpt, write_gemini, write_cursor])
def test_the_last_name_of_a_session_holds(ledger: Ledger, sources: Path, write: Callable[..., Any]) -> None:
    for minute, name in enumerate(NAMES):
        write(sources, name, AT + minute * 60_000, f"2026-05-28T20:{minute:02}:00.000Z")
        take(ledger, sources)
        assert {session.title for session in ledger.sessions(every=True)} == {name}
    assert list(ledger.verify()) == []
