"""What is asked before the rules are compiled: it lets every text through in which a rule finds something."""

from __future__ import annotations

import random
import re
import string
from base64 import b64encode
from functools import cache
from re import _constants as kind  # type: ignore[attr-defined, unused-ignore]
from re import _parser as parser  # type: ignore[attr-defined, unused-ignore]
from typing import Any

import kingfisher_sdk
import orjson
import pytest

import weft
from scripts.generate_secret_patterns import looser, python_expression
from tests.attacks.pattern_checks import Use, reasons
from tests.credentials import CACHE, Maker
from weft.ledger.api.ledger import Ledger
from weft.ledger.secrets.scan import (
    COMPONENTS,
    LONGEST_BYTES,
    PATTERNS,
    QUICK_BYTES,
    CompiledRules,
    Kingfisher,
    RulePatterns,
    in_short,
    load_patterns,
)

KEY = b"key"


@cache
def catalog() -> Any:
    return kingfisher_sdk.Rules(cache_dir=CACHE / "weft")


@cache
def native() -> Any:
    return kingfisher_sdk.Scanner(
        catalog(), policy=kingfisher_sdk.DetectionPolicy(inline_ignores=False, markup_context=False)
    )


def patterns() -> RulePatterns:
    loaded = load_patterns(kingfisher_sdk.__version__)
    assert loaded is not None, "scripts/generate_secret_patterns.py makes the table of another version"
    return loaded


def fresh() -> Kingfisher:
    """As a process begins with it."""
    return Kingfisher(kingfisher_sdk, CACHE / "weft")


