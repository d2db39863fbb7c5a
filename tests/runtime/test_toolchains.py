"""Which toolchains of a home folder a workspace is shown: those that it leads to or asks for, else those in use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.runtime.homes import ProjectAndHome, link, program
from weft.runtime.sandbox.toolchains import MANAGERS, PersonalHome, find_toolchains


@pytest.fixture
def place(tmp_path: Path) -> ProjectAndHome:
    return ProjectAndHome(tmp_path)


def test_an_environment_of_pyenv_is_shown_its_own_version_and_no_other(place: ProjectAndHome) -> None:
    python = place.python("3.11.4")
    place.python("3.12.1")
    (place.home / ".pyenv" / "version").write_text("3.11.4\n")
    link(place.project / ".venv/bin/python3", "python")
    link(place.project / ".venv/bin/python", python)
    toolchains = place.search()
    assert place.shown(toolchains) == {".pyenv/versions/3.11.4"}
    (row,) = toolchains.rows
    assert (row.name, row.why) == ("pyenv python 3.11.4", ".venv/bin/python leads there")
    assert toolchains.hidden == ()


def test_an_environment_of_uv_is_shown_the_version_by_both_of_its_names(place: ProjectAndHome) -> None:
    real, minor = "cpython-3.12.8-linux-x86_64-gnu", "cpython-3.12-linux-x86_64-gnu"
    place.python(real, ".local/share/uv/python")
    link(place.home / ".local/share/uv/python" / minor, real)
    link(place.project / ".venv/bin/python", place.home / ".local/share/uv/python" / minor / "bin/python3.11")
    toolchains = place.search()
    assert place.shown(toolchains) == {f".local/share/uv/python/{name}" for name in (real, minor)}
    assert toolchains.variables == {"UV_PYTHON_INSTALL_DIR": str(place.home / ".local/share/uv/python")}


@pytest.mark.parametrize("named_in", ["home = {}/bin", "executable = {}/bin/python3.11", "#!{}/bin/python3.11 -E"])
def test_an_interpreter_is_shown_that_a_file_of_an_environment_names(place: ProjectAndHome, named_in: str) -> None:
    version = place.python("3.10.2").parents[1]
    place.python("3.11.4")
    text = f"{named_in.format(version)}\n"
    file = place.project / "venv" / ("bin/tool" if text.startswith("#!") else "pyvenv.cfg")
    program(file, text)
    assert ".pyenv/versions/3.10.2" in place.shown(place.search())


def test_an_environment_that_lies_in_a_manager_as_a_whole_is_shown_with_what_it_was_made_from(
    place: ProjectAndHome,
) -> None:
    python = place.python("3.11.4")
    environment = place.home / ".pyenv/versions/3.11.4/envs/work"
    link(environment / "bin/python", python)
    link(place.home / ".pyenv/versions/work", environment)
    (place.project / ".python-version").write_text("work\n")
    toolchains = place.search()
    assert place.shown(toolchains) == {
        ".pyenv/versions/work", ".pyenv/versions/3.11.4", ".pyenv/versions/3.11.4/envs/work",
    }  # fmt: skip
    assert place.looked_in(toolchains) == [".pyenv/versions/work/bin"]


def test_a_tool_of_uv_is_shown_where_a_launcher_leads_to_it_with_its_interpreter(place: ProjectAndHome) -> None:
    python = place.python("cpython-3.13.1-linux-x86_64-gnu", ".local/share/uv/python")
    tool = place.home / ".local/share/uv/tools/poetry"
    program(tool / "bin/poetry", f"#!{tool}/bin/python\n")
    program(tool / "pyvenv.cfg", f"home = {python.parent}\n")
    program(place.home / ".local/share/uv/tools/unused/bin/unused")
    link(tool / "bin/python", python)
    link(place.home / ".local/bin/poetry", tool / "bin/poetry")
    program(place.home / ".local/bin/uv")
    program(place.home / ".local/bin/my-script")
    toolchains = place.search()
    assert place.shown(toolchains) == {
        ".local/share/uv/tools/poetry", ".local/share/uv/python/cpython-3.13.1-linux-x86_64-gnu", ".local/bin/poetry",
        ".local/bin/uv",
    }  # fmt: skip
    assert ".local/bin" in place.looked_in(toolchains)


ASKED = {
    ".python-version": ("# ours\n3.9\n", ".pyenv/versions/{}", ("3.9.18", "3.10.1", "3.11.4"), "3.9.18"),
    ".nvmrc": ("v18\n", ".nvm/versions/node/{}", ("v16.20.2", "v18.19.0", "v20.11.0"), "v18.19.0"),
    ".node-version": ("18.19.0", ".local/share/fnm/node-versions/{}/installation", ("v18.19.0", "v20.1.0"), "v18.19.0"),
    ".tool-versions": ("golang 1.21\n", ".asdf/installs/golang/{}/go", ("1.20.2", "1.21.6", "1.22.0"), "1.21.6"),
    "mise.toml": ('[tools]\nnode = "18"\n', ".local/share/mise/installs/node/{}", ("18.1.0", "22.0.0"), "18.1.0"),
    ".mise.toml": ('tools.go = {version = "1.2"}', ".local/share/mise/installs/go/{}", ("1.2.9", "1.3.0"), "1.2.9"),
    "rust-toolchain.toml": (
        '[toolchain]\nchannel = "1.75"\n', ".rustup/toolchains/{}", ("1.75.0-x86_64", "stable-x86_64"), "1.75.0-x86_64",
    ),
    "rust-toolchain": ("nightly\n", ".rustup/toolchains/{}", ("nightly-x86_64", "stable-x86_64"), "nightly-x86_64"),
    ".sdkmanrc": ("java=17.0.9-tem\n", ".sdkman/candidates/java/{}", ("17.0.9-tem", "21.0.1-tem"), "17.0.9-tem"),
    "go.mod": ("module x\n\ngo 1.21\ntoolchain go1.21.3\n", "sdk/{}", ("go1.21.3", "go1.22.0"), "go1.21.3"),
    "package.json": ('{"volta": {"node": "18.1.0"}}', ".volta/tools/image/node/{}", ("18.1.0", "20.0.0"), "18.1.0"),
    "environment.yml": ("name: science\n", "miniconda3/envs/{}", ("science", "other"), "science"),
}  # fmt: skip


@pytest.mark.parametrize("file", ASKED)
def test_a_workspace_is_shown_the_version_that_it_asks_for(place: ProjectAndHome, file: str) -> None:
    text, pattern, versions, wanted = ASKED[file]
    for version in versions:
        program(place.home / pattern.format(version) / "bin" / "run")
    (place.project / file).write_text(text)
    toolchains = place.search()
    shown = {path for path in place.shown(toolchains) if pattern.split("{")[0] in path}
    assert shown == {(pattern.partition("{}")[0] + wanted)}
    assert place.looked_in(toolchains)[0] == f"{pattern.format(wanted)}/bin"
    assert [row.why.partition(" asks")[0] for row in toolchains.rows if row.why != "its own programs"] == [file]


USUAL = {
    "pyenv": (".pyenv/versions/{}", ("3.11.4", "3.12.1"), ".pyenv/version", "3.11.4\n"),
    "nvm": (".nvm/versions/node/{}", ("v18.19.0", "v20.11.0"), ".nvm/alias/lts/hydrogen", "v18.19.0\n"),
    "volta": (".volta/tools/image/node/{}", ("18.1.0", "20.0.0"), ".volta/tools/user/platform.json",
              json.dumps({"node": {"runtime": "18.1.0", "npm": None}})),
    "rustup": (".rustup/toolchains/{}", ("1.70.0-x86_64", "stable-x86_64"), ".rustup/settings.toml",
               'default_toolchain = "1.70.0-x86_64"\n'),
    "asdf": (".asdf/installs/ruby/{}", ("3.1.0", "3.2.0"), ".tool-versions", "ruby 3.1.0\n"),
    "mise": (".local/share/mise/installs/node/{}", ("18.1.0", "20.0.0"), ".config/mise/config.toml",
             '[tools]\nnode = ["18"]\n'),
}  # fmt: skip


@pytest.mark.parametrize("manager", USUAL)
def test_a_workspace_that_asks_for_nothing_is_shown_what_the_person_uses(place: ProjectAndHome, manager: str) -> None:
    pattern, versions, file, text = USUAL[manager]
    for version in versions:
        program(place.home / pattern.format(version) / "bin" / "run")
    program(place.home / file, text)
    if manager == "nvm":
        program(place.home / ".nvm/alias/default", "lts/*\n")
        program(place.home / ".nvm/alias/lts/*", "lts/hydrogen\n")
    toolchains = place.search()
    assert pattern.format(versions[0]) in place.shown(toolchains)
    assert pattern.format(versions[1]) not in place.shown(toolchains)
    assert [row.why for row in toolchains.rows if row.why != "its own programs"] == [
        "you use it where nothing says which"
    ]


def test_where_nobody_says_which_the_newest_version_is_shown(place: ProjectAndHome) -> None:
    for version in ("go1.9.7", "go1.22.0", "go1.23rc1"):
        program(place.home / "sdk" / version / "bin/go")
    assert place.looked_in(place.search()) == ["sdk/go1.22.0/bin"]


def test_programs_that_were_asked_for_are_found_first_and_those_of_conda_after_the_systems(
    place: ProjectAndHome,
) -> None:
    program(place.home / "miniconda3/bin/python")
    program(place.home / ".cargo/bin/cargo")
    program(place.home / ".nvm/versions/node/v20.1.0/bin/node")
    (place.project / ".nvmrc").write_text("20")
    toolchains = place.search()
    assert place.looked_in(toolchains) == [".nvm/versions/node/v20.1.0/bin", ".cargo/bin"]
    assert toolchains.path("/usr/bin").split(":")[-2:] == ["/usr/bin", str(place.home / "miniconda3/bin")]


def test_what_may_hold_keys_is_hidden_and_what_lies_beside_versions_is_not_shown(place: ProjectAndHome) -> None:
    python = place.python("3.11.4")
    program(python.parents[1] / "pip.conf", "[global]\nindex-url = https://ada:canary@example.org\n")
    program(place.home / ".nvm/versions/node/v20.1.0/bin/node")
    program(place.home / ".nvm/versions/node/v20.1.0/etc/npmrc", "_authToken=canary")
    program(place.home / ".nvm/versions/node/v20.1.0/.config/keys/one", "canary")
    link(place.home / ".local/bin/tool", program(place.home / ".local/share/uv/tools/tool/bin/tool"))
    program(place.home / ".local/share/uv/tools/tool/uv-receipt.toml", "index = 'https://ada:canary@example.org'")
    for name in (".cargo/credentials.toml", ".cargo/config.toml", ".cargo/registry/cache/x", ".npmrc", ".condarc",
                 ".local/share/uv/credentials/store", "miniconda3/.condarc", ".rustup/downloads/x"):  # fmt: skip
        program(place.home / name, "canary")
    program(place.home / ".cargo/bin/cargo")
    program(place.home / "miniconda3/bin/conda")
    toolchains = place.search()
    assert place.shown(toolchains) == {
        ".pyenv/versions/3.11.4", ".nvm/versions/node/v20.1.0", ".cargo/bin", "miniconda3/bin", ".local/bin/tool",
        ".local/share/uv/tools/tool",
    }  # fmt: skip
    assert place.hidden(toolchains) == {
        ".pyenv/versions/3.11.4/pip.conf", ".nvm/versions/node/v20.1.0/etc/npmrc",
        ".nvm/versions/node/v20.1.0/.config", ".local/share/uv/tools/tool/uv-receipt.toml",
    }  # fmt: skip


def test_an_interpreter_elsewhere_is_named_and_not_shown(place: ProjectAndHome) -> None:
    python = program(place.home / "builds/python/bin/python3")
    link(place.project / ".venv/bin/python", python)
    toolchains = place.search()
    assert toolchains.mounts == ()
    why = toolchains.explain(["bash", "-c", ".venv/bin/python x.py"], "No such file or directory")
    assert why is not None
    assert why.startswith(f".venv/bin/python leads to {python}, which the sandbox hides: ")
    assert toolchains.explain(["ls", "nothing"], "No such file or directory") is None
    link(place.project / "venv", place.home / "environments/work")
    toolchains = place.search()
    assert len(toolchains.hidden) == 2
    assert toolchains.explain(["ls", "nothing"], "No such file or directory") is None
    assert "venv leads to" in (toolchains.explain(["venv/bin/python"], "No such file or directory") or "")
    (place.project / "venv").unlink()
    shown = find_toolchains(PersonalHome(folder=str(place.home)), str(place.project), shown=[str(python.parents[1])])
    assert shown.hidden == ()


def test_a_version_that_was_removed_is_named(place: ProjectAndHome) -> None:
    place.python("3.12.1")
    link(place.project / ".venv/bin/python", place.home / ".pyenv/versions/3.11.4/bin/python3.11")
    (hidden,) = place.search().hidden
    assert "which is not installed: " in hidden.sentence


def test_a_folder_of_the_workspace_has_its_own_environment_before_those_above(place: ProjectAndHome) -> None:
    for version in ("3.10.2", "3.11.4", "3.12.1"):
        place.python(version)
    inner = place.project / "services/api"
    inner.mkdir(parents=True)
    (place.project / ".python-version").write_text("3.11")
    (inner / ".python-version").write_text("3.10")
    link(inner / ".venv/bin/python", place.home / ".pyenv/versions/3.12.1/bin/python3.11")
    toolchains = place.search(inner)
    assert place.looked_in(toolchains) == [".pyenv/versions/3.10.2/bin"]
    assert place.shown(toolchains) == {".pyenv/versions/3.10.2", ".pyenv/versions/3.12.1"}


def test_the_persons_own_variables_say_where_managers_are(place: ProjectAndHome, tmp_path: Path) -> None:
    program(tmp_path / "elsewhere/versions/3.11.4/bin/python")
    values = {"HOME": str(place.home), "PYENV_ROOT": str(tmp_path / "elsewhere"), "API_KEY": "canary"}
    home = PersonalHome.of(values.get)
    assert home is not None
    assert "canary" not in str(home)
    toolchains = find_toolchains(home, str(place.project))
    assert [mount.place for mount in toolchains.mounts] == [str(tmp_path / "elsewhere/versions/3.11.4")]
    assert PersonalHome.of(lambda _: None) is None
    assert find_toolchains(None, str(place.project)).mounts == ()


def test_every_manager_says_where_it_is_and_what_is_shown_of_it() -> None:
    for manager in MANAGERS:
        assert manager.places
        assert manager.versions or manager.shared
        assert manager.versions is None or "{version}" in manager.versions
        has_tool = "{tool}" in (manager.versions or "") or bool(manager.tool)
        assert has_tool or not manager.has_newest or manager.versions is None
