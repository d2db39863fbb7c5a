"""Views from facts: the projector, and what each kind of event means to it."""

from weft.ledger.views import (
    approvals,
    conversations,
    policies,
    programs,
    resources,
    runs,
    sessions,
    sightings,
    substitutions,
    triggers,
    versions,
)
from weft.ledger.views.projector import Projector

__all__ = [
    "Projector",
    "approvals",
    "conversations",
    "policies",
    "programs",
    "resources",
    "runs",
    "sessions",
    "sightings",
    "substitutions",
    "triggers",
    "versions",
]
