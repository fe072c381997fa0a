"""The wire protocol RESP2, and what error replies mean.

redis-py opens the connections. What is sent on them is packed and parsed here: redis-py's own connections repeat requests,
decode replies and rewrite errors, each in its own way for threads and for asyncio.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable
from typing import Any, Callable

from redis.exceptions import ConnectionError, ResponseError

#: The parser needs more bytes.
MORE = object()
#: Errors after which a request is sent again: this server, or the one that replaces it, may accept it later.
TRANSIENT = {"UNBLOCKED", "SUPERSEDED", "LOADING", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN"}
#: The owner does not hold the lock any more as the client believed. (WRONGTYPE: the key was overwritten.)
DENIALS = {"NOTHELD", "HOLDS", "WRONGTYPE"}
_LONGEST_LEASE = re.compile(r"invalid expire time .*: at most (\d+) ")


def pack(commands: Iterable[tuple[Any, ...]]) -> bytes:
    parts = []
    for command in commands:
        parts.append(b"*%d\r\n" % len(command))
        for argument in command:
            data = argument if type(argument) is bytes else str(argument).encode()
            parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


class Parser:
    """Parses replies from the bytes that it is fed. Errors are returned as ResponseErrors with the server's whole text."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._position = 0
        self._reply: Generator[None, None, Any] | None = None

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> Any:
        """The next reply, or MORE."""
        if self._reply is None:
            self._reply = self._parse()
        try:
            next(self._reply)
            return MORE
        except StopIteration as end:
            self._reply = None
            del self._buffer[: self._position]
            self._position = 0
            return end.value

    def _parse(self) -> Generator[None, None, Any]:
        while (end := self._buffer.find(b"\r\n", self._position)) < 0:
            yield
        kind, rest = self._buffer[self._position], bytes(self._buffer[self._position + 1 : end])
        self._position = end + 2
        if kind == ord(":"):
            return int(rest)
        if kind == ord("+"):
            return rest
        if kind == ord("-"):
            return ResponseError(rest.decode(errors="replace"))
        length = int(rest)
        if length < 0:
            return None
        if kind == ord("$"):
            start, end = self._position, self._position + length
            while len(self._buffer) < end + 2:
                yield
            self._position = end + 2
            return bytes(self._buffer[start:end])
        if kind != ord("*"):
            raise ConnectionError("a reply that is not RESP2")
        elements = []
        for _ in range(length):
            elements.append((yield from self._parse()))
        return elements


def error_code(reply: Any) -> str:
    """The first word of an error; otherwise nothing."""
    return str(reply).partition(" ")[0] if isinstance(reply, ResponseError) else ""


def longest_lease(reply: Any) -> int | None:
    """The longest lease in milliseconds that the server accepts, if it refuses a longer one."""
    found = _LONGEST_LEASE.search(str(reply)) if isinstance(reply, ResponseError) else None
    return int(found[1]) if found else None


def redirected_to(reply: Any) -> tuple[str, int]:
    """Where MOVED or ASK leads. The host is empty if it is that of the server which replied."""
    host, _, port = str(reply).split()[-1].rpartition(":")
    return host, int(port)


def decoded(reply: Any, decode: Callable[[bytes], Any]) -> Any:
    """The reply with its strings as `decode` returns them."""
    if isinstance(reply, list):
        return [decoded(each, decode) for each in reply]
    return decode(reply) if isinstance(reply, bytes) else reply
