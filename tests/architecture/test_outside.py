"""One module starts processes, one puts sandboxes together and one opens connections; whoever else may, and why, is
listed here."""

import ast
from collections.abc import Iterator

import pytest

from tests.architecture.test_layers import Violations
from tests.sources import LOAD, Module, shipped

pytestmark = LOAD

STARTING = frozenset(
    "subprocess multiprocessing pty concurrent.futures.ProcessPoolExecutor asyncio.create_subprocess_exec "
    "asyncio.create_subprocess_shell os.system os.popen os.fork os.forkpty os.posix_spawn os.posix_spawnp os.startfile "
    "os.execl os.execle os.execlp os.execlpe os.execv os.execve os.execvp os.execvpe os.spawnl os.spawnle os.spawnlp "
    "os.spawnlpe os.spawnv os.spawnve os.spawnvp os.spawnvpe click.echo_via_pager click.edit click.launch "
    "webbrowser".split()
)
CONNECTING = frozenset(
    "socket ssl http.client urllib.request urllib3 httpx httpx2 httpcore httpcore2 requests aiohttp ftplib smtplib "
    "imaplib poplib telnetlib xmlrpc asyncio.open_connection asyncio.open_unix_connection websockets psycopg "
    "psycopg_pool docker".split()
)
METHODS = {STARTING: ("subprocess_exec", "subprocess_shell"), CONNECTING: ("create_connection", "sock_connect")}
"""The same, of an event loop."""
MAY_START = {
    "weft/runtime/sandbox/processes.py": "the one place for commands that run to their end, and for servers of our own",
    "weft/runtime/sandbox/own_git.py": "programs of the machine that one thread writes to and reads from",
    "weft/runtime/policies/harness.py": "the server in the sandbox that runs a policy, a process for each decision",
    "weft/exchange/sync/commands.py": "the other end of a sync, by the command or the ssh that the user names",
    "weft/exchange/importing/reading_ahead.py": "the worker of an import: this program's own code, which ends with it",
    "weft/surfaces/cli/ledgers/import_job.py": "this program itself, on its own in the background",
    "weft/surfaces/cli/reading/read.py": "`less`, unless the person at the terminal chose another pager",
    "weft/surfaces/cli/screen.py": "the pager that the person at the terminal chose",
}
MAY_CONNECT = {
    "weft/surfaces/server/serving.py": "it takes connections, at the port that the person names, and makes none",
    "weft/client.py": "the server that the program or the person names, with their token for it",
    "weft/runtime/egress/connections.py": "the one place",
    "weft/runtime/egress/credentials.py": "whether a port of this machine takes connections; nothing is sent",
    "weft/store/postgres/": "the ledger's own database, whose driver connects by itself",
    "weft/runtime/resources/engine_transport.py": "the container engine of this machine, over its socket",
    "weft/runtime/sandbox/hidden_places.py": "whether a program answers at a socket of the workspace; nothing is sent",
    "weft/exchange/importing/sources.py": "a database that the user names to import from",
}

SANDBOX = "weft.runtime.sandbox."
RUNNING = frozenset(
    SANDBOX + name
    for name in "processes.run_process processes.ProcessRun processes.LineProcess own_git.PipedProcess "
    "processes.ServerProcess".split()
)
"""What starts a process of the machine: all that is not the sandbox's says why it needs none."""
MAY_RUN = {
    "weft/runtime/sandbox/bubblewrap.py": "the sandbox: the one place where a sandboxed process or server is started",
    "weft/runtime/sandbox/command_runner.py": "the profile none, which a person grants by name",
    "weft/runtime/tools/mcp_connection.py": "speaks with the process that `CommandRunner` started",
    "weft/runtime/invoke/handlers.py": "the person's own command that tells them something, named in a variable",
    "weft/runtime/thread_replay.py": "the check of a bisection, which the person gave on the command line",
    "weft/runtime/inference/local_models.py": "the embedded model: our own program",
}
CONFINING = frozenset(
    f"{SANDBOX}{module}.{name}"
    for module, names in {
        "confinement": ("ConfinedRun",),
        "profiles": ("mount_options",),
        "sandbox_plan": ("kernel_options", "system_mounts"),
    }.items()
    for name in names
)
"""What a sandbox is put together from."""
MAY_CONFINE = {
    "weft/runtime/sandbox/bubblewrap.py": "the one place",
}


