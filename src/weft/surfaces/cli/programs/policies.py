"""`weft policy`: which source is meant, its tests, what a person is shown before it decides
about tool calls.
"""

from __future__ import annotations

import asyncio
import difflib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from weft.kernel.errors import InvalidInput
from weft.kernel.typed_names import shell_word
from weft.surfaces.cli.arguments import read_named_file
from weft.surfaces.cli.command_line import DIFFERENT, OK, Call, confirm, group
from weft.surfaces.cli.progress import counted, progress
from weft.surfaces.cli.screen import Line, Span, local_time
from weft.surfaces.plain_text import safe_lines
from weft.verbs.program_answers import PolicySource, PolicyTestEntry, TestedPolicy

if TYPE_CHECKING:
    from weft.kernel.events import PolicyTests
    from weft.ledger.api import Ledger, Policy
    from weft.runtime.policies.policy_decisions import PolicyInForce, PolicyInterpreters
    from weft.runtime.policies.policy_tests import Backtest, OwnTestResult, PolicyOutline


# --- `weft policy`: the programs that decide about tool calls.

policy_command = group(
    "policy",
    """Manage approval policies: propose, test, activate and roll back.

    docs/permissions.md#approval-policies tells how to write one. A POLICY is named by its id, the last six or more
    letters of it, or its name, which means the newest of that name; default is the one that comes with weft.
    """,
)
HEADER = ("policy", "name", "state", "agent", "tests", "by", "when")
GROUPS = ("calls", "tool", "before", "after", "for example", "why")
SHORT_ID, SHORT_DIGEST = 8, 12
READ_FIRST = "read what it shows and say --yes"
READ_IT = "`weft policy show` prints it"
YES = click.option("-y", "--yes", is_flag=True, help="Skip the confirmation prompt.")
AGENT = click.option("--agent", metavar="NAME", help="This agent's policy, instead of the one for all agents.")


@policy_command.verb("propose")
@click.argument("file", type=click.Path())
@click.option("--name", metavar="NAME", help="Its name. Default: that of the file.")
@click.option("--agent", metavar="NAME", help="Only for this agent; else for all of them.")
@click.option("--notes", metavar="TEXT", help="What it is for, or what is new in it.")
def propose(call: Call, file: str, name: str | None, agent: str | None, notes: str | None) -> None:
    """Propose a policy.

    FILE is a program of Python with a docstring and a list TESTS; - is standard input. Its tests are run, and how they
    ended is recorded. It decides nothing until a person activates it.
    """
    from weft.runtime.policies.policy_tests import counts_of_tests

    source = read_policy_file(file)
    outline, results = tested(call, source)
    counts = counts_of_tests(results)
    with call.writing() as ledger:
        policy = ledger.policies.propose(
            name or ("policy" if file == "-" else Path(file).stem),
            source,
            agent=agent,
            docstring=outline.docstring,
            notes=notes,
            tests=counts,
        )
    call.answer(policy, [*_state(policy), ": ", *tests_line(counts)], *failed_lines(results))
    call.note(f"a person activates it: `weft policy activate {shell_word(_short(policy))}`")


@policy_command.verb("list")
@click.option("--state", "states", multiple=True, metavar="STATE", help="proposal, active, replaced or rejected.")
def list_(call: Call, states: tuple[str, ...]) -> None:
    """List policies, the oldest first."""
    with call.reading() as ledger:
        _show_list(call, ledger.policies.list(states=states))


@policy_command.verb("history")
@AGENT
def history(call: Call, agent: str | None) -> None:
    """List what was in force when, and what was rejected, in the order of the decisions."""
    with call.reading() as ledger:
        policies = [
            policy
            for policy in ledger.policies.list(states=("active", "replaced", "rejected"))
            if policy.agent == agent and policy.is_own
        ]
    _show_list(call, sorted(policies, key=lambda policy: policy.decided_at or 0))


@policy_command.verb("show")
@click.argument("name", required=False, metavar="[POLICY]")
@AGENT
def show(call: Call, name: str | None, agent: str | None) -> None:
    """Print the source of a policy: the one in force, if none is named.

    It is what agents read as resource://approval-policy/policy.py.
    """
    if name is not None and agent is not None:
        raise click.UsageError("name a policy or an agent, not both")
    with call.reading() as ledger:
        shown = _shown_source(ledger, name, agent)
    call.answer(shown, *source_lines(shown.source))


