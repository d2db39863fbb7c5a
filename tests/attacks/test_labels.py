"""Names that read as other names: by characters that cannot be seen, letters of other scripts, signs of addresses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.ledger.imported import native_turn, take
from weft.exchange.sync.synced_ledgers import Remote, note_remote
from weft.kernel.errors import InvalidInput, LabelTaken
from weft.ledger.arguments import checked_label, cleaned_label
from weft.programs import Programs

INVISIBLE = (
    "ma\u200bin", "main\u200d", "\ufeffmain", "main\u00ad", "main\ufe0f", "main\u3164", "main\u034f", "main\u2800",
    "main\U000e0061", "\u202emain", "main\u2066", "main\x1b[2J", "main\n", "main ", "\u00a0main", "main\u2028",
)  # fmt: skip
TWINS = (
    "m\u0430in", "\uff4d\uff41\uff49\uff4e", "\U0001d426ain", "ma\u0456n", "main\u20111", "\u0440\u0430\u0441\u0435",
    "c\u0430f\u00e9", "\u043ao\u0442", "ma\u217dn", "a\u2215b", "\u13aagent", "\ua4eemain",
)  # fmt: skip
ADDRESSES = ("main#1", "main~2", "main^", "main@{1}", "-main", "--force")
WORDS = (
    "main", "caf\u00e9", "\u041f\u0440\u0438\u0432\u0435\u0442", "GPT-\u0448\u043a\u0430", "\u65e5\u672c\u8a9e",
    "\u0395\u03bb\u03bb\u03ac\u03b4\u03b1", "\u0394t", "#5", "it\u2019s", "m\u00b2", "a b", "issue#12b",
)  # fmt: skip


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Any]:
    with weft.open(tmp_path / "ledger.db") as opened:
        opened.record_turn(session="main", query="one")
        yield opened


NAMING: dict[str, Callable[[Any, str], object]] = {
    "recording": lambda ledger, name: ledger.record_turn(session=name, query="x"),
    "creating": lambda ledger, name: ledger.create_session(name),
    "forking": lambda ledger, name: ledger.fork("main", label=name),
    "renaming": lambda ledger, name: ledger.labels.rename("main", name),
    "aliases": lambda ledger, name: ledger.labels.add_alias(name, "main"),
    "programs": lambda ledger, name: Programs(ledger).create("task", name, {"description": "x"}),
    "tags": lambda ledger, name: Programs(ledger).add_tags("main", name),
}


@pytest.mark.parametrize("naming", NAMING)
def test_a_name_that_reads_as_another_is_refused(ledger: Any, naming: str) -> None:
    for name in (*INVISIBLE, *TWINS, *ADDRESSES):
        with pytest.raises(InvalidInput):
            NAMING[naming](ledger, name)
    assert [session.label for session in ledger.sessions()] == ["main"]


def test_a_remote_is_named_by_the_same_rule(ledger: Any) -> None:
    for name in (*INVISIBLE, *TWINS, *ADDRESSES):
        with pytest.raises(InvalidInput):
            ledger._store.write(lambda txn, name=name: note_remote(txn.sql, Remote(name=name, address="/x")))


@pytest.mark.parametrize("word", WORDS)
def test_words_of_one_script_are_labels(ledger: Any, word: str) -> None:
    if word != "main":
        ledger.create_session(word)
    assert ledger.session(word).label == word
    assert cleaned_label(word) == word


def test_both_writings_of_a_letter_are_one_label(ledger: Any) -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    turn = ledger.record_turn(session=decomposed, query="one").id
    assert ledger.session(decomposed).label == ledger.session(composed).label == composed
    assert ledger.resolve(f"{decomposed}~0") == ledger.resolve(f"{composed}#1") == turn
    with pytest.raises(LabelTaken):
        ledger.create_session(decomposed)
    Programs(ledger).add_tags(turn, decomposed)
    assert [node.id for node in Programs(ledger).tagged(composed)] == [turn]


@pytest.mark.parametrize("native", ["m\u0430in", "main\u200b", "main#1", "-rf", "\u202emain", "\uff4dain"])
def test_an_imported_label_is_shown_in_a_safe_form_and_nothing_of_it_is_lost(ledger: Any, native: str) -> None:
    take(ledger, native, native_turn("one"))
    (imported,) = [session for session in ledger.sessions() if session.label != "main"]
    assert checked_label(imported.label) == imported.label
    assert ledger.resolve("main") != ledger.resolve(imported.label)
    assert imported.origin_session_id == native
    assert list(ledger.verify()) == []


@given(st.text(min_size=1, max_size=40))
@settings(max_examples=300)
def test_every_label_from_elsewhere_becomes_one_that_could_be_given_here(text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    label = cleaned_label(text)
    assert label == "" or checked_label(label) == label
    assert cleaned_label(label) == label
