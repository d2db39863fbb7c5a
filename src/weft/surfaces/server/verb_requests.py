"""A verb called for a request: its parameters from the path, the query and the body, and its answer as JSON.

The parameters are those of the verb's declaration, and nothing else is taken. The record that they are read into is
made by the verb, so a wrong name or type is refused before the ledger is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import ValidationError

from weft.kernel.authority import Authority
from weft.surfaces.server.callers import MACHINE_RIGHT
from weft.surfaces.server.problems import Refusal
from weft.surfaces.wire.forms import form
from weft.surfaces.wire.records import whole
from weft.verbs.answers import Answer, Listing
from weft.verbs.declaration import OpenMode, Parameter

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.surfaces.server.route_table import Route
    from weft.verbs.declaration import Machine

RETRY_PARAMETER = "retry_key"
RETRY_HEADER = "idempotency-key"


class VerbRequests:
    """What one route is asked with, and what it answers."""

    def __init__(self, route: Route) -> None:
        self.route, self.verb = route, route.verb
        assert self.verb.terms.opens is not OpenMode.ACTING, f"{self.verb.name} acts: it has a route of its own"

    @cached_property
    def request_type(self) -> type[msgspec.Struct]:
        return self.verb.request_type(self.route.name, self.route.without)

    @cached_property
    def _parameters(self) -> dict[str, Parameter]:
        """Those that the route takes."""
        return {one.name: one for one in self.verb.parameters if one.name not in self.route.without}

    @cached_property
    def _defaults(self) -> dict[str, Any]:
        """Of those that it does not take."""
        return {name: self.verb.parameter(name).default for name in self.route.without}

    @property
    def takes_retry_key(self) -> bool:
        return RETRY_PARAMETER in self._parameters

    def arguments(
        self, path: Mapping[str, str], query: list[tuple[str, str]], body: bytes, retry_key: str | None
    ) -> dict[str, Any]:
        """The verb's parameters. Raises Refusal with 400 or 422."""
        given = self._body(body) if self.route.method != "GET" else self._query(query)
        for name, value in path.items():
            if name in given:
                raise Refusal(422, "invalid_input", f"{name} stands in the path already")
            given[name] = [value] if self._parameters[name].is_repeated else value
        if retry_key is not None:
            if not self.takes_retry_key:
                raise Refusal(422, "invalid_input", "this route takes no Idempotency-Key", "leave the header out")
            if given.setdefault(RETRY_PARAMETER, retry_key) != retry_key:
                raise Refusal(422, "invalid_input", f"Idempotency-Key and {RETRY_PARAMETER} differ")
        strict = self.route.method != "GET"
        try:
            request = msgspec.convert(given, self.request_type, strict=strict)
        except ValidationError as error:
            raise Refusal(422, "invalid_input", str(error)) from None
        return {**self._defaults, **{name: getattr(request, name) for name in self._parameters}}

    def _query(self, query: list[tuple[str, str]]) -> dict[str, Any]:
        given: dict[str, Any] = {}
        for name, value in query:
            parameter = self._parameters.get(name)
            if parameter is not None and parameter.is_repeated:
                given.setdefault(name, []).append(value)
            elif name in given:
                raise Refusal(422, "invalid_input", f"{name} is given twice")
            else:
                given[name] = value
        return given

    def _body(self, body: bytes) -> dict[str, Any]:
        if not body:
            return {}
        try:
            given = msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise Refusal(400, "invalid_json", f"the body is no JSON: {error}"[:200]) from None
        if not isinstance(given, dict):
            raise Refusal(422, "invalid_input", "the body is no JSON object")
        return given

    def answer(
        self, ledger: Ledger, arguments: dict[str, Any], machine: Machine | None, *, is_whole: bool = False
    ) -> Any:
        """The JSON of what the verb answers; with `is_whole` all fields of its record. Called in a thread of the
        ledger."""
        verb = self.verb
        machines: dict[str, Any] = {}
        if verb.machines:
            machines = dict.fromkeys(verb.machines, machine if machine is not None else NoMachine(ledger.authority))
        grouped = verb.grouped(arguments)
        verb.check(arguments)
        answered = verb.function(ledger, **grouped, **machines)
        if is_whole:
            return whole(answered)
        if isinstance(answered, Listing):
            return {"items": form(list(answered.items)), "next": answered.next, **_beside(answered)}
        if isinstance(answered, Answer) and answered.is_silent:
            return None
        return form(answered)


def _beside(listing: Listing[Any]) -> dict[str, Any]:
    """What a page tells beside its records."""
    names = [name for name in listing.__struct_fields__ if name not in ("items", "next")]
    return {name: form(getattr(listing, name)) for name in names}


class NoMachine:
    """In place of the folders and containers of the machine, for whoever is not its owner."""

    def __init__(self, authority: Authority) -> None:
        self._authority = authority

    def __getattr__(self, name: str) -> Any:
        raise self._authority.refusal(MACHINE_RIGHT, "reach the files of this machine", "its owner can")
