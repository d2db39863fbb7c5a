#!/usr/bin/env python3
"""Verifies a Weft bundle after docs/sharing.md with the standard library alone: FILE [TRUSTED_PUBLIC_KEY_IN_HEX ...]"""

import base64
import hashlib
import json
import re
import sqlite3
import sys
import zlib
from contextlib import closing

NOT_CONTENTS = """prev event event_id request_id base at bound policy_ref resource_ref snapshot_ref new_resource_ref
    materialization node to resource""".split()
TOLD = ("content", "withheld", "erased", "missing", "outside")
HEX = {n: re.compile(f"[0-9a-f]{{{n}}}").fullmatch for n in (32, 64, 128)}
FREELY, ULID = 1 << 28, "[0-7][0-9A-HJKMNP-TV-Z]{25}"


def canonical(value, order=True):
    return json.dumps(value, sort_keys=order, separators=(",", ":"), ensure_ascii=False).encode()


def need(holds, why):
    if not holds:
        raise SystemExit(f"refused: {why}")


def lines(file):
    whole, unpacker, packed, held, size = hashlib.sha256(b"weft bundle 1\n"), zlib.decompressobj(), b"", b"", 0
    need(file.read(14) == b"weft bundle 1\n", "not a bundle of this form")
    while data := file.read(1 << 18):
        packed, seal = (packed + data)[:-32], (packed + data)[-32:]
        whole.update(packed)
        need(not (unpacker.eof and packed), "something follows the last line")
        while packed and not unpacker.eof:
            piece = unpacker.decompress(packed, 1 << 18)
            packed, size = unpacker.unconsumed_tail, size + len(piece)
            *complete, held = (held + piece).split(b"\n")
            need(size <= min(16 << 30, FREELY + 200 * file.tell()), "it unpacks to too much")
            need(max(map(len, (*complete, held))) <= 16 << 20, "a line that is too long")
            bare = (re.sub(rb'"(?:[^"\\]++|\\.)*+"', b"", line) for line in complete if len(line) >> 19)
            need(all(sum(map(line.count, b"[{,")) < 1 << 19 for line in bare), "a line with too many values")
            yield from complete
        packed = seal
    need(unpacker.eof and not (unpacker.unused_data or held) and packed == whole.digest(), "changed, cut or lengthened")


def references(value, digests, depth=1):
    need(depth <= 32 and not isinstance(value, float) and (not isinstance(value, int) or abs(value) < 2**53), "a value")
    if isinstance(value, str) and HEX[64](value):
        yield value
    for name, each in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if not (isinstance(each, str) and name in digests):
            yield from references(each, digests, depth + 1)


