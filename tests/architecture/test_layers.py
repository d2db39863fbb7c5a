"""The architecture as rules over the syntax of src/weft, each shown to fail on code that breaks it."""

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.sources import FACADE, LOAD, Module, shipped
from weft import Ledger

pytestmark = LOAD

LAYERS = ("kernel", "store", "ledger", "graph", "exchange", "programs", "runtime", "chat", "verbs", "surfaces")

AMBIENT_MODULE = "weft/kernel/clock.py"  # the one that asks the machine for time and chance
AMBIENT = frozenset(
    "time.time time.time_ns datetime.datetime.now datetime.datetime.utcnow datetime.datetime.today "
    "datetime.date.today uuid.uuid1 uuid.uuid4 os.urandom random secrets".split()
)
ENVIRONMENT = frozenset(
    "os.environ os.environb os.getenv os.getenvb os.path.expanduser os.path.expandvars "
    "pathlib.Path.home sys.argv".split()
)
INPUT_OUTPUT = frozenset(
    "aiosqlite apsw asyncio ctypes fcntl ftplib glob http httpx httpx2 io logging mmap multiprocessing os "
    "pathlib psycopg requests select selectors shutil signal socket sqlite3 ssl subprocess tempfile urllib "
    "zipfile tarfile".split()
)
TEXT_ONLY = "urllib.parse."  # takes addresses apart and opens nothing
INPUT_OUTPUT_CALLS = frozenset({"open", "print", "input"})
VAGUE_NAMES = frozenset("util utils helper helpers manager managers service services".split())
LONGEST_FUNCTION = 60


Violations = Iterator[tuple[int, str]]  # line, and what is wrong there
Rule = Callable[[Module], Violations]


def imports_against_the_layers(module: Module) -> Violations:
    if module.layer == FACADE:
        return
    if module.layer not in LAYERS:
        yield 1, f"{module.layer!r} is not one of the layers {', '.join(LAYERS)}"
        return
    allowed = LAYERS[: LAYERS.index(module.layer) + 1]
    for line, name in module.imports:
        package, _, rest = name.partition(".")
        target = rest.partition(".")[0]
        if package != "weft" or target in allowed:
            continue
        if target in LAYERS:
            yield line, f"{module.layer} imports {name} of the later layer {target}"
        elif module.layer != "surfaces":
            yield line, f"{module.layer} imports {name} of the facade"


def relative_imports(module: Module) -> Violations:
    for node in module.nodes_of(ast.ImportFrom):
        if node.level:
            yield node.lineno, f"relative import of {'.' * node.level}{node.module or ''}"


def input_and_output_in_the_kernel(module: Module) -> Violations:
    if module.layer != "kernel":
        return
    for line, name in module.imports:
        has_leave = name == "os" and module.path == AMBIENT_MODULE  # for os.urandom alone: see below
        if name.partition(".")[0] in INPUT_OUTPUT and not has_leave and not name.startswith(TEXT_ONLY):
            yield line, f"the kernel imports {name}"
    for node in module.nodes:
        match node:
            case ast.Call(func=ast.Name(id=called)) if called in INPUT_OUTPUT_CALLS:
                yield node.lineno, f"the kernel calls {called}()"
            case ast.Attribute(value=ast.Name()) if (module.dotted(node) or "").startswith("os."):
                if module.dotted(node) not in AMBIENT:
                    yield node.lineno, f"the kernel uses {module.dotted(node)}"


def environment_read_below_the_surfaces(module: Module) -> Violations:
    if module.layer == "surfaces":
        return
    yield from module.mentions(ENVIRONMENT)
    for node in module.nodes_of(ast.Attribute):
        if node.attr == "expanduser":  # a method of any path
            yield node.lineno, "expanduser()"


def ambient_time_or_chance(module: Module) -> Violations:
    if module.path != AMBIENT_MODULE:
        yield from module.mentions(AMBIENT)


