"""The execution context: an authority with credentials and settings, passed on through everything that is awaited.

A context only narrows. `child` is a smaller part of the same work, `delegate` hands work to somebody else and adds them
to the chain of its authority. A key is given to a context only where it was given to everybody in the chain.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from inspect import isawaitable, iscoroutinefunction
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar, overload

import msgspec
from msgspec import Struct

from weft.kernel.authority import EVERYTHING, Authority, Principal, Rights, pattern_matcher
from weft.kernel.errors import CredentialWithheld, InvalidInput
from weft.runtime.egress.credentials import Credential, Keyring, RunCommand, Secret, Variable, checked_secret, origin_of

P = ParamSpec("P")
T = TypeVar("T")


class ContextRecord(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A context as it can be written down: names only. What it may read is decided where it is read again."""

    chain: tuple[Principal, ...]
    rights: Rights
    credentials: tuple[str, ...] | None
    config: dict[str, Any] = msgspec.field(default_factory=dict)


@dataclass(frozen=True)
class ExecutionContext:
    """An authority, and the keys and settings that it acts with. `credentials` None: all that the chain was given."""

    authority: Authority
    credentials: frozenset[str] | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    _keyring: Keyring = field(default_factory=Keyring, repr=False, compare=False)
    _secrets: Mapping[str, Secret] = field(default_factory=dict, repr=False, compare=False)

    @property
    def chain(self) -> tuple[Principal, ...]:
        return self.authority.chain

    @property
    def rights(self) -> Rights:
        return self.authority.rights

    @property
    def principal(self) -> Principal:
        return self.authority.principal

    @property
    def on_behalf_of(self) -> tuple[Principal, ...]:
        """Everybody in whose name the principal acts, the nearest first."""
        return self.authority.on_behalf_of

    def child(
        self,
        *,
        rights: Rights = EVERYTHING,
        credentials: Iterable[str] | Mapping[str, str] | None = None,
        config: Mapping[str, Any] = MappingProxyType({}),
    ) -> ExecutionContext:
        """The same principal, with less. `credentials` are the names of those that are left; a mapping gives their
        values, too, which are used in place of what would be looked up. Settings are added to."""
        values = credentials if isinstance(credentials, Mapping) else {}
        secrets = {name: checked_secret(name, value) for name, value in values.items()}
        return replace(
            self,
            authority=self.authority.child(rights),
            credentials=self._fewer_credentials(credentials),
            config={**self.config, **config},
            _secrets={**self._secrets, **secrets},
        )

    def delegate(
        self, principal: Principal, *, rights: Rights = EVERYTHING, credentials: Iterable[str] | None = None
    ) -> ExecutionContext:
        """Somebody else, acting on behalf of everybody here; never with more than they have."""
        authority = self.authority.delegate(principal, rights)
        return replace(self, authority=authority, credentials=self._fewer_credentials(credentials))

    def _fewer_credentials(self, names: Iterable[str] | None) -> frozenset[str] | None:
        if names is None:
            return self.credentials
        wanted = frozenset(names)
        return wanted if self.credentials is None else self.credentials & wanted

    def get_config(self, name: str, default: Any = None) -> Any:
        """A setting of this context, or of one that it was made from."""
        return self.config.get(name, default)

    def get_credential(self, name: str) -> str:
        """The key of this name itself, for the caller's own use: as this context was given it, else from the variable
        of its credential, else from the variable of this name. Raises CredentialMissing where there is none, and
        CredentialWithheld where somebody in the chain was not given it."""
        if self.credentials is not None and name not in self.credentials:
            raise CredentialWithheld(name, f"{self.principal} was not given it")
        if name in self._keyring.names:
            self._ensure_given(self._keyring.credential(name))
        held = self._secrets.get(name)
        return (self._keyring.read_variable(name) if held is None else held).reveal()

    def allows(self, right: str) -> bool:
        return self.authority.allows(right)

    def ensure_allowed(self, right: str) -> None:
        self.authority.ensure_allowed(right)

    async def credential(self, name: str, url: str) -> Secret:
        """The key of this name, for a request to this URL. Looked up here, then in its variable or by its command."""
        self.ensure_credential(name)
        found = self._keyring.credential(name)
        if origin_of(url) != found.origin:
            raise CredentialWithheld(
                name,
                f"it is for {found.origin}, not for {origin_of(url)}",
                "a changed URL drops the key: add a credential for the new origin",
            )
        return self._secrets[name] if name in self._secrets else await self._keyring.read(found)

    def ensure_credential(self, name: str) -> None:
        """Raises CredentialMissing or CredentialWithheld where whoever acts may not use the key of this name."""
        if self.credentials is not None and name not in self.credentials:
            raise CredentialWithheld(name, f"{self.principal} was not given it")
        self._ensure_given(self._keyring.credential(name))

    async def credential_for_program(self, name: str) -> Secret:
        """The key of this name for a program of the user's, which their configuration says is given it. A program has
        no origin: where the key goes from there is up to it and to its sandbox."""
        return await self.credential(name, self._keyring.credential(name).origin)

    def key_in(self, variable: str, url: str) -> tuple[ExecutionContext, str]:
        """For a variable that a configuration names as the key of a server: a context that knows it, and its name.
        Whether whoever acts may have it is decided when it is read."""
        found = self._keyring.in_variable(variable, url)
        return replace(self, _keyring=self._keyring.knowing(found)), found.id

    def key_of(self, url: str) -> str | None:
        """The name of a credential that was added for this server."""
        found = self._keyring.of_origin(url)
        return None if found is None else found.id

    def _ensure_given(self, found: Credential) -> None:
        for principal in self.chain:
            if not any(pattern_matcher(pattern)(str(principal)) for pattern in found.given_to):
                raise CredentialWithheld(found.id, f"{principal} was not given it")

    def record(self) -> ContextRecord:
        """What another process needs to act in the same name, without any key."""
        names = None if self.credentials is None else tuple(sorted(self.credentials))
        return ContextRecord(chain=self.chain, rights=self.rights, credentials=names, config=dict(self.config))


