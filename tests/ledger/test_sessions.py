"""Sessions: stable labels on moving heads, found by label, then alias, then made."""

from collections.abc import Callable

import pytest

from tests.ledger.conftest import NOON, OpenLedger
from tests.ledger.histories import grow, problems, queries
from weft.kernel.clock import FixedClock
from weft.kernel.errors import InvalidInput, LabelTaken, NotApplicable, NotFound
from weft.ledger.api.ledger import Ledger

NOBODY = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
Verb = Callable[[], object]
LABELS = ["main", "Ω-worker", "a b c", "room:42/x", "#5", "dm:ann@example", "{x}", "x" * 512, "日本語", "01ARZ3"]


def naming_verbs(ledger: Ledger, session: str, name: str) -> list[Verb]:
    """Everything that gives a name."""
    return [
        lambda: ledger.create_session(name),
        lambda: ledger.labels.rename(session, name),
        lambda: ledger.labels.add_alias(name, session),
        lambda: ledger.fork(session, label=name),
    ]


@pytest.mark.parametrize("label", LABELS)
def test_a_session_exists_before_its_first_turn(ledger: Ledger, label: str) -> None:
    made = ledger.create_session(label)
    assert (made.label, made.head, made.lifecycle, made.status) == (label, None, "created", "active")
    assert ledger.reflog(label) == []
    (turn,) = grow(ledger, label, "q")
    assert (ledger.session(label).head, ledger.session(label).lifecycle) == (turn, "active")
    assert ledger.session(made.id) == ledger.session(label)
    assert problems(ledger) == []


@pytest.mark.parametrize("label", ["", " a", "a ", "a\tb", "a\0b", "\ud800", "main~1", "main^", "main@{0}", "x" * 513])
def test_a_label_that_could_be_mistaken_is_refused(ledger: Ledger, label: str) -> None:
    grow(ledger, "main", "q")
    for verb in naming_verbs(ledger, "main", label):
        with pytest.raises(InvalidInput):
            verb()


def test_a_session_keeps_where_it_came_from(ledger: Ledger, clock: FixedClock) -> None:
    (turn,) = grow(ledger, "main", "q")
    clock.tick(5000)
    made = ledger.create_session(
        "worker", persona="coder", routing_key="worker:coder", origin="cursor", origin_session_id="composer 1",
        parent_session="main", parent_turn_id=turn, spawn_tool_call_id="call 7", task_description="mend the roof",
    )  # fmt: skip
    assert (made.persona_id, made.routing_key, made.origin) == ("coder", "worker:coder", "cursor")
    assert (made.origin_session_id, made.parent_session, made.parent_turn_id) == ("composer 1", "main", turn)
    assert (made.spawn_tool_call_id, made.task_description, made.is_subagent) == ("call 7", "mend the roof", True)
    assert made.created_at == made.updated_at == NOON + 5000
    assert not ledger.session("main").is_subagent
    assert (made.task_status, ledger.session("main").task_status) == ("pending", None)
    label = made.label
    grow(ledger, label, "dig")
    assert ledger.session(label).task_status == "completed"
    bad = ledger.record_turn(session=label, query="dig on", error="no spade")
    assert ledger.move_head(label, new=bad.id).task_status == "failed"
    with ledger.begin_turn(parent=bad.id) as writer:
        assert ledger.move_head(label, new=writer.id).task_status == "running"


@pytest.mark.parametrize(
    ("details", "error"),
    [
        ({"origin": "two words"}, InvalidInput),
        ({"origin": 5}, InvalidInput),
        ({"parent_session": "nobody"}, NotFound),
        ({"parent_turn_id": NOBODY}, NotFound),
        ({"parent_turn_id": "x"}, InvalidInput),
        ({"routing": "typo"}, TypeError),
    ],
)
def test_wrong_details_make_no_session(ledger: Ledger, details: dict[str, str], error: type[Exception]) -> None:
    with pytest.raises(error):
        ledger.create_session("worker", **details)
    assert ledger.sessions() == []


