"""Every route that calls a verb: its method and path, the verb, and the right that it needs.

Whoever asks is checked for the right before anything else is done; the ledger then checks each object, as it does for
every caller.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

from msgspec import Struct

from weft.verbs.answers import Listing
from weft.verbs.declaration import Verb

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from weft.surfaces.server.callers import Caller

BASE = "/api/v1"
RETRY_PARAMETER = "retry_key"
RETRY_HEADER = "idempotency-key"
"""A header that gives this parameter of a verb."""
MOST_PAGE = 500
"""Records on a page at most: a thousand turns in full can be some hundred megabytes."""
READING_METHODS = ("GET", "HEAD")
PUBLIC_ROUTES = frozenset(
    {
        ("GET", "/openapi.json"),
        ("GET", "/health"),
        ("GET", "/ready"),
        ("GET", "/sign-in/{code}"),
        ("POST", f"{BASE}/sign-in"),
        ("POST", f"{BASE}/invitations"),
    }
)
"""What anybody may ask. Every other route names the right that it needs."""
ANY_CALLER = ""
"""The right of routes that concern the caller's own credential: having one is enough."""
OWN_CREDENTIAL_ROUTES = frozenset({("GET", f"{BASE}/me"), ("POST", f"{BASE}/sign-out")})
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]


def ensure_listed(method: str, path: str, right: str | None) -> None:
    """Raises where a route is public, or asks for no right, and no table says so; and where one says so of a route that
    asks for a right."""
    tables = {None: PUBLIC_ROUTES, ANY_CALLER: OWN_CREDENTIAL_ROUTES}
    named = {of for of, routes in tables.items() if (method, path) in routes}
    if named != ({right} if right in tables else set()):
        raise AssertionError(f"{method} {path} needs a right, or a place in the table of public routes")


class EndpointDetails(Struct, frozen=True, kw_only=True):
    """What the description of the interface tells of an endpoint that calls no verb of the table."""

    name: str
    tag: str
    summary: str
    query: type[Struct] | None = None
    body: type[Struct] | None = None
    is_upload: bool = False
    headers: dict[str, str] = {}
    """Those that it takes, each with what it says."""
    answer: Any = None
    """The type of its JSON, or a schema."""
    statuses: tuple[int, ...] = (200,)
    is_stream: bool = False
    """Whether it answers with events, too, where they are asked for."""
    is_file: bool = False


def page_schema(item: dict[str, Any], next: dict[str, Any]) -> dict[str, Any]:
    """A page of records whose cursor is no text."""
    properties = {"items": {"type": "array", "items": item}, "next": next}
    return {"type": "object", "properties": properties, "required": ["items", "next"]}


class Endpoint(Struct, frozen=True, kw_only=True):
    """What a path answers. One without a right is public, as PUBLIC_ROUTES says; `names` are the parameters of its
    path."""

    method: str
    path: str
    right: str | None
    handler: Callable[[Request, Caller | None, dict[str, str]], Awaitable[Response]]
    details: EndpointDetails | None = None


class Route(Struct, frozen=True, kw_only=True):
    """One operation of the interface. `{name}` in a path is the parameter of that name."""

    method: Method
    path: str
    """Below BASE."""
    verb_name: str
    """The name of a function of `weft.verbs`."""
    tag: str
    reading: str = ""
    """The right to read that it needs, where its verb changes nothing."""
    status: int = 200
    called: str = ""
    """By which the operation goes, where its verb has several routes that would go by the same name."""
    without: tuple[str, ...] = ()
    """Parameters of the verb that this route does not take, such as one by which a verb that reads would write."""
    always: tuple[str, ...] = ()
    """Those of them that are true: one without which a verb that reads would write."""

    @property
    def verb(self) -> Verb[..., Any]:
        import weft.verbs

        verb: Verb[..., Any] = getattr(weft.verbs, self.verb_name)
        return verb

    @property
    def name(self) -> str:
        """By which the operation goes: the verb's, and another one where a verb that changes something is asked to
        list."""
        if self.called:
            return self.called
        return f"{self.verb_name}_list" if self.method == "GET" and self.verb.right else self.verb_name

    @property
    def right(self) -> str:
        """What a caller needs to be let in; one who may use it on something is, and the ledger looks at each object."""
        right = self.reading or self.verb.right
        assert right, f"{self.verb_name} changes nothing, so its route says what reads"
        return right

    @property
    def full_path(self) -> str:
        return BASE + self.path

    @property
    def path_names(self) -> tuple[str, ...]:
        return tuple(part.partition("}")[0].partition(":")[0] for part in self.path.split("{")[1:])


