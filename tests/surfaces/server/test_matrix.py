"""Every route and every tool, asked by everybody about things of every kind: whoever may not read one gets what a
random id gets, and a list tells nothing of it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import pytest

from tests.sizes import share
from tests.surfaces.server.site import BASE_URL, Answered, Site
from tests.surfaces.server.world import EXAMPLES, PEOPLE, known_names, open_world
from weft.kernel.errors import WeftError
from weft.ledger.api import Ledger
from weft.surfaces.mcp.answers import ANSWER_BYTES
from weft.surfaces.mcp.server import caller_authority, error_text
from weft.surfaces.mcp.tools import TOOLS, ServedTool, taken_arguments
from weft.surfaces.server.route_table import ROUTES, Route

SECRET_WORDS = ("private question", "private answer", "said among us", "ann's own", "private agent", "room of ann",
                "qubit?", "spare one", "spare/two", "forked", "also main", "unbegun", "at rest")  # fmt: skip
"""In titles, labels and messages of what a stranger may not read."""
STRANGERS = ("eve", "narrow")
"""Who may read nothing of it: somebody else, and the owner with a token for another session alone."""
NARROW = ["session:read(main)"]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with open_world(tmp_path) as site:
        yield site


def token_of(site: Site, who: str) -> str | None:
    match who:
        case "anonymous":
            return None
        case "expired":
            return site.token(expires_ms=0)
        case "narrow":
            return site.token(allow=NARROW)
        case "owner":
            return site.token()
    assert who in PEOPLE
    return site.token(who)


# --- Things of every kind, and the names by which each goes.


def things(ledger: Ledger) -> dict[str, list[str]]:
    """By kind, names of things that a stranger may not read."""
    own, spare = ledger.session("ann's own"), ledger.session("spare one")
    room = ledger.acting_as("ann").rooms.list()[0]
    agent = next(program.id for program in _programs(ledger) if program.name == "private agent")
    turns = [turn for session in (own, spare) for turn in ledger.log(10, session=session.id)]
    said = [message for turn in turns for message in ledger.messages(turn.id)]
    events = [event.id for turn in turns[:2] for event in ledger.events(turn.id)]
    return {
        "session": [own.label, own.id, own.label[:-2], spare.id, "spare one", "SPARE ONE", "@(spare one)"],
        "alias": ["also spare", "also spar"],
        "turn": ["spare one~1", "spare one@{0}", *(turn.id for turn in turns[:2]), turns[0].id[-8:]],
        "message": [message.id for message in said[:2]],
        "event": [*events[:2], events[0][:12], f"event:{events[0]}"],
        "agent": ["private agent", agent, "@(private agent)", "private agent:1", "privat agent", f"agent:{agent}"],
        "room": [room.id, room.title or "", f"conversation:{room.id}"],
    }


def _programs(ledger: Ledger) -> list[Any]:
    import weft.verbs

    return list(weft.verbs.program_list(ledger).items)


def test_everything_is_there_for_whoever_may_read_it(site: Site) -> None:
    """Else a stranger would be answered like that for another reason."""
    named = {
        "session": "/sessions/{}/reflog",
        "turn": "/turns/{}",
        "event": "/turns/{}",
        "agent": "/programs/{}",
        "message": "/nodes/{}/tags",
    }
    for kind, path in named.items():
        for name in (things(site.ledger)[kind][0], things(site.ledger)[kind][1]):
            asked = "/api/v1" + path.format(quote(name, safe=""))
            assert site.ask("GET", asked).status == 200, name
    own = quote("ann's own", safe="")
    assert site.ask("GET", f"/api/v1/threads/{own}", token=token_of(site, "ann")).status == 200


# --- Routes.


@pytest.mark.parametrize("who", ["anonymous", "expired"])
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_nobody_is_answered_without_a_credential_that_counts(site: Site, route: Route, who: str) -> None:
    answered = {name: ask(site, route, who, {**example(route), **one}) for name, one in (("a", {}), ("b", {"x": 1}))}
    assert {one.status for one in answered.values()} == {401}
    assert answered["a"].body == answered["b"].body


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_a_stranger_is_answered_as_about_a_random_name(site: Site, route: Route) -> None:
    different = []
    for kind, names in things(site.ledger).items():
        for who in STRANGERS:
            for parameter in naming_parameters(route):
                beside = [str(value) for name, value in example(route).items() if name != parameter]
                # What the request names beside it stands in the answer as it is: that cannot be told from a difference.
                asked = [name for name in names if not any(value in name for value in beside)]
                for name in share(asked, test=2):
                    told = [asked_about(site, route, who, parameter, one) for one in (name, other_than(name))]
                    if told[0] != told[1]:
                        different.append((kind, who, parameter, name, *told))
    assert [found for found in different if (route.name, found[2]) not in MAKING] == []


MAKING = {("session_create", "owner"), ("fork", "agent")}
"""What nobody goes by becomes the name of an agent. So it can be learnt that a name is taken, as with a new label."""


def naming_parameters(route: Route) -> list[str]:
    """Those that can name something private."""
    parameters = [parameter for parameter in route.verb.parameters if parameter.name not in route.without]
    return [one.name for one in parameters if one.details.names or one.name in NAMING]


NAMING = {"session", "room", "task", "thread", "to", "node", "rev", "turn", "resource", "agent", "owner", "smart"}


def asked_about(site: Site, route: Route, who: str, parameter: str, name: str) -> tuple[int, str]:
    details = next(one for one in route.verb.parameters if one.name == parameter)
    value = [name] if details.is_repeated and parameter not in route.path_names else name
    return told(ask(site, route, who, {**example(route), parameter: value}), name)


def example(route: Route) -> dict[str, Any]:
    """A request that would succeed, for whoever may do it."""
    values = dict(EXAMPLES.get(route.name, [{}])[0])
    for parameter in route.verb.parameters:
        name = parameter.name
        if name not in values and (parameter.is_required or name in route.path_names):
            named = parameter.details.names
            assert named is not None, f"{route.name} needs an example for {name}"
            value = known_names(named.of if named.what == "program" else (named.what,))[0]
            values[name] = [value] if parameter.is_repeated and name not in route.path_names else value
    if route.status == 201:
        values["name" if "name" in values else "label"] = f"new {secrets.token_hex(8)}"
    return values


def ask(site: Site, route: Route, who: str, values: Mapping[str, Any]) -> Answered:
    path, others = route.full_path, dict(values)
    for name in route.path_names:
        path = path.replace(f"{{{name}}}", quote(str(others.pop(name)), safe=""))
    token, body = token_of(site, who), b""
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    if route.method == "GET":
        path += "?" + urlencode(others, doseq=True)
    else:
        headers["content-type"], body = "application/json", msgspec.json.encode(others)
    return site.send(route.method, BASE_URL + path, headers, body)


KIND = re.compile(r"^(session|turn|message|event|agent|conversation):|^@\(")
PLACE = re.compile(r"(~\d+|@\{\d+\}|:\d+|\))$")
ULID, DIGEST = re.compile(r"\b[0-7][0-9A-HJKMNP-TV-Z]{25}\b"), re.compile(r"\b[0-9a-f]{16,64}\b")
TIME = re.compile(r"\d{4}-\d\d-\d\dT[0-9:.]+Z")


def core(name: str) -> str:
    """A name without what says its kind, or a place behind it."""
    return PLACE.sub("", KIND.sub("", name))


def other_than(name: str) -> str:
    """One of the same form that nothing has."""
    letters = core(name)
    if ULID.fullmatch(letters) or re.fullmatch(r"[0-9A-HJKMNP-TV-Z]{8}", letters):
        random = letters[0] + "".join(secrets.choice("0123456789ABCDEFGHJKMNPQRSTVWXYZ") for _ in letters[1:])
    elif re.fullmatch(r"[0-9a-f]{12,}", letters):
        random = secrets.token_hex(len(letters) // 2)
    else:
        random = re.sub(r"[A-Za-z]", lambda _: secrets.choice("bcdfghjklmnpqrstvwxz"), letters)
    return name.replace(letters, random)


def told(answered: Answered, name: str) -> tuple[int, str]:
    """What an answer says, whatever the name was and whenever it was asked."""
    text = answered.body.decode().replace(core(name), "NAME")
    return answered.status, without_ids(text)


LAST_ACTIVE = re.compile(r'"last_active_time":("TIME"|null)')
"""A profile tells everybody when an agent or a person acted last, wherever that was."""


def without_ids(text: str) -> str:
    """What an answer says, whenever and in which ledger it was asked."""
    return LAST_ACTIVE.sub("", _without_ids(text))


def _without_ids(text: str) -> str:
    return TIME.sub("TIME", DIGEST.sub("DIGEST", ULID.sub("ID", re.sub(r"new [0-9a-f]{16}", "NEW", text))))


@pytest.mark.parametrize("route", [r for r in ROUTES if r.method == "GET"], ids=lambda route: route.name)
def test_a_list_tells_a_stranger_what_it_would_without_private_things(
    site: Site, public_site: Site, route: Route
) -> None:
    for who in ("eve", "carl"):
        whole, public = (ask(one, route, who, example(route)) for one in (site, public_site))
        if who == "eve":
            assert (whole.status, without_ids(whole.body.decode())) == (
                public.status,
                without_ids(public.body.decode()),
            )
            assert not [words for words in SECRET_WORDS if words in whole.body.decode()]
        if who == "carl":
            assert "afterwards" not in whole.body.decode()


@pytest.fixture(scope="module")
def public_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with open_world(tmp_path_factory.mktemp("public"), is_whole=False) as site:
        yield site


def test_words_are_found_by_those_alone_who_may_read_them(site: Site) -> None:
    def hits(who: str, words: str) -> int:
        found: list[Any] = site.ask("GET", f"/api/v1/search?words={words}", token=token_of(site, who)).json["items"]
        return len(found)

    assert [hits(who, "private") for who in ("owner", "ann", "bob", "carl", "eve", "narrow")] == [2, 2, 0, 0, 0, 0]
    assert [hits(who, "among") for who in ("ann", "bob", "carl", "eve", "narrow")] == [1, 1, 1, 0, 0]
    assert [hits(who, "afterwards") for who in ("ann", "bob", "carl", "eve", "narrow")] == [1, 1, 0, 0, 0]


# --- Tools of the MCP server.


@pytest.mark.parametrize("tool", TOOLS.values(), ids=lambda tool: tool.name)
def test_a_tool_answers_a_stranger_as_about_a_random_name(site: Site, tool: ServedTool) -> None:
    if tool.run is None:
        return  # `send`: the broker's own tests ask for whom an agent works
    kinds = tool.arguments.__annotations__
    fields = [name for name, kind in kinds.items() if "str" in str(kind) or "Text" in str(kind)]
    for kind, names in things(site.ledger).items():
        for who in STRANGERS:
            for field in [name for name in fields if name not in ("words", "about")]:
                for name in share(names, test=2):
                    told = [tool_answer(site, tool, who, {field: one}) for one in (name, other_than(name))]
                    assert told[0] == told[1], (kind, who, field, name)


def tool_answer(site: Site, tool: ServedTool, who: str, values: dict[str, Any]) -> str:
    """What it says, whatever the name was."""
    caller = site.caller(token_of(site, who) or "")
    ledger = site.ledger.acting_as(caller_authority(caller.authority, ("fork",), ()))
    assert tool.run is not None
    try:
        asked = taken_arguments(tool, {**TOOL_EXAMPLES.get(tool.name, {}), **values})
        text = str(tool.run(ledger, asked, ANSWER_BYTES))
    except WeftError as error:
        text = error_text(error)
    return without_ids(text.replace(core(next(iter(values.values()))), "NAME"))


TOOL_EXAMPLES: dict[str, dict[str, Any]] = {
    "decisions": {"about": "qubit"},
    "files": {"path": "a.py"},
    "blame": {"path": "a.py"},
    "fork": {"at": "main", "label": "branch"},
}