class Bundle:
    def __init__(self, first, database):
        database.execute("CREATE TABLE known (name TEXT PRIMARY KEY, told TEXT)")
        self.unnamed = set()
        self.given, self.piece, self.ended, self.keys, self.n = set(), None, False, [], dict.fromkeys(TOLD, 0)
        self.database, self.events, self.turns, self.hash = database, 0, 0, hashlib.sha256(first + b"\n")
        self.heads = [(head["turn"], head["event"]) for head in json.loads(first)["heads"]]
        plain = {"bundle": 1, "heads": [{"event": event, "turn": turn} for turn, event in self.heads]}
        need(canonical(plain) == first and self.heads == sorted(set(self.heads)), "its first line")
        named = [turn for turn, event in self.heads if re.fullmatch(ULID, turn) and HEX[64](event)]
        need(0 < len(named) == len(self.heads) <= 1024, "its threads")

    def known(self, name):
        row = self.database.execute("SELECT told FROM known WHERE name = ?", (name,)).fetchone()
        return row[0] if row else ""

    def learn(self, *row):
        self.database.execute("INSERT OR REPLACE INTO known VALUES (?, ?)", row)

    def give(self, ref, told):
        need(HEX[64](ref) and not self.known(ref) and len(self.given) < 1 << 18, f"{ref!r:.80} has no place")
        self.learn(ref, told)
        self.given.add(ref)
        self.n[told] += 1

    def take(self, line):
        if self.ended:
            return self.take_signature(line)
        if line.startswith(b'{"event_id":"'):
            self.take_event(line[13:77].decode(), line[77:79], b"{" + line[79:])
        elif line.startswith((b'{"absent":"', b'{"base64":', b'{"ref":')):
            need(canonical(value := json.loads(line), order=False) == line, "a content in another spelling")
            self.take_absent(**value) if "absent" in value else self.take_content(value)
        else:
            counts = {"absent": sum(self.n.values()) - self.n["content"], "contents": self.n["content"]}
            need(line == canonical({**counts, "events": self.events, "sha256": self.hash.hexdigest()}), "its last line")
            need(self.piece is None and not self.given, "a content that no event names")
            need(not self.unnamed, "words that no substitution names")
            need(all(self.known(event) == f"run:{turn}" for turn, event in self.heads), "a head is not in it")
            self.ended = True
        self.hash.update(line + b"\n")

    def take_absent(self, absent, why):
        need(why in TOLD[1:] and self.piece is None, "an absence")
        self.give(absent, why)

    def take_content(self, value):
        fields = {"ref", "salt", "text"} if "text" in value else {"ref", "salt", "base64"}
        fields |= {"piece", "pieces"} if "base64" in value and "pieces" in value else set()
        ref, salt, number, of = value["ref"], value["salt"], value.get("piece", 0), value.get("pieces", 1)
        need(value.keys() == fields and HEX[32](salt) and type(number) is type(of) is int and of > 0, "a content")
        held = self.piece or [ref, salt, of, 0, 0, hashlib.sha256(b"weft.content.1\n" + bytes.fromhex(salt))]
        need(held[:4] == [ref, salt, of, number], "pieces that do not follow each other")
        data = value["text"].encode() if "text" in value else base64.b64decode(value["base64"], validate=True)
        need("text" in value or base64.b64encode(data).decode() == value["base64"], "base64 in another spelling")
        held[5].update(data)
        held[3:5] = held[3] + 1, held[4] + len(data)
        need(held[4] <= 256 << 20, "a content that is too large")
        self.piece = held if held[3] < of else None
        if self.piece is None:
            need(held[5].hexdigest() == ref, f"a content does not hash to {ref!r:.80}")
            self.give(ref, "content")

    def take_event(self, name, between, stored):
        need(between == b'",' and hashlib.sha256(stored).hexdigest() == name, f"event {name!r} does not hash to its id")
        kind, stream, prev = (event := json.loads(stored))["kind"], event["stream"], event["prev"]
        refs = list(references(event, [*NOT_CONTENTS, "source"] if kind == "run_started" else NOT_CONTENTS))
        need(canonical(event) == stored, f"event {name} is not in canonical form")
        need(isinstance(kind, str) and (prev is None or HEX[64](prev)) and repr(event["v"]) == "1", f"event {name}")
        owner = re.fullmatch(f"(run|session|program|import|ledger|conversation):{ULID}", stream)
        need(owner and not self.known(name) and self.piece is None, f"event {name} has no place, or comes twice")
        brought = self.given - {event.get("name")} if owner[1] == "program" or kind == "session_configured" else ()
        is_name = (prev is None and kind in ("agent_created", "human_created")) or owner[1] != "program"
        need(is_name and "content" not in map(self.known, brought), f"event {name} tells of programs more than a name")
        if owner[1] == "import":
            need(prev is None, f"{stream} is a set")
        elif owner[1] == "ledger":
            late = kind == "tool_result" and self.known(event["call"]["event_id"]).startswith("run:")
            erased = kind == "content_erased" and HEX[64](event["content"])
            shown = kind == "substitution" and self.known(event["original_event"]["event_id"])[:4] in ("run:", "ledg")
            self.unnamed |= {name} if (words := kind in ("history_append", "model_response")) else set()
            self.unnamed -= {event["replacement_event"]["event_id"]} if shown else set()
            need(late or erased or shown or (words and len(self.unnamed) <= 10_000), f"event {name} stands alone")
        else:
            tip, depth = (self.known(stream) or " 0").split(" ")
            need(tip == (prev or ""), f"event {name} does not follow the last one of {stream}")
            if owner[1] == "run" and prev is None:
                parent = f"run:{event['fork']['turn']}" if "fork" in event else ""
                grown = self.known(event["fork"]["event"] if parent else "")  # "" is never learnt
                need(kind == "run_started" and grown == parent, f"event {name} begins no turn, or grows from nothing")
                depth, self.turns = int((self.known(parent) or " 0").split(" ")[1]) + 1, self.turns + 1
            self.learn(stream, f"{name} {depth}")
        self.learn(name, stream)
        need(all(self.known(ref) in TOLD for ref in refs) and self.given <= {*refs}, f"event {name} and its contents")
        self.events, self.given = self.events + 1, set()

    def take_signature(self, line):
        key, signature = json.loads(line)["key"], json.loads(line)["signature"]
        need(HEX[64](key) and HEX[128](signature) and max(["", *self.keys]) < key, "a signature's form or order")
        need(canonical({"key": key, "signature": signature}) == line and len(self.keys) < 64, "a signature's form")
        signed = "\n".join(["weft.bundle.1", self.hash.hexdigest(), *(event for _, event in self.heads), ""]).encode()
        need(ed25519(bytes.fromhex(key), bytes.fromhex(signature), signed), "a signature does not hold")
        self.keys.append(key)


