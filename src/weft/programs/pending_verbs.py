"""The verbs of what other ledgers decided: list it, take it over, refuse it, and think again.

Taking over is local state, and the deed of a person: an agent may not, whatever its configuration permits. An erasure
that is taken over is carried out here, which cannot be undone; everything else can.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from msgspec.structs import replace

from weft.kernel.enums import ProgramKind
from weft.kernel.errors import Action, InvalidInput, NotApplicable, NotFound, quoted
from weft.ledger.api import ensure_person
from weft.ledger.views.rows import load_program
from weft.ledger.write.transaction import reads_whole
from weft.programs.kinds.table import KINDS
from weft.programs.model import PendingItem
from weft.programs.pending import (
    APPROVAL,
    ERASURE,
    PENDING_KINDS,
    REFUSED,
    TAKEN,
    WAITING,
    came_from,
    chosen,
    decided_items,
    erasure_item,
    replica_named,
    waiting_answers,
    waiting_programs,
)
from weft.programs.program_base import ProgramsBase
from weft.programs.program_changes import permit_grants
from weft.programs.program_writer import ProgramWriter
from weft.store.replicas import note_refused, note_taken, release

APPLIED = "the erasure of another ledger, taken over here"


class PendingVerbs(ProgramsBase):
    """What other ledgers decided, and what is decided about that here."""

    @reads_whole
    def pending(
        self, *names: str, kind: str | None = None, source: str | None = None, decided: bool = False
    ) -> list[PendingItem]:
        """What waits, by arrival; with `decided` what was taken over or refused instead. `kind` is a kind of program,
        `approval` or `erasure`; `source` a replica that wrote it or brought it here."""
        if kind is not None and kind not in PENDING_KINDS:
            raise InvalidInput(f"kind is {quoted(kind)}", f"one of {', '.join(PENDING_KINDS)}")
        tombstones = self.ledger.erasure.done() if decided else self.ledger.erasure.pending()
        with self._reading() as txn:
            if decided:
                items = list(decided_items(txn, {tombstone.number: tombstone for tombstone in tombstones}))
            else:
                erasures = (erasure_item(txn, tombstone) for tombstone in tombstones)
                items = [*waiting_programs(txn), *waiting_answers(txn), *(item for item in erasures if item)]
            items = [item for item in items if kind in (None, item.kind)]
            if source is not None:
                replica = replica_named(txn, source, items)
                items = [item for item in items if came_from(txn, item, replica)]
        items.sort(key=lambda item: item.number)
        if not names:
            return items
        try:
            return chosen(items, names)
        except NotFound as missing:
            if not decided and missing.name is not None:
                self._refuse_decided(missing.name)
            raise

    def _refuse_decided(self, name: str) -> None:
        """A name that nothing waits under, since somebody here decided already."""
        with suppress(NotFound):
            item = self.pending(name, decided=True)[0]
            verb = {TAKEN: "taken over", REFUSED: "refused"}[item.status]
            raise NotApplicable(f"{item.kind} {item.name!r} {item.what} was {verb} here", Action.RECONSIDER_PENDING)

    def take_over(self, *names: str, kind: str | None = None, source: str | None = None) -> list[PendingItem]:
        """Let these count here: by id or name, or all of a kind or a source. Returns what was taken over."""
        self.ledger.trust.ensure("take over what another ledger decided")
        items = self._named(names, kind, source)
        self._decide("take_over", [item for item in items if item.kind != ERASURE], note_taken, _permit_taking)
        if contents := [item.name for item in items if item.kind == ERASURE]:
            self.ledger.erasure.erase(sorted(set(contents)), reason=APPLIED)
            self._decide("take_over", [item for item in items if item.kind == ERASURE], note_taken, _permit_refusing)
        return [replace(item, status=TAKEN) for item in items]

    def refuse(self, *names: str, kind: str | None = None, source: str | None = None) -> list[PendingItem]:
        """Do not let these count, and do not list them as waiting any more."""
        items = self._named(names, kind, source)
        self._decide("refuse", items, note_refused, _permit_refusing)
        return [replace(item, status=REFUSED) for item in items]

    def reconsider(self, *names: str, kind: str | None = None, source: str | None = None) -> list[PendingItem]:
        """Forget what was decided about these: they wait again. An erasure that was carried out stays so."""
        items = self._named(names, kind, source, decided=True)
        done = [item for item in items if item.kind == ERASURE and item.status == TAKEN]
        if done and names:
            raise NotApplicable(f"the erasure of {done[0].name[:16]} was carried out", "it cannot be undone")
        items = [item for item in items if item not in done]
        self._decide("reconsider", items, lambda sql, id, _: release(sql, id), _permit_refusing)
        return [replace(item, status=WAITING) for item in items]

    def _named(
        self, names: tuple[str, ...], kind: str | None, source: str | None, *, decided: bool = False
    ) -> list[PendingItem]:
        if not names and kind is None and source is None:
            raise InvalidInput("nothing was named", "give ids or names, a kind, or the replica that it came from")
        return self.pending(*names, kind=kind, source=source, decided=decided)

    def _decide(
        self,
        verb: str,
        items: list[PendingItem],
        note: Callable[..., None],
        permit: Callable[[ProgramWriter, PendingItem], None],
    ) -> None:
        if not items:
            return

        def work(writer: ProgramWriter) -> str:
            for item in items:
                ensure_person(writer.append, "take_over", f"decide about what another ledger says of {item.name!r}")
                permit(writer, item)
                note(writer.sql, item.id, writer.append.now_ms)
            return items[0].node

        self._perform(verb, work, None)


def _permit_refusing(writer: ProgramWriter, item: PendingItem) -> None:
    writer.ensure_allowed(_kind_of(item))
    _permit_item(writer, item, f"decide about what another ledger says of {item.name!r}")


def _permit_item(writer: ProgramWriter, item: PendingItem, what: str) -> None:
    """A configuration is decided about by those who may write it, what else waits with the permission to configure."""
    row = load_program(writer.sql, item.node)
    if item.kind not in KINDS:
        writer.permit("configure", what)
    elif row is not None:
        writer.permit_configuring(what, row)
    else:
        writer.permit_session(what, writer.append.view.session(item.node))


def _permit_taking(writer: ProgramWriter, item: PendingItem) -> None:
    """Whoever takes a configuration over must be allowed to write it; whoever takes an answer over, to give it."""
    writer.ensure_allowed(_kind_of(item))
    if item.kind == APPROVAL:
        writer.permit("approve", f"take over what was answered to {item.name}", item.node)
        return
    _permit_item(writer, item, f"take over version {item.version} of {item.name!r}")
    if not isinstance(item.config, dict):
        raise NotApplicable(
            f"version {item.version} of {item.kind} {item.name!r} is not here: it was erased, or did not come along",
            "configure it yourself",
        )
    KINDS[item.kind].refuse_name(item.name, item.config)
    row = load_program(writer.sql, item.node)
    kind = KINDS[item.kind]
    counted = row if row is not None else writer.append.view.session(item.node)
    writer.permit_machine(kind.name, item.name, kind.machine_changes(writer.config_of(counted), item.config))
    if row is not None:
        permit_grants(writer, kind, row, writer.config_of(row), item.config)


def _kind_of(item: PendingItem) -> str:
    """The kind of program that is decided about."""
    return {APPROVAL: str(ProgramKind.HUMAN), ERASURE: "node"}.get(item.kind, item.kind)
