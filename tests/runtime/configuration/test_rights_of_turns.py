"""A turn may do no more than its token, its agent, its session and the thread that it continues allow together."""

from __future__ import annotations

from functools import cache
from random import Random

import msgspec
from msgspec import Struct

from tests.runtime.configuration.test_layers import KEYS, TOOLS, strictness
from tests.sizes import PROVING
from weft.kernel.authority import Principal, PrincipalKind
from weft.runtime.assembly.configuration_layers import (
    ConfigLayer,
    EffectiveConfig,
    LayerName,
    MessageOverrides,
    merge,
    thread_layers,
)
from weft.runtime.egress.execution_context import context_for
from weft.runtime.tool.toolsets import NO_LIMITS, PermissionLimits, SandboxLimits

TURNS = 1_000_000 if PROVING else 400
TREE_TURNS, KNOWN_LIMITS = 40, 500
PATTERNS = (*TOOLS, "*", "B*", "mcp__*", "*ead", "?ash", "nothing")
PERSON, AGENT = Principal(PrincipalKind.HUMAN, "ada"), Principal(PrincipalKind.AGENT, "scout")


class RandomTurn(Struct):
    """A turn of a random tree: which session it is of, what was recorded of it, and the limits of its thread."""

    session: int
    record: object
    session_limits: PermissionLimits
    inherited: frozenset[PermissionLimits]


def random_limits(random: Random) -> PermissionLimits:
    if random.random() < 0.3:
        return NO_LIMITS
    return PermissionLimits(
        allow=None if random.random() < 0.4 else tuple(random.sample(PATTERNS, random.randint(0, 4))),
        deny=tuple(random.sample(PATTERNS, random.choice((0, 0, 1, 2)))),
        credentials=None if random.random() < 0.5 else tuple(random.sample(KEYS, random.randint(0, 3))),
        sandbox=SandboxLimits(
            files=random.choice([None, "everything", "workspace", "read-only"]),  # type: ignore[arg-type]
            network=random.choice([None, True, False]),
        ),
    )


def layer(name: LayerName, limits: PermissionLimits) -> ConfigLayer:
    return ConfigLayer(name=name, source=name.value, permissions=limits)


@cache
def allowed_alone(limits: PermissionLimits) -> frozenset[str]:
    permissions = merge([layer(LayerName.SESSION, limits)]).permissions
    return frozenset(tool for tool in TOOLS if permissions.allows(tool))


def ensure_narrower(effective: EffectiveConfig, token: PermissionLimits, parts: tuple[PermissionLimits, ...]) -> None:
    """What the turn may do is within what every part allows by itself."""
    acting = context_for(PERSON, rights=token.rights()).child(credentials=token.credentials).delegate(AGENT)
    context = effective.permissions.narrowed(acting)
    sandbox, credentials = effective.permissions.sandbox, context.credentials
    allowed = {tool for tool in TOOLS if context.allows(f"tool:{tool}") or effective.permissions.allows(tool)}
    for limits in (token, *parts):
        assert allowed <= allowed_alone(limits)
        assert limits.credentials is None or (credentials is not None and credentials <= set(limits.credentials))
        assert limits.sandbox.network is not False or sandbox.network is False
        assert strictness(sandbox.files) >= strictness(limits.sandbox.files)


def test_no_turn_of_a_tree_has_a_right_that_its_token_agent_session_or_thread_lacks() -> None:
    """Turns continue earlier ones, in the same session or as forks, under agents and with overrides at random."""
    random, turns = Random(19), list[RandomTurn]()
    known = [random_limits(random) for _ in range(KNOWN_LIMITS)]
    for _ in range(TURNS):
        if len(turns) >= TREE_TURNS:
            turns.clear()
        parent = random.choice([None, *turns[-8:]]) if turns else None
        is_fork = parent is None or random.random() < 0.5
        session = len(turns) if is_fork or parent is None else parent.session
        token, persona, own, message = random.choices(known, k=4)
        is_same = parent is not None and parent.session == session
        overrides = MessageOverrides(deny=message.deny)
        passed_on = [] if parent is None else thread_layers(parent.record, same_session=is_same, message=overrides)
        inherited = frozenset() if parent is None else parent.inherited
        if parent is not None and is_fork:
            inherited = inherited | {parent.session_limits}
        layers = [
            layer(LayerName.PRINCIPAL, token),
            layer(LayerName.PERSONA, persona),
            *passed_on,
            layer(LayerName.SESSION, own),
            layer(LayerName.MESSAGE, PermissionLimits(deny=message.deny)),
        ]
        effective = merge(one for one in layers if not one.is_empty)
        ensure_narrower(effective, token, (persona, own, PermissionLimits(deny=message.deny), *inherited))
        record = msgspec.json.decode(msgspec.json.encode(effective.record(model="m", provider="p", chain=[])))
        turns.append(RandomTurn(session, record, own, inherited))
