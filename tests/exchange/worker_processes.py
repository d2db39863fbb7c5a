"""Processes that a test waits for, though another one began them."""

from __future__ import annotations

import os
import select


def assert_ends(pid: int) -> None:
    """Waited for by its descriptor: who asks may not be its parent. It is ready once the process is gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        assert poll.poll(60_000), "the worker is still running"
    finally:
        os.close(descriptor)