class ExampleMaker:
    """Texts that an expression matches, by walking it with a source of chance."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def text(self, tree: Any) -> str:
        return "".join(self._item(op, value) for op, value in tree)

    def _item(self, op: Any, value: Any) -> str:
        if op is kind.LITERAL:
            return chr(value)
        if op in (kind.ANY, kind.NOT_LITERAL):
            return "k"
        if op is kind.IN:
            return self._random.choice(letters_of(value))
        if op is kind.SUBPATTERN:
            return self.text(value[-1])
        if op is kind.BRANCH:
            return self.text(self._random.choice(value[1]))
        if op in (kind.MAX_REPEAT, kind.MIN_REPEAT):
            least, most, inner = value
            count = self._random.randint(least, min(most, least + 3))
            return "".join(self.text(inner) for _ in range(count))
        return ""


def letters_of(members: Any) -> str:
    shape = re.compile("[" + "".join(member_text(*member) for member in members) + "]")
    plain = [letter for letter in string.ascii_letters + string.digits if shape.match(letter)]
    return "".join(plain or [letter for letter in string.printable if shape.match(letter)])


def member_text(op: Any, value: Any) -> str:
    if op is kind.NEGATE:
        return "^"
    if op is kind.CATEGORY:
        return {"SPACE": r"\s", "WORD": r"\w", "DIGIT": r"\d", "NOT_SPACE": r"\S"}[str(value).removeprefix("CATEGORY_")]
    return re.escape(chr(value)) if op is kind.LITERAL else f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}"


@cache
def examples() -> dict[str, bytes]:
    """By rule a text in which the whole set of rules finds something by it; not every rule lets itself be met so."""
    made: dict[str, bytes] = {}
    for rule in catalog().metadata():
        if not (rule["visible"] or rule["id"] in COMPONENTS):
            continue
        tree = parser.parse(python_expression(catalog().detail(rule["id"])["detection_regex"]))
        for seed in range(12):
            text = f"words before\n{ExampleMaker(seed).text(tree)}\nand after".encode()
            if rule["id"] in found_in(text):
                made[rule["id"]] = text
                break
    return made


def found_in(text: bytes) -> set[str]:
    return {found.rule_id for found in native().scan(text) if found.visible or found.rule_id in COMPONENTS}


@pytest.mark.slow("reads the expressions of all rules anew")
def test_the_table_is_that_of_the_rules_that_are_installed() -> None:
    rules = {rule["id"]: rule for rule in catalog().metadata() if rule["visible"] or rule["id"] in COMPONENTS}
    table = orjson.loads(PATTERNS.read_bytes())
    assert (table["version"], table["count"]) == (kingfisher_sdk.__version__, len(catalog()))
    assert table["rules"] == {
        name: looser(catalog().detail(name)["detection_regex"]) | {"kind": in_short(rule["name"])}
        for name, rule in rules.items()
    }


@pytest.mark.slow("makes a text for each of hundreds of rules, and asks all rules about it")
def test_every_text_in_which_a_rule_finds_something_is_handed_to_the_rules() -> None:
    met = examples()
    assert len(met) > 0.8 * len(patterns().rules)
    assert [rule for rule, text in met.items() if not patterns().may_match(text)] == []
    assert [rule for rule, text in met.items() if not patterns().rules[rule].may_match(text, text.lower())] == []


@pytest.mark.slow("asks all rules, and what stands for them, about hundreds of texts")
def test_what_stands_in_base64_is_handed_to_the_rules_too() -> None:
    for encode in (b64encode, lambda text: b64encode(b64encode(text))):
        wrapped = {rule: b"blob: " + encode(text + b" " * (-len(text) % 12)) for rule, text in examples().items()}
        met = [rule for rule, text in wrapped.items() if found_in(text)]
        assert len(met) > 100
        assert [rule for rule in met if not patterns().may_match(wrapped[rule])] == []


@pytest.mark.parametrize("text", [b"a\0b", b"x" * (LONGEST_BYTES + 1), "AKIA".encode("utf-16")])
def test_what_is_in_doubt_is_left_to_the_rules(text: bytes) -> None:
    assert patterns().may_match(text)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"please rename the function and run the tests again",
        b"see https://example.org/a/b?c=d and curl -s http://127.0.0.1:8000/health",
        b"export API_TOKEN in your shell; the github token goes into the keyring",
        b"sha256 " + b"0123456789abcdef" * 4,
        b"data:image/png;base64," + b64encode(bytes(range(256))),
    ],
)
def test_an_ordinary_text_needs_no_rules(text: bytes) -> None:
    assert not patterns().may_match(text)


def test_no_pattern_takes_longer_than_its_text() -> None:
    suspect = {name: reasons(Use(name, rule.pattern, 0, True)) for name, rule in patterns().rules.items()}
    assert {name: why for name, why in suspect.items() if why} == {}


def test_rules_of_another_version_are_asked_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_patterns("0.0.1") is None
    monkeypatch.setattr("weft.ledger.secrets.scan.load_patterns", lambda version: None)
    scanner = fresh()
    assert scanner.scan(b"hello", KEY) == []
    assert scanner._compiled is not None
    assert (
        scanner.rules == f"kingfisher {kingfisher_sdk.__version__}, {len(catalog())} rules, names of programs left out"
    )


def test_nothing_is_compiled_for_a_ledger_with_nothing_to_find() -> None:
    with weft.open(":memory:") as ledger:
        assert compiled_by(ledger) is False
        ledger.record_turn(
            session="main", query="Why does test_dates fail?", response="strptime.", model="claude-sonnet-4-5"
        )
        assert compiled_by(ledger) is False


def test_rules_are_compiled_for_what_they_may_find_and_not_again_for_what_is_known() -> None:
    with weft.open(":memory:") as ledger:
        ledger.record_turn(session="main", query=f"use {Maker(3).github()}", response="no")
        scanner = fresh()
        report = ledger.secrets.find(scanner=scanner)
        assert scanner._compiled is not None
        again = fresh()
        assert ledger.secrets.find(scanner=again).secrets == report.secrets
        assert again._compiled is None
        assert again.rules == scanner.rules == report.rules


class Undecided(Kingfisher):
    """Asks the patterns before every text, and has rules that were compiled elsewhere."""

    def _compiled_rules(self) -> CompiledRules:
        return CompiledRules(catalog(), native().scan)


@pytest.mark.slow("compiles the rules")
def test_a_text_that_the_patterns_are_asked_about_has_the_findings_of_the_rules() -> None:
    rules = fresh()
    rules._compiled_rules()
    found = {rule: rules.scan(text, KEY) for rule, text in examples().items()}
    assert sum(map(bool, found.values())) > 0.95 * len(found)
    assert {rule: Undecided(kingfisher_sdk, None).scan(text, KEY) for rule, text in examples().items()} == found


@pytest.mark.slow("compiles the rules")
def test_rules_are_compiled_once_there_is_much_to_look_at() -> None:
    scanner = fresh()
    text = b"nothing to find here " * 1000
    for _ in range(QUICK_BYTES // len(text)):
        assert scanner.scan(text, KEY) == []
    assert scanner._compiled is None
    assert scanner.scan(text, KEY) == []
    assert scanner._compiled is not None


def compiled_by(ledger: Ledger) -> bool:
    scanner = fresh()
    ledger.secrets.find(scanner=scanner, anew=True)
    return scanner._compiled is not None
