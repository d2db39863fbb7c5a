"""Files that something runs by itself are known by their names, wherever they lie."""

from __future__ import annotations

import pytest

from weft.kernel.permission_subjects import self_running, self_running_words

RUN = """
.envrc .vscode/tasks.json .vscode/settings.json Makefile sub/GNUmakefile rules.mk package.json web/package.json
conftest.py tests/conftest.py .pre-commit-config.yaml .git/hooks/pre-commit .git/config .github/workflows/ci.yml
.husky/pre-push setup.py build.rs .idea/workspace.xml .devcontainer/devcontainer.json CMakeLists.txt Justfile
justfile sitecustomize.py lib/x.pth vite.config.ts eslint.config.mjs Dockerfile Dockerfile.dev
docker-compose.override.yml .gitlab-ci.yml pyproject.toml MAKEFILE .npmrc .cargo/config.toml .mcp.json
.claude/settings.json a.code-workspace .bashrc Vagrantfile flake.nix .ENVRC
""".split()
NOT_RUN = """
README.md src/main.py envrc .env docs/makefile.md package-lock.json test_conftest.py vscode/tasks.json a.pth.txt
github/ci.yml config.ts .gitignore requirements.txt go.mod idea.py .envrc.md Makefile.in.txt src/git/config
.github/README.md
""".split()


@pytest.mark.parametrize("path", RUN)
def test_what_runs_by_itself_is_named_with_what_runs_it(path: str) -> None:
    assert self_running(["a.py", path]).keys() == {path}
    assert len(self_running([path])[path]) > 10


@pytest.mark.parametrize("path", NOT_RUN)
def test_other_files_are_not(path: str) -> None:
    assert self_running([path]) == {}


def test_the_words_name_the_first_and_count_the_rest() -> None:
    assert self_running_words({}) == ""
    runners = self_running([".envrc", *(f"{number}.mk" for number in range(12))])
    words = self_running_words(runners)
    assert words.startswith("runs by itself: .envrc (direnv, when a shell enters the folder), 0.mk (")
    assert words.endswith(", and 3 more")
