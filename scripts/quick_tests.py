"""The tests that a change concerns, for `make quick`: their files, one on a line.

A change is what is not committed yet, and where all is, the last commit; SINCE names another beginning. Chosen are the
tests that changed, those that import a changed module, and those of its name, until they would take 90 CPU seconds
together; which ones did not fit is said. Contracts and the architecture are taken always.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath

ROOT = Path(__file__).resolve().parents[1]
ALWAYS = ("tests/contract", "tests/architecture")
MOST_CPU_SECONDS = 90.0
USUAL_CPU_SECONDS = 0.4
"""Of a file that the table of durations leaves out."""


def main() -> None:
    changed = list(changed_files(sys.argv[1] if len(sys.argv) > 1 else None))
    seconds: dict[str, float] = json.loads((ROOT / "tests" / "durations.json").read_text())
    chosen, left_out = choose(ROOT, changed, seconds)
    for file in (*ALWAYS, *chosen):
        print(file)
    _say(f"{len(changed)} changed files, {len(chosen)} files of tests")
    if left_out:
        _say(f"left out, for they would take too long: {' '.join(left_out)}")


def changed_files(since: str | None) -> Iterator[str]:
    if since is None:
        files = [*_git("diff", "--name-only", "HEAD"), *_git("ls-files", "--others", "--exclude-standard")]
        yield from files or _git("diff", "--name-only", "HEAD~1")
    else:
        yield from _git("diff", "--name-only", since)


def _git(*arguments: str) -> list[str]:
    shown = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return shown.stdout.splitlines()


def choose(root: Path, changed: Sequence[str], seconds: dict[str, float]) -> tuple[list[str], list[str]]:
    """The files of tests that fit, and those that do not. What was changed itself comes first, then what knows the
    fewest other modules: it is likeliest about the changed one."""
    modules = {name for file in changed if (name := module_name(file)) is not None}
    stems = {PurePath(file).stem for file in changed if file.startswith("src/")}
    words = {module.rpartition(".")[2] for module in modules}
    found: list[tuple[bool, int, str]] = []
    for path in sorted((root / "tests").rglob("test_*.py")):
        file = path.relative_to(root).as_posix()
        text, is_changed = path.read_text(), file in changed
        is_named = path.stem.removeprefix("test_") in stems
        if not is_changed and not is_named and not any(word in text for word in words):
            continue  # most files are not parsed
        imported = set(imported_modules(text))
        if is_changed or is_named or imported & modules:
            found.append((not is_changed, len(imported), file))
    chosen: list[str] = []
    left_out: list[str] = []
    left = MOST_CPU_SECONDS
    for _, _, file in sorted(found):
        if file.startswith(ALWAYS):
            continue
        cost = seconds.get(file.removeprefix("tests/"), USUAL_CPU_SECONDS)
        (chosen if cost <= left else left_out).append(file)
        left -= cost if cost <= left else 0
    return chosen, left_out


def module_name(file: str) -> str | None:
    path = PurePath(file)
    if path.suffix != ".py" or path.parts[0] not in ("src", "tests"):
        return None
    parts = path.with_suffix("").parts[1 if path.parts[0] == "src" else 0 :]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(text: str) -> Iterator[str]:
    """Modules that a file names in its imports: `from a import b` may mean the module a or a.b."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _say(text: str) -> None:
    print(f"quick: {text}", file=sys.stderr)


if __name__ == "__main__":
    main()
