"""Requests to a provider's server that ask no model anything: lists of models, embeddings.

Keys are put in by the guarded connection; what comes back that is no answer becomes an error that says who must act.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from weft.kernel.errors import OutsideError, Unsupported, WeftError
from weft.runtime.context import ExecutionContext
from weft.runtime.egress.credentials import Secret
from weft.runtime.egress.key_traces import KeyTraces
from weft.runtime.inference.routes import Route
from weft.runtime.inference.settings import ProviderSettings

if TYPE_CHECKING:
    from weft.runtime.egress.connections import Client
    from weft.runtime.inference.inference import Inference

T = TypeVar("T")
_LONGEST = 500


class Server:
    """A provider's server, as one principal asks it."""

    def __init__(self, client: Client, route: Route, provider: ProviderSettings, keys: list[Secret]) -> None:
        self.client, self.route, self.provider, self._keys = client, route, provider, keys

    def accept(self, answer: Any) -> bytes:
        """What it answered, unless it refuses; without the keys that it was sent."""
        if answer.status_code == 200:
            content = bytes(answer.content)
            shown = KeyTraces(self._keys).hidden_in(content.decode("utf-8", "surrogateescape"))
            return shown.encode("utf-8", "surrogateescape")
        raise self._refused(answer)

    def _refused(self, answer: Any) -> OutsideError:
        from weft.runtime.inference.failures import kind_of_status, provider_message, redacted, retry_after

        try:
            body: Any = msgspec.json.decode(answer.content)
        except msgspec.DecodeError:
            body = answer.text[:200]
        words = redacted(provider_message(body), self._keys)
        made = kind_of_status(answer.status_code)(f"{self.provider.id}: {answer.status_code}: {words}"[:_LONGEST])
        made.status = answer.status_code
        made.retry_after = retry_after(answer.headers)
        return made


async def with_server(
    inference: Inference,
    route: Route,
    provider: ProviderSettings,
    acting: ExecutionContext,
    work: Callable[[Server], Awaitable[T]],
) -> T:
    """Do something with a provider's server. Whatever is raised is of our tree, and holds no key."""
    keys: list[Secret] = []
    headers: dict[str, Secret] = {}
    for slot in route.keys:
        secret = await acting.credential(slot.credential, route.url)
        keys.append(secret)
        headers[slot.header] = Secret(slot.before + secret.reveal())
    failed: WeftError
    try:
        client, _ = inference.connections.client(route.url, headers, provider.rules)
        return await work(Server(client, route, provider, keys))
    except ImportError as error:
        failed = Unsupported(
            f"asking servers needs the package {error.name}", "install it with `pip install 'weft[providers]'`"
        )
    except Exception as error:  # whatever the connection raises becomes an error that says who must act
        from weft.runtime.inference.failures import failure_of

        failed = failure_of(error, provider.id, keys)
    raise failed  # out here, so that theirs, which quotes what was sent, does not hang on it
