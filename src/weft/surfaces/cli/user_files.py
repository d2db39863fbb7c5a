"""Where the user's own files lie: the ledger that is meant, and under the configuration folder prices and keys.

A ledger that is found behind a link, or in a folder of another user, is refused.
"""

from __future__ import annotations

import os
import sys
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.kernel.errors import Action, InvalidInput, InvalidKey, LedgerMissing, NotTrusted, Unsupported
from weft.kernel.typed_names import Site

if TYPE_CHECKING:
    import click

    from weft.exchange.bundles.keys import KeyRing, Signer
    from weft.ledger.api import PriceTable
    from weft.store.replicas import TrustStore

FOLDER, FILE = ".weft", "ledger.db"
LEDGER_VARIABLE = "WEFT_LEDGER"
TOKEN_VARIABLE = "WEFT_TOKEN"
SERVER = "server-"
"""What the names of files begin with that belong to a ledger on a server."""
MACHINE_FILE = "machine"


def named_ledger(option: str | None) -> str | None:
    """What `--ledger` or else WEFT_LEDGER names; a folder stands for the ledger inside it."""
    name = option or os.environ.get(LEDGER_VARIABLE) or None
    if name is None or Site.of(name) is not Site.FILE:
        return name
    path = Path(os.path.expanduser(name))
    return str(path / FOLDER / FILE if os.path.isdir(path) else path)


def find_ledger(option: str | None) -> str:
    """The named ledger, or the nearest one in this folder or above it, or the user's own."""
    name = named_ledger(option)
    if name is not None:
        ensure_no_server(name)
        return name
    here = Path.cwd()
    for folder in (here, *here.parents):
        if os.path.isfile(folder / FOLDER / FILE):
            return str(_own(folder / FOLDER / FILE))
    own = user_ledger()
    if os.path.isfile(own):
        return str(own)
    raise LedgerMissing(f"{here} or above it, nor at {own}", Action.IMPORT_OR_CREATE_LEDGER)


SERVERS = ("http://", "https://")
"""What the address of a ledger begins with that a server answers for."""


def ensure_no_server(name: str) -> None:
    """Refuses a ledger that is reached over HTTP to a command that needs it itself."""
    if not name.startswith(SERVERS):
        return
    from weft.surfaces.server.route_table import ROUTES

    commands: dict[str, list[str]] = {}
    for words in sorted(route.verb.name.split() for route in ROUTES):
        commands.setdefault(words[0], []).extend(words[1:])
    told = [f"{first} {'|'.join(more)}" if more else first for first, more in commands.items()]
    raise Unsupported(
        "this command works on the ledger itself, and a server has no route for it",
        f"over HTTP there are: {', '.join(told)}",
    )


def _own(ledger: Path) -> Path:
    """A ledger that was come across, unless another user could have laid it there, or a link leads to another one: it
    may be trusted, and its agents would act in this folder."""
    for place in (ledger, ledger.parent):
        if place.is_symlink():
            raise NotTrusted(
                str(ledger),
                "be used unasked",
                f"{place} is a link",
                f"name the ledger that it leads to with --ledger or {LEDGER_VARIABLE} if you mean it",
            )
        if os.stat(place).st_uid != os.geteuid():
            raise NotTrusted(
                str(ledger),
                "be used unasked",
                f"{place} belongs to another user",
                f"name it with --ledger or {LEDGER_VARIABLE} if you mean it",
            )
    return ledger


def user_ledger() -> Path:
    data = os.environ.get("XDG_DATA_HOME", "")
    home = Path(data) if data.startswith("/") else Path("~/.local/share").expanduser()
    return home / "weft" / FILE


def beside_ledger(ledger: str) -> Path:
    """What the names of files begin with that lie beside a ledger: its own path; for one on a server, a path in the
    user's data folder."""
    if Site.of(ledger) is Site.FILE:
        return Path(ledger).absolute()
    return user_ledger().parent / f"{SERVER}{sha256(ledger.encode()).hexdigest()[:12]}"


