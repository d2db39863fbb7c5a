"""Events: the page that documents them, what the agent DAG schema asks of them, and their bytes."""

import json
import os
import re
import signal
from enum import Enum
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Optional, Union, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from scripts import generate_docs
from scripts.event_producers import event_producers
from scripts.generate_docs import SEED_NAMES, STREAMS, about, enumerations, events_page, struct_name, structures
from tests.kernel.event_strategies import events
from tests.sizes import share
from tests.sources import LOAD, parsed
from weft.kernel import contents, enums
from weft.kernel import events as kernel_events
from weft.kernel.enums import EventClass
from weft.kernel.events import (
    STREAM_KINDS,
    Event,
    Registry,
    UnknownEvent,
    encode,
    event_id,
    kind_of,
    ledger_stream,
    made_decoder,
    program_stream,
    run_stream,
    session_stream,
)
from weft.kernel.foreign_input import EVENT_KINDS, KINDS, field_types

PAGE = Path(__file__).parents[2] / "docs" / "events.md"

SEED_KINDS = {
    "model_request": "model params input_refs tools_spec correlation_id",
    "model_response": "request_id output_ref usage finish_reason reasoning_ref stream_ref",
    "history_append": "list message_ref",
    "tool_call": "server tool call_id args requested_by",
    "tool_result": "call_id status result error",
    "mcp.resource_updated": "server uri etag hash summary",
    "mcp.resource_list_changed": "server",
    "policy_activated": "policy_ref notes",
    "interruption": "reason affects",
    "substitution": "original_event replacement_event reason",
    "agent_forked": "from_branch to_branch at_event volume_plan",
    "run_started": "reason",
    "run_finished": "exit summary_ref",
    "snapshot_materialized": "content_ref",
    "snapshot_created": "resource_ref snapshot_ref outcome error",
    "resource_attached": "run_id resource_ref mode",
    "resource_detached": "run_id resource_ref",
    "resource_liveness_probe": "resource_ref status",
    "restore_attempted": "snapshot_ref outcome new_resource_ref",
}
SEED_ENVELOPE = "event_id ts run_id agent_id"
SEED_ENUMERATIONS = {
    "ToolCallStatus": "ok error timeout canceled interrupted",
    "InterruptionReason": "crash shutdown context_reset approval_denied timeout canceled system_restart",
    "ResourceKind": "docker_volume docker_container docker_image file uri",
    "MessageRole": "system user assistant tool",
    "ResourceLiveness": "unknown alive dead",
    "ResourceCapability": "snapshot restore fork share migrate checkpoint",
    "MountMode": "ro rw",
    "VolumeMode": "keep snapshot discard",
    "SnapshotOutcome": "ok error",
    "RestoreOutcome": "ok unsupported error",
    "PolicyKind": "active proposal",
    "RunReason": "user schedule subagent",
    "RunExit": "success error",
    "EventClass": "intent observation transition provenance",
}
SEED_REFERENCES = {"EventRef": "event_id", "UriRef": "uri", "PathRef": "path", "ExtRef": "kind id"}
SEED_PARTS = {
    "text": "text",
    "image_url": "url detail",
    "tool_use": "id name input",
    "tool_result": "tool_call_id output is_error",
    "reasoning": "text",
}
SEED_STRUCTURES = {
    "Message": "id role content created_at",
    "Error": "code message details",
    "VolumePlan": "resource mode kept_by snapshot_ref",
    "Usage": "total_tokens",
}
OWN_KINDS = """
    agent_created session_created session_moved session_archived session_renamed alias_added compaction_recorded
    compaction_chosen message_admitted message_cancelled message_dead run_parked workers_answered turn_linked
    turn_superseded sighting
    turn_retried content_erased approval_requested approval_granted approval_denied policy_proposed policy_rejected
    policy_rolled_back snapshot_requested restore_requested compensation_recorded node_tagged node_untagged
    resource_declared resource_owned subresource_added subresource_removed handle_opened handle_closed
    resource_mounted resource_unmounted snapshot_discarded
    node_embedded tool_decided conversation_created conversation_retitled conversation_archived conversation_restored
    participant_added participant_removed participant_invited invitation_declined message_posted
""".split()
PROGRAM_KINDS = """
    provider_created provider_configured model_created model_configured session_model_switched session_completed
    agent_task_assigned agent_thinking agent_executing agent_completed agent_checkpoint agent_reset task_created
    task_assigned task_started task_completed task_failed information_created information_validated information_updated
    human_notified human_approved human_rejected
""".split()  # those of the program types; where one of their facts has two names, the others above tell it
FURTHER_KINDS = """
    code_created code_configured agent_configured session_configured human_created human_configured task_configured
    program_published program_deprecated program_deleted session_paused session_resumed agent_waiting agent_paused
    agent_resumed agent_failed task_blocked task_unblocked task_checked information_activated information_archived
    human_presence toolset_created toolset_configured agent_shared agent_unshared trigger_created trigger_configured
    trigger_paused trigger_resumed trigger_fired trigger_missed
""".split()
ULID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