def test_a_session_that_is_not_there_is_not_found(ledger: Ledger) -> None:
    for name in ("nobody", NOBODY, ""):
        with pytest.raises(NotFound):
            ledger.session(name)


def test_labels_and_aliases_share_one_set_of_names(ledger: Ledger) -> None:
    grow(ledger, "main", "q")
    grow(ledger, "other", "q")
    ledger.labels.add_alias("nick", "main")
    for taken in ("main", "nick"):
        for verb in naming_verbs(ledger, "other", taken):
            with pytest.raises(LabelTaken) as refused:
                verb()
            assert refused.value.label == taken


def test_renaming_moves_the_name_and_nothing_else(ledger: Ledger) -> None:
    (turn,) = grow(ledger, "main", "q")
    ledger.labels.add_alias("nick", "main")
    before = ledger.session("main")
    after = ledger.labels.rename("main", "trunk")
    assert (after.id, after.head, after.label) == (before.id, turn, "trunk")
    assert ledger.session("nick").label == "trunk"
    with pytest.raises(NotFound):
        ledger.session("main")
    grow(ledger, "main", "another")
    assert queries(ledger, "trunk") == ["q"]
    assert ledger.labels.rename("trunk", "nick").label == "nick"
    assert problems(ledger) == []


def test_names_can_be_swapped(ledger: Ledger) -> None:
    grow(ledger, "a", "of a")
    grow(ledger, "b", "of b")
    ledger.labels.rename("a", "tmp")
    ledger.labels.rename("b", "a")
    ledger.labels.rename("tmp", "b")
    assert (queries(ledger, "a"), queries(ledger, "b")) == (["of b"], ["of a"])
    assert problems(ledger) == []


@pytest.mark.parametrize("reason", ["identity_promotion", "identity_merge", "manual"])
def test_an_alias_leads_to_its_session(ledger: Ledger, reason: str) -> None:
    grow(ledger, "channel:7", "hello")
    assert ledger.labels.add_alias("person:ann", "channel:7", reason=reason).label == "channel:7"
    ledger.record_turn(session="person:ann", query="it is me")
    assert queries(ledger, "person:ann") == queries(ledger, "channel:7") == ["hello", "it is me"]
    assert [session.label for session in ledger.sessions()] == ["channel:7"]
    with pytest.raises(InvalidInput):
        ledger.labels.add_alias("x", "channel:7", reason="whim")


def test_aliases_are_listed_by_name_with_the_session_they_lead_to(ledger: Ledger) -> None:
    ids = {label: ledger.create_session(label).id for label in ("main", "side")}
    assert ledger.labels.aliases() == []
    ledger.labels.add_alias("nick", "side")
    ledger.labels.add_alias("ann", "main", reason="identity_promotion")
    ledger.labels.rename("main", "trunk")
    listed = [(one.alias, one.session, one.session_id, one.reason) for one in ledger.labels.aliases()]
    assert listed == [
        ("ann", "trunk", ids["main"], "identity_promotion"),
        ("nick", "side", ids["side"], "manual"),
    ]
    assert [one.alias for one in ledger.labels.aliases("nick")] == ["nick"]
    ledger.labels.delete("side")
    assert [one.alias for one in ledger.labels.aliases()] == ["ann"]
    with pytest.raises(NotFound):
        ledger.labels.aliases("nobody")


def test_lookup_goes_by_label_then_alias_then_makes_a_session_and_never_chains(ledger: Ledger) -> None:
    grow(ledger, "first", "of first")
    ledger.labels.add_alias("second", "first")
    ledger.labels.add_alias("third", "second")
    assert ledger.session("third").label == "first"
    ledger.labels.delete("first")
    grow(ledger, "second", "a label now")
    assert (ledger.session("second").label, queries(ledger, "second")) == ("second", ["a label now"])
    with pytest.raises(NotFound):
        ledger.session("third")
    grow(ledger, "third", "made")
    assert ledger.session("third").label == "third"
    assert problems(ledger) == []


