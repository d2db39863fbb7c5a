"""Codes of errors are published: one for each class, said by the class, and what old ledgers hold is read as today's.

`error-codes/` is a ledger of the last version that recorded names of classes: a turn and a tool call for each of them.
"""

import gzip
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import weft
from weft.kernel.errors import INTERNAL_ERROR, SYSTEM_ERROR, TIMED_OUT, WeftError, current_code, error_code

FIXTURE = Path(__file__).parent / "error-codes"
NEWER = {"answer_unfit", "approval_needed", "reply_unfit"}
"""Of classes that the version of the fixture did not have."""


def kinds(root: type[WeftError] = WeftError) -> Iterator[type[WeftError]]:
    for kind in root.__subclasses__():
        if kind.__module__.startswith("weft.kernel"):
            yield kind
            yield from kinds(kind)


@pytest.fixture
def old_ledger(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.db"
    path.write_bytes(gzip.decompress((FIXTURE / "ledger.db.gz").read_bytes()))
    shutil.copyfile(FIXTURE / "ledger.db-head", tmp_path / "ledger.db-head")
    return path


def test_every_class_of_errors_says_its_own_code() -> None:
    published = [kind.__dict__.get("code") for kind in set(kinds())]
    assert None not in published
    assert len(set(published)) == len(published) > 70
    assert [code for code in published if not re.fullmatch(r"[a-z]+(_[a-z]+)*", str(code))] == []


def test_an_error_of_others_has_a_code_that_is_no_name_of_a_class() -> None:
    errors = (TimeoutError(), PermissionError(), KeyError("x"))
    assert [error_code(error) for error in errors] == [TIMED_OUT, SYSTEM_ERROR, INTERNAL_ERROR]


def test_what_an_old_ledger_holds_is_read_as_the_code_of_today(old_ledger: Path) -> None:
    codes = ({kind.code for kind in kinds()} | {TIMED_OUT}) - NEWER
    with weft.open(old_ledger) as ledger:
        turns = list(ledger.find_turns(limit=200))
        for turn in turns:
            (call,) = ledger.tool_calls(turn.id)
            (query, *_) = ledger.messages(turn.id)
            assert turn.error_code == call.error_code == current_code(query.text)
        assert {turn.error_code for turn in turns} == codes
        assert list(ledger.verify()) == []
