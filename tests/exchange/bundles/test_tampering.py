"""Whatever is done to a bundle, both verifiers refuse it, and they agree."""

import base64
import random
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import orjson
import pytest
from msgspec.structs import replace

import weft
from tests.exchange.bundles.histories import imported_thread, rich_thread
from tests.exchange.bundles.reading import INDEPENDENT, MAGIC, is_refused, lines_of, resealed, sealed, signer, verified
from tests.ledger.histories import large_bytes
from tests.sizes import PROVING, points, share
from weft.exchange.bundles import create_bundle, import_bundle, verification, verify_bundle
from weft.exchange.bundles.verification import EVENT_PREFIX, LIMITS, NOT_CONTENTS, end_line
from weft.kernel import contents
from weft.kernel.errors import InvalidBundle, ReplicaDiverged, WeftError
from weft.ledger.api.ledger import Ledger
from weft.ledger.upkeep.facts_file import event_line

POSITIONS = 20_000
UNPACKED_FREELY = LIMITS.free_bytes if PROVING else 8 * 2**20
"""How much a bundle unpacks to whatever its size is; both verifiers are given the smaller one."""
FEWER = POSITIONS // 5
SEED = 7


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a bundle of everything: signed, unsigned, imported."""
    folder = tmp_path_factory.mktemp("bundles")
    with weft.open(folder / "ledger.db") as ledger:
        rich_thread(ledger)
        withheld = ledger.messages("alt")[-1].id
        make = partial(create_bundle, ledger, ["alt", "main"], withhold=[withheld], force=True)
        make(folder / "signed.weft", signers=[signer(folder / "keys")])
        make(folder / "plain.weft")
        large = ledger.put_content(large_bytes(2_200_000, random.Random(SEED).randbytes))
        ledger.record_turn(session="large", query=large, response="seen")
        create_bundle(ledger, ["large"], folder / "large.weft")
    with weft.open(folder / "imports.db") as ledger:
        create_bundle(ledger, [imported_thread(ledger)], folder / "imported.weft")
    return folder


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    return tmp_path / "changed.weft"


@pytest.mark.parametrize("name", share(["signed", "plain", "imported", "large"], test=1))
def test_the_bundles_hold_before_anything_is_done_to_them(made: Path, name: str) -> None:
    verified(made / f"{name}.weft")


@pytest.mark.parametrize("name", ["signed", "imported"])
def test_every_change_of_a_byte_is_refused(made: Path, changed: Path, name: str) -> None:
    data = (made / f"{name}.weft").read_bytes()
    for k in points(POSITIONS if name == "signed" else FEWER, test=40):
        chance = random.Random(f"{SEED}/{k}")
        at = chance.randrange(len(data))
        other = chance.choice([data[at] ^ 1 << chance.randrange(8), data[at] + chance.randrange(1, 256) & 255])
        changed.write_bytes(data[:at] + bytes([other]) + data[at + 1 :])
        assert is_refused(changed), at


def test_every_change_of_a_byte_is_refused_where_the_file_is_sealed_anew(made: Path, changed: Path) -> None:
    """Somebody who changes a byte of the packed lines, and hashes the file again. What unpacks to the same lines is the
    same bundle; all else is refused."""
    data, taken = (made / "signed.weft").read_bytes()[:-32], points(FEWER, test=20)
    lines, same = lines_of(made / "signed.weft"), 0
    for k in taken:
        chance = random.Random(f"{SEED}/{k}")
        at = chance.randrange(len(MAGIC), len(data))
        body = data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
        changed.write_bytes(body + sha256(body).digest())
        if not is_refused(changed):
            same += 1
            assert lines_of(changed) == lines
    assert same <= len(taken) // 10 + (0 if PROVING else 4)  # of few, some more may be harmless


def test_every_change_of_a_byte_of_a_line_is_refused(made: Path, changed: Path) -> None:
    """The same one layer further in: a line is changed, then all is packed and sealed again."""
    lines = lines_of(made / "signed.weft")
    for k in points(FEWER, test=20):
        chance = random.Random(f"{SEED}/{k}")
        i = chance.randrange(len(lines))
        at = chance.randrange(len(lines[i]))
        line = lines[i][:at] + bytes([lines[i][at] ^ 1 << chance.randrange(8)]) + lines[i][at + 1 :]
        changed.write_bytes(sealed([*lines[:i], line, *lines[i + 1 :]]))
        assert is_refused(changed), (i, at)


@pytest.mark.slow("verifies some sixty bundles by both verifiers")
def test_what_is_cut_or_added_is_refused(made: Path, changed: Path) -> None:
    data = (made / "signed.weft").read_bytes()
    for size in {0, len(MAGIC), *points(len(data), test=25), len(data) - 1}:
        changed.write_bytes(data[:size])
        assert is_refused(changed), size
    packed = data[len(MAGIC) : -32]
    further = [b"\0", b"\n", data, zlib.compress(b"{}\n"), bytes(32)]
    for more in further:
        changed.write_bytes(data + more)
        assert is_refused(changed)
        body = MAGIC + packed + more
        changed.write_bytes(body + sha256(body).digest())
        assert is_refused(changed)


def test_other_containers_are_refused(made: Path, changed: Path) -> None:
    whole = zlib.decompress((made / "plain.weft").read_bytes()[len(MAGIC) : -32])
    raw = zlib.compressobj(wbits=-15)
    gzip = zlib.compressobj(wbits=31)
    for body in (whole, raw.compress(whole) + raw.flush(), gzip.compress(whole) + gzip.flush(), b"", whole[:-1]):
        for head in (MAGIC, b"weft bundle 2\n", b"PK\x03\x04"):
            changed.write_bytes(head + body + sha256(head + body).digest())
            assert is_refused(changed)
    changed.write_bytes(sealed([]))
    assert is_refused(changed)
    body = MAGIC + zlib.compress(whole[:-1])
    changed.write_bytes(body + sha256(body).digest())
    assert is_refused(changed)


def test_lines_that_are_swapped_doubled_or_left_out_are_refused(made: Path, changed: Path) -> None:
    lines = lines_of(made / "signed.weft")
    for k in points(FEWER // 4, test=10):
        chance = random.Random(f"{SEED}/{k}")
        i, j = sorted(chance.sample(range(len(lines)), 2))
        swapped = [*lines]
        swapped[i], swapped[j] = swapped[j], swapped[i]
        for forged in (swapped, [*lines[:j], lines[i], *lines[j:]], [*lines[:i], *lines[i + 1 :]], lines[:i]):
            if forged != lines:
                changed.write_bytes(sealed(forged))
                assert is_refused(changed), (i, j)


def forgeries(lines: list[bytes]) -> Iterator[tuple[str, list[bytes]]]:
    """What a forger could try who then counts and hashes everything anew."""
    events = [i for i, line in enumerate(lines) if line.startswith(EVENT_PREFIX)]
    for i in range(len(lines)):
        yield f"without line {i}", [*lines[:i], *lines[i + 1 :]]
    for i in range(len(lines)):
        yield f"line {i} twice", [*lines[: i + 1], *lines[i:]]
    for i, j in pairwise(events):
        yield f"events {i} and {j} swapped", [*lines[:i], lines[j], *lines[i + 1 : j], lines[i], *lines[j + 1 :]]
    absent = next(i for i, line in enumerate(lines) if line.startswith(b'{"absent":"'))
    yield "another absence", [*lines[:absent], b'{"absent":"' + b"0" * 64 + b'","why":"withheld"}', *lines[absent:]]
    yield "an unknown reason", [*lines[:absent], lines[absent][:86] + b'whatever"}', *lines[absent + 1 :]]
    content = next(i for i, line in enumerate(lines) if b'"text":' in line)
    value = orjson.loads(lines[content])
    for field, other in (("text", "forged"), ("salt", "0" * 32), ("ref", "0" * 64), ("text", 5), ("salt", "")):
        yield f"{field} {other}", [*lines[:content], orjson.dumps({**value, field: other}), *lines[content + 1 :]]
    yield "more fields", [*lines[:content], orjson.dumps({**value, "more": 1}), *lines[content + 1 :]]
    pieces = {"ref": value["ref"], "salt": value["salt"], "base64": base64.b64encode(value["text"].encode()).decode()}
    for piece, of in ((0, 2), (1, 1), (0, 0), (0, -1), (0, True), (0, 1.0)):
        forged = orjson.dumps({**pieces, "piece": piece, "pieces": of})
        yield f"piece {piece} of {of}", [*lines[:content], forged, *lines[content + 1 :]]


@pytest.mark.slow("seals some eighty forgeries, and verifies them by both verifiers")
def test_a_forger_who_hashes_all_anew_is_refused_by_both_or_by_none(made: Path, changed: Path) -> None:
    """A signature speaks for the lines: with it every forgery is refused. Without one, some give another bundle that
    holds, of other threads or with other gaps; the verifiers must still agree, and no head may be a lie."""
    facts = lines_of(made / "plain.weft")
    facts = facts[: next(i for i, line in enumerate(facts) if b'"sha256"' in line)]
    refused, taken = 0, share(list(forgeries(facts)), test=20)
    for what, lines in taken:
        resealed(made / "plain.weft", partial(lambda lines, _: lines, lines), changed)
        refused += is_refused(changed)
        resealed(made / "signed.weft", partial(lambda lines, _: lines, lines), changed)
        assert is_refused(changed), what
    assert refused > (len(facts) if PROVING else len(taken) // 3)


def put(at: int, line: bytes, facts: list[bytes]) -> list[bytes]:
    return [*facts[:at], line, *facts[at + 1 :]]


Change = Callable[[dict[str, object]], object]
CHANGES: dict[str, Change] = {
    "another version": lambda event: event.update(v=2),
    "a version that is no number": lambda event: event.update(v=True),
    "no kind": lambda event: event.pop("kind"),
    "no stream": lambda event: event.pop("stream"),
    "no prev": lambda event: event.pop("prev"),
    "prev is a number": lambda event: event.update(prev=5),
    "prev is short": lambda event: event.update(prev="00"),
    "another prev": lambda event: event.update(prev="0" * 64),
    "a float": lambda event: event.update(more=1.5),
    "a large number": lambda event: event.update(more=2**53),
    "another stream": lambda event: event.update(stream="run:" + "0" * 26),
    "a stream that is no name": lambda event: event.update(stream="run:../../etc/passwd"),
    "a kind of stream that is not in bundles": lambda event: event.update(stream="resource:" + "0" * 26),
    "an import that follows": lambda event: event.update(stream="import:" + "0" * 26, prev="0" * 64),
    "a ledger's event about nothing": lambda event: event.update(stream="ledger:" + "0" * 26),
    "a content that is not here": lambda event: event.update(more="0" * 64),
    "a fork point that is not here": lambda event: event.update(fork={"turn": "0" * 26, "event": "0" * 64}),
    "a fork point that is none": lambda event: event.update(fork=[]),
    "too deep": lambda event: event.update(more=orjson.loads("[" * 40 + "]" * 40)),
}


@pytest.mark.parametrize("change", share(list(CHANGES), test=5))
def test_an_event_that_breaks_the_form_is_refused_though_it_hashes(made: Path, changed: Path, change: str) -> None:
    """Events that begin a turn and others of it, given the id that their new bytes have."""
    lines = lines_of(made / "plain.weft")
    runs = [i for i, line in enumerate(lines) if b'"stream":"run:' in line and b'"kind":"tool_result"' not in line]
    begun = [i for i in runs if b'"kind":"run_started"' in lines[i]]
    for at in begun[:3] if "fork" in change else [*begun[:2], *runs[1:4], runs[-1]]:
        event = orjson.loads(lines[at])
        event.pop("event_id")
        CHANGES[change](event)
        forged = event_line(orjson.dumps(event, option=orjson.OPT_SORT_KEYS))
        resealed(made / "plain.weft", partial(put, at, forged), changed)
        assert is_refused(changed), at


@pytest.mark.parametrize("spelling", [b"{ ", b'{"actor":"x",', b"{\t"])
def test_an_event_in_another_spelling_is_refused_though_it_hashes(made: Path, changed: Path, spelling: bytes) -> None:
    lines = lines_of(made / "plain.weft")
    at = next(i for i, line in enumerate(lines) if line.startswith(EVENT_PREFIX))
    stored = b"{" + lines[at][len(EVENT_PREFIX) + 66 :]
    forged = b'{"event_id":"' + sha256(spelling + stored[1:]).hexdigest().encode() + b'",' + (spelling + stored[1:])[1:]
    resealed(made / "plain.weft", partial(put, at, forged), changed)
    assert is_refused(changed)


@pytest.mark.parametrize(
    ("told", "otherwise"),
    [
        (b'"salt":', b'"salt":"hidden words","salt":'),
        (b'"salt":', b'"salt":NaN,"salt":'),
        (b'"salt":', b'"salt":1e999,"salt":'),
        (b'"salt":', b'"salt":"\\ud800","salt":'),
        (b'"salt":', b'"salt": '),
        (b'"text":', b'"te\\u0078t":'),
        (b'"why":', b'"why":"hidden words","why":'),
        (b'"why":', b'"more":1,"why":'),
    ],
)
def test_a_content_in_another_spelling_is_refused(made: Path, changed: Path, told: bytes, otherwise: bytes) -> None:
    """Nothing stands in a bundle that no reader sees, and readers that differ in what they pass over agree."""
    lines = lines_of(made / "plain.weft")
    at = next(i for i, line in enumerate(lines) if told in line and line.startswith((b'{"ref":', b'{"absent":"')))
    end = next(i for i, line in enumerate(lines) if line.startswith(b'{"absent":') and b'"sha256":"' in line)
    facts = [*lines[:at], lines[at].replace(told, otherwise, 1), *lines[at + 1 : end]]
    whole = orjson.loads(lines[end])
    hashed = sha256(b"".join(line + b"\n" for line in facts)).hexdigest()
    changed.write_bytes(sealed([*facts, end_line(whole["events"], whole["contents"], whole["absent"], hashed)]))
    assert is_refused(changed)


def test_base64_has_one_spelling(disk: Ledger, target: Path, changed: Path) -> None:
    disk.record_turn(session="main", query=disk.put_content(b"\xff"), response="seen")
    create_bundle(disk, ["main"], target)
    verified(target)
    resealed(target, lambda lines: [line.replace(b'"base64":"/w=="', b'"base64":"/x=="') for line in lines], changed)
    assert changed.read_bytes() != target.read_bytes()
    assert is_refused(changed)


@pytest.mark.slow("both verifiers unpack 64 MB")
def test_a_bomb_is_refused_without_being_held(made: Path, changed: Path) -> None:
    """Lines that would fill the memory, at a thousandth of their size."""
    packer = zlib.compressobj(9)
    body = bytearray(MAGIC + packer.compress(lines_of(made / "plain.weft")[0] + b"\n"))
    for _ in range(64):
        body += packer.compress(b"[" * 1024 * 1024)
    body += packer.compress(b"\n") + packer.flush()
    changed.write_bytes(bytes(body) + sha256(body).digest())
    assert changed.stat().st_size < 100_000
    assert is_refused(changed)


def test_what_unpacks_to_far_more_than_its_size_is_refused(
    made: Path, changed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contents of zeros that would fill a disk: each line is short enough, and each content hashes."""
    pieces = UNPACKED_FREELY // 2**20
    monkeypatch.setattr(verification, "LIMITS", replace(LIMITS, free_bytes=UNPACKED_FREELY))
    monkeypatch.setattr(INDEPENDENT, "FREELY", UNPACKED_FREELY)
    zeros = base64.b64encode(bytes(2**20)).decode()
    packer = zlib.compressobj(9)
    body = bytearray(MAGIC + packer.compress(lines_of(made / "plain.weft")[0] + b"\n"))
    salted = sha256(b"weft.content.1\n" + bytes(16) + bytes(pieces * 2**20)).hexdigest()
    for i in range(pieces):
        piece = {"ref": salted, "salt": "0" * 32, "base64": zeros, "piece": i, "pieces": pieces}
        body += packer.compress(orjson.dumps(piece) + b"\n")
    body += packer.flush()
    changed.write_bytes(bytes(body) + sha256(body).digest())
    assert changed.stat().st_size < 2**20
    with pytest.raises(InvalidBundle, match="more than its size allows"):
        verify_bundle(changed)
    with pytest.raises(SystemExit, match=r"^refused: it unpacks to too much$"):
        INDEPENDENT.verify(changed)


