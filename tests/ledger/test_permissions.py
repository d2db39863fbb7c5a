"""A call that was allowed is never reported, one outside always is; the forms in which agents write their rules."""

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.kernel.authority import pattern_matcher, rights
from weft.ledger.reports.audit import (
    MISSING,
    PermissionVerdict,
    ToolUse,
    commands_of,
    judge,
    parse_grant,
    parts_of,
    rules_used,
)

NAMES = st.text(string.ascii_letters + "_", min_size=1, max_size=8)
WORDS = st.lists(
    st.text(string.ascii_lowercase + string.digits + "-./", min_size=1, max_size=6), min_size=1, max_size=4
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(["allow", "deny", "ask", "tool(x*)"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["allow", "mode", "command"]), inner),
)


def verdict(
    name: str, granted: Any, arguments: Any = None, tools: list[str] | None = None, **more: Any
) -> PermissionVerdict:
    return judge(ToolUse(name, more.pop("server", None), arguments), tools, parse_grant(granted), **more)


@given(st.lists(NAMES, min_size=1), st.data())
def test_a_tool_that_was_there_is_allowed_and_any_other_is_not(tools: list[str], data: st.DataObject) -> None:
    assert verdict(data.draw(st.sampled_from(tools)), None, {}, tools) is PermissionVerdict.ALLOWED
    other = data.draw(NAMES.filter(lambda name: name not in tools))
    assert verdict(other, None, {}, tools) is PermissionVerdict.UNAVAILABLE


@given(st.lists(NAMES, min_size=1, max_size=5, unique=True), NAMES, st.sampled_from(["list", "allow", "allowedTools"]))
def test_a_closed_list_of_rules_allows_what_it_names_and_nothing_else(names: list[str], other: str, form: str) -> None:
    granted = names if form == "list" else {form: names}
    assert all(verdict(name, granted, {}) is PermissionVerdict.ALLOWED for name in names)
    if other not in names:
        assert verdict(other, granted, {}) is PermissionVerdict.UNCOVERED
        assert verdict(other, {"allow": names, "deny": [other]}, {}) is PermissionVerdict.DENIED
    assert verdict(names[0], {"allow": names, "deny": [names[0]]}, {}) is PermissionVerdict.DENIED


@given(WORDS, WORDS)
def test_a_pattern_allows_the_commands_that_begin_so_and_reports_all_others(
    allowed: list[str], other: list[str]
) -> None:
    command, outside = " ".join(allowed), " ".join(other)
    for rule in (f"Bash({command} *)", f"Bash({command}:*)"):
        assert verdict("Bash", [rule], {"command": command}) is PermissionVerdict.ALLOWED
        assert verdict("Bash", [rule], {"command": f"{command} {outside}"}) is PermissionVerdict.ALLOWED
        begins_so = outside == command or outside.startswith(command + " ")
        expected = PermissionVerdict.ALLOWED if begins_so else PermissionVerdict.UNCOVERED
        assert verdict("Bash", [rule], {"command": outside}) is expected
        for between in ("&&", "||", ";", "|", "&", "\n"):
            both = f"{command} x {between} {outside}"
            assert verdict("Bash", [rule], {"command": both}) is expected
            assert verdict("Bash", [rule], {"command": f"{outside}{between}{command}"}) is expected


@given(WORDS, st.sampled_from(["$(rm -rf x)", "`rm x`", "<(rm x)", "<<END", "'open quote"]))
def test_a_command_that_could_run_anything_is_covered_by_no_pattern(words: list[str], odd: str) -> None:
    command = f"{' '.join(words)} {odd}"
    assert verdict("Bash", ["Bash(*x*)", f"Bash({words[0]} *)"], {"command": command}) is PermissionVerdict.UNCOVERED
    assert verdict("Bash", ["Bash"], {"command": command}) is PermissionVerdict.ALLOWED


