"""Callers that leave: the server must keep no grant and no waiter of such a caller."""

from __future__ import annotations

import asyncio
import itertools
import linecache
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Callable

import pytest
import redis
import redis.asyncio
from conftest import eventually, eventually_in_loop, holders, waiters

import lockward
import lockward.asyncio
from lockward import LockLostError, UnreachableError
from lockward._runtime import Turn


class Proxy:
    """Forwards one request and one reply at a time.

    After `swallow`, the proxy forwards the next acquisition, but not its reply. From then on, the proxy forwards nothing
    on its connections, and closes and counts new connections until `open` is called.
    """

    def __init__(self, port: int) -> None:
        self.cuts, self._generation = 0, 0  # each cut begins a generation of connections
        self._listener, self._server, self._state = socket.create_server(("127.0.0.1", 0)), port, "open"
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def swallow(self) -> None:
        self._state = "swallow"

    @property
    def is_cut_off(self) -> bool:
        return self._state == "cut off"

    def cut_off(self) -> None:
        self._state = "cut off"
        self._generation += 1

    def open(self) -> None:
        assert self.is_cut_off
        with socket.create_connection(("127.0.0.1", self.port)) as last:
            last.recv(1)  # the proxy has closed all earlier connections, too
        self._state = "open"

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                generation = self._generation
                if self.is_cut_off:
                    client.close()
                    self.cuts += 1
                else:
                    threading.Thread(target=self._serve, args=(client, generation), daemon=True).start()

    def _serve(self, client: socket.socket, generation: int) -> None:
        with client, socket.create_connection(("127.0.0.1", self._server)) as server, suppress(OSError):
            while (request := client.recv(65536)) and self._generation == generation:
                server.sendall(request)
                reply = server.recv(65536)
                if self._state == "swallow" and b"LOCK.ACQUIRE" in request:
                    self.cut_off()
                else:
                    client.sendall(reply)


@pytest.fixture
def proxy(server: Any) -> Iterator[Proxy]:
    proxy = Proxy(server.port)
    yield proxy
    proxy.close()


def test_a_grant_whose_reply_is_lost_is_released_later(proxy: Proxy, client: redis.Redis) -> None:
    own = redis.Redis(port=proxy.port)
    proxy.swallow()
    with pytest.raises(UnreachableError):
        lockward.Lock(own, "a", timeout=1000, patience=2).acquire(blocking=False)
    assert holders(client, "a")
    proxy.open()
    eventually(lambda: not holders(client, "a"))


def test_a_grant_to_a_cancelled_acquisition_is_released_later(proxy: Proxy, client: redis.Redis) -> None:
    async def main() -> None:
        own = redis.asyncio.Redis(port=proxy.port)
        proxy.swallow()
        acquiring = asyncio.create_task(lockward.asyncio.Lock(own, "a", timeout=1000).acquire())
        # The proxy cuts the connection a moment after the grant.
        await eventually_in_loop(lambda: proxy.is_cut_off and holders(client, "a"))
        acquiring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acquiring
        cuts = proxy.cuts
        await eventually_in_loop(lambda: proxy.cuts > cuts + 2)  # the client repeats the release
        assert holders(client, "a")
        proxy.open()
        await eventually_in_loop(lambda: not holders(client, "a"))
        await own.connection_pool.disconnect()

    asyncio.run(asyncio.wait_for(main(), 20))


@pytest.mark.parametrize("name", [None, "job-7"])
def test_several_keys_are_acquired_again_with_a_new_owner(client: redis.Redis, server: Any, name: Any) -> None:
    """A late release of the old owner does not end a new grant. An owner that the program names stays the same."""
    with server.client() as other, lockward.Lock(client, "b"), other.monitor() as monitor:
        both = lockward.MultiLock([lockward.Lock(client, "a"), lockward.Lock(client, "b")], owner=name)
        threading.Thread(target=both.acquire, daemon=True).start()
        eventually(lambda: waiters(client, "b") == 1)
        requests: list[list[str]] = []
        while len([words for words in requests if words[:2] == ["LOCK.ACQUIRE", "a"]]) < 2:
            requests.append(monitor.next_command()["command"].split())
    of_a = [(words[0], words[2]) for words in requests if words[1:2] == ["a"] and words[0] != "LOCK.INFO"]
    first, later = of_a[0][1], of_a[-1][1]
    assert of_a == [("LOCK.ACQUIRE", first), ("LOCK.RELEASE", first), ("LOCK.ACQUIRE", later)]
    assert (first == later) == (name is not None)