@policy_command.verb("test")
@click.argument("name", metavar="POLICY|FILE.py")
def test(call: Call, name: str) -> int:
    """Run a policy's own tests in the sandbox. Exits with 1 if one fails."""
    from weft.ledger.api import digest_of_source
    from weft.runtime.policies.policy_tests import counts_of_tests

    policy = _source_named(call, name)
    source = str(policy.source)
    outline, results = tested(call, source)
    counts = counts_of_tests(results)
    answer = TestedPolicy(
        name=policy.name,
        digest=digest_of_source(source),
        docstring=outline.docstring,
        total=counts.total,
        passed=counts.passed,
        failed=counts.failed,
        tests=tuple(map(_test_entry, results)),
    )
    call.answer(answer, *failed_lines(results), tests_line(counts))
    return DIFFERENT if counts.failed or not counts.total else OK


@policy_command.verb("backtest")
@click.argument("name", metavar="POLICY|FILE.py")
@click.option("--since", metavar="TIME", help="Only from this time on; a day means all of it.")
@click.option("--until", metavar="TIME", help="Only until this time; a day means all of it.")
@click.option("--agent", metavar="NAME", help="Only calls of this agent.")
def backtest(call: Call, name: str, since: str | None, until: str | None, agent: str | None) -> int:
    """Run a policy over recorded tool calls, and list those that it would decide otherwise.

    A call is compared with the decision that was recorded, and where there is none, as of imported turns, with what
    the policies in force would decide. Exits with 1 if anything would have been decided otherwise.
    """
    from weft.runtime.policies.policy_tests import BacktestRun

    interpreters = new_interpreters(call)
    try:
        with call.reading() as ledger, progress(call, "decide about recorded calls") as bar:
            run = BacktestRun(ledger, interpreters, named_policy(ledger, name), agent)
            report = asyncio.run(run.run(since=since, until=until, progress=bar.counted))
    finally:
        interpreters.stop()
    if call.json:
        call.document(report)
    else:
        _show_backtest(call, report)
    return DIFFERENT if report.changed else OK


@policy_command.verb("activate")
@click.argument("name", metavar="POLICY")
@click.option("--notes", metavar="TEXT", help="Why.")
@YES
def activate(call: Call, name: str, notes: str | None, yes: bool) -> None:
    """Put a policy in force, for its agent or for all.

    Shows its source, the digest of that and the difference to what is in force, runs its tests, and asks. Only a person
    can say yes, and says it to exactly this source.
    """
    from weft.ledger.api import ensure_activatable
    from weft.runtime.policies.policy_tests import counts_of_tests

    with call.writing() as ledger:
        policy = ledger.policies.get(name)
        ensure_activatable(policy)
        present(call, _question(ledger, policy), yes)
        _, results = tested(call, source_of(policy))
        counts = counts_of_tests(results)
        present(call, [*failed_lines(results), tests_line(counts)], yes)
        question = f"put {policy.name} ({policy.digest[:SHORT_DIGEST]}) in force?"
        confirm(call, question, READ_FIRST, is_sure=yes)
        active = ledger.policies.activate(policy.id, digest=policy.digest, tests=counts, notes=notes)
    call.answer(active, [*_state(active)])


@policy_command.verb("reject")
@click.argument("name", metavar="POLICY")
@click.option("--reason", metavar="TEXT", help="Why.")
def reject(call: Call, name: str, reason: str | None) -> None:
    """Refuse a proposed policy. Only a person can."""
    with call.writing() as ledger:
        policy = ledger.policies.reject(ledger.policies.get(name).id, reason=reason)
    call.answer(policy, [*_state(policy)])


@policy_command.verb("rollback")
@click.argument("name", metavar="POLICY")
@click.option("--agent", metavar="NAME", help="With default: in place of the policy of this agent.")
@click.option("--reason", metavar="TEXT", help="Why.")
@YES
def rollback(call: Call, name: str, agent: str | None, reason: str | None, yes: bool) -> None:
    """Put a policy in force again that was replaced. Shows what changes, and asks. Only a person can.

    default is the policy that comes with weft: its source is proposed and put in force. A later version of weft may
    come with another one; this one stays in force.
    """
    from weft.ledger.api import ensure_replaced

    if name == DEFAULT:
        _restore_default(call, agent, reason, yes)
        return
    if agent is not None:
        raise click.UsageError("--agent goes with default; any other policy is of one agent, or of all")
    with call.writing() as ledger:
        policy = ledger.policies.get(name)
        ensure_replaced(policy)
        present(call, _question(ledger, policy), yes)
        question = f"put {policy.name} ({policy.digest[:SHORT_DIGEST]}) in force again?"
        confirm(call, question, READ_FIRST, is_sure=yes)
        active = ledger.policies.roll_back(policy.id, digest=policy.digest, reason=reason)
    call.answer(active, [*_state(active)])


