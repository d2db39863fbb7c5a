"""Writes all that the command line shows, so that two commits can be compared: `diff -r` of two such folders.

`python scripts/dump_cli.py FOLDER` writes `help/`, a page for each command with its options as data beside it, and
`answers/`, what commands print: the examples of scripts/cli_page.md in order, and over a ledger with docs/samples and a
few recorded turns each command that only reads, as a pipe and as JSON. Within one command the clock stands still, and
chance is the same each time; ids and digests are numbered in the order in which they first appear.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from hashlib import shake_128
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE, SAMPLES = ROOT / "scripts" / "cli_page.md", ROOT / "docs" / "samples"
CACHE = Path.home() / ".cache"
WIDTH = 100
BEGINNING_NS = 1_795_000_000_000_000_000
STEP_NS = 60_000_000_000
SECRETS = re.compile(
    r"\b[0-7][0-9A-HJKMNP-TV-Z]{25}\b|\b(?=[0-9A-Z]*\d)[0-9A-HJKMNP-TV-Z]{8}\b"
    r"|\b[0-9a-f]{64}\b|\b(?=[0-9a-f]*\d)[0-9a-f]{7,40}\b"
    r"|\bsession-[a-z2-9]{8}\b|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b(?=[0-9a-z]*\d)[a-z2-7]{6,8}(?=/main)"
)
"""Ids, their ends, digests and their beginnings."""
DURATIONS = re.compile(
    r'\b\d+\.\d+(?= GB are free)|("(?:duration|latency|took|elapsed)\w*":)\s*[\d.]+'
    r'|\b\d+(?:\.\d+)? ?m?s\b|"seconds":[\d.]+'
)

READING = """
sessions | sessions --all | sessions --subagents | sessions --origin claude-code | sessions --origin nothing
sessions -n 1 | sessions -n 1 --after XX | sessions --project none | sessions --since 2026-01-01
sessions --since 2090-01-01 | session history main | session history | session history other | session history side
reflog main | reflog | reflog main -n 1 | reflog nobody | reflog empty | alias | archive --list
archive --dry-run main | archive --dry-run --older-than 1d | archive --dry-run --older-than 900d | archive
settle main | settle | alias x | log | log main | log --oneline | log --graph | log -n 1 | log --all
log --session other | log nobody | tree main | tree | read main | read | read main --steps | read other | show main
show main~1 | show | show nobody | context main | context | context main --original | diff main other
diff main other --files | diff main main | files | files src/a.py | blame src/a.py | search hello
search "hello there" | search nothing-of-this-kind | search hello --session main | search hello -n 1
search --tool Bash . | usage | usage --by model | usage --by day | usage --by project | usage --by nothing | story
story --since 2026-01-01 | projects | audit | stats | graph node main | graph neighbours main | graph ancestry main
graph export | graph path main other | export | export main --format jsonl | export main --format markdown
export other --format anthropic | provider list | model list | agent list | toolset list | task list | trigger list
code list | info list --all | human list | program list | policy list | resource list | mcp list | room list
credential list | token list-revoked | key list | provider show p | model show m | agent show a | toolset show t
human show ann | program show a | tools a | config a | nodes --tag x | tag list | inbox | approvals | pending list
remote list | remote | replica | secrets list | pack --dry-run | trust list | doctor | verify | facts export
config main | tools main | compact main --list | stats --json | room show r | room read r | room invitations
embed-stats | route hello | help | help revisions | help exit-codes | info find x | policy show | policy test
task show t1 | trigger show tr | trigger show nobody | trigger history tr | trigger history tr -n 1 | sandbox profiles
completion bash
search hello --rank | search hello --newest | search --role user | search --role nobody hello | search | search "a b"
search "hello question" | search "question hello" -n 0 | search hello --as ann | search hello --as nobody
search --since 2090-01-01 | search hello --origin nothing | search hello --project none | search hello --model none
search hello --model sonnet -n 2 | search hello --room r | search hello --room r --role user
search hello --room nobody
search hello --since never | search hello --path src | search hello -n 1 --after XX | search fix -n 3
show main --full | show main --original | show side | show empty | show @{1} | log -1 | log -n 0 | log side --graph
log --graph --oneline | log main --session other | log --session nobody | log --after XX | log @{0} | read main~1
read main --original | read empty | read nobody | context --session side | context --session nobody | context main~1
context main --session side | context main --count | context --count | context empty | context --session empty
tree other | tree nobody | diff main | diff | diff main side | diff main side -p | diff main side --exit-code
diff side main~1 | diff --files | diff main --files -p | diff main side --files | diff nobody main | diff main nobody
files parser.py | files parser.py --kind written | files src -n 1 | files ./a.py | files x --kind nothing
blame parser.py | blame nothing.py | blame parser.py --recorded | blame samples | blame ./nothing.py
usage --by session | usage --by provider | usage --by origin -n 1 | usage --by month --since 2026-01-01
usage --branch main | usage --branch nobody | usage --tree main | usage --abandoned | usage --abandoned --by day
usage --since never | usage --model none | usage --project none | usage --origin nothing | usage --session main
usage --session nobody | usage --room r | usage --chart | usage --no-chart -n 2 | usage --prices nowhere.toml
usage --branch main --tree main | usage -n 0 | usage --until 2020-01-01 | projects --since 2090-01-01 | projects -n 1
projects -n 0 | projects --since never | projects --until 2026-06-01 | story all | story all --full | story today
story 2025 | story never | story 2090 | story .. | audit main | audit --list | audit --problems | audit --strict
audit --by persona | audit --by nothing | audit --suggest | audit --suggest --strict | audit --events
audit --events --actor a | audit --events main | audit --actor a | audit --actor nobody | audit --tool Bash
audit nobody | audit --since 2090-01-01 | audit --since never | graph node nobody | graph node session:main
graph node program:a | graph neighbours main --type EVENT_PRODUCES | graph neighbours main --type NOTHING
graph neighbours main --direction out -n 2 | graph neighbours main --direction x | graph neighbours main --dot
graph neighbours main --svg | graph neighbours main --dot --svg | graph neighbours main --at 2020-01-01
graph neighbours main --known-at never | graph path main side --dot | graph path main side | graph path main side -n 1
graph path main nobody | graph path main side --longest 1 | graph path main side --longest 0 | graph history main
graph history main -n 1 | graph history main --dot | graph history nobody | graph lineage main
graph lineage side --svg
graph calls main | graph calls main --dot | graph resources | graph resources main | graph resources --dot
graph policies | graph policies a | graph policies --svg | graph ancestry side | graph ancestry side --dot
graph ancestry side -n 1 | graph neighbours main -n 0 | graph neighbours main -n 10001
"""
MAKING = """
record --session main --query "hello there" --response "hello to you" --model sonnet
record --session main --query "second question" --response "second answer" --model sonnet
record --session other --query "other topic" --response "other answer" --model haiku | fork main~1 side
record --session side --query "on the side" --response "yes"
provider create p --type openai --base-url http://127.0.0.1:9/v1 --key-env SOME_KEY
model create m --backend some-model --provider p | agent create a --model m --prompt "You help."
toolset create t --allow read --allow list | human create ann | session create empty --model m --owner a
session create --model m | session create main | session create x --set title=X --set harness.a=1
session create y --set nonsense | room create r --person ann | task create "Do it" --name t1 | tag add a x
trigger create tr --every 1d --message "Good day" --session main
"""
CHANGING = """
cherry-pick side --onto main | cherry-pick main~1 side --onto other | cherry-pick --onto main | cherry-pick side
cherry-pick side --onto main --expected nobody | summarize side --into main --text "what it found" --key s1
summarize side --into main | summarize side --into main --text a --file b | merge side --into main --text "found it"
merge side --into main --pick | merge side --into main --pick --text x | merge side --into main | undo main --dry-run
undo main | undo main --redo | undo main --redo | undo main --files keep | undo --redo --files keep | undo | undo nobody
fork main~1 | fork main~1 a1 --label a2 | fork main~1 a1 --files keep | fork main~1 a1 | fork main a4 --files x
fork main a5 --files keep --plan x | fork main a6 --dry-run | fork main a7 --in there | fork main --label a8 --agent a
checkout main | checkout main --to there --reconstruct | checkout main --reconstruct | checkout main --record
checkout main --to there --resource r
rename side aside | rename nobody x | rename aside side | alias s2 side | alias s2 nobody
alias s3 main --reason renamed | alias s3 | alias --reason manual | session configure empty --set title=T
session configure empty --owner ann | session configure empty | session configure nobody --model m
session pause empty --reason rest | session pause empty | session send empty hello | session resume empty
session resume empty --as ann --key k1 | session send nobody hello | session history main --write
session history --write | session configure main --set logFile=log.jsonl | session history main --write
session promote side ann-key | session promote side main | session promote side ann-key | session unify side
session unify side --into other | session unify side --undo | session unify side --undo --into x
session unify x --into empty --summary a --summary-from b | session unify x --into empty --summary a
session complete empty | session complete empty | archive side | archive side --undo
archive side other --reason done | archive side other --undo | archive nobody | archive --tree main
archive --tree main --undo | archive --older-than 900d | delete side --reason gone | delete nobody | restore side
restore side 1 | restore side 9 | restore main@{1} | restore main | move main main~1 | move main | move main --reset
move main other --expect - | move main other --expect main --reason r | move main other --reset | settle main --ours
settle main --ours --theirs | settle main --to main | settle nobody | undo main | undo main --dry-run | restore main
fork main --dry-run | fork main again --json | merge again --into main | cherry-pick other --onto main
summarize other --into main | checkout main --dry-run | compact main --summary "all of it" | compact main --list
compact main --undo | compact main --use main~1 | compact main --list --undo
compact main --summary x --strategy summary | compact nobody --summary x
substitute main --with "other words" --reason why | substitute main --undo | substitute main
record --session main --query q | record --session main --query q --response r --key one
record --session main --query q --response r --key one | reflog main | sessions | log
human create tester
trigger create t2 --cron "0 7 * * 1-5" --zone Europe/Berlin --message "${time}" --to a --on-missed all --breaker 2
trigger create t3 --webhook github --secret SOME_KEY --message "${payload}" --smart main --key k2
trigger create t3 --webhook github --secret SOME_KEY --message "${payload}" --smart main --key k2
trigger create t4 --event tool_call --where status=failed --where a=1 --message x --session main --include today
trigger create t5 --file . --pattern "*.py" --pattern "*.md" --message x --sender payload.user
trigger create t6 --every 1d --at 2090-01-01 | trigger create t6 --every 1d --secret X | trigger create t6 --message x
trigger create t6 --event x --where nonsense | trigger create t6 --room r --message hello --to a --post-to r
trigger create t6 --webhook github | trigger create t6 --webhook other | trigger create t6 --every 1d --thread nobody
trigger create t7 --every 1d --message x --session nobody | trigger create t8 --every 1d --breaker 0
trigger create t8 --at 2090-01-01T10:00 --zone UTC --message x | trigger create t9 --task t1 --message x --as ann
trigger create t9 --every never --message x | trigger create | trigger create t9 --include nothing
trigger configure t2 --message y --set onMissed=latest --reason why | trigger configure t2 | trigger configure nobody
trigger configure t2 --every 2h | trigger configure t2 --expected 1 --message z | trigger configure t2 --set x
trigger configure t2 --session main | trigger configure t2 --set a.b=1 | trigger configure t2 --secret X
trigger configure t2 --set message=u --set message.v=w | trigger configure nobody --secret X
trigger pause tr --reason rest | trigger list | trigger show tr | trigger pause tr | trigger run tr | trigger resume tr
trigger resume tr --as ann | trigger run tr --payload {} | trigger run t2 --payload text | trigger run t6
trigger run nobody | trigger run tr --as ann | trigger history tr | trigger history tr -n 1 | trigger history t2 -n 0
trigger history nobody | trigger list | trigger show t2 | trigger show t3 | trigger show t4 | trigger show t5
trigger deliver t3 | trigger deliver nobody | trigger delete t2 --expected 9 | trigger delete t2 --reason done
trigger delete t2 --key k3 | trigger delete a | trigger show t2 | trigger list
program list | program list --all | program list --type agent | program list --type code | program list --type nothing
program get m | program get m:1 | program get m:9 | program get nobody | program history m | program history nobody
program diff m | program configure m --set temperature=1 --reason why | program configure m --set temperature=2 --key k4
program configure m --set temperature=2 --key k4 | program configure m --set maxTokens=9 --expected 1 | program diff m
program configure m | program configure m --set x | program configure m --set modelId=x --set modelId.y=z
program configure nobody --set a=1 | program configure nobody --set x | program configure m --set maxTokens=7 --as ann
program diff m 1 2 | program diff m 1 1 | program diff m x | program diff m 1 7 | program history m
program revert m 1 --reason back | program revert m 99 | program revert m | program revert m x
program revert m 2 --expected 1 | program revert m 2 --key k5 | program revert m 2 --key k5
provider create p2 --type openai --base-url http://127.0.0.1:9/v1 --draft
program publish p2 --reason ready | program publish p2 | program publish nobody | program deprecate p2 --reason old
program deprecate p2 --as ann | program delete p2 --reason gone --key k6 | program delete p2 | program get p2
program list --all --type provider | program delete main | program history p2 | tag add | tag add a | tag add nobody t
tag add a x y --key k7 | tag add a x y --key k7 | tag add a "" | tag list a | tag list main | tag list nobody
tag add main x --as ann | tag add main x | nodes --tag x | nodes --tag x --tag y | nodes --tag none | nodes
tag remove a y | tag remove a y | tag remove a y --key k8 | tag remove a x z | tag remove main x | tag list main
provider create p3 --type openai --key-env SOME_KEY --set timeoutMs=5 --draft --key k9 | provider create p4 --type opena
provider create p4 --type nonsense | provider create p4 | provider create p3 --type openai
provider create p4 --type local | provider create p5 --type openai --set x | provider list
provider create p5 --type openai --set a.b=1
provider create p5 --type openai --as ann | provider configure p3 --base-url http://127.0.0.1:8/v1 --expected 1
provider configure p3 --base-url http://127.0.0.1:7/v1 --key-env OTHER | provider configure p3 --expected 1 --set a=b
provider configure p3 | provider configure nobody --set x | provider configure nobody | provider configure m --set a=1
provider show p3 | provider show p3:1 | provider show nobody | provider show m
model create m2 --backend b --provider p3 | model create m4 --backend b
model create m3 --backend b --provider p --temperature 1 --top-p 0.5 --max-tokens 9 --draft
model create m4 --backend b --provider nobody | model create m4 --backend b --provider p --temperature 9
model create m4 --backend b --provider p --temperature x | model create m4 --backend b --provider p --set thinking=high
model create m4 --backend b --provider nobody --set thinking=high | model create m4 --backend b --provider p --as ann
model configure m3 --situation quick --temperature 0.5 | model configure m3 --situation quick | model configure m3
model configure m3 --backend c --provider p --expected 2 --max-tokens 7 | model configure m3 --set x --expected 9
model configure nobody | model configure m3 --set promptCache=yes --set thinking=low | model show m3 | model list
code create c --source "1" --language python | code list | info create i --content "{}" --draft | info list
info list --all --type fact | info list --type nothing | info validate i --reason fits | info validate i
info activate i --key k10 | info activate i --key k10 | info archive i --as ann | info archive i | info archive nobody
info validate m | info list | info list --all
inbox --dead | inbox --session main | inbox --session nobody | inbox --cancel x --again y | inbox --cancel x --dead
inbox --again x --session main | inbox --cancel nobody | inbox --again nobody | send hello --session empty --no-wait
send again --session x --no-wait --queue steer --priority 3 | inbox | inbox --session x | inbox --session empty --as ann
interrupt main | interrupt nobody | interrupt | retry main | retry nobody | retry main --afresh --no-wait
approvals --all | approvals x | approvals x --all | approvals x --session main | approvals --session main
approvals --session nobody | approve | approve abcdef | approve abcdef --rule --session-scope | approve abcdef -y
reject | reject abcdef --abort --reason no | human create bob --name "Bob B" --permission approve --channel terminal
human create bob | human create eve --set x | human create eve --set a.b=1 | human create eve --as ann --key k20
human list | human show bob | human show bob:1 | human show nobody | human presence ann busy
human presence ann busy --key k21 | human presence ann x | human presence nobody busy | human presence ann away --as bob
human ask bob "Shall I?" | human ask bob "Shall I?" --data "{}" --about a --key k22 | human ask bob q --data x
human ask nobody q | human notify bob "It is done" | human requests | human requests bob --status pending
human requests nobody | human requests --status nothing | human approve bob abcdef | human approve bob nothing
human reject bob abcdef --reason no --key k23 | human approve nobody abcdef -y
policy list --state active | policy list --state nothing | policy history | policy history --agent a
policy history --agent nobody | policy show default | policy show nobody | policy show x --agent a
policy show --agent a | policy show --agent nobody | policy propose nofile.py | policy activate nobody
policy activate nobody -y --notes n | policy reject nobody --reason r | policy rollback nobody | policy rollback default
policy rollback default --agent a | policy rollback nobody --agent a | policy rollback default -y --agent nobody
policy test nofile.py | policy test nobody | policy backtest nobody | policy backtest nofile.py --since never
room create q | room create q2 --person ann --agent a --title "A room" | room create q3 --person nobody | room list
room list --all | room list --as ann | room show q | room show nobody | room show r --as nobody | room title r New
room title nobody x | room title r "" | room add r a | room add r nobody | room add r a --key k30 | room invite r bob
room invite r bob --reason come | room invite r nobody | room invitations | room invitations --as bob
room decline r --as bob | room decline r | room decline nobody | room profile r a | room profile r nobody
room remove r a
room remove r nobody | room remove r ann --reason x | room post r hello --no-wait | room post r "hello @ann" --no-wait
room post r hi --as ann --no-wait --key k31 | room post nobody x | room post r "" | room read r | room read r -n 1
room read r --after 1 | room read r --before 2 | room read r --as bob | room read nobody | room fork r | room fork r f1
room fork nobody | room leave r --as ann | room leave r | room archive r --reason done | room archive r | room list
room restore r | room restore nobody | room show r | room invitations --all | room invitations r
agent create b --model m --prompt "You b." --set harness.a=1 | agent create b --model m | agent create c --model nobody
agent create c --model m --as ann --key k40 | agent list | agent list --all | agent show b | agent show b:1
agent show nobody | agent configure b --prompt "Be b." --reason why | agent configure b
agent configure nobody --set a=1
agent configure b --expected 1 --set temperature=1 | agent status b | agent status | agent status nobody | agent pause b
agent resume b | agent stop b | agent stop nobody | agent share b ann | agent share b nobody | agent unshare b ann
agent visibility b private | agent visibility b x | agent visibility b | agent reset b | agent reset nobody
agent assign b t1 | agent assign b nobody | agent assign nobody t1 | toolset create u --allow read --deny "shell(rm *)"
toolset create u --allow read | toolset create v --allow nothing | toolset list | toolset show u | toolset show nobody
toolset edit u --allow list | toolset edit u | toolset edit nobody --allow read | toolset delete u --key k41
toolset delete nobody | task create "Other" --name t9 --set a=1 | task create "" --name t8 | task create "Do" --name t9
task list | task list --all | task show t9 | task show nobody | task configure t9 --set title=x | task configure nobody
task assign t9 b | task assign t9 nobody | task start t9 | task start t9 --as ann | task fail t9 --reason bad
task complete t9 | task complete t9 --result "{}" | task complete nobody | task run nobody | task list
resource add . | resource add nowhere --name w | resource add http://example.org/ --name u1 | resource list
resource list --all | resource show u1 | resource show nobody | resource attach u1 main | resource attach u1 nobody
resource owners u1 | resource owners nobody | resource detach u1 main | resource probe u1 | resource probe nobody
resource snapshot u1 | resource snapshot nobody | resource restore nobody | resource migrate u1 --session main
resource discard u1 --reason x | resource discard nobody | resource reconcile | resource exec nobody ls
resource logs nobody | resource kill nobody | info create j --content text --as ann | info create j --content text
info create j --type nothing --content x | info query hello | info query --tag x | info query | code create d
code create d --source "def run(x): return x" --language python --as ann | code create d --file nowhere.py
pending list | pending show x | pending take x | pending refuse x | pending undo x | pending list --all
pending list --kind agent | token create | token create --right session:read --for 1h | token show x | token revoke x
token list-revoked | token attenuate x | token rotate | token create --scope read --for 1d
"""


def lines_of(commands: str) -> list[list[str]]:
    return [shlex.split(words) for line in commands.strip().split("\n") for words in line.split(" | ")]


class Machine:
    """Time, which stands still while a command runs, and chance, which is the same for the same command."""

    now_ns, drawn = BEGINNING_NS, 0

    @classmethod
    def step(cls) -> None:
        cls.now_ns, cls.drawn = cls.now_ns + STEP_NS, 0

    @classmethod
    def chance(cls, count: int) -> bytes:
        cls.drawn += 1
        return shake_128(f"{cls.now_ns} {cls.drawn}".encode()).digest(count)


def stand_still() -> None:
    """Before anything of Weft is loaded."""
    time.time_ns = lambda: Machine.now_ns
    time.time = lambda: Machine.now_ns / 1e9
    os.urandom = Machine.chance


class Mask:
    """One name for each id, by the order of appearance."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def __call__(self, text: str) -> str:
        return DURATIONS.sub(r"\1~", SECRETS.sub(self._name, text))

    def _name(self, match: re.Match[str]) -> str:
        word = match[0]
        key = word[-8:] if word.upper() == word and len(word) in (8, 26) else word[:7]
        return self._names.setdefault(key, f"<{len(self._names) + 1}>")


