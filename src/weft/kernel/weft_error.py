"""The root of all errors of Weft: a message, and what can be done about it."""

from __future__ import annotations

from typing import Any

from weft.kernel.advice import Action, Hint, advice_of
from weft.kernel.hidden_credentials import without_credentials


def quoted(value: Any, length: int | None = 80) -> str:
    """A stranger's value in a message: its beginning (or all) as Python writes it, or its type where Python cannot."""
    try:
        return repr(value)[:length]
    except Exception:  # a whole number of too many digits, a list within itself, or a value's own `__repr__`
        return f"<{type(value).__name__}>"


class WeftError(Exception):
    """The root. `advice` is an action code with arguments, which each surface phrases. A class has a usual action; an
    error may have another, or a sentence for its case alone. Passwords of addresses in its message are hidden."""

    usual_action: Action = Action.OTHER

    def __init__(self, message: str, hint: Hint = "") -> None:
        super().__init__(without_credentials(message))
        self.advice = advice_of(hint, self.usual_action)

    @property
    def action(self) -> Action:
        return self.advice.action

    @property
    def hint(self) -> str:
        """What to do next, for whoever calls the library; it names no command."""
        return self.advice.hint