def test_no_release_is_sent_if_no_acquisition_was_sent() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # the port is bound but not listening, so connections are refused
        lock = lockward.Lock(redis.Redis(port=unused.getsockname()[1]), "a", patience=0.1)
        before = set(threading.enumerate())
        with pytest.raises(UnreachableError):
            lock.acquire()
        assert not [each for each in threading.enumerate() if each not in before and each.name == "lockward-task"]


def test_a_release_of_a_named_owner_that_is_cancelled_twice_is_not_late(client: redis.Redis, server: Any) -> None:
    """A release after the call would end the next tenure of this owner. anyio cancels a task again and again."""

    async def main() -> None:
        own = redis.asyncio.Redis(port=server.port)
        lock, go_on = lockward.asyncio.Lock(own, "a", owner="job-7"), asyncio.Event()
        assert await lock.acquire()
        runtime = lock._runtime
        send = runtime.send

        async def send_later(*arguments: Any) -> None:
            await go_on.wait()
            await send(*arguments)

        runtime.send = send_later
        releasing = asyncio.create_task(lock.release())
        for _ in range(20):
            await asyncio.sleep(0)
            releasing.cancel()
        assert not releasing.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await releasing
        assert not holders(client, "a")
        await own.connection_pool.disconnect()

    asyncio.run(main())


def test_a_release_of_a_named_owner_that_waits_for_a_connection_is_not_late(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers to other calls do not start the patience of this release again."""
    lock = lockward.Lock(client, "a", owner="job-7", timeout=1000)
    busy, runtime = lockward.Lock(client, "busy"), lock._runtime
    assert busy.acquire()
    queue = runtime._turns.setdefault((None, True), {})
    others, is_over = [Turn(runtime, queue, 16) for _ in range(16)], threading.Event()
    assert all(turn.has_begun() for turn in others)

    def call() -> None:
        while not is_over.is_set():
            assert not lockward.Lock(client, "busy").acquire(blocking=False)

    def interrupt(_: Any) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(lock, "_keep", interrupt)
    calling = threading.Thread(target=call, daemon=True)
    calling.start()
    with pytest.raises(KeyboardInterrupt):
        lock.acquire()
    waiting = len(queue) - len(others)
    is_over.set()
    calling.join(20)
    assert not waiting, "the release still waits for a connection"


@pytest.mark.parametrize("keys", ["a", "ab"])
def test_a_release_does_not_overtake_the_acquisition_that_the_program_has_left(
    module: Any, scripted: Any, monkeypatch: pytest.MonkeyPatch, keys: str
) -> None:
    """The server may read its connections in any order, so both requests must come on one connection."""
    connections: dict[bytes, list[threading.Thread]] = {b"LOCK.ACQUIRE": [], b"LOCK.RELEASE": []}
    acquiring, go_on = threading.Event(), threading.Event()

    def answer(words: list[bytes]) -> bytes:
        if words[1] != b"idle":
            connections[words[0]].append(threading.current_thread())
            if words[0] == b"LOCK.ACQUIRE":
                acquiring.set()
                assert go_on.wait(20)
        return b"*3\r\n:7\r\n:1\r\n:30000\r\n" if words[0] == b"LOCK.ACQUIRE" else b":0\r\n"

    own = module.connect(scripted(answer).port)
    with module.Lock(own, "idle"), module.Lock(own, "idle"):
        lock = module.MultiLock([module.Lock(own, key) for key in keys])
    if module is lockward:

        async def interrupt(link: Any) -> bytes:
            monkeypatch.undo()
            assert acquiring.wait(20)
            go_on.set()
            raise KeyboardInterrupt

        monkeypatch.setattr(type(lock._runtime)._link, "receive", interrupt)
        with pytest.raises(KeyboardInterrupt):
            lock.acquire()
    else:

        async def cancel() -> None:
            acquisition = asyncio.ensure_future(lock._found.acquire())
            await eventually_in_loop(acquiring.is_set)
            acquisition.cancel()
            with pytest.raises(asyncio.CancelledError):
                await acquisition
            go_on.set()
            await eventually_in_loop(lambda: len(connections[b"LOCK.RELEASE"]) == len(keys))

        module.run(cancel())
    eventually(lambda: len(connections[b"LOCK.RELEASE"]) == len(keys))
    [connection] = set(connections[b"LOCK.ACQUIRE"])
    assert set(connections[b"LOCK.RELEASE"]) == {connection}


class Alarm:
    """Sends a signal to the main thread. The handler raises an error there."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __enter__(self) -> Alarm:
        self._former = signal.signal(signal.SIGALRM, self._raise)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGALRM, self._former)

    def _raise(self, *_: object) -> None:
        raise self._error

    def ring(self) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)


