"""Probes of the server where a caller waits: what proves that it is gone, and what does not."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
from concurrent.futures import Future
from types import ModuleType, SimpleNamespace
from typing import Any, Callable

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from conftest import SentinelServer, eventually, queue, waiters

import lockward.asyncio
from lockward import Lock, _probe, _sync

pytestmark = pytest.mark.usefixtures("short_probe_interval")


@pytest.fixture(params=["threads", "asyncio"])
def waiting(request: pytest.FixtureRequest) -> Callable[..., Future[None]]:
    """A function that waits for a lock in the background, and releases it. It gets a function that makes its client."""

    def in_a_thread(client: Any) -> None:
        with client, Lock(client, "a"):
            pass

    async def in_a_task(connect: Any) -> None:
        client = connect(redis.asyncio)
        async with client, lockward.asyncio.Lock(client, "a"):
            pass
        for each in sentinels(client):
            await (each.aclose() if hasattr(each, "aclose") else each.close())

    def run(connect: Any, done: Future[None]) -> None:
        try:
            if request.param == "threads":
                in_a_thread(connect(redis))
            else:
                asyncio.run(in_a_task(connect))
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    def begin(connect: Callable[[ModuleType], Any]) -> Future[None]:
        done: Future[None] = Future()
        threading.Thread(target=run, args=(connect, done), daemon=True).start()
        return done

    return begin


def sentinels(client: Any) -> list[Any]:
    manager = getattr(client.connection_pool, "sentinel_manager", None)
    return manager.sentinels if manager else []


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A name server for lb.test: its addresses in rotation, and an event to hold back its answers."""
    names = SimpleNamespace(addresses=["127.0.0.1"], asked=0, answered=threading.Event())
    names.answered.set()
    system, rotation = socket.getaddrinfo, itertools.count()

    def look_up(host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
        if host != "lb.test":
            return system(host, port, *arguments, **options)
        names.asked += 1
        assert names.answered.wait(60)
        first = next(rotation) % len(names.addresses)
        rotated = names.addresses[first:] + names.addresses[:first]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, int(port))) for each in rotated]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    yield names
    names.answered.set()


def close_probe_connections(client: redis.Redis) -> None:
    """Close the connections whose last command was PING."""
    for each in client.client_list():
        if each["cmd"] == "ping":
            client.client_kill_filter(_id=each["id"])


def connections(client: redis.Redis) -> int:
    """How many connections were accepted or refused."""
    stats = client.info("stats")
    return int(stats["total_connections_received"] + stats["rejected_connections"])


@pytest.mark.parametrize("reason", ["full", "password"])
def test_a_waiter_stays_at_a_server_that_refuses_new_connections(own_server: Any, waiting: Any, reason: str) -> None:
    server = own_server()
    client = server.client(single_connection_client=True)
    client.execute_command("ACL", "SETUSER", "waiter", "on", ">one", "~*", "+@all")
    holder = Lock(client, "a")
    holder.acquire()
    done = waiting(lambda kind: kind.Redis(port=server.port, username="waiter", password="one"))
    [waiter] = eventually(lambda: queue(client, "a"))
    if reason == "full":
        client.config_set("maxclients", 1)
    else:
        client.execute_command("ACL", "SETUSER", "waiter", "<one", ">two")
    close_probe_connections(client)
    before = connections(client)
    eventually(lambda: connections(client) >= before + 6)
    [now] = queue(client, "a")
    assert now[b"client-id"] == waiter[b"client-id"] and not done.done()
    client.config_set("maxclients", 100)
    client.execute_command("ACL", "SETUSER", "waiter", ">one")
    holder.release()
    done.result(20)


def test_a_waiter_stays_when_the_name_has_several_addresses(own_server: Any, waiting: Any, names: Any) -> None:
    server = own_server("bind 127.0.0.1 127.0.0.2")
    names.addresses.append("127.0.0.2")
    client = server.client()
    holder = Lock(client, "a")
    holder.acquire()
    done = waiting(lambda kind: kind.Redis(host="lb.test", port=server.port))
    [waiter] = eventually(lambda: queue(client, "a"))
    before = names.asked
    eventually(lambda: close_probe_connections(client) or names.asked >= before + 12)
    assert queue(client, "a")[0][b"client-id"] == waiter[b"client-id"]
    holder.release()
    done.result(20)


