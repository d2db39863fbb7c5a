"""What people write never enters an event: a canary goes into every argument of every verb that records.

The arguments are read from the signatures and types, so that a new one fails here until somebody says what it is.
"""

import base64
import inspect
import json
from collections.abc import Callable, Iterator
from functools import cache, cached_property, partial
from operator import attrgetter
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from msgspec import UNSET, Struct

import weft
from tests.ledger.histories import exported, grow, import_into, lines
from tests.ledger.test_approvals import PASSED, asking
from tests.sizes import share
from weft import Codeblock, ImagePart, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from weft.kernel.errors import WeftError
from weft.kernel.events import EventRef, RequestInput, Usage
from weft.ledger.api.broker import Runs
from weft.ledger.api.ledger import Ledger
from weft.ledger.model import COMPACTION_MEASURES, NewError, NewMessage, NewToolCall, StoredContent
from weft.ledger.write.approvals import digest_of_source
from weft.ledger.write.turn_writer import TurnWriter

SPACED, NAMELIKE = "canary ⟨…⟩ with spaces", "canary-7f3a.b"

READS = """
    inbox.get inbox.list follow approvals.get approvals.list approvals.decisions policies.list policies.get
    policies.active resources.get resources.list resources.snapshot resources.snapshots resources.snapshots_of_turn
    resources.snapshots_before_turn
    search search_sessions related_turns changes tree.children close codeblocks tree.common_ancestor compactions.get
    context diff
    compactions.of_thread events files
    heads.at tree.heads listing log message messages path point read_content reflog replica resolve session
    sessions tree.sessions_containing upkeep.stats thread tool_calls tree.turns turn verify upkeep.export_facts
    upkeep.backup upkeep.rebuild upkeep.catch_up upkeep.import_facts imports.writer imports.kept_sources
    imports.share_with usage.report usage.work usage.branch usage.tree usage.abandoned usage.lag upkeep.disk_bytes
    audit.findings audit.suggest audit.actor_history newest erasure.plan erasure.done erasure.pending erasure.finish
    upkeep.pack upkeep.unpack vouchers strangers trust labels.archivable labels.aliases upkeep.search_lag imports.index
    find_turns find_messages
    find_tool_calls find_sessions tree.moves_to merges.provenance secrets.find secrets.ignore secrets.matches
    secrets.remainders full_threads
    rooms.get rooms.list rooms.participants rooms.messages rooms.invitations rooms.pending
    rooms.agent rooms.person rooms.posted_as rooms.search
    upkeep.note_export imports.provisional merges.branches authority acting_as originals
""".split()  # what an import writer records is tested with the imports, `acting_as` in test_authority.py

