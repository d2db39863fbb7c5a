"""A line of a shell is split into what it runs; what cannot be told is allowed by no pattern and denied by each."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.kernel.authority import rights
from weft.kernel.permission_subjects import PLAIN_BUILTINS, command_subjects, line_subjects
from weft.kernel.typed_names import shell_line

GIT_ALONE = rights(["tool:shell(git *)"])
NO_RM = rights(["tool:shell"], ["tool:shell(rm *)"])


def is_allowed(subjects: tuple[str, ...] | None, granted: object) -> bool:
    """As calls are decided: every subject must be allowed; a call whose subjects are not known has none to give."""
    allows = granted.allows  # type: ignore[attr-defined]
    return all(allows("tool:shell", subject) for subject in (subjects or (None,)))


HOSTILE = r"""
git log {{},--output=x}
git log {{a},b}
git log {{}..b}
jobs -x rm -rf x
printf -v 'a[$(rm -rf x)]' y
test -v 'a[$(rm -rf x)]'
[ -v 'a[$(rm -rf x)]' ]
unset 'a[$(rm -rf x)]'
read 'a[$(rm -rf x)]'
mapfile -C 'rm -rf x' y
git log; rm -rf x
git log;rm -rf x
git log && rm -rf x
git log&&rm -rf x
git log || rm -rf x
git log | rm -rf x
git log|rm -rf x
git log |& rm -rf x
git log & rm -rf x
git log&rm -rf x
git log $(rm -rf x)
git log "$(rm -rf x)"
git log `rm -rf x`
git log "`rm -rf x`"
git log <(rm -rf x)
git log >(rm -rf x)
git log --format="$(rm -rf x)"
git log $((`rm -rf x`))
git log ${X:-$(rm -rf x)}
git log ${X:=`rm -rf x`}
git log $X; rm -rf x
(rm -rf x)
(git log; rm -rf x)
{ rm -rf x; }
{ git log; rm -rf x; }
! rm -rf x
! git log || rm -rf x
if git log; then rm -rf x; fi
if rm -rf x; then git log; fi
while rm -rf x; do git log; done
until rm -rf x; do git log; done
for i in 1; do rm -rf x; done
for i in rm; do $i -rf x; done
case x in x) rm -rf x;; esac
f() { rm -rf x; }; f
git() { rm -rf x; }; git log
function git { rm -rf x; }; git log
select i in 1; do rm -rf x; done
coproc rm -rf x
time rm -rf x
[[ -n $(rm -rf x) ]]
(( a[$(rm -rf x)] ))
eval rm -rf x
eval "git log; rm -rf x"
eval 'r''m -rf x'
source <(echo rm -rf x)
. ./rm.sh
trap 'rm -rf x' EXIT; git log
alias git='rm -rf x'; git log
shopt -s expand_aliases; alias git='rm -rf x'
exec rm -rf x
exec -a git rm -rf x
command rm -rf x
command -p rm -rf x
builtin eval rm -rf x
nohup rm -rf x
nohup rm -rf x &
nice rm -rf x
nice -n 5 rm -rf x
nice -5 rm -rf x
ionice -c 3 rm -rf x
timeout 5 rm -rf x
timeout -k 1 5s rm -rf x
timeout --signal=9 5 rm -rf x
stdbuf -oL rm -rf x
setsid rm -rf x
setsid -w rm -rf x
sudo rm -rf x
sudo -u root rm -rf x
sudo -n -E A=1 rm -rf x
sudo sh -c 'rm -rf x'
sudo -i rm -rf x
doas rm -rf x
su -c 'rm -rf x'
env rm -rf x
env A=1 rm -rf x
env -i rm -rf x
env -u A rm -rf x
env -S 'rm -rf x'
env -S'rm -rf x'
env --split-string='rm -rf x'
env -vS 'rm -rf x'
env -C / rm -rf x
env --chdir=/ rm -rf x
env env env rm -rf x
env git=1 nohup timeout 5 rm -rf x
xargs rm -rf x
echo x | xargs rm -rf
echo -rf x | xargs -I{} rm {}
echo 'rm -rf x' | sh
echo 'rm -rf x' | bash
echo 'rm -rf x' | bash -s
git log | sh
sh -c 'rm -rf x'
sh -c "git log; rm -rf x"
bash -c 'rm -rf x'
bash -ec 'rm -rf x'
bash -xc 'rm -rf x'
bash --norc -c 'rm -rf x'
bash -o errexit -c 'rm -rf x'
bash -c -- 'rm -rf x'
bash -c 'sh -c "rm -rf x"'
dash -c 'rm -rf x'
zsh -c 'rm -rf x'
fish -c 'rm -rf x'
busybox rm -rf x
busybox sh -c 'rm -rf x'
/bin/sh -c 'rm -rf x'
/usr/bin/env sh -c 'rm -rf x'
bash script.sh
sh ./rm.sh
bash <<'E'
rm -rf x
E
sh <<< 'rm -rf x'
cat <<E | sh
rm -rf x
E
cat <<'E' && rm -rf x
git
E
cat <<E
$(rm -rf x)
E
cat <<E
`rm -rf x`
E
/bin/rm -rf x
/usr/bin/rm -rf x
../../bin/rm -rf x
./rm -rf x
"rm" -rf x
'rm' -rf x
r\m -rf x
\rm -rf x
r''m -rf x
r""m -rf x
"r"'m' -rf x
rm${IFS}-rf${IFS}x
$'rm' -rf x
$'\162m' -rf x
$"rm" -rf x
/bin/r? -rf x
/bin/r* -rf x
/bin/[r]m -rf x
{rm,-rf,x}
{r,}m -rf x
~/rm -rf x
X=rm; $X -rf x
X=rm $X -rf x
A=1 rm -rf x
A=1 B=2 rm -rf x
PATH=. rm -rf x
PATH=.:$PATH git log; rm -rf x
> /dev/null rm -rf x
2>/dev/null rm -rf x
>f rm -rf x
<f rm -rf x
2>&1 rm -rf x
find . -exec rm -rf {} +
find . -exec rm -rf {} \;
find . -execdir rm -rf x \;
find . -ok rm -rf x \;
parallel rm -rf ::: x
watch rm -rf x
ssh localhost rm -rf x
script -c 'rm -rf x' /dev/null
flock /tmp/l rm -rf x
strace rm -rf x
chroot / rm -rf x
unshare rm -rf x
git log # x
rm -rf x
git log \
; rm -rf x
git log &\
& rm -rf x
git log
rm -rf x
git log # '
rm -rf x # '
echo "\"; rm -rf x; \""; rm -rf x
echo '\'; rm -rf x
echo \'; rm -rf x; echo \'
echo "a\\"; rm -rf x
git log "a
b"; rm -rf x
hash -p /bin/rm git; git -rf x
enable -f ./x.so rm; rm -rf x
set -- rm -rf x; "$@"
readonly git; rm -rf x
git log 2>&1; rm -rf x
git log >&2; rm -rf x
git >& -rm x; rm -rf x
git log &> f; rm -rf x
{x}>f rm -rf x
PATH+=:. rm -rf x
A[0]=1 rm -rf x
""".strip("\n")


def cases() -> list[str]:
    """Lines of the table; a here-document or a continued line goes on as long as its own syntax says."""
    texts: list[str] = []
    pending: list[str] = []
    for line in HOSTILE.splitlines():
        pending.append(line)
        text = "\n".join(pending)
        is_open = line.endswith("\\") or line in ("git log", "git log # x", "git log # '", 'git log "a')
        if "<<E" in text or "<<'E'" in text:
            is_open = line != "E" or len(pending) == 1
        if not is_open:
            texts.append(text)
            pending = []
    assert not pending
    return texts


CASES = cases()


def test_there_are_so_many_hostile_lines() -> None:
    assert len(CASES) >= 150
    assert len(set(CASES)) == len(CASES)


@pytest.mark.parametrize("line", CASES)
def test_a_line_that_runs_something_else_is_not_allowed_by_a_pattern_for_git(line: str) -> None:
    assert not is_allowed(line_subjects(line), GIT_ALONE)


@pytest.mark.parametrize("line", CASES)
def test_a_line_that_may_run_what_is_denied_is_denied(line: str) -> None:
    assert not is_allowed(line_subjects(line), NO_RM)


@pytest.mark.parametrize(
    "line",
    [
        "git log > ../f", "git log >> f", "git log >| f", "git log < f", "git log 2> f", "git log <> f", "git log >& f",
        "git diff > .git/hooks/pre-commit", "GIT_SSH_COMMAND='touch x' git fetch", "PATH=. git log", "A=1 git log",
        "./git log", "/tmp/git log", "git\\ log", "'git log'", "env git log", "nohup git log", "sh -c 'git log'",
        "git $X", 'git "$X"', "git *", "git l?g", "git {log,-p}", "git ~/x", "gitlog", "git-x log", "exec > f",
        "exec git log", "", " ", "#git log", "cd / && git log", "PATH=.", "git log\x1b", "git log\r", "git log '",
        'git log "', "git log \\", "git log (", "git log )x", "git log \u00a0x", "cat <<E\ngit", "git log ;; git log",
    ],
)  # fmt: skip
def test_a_line_with_more_than_the_command_is_not_allowed_by_its_pattern(line: str) -> None:
    assert not is_allowed(line_subjects(line), GIT_ALONE)


@pytest.mark.parametrize(
    ("line", "subjects"),
    [
        ("git log", ["git log"]),
        ("  git   log  ", ["git log"]),
        ("git commit -m 'a; rm -rf x'", ["git commit -m 'a; rm -rf x'"]),
        ('git commit -m "a && $b"', None),
        ('git commit -m "a \\$(b)"', None),
        ("git log 2>&1 | tail -3", ["git log", "tail -3"]),
        ("git log 2>/dev/null", ["git log"]),
        ("cd src && git add a.py; git status", ["cd src", "git add a.py", "git status"]),
        ("cd src && git log > out", None),
        ("git log > out/a.txt 2>> 'b c'", ["git log", "> out/a.txt", ">> 'b c'"]),
        ("sort < a|uniq -c", ["sort", "< a", "uniq -c"]),
        ("grep -n 'a.*b' a.py || echo \"it's not there\"", ["grep -n 'a.*b' a.py", "echo 'it'\\''s not there'"]),
        ("git show HEAD^ 'HEAD~1' main:a.py", ["git show 'HEAD^' 'HEAD~1' main:a.py"]),
        ("git log --format='%h %s' --since=1.day", ["git log '--format=%h %s' --since=1.day"]),
        ("test -f a && cat a", ["test -f a", "cat a"]),
        ("(cd src; ls) > out", None),
        ("if test -f a; then cat a; else echo no; fi", None),
        ("cat > f <<'E'\n$x `y`\nE\nls", None),
        ("git log\n", None),
        ("[ -f a ]", None),
        ("git show HEAD~1", None),
        ("A=1 make", None),
        ("timeout 5 make test", ["timeout 5 make test", "make test"]),
        ("command -v git", ["command -v git"]),
        ("sh -c 'git log && make'", ["sh -c 'git log && make'", "git log", "make"]),
        ("sh -c 'cd a; git log > out'", None),
        ("env A=1 make", ["env A=1 make", "A=1 make", "make"]),
        ("env A=1 sh -c make", None),
        ("git \\\n log", None),
    ],
)
def test_a_line_gives_its_simple_commands(line: str, subjects: list[str] | None) -> None:
    assert line_subjects(line) == (None if subjects is None else tuple(subjects))


def test_a_list_is_one_command_whatever_its_words_hold() -> None:
    assert command_subjects(["git", "log; rm -rf x", "$(y)", "*"]) == (
        shell_line(["git", "log; rm -rf x", "$(y)", "*"]),
    )
    assert command_subjects(["sh", "-c", "rm x"]) == ("sh -c 'rm x'", "rm x")
    assert command_subjects(["env", "-S", "rm x"]) is None
    assert command_subjects(["xargs", "rm"]) is None
    assert command_subjects(["git log"]) == ("'git log'",)


def test_variables_beside_a_command_are_part_of_it() -> None:
    assert line_subjects("git log", {"A": "b c"}) == ("A='b c' git log", "git log")
    assert line_subjects("git log", {"A": "a[b]"}) is None
    assert command_subjects(["git", "log"], {"A": "1"}) == ("A=1 git log", "git log")


PIECES = (
    "git rm log x ; & && || | ( ) (( )) { } ! > < >> >& 2>&1 2> \n \\\n ' \" \\ # $ ` <<E E <<'E' A=1 A+=1 if then fi "
    "do else done {x} {a,b} ~ * [ ] sh -c exec env nohup command time 'git' r\\m \"rm\" r''m -- -i = : cd . f ../f "
    "'a[`rm`]' ((rm=_)) RANDOM=_ test -v read f unset printf let [[ ]] function"
).split(" ")
NAMES = st.sampled_from(["git", "rm", "log", "x", "./x", "env git", "nohup rm", "command x", "test", "echo", "true"])
BARE = st.text(st.sampled_from("abgx019_./:,+@%=^-"), min_size=1, max_size=6)
QUOTED = st.text(st.characters(min_codepoint=32, max_codepoint=126, exclude_characters="'$`["), max_size=6)
DOUBLY_QUOTED = st.text(st.characters(min_codepoint=32, max_codepoint=126, exclude_characters='"$`[\\!'), max_size=6)
WORDS = st.lists(
    st.one_of(BARE, QUOTED.map("'{}'".format), DOUBLY_QUOTED.map('"{}"'.format)), min_size=1, max_size=3
).map("".join)
FILES = st.sampled_from([" > f", " >>f", " 2> 'a b'", " 2>&1", " >&2", " 1>g.txt", " 2>/dev/null", " </dev/null", ""])
COMMANDS = st.builds(
    lambda name, words, file: " ".join([name, *words]) + file, NAMES, st.lists(WORDS, max_size=3), FILES
)
OPERATORS = st.sampled_from(["; ", ";", " && ", "&&", " || ", "||", " | ", "|"])
LINES = st.builds(
    lambda first, others: first + "".join(map("".join, others)),
    COMMANDS,
    st.lists(st.tuples(OPERATORS, COMMANDS), max_size=3),
)


def observed(lines: list[str], folder: Path, shell: str) -> list[set[str]]:
    """The commands that a shell really starts for each line, as programs that write down how they were called."""
    commands = folder / "bin"
    commands.mkdir(parents=True)
    for name in ("git", "rm", "log", "x"):
        script = (
            """#!/bin/bash\nprintf '%s\\0' "${0##*/}" "$@" $'\\x02' >> "$LOG"\n"""  # one write, beside those of others
        )
        (commands / name).write_text(script)
        (commands / name).chmod(0o755)
    for name in ("env", "nohup", "sh", "bash"):
        (commands / name).symlink_to(shutil.which(name) or name)
    calls: list[set[str]] = []
    for number, line in enumerate(lines):
        place = folder / f"run{number}"
        place.mkdir()
        (place / "x").symlink_to(commands / "x")
        log = folder / f"log{number}"
        variables = {"PATH": str(commands), "LOG": str(log)}
        nothing = subprocess.DEVNULL
        command = [shell, "-c", line]
        subprocess.run(command, env=variables, cwd=place, stdin=nothing, stdout=nothing, stderr=nothing, check=False)
        entries = log.read_bytes().split(b"\0\x02\0") if log.exists() else []
        calls.append({shell_line(entry.decode().split("\0")) for entry in entries[:50] if entry})
    return calls


