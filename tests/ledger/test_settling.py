"""Sessions that several ledgers moved: all branches are shown, and one move joins them everywhere."""

from collections.abc import Iterator

import pytest

import weft
from tests.ledger.histories import exported, grow, import_into, kinds, lines, problems, queries
from weft.kernel.errors import InvalidInput, LabelTaken, NotApplicable, NotFound
from weft.ledger.api.ledger import Ledger


def exchange(*ledgers: Ledger) -> None:
    """Everybody gets everybody's facts."""
    for _ in range(2):
        for one in ledgers:
            for other in ledgers:
                if one is not other:
                    import_into(one, exported(other))


@pytest.fixture
def pair() -> Iterator[tuple[Ledger, Ledger]]:
    """Two ledgers that have moved one session, and know it."""
    with weft.open(":memory:") as one, weft.open(":memory:") as other:
        grow(one, "main", "start")
        exchange(one, other)
        grow(one, "main", "one")
        grow(other, "main", "two", "three")
        exchange(one, other)
        yield one, other


def heads(ledger: Ledger) -> dict[str, str | None]:
    return {session.id: session.head for session in ledger.sessions(every=True)}


def test_each_ledger_keeps_its_own_head_and_shows_the_other(pair: tuple[Ledger, Ledger]) -> None:
    one, other = pair
    assert queries(one, "main") == ["start", "one"]
    assert queries(other, "main") == ["start", "two", "three"]
    (branch,) = one.merges.branches("main")
    assert branch.name == f"{other.replica[-6:].lower()}/main"
    assert branch.head == other.session("main").head
    assert queries(one, branch.name) == ["start", "two", "three"]
    assert queries(one, f"{branch.name}~1") == ["start", "two"]
    assert [found.head for found in other.merges.branches()] == [one.session("main").head]
    with pytest.raises(NotFound):
        one.resolve("aaaaaa/main")
    assert problems(one) == problems(other) == []


def test_a_ledger_that_only_follows_is_moved_along(pair: tuple[Ledger, Ledger]) -> None:
    with weft.open(":memory:") as third:
        exchange(third, pair[1])
        grow(pair[1], "main", "four")
        exchange(third, pair[1])
        assert queries(third, "main") == queries(pair[1], "main")


@pytest.mark.parametrize(
    ("how", "stands"),
    [
        ({"ours": True}, ["start", "one"]),
        ({"theirs": True}, ["start", "two", "three"]),
        ({"fork": "elsewhere"}, ["start", "one"]),
    ],
)
def test_after_settling_all_agree(pair: tuple[Ledger, Ledger], how: dict[str, object], stands: list[str]) -> None:
    one, other = pair
    one.merges.settle("main", reason="talked about it", **how)  # type: ignore[arg-type]
    exchange(one, other)
    assert queries(one, "main") == queries(other, "main") == stands
    assert one.merges.branches() == other.merges.branches() == []
    assert heads(one) == heads(other)
    assert one.reflog("main")[0].reason == other.reflog("main")[0].reason == "talked about it"
    assert one.reflog("main")[0].why == "settle"
    if "fork" in how:
        assert queries(other, "elsewhere") == ["start", "two", "three"]
    grow(other, "main", "on we go")
    exchange(one, other)
    assert queries(one, "main") == [*stands, "on we go"]
    assert problems(one) == problems(other) == []


def test_a_session_can_be_settled_at_any_turn(pair: tuple[Ledger, Ledger]) -> None:
    one, other = pair
    one.merges.settle("main", to=f"{one.merges.branches()[0].name}~1")
    exchange(one, other)
    assert queries(other, "main") == ["start", "two"]
    assert len(other.tree.sessions_containing(other.reflog("main")[1].turn_id or "")) == 1


def test_labels_status_and_choices_agree_as_well(pair: tuple[Ledger, Ledger]) -> None:
    one, other = pair
    one.labels.rename("main", "mine")
    other.labels.archive("main")
    one.compactions.record(session="mine", summary="short")
    one.compactions.choose("mine", None)
    exchange(one, other)
    one.merges.settle("mine", ours=True)
    exchange(one, other)
    for ledger in pair:
        (session,) = ledger.sessions(every=True)
        assert (session.label, session.status, session.chosen_compaction) == ("mine", "active", "")
    assert problems(one) == problems(other) == []


