"""What an approval policy is asked and answers, and how those in force decide about a tool call.

Each source has a warm interpreter in the sandbox, in which every decision has a process of its own.
What a person allowed once becomes a proposed policy: the one in force, with one more line.
"""

from __future__ import annotations

import ast
import asyncio
import json
import queue
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from enum import StrEnum
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from weft.kernel.authority import split_tool_rule
from weft.kernel.clock import system_random
from weft.kernel.contents import dumps, loads
from weft.kernel.enums import Decision, ProgramKind
from weft.kernel.errors import NotApplicable, NotFound, WeftError
from weft.ledger.api import Approval, Ledger, Policy, digest_of_source
from weft.programs.programs import Programs
from weft.runtime.policies import harness
from weft.runtime.policies.harness import OUTPUT_BYTES
from weft.runtime.sandbox.bubblewrap import Sandbox, SandboxedServer, ServerLost
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.sandbox.hidden_places import ProtectedPlaces
from weft.runtime.sandbox.processes import MIB, Limits
from weft.runtime.sandbox.sandbox_plan import PROGRAM_FOLDER, interpreter_files

# --- What an approval policy is asked and what it may answer.

INPUT_BYTES = 8 * 1024 * 1024
"""A call that is larger is not shown to a policy, and is refused."""
RATIONALE_CHARACTERS = 2_000
DECISION_SECONDS = 1.0
_LONGEST_QUOTE_CHARACTERS = 200


