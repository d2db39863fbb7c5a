"""A commit at which the server dies and stays away: nobody is told that it went well, nor that it did not."""

from collections.abc import Iterator
from typing import Any

import pytest

import weft
from tests.ledger.histories import grow, problems, queries
from tests.postgres import Server
from weft.kernel.clock import FixedClock
from weft.kernel.errors import OutcomeUnknown
from weft.store.postgres.connection import PostgresSql
from weft.store.postgres.straight_append import StraightAppends


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One that may be hurt."""
    made = Server()
    yield made
    made.remove()


@pytest.mark.slow("makes a server of its own")
@pytest.mark.parametrize("way", ["conclude", "call"])
def test_a_commit_whose_server_stays_away_has_an_unknown_outcome(
    server: Server, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the general way it is at the commit, on the straight one at the call."""
    go_on = getattr(PostgresSql, way)

    def dying(sql: PostgresSql, *statements: Any) -> Any:
        server.kill()
        server.wait_until_gone()  # until then the connection's own process may still commit
        return go_on(sql, *statements)

    with weft.open(server.address(), clock=FixedClock(1_794_700_800_000)) as ledger:
        grow(ledger, "main", "before")
        monkeypatch.setattr(PostgresSql, way, dying)
        if way == "conclude":
            monkeypatch.setattr(StraightAppends, "make_provisional", lambda *_: None)
        with pytest.raises(OutcomeUnknown) as unknown:
            grow(ledger, "main", "perhaps")
        assert "look whether it is there" in unknown.value.hint
        monkeypatch.undo()
        server.start()
        assert queries(ledger, "main") in (["before"], ["before", "perhaps"])
        assert problems(ledger) == []