def test_a_waiter_follows_a_name_that_resolves_elsewhere(own_server: Any, waiting: Any, names: Any) -> None:
    server = own_server("bind 127.0.0.1 127.0.0.2")
    client = server.client()
    holder = Lock(client, "a")
    holder.acquire()
    done = waiting(lambda kind: kind.Redis(host="lb.test", port=server.port))
    [waiter] = eventually(lambda: queue(client, "a"))
    names.addresses[:] = ["127.0.0.2"]
    close_probe_connections(client)
    eventually(lambda: any(each[b"client-id"] != waiter[b"client-id"] for each in queue(client, "a")))
    holder.release()
    done.result(20)


def test_a_grant_does_not_wait_for_a_probe(own_server: Any, waiting: Any, names: Any) -> None:
    server = own_server()
    client = server.client()
    holder = Lock(client, "a")
    holder.acquire()
    done = waiting(lambda kind: kind.Redis(host="lb.test", port=server.port))
    [waiter] = eventually(lambda: queue(client, "a"))
    names.answered.clear()
    close_probe_connections(client)
    before = names.asked
    eventually(lambda: names.asked > before)
    stays_for(client, waiter, 4000)
    assert names.asked == before + 1 and len(checks()) <= 1
    holder.release()
    eventually(lambda: not Lock(client, "a").locked())
    names.answered.set()  # asyncio.run waits for the thread that resolves the name
    done.result(20)
    eventually(lambda: not checks())


def stays_for(client: redis.Redis, waiter: Any, milliseconds: int) -> None:
    """Wait until the waiter has kept its position for so long. Probes start every 300 to 450 ms, and take up to 2 s."""

    def waited() -> int:
        [now] = queue(client, "a")
        assert now[b"client-id"] == waiter[b"client-id"]
        return int(now[b"waited"] - waiter[b"waited"])

    eventually(lambda: waited() > milliseconds)


def checks() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "lockward-ping"]


def test_a_server_without_a_listener_is_gone(own_server: Any, waiting: Any) -> None:
    server = own_server()
    client = server.client(single_connection_client=True)
    holder = Lock(client, "a")
    holder.acquire()
    done = waiting(lambda kind: kind.Redis(port=server.port))
    eventually(lambda: waiters(client, "a") == 1)
    client.config_set("port", 0)
    close_probe_connections(client)
    eventually(lambda: waiters(client, "a") == 0)
    client.config_set("port", server.port)
    eventually(lambda: waiters(client, "a") == 1)
    holder.release()
    done.result(20)


@pytest.fixture
def deployment(own_server: Any) -> Any:
    """A server and two Sentinels that monitor it."""
    server, watching = own_server(), [SentinelServer(), SentinelServer()]
    for each in watching:
        each.client().execute_command("SENTINEL", "MONITOR", "it", "127.0.0.1", server.port, "2")
    yield server, watching
    for each in watching:
        each.close()


def by_sentinels(watching: list[Any], **options: Any) -> Callable[[ModuleType], Any]:
    ports = [each.port for each in watching]
    return lambda kind: kind.sentinel.Sentinel([("127.0.0.1", port) for port in ports], **options).master_for("it")


def test_a_waiter_stays_when_a_sentinel_is_stopped(deployment: Any, waiting: Any) -> None:
    server, watching = deployment
    client = server.client()
    holder = Lock(client, "a")
    holder.acquire()
    done = waiting(by_sentinels(watching))
    [waiter] = eventually(lambda: queue(client, "a"))
    watching[0].stop()
    close_probe_connections(client)
    stays_for(client, waiter, 4000)
    holder.release()
    eventually(lambda: not Lock(client, "a").locked())
    watching[0].resume()
    done.result(20)


