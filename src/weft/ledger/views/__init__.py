"""Views from facts: the projector, and what each kind of event means to it."""

from weft.ledger.views import approvals, policies, programs, runs, sessions, sightings, versions
from weft.ledger.views.projector import Projector

__all__ = ["Projector", "approvals", "policies", "programs", "runs", "sessions", "sightings", "versions"]
