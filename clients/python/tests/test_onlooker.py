"""Who waits asks now and then whether the server is there: what tells that it is gone, and what does not."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Callable

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from conftest import SentinelServer, eventually, queue, waiters

import lockward.asyncio
from lockward import Lock, _course, _sync

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.fixture(params=["threads", "asyncio"])
def waiting(request: pytest.FixtureRequest) -> Callable[..., Future[None]]:
    """A function that has somebody wait for a lock, with a client made from `redis` or `redis.asyncio`, and release it."""

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
    """Where the name lb.test leads, in turn, and whether anybody says so."""
    names = SimpleNamespace(addresses=["127.0.0.1"], asked=0, answered=threading.Event())
    names.answered.set()
    system, turns = socket.getaddrinfo, itertools.count()

    def look_up(host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
        if host != "lb.test":
            return system(host, port, *arguments, **options)
        names.asked += 1
        assert names.answered.wait(60)
        first = next(turns) % len(names.addresses)
        turned = names.addresses[first:] + names.addresses[:first]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, int(port))) for each in turned]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    yield names
    names.answered.set()


def hang_up(client: redis.Redis) -> None:
    """Close the connections by which it was asked."""
    for each in client.client_list():
        if each["cmd"] == "ping":
            client.client_kill_filter(_id=each["id"])


def connections(client: redis.Redis) -> int:
    """How many have been made, or refused."""
    stats = client.info("stats")
    return int(stats["total_connections_received"] + stats["rejected_connections"])


@pytest.mark.parametrize("reason", ["full", "password"])
def test_a_server_that_lets_nobody_in_any_more_is_there(own_server: Any, waiting: Any, reason: str) -> None:
    server = own_server()
    client = server.client(single_connection_client=True)
    client.execute_command("ACL", "SETUSER", "waiter", "on", ">one", "~*", "+@all")
    holder = Lock(client, "a")
    holder.acquire()
    done = waiting(lambda kind: kind.Redis(port=server.port, username="waiter", password="one"))
    [place] = eventually(lambda: queue(client, "a"))
    if reason == "full":
        client.config_set("maxclients", 1)
    else:
        client.execute_command("ACL", "SETUSER", "waiter", "<one", ">two")
    hang_up(client)
    before = connections(client)
    eventually(lambda: connections(client) >= before + 6)
    [still] = queue(client, "a")
    assert still[b"client-id"] == place[b"client-id"] and not done.done()
    client.config_set("maxclients", 100)
    client.execute_command("ACL", "SETUSER", "waiter", ">one")
    holder.release()
    done.result(20)


def test_a_name_with_several_addresses_leads_to_the_server_still(own_server: Any, waiting: Any, names: Any) -> None:
    server = own_server("--save", "", "--bind", "127.0.0.1", "127.0.0.2")
    names.addresses.append("127.0.0.2")
    client = server.client()
    holder = Lock(client, "a")
    holder.acquire()
    done = waiting(lambda kind: kind.Redis(host="lb.test", port=server.port))
    [place] = eventually(lambda: queue(client, "a"))
    before = names.asked
    eventually(lambda: hang_up(client) or names.asked >= before + 12)
    assert queue(client, "a")[0][b"client-id"] == place[b"client-id"]
    holder.release()
    done.result(20)


def test_a_name_that_leads_elsewhere_has_the_waiter_follow(own_server: Any, waiting: Any, names: Any) -> None:
    server = own_server("--save", "", "--bind", "127.0.0.1", "127.0.0.2")
    client = server.client()
    holder = Lock(client, "a")
    holder.acquire()
    done = waiting(lambda kind: kind.Redis(host="lb.test", port=server.port))
    [place] = eventually(lambda: queue(client, "a"))
    names.addresses[:] = ["127.0.0.2"]
    hang_up(client)
    eventually(lambda: any(each[b"client-id"] != place[b"client-id"] for each in queue(client, "a")))
    holder.release()
    done.result(20)


def test_a_grant_does_not_wait_for_the_check(own_server: Any, waiting: Any, names: Any) -> None:
    server = own_server()
    client = server.client()
    holder = Lock(client, "a")
    holder.acquire()
    done = waiting(lambda kind: kind.Redis(host="lb.test", port=server.port))
    [place] = eventually(lambda: queue(client, "a"))
    names.answered.clear()
    hang_up(client)
    before = names.asked
    eventually(lambda: names.asked > before)
    has_waited_on(client, place, 4000)
    assert names.asked == before + 1 and len(checks()) <= 1
    holder.release()
    eventually(lambda: not Lock(client, "a").locked())
    names.answered.set()  # asyncio waits at its end for who asks
    done.result(20)
    eventually(lambda: not checks())


def has_waited_on(client: redis.Redis, place: Any, milliseconds: int) -> None:
    """For so long, in the same place. Each is asked for after 300 to 450 milliseconds, and has 2 seconds."""

    def waited() -> int:
        [still] = queue(client, "a")
        assert still[b"client-id"] == place[b"client-id"]
        return int(still[b"waited"] - place[b"waited"])

    eventually(lambda: waited() > milliseconds)


def checks() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "lockward-ping"]


def test_a_server_that_refuses_connections_is_gone(own_server: Any, waiting: Any) -> None:
    server = own_server()
    client = server.client(single_connection_client=True)
    holder = Lock(client, "a")
    holder.acquire()
    done = waiting(lambda kind: kind.Redis(port=server.port))
    eventually(lambda: waiters(client, "a") == 1)
    client.config_set("port", 0)
    hang_up(client)
    eventually(lambda: waiters(client, "a") == 0)
    client.config_set("port", server.port)
    eventually(lambda: waiters(client, "a") == 1)
    holder.release()
    done.result(20)


@pytest.fixture
def watched(own_server: Any, tmp_path: Path) -> Any:
    """A server, and two Sentinels that name it."""
    server, watching = own_server(), []
    for number in range(2):
        folder = tmp_path / f"sentinel{number}"
        folder.mkdir()
        watching.append(SentinelServer(folder))
        watching[-1].client().execute_command("SENTINEL", "MONITOR", "it", "127.0.0.1", server.port, "2")
    yield server, watching
    for each in watching:
        each.go_on()
        each.kill()


def by_sentinels(watching: list[Any], **options: Any) -> Callable[[ModuleType], Any]:
    ports = [each.port for each in watching]
    return lambda kind: kind.sentinel.Sentinel([("127.0.0.1", port) for port in ports], **options).master_for("it")


def test_a_sentinel_that_stands_still_stops_no_waiter(watched: Any, waiting: Any) -> None:
    server, watching = watched
    client = server.client()
    holder = Lock(client, "a")
    holder.acquire()
    done = waiting(by_sentinels(watching))
    [place] = eventually(lambda: queue(client, "a"))
    watching[0].stop()
    hang_up(client)
    has_waited_on(client, place, 4000)
    holder.release()
    eventually(lambda: not Lock(client, "a").locked())
    watching[0].go_on()
    done.result(20)


def test_a_primary_that_is_told_to_be_elsewhere_for_this_client_has_not_moved(watched: Any, waiting: Any) -> None:
    server, watching = watched
    monitor = watching[0].client()
    monitor.execute_command("SENTINEL", "REMOVE", "it")
    monitor.execute_command("SENTINEL", "MONITOR", "it", "127.0.0.3", server.port, "2")  # its address behind a gateway
    client = server.client()
    holder = Lock(client, "a")
    holder.acquire()
    done = waiting(by_sentinels(watching[:1], force_master_ip="127.0.0.1"))
    [place] = eventually(lambda: queue(client, "a"))
    has_waited_on(client, place, 1500)
    holder.release()
    done.result(20)


def test_sentinels_that_name_another_have_the_waiter_follow(watched: Any, own_server: Any, waiting: Any) -> None:
    server, watching = watched
    client = server.client()
    holder = Lock(client, "a")
    holder.acquire()
    done = waiting(by_sentinels(watching))
    [place] = eventually(lambda: queue(client, "a"))
    for each in watching:
        each.client().execute_command("SENTINEL", "REMOVE", "it")
    hang_up(client)
    has_waited_on(client, place, 1500)  # nobody knows another
    other = own_server()
    there = Lock(other.client(), "a")
    there.acquire()
    watching[1].client().execute_command("SENTINEL", "MONITOR", "it", "127.0.0.1", other.port, "2")
    eventually(lambda: waiters(client, "a") == 0)
    eventually(lambda: waiters(other.client(), "a") == 1)
    there.release()
    done.result(20)


@pytest.mark.skipif(not hasattr(socket, "TCP_KEEPIDLE"), reason="the system has another name for it")
def test_the_system_asks_whether_the_machine_is_there(server: Any) -> None:
    with server.client(socket_keepalive_options=None) as client, Lock(client, "a"):
        [[connection]] = _sync.link_of(client)._idle.values()
        assert connection._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30


@pytest.mark.parametrize(
    ("ping", "knock", "named", "is_gone"),
    [
        (None, None, [None], False),
        (None, None, [], False),
        # Another address of the same name, and of another.
        (("lb", 1), None, [], False),
        (("new", 1), None, [], True),
        # No answer, where a connection can be made, and where it cannot.
        (redis.TimeoutError("slow"), None, [], True),
        (redis.TimeoutError("slow"), OSError("no buffer space"), [], False),
        (redis.TimeoutError("slow"), redis.TimeoutError("slow"), [], False),
        (redis.ConnectionError("refused"), ConnectionRefusedError(), [None], True),
        # Answers.
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
def test_what_tells_that_the_server_is_gone(ping: Any, knock: Any, named: list[Any], is_gone: bool) -> None:
    server = SimpleNamespace(
        there=("10.0.0.1", 1),
        sentinels=named,
        ping=lambda: ping,
        knock=lambda: knock,
        named=lambda sentinel: sentinel,
        addresses=lambda name: {"lb": [("10.0.0.1", 1), ("10.0.0.2", 1)], "new": [("10.0.0.3", 1)]}[name[0]],
    )
    if is_gone:
        with pytest.raises(_course.Gone):
            carry_out(_course.checking(server))
    else:
        carry_out(_course.checking(server))


def carry_out(actions: Any) -> None:
    step = next(actions, None)
    while step is not None:
        try:
            answer = step()
            failure = answer if isinstance(answer, Exception) else None
        except Exception as error:
            failure = error
        try:
            step = actions.send(answer) if failure is None else actions.throw(failure)
        except StopIteration:
            return