def _routes(tag: str, reading: str, *lines: str) -> list[Route]:
    """`GET /sessions sessions`, with `-NAME` behind it for each parameter that the route does not take, and `+NAME` for
    one that is always true; `VERB:NAME` says by which name it goes. What changes something needs the right that its
    verb declares; what reads needs `reading`."""
    return [_route(tag, reading, *line.split()) for line in lines]


def _route(tag: str, reading: str, method: str, path: str, names: str, *without: str) -> Route:
    verb_name, _, called = names.partition(":")
    return Route(
        method=method,  # type: ignore[arg-type]
        path=path,
        verb_name=verb_name,
        called=called,
        reading=reading if method == "GET" else "",
        tag=tag,
        status=201 if verb_name.endswith("_create") else 200,
        without=tuple(name[1:] for name in without),
        always=tuple(name[1:] for name in without if name.startswith("+")),
    )


_NO_LISTS = ("audit", "approval_show")
"""Routes whose verb answers a list, but to other parameters than theirs."""


def is_paged(route: Route) -> bool:
    """Whether it answers a list. `after` can also be a version: the differences of two are no list that grows."""
    verb = route.verb
    if (
        route.method != "GET"
        or route.name in _NO_LISTS
        or any(one.name == "after" and one.type is not str for one in verb.parameters)
    ):
        return False
    kinds = [get_origin(kind) or kind for kind in alternatives(verb.answer_type())]
    return any(isinstance(kind, type) and issubclass(kind, Listing) for kind in kinds)


def alternatives(kind: Any) -> Iterator[Any]:
    if get_origin(kind) in (Union, UnionType):
        for part in get_args(kind):
            yield from alternatives(part)
    else:
        yield kind


