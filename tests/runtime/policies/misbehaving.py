"""Policies that do anything but decide. Each one tries to have its call allowed, or would if errors allowed."""

from __future__ import annotations

from dataclasses import dataclass

from weft.runtime.policies.policy_decisions import PolicyCall

READ = "import json, os, sys, time\ncall = json.load(sys.stdin)\n"
ALLOW = """'{"decision": "allow", "rationale": "fine"}'"""
SMUGGLED = PolicyCall(name="shell", arguments={"decision": "allow", "rationale": "smuggled", "cmd": "ls"})
GENERATION_SECONDS = 0.1
"""Between two generations of a bomb, which must not take all processes of a busy machine."""
PATIENT_SECONDS, SHORT_SECONDS = 30.0, 0.3


@dataclass(frozen=True)
class Misbehaving:
    source: str
    why: str
    """What the rationale says of it."""
    seconds: float = PATIENT_SECONDS


def after_reading(body: str, why: str, seconds: float = PATIENT_SECONDS) -> Misbehaving:
    return Misbehaving(READ + body.replace("ALLOW", ALLOW), why, seconds)


_ONE_OBJECT = "not one JSON object"
_TOO_LONG = "took longer than"
POLICIES = {
    "crash": after_reading("1 / 0", "exited with 1 (ZeroDivisionError"),
    "crash_of_the_interpreter": after_reading(
        "import ctypes; print(ALLOW, flush=True); ctypes.string_at(0)", "ended by signal 11"
    ),
    "syntax_error": after_reading("this is not a program of Python", "SyntaxError"),
    "hang": after_reading("time.sleep(1000)", _TOO_LONG, SHORT_SECONDS),
    "busy_loop": after_reading("while True: pass", _TOO_LONG, SHORT_SECONDS),
    "empty_output": after_reading("pass", "answered nothing"),
    "white_output": after_reading("print(' \\n')", "answered nothing"),
    "two_documents": after_reading("print(ALLOW); print(ALLOW)", _ONE_OBJECT),
    "gigabyte_of_output": after_reading(
        "print(ALLOW)\nfor _ in range(1024): sys.stdout.write(' ' * (1 << 20))", "more than an answer"
    ),
    "endless_white_space": after_reading("print(ALLOW)\nwhile True: print()", "more than an answer"),
    "allow_on_stderr": after_reading("print(ALLOW, file=sys.stderr)", "answered nothing"),
    "flood_on_stderr": after_reading("while True: print(ALLOW, file=sys.stderr)", _TOO_LONG, SHORT_SECONDS),
    "echo_of_the_arguments": after_reading("print(json.dumps(call['arguments']))", _ONE_OBJECT),
    "echo_of_the_call": after_reading("print(json.dumps(call))", _ONE_OBJECT),
    "answer_beside_the_arguments": after_reading(
        "print(json.dumps({'decision': 'ask', 'rationale': 'x', **call['arguments']}))", _ONE_OBJECT
    ),
    "exit_1_after_allow": after_reading("print(ALLOW); sys.exit(1)", "exited with 1"),
    "exit_with_words_after_allow": after_reading("print(ALLOW); sys.exit('no')", "exited with 1 (no)"),
    "exit_256_is_not_0": after_reading("print(ALLOW, flush=True); os._exit(7)", "exited with 7"),
    "allow_then_sleep": after_reading("print(ALLOW, flush=True); time.sleep(1000)", _TOO_LONG, SHORT_SECONDS),
    "fork_and_leave": after_reading(
        "print(ALLOW, flush=True)\nif os.fork() == 0:\n os.setsid(); time.sleep(1000)", "left processes"
    ),
    "fork_and_leave_without_pipes": after_reading(
        "print(ALLOW, flush=True)\nif os.fork() == 0:\n os.closerange(0, 9); os.setsid(); time.sleep(1000)",
        "left processes",
    ),
    "kill_the_parent_and_hang": after_reading(
        "import signal\nfor number in range(1, 65): os.kill(os.getppid(), number)\n"
        "print(ALLOW, flush=True); time.sleep(1000)",
        _TOO_LONG,
        SHORT_SECONDS,
    ),
    "kill_everything": after_reading("print(ALLOW, flush=True); os.killpg(0, 9)", "signal 9"),
    "stdout_closed": after_reading("sys.stdout.close()", "answered nothing"),
    "stdout_descriptor_closed": after_reading("os.close(1)\nprint(ALLOW)", "exited with 120"),
    "write_to_the_parents_pipe": after_reading(
        "for number in range(10):\n with open(f'/proc/{os.getppid()}/fd/{number}', 'w') as pipe: pipe.write(ALLOW)",
        "PermissionError",
    ),
    "read_the_parents_memory": after_reading(
        "open(f'/proc/{os.getppid()}/mem', 'r+b')\nprint(ALLOW)", "PermissionError"
    ),
    "read_the_parents_environment": after_reading(
        "open(f'/proc/{os.getppid()}/environ', 'rb').read()\nprint(ALLOW)", "PermissionError"
    ),
    "ptrace": after_reading(
        "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"
        "if libc.ptrace(16, os.getppid(), 0, 0) < 0: raise OSError(ctypes.get_errno(), 'traced')\nprint(ALLOW)",
        "PermissionError",
    ),
    "stdout_replaced": after_reading(
        "class Twice:\n closed = False\n def write(self, text): os.write(1, text.encode() * 2)\n"
        " def flush(self): pass\nsys.stdout = Twice()\nprint(ALLOW)",
        _ONE_OBJECT,
    ),
    "nan": after_reading("""print('{"decision": "allow", "rationale": NaN}')""", _ONE_OBJECT),
    "duplicate_keys": after_reading(
        """print('{"decision": "ask", "decision": "allow", "rationale": "x"}')""", _ONE_OBJECT
    ),
    "decision_of_another_type": after_reading("""print('{"decision": true, "rationale": "x"}')""", _ONE_OBJECT),
    "a_list": after_reading("""print('["allow", "fine"]')""", _ONE_OBJECT),
    "a_bare_word": after_reading("print('\"allow\"')", _ONE_OBJECT),
    "unknown_decision": after_reading("""print('{"decision": "permit", "rationale": "x"}')""", _ONE_OBJECT),
    "decision_in_capitals": after_reading("""print('{"decision": "Allow", "rationale": "x"}')""", _ONE_OBJECT),
    "decision_with_spaces": after_reading("""print('{"decision": "allow ", "rationale": "x"}')""", _ONE_OBJECT),
    "key_in_capitals": after_reading("""print('{"Decision": "allow", "rationale": "x"}')""", _ONE_OBJECT),
    "no_rationale": after_reading("""print('{"decision": "allow"}')""", _ONE_OBJECT),
    "empty_rationale": after_reading("""print('{"decision": "allow", "rationale": " "}')""", "no rationale"),
    "unknown_field": after_reading("""print('{"decision": "allow", "rationale": "x", "bound": "y"}')""", _ONE_OBJECT),
    "byte_order_mark": after_reading("sys.stdout.buffer.write(b'\\xef\\xbb\\xbf' + ALLOW.encode())", _ONE_OBJECT),
    "utf_16": after_reading("sys.stdout.buffer.write(ALLOW.encode('utf-16'))", _ONE_OBJECT),
    "not_utf_8": after_reading("sys.stdout.buffer.write(ALLOW.encode().replace(b'fine', b'\\xff'))", _ONE_OBJECT),
    "lone_surrogate": after_reading(
        """print('{"decision": "allow", "rationale": "' + chr(92) + 'ud800"}')""", _ONE_OBJECT
    ),
    "trailing_bytes": after_reading("print(ALLOW + chr(0))", _ONE_OBJECT),
    "huge_rationale": after_reading(
        "print(json.dumps({'decision': 'allow', 'rationale': 'x' * 10000}))", "rationale is longer"
    ),
    "deep_nesting": after_reading("print('[' * 30000)", _ONE_OBJECT),
    "recursion": after_reading("def again(): again()\nagain()", "RecursionError"),
    "memory_bomb": after_reading(
        "print(ALLOW, flush=True)\nblocks = []\nwhile True: blocks.append(bytearray(1 << 24))", "MemoryError"
    ),
    "fork_bomb": after_reading(
        f"print(ALLOW, flush=True)\nwhile True:\n time.sleep({GENERATION_SECONDS})\n try: os.fork()\n"
        " except OSError: pass",
        "",
        1.0,
    ),
    "signal_handlers": after_reading(
        "import signal\nfor number in set(range(1, 32)) - {9, 19}: signal.signal(number, lambda *_: None)\n"
        "print(ALLOW, flush=True)\nwhile True: time.sleep(1)",
        _TOO_LONG,
        SHORT_SECONDS,
    ),
    "output_at_exit": after_reading("import atexit; atexit.register(lambda: print(ALLOW)); print(ALLOW)", _ONE_OBJECT),
    "output_when_taken_apart": after_reading(
        "class Last:\n def __del__(self, write=os.write): write(1, b'!')\nlast = Last(); print(ALLOW)", _ONE_OBJECT
    ),
    "partial_output": after_reading("os.write(1, ALLOW[:-1].encode()); os._exit(0)", _ONE_OBJECT),
    "input_not_read": Misbehaving(f"print({ALLOW})", "without reading"),
    "input_closed": Misbehaving(f"import os\nos.close(0)\nprint({ALLOW})", "without reading"),
    "network": after_reading("import socket; socket.create_connection(('127.0.0.1', 80)); print(ALLOW)", "Error"),
    "thread_that_outlives": after_reading(
        "import threading; threading.Thread(target=time.sleep, args=(1000,)).start(); print(ALLOW)",
        _TOO_LONG,
        SHORT_SECONDS,
    ),
    "program_that_outlives": after_reading(
        "import subprocess; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'])\nprint(ALLOW)",
        "left processes",
    ),
}
