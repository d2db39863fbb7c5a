"""`weft mcp config`: a coding agent's file gets the server and loses it again, and nothing else in it changes."""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.surfaces.shell import Shell, on_terminal
from weft.kernel.errors import InvalidInput, NotApplicable
from weft.surfaces.mcp.client_settings import TOOLS, added, program_words, removed

FILES = {
    "claude-code": ".claude.json",
    "codex": ".codex/config.toml",
    "cursor": ".cursor/mcp.json",
    "opencode": ".config/opencode/opencode.json",
}
PROJECT_FILES = {
    "claude-code": ".mcp.json",
    "codex": ".codex/config.toml",
    "cursor": ".cursor/mcp.json",
    "opencode": "opencode.json",
}
JSON_FILES = [
    "{}",
    "{}\n",
    "{ }",
    "{\n}\n",
    '{"mcpServers": {}, "mcp": {}}',
    '{"mcpServers": {}}\n',
    '{"mcp": {\n  }\n}\n',
    '{\n  "mcpServers": {\n    "other": {\n      "command": "x"\n    }\n  },\n  "mcp": {"a": {"type": "local"}}\n}\n',
    '{\r\n\t"a": [1, 2.5e3, "\\u00e9\\"", null],\r\n\t"mcpServers": {\r\n\t\t"b": {}\r\n\t}\r\n}\r\n',
    '{"a":1}',
    '{\n    "numbers": [1, [2, {"x": true}]],\n    "text": "{ \\"mcpServers\\": 1 }"\n}',
    '\ufeff{"a": "é", "mcp": {"z": {}}}',
]
COMMENTED_FILES = [
    '// first\n{\n  "a": 1, // note\n}\n',
    "{ /* only this */ }\n",
    '{\n  "mcpServers": { // ours\n    "b": {}, /* behind */\n  },\n'
    '  "mcp": {\n    // nothing yet\n  }, // end\n}\n// last\n',
    '{\n  "a": 1  ,  // two spaces  \n\n}\n',
    '{\n  "mcp": {\n    "b": {} // no comma here\n  },\n  "mcpServers": {\n    "c": {} // nor here\n  }\n}\n',
]
TOML_FILES = [
    "",
    "\n",
    'model = "x"',
    'model = "x"\n',
    "# only a comment\n\n\n",
    '[mcp_servers.other]\ncommand = "x"\n\n[mcp_servers.other.env]\nA = "1"\n',
    "a = 1\r\n\r\n[b]\r\nc = [\r\n  1, # one\r\n]\r\n",
    'text = """\n[mcp_servers.weft]\n"""\n',
]


def broken_files(tool: str) -> list[str]:
    if TOOLS[tool].is_toml:
        return ["a = ", "[x\n", "mcp_servers = 3\n", 'mcp_servers = {other = {command = "x"}}\n', "\x00"]
    broken = [
        "",
        "{",
        '{"a": 1',
        "[]",
        '{"a": 1} x',
        '{"mcpServers": 3, "mcp": 3}',
        '{"a": 1, "a": 2}',
        '{"a" 1}',
        "\x00",
    ]
    return broken if TOOLS[tool].has_comments else [*broken, '{"a": 1, // note\n "b": 2}', '{"a": 1,}']


def texts(tool: str) -> list[str]:
    if TOOLS[tool].is_toml:
        return TOML_FILES
    return [*JSON_FILES, *(COMMENTED_FILES if TOOLS[tool].has_comments else [])]


@pytest.mark.parametrize("tool_name", TOOLS)
@pytest.mark.parametrize("with_change", [False, True])
def test_what_is_added_and_removed_gives_back_the_same_bytes(tool_name: str, with_change: bool) -> None:
    tool = TOOLS[tool_name]
    entry = tool.entry(["/opt/wéft", "mcp", "serve", "--session", 'a"b\\'])
    for text in (None, *texts(tool_name)):
        new = added(tool, text, "weft", entry)
        assert added(tool, new, "weft", entry) == new
        if with_change:
            new = added(tool, new, "weft", tool.entry(["weft"]))
        assert removed(tool, new, "weft") == text, repr(text)
        if tool.is_toml:
            assert tomllib.loads(new)["mcp_servers"]["weft"]["command"] == ("weft" if with_change else "/opt/wéft")


@pytest.mark.parametrize("tool_name", TOOLS)
def test_other_servers_and_comments_stay(tool_name: str) -> None:
    tool = TOOLS[tool_name]
    for text in texts(tool_name):
        new = added(tool, text, "weft", tool.entry(["weft", "mcp", "serve"]))
        words = re.findall(r'#[^\n]*|//[^\n]*|/\*.*?\*/|"[^"\n]*"', text)
        assert [word for word in words if word not in new] == [], new
        for line in text.split("\n"):
            if "//" in line and '"' in line:  # a remark stays beside what it speaks of
                assert line.replace(",", "").strip() in new.replace(",", ""), new


@pytest.mark.parametrize("tool_name", TOOLS)
def test_a_broken_file_is_refused_and_stays_as_it_is(weft: Shell, tool_name: str) -> None:
    file = Path(os.environ["HOME"]) / FILES[tool_name]
    file.parent.mkdir(parents=True, exist_ok=True)
    for text in broken_files(tool_name):
        file.write_text(text)
        for option in ("--write", "--remove"):
            refused = weft("mcp", "config", tool_name, option, "--yes")
            assert refused.code in (4, 5), (text, refused)
            assert str(file) in refused.err
            assert file.read_text() == text
    file.write_bytes(b'{"a": "\xff"}')
    assert weft("mcp", "config", tool_name, "--write", "--yes").code == 5
    assert file.read_bytes() == b'{"a": "\xff"}'


