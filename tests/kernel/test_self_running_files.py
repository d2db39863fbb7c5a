"""Files that something runs by itself are known by their names, wherever they lie."""

from __future__ import annotations

import pytest

from weft.kernel.permission_subjects import self_running, self_running_words

RUN = """
.envrc .vscode/tasks.json .vscode/settings.json Makefile sub/GNUmakefile rules.mk package.json web/package.json
conftest.py tests/conftest.py .pre-commit-config.yaml .git/hooks/pre-commit .git/config .github/workflows/ci.yml
.husky/pre-push setup.py build.rs .idea/workspace.xml .devcontainer/devcontainer.json CMakeLists.txt Justfile justfile
sitecustomize.py lib/x.pth vite.config.ts eslint.config.mjs Dockerfile Dockerfile.dev docker-compose.override.yml
.gitlab-ci.yml pyproject.toml MAKEFILE .npmrc .cargo/config.toml .mcp.json .claude/settings.json a.code-workspace
.bashrc Vagrantfile flake.nix .ENVRC .hg/hgrc sub/.hg/hgrc .HG/hgrc .jj/repo/config.toml .svn/wc.db
.bzr/branch/branch.conf _darcs/prefs/defaults ansible.cfg main.tf cdk.json .pylintrc pylintrc mypy.ini .flake8 .rspec
.rubocop.yml .eslintrc.json .luacheckrc latexmkrc app/App.csproj Directory.Build.props Directory.Build.rsp
NuGet.Config App.sln .vs/App.suo .gradle/init.d/a.gradle gradle.properties buildSrc/build.gradle.kts
.mvn/extensions.xml .bazelrc BUILD sub/BUILD defs.bzl .tool-versions mise.toml .mise.local.toml Gemfile .bundle/config
Rakefile lib/tasks/a.rake .devcontainer/Dockerfile docs/conf.py mkdocs.yml .luarc.json .lazy.lua .helix/languages.toml
.ycm_extra_conf.py .settings/a.prefs a.launch .run/a.run.xml .bsp/sbt.json hie.yaml .iex.exs Package.swift
a.xcodeproj/project.pbxproj build.zig a.nimble .proverc phpunit.xml .htaccess .user.ini .trunk/trunk.yaml AGENTS.md
CLAUDE.md .cursorrules .github/copilot-instructions.md .github/hooks/a.json .kiro/hooks/a.json opencode.json
.pnpmfile.mjs .pnp.cjs nx.json .storybook/main.ts .mocharc.json tsconfig.json .ssh/config .mc.menu pip.conf uv.toml
.vscode .husky .git sub/.git
""".split()
NOT_RUN = """
README.md src/main.py envrc .env docs/makefile.md package-lock.json test_conftest.py vscode/tasks.json a.pth.txt
github/ci.yml config.ts .gitignore requirements.txt go.mod idea.py .envrc.md Makefile.in.txt src/git/config
.github/README.md build src/build workspace targets gradle lib/src.js rc.ts rock.hg .hg/dirstate .hg/store/data/a.i
.jj/repo/store/a .gradle/8.5/a.lock svn/a jj.py hgrc.md configure.md gradle.md
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


def test_many_files_of_one_kind_do_not_keep_another_out_of_sight() -> None:
    words = self_running_words(self_running([*(f"-{number}/a.mk" for number in range(40)), ".envrc", ".hg/hgrc"]))
    assert ".envrc (direnv, when a shell enters the folder)" in words
    assert ".hg/hgrc (a version control, when " in words
    assert words.endswith(", and 32 more")