def user_cache() -> Path:
    """Where things lie that can be made again."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(cache) if cache.startswith("/") else Path("~/.cache").expanduser()
    return home / "weft"


def state_folder() -> Path:
    """Where it is kept what this person did and decided, outside of every ledger."""
    state = os.environ.get("XDG_STATE_HOME", "")
    home = Path(state) if state.startswith("/") else Path("~/.local/state").expanduser()
    return home / "weft"


def this_machine() -> str:
    """What tells this machine from others: an id that is drawn when it is first asked for, and kept in the state
    folder. It says nothing of the machine, and stays when that is named anew."""
    from weft.kernel.clock import SystemClock, UlidSource, is_ulid, system_random
    from weft.store.private_files import make_folder, open_aside, sync

    path = state_folder() / MACHINE_FILE
    if not path.exists():
        make_folder(path.parent)
        id = UlidSource(SystemClock().now_ms, system_random).mint()
        aside = path.with_name(f"{MACHINE_FILE}.{id}")
        with open_aside(aside) as file:
            file.write(f"{id}\n".encode())
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(aside, path)
        except FileExistsError:
            pass  # another process was first: its id holds
        finally:
            aside.unlink()
        sync(path.parent)
    machine_id = path.read_text().strip()
    if not is_ulid(machine_id):
        raise InvalidInput(f"{path} does not hold the id of this machine", "put it back from a backup, or remove it")
    return machine_id


def configuration_folder() -> Path:
    config = os.environ.get("XDG_CONFIG_HOME", "")
    home = Path(config) if config.startswith("/") else Path("~/.config").expanduser()
    return home / "weft"


def place_for(name: str) -> Path:
    """Where `weft init NAME` makes a ledger: in a folder, or the file itself if it looks like one."""
    path = Path(os.path.expanduser(name))
    looks_so = path.suffix in (".db", ".sqlite", ".sqlite3") and not os.path.isdir(path)
    is_file = looks_so or os.path.isfile(path)
    return path if is_file else path / FOLDER / FILE


PRICES_FILE = "prices.toml"


def prices_in_force(option: str | None) -> PriceTable:
    """The file that is named, else `prices.toml` of the config folder if there is one; what it leaves out is as
    shipped. What is looked up there is kept in the user's cache by the table's `keep`."""
    from weft.ledger.api import kept_prices, prices_from

    path, shipped = user_prices() if option is None else Path(os.path.expanduser(option)), kept_prices(user_cache())
    if option is None and not path.is_file():
        return shipped
    return prices_from(_load_file(path), str(path)).over(shipped)


def user_prices() -> Path:
    return configuration_folder() / PRICES_FILE


def _load_file(path: Path) -> Any:
    """TOML, or JSON in a file whose name ends so."""
    data = path.read_bytes()
    try:
        if path.suffix == ".json":
            import json

            return json.loads(data)
        import tomllib

        return tomllib.loads(data.decode())
    except ValueError as error:  # not TOML or JSON, or not UTF-8
        raise InvalidInput(f"{path}: {error}", "docs/reading.md shows how to write prices") from None


PASSPHRASE_VARIABLE = "WEFT_KEY_PASSPHRASE"


def key_ring() -> KeyRing:
    from weft.exchange.bundles.keys import KeyRing

    return KeyRing(configuration_folder() / "keys")


def new_passphrase() -> str:
    """Asked for twice; from the environment where nobody is there."""
    passphrase = os.environ.get(PASSPHRASE_VARIABLE) or None
    if passphrase is None and sys.stdin.isatty():
        import click

        passphrase = click.prompt("passphrase", hide_input=True, confirmation_prompt=True, err=True)
    if not passphrase:
        raise InvalidKey("there is no passphrase", f"say it on a terminal, or in {PASSPHRASE_VARIABLE}")
    return passphrase


def open_signer(name: str) -> Signer:
    """A private key, with the passphrase that it wants, if any."""
    ring, passphrase = key_ring(), None
    if ring.is_sealed(name):
        passphrase = os.environ.get(PASSPHRASE_VARIABLE) or None
        if passphrase is None and sys.stdin.isatty():
            import click

            passphrase = click.prompt(f"passphrase of {name}", hide_input=True, err=True)
    return ring.signer(name, passphrase)


def complete_keys(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """The names of one's own keys. A shell in the middle of a line wants names or nothing."""
    try:
        return [key.name for key in key_ring().own() if key.name.startswith(incomplete)]
    except (InvalidKey, OSError):
        return []


# --- Which ledgers and folders this person trusts, and where programs are looked for that run outside of the sandbox.

TRUST_FILE = "trust.json"


def trust_store() -> TrustStore:
    from weft.store.replicas import TrustStore

    return TrustStore(state_folder() / TRUST_FILE)


def outside_of_work(folders: str) -> str:
    """Of the folders that PATH names, those in which programs are looked for that run outside of the sandbox: none of a
    folder in which agents work. The activated environment of a project comes first in PATH, and they write there."""
    from weft.runtime.sandbox.profiles import is_beneath

    trusted = [folder.place for folder in trust_store().folders()]
    places = [place for place in folders.split(os.pathsep) if os.path.isabs(place)]
    return os.pathsep.join(
        place for place in places if not any(is_beneath(os.path.realpath(place), folder) for folder in trusted)
    )


def look_outside_of_work() -> None:
    """From here on this process starts no program by its name that agents could have put there."""
    if "PATH" in os.environ:
        os.environ["PATH"] = outside_of_work(os.environ["PATH"])
