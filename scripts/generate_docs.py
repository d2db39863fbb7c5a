"""Writes docs/events.md from the types in src/weft/kernel, and the routes of docs/http.md. `make docs` runs it; tests
compare page and code."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from msgspec import Meta, Struct, UnsetType

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.event_producers import event_producers
from weft.kernel import enums, events
from weft.kernel.events import STREAM_KINDS, Event, Receipt, UnknownEvent
from weft.kernel.foreign_input import EVENT_KINDS, field_types

PAGE = Path(__file__).resolve().parents[1] / "docs" / "events.md"

WORDS = {
    "ulid": "26 letters that Weft minted: 48 bits of milliseconds, 80 random bits",
    "digest": "64 hex digits: the SHA-256 of an event's canonical bytes, or another plain hash",
    "content": "64 hex digits: the salted reference of bytes that somebody wrote, kept beside the events",
    "name": f"a name of a model, tool or provider that matches `{events.NAME_PATTERN}`; "
    "anything else is kept as [Words](#words)",
    "time": "when it happened, like `2026-11-15T01:58:12.123Z`",
    "node": "a ulid or a digest",
    "number": "a whole number between -(2^53-1) and 2^53-1; an event holds no floats",
    "flag": "true or false",
}

STREAMS = {
    "run": ("a turn", "linear; after `run_finished` it takes no more events"),
    "session": ("a session", "linear per replica; two replicas that move one session fork it"),
    "program": ("an agent, a human or another program", "linear; what two replicas add is taken as it arrives"),
    "conversation": ("a room", "linear"),
    "resource": ("a resource", "linear"),
    "ledger": ("one replica's ledger", "what concerns a turn after its end: late results, substitutions, tombstones"),
    "import": ("an imported turn or session", "a set: what sources tell of it; `prev` is always null"),
}

ENVELOPE = {
    "v": "the form of the event: this envelope, RFC 8785, SHA-256",
    "kind": "one of the kinds below; a kind or a field that a reader does not know is kept, chained and shown raw",
    "ts": "null where the origin gave no usable time; absent in imported chains, but those of ingested events",
    "stream": "the stream it belongs to",
    "prev": "the event before it in that stream; null for the first",
    "actor": "the agent or person that acted: `local`, `imported`, or a ulid",
    "replica": "the ledger that wrote it; absent in imported chains",
    "on_behalf_of": "for whom the actor acted, the nearest first: `local`, or ulids of agents, people and sessions; "
    "absent where it acted for itself",
}

ABOUT = {
    events.EventRef: "An event, by its id.",
    events.UriRef: "A URI, kept as a content.",
    events.PathRef: "A path within a volume or a repository, kept as a content.",
    events.ExtRef: "A thing in another system: what it is, and its id there.",
    events.ErrorFact: "What went wrong: a code, a text, and details as JSON.",
    events.TextFact: "Plain text.",
    events.ImageFact: "An image, by its URL or its data URL.",
    events.ToolUseFact: "A model asks for a tool; `input` is JSON.",
    events.ToolResultFact: "What a tool answered; `output` is JSON.",
    events.ReasoningFact: "Thinking that a model shows apart from its answer.",
    events.FileFact: "A file that a message read, wrote, referred to or carried.",
    events.LintFact: "What a linter said at the time of a message.",
    events.CodeblockFact: "A code block that the recorder named; others are read out of the text.",
    events.VolumePlan: "What a fork does with one resource.",
    events.ResourceScope: "For whom a resource is there; as its owner, one of them.",
}

# (the seed's type or *, the seed's field) -> where it is here; the test follows every path through the types.
SEED_NAMES = {
    ("*", "event_id"): "the hash of the event, never inside it",
    ("*", "run_id"): "stream",
    ("*", "agent_id"): "actor",
    ("ModelRequest", "input_refs"): "input.then",
    ("ModelResponse", "output_ref"): "output.id",
    ("ModelResponse", "usage.prompt_tokens"): "usage.input_tokens",
    ("ModelResponse", "usage.completion_tokens"): "usage.output_tokens",
    ("HistoryAppend", "message_ref"): "message.id",
    ("Message", "content"): "parts",
    ("Message", "created_at"): "the `ts` of the event that brought it",
    ("ResourceAttached", "run_id"): "run",
    ("ResourceDetached", "run_id"): "run",
    ("Snapshot (cache only)", "id"): "materialization",
    ("Snapshot (cache only)", "run_id"): "run",
}


def struct_name(record: type[Struct]) -> str:
    """`ToolUseFact` is the `tool_use part`; other structures drop their ending."""
    tag = record.__struct_config__.tag
    return f"{tag} part" if tag else record.__name__.removesuffix("Fact")


def link(title: str) -> str:
    return f"[{title}](#{title.lower().replace(' ', '-').replace('.', '')})"


def type_words(annotation: Any) -> str:
    """An annotation in the words of this page."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return " or ".join(meta.extra["is"] for meta in parts[1:] if isinstance(meta, Meta) and meta.extra)
    if origin is tuple:
        return f"list of {type_words(parts[0])}"
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in parts)
    if origin in (Union, UnionType):
        return _union_words([part for part in parts if part is not UnsetType])
    return _class_words(annotation)