class PolicyContext(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The circumstances of a call, as a policy sees them. All of it comes from the host, `shown` and `subjects` from
    what the tool plans to do with the arguments."""

    agent: str | None = None
    session: str | None = None
    turn: str | None = None
    workspace: str | None = None
    toolset: str | None = None
    on_behalf_of: tuple[str, ...] = ()
    is_untrusted: bool = False
    """Whether words of strangers are in the context of the turn."""
    read_only: bool = False
    is_contained: bool = False
    """Whether it stays in the sandbox of a folder that the person trusts for work, and what it changes can be taken
    back."""
    not_contained: str = ""
    """In such a folder, why it is not contained."""
    subjects: tuple[str, ...] | None = ()
    """What the call is used on; None where that cannot be told."""
    hidden: tuple[str, ...] = ()
    """Those of the files that are hidden from commands in the sandbox, for they commonly hold secrets."""
    shown: str = ""


class PolicyCall(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool call that a policy decides on."""

    name: str
    arguments: Any = None
    context: PolicyContext = PolicyContext()


class PolicyAnswer(Struct, frozen=True, kw_only=True):
    """What came of asking a policy. Where `is_error`, it failed to answer, and the decision is a refusal."""

    decision: Decision
    rationale: str
    is_error: bool = False


class ScriptEnding(StrEnum):
    """How the process ended that ran a policy."""

    EXITED = "exited"
    TIMED_OUT = "timed_out"
    TOO_MUCH_OUTPUT = "too_much_output"
    LEFT_PROCESSES = "left_processes"
    UNREAD_INPUT = "unread_input"
    LOST = "lost"
    """It took its interpreter with it, or took more memory or processes than it may."""


class ScriptOutcome(Struct, frozen=True, kw_only=True):
    """What a policy wrote, and how it ended; a negative `code` is the signal that ended it."""

    ending: ScriptEnding
    code: int = 0
    stdout: bytes = b""
    stderr: bytes = b""
    why: str = ""
    """Of one that was lost."""


_ENDED = {
    ScriptEnding.TOO_MUCH_OUTPUT: "it wrote more than an answer can be",
    ScriptEnding.LEFT_PROCESSES: "it left processes running",
    ScriptEnding.UNREAD_INPUT: "it decided without reading the call",
    ScriptEnding.LOST: "it ended its interpreter",
}


class _Document(Struct, frozen=True, forbid_unknown_fields=True):
    decision: Decision
    rationale: str


def call_document(call: PolicyCall) -> bytes:
    """What a policy is given on its standard input. Raises a WeftError where the arguments have no JSON form."""
    return dumps(msgspec.to_builtins(call))


def failed_answer(why: str) -> PolicyAnswer:
    """The answer of a policy that gave none."""
    return PolicyAnswer(decision=Decision.DENY_CONTINUE, rationale=f"the policy failed: {why}", is_error=True)


def read_answer(outcome: ScriptOutcome, seconds: float = DECISION_SECONDS) -> PolicyAnswer:
    """The answer in what a policy wrote, or the error that it made."""
    if outcome.ending is not ScriptEnding.EXITED:
        limit = f"it took longer than {seconds:g} s"
        return failed_answer(outcome.why or _ENDED.get(outcome.ending, limit))
    if outcome.code != 0:
        ended = f"it was ended by signal {-outcome.code}" if outcome.code < 0 else f"it exited with {outcome.code}"
        return failed_answer(ended + _last_line(outcome.stderr))
    return _read_document(outcome.stdout)


def _read_document(data: bytes) -> PolicyAnswer:
    if len(data) > OUTPUT_BYTES:
        return failed_answer(_ENDED[ScriptEnding.TOO_MUCH_OUTPUT])
    if not data.strip():
        return failed_answer("it answered nothing")
    try:
        document = msgspec.convert(loads(data), _Document)
    except (WeftError, msgspec.ValidationError) as error:
        return failed_answer(
            f"its answer is not one JSON object with decision and rationale: {_short_text(str(error))}"
        )
    if not document.rationale.strip():
        return failed_answer("its answer has no rationale")
    if len(document.rationale) > RATIONALE_CHARACTERS:
        return failed_answer(f"its rationale is longer than {RATIONALE_CHARACTERS} characters")
    return PolicyAnswer(decision=document.decision, rationale=document.rationale)


def _last_line(stderr: bytes) -> str:
    """What Python says last of an exception is what it was."""
    lines = stderr.decode(errors="replace").strip().splitlines()
    return f" ({_short_text(lines[-1])})" if lines else ""


def _short_text(text: str) -> str:
    return text if len(text) <= _LONGEST_QUOTE_CHARACTERS else text[: _LONGEST_QUOTE_CHARACTERS - 1] + "…"


# --- Warm interpreters of policies: one sandbox per source, in which every decision has a process of its own.

POLICY_LIMITS = Limits(memory=256 * MIB, processes=16)
START_SECONDS = 10.0
GRACE_SECONDS = 1.0
"""So much longer is waited for the harness, which ends a policy that takes too long by itself."""
WARM_INTERPRETERS = 8
"""How many are held ready at once; the one unused for longest is stopped first."""
_HARNESS, _POLICY = "harness.py", harness.POLICY_PATH.removeprefix(f"{PROGRAM_FOLDER}/")
_ENDINGS = {
    harness.EXITED: ScriptEnding.EXITED,
    harness.TIMED_OUT: ScriptEnding.TIMED_OUT,
    harness.TOO_MUCH_OUTPUT: ScriptEnding.TOO_MUCH_OUTPUT,
    harness.LEFT_PROCESSES: ScriptEnding.LEFT_PROCESSES,
    harness.UNREAD_INPUT: ScriptEnding.UNREAD_INPUT,
}


class _Request(Struct, frozen=True):
    document: bytes
    seconds: float
    outcome: Future[ScriptOutcome]


_Requests = queue.SimpleQueue[_Request | None]


class PolicyInterpreter:
    """Runs one policy, warm. It is stopped by `stop`, and where nobody refers to it any longer."""

    def __init__(
        self, sandbox: Sandbox, source: str, protected: ProtectedPlaces, limits: Limits = POLICY_LIMITS
    ) -> None:
        self._requests: _Requests = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=_serve_interpreter,
            args=(self._requests, sandbox, source.encode(), protected, limits),
            name="weft-policy",
            daemon=True,
        )
        self._thread.start()
        self._end = weakref.finalize(self, self._requests.put, None)

    async def decide(self, call: PolicyCall, seconds: float = DECISION_SECONDS) -> PolicyAnswer:
        """What the policy decides about a call. Its failures are answers too, and refuse."""
        try:
            document = call_document(call)
        except WeftError as error:
            return failed_answer(f"it cannot be shown the call: {error}")
        if len(document) > INPUT_BYTES:
            return failed_answer(f"the call has more than {INPUT_BYTES} bytes")
        return read_answer(await self.run(document, seconds), seconds)

    async def run(self, document: bytes, seconds: float = DECISION_SECONDS) -> ScriptOutcome:
        """Run the policy once with this on its standard input."""
        request = _Request(document, seconds, Future())
        self._requests.put(request)
        return await asyncio.wrap_future(request.outcome)

    def stop(self) -> None:
        """End the sandbox, and wait for that. A decision under way is still answered."""
        self._end()
        self._thread.join()


