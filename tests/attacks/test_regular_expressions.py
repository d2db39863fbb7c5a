"""Texts that make regular expressions run for hours; and the list of all patterns that are not plainly linear.

The large texts below have a million characters, a quarter of it in `make test`: whatever looks at each of them once is
done in a moment, and whatever looks at each once for each other is not done in an hour.
"""

from hashlib import sha256
from pathlib import Path

import pytest

from tests.attacks.pattern_checks import Use, reasons, uses
from tests.sizes import share, sized
from tests.sources import LOAD
from weft.exchange.exporters.html import _text_in
from weft.exchange.exporters.markdown import _escaped_reach, _may_have_diagram
from weft.exchange.file_changes import _patch_in
from weft.exchange.importers.aider import COUNT, HEADER
from weft.exchange.importers.copilot_cli import _title_beside
from weft.exchange.importers.cursor.importer import _attached_paths, unwrapped_prompt
from weft.exchange.importers.gemini_cli import LOGGED
from weft.exchange.importers.opencode.importer import _subagent
from weft.exchange.importers.swe_agent import _fenced, patched_files
from weft.exchange.importing.sources import is_likely
from weft.kernel.authority import pattern_matcher
from weft.ledger.read.session_list import _ANNOUNCED, message_passages, spoken
from weft.ledger.secrets.scan import _breaks, without_escapes
from weft.ledger.views.turns import _FENCE

LETTERS = sized(test=250_000, prove=1_000_000)
DOCSTRINGS = "over single lines of docstrings, by whoever wrote the program"
LINES_ONLY = "`^` lets it begin at a line's beginning alone, and `.` ends with the line"
STRINGS = "a string is possessive, and one without an end is taken, too: each character is read once"
RUNS = "it begins at the first of a run alone (the look behind it), and takes the run as a whole"
SPACES = "`\\S*` ends at a space, and a beginning has one"
COLONS = "what follows a colon holds none, so each stretch between two colons is looked at once"
LINE = "matched with one line: the last `.*` always reaches its end"
OWN = "it reads Weft's own statements, never a foreign text"

