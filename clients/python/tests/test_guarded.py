"""Commands that run only while the lock is held."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Iterator
from typing import Any, Callable

import pytest
import redis
import redis.asyncio
from conftest import Proxy, calls, eventually

import lockward.asyncio
from lockward import Lock, LockError, LockLost, Unreachable

MakeLock = Callable[..., Any]


class InLoop:
    """A lock for asyncio, whose methods run the event loop until they are done."""

    def __init__(self, lock: lockward.asyncio.Lock, loop: asyncio.AbstractEventLoop) -> None:
        self._lock, self._loop = lock, loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._lock, name)
        if not inspect.iscoroutinefunction(found):
            return found
        return lambda *arguments, **options: self._loop.run_until_complete(found(*arguments, **options))


@pytest.fixture(params=["threads", "asyncio"])
def make_lock(request: Any) -> Iterator[MakeLock]:
    """A function that acquires the lock `a`, with a client of its own."""
    loop = asyncio.new_event_loop()
    clients: list[Any] = []

    def make(port: int, decode_responses: bool = False, **options: Any) -> Any:
        kind: Any = redis if request.param == "threads" else redis.asyncio
        client = kind.Redis(port=port, decode_responses=decode_responses)
        clients.append(client)
        lock = (
            Lock(client, "a", **options)
            if kind is redis
            else InLoop(lockward.asyncio.Lock(client, "a", **options), loop)
        )
        assert lock.acquire()
        return lock

    yield make
    if request.param == "asyncio":
        for client in clients:
            loop.run_until_complete(client.aclose() if hasattr(client, "aclose") else client.close())
        for task in asyncio.all_tasks(loop):
            task.cancel()
            loop.run_until_complete(asyncio.wait({task}))
    loop.close()


def overtake(client: redis.Redis) -> None:
    """Give the lock to another owner."""
    client.delete("a")
    client.execute_command("LOCK.ACQUIRE", "a", "another", "PX", 600_000)


def test_a_forgotten_tenure_is_restored_before_the_command_runs(own_server: Any, make_lock: MakeLock) -> None:
    server, empty = own_server(), own_server()
    lock = make_lock(server.port, timeout=600, auto_renewal=False)
    client = server.client()
    # The connection stays open, so the lock notices nothing.
    client.replicaof("127.0.0.1", empty.port)
    eventually(lambda: not client.exists("a"))
    client.execute_command("CONFIG", "SET", "lock.quarantine", 600_000)
    client.replicaof("NO", "ONE")
    assert lock.guarded("SET", "data", 1)
    assert client.get("data") == b"1" and calls(client, "lock.guard") == 2


def test_a_guarded_command_runs(make_lock: MakeLock, server: Any, client: redis.Redis) -> None:
    lock = make_lock(server.port)
    assert lock.guarded("SET", "data", 1) == b"OK"
    assert lock.guarded("INCR", b"data") == 2
    assert client.get("data") == b"2"


def test_replies_are_decoded_as_the_client_decodes(make_lock: MakeLock, server: Any) -> None:
    lock = make_lock(server.port, decode_responses=True)
    lock.guarded("RPUSH", "list", "one", "zwei")
    assert lock.guarded("LRANGE", "list", 0, -1) == ["one", "zwei"]


def test_without_a_command_the_token_is_checked(make_lock: MakeLock, server: Any, client: redis.Redis) -> None:
    lock = make_lock(server.port)
    assert lock.guarded() == b"OK"
    overtake(client)
    with pytest.raises(LockLost):
        lock.guarded()


def test_a_guarded_command_of_a_former_holder_does_not_run(
    make_lock: MakeLock, server: Any, client: redis.Redis
) -> None:
    lock = make_lock(server.port)
    overtake(client)
    with pytest.raises(LockLost, match="NOTHELD the lock is held by another owner with token"):
        lock.guarded("SET", "data", 1)
    assert not client.exists("data")


def test_a_refused_guarded_command_marks_the_lock_as_lost(make_lock: MakeLock, own_server: Any) -> None:
    server = own_server()
    told: list[Any] = []
    lock = make_lock(server.port, on_lost=told.append)
    overtake(server.client())
    lost = lock.lost
    assert lock.held and not lost.is_set()
    for _ in range(2):
        with pytest.raises(LockLost):
            lock.guarded("SET", "data", 1)
    assert not lock.held and lost.is_set() and len(told) == 1
    assert calls(server.client(), "lock.guard") == 1  # the second one was not sent


def test_an_error_of_the_guarded_command_keeps_the_lock(make_lock: MakeLock, server: Any) -> None:
    lock = make_lock(server.port)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE") as raised:
        lock.guarded("LPUSH", "a", "x")
    assert not isinstance(raised.value, LockError) and lock.held
    lock.release()


def test_a_guarded_command_is_not_sent_after_the_lease(make_lock: MakeLock, own_server: Any) -> None:
    server = own_server()
    lock = make_lock(server.port, timeout=0.05)
    eventually(lambda: not lock.held)
    with pytest.raises(LockLost):
        lock.guarded("SET", "data", 1)
    assert calls(server.client(), "lock.guard") == 0


def test_a_guarded_command_that_arrives_after_the_lease_does_not_run(
    make_lock: MakeLock, server: Any, client: redis.Redis
) -> None:
    proxy = Proxy(server.port, requests=0, replies=0)
    lock = make_lock(proxy.port, timeout=1)
    proxy.ask("plan hold LOCK.GUARD")

    def let_it_through() -> None:
        eventually(lambda: proxy.ask("losses")["held"] == 1)
        with server.client() as own:
            own.execute_command("LOCK.ACQUIRE", "a", "another", "PX", 600_000, "BLOCK", 20_000)
        proxy.ask("plan")

    other = threading.Thread(target=let_it_through, daemon=True)
    other.start()
    with pytest.raises(LockLost, match="NOTHELD"):
        lock.guarded("SET", "data", 1)
    other.join(20)
    assert not client.exists("data")
    proxy.close()


def test_a_guarded_command_is_not_repeated_when_its_reply_is_lost(
    make_lock: MakeLock, server: Any, client: redis.Redis
) -> None:
    proxy = Proxy(server.port, requests=0, replies=0)
    lock = make_lock(proxy.port)
    proxy.ask("plan reply LOCK.GUARD")
    with pytest.raises(Unreachable, match="may have run"):
        lock.guarded("INCR", "count")
    assert client.get("count") == b"1" and lock.held
    lock.release()
    proxy.close()


def test_a_guarded_command_is_sent_again_when_a_replica_has_refused_it(make_lock: MakeLock, own_server: Any) -> None:
    server = own_server()
    lock, client = make_lock(server.port, patience=20), server.client()
    client.execute_command("REPLICAOF", "127.0.0.1", 1)

    def promote() -> None:
        eventually(lambda: "errorstat_READONLY" in client.info("errorstats"))
        client.execute_command("REPLICAOF", "NO", "ONE")

    promotion = threading.Thread(target=promote, daemon=True)
    promotion.start()
    assert lock.guarded("SET", "data", 1) == b"OK"
    promotion.join(20)


def test_a_released_lock_guards_nothing(make_lock: MakeLock, server: Any) -> None:
    lock = make_lock(server.port)
    lock.release()
    with pytest.raises(LockError, match="unlocked"):
        lock.guarded("SET", "data", 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_the_child_of_a_fork_guards_nothing(server: Any, client: redis.Redis) -> None:
    lock = Lock(client, "a")
    lock.acquire()
    child = os.fork()
    if child == 0:
        try:
            lock.guarded("SET", "data", 1)
        except LockError as error:
            os._exit(7 if type(error) is LockError else 1)  # not LockLost: the parent has the lock
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7 and lock.held
    lock.release()