class LateSlice:
    """Forwards requests to a server. It forwards the request of a wait, and all that follows it on this connection, after the
    first release on another connection."""

    def __init__(self, port: int) -> None:
        self.has_slice, self.is_released, self.is_forwarded = threading.Event(), threading.Event(), threading.Event()
        self.when_waiting: Callable[[], Any] = lambda: None
        self._listener, self._server = socket.create_server(("127.0.0.1", 0)), port
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=(self._listener.accept()[0],), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._server)) as server, suppress(OSError):
            while request := client.recv(65536):
                if b"BLOCK" in request:
                    self.has_slice.set()
                    self.when_waiting()
                    while more := client.recv(65536):
                        request += more
                    assert self.is_released.wait(20)
                    server.sendall(request)
                    server.recv(65536)
                    self.is_forwarded.set()
                    return
                server.sendall(request)
                client.sendall(server.recv(65536))
                if b"LOCK.RELEASE" in request:
                    self.is_released.set()


@pytest.mark.parametrize("name", [None, "job-7"])
def test_a_wait_that_the_server_reads_after_its_release_leaves_no_lock(
    module: Any, client: redis.Redis, server: Any, name: Any
) -> None:
    """The server may read its connections in any order. The lock of a named owner ends with its short lease."""
    busy, late = lockward.Lock(client, "a", thread_local=False), LateSlice(server.port)
    assert busy.acquire()
    lock = module.Lock(module.connect(late.port), "a", lease=60, owner=name)
    if module is lockward:
        with Alarm(KeyboardInterrupt()) as alarm:
            late.when_waiting = lambda: (busy.release(), alarm.ring())
            with pytest.raises(KeyboardInterrupt):
                lock.acquire()
    else:

        async def cancel() -> None:
            acquiring = asyncio.ensure_future(lock._found.acquire())
            await eventually_in_loop(late.has_slice.is_set)
            busy.release()
            acquiring.cancel()
            with pytest.raises(asyncio.CancelledError):
                await acquiring
            await eventually_in_loop(late.is_forwarded.is_set)

        module.run(cancel())
    assert late.is_forwarded.wait(20)
    forwarded = monotonic()
    eventually(lambda: not holders(client, "a"))
    assert name or monotonic() < forwarded + 1.5, "the lock stays held until its lease ends"
    late.close()


#: Errors that a signal handler may raise. Sockets and redis-py raise them, too.
ALARMS = [TimeoutError, ConnectionError, OSError, ValueError, redis.TimeoutError, redis.ConnectionError]


