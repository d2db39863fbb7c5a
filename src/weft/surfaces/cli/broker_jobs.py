"""What `weft broker` does beside answering messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.surfaces.cli.call import Call
from weft.surfaces.cli.screen import Span

if TYPE_CHECKING:
    from weft.runtime.broker.broker import BackgroundJob, BackgroundJobs
    from weft.surfaces.cli.broker_call import BrokerAccess


def background_jobs(call: Call, access: BrokerAccess) -> BackgroundJobs:
    """The jobs of a broker over this ledger. What one fails with is noted on standard error."""
    from weft.programs import Programs
    from weft.runtime.agent_harness import HarnessJob
    from weft.runtime.broker.broker import BackgroundJobs
    from weft.surfaces.cli.sandbox_access import command_runner

    programs, crossing = Programs(access.ledger), access.mirror.crossing

    def note(name: str, error: Exception) -> None:
        call.note(Span(f"{name}: {error}", "warn"))

    harness = HarnessJob(programs, crossing, command_runner(access.ledger), on_error=note)
    return BackgroundJobs([harness, trigger_job(call, access), resource_job(access)], on_error=note)


def trigger_job(call: Call, access: BrokerAccess) -> BackgroundJob:
    """Triggers of the ledger, fired with the rights of those who made them."""
    from weft.kernel.clock import SystemClock
    from weft.programs import Programs
    from weft.runtime.invoke.trigger_firing import TriggerSender
    from weft.runtime.invoke.trigger_job import TriggerJob
    from weft.surfaces.cli.program_call import acting_person

    programs = Programs(access.ledger)
    return TriggerJob(TriggerSender(programs, acting_person(call, programs), SystemClock()), access.mirror.crossing)


def resource_job(access: BrokerAccess) -> BackgroundJob:
    """Snapshots and restores that are wanted and were not done."""
    from weft.runtime.resources.controller import ResourceJob
    from weft.surfaces.cli.resource_access import resource_controller

    ledger = access.ledger
    return ResourceJob(ledger, access.mirror.crossing, lambda: resource_controller(ledger))
