"""Every test of a surface gets a home folder of its own, and a shell in an empty folder."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from tests.credentials import CACHE
from tests.surfaces.shell import Shell
from weft.kernel.authority import LedgerTrust
from weft.kernel.typed_names import Site
from weft.programs.similarity import MiniLM
from weft.store.port import Store
from weft.store.replicas import MADE, TrustedLedger, TrustStore, identity_of
from weft.surfaces import opening
from weft.surfaces.cli.user_files import trust_store
from weft.surfaces.wire import catalogue, forms


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, folder = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    folder.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(CACHE))
    for name in (
        "WEFT_LEDGER",
        "WEFT_KEY_PASSPHRASE",
        "XDG_CONFIG_HOME",
        "XDG_DATA_HOME",
        "XDG_STATE_HOME",
        "NO_COLOR",
        "COLUMNS",
        "LINES",
        "LESS",
        "PAGER",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(folder)


@pytest.fixture(autouse=True)
def _trusting(_home: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test makes through the library, the person at its terminal made; so the command line trusts it."""
    plain_trust = opening._trust

    def trust(store: Store, trusted: TrustStore | None) -> LedgerTrust:
        if trusted is None and store.is_new and Site.of(store.path) is not Site.MEMORY:
            trust_store().trust_of(store).allow(MADE)
        return plain_trust(store, trusted)

    monkeypatch.setattr(opening, "_trust", trust)


@pytest.fixture(autouse=True, scope="session")
def _listed_forms() -> Iterator[None]:
    """Every record that a test of a surface meets as JSON is in the catalogue, with the keys that are listed there."""
    listed = {record: catalogue.keys(record) for family in catalogue.records().values() for record in family}
    plain_form = forms._form_fields

    def checked_form(record: Struct) -> dict[str, Any]:
        shown = plain_form(record)
        keys = listed[type(record)].keys()
        assert shown.keys() <= keys or "…" in keys, type(record)
        return shown

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forms, "_form_fields", checked_form)
        yield


@pytest.fixture(autouse=True)
def zone() -> Iterator[Callable[[str], None]]:
    """The viewer's zone: UTC, until a test says otherwise."""
    before = os.environ.get("TZ")

    def set_zone(name: str | None) -> None:
        os.environ.pop("TZ", None)
        if name is not None:
            os.environ["TZ"] = name
        time.tzset()

    set_zone("UTC")
    yield set_zone
    set_zone(before)


loaded_minilm = cache(MiniLM)


@pytest.fixture
def one_minilm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model that embeds is loaded once for all commands: it holds nothing but weights."""
    monkeypatch.setattr("weft.programs.similarity.MiniLM", loaded_minilm)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "work"


@pytest.fixture
def shell(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """A shell in a folder without a ledger."""
    return Shell(folder, monkeypatch, capsys)


class MadeLedger:
    """What `weft init` made in the first folder of this process, and how it is trusted: most tests need no other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._trusted: TrustedLedger | None = None

    def put_into(self, folder: Path, shell: Shell) -> None:
        made = folder / ".weft"
        if self._trusted is None:
            assert shell("init").code == 0
            shutil.copytree(made, self._folder)
            (self._trusted,) = trust_store().ledgers()
        else:
            shutil.copytree(self._folder, made)
            identity = identity_of(str(made / "ledger.db"), self._trusted.identity.replica)
            trust_store().allow(identity, self._trusted.how, self._trusted.token)


@pytest.fixture(scope="session")
def made_ledger(tmp_path_factory: pytest.TempPathFactory) -> MadeLedger:
    return MadeLedger(tmp_path_factory.mktemp("made") / ".weft")


@pytest.fixture
def weft(shell: Shell, folder: Path, made_ledger: MadeLedger) -> Shell:
    """A shell in a folder with an empty ledger."""
    made_ledger.put_into(folder, shell)
    return shell