def shells() -> list[str]:
    return [path for path in map(shutil.which, ("bash", "dash")) if path is not None]


@pytest.mark.skipif(not os.path.exists("/bin/bash"), reason="bash is the judge")
@pytest.mark.parametrize("count", [40, pytest.param(5_000, marks=pytest.mark.prove)])
def test_shells_start_no_command_that_is_not_among_the_subjects(tmp_path: Path, count: int) -> None:
    """Lines at random, from the pieces that lines are made of; the shells themselves say what they run."""
    dice = random.Random(count)
    lines: list[str] = []
    while len(lines) < count:
        pieces = dice.choices(PIECES, k=dice.randint(2, 12))
        line = "".join(piece + dice.choice(("", " ", " ", " ")) for piece in pieces)
        if ("git" in line or "rm" in line) and line_subjects(line) is not None:
            lines.append(line)
    for shell in shells():
        for line, calls in zip(lines, observed(lines, tmp_path / Path(shell).name, shell), strict=True):
            assert calls <= set(line_subjects(line) or ()), (shell, line, calls)


@pytest.mark.skipif(not os.path.exists("/bin/bash"), reason="bash is the judge")
@pytest.mark.slow("two shells run each of its lines, with what they start")
@given(lines=st.lists(LINES, min_size=3, max_size=3))
def test_shells_split_the_lines_of_the_grammar_as_they_are_split_here(lines: list[str]) -> None:
    """Each line is read, whatever it is made of, and the shells start nothing but what is among its subjects; of one
    command, which is always reached, they start just that."""
    with TemporaryDirectory() as folder:
        for shell in shells():
            for line, calls in zip(lines, observed(lines, Path(folder) / Path(shell).name, shell), strict=True):
                subjects = line_subjects(line)
                assert subjects is not None, line
                assert calls <= set(subjects), (shell, line, calls)
                is_reached = subjects[0].split()[0] in ("git", "rm", "log", "x") and len(line) == len(line.strip())
                assert not is_reached or subjects[0] in calls, (shell, line, calls)


@pytest.mark.skipif(not os.path.exists("/bin/bash"), reason="it lists its builtins")
def test_every_builtin_of_bash_is_known_to_be_plain_or_matches_no_pattern() -> None:
    names = subprocess.run(["/bin/bash", "-c", "compgen -b; compgen -k"], capture_output=True, text=True, check=True)
    assert {name for name in names.stdout.split() if line_subjects(f"{name} a") is not None} <= PLAIN_BUILTINS
