"""Layers merge as a naive model merges them, and permissions never widen."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.kernel.authority import Principal, PrincipalKind
from weft.ledger.reports.audit import PermissionVerdict, ToolUse, judge, parse_grant
from weft.runtime.assembly.configuration_layers import (
    NO_OVERRIDES,
    ConfigLayer,
    LayerName,
    merge,
    passed_on,
    thread_layers,
)
from weft.runtime.egress.execution_context import context_for
from weft.runtime.inference.model_requests import ModelParameters, ModelSettings, ProviderKind, ProviderSettings
from weft.runtime.tool.toolsets import PermissionLimits, SandboxLimits

TOOLS = ("Read", "Bash", "mcp__notes__add", "Bread")
PATTERNS = st.sampled_from([*TOOLS, "*", "B*", "mcp__*", "*ead", "?ash", "nothing"])
KEYS = ("alpha", "beta", "gamma")
VALUES = st.fixed_dictionaries(
    {},
    optional={
        "model": st.sampled_from(["@(one)", "@(two)"]),
        "situation": st.sampled_from(["coding", "calm"]),
        "temperature": st.sampled_from([0.0, 0.5, 1.5]),
        "max_tokens": st.integers(1, 9),
        "thinking": st.sampled_from([True, False, "low"]),
        "stop": st.sampled_from([("END",), ()]),
    },
)
LIMITS = st.builds(
    PermissionLimits,
    allow=st.none() | st.lists(PATTERNS, max_size=3).map(tuple),
    deny=st.lists(PATTERNS, max_size=2).map(tuple),
    credentials=st.none() | st.lists(st.sampled_from(KEYS), max_size=3).map(tuple),
    sandbox=st.builds(
        SandboxLimits,
        files=st.sampled_from([None, "everything", "workspace", "read-only"]),
        network=st.sampled_from([None, True, False]),
    ),
)
LAYERS = st.lists(
    st.builds(
        ConfigLayer, name=st.sampled_from(LayerName), source=st.sampled_from("abc"), values=VALUES, permissions=LIMITS
    ),
    max_size=7,
)


def naive_values(layers: list[ConfigLayer]) -> dict[str, tuple[Any, str, str]]:
    """For each key the last layer that has it."""
    keys = {key for layer in layers for key in layer.values}
    last = {key: [layer for layer in layers if key in layer.values][-1] for key in keys}
    return {key: (layer.values[key], str(layer.name), layer.source) for key, layer in last.items()}


def naive_allows(layers: list[ConfigLayer], tool: str) -> bool:
    for layer in layers:
        limits = layer.permissions
        if any(fnmatchcase(tool, pattern) for pattern in limits.deny):
            return False
        if limits.allow is not None and not any(fnmatchcase(tool, pattern) for pattern in limits.allow):
            return False
    return True


def naive_credentials(layers: list[ConfigLayer]) -> set[str] | None:
    lists = [layer.permissions.credentials for layer in layers if layer.permissions.credentials is not None]
    return {key for key in KEYS if all(key in names for names in lists)} if lists else None


def naive_sandbox(layers: list[ConfigLayer]) -> tuple[str | None, bool | None]:
    files = [layer.permissions.sandbox.files for layer in layers]
    strict = next((level for level in ("read-only", "workspace", "everything") if level in files), None)
    networks = [layer.permissions.sandbox.network for layer in layers if layer.permissions.sandbox.network is not None]
    return strict, all(networks) if networks else None


@given(LAYERS)
def test_layers_merge_as_a_naive_merge_does(layers: list[ConfigLayer]) -> None:
    merged = merge(layers)
    values = {key: (one.value, str(one.layer), one.source) for key, one in merged.values.items()}
    assert values == naive_values(layers)
    assert merged.parameters.given() == {
        key: value for key, (value, *_) in values.items() if key not in ("model", "situation")
    }
    assert {tool: merged.permissions.allows(tool) for tool in TOOLS} == {
        tool: naive_allows(layers, tool) for tool in TOOLS
    }
    assert merged.permissions.credentials == naive_credentials(layers)
    assert (merged.permissions.sandbox.files, merged.permissions.sandbox.network) == naive_sandbox(layers)


@given(LAYERS, LAYERS, st.data())
def test_another_layer_allows_nothing_that_was_not_allowed(
    layers: list[ConfigLayer], others: list[ConfigLayer], data: st.DataObject
) -> None:
    """Wherever the other layers stand among the first ones."""
    more = list(layers)
    for layer in others:
        more.insert(data.draw(st.integers(0, len(more))), layer)
    before, after = merge(layers).permissions, merge(more).permissions
    assert not [tool for tool in TOOLS if after.allows(tool) and not before.allows(tool)]
    if before.credentials is not None:
        assert after.credentials is not None
        assert after.credentials <= before.credentials
    assert (before.sandbox.network, after.sandbox.network) != (False, True)
    assert strictness(after.sandbox.files) >= strictness(before.sandbox.files)


def strictness(files: str | None) -> int:
    return [None, "everything", "workspace", "read-only"].index(files)


@given(LAYERS, st.sampled_from(TOOLS))
def test_the_recorded_permissions_audit_as_they_were_enforced(layers: list[ConfigLayer], tool: str) -> None:
    permissions = merge(layers).permissions
    record = msgspec.json.decode(msgspec.json.encode(permissions.record()))
    verdict = judge(ToolUse(tool, None, {}), None, parse_grant(record))
    assert (verdict is PermissionVerdict.ALLOWED) == permissions.allows(tool)
    context = permissions.narrowed(context_for(Principal(PrincipalKind.HUMAN, "ada")))
    assert context.allows(f"tool:{tool}") == permissions.allows(tool)
    assert context.credentials == permissions.credentials


@given(LAYERS)
def test_a_thread_passes_on_what_its_thread_session_and_message_say_and_nothing_else(
    layers: list[ConfigLayer],
) -> None:
    record = merge(layers).record(model="one", provider="there", chain=["human:ada"])
    read = msgspec.json.decode(msgspec.json.encode(record))
    passed = ("thread", "spawner", "session", "message")
    for same_session, message, names in (
        (False, NO_OVERRIDES, passed),
        (False, None, passed[:-1]),
        (True, NO_OVERRIDES, passed[:1]),
    ):
        kept = sorted((layer for layer in layers if layer.name in names), key=lambda layer: names.index(layer.name))
        inherited = merge(thread_layers(read, same_session=same_session, message=message))
        assert {layer.name for layer in inherited.layers} <= {LayerName.THREAD}
        values = {key: one.value for key, one in inherited.values.items()}
        assert values == {key: value for key, (value, *_) in naive_values(kept).items()}
        assert [inherited.permissions.allows(tool) for tool in TOOLS] == [naive_allows(kept, tool) for tool in TOOLS]
    threads = [layer for layer in layers if layer.name is LayerName.THREAD]
    forked = passed_on([*threads, *threads])
    assert len(passed_on([*forked, *forked])) == len(forked)


@given(LAYERS.map(lambda layers: sorted(layers, key=lambda layer: list(LayerName).index(layer.name))))
def test_the_request_parameters_over_the_models_own_give_the_merged_ones(layers: list[ConfigLayer]) -> None:
    """What inference computes from a model, a situation and a request is what the merge says."""
    own = merge(layer for layer in layers if layer.name is LayerName.MODEL)
    situation = merge(layer for layer in layers if layer.name is LayerName.SITUATION)
    model = ModelSettings(
        id="one",
        name="m-1",
        provider=ProviderSettings(id="there", kind=ProviderKind.OPENAI),
        parameters=own.parameters,
        situations={"coding": situation.parameters},
    )
    merged = merge(layer for layer in layers if layer.name is not LayerName.PROVIDER)
    assert model.in_situation("coding", merged.request_parameters) == merged.parameters


STRANGE_LAYERS = (
    {"name": "king"},
    {"name": "session", "values": {"crown": 1}},
    {"name": "thread", "values": {"model": 1}},
)
STRANGE_RECORDS: list[Any] = [None, [], "text", {}, {"layers": 5}, *({"layers": [layer]} for layer in STRANGE_LAYERS)]


@pytest.mark.parametrize("record", STRANGE_RECORDS)
def test_a_record_without_layers_passes_nothing_on(record: Any) -> None:
    assert thread_layers(record, same_session=False, message=NO_OVERRIDES) == []


def test_the_record_says_where_values_came_from_and_what_was_not_sent() -> None:
    layers = [
        ConfigLayer(name=LayerName.MODEL, source="fast", values={"temperature": 0.5, "thinking": "high"}),
        ConfigLayer(name=LayerName.SESSION, source="notes", values={"model": "@(fast)", "max_tokens": 40}),
        ConfigLayer(name=LayerName.MESSAGE, values={"temperature": 0.0}, permissions=PermissionLimits(deny=("Bash",))),
    ]
    effective = merge(layers).sending(ModelParameters(temperature=0.0, max_tokens=40))
    assert effective.record(model="fast", provider="there", chain=["human:ada"]) == {
        "model": "fast",
        "provider": "there",
        "situation": None,
        "parameters": {"temperature": 0.0, "max_tokens": 40},
        "chain": ["human:ada"],
        "sources": {
            "temperature": {"layer": "message", "source": ""},
            "thinking": {"layer": "model", "source": "fast"},
            "model": {"layer": "session", "source": "notes"},
            "max_tokens": {"layer": "session", "source": "notes"},
        },
        "not_sent": {"thinking": "high"},
        "layers": [
            {"name": "session", "source": "notes", "values": {"model": "@(fast)", "max_tokens": 40}},
            {"name": "message", "values": {"temperature": 0.0}, "permissions": {"deny": ("Bash",)}},
        ],
    }
    assert effective.permissions.record() == {"layers": [{"layer": "message", "source": "", "deny": ["Bash"]}]}
    assert merge(layers[:2]).permissions.record() == {"layers": []}
