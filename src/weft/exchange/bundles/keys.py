"""Keys that bundles are signed with: Ed25519, each private one a file of its own that nobody else may read.

    FOLDER/NAME.key           a private key, PKCS #8, sealed with a passphrase if there is one
    FOLDER/NAME.pub           its public key, as one line
    FOLDER/trusted/NAME.pub   somebody else's

A key is in no ledger, event or error. A private key is written before its public one: killed in between, the next
`create` of the same name says that it exists, and `delete` takes it away.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

from weft.kernel.errors import Action, InvalidKey, StoreError, Unsupported, quoted
from weft.store.private_files import make_folder

FORM = "weft-key ed25519"
TRUSTED = "trusted"
PRIME = 2**255 - 19
_is_name = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}").fullmatch
_is_public = re.compile(rf"{FORM} ([0-9a-f]{{64}})(?: ([A-Za-z0-9_-][A-Za-z0-9_.-]{{0,63}}))?\n?").fullmatch


class PublicKey(Struct, frozen=True):
    """A key that signatures are checked with."""

    name: str
    bytes: bytes

    @property
    def line(self) -> str:
        return f"{FORM} {self.bytes.hex()} {self.name}\n"


class Signer(Struct, frozen=True):
    """A private key, open. Shows nothing of itself."""

    public: PublicKey
    sign: Callable[[bytes], bytes]

    def __repr__(self) -> str:
        return f"Signer({self.public.name!r})"


class KeyRing:
    """The keys in a folder: one's own, and those that are trusted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def create(self, name: str, seed: bytes, passphrase: str | None = None) -> PublicKey:
        """A new key from 32 random bytes."""
        lib, path = _library(), self._private(name)
        key = lib.ed25519.Ed25519PrivateKey.from_private_bytes(seed)
        sealed = lib.serialization.BestAvailableEncryption(passphrase.encode()) if passphrase else None
        public = PublicKey(name, key.public_key().public_bytes_raw())
        if self._public(name).exists():
            raise InvalidKey(f"a key named {name!r} exists already", "choose another name, or delete it first")
        data = key.private_bytes(
            lib.serialization.Encoding.PEM,
            lib.serialization.PrivateFormat.PKCS8,
            sealed or lib.serialization.NoEncryption(),
        )
        make_folder(self.folder)
        _write_new(path, data, 0o600)
        _write_new(self._public(name), public.line.encode(), 0o644)
        return public

    def own(self) -> list[PublicKey]:
        return [self._read_public(path) for path in sorted(self.folder.glob("*.pub"))]

    def trusted(self) -> list[PublicKey]:
        return [self._read_public(path) for path in sorted((self.folder / TRUSTED).glob("*.pub"))]

    def believed(self) -> list[PublicKey]:
        """Those whose signatures count: the trusted ones, and one's own."""
        return [*self.trusted(), *self.own()]

    def public(self, name: str) -> PublicKey:
        """One's own, else a trusted one."""
        for path in (self._public(name), self._trusted(name)):
            if path.exists():
                return self._read_public(path)
        raise InvalidKey(f"there is no key named {name!r}")

    def is_sealed(self, name: str) -> bool:
        """Does this private key want a passphrase?"""
        return b"ENCRYPTED" in self._read_private(name)

    def signer(self, name: str, passphrase: str | None = None) -> Signer:
        lib, data = _library(), self._read_private(name)
        try:
            key = lib.serialization.load_pem_private_key(data, passphrase.encode() if passphrase else None)
        except (ValueError, TypeError, lib.UnsupportedAlgorithm):
            why = "the passphrase is wrong, or the file is damaged" if passphrase else "it wants a passphrase"
            hint = "give its passphrase; it is asked for, or read from WEFT_KEY_PASSPHRASE"
            raise InvalidKey(f"the key {name!r} cannot be opened: {why}", hint) from None
        if not isinstance(key, lib.ed25519.Ed25519PrivateKey):
            raise InvalidKey(f"the key {name!r} is no Ed25519 key")
        return Signer(PublicKey(name, key.public_key().public_bytes_raw()), key.sign)

    def trust(self, line: str, name: str | None = None) -> PublicKey:
        """Believe somebody's signatures from now on; the line is what `export` gave them."""
        public_key = parse_public(line)
        key = PublicKey(name or public_key.name, public_key.bytes)
        if not key.name:
            raise InvalidKey("the key has no name", Action.NAME_KEY)
        path = self._trusted(key.name)
        if path.exists() and self._read_public(path).bytes != key.bytes:
            raise InvalidKey(f"another key named {key.name!r} is trusted already", Action.CHOOSE_ANOTHER_KEY_NAME)
        make_folder(path.parent)
        if not path.exists():
            _write_new(path, key.line.encode(), 0o644)
        return key

    def delete(self, name: str) -> bool:
        """A key of one's own, else a trusted one. True if a private key went."""
        for paths in ((self._private(name), self._public(name)), (self._trusted(name),)):
            existing = [path for path in paths if path.exists()]
            for path in existing:
                path.unlink()
            if existing:
                return paths[0] == self._private(name)
        raise InvalidKey(f"there is no key named {name!r}")

    def _read_private(self, name: str) -> bytes:
        path = self._private(name)
        try:
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_mode & 0o077:
                    raise InvalidKey(f"others may read {path}", f"chmod 600 {path}")
                return file.read(65536)
        except FileNotFoundError:
            raise InvalidKey(f"there is no private key named {name!r}", Action.CREATE_KEY) from None

    @staticmethod
    def _read_public(path: Path) -> PublicKey:
        with path.open("rb") as file:
            public_key = parse_public(file.read(4096).decode("utf-8", "replace"), str(path))
        return PublicKey(path.name.removesuffix(".pub"), public_key.bytes)

    def _private(self, name: str) -> Path:
        return self.folder / f"{_checked(name)}.key"

    def _public(self, name: str) -> Path:
        return self.folder / f"{_checked(name)}.pub"

    def _trusted(self, name: str) -> Path:
        return self.folder / TRUSTED / f"{_checked(name)}.pub"