def section(title: str) -> str:
    return PAGE.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def documented_kinds() -> dict[str, tuple[str, list[str]]]:
    """Kind -> its class and its fields, read from the page."""
    found = {}
    for entry in section("Kinds").split("\n### `")[1:]:
        name, _, text = entry.partition("`")
        found[name] = (re.search(r"^\*(\w+)\.\*", text, re.M)[1], re.findall(r"^\| `(\w+)` \|", text, re.M))  # type: ignore[index]
    return found


@LOAD
def test_the_page_is_what_the_code_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate_docs, "event_producers", partial(event_producers, parsed))
    assert PAGE.read_text() == events_page(), "run `make docs`"


def test_the_page_lists_exactly_the_kinds_of_the_code() -> None:
    assert documented_kinds().keys() == EVENT_KINDS.keys()


@pytest.mark.parametrize("name", EVENT_KINDS)
def test_the_page_names_the_class_and_every_field_of_a_kind(name: str) -> None:
    category, listed = documented_kinds()[name]
    assert category == EVENT_KINDS[name].category
    assert [*Event.__struct_fields__, *listed] == list(EVENT_KINDS[name].__struct_fields__)


def test_every_kind_and_structure_says_in_one_sentence_what_it_is() -> None:
    sentences = [kind.about for kind in EVENT_KINDS.values()] + [about(record) for record in structures()]
    assert all(text and text.endswith(".") for text in sentences)
    assert {kind.category for kind in EVENT_KINDS.values()} == set(EventClass)


def test_every_link_of_the_page_leads_to_a_heading() -> None:
    text = PAGE.read_text()
    headings = {title.lower().replace(" ", "-") for title in re.findall(r"^##+ (.+)$", text, re.M)}
    assert set(re.findall(r"\(#([^)]+)\)", text)) <= headings


def test_the_page_lists_every_value_of_every_enumeration() -> None:
    text = section("Enumerations")
    for kind in enumerations():
        shown = text.partition(f"### {kind.__name__}\n\n")[2].partition("\n")[0]
        assert shown == ", ".join(f"`{member.value}`" for member in kind)


def test_the_kinds_are_those_of_the_agent_dag_schema_and_the_ledgers_own() -> None:
    assert EVENT_KINDS.keys() == SEED_KINDS.keys() | {*OWN_KINDS, *PROGRAM_KINDS, *FURTHER_KINDS}


def follow(record: type[Struct], path: str) -> bool:
    """Does this path lead through the types to a field?"""
    name, _, rest = path.partition(".")
    annotation = field_types(record).get(name)
    if annotation is None or not rest:
        return annotation is not None
    parts = (*get_args(annotation), annotation)
    inner = [part for part in parts if isinstance(part, type) and issubclass(part, Struct)]
    return any(follow(part, rest) for part in inner)


def place_of(kind: str, field: str) -> str:
    title = "".join(word.capitalize() for word in re.split(r"[._]", kind))
    return SEED_NAMES.get((title, field)) or SEED_NAMES.get(("*", field)) or field


@pytest.mark.parametrize("name", SEED_KINDS)
def test_every_field_of_the_agent_dag_schema_has_its_place(name: str) -> None:
    for field in f"{SEED_ENVELOPE} {SEED_KINDS[name]}".split():
        here = place_of(name, field)
        assert " " in here or follow(EVENT_KINDS[name], here), f"{name}.{field} -> {here}"


def test_every_place_that_the_page_names_exists() -> None:
    kinds: dict[str, type[Struct]] = {kind.__name__: kind for kind in EVENT_KINDS.values()}
    kinds |= {"Message": kernel_events.MessageFact, "Snapshot (cache only)": EVENT_KINDS["snapshot_materialized"]}
    for (title, _), here in SEED_NAMES.items():
        assert " " in here or follow(kinds.get(title, Event), here)


def test_the_enumerations_hold_every_value_of_the_agent_dag_schema() -> None:
    for name, members in SEED_ENUMERATIONS.items():
        kind: type[Enum] = getattr(enums, name)
        assert set(members.split()) <= {member.value for member in kind}


def test_the_references_and_structures_have_every_field_of_the_agent_dag_schema() -> None:
    known = {struct_name(record): record for record in structures()}
    for name, listed in (SEED_REFERENCES | SEED_STRUCTURES).items():
        for field in listed.split():
            here = SEED_NAMES.get((name, field), field)
            assert " " in here or follow(known[name], here), f"{name}.{field}"


def test_the_five_parts_have_the_fields_of_the_agent_dag_schema_and_no_others() -> None:
    parts = {part.__struct_config__.tag: set(part.__struct_fields__) for part in get_args(kernel_events.PartFact)}
    assert parts == {name: set(listed.split()) for name, listed in SEED_PARTS.items()}


def test_requests_responses_calls_and_results_all_carry_a_correlation() -> None:
    for name in ("model_request", "model_response", "tool_call", "tool_result"):
        assert "correlation_id" in EVENT_KINDS[name].__struct_fields__