def long_functions(module: Module) -> Violations:
    functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = [*module.nodes_of(ast.FunctionDef)]
    for node in functions + module.nodes_of(ast.AsyncFunctionDef):
        length = (node.end_lineno or node.lineno) - node.body[0].lineno + 2  # a signature counts as one line
        if length > LONGEST_FUNCTION:
            yield node.lineno, f"{node.name} has {length} lines"


def broad_excepts_without_a_reason(module: Module) -> Violations:
    for node in module.nodes_of(ast.ExceptHandler):
        caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        names = {kind.id if isinstance(kind, ast.Name) else kind for kind in caught}
        if names.isdisjoint({None, "Exception", "BaseException"}):
            continue
        if node.lineno not in module.reasons and not module.reasons.get(node.lineno - 1, False):
            yield node.lineno, "catches everything and does not say why"


def vague_module_names(module: Module) -> Violations:
    words = set(re.split(r"[/_.]", module.path))
    for word in sorted(words & VAGUE_NAMES):
        yield 1, f"named {word!r}: name it for what it owns"


def violations(rule: Rule) -> list[str]:
    return [f"src/{module.path}:{line}: {what}" for module in shipped() for line, what in rule(module)]


@pytest.mark.slow("parses the package, for all tests of its sources")
def test_the_rules_read_every_layer_written_so_far() -> None:
    assert {"kernel", "store", "ledger", "surfaces"} <= {module.layer for module in shipped()}


def test_a_module_imports_only_from_its_own_layer_and_the_layers_before_it() -> None:
    assert violations(imports_against_the_layers) == []


def test_every_import_of_weft_is_absolute() -> None:
    assert violations(relative_imports) == []


def test_the_kernel_does_no_input_or_output() -> None:
    assert violations(input_and_output_in_the_kernel) == []


def test_only_surfaces_read_the_environment_the_arguments_and_the_home_folder() -> None:
    assert violations(environment_read_below_the_surfaces) == []


def test_time_and_chance_come_from_one_module() -> None:
    assert violations(ambient_time_or_chance) == []


def test_no_function_is_longer_than_a_screen() -> None:
    assert violations(long_functions) == []


def test_a_broad_except_says_why() -> None:
    assert violations(broad_excepts_without_a_reason) == []


def test_no_module_has_a_name_that_could_hold_anything() -> None:
    assert violations(vague_module_names) == []


IDS, PORT = "weft/kernel/ids.py", "weft/store/port.py"


@pytest.mark.parametrize(
    ("rule", "path", "source"),
    [
        (imports_against_the_layers, IDS, "import weft.store.port"),
        (imports_against_the_layers, PORT, "from weft import ledger"),
        (imports_against_the_layers, PORT, "def f():\n    from weft.surfaces.cli import main"),
        (imports_against_the_layers, "weft/ledger/turns.py", "from weft import __version__"),
        (imports_against_the_layers, "weft/misc/ids.py", ""),
        (relative_imports, IDS, "from . import errors"),
        (relative_imports, IDS, "from ..store import port"),
        (input_and_output_in_the_kernel, IDS, "import os.path"),
        (input_and_output_in_the_kernel, IDS, "from pathlib import Path"),
        (input_and_output_in_the_kernel, IDS, "open('ids')"),
        (input_and_output_in_the_kernel, AMBIENT_MODULE, "import os\nos.remove('ids')"),
        (environment_read_below_the_surfaces, PORT, "import os\nos.environ.get('HOME')"),
        (environment_read_below_the_surfaces, PORT, "from os import getenv"),
        (environment_read_below_the_surfaces, PORT, "import sys as s\ns.argv[0]"),
        (environment_read_below_the_surfaces, PORT, "from pathlib import Path\nPath.home()"),
        (environment_read_below_the_surfaces, PORT, "def f(p):\n    return p.expanduser()"),
        (ambient_time_or_chance, PORT, "import time\ntime.time_ns()"),
        (ambient_time_or_chance, PORT, "from time import time as now"),
        (ambient_time_or_chance, "weft/surfaces/demo.py", "from datetime import datetime as dt\ndt.now()"),
        (ambient_time_or_chance, PORT, "import datetime\ndatetime.datetime.now()"),
        (ambient_time_or_chance, PORT, "from uuid import uuid4"),
        (ambient_time_or_chance, PORT, "import random"),
        (ambient_time_or_chance, PORT, "from secrets import token_bytes"),
        (ambient_time_or_chance, PORT, "import os\nos.urandom(16)"),
        (long_functions, PORT, "def f():\n" + "    x = 1\n" * 60),
        (long_functions, PORT, "class C:\n    async def f():\n" + "        x = 1\n" * 60),
        (broad_excepts_without_a_reason, PORT, "try: ...\nexcept: ..."),
        (broad_excepts_without_a_reason, PORT, "try: ...\nexcept Exception: ...  # noqa: BLE001"),
        (broad_excepts_without_a_reason, PORT, "try: ...\nexcept (KeyError, BaseException): ..."),
        (broad_excepts_without_a_reason, PORT, "try:\n    f()  # calls f\nexcept Exception: ..."),
        (vague_module_names, "weft/store/utils.py", ""),
        (vague_module_names, "weft/ledger/session_manager.py", ""),
        (vague_module_names, "weft/helpers/ids.py", ""),
    ],
)
def test_a_rule_fails_on_code_that_breaks_it(rule: Rule, path: str, source: str) -> None:
    assert list(rule(Module(path, source)))


