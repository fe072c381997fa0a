"""What is sent over a connection: commands, replies in RESP2, the meaning of errors, and how times are counted.

redis-py opens the connections. Requests and replies are packed and parsed here. redis-py's own
connections repeat requests, decode replies and rewrite errors, in different ways for threads and
for asyncio.

The protocol is written once, in coroutines. In asyncio, the event loop runs them. With threads,
everything that they await blocks instead of suspending them, so they run to their end at once.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from typing import Any, Callable

from redis.exceptions import ConnectionError, ResponseError, TimeoutError

#: The errors of a broken connection, in contrast to error replies.
NETWORK_ERRORS = (ConnectionError, TimeoutError, OSError)
#: Errors after which a request is sent again: this server, or the next primary, may accept the request later.
TRANSIENT = {"MOVED", "ASK", "UNBLOCKED", "SUPERSEDED", "LOADING", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN"}
#: Errors which mean that the owner does not hold the lock any more. (WRONGTYPE: the key was overwritten.)
DENIALS = {"NOTHELD", "HOLDS", "WRONGTYPE"}
FOREVER = float("inf")
_LONGEST_LEASE = re.compile(r"invalid expire time .*: at most (\d+) ")

Command = tuple[Any, ...]
Address = tuple[str, int]


class NotSent(ConnectionError):
    """No connection could be opened, so the commands were not sent."""


class LinkBase:
    """A connection that redis-py opens, but that is then used without redis-py."""

    def __init__(self, theirs: Any) -> None:
        self._theirs, self._data, self.idle_since = theirs, bytearray(), 0.0
        # The connection does not send the requests that tell the server the library's name.
        for name in ("driver_info", "lib_name", "lib_version"):
            if getattr(theirs, name, None):
                setattr(theirs, name, None)

    async def open(self, address: Address | None) -> None:
        """Open the connection to ``address``, which Sentinels have named. None: the address of redis-py's options."""

    def send(self, data: bytes, until: float) -> None:
        """Send without waiting for the reply. The next read must end before ``until``."""

    async def receive(self) -> Any:
        """The next bytes. Empty bytes if the server has closed the connection."""

    def is_cut(self) -> Any:
        """Whether the server has closed the connection, as far as this process knows."""

    def close(self) -> None:
        """Close the connection in any state."""

    async def converse(self, commands: list[Command], until: float) -> list[Any]:
        """Send commands, and read their replies. An error reply is a ResponseError with the server's whole text."""
        self.send(pack(commands), until)
        return [await self._reply() for _ in commands]

    async def _reply(self) -> Any:
        while (end := self._data.find(b"\r\n")) < 0:
            await self._receive()
        kind, rest = self._data[0], bytes(self._data[1:end])
        del self._data[: end + 2]
        if kind == ord(":"):
            return int(rest)
        if kind == ord("+"):
            return rest
        if kind == ord("-"):
            return ResponseError(rest.decode(errors="replace"))
        length = int(rest)
        if length < 0:
            return None
        if kind == ord("*"):
            return [await self._reply() for _ in range(length)]
        if kind != ord("$"):
            raise ConnectionError("a reply that is not RESP2")
        while len(self._data) < length + 2:
            await self._receive()
        text = bytes(self._data[:length])
        del self._data[: length + 2]
        return text

    async def _receive(self) -> None:
        data = await self.receive()
        if not data:
            raise ConnectionError("the server has closed the connection")
        self._data += data


def pack(commands: Iterable[Command]) -> bytes:
    parts = []
    for command in commands:
        parts.append(b"*%d\r\n" % len(command))
        for argument in command:
            data = argument if type(argument) is bytes else str(argument).encode()
            parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


def error_code(reply: Any) -> str:
    """The first word of an error; an empty string for other replies."""
    return str(reply).partition(" ")[0] if isinstance(reply, ResponseError) else ""


def longest_lease(reply: Any) -> int | None:
    """The longest lease in milliseconds that the server accepts, if it refuses a longer one."""
    found = _LONGEST_LEASE.search(str(reply)) if isinstance(reply, ResponseError) else None
    return int(found[1]) if found else None


def decoded(reply: Any, decode: Callable[[bytes], Any]) -> Any:
    """The reply with its strings as `decode` returns them."""
    if isinstance(reply, list):
        return [decoded(each, decode) for each in reply]
    return decode(reply) if isinstance(reply, bytes) else reply


def millis(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def lease_end(sent: float, lease: int) -> float:
    """When a lease of ``lease`` milliseconds ends, if its request was sent at ``sent``.

    The server starts counting later. A thousandth and a millisecond are subtracted, because the server's clock may be
    faster.
    """
    return sent + (lease - lease // 1000 - 1) / 1000


def back_off(failures: int) -> float:
    """The pause before the next attempt: none after the first failure, then 50 ms, doubling to a second, with jitter."""
    return min(1.0, 0.025 * float(2 ** min(failures, 6))) * random.uniform(0.5, 1.0) if failures else 0.0
