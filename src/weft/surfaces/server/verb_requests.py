"""A verb called for a request: its parameters from the path, the query and the body, and its answer as JSON.

The parameters are those of the verb's declaration, and nothing else is taken. The record that they are read into is
made by the verb, so a wrong name or type is refused before the ledger is asked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta, ValidationError
from msgspec.structs import replace

from weft.surfaces.cli.work.sandbox_access import NoMachine
from weft.surfaces.server.problems import Refusal
from weft.surfaces.server.route_table import MOST_PAGE, RETRY_PARAMETER, is_paged
from weft.surfaces.wire.forms import form
from weft.surfaces.wire.records import whole
from weft.verbs.answers import Answer, Listing
from weft.verbs.declaration import OpenMode, Parameter

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.surfaces.server.route_table import Route
    from weft.verbs.declaration import Machine


class VerbRequests:
    """What one route is asked with, and what it answers."""

    def __init__(self, route: Route) -> None:
        self.route, self.verb = route, route.verb
        assert self.verb.terms.opens is not OpenMode.ACTING, f"{self.verb.name} acts: it has a route of its own"

    @cached_property
    def request_type(self) -> type[msgspec.Struct]:
        if not self.is_paged:
            return self.verb.request_type(self.route.name, self.route.without)
        base = self.verb.request_type(self.route.name, (*self.route.without, *PAGE_PARAMETERS))
        limit = Annotated[int, Meta(ge=0, le=MOST_PAGE, description=f"At most so many records; {MOST_PAGE} at most.")]
        after = Annotated[str | None, Meta(description="Start behind the page that answered this as `next`.")]
        fields = [("limit", limit, self._page_size), ("after", after, None)]
        return msgspec.defstruct(
            base.__name__, fields, bases=(base,), kw_only=True, frozen=True, forbid_unknown_fields=True
        )

    @cached_property
    def is_paged(self) -> bool:
        """Whether it answers a list, which is cut to pages: by its verb, or here where its verb has no cursor."""
        return is_paged(self.route)

    @cached_property
    def _has_cursor(self) -> bool:
        return "after" in self._parameters

    @property
    def _page_size(self) -> int:
        """Without a limit."""
        own = self._parameters["limit"].default if "limit" in self._parameters else None
        return PAGE_SIZE if own is None else min(own, MOST_PAGE)

    @cached_property
    def _parameters(self) -> dict[str, Parameter]:
        """Those that the route takes."""
        return {one.name: one for one in self.verb.parameters if one.name not in self.route.without}

    @cached_property
    def _defaults(self) -> dict[str, Any]:
        """Of those that it does not take."""
        route = self.route
        return {name: name in route.always or self.verb.parameter(name).default for name in route.without}

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
        fields = self.request_type.__struct_fields__
        return {**self._defaults, **{name: getattr(request, name) for name in fields}}

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
        page = None
        if self.is_paged and not self._has_cursor:
            page = arguments["limit"], arguments["after"]
            arguments = {**arguments, **self._unlimited}
        grouped = verb.grouped(arguments)
        verb.check(arguments)
        answered = verb.function(ledger, **grouped, **machines)
        if page is not None:
            assert isinstance(answered, Listing)
            answered = page_of(answered, *page)
        if is_whole:
            return whole(answered)
        if isinstance(answered, Listing):
            return {"items": form(list(answered.items)), "next": answered.next, **_beside(answered)}
        if isinstance(answered, Answer) and answered.is_silent:
            return None
        return form(answered)

    @cached_property
    def _unlimited(self) -> dict[str, Any]:
        """The limit of a verb that has one and no cursor: as much as it answers at once."""
        own = self._parameters.get("limit")
        return {} if own is None else {"limit": None if own.default is None else own.details.most}


# --- Pages.

PAGE_SIZE = 50
"""Records on a page where nobody says how many."""
PAGE_PARAMETERS = ("limit", "after")


def page_of(listing: Listing[Any], limit: int, after: str | None) -> Listing[Any]:
    """So many records behind a cursor, of a list that is known whole. The cursor is a place and a digest of the record
    that stood there: where others came before it meanwhile, it is looked for; where it is gone, its place counts."""
    items = list(listing.items)
    start = 0 if after is None else _place_behind(items, after)
    end = start + limit
    more = 0 < end < len(items)
    return replace(listing, items=items[start:end], next=f"{end}.{_digest(items[end - 1])}" if more else None)


def _place_behind(items: list[Any], cursor: str) -> int:
    number, _, digest = cursor.partition(".")
    if not (number.isascii() and number.isdecimal() and len(number) <= 9 and digest):
        raise Refusal(422, "invalid_input", "after is no cursor", "take `next` of the page before")
    place = int(number)
    if 0 < place <= len(items) and _digest(items[place - 1]) == digest:
        return place
    return next((n for n, item in enumerate(items, 1) if _digest(item) == digest), place)


def _digest(item: Any) -> str:
    """Of what names a record; of all that it says, where nothing does."""
    name = getattr(item, "id", None) or getattr(item, "name", None) or msgspec.json.encode(form(item)).decode()
    return hashlib.sha256(str(name).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _beside(listing: Listing[Any]) -> dict[str, Any]:
    """What a page tells beside its records."""
    names = [name for name in listing.__struct_fields__ if name not in ("items", "next")]
    return {name: form(getattr(listing, name)) for name in names}
