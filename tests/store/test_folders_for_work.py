"""Folders that a person trusts for work: by real path, owner and inode, with what lies in them, until it is revoked."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from msgspec.json import decode, encode

from weft.kernel.errors import InvalidInput
from weft.store.replicas import TrustStore


@pytest.fixture
def store(tmp_path: Path) -> TrustStore:
    return TrustStore(tmp_path / "state" / "trust.json")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "work"
    (place / "deep" / "down").mkdir(parents=True)
    return place


def test_what_lies_in_a_folder_that_is_trusted_for_work_is_too(store: TrustStore, folder: Path) -> None:
    assert not store.is_trusted_for_work(str(folder))
    store.allow_folder(str(folder), for_work=True)
    assert store.is_trusted_for_work(str(folder))
    assert store.is_trusted_for_work(str(folder / "deep" / "down"))
    assert store.is_folder_trusted(str(folder)), "its rules are told, too"
    assert not store.is_folder_trusted(str(folder / "deep")), "and no others"


def test_what_lies_above_or_beside_it_or_is_gone_is_not(store: TrustStore, folder: Path) -> None:
    store.allow_folder(str(folder), for_work=True)
    beside = folder.with_name("work-2")
    beside.mkdir()
    for place in (folder.parent, beside, folder / ".." / "work-2", folder / "nothing"):
        assert not store.is_trusted_for_work(str(place)), place


def test_a_link_counts_as_what_it_leads_to(store: TrustStore, folder: Path) -> None:
    store.allow_folder(str(folder), for_work=True)
    elsewhere, inside = folder.with_name("elsewhere"), folder / "link"
    elsewhere.mkdir()
    inside.symlink_to(elsewhere)
    assert not store.is_trusted_for_work(str(inside)), "it leads out"
    outside = folder.with_name("other-name")
    outside.symlink_to(folder / "deep")
    assert store.is_trusted_for_work(str(outside))


def test_another_folder_at_the_same_place_is_not_trusted(store: TrustStore, folder: Path) -> None:
    store.allow_folder(str(folder), for_work=True)
    aside = folder.with_name("aside")
    folder.rename(aside)
    (folder / "deep").mkdir(parents=True)
    assert not store.is_trusted_for_work(str(folder))
    assert not store.is_trusted_for_work(str(folder / "deep")), "nor what lies in that"
    assert not store.is_trusted_for_work(str(aside)), "nor the first one at another place"


def test_what_belongs_to_somebody_else_is_not_trusted(store: TrustStore, folder: Path) -> None:
    store.allow_folder(str(folder), for_work=True)
    document = decode(store.path.read_bytes())
    document["folders"][0]["owner"] += 1
    store.path.write_bytes(encode(document))
    assert not store.is_trusted_for_work(str(folder))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_folder_in_it_that_belongs_to_another_user_is_not_trusted(store: TrustStore, folder: Path) -> None:
    store.allow_folder(str(folder), for_work=True)
    os.chown(folder / "deep", 12345, 12345)
    assert not store.is_trusted_for_work(str(folder / "deep"))


def test_trust_for_work_ends_with_either_way_of_revoking(store: TrustStore, folder: Path) -> None:
    store.allow_folder(str(folder), for_work=True)
    assert store.revoke_work(str(folder))
    assert not store.is_trusted_for_work(str(folder))
    assert store.is_folder_trusted(str(folder)), "its rules are told as before"
    assert not store.revoke_work(str(folder))
    store.allow_folder(str(folder), for_work=True)
    assert store.revoke_folder(str(folder))
    assert not store.is_trusted_for_work(str(folder))


@pytest.mark.parametrize("is_its_own", [True, False])
def test_what_is_revoked_inside_a_trusted_folder_ends_there_and_names_what_trusts_it(
    store: TrustStore, folder: Path, is_its_own: bool
) -> None:
    store.allow_folder(str(folder), for_work=True)
    inner = folder / "deep"
    if is_its_own:
        store.allow_folder(str(inner), for_work=True)
    granting = store.revoke_work(str(inner))
    assert granting is not None
    assert granting.place == str(inner if is_its_own else folder)
    assert not store.is_trusted_for_work(str(inner))
    assert not store.is_trusted_for_work(str(inner / "down"))
    assert store.is_trusted_for_work(str(folder))
    assert store.revoke_work(str(inner)) is None, "it is not trusted any more"
    store.allow_folder(str(inner), for_work=True)
    assert store.is_trusted_for_work(str(inner / "down"))
    assert store.revoke_folder(str(inner))
    assert not store.is_trusted_for_work(str(inner))


def test_the_nearest_answer_holds(store: TrustStore, folder: Path) -> None:
    inner = folder / "deep"
    store.decline_work(str(inner))
    store.allow_folder(str(folder), for_work=True)
    assert not store.is_trusted_for_work(str(inner))
    store.allow_folder(str(inner / "down"), for_work=True)
    assert [store.is_trusted_for_work(str(place)) for place in (folder, inner, inner / "down")] == [True, False, True]


def test_what_is_gone_can_be_revoked(store: TrustStore, folder: Path) -> None:
    place = folder / "gone"
    place.mkdir()
    store.allow_folder(str(place), for_work=True)
    place.rmdir()
    assert store.revoke_work(str(place)) is not None
    place.mkdir()
    assert not store.is_trusted_for_work(str(place))


def test_trusting_the_rules_of_a_folder_neither_gives_nor_takes_trust_for_work(store: TrustStore, folder: Path) -> None:
    store.allow_folder(str(folder))
    assert not store.is_trusted_for_work(str(folder))
    store.allow_folder(str(folder), for_work=True)
    store.allow_folder(str(folder))
    assert store.is_trusted_for_work(str(folder))


def test_a_no_is_remembered_of_this_folder_until_it_is_trusted(store: TrustStore, folder: Path) -> None:
    store.decline_work(str(folder))
    assert store.is_work_declined(str(folder))
    assert not store.is_work_declined(str(folder / "deep"))
    assert not store.is_trusted_for_work(str(folder))
    store.allow_folder(str(folder), for_work=True)
    store.revoke_folder(str(folder))
    assert not store.is_work_declined(str(folder))


def test_a_list_that_others_could_have_written_trusts_nothing(store: TrustStore, folder: Path) -> None:
    store.allow_folder(str(folder), for_work=True)
    store.path.chmod(0o666)
    with pytest.raises(InvalidInput, match="written by others"):
        store.is_trusted_for_work(str(folder))


def test_a_folder_that_is_revoked_while_its_copy_waits_for_the_file_gives_it_nothing(
    store: TrustStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.allow_folder(str(folder))
    store.take_rules(str(folder), "Write tests.")
    copy, lock = folder.with_name("copy"), store._file_locked
    copy.mkdir()

    def locked_after_another() -> AbstractContextManager[None]:
        monkeypatch.undo()
        assert TrustStore(store.path).revoke_folder(str(folder))
        return lock()

    monkeypatch.setattr(store, "_file_locked", locked_after_another)
    assert not store.trust_copy(str(folder), str(copy))
    assert store.seen_rules(str(copy)) is None