def _class_words(kind: type) -> str:
    if issubclass(kind, Enum):
        return f"member of {link(kind.__name__)}"
    if issubclass(kind, Struct):
        return link(struct_name(kind))
    return {int: "number", bool: "flag", NoneType: "null", str: "stream"}[kind]


def _union_words(parts: list[Any]) -> str:
    if set(parts) == set(get_args(events.PartFact)):
        return "[part](#parts)"
    if events.Words in parts and events.Name in parts:
        parts = [part for part in parts if part is not events.Words]
        return " or ".join([*map(type_words, parts), link("Words")])
    return " or ".join(map(type_words, parts))


def is_optional(annotation: Any) -> bool:
    return UnsetType in get_args(annotation)


def field_rows(record: type[Struct], without: frozenset[str] = frozenset()) -> Iterator[str]:
    rows = [(name, kind) for name, kind in field_types(record).items() if name not in without]
    yield "| field | type | |"
    yield "|---|---|---|"
    for name, annotation in rows:
        yield f"| `{name}` | {type_words(annotation)} | {'optional' if is_optional(annotation) else 'required'} |"


def structures() -> list[type[Struct]]:
    """What the fields of events hold: no event, nor what reads one."""
    records = [value for value in vars(events).values() if isinstance(value, type) and issubclass(value, Struct)]
    others = (Event, UnknownEvent, Receipt)
    return [kind for kind in records if kind is not Struct and not issubclass(kind, others) and kind.__name__[0] != "_"]


def about(record: type[Struct]) -> str:
    return ABOUT.get(record) or inspect.cleandoc(record.__doc__ or "").partition("\n\n")[0].replace("\n", " ")


def enumerations() -> list[type[Enum]]:
    found = [value for value in vars(enums).values() if isinstance(value, type) and issubclass(value, Enum)]
    return [kind for kind in found if kind.__module__ == enums.__name__]


def _opening() -> Iterator[str]:
    yield "# Events"
    yield ""
    yield "An event is an immutable fact, named by the SHA-256 of its canonical JSON (RFC 8785). It holds ids that Weft"
    yield "minted, members of closed sets, numbers, times, names of models, tools and providers, and references. Every"
    yield "other string is a content: the event holds its reference, and the bytes can be withheld or erased while the"
    yield "chain still verifies."
    yield ""
    yield "`make docs` writes this page from `src/weft/kernel`, and a test compares the two."


def _envelope() -> Iterator[str]:
    yield "## The envelope"
    yield ""
    yield "| field | type | | |"
    yield "|---|---|---|---|"
    types = {"v": field_types(Event)["v"], "kind": None, **field_types(Event)}
    for name, annotation in types.items():
        words = "a kind" if annotation is None else type_words(annotation)
        needed = "optional" if annotation is not None and is_optional(annotation) else "required"
        yield f"| `{name}` | {words} | {needed} | {ENVELOPE[name]} |"


def _streams() -> Iterator[str]:
    yield "## Streams"
    yield ""
    yield "A stream is its kind, a colon and a ulid, as in `run:01ARZ3NDEKTSV4RRFFQ69G5FAV`. A run's first event also"
    yield "names its fork point, an event of the parent turn: so the last event of a turn, its *thread digest*, commits"
    yield "to the turn's whole ancestry."
    yield ""
    yield "| stream | of | |"
    yield "|---|---|---|"
    for kind in STREAM_KINDS:
        yield f"| `{kind}:` | {STREAMS[kind][0]} | {STREAMS[kind][1]} |"


