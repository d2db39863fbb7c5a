"""One export: what is written, where, and what stays as it was."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.postgres import shared_server
from tests.sizes import PROVING, share
from weft import Ledger
from weft.exchange.exporters.export import export
from weft.exchange.exporters.port import ExportOptions, ExportReport, Story
from weft.exchange.exporters.testing import PIXEL, record_history
from weft.kernel.errors import InvalidInput, NotFound, StoreError
from weft.kernel.events import SnapshotMaterialized
from weft.store.replicas import TrustStore

FORMS = ("markdown", "html", "jsonl", "openai", "anthropic")
MEGABYTE = 1024 * 1024


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


class Failing:
    form, suffix, one_thread, wants_requests = "failing", ".x", False, False

    def write(self, story: Story, wishes: ExportOptions, report: ExportReport) -> Iterator[bytes]:
        yield b"a beginning"
        raise RuntimeError("no more")


def test_a_file_is_complete_or_as_it_was(ledger: Ledger, out: Path) -> None:
    ledger.record_turn(session="main", query="a", response="b")
    with pytest.raises(RuntimeError):
        export(ledger, "main", Failing(), out / "new.x")
    assert names(out) == []
    (out / "old.x").write_bytes(b"what was there")
    with pytest.raises(RuntimeError):
        export(ledger, "main", Failing(), out / "old.x", force=True)
    assert (out / "old.x").read_bytes() == b"what was there"
    assert names(out) == ["old.x"]


def test_nothing_is_replaced_unless_told_to(ledger: Ledger, out: Path) -> None:
    ledger.record_turn(session="main", query="a", response="b")
    first = export(ledger, "main", "markdown", out / "a.md")
    ledger.record_turn(session="main", query="c", response="d")
    with pytest.raises(StoreError, match="exists already"):
        export(ledger, "main", "markdown", out / "a.md")
    assert (out / "a.md").stat().st_size == first.bytes
    assert export(ledger, "main", "markdown", out / "a.md", force=True).turns == 2
    with pytest.raises(StoreError, match="is a folder"):
        export(ledger, "main", "markdown", out, force=True)
    with pytest.raises(StoreError, match="No such file"):
        export(ledger, "main", "markdown", out / "none" / "a.md")


def test_an_export_is_named_by_an_erasure(ledger: Ledger, out: Path) -> None:
    ledger.record_turn(session="main", query="secret", response="b")
    export(ledger, "main", "markdown", out / "a.md")
    [copy] = ledger.erasure.plan("main").copies
    assert (copy.path, copy.kind, copy.exists) == (str(out / "a.md"), "export", True)


def test_a_ledger_open_for_reading_is_exported_too(tmp_path: Path, out: Path) -> None:
    with weft.open(tmp_path / "x.db") as ledger:
        ledger.record_turn(session="main", query="a", response="b")
    with weft.open(tmp_path / "x.db", read_only=True) as ledger:
        assert export(ledger, "main", "jsonl", out / "a.jsonl").messages == 2
        assert materializations(ledger) == []


def materializations(ledger: Ledger, after: int = 0) -> list[tuple[str, str, str]]:
    """What `snapshot_materialized` events say: kind and id of what was made, and the turn."""
    facts = [each.event for each in ledger.changes(after) if isinstance(each.event, SnapshotMaterialized)]
    assert len({fact.materialization for fact in facts}) == len(facts)
    return [
        (str(fact.content_ref.kind), b"".join(ledger.read_content(fact.content_ref.id)).decode(), str(fact.run))
        for fact in facts
    ]


@pytest.mark.parametrize("form", FORMS)
def test_a_thread_that_is_exported_to_a_file_is_a_materialization(ledger: Ledger, out: Path, form: str) -> None:
    ledger.record_turn(session="main", query="a", response="b")
    turn = ledger.record_turn(session="main", query="c", response="d")
    export(ledger, "main", form, out / "page")
    assert materializations(ledger) == [("file", str(out / "page"), turn.id)]
    export(ledger, "main", form, io.BytesIO())
    assert len(materializations(ledger)) == 1
    assert ledger.turn("main").digest == turn.digest
    assert list(ledger.verify()) == []


def test_several_threads_are_no_materialization_of_one(ledger: Ledger, out: Path) -> None:
    ledger.record_turn(session="main", query="a", response="b")
    ledger.record_turn(session="other", query="a", response="b")
    export(ledger, ["main", "other"], "markdown", out / "both.md")
    export(ledger, "main", "markdown", out / "tree.md", trees=True)
    assert materializations(ledger) == []


def test_a_stranger_s_ledger_is_exported_without_an_event_of_it(tmp_path: Path, out: Path) -> None:
    with weft.open(tmp_path / "x.db") as ledger:
        ledger.record_turn(session="main", query="a", response="b")
    with weft.open(tmp_path / "x.db", trust=TrustStore(tmp_path / "trust.json")) as ledger:
        assert not ledger.trust.is_trusted
        export(ledger, "main", "markdown", out / "a.md")
        assert materializations(ledger) == []


def test_a_materialization_that_cannot_be_recorded_fails_no_export(
    ledger: Ledger, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StoreError("the disk is full", "make room")

    ledger.record_turn(session="main", query="a", response="b")
    monkeypatch.setattr("weft.ledger.api.upkeep.record_materialization", full)
    assert export(ledger, "main", "markdown", out / "a.md").turns == 1
    assert materializations(ledger) == []


@pytest.mark.parametrize(
    ("what", "form", "wishes", "error"),
    [
        ([], "markdown", {}, InvalidInput),
        ("nobody", "markdown", {}, NotFound),
        ("main", "word", {}, InvalidInput),
        (["main", "main~1"], "openai", {}, InvalidInput),
        ("main", "anthropic", {"trees": True}, InvalidInput),
        (["main", "main~1"], "markdown", {"context": True}, InvalidInput),
        ("main", "markdown", {"thinking": "some"}, InvalidInput),
    ],
)
def test_what_cannot_be_exported_is_refused(
    ledger: Ledger, out: Path, what: Any, form: str, wishes: dict[str, Any], error: type[Exception]
) -> None:
    for text in "ab":
        ledger.record_turn(session="main", query=text, response=text)
    with pytest.raises(error):
        export(ledger, what, form, out / "x", **wishes)
    assert names(out) == []


def test_images_are_put_beside_a_markdown_page_once(ledger: Ledger, out: Path) -> None:
    parts = [weft.ImagePart(PIXEL), weft.ImagePart(PIXEL), weft.ImagePart("https://example.org/a.png")]
    ledger.record_turn(session="main", query={"content": parts}, response="b")
    done = export(ledger, "main", "markdown", out / "a.md", assets=out / "the images")
    assert done.assets == 1
    [image] = names(out / "the images")
    text = (out / "a.md").read_text()
    assert text.count(f"![image](the%20images/{image})") == 2
    assert "![image](http" not in text
    assert export(ledger, "main", "markdown", out / "b.md").left_out == {"image": 2}


def test_titles_come_from_sessions_subjects_or_the_caller(ledger: Ledger) -> None:
    ledger.record_turn(session="main", query="# What *is* it?", response="b")
    out = io.BytesIO()
    export(ledger, "main", "markdown", out)
    assert out.getvalue().startswith(b"# \\# What \\*is\\* it?\n")
    out = io.BytesIO()
    export(ledger, "main", "html", out, title="<b>Mine</b>")
    assert b"<title>&lt;b&gt;Mine&lt;/b&gt;</title>" in out.getvalue()


def test_a_context_is_what_the_model_would_see(ledger: Ledger) -> None:
    for text in "abc":
        ledger.record_turn(session="main", system="rules", query=text, response=f"re {text}")
    ledger.compactions.record(session="main", summary="so far", first_kept=ledger.resolve("main"))
    out = io.BytesIO()
    export(ledger, "main", "openai", out, context=True)
    said = [(message["role"], message["content"]) for message in json.loads(out.getvalue())["messages"]]
    assert said == [("system", "rules"), ("user", "so far"), ("user", "c"), ("assistant", "re c")]
    out = io.BytesIO()
    export(ledger, "main~2", "openai", out, context=True)
    seen = [message["content"] for message in json.loads(out.getvalue())["messages"]]
    assert seen == ["rules", "a", "re a", "b"]


def test_both_engines_give_the_same(tmp_path: Path) -> None:
    with weft.open(tmp_path / "x.db") as ledger:
        record_history(ledger)
    address = shared_server().address()
    weft.copy(tmp_path / "x.db", address)
    for form in FORMS:
        given = []
        for place in (tmp_path / "x.db", address):
            out = io.BytesIO()
            with weft.open(place) as ledger:
                export(ledger, "main", form, out)
            given.append(out.getvalue())
        assert given[0] == given[1], form


MEASURE = """
import resource, sys, weft
from weft.exchange.exporters.export import export
with weft.open(sys.argv[1], read_only=True) as ledger, open(sys.argv[3], "wb") as out:
    done = export(ledger, "main", sys.argv[2], out)
unit = 1 if sys.platform == "darwin" else 1024
print(done.messages, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
"""


def peak(path: Path, form: str) -> tuple[int, int]:
    ran = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path), form, os.devnull], capture_output=True, text=True, check=True
    )
    messages, size = ran.stdout.split()
    return int(messages), int(size)


@pytest.fixture(scope="module")
def short_and_long(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Threads of 400 messages and of ten times as many; with WEFT_PROVE of 1,000 and of 100,000."""
    made = []
    for count in (1_000, 100_000) if PROVING else (400, 4_000):
        path = tmp_path_factory.mktemp("threads") / "ledger.db"
        with weft.open(path) as ledger:
            for number in range(count // 20):
                said = [{"content": f"message {number} {i} " + "word " * 100} for i in range(10)]
                ledger.record_turn(session="main", query=said, response=said)
        made.append(path)
    return made


@pytest.mark.slow("records 4,000 messages and starts two processes")
@pytest.mark.parametrize("form", share(FORMS, test=1))
def test_memory_does_not_grow_with_a_thread(short_and_long: list[Path], form: str) -> None:
    (few, small), (many, large) = (peak(path, form) for path in short_and_long)
    assert many >= 10 * few
    assert large - small < 6 * MEGABYTE, (small, large)