ADDRESS = "at most 500 characters are looked at"
RUNS = "blanks and others share no letter, and each run is taken whole"
LINEAR = {
    r'weft.exchange.file_reconstruction: "(\*\*\* Begin Patch(?:[^"\\\n]++|\\.)*+)"': (
        "each letter fits one branch alone, and what was taken is never given back; it begins at fixed words"
    ),
    r"weft.exchange.file_reconstruction: \bgit[ \t]++(?:-\S++[ \t]++)*+(?:am|apply|checkout|cherry-pick|clean|merge|"
    r"pull|rebase|reset|restore|revert|stash|switch)\b": "what was taken is never given back; it begins at one word",
    r"weft.programs.triggers: \$\{((?:trigger|time|payload|sessions)(?:\.[\w-]+)*)\}": (
        "each name begins with a full stop, which none contains: there is one way to divide them"
    ),
    r'weft.exchange.exporters.html:  (?:href|title)="([^"]*)"': (
        "what begins within the quotes cannot get past the one that ends them"
    ),
    r"weft.ledger.read.session_list: ^# AGENTS\.md instructions[^\n]*\n\s*\Z": (
        "over at most LONGEST_HEADING_CHARS characters"
    ),
    r"weft.ledger.read.session_list: ^[^\S\n]*<([A-Za-z][\w:-]{0,60})(?:[^\S\n][^<>\n]{0,300})?>": LINES_ONLY,
    r"weft.exchange.exporters.markdown:  {0,3}(`{3,}|~{3,})(.*)": LINE,
    r"weft.kernel.message_text: [^\n\r]*+(?:\r\n?|\n)?": "it fits wherever it is tried, and takes the whole line",
    r"weft.runtime.tools.shell: [A-Za-z_]\w*(\.[A-Za-z_]\w*)*": "a dot parts what repeats, and no letter is one",
    r"""weft.kernel.permission_subjects: (['"])(.*?)\1""": "over words whose quotes end: each character is read once",
    r"weft.runtime.sandbox.command_runner: bwrap: execvp (.*): ([ -9;-~]*)\n": COLONS,
    r"weft.runtime.sandbox.command_runner: (.*): ([ -9;-~]*)\n": COLONS,
    r'weft.runtime.sandbox.git_settings: \s*\[\s*([A-Za-z0-9.-]+)(?:\s+"((?:[^"\\\n]|\\[^\n])*)")?\s*\]': (
        "behind a run of blanks stands a letter, a quote or a bracket: it is tried once for each"
    ),
    r"weft.programs.triggers: \$\{[^{}]*\}": "a run ends at the next brace, and nothing begins before that",
    r"weft.runtime.tool.tool_contract: ^\s*:param\s+(?:[^:]*\s)?(\w+):\s*(.*)$": DOCSTRINGS,
    r"weft.runtime.tool.tool_contract: ^\s+\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.*)$": DOCSTRINGS,
    r"weft.surfaces.program_handles: \A\s*```[\w-]*\n(.*)\n```\s*\Z": (
        "it goes back once over the text, and the blanks behind each fence are looked at once"
    ),
    r"weft.runtime.tools.mcp_server_settings: (?m)^[ \t]*registry[ \t]*=[ \t]*(\S+)[ \t]*$": LINES_ONLY,
    r"weft.runtime.assembly.summaries: (:[0-9]+)+$": "over words of at most LONGEST_TERM_CHARACTERS characters",
    r"weft.runtime.assembly.summaries: [A-Za-z][a-z0-9]*([A-Z][a-z0-9]+)+": (
        "over words of at most LONGEST_TERM_CHARACTERS characters"
    ),
    r"weft.runtime.assembly.summaries: \b(decid\w+|decision|agreed|must|never|always|do not|don't|instead of|because"
    r"|todo|fixme|open question|remember|important|deadline|prefer\w*|requirement)\b": (
        "each word is begun once, at its beginning, and a run of letters ends it"
    ),
    r"weft.runtime.inference.dialects.server_answers: (prompt|input|request|messages?) (is|are) too long\b|"
    r"exceeds? (the )?(available |maximum |model'?s? )?context|context (length|window|size|limit).{0,40}\bexceed|"
    r"exceed\w* .{0,20}"
    r"context (length|window|size|limit)|maximum context length|token count.{0,30} exceeds|"
    r"too many (input |prompt )?tokens|reduce the length of "
    r"the (messages|prompt)|request (is )?too large|request exceeds the maximum size": (
        "over at most _LONGEST characters of what a provider says"
    ),
    r"weft.exchange.importers.aider: # aider chat started at (.*\S|.)\s*": (
        "`.*` gives back until `\\S` fits: the rest is white space then, and fits"
    ),
    r"weft.exchange.importers.aider: (?:Main model|Models?): (\S+?)(?: with ([\w-]+) edit format)?(?:,.*)?": (
        "`\\S+?` stops at the first space, where ` with` is tried once, and at a comma the rest fits"
    ),
    r"weft.exchange.importers.aider: Git repo: (.+?)(?: with [\d,]+ files)?": (
        "each ` with ` is tried once, and the digits behind it end before the next one"
    ),
    r"weft.exchange.importers.aider: (?<![\d.,])([\d.,]++[kM]?) (received|cache write|cache hit)": RUNS,
    r"weft.exchange.importers.aider: \^C.*|.*KeyboardInterrupt.*": LINE,
    r'weft.exchange.importers.claude_ai: [,\[]\s*(\{\s*"uuid"\s*:\s*"[^"]*"\s*,\s*"name"\s*:)': (
        'what begins within `[^"]*` cannot get past the quote that ends it'
    ),
    r"weft.exchange.importers.copilot_cli: ^(?:summary|name|title):(.+)$": LINES_ONLY,
    r"weft.exchange.importers.cursor.bubbles: [^a-z]|_v\d+$": "`[^a-z]` takes every `_` before `_v` is tried",
    r"weft.exchange.importers.cursor.importer: ^Workspace Path: (.+)$": LINES_ONLY,
    r"weft.exchange.importers.cursor.importer: CREATE TABLE\s+\S*blobs": SPACES,
    r"weft.exchange.importers.cursor.importer: CREATE TABLE\s+\S*meta\b": SPACES,
    r"weft.exchange.importers.cursor.importer: (user|assistant|A):(?:[ \t](.*))?"
    r"|\[(Thinking|Tool call|Tool result)\][ \t]*(.*)": "`(.*)` always reaches the end",
    r'weft.exchange.importers.foreign_files: "[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{},:]|"': (
        "the walk stops at a string without an end, and reads more of the file before it goes on"
    ),
    r'weft.exchange.importers.foreign_files: "[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}]|"': (
        "the walk stops at a string without an end, and reads more of the file before it goes on"
    ),
    r'weft.exchange.importers.gemini_cli: \s*\[\s*\{(?>[^{}]*?"sessionId"\s*:)[^{}]*"messageId"\s*:': (
        "the first `sessionId` is taken and not given back"
    ),
    r"weft.exchange.importers.gemini_cli_turns: \s*(?:<scratchpad>.*?</scratchpad>\s*)?<state_snapshot>": (
        "each `</scratchpad>` is tried once, and the white space behind it ends before the next one"
    ),
    r"weft.exchange.importers.pi_turns: (?P<path>.+?):(?P<line>[0-9]{1,9}):(?P<col>[0-9]{1,9}) "
    r"\[(?P<severity>[a-z]+)\] (?:\[(?P<source>[^\]]+)\] )?(?P<what>.*)": "once the severity fits, the rest does",
    r"weft.exchange.importers.native_turns: ^\*\*\* (?:(?:Add|Update|Delete) File|Move to): (.+)$": LINES_ONLY,
    r'weft.exchange.importers.swe_agent: ^(?:(\+\+\+ "?b/)|rename to )(.+)$': LINES_ONLY,
    r'weft.kernel.contents: "[^"\\]*+(?:\\.[^"\\]*+)*+"': "its texts are JSON: every string has an end",
    r'weft.kernel.contents: "[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{},:]|[^\s\[\]{},:"]+': STRINGS,
    r'weft.kernel.foreign_input: "[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{,]': STRINGS,
    r'weft.kernel.foreign_input: "[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z)': STRINGS,
    "weft.kernel.errors: (--?(?:pass|password|passwd|passphrase|pwd|secret|token|api[_-]?key|client_key|server_key)[ =]+)[^\\s'\\\"]+": "what may stand behind the sign of equality fits at once, or nothing does",  # noqa: E501
    "weft.store.postgres.migrations: (?:^|;)\\s*(CREATE|DROP)\\s+(?:OR\\s+REPLACE\\s+)?(?:UNIQUE\\s+)?(TABLE|INDEX|VIEW|SEQUENCE|FUNCTION)\\s+(?:IF\\s+(?:NOT\\s+)?EXISTS\\s+)?(\\w+)": OWN,  # noqa: E501
    "weft.store.sqlite.connection: (?P<blank>\\s+|--[^\\n]*|/\\*.*?\\*/)|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|\\[[^\\]]*\\]|`[^`]*`|\\w+|.": "SQLite parsed the schema before: quotes and comments have an end",  # noqa: E501
    r"weft.ledger.read.revisions: @\{([^}]*)\}$": "a name that the caller types",
    r'weft.ledger.read.search_matches: "([^"]*)(?:"|$)|([^\s"]+)': "what a quote begins ends at one or with the text",
    r"weft.ledger.secrets.scan: (?<!\\)\\++[nrt]": RUNS,
    r"weft.ledger.secrets.scan: (?<!\\)\\++u(00[0-7][0-9A-Fa-f])": RUNS,
    r"weft.runtime.tools.shell: [@+!?*]\([^()\s]*\)|&&|\|\||<\(|\$\(|[;&|\n()`]|>>?|<<?|"
    r"(?<![^\s;&|()])(?:\{(?=\s)|\}(?![^\s;&|()]))": "no parenthesis in the first: each stretch is looked at once",
    r'weft.ledger.secrets.scan: (?<!\\)\\++(["/])': RUNS,
    r'weft.ledger.secrets.scan: (?<!\\)\\++[nrt"/]': RUNS,
    r"weft.ledger.secrets.scan: (?<!\\)\\++[nrt]|\s+": RUNS,
    r"weft.ledger.views.turns: ^(?P<fence>`{3,}+|~{3,}+)[ \t]*+(?P<info>[^\n`]*+)\n(?P<code>.*?)"
    r"(?:^(?P=fence)[`~]*+[ \t]*+$|\Z)": "a fence without an end takes all; each line is compared once",
    r"weft.runtime.inference.dialects.dialect_port: data:([\w.+-]+/[\w.+-]+)?(?:;[\w=-]+)*?(;base64)?,(.*)": (
        "`;` and `/` divide the repeats, and are in none of them"
    ),
    r"weft.ledger.read.sessions: (?:[^/@:\s]+@)([^/:@\s]+):/*(\S+)": ADDRESS,
    r"weft.ledger.read.sessions: (?:[a-z][a-z0-9+.-]*://)(?:[^/@\s]*@)?([^/:@\s]+)(?::\d+)?/+(\S+)": ADDRESS,
    r"weft.ledger.secrets.scan: _?[a-z]+(?:_[a-z]+){2,}_?": "`_` divides the words, and is in none of them",
    r"weft.surfaces.cli.reading.search: \s+|\S+": RUNS,
    r"weft.surfaces.plain_text: \s+|\S+": RUNS,
    r"weft.surfaces.cli.trust: (\w+)\s*=\s*(.+)": "`=` divides them; one letter is enough for the last",
    r"""weft.store.postgres.connection: ('[^']*'|"[^"]*")""": OWN,
    r"weft.store.postgres.migrations: --[^\n]*|\bWITHOUT ROWID\b|\bINTEGER\b|\bBLOB\b|\bTEXT\b": OWN,
    r"weft.surfaces.cli.transcript: (?:(?:Script \w+|Chunk ID|Wall time|Process exited|Exit code|"
    r"Original token count|Total output lines)\b[^\n]*\n+)+Output:\n*": (
        "a round begins with a word at a line's beginning; line ends that are given back begin none"
    ),
    r'weft.surfaces.cli.transcript: \bcmd"?\s*:\s*("(?:[^"\\\n]|\\.)*")': (
        "what begins within a string needs a quote that ends it"
    ),
}
"""Patterns that are suspect by their structure, and why each is linear all the same."""

