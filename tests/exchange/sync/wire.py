"""A conversation between two ledgers of one process, byte by byte, which can be cut anywhere."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from weft.exchange.sync.commands import ServePermissions, SyncClient, SyncServer
from weft.exchange.sync.fact_transfer import PREAMBLE, Frame, FrameReader, LocalConversation, SyncOutcome, Talk, encode
from weft.exchange.sync.synced_ledgers import select_threads
from weft.kernel.errors import ConnectionCut
from weft.ledger.api import store_of
from weft.ledger.api.ledger import Ledger
from weft.ledger.upkeep.facts_file import views_are_stale

T = TypeVar("T")
FOREVER = 1 << 60


class Wire(LocalConversation):
    """Every frame goes through its bytes. After `cut` bytes, both ways together, both sides are alone."""

    def __init__(self, served: Talk[Any], cut: int = FOREVER) -> None:
        super().__init__(served)
        self.left = cut
        self.bytes = 0
        self._there, self._back = FrameReader(), FrameReader()
        self.heard: list[Frame] = []
        for reader in (self._there, self._back):
            self._carry(reader, PREAMBLE)

    def _carry(self, reader: FrameReader, data: bytes) -> list[Frame]:
        """What of these bytes gets across, as frames."""
        got = list(reader.feed(data[: self.left]))
        self.bytes += min(len(data), self.left)
        self.left -= len(data)
        if self.left < 0:
            self.left = 0
            raise ConnectionCut("cut by the test")
        return got

    def _hand_over(self, frame: Frame) -> None:
        for got in self._carry(self._there, encode(frame)):
            super()._hand_over(got)

    def _answer(self) -> Frame:
        (got,) = self._carry(self._back, encode(super()._answer()))
        self.heard.append(got)
        return got


def over_wire(
    here: Ledger,
    there: Ledger,
    talk: Callable[[SyncClient], Talk[T]],
    cut: int = FOREVER,
    manners: ServePermissions | None = None,
) -> tuple[T, Wire]:
    """One talk of `here` with `there`, from greeting to leaving."""
    asking = SyncClient(store_of(here))
    store_of(here).catch_up()
    wire = Wire(SyncServer(store_of(there), manners or ServePermissions()).serve(), cut)
    try:
        wire.converse(asking.greeting())
        answer = wire.converse(talk(asking))
        wire.converse(asking.leaving())
    finally:
        wire.close()
        for ledger in (here, there):
            if views_are_stale(store_of(ledger)):
                ledger.upkeep.rebuild()
    return answer, wire


def pull(here: Ledger, there: Ledger, cut: int = FOREVER) -> tuple[SyncOutcome, Wire]:
    return over_wire(here, there, lambda asking: asking.pulling(), cut)


def push(here: Ledger, there: Ledger, cut: int = FOREVER, sessions: Sequence[str] = ()) -> tuple[SyncOutcome, Wire]:
    chosen = None
    if sessions:
        store_of(here).catch_up()
        chosen = select_threads(store_of(here), [here.session(name).id for name in sessions])
    return over_wire(here, there, lambda asking: asking.pushing(chosen), cut)


def events(ledger: Ledger) -> set[bytes]:
    return {recorded.line for recorded in ledger.changes()}


def contents(ledger: Ledger) -> set[bytes]:
    with store_of(ledger).read() as txn:
        return {bytes(ref) for (ref,) in txn.sql.fetch_rows("SELECT ref FROM content WHERE length(salt) > 0")}


def husks(ledger: Ledger) -> set[bytes]:
    with store_of(ledger).read() as txn:
        return {bytes(ref) for (ref,) in txn.sql.fetch_rows("SELECT ref FROM content WHERE length(salt) = 0")}


def digests(ledger: Ledger) -> dict[str, str]:
    with store_of(ledger).read() as txn:
        return {turn: bytes(last).hex() for turn, last in txn.sql.fetch_rows("SELECT id, last_event FROM turn")}


def tips(ledger: Ledger) -> set[tuple[str, bytes]]:
    """The ends of every branch of every session, its own among them."""
    with store_of(ledger).read() as txn:
        own = txn.sql.fetch_rows("SELECT id, last_event FROM session")
        others = txn.sql.fetch_rows("SELECT s.id, b.tip FROM branch b JOIN session s ON s.n = b.session")
    return {(session, bytes(tip)) for session, tip in [*own, *others]}


def heads(ledger: Ledger) -> set[tuple[str, str | None]]:
    """Every place where a session stands, here or elsewhere."""
    own = {(session.id, session.head) for session in ledger.sessions(every=True)}
    return own | {(branch.session_id, branch.head) for branch in ledger.merges.branches()}


def body(frame: Frame) -> Any:
    return msgspec.json.decode(frame.body)
