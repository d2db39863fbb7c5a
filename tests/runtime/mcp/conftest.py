"""Every server of these tests runs in the sandbox."""

import pytest

from tests.sandbox import machine_sandbox


@pytest.fixture(scope="session", autouse=True)
def sandbox() -> None:
    machine_sandbox()