MADE = {
    "weft.chat.room_stream: '\\n' + between": "each letter of a line is read once, possessively",
    "weft.exchange.bundles.creation: f'{field}\\\\[(\\\\d+)\\\\]'": "a word of Weft's own and digits",
    "weft.exchange.bundles.creation: expression": "that of whoever makes the bundle, over their own ledger",
    "weft.exchange.exporters.markdown: f'{letter}+'": "one run of one character",
    "weft.kernel.authority: '.'.join(words)": "a part of a grant between two stars: it has no repeats",
    "weft.kernel.message_text: re.sub('[SMU]', lambda letter: inside[letter[0]], form)": "classes without an overlap",
    "weft.ledger.secrets.scan: expression": (
        "from the table in the same module: each begins with a word of its own; repeats are bounded or possessive"
    ),
    "weft.kernel.permission_subjects: '|'.join((f\"({'|'.join(of_runner)})\" for of_runner in patterns.values()))": (
        "from a table of names in the same module"
    ),
    "weft.ledger.secrets.scan: pattern.encode()": "from a table whose patterns have a test of their own",
    "weft.programs.program_changes: f'^(?:{pattern})$'": "numbers and words of YAML, from a table in the same module",
    "weft.runtime.sandbox.git_settings: pattern": (
        "from the table in the same module: each has one run of one class, or two with a colon between"
    ),
    "weft.surfaces.mcp.client_settings: f'^{header}\\\\]'": (
        "a table's header: runs of blanks with a word or a sign between, over a person's own settings"
    ),
    "weft.surfaces.mcp.client_settings: f'{header}\\\\.'": "the same, at one place",
    "weft.surfaces.cli.chat.models: vendor.names": "from the table of vendors; over a name that the caller types",
}
"""Patterns that are put together when they are used, and of what."""