def test_a_table_of_codex_is_taken_out_without_what_stands_around_it() -> None:
    tool = TOOLS["codex"]
    entry = tool.entry(["weft"])
    new = added(tool, "a = 1\n", "weft", entry) + '\n[mcp_servers.weft.env]\nA = "1"\n\n# about b\n[b]\nc = 1\n'
    assert removed(tool, new, "weft") == "a = 1\n\n# about b\n[b]\nc = 1\n"
    with pytest.raises(NotApplicable, match="by hand"):
        removed(tool, '[mcp_servers]\nweft = {command = "x"}\n', "weft")
    with pytest.raises(NotApplicable, match="no MCP server"):
        removed(tool, "a = 1\n", "weft")


keys = st.text('abc"\\é{}/*', min_size=1, max_size=4)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | keys,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(keys, values, max_size=3),
    st.none() | st.dictionaries(keys, st.just({"command": "x"}), max_size=2),
    st.sampled_from([None, 0, 1, 4, "\t"]),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["", "\n"]),
)
def test_any_json_file_comes_back(
    rest: dict[str, Any], servers: dict[str, Any] | None, indent: Any, line_end: str, end: str
) -> None:
    value = rest if servers is None else {**rest, "mcpServers": servers}
    text = json.dumps(value, indent=indent, ensure_ascii=False).replace("\n", line_end) + end
    for name in ("claude-code", "cursor"):
        tool = TOOLS[name]
        new = added(tool, text, "weft", tool.entry(["weft"]))
        assert json.loads(new) == {**value, "mcpServers": {**(servers or {}), "weft": tool.entry(["weft"])}}
        assert removed(tool, new, "weft") == text


@settings(max_examples=200, deadline=None)
@given(st.text('{}[]",:/*\\ \n1a', max_size=12))
def test_any_text_is_read_or_refused(text: str) -> None:
    for name in ("claude-code", "cursor"):
        tool = TOOLS[name]
        try:
            new = added(tool, text, "weft", tool.entry(["weft"]))
        except (InvalidInput, NotApplicable):
            continue
        assert removed(tool, new, "weft") == text


@pytest.mark.parametrize("tool_name", TOOLS)
def test_the_command_shows_writes_and_takes_back(weft: Shell, tool_name: str) -> None:
    home = Path(os.environ["HOME"])
    file, tool = home / FILES[tool_name], TOOLS[tool_name]
    shown = weft("mcp", "config", tool_name)
    assert str(file) in shown.err
    assert not file.exists()
    entry = tool.entry([*program_words(), "mcp", "serve"])
    assert added(tool, None, "weft", entry) == shown.out
    refused = weft("mcp", "config", tool_name, "--write")
    assert (refused.code, file.exists()) == (4, False)
    assert "+" in refused.err
    written = weft.json("mcp", "config", tool_name, "--write", "--yes", "--allow-writes", "fork", "--session", "a*")
    assert (written["change"], written["file"]) == ("added", str(file))
    assert file.read_text() == added(tool, None, "weft", written["entry"])
    words = written["entry"]["command"] if tool_name == "opencode" else written["entry"]["args"]
    assert words[-4:] == ["--allow-writes", "fork", "--session", "a*"]
    assert weft.json("mcp", "config", tool_name, "--write", "--yes")["change"] == "changed"
    assert weft.json("mcp", "config", tool_name, "--write", "--yes")["change"] == "unchanged"
    assert weft.json("mcp", "config", tool_name, "--remove", "--yes")["change"] == "removed"
    assert not file.exists()
    assert weft("mcp", "config", tool_name, "--remove", "--yes").code == 4
    project = weft.json("mcp", "config", tool_name, "--project", "--write", "--yes")
    assert project["file"] == str(weft.folder / PROJECT_FILES[tool_name])
    assert "weft" in json.dumps(project["entry"])
    assert str(home) not in Path(project["file"]).read_text()


def test_a_file_keeps_its_mode_and_a_link_leads_to_it(weft: Shell) -> None:
    home = Path(os.environ["HOME"])
    kept = home / "dotfiles" / "claude.json"
    kept.parent.mkdir()
    kept.write_text('{"a": 1}')
    kept.chmod(0o640)
    (home / ".claude.json").symlink_to(kept)
    assert weft("mcp", "config", "claude-code", "--write", "--yes").code == 0
    assert (home / ".claude.json").is_symlink()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o640
    assert "weft" in kept.read_text()
    assert weft("mcp", "config", "claude-code", "--remove", "--yes").code == 0
    assert kept.read_text() == '{"a": 1}'
    assert list(kept.parent.iterdir()) == [kept]


def test_a_ledger_that_is_named_is_passed_on_without_its_password(weft: Shell) -> None:
    shown = weft.json("--ledger", "here.db", "mcp", "config", "cursor")
    assert shown["entry"]["args"] == ["--ledger", str(weft.folder / "here.db"), "mcp", "serve"]
    refused = weft("--ledger", "postgresql://me:secret@host/db", "mcp", "config", "cursor")
    assert refused.code == 5
    assert "secret" not in refused.out + refused.err
    assert weft("mcp", "config", "cursor", "--name", "a b").code == 2
    assert weft("mcp", "config", "cursor", "--write", "--remove").code == 2


@pytest.mark.slow("asks at a terminal")
def test_a_person_at_a_terminal_is_asked_first(weft: Shell) -> None:
    file = Path(os.environ["HOME"]) / ".cursor" / "mcp.json"
    code, shown = on_terminal(weft.folder, "mcp", "config", "cursor", "--write", typed="n\n")
    assert (code, file.exists()) == (4, False)
    assert '"mcpServers"' in shown
    code, _ = on_terminal(weft.folder, "mcp", "config", "cursor", "--write", typed="y\n")
    assert (code, file.exists()) == (0, True)
