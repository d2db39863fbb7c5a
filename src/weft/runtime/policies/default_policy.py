"""The approval policy that is in force where no other one is.

Reading in the workspace, a few commands that change nothing, and workers are allowed: what these call is decided on
by itself. In a folder that a person trusts for work, so are changes of files and commands that stay in the sandbox and
can be taken back. Other writing and commands, the network and tools of MCP servers are asked about. What plainly
destroys, or plants what later runs outside the sandbox, is refused.

ALLOW lists uses of tools that are allowed beside that, as NAME or NAME(PATTERN): `shell(make test)`, `write(docs/*)`.
`*` stands for any characters; `WORDS *` is also the command WORDS alone. A call is allowed where each thing that it is
used on fits a line. A refusal and a question about what strangers may have asked for are not overruled by it.

The call comes as one JSON document on standard input, the decision goes as one to standard output.
"""

from __future__ import annotations

import json
import sys

ALLOW = [
    "await_workers",
    "message_worker",
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
    "spawn",
]

READING = ("read", "list", "glob", "grep", "todo")
WRITING = ("write", "edit")
NETWORK = ("fetch_url",)
SECRET_NAMES = (
    *(
        ".env",
        ".env~",
        ".envrc",
        ".envrc~",
        ".netrc",
        "_netrc",
        ".npmrc",
        ".yarnrc.yml",
        ".pypirc",
        ".pgpass",
        ".git-credentials",
    ),
    *("credentials", "credentials.json"),
)
SECRET_BEGINNINGS = (".env.", ".env-", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519")
SECRET_ENDINGS = (".pem", ".key", ".p12", ".pfx", ".kdbx", ".tfstate", ".tfstate.backup")
SECRET_PATHS = (".docker/config.json", ".config/gh/hosts.yml", ".kube/config")
"""Names that say nothing by themselves, with the folder that they lie in."""
PLANTED_FOLDERS = (".git", ".weft", ".hg", ".svn", ".jj", ".sl", ".bzr", "_darcs")
"""What is written there runs later, or is the record itself; in small letters."""
GIT_PROGRAMS = ("--ou", "--ext", "--textc", "--no-i")
"""Options with which git writes files, runs programs or reads whole folders, also where they are shortened."""
GREP_FOLDERS = ("--r", "--der", "--di")
"""Options with which grep reads whole folders, also where they are shortened."""
SOURCE_ENDINGS = set(
    "c cc cpp cs css go h hpp html java js jsx kt md php py pyi rb rs rst scss sql swift ts tsx".split()
)
BETWEEN_PATHS = "=:,()'\""
"""What stands between the paths of one word: `HEAD:.env`, `--file=.env`."""
DESTRUCTIVE = ("sudo", "doas", "su", "shutdown", "reboot", "halt", "poweroff", "mkfs")
EVERYTHING = ("/", "/*", "~", "~/", "~/*", ".", "./", "..", "../", "*", "./*", ".git", ".git/")
DISKS = ("/dev/sd", "/dev/nvme", "/dev/hd", "/dev/vd", "/dev/mem")


def decide(name: str, subjects: list[str] | None, context: dict[str, object]) -> tuple[str, str]:
    """The decision about a use of a tool, and why."""
    refusal = refused(name, subjects or [])
    if refusal is not None:
        return "deny_continue", refusal
    if name in NETWORK and context.get("is_untrusted"):
        return "ask", "words of strangers are in the context, and this tool reaches the network"
    hidden = context.get("hidden")
    hidden = hidden if isinstance(hidden, list) else []
    secrets = [subject for subject in subjects or [] if subject in hidden or is_secret(subject)]
    if name in READING:
        return ("ask", f"{secrets[0]} may hold secrets") if secrets else ("allow", "it changes nothing")
    if context.get("is_contained") and not (name in WRITING and secrets):
        return "allow", "it stays inside the sandbox of a folder that is trusted for work"
    if subjects is not None and is_listed(name, subjects):
        return "allow", "its uses are listed as allowed"
    return "ask", "; ".join(filter(None, [question(name, subjects), str(context.get("not_contained") or "")]))


def question(name: str, subjects: list[str] | None) -> str:
    """Why a person is asked."""
    if subjects is None:
        return "what would run is known only when it runs"
    shows_secrets = name == "shell" and any(map(may_show_secrets, subjects))
    return "it may show secrets" if shows_secrets else "no rule of the policy allows it"


def refused(name: str, subjects: list[str]) -> str | None:
    """Why a use is refused whatever is listed; None where it is not."""
    for subject in subjects:
        if name in WRITING and set(PLANTED_FOLDERS) & set(subject.lower().split("/")):
            return f"{subject} belongs to version control or to the record: what is written there runs elsewhere"
        if name == "shell" and is_destructive(subject):
            return "the command destroys what nobody can bring back, or asks for more rights"
    return None


def is_destructive(command: str) -> bool:
    """Whether a simple command takes all of something away, or asks for more rights."""
    words = [word.strip("'\"") for word in command.split()] or [""]
    program, options = words[0], [word for word in words if word.startswith("-")]
    if program == "rm":
        return "--no-preserve-root" in options or any(word in EVERYTHING for word in words)
    if program in ("chmod", "chown"):
        return "/" in words and any("R" in option for option in options)
    if program == "dd" or program.startswith(">"):
        return any(word.removeprefix("of=").startswith(DISKS) for word in words)
    return program.partition(".")[0] in DESTRUCTIVE


def is_secret(subject: str) -> bool:
    """Whether a path, or a word of a command, is that of a file which commonly holds secrets."""
    for sign in BETWEEN_PATHS:
        subject = subject.replace(sign, " ")
    for word in subject.lower().split():
        file = word.rpartition("/")[2]
        if file.startswith("-") and file[2:] in SECRET_NAMES:  # `-f.env`
            return True
        if file in SECRET_NAMES or file.startswith(SECRET_BEGINNINGS) or file.endswith(SECRET_ENDINGS):
            return True
        if any(f"/{word}".endswith(f"/{path}") for path in SECRET_PATHS):
            return True
    return False


def may_show_secrets(command: str) -> bool:
    """Whether a command names a file of secrets, or reads files that it does not name and that may be such."""
    words = [word.strip("'\"") for word in command.split()] or [""]
    if words[0] == "grep" and any(map(reads_folders, words)):
        return not is_limited(words)
    if words[0] == "git" and any(set("*?[") & set(word) and not word.startswith("-") for word in words):
        return True  # a pattern of paths, which git expands
    return is_secret(command)


def reads_folders(option: str) -> bool:
    if option.startswith("--"):
        return option.startswith(GREP_FOLDERS)
    return option.startswith("-") and bool(set("rRd") & set(option))


def is_limited(words: list[str]) -> bool:
    """Whether grep reads only source files: `--include=*.py`."""
    endings = [word.removeprefix("--include=*.") for word in words if word.startswith("--inc")]
    return bool(endings) and set(endings) <= SOURCE_ENDINGS and not any(map(is_secret, words))


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
    words = subject.split()
    if name == "shell" and (may_show_secrets(subject) or (words[0] == "git" and any(map(is_git_program, words)))):
        return False  # only a line that names it exactly is about this
    return matches(pattern, subject)


def is_git_program(word: str) -> bool:
    return word.strip("'\"").startswith(GIT_PROGRAMS)


def matches(pattern: str, text: str) -> bool:
    """Whether a whole text fits; `*` stands for any characters."""
    first, *others = pattern.split("*")
    if not others:
        return text == pattern
    *middle, last = others
    place, end = len(first), len(text) - len(last)
    if not text.startswith(first) or not text.endswith(last):
        return False
    for piece in middle:
        place = text.find(piece, place, end) + len(piece)
        if place < len(piece):
            return False
    return place <= end


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
        "name": "a file that is hidden from commands is asked about, whatever its name",
        "call": {"name": "read", "arguments": {}, "context": {"subjects": ["docker/a"], "hidden": ["docker/a"]}},
        "decision": "ask",
    },
    {
        "name": "a change of a file is asked about",
        "call": {"name": "edit", "arguments": {"path": "src/a.py"}, "context": {"subjects": ["src/a.py"]}},
        "decision": "ask",
    },
    {
        "name": "in a folder that is trusted for work, what stays in the sandbox is allowed",
        "call": {
            "name": "shell",
            "arguments": {"cmd": "make $(cat a)"},
            "context": {"subjects": None, "is_contained": True, "is_untrusted": True},
        },
        "decision": "allow",
    },
    {
        "name": "what leaves it there is asked about",
        "call": {
            "name": "shell",
            "arguments": {"cmd": "make"},
            "context": {"subjects": ["make"], "not_contained": "it leaves the sandbox"},
        },
        "decision": "ask",
    },
    {
        "name": "a file of secrets is not changed there unasked",
        "call": {"name": "write", "arguments": {}, "context": {"subjects": [".env"], "is_contained": True}},
        "decision": "ask",
    },
    {
        "name": "nor is one that is hidden from commands, whatever its name",
        "call": {
            "name": "edit",
            "arguments": {},
            "context": {"subjects": ["docker/a"], "hidden": ["docker/a"], "is_contained": True},
        },
        "decision": "ask",
    },
    {
        "name": "no hook is planted there either",
        "call": {"name": "write", "arguments": {}, "context": {"subjects": [".git/hooks/a"], "is_contained": True}},
        "decision": "deny_continue",
    },
    {
        "name": "nor one of another version control",
        "call": {
            "name": "write",
            "arguments": {},
            "context": {"subjects": ["a/.JJ/repo/config"], "is_contained": True},
        },
        "decision": "deny_continue",
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
        "name": "secrets are not shown from the history either",
        "call": {"name": "shell", "arguments": {}, "context": {"subjects": ["git show HEAD:.env"]}},
        "decision": "ask",
    },
    {
        "name": "no folder is searched in which secrets may lie",
        "call": {"name": "shell", "arguments": {}, "context": {"subjects": ["grep -rn password ."]}},
        "decision": "ask",
    },
    {
        "name": "nor where the option for that is shortened",
        "call": {"name": "shell", "arguments": {}, "context": {"subjects": ["grep --di=recurse password ."]}},
        "decision": "ask",
    },
    {
        "name": "a search of source files is allowed",
        "call": {"name": "shell", "arguments": {}, "context": {"subjects": ["grep -rn main '--include=*.py' ."]}},
        "decision": "allow",
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