# content: kept as a content, never in an event.   name: in the event if it looks like a name, else a content.
# refused: nothing is recorded.                    strict: refused unless it looks like a name.
# local:   steers the call and is not recorded.     digest: kept as a digest, in local state alone.
EXPECTED: dict[str, dict[str, str]] = {
    "record_turn": {
        "content": "session query response system params tools_spec error permissions_used persona agent"
        " permissions_granted thinking_config effective_config workspace source_event_id",
        "name": "model provider finish_reason toolset tools_available",
        "refused": "parent expected usage tool_calls role reason",
        "local": "wait",
        "digest": "key",
    },
    "record_turns": {"refused": "turns", "local": "wait"},
    "begin_turn": {
        "content": "session persona agent permissions_granted thinking_config effective_config workspace"
        " source_event_id",
        "name": "toolset tools_available",
        "refused": "parent expected role reason",
        "local": "wait",
    },
    "compactions.record": {
        "content": "summary metadata",
        "name": "model provider",
        "strict": "compaction_type",
        "refused": f"session parent through first_kept trigger usage {' '.join(COMPACTION_MEASURES)}",
        "local": "wait",
    },
    "compactions.choose": {"refused": "session compaction"},
    "record_late_result": {"content": "result error", "refused": "turn call_id status"},
    "substitute": {"content": "with_ reason", "refused": "event with_event"},
    "put_content": {"content": "data"},
    "merges.cherry_pick": {"content": "key", "refused": "turns onto expected", "local": "wait"},
    "merges.summarize": {"content": "text key", "refused": "branch into expected", "local": "wait"},
    "create_session": {
        "content": "label persona agent routing_key origin_session_id spawn_tool_call_id task_description",
        "strict": "origin",
        "refused": "parent_session parent_turn_id",
    },
    "fork": {"content": "label persona agent", "refused": "at session"},
    "move_head": {"content": "reason", "refused": "session new expected"},
    "heads.reset": {"content": "reason", "refused": "session expected"},
    "heads.restore": {"content": "reason", "refused": "session", "local": "number"},
    "labels.rename": {"content": "label", "refused": "session"},
    "labels.add_alias": {"content": "alias", "refused": "session reason"},
    "labels.promote": {"content": "key", "refused": "session"},
    "labels.archive": {"content": "reason", "refused": "session"},
    "labels.delete": {"content": "reason", "refused": "session"},
    "labels.unarchive": {"content": "reason", "refused": "session"},
    "inbox.admit": {
        "content": "message session overrides route source_event_id key",
        "refused": "persona agent turn mode priority",
        "local": "limits",
    },
    "inbox.cancel": {"content": "reason", "refused": "message"},
    "inbox.send_again": {"content": "key", "refused": "message", "local": "limits"},
    "inbox.interrupt": {"refused": "session reason"},
    "inbox.retry": {"content": "key", "refused": "turn", "local": "afresh limits"},
    "approvals.grant": {"content": "reason", "refused": "approval plan_digest scope"},
    "approvals.deny": {"content": "reason", "refused": "approval abort"},
    "policies.propose": {"content": "name source docstring notes", "refused": "agent tests"},
    "policies.activate": {"content": "notes", "refused": "policy digest tests"},
    "policies.reject": {"content": "reason", "refused": "policy"},
    "policies.roll_back": {"content": "reason", "refused": "policy digest"},
    "resources.attach": {"refused": "resource mode session run"},
    "resources.detach": {"refused": "resource session run"},
    "resources.migrate": {"refused": "resource session former"},
    "resources.discard": {"refused": "resource"},
    "rooms.create": {"content": "title", "refused": "agents people history", "digest": "key"},
    "rooms.post": {"content": "message meta", "refused": "room mode", "local": "limits", "digest": "key"},
    "rooms.add": {"refused": "room agent"},
    "rooms.invite": {"refused": "room person"},
    "rooms.decline": {"refused": "room person"},
    "rooms.remove": {"refused": "room who"},
    "rooms.leave": {"refused": "room"},
    "rooms.retitle": {"content": "title", "refused": "room"},
    "rooms.archive": {"refused": "room"},
    "rooms.restore": {"refused": "room"},
    "rooms.fork": {"content": "title", "refused": "room at"},
    "rooms.mark_read": {"refused": "room position"},
    "merges.unify": {"content": "summary key", "refused": "session into"},
    "merges.separate": {"refused": "session"},
    "merges.settle": {"content": "fork reason", "refused": "session to", "local": "ours theirs"},
    "erasure.erase": {"content": "reason", "refused": "what remainders", "local": "tree everywhere progress"},
    "TurnWriter.message": {"content": "message", "name": "history", "refused": "role"},
    "TurnWriter.request": {"content": "params tools_spec", "name": "model provider", "refused": "input attempt"},
    "TurnWriter.response": {"content": "message", "name": "finish_reason model", "refused": "usage latency_ms"},
    "TurnWriter.tool_call": {"content": "arguments id", "name": "name server", "refused": "number"},
    "TurnWriter.tool_result": {
        "content": "result error spawned_session",
        "refused": "call status duration_ms",
    },
    "TurnWriter.renew": {},
    "TurnWriter.finish": {"content": "permissions_used", "refused": "usage"},
    "TurnWriter.fail": {"content": "error"},
    "TurnWriter.interrupt": {"refused": "reason"},
    "NewMessage": {
        "content": "content thinking_config context metadata",
        "name": "model",
        "refused": "role source parent files lints codeblocks",
    },
    "TextPart": {"content": "text"},
    "ImagePart": {"content": "url detail"},
    "ToolUsePart": {"content": "id input", "name": "name"},
    "ToolResultPart": {"content": "tool_call_id output", "refused": "is_error"},
    "ReasoningPart": {"content": "text"},
    "FileNote": {"content": "path", "refused": "kind line_start line_end"},
    "LintNote": {
        "content": "path message",
        "name": "source",
        "refused": "start_line start_col end_line end_col severity",
    },
    "Codeblock": {"content": "content path", "name": "language", "refused": "line_start line_end"},
    "NewToolCall": {
        "content": "id arguments result error spawned_session",
        "name": "name server",
        "refused": "status number duration_ms",
    },
    "NewError": {"content": "message details", "name": "code"},
    "Usage": {"refused": " ".join(Usage.__struct_fields__)},
    "RequestInput": {"refused": "base keep then"},
    "EventRef": {"refused": "event_id"},
}

