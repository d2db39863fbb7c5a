"""Secrets: found wherever they lie, shown nowhere, erased for good."""

import subprocess
import sys
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

import weft
from tests.conftest import NewPostgresLedger
from tests.credentials import CACHE, Maker, scanner
from tests.faults.system_calls import missing
from tests.ledger.canaries import files_with_canary
from tests.ledger.conftest import OpenLedger
from tests.ledger.histories import grow, problems
from tests.ledger.imported import native_turn, take
from weft.kernel.contents import ROW_BYTES
from weft.kernel.errors import AmbiguousName, InvalidInput, NotApplicable, NotFound, Unsupported
from weft.ledger.api.ledger import Ledger
from weft.ledger.imports.imported_turns import NativeSession
from weft.ledger.secrets import SecretFinding, SecretReport
from weft.ledger.secrets.scan import REACH, SecretTrace, in_short, windows

pytestmark = pytest.mark.load("secret rules")
WHY = "a leaked key"


def find(ledger: Ledger, **wanted: Any) -> SecretReport:
    return ledger.secrets.find(**{"scanner": scanner(), **wanted})


def only(ledger: Ledger, **wanted: Any) -> SecretFinding:
    (secret,) = find(ledger, **wanted).secrets
    return secret


def rules(report: SecretReport) -> set[str]:
    return {rule for secret in report.secrets for rule in secret.rules}


def tables(ledger: Ledger) -> str:
    """Every row of local state and of every view."""
    with ledger._store.read() as txn:
        names = ["local", "watermark", "secret_found", "secret_ignored", "stream_tip", "import_source", "copy_made"]
        return repr([txn.sql.fetch_rows(f"SELECT * FROM {name}") for name in names])


class OtherRules:
    """The same rules under another name, as a new version has them."""

    def __init__(self, name: str = "newer rules") -> None:
        self.rules, self.seen = name, 0

    def scan(self, data: bytes, key: bytes) -> list[SecretTrace]:
        self.seen += 1
        return scanner().scan(data, key)

    def values(self, data: bytes, key: bytes) -> Iterator[tuple[str, str]]:
        return scanner().values(data, key)

    def kind(self, rule: str) -> str:
        return scanner().kind(rule)


def test_a_credential_of_any_kind_is_found_by_its_rule_and_not_shown(ledger: Ledger) -> None:
    made = Maker(1).kinds()
    turns = {rule: grow(ledger, "main", f"please use {words} for it\n")[0] for rule, (words, _) in made.items()}
    report = find(ledger)
    told = {rule: secret for secret in report.secrets for rule in secret.rules}
    assert made.keys() <= told.keys()
    for rule, (_, secret) in made.items():
        assert {place.turn_id for place in told[rule].places} == {turns[rule]}
        assert {place.session for place in told[rule].places} == {"main"}
        assert len(told[rule].shown) <= 5
        assert secret not in repr(report)
        assert secret not in tables(ledger)
    assert problems(ledger) == []


def test_a_credential_is_found_wherever_words_go(ledger: Ledger) -> None:
    made = Maker(2)
    wrapped = [made.github() for _ in range(9)]
    with ledger.begin_turn(session="main", workspace=f"/srv/{wrapped[0]}", effective_config={"k": wrapped[1]}) as turn:
        turn.message({"role": "system", "content": f"system {wrapped[2]}"})
        turn.message(f"query {wrapped[3]}")
        turn.request("m", params={"headers": {"token": wrapped[4]}})
        call = turn.tool_call("run", {"command": f"export T={wrapped[5]}\nls"}, id="call-1")
        turn.tool_result(call, {"out": f"1\n{wrapped[6]}\n2"})
        turn.tool_call("slow", id="late")
        turn.response({"content": [{"type": "reasoning", "text": f"I keep {wrapped[7]}"}]})
        turn.interrupt("timeout")
    ledger.record_late_result(turn.id, "late", f"at last {wrapped[8]}")
    report = find(ledger)
    assert len(report.secrets) == len(wrapped)
    assert {place.turn_id for secret in report.secrets for place in secret.places} == {turn.id}
    places = {place.what: place for secret in report.secrets for place in secret.places}
    assert {"run_started workspace", "tool_call args", "tool_result result"} <= set(places)
    assert places["tool_call args"].call_id == "call-1"
    asked = places["history_append message.parts[0].text"]
    assert asked.message_id in {message.id for message in ledger.messages(turn.id)}