class PolicyInterpreters:
    """The interpreters of one process, by the digest of their source. Policies never share one."""

    def __init__(self, runner: CommandRunner) -> None:
        self.runner = runner
        self._interpreters: OrderedDict[str, PolicyInterpreter] = OrderedDict()

    async def of(self, source: str) -> PolicyInterpreter:
        """The interpreter of this source. Raises Unsupported where there is no sandbox."""
        sandbox = await self.runner.sandbox()
        digest = digest_of_source(source)
        interpreter = self._interpreters.pop(digest, None) or PolicyInterpreter(sandbox, source, self.runner.protected)
        self._interpreters[digest] = interpreter
        while len(self._interpreters) > WARM_INTERPRETERS:
            self._interpreters.popitem(last=False)
        return interpreter

    def stop(self) -> None:
        while self._interpreters:
            self._interpreters.popitem()[1].stop()


def _serve_interpreter(
    requests: _Requests, sandbox: Sandbox, source: bytes, protected: ProtectedPlaces, limits: Limits
) -> None:
    """The thread of an interpreter. The sandbox is started with the first call, and again when it was lost."""
    server: SandboxedServer | None = None
    while (request := requests.get()) is not None:
        try:
            if server is None or server.has_ended:
                _stop_server(server)
                server = _start_server(sandbox, source, protected, limits)
            outcome = _exchange_decision(server, request.document, request.seconds)
        except ServerLost as lost:
            _stop_server(server)
            outcome, server = ScriptOutcome(ending=ScriptEnding.LOST, why=str(lost)), None
        except BaseException as error:  # it is raised where the decision is awaited
            _stop_server(server)
            server = None
            _settle_request(request, error)
            continue
        _settle_request(request, outcome)
    _stop_server(server)


def _settle_request(request: _Request, outcome: ScriptOutcome | BaseException) -> None:
    if not request.outcome.set_running_or_notify_cancel():
        return  # nobody waits for it any longer
    if isinstance(outcome, ScriptOutcome):
        request.outcome.set_result(outcome)
    else:
        request.outcome.set_exception(outcome)


def _stop_server(server: SandboxedServer | None) -> None:
    if server is not None:
        server.stop()


def _start_server(sandbox: Sandbox, source: bytes, protected: ProtectedPlaces, limits: Limits) -> SandboxedServer:
    python = Path(sys.executable).resolve()
    readable, hidden = interpreter_files()
    command = [str(python), "-I", "-S", "-B", _HARNESS]
    server = SandboxedServer(
        sandbox,
        command,
        protected,
        files={_HARNESS: Path(harness.__file__).read_bytes(), _POLICY: source},
        readable=[*readable, python],
        hidden=hidden,
        limits=limits,
    )
    try:
        nonce, ending, *_ = harness.REPLY.unpack(server.receive(harness.REPLY.size, time.monotonic() + START_SECONDS))
        if (nonce, ending) != (harness.NO_NONCE, harness.READY):
            raise ServerLost("its interpreter did not start")
    except BaseException:  # nothing is left behind, whatever it was
        server.stop()
        raise
    return server


def _exchange_decision(server: SandboxedServer, document: bytes, seconds: float) -> ScriptOutcome:
    """One decision. What does not carry the nonce of this call is no answer to it."""
    nonce = system_random(len(harness.NO_NONCE))
    deadline = time.monotonic() + seconds + GRACE_SECONDS
    server.send(harness.REQUEST.pack(nonce, int(seconds * 1000), len(document)) + document, deadline)
    return read_reply(nonce, lambda count: server.receive(count, deadline))


def read_reply(nonce: bytes, receive: Callable[[int], bytes]) -> ScriptOutcome:
    """What the harness says of the call with this nonce. Raises ServerLost where it says anything else."""
    echoed, ending, code, output_bytes, error_bytes = harness.REPLY.unpack(receive(harness.REPLY.size))
    if echoed != nonce or ending not in (*_ENDINGS, harness.CHANGED_SERVER):
        raise ServerLost("its interpreter answered another call")
    if ending == harness.CHANGED_SERVER:
        raise ServerLost("it changed the limits of its interpreter")
    if output_bytes > harness.OUTPUT_BYTES or error_bytes > harness.ERROR_BYTES:
        raise ServerLost("its interpreter answered with more than it may")
    stdout, stderr = receive(output_bytes), receive(error_bytes)
    return ScriptOutcome(ending=_ENDINGS[ending], code=code, stdout=stdout, stderr=stderr)