def parse_public(line: str, label: str = "this") -> PublicKey:
    match = _is_public(line)
    if match is None or not is_point(bytes.fromhex(match[1])):
        raise InvalidKey(f"{label} is no public key", Action.EXPORT_PUBLIC_KEY)
    return PublicKey(match[2] or "", bytes.fromhex(match[1]))


def is_point(key: bytes) -> bool:
    """Is it spelled in the one way that a key has? Some libraries take a second spelling, others do not."""
    return len(key) == 32 and int.from_bytes(key, "little") & (2**255 - 1) < PRIME


def holds(key: bytes, signature: bytes, message: bytes) -> bool:
    """Was this message signed with this key?"""
    lib = _library()
    if not is_point(key):
        return False
    try:
        lib.ed25519.Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except (lib.InvalidSignature, ValueError):
        return False
    return True


def _checked(name: str) -> str:
    if not _is_name(name):
        raise InvalidKey(f"{quoted(name)} is no name for a key", "use up to 64 letters, digits, '-', '_' and '.'")
    return name


def _write_new(path: Path, data: bytes, mode: int) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise InvalidKey(f"{path} exists already", "choose another name, or delete that key first") from None
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}", "check the folder and its permissions") from error
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


class _Library(Struct):
    """The parts of `cryptography` that are used, loaded when a key is."""

    ed25519: Any
    serialization: Any
    InvalidSignature: type[Exception]
    UnsupportedAlgorithm: type[Exception]


def _library() -> _Library:
    try:
        from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise Unsupported(
            f"signatures need the cryptography library ({error})", "install it: `pip install 'weft[signing]'`"
        ) from error
    return _Library(ed25519, serialization, InvalidSignature, UnsupportedAlgorithm)
