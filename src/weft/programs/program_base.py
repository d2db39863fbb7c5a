"""What all verbs of programs need: an open ledger, and one append for each verb."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from weft.kernel.errors import AgentBusy, LeaseLost
from weft.ledger.api import Lease, Ledger, store_of, writer_of
from weft.ledger.write.turn_events import renew
from weft.programs.addresses import parse_address
from weft.programs.kinds.table import checked_kind
from weft.programs.lookups import find, to_program
from weft.programs.model import Program
from weft.programs.program_writer import ProgramWriter, name_in, perform
from weft.store.port import ReadTxn


class ProgramsBase:
    """Programs of one open ledger, changed in the ledger's name. Thread-safe, as the ledger is."""

    def __init__(self, ledger: Ledger, hold: Lease | None = None) -> None:
        self.ledger, self._hold = ledger, hold
        self._writer, self._store = writer_of(ledger), store_of(ledger)

    def _perform(self, verb: str, work: Callable[[ProgramWriter], str], key: str | None, *request: Any) -> str:
        hold = self._hold
        if hold is None:
            return perform(self._writer, verb, work, key, request)

        def under_lease(writer: ProgramWriter) -> str:
            renewed(writer, hold)
            return work(writer)

        return perform(self._writer, verb, under_lease, key, request)

    def _change(self, verb: str, work: Callable[[ProgramWriter], Any], key: str | None, *request: Any) -> Program:
        """Perform a verb whose work returns a row; returns the program as it is then."""
        program = self._perform(verb, lambda writer: str(work(writer).id), key, *request)
        with self._writer.store.read() as txn:  # whoever changed it is told of it, whether they may read it or not
            return to_program(txn, find(txn, program))

    @contextmanager
    def _reading(self) -> Iterator[ReadTxn]:
        with self._store.read() as txn:
            yield txn

    def get(self, name: str, *kinds: str) -> Program:
        """By name, ulid, `@(id)`, or `@(id:version)` for that version of its configuration."""
        wanted = [checked_kind(kind).name for kind in kinds]
        with self._reading() as txn:
            program_name = name_in(txn, name)
            version = None if program_name == name else parse_address(name, "program").version
            return to_program(txn, find(txn, program_name, wanted), version)


def renewed(writer: ProgramWriter, hold: Lease) -> str:
    """Renew an agent's lease; returns the agent's id. Raises AgentBusy where it was ended or taken over."""
    try:
        renew(writer.append, hold)
        return hold.key
    except LeaseLost:
        name = writer.reload(hold.key).name
        raise AgentBusy(name, "was reset or taken up by somebody else meanwhile", was_held=True) from None
