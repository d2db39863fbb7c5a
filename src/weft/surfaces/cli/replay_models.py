"""Which models a replay will ask, looked up before anything is recorded or paid for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.kernel.clock import SystemClock
from weft.programs import Programs
from weft.runtime.assembly.turn_configuration import LayerReader, TurnRequest
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.model_requests import ensure_priced
from weft.surfaces.cli.chat.models import other_models
from weft.surfaces.cli.program_call import acting_person

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.runtime.inference.model_requests import ModelSettings
    from weft.runtime.thread_replay import ThreadRange
    from weft.surfaces.cli.call import Call


def ensure_models(
    call: Call, ledger: Ledger, threads: Sequence[ThreadRange], name: str | None, *, has_budget: bool
) -> None:
    """Refuse a name that is no model's. Where there is a budget of money, refuse also models without a price: that of
    the name, or those that the threads are replayed with where there is none."""
    programs = Programs(ledger)
    models: list[ModelSettings] = []
    if name is not None:
        configured = other_models(programs, os.environ.get)(name, None, acting_person(call, programs))
        models += [] if configured is None else [configured.model]
    elif has_budget:
        models += _configured_models(call, programs, threads)
    now = SystemClock().now_ms()
    for model in models if has_budget else ():
        ensure_priced(model, now)


def _configured_models(call: Call, programs: Programs, threads: Sequence[ThreadRange]) -> list[ModelSettings]:
    """The models of new sessions of the agents of these threads, or of forks where only some of their turns are
    replayed."""
    ledger, acting = programs.ledger, acting_person(call, programs)
    reader = LayerReader(programs, Inference(), os.environ.get, acting, other_models(programs, os.environ.get))
    agents = {(ledger.turn(ledger.point(one.last).turn_id).persona_id, one.after) for one in threads}
    requests = [TurnRequest(persona=agent, parent=after) for agent, after in agents]
    return [reader.configuration(request).require_model() for request in requests]
