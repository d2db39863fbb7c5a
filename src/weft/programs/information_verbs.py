"""The verbs of information, of people, and of tags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from weft.kernel.enums import ProgramKind
from weft.kernel.errors import Action, InvalidInput, NotFound, quoted
from weft.ledger.arguments import checked_text
from weft.ledger.views.rows import ProgramRow, load_request
from weft.programs.kinds import human as people
from weft.programs.kinds import information
from weft.programs.lookups import InformationQuery, find, find_information, may_read_request, requests, to_request
from weft.programs.model import PersonRequest, Program, TaggedNode
from weft.programs.nodes import add_tags, find_node, nodes_with, remove_tags, tags_of
from weft.programs.program_base import ProgramsBase
from weft.programs.program_writer import ProgramWriter

INFORMATION, HUMAN = ProgramKind.INFORMATION, ProgramKind.HUMAN
STATUSES = ("told", "pending", "approved", "rejected")


class InformationVerbs(ProgramsBase):
    """What is known, who is told of it, and what things are tagged with."""

    def validate(self, name: str, *, reason: str | None = None, key: str | None = None) -> Program:
        """A draft that fits its schema; else SchemaMismatch, and it stays a draft."""
        return self._change(
            "validate", lambda c: information.validate(c, c.require(name, INFORMATION), reason), key, name, reason
        )

    def activate(self, name: str, *, reason: str | None = None, key: str | None = None) -> Program:
        return self._change(
            "activate", lambda c: information.activate(c, c.require(name, INFORMATION), reason), key, name, reason
        )

    def archive(self, name: str, *, reason: str | None = None, key: str | None = None) -> Program:
        return self._change(
            "archive", lambda c: information.archive(c, c.require(name, INFORMATION), reason), key, name, reason
        )

    def query(
        self,
        text: str | None = None,
        *,
        info_type: str | None = None,
        tagged: Sequence[str] = (),
        path: str | None = None,
        equals: Any | UnsetType = UNSET,
        archived: bool = False,
    ) -> list[Program]:
        """Information by its words, type, tags and what stands at a path of its content; all of them must hold."""
        query = InformationQuery(
            text=text, info_type=info_type, tags=tagged, path=path, equals=equals, archived=archived
        )
        with self._reading() as txn:
            return find_information(txn, query)

    def set_presence(self, human: str, presence: str, *, key: str | None = None) -> Program:
        return self._change(
            "set_presence", lambda c: people.presence(c, c.require(human, HUMAN), presence), key, human, presence
        )

    def notify(
        self,
        human: str,
        text: str,
        *,
        asks: bool = False,
        program: str | None = None,
        data: Any = None,
        key: str | None = None,
    ) -> PersonRequest:
        """What a person is to be told, or with `asks` to decide. It is kept; reaching them is somebody else's work."""

        def work(writer: ProgramWriter) -> str:
            return people.notify(writer, writer.require(human, HUMAN), text, asks=asks, program=program, data=data)

        return self.request(self._perform("notify", work, key, human, text, asks, program, data))

    def approve(self, request: str, *, reason: str | None = None, key: str | None = None) -> PersonRequest:
        """Yes, by the person who was asked and who has the permission to approve."""
        self.ledger.trust.ensure("take an approval")
        return self.request(
            self._perform("approve", lambda c: people.answer(c, request, True, reason), key, request, reason)
        )

    def reject(self, request: str, *, reason: str | None = None, key: str | None = None) -> PersonRequest:
        self.ledger.trust.ensure("take an answer")
        return self.request(
            self._perform("reject", lambda c: people.answer(c, request, False, reason), key, request, reason)
        )

    def request(self, request: str) -> PersonRequest:
        with self._reading() as txn:
            row = load_request(txn.sql, checked_text(request, "request"))
            if row is None or not may_read_request(txn, row):
                raise NotFound("request", request, Action.LIST_REQUESTS)
            return to_request(txn, row)

    def requests(self, human: str | None = None, *, status: str | None = None) -> list[PersonRequest]:
        """What people were told and asked, the oldest first."""
        if status is not None and status not in STATUSES:
            raise InvalidInput(f"status is {quoted(status)}", f"one of {', '.join(STATUSES)}")
        with self._reading() as txn:
            row = None if human is None else find(txn, human, (HUMAN,))
            return requests(txn, row if isinstance(row, ProgramRow) else None, status)

    def add_tags(self, node: str, *given: str, key: str | None = None) -> list[str]:
        """Tags on anything that has an id; all that it has then."""
        return self.tags(self._perform("add_tags", lambda c: add_tags(c, node, given), key, node, list(given)))

    def remove_tags(self, node: str, *given: str, key: str | None = None) -> list[str]:
        return self.tags(self._perform("remove_tags", lambda c: remove_tags(c, node, given), key, node, list(given)))

    def tags(self, node: str) -> list[str]:
        with self._reading() as txn:
            return tags_of(txn.sql, find_node(txn, node))

    def tagged(self, *given: str) -> list[TaggedNode]:
        """Everything that has all of these tags."""
        with self._reading() as txn:
            return nodes_with(txn, given)