@LOAD
@pytest.mark.slow("imports every module that has a pattern, the model layer among them")
def test_every_pattern_of_the_package_is_linear_by_its_structure_or_for_a_reason_that_is_written_down() -> None:
    found, made = uses()
    assert len(found) > 150
    assert {use.name for use in found if reasons(use)} == LINEAR.keys()
    assert set(made) == MADE.keys()


@pytest.mark.parametrize(
    ("pattern", "is_searched", "why"),
    [
        (r"(a+)+b", False, {"nested"}),
        (r"(?:a*b?)*c", False, {"nested"}),
        (r"\s*\n\s*<", False, {"adjacent"}),
        (r".*a.*b", False, {"adjacent"}),
        (r"\d+x?\d+y", False, {"adjacent"}),
        (r"\s+$", True, {"restarted"}),
        (r"<!--.*?-->", True, {"restarted"}),
        (r"\s+$", False, set()),
        (r"\d+[a-z]+\d+!", False, set()),
        (r"a[^a]*b", True, set()),
        (r"(?:a++b)*+c", False, set()),
        (r"\w+", True, set()),
    ],
)
def test_the_check_knows_a_suspect(pattern: str, is_searched: bool, why: set[str]) -> None:
    assert reasons(Use("here", pattern, 0, is_searched)) == why