def _types() -> Iterator[str]:
    yield "## Types"
    yield ""
    yield "| word | means |"
    yield "|---|---|"
    for word, meaning in WORDS.items():
        yield f"| {word} | {meaning} |"


def _kinds() -> Iterator[str]:
    yield "## Kinds"
    yield ""
    yield "An **intent** is a wish, written before its effect; an **observation** is what was seen; a **transition**"
    yield "changes a state; **provenance** says where something came from. The modules below `src/weft` that write a"
    yield "kind are named after its fields; `scripts/event_producers.py` finds them in the source."
    envelope, producers = frozenset(Event.__struct_fields__), event_producers()
    for name, kind in EVENT_KINDS.items():
        yield from ("", f"### `{name}`", "", f"*{kind.category.value}.* {kind.about}", "")
        yield from field_rows(kind, envelope)
        yield from ("", f"Written by {', '.join(f'`{module}`' for module in producers[name])}.")


def _structures() -> Iterator[str]:
    yield "## Structures"
    for record in structures():
        yield from ("", f"### {struct_name(record)}", "", about(record), "")
        yield from field_rows(record)


def _parts() -> Iterator[str]:
    yield "## Parts"
    yield ""
    yield "A message is an ordered list of parts; `type` says which of the five it is."
    yield ""
    for part in get_args(events.PartFact):
        yield f"- `{part.__struct_config__.tag}`: {link(struct_name(part))}"


def _enumerations() -> Iterator[str]:
    yield "## Enumerations"
    for kind in enumerations():
        yield from ("", f"### {kind.__name__}", "", ", ".join(f"`{member.value}`" for member in kind))


def _seed_names() -> Iterator[str]:
    yield "## Names in the agent DAG schema"
    yield ""
    yield "Fields of the agent DAG schema that have another name or place here; all others are as they were."
    yield ""
    yield "| type | field | here |"
    yield "|---|---|---|"
    for (kind, field), here in SEED_NAMES.items():
        yield f"| {kind} | `{field}` | {here if ' ' in here else f'`{here}`'} |"


SECTIONS = (_opening, _envelope, _streams, _types, _kinds, _parts, _structures, _enumerations, _seed_names)


def events_page() -> str:
    return "\n".join("\n".join((*section(), "")) for section in SECTIONS)


# --- The routes of docs/http.md.

HTTP_PAGE = PAGE.parent / "http.md"
BEGIN, END = "<!-- routes -->\n", "<!-- end of routes -->"


def routes_table() -> str:
    """Every route by its resource: what it does, the right that it needs, and what is special about it."""
    from weft.surfaces.server.route_table import RETRY_PARAMETER, ROUTES, is_paged

    lines: list[str] = []
    for tag in dict.fromkeys(route.tag for route in ROUTES):
        lines += [f"### {tag.capitalize()}", "", "| route | what it does | right | |", "|---|---|---|---|"]
        for route in (route for route in ROUTES if route.tag == tag):
            verb = route.verb
            takes_key = any(one.name == RETRY_PARAMETER for one in verb.parameters)
            marks = {"pages": is_paged(route), "key": takes_key, "machine": bool(verb.machines)}
            special = ", ".join(mark for mark, holds in marks.items() if holds)
            about = re.split(r"(?<=\.)\s", " ".join(verb.help.split("\n\n")[0].split()))[0].replace("|", "\\|")
            lines.append(f"| `{route.method} {route.path}` | {about} | `{route.right}` | {special} |")
        lines.append("")
    return "\n".join(lines)


def http_page() -> str:
    """The page as it is, with the routes as they are declared."""
    before, _, rest = HTTP_PAGE.read_text().partition(BEGIN)
    return f"{before}{BEGIN}\n{routes_table()}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    for page, text in ((PAGE, events_page()), (HTTP_PAGE, http_page())):
        page.write_text(text)
        print(f"wrote {page.relative_to(PAGE.parents[1])}")


if __name__ == "__main__":
    main()
