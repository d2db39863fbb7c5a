"""Addresses that are not what they say: passwords where nobody looks for them, and near hosts in far clothes."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.sizes import share
from tests.surfaces.shell import Shell
from weft.exchange.sync.commands import program_of, without_password
from weft.kernel.errors import WeftError, hidden_address, without_credentials
from weft.runtime.egress.credentials import ConnectionRules, is_public, may_reach, origin_of

SECRET = "hunter2secret"
MALFORMED = (
    f"postgresql://user:{SECRET}@ss@127.0.0.1:9/db",
    f"postgresql://user:a@{SECRET}@127.0.0.1:9/db",
    f"postgresql://u:x/{SECRET}@127.0.0.1:9/db",
    f"postgresql://u:x#{SECRET}@127.0.0.1:9/db",
    f"postgresql://u:x?{SECRET}@127.0.0.1:9/db",
    f"postgresql://u:%zz{SECRET}@127.0.0.1:9/db",
    f"postgresql://u:pa {SECRET}@127.0.0.1:9/db",
    f"postgresql://u:{SECRET}@127.0.0.1:port/x",
    f"postgresql://u:{SECRET}@[::1/db",
    f" postgresql://u:{SECRET}@127.0.0.1:9/db",
    f"postgres:/user:{SECRET}@h/db",
    f"postgresql:user:{SECRET}@h/db",
    f"postgresql+psycopg://u:{SECRET}@h/db",
    f"jdbc:postgresql://h/db?password={SECRET}",
    f"POSTGRESQL://u:{SECRET}@127.0.0.1:9/db",
    f"user:{SECRET}@h/db",
    f"host=127.0.0.1 port=9 user=u password={SECRET}",
    f"https://u:{SECRET}@h/x",
    f"mysql://u:{SECRET}@h/",
    f"ssh://u:{SECRET}@h",
    f"ssh://u:{SECRET}%zz@h",
    f"ssh://[u:{SECRET}@h/x",
    f"ssh://u:a/{SECRET}@h",
    f"cmd:weft --password {SECRET} 'x",
)
REMOTE = ("remote", "add", "other", "ADDRESS", "--ledger", "here.db")
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("log", "--ledger", "ADDRESS"),
    ("doctor", "--ledger", "ADDRESS"),
    ("init", "ADDRESS"),
    ("clone", "ADDRESS", "new.db"),
    ("copy", "ADDRESS", "copied.db"),
    ("copy", "here.db", "ADDRESS"),
    ("backup", "ADDRESS", "--ledger", "here.db"),
    ("recover", "--from", "ADDRESS", "--ledger", "here.db"),
    ("import", "ADDRESS", "--ledger", "here.db"),
    ("import-facts", "ADDRESS", "--ledger", "here.db"),
    ("pull", "ADDRESS", "--ledger", "here.db"),
    REMOTE,
    ("provider", "create", "p", "--type", "openai-compatible", "--base-url", "ADDRESS", "--ledger", "here.db"),
    ("credential", "add", "k", "--env", "X", "--origin", "ADDRESS"),
)
PAIRS = [(address, command) for address in MALFORMED for command in COMMANDS]


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("WEFT_LEDGER", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    shell = Shell(tmp_path, monkeypatch, capsys)
    assert shell("init", "here.db").code == 0
    return shell


@pytest.mark.parametrize("address", share(MALFORMED, test=8))
def test_no_command_shows_the_password_of_an_address_that_cannot_be_read(shell: Shell, address: str) -> None:
    for command in (command for other, command in share(PAIRS, test=38) if other == address):
        words = [address if word == "ADDRESS" else word for word in command]
        listing = [["remote", "list", "--ledger", "here.db"]] if command == REMOTE else []
        for asked in (words, *listing):
            for form in ((), ("--json",)):
                answer = shell(*asked, *form)
                assert SECRET not in answer.out + answer.err, asked
                assert "Traceback" not in answer.err, asked


@pytest.mark.parametrize("address", MALFORMED)
def test_no_error_of_the_library_holds_the_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for use in (weft.open, without_password, program_of, origin_of):
        assert SECRET not in said_by(use, address), use
    assert list(tmp_path.iterdir()) == []


def said_by(use: Callable[[str], object], address: str) -> str:
    """The error that it raises, with those behind it; else what it returns, if that is to be shown."""
    try:
        answer = use(address)
    except WeftError as error:
        return "".join(traceback.format_exception(error, limit=0)) + error.hint
    return str(answer) if use is without_password and not address.startswith("cmd:") else ""


@settings(max_examples=50)
@given(st.text(max_size=20), st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1, max_size=20))
def test_whatever_stands_in_a_password_is_hidden(user: str, password: str) -> None:
    for scheme in ("postgresql://", "https://", "ssh:/", ""):
        shown = hidden_address(f"{scheme}{user}:{password}{SECRET}@host/db")
        assert SECRET not in shown
        assert shown.endswith("@host/db")


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://user@host:5432/db?ledger=weft is closed",
        "no session 'dm:alice@{1}' in this ledger",
        "git@github.com:weft/weft.git",
        "@(01J:2) is no program; mail somebody@example.org",
        "the URL carries a user or password",
        "/tmp/a/ledger.db: no such file",
    ],
)
def test_what_is_no_password_stays(text: str) -> None:
    assert without_credentials(text) == text


def nat64(address: str) -> str:
    return str(IPv6Address(int(IPv6Address("64:ff9b::")) | int(IPv4Address(address))))


NEAR = ("127.0.0.1", "10.0.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1", "172.16.0.1")
WRAPPINGS: dict[str, Callable[[str], str]] = {
    "NAT64": nat64,
    "mapped": lambda address: f"::ffff:{address}",
    "translated": lambda address: f"::ffff:0:{address}",
    "compatible": lambda address: (
        str(IPv6Address(int(IPv4Address(address)))) if int(IPv4Address(address)) > 1 else "::"
    ),
    "6to4": lambda address: str(IPv6Address((0x2002 << 112) | (int(IPv4Address(address)) << 80) | 1)),
    "Teredo": lambda address: str(
        IPv6Address((0x20010000 << 96) | (int(IPv4Address("8.8.8.8")) << 64) | (int(IPv4Address(address)) ^ 0xFFFFFFFF))
    ),
    "ISATAP": lambda address: str(IPv6Address((0x2A00 << 112) | (0x5EFE << 32) | int(IPv4Address(address)))),
    "NAT64 of a network": lambda address: str(IPv6Address((0x64FF9B0001 << 80) | int(IPv4Address(address)))),
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
@pytest.mark.parametrize("near", NEAR)
def test_a_near_address_inside_another_form_counts_as_near(wrapping: str, near: str) -> None:
    address = WRAPPINGS[wrapping](near)
    assert not is_public(address)
    assert not may_reach("api.example.org", address, ConnectionRules())
    assert not may_reach("localhost", address, ConnectionRules())


NO_INTERNET = (
    "fec0::1", "feff::1", "fc00::1", "fe80::1%eth0", "::1", "::", "ff02::1", "2001:db8::1", "3fff::1", "100::1",
    "5f00::1", "64:ff9b:1::808:808", "4000::1",
)  # fmt: skip
INTERNET = ("8.8.8.8", "2a00:1450:4001::1", "::ffff:8.8.8.8", nat64("8.8.8.8"), "2002:808:808::1")


@pytest.mark.parametrize("address", NO_INTERNET)
def test_addresses_that_are_no_part_of_the_internet_are_near(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "2a00:1450:4001::1", "::ffff:8.8.8.8", nat64("8.8.8.8"), "2002:808:808::1"]
)
def test_addresses_of_the_internet_are_far(address: str) -> None:
    assert is_public(address)
    assert may_reach("api.example.org", address, ConnectionRules())
