"""What `weft broker` does beside answering messages."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from weft.surfaces.cli.call import Call
from weft.surfaces.cli.screen import Span

if TYPE_CHECKING:
    from weft.runtime.broker.background import BackgroundJob, BackgroundJobs
    from weft.surfaces.cli.broker_call import BrokerAccess


def background_jobs(call: Call, access: BrokerAccess) -> BackgroundJobs:
    """The jobs of a broker over this ledger. What one fails with is noted on standard error."""
    from weft.programs import Programs
    from weft.runtime.broker.background import BackgroundJobs
    from weft.runtime.harness.job import HarnessJob

    programs, crossing = Programs(access.ledger), access.mirror.crossing
    jobs: list[BackgroundJob] = [HarnessJob(programs, crossing, os.environ.get)]
    return BackgroundJobs(jobs, on_error=lambda name, error: call.note(Span(f"{name}: {error}", "warn")))
