"""Files that programs run by themselves, outside of any sandbox, when a person does something else: enters a folder,
opens an editor, commits, builds, pushes.

An agent may change them like any other file. So they are named wherever somebody looks at what changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

MOST_NAMED = 10
"""So many of them are named where people look; the rest are counted."""

_RUNNERS = {
    ".envrc": "direnv, when a shell enters the folder",
    ".mise.toml mise.toml .tool-versions .mise/ shell.nix flake.nix default.nix": "the tool that makes the environment",
    ".bashrc .bash_profile .profile .zshrc .zshenv .inputrc": "a shell, when it starts there",
    "makefile gnumakefile *.mk cmakelists.txt *.cmake meson.build configure build.ninja build.bazel sconstruct wscript "
    "justfile .justfile taskfile.yml taskfile.yaml rakefile build.gradle build.gradle.kts settings.gradle "
    "settings.gradle.kts gradlew gradle/ pom.xml mvnw .mvn/ build.rs cargo.toml .cargo/ setup.py setup.cfg "
    "pyproject.toml composer.json gemfile *.gemspec build.sbt mix.exs dune-project": (
        "a build tool, when the project is built or installed"
    ),
    "package.json .npmrc .yarnrc .yarnrc.yml .yarn/ .pnpmfile.cjs deno.json deno.jsonc bunfig.toml": (
        "a package manager of JavaScript, when it installs or runs a script"
    ),
    "conftest.py noxfile.py tox.ini pytest.ini": "the tests, when they are run",
    "*.config.js *.config.cjs *.config.mjs *.config.ts *.config.mts .eslintrc.js .eslintrc.cjs .babelrc.js "
    ".prettierrc.js .mocharc.js gulpfile.js gruntfile.js .gdbinit .lldbinit .pdbrc .rprofile .irbrc .pryrc .ipython/": (
        "the tool that it configures, when that is run"
    ),
    "sitecustomize.py usercustomize.py *.pth": "every Python that finds it on its path",
    ".pre-commit-config.yaml .pre-commit-hooks.yaml .husky/ .githooks/ .git/ .gitconfig .gitmodules lefthook.yml "
    ".lefthook.yml .lefthook/ .overcommit.yml .lintstagedrc .lintstagedrc.json": (
        "git, when somebody commits, pushes or pulls"
    ),
    ".vscode/ .idea/ .fleet/ .zed/ .vs/ *.code-workspace .exrc .nvimrc .nvim.lua .lvimrc .vimrc .dir-locals.el "
    ".devcontainer/ .devcontainer.json": "an editor, when the folder is opened",
    ".claude/ .cursor/ .codex/ .gemini/ .mcp.json": "coding agents, when they start there",
    "dockerfile dockerfile.* *.dockerfile containerfile compose.yml compose.yaml docker-compose.yml "
    "docker-compose.yaml docker-compose.*.yml vagrantfile procfile tiltfile": (
        "the tool that makes containers, when they are built"
    ),
    ".github/workflows/ .github/actions/ .gitlab-ci.yml .gitlab/ .circleci/ .buildkite/ .drone.yml .travis.yml "
    "jenkinsfile azure-pipelines.yml bitbucket-pipelines.yml .woodpecker/ .woodpecker.yml .forgejo/ .gitea/": (
        "the server that builds, when it is pushed"
    ),
}
"""By the names of files, with `*` for any characters, and of folders with a slash behind them, in small letters."""


def _by_name() -> tuple[dict[str, str], dict[str, str], tuple[tuple[str, str], ...]]:
    """Who runs them: by the whole name, by the name of a folder on the way, and by patterns."""
    runners = {name: runner for names, runner in _RUNNERS.items() for name in names.split()}
    files = {name: runner for name, runner in runners.items() if not name.endswith("/") and "*" not in name}
    folders = {name: runner for name, runner in runners.items() if name.endswith("/")}
    return files, folders, tuple((name, runner) for name, runner in runners.items() if "*" in name)


_FILES, _FOLDERS, _PATTERNS = _by_name()


def self_running(paths: Iterable[str]) -> dict[str, str]:
    """Those of these paths that something runs by itself, in their order, each with what runs it."""
    return {path: runner for path in paths if (runner := _runner(path)) is not None}


def _runner(path: str) -> str | None:
    """File systems that take large letters for small ones are common, so they count as the same."""
    place = f"/{path.lower()}"
    for folder, runner in _FOLDERS.items():
        if f"/{folder}" in place:
            return runner
    name = place.rpartition("/")[2]
    return _FILES.get(name) or next((runner for pattern, runner in _PATTERNS if fnmatchcase(name, pattern)), None)


def self_running_words(runners: Mapping[str, str], most: int = MOST_NAMED) -> str:
    """`runs by itself: .envrc (direnv, when a shell enters the folder)`; nothing where there is none."""
    if not runners:
        return ""
    named = [f"{path} ({runner})" for path, runner in list(runners.items())[:most]]
    more = [f"and {len(runners) - most} more"] if len(runners) > most else []
    return f"runs by itself: {', '.join([*named, *more])}"