# --- Decides about a tool call by the approval policies in force.

DEFAULT_NAME = "default"
STRICTNESS = (Decision.ALLOW, Decision.ASK, Decision.DENY_CONTINUE, Decision.DENY_ABORT)


class PolicyInForce(Struct, frozen=True, kw_only=True):
    """A policy that is asked. The one that comes with weft has no id."""

    id: str | None
    name: str
    source: str | None
    """None where it was erased; then it refuses."""


class PolicyDecision(Struct, frozen=True, kw_only=True):
    """What the policies decide together, why, and which one it was."""

    decision: Decision
    rationale: str
    policy: str | None
    """The id; None for the policy that comes with weft."""
    policy_name: str
    is_error: bool = False


@cache
def default_source() -> str:
    """The policy that comes with weft."""
    return files("weft.runtime.policies").joinpath("default_policy.py").read_text(encoding="utf-8")


def policies_in_force(own: Policy | None, everybodys: Policy | None) -> tuple[PolicyInForce, ...]:
    """Of the active policy of an agent and that for all agents, those that are asked; never none."""
    chosen = tuple(
        PolicyInForce(id=policy.id, name=policy.name, source=policy.source)
        for policy in (own, everybodys)
        if policy is not None and policy.is_own
    )
    return chosen or (PolicyInForce(id=None, name=DEFAULT_NAME, source=default_source()),)


async def decide(
    interpreters: PolicyInterpreters,
    call: PolicyCall,
    policies: Sequence[PolicyInForce],
    seconds: float = DECISION_SECONDS,
) -> PolicyDecision:
    """Ask all of them at once. The strictest answer holds; of equals, that of the policy named first."""
    answers = await asyncio.gather(*(_policy_answer(interpreters, call, policy, seconds) for policy in policies))
    decisions = [
        PolicyDecision(
            decision=answer.decision,
            rationale=answer.rationale,
            policy=policy.id,
            policy_name=policy.name,
            is_error=answer.is_error,
        )
        for policy, answer in zip(policies, answers, strict=True)
    ]
    return max(decisions, key=lambda one: STRICTNESS.index(one.decision))


async def _policy_answer(
    interpreters: PolicyInterpreters, call: PolicyCall, policy: PolicyInForce, seconds: float
) -> PolicyAnswer:
    if policy.source is None:
        return failed_answer("its source was erased")
    try:
        return await (await interpreters.of(policy.source)).decide(call, seconds)
    except WeftError as error:
        return failed_answer(f"it could not be run: {error}")


# --- Adds a line to the list ALLOW of a policy: what a person allows for good becomes a proposal of the same policy.

# --- Adds a line to the list ALLOW of a policy: what a person allows for good becomes a proposal of the same policy.

ALLOW_NAME = "ALLOW"
_PATTERN_CHARACTERS = frozenset("*?")


def rules_for(tool: str, subjects: Sequence[str] | None) -> tuple[str, ...] | None:
    """The lines that allow exactly this use of a tool again. None where no line says exactly that: it is not known
    what the call is used on, or that holds a character which stands for others in a pattern."""
    if subjects is None or not subjects:
        return None
    if any(_PATTERN_CHARACTERS & set(subject) or subject != subject.strip() or not subject for subject in subjects):
        return None
    rules = tuple(dict.fromkeys(f"{tool}({subject})" for subject in subjects))
    return None if any(split_tool_rule(rule) is None for rule in rules) else rules


def proposed_rule(source: str, pattern: str) -> str | None:
    """The source of a policy with one more line in its list ALLOW. None where it has no such list of texts, where the
    line is in it already, or where the pattern is none."""
    if split_tool_rule(pattern) is None or not pattern.isprintable():
        return None
    lines = _allow_list(source)
    if lines is None:
        return None
    present, node = lines
    if pattern in present or node.end_lineno is None or node.end_col_offset is None:
        return None
    rows = source.splitlines(keepends=True)
    place = sum(len(row.encode()) for row in rows[: node.end_lineno - 1]) + node.end_col_offset - 1
    data = source.encode()
    before = data[:place].decode().rstrip()
    comma = "" if before.endswith(("[", ",")) else ","
    proposal = f"{before}{comma}\n    {json.dumps(pattern, ensure_ascii=False)},\n{data[place:].decode()}"
    return proposal if _is_same_but_for(source, proposal, [*present, pattern]) else None