def test_the_size_that_unpacks_freely_is_the_same_for_both() -> None:
    assert INDEPENDENT.FREELY == LIMITS.free_bytes == 256 * 2**20


def test_depth_and_odd_json_are_refused(made: Path, changed: Path) -> None:
    first = lines_of(made / "plain.weft")[0]
    for line in (
        b"[" * 100_000,
        b"{" * 100_000,
        b'{"ref":' * 50_000,
        b"null",
        b"",
        b"\xff\xfe",
        b'{"ref":NaN}',
        b"1" * 5000,
    ):
        changed.write_bytes(sealed([first, line]))
        assert is_refused(changed)
        changed.write_bytes(sealed([line, first]))
        assert is_refused(changed)


def test_random_bytes_are_refused(changed: Path) -> None:
    chance = random.Random(SEED)
    for _ in range(200):
        body = chance.choice([b"", MAGIC, MAGIC + struct.pack(">H", 0x789C)]) + chance.randbytes(chance.randrange(400))
        changed.write_bytes(body + chance.choice([b"", sha256(body).digest()]))
        assert is_refused(changed)


def test_nothing_of_a_refused_bundle_is_taken_in(made: Path, changed: Path, tmp_path: Path) -> None:
    data = (made / "signed.weft").read_bytes()
    changed.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with weft.open(tmp_path / "ledger.db") as ledger:
        with pytest.raises(InvalidBundle):
            import_bundle(ledger, changed)
        assert ledger.newest() == 0
        assert ledger.upkeep.stats()["contents"] == 0


