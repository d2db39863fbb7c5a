"""Code programs in three languages: what they get, what they give, and what they cannot do."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.sandbox import UNPROTECTED
from weft.kernel.errors import NoCanonicalForm, Unsupported
from weft.runtime.sandbox import command_runner
from weft.runtime.sandbox.bubblewrap import Sandbox
from weft.runtime.sandbox.command_runner import CodeOutcome, CommandRunner, Language, run_code
from weft.runtime.sandbox.processes import MIB, Ending, Limits

JAVASCRIPT, TYPESCRIPT, PYTHON = Language.JAVASCRIPT, Language.TYPESCRIPT, Language.PYTHON
DOUBLE = {
    JAVASCRIPT: "export default (input) => ({ twice: input.n * 2 })",
    TYPESCRIPT: "export default async function (input: { n: number }) { return { twice: input.n * 2 } }",
    PYTHON: "def main(input):\n    return {'twice': input['n'] * 2}",
}
FOREVER = {JAVASCRIPT: "export default () => { for (;;); }", PYTHON: "def main(input):\n    while True:\n        pass"}
FAILING = {
    JAVASCRIPT: "export default () => { throw new Error('on purpose') }",
    PYTHON: "def main(input):\n    raise ValueError('on purpose')",
}
GREEDY = {
    JAVASCRIPT: "export default () => { const a = []; for (;;) a.push(new Array(10000).fill(a.length)) }",
    PYTHON: "def main(input):\n    x = 'x' * 1000\n    while True:\n        x += x",
}
PRINTING = {
    JAVASCRIPT: "export default () => { console.log('hello'); return 1 }",
    PYTHON: "def main(input):\n    print('hello')\n    return 1",
}


def run(sandbox: Sandbox, language: Language, source: str, input: Any = None, **limits: Any) -> CodeOutcome:
    return asyncio.run(
        run_code(
            CommandRunner(UNPROTECTED, sandbox=sandbox),
            language,
            source,
            input,
            Limits(**{"memory": 64 * MIB, **limits}),
        )
    )


@pytest.mark.parametrize("language", Language)
def test_a_program_turns_input_into_a_result(sandbox: Sandbox, language: Language) -> None:
    assert run(sandbox, language, DOUBLE[language], {"n": 21}).result == {"twice": 42}


@pytest.mark.parametrize("language", FAILING)
def test_a_failing_program_has_an_error_and_no_result(sandbox: Sandbox, language: Language) -> None:
    outcome = run(sandbox, language, FAILING[language])
    assert not outcome.succeeded
    assert outcome.error is not None
    assert "on purpose" in outcome.error
    assert outcome.result is None


@pytest.mark.parametrize("language", FOREVER)
def test_a_program_that_does_not_end_is_ended(sandbox: Sandbox, language: Language) -> None:
    outcome = run(sandbox, language, FOREVER[language], seconds=0.7)
    assert outcome.error
    assert outcome.ending is Ending.TIMED_OUT or "TimeoutError" in outcome.error


@pytest.mark.parametrize("language", GREEDY)
def test_a_program_that_takes_too_much_memory_is_ended(sandbox: Sandbox, language: Language) -> None:
    assert run(sandbox, language, GREEDY[language]).error


@pytest.mark.parametrize("language", PRINTING)
def test_what_a_program_prints_is_kept_beside_its_result(sandbox: Sandbox, language: Language) -> None:
    outcome = run(sandbox, language, PRINTING[language])
    assert (outcome.result, outcome.printed) == (1, "hello\n")


@pytest.mark.parametrize(
    ("language", "source"),
    [
        (JAVASCRIPT, "export default () => Deno.readTextFileSync('/etc/hostname')"),
        (JAVASCRIPT, "export default () => Deno.readTextFileSync('runner.mjs')"),
        (JAVASCRIPT, "export default () => Deno.writeTextFileSync('x', 'x')"),
        (JAVASCRIPT, "export default () => Deno.env.toObject()"),
        (JAVASCRIPT, "export default () => new Deno.Command('sh').outputSync()"),
        (JAVASCRIPT, "export default () => fetch('http://127.0.0.1:1/')"),
        (JAVASCRIPT, "import 'https://example.com/x.js'; export default () => 1"),
        (JAVASCRIPT, "import 'npm:left-pad'; export default () => 1"),
        (PYTHON, "def main(input):\n    return open('/etc/hostname').read()"),
        (PYTHON, "import subprocess\ndef main(input):\n    return 1"),
        (PYTHON, "import socket\ndef main(input):\n    return 1"),
        (PYTHON, "import os\ndef main(input):\n    return os.environ['HOME']"),
        (JAVASCRIPT, "export default 1"),
        (JAVASCRIPT, "not a program"),
        (PYTHON, "def other():\n    return 1"),
        (PYTHON, "def main(:"),
        (PYTHON, "def main(input):\n    return float('nan')"),
    ],
)
def test_what_a_program_must_not_or_cannot_do_is_its_error(sandbox: Sandbox, language: Language, source: str) -> None:
    outcome = run(sandbox, language, source)
    assert outcome.error
    assert outcome.result is None


def test_a_program_that_forges_its_answer_has_none(sandbox: Sandbox) -> None:
    source = "export default () => { Deno.stdout.writeSync(new TextEncoder().encode('{}')); return 1 }"
    assert not run(sandbox, JAVASCRIPT, source).succeeded


def test_too_much_output_ends_a_program(sandbox: Sandbox) -> None:
    source = "export default () => { for (;;) console.log('x'.repeat(1000)) }"
    assert run(sandbox, JAVASCRIPT, source, output=10_000).ending is Ending.TOO_MUCH_OUTPUT


def test_input_that_is_no_json_is_refused(sandbox: Sandbox) -> None:
    with pytest.raises(NoCanonicalForm):
        run(sandbox, PYTHON, DOUBLE[PYTHON], float("nan"))


def test_nothing_of_a_program_stays(sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run(sandbox, TYPESCRIPT, DOUBLE[TYPESCRIPT], {"n": 1})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("language", [JAVASCRIPT, PYTHON])
def test_without_its_runtime_a_language_is_unsupported(
    sandbox: Sandbox, language: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_runner, "find_spec", lambda _: None)
    with pytest.raises(Unsupported, match="need"):
        run(sandbox, language, DOUBLE[language], {"n": 1})