@pytest.mark.parametrize("name", share(list(EVENT_KINDS), test=25))
@settings(max_examples=15)
@given(st.data())
def test_the_fast_encoding_of_an_event_is_its_canonical_form(name: str, data: st.DataObject) -> None:
    event = data.draw(events(EVENT_KINDS[name]))
    line = encode(event)
    assert line == contents.dumps(msgspec.to_builtins(event))
    assert KINDS.decode(line) == event
    assert event_id(line) == sha256(line).hexdigest()
    assert json.loads(line)["kind"] == name == kind_of(event)


def leaf_types(annotation: Any) -> set[Any]:
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        return set().union(*(leaf_types(kind) for kind in field_types(annotation).values()))
    inner = [part for part in get_args(annotation) if part is not Ellipsis]
    return set().union(*map(leaf_types, inner)) if inner else {annotation}


@pytest.mark.parametrize("name", EVENT_KINDS)
def test_no_field_of_any_event_can_hold_a_float_or_free_json(name: str) -> None:
    assert not leaf_types(EVENT_KINDS[name]) & {float, Any, object, dict, list}


def test_an_unknown_kind_is_kept_with_its_fields() -> None:
    line = contents.dumps({"v": 1, "kind": "moon_landed", "stream": f"run:{ULID}", "prev": None, "crew": [1, {"x": 2}]})
    event = KINDS.decode(line)
    assert isinstance(event, UnknownEvent)
    assert (event.kind, event.stream, event.prev) == ("moon_landed", f"run:{ULID}", None)
    assert contents.dumps(event.fields) == line


@pytest.mark.parametrize("name", share(list(EVENT_KINDS), test=25))
@settings(max_examples=5)
@given(st.data())
def test_an_unknown_field_does_not_hide_a_known_kind(name: str, data: st.DataObject) -> None:
    event = data.draw(events(EVENT_KINDS[name]))
    later = contents.dumps({**msgspec.to_builtins(event), "zz_of_a_later_program": {"deep": [None, True]}})
    assert KINDS.decode(later) == event


def test_a_value_that_a_known_kind_does_not_allow_makes_it_an_unknown_event() -> None:
    line = contents.dumps(
        {
            "v": 1,
            "kind": "session_archived",
            "stream": f"session:{ULID}",
            "prev": None,
            "actor": "local",
            "status": "lent",
        }
    )
    event = KINDS.decode(line)
    assert isinstance(event, UnknownEvent)
    assert event.fields["status"] == "lent"


@pytest.mark.parametrize("line", [b"[]", b"1", b'{"kind":"x"}', b'{"kind":"x","stream":1,"prev":null}', b"nonsense"])
def test_what_is_no_event_at_all_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        KINDS.decode(line)


def test_streams_are_a_kind_and_an_id() -> None:
    assert run_stream(ULID) == f"run:{ULID}"
    assert session_stream(ULID) == f"session:{ULID}"
    assert program_stream(ULID) == f"program:{ULID}"
    assert ledger_stream(ULID) == f"ledger:{ULID}"
    assert tuple(STREAMS) == STREAM_KINDS
    assert section("Streams").count("\n| `") == len(STREAM_KINDS)


def test_an_interrupt_while_a_decoder_is_made_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """msgspec looks types up in a way that swallows what is raised meanwhile."""
    first = msgspec.defstruct("First", [("value", Optional[int])], tag="first")  # noqa: UP045
    hashed, plain = [], type(Optional[int]).__hash__  # noqa: UP045

    def interrupted(union: Any) -> int:
        hashed.append(union)
        if len(hashed) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return plain(union)

    monkeypatch.setattr(type(Optional[int]), "__hash__", interrupted)  # noqa: UP045
    with pytest.raises(KeyboardInterrupt):
        made_decoder(first)
    assert hashed


def test_what_goes_wrong_while_a_decoder_is_made_is_raised_to_whoever_wants_it() -> None:
    with pytest.raises(TypeError, match="more than one array-like"):
        made_decoder(Union[list[int], set[int]])  # noqa: UP007


class CountedTwice(int):
    """A count from which two threads take one at the same moment."""

    def __sub__(self, other: int) -> int:
        return int(self) - 2 * other


def test_lines_that_threads_count_at_once_do_not_keep_the_quick_decoder_from_being_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernel_events, "LINES_BY_KIND", CountedTwice(1))
    made: list[Any] = []

    def noted(kinds: Any) -> Any:
        made.append(kinds)
        return made_decoder(kinds)

    monkeypatch.setattr(kernel_events, "made_decoder", noted)
    first = msgspec.defstruct("First", [("value", int)], tag_field="kind", tag="first")
    second = msgspec.defstruct("Second", [("value", int)], tag_field="kind", tag="second")
    union: Any = Union.__getitem__((first, second))
    registry = Registry(union)
    for _ in range(3):
        registry.decode(b'{"kind":"first","value":1}')
    assert made == [first, union]
