"""The JSON form of a command that ran in the sandbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from weft.runtime.sandbox.toolchains import HiddenProgram, ToolchainRow


class SandboxRun(Struct, frozen=True, kw_only=True):
    """`sandbox run`: what was executed, under which profile, and what came of it as the tool `shell` tells it. `error`
    is set where a limit ended the command. `toolchains` are those of the home folder that it was shown, and
    `hidden_programs` those to which the workspace leads and that it was not."""

    argv: Sequence[str]
    cwd: str
    profile: str
    granted_by: str | None
    bound: str
    files: Mapping[str, str]
    result: Mapping[str, Any]
    error: str | None
    toolchains: Sequence[ToolchainRow] = ()
    hidden_programs: Sequence[HiddenProgram] = ()