@pytest.mark.parametrize(
    ("line", "commands"),
    [
        ("git status", ("git status",)),
        ("git status && rm -rf /", ("git status", "rm -rf /")),
        ("echo 'a && b' \"c ; d\"", ("echo 'a && b' \"c ; d\"",)),
        ("make 2>&1 | tee log", ("make 2>&1", "tee log")),
        ("make &> log", ("make &> log",)),
        ("sleep 9 & rm x", ("sleep 9", "rm x")),
        ("echo a\\;b", ("echo a\\;b",)),
        ("  ", ("",)),
        ("echo $(id)", (None,)),
        ("echo 'x", (None,)),
    ],
)
def test_a_shell_line_is_taken_apart_where_a_shell_would(line: str, commands: tuple[str | None, ...]) -> None:
    assert commands_of(line) == commands


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({"command": ["bash", "-lc", "git status && ls"]}, ("git status", "ls")),
        ({"cmd": ["git", "log"]}, ("git log",)),
        ({"file_path": "src/x.py", "content": "y"}, ("src/x.py",)),
        ({"url": "https://a.example/x"}, ("https://a.example/x",)),
        ({"anything": "only text", "n": 5}, ("only text",)),
        ({"a": "1", "b": "2"}, ('{"a":"1","b":"2"}',)),
        ("plain", ("plain",)),
        (MISSING, (MISSING,)),
    ],
)
def test_what_patterns_are_held_against(arguments: Any, parts: tuple[Any, ...]) -> None:
    assert parts_of(arguments) == parts


@pytest.mark.parametrize(
    ("name", "granted", "arguments", "expected"),
    [
        ("mcp__github__list", ["mcp__github__*"], {}, PermissionVerdict.ALLOWED),
        ("mcp__jira__list", ["mcp__github__*"], {}, PermissionVerdict.UNCOVERED),
        ("Read", ["Read(src/**)"], {"file_path": "src/a/b.py"}, PermissionVerdict.ALLOWED),
        ("Read", ["Read(src/**)"], {"file_path": "/etc/passwd"}, PermissionVerdict.UNCOVERED),
        (
            "WebFetch",
            ["WebFetch(domain:example.com)"],
            {"url": "https://docs.example.com/x"},
            PermissionVerdict.ALLOWED,
        ),
        ("WebFetch", ["WebFetch(domain:example.com)"], {"url": "https://notexample.com/"}, PermissionVerdict.UNCOVERED),
        ("Bash", ["Bash(git *)"], MISSING, PermissionVerdict.UNKNOWN),
        ("Bash", ["Bash"], MISSING, PermissionVerdict.ALLOWED),
        ("Bash", ["*"], {}, PermissionVerdict.ALLOWED),
        ("Bash", {"mode": "bypassPermissions"}, {}, PermissionVerdict.ALLOWED),
        ("Bash", {"mode": "bypassPermissions", "deny": ["Bash(rm *)"]}, {"command": "rm x"}, PermissionVerdict.DENIED),
        ("Bash", {"mode": "default", "allowedTools": ["Bash(ls:*)"]}, {"command": "ls -l"}, PermissionVerdict.ALLOWED),
        ("Bash", {"mode": "default", "allowedTools": ["Bash(ls:*)"]}, {"command": "rm x"}, PermissionVerdict.UNKNOWN),
        ("Bash", {"allow": ["Read"], "ask": ["Bash"]}, {"command": "x"}, PermissionVerdict.UNKNOWN),
        (
            "bash",
            [{"permission": "bash", "pattern": "*", "action": "ask"}],
            {"command": "x"},
            PermissionVerdict.UNKNOWN,
        ),
        (
            "bash",
            [{"permission": "bash", "pattern": "*", "action": "deny"}],
            {"command": "x"},
            PermissionVerdict.DENIED,
        ),
        ("bash", {"bash": {"*": "deny", "git *": "allow"}}, {"command": "git log"}, PermissionVerdict.ALLOWED),
        ("bash", {"bash": {"*": "deny", "git *": "allow"}}, {"command": "rm x"}, PermissionVerdict.DENIED),
        ("edit", {"bash": "allow"}, {}, PermissionVerdict.UNKNOWN),
        ("shell", {"approval_policy": "never", "sandbox_policy": {"type": "read-only"}}, {}, PermissionVerdict.UNKNOWN),
        ("x", "standard", {}, PermissionVerdict.UNKNOWN),
        ("x", ["repo:write", "fs:read"], {}, PermissionVerdict.UNKNOWN),
        ("x", {"rights": ["x"]}, {}, PermissionVerdict.UNKNOWN),
        ("x", None, {}, PermissionVerdict.UNKNOWN),
    ],
)
def test_the_forms_that_agents_use(name: str, granted: Any, arguments: Any, expected: PermissionVerdict) -> None:
    assert verdict(name, granted, arguments) is expected


