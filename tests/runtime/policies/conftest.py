"""The interpreters of policies of one module's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import weft
from tests.sandbox import UNPROTECTED, machine_sandbox
from weft.ledger.api.ledger import Ledger
from weft.runtime.policies.policy_decisions import PolicyInterpreters
from weft.runtime.sandbox.command_runner import CommandRunner


@pytest.fixture(scope="module")
def interpreters() -> Iterator[PolicyInterpreters]:
    interpreters = PolicyInterpreters(CommandRunner(UNPROTECTED, sandbox=machine_sandbox()))
    yield interpreters
    interpreters.stop()


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with weft.open(":memory:") as ledger:
        yield ledger
