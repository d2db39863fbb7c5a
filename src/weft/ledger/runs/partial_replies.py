"""What has come of an answer that is still being written: local state, for readers in other processes."""

from __future__ import annotations

from msgspec import Struct

from weft.ledger.write.append import Append, LedgerWriter
from weft.store.port import ReadTxn


class PartialReply(Struct, frozen=True):
    """The text so far of one request. `attempt` counts the requests of the turn, so that what was kept of an earlier
    answer is never taken for the beginning of a later one."""

    attempt: int
    text: str
    thinking: str = ""


def keep_partial(writer: LedgerWriter, turn: str, partial: PartialReply) -> None:
    """Replaces what was kept of the turn, unless that is of a later request: a broker that lost the turn changes
    nothing. A turn that is over keeps none."""

    def work(append: Append) -> None:
        append.sql.run(
            "INSERT INTO partial_reply(turn, attempt, text, thinking) SELECT turn, ?, ?, ? FROM open_run WHERE turn = ?"
            " ON CONFLICT (turn) DO UPDATE SET attempt = excluded.attempt, text = excluded.text,"
            " thinking = excluded.thinking WHERE excluded.attempt >= partial_reply.attempt",
            (partial.attempt, partial.text, partial.thinking, turn),
        )

    writer.write(work)


def load_partial(txn: ReadTxn, turn: str) -> PartialReply | None:
    row = txn.sql.one("SELECT attempt, text, thinking FROM partial_reply WHERE turn = ?", (turn,))
    return None if row is None else PartialReply(*row)
