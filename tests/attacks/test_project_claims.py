"""What others wrote about a folder's repository: remotes with tokens in them, pointers of git, and imported claims."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.ledger.api import repository_name
from weft.surfaces.cli.repositories import local_repository

TOKEN = "glpat-abc"


@pytest.fixture(autouse=True)
def _unremembered() -> None:
    local_repository.cache_clear()


def clone(folder: Path, address: str) -> Path:
    (folder / ".git").mkdir(parents=True)
    (folder / ".git" / "config").write_text(f'[remote "origin"]\n\turl = {address}\n')
    return folder


@pytest.mark.parametrize(
    ("address", "name"),
    [
        (f"https://u:tok@git.corp.example/secret/repo.git?private_token={TOKEN}", "git.corp.example/secret/repo"),
        (f"https://git.corp.example/secret/repo.git/#{TOKEN}", "git.corp.example/secret/repo"),
        (f"git@git.corp.example:secret/repo.git?token={TOKEN}", "git.corp.example/secret/repo"),
        (f"https://git.corp.example?token={TOKEN}/repo", None),
        (f"https://u:{TOKEN}#x@git.corp.example/repo", None),
    ],
)
def test_a_token_in_a_remote_is_in_no_name(tmp_path: Path, address: str, name: str | None) -> None:
    assert repository_name(address) == name
    folder = str(clone(tmp_path / "app", address))
    assert local_repository(folder) == (name or folder)