@pytest.mark.parametrize(
    ("rule", "path", "source"),
    [
        (imports_against_the_layers, PORT, "from weft import kernel\nimport weft.store.fact_log"),
        (imports_against_the_layers, "weft/__init__.py", "from weft.ledger.turns import Ledger"),
        (imports_against_the_layers, "weft/surfaces/cli/main.py", "from weft import __version__"),
        (input_and_output_in_the_kernel, AMBIENT_MODULE, "import os\nos.urandom(16)"),
        (input_and_output_in_the_kernel, PORT, "import os\nopen('port')"),
        (environment_read_below_the_surfaces, "weft/surfaces/demo.py", "import os\nos.environ"),
        (ambient_time_or_chance, AMBIENT_MODULE, "import secrets, time\ntime.time_ns()"),
        (ambient_time_or_chance, PORT, "import time\ntime.monotonic()"),
        (ambient_time_or_chance, PORT, "def f(random): return random.time"),
        (long_functions, PORT, "def f():\n" + "    x = 1\n" * 59),
        (broad_excepts_without_a_reason, PORT, "try: ...\nexcept KeyError: ..."),
        (broad_excepts_without_a_reason, PORT, "try: ...\nexcept Exception: ...  # a plug-in's"),
        (broad_excepts_without_a_reason, PORT, "try: ...\n# it is a plug-in's\nexcept Exception: ..."),
        (vague_module_names, PORT, ""),
    ],
)
def test_a_rule_lets_good_code_pass(rule: Rule, path: str, source: str) -> None:
    assert list(rule(Module(path, source))) == []


def class_names() -> dict[str, list[str]]:
    """Where each class name is defined; origins of imported history may use the same names as each other."""
    places: dict[str, list[str]] = {}
    for module in shipped():
        if "/importers/" not in module.path:
            for node in module.nodes_of(ast.ClassDef):
                places.setdefault(node.name, []).append(module.path)
    return places


def test_a_class_name_stands_in_one_place() -> None:
    assert {name: paths for name, paths in class_names().items() if len(paths) > 1} == {}


@cache
def import_graph() -> dict[str, set[str]]:
    """Which modules each module imports, wherever in it, also for types alone."""
    names = {module.name: module for module in shipped()}
    graph: dict[str, set[str]] = {}
    for name, module in names.items():
        targets = (full if full in names else full.rpartition(".")[0] for _, full in module.imports)
        graph[name] = {target for target in targets if target in names and target != name}
    return graph