def test_a_waiter_stays_when_the_client_overrides_the_primarys_address(deployment: Any, waiting: Any) -> None:
    server, watching = deployment
    monitor = watching[0].client()
    monitor.execute_command("SENTINEL", "REMOVE", "it")
    monitor.execute_command(
        "SENTINEL", "MONITOR", "it", "127.0.0.3", server.port, "2"
    )  # like an address behind a gateway
    client = server.client()
    holder = Lock(client, "a")
    holder.acquire()
    done = waiting(by_sentinels(watching[:1], force_master_ip="127.0.0.1"))
    [waiter] = eventually(lambda: queue(client, "a"))
    stays_for(client, waiter, 1500)
    holder.release()
    done.result(20)


def test_a_waiter_follows_sentinels_that_name_another_primary(deployment: Any, own_server: Any, waiting: Any) -> None:
    server, watching = deployment
    client = server.client()
    holder = Lock(client, "a")
    holder.acquire()
    done = waiting(by_sentinels(watching))
    [waiter] = eventually(lambda: queue(client, "a"))
    for each in watching:
        each.client().execute_command("SENTINEL", "REMOVE", "it")
    close_probe_connections(client)
    stays_for(client, waiter, 1500)  # no Sentinel names a primary
    other = own_server()
    other_holder = Lock(other.client(), "a")
    other_holder.acquire()
    watching[1].client().execute_command("SENTINEL", "MONITOR", "it", "127.0.0.1", other.port, "2")
    eventually(lambda: waiters(client, "a") == 0)
    eventually(lambda: waiters(other.client(), "a") == 1)
    other_holder.release()
    done.result(20)


@pytest.mark.skipif(not hasattr(socket, "TCP_KEEPIDLE"), reason="the system names this option differently")
def test_tcp_keepalive_is_set(server: Any) -> None:
    with server.client(socket_keepalive_options=None) as client, Lock(client, "a"):
        [[connection]] = _sync.runtime_of(client)._idle.values()
        assert connection._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30


@pytest.mark.parametrize(
    ("ping", "try_connect", "named", "is_gone"),
    [
        (None, None, [None], False),
        (None, None, [], False),
        # PING led to another address of the same name, and of another name.
        (("lb", 1), None, [], False),
        (("new", 1), None, [], True),
        # No reply; a new connection can be opened, or not.
        (redis.TimeoutError("slow"), None, [], True),
        (redis.TimeoutError("slow"), OSError("no buffer space"), [], False),
        (redis.TimeoutError("slow"), redis.TimeoutError("slow"), [], False),
        (redis.ConnectionError("refused"), ConnectionRefusedError(), [None], True),
        # Other failures.
        (redis.AuthenticationError("WRONGPASS"), None, [], False),
        (redis.ConnectionError("max number of clients reached"), None, [], False),
        (redis.exceptions.BusyLoadingError("loading"), None, [], False),
        (redis.ConnectionError("reset"), None, [], False),
        (redis.exceptions.SlotNotCoveredError("no node"), None, [], False),
        # The first Sentinel that answers.
        (None, None, [redis.TimeoutError("slow")], False),
        (None, None, [redis.TimeoutError("slow"), ("new", 1)], True),
        (None, None, [None, ("new", 1)], False),
        (redis.AuthenticationError("WRONGPASS"), None, [("new", 1)], True),
        (None, None, [("nowhere", 1)], False),
    ],
)
def test_what_proves_that_the_server_is_gone(ping: Any, try_connect: Any, named: list[Any], is_gone: bool) -> None:
    server = SimpleNamespace(
        address=("10.0.0.1", 1),
        sentinels=named,
        ping=lambda: ping,
        try_connect=lambda: try_connect,
        ask_sentinel=lambda sentinel: sentinel,
        resolve=lambda name: {"lb": [("10.0.0.1", 1), ("10.0.0.2", 1)], "new": [("10.0.0.3", 1)]}[name[0]],
    )
    if is_gone:
        with pytest.raises(_probe.ServerGone):
            carry_out(_probe.probe(server))
    else:
        carry_out(_probe.probe(server))


def carry_out(plan: Any) -> None:
    step = next(plan, None)
    while step is not None:
        try:
            answer = step()
            failure = answer if isinstance(answer, Exception) else None
        except Exception as error:
            failure = error
        try:
            step = plan.send(answer) if failure is None else plan.throw(failure)
        except StopIteration:
            return
