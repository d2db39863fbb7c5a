"""Who vouches for each part of a context: a person here, an agent, a tool, an import, or a peer.

A part that came with an imported turn is vouched for by the import alone, and one that another replica wrote by that
peer: what such a turn says about persons and tools is hearsay. A summary, be it of a compaction or of another branch,
is vouched for by whoever wrote it and by everybody who vouches for what it covers; a turn that was picked from
elsewhere keeps the vouchers of its source. A fork changes nothing, since it shares its turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum

import orjson
from msgspec import Struct

from weft.kernel.enums import LinkReason, MessageRole, MessageSource, ProgramKind
from weft.ledger.model import PROMPT_SEQUENCE, Message, Part, ToolResultPart
from weft.ledger.read.contexts import Context
from weft.ledger.read.threads import Range, ranges_to, turns_in
from weft.ledger.views.rows import TurnRow, load_turn
from weft.store.authorship import is_written_here
from weft.store.port import ReadTxn

_COPIES = (LinkReason.CHERRY_PICK, LinkReason.SUMMARY)


class VoucherKind(StrEnum):
    """Whose word a part of a context is. `unknown`: it was recorded as coming from outside, such as a webhook."""

    PERSON = "person"
    AGENT = "agent"
    TOOL = "tool"
    IMPORT = "import"
    PEER = "peer"
    UNKNOWN = "unknown"


class Voucher(Struct, frozen=True, order=True):
    """`id` is that of a person or an agent, the name of a tool, the origin of an import, or a peer's replica."""

    kind: VoucherKind
    id: str


class VouchedMessage(Struct, frozen=True, kw_only=True):
    """A message of a context, and for each of its parts everybody who vouches for it."""

    message_id: str
    parts: tuple[tuple[Voucher, ...], ...]

    @property
    def kinds(self) -> frozenset[VoucherKind]:
        return frozenset(voucher.kind for part in self.parts for voucher in part)


def vouchers_of(txn: ReadTxn, context: Context) -> list[VouchedMessage]:
    """The vouchers of a context's messages, in their order."""
    reader = _VoucherReader(txn)
    return [
        VouchedMessage(message_id=message.id, parts=tuple(reader.of_part(message, part) for part in message.content))
        for message in context.messages
    ]


def strangers_of(txn: ReadTxn, turn: TurnRow) -> list[Voucher]:
    """The import or the peer that a turn came from; nothing where it was written here."""
    return sorted(_VoucherReader(txn).strangers(turn))


