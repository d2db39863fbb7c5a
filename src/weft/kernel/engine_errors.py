"""What a container engine, or an archive of its data, can fail with: a part of the tree of `weft.kernel.errors`."""

from __future__ import annotations

from weft.kernel.advice import Action, Hint
from weft.kernel.outside_errors import OutsideError


class EngineUnreachable(OutsideError):
    """No container engine answers at this address, or not in time. What was asked for may have been done."""

    code = "engine_unreachable"
    usual_action = Action.START_ENGINE

    def __init__(self, address: str, reason: str, hint: Hint = "") -> None:
        super().__init__(f"the container engine at {address}: {reason}", hint)
        self.address, self.reason = address, reason


class EngineObjectMissing(OutsideError):
    """The container engine has no such volume, container or image: it was removed, or never made."""

    code = "engine_object_missing"
    usual_action = Action.LIST_ENGINE_OBJECTS
    lasting = True

    def __init__(self, what: str, name: str, hint: Hint = "") -> None:
        super().__init__(f"the container engine has no {what} {name!r}", hint)
        self.what, self.name = what, name


class EngineRefused(OutsideError):
    """The container engine answered that it does not do this; `reason` is what it said."""

    code = "engine_refused"
    usual_action = Action.READ_ENGINE_REASON

    def __init__(self, asked: str, status: int, reason: str, hint: Hint = "") -> None:
        super().__init__(f"the container engine refused to {asked}: {reason}", hint)
        self.asked, self.status, self.reason = asked, status, reason