def test_facts_that_hash_and_mean_nothing_are_refused_by_the_ledger(made: Path, changed: Path, tmp_path: Path) -> None:
    """The verifiers know hashes and links; what an event may say, the way into a ledger checks, as for all facts."""
    lines = lines_of(made / "plain.weft")
    at = next(i for i, line in enumerate(lines) if b'"kind":"agent_created"' in line)
    event = orjson.loads(lines[at])
    event.pop("event_id")
    event["actor"] = "words in an event"
    forged = event_line(contents.dumps(event))
    resealed(made / "plain.weft", partial(put, at, forged), changed)
    verified(changed)
    with weft.open(tmp_path / "ledger.db") as ledger, pytest.raises(WeftError, match="words in an event"):
        import_bundle(ledger, changed)


@pytest.mark.parametrize("kind", ["session_moved", "content_erased"])
def test_nobody_writes_in_the_name_of_the_ledger_that_a_bundle_comes_into(
    disk: Ledger, target: Path, changed: Path, kind: str
) -> None:
    """Somebody who was given a bundle gives it back with one event more, which says that its maker wrote it."""
    first = disk.record_turn(session="main", query="Pay Ann?", response="no")
    disk.record_turn(session="main", query="Pay Bob?", response="yes")
    create_bundle(disk, ["main"], target)
    head = disk.session("main").head
    moves = [line for line in lines_of(target) if b'"kind":"session_moved"' in line]
    last = orjson.loads(moves[-1])
    forged = {**last, "prev": last["event_id"], "to": first.id, "before": head, "why": "restore"}
    del forged["event_id"]
    if kind == "content_erased":
        ref = next(orjson.loads(line)["ref"] for line in lines_of(target) if b'"text":"no"' in line)
        common = {name: last[name] for name in ("v", "ts", "actor", "replica")}
        forged = {
            **common,
            "kind": kind,
            "stream": f"ledger:{disk.replica}",
            "prev": None,
            "content": ref,
            "reason": ref,
        }
    resealed(target, lambda lines: [*lines, event_line(contents.dumps(forged))], changed)
    verified(changed)
    with pytest.raises(ReplicaDiverged, match="which is this ledger, and it did not"):
        import_bundle(disk, changed)
    assert disk.session("main").head == head
    assert disk.erasure.pending() == []
    assert import_bundle(disk, target)[1].events == 0


def test_a_file_that_is_not_there_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(WeftError, match="No such file"):
        verify_bundle(tmp_path / "none.weft")


def test_the_other_verifier_is_short_and_shares_nothing() -> None:
    source = (Path(__file__).parents[3] / "tools" / "verify_bundle.py").read_text()
    assert len(source.splitlines()) < 210
    imported = {line.split()[1] for line in source.splitlines() if line.startswith(("import ", "from "))}
    assert imported == {"base64", "contextlib", "hashlib", "json", "re", "sqlite3", "sys", "zlib"}
    for name in NOT_CONTENTS:
        assert name in source
