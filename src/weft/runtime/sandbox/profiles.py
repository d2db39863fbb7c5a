"""Profiles: how much of the machine the sandbox leaves to a command.

| profile | files | network |
|---|---|---|
| `workspace` | the workspace can be written, the system read | none |
| `read-only` | nothing can be written but folders in memory | none |
| `network:HOST[,HOST…]` | as `workspace` | these hosts, through a proxy outside |
| `read-only+network:HOST[,HOST…]` | as `read-only` | these hosts, through a proxy outside |
| `none` | no sandbox: everything that this user may | everything |

`none` exists only with the name of the person who granted it. Profiles narrow each other: the strictest files, and the
hosts that both have. Hosts that are no part of the internet cannot be granted.
"""

from __future__ import annotations

from msgspec import Struct

from weft.kernel.authority import SandboxFiles, strictest_files
from weft.kernel.errors import InvalidInput, quoted
from weft.kernel.permission_subjects import ANY_HOST, Endpoint, common_endpoints, endpoints_of, host_texts
from weft.runtime.egress.connection_rules import is_near_by_name

NO_SANDBOX = "none"
_NETWORK = "network:"
_GRANT = "give another: only a person grants it, to one command, and no configuration does"
_FORMS = "give workspace, read-only, network:HOST[,HOST…] or read-only+network:HOST[,HOST…]"


class SandboxProfile(Struct, frozen=True, kw_only=True):
    """One profile. `SandboxFiles.EVERYTHING` is `none`, and needs `granted_by`."""

    files: SandboxFiles = SandboxFiles.WORKSPACE
    endpoints: frozenset[Endpoint] = frozenset()
    granted_by: str | None = None
    """The person who granted that nothing is confined."""

    def __post_init__(self) -> None:
        if self.files is SandboxFiles.EVERYTHING and not (self.granted_by or "").strip():
            raise InvalidInput("the profile none is no sandbox", _GRANT)
        for endpoint in self.endpoints:
            if endpoint.host != ANY_HOST and is_near_by_name(endpoint.host):
                raise InvalidInput(
                    f"the host {endpoint.host} is no part of the internet", "a sandbox reaches public servers alone"
                )

    @property
    def is_unconfined(self) -> bool:
        return self.files is SandboxFiles.EVERYTHING

    @property
    def is_read_only(self) -> bool:
        return self.files is SandboxFiles.READ_ONLY

    @property
    def hosts(self) -> tuple[str, ...]:
        return host_texts(self.endpoints)

    def allows_endpoint(self, host: str, port: int) -> bool:
        """`host` in its one form, as `host_name` gives it."""
        return self.is_unconfined or any(granted.covers(Endpoint(host, port)) for granted in self.endpoints)

    def narrowed(self, other: SandboxProfile) -> SandboxProfile:
        """What both leave. A profile that confines wins over one that does not."""
        if self.is_unconfined:
            return other
        if other.is_unconfined:
            return self
        files = strictest_files((self.files, other.files)) or SandboxFiles.WORKSPACE
        return SandboxProfile(files=files, endpoints=common_endpoints(self.endpoints, other.endpoints))

    def __str__(self) -> str:
        if self.is_unconfined:
            return NO_SANDBOX
        network = _NETWORK + ",".join(self.hosts) if self.endpoints else ""
        if self.is_read_only:
            return "+".join(filter(None, (SandboxFiles.READ_ONLY.value, network)))
        return network or SandboxFiles.WORKSPACE.value


WORKSPACE_PROFILE = SandboxProfile()
READ_ONLY_PROFILE = SandboxProfile(files=SandboxFiles.READ_ONLY)


def parse_profile(text: str, *, granted_by: str | None = None) -> SandboxProfile:
    """The profile that a text names. `granted_by`: the person who grants `none`; other profiles need nobody."""
    if text == NO_SANDBOX:
        return SandboxProfile(files=SandboxFiles.EVERYTHING, granted_by=granted_by)
    files, plus, rest = text.partition("+") if text.startswith(SandboxFiles.READ_ONLY) else ("", "", text)
    level = SandboxFiles.READ_ONLY if files else SandboxFiles.WORKSPACE
    if files not in ("", SandboxFiles.READ_ONLY) or (plus and not rest):
        raise InvalidInput(f"{quoted(text)} is no sandbox profile", _FORMS)
    if rest.startswith(_NETWORK) and rest != _NETWORK:
        return SandboxProfile(files=level, endpoints=endpoints_of(rest.removeprefix(_NETWORK).split(",")))
    if rest != ("" if files else SandboxFiles.WORKSPACE):
        raise InvalidInput(f"{quoted(text)} is no sandbox profile", _FORMS)
    return SandboxProfile(files=level)
