"""A server that dies between a commit and its flush: what it takes back was told to nobody."""

import os
import signal
from collections.abc import Callable, Iterator

import msgspec
import pytest

import weft
from tests.ledger.histories import grow, problems, queries
from tests.postgres import Server
from weft.kernel.errors import HeadMoved
from weft.ledger.api.ledger import Ledger
from weft.store.postgres.connection import COMMIT_THEN_FLUSH, FLUSH

Telling = Callable[[Ledger, str], None]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.remove()


def read(ledger: Ledger, _: str) -> None:
    assert queries(ledger, "main") == ["before", "unflushed"]


def be_refused(ledger: Ledger, head: str) -> None:
    with pytest.raises(HeadMoved):
        ledger.record_turn(session="main", query="too late", expected=head)


def wait_for_news(ledger: Ledger, _: str) -> None:
    assert ledger._store.changes(1, timeout=0)


def die_unflushed(server: Server, address: str, tell: Telling | None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A turn is committed and not flushed, by nobody; perhaps somebody is told; the server dies. What is there then?"""
    writer, other = weft.open(address), weft.open(address)
    (head,) = grow(writer, "main", "before")
    queries(other, "main")
    flusher = int(server.psql("-Atc", "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'"))
    os.kill(flusher, signal.SIGSTOP)
    with monkeypatch.context() as patch:
        unflushed = tuple(statement for statement in COMMIT_THEN_FLUSH if statement != FLUSH)
        patch.setattr("weft.store.postgres.store.COMMIT_THEN_FLUSH", unflushed)
        straight = writer._store._straight  # type: ignore[attr-defined]
        patch.setattr(straight, "call", msgspec.structs.replace(straight.call, after="SELECT 1, true"))
        grow(writer, "main", "unflushed")
    if tell is not None:
        tell(other, head)
    server.kill()
    os.kill(flusher, signal.SIGKILL)
    server.start()
    for ledger in (writer, other):
        ledger.close()
    with weft.open(address) as ledger:
        assert problems(ledger) == []
        return queries(ledger, "main")


@pytest.mark.slow("starts a server anew")
@pytest.mark.usefixtures("turn_path")
@pytest.mark.parametrize("tell", [read, be_refused, wait_for_news], ids=lambda tell: tell.__name__)
def test_what_anybody_was_told_survives_a_server_that_dies_before_it_has_flushed(
    server: Server, tell: Telling, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert die_unflushed(server, server.address(), tell, monkeypatch) == ["before", "unflushed"]


@pytest.mark.usefixtures("turn_path")
def test_what_nobody_was_told_is_lost_with_it(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the tests above would find nothing."""
    assert die_unflushed(server, server.address(), None, monkeypatch) == ["before"]