def test_an_archived_session_is_hidden_and_kept(ledger: Ledger) -> None:
    (turn,) = grow(ledger, "main", "q")
    assert ledger.labels.archive("main", reason="done with it").status == "archived"
    assert ledger.sessions() == []
    assert [session.label for session in ledger.sessions(every=True)] == ["main"]
    assert ledger.session("main").head == turn
    with pytest.raises(LabelTaken):
        ledger.create_session("main")
    with pytest.raises(NotApplicable):
        ledger.begin_turn(session="main")
    assert ledger.labels.unarchive("main").status == "active"
    grow(ledger, "main", "again")


def test_a_deleted_session_frees_its_name_and_its_turns_stay(ledger: Ledger) -> None:
    (turn,) = grow(ledger, "main", "old")
    gone = ledger.labels.delete("main")
    assert gone.status == "deleted"
    with pytest.raises(NotFound):
        ledger.session("main")
    assert (ledger.session(gone.id).head, ledger.turn(turn).status) == (turn, "completed")
    grow(ledger, "main", "new")
    assert queries(ledger, "main") == ["new"]
    with pytest.raises(LabelTaken):
        ledger.labels.unarchive(gone.id)
    ledger.labels.rename("main", "newer")
    assert ledger.heads.restore(gone.id).head == turn
    assert queries(ledger, "main") == ["old"]
    assert problems(ledger) == []


def test_a_deleted_session_without_a_turn_can_be_restored(ledger: Ledger) -> None:
    gone = ledger.create_session("empty")
    ledger.labels.delete("empty")
    assert ledger.heads.restore(gone.id).status == "active"
    assert ledger.session("empty").head is None


def test_the_latest_session_is_listed_first(ledger: Ledger, clock: FixedClock) -> None:
    for label in ("a", "b", "c"):
        clock.tick()
        grow(ledger, label, "q")
    clock.tick()
    grow(ledger, "a", "again")
    assert [session.label for session in ledger.sessions()] == ["a", "c", "b"]


def test_two_ledgers_on_one_file_agree_about_names_at_once(open_ledger: OpenLedger) -> None:
    ours, theirs = open_ledger(), open_ledger()
    grow(ours, "main", "1")
    grow(theirs, "main", "2")
    ours.labels.rename("main", "trunk")
    grow(theirs, "main", "of a new session")
    grow(theirs, "trunk", "3")
    ours.labels.delete("main")
    theirs.labels.add_alias("nick", "trunk")
    grow(ours, "nick", "4")
    grow(theirs, "main", "of a third session")
    assert queries(ours, "trunk") == queries(theirs, "nick") == ["1", "2", "3", "4"]
    assert queries(ours, "main") == ["of a third session"]
    assert problems(ours) == problems(theirs) == []


def test_the_id_of_a_session_means_that_session_and_no_other(ledger: Ledger) -> None:
    (turn,) = grow(ledger, "main", "a")
    main = ledger.session("main").id
    made = ledger.record_turn(session=main, query="b", response="r")
    with ledger.begin_turn(session=main) as writer:
        ended = writer.finish()
    assert (made.session, made.parent_id, ended.parent_id) == ("main", turn, made.id)
    assert [session.label for session in ledger.sessions()] == ["main"]
    grow(ledger, "other", "x")
    for verb in naming_verbs(ledger, "other", main):
        with pytest.raises(LabelTaken, match="the id of 'main'"):
            verb()


def test_a_deleted_session_is_not_recorded_in_by_its_id(ledger: Ledger) -> None:
    grow(ledger, "main", "a")
    gone = ledger.labels.delete("main").id
    with pytest.raises(NotApplicable, match="is deleted"):
        ledger.record_turn(session=gone, query="b")