def test_a_message_of_line_ends_has_a_title_at_once() -> None:
    assert _ANNOUNCED.match("words:" + "\n" * LETTERS + "x") is None
    assert spoken("words:" + "\n" * LETTERS + "x") == "words:"


def test_a_grant_of_stars_is_compared_at_once() -> None:
    assert not pattern_matcher("*a" * 100 + "b")("a" * LETTERS)
    assert pattern_matcher("*a" * 100)("a" * LETTERS)


@pytest.mark.parametrize(
    "text", ["```" + " " * LETTERS + "`", "`" * LETTERS, "~~~" + "\n~~" * LETTERS, "```\n" * 300_000]
)
def test_fences_are_found_at_once(text: str) -> None:
    assert sum(1 for _ in _FENCE.finditer(text)) <= 150_000


@pytest.mark.slow("looks at each letter of a large text")
@pytest.mark.parametrize("text", share(["```" * 300_000, "~~~ d" * 200_000, "dot " * 250_000 + "```"], test=1))
def test_diagrams_are_looked_for_once(text: str) -> None:
    assert not _may_have_diagram(text)
    assert _may_have_diagram(f"{text}\n~~~ {{.mermaid}}")


@pytest.mark.parametrize(
    "text",
    share(
        ["<system-reminder>\n" * 50_000, "# AGENTS.md instructions\n" * 40_000, "\n<a " * 200_000, " " * LETTERS],
        test=2,
    ),
)
def test_passages_of_a_tool_are_looked_for_once(text: str) -> None:
    assert [passage.text for passage in message_passages(text)] == [text]


def test_tags_are_taken_away_at_once() -> None:
    assert _text_in("<" * LETTERS) == "<" * LETTERS
    assert _text_in('<a href="x" title="y">z</a>') == "x yz"


def test_runs_of_backslashes_are_read_once() -> None:
    assert without_escapes(b"\\" * LETTERS + b"x") == b"\\" * LETTERS + b"x"
    assert _breaks.sub(b"", b"\\" * LETTERS + b"x") == b"\\" * LETTERS + b"x"
    assert without_escapes(b'a\\\\nb\\"c\\/d\\x') == b'a\nb"c/d\\x'


def test_quoted_patches_without_an_end_are_read_once() -> None:
    assert list(_patch_in('"*** Begin Patch' + '\\"*** Begin Patch' * 60_000)) == []
    changes = _patch_in('run("*** Begin Patch\\n*** Add File: a\\n+\\"b\\"\\n*** End Patch") or ("*** Begin Patch\n')
    assert [(change.path, change.lines) for change in changes if change.path] == [("a", ['+"b"'])]


@pytest.mark.slow("looks at each letter of a large text")
@pytest.mark.parametrize(
    "line", share(["`" * LETTERS + "<b>", "".join("`" * i + "<b>" for i in range(1, 1400)), "`<b>" * 250_000], test=1)
)
def test_code_in_a_line_is_found_at_once(line: str) -> None:
    assert len(_escaped_reach(line)) >= len(line)


