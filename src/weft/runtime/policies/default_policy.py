"""The approval policy that is in force where no other one is.

Reading in the workspace and a few commands that change nothing are allowed. Writing, other commands, the network and
tools of MCP servers are asked about. What plainly destroys, or plants what later runs outside the sandbox, is refused.

ALLOW lists uses of tools that are allowed beside that, as NAME or NAME(PATTERN): `shell(make test)`, `write(docs/*)`.
`*` stands for any characters; `WORDS *` is also the command WORDS alone. A call is allowed where each thing that it is
used on fits a line. A refusal and a question about what strangers may have asked for are not overruled by it.

The call comes as one JSON document on standard input, the decision goes as one to standard output.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

ALLOW = [
    "shell(cat *)",
    "shell(date)",
    "shell(git branch)",
    "shell(git diff *)",
    "shell(git log *)",
    "shell(git show *)",
    "shell(git status *)",
    "shell(grep *)",
    "shell(head *)",
    "shell(ls *)",
    "shell(pwd)",
    "shell(tail *)",
    "shell(true)",
    "shell(wc *)",
]

READING = ("read", "list", "glob", "grep", "todo")
WRITING = ("write", "edit")
NETWORK = ("fetch_url",)
SECRET_FILES = re.compile(
    r"(^|[/\s'\"=])(\.env(\.[^/\s]*)?|\.netrc|\.npmrc|\.pypirc|\.git-credentials|credentials(\.[a-z]+)?|id_(rsa|dsa|ecdsa|ed25519)"
    r"|[^/\s]*\.(pem|key|p12|pfx|kdbx))(?=$|[\s'\"])",
    re.I,
)
PLANTED_FILES = re.compile(r"(^|/)\.(git|weft|hg|svn)(/|$)")
"""What is written there runs later, or is the record itself."""
GIT_PROGRAMS = re.compile(r"git .*--(ou|ext|textc)")
"""Options with which git writes files or runs programs, also where they are shortened."""
DESTRUCTIVE = re.compile(
    r"(sudo|doas|su)( .*)?|(mkfs|shutdown|reboot|halt|poweroff)([. ].*)?"
    r"|rm( -[A-Za-z]+| --[a-z-]+)* (--no-preserve-root.*|/\*?|~/?\*?|\.\.?/?|\*|\.git/?)"
    r"|dd( .*)? of=/dev/.*|>+ /dev/(sd|nvme|hd|vd).*|(chmod|chown)( .*)? -[A-Za-z]*R[A-Za-z]*( .*)? /"
    r"|git push( .*)? (--mirror|--delete)( .*)?",
    re.S,
)


def decide(name: str, subjects: list[str] | None, context: dict[str, Any]) -> tuple[str, str]:
    """The decision about a use of a tool, and why."""
    refusal = refused(name, subjects or [])
    if refusal is not None:
        return "deny_continue", refusal
    if name in NETWORK and context.get("is_untrusted"):
        return "ask", "words of strangers are in the context, and this tool reaches the network"
    if name in READING:
        secrets = [subject for subject in subjects or [] if SECRET_FILES.search(subject)]
        return ("ask", f"{secrets[0]} may hold secrets") if secrets else ("allow", "it changes nothing")
    if subjects is None:
        return "ask", "what would run is known only when it runs"
    if is_listed(name, subjects):
        return "allow", "its uses are listed as allowed"
    return "ask", "nothing lists it as allowed"


def refused(name: str, subjects: list[str]) -> str | None:
    """Why a use is refused whatever is listed; None where it is not."""
    for subject in subjects:
        if name in WRITING and PLANTED_FILES.search(subject):
            return f"{subject} belongs to version control or to the record: what is written there runs elsewhere"
        if name == "shell" and DESTRUCTIVE.fullmatch(subject):
            return "the command destroys what nobody can bring back, or asks for more rights"
    return None


def is_listed(name: str, subjects: list[str]) -> bool:
    """Whether a line of ALLOW fits each thing that the tool is used on."""
    if name in ALLOW:
        return True
    return bool(subjects) and all(any(fits(line, name, subject) for line in ALLOW) for subject in subjects)


def fits(line: str, name: str, subject: str) -> bool:
    """Whether NAME(PATTERN) is about this use."""
    tool, bracket, rest = line.partition("(")
    if tool != name or not bracket or not rest.endswith(")"):
        return False
    pattern = rest[:-1]
    if subject == pattern or (pattern.endswith(" *") and subject == pattern[:-2]):
        return True
    if name == "shell" and (GIT_PROGRAMS.match(subject) or SECRET_FILES.search(subject)):
        return False  # only a line that names it exactly is about this
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), subject, re.S) is not None


TESTS = [
    {
        "name": "a file of the workspace is read",
        "call": {"name": "read", "arguments": {"path": "src/a.py"}, "context": {"subjects": ["src/a.py"]}},
        "decision": "allow",
    },
    {
        "name": "a file of secrets is asked about",
        "call": {"name": "read", "arguments": {"path": ".env"}, "context": {"subjects": [".env"]}},
        "decision": "ask",
    },
    {
        "name": "a change of a file is asked about",
        "call": {"name": "edit", "arguments": {"path": "src/a.py"}, "context": {"subjects": ["src/a.py"]}},
        "decision": "ask",
    },
    {
        "name": "no hook is planted",
        "call": {"name": "write", "arguments": {}, "context": {"subjects": [".git/hooks/pre-commit"]}},
        "decision": "deny_continue",
    },
    {
        "name": "looking around is allowed",
        "call": {
            "name": "shell",
            "arguments": {"cmd": "ls && git status"},
            "context": {"subjects": ["ls", "git status"]},
        },
        "decision": "allow",
    },
    {
        "name": "one harmless command does not cover another",
        "call": {"name": "shell", "arguments": {}, "context": {"subjects": ["ls", "make"]}},
        "decision": "ask",
    },
    {
        "name": "a file that a harmless command would write is asked about",
        "call": {"name": "shell", "arguments": {}, "context": {"subjects": ["cat a", "> b"]}},
        "decision": "ask",
    },
    {
        "name": "git does not write by an option",
        "call": {"name": "shell", "arguments": {}, "context": {"subjects": ["git diff --output=a"]}},
        "decision": "ask",
    },
    {
        "name": "secrets are not shown by a harmless command",
        "call": {"name": "shell", "arguments": {}, "context": {"subjects": ["cat config/.env"]}},
        "decision": "ask",
    },
    {
        "name": "what only the shell knows is asked about",
        "call": {"name": "shell", "arguments": {"cmd": "$(cat a)"}, "context": {"subjects": None}},
        "decision": "ask",
    },
    {
        "name": "everything is not removed",
        "call": {"name": "shell", "arguments": {"cmd": "rm -rf /"}, "context": {"subjects": ["rm -rf /"]}},
        "decision": "deny_continue",
    },
    {
        "name": "a page is asked about",
        "call": {"name": "fetch_url", "arguments": {}, "context": {"subjects": ["https://example.org/"]}},
        "decision": "ask",
    },
    {
        "name": "the tool of an MCP server is asked about, also where it says that it only reads",
        "call": {"name": "github/list_issues", "arguments": {}, "context": {"subjects": [], "read_only": True}},
        "decision": "ask",
    },
]


def main() -> None:
    call = json.load(sys.stdin)
    context = call["context"]
    decision, rationale = decide(call["name"], context["subjects"], context)
    sys.stdout.write(json.dumps({"decision": decision, "rationale": rationale[:1000]}))


if __name__ == "__main__":
    main()