class _VoucherReader:
    """Looks each turn up once."""

    def __init__(self, txn: ReadTxn) -> None:
        self._txn = txn
        self._strangers: dict[str, frozenset[Voucher]] = {}
        self._persons = {
            id for (id,) in txn.sql.all("SELECT id FROM program WHERE kind = ?", (ProgramKind.HUMAN.value,))
        }

    def of_part(self, message: Message, part: Part) -> tuple[Voucher, ...]:
        if message.sequence == PROMPT_SEQUENCE:
            return (Voucher(VoucherKind.AGENT, message.id),)
        turn = self._turn_of(message)
        if turn is None:
            return (Voucher(VoucherKind.UNKNOWN, message.id),)
        if turn.id == message.id:  # the summary of a compaction
            return tuple(sorted({*self._covered(turn), self._own(turn, message, part)}))
        return tuple(sorted(self.strangers(turn) or {self._own(turn, message, part)} | self._copied(turn)))

    def strangers(self, turn: TurnRow) -> frozenset[Voucher]:
        """The import or the peer that a turn came from; nothing where it was written here."""
        known = self._strangers.get(turn.id)
        if known is None:
            known = self._strangers[turn.id] = frozenset(self._read_strangers(turn))
        return known

    def _read_strangers(self, turn: TurnRow) -> Iterator[Voucher]:
        if turn.origin is not None:
            yield Voucher(VoucherKind.IMPORT, turn.origin)
        line = self._txn.facts.line(turn.n)
        replica = None if line is None else orjson.loads(line).get("replica")
        if replica is not None and not is_written_here(self._txn.sql, turn.n, replica):
            yield Voucher(VoucherKind.PEER, replica)

    def _own(self, turn: TurnRow, message: Message, part: Part) -> Voucher:
        """Of a turn that was written here."""
        if isinstance(part, ToolResultPart) or message.role == MessageRole.TOOL:
            return Voucher(VoucherKind.TOOL, self._tool_name(turn, part))
        if message.role == MessageRole.ASSISTANT:
            return Voucher(VoucherKind.AGENT, turn.persona)
        if message.source == MessageSource.AGENT:
            asker = self._asker(turn)
            return asker if asker.kind is VoucherKind.AGENT else Voucher(VoucherKind.AGENT, turn.persona)
        if message.source not in (None, MessageSource.HUMAN):
            return Voucher(VoucherKind.UNKNOWN, str(message.source))
        return self._asker(turn)

    def _asker(self, turn: TurnRow) -> Voucher:
        """Who wrote what a turn was asked: whoever acted, where that was not the ledger's owner."""
        line = self._txn.facts.line(turn.n)
        acting = [] if line is None else orjson.loads(line).get("on_behalf_of") or []
        if not acting:
            return Voucher(VoucherKind.PERSON, "local")
        return Voucher(VoucherKind.PERSON if acting[0] in self._persons else VoucherKind.AGENT, acting[0])

    def _tool_name(self, turn: TurnRow, part: Part) -> str:
        call = part.tool_call_id if isinstance(part, ToolResultPart) else ""
        rows = self._txn.sql.all("SELECT tool, call_id FROM tool_call WHERE turn = ? ORDER BY seq", (turn.n,))
        return next((tool for tool, number in rows if self._txn.facts.text(number) == call), "")

    def _covered(self, compaction: TurnRow) -> set[Voucher]:
        """Everybody who vouches for a turn that a compaction's summary may tell."""
        return self._vouchers_in(ranges_to(self._txn.sql, compaction.segment, compaction.depth))

    def _copied(self, turn: TurnRow) -> set[Voucher]:
        """Everybody who vouches for what a turn was picked from, or for the branch that it summarises."""
        query = "SELECT parent, why FROM link WHERE child = ? AND why IN (?, ?) ORDER BY parent"
        vouchers: set[Voucher] = set()
        for parent, why in self._txn.sql.all(query, (turn.id, *(reason.value for reason in _COPIES))):
            source = load_turn(self._txn.sql, parent)
            if source is None:
                vouchers.add(Voucher(VoucherKind.UNKNOWN, parent))
            elif why == LinkReason.CHERRY_PICK:
                vouchers |= self.strangers(source) or {Voucher(VoucherKind.AGENT, source.persona)}
            else:
                vouchers |= self._vouchers_in(ranges_to(self._txn.sql, source.segment, source.depth))
        return vouchers

    def _vouchers_in(self, ranges: Iterable[Range]) -> set[Voucher]:
        vouchers: set[Voucher] = set()
        for part in ranges:
            for turn in turns_in(self._txn.sql, part):
                vouchers |= self.strangers(turn) or {self._asker(turn), Voucher(VoucherKind.AGENT, turn.persona)}
                if turn.calls and turn.origin is None:
                    rows = self._txn.sql.all("SELECT DISTINCT tool FROM tool_call WHERE turn = ?", (turn.n,))
                    vouchers |= {Voucher(VoucherKind.TOOL, tool) for (tool,) in rows}
        return vouchers

    def _turn_of(self, message: Message) -> TurnRow | None:
        """A message that stands for a tool call is named after its turn, like the call."""
        named, mark, _ = message.id.partition(":")
        return load_turn(self._txn.sql, named if mark or message.sequence < 0 else message.turn_id)