def _restore_default(call: Call, agent: str | None, reason: str | None, yes: bool) -> None:
    """Propose the policy that comes with weft, and put it in force, once a person says yes."""
    from weft.kernel.errors import NotApplicable
    from weft.ledger.api import digest_of_source
    from weft.runtime.policies.policy_decisions import default_source
    from weft.runtime.policies.policy_tests import counts_of_tests

    source = default_source()
    with call.writing() as ledger:
        before = ledger.policies.active(_agent_id(ledger, agent))
        if before is None or before.digest == digest_of_source(source):
            whose = "" if agent is None else f" of {agent!r}"
            raise NotApplicable(f"no other policy{whose} is in force than the one that comes with weft", READ_IT)
        heading: Line = ["policy ", Span(DEFAULT, "label"), f", digest {digest_of_source(source)}"]
        difference = difference_lines(before.source or "", source, DEFAULT)
        present(call, [heading, *source_lines(source), *difference], yes)
        outline, results = tested(call, source)
        counts = counts_of_tests(results)
        present(call, [*failed_lines(results), tests_line(counts)], yes)
        confirm(
            call, f"put the policy that comes with weft in force in place of {before.name}?", READ_FIRST, is_sure=yes
        )
        policy = ledger.policies.propose(DEFAULT, source, agent=agent, docstring=outline.docstring, tests=counts)
        active = ledger.policies.activate(policy.id, digest=policy.digest, tests=counts, notes=reason)
    call.answer(active, [*_state(active)])


def _question(ledger: Ledger, policy: Policy) -> list[Line]:
    """What a person is asked about: all of the source, and what it changes. Control characters are escaped."""
    source = source_of(policy)
    before = ledger.policies.active(_agent_id(ledger, policy.agent))
    lines: list[Line] = [["policy ", Span(policy.name, "label"), f", digest {policy.digest}"], *source_lines(source)]
    if before is not None and before.source is not None and before.id != policy.id:
        lines += difference_lines(before.source, source, policy.name)
    return lines


def _agent_id(ledger: Ledger, agent: str | None) -> str | None:
    """The id of an agent by its name."""
    if agent is None:
        return None
    from weft.programs import Programs

    return Programs(ledger).get(agent, "agent").id


def _source_named(call: Call, name: str) -> PolicyInForce:
    """A file needs no ledger."""
    if name.endswith(".py"):
        return file_policy(name)
    with call.reading() as ledger:
        return named_policy(ledger, name)


def _shown_source(ledger: Ledger, name: str | None, agent: str | None) -> PolicySource:
    from weft.ledger.api import POLICY_URI, digest_of_source
    from weft.runtime.policies.policy_decisions import default_source

    policy = ledger.policies.active(_agent_id(ledger, agent)) if name in (None, DEFAULT) else None
    if name not in (None, DEFAULT):
        policy = ledger.policies.get(str(name))
    if name == DEFAULT or policy is None:
        source = default_source()
        return PolicySource(
            uri=POLICY_URI, id=None, name=DEFAULT, state="active", agent=None, digest=digest_of_source(source),
            source=source,
        )  # fmt: skip
    return PolicySource(
        uri=POLICY_URI,
        id=policy.id,
        name=policy.name,
        state=policy.state,
        agent=policy.agent,
        digest=policy.digest,
        source=source_of(policy),
        docstring=policy.docstring,
        notes=policy.notes,
        proposed_by=policy.proposed_by,
        proposed_at=policy.proposed_at,
        decided_by=policy.decided_by,
        decided_at=policy.decided_at,
    )


def _show_list(call: Call, policies: list[Policy]) -> None:
    if call.json:
        call.documents(policies)
    elif policies:
        call.screen.table(map(_row, policies), HEADER, spare=("tests", "by"))
    else:
        call.note("no policies: the one that comes with weft decides; `weft policy show` prints it")


def _row(policy: Policy) -> tuple[Span | str, ...]:
    tests = "" if policy.tests_total is None else f"{policy.tests_passed}/{policy.tests_total}"
    state = policy.state if policy.is_own else f"{policy.state} elsewhere"
    return (
        Span(_short(policy), "id"),
        policy.name,
        Span(state, STATE_STYLES.get(policy.state, "")),
        policy.agent or "all",
        tests,
        policy.decided_by or policy.proposed_by,
        local_time(policy.decided_at or policy.proposed_at),
    )


def _show_backtest(call: Call, report: Backtest) -> None:
    rows = [
        (
            str(group.calls),
            group.tool,
            group.before.value,
            Span(group.after.value, "good" if group.after == "allow" else "warn"),
            group.uses[0] if group.uses else "",
            group.rationale,
        )
        for group in report.groups
    ]
    if rows:
        call.screen.table(rows, GROUPS, numbers=("calls",), spare=("why", "for example"))
    would = ", ".join(f"{decision} {count}" for decision, count in report.decisions.items() if count)
    call.note(f"{counted(report.calls, 'call')} in {counted(report.turns, 'turn')}: {would or 'nothing to decide'}")
    call.note(f"{report.changed} decided otherwise; {report.recorded} compared with a recorded decision")
    if report.errors:
        call.note(Span(f"about {counted(report.errors, 'call')} the policy failed to decide", "bad"))


