"""Who asks: credentials that count, and until when."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.surfaces.server.site import Site, open_site
from weft.programs import Programs
from weft.surfaces.server import callers


@pytest.fixture
def site() -> Iterator[Site]:
    with open_site() as site:
        yield site


def test_a_caller_who_was_let_in_counts_until_the_token_expires_or_is_revoked(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "LOOK_SECONDS", 0.0)
    first, second = site.caller(site.token(expires_ms=10)), site.caller(site.token())

    async def counting() -> list[bool]:
        return [await site.served.callers.still_counts(caller) for caller in (first, second)]

    assert site.run(counting()) == [True, True]
    site.now_ms = 10
    assert site.run(counting()) == [False, True]
    site.revoked.add(second.ids[-1])
    assert site.run(counting()) == [False, False]


def test_however_many_streams_ask_the_ledger_is_asked_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "LOOK_SECONDS", 3600.0)
    for name in ("ann", "ben"):
        Programs(site.ledger).create("human", name, {})
    let_in = [site.caller(site.token(acting)) for acting in (None, "ann", "ben")]

    async def asked() -> list[bool]:
        return await asyncio.gather(*(site.served.callers.still_counts(caller) for caller in let_in * 100))

    assert all(site.run(asked()))
    looks = site.looks
    assert looks <= 2  # the first one asked before the others were there
    assert all(site.run(asked()))
    assert site.looks == looks