VERB_BASE: dict[str, dict[str, Any]] = {
    "record_turn": {"session": "main", "query": "q", "response": "r"},
    "record_turns": {"turns": [{"session": "main", "query": "q"}]},
    "begin_turn": {"session": "main"},
    "compactions.record": {"session": "main", "summary": "s"},
    "compactions.choose": {"session": "main", "compaction": None},
    "record_late_result": {"turn": "cut", "call_id": "c1"},
    "substitute": {"event": "answer", "with_": "w"},
    "put_content": {},
    "merges.cherry_pick": {"turns": "main", "onto": "main"},
    "merges.summarize": {"branch": "main", "into": "main", "text": "t"},
    "create_session": {"label": "new"},
    "fork": {"at": "main", "label": "new"},
    "move_head": {"session": "main", "new": None},
    "labels.rename": {"session": "main", "label": "new"},
    "labels.add_alias": {"alias": "nick", "session": "main"},
    "inbox.admit": {"message": "m", "session": "fresh"},
    "inbox.cancel": {"message": "waiting"},
    "inbox.send_again": {"message": "dead"},
    "inbox.retry": {"turn": "failed"},
    "approvals.grant": {"approval": "asked"},
    "approvals.deny": {"approval": "asked"},
    "policies.propose": {"name": "n", "source": "s"},
    "policies.activate": {"policy": "proposed", "digest": digest_of_source("s"), "tests": PASSED},
    "policies.reject": {"policy": "proposed"},
    "policies.roll_back": {"policy": "replaced", "digest": digest_of_source("s")},
    "resources.attach": {"resource": "site"},
    "resources.detach": {"resource": "site"},
    "resources.migrate": {"resource": "site", "session": "main", "former": "alt"},
    "resources.discard": {"resource": "site"},
    "rooms.create": {},
    "rooms.post": {"room": "plans", "message": "m"},
    "rooms.add": {"room": "plans", "agent": "nobody"},
    "rooms.invite": {"room": "plans", "person": "nobody"},
    "rooms.decline": {"room": "plans", "person": "nobody"},
    "rooms.remove": {"room": "plans", "who": "nobody"},
    **{f"rooms.{verb}": {"room": "plans"} for verb in ("leave", "archive", "restore", "fork", "mark_read")},
    "rooms.retitle": {"room": "plans", "title": "t"},
    "labels.promote": {"session": "main", "key": "person:ann"},
    "merges.unify": {"session": "cut", "into": "main"},
    "merges.settle": {"session": "split", "ours": True},
    "erasure.erase": {"what": "main~0", "reason": "r"},
    "TurnWriter.message": {"message": "m"},
    "TurnWriter.request": {"model": "m"},
    "TurnWriter.tool_call": {"name": "t"},
    "TurnWriter.tool_result": {"call": "c1"},
    "TurnWriter.fail": {"error": "e"},
}
STRUCT_BASE: dict[str, dict[str, Any]] = {
    "NewMessage": {"content": "x"},
    "TextPart": {"type": "text", "text": "x"},
    "ImagePart": {"type": "image_url", "url": "x"},
    "ToolUsePart": {"type": "tool_use", "id": "x", "name": "x", "input": {}},
    "ToolResultPart": {"type": "tool_result", "tool_call_id": "x", "output": 1},
    "ReasoningPart": {"type": "reasoning", "text": "x"},
    "FileNote": {"kind": "read", "path": "x"},
    "LintNote": {},
    "Codeblock": {"content": "x"},
    "NewToolCall": {"name": "t"},
    "NewError": {"message": "x"},
    "Usage": {},
    "RequestInput": {"base": None, "keep": 0, "then": []},
    "EventRef": {},
}
LISTS = {"tools_available", "tool_calls", "files", "lints", "codeblocks", "then"}
ROOTS = (NewMessage, NewToolCall, NewError, Usage, RequestInput)


def public(owner: type) -> dict[str, Callable[..., Any]]:
    """Verbs by their names; those of a group with the group's name before them."""
    members = {name: inspect.getattr_static(owner, name) for name in dir(owner) if not name.startswith("_")}
    groups = {name: member for name, member in members.items() if isinstance(member, cached_property)}
    verbs = {name: getattr(owner, name) for name in members.keys() - groups.keys() if callable(getattr(owner, name))}
    for name, group in groups.items():
        kind = getattr(weft, group.func.__annotations__["return"])  # loaded when it is first used
        verbs |= {f"{name}.{verb}": member for verb, member in public(kind).items()}
    return verbs