def context_for(
    principal: Principal,
    *,
    keyring: Keyring | None = None,
    secrets: Mapping[str, Secret] = MappingProxyType({}),
    rights: Rights = EVERYTHING,
    config: Mapping[str, Any] = MappingProxyType({}),
) -> ExecutionContext:
    """The beginning of a chain."""
    return ExecutionContext(Authority((principal,), rights), None, dict(config), keyring or Keyring(), secrets)


def context_from_env(
    principal: Principal,
    variable: Variable,
    *,
    credentials: Iterable[Credential] = (),
    run: RunCommand | None = None,
    rights: Rights = EVERYTHING,
    config: Mapping[str, Any] = MappingProxyType({}),
) -> ExecutionContext:
    """The context of a surface. `variable` looks one variable up by its name; nobody gets the whole environment."""
    return context_for(principal, keyring=Keyring(credentials, variable, run), rights=rights, config=config)


def context_from_record(record: Any, keyring: Keyring | None = None) -> ExecutionContext:
    """A context as another process wrote it down, with the keys that are known here."""
    try:
        made = record if isinstance(record, ContextRecord) else msgspec.convert(record, ContextRecord)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"execution context: {error}") from None
    names = None if made.credentials is None else frozenset(made.credentials)
    return ExecutionContext(Authority(made.chain, made.rights), names, made.config, keyring or Keyring())


_current: ContextVar[ExecutionContext] = ContextVar("weft.execution_context")


def current_context() -> ExecutionContext:
    """The context that this code runs in."""
    found = _current.get(None)
    if found is None:
        raise InvalidInput("nobody acts here: there is no execution context", "call this within `run_with_context`")
    return found


@contextmanager
def acting(context: ExecutionContext) -> Iterator[ExecutionContext]:
    """Everything inside, and all that it awaits or starts, runs in this context."""
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)


@overload
def run_with_context(
    context: ExecutionContext, call: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
) -> Coroutine[Any, Any, T]: ...


@overload
def run_with_context(context: ExecutionContext, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...


def run_with_context(context: ExecutionContext, call: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> Any:
    """Call a function in this context, in whatever thread; of an asynchronous one the coroutine to be awaited, which
    runs in it. A thread that is begun inside has no context of its own: give it this function and the context."""
    if iscoroutinefunction(call):
        return _awaited_with_context(context, call, *args, **kwargs)
    with acting(context):
        outcome = call(*args, **kwargs)
    return _awaited_with_context(context, lambda: outcome) if isawaitable(outcome) else outcome


async def _awaited_with_context(
    context: ExecutionContext, call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
) -> T:
    with acting(context):
        return await call(*args, **kwargs)