class Terminal:
    """Runs commands in this process, and writes down what they print."""

    def __init__(self, file: Path) -> None:
        self._file, self._mask = file.open("w"), Mask()

    def run(self, words: list[str], stdin: str = "") -> str:
        from weft.surfaces.cli.main import run

        Machine.step()
        shown, told = io.BytesIO(), io.BytesIO()
        out, err = io.TextIOWrapper(shown, "utf-8"), io.TextIOWrapper(told, "utf-8")
        before = sys.stdin
        sys.stdin = io.TextIOWrapper(io.BytesIO(stdin.encode()), "utf-8")
        try:
            with redirect_stdout(out), redirect_stderr(err):
                try:
                    code: object = run(words)
                except SystemExit as left:
                    code = left.code
        finally:
            sys.stdin = before
        out.flush()
        err.flush()
        printed = shown.getvalue().decode()
        self._write(words, code, printed, told.getvalue().decode())
        return printed

    def _write(self, words: list[str], code: object, out: str, err: str) -> None:
        place = str(Path.cwd().parent)
        shown = f"$ weft {shlex.join(words)}\n[{code}]\n{out}" + (f"--- error stream\n{err}" if err else "")
        self._file.write(self._mask(shown.replace(place, "PLACE")) + "\n")
        self._file.flush()