def parameters(call: Callable[..., Any]) -> list[str]:
    found = inspect.signature(call).parameters.values()
    return [one.name for one in found if one.name != "self" and one.kind is not inspect.Parameter.VAR_KEYWORD]


def arguments(verb: str) -> set[str]:
    owner, _, name = verb.rpartition(".")
    return set(parameters(public(TurnWriter)[name] if owner == "TurnWriter" else public(Ledger)[verb]))


def structs_in(annotation: Any) -> Iterator[type[Struct]]:
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        yield annotation
        for kind in get_type_hints(annotation, include_extras=True).values():
            yield from structs_in(kind)
    elif get_origin(annotation) in (Union, UnionType, tuple):
        for part in get_args(annotation):
            yield from structs_in(part)


def nested() -> dict[str, type[Struct]]:
    found = {record.__name__: record for root in ROOTS for record in structs_in(root)}
    return {name: record for name, record in found.items() if record is not StoredContent}


def listed(groups: dict[str, str]) -> dict[str, str]:
    return {argument: group for group, names in groups.items() for argument in names.split()}


CASES = [(where, argument, group) for where, groups in EXPECTED.items() for argument, group in listed(groups).items()]


def test_every_verb_is_known_to_record_or_not() -> None:
    verbs = {*public(Ledger), *(name for name in dir(Ledger) if isinstance(getattr(Ledger, name), property))}
    assert verbs == {*READS, *(verb for verb in EXPECTED if verb[0].islower())}
    assert {f"TurnWriter.{name}" for name in public(TurnWriter)} == {v for v in EXPECTED if v.startswith("TurnWriter")}


@pytest.mark.parametrize("verb", [where for where in EXPECTED if where[0].islower() or "." in where])
def test_every_argument_of_a_verb_is_known(verb: str) -> None:
    assert arguments(verb) == set(listed(EXPECTED[verb]))


def test_every_field_of_every_nested_record_is_known() -> None:
    found = {name: set(record.__struct_fields__) for name, record in nested().items()}
    assert found == {name: set(listed(EXPECTED[name])) for name in STRUCT_BASE}


def call_verb(ledger: Ledger, verb: str, argument: str, value: object) -> None:
    given = {**VERB_BASE.get(verb, {"session": "main"} if verb[0].islower() else {}), argument: value}
    owner, _, name = verb.rpartition(".")
    if owner != "TurnWriter":
        if verb == "put_content":
            given["data"] = str(value).encode()
        if given.get("message") in ("waiting", "dead"):
            given["message"] = inbox_message(ledger, is_dead=given["message"] == "dead")
        if given.get("event") == "answer":
            given["event"] = ledger.record_turn(session="main", query="m", response="r").response_message_id
        if given.get("turn") == "failed":
            given["turn"] = ledger.record_turn(session="main", query="m", error="x").id
        if given.get("room") == "plans":
            given["room"] = ledger.rooms.create("plans").id
            ledger.rooms.post(given["room"], "said")
        if given.get("approval") == "asked":
            given["approval"] = asking(ledger, "asked")[2]
        if given.get("policy") in ("proposed", "replaced"):
            given["policy"] = policy(ledger, is_replaced=given["policy"] == "replaced")
        attrgetter(verb)(ledger)(**given)
        return
    writer = ledger.begin_turn(session="steps")
    if name == "tool_result":
        writer.tool_call("t", id="c1")
    getattr(writer, name)(**given)


def policy(ledger: Ledger, *, is_replaced: bool) -> str:
    id = ledger.policies.propose("p", "s").id
    if is_replaced:
        other = ledger.policies.propose("q", "t")
        for one in (id, other.id):
            ledger.policies.activate(one, digest=ledger.policies.get(one).digest, tests=PASSED)
    return id


def inbox_message(ledger: Ledger, *, is_dead: bool) -> str:
    message = ledger.inbox.admit("m", session="main").message
    if is_dead:
        Runs(ledger).bury([message], "code", "why")
    return message