def ed25519(key, signature, message):
    p, order = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493
    d, root = -121665 * pow(121666, -1, p) % p, pow(2, (p - 1) // 4, p)

    def added(a, b):
        (x, y), (u, v), e = a, b, d * a[0] * a[1] * b[0] * b[1] % p
        return (x * v + u * y) * (1 - e) * (over := pow(1 - e * e, -1, p)) % p, (y * v + x * u) * (1 + e) * over % p

    def times(n, point):
        half = times(n // 2, added(point, point)) if n else (0, 1)
        return added(half, point) if n & 1 else half

    def decoded(data):
        y, sign = int.from_bytes(data, "little") & (2**255 - 1), data[31] >> 7
        square = (y * y - 1) * pow(d * y * y + 1, -1, p) % p
        x = x if (x := pow(square, (p + 3) // 8, p)) ** 2 % p == square else x * root % p
        need(y < p and x * x % p == square and (x or not sign), "a key that is no point")
        return (x if x & 1 == sign else p - x), y

    base, point, s = decoded(b"\x58" + b"\x66" * 31), decoded(key), int.from_bytes(signature[32:], "little")
    h = int.from_bytes(hashlib.sha512(signature[:32] + key + message).digest(), "little") % order
    x, y = added(times(s, base), times(h, (-point[0], point[1])))
    return s < order and (y | (x & 1) << 255).to_bytes(32, "little") == signature[:32]


def verify(path, trusted=()):
    try:
        with open(path, "rb") as file, closing(sqlite3.connect("")) as database:  # a file: memory stays the same
            bundle = Bundle(next(found := lines(file), b""), database)
            for line in found:
                bundle.take(line)
            need(bundle.ended, "it has no end")
            turns = {turn: int(bundle.known(f"run:{turn}").split(" ")[1]) for turn, _ in bundle.heads}
    except Exception as error:  # whatever became of a stranger's bytes
        raise SystemExit(f"refused: not in its form: {error!r:.200}") from error
    threads = [{"turn": turn, "digest": event, "turns": turns[turn]} for turn, event in bundle.heads]
    counts = {"turns": bundle.turns, "events": bundle.events, "contents": bundle.n.pop("content"), "absent": bundle.n}
    signed = [{"key": key, "trusted": key in trusted} for key in bundle.keys]
    return {"digest": bundle.hash.hexdigest(), "threads": threads, **counts, "signatures": signed}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(verify(sys.argv[1], sys.argv[2:]), indent=2) + "\n")