def dump_help(folder: Path) -> None:
    import click

    from weft.surfaces.cli.main import COMMANDS, weft

    folder.mkdir(parents=True)
    root = click.Context(weft, info_name="weft", terminal_width=WIDTH, max_content_width=WIDTH)
    for name in (name for names in COMMANDS.values() for name in names):
        command = weft.get_command(root, name)
        assert command is not None
        for path, one, context in walk(name, command, root):
            page = one.get_help(context)
            (folder / f"{path.replace(' ', '_')}.txt").write_text(page + "\n")
            data = [described(param) for param in one.params]
            (folder / f"{path.replace(' ', '_')}.json").write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")


def walk(path: str, command: Any, parent: Any) -> Iterator[tuple[str, Any, Any]]:
    import click

    context = click.Context(
        command, parent=parent, info_name=path.split()[-1], terminal_width=WIDTH, max_content_width=WIDTH
    )
    yield path, command, context
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from walk(f"{path} {name}", inner, context)


def described(param: Any) -> dict[str, Any]:
    """A parameter as those see it who type it; the name of the function's argument is nobody's business."""
    data = dict(param.to_info_dict())
    data.pop("name")
    data["old"] = list(getattr(param, "old", ()))
    completion = getattr(param, "_custom_shell_complete", None)
    data["completion"] = None if completion is None else "custom"
    plain: dict[str, Any] = json.loads(json.dumps(data, default=str))
    return plain