def record_nested(ledger: Ledger, name: str, argument: str, value: object, *, as_struct: bool = False) -> None:
    fields = {**STRUCT_BASE[name], argument: value}
    made: Any = fields
    if as_struct:
        fields.pop("type", None)
        made = nested()[name](**fields)
    wrapped: dict[str, Callable[[], object]] = {
        "NewMessage": lambda: ledger.record_turn(session="main", query=made),
        "FileNote": lambda: ledger.record_turn(session="main", query={"content": "x", "files": [made]}),
        "LintNote": lambda: ledger.record_turn(session="main", query={"content": "x", "lints": [made]}),
        "Codeblock": lambda: ledger.record_turn(session="main", response={"content": "x", "codeblocks": [made]}),
        "NewToolCall": lambda: ledger.record_turn(session="main", tool_calls=[made]),
        "NewError": lambda: ledger.record_turn(session="main", error=made),
        "Usage": lambda: ledger.record_turn(session="main", usage=made),
        "RequestInput": lambda: ledger.begin_turn(session="main").request("m", input=made),
        "EventRef": lambda: ledger.begin_turn(session="main").request("m", input=[made]),
    }
    wrapped.get(name, lambda: ledger.record_turn(session="main", query={"content": [made]}))()


def contents(ledger: Ledger) -> list[str]:
    values = [json.loads(line) for line in exported(ledger).splitlines()]
    found = [value for value in values if "ref" in value]
    return [value["text"] if "text" in value else base64.b64decode(value["base64"]).decode() for value in found]


@cache
def split_session() -> bytes:
    """Facts of a session that two other replicas moved."""
    with weft.open(":memory:") as one, weft.open(":memory:") as other:
        grow(one, "split", "a")
        import_into(other, exported(one))
        grow(one, "split", "b")
        grow(other, "split", "c")
        import_into(one, exported(other))
        return exported(one)


def outcome(call: Callable[[Ledger], object], canary: str) -> set[str]:
    """Where the canary was found after the call: in an event, in a content; or that the call was refused."""
    with weft.open(":memory:") as ledger:
        grow(ledger, "main", "a", "b")
        ledger.record_turn(session="cut", tool_calls=[{"id": "c1", "name": "t", "status": "interrupted"}])
        import_into(ledger, split_session())
        found = set()
        try:
            call(ledger)
        except WeftError:
            found.add("refused")
        if any(b"canary" in line for line in lines(ledger)):
            found.add("event")
        if any(canary in text for text in contents(ledger)):
            found.add("content")
        return found


WHERE = {
    ("content", SPACED): {"content"},
    ("content", NAMELIKE): {"content"},
    ("name", SPACED): {"content"},
    ("name", NAMELIKE): {"event"},
    ("refused", SPACED): {"refused"},
    ("refused", NAMELIKE): {"refused"},
    ("strict", SPACED): {"refused"},
    ("strict", NAMELIKE): {"event"},
    ("local", SPACED): {"refused"},
    ("local", NAMELIKE): {"refused"},
    ("digest", SPACED): set(),
    ("digest", NAMELIKE): set(),
}


@pytest.mark.parametrize(
    ("where", "argument", "group", "canary"),
    share([(*case, canary) for case in CASES for canary in (SPACED, NAMELIKE)], test=32),
)
def test_a_canary_is_found_only_where_its_argument_may_put_it(
    where: str, argument: str, group: str, canary: str
) -> None:
    value: object = [canary] if argument in LISTS else canary
    record = record_nested if where in STRUCT_BASE else call_verb
    assert outcome(lambda ledger: record(ledger, where, argument, value), canary) == WHERE[group, canary]


PUBLIC_RECORDS = (
    TextPart,
    ImagePart,
    ToolUsePart,
    ToolResultPart,
    ReasoningPart,
    Codeblock,
    Usage,
    RequestInput,
    EventRef,
)


@pytest.mark.parametrize("canary", [SPACED, NAMELIKE])
@pytest.mark.parametrize(
    ("name", "argument"), [(record.__name__, field) for record in PUBLIC_RECORDS for field in record.__struct_fields__]
)
def test_records_made_by_hand_are_no_way_around(name: str, argument: str, canary: str) -> None:
    value: object = (canary,) if argument in LISTS else canary
    found = outcome(partial(record_nested, name=name, argument=argument, value=value, as_struct=True), canary)
    assert found == WHERE[listed(EXPECTED[name])[argument], canary]


@pytest.mark.parametrize("value", [1.5, 2**53, -(2**53), True, float("nan"), "7", UNSET])
@pytest.mark.parametrize(
    ("where", "argument"),
    [(w, a) for w, a, group in CASES if group != "local" and a.endswith(("_ms", "number", "line_start"))],
)
def test_numbers_that_an_event_cannot_hold_are_refused(where: str, argument: str, value: object) -> None:
    record = record_nested if where in STRUCT_BASE else call_verb
    found = outcome(lambda ledger: record(ledger, where, argument, value), "canary")
    assert found == {"refused"}