def test_no_modules_import_each_other_in_a_circle() -> None:
    try:
        tuple(TopologicalSorter(import_graph()).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_the_work_of_agents_does_not_know_how_programs_are_invoked() -> None:
    work = ("weft.runtime.agent_work", "weft.runtime.agent_harness")
    harness = {name: targets for name, targets in import_graph().items() if name in work}
    assert harness
    assert [
        (name, target) for name, targets in harness.items() for target in targets if ".runtime.invoke" in target
    ] == []


LEDGER_ORDER = tuple(
    "model dialects arguments views read write resource_reading resource_changes broker room_records "
    "room_reading room_posting room_members triggers imports secrets upkeep reports erasing api".split()
)
"""The parts of the ledger: each imports only those before it."""


RUNTIME_ORDER = tuple(
    "spans ledger_port replies opened_folders answer_streams egress sandbox folder_snapshots inference policies tool "
    "tools assembly broker agent_work agent_harness resources invoke recorded_threads thread_replay".split()
)
"""The parts of the runtime: each imports only those before it."""


@pytest.mark.parametrize(("layer", "order"), [("ledger", LEDGER_ORDER), ("runtime", RUNTIME_ORDER)])
def test_the_parts_of_a_layer_import_in_one_direction(layer: str, order: tuple[str, ...]) -> None:
    prefix, against = f"weft.{layer}.", []
    for name, targets in import_graph().items():
        if name.startswith(prefix):
            place = order.index(name.split(".")[2])
            parts = {target.split(".")[2] for target in targets if target.startswith(prefix)}
            against += [f"{name} imports {part}" for part in parts if order.index(part) > place]
    assert against == []


OPEN_TO_LAYERS_ABOVE = frozenset(
    "api api.base api.ledger arguments dialects imports imports.imported_turns model read.access"
    " read.revisions read.search_index read.session_list read.sessions read.thread_events secrets upkeep.doctor"
    " upkeep.facts_file upkeep.ledger_copy views.rows write.sessions write.transaction write.turn_events".split()
)
"""What exchange, programs, runtime and surfaces may import of the ledger: its public package, and what writes programs,
importers and sync are written with."""


OPEN_TO_THE_GRAPH = frozenset(
    "read.contexts read.turns resource_reading room_records upkeep.verify views.edges views.sightings views.turns"
    " write.approvals".split()
)
"""What the graph alone may import beside it: it reads the rows of the views that its nodes stand in."""


def test_the_graph_imports_of_the_ledger_what_is_open_to_it() -> None:
    imported = {
        target for name, targets in import_graph().items() if name.startswith("weft.graph.") for target in targets
    }
    used = {target.removeprefix("weft.ledger.") for target in imported if target.startswith("weft.ledger.")}
    assert used - OPEN_TO_LAYERS_ABOVE == OPEN_TO_THE_GRAPH


def ledger_modules_used_above() -> dict[str, str]:
    """By module of the ledger, one module of a layer above the graph that imports it."""
    above = LAYERS[LAYERS.index("graph") + 1 :]
    users: dict[str, str] = {}
    for name, targets in import_graph().items():
        if name.startswith(tuple(f"weft.{layer}." for layer in above)):
            parts = [target.removeprefix("weft.ledger.") for target in targets if target.startswith("weft.ledger.")]
            users |= dict.fromkeys(parts, name)
    return users


def test_layers_above_import_the_public_package_of_the_ledger_and_a_short_list() -> None:
    users = ledger_modules_used_above()
    assert {module: user for module, user in users.items() if module not in OPEN_TO_LAYERS_ABOVE} == {}
    assert users.keys() == OPEN_TO_LAYERS_ABOVE


def test_no_two_rooms_of_the_ledger_have_a_verb_of_one_name() -> None:
    """They are joined into one class, where one would hide the other."""
    owners: dict[str, set[str]] = {}
    for room in (kind for kind in Ledger.__mro__ if kind not in (Ledger, object)):
        for name in vars(room):
            if not name.startswith("__"):
                owners.setdefault(name, set()).add(room.__name__)
    assert {name: rooms for name, rooms in owners.items() if len(rooms) > 1} == {}
