"""Commands that print keys: the user's own, such as a password manager's, run with the little they need."""

from __future__ import annotations

from pathlib import Path

from weft.kernel.errors import CredentialMissing, StoreFailed
from weft.runtime.egress.credentials import RunCommand, Variable
from weft.runtime.sandbox.processes import Limits, run_process

NEEDED = (
    "PATH HOME USER LOGNAME LANG LC_ALL TERM DISPLAY WAYLAND_DISPLAY XDG_RUNTIME_DIR DBUS_SESSION_BUS_ADDRESS "
    "SSH_AUTH_SOCK GPG_TTY GNUPGHOME PASSWORD_STORE_DIR"
).split()
"""What password managers look at. No other variable is passed on."""
_LIMITS = Limits(seconds=60, output=64 * 1024)


def command_runner(variable: Variable, limits: Limits = _LIMITS) -> RunCommand:
    """How credentials with a command are read. What the command prints is shown to nobody, also when it fails."""

    async def run(words: tuple[str, ...]) -> str:
        environment = {name: value for name in NEEDED if (value := variable(name)) is not None}
        try:
            outcome = await run_process(words, environment=environment, folder=Path("/"), limits=limits)
        except StoreFailed as error:
            raise CredentialMissing(words[0], str(error)) from None
        if not outcome.succeeded:
            ended = f"ended with {outcome.code}" if outcome.ending == "exited" else str(outcome.ending)
            raise CredentialMissing(words[0], f"its command {ended}", "run the command yourself and look")
        return outcome.stdout.decode(errors="replace")

    return run