def uses(module: Module, names: frozenset[str]) -> Violations:
    """Imports, uses, and names loaded by `import_module`."""
    for line, name in module.imports:
        if name in names or any(name.startswith(f"{listed}.") for listed in names):
            yield line, name
    for attribute in module.nodes_of(ast.Attribute):
        if attribute.attr in METHODS.get(names, ()):
            yield attribute.lineno, attribute.attr
        elif (used := module.dotted(attribute)) in names:
            yield attribute.lineno, str(used)
    for call in module.nodes_of(ast.Call):
        match call.args:
            case [ast.Constant(value=str(name)), *_] if name in names:
                if ast.unparse(call.func).rpartition(".")[2] in ("import_module", "__import__", "_lazy"):
                    yield call.lineno, name


def strangers(names: frozenset[str], allowed: dict[str, str]) -> Iterator[str]:
    for module in shipped():
        if not module.path.startswith(tuple(allowed)):
            yield from (f"src/{module.path}:{line}: {what}" for line, what in uses(module, names))


def test_one_module_starts_processes() -> None:
    assert list(strangers(STARTING, MAY_START)) == []


def test_one_module_opens_connections() -> None:
    assert list(strangers(CONNECTING, MAY_CONNECT)) == []


def test_one_module_puts_sandboxes_together() -> None:
    assert list(strangers(CONFINING, MAY_CONFINE)) == []
    options = [module.path for module in shipped() if '"--unshare' in module.source]
    assert options == ["weft/runtime/sandbox/bubblewrap.py"]


def test_whatever_runs_without_the_sandbox_says_why() -> None:
    assert list(strangers(RUNNING, MAY_RUN)) == []


RULES = [(STARTING, MAY_START), (CONNECTING, MAY_CONNECT), (RUNNING, MAY_RUN), (CONFINING, MAY_CONFINE)]


@pytest.mark.parametrize(("names", "allowed"), RULES)
def test_whoever_may_does(names: frozenset[str], allowed: dict[str, str]) -> None:
    for place in allowed:
        assert any(list(uses(module, names)) for module in shipped() if module.path.startswith(place)), place


@pytest.mark.parametrize(
    ("names", "source"),
    [
        (STARTING, "import subprocess"),
        (STARTING, "from os import execv"),
        (STARTING, "import os\nos.system('x')"),
        (STARTING, "import asyncio\nasyncio.create_subprocess_shell('x')"),
        (STARTING, "from multiprocessing.pool import Pool"),
        (STARTING, "import click\nclick.launch('x')"),
        (RUNNING, "from weft.runtime.sandbox.processes import run_process"),
        (RUNNING, "from weft.runtime.sandbox import processes\nprocesses.LineProcess([])"),
        (CONFINING, "from weft.runtime.sandbox.confinement import ConfinedRun as Run"),
        (STARTING, "async def f(loop):\n    await loop.subprocess_exec(x, 'y')"),
        (CONNECTING, "import socket as s"),
        (CONNECTING, "from urllib.request import urlopen"),
        (CONNECTING, "def f():\n    import httpx2"),
        (CONNECTING, "import asyncio\nasyncio.open_connection('x', 1)"),
        (CONNECTING, "from importlib import import_module\nimport_module('requests')"),
    ],
)
def test_the_rule_fails_on_code_that_breaks_it(names: frozenset[str], source: str) -> None:
    assert list(uses(Module("weft/ledger/x.py", source), names))


@pytest.mark.parametrize("source", ["from urllib.parse import urlsplit", "import os\nos.getpid()", "import asyncio"])
def test_the_rule_lets_good_code_pass(source: str) -> None:
    assert list(uses(Module("weft/ledger/x.py", source), STARTING | CONNECTING)) == []
