"""Servers that are killed, restarted or stopped; processes that are stopped."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
from conftest import as_map, calls, eventually, holders, holds, queue, waiters

import lockward.asyncio
from lockward import Lock, LockLost, LockRefused


def test_a_waiter_whose_connection_breaks_waits_again(client: redis.Redis, server: Any) -> None:
    holder, granted = Lock(client, "a"), threading.Event()
    holder.acquire()

    def wait() -> None:
        with server.client() as own, Lock(own, "a"):
            granted.set()

    threading.Thread(target=wait, daemon=True).start()
    for _ in range(3):
        eventually(lambda: waiters(client, "a") == 1)
        info = as_map(client.execute_command("LOCK.INFO", "a", "WAITERS", 1))
        client.client_kill_filter(_id=as_map(info[b"queue"][0])[b"client-id"])
    eventually(lambda: waiters(client, "a") == 1)
    assert not granted.is_set()
    holder.release()
    assert granted.wait(20)


@pytest.mark.parametrize("kind", ["persistent", "forgetful"])
def test_a_tenure_survives_a_restart_of_the_server(own_server: Any, kind: str) -> None:
    if kind == "persistent":
        server = own_server("appendonly yes", "appendfsync always")
    else:
        server = own_server(module="quarantine 3000")
        wait_for_quarantine(server)
    client = server.client()
    lock = Lock(client, "a", lease=3, reentrant=True)
    lock.acquire()
    lock.acquire()
    token, lost = lock.fencing_token, lock.lost
    server.restart()
    eventually(lambda: "cmdstat_lock.renew" in client.info("commandstats"))
    eventually(lambda: holders(client, "a"))
    assert lock.owned() and lock.fencing_token == token and holds(client, "a") == 2
    assert not Lock(client, "a").acquire(blocking=False)
    assert not lost.is_set() and lock.held
    lock.release()
    lock.release()
    assert not holders(client, "a")


def test_a_broken_connection_renews_all_locks_at_once(own_server: Any) -> None:
    server = own_server()
    client = server.client()
    locks = [Lock(client, "a"), Lock(client, "b", timeout=25)]
    for lock in locks:
        lock.acquire()
    server.restart(module="quarantine 30000")
    assert not Lock(client, "c", timeout=1).acquire(blocking=False)  # notices the broken connection
    eventually(lambda: holders(client, "a") and holders(client, "b"), within=5)  # a third of the lease is 10 seconds
    assert all(lock.owned() for lock in locks) and client.pttl("b") <= 25_000
    for lock in locks:
        lock.release()


def test_a_broken_connection_renews_all_locks_at_once_in_asyncio(own_server: Any) -> None:
    server = own_server()

    async def main() -> None:
        own = redis.asyncio.Redis(port=server.port)
        locks = [lockward.asyncio.Lock(own, "a"), lockward.asyncio.Lock(own, "b", timeout=25)]
        for lock in locks:
            await lock.acquire()
        server.restart(module="quarantine 30000")
        assert not await lockward.asyncio.Lock(own, "c", timeout=1).acquire(blocking=False)
        until = time.monotonic() + 5
        while not (holders(server.client(), "a") and holders(server.client(), "b")):
            assert time.monotonic() < until
            await asyncio.sleep(0.01)
        for lock in locks:
            assert await lock.owned()
            await lock.release()

    asyncio.run(main())


def wait_for_quarantine(server: Any) -> None:
    """Wait until the quarantine after the start is over."""
    client = server.client()
    eventually(lambda: Lock(client, "probe", timeout=1).acquire(blocking=False))


def test_a_lock_is_lost_when_the_server_has_forgotten_it(own_server: Any) -> None:
    server = own_server()
    lock = Lock(server.client(), "a", lease=1)
    lock.acquire()
    lost = lock.lost
    server.restart()
    assert lost.wait(20)
    with pytest.raises(LockLost):
        lock.release()


def test_a_lock_at_a_stopped_server_is_lost_when_its_lease_ends(own_server: Any) -> None:
    server = own_server()
    lock = Lock(server.client(), "a", lease=0.6)
    lock.acquire()
    lost, others = lock.lost, Lock(server.client(), "b", lease=0.6)
    server.stop()
    assert lost.wait(20) and not lock.held and not others.held
    server.resume()


PROGRAM = """
import lockward, redis, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # background processes of a shell ignore it
client = redis.Redis(port=int(sys.argv[1]))
lock = lockward.Lock(client, "a", lease=1.5)
print("asking", flush=True)
lock.acquire()
print(lock.fencing_token, flush=True)
sys.stdin.readline()
try:
    lock.guarded("SET", "data", "1")
except lockward.LockLost:
    pass
print(lock.held, lock.lost.wait(20), flush=True)
try:
    lock.release()
    print("released", flush=True)
except lockward.LockLost:
    print("lost", flush=True)