def dump_examples(folder: Path) -> None:
    """The examples of the page, in the way in which its test runs them."""
    terminal = Terminal(folder / "examples.txt")
    for block in re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL):
        for line in re.findall(r"^\$ (.*)$", block, re.MULTILINE):
            words, stdin, target = shlex.split(line), "", None
            if words[0] == "echo":
                words, stdin = words[3:], words[1] + "\n"
            if words[0] == "mkdir":
                Path(words[1]).mkdir()
                continue
            if words[-2] == ">":
                words, target = words[:-2], words[-1]
            out = terminal.run(words[1:], stdin)
            if target is not None:
                Path(target).write_text(out)


def dump_answers(folder: Path) -> None:
    making, reading = Terminal(folder / "making.txt"), Terminal(folder / "reading.txt")
    changing = Terminal(folder / "changing.txt")
    making.run(["init"])
    shutil.copytree(SAMPLES, "samples")
    for sample in sorted(Path("samples").iterdir()):
        making.run(["import", str(sample), "--json"])
    for words in lines_of(MAKING):
        making.run(words)
    for words in lines_of(READING):
        reading.run(words)
        reading.run([*words, "--json"])
    for words in lines_of(CHANGING):
        changing.run(words)
    again = Terminal(folder / "changing_json.txt")
    for words in lines_of(CHANGING):
        again.run([*words, "--json"])


def main() -> None:
    folder = Path(sys.argv[1]).absolute()
    if folder.exists():
        shutil.rmtree(folder)
    stand_still()
    os.environ["TZ"] = "UTC"
    time.tzset()
    dump_help(folder / "help")
    (folder / "answers").mkdir()
    before = Path.cwd()
    for dump in (dump_answers, *([] if "--quick" in sys.argv else [dump_examples])):
        place = Path(tempfile.gettempdir(), "weft-dump")  # its name is in what is recorded: it is the same each time
        shutil.rmtree(place, ignore_errors=True)
        home, work = place / "home", place / "work"
        home.mkdir(parents=True)
        work.mkdir()
        for name in [name for name in os.environ if name.startswith(("XDG_", "WEFT_"))]:
            del os.environ[name]
        os.environ |= {"HOME": str(home), "XDG_CACHE_HOME": str(CACHE), "USER": "tester"}
        os.chdir(work)
        dump(folder / "answers")
        os.chdir(before)
        shutil.rmtree(place)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is the same each time, too
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})
    main()
