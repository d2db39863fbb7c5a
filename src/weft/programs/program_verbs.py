"""The verbs that all kinds of program have: create, configure, publish, delete, revert, and read the history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.kernel.errors import InvalidInput, quoted
from weft.ledger.arguments import checked_count, checked_flag, checked_names, checked_text
from weft.ledger.views.rows import ProgramRow, SessionRow
from weft.programs import program_changes
from weft.programs.json_values import differences, merged
from weft.programs.kinds import session
from weft.programs.kinds.published import deprecate, publish
from weft.programs.kinds.table import checked_kind, kind_of_row
from weft.programs.lookups import find, history, list_programs, to_program
from weft.programs.model import Difference, Program, ProgramChange
from weft.programs.nodes import add_tags
from weft.programs.program_base import ProgramsBase
from weft.programs.program_writer import ProgramWriter, find_program_or_session, name_in


class ProgramVerbs(ProgramsBase):
    """What all kinds of program have in common."""

    def create(
        self,
        kind: str,
        name: str,
        config: dict[str, Any],
        *,
        draft: bool = False,
        tagged: Sequence[str] = (),
        key: str | None = None,
    ) -> Program:
        """A new program, in use unless it is to stay a draft. Sent again with the same key it is made once."""
        kind_row = checked_kind(kind)
        checked_flag(draft, "draft")

        def work(writer: ProgramWriter) -> Any:
            row = program_changes.create(writer, kind_row, name, config, draft=draft)
            if tagged:
                add_tags(writer, row.id, tagged)
            return row

        return self._change("create", work, key, kind, name, config, draft, list(tagged))

    def create_session(
        self,
        label: str | None = None,
        *,
        model: str | None = None,
        owner: str | None = None,
        config: dict[str, Any] | None = None,
        key: str | None = None,
    ) -> Program:
        """A session of the ledger, with a model of its own; without a label it gets one."""
        if owner is not None:
            checked_text(owner, "owner")
        settings = {} if config is None else _checked_settings(config, "config")
        whole = {**settings, **({} if model is None else {"defaultModel": model})}

        def work(writer: ProgramWriter) -> Any:
            return session.create(writer, label, owner, whole)

        persona = owner or self.ledger.authority.principal.id
        return self._change("create_session", work, key, label, persona, whole)

    def all(self, kind: str | None = None, *, states: Sequence[str] = (), deleted: bool = False) -> list[Program]:
        """Living programs by kind and name, sessions last; with `deleted` also those that are hidden."""
        wanted = None if kind is None else checked_kind(kind)
        with self._reading() as txn:
            return list_programs(txn, wanted, checked_names(states, "state"), deleted=deleted)

    def configure(
        self,
        name: str,
        config: dict[str, Any],
        *,
        expected: int | None = None,
        reason: str | None = None,
        key: str | None = None,
    ) -> Program:
        """Another configuration, whole; with `expected` only if it is still at this version, else VersionConflict."""
        return self._reconfigure("configure", name, config, expected, reason, key)

    def change(
        self,
        name: str,
        changes: dict[str, Any],
        *,
        expected: int | None = None,
        reason: str | None = None,
        key: str | None = None,
    ) -> Program:
        """Some fields of its configuration; None takes one away, objects are changed field by field.
        A provider that moves to another server leaves its keys behind, unless they are given anew."""
        return self._reconfigure("change", name, _checked_settings(changes, "changes"), expected, reason, key)

    def _reconfigure(
        self, verb: str, name: str, given: Any, expected: int | None, reason: str | None, key: str | None
    ) -> Program:
        """A configuration, or with `change` the changes of one."""

        def config_for(writer: ProgramWriter, row: ProgramRow | SessionRow) -> Any:
            if verb == "configure":
                return given
            if isinstance(row, ProgramRow):
                writer.ensure_own(row)
            before = writer.config_of(row)
            return kind_of_row(row).changed(before, merged(before, given), given)

        def work(writer: ProgramWriter) -> Any:
            session_row = self._session(writer, name)
            if session_row is not None:
                config = config_for(writer, session_row)
                return session.configure(writer, session_row, config, expected, given=given)
            row = writer.require(name)
            config = config_for(writer, row)
            return program_changes.configure(writer, row, config, expected=expected, reason=reason, given=given)

        return self._change(verb, work, key, name, given, expected, reason)

    def _session(self, writer: ProgramWriter, name: str) -> SessionRow | None:
        """A session, where no program has this name."""
        row = find_program_or_session(writer.append, name_in(writer.append, name))
        return writer.require_session(row.id) if isinstance(row, SessionRow) else None

    def publish(self, name: str, *, reason: str | None = None, key: str | None = None) -> Program:
        return self._change("publish", lambda c: publish(c, c.require(name), reason), key, name, reason)

    def deprecate(self, name: str, *, reason: str | None = None, key: str | None = None) -> Program:
        return self._change("deprecate", lambda c: deprecate(c, c.require(name), reason), key, name, reason)

    def delete(
        self, name: str, *, expected: int | None = None, reason: str | None = None, key: str | None = None
    ) -> Program:
        """Hidden and deprecated; its name is free, its history stays. A session is deleted as one."""

        def work(writer: ProgramWriter) -> Any:
            session_row = self._session(writer, name)
            if session_row is not None:
                return session.delete(writer, session_row, expected=expected, reason=reason)
            return program_changes.delete(writer, writer.require(name), expected=expected, reason=reason)

        return self._change("delete", work, key, name, expected, reason)

    def revert(
        self,
        name: str,
        version: int,
        *,
        expected: int | None = None,
        reason: str | None = None,
        key: str | None = None,
    ) -> Program:
        """The configuration of an earlier version again; the versions between stay in its history."""
        wanted = checked_count(version, "version")

        def work(writer: ProgramWriter) -> Any:
            if self._session(writer, name) is not None:
                raise InvalidInput("a session's configuration is not reverted", "configure it anew")
            return program_changes.revert(writer, writer.require(name), wanted, expected=expected, reason=reason)

        return self._change("revert", work, key, name, version, expected, reason)

    def history(self, name: str) -> list[ProgramChange]:
        """Everything that happened to it, newest first."""
        with self._reading() as txn:
            return history(txn, find(txn, name))

    def diff(self, name: str, before: int | None = None, after: int | None = None) -> list[Difference]:
        """Where two versions of its configuration differ: by default the last two."""
        with self._reading() as txn:
            row = find(txn, name)
            new = to_program(txn, row).version if after is None else checked_count(after, "version")
            old = new - 1 if before is None else checked_count(before, "version")
            configs = [{} if number == 0 else to_program(txn, row, number).config for number in (old, new)]
        return list(differences(*configs))


def _checked_settings(settings: Any, what: str) -> dict[str, Any]:
    if not isinstance(settings, Mapping):
        raise InvalidInput(f"{what} is {quoted(settings)}", "give a dict of settings")
    return dict(settings)