@pytest.mark.parametrize("error", ALARMS)
@pytest.mark.parametrize("silent", [b"LOCK.ACQUIRE", b"BLOCK", b"LOCK.RELEASE", b"LOCK.RENEW", b"LOCK.GUARD"])
def test_the_error_of_a_signal_handler_reaches_the_program(
    scripted: Any, silent: bytes, error: type[Exception]
) -> None:
    asked, is_over, alarm = threading.Event(), threading.Event(), Alarm(error("alarm"))

    def answer(words: list[bytes]) -> bytes:
        if silent in words:
            if not asked.is_set():
                asked.set()
                alarm.ring()
            is_over.wait(20)
        return b"*-1\r\n" if silent == b"BLOCK" else b"*3\r\n:7\r\n:1\r\n:60000\r\n"

    lock = lockward.Lock(redis.Redis(port=scripted(answer).port), "a", patience=3, lease=60)
    calls = {b"LOCK.RELEASE": lock.release, b"LOCK.RENEW": lock.renew, b"LOCK.GUARD": partial(lock.guarded, "PING")}
    if silent in calls:
        assert lock.acquire()
    with alarm:
        begun = monotonic()
        with pytest.raises(error, match=r"^alarm$"):
            calls.get(silent, lock.acquire)()
    assert asked.is_set() and monotonic() < begun + 1.5
    is_over.set()


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # the call has not begun
@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
@pytest.mark.parametrize("name", [None, "job-7"])
@pytest.mark.parametrize("call", ["acquire", "release", "try several keys"])
def test_an_interruption_at_any_line_leaves_no_lock_that_the_program_does_not_hold(
    client: redis.Redis, call: str, name: Any, error: type[BaseException]
) -> None:
    """A signal may come at any line. The test skips lines that begin with `with`: Python traces such a line again when its
    block ends, but handles no signal there."""

    class Interruption:
        def __init__(self, after: int) -> None:
            self.left = after

        def __call__(self, frame: Any, event: str, _: Any) -> Any:
            file, line = frame.f_code.co_filename, linecache.getline(frame.f_code.co_filename, frame.f_lineno)
            if Path(file).parent != Path(lockward.__file__).parent:
                return None
            if event == "line" and not line.strip().startswith("with "):
                self.left -= 1
                if not self.left:
                    sys.settrace(None)
                    raise error("interrupted")
            return self

    busy = lockward.Lock(client, "~busy", lease=60)
    assert busy.acquire()
    for after in itertools.count(1):
        key, interruption = f"{call}:{after}", Interruption(after)
        lock = lockward.Lock(client, key, lease=60, owner=name)
        lock.acquire()
        if call != "release":
            lock.release()  # the connection stays open
        if call == "try several keys":
            locks = [lockward.Lock(client, key), lockward.Lock(client, "~busy")]
            lock = lockward.MultiLock(locks, lease=60, owner=name, blocking=False)
        sys.settrace(interruption)
        try:
            getattr(lock, "release" if call == "release" else "acquire")()
        except error as raised:
            assert str(raised) == "interrupted"
        else:
            assert interruption.left > 0, f"the interruption at line {after} is swallowed"
        sys.settrace(None)
        eventually(lambda lock=lock, key=key: lock.held == bool(holders(client, key)))
        if interruption.left > 0:
            break


def a_pause_is_over(client: redis.Redis) -> Callable[[], bool]:
    """A condition that becomes true when the lease of another lock ends. This lease is longer than
    each pause between two attempts."""
    other = lockward.Lock(client, "other", timeout=1.5)
    assert other.acquire()
    return lambda: not other.held


@pytest.mark.parametrize("name", [None, "job-7"])
def test_a_resumed_lock_of_a_named_owner_is_not_released_later(proxy: Proxy, client: redis.Redis, name: Any) -> None:
    async def main() -> None:
        own = redis.asyncio.Redis(port=proxy.port)
        lock = lockward.asyncio.Lock(own, "a", timeout=1000, owner=name)
        assert await lock.acquire()
        resumed = await lockward.asyncio.Lock.resume(own, lock.handle(detach=True))
        proxy.cut_off()
        releasing, cuts = asyncio.create_task(resumed.release()), proxy.cuts
        await eventually_in_loop(lambda: proxy.cuts > cuts)
        releasing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await releasing
        if name is None:
            proxy.open()
            await eventually_in_loop(lambda: not holders(client, "a"))
        else:
            again = lockward.Lock(client, "a", timeout=1000, owner=name)
            assert again.acquire(blocking=False)
            proxy.open()
            await eventually_in_loop(a_pause_is_over(client))
            assert again.owned()
        await own.connection_pool.disconnect()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_the_other_keys_of_a_lost_lock_of_a_named_owner_are_not_released_later(
    proxy: Proxy, client: redis.Redis
) -> None:
    own = redis.Redis(port=proxy.port)
    both = lockward.MultiLock([lockward.Lock(own, "a"), lockward.Lock(own, "b")], owner="job-7", timeout=1000)
    assert both.acquire()
    client.delete("a")
    with pytest.raises(LockLostError):
        both.renew()
    proxy.cut_off()
    with pytest.raises(LockLostError):
        both.release()
    again = lockward.Lock(client, "b", owner="job-7", timeout=1000)
    assert again.acquire(blocking=False)
    proxy.open()
    eventually(a_pause_is_over(client))
    assert again.owned()