def _test_entry(result: OwnTestResult) -> PolicyTestEntry:
    return PolicyTestEntry(
        name=result.test.name,
        passed=result.has_passed,
        expected=result.test.decision.value,
        decision=result.answer.decision.value,
        rationale=result.answer.rationale,
    )


def _state(policy: Policy) -> Line:
    style = STATE_STYLES.get(policy.state, "")
    return ["policy ", Span(policy.name, "label"), " ", Span(_short(policy), "id"), " is ", Span(policy.state, style)]


def _short(policy: Policy) -> str:
    return policy.id[-SHORT_ID:]


# --- What the commands about approval policies have in common: which source is meant, its tests, what is shown.

DEFAULT = "default"
LARGEST_FILE_BYTES = 1024 * 1024
STATE_STYLES = {"active": "good", "proposal": "warn", "rejected": "dim", "replaced": "dim"}


def read_policy_file(file: str) -> str:
    """The source in a file, or with - on standard input."""
    try:
        if file == "-":
            data = sys.stdin.buffer.read(LARGEST_FILE_BYTES + 1)
        else:
            data = read_named_file(file, LARGEST_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}", "name a file with a policy") from None
    if len(data) > LARGEST_FILE_BYTES:
        raise InvalidInput(f"{file} is larger than {LARGEST_FILE_BYTES} bytes", "make the policy shorter")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidInput(f"{file} is not UTF-8", "save it as UTF-8") from None


def file_policy(file: str) -> PolicyInForce:
    from weft.runtime.policies.policy_decisions import PolicyInForce

    return PolicyInForce(id=None, name=Path(file).stem, source=read_policy_file(file))


def named_policy(ledger: Ledger, name: str) -> PolicyInForce:
    """A policy of the ledger, the one that comes with weft, or a file that ends in .py."""
    from weft.runtime.policies.policy_decisions import PolicyInForce, default_source

    if name.endswith(".py"):
        return file_policy(name)
    if name == DEFAULT:
        return PolicyInForce(id=None, name=DEFAULT, source=default_source())
    policy = ledger.policies.get(name)
    return PolicyInForce(id=policy.id, name=policy.name, source=source_of(policy))


def source_of(policy: Policy) -> str:
    """Raises InvalidInput where it is gone."""
    if policy.source is None:
        raise InvalidInput(f"the source of the policy {policy.name!r} was erased", "propose it again")
    return policy.source


def new_interpreters(call: Call) -> PolicyInterpreters:
    from weft.runtime.policies.policy_decisions import PolicyInterpreters
    from weft.surfaces.cli.work.sandbox_access import command_runner, nearby_ledger

    return PolicyInterpreters(command_runner(nearby_ledger(call.ledger)))


def tested(call: Call, source: str) -> tuple[PolicyOutline, list[OwnTestResult]]:
    """Read a policy and run its own tests, in the sandbox."""
    from weft.runtime.policies.policy_tests import read_outline, run_own_tests

    interpreters = new_interpreters(call)

    async def work() -> tuple[PolicyOutline, list[OwnTestResult]]:
        outline = await read_outline(interpreters.runner, source)
        with progress(call, "test the policy") as bar:
            return outline, await run_own_tests(interpreters, source, outline.tests, progress=bar.counted)

    try:
        return asyncio.run(work())
    finally:
        interpreters.stop()


def tests_line(counts: PolicyTests) -> Line:
    if not counts.total:
        return [Span("it has no tests", "warn")]
    style = "bad" if counts.failed else "good"
    return [Span(f"{counts.passed} of {counted(counts.total, 'test')} passed", style)]


def failed_lines(results: Sequence[OwnTestResult]) -> Iterator[Line]:
    for result in results:
        if not result.has_passed:
            answer = result.answer
            what = "failed" if answer.is_error else answer.decision.value
            yield [
                Span("failed ", "bad"),
                f"{result.test.name}: expected {result.test.decision.value}, was {what} ({answer.rationale})",
            ]


def source_lines(source: str) -> list[Line]:
    """With control and bidirectional characters escaped, line by line."""
    return [[line] for line in safe_lines(source)]


def difference_lines(before: str, after: str, name: str) -> list[Line]:
    styles = {"+": "good", "-": "bad", "@": "dim"}
    lines = difflib.unified_diff(safe_lines(before), safe_lines(after), "in force", name, lineterm="")
    return [[Span(line, styles.get(line[:1], ""))] for line in lines]


def present(call: Call, lines: Sequence[Line], yes: bool) -> None:
    """Show a person what they are asked about; nobody is asked without having been shown it."""
    if not (yes and (call.quiet or call.json)):
        for line in lines:
            click.echo(call.screen.render(line), err=True)
