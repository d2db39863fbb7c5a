"""Tokens that holders hand on at random never allow more than the tokens they were made from.

Each step narrows a token of the population at random, so every step is another chain of delegations. What a token
allows is compared with a model that knows nothing of the code: regular expressions, and a list of layers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from random import Random

import biscuit_auth
import pytest

from weft.kernel.authority import Layer, Principal, PrincipalKind, Rights
from weft.kernel.errors import TokenRefused
from weft.runtime.egress.context_tokens import NarrowingBlock, RootKey, attenuate, block_source, inspect, sign
from weft.runtime.egress.execution_context import context_for

QUICK_CHAINS, PROVED_CHAINS = 300, 1_000_000
POPULATION = 400
DEEPEST_BLOCKS = 12
KEY = RootKey(1, bytes(range(32)))
KEYS = {1: KEY.public_bytes}
ROOT_KEY = biscuit_auth.PublicKey(f"ed25519/{KEYS[1].hex()}")
USES = [
    *(("tool:shell", subject) for subject in ("git status", "git push", "rm -rf /", "git")),
    *(("tool:write", subject) for subject in ("src/a.py", "docs/a.md")),
    *((f"session:{verb}", label) for verb in ("read", "move", "archive") for label in ("notes", "main")),
    ("model:haiku", None),
    ("ledger:read", None),
    ("tool:shell", None),
]
NAMES = ("*", "tool:*", "tool:shell", "tool:write", "session:*", "session:read", "session:m?ve", "model:*", "*:read")
SUBJECTS = {"tool:shell": ("git *", "git status", "*"), "tool:write": ("src/*", "*.md"), "session:read": ("n*", "main")}
CREDENTIALS = ("anthropic", "openai", "github")
AGENTS = tuple(Principal(PrincipalKind.AGENT, name) for name in ("scout", "helper", "local-ish"))
RAW_DATALOG = (
    "check if true;",
    'allow("*");',
    "weft_grant($x) <- weft_narrowing($x) trusting previous;",
    'right("tool:shell", "*");',
    'trusting previous; check all weft_grant($g), $g != "";',
)


@dataclass(frozen=True)
class Model:
    """What a token says, as a list of what every holder wrote."""

    layers: tuple[Layer, ...]
    chain: tuple[Principal, ...]
    credentials: frozenset[str] | None
    expires_ms: int

    def allows(self, right: str, subject: str | None) -> bool:
        return all(
            any(fits(pattern, right, subject, is_deny=False) for pattern in layer.allow)
            and not any(fits(pattern, right, subject, is_deny=True) for pattern in layer.deny)
            for layer in self.layers
        )


def fits(pattern: str, right: str, subject: str | None, *, is_deny: bool) -> bool:
    """A pattern with a subject, for a use without one, counts where it denies and not where it allows."""
    name, bracket, inside = pattern.partition("(")
    if not wild(name, right):
        return False
    if not bracket or inside == "*)":
        return True
    if subject is None:
        return is_deny
    inside = inside[:-1]
    return wild(inside, subject) or (name.startswith("tool:") and inside.endswith(" *") and subject == inside[:-2])


def wild(pattern: str, text: str) -> bool:
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), text, re.S) is not None


def some_pattern(random: Random) -> str:
    name = random.choice(NAMES)
    return f"{name}({random.choice(SUBJECTS[name])})" if name in SUBJECTS and random.random() < 0.5 else name


def some_rights(random: Random) -> Rights:
    def patterns(most: int) -> tuple[str, ...]:
        return tuple(some_pattern(random) for _ in range(random.randint(0, most)))

    return Rights(tuple(Layer(patterns(4), patterns(2)) for _ in range(random.choice((0, 1, 1, 2)))))


def some_narrowing(random: Random) -> NarrowingBlock:
    names = tuple(sorted(random.sample(CREDENTIALS, random.randint(0, 3)))) if random.random() < 0.3 else None
    return NarrowingBlock(
        rights=some_rights(random),
        principal=random.choice(AGENTS) if random.random() < 0.5 else None,
        credentials=names,
        expires_ms=random.randint(1, 2000) if random.random() < 0.3 else None,
    )


def narrowed(model: Model, block: NarrowingBlock) -> Model:
    credentials = model.credentials
    if block.credentials is not None:
        names = frozenset(block.credentials)
        credentials = names if credentials is None else credentials & names
    return replace(
        model,
        layers=model.layers + block.rights.layers,
        chain=model.chain if block.principal is None else (*model.chain, block.principal),
        credentials=credentials,
        expires_ms=model.expires_ms if block.expires_ms is None else min(model.expires_ms, block.expires_ms),
    )


def beginning(random: Random) -> tuple[str, Model]:
    person, rights = Principal(PrincipalKind.HUMAN, "ann"), some_rights(random)
    token = sign(context_for(person, rights=rights), KEY, expires_ms=1000)
    return token, Model(rights.layers, (person,), None, 1000)


def appended(token: str, source: str) -> str:
    biscuit = biscuit_auth.Biscuit.from_base64(token, ROOT_KEY)
    return biscuit.append(biscuit_auth.BlockBuilder(source)).to_base64()


def handed_on(random: Random, token: str, block: NarrowingBlock) -> str:
    """By Weft, or by a holder who writes the block themselves."""
    if random.random() < 0.3:
        return appended(token, block_source(block))
    return attenuate(
        token,
        KEYS,
        rights=block.rights,
        principal=block.principal,
        credentials=block.credentials,
        expires_ms=block.expires_ms,
    )


def allowed_uses(token: str, model: Model) -> set[tuple[str, str | None]]:
    content = inspect(token, KEYS)
    context = content.context
    assert (context.chain, context.credentials, content.expires_ms) == (
        model.chain,
        model.credentials,
        model.expires_ms,
    )
    uses = {use for use in USES if context.authority.allows(*use)}
    assert uses == {use for use in USES if model.allows(*use)}
    return uses


def test_no_chain_of_delegations_widens_a_right() -> None:
    narrow_at_random(Random(19), QUICK_CHAINS)


@pytest.mark.prove
def test_no_chain_of_a_million_delegations_widens_a_right() -> None:
    narrow_at_random(Random(), PROVED_CHAINS)


def narrow_at_random(random: Random, chains: int) -> None:
    population = [(*beginning(random), 1) for _ in range(20)]
    allowed = [allowed_uses(token, model) for token, model, _ in population]
    for _ in range(chains):
        place = random.randrange(len(population))
        token, model, blocks = population[place]
        block = some_narrowing(random)
        child, child_model = handed_on(random, token, block), narrowed(model, block)
        uses = allowed_uses(child, child_model)
        assert uses <= allowed[place]
        if random.random() < 0.05:
            with pytest.raises(TokenRefused):
                inspect(appended(child, random.choice(RAW_DATALOG)), KEYS)
        if blocks + 1 >= DEEPEST_BLOCKS or not uses:
            child, child_model = beginning(random)
            uses, blocks = allowed_uses(child, child_model), 0
        if len(population) < POPULATION:
            population.append((child, child_model, blocks + 1))
            allowed.append(uses)
        else:
            place = random.randrange(POPULATION)
            population[place], allowed[place] = (child, child_model, blocks + 1), uses
