"""The one JSON form of every record: what `--json` answers, and what other surfaces answer
later; forms as JSON text, one document or a list that is written while it is read.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import orjson
from msgspec import UNSET, Struct, UnsetType

from weft.kernel.clock import iso_from_ms
from weft.surfaces.plain_text import safe_json
from weft.surfaces.wire.hints import phrase
from weft.verbs.answers import Answer

if TYPE_CHECKING:
    from weft.exchange.bundles.verification import BundleReport
    from weft.ledger.api import StoredEvent
    from weft.programs.program_records import Program
    from weft.runtime.invoke.invocation import InvocationResult
    from weft.store.port import Diagnosis
    from weft.verbs.program_answers import AgentStatus


# --- The one JSON form of every record: what `--json` answers, and what other surfaces answer later.

WIRE_VERSION = 1
"""Rises when a form loses a field, renames one or gives it another meaning. New fields do not raise it."""

FLAT: Mapping[str, str] = {
    "AnsweredApproval": "approval",
    "ListedSession": "session",
    "RoomMember": "participant",
    "ShownRoom": "room",
    "AnsweredPost": "posted",
    "SessionEntry": "listed",
    "ShownContext": "context",
    "UnfinishedTurn": "turn",
    "ListedTurn": "turn",
    "ShownTurn": "turn",
    "ReadTurn": "turn",
    "PickedTurn": "turn",
    "SummaryTurn": "turn",
    "ForkedSession": "session",
    "LedgerFigures": "counts",
    "PackAnswer": "packed",
    "SalvageAnswer": "salvaged",
    "BundleFile": "report",
    "SignedBundle": "report",
    "ImportedBundle": "report",
    "ClonedLedger": "synced",
    "CopiedLedger": "copied",
    "PlannedErasure": "plan",
    "ExportedFile": "exported",
    "ResumedSession": "resume",
}
"""Records by name, and the field whose own fields stand in its place."""

HIDDEN: Mapping[str, tuple[str, ...]] = {
    "Resume": ("data", "claims"),
    "ShownTurn": ("items",),
    "ReadTurn": ("items",),
    "ShownContext": ("why_estimated",),
    "FilesDiff": ("git_unknown",),
}
"""Fields that are no part of a form: bytes that go to a file, and what stands in other fields already."""


class ErrorForm(Struct, frozen=True, kw_only=True):
    """An error. `action` is a code to compare, `arguments` its values; `hint` says the same as a sentence."""

    code: str
    """Which error it is; codes stay, whatever the words are."""
    message: str
    hint: str
    action: str
    arguments: Mapping[str, str | int]
    printed: str | UnsetType = UNSET
    """What a code program printed before it failed."""
    again: str | UnsetType = UNSET
    """The command line that asks again, where a message could not be answered."""


class ErrorDocument(Struct, frozen=True, kw_only=True):
    """What stands on standard error in place of an answer."""

    error: ErrorForm


_PLAIN = frozenset({str, int, float, bool, type(None)})
"""Types of values that are JSON already: most of all that are in records."""


def form(value: Any) -> Any:
    """A record, or a list of records, as what JSON has."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Struct):
        if isinstance(value, Answer) and value.DOCUMENT:
            return form(getattr(value, value.DOCUMENT))
        own = OWN.get(type(value).__name__)
        return _form_fields(value) if own is None else own(value)
    if isinstance(value, tuple) or (isinstance(value, list) and value and isinstance(value[0], Struct)):
        return [form(item) for item in value]
    if isinstance(value, dict) and any(isinstance(item, Struct) for item in value.values()):
        return {name: form(item) for name, item in value.items()}
    return b64encode(value).decode() if isinstance(value, bytes) else value


SPANS = frozenset({"valid_from", "valid_to", "known_from", "known_to"})
"""Times between which an edge of the graph held, and was known."""


def is_time(field: str) -> bool:
    """Whether a number in this field is a time."""
    return field == "at" or field in SPANS or field.endswith(("_at", "_time"))