def test_aliases_of_every_branch_lead_to_the_session(pair: tuple[Ledger, Ledger]) -> None:
    one, other = pair
    other.labels.add_alias("nick", "main")
    exchange(one, other)
    assert one.session("nick").label == "main"


def test_a_branch_that_goes_on_after_it_was_settled_is_a_branch_again(pair: tuple[Ledger, Ledger]) -> None:
    one, other = pair
    one.merges.settle("main", ours=True)
    grow(other, "main", "meanwhile")
    exchange(one, other)
    assert [found.head for found in one.merges.branches()] == [other.session("main").head]
    other.merges.settle("main", theirs=True)
    exchange(one, other)
    assert heads(one) == heads(other)
    assert one.merges.branches() == other.merges.branches() == []


def test_both_may_settle_at_once(pair: tuple[Ledger, Ledger]) -> None:
    one, other = pair
    one.merges.settle("main", ours=True)
    other.merges.settle("main", ours=True)
    exchange(one, other)
    assert len(one.merges.branches()) == len(other.merges.branches()) == 1
    one.merges.settle("main", theirs=True)
    exchange(one, other)
    assert heads(one) == heads(other)
    assert problems(one) == problems(other) == []


def test_three_branches_are_joined_by_one_move(pair: tuple[Ledger, Ledger]) -> None:
    one, other = pair
    with weft.open(":memory:") as third:
        first = [line for line in exported(one).splitlines(keepends=True) if b'"event_id"' not in line]
        began = [line for line in exported(one).splitlines(keepends=True) if b'"event_id"' in line][:7]
        import_into(third, b"".join([*first, *began]))
        grow(third, "main", "three ways")
        exchange(one, other, third)
        assert len(one.merges.branches()) == len(third.merges.branches()) == 2
        with pytest.raises(NotApplicable, match="2 other branches, at different turns"):
            one.merges.settle("main", theirs=True)
        third.merges.settle("main", ours=True)
        exchange(one, other, third)
        assert heads(one) == heads(other) == heads(third)
        assert [ledger.merges.branches() for ledger in (one, other, third)] == [[], [], []]
        assert problems(third) == []


def test_a_branch_that_begins_in_the_past_knows_where_it_stands(pair: tuple[Ledger, Ledger]) -> None:
    one, other = pair
    with weft.open(":memory:") as third:
        facts = exported(one).splitlines(keepends=True)
        began = [line for line in facts if b'"event_id"' in line][:7]
        import_into(third, b"".join([*(line for line in facts if b'"event_id"' not in line), *began]))
        third.labels.rename("main", "renamed")
        third.labels.add_alias("third", "renamed")
        import_into(one, exported(third))
        found = next(branch for branch in one.merges.branches() if branch.replica == third.replica)
        assert queries(one, found.head or "") == ["start"]
        assert problems(one) == []
        assert one.upkeep.rebuild() == 0
    assert other.merges.branches()


def test_nonsense_is_refused_and_writes_nothing(pair: tuple[Ledger, Ledger]) -> None:
    one, _ = pair
    grow(one, "whole", "one branch")
    before = lines(one)
    for error, session, how in (
        (InvalidInput, "main", {}),
        (InvalidInput, "main", {"ours": True, "theirs": True}),
        (InvalidInput, "main", {"fork": ""}),
        (InvalidInput, "main", {"ours": "yes"}),
        (LabelTaken, "main", {"fork": "whole"}),
        (NotApplicable, "whole", {"ours": True}),
        (NotFound, "nobody", {"ours": True}),
        (NotFound, "main", {"to": "nothing"}),
    ):
        with pytest.raises(error):
            one.merges.settle(session, **how)
    assert lines(one) == before
    assert kinds(one, one.resolve("main"))