"""


@contextlib.contextmanager
def program(server: Any) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", PROGRAM, str(server.port)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_process_that_was_stopped_past_its_lease_knows_that_the_lock_is_lost(
    server: Any, client: redis.Redis
) -> None:
    with program(server) as process:
        assert read_line(process) == "asking" and read_line(process).isdigit()
        process.send_signal(signal.SIGSTOP)
        with Lock(client, "a"):
            process.send_signal(signal.SIGCONT)
            write_line(process)
            assert read_line(process) == "False True"
            assert read_line(process) == "lost"
            assert not client.exists("data")


def test_an_interrupted_wait_leaves_the_queue(server: Any, client: redis.Redis) -> None:
    holder = Lock(client, "a")
    holder.acquire()
    with program(server) as process:
        assert read_line(process) == "asking"
        eventually(lambda: waiters(client, "a") == 1)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) != 0
    eventually(lambda: waiters(client, "a") == 0)
    holder.release()
    assert not holder.locked()


def write_line(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_a_waiter_that_was_stopped_past_its_granted_lease_waits_again(server: Any, client: redis.Redis) -> None:
    first, then = Lock(client, "a"), Lock(client, "a")
    first.acquire()
    with program(server) as process:
        assert read_line(process) == "asking"
        eventually(lambda: waiters(client, "a") == 1)
        process.send_signal(signal.SIGSTOP)
        first.release()  # grants the lock to the stopped process, whose lease ends
        then.acquire()
        taken = then.fencing_token or 0
        process.send_signal(signal.SIGCONT)
        eventually(lambda: waiters(client, "a") == 1)
        then.release()
        assert int(read_line(process)) > taken


def test_the_wait_limit_holds_at_a_stopped_server(own_server: Any) -> None:
    server = own_server()
    client = server.client()
    Lock(client, "a", timeout=60).acquire()
    began = time.monotonic()
    caught: list[Exception] = []

    def wait() -> None:
        try:
            Lock(client, "a").acquire(blocking_timeout=1)
        except redis.ConnectionError as error:
            caught.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    eventually(lambda: waiters(client, "a") == 1)
    server.stop()
    waiting.join(20)
    server.resume()
    assert caught and time.monotonic() > began + 1


@pytest.mark.usefixtures("short_probe_interval")
def test_a_waiter_keeps_its_position_while_the_server_answers(own_server: Any) -> None:
    server = own_server()
    holder, granted = Lock(server.client(), "a"), threading.Event()
    holder.acquire()

    def wait() -> None:
        with server.client() as own, Lock(own, "a"):
            granted.set()

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    keeps_its_position(server)
    holder.release()
    waiting.join(20)
    assert granted.is_set() and not waiting.is_alive()


@pytest.mark.usefixtures("short_probe_interval")
def test_a_waiter_keeps_its_position_while_the_server_answers_in_asyncio(own_server: Any) -> None:
    server = own_server()

    async def main() -> None:
        own = redis.asyncio.Redis(port=server.port)
        holder, other = lockward.asyncio.Lock(own, "a"), lockward.asyncio.Lock(own, "a")
        await holder.acquire()
        waiting = asyncio.create_task(other.acquire())
        await asyncio.to_thread(keeps_its_position, server)
        await holder.release()
        assert await asyncio.wait_for(waiting, 20)
        await other.release()

    asyncio.run(main())


def keeps_its_position(server: Any) -> None:
    """The waiter keeps its position while it probes the server, also after a probe's connection is closed."""
    with server.client() as client:
        before = calls(client, "ping")
        [waiter] = eventually(lambda: queue(client, "a"))
        eventually(lambda: calls(client, "ping") >= before + 3)
        client.client_kill_filter(_id=next(each["id"] for each in client.client_list() if each["cmd"] == "ping"))
        eventually(lambda: calls(client, "ping") >= before + 6)
        asked = calls(client, "ping") - before
        [now] = queue(client, "a")
    assert now[b"client-id"] == waiter[b"client-id"] and asked - 1 <= now[b"waited"] / 300


def test_a_short_wait_sends_no_probe(own_server: Any) -> None:
    server = own_server()
    client = server.client()
    holder, asked = Lock(client, "a"), calls(client, "ping")
    holder.acquire()
    assert not Lock(client, "a").acquire(blocking_timeout=0.1)
    waiting = threading.Thread(target=Lock(client, "a").acquire, daemon=True)
    waiting.start()
    eventually(lambda: waiters(client, "a") == 1)
    holder.release()
    waiting.join(20)
    assert holders(client, "a") and calls(client, "ping") == asked


@pytest.mark.parametrize("setting", ["max-lease", "quarantine"])
def test_a_lease_that_becomes_too_long_is_shortened(own_server: Any, setting: str) -> None:
    client = own_server().client()
    lock, named = Lock(client, "a", lease=3, reentrant=True), Lock(client, "b", timeout=3, auto_renewal=True)
    lock.acquire()
    named.acquire()
    handle = named.handle(detach=True)
    client.execute_command("CONFIG", "SET", f"lock.{setting}", 2000)
    assert lock.acquire() and lock.holds == 2
    resumed = Lock.resume(client, handle)
    with pytest.raises(LockRefused, match="invalid expire time"):
        resumed.extend(3, replace_ttl=True)
    eventually(lambda: renewed(client) >= 16)  # with the whole lease, the lock would be lost by then
    for each in (lock, resumed):
        assert each.held and each.owned() and not each.lost.is_set()


def test_a_lease_that_becomes_too_long_is_shortened_in_asyncio(own_server: Any) -> None:
    server = own_server()

    async def main() -> None:
        own = redis.asyncio.Redis(port=server.port)
        lock = lockward.asyncio.Lock(own, "a", lease=3)
        await lock.acquire()
        server.client().execute_command("CONFIG", "SET", "lock.max-lease", 2000)
        await asyncio.to_thread(lambda: eventually(lambda: renewed(server.client()) >= 8))
        assert lock.held and await lock.owned() and not lock.lost.is_set()

    asyncio.run(main())


def renewed(client: redis.Redis) -> int:
    """How many renewals have succeeded."""
    stats = client.info("commandstats").get("cmdstat_lock.renew", {"calls": 0, "failed_calls": 0})
    return int(stats["calls"] - stats["failed_calls"])