def _allow_list(source: str) -> tuple[list[str], ast.List] | None:
    tree = _parse_source(source)
    nodes = [] if tree is None else [node.value for node in tree.body if _assigns_allow(node)]  # type: ignore[attr-defined]
    if len(nodes) != 1 or not isinstance(nodes[0], ast.List):
        return None
    texts = [item.value for item in nodes[0].elts if isinstance(item, ast.Constant) and isinstance(item.value, str)]
    return (texts, nodes[0]) if len(texts) == len(nodes[0].elts) else None


def _assigns_allow(node: ast.stmt) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return any(isinstance(target, ast.Name) and target.id == ALLOW_NAME for target in targets)


def _is_same_but_for(source: str, proposal: str, allowed: list[str]) -> bool:
    """Whether the proposal is the same program with this list."""
    old, new = _allow_list(source), _allow_list(proposal)
    if old is None or new is None or new[0] != allowed:
        return False
    trees = []
    for text in (source, proposal):
        tree = _parse_source(text)
        assert tree is not None
        for node in tree.body:
            if _assigns_allow(node):
                node.value = ast.Constant(None)  # type: ignore[attr-defined]
        trees.append(ast.dump(tree))
    return trees[0] == trees[1]


def _parse_source(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


# --- Turns what a person allowed once into a proposed policy: the policy in force, with one more line per use of the
# tool.

ELSE = "approve it once, or for the session"


class RuleProposal(Struct, frozen=True, kw_only=True):
    """The source of a policy with the lines in it, not proposed yet."""

    name: str
    agent: str | None
    source: str
    rules: tuple[str, ...]
    docstring: str | None


def rule_proposals(ledger: Ledger, approval: Approval) -> list[RuleProposal]:
    """One for each policy in force that does not allow the call by such lines. Raises NotApplicable where no line says
    exactly what was asked for."""
    rules = rules_for(approval.tool, approval.subjects)
    if rules is None:
        raise NotApplicable(f"no rule says exactly what {approval.tool!r} would be used on", ELSE)
    proposals = [_rule_proposal(policy, rules) for policy in _in_force(ledger, approval)]
    listed = [proposal for proposal in proposals if proposal is not None]
    if not listed:
        raise NotApplicable("no policy in force has a list that the rule can stand in", ELSE)
    return listed


def propose_rules(ledger: Ledger, approval: Approval, proposals: list[RuleProposal]) -> list[Policy]:
    """Record the proposals."""
    return [
        ledger.policies.propose(
            proposal.name,
            proposal.source,
            agent=proposal.agent,
            docstring=proposal.docstring,
            notes=f"allows {', '.join(proposal.rules)}; approved as {approval.id[:12]}",
        )
        for proposal in proposals
    ]


def _in_force(ledger: Ledger, approval: Approval) -> list[Policy | None]:
    """The agent's own policy and that for all agents; None stands for the one that comes with weft."""
    try:
        agent = Programs(ledger).get(approval.agent, ProgramKind.AGENT).id
    except NotFound:
        agent = None
    own = None if agent is None else ledger.policies.active(agent)
    policies = [policy for policy in (own, ledger.policies.active()) if policy is not None]
    return [*policies] or [None]


def _rule_proposal(policy: Policy | None, rules: tuple[str, ...]) -> RuleProposal | None:
    source = default_source() if policy is None else policy.source
    is_changed = False
    for rule in rules:
        changed = None if source is None else proposed_rule(source, rule)
        source, is_changed = (source, is_changed) if changed is None else (changed, True)
    if source is None or not is_changed:
        return None
    if policy is None:
        docstring = ast.get_docstring(ast.parse(default_source()))
        return RuleProposal(name=DEFAULT_NAME, agent=None, source=source, rules=rules, docstring=docstring)
    return RuleProposal(name=policy.name, agent=policy.agent, source=source, rules=rules, docstring=policy.docstring)
