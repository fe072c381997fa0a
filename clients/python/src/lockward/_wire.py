"""Connections, commands, replies in RESP2, the meaning of errors, and how the client counts times.

redis-py opens the connections. But redis-py's connections also repeat requests, decode replies and rewrite errors, in different
ways for threads and for asyncio. So this module packs the commands and parses the replies.

The protocol is written once, in coroutines. In asyncio, the event loop runs the coroutines. With threads, a coroutine awaits
only functions that block and do not suspend the coroutine. So the coroutine runs to its end at once.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import partial
from time import monotonic
from typing import Any, Callable

from redis.exceptions import ConnectionError, ResponseError

#: Errors which mean that the owner does not hold the lock any more. WRONGTYPE means that the key was overwritten.
DENIALS = {"NOTHELD", "HOLDS", "WRONGTYPE"}
FOREVER = float("inf")

Command = tuple[Any, ...]
Address = tuple[str, int]


class Broken(ConnectionError):
    """A connection is broken, or no reply has come in time. A signal handler of the program never raises this error."""


class NotSent(Broken):
    """No connection could be opened, or the server has refused it. So the server has not executed the commands."""


class LinkBase:
    """A connection. redis-py opens it, and this class sends the commands and reads the replies."""

    def __init__(self, theirs: Any, node: Address | None) -> None:
        self._theirs, self.node, self._data, self.idle_since = theirs, node, bytearray(), 0.0
        self.unread = 0  # how many replies the caller has not read yet; -1 if a command may be incomplete
        self.is_blocked = False  # whether a caller has left a wait on this connection
        if node and hasattr(theirs, "connect_to"):  # redis-py's own `connect` would ask the Sentinels for the address
            theirs.connect = partial(theirs.connect_to, node)
        # Remove these values, so that redis-py does not send its name to the server.
        for name in ("driver_info", "lib_name", "lib_version"):
            if getattr(theirs, name, None):
                setattr(theirs, name, None)

    async def open(self) -> None:
        """Open the connection."""

    def send(self, data: bytes) -> None:
        """Send without waiting for the reply."""

    async def receive(self) -> Any:
        """The next bytes, until the time limit. Empty bytes if the server has closed the connection."""

    def is_cut(self) -> Any:
        """Whether the server has closed the connection, as far as this process knows."""

    def close(self) -> None:
        """Close the connection in any state."""

    async def converse(self, commands: list[Command], until: float) -> list[Any]:
        """Send commands, and read their replies. An error reply is a ResponseError with the server's whole text."""
        self._until, earlier = until, self.unread
        self.unread = -1
        self.send(pack(commands))
        self.unread = earlier + len(commands)
        try:
            return [await self._next() for _ in range(self.unread)][earlier:]
        except RecursionError as error:
            raise Broken("a reply that is nested too deeply") from error

    async def _next(self) -> Any:
        self._at = 0
        reply = await self._reply()
        # If the caller leaves before this line, the reply stays unread.
        self._data, self.unread = self._data[self._at :], self.unread - 1
        return reply

    async def _reply(self) -> Any:
        while (end := self._data.find(b"\r\n", self._at)) < 0:
            await self._receive()
        kind, rest = self._data[self._at], bytes(self._data[self._at + 1 : end])
        self._at = end + 2
        if kind == ord(":"):
            return number(rest)
        if kind == ord("+"):
            return rest
        if kind == ord("-"):
            if rest.startswith(b"ERR max number of clients"):  # the server then closes the connection
                raise NotSent(rest.decode())
            return ResponseError(rest.decode(errors="replace"))
        length = number(rest)
        if length < 0:
            return None
        if kind == ord("*"):
            return [await self._reply() for _ in range(length)]
        if kind != ord("$"):
            raise Broken("a reply of an unknown type")
        start, self._at = self._at, self._at + length + 2
        while len(self._data) < self._at:
            await self._receive()
        return bytes(self._data[start : start + length])

    async def _receive(self) -> None:
        if monotonic() >= self._until:  # a server could send data without end
            raise Broken("no reply in time")
        data = await self.receive()
        if not data:
            raise Broken("the server has closed the connection")
        self._data += data


def pack(commands: Iterable[Command]) -> bytes:
    parts = []
    for command in commands:
        parts.append(b"*%d\r\n" % len(command))
        for argument in command:
            data = argument if type(argument) is bytes else str(argument).encode()
            parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


def number(digits: bytes) -> int:
    try:
        return int(digits)
    except ValueError as error:
        raise Broken(f"a reply that is not RESP2: {error}") from error


def error_code(reply: Any) -> str:
    """The first word of an error. An empty string if the reply is not an error."""
    return str(reply).partition(" ")[0] or "ERR" if isinstance(reply, ResponseError) else ""


def decoded(reply: Any, decode: Callable[[bytes], Any]) -> Any:
    """The reply, with all its strings decoded by `decode`."""
    if isinstance(reply, list):
        return [decoded(each, decode) for each in reply]
    return decode(reply) if isinstance(reply, bytes) else reply


def millis(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def lease_end(sent: float, lease: int) -> float:
    """When a lease of ``lease`` milliseconds ends, if its request was sent at ``sent``.

    The server starts counting later. The client subtracts a thousandth and a millisecond, because the server's clock may be
    faster.
    """
    return sent + (lease - lease // 1000 - 1) / 1000


def back_off(failures: int) -> float:
    """The pause before the next attempt: none after the first failure, then up to 50 ms. The limit doubles each time, to 1 s."""
    return min(1.0, 0.025 * float(2 ** min(failures, 6))) * random.uniform(0.5, 1.0) if failures else 0.0
