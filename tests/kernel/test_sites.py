"""What kind of place a ledger lies at, read off its name."""

from collections.abc import Callable
from pathlib import Path

import pytest

import weft
from weft.kernel.errors import Unsupported
from weft.kernel.typed_names import Site

PASSWORD = "hunter2"
ADDRESS = f"postgresql://ann:{PASSWORD}@nowhere/db?ledger=x"


@pytest.mark.parametrize(
    ("name", "site"),
    [
        ("ledger.db", Site.FILE),
        ("/tmp/a://b.db", Site.FILE),
        ("./postgresql://db", Site.FILE),
        ("://", Site.FILE),
        (":memory:", Site.MEMORY),
        ("postgresql://", Site.POSTGRESQL),
        ("postgres://ann@host/db", Site.POSTGRESQL),
        ("mysql://host/db", Site.ELSEWHERE),
        ("git+ssh://host/path", Site.ELSEWHERE),
    ],
)
def test_a_name_tells_what_kind_of_place_it_means(name: str, site: Site) -> None:
    assert Site.of(name) is site
    assert Site.of(name).is_address == (site in (Site.POSTGRESQL, Site.ELSEWHERE))


def test_a_verb_about_files_refuses_an_address_and_shows_nothing_of_it(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    with weft.open(file) as ledger:
        verbs: list[Callable[[], object]] = [
            lambda: ledger.upkeep.backup(ADDRESS),
            lambda: ledger.upkeep.export_facts(ADDRESS),
            lambda: weft.restore(ADDRESS, tmp_path / "new.db"),
            lambda: weft.restore(file, ADDRESS),
            lambda: weft.restore(":memory:", file),
            lambda: weft.salvage(ADDRESS, tmp_path / "new.db"),
            lambda: weft.salvage(file, ADDRESS),
            lambda: weft.salvage(file, tmp_path / "new.db", others=[ADDRESS]),
        ]
        for verb in verbs:
            with pytest.raises(Unsupported, match="not a file") as refused:
                verb()
            assert PASSWORD not in str(refused.value) + refused.value.hint
    assert [found.name for found in tmp_path.iterdir() if "new" in found.name] == []


def test_a_file_may_have_a_colon_and_two_slashes_in_its_name(tmp_path: Path) -> None:
    (tmp_path / "a:").mkdir()
    with weft.open(f"{tmp_path}/a://b.db") as ledger:
        ledger.record_turn(session="main", query="q")
    assert (tmp_path / "a:" / "b.db").is_file()