ROUTES: tuple[Route, ...] = (
    *_routes(
        "sessions",
        "session:read",
        "GET /sessions sessions",
        "POST /sessions session_create",
        "PATCH /sessions/{session} session_configure",
        "DELETE /sessions/{session} delete",
        "GET /sessions/{session}/history session_history -write",
        "GET /sessions/{session}/reflog reflog",
        "POST /sessions/{session}/rename rename",
        "POST /sessions/{session}/aliases alias",
        "POST /sessions/{session}/promote session_promote",
        "POST /sessions/{session}/archive archive",
        "POST /sessions/{session}/move move",
        "POST /sessions/{session}/restore restore",
        "POST /sessions/{session}/settle settle",
        "POST /sessions/{session}/unify session_unify",
        "POST /sessions/{session}/pause session_pause",
        "POST /sessions/{session}/resume session_resume",
        "POST /sessions/{session}/complete session_complete",
        "POST /sessions/{session}/undo undo",
        "GET /aliases alias -alias -session -reason",
    ),
    *_routes(
        "turns",
        "session:read",
        "GET /turns log",
        "GET /turns/{rev} show",
        "GET /turns/{rev}/tree tree",
        "GET /threads/{rev} read",
        "GET /turns/{rev}/context context -session -is_counted",
        "GET /sessions/{session}/context context:session_context -rev -is_counted",
        "GET /turns/{left}/diff diff",
        "GET /search search",
    ),
    *_routes(
        "files",
        "ledger:read",
        "GET /files files",
        "GET /blame blame",
    ),
    *_routes(
        "reports",
        "ledger:read",
        "GET /usage usage -prices",
        "GET /projects projects",
        "GET /story story",
        "GET /audit audit -events -suggest",
        "GET /stats stats",
    ),
    *_routes(
        "branches",
        "session:read",
        "POST /turns/{rev}/forks fork",
        "POST /sessions/{into}/merges merge",
        "POST /sessions/{onto}/picks cherry_pick",
        "POST /sessions/{into}/summaries summarize",
    ),
    *_routes(
        "programs",
        "program:read",
        "GET /programs program_list",
        "GET /programs/{name} program_get",
        "PATCH /programs/{name} program_configure",
        "DELETE /programs/{name} program_delete",
        "GET /programs/{name}/history program_history",
        "GET /programs/{name}/diff program_diff",
        "POST /programs/{name}/revert program_revert",
        "POST /programs/{name}/publish program_publish",
        "POST /programs/{name}/deprecate program_deprecate",
        "GET /providers provider_list",
        "POST /providers provider_create",
        "GET /providers/{name} provider_show",
        "PATCH /providers/{name} provider_configure",
        "GET /models model_list",
        "POST /models model_create",
        "GET /models/{name} model_show",
        "PATCH /models/{name} model_configure",
        "GET /code code_list",
        "GET /information info_list",
        "POST /information/{name}/validate info_validate",
        "POST /information/{name}/activate info_activate",
        "POST /information/{name}/archive info_archive",
    ),
    *_routes(
        "tags",
        "program:read",
        "GET /nodes nodes",
        "GET /nodes/{node}/tags tag_list",
        "POST /nodes/{node}/tags tag_add",
        "DELETE /nodes/{node}/tags tag_remove",
    ),
    *_routes(
        "triggers",
        "program:read",
        "GET /triggers trigger_list",
        "POST /triggers trigger_create",
        "GET /triggers/{name} trigger_show",
        "PATCH /triggers/{name} trigger_configure",
        "DELETE /triggers/{name} trigger_delete",
        "GET /triggers/{name}/firings trigger_history",
        "POST /triggers/{name}/pause trigger_pause",
        "POST /triggers/{name}/resume trigger_resume",
    ),
    *_routes(
        "agents",
        "program:read",
        "GET /agents agent_list",
        "POST /agents agent_create",
        "GET /agents/{name} agent_show",
        "PATCH /agents/{name} agent_configure",
        "POST /agents/{name}/share agent_share",
        "POST /agents/{name}/unshare agent_unshare",
        "POST /agents/{name}/visibility agent_visibility",
        "POST /agents/{name}/assign agent_assign",
        "POST /agents/{name}/stop agent_stop",
        "POST /agents/{name}/reset agent_reset",
        "POST /agents/{name}/pause agent_pause",
        "GET /toolsets toolset_list",
        "POST /toolsets toolset_create",
        "GET /toolsets/{name} toolset_show",
        "PATCH /toolsets/{name} toolset_edit",
        "DELETE /toolsets/{name} toolset_delete",
    ),
    *_routes(
        "tasks",
        "program:read",
        "GET /tasks task_list",
        "POST /tasks task_create",
        "GET /tasks/{name} task_show",
        "PATCH /tasks/{name} task_configure",
        "POST /tasks/{name}/assign task_assign",
        "POST /tasks/{name}/start task_start",
        "POST /tasks/{name}/fail task_fail",
    ),
    *_routes(
        "people",
        "program:read",
        "GET /people human_list",
        "POST /people human_create",
        "GET /people/{name} human_show",
        "POST /people/{name}/presence human_presence",
    ),
    *_routes(
        "rooms",
        "room:read",
        "GET /rooms room_list",
        "POST /rooms room_create",
        "GET /rooms/{room} room_show",
        "GET /rooms/{room}/messages room_read:room_messages +keep_unread -every",
        "POST /rooms/{room}/read room_read -keep_unread -every",
        "POST /rooms/{room}/title room_title",
        "POST /rooms/{room}/archive room_archive",
        "POST /rooms/{room}/restore room_restore",
        "POST /rooms/{room}/forks room_fork",
        "POST /rooms/{room}/agents room_add",
        "POST /rooms/{room}/invitations room_invite",
        "POST /rooms/{room}/decline room_decline",
        "POST /rooms/{room}/remove room_remove",
        "POST /rooms/{room}/leave room_leave",
        "GET /invitations room_invitations",
        "GET /profiles/{name} room_profile",
    ),
    *_routes(
        "approvals",
        "session:read",
        "GET /approvals approvals -id",
        "GET /approvals/{id} approvals:approval_show -every -session -limit -after",
        "POST /approvals/{id}/approve approve",
        "POST /approvals/{id}/reject reject",
    ),
)