def test_code_is_what_stands_between_equally_many_backticks() -> None:
    assert _escaped_reach("a `<b>` <i> ``<b>`<b>`` <i>") == "a `<b>` \\<i> ``<b>`<b>`` \\<i>"
    assert _escaped_reach("``<b>` <i>") == "``\\<b>` \\<i>"


def test_lines_of_aider_are_read_once() -> None:
    assert HEADER.fullmatch("# aider chat started at " + " " * LETTERS + "x") is not None
    assert HEADER.fullmatch("# aider chat started at 2024-01-01 ")[1] == "2024-01-01"  # type: ignore[index]
    assert COUNT.findall("1" * LETTERS) == []
    assert COUNT.findall("1.2k received, 3 cache hit") == [("1.2k", "received"), ("3", "cache hit")]


@pytest.mark.parametrize(
    ("yaml", "title"),
    [
        (b"name: " + b" " * 60_000 + b"x" + b" " * 60_000, "x"),
        (b"id: 1\nname:   'A title' \r\n", "A title"),
        (b'summary: "It"s"\n', 'It"s'),
        (b"name: plain 'words'\nsummary: other\n", "plain 'words'"),
        (b"title: |-\n  more\n", None),
    ],
)
def test_a_title_beside_a_session_is_read_once(tmp_path: Path, yaml: bytes, title: str | None) -> None:
    (tmp_path / "workspace.yaml").write_bytes(yaml)
    assert _title_beside(tmp_path / "events.jsonl") == title


@pytest.mark.slow("reads four texts of up to 400,000 letters")
def test_tags_of_prompts_without_an_end_are_read_once() -> None:
    for text in (
        "<user_query>" * 30_000,
        "<a>" * 100_000,
        "".join(f"<a{i}>" for i in range(50_000)),
        "<a <a" * 10_000,
    ):
        assert unwrapped_prompt(text).words == text
    assert _attached_paths('<file path="x"' * 20_000) == []
    assert _attached_paths('<file path="a/b.py">\n<code_selection path="c" lines="1">') == ["a/b.py", "c"]


def test_what_stands_between_tags_is_told_apart() -> None:
    prompt = unwrapped_prompt("<info a=1>\nfirst\n</info>\n<user_query>\nDo it \n</user_query> <b>rest")
    assert prompt.words == "Do it "
    assert prompt.context == {"info": ["first"], "text": ["<b>rest"]}


def test_logged_prompts_are_recognised_at_once() -> None:
    assert LOGGED.match(b'[{"a":1,' + b'"sessionId":1,' * 70_000) is None
    assert LOGGED.match(b'[ {"sessionId": "a", "sessionId": "b", "messageId": 0') is not None


def test_titles_of_subagents_are_read_once() -> None:
    assert _subagent("x" + " (@" * 300_000 + "x") == (None, None)
    assert _subagent("A task (@explore subagent)") == ("A task", "explore")
    assert _subagent("(@explore subagent)") == (None, None)


def test_names_of_files_are_looked_at_once() -> None:
    assert not is_likely(Path("/agent-transcripts/" * 50_000 + "x"))
    assert is_likely(Path("/home/.cursor/projects/a/agent-transcripts/b/c.txt"))
    assert is_likely(Path("exports/cursor_a.md"))
    assert not is_likely(Path("exports/a_cursor.md"))


def test_fenced_commands_are_found_at_once() -> None:
    assert list(_fenced("```bash\n x```bash" * 60_000)) == []
    assert list(_fenced("```bash" + "\n" * LETTERS)) == []
    assert list(_fenced("a\n```bash\n\n ls -l\n\n```\nb\n```bash\nid\n```")) == [" ls -l\n", "id"]
    assert list(_fenced("```bash\n\n```")) == [""]
    assert list(_fenced("```bash x\nid\n```")) == []


def test_paths_of_a_patch_are_read_once() -> None:
    assert [note.path for note in patched_files('+++ "b/a b.py"  \nrename to c"\n+++ b/d.py\n+++ /dev/null')] == [
        "a b.py",
        'c"',
        "d.py",
    ]
    (note,) = patched_files("+++ b/" + " " * LETTERS + "x")
    assert sha256((note.path or "").encode()).hexdigest() == sha256(b" " * LETTERS + b"x").hexdigest()