@cache
def _shown_fields(record: type[Struct]) -> tuple[tuple[str, str, bool], ...]:
    """Of a class of records: the fields that its form has, their keys, and whether a number in them is a time."""
    hidden = HIDDEN.get(record.__name__, ())
    keys = zip(record.__struct_fields__, record.__struct_encode_fields__, strict=True)
    return tuple((field, key, is_time(field)) for field, key in keys if field not in hidden)


def _form_fields(record: Struct) -> dict[str, Any]:
    kind = type(record).__name__
    tag, flat = record.__struct_config__.tag, FLAT.get(kind)
    fields: dict[str, Any] = {} if tag is None else {"type": tag}
    for field, key, may_be_time in _shown_fields(type(record)):
        value = getattr(record, field)
        if value is UNSET:
            continue
        if field == flat:
            fields |= form(value)
        elif may_be_time and isinstance(value, int):
            fields[key] = iso_from_ms(value)
        else:
            fields[key] = value if type(value) in _PLAIN else form(value)
    return fields | {name: form(of(record)) for name, of in BEYOND_FIELDS.get(kind, {}).items()}


def _proves(report: BundleReport) -> list[str]:
    return list(report.proves)


def _does_not_prove(report: BundleReport) -> list[str]:
    return list(report.does_not_prove)


BEYOND_FIELDS: Mapping[str, Mapping[str, Callable[[Any], Any]]] = {
    "BundleReport": {"proves": _proves, "does_not_prove": _does_not_prove},
}
"""Records by name, and what their forms have beside the fields."""


def program_form(program: Program) -> dict[str, Any]:
    """A program as seed 5 spells it, in camelCase, with times as every form has them."""
    times = {"createdAt": iso_from_ms(program.created_at), "updatedAt": iso_from_ms(program.updated_at)}
    return {**program.shape(), **times}


def agent_status_form(status: AgentStatus) -> dict[str, Any]:
    """The form of the agent, and its work beside it."""
    return {**program_form(status.agent), "work": form(status.work)}


def invocation_form(invoked: InvocationResult) -> dict[str, Any]:
    """What a program answered; `programType` is seed 5's name for its kind."""
    return {"program": invoked.program, "programType": invoked.kind, "result": invoked.result}


def finding_form(finding: Diagnosis) -> dict[str, Any]:
    """A finding; `action` is a code to compare, `mend` says the same as a sentence."""
    advice = finding.advice
    fields = {"grade": finding.grade, "check": finding.check, "what": finding.what, "why": finding.why}
    return {**fields, "mend": phrase(advice), "action": advice.action, "arguments": dict(advice.arguments)}


def event_form(recorded: StoredEvent) -> dict[str, Any]:
    """An event with its arrival number and its id; `event` is the stored event itself, as docs/events.md has it."""
    return {"n": recorded.n, "id": recorded.id, "event": orjson.loads(recorded.line)}


OWN: Mapping[str, Callable[[Any], Any]] = {
    "Program": program_form,
    "AgentStatus": agent_status_form,
    "InvocationResult": invocation_form,
    "Diagnosis": finding_form,
    "StoredEvent": event_form,
    "JsonValue": lambda answer: answer.value,
    "StreamPosition": str,
}
"""Records by name whose forms are not their fields."""


# --- Forms as JSON text: one document, or a list that is written while it is read.


def document(value: Any, *, indent: bool = False) -> str:
    """One JSON document. Lone surrogates and integers of any size are kept, as JSON can."""
    try:
        text = orjson.dumps(value, option=orjson.OPT_INDENT_2 if indent else 0).decode()
    except TypeError:
        text = json.dumps(value, indent=2 if indent else None, allow_nan=False)
    return safe_json(text)


def list_document(items: Iterable[Any]) -> Iterator[str]:
    """One JSON list, made as it is read: an item to a line."""
    lead = "["
    for item in items:
        yield lead + document(item)
        lead = ","
    yield "[]" if lead == "[" else "]"
