"""Programs made, configured, published, deprecated and deleted, and what their histories tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from weft.kernel.errors import InvalidInput
from weft.ledger.arguments import checked_count, checked_flag
from weft.ledger.views.rows import SessionRow
from weft.programs import making, sessions, tags
from weft.programs.configs import PROVIDER_KEYS
from weft.programs.face import Room, checked_kind
from weft.programs.json_values import differences, merged
from weft.programs.model import Difference, Program, ProgramChange
from weft.programs.program_writer import ProgramWriter, find_any, name_in
from weft.programs.reading import find, history, list_programs, to_program


class Describing(Room):
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
        made = checked_kind(kind)
        checked_flag(draft, "draft")

        def work(clerk: ProgramWriter) -> Any:
            row = making.create(clerk, made, name, config, draft=draft)
            if tagged:
                tags.add(clerk, row.id, tagged)
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
        given = {**(config or {}), **({} if model is None else {"defaultModel": model})}
        by = owner or self.ledger.authority.principal.id

        def work(clerk: ProgramWriter) -> Any:
            return sessions.create(clerk, label, by, given)

        return self._change("create_session", work, key, label, by, given)

    def all(self, kind: str | None = None, *, states: Sequence[str] = (), deleted: bool = False) -> list[Program]:
        """Living programs by kind and name, sessions last; with `deleted` also those that are hidden."""
        wanted = None if kind is None else checked_kind(kind)
        with self._reading() as txn:
            return list_programs(txn, wanted, states, deleted=deleted)

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
        return self._configured("configure", name, lambda _: config, expected, reason, key, config)

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
        return self._configured(
            "change", name, lambda before: _changed(before, changes), expected, reason, key, changes
        )

    def _configured(
        self,
        verb: str,
        name: str,
        made: Callable[[dict[str, Any]], dict[str, Any]],
        expected: int | None,
        reason: str | None,
        key: str | None,
        given: Any,
    ) -> Program:
        seen = None if expected is None else checked_count(expected, "expected version")

        def work(clerk: ProgramWriter) -> Any:
            found = self._session(clerk, name)
            if found is not None:
                before = clerk.config_of(found) if verb == "change" else {}
                return sessions.configure(clerk, found, _kept(made(before)), seen)
            row = clerk.require(name)
            before = clerk.config_of(row) if verb == "change" else {}
            return making.configure(clerk, row, made(before), expected=seen, reason=reason)

        return self._change(verb, work, key, name, given, expected, reason)

    def _session(self, clerk: ProgramWriter, name: str) -> SessionRow | None:
        """A session, where no program has this name."""
        found = find_any(clerk.sql, name_in(clerk.sql, name))
        return clerk.require_session(found.id) if isinstance(found, SessionRow) else None

    def publish(self, name: str, *, reason: str | None = None, key: str | None = None) -> Program:
        return self._change("publish", lambda c: making.publish(c, c.require(name), reason), key, name, reason)

    def deprecate(self, name: str, *, reason: str | None = None, key: str | None = None) -> Program:
        return self._change("deprecate", lambda c: making.deprecate(c, c.require(name), reason), key, name, reason)

    def delete(
        self, name: str, *, expected: int | None = None, reason: str | None = None, key: str | None = None
    ) -> Program:
        """Hidden and deprecated; its name is free, its history stays. A session is deleted as one."""

        def work(clerk: ProgramWriter) -> Any:
            found = self._session(clerk, name)
            if found is not None:
                return sessions.delete(clerk, found, expected=expected, reason=reason)
            return making.delete(clerk, clerk.require(name), expected=expected, reason=reason)

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

        def work(clerk: ProgramWriter) -> Any:
            if self._session(clerk, name) is not None:
                raise InvalidInput("a session's configuration is not reverted", "configure it anew")
            return making.revert(clerk, clerk.require(name), wanted, expected=expected, reason=reason)

        return self._change("revert", work, key, name, version, expected, reason)

    def history(self, name: str) -> list[ProgramChange]:
        """Everything that happened to it, newest first."""
        with self._reading() as txn:
            return history(txn, find(txn, name))

    def diff(self, name: str, before: int | None = None, after: int | None = None) -> list[Difference]:
        """Where two versions of its configuration differ: by default the last two."""
        with self._reading() as txn:
            row = find(txn, name)
            now = to_program(txn, row)
            new = now.version if after is None else checked_count(after, "version")
            old = new - 1 if before is None else checked_count(before, "version")
            configs = [{} if one == 0 else to_program(txn, row, one).config for one in (old, new)]
        return list(differences(*configs))


def _changed(before: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    made = merged(before, changes)
    if "providerType" not in before or not isinstance(made, dict) or not _moves(before, made):
        return made  # type: ignore[no-any-return]
    return {name: value for name, value in made.items() if name not in PROVIDER_KEYS or name in changes}


def _moves(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether requests would go to somebody else: another server, another vendor's own, another account's gateway."""
    account = before.get("accountId")
    return _server(before) != _server(after) or (account is not None and account != after.get("accountId"))


def _server(config: dict[str, Any]) -> tuple[str, str]:
    """Scheme and host, or where no URL is given the vendor."""
    if not isinstance(config.get("baseUrl"), str):
        return "", str(config.get("providerType"))
    parts = urlsplit(config["baseUrl"])
    return parts.scheme, parts.netloc.casefold()


def _kept(config: Any) -> Any:
    """A session's owner is told with its configuration and not part of it."""
    return {name: value for name, value in config.items() if name != "owner"} if isinstance(config, dict) else config
