"""Is the server where a caller waits still there, and still the primary?

A server process that is stopped keeps its connections. So while a reply is awaited for long, the client sends PING on
another connection, and asks the Sentinels. Only proof ends the wait: it costs the position in the queue.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from functools import partial
from typing import Any, Protocol

from redis.exceptions import ConnectionError, TimeoutError

from ._plan import Exchange, Plan

#: After how many seconds without a reply a server is probed, times 1 to 1.5.
PROBE_INTERVAL = 12.0


def probe_pause() -> float:
    """Seconds until the next probe. It varies, so that callers which began together do not probe together."""
    return PROBE_INTERVAL * random.uniform(1.0, 1.5)


def needs_probe(exchange: Exchange) -> bool:
    return exchange.limit is None or exchange.limit > PROBE_INTERVAL


class ServerGone(ConnectionError):
    """The server does not answer any more, or is not the primary."""


class ServerProbe(Protocol):
    """Questions about the server of a connection that waits. In asyncio these are coroutines."""

    address: Any  # where the connection leads
    sentinels: list[Any]

    def ping(self) -> Any:
        """Send PING on another connection. Return the server's name, if that has led to another address."""

    def try_connect(self) -> Any:
        """Open a connection to the address."""

    def ask_sentinel(self, sentinel: Any) -> Any:
        """Return the name of the primary, if it is another one."""

    def resolve(self, name: Any) -> Any:
        """Return the addresses of a name."""


def probe(server: ServerProbe) -> Plan[None]:
    """Raise ServerGone if the server is gone. A reply of any kind shows that it is there."""
    with _ignoring_failures():
        yield from _probe_server(server)
    for sentinel in server.sentinels:
        with _ignoring_failures():
            yield from _compare(server, (yield partial(server.ask_sentinel, sentinel)))
            return  # the first Sentinel that answers is believed


@contextlib.contextmanager
def _ignoring_failures() -> Iterator[None]:
    """A probe that fails for another reason, such as too many clients, proves nothing."""
    try:
        yield
    except ServerGone:
        raise
    except Exception:
        pass


def _probe_server(server: ServerProbe) -> Plan[None]:
    try:
        name = yield server.ping
    except Exception as error:
        try:
            yield server.try_connect
        except ConnectionRefusedError as refusal:
            raise ServerGone("the server refuses connections") from refusal
        if isinstance(error, TimeoutError):
            raise ServerGone("no reply in time") from error
    else:
        yield from _compare(server, name)


def _compare(server: ServerProbe, name: Any) -> Plan[None]:
    if name is not None and server.address not in (yield partial(server.resolve, name)):
        raise ServerGone("another server has taken its place")
