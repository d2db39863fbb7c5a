"""The person at the terminal, in whose name commands act, and their credentials: a file of
places where keys are found. The root key of tokens, the keys they are believed by, what was
revoked, and the token that a process was given; the MCP servers that the person has. Files of
the configuration that commands change, by one process at a time.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Struct

from weft.kernel.errors import InvalidInput, InvalidKey, NotFound, TokenRefused
from weft.runtime.egress.credentials import Credential, Variable, checked_credential
from weft.store.private_files import make_folder, new_file
from weft.surfaces.cli.user_files import TOKEN_VARIABLE, configuration_folder
from weft.verbs.answers import RevokedToken

if TYPE_CHECKING:
    from weft.runtime.egress.context_tokens import RootKey, TokenContent
    from weft.runtime.egress.credentials import Keyring
    from weft.runtime.egress.execution_context import ExecutionContext
    from weft.runtime.tools.mcp_server_settings import McpServer, PinnedTools
    from weft.runtime.tools.mcp_servers import McpConfiguration
    from weft.surfaces.server.callers import Caller


T = TypeVar("T")

# --- The person at the terminal, in whose name commands act, and their credentials: a file of places where keys are
# found.

CREDENTIALS_FILE = "credentials.json"


class _CredentialFile(Struct, forbid_unknown_fields=True):
    credentials: tuple[Credential, ...] = ()


def credentials_file() -> Path:
    return configuration_folder() / CREDENTIALS_FILE


def load_credentials() -> tuple[Credential, ...]:
    path = credentials_file()
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return ()
    try:
        return tuple(checked_credential(item) for item in msgspec.json.decode(data, type=_CredentialFile).credentials)
    except msgspec.DecodeError as error:
        raise InvalidInput(f"{path}: {error}", "mend the file, or remove it and add the credentials again") from None


def change_credentials(change: Callable[[tuple[Credential, ...]], tuple[Credential, ...]]) -> tuple[Credential, ...]:
    """Read, change and put back, as one step."""
    path = credentials_file()
    with sole_writer(path):
        changed = change(load_credentials())
        replace_json(path, _CredentialFile(changed))
    return changed


def person_acting(variable: Variable = os.environ.get) -> ExecutionContext:
    """The context that a command acts in without a token, and a program that opened a ledger. Of the environment,
    single variables are looked up by name when needed."""
    from weft.kernel.authority import Principal, PrincipalKind
    from weft.runtime.egress.execution_context import context_for

    name = variable("USER") or variable("LOGNAME") or "local"
    return context_for(Principal(PrincipalKind.HUMAN, name), keyring=user_keyring(variable))


def user_keyring(variable: Variable = os.environ.get) -> Keyring:
    """The credentials of the person at the terminal, and how their keys are read."""
    from weft.runtime.egress.credentials import Keyring
    from weft.runtime.sandbox.processes import command_runner

    return Keyring(load_credentials(), variable, command_runner(variable_of_programs(variable)))


def variable_of_programs(variable: Variable) -> Variable:
    """What programs of the person are given of the environment that run outside of the sandbox: commands that print
    keys, and MCP servers. They are not looked for where agents work."""
    return partial(_variable_outside_of_work, variable)


def _variable_outside_of_work(variable: Variable, name: str) -> str | None:
    from weft.surfaces.cli.user_files import outside_of_work

    value = variable(name)
    return value if name != "PATH" or value is None else outside_of_work(value)


# --- Files of the user's configuration that commands change, such as credentials and MCP servers.


@contextmanager
def sole_writer(path: Path) -> Iterator[None]:
    """Whoever reads and changes the file inside does so alone. Its folder is made."""
    make_folder(path.parent)
    lock = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def replace_json(path: Path, value: Any) -> None:
    """Put a value in the place of what the file held."""
    with new_file(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(value)) + b"\n")


# --- The user's MCP servers, and the definitions of their tools that were approved: two files beside the credentials.

SERVERS_FILE, SERVERS_FIELD = "mcp-servers.json", "servers"
PINS_FILE, PINS_FIELD = "mcp-pins.json", "pins"


def load_mcp_servers() -> McpConfiguration:
    """For `McpServers`, which reads it again at every turn."""
    from weft.runtime.tools.mcp_server_settings import McpServer, PinnedTools, checked_server, ensure_distinct
    from weft.runtime.tools.mcp_servers import McpConfiguration

    servers = tuple(map(checked_server, _listed_in_file(SERVERS_FILE, SERVERS_FIELD, McpServer)))
    ensure_distinct(servers)
    return McpConfiguration(servers=servers, pins=_listed_in_file(PINS_FILE, PINS_FIELD, PinnedTools))


def find_server(name: str) -> McpServer:
    server = next((server for server in load_mcp_servers().servers if server.name == name), None)
    if server is None:
        raise NotFound("MCP server", name)
    return server


def change_servers(change: Callable[[tuple[McpServer, ...]], tuple[McpServer, ...]]) -> None:
    """Read, change and put back, as one step. What was approved of servers that are gone is forgotten."""
    from weft.runtime.tools.mcp_server_settings import ensure_distinct

    path = configuration_folder() / SERVERS_FILE
    with sole_writer(path):
        configuration = load_mcp_servers()
        servers = change(configuration.servers)
        ensure_distinct(servers)
        names = {server.name for server in servers}
        if any(pin.server not in names for pin in configuration.pins):
            left = tuple(pin for pin in configuration.pins if pin.server in names)
            replace_json(path.with_name(PINS_FILE), {PINS_FIELD: left})
        replace_json(path, {SERVERS_FIELD: servers})


def keep_pins(pinned: PinnedTools) -> None:
    """In place of what was approved of this server before."""
    from weft.runtime.tools.mcp_server_settings import PinnedTools

    folder = configuration_folder()
    with sole_writer(folder / SERVERS_FILE):
        pins = (pin for pin in _listed_in_file(PINS_FILE, PINS_FIELD, PinnedTools) if pin.server != pinned.server)
        replace_json(folder / PINS_FILE, {PINS_FIELD: (*pins, pinned)})


def _listed_in_file(name: str, field: str, kind: type[T]) -> tuple[T, ...]:
    """What stands under the one field of a file."""
    path = configuration_folder() / name
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return ()
    form = msgspec.defstruct("Listed", [(field, tuple[kind, ...], ())], forbid_unknown_fields=True)  # type: ignore[valid-type]
    try:
        listed: tuple[T, ...] = getattr(msgspec.json.decode(data, type=form), field)
    except msgspec.DecodeError as error:
        raise InvalidInput(f"{path}: {error}", "mend the file, or remove it and add the servers again") from None
    return listed


# --- Tokens and the user's files: the root key that signs them, the keys they are believed by, and what was revoked.

ROOT_KEY_FILE, PUBLIC_KEYS_FILE, REVOKED_FILE = "token-root-key.json", "token-public-keys.json", "revoked-tokens.json"
LONGEST_FILE_BYTES = 128 * 1024
_MEND = "mend the file, or put a copy of it back"


class _RootKeyFile(Struct, forbid_unknown_fields=True):
    number: int
    private_key: str


class _PublicKeysFile(Struct, forbid_unknown_fields=True):
    public_keys: dict[int, str] = {}


class _RevokedFile(Struct, forbid_unknown_fields=True):
    revoked: tuple[RevokedToken, ...] = ()


# --- the token that this process was given --------------------------------------------------------------------------


def verified_token(token: str) -> TokenContent:
    """What a token says that counts now, with the credentials that the person has."""
    from weft.kernel.clock import SystemClock
    from weft.runtime.egress.context_tokens import read

    revoked = {token.id for token in load_revoked()}
    return read(token, public_keys(), now_ms=SystemClock().now_ms(), revoked=revoked, keyring=user_keyring())


class PersonsTokens:
    """The tokens that count for a server that this person started, by the files of their configuration."""

    def verified_token(self, token: str) -> TokenContent:
        return verified_token(token)

    def withdrawn(self, callers: Sequence[Caller]) -> Iterable[Caller]:
        revoked, keys = {token.id for token in load_revoked()}, public_keys()
        return [caller for caller in callers if caller.key_number not in keys or not revoked.isdisjoint(caller.ids)]


def given_token(file: str | None) -> str:
    """The token that was given to this process by a file, or else by the variable WEFT_TOKEN. A variable that is set
    and empty is refused: whoever set it did not mean all that the person may do."""
    if file is not None:
        return read_token(file)
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not token:
        raise TokenRefused(f"the token is refused: {TOKEN_VARIABLE} is set and empty", f"unset {TOKEN_VARIABLE}")
    return token


def read_token(file: str) -> str:
    """The token in a file, a pipe or a descriptor (`/dev/fd/3`)."""
    with open(file, "rb") as opened:
        data = opened.read(LONGEST_FILE_BYTES)
    return data.decode("ascii", "replace").strip()


# --- keys -----------------------------------------------------------------------------------------------------------


def root_key() -> RootKey:
    """The key that tokens are signed with, made when it is first needed."""
    path = configuration_folder() / ROOT_KEY_FILE
    with sole_writer(path):
        stored = _load_root_key(path)
        if stored is None:
            return _new_root_key(path)
        keys = public_keys()
        if keys.get(stored.number) != stored.public_bytes:
            _store_public_keys({**keys, stored.number: stored.public_bytes})
        return stored


def rotate_root_key(*, forget: bool = False) -> RootKey:
    """A new key in the place of the one before, whose public part stays known unless it is to be forgotten."""
    path = configuration_folder() / ROOT_KEY_FILE
    with sole_writer(path):
        return _new_root_key(path, forget=forget)


def public_keys() -> dict[int, bytes]:
    stored = _load(configuration_folder() / PUBLIC_KEYS_FILE, _PublicKeysFile)
    try:
        return {} if stored is None else {number: bytes.fromhex(key) for number, key in stored.public_keys.items()}
    except ValueError:
        raise InvalidKey(f"{configuration_folder() / PUBLIC_KEYS_FILE} cannot be read", _MEND) from None


def _new_root_key(path: Path, *, forget: bool = False) -> RootKey:
    """The public part is written first: a key whose tokens nobody could read is never signed with."""
    from weft.runtime.egress.context_tokens import RootKey

    keys = public_keys()
    new_key = RootKey.new(max(keys, default=0) + 1)
    _store_public_keys({**({} if forget else keys), new_key.number: new_key.public_bytes})
    replace_json(path, _RootKeyFile(new_key.number, new_key.private_bytes.hex()))
    return new_key


def _load_root_key(path: Path) -> RootKey | None:
    from weft.runtime.egress.context_tokens import RootKey

    stored = _load(path, _RootKeyFile)
    if stored is None:
        return None
    if stat.S_IMODE(os.stat(path).st_mode) & 0o077:
        raise InvalidKey(f"others can read {path}", "make a new key with `weft token rotate --forget`")
    try:
        return RootKey(stored.number, bytes.fromhex(stored.private_key))
    except ValueError:
        raise InvalidKey(f"{path} holds no key", "make a new key with `weft token rotate`") from None


def _store_public_keys(keys: dict[int, bytes]) -> None:
    path = configuration_folder() / PUBLIC_KEYS_FILE
    replace_json(path, _PublicKeysFile({number: key.hex() for number, key in keys.items()}))


# --- revocations ----------------------------------------------------------------------------------------------------


def load_revoked() -> tuple[RevokedToken, ...]:
    stored = _load(configuration_folder() / REVOKED_FILE, _RevokedFile)
    return () if stored is None else stored.revoked


def revoke_token(token_id: str, now_ms: int) -> RevokedToken:
    """From now on nobody acts with the token, nor with one that was made from it."""
    path = configuration_folder() / REVOKED_FILE
    with sole_writer(path):
        tokens = load_revoked()
        for token in tokens:
            if token.id == token_id:
                return token
        revoked = RevokedToken(token_id, now_ms)
        replace_json(path, _RevokedFile((*tokens, revoked)))
    return revoked


def _load(path: Path, kind: type[T]) -> T | None:
    """What a file holds; None where it is not there. Of one that cannot be read nothing is shown."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        value: Any = msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError:
        raise InvalidInput(f"{path} is not what Weft wrote", _MEND) from None
    loaded: T = value
    return loaded


def server_programs() -> tuple[str, ...]:
    """What the user's MCP servers are started from: with keys, with hosts, or without a sandbox."""
    from weft.runtime.tools.mcp_server_settings import program_places

    return tuple(place for server in load_mcp_servers().servers for place in program_places(server))
