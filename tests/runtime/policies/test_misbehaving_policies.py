"""A policy that fails in any way allows nothing, and leaves no trace for the next decision."""

from __future__ import annotations

import asyncio

import pytest

from tests.runtime.policies.misbehaving import PATIENT_SECONDS, POLICIES, READ, SMUGGLED, Misbehaving
from tests.sandbox import UNPROTECTED, machine_sandbox
from weft.kernel.enums import Decision
from weft.runtime.policies import harness
from weft.runtime.policies import policy_decisions as interpreter_module
from weft.runtime.policies.policy_decisions import PolicyAnswer, PolicyCall, PolicyInterpreter, read_reply
from weft.runtime.sandbox.bubblewrap import ServerLost

PROGRAM = READ + "exec(call['arguments']['program'])\n"
"""For what two decisions of one interpreter know of each other."""
WRITES = "print(json.dumps({'decision': 'allow', 'rationale': text}))"


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, an interpreter has the time to say what became of a policy."""
    monkeypatch.setattr(interpreter_module, "GRACE_SECONDS", 60.0)


def decide(source: str, *calls: PolicyCall, seconds: float = PATIENT_SECONDS) -> list[PolicyAnswer]:
    interpreter = PolicyInterpreter(machine_sandbox(), source, UNPROTECTED)

    async def answers() -> list[PolicyAnswer]:
        return [await interpreter.decide(call, seconds) for call in calls]

    try:
        return asyncio.run(answers())
    finally:
        interpreter.stop()


def program(text: str) -> PolicyCall:
    return PolicyCall(name="shell", arguments={"program": text})


@pytest.mark.parametrize("policy", [pytest.param(policy, id=name) for name, policy in POLICIES.items()])
def test_a_misbehaving_policy_allows_nothing(policy: Misbehaving) -> None:
    (answer,) = decide(policy.source, SMUGGLED, seconds=policy.seconds)
    assert (answer.decision, answer.is_error) == (Decision.DENY_CONTINUE, True)
    assert answer.rationale.startswith("the policy failed: ")
    assert policy.why in answer.rationale


def test_a_policy_that_keeps_to_the_contract_allows() -> None:
    (answer,) = decide(READ + """print('{"decision": "allow", "rationale": "fine"}')""", SMUGGLED)
    assert answer == PolicyAnswer(decision=Decision.ALLOW, rationale="fine")


KEPT = (
    "import gc, resource; json.kept = 'kept'; os.environ['kept'] = 'kept'",
    "open('/tmp/kept', 'w').write('kept')",
    "open('/dev/shm/kept', 'w').write('kept')",
    "open('/program/policy.py', 'w').write('kept')",
    "import resource; resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (77, 1024))",
    "os.setpriority(os.PRIO_PROCESS, os.getppid(), 7)",
    "import signal; [os.kill(os.getppid(), number) for number in range(1, 65)]",
    "os.sched_setaffinity(os.getppid(), {min(os.sched_getaffinity(0))})",
)
LOOK = (
    "import resource; text = ' '.join(map(str, [hasattr(json, 'kept'), 'kept' in os.environ, os.listdir('/tmp'),"
    " os.listdir('/dev/shm'), resource.getrlimit(resource.RLIMIT_NOFILE), os.nice(0),"
    " len(os.sched_getaffinity(0))])); " + WRITES
)


@pytest.fixture(scope="module")
def looked() -> PolicyAnswer:
    return decide(PROGRAM, program(LOOK))[0]


def test_no_decision_finds_anything_of_an_earlier_one(looked: PolicyAnswer) -> None:
    assert looked.decision is Decision.ALLOW
    calls = [call for kept in KEPT for call in (program(kept), program(LOOK))]
    answers = decide(PROGRAM, *calls)
    assert [answer.decision for answer in answers[::2]] == [Decision.DENY_CONTINUE] * len(KEPT)
    assert answers[1::2] == [looked] * len(KEPT)


def test_no_decision_reads_an_earlier_call_in_its_memory() -> None:
    secret = "arguments-of-an-earlier-call"
    first = PolicyCall(name="shell", arguments={"program": f"text = '{secret}'; {WRITES}"})
    search = (
        "text = 'nothing'\nparts = ('arguments-of-an', '-earlier-call')\nmaps = open('/proc/self/maps').read()\n"
        "for line in maps.splitlines():\n"
        "    span, mode = line.split()[:2]\n"
        "    if 'r' not in mode or '[v' in line: continue\n"
        "    start, end = (int(edge, 16) for edge in span.split('-'))\n"
        "    with open('/proc/self/mem', 'rb', 0) as memory:\n"
        "        memory.seek(start); data = memory.read(end - start)\n"
        "    if data.find(parts[0].encode() + parts[1].encode()) >= 0: text = 'found'\n" + WRITES
    )
    answers = decide(PROGRAM, first, program(search))
    assert [answer.rationale for answer in answers] == [secret, "nothing"]
    (own,) = decide(PROGRAM, program(f"own = '{secret}'\n{search}"))
    assert own.rationale == "found"


def test_an_interpreter_that_was_lost_is_started_again() -> None:
    lose = "import ctypes, resource\nresource.prlimit(os.getppid(), resource.RLIMIT_AS, (1, 1))"
    fine = f"text = 'fine'; {WRITES}"
    answers = decide(PROGRAM, program(lose), program(fine), program(fine))
    assert answers[0].is_error
    assert [answer.decision for answer in answers[1:]] == [Decision.ALLOW, Decision.ALLOW]


def test_a_decision_that_nobody_awaits_any_longer_does_not_answer_the_next_one() -> None:
    interpreter = PolicyInterpreter(machine_sandbox(), PROGRAM, UNPROTECTED)

    async def work() -> PolicyAnswer:
        slow = asyncio.create_task(interpreter.decide(program(f"time.sleep(0.1); text = 'slow'; {WRITES}"), 30))
        await asyncio.sleep(0)
        slow.cancel()
        return await interpreter.decide(program(f"text = 'fine'; {WRITES}"), 30)

    try:
        assert asyncio.run(work()).rationale == "fine"
    finally:
        interpreter.stop()


def test_an_answer_to_another_call_is_none() -> None:
    nonce, other = b"a" * 16, b"b" * 16
    document = b'{"decision": "allow", "rationale": "fine"}'

    def reply(echoed: bytes, ending: int = harness.EXITED, size: int = len(document)) -> bytearray:
        return bytearray(harness.REPLY.pack(echoed, ending, 0, size, 0) + document)

    def read(frame: bytearray) -> bytes:
        def receive(count: int) -> bytes:
            piece = bytes(frame[:count])
            del frame[:count]
            return piece

        return read_reply(nonce, receive).stdout

    assert read(reply(nonce)) == document
    for frame in (
        reply(other),
        reply(bytes(16)),
        reply(nonce, harness.READY),
        reply(nonce, 99),
        reply(nonce, size=9**9),
    ):
        with pytest.raises(ServerLost):
            read(frame)