def test_a_tool_of_a_server_goes_by_several_names() -> None:
    for listed in ("list", "mcp__github__list", "github__list", "github.list", "github/list", "mcp__github__*"):
        assert verdict("list", None, {}, [listed], server="github") is PermissionVerdict.ALLOWED
    assert verdict("list", None, {}, ["mcp__jira__list"], server="github") is PermissionVerdict.UNAVAILABLE


def test_a_list_that_need_not_be_whole_reports_nothing() -> None:
    assert verdict("shell", None, {}, ["added"], partial=True) is PermissionVerdict.UNKNOWN
    assert verdict("added", None, {}, ["added"], partial=True) is PermissionVerdict.ALLOWED
    assert verdict("rm", {"deny": ["rm"]}, {}, ["added"], partial=True) is PermissionVerdict.DENIED


def test_a_rule_counts_as_used_where_a_call_needed_it() -> None:
    grant = parse_grant(["Bash(git *)", "Bash(ls:*)", "Read"])
    assert grant is not None
    assert list(rules_used(ToolUse("Bash", None, {"command": "git log | ls"}), grant)) == ["Bash(git *)", "Bash(ls:*)"]


@given(st.text(string.ascii_letters + ":.()/ ", max_size=12), st.text(string.ascii_letters, max_size=4))
def test_what_was_granted_covers_itself_and_what_its_pattern_stands_for(right: str, more: str) -> None:
    assert pattern_matcher(right)(right)
    assert pattern_matcher(right + "*")(right + more)
    assert not pattern_matcher(right)(right + "x" + more)


@given(JSON, JSON)
def test_any_json_can_be_granted_and_any_arguments_given(granted: Any, arguments: Any) -> None:
    assert verdict("tool", granted, arguments, ["tool"]) in PermissionVerdict


TOOL_NAMES = st.text(string.ascii_letters[:4] + "_", min_size=1, max_size=3)
TOOL_PATTERNS = TOOL_NAMES | st.builds(lambda name, mark: name + mark, TOOL_NAMES, st.sampled_from(["*", "?"]))
SUBJECTS = st.sampled_from(["git status", "git", "rm -rf x", "https://a.example/b", "notes.md", "", "git push && rm x"])
SUBJECT_PATTERNS = st.sampled_from(["git:*", "git *", "*", "**", "rm*", "domain:example", "*.md", "?it status", "git"])
TOOL_RULES = TOOL_PATTERNS | st.builds(lambda name, uses: f"{name}({uses})", TOOL_PATTERNS, SUBJECT_PATTERNS)


@given(st.lists(TOOL_RULES, min_size=1, max_size=4), st.lists(TOOL_RULES, max_size=2), TOOL_NAMES, SUBJECTS)
def test_enforcement_and_audit_give_the_same_verdict(
    allow: list[str], deny: list[str], tool: str, command: str
) -> None:
    """Rights that the runtime would enforce, and the grant that an audit reads out of the record."""
    enforced = rights([f"tool:{rule}" for rule in allow], [f"tool:{rule}" for rule in deny])
    arguments = {"command": command}
    subjects = [subject for subject in parts_of(arguments) if isinstance(subject, str)]
    is_allowed = all(enforced.allows(f"tool:{tool}", subject) for subject in subjects)
    verdict = judge(ToolUse(tool, None, arguments), None, parse_grant({"allow": allow, "deny": deny}))
    assert (verdict is PermissionVerdict.ALLOWED) == is_allowed