def test_one_credential_has_one_fingerprint_however_it_is_wrapped(ledger: Ledger) -> None:
    plain, escaped = Maker(3).pem(), Maker(3).pem("\\n")
    grow(ledger, "main", f"the key:\n{plain}\n", f'{{"key": "{escaped}"}}')
    grow(ledger, "other", f"the key:\n{plain}\n")
    secret = only(ledger)
    assert secret.times == 6  # trees do not share contents
    assert secret.shown == "----…"
    assert {place.session for place in secret.places} == {"main", "other"}


def test_what_json_wraps_is_found_where_it_stands(ledger: Ledger) -> None:
    words, _ = Maker(23).kinds()["betterleaks.aws-secret-access-key"]
    wrapped = orjson.dumps({"out": orjson.dumps({"said": f"a\tb\n/{words}"}).decode()})
    ledger.put_content(wrapped)
    secret = only(ledger)
    assert (secret.rules, secret.times) == (("betterleaks.aws-secret-access-key",), 1)
    with ledger._store.read() as txn:
        assert txn.sql.fetch_rows("SELECT start FROM secret_found") == [(wrapped.index(words[-41:-1].encode()),)]


def test_a_fingerprint_is_another_in_a_ledger_of_its_own(ledger: Ledger) -> None:
    grow(ledger, "main", Maker(4).github())
    with weft.open(":memory:") as other:
        grow(other, "main", Maker(4).github())
        assert only(other).fingerprint != only(ledger).fingerprint
    grow(ledger, "main", "again: " + Maker(4).github())
    assert find(ledger, anew=True) == find(ledger, anew=True)


def test_what_spans_two_rows_of_a_content_is_found(ledger: Ledger) -> None:
    filling, secret = b"lorem ipsum \n" * (ROW_BYTES // 13 + 1), Maker(5).github()
    for cut in (1, 20, 39):
        head = filling[: ROW_BYTES - cut - 1] + b"\n"
        stored = ledger.put_content(iter((head + secret.encode() + b"\n" + filling,)))
        ledger.record_turn(session="main", query=stored, response="noted")
    found = only(ledger)
    assert found.times == 3
    with ledger._store.read() as txn:
        starts = txn.sql.fetch_rows("SELECT start FROM secret_found ORDER BY start")
    assert starts == [(ROW_BYTES - 39,), (ROW_BYTES - 20,), (ROW_BYTES - 1,)]


@pytest.mark.parametrize("sizes", [(0,), (1,), (ROW_BYTES,), (ROW_BYTES, 1), (ROW_BYTES, ROW_BYTES, 7)])
def test_every_byte_belongs_to_one_window_and_has_its_surroundings(sizes: Sequence[int]) -> None:
    made = list(windows(bytes(size) for size in sizes))
    assert [window.low for window in made] == [0, *(window.high for window in made[:-1])]
    assert made[-1].high == sum(sizes)
    for window in made:
        assert window.at == 0 or window.low - window.at >= REACH
        assert window.at + len(window.data) in (sum(sizes), window.high + REACH)


def test_packed_contents_are_looked_at_too(ledger: Ledger) -> None:
    filling = "a sentence that says much the same as the one before it. " * 40
    grow(ledger, "main", *(f"{i} {filling}" for i in range(8)), f"{filling} {Maker(6).github()} {filling}")
    stored = ledger.put_content(b"x y z\n" * 200_000 + Maker(7).github().encode() + b"\n" + b"x y z\n" * 100_000)
    ledger.record_turn(session="main", query=stored, response="noted")
    ledger.upkeep.pack("main")
    with ledger._store.read() as txn:
        assert txn.sql.fetch_row("SELECT count(*) FROM packed") != (0,)
    assert len(find(ledger).secrets) == 2


def test_only_what_is_new_is_looked_at_until_the_rules_change(ledger: Ledger) -> None:
    grow(ledger, "main", *(f"number {i}" for i in range(140)), Maker(8).github())
    first = find(ledger)
    assert first.scanned.contents > 256
    assert find(ledger).scanned.contents == 0
    grow(ledger, "main", "one more " + Maker(9).github())
    again = find(ledger)
    assert again.scanned.contents == 2
    assert len(again.secrets) == 2
    assert find(ledger, anew=True).scanned.contents == first.scanned.contents + 2
    newer = find(ledger, scanner=OtherRules())
    assert newer.scanned.contents == first.scanned.contents + 2
    assert newer.secrets == again.secrets


def test_a_scan_that_was_cut_short_goes_on_where_it_was(disk: Ledger) -> None:
    grow(disk, "main", *(f"{i} " + Maker(i).github() for i in range(400)))

    class Cut(OtherRules):
        def scan(self, data: bytes, key: bytes) -> list[SecretTrace]:
            if self.seen == 500:
                raise KeyboardInterrupt
            return super().scan(data, key)

    with pytest.raises(KeyboardInterrupt):
        find(disk, scanner=Cut())
    rest = find(disk, scanner=OtherRules())
    assert 0 < rest.scanned.contents < 600
    assert len(rest.secrets) == 400


@pytest.mark.slow("asks the rules about more than a thousand texts")
def test_whoever_begins_anew_meanwhile_misses_nothing(disk: Ledger, open_ledger: OpenLedger) -> None:
    """The mark moves only from where a range began."""
    other = open_ledger()
    grow(disk, "main", *(f"{i} " + Maker(i).github() for i in range(300)))

    class Cut(OtherRules):
        def scan(self, data: bytes, key: bytes) -> list[SecretTrace]:
            raise KeyboardInterrupt

    class Disturbed(OtherRules):
        def scan(self, data: bytes, key: bytes) -> list[SecretTrace]:
            if self.seen == 400:
                with other._store.read() as txn:
                    assert txn.facts.watermark("secrets") > 0
                with pytest.raises(KeyboardInterrupt):
                    find(other, scanner=Cut(), anew=True)
            return super().scan(data, key)

    assert len(find(disk, scanner=Disturbed()).secrets) == 300
    assert find(disk, scanner=OtherRules()).scanned.contents == 0

    class Newer(OtherRules):
        def scan(self, data: bytes, key: bytes) -> list[SecretTrace]:
            if self.seen == 10:
                find(other, scanner=OtherRules("the newest rules"))
            return super().scan(data, key)

    with pytest.raises(NotApplicable, match="other rules"):
        find(disk, scanner=Newer("older rules"))


def test_what_is_erased_while_it_is_looked_at_is_not_told_of(disk: Ledger, open_ledger: OpenLedger) -> None:
    other = open_ledger()
    (turn,) = grow(disk, "main", Maker(10).github())

    class Late(OtherRules):
        def scan(self, data: bytes, key: bytes) -> list[SecretTrace]:
            found = super().scan(data, key)
            if found and not other.erasure.done():
                other.erasure.erase(turn, reason=WHY)
            return found

    assert find(disk, scanner=Late()).secrets == ()
    assert find(disk, scanner=OtherRules()).secrets == ()


def test_a_false_alarm_is_ignored_until_it_is_not(ledger: Ledger) -> None:
    grow(ledger, "main", Maker(11).github(), Maker(12).github())
    one, two = find(ledger).secrets
    assert ledger.secrets.ignore(one.fingerprint[:8]) == one.fingerprint
    ledger.secrets.ignore(one.fingerprint)
    left = find(ledger)
    assert (left.secrets, left.ignored) == ((two,), 1)
    assert find(ledger, ignored=True).secrets == (one,)
    grow(ledger, "main", "again " + Maker(11).github(), "again " + Maker(12).github())
    assert [secret.fingerprint for secret in find(ledger, anew=True).secrets] == [two.fingerprint]
    assert ledger.secrets.ignore(one.fingerprint, undo=True) == one.fingerprint
    assert len(find(ledger).secrets) == 2


@pytest.mark.parametrize("wrong", ["", "abc", "0" * 17, "ghp_something"])
def test_what_is_no_fingerprint_is_refused_and_not_repeated(ledger: Ledger, wrong: str) -> None:
    for verb in (ledger.secrets.ignore, lambda mark: find(ledger, fingerprints=[mark])):
        with pytest.raises(InvalidInput) as refused:
            verb(wrong)
        assert "something" not in str(refused.value)
    with pytest.raises(NotFound):
        ledger.secrets.ignore("0" * 16)
    with pytest.raises(InvalidInput):
        find(ledger, fingerprints="0" * 16)


def test_a_beginning_that_several_fingerprints_share_is_refused(disk: Ledger) -> None:
    rows = [("abcdef0000000000", 0), ("abcdef1111111111", 0)]
    disk._store.write(lambda txn: txn.sql.run_many("INSERT INTO secret_ignored VALUES (?, ?)", rows))
    with pytest.raises(AmbiguousName):
        disk.secrets.ignore("abcdef", undo=True)
    assert disk.secrets.ignore("abcdef1", undo=True) == "abcdef1111111111"


def test_findings_are_narrowed_by_session_origin_project_time_and_fingerprint(ledger: Ledger) -> None:
    grow(ledger, "main", "m " + Maker(13).github(), workspace="/srv/shop")
    shared = ledger.turn("main").id
    grow(ledger, "main", "later " + Maker(14).github(), workspace="/srv/shop")
    ledger.fork(shared, label="alt")
    take(ledger, "toys", native_turn("t1", answer=Maker(15).github(), started=1_000, ended=2_000))
    assert len(find(ledger).secrets) == 3
    assert len(find(ledger, session="main").secrets) == 2
    assert len(find(ledger, session="alt").secrets) == 1
    assert {place.session for place in only(ledger, origin="toy").places} == {
        ledger.find_sessions(origin="toy")[0].label
    }
    assert len(find(ledger, project="toys").secrets) == 0
    assert len(find(ledger, origin="weft").secrets) == 2
    assert find(ledger, origin="nobody").secrets == ()
    assert len(find(ledger, since="1971-01-01").secrets) == 2
    chosen = find(ledger).secrets[0]
    assert find(ledger, fingerprints=[chosen.fingerprint[:7]]).secrets == (chosen,)
    with pytest.raises(NotFound):
        find(ledger, session="nobody")


def test_a_kept_source_is_looked_at_as_it_lay(ledger: Ledger) -> None:
    secret = Maker(16).github()
    first = native_turn("t1", end=10)
    take(ledger, "main", first)
    record = orjson.dumps({"type": "noise", "env": {"TOKEN": secret}}) + b"\n"
    ledger.imports.writer("toy", 1).keep(NativeSession(id="main"), "a.jsonl", b'{"x": 1}\n' * 2000 + record)
    found = only(ledger)
    assert [place.what for place in found.places] == ["sighting raw"]
    assert found.places[0].session_id is not None
    ledger.erasure.erase(found.contents, reason=WHY)
    assert find(ledger, anew=True).secrets == ()
    assert all(stretch.erased for stretch in ledger.imports.kept_sources(found.places[0].session_id))
    assert problems(ledger) == []


def test_bytes_that_only_look_like_a_kept_stretch_are_what_they_are(ledger: Ledger) -> None:
    for tail in (b"", b"\0\0\0\1" + bytes(32), b"\0\0\0\0no frame "):
        ledger.put_content(b"weft.raw.1\n" + tail + b" " + Maker(17).github().encode())
    assert only(ledger).times == 3
    assert only(ledger).uses == 0


def test_a_credential_is_found_again_where_no_rule_knows_it(ledger: Ledger) -> None:
    words, password = Maker(24).kinds()["betterleaks.generic-credential-uri"]
    grow(ledger, "main", f"connect to {words}")
    (alone,) = grow(ledger, "other", f"the word is {password}, and again {password}")
    large = ledger.put_content(b"filling \n" * 116_507 + b"1234 " + password.encode() + b"\n" * 99)
    ledger.record_turn(session="main", query=large, response="noted")
    assert {place.session for place in only(ledger).places} == {"main"}
    before = only(ledger)
    found = only(ledger, again=True)
    assert found.times == before.times + 5
    assert (found.fingerprint, found.kind) == (before.fingerprint, before.kind)
    assert alone in {place.turn_id for place in found.places}
    assert only(ledger, again=True) == found
    assert only(ledger, session="other").rules == ("weft.said-again",)
    ledger.erasure.erase(found.contents, reason=WHY)
    assert password not in repr(
        [message.text for name in ("main", "other") for message in ledger.thread(name).messages]
    )
    assert find(ledger, anew=True, again=True).secrets == ()


def test_what_is_ignored_or_short_is_not_looked_for_again(ledger: Ledger) -> None:
    made = Maker(25)
    words, password = made.kinds()["betterleaks.generic-credential-uri"]
    short = made.some(9)
    grow(ledger, "main", words, f"postgres://admin:{short}@db.acme.io:5432/x", f"{password} and {short}")
    ours = {secret.fingerprint: secret.times for secret in find(ledger).secrets}
    assert len(ours) == 2
    again = {secret.fingerprint: secret.times for secret in find(ledger, again=True).secrets}
    assert sorted(again[mark] - times for mark, times in ours.items()) == [0, 2]
    grown = next(mark for mark, times in ours.items() if again[mark] > times)
    ledger.secrets.ignore(grown)
    find(ledger, anew=True)
    find(ledger, again=True)
    assert only(ledger, ignored=True).times == ours[grown]


def plant(ledger: Ledger) -> list[str]:
    """Credentials of every kind in every kind of place; returns them."""
    made = Maker(18)
    planted = made.kinds()
    for i, (words, _) in enumerate(planted.values()):
        session = f"s{i}"
        with ledger.begin_turn(session=session) as turn:
            turn.message(f"use {words} now")
            call = turn.tool_call("run", {"command": f"echo {words}\n"}, id=f"c{i}")
            turn.tool_result(call, {"out": [f"{words}\n"]})
            turn.response({"content": f"```sh\nexport K={words}\n```\n"})
        ledger.fork(turn.id, label=f"{session}-fork")
    extra = [made.github() for _ in range(4)]
    grow(ledger, f"fix {extra[0]}", "a label tells it")
    take(ledger, "imported", native_turn("t1", answer=f"it is {extra[1]}", end=10), file=f"/x/{extra[2]}.jsonl")
    importer = ledger.imports.writer("toy", 1)
    importer.keep(NativeSession(id="imported"), "a.jsonl", orjson.dumps({"env": extra[3]}) + b"\n")
    large = ledger.put_content(b"filling \n" * 150_000 + extra[1].encode() + b"\n" + b"filling \n" * 50_000)
    ledger.record_turn(session="s0", query=large, response="noted")
    ledger.upkeep.catch_up()
    return [secret for _, secret in planted.values()] + extra


def test_nothing_that_is_told_or_kept_holds_a_credential(ledger: Ledger) -> None:
    planted = plant(ledger)
    told: list[object] = []
    report = find(ledger, progress=lambda *step: told.append(step))
    told += [report, find(ledger, session="s0"), tables(ledger), find(ledger, ignored=True)]
    ledger.secrets.ignore(report.secrets[0].fingerprint)
    told += [tables(ledger), ledger.erasure.plan([secret.contents[0] for secret in report.secrets[:2]])]
    for secret in planted:
        assert secret not in repr(told)
    assert len(report.secrets) >= len(planted)


@pytest.mark.slow("erases credentials of every kind, and looks for each in every file")
def test_after_erasing_no_file_holds_what_was_found(disk: Ledger, path: Path) -> None:
    planted = plant(disk)
    for secret in planted:
        assert files_with_canary(path.parent, canary=secret) or "\n" in secret
    digests = [turn.digest for turn in disk.log()]
    refs = {ref for secret in find(disk).secrets for ref in secret.contents}
    plan = disk.erasure.plan(sorted(refs))
    assert {f"s{i}-fork" for i in range(4)} <= {session.label for session in plan.sessions}
    assert disk.erasure.erase(plan, reason=WHY).complete
    left = {secret: files_with_canary(path.parent, canary=secret) for secret in planted}
    assert {secret: where for secret, where in left.items() if where} == {}
    assert find(disk).secrets == ()
    assert find(disk, anew=True).secrets == ()
    assert [turn.digest for turn in disk.log()] == digests
    assert problems(disk) == []


def test_after_erasing_no_table_of_a_server_holds_what_was_found(
    open_ledger: OpenLedger, new_postgres_ledger: NewPostgresLedger
) -> None:
    ledger = open_ledger(new_postgres_ledger())
    planted = plant(ledger)
    ledger.erasure.erase(sorted({ref for secret in find(ledger).secrets for ref in secret.contents}), reason=WHY)
    with ledger._store.read() as txn:
        names = txn.sql.fetch_rows("SELECT tablename FROM pg_catalog.pg_tables WHERE schemaname = current_schema()")
        rows = [row for (name,) in names for row in txn.sql.fetch_rows(f'SELECT * FROM "{name}"')]
    kept = b"\n".join(bytes(cell) if isinstance(cell, bytes) else repr(cell).encode() for row in rows for cell in row)
    assert [secret for secret in planted if secret.encode() in kept] == []
    assert find(ledger, anew=True).secrets == ()
    assert problems(ledger) == []


def test_memory_does_not_grow_with_what_is_looked_at(disk: Ledger) -> None:
    disk.put_content(b"filling \n" * 116_508 for _ in range(40))
    small = OtherRules()
    tracemalloc.start()
    try:
        find(disk, scanner=small)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert small.seen >= 40
    assert peak < 12 * ROW_BYTES


def test_a_copy_of_a_ledger_knows_what_is_ignored(disk: Ledger, tmp_path: Path) -> None:
    grow(disk, "main", Maker(19).github(), Maker(20).github())
    disk.secrets.ignore(find(disk).secrets[0].fingerprint)
    weft.copy(disk, tmp_path / "copy.db")
    with weft.open(tmp_path / "copy.db") as copy:
        assert find(copy).secrets == find(disk).secrets
        assert find(copy).ignored == 1


def test_without_the_scanner_it_is_said_what_to_install(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kingfisher_sdk", None)
    with pytest.raises(Unsupported, match="kingfisher-secret-scanner") as refused:
        ledger.secrets.find()
    assert refused.value.hint == "install it: `pip install 'weft[secrets]'`"


@pytest.mark.slow("a process under strace loads the rules")
def test_no_connection_is_tried(disk: Ledger, path: Path, tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(reason)
    plant(disk)
    scanner()
    code = (
        "import sys, pathlib, weft; from weft.ledger.secrets import load_scanner\n"
        "with weft.open(sys.argv[1]) as ledger:\n"
        "    print(len(ledger.secrets.find(scanner=load_scanner(pathlib.Path(sys.argv[2]))).secrets))\n"
    )
    trace = tmp_path / "trace"
    command = ["strace", "-f", "-o", str(trace), "-e", "trace=network", sys.executable, "-c", code, str(path)]
    done = subprocess.run([*command, str(CACHE / "weft")], capture_output=True, text=True, check=True, timeout=300)
    assert int(done.stdout) > 10
    assert [line for line in trace.read_text().splitlines() if "socket(" in line or "connect(" in line] == []


def test_every_rule_that_is_taken_though_it_serves_others_exists() -> None:
    from weft.ledger.secrets.scan import COMPONENTS

    assert all(scanner().kind(rule) != rule for rule in COMPONENTS)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Found a Stripe Access Token, posing a risk.", "Stripe Access Token"),
        ("Identified an AWS key.", "AWS key"),
        ("Uncovered a possible 1Password secret key, potentially", "1Password secret key"),
        ("npm Access Token", "npm Access Token"),
    ],
)
def test_a_rule_is_told_in_short(name: str, kind: str) -> None:
    assert in_short(name) == kind


def test_credentials_in_names_are_found_and_can_be_ignored(ledger: Ledger) -> None:
    made = Maker(40)
    model, tool, listed, both = made.github(), made.github(), made.github(), made.github()
    turn = ledger.record_turn(
        session="main",
        query=f"use {both}",
        response="r",
        model=model,
        provider=both,
        tools_available=["Read", listed],
        tool_calls=[{"name": tool, "id": "c1", "arguments": {}, "result": 1}],
    )
    ledger.record_turn(session="other", query="q", response="r", model=model)
    report = find(ledger)
    assert not any(token in repr(report) + tables(ledger) for token in (model, tool, listed, both))
    kinds = {tuple(sorted({place.what for place in secret.places})): secret for secret in report.secrets}
    in_both = ("history_append message.parts[0].text", "message provider", "turn provider")
    named = ("message model", "turn model")
    assert set(kinds) == {named, ("tool_call tool",), ("turn tools",), in_both}
    assert kinds[named].uses == 4
    assert kinds[named].contents == ()
    (place,) = kinds["tool_call tool",].places
    assert (place.content, place.session, place.turn_id) == ("", "main", turn.id)
    assert [secret.shown for secret in find(ledger, session="other").secrets] == ["ghp_…"]
    mark = kinds[named].fingerprint
    assert ledger.secrets.ignore(mark[:8]) == mark
    assert (len(find(ledger).secrets), find(ledger).ignored) == (3, 1)
    assert [secret.fingerprint for secret in find(ledger, ignored=True).secrets] == [mark]
    ledger.secrets.ignore(mark, undo=True)
    assert only(ledger, fingerprints=[mark]).uses == 4
