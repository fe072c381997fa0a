"""Faults that the conformance suite does not have, such as nonsense from the server and several event loops."""

from __future__ import annotations

import asyncio
import gc
import socket
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from typing import Any

import pytest
import redis
import redis.asyncio
from conftest import eventually, holders

import lockward
import lockward.asyncio
from lockward import LockLostError, LockRefusedError, UnreachableError, UnreplicatedError
from lockward._runtime import Turn

GRANT, OK = b"*3\r\n:7\r\n:1\r\n:30000\r\n", b"+OK\r\n"


#: Replies of types that no command of Lockward has, and bytes that are not a reply.
NONSENSE = [
    OK, b":7\r\n", b"$3\r\nabc\r\n", b"*0\r\n", b"*1\r\n$-1\r\n", b"*3\r\n:7\r\n*0\r\n$1\r\na\r\n", b"*3\r\n:0\r\n:0\r\n:0\r\n",
    b"*3\r\n:7\r\n-ERR no\r\n:5\r\n", b":abc\r\n", b"$x\r\n", b"*\r\n", b"?\r\n", b"\r\n", b"%1\r\n+a\r\n+b\r\n",
    b"*1\r\n" * 5000 + b":1\r\n", b"- \r\n", b"-\xff\xfe\r\n", b"-MOVED\r\n", b"-MOVED x y\r\n", b"-ASK 1 nowhere\r\n",
]  # fmt: skip


@pytest.mark.parametrize("command", [b"LOCK.ACQUIRE", b"LOCK.RENEW", b"LOCK.RELEASE", b"LOCK.GUARD", b"WAIT"])
def test_a_call_whose_reply_is_nonsense_ends_with_an_error_of_redis(
    module: Any, scripted: Any, monkeypatch: pytest.MonkeyPatch, command: bytes
) -> None:
    crashed: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", crashed.append)
    replies = {
        b"LOCK.ACQUIRE": GRANT,
        b"LOCK.RENEW": b":7\r\n",
        b"LOCK.RELEASE": b":0\r\n",
        b"LOCK.GUARD": OK,
        b"WAIT": b":1\r\n",
    }
    for nonsense in NONSENSE:
        answers = {**replies, command: nonsense}
        server = scripted(lambda words, answers=answers: answers.get(words[0], OK))
        own = module.connect(server.port)
        lock = module.Lock(own, "a", patience=0.2, blocking=False, replicas=(1, 0.1))
        for call in (lock.acquire, lock.renew, lambda lock=lock: lock.guarded("SET", "x", 1), lock.release):
            with suppress(redis.RedisError):
                call()
        assert not lock.held
    assert not crashed


def test_a_grant_that_is_nonsense_is_refused_and_given_back(module: Any, scripted: Any) -> None:
    asked: list[bytes] = []

    def answer(words: list[bytes]) -> bytes:
        asked.append(words[0])
        return b"*1\r\n+gr\r\n" if words[0] == b"LOCK.ACQUIRE" else b":0\r\n"

    with pytest.raises(LockRefusedError, match="gr"):
        module.Lock(module.connect(scripted(answer).port), "a").acquire()
    assert asked == [b"LOCK.ACQUIRE", b"LOCK.RELEASE"]


def test_a_lock_whose_invalid_downgrade_had_no_reply_stays_held_with_its_old_kind(scripted: Any) -> None:
    replies, renewals = {"downgrade": b""}, []

    def answer(words: list[bytes]) -> bytes:
        if words[0] == b"LOCK.ACQUIRE":
            return b"*3\r\n:7\r\n:1\r\n:1500\r\n"
        if b"SLOTS" in words:
            return replies["downgrade"]
        renewals.append(words)
        return b":7\r\n"

    own = redis.Redis(port=scripted(answer).port)
    lock = lockward.Lock(own, "a", patience=0.2)
    assert lock.acquire()
    with pytest.raises(UnreachableError):
        lock.downgrade(slots=0)
    sent = len(renewals)
    replies["downgrade"] = b"-ERR value is out of range\r\n"
    eventually(lambda: len(renewals) > sent + 2 or not lock.held)
    assert lock.held


@pytest.mark.parametrize("reply", [b"-MOVED 1 127.0.0.1:1\r\n", b"-ASK 1 127.0.0.1:1\r\n"])
def test_a_client_that_is_not_for_a_cluster_fails_at_once_at_a_cluster_node(
    module: Any, scripted: Any, reply: bytes
) -> None:
    asked: list[bytes] = []
    server = scripted(lambda words: asked.append(words[0]) or reply)
    with pytest.raises(LockRefusedError, match=r"127.0.0.1:1.*cluster.*RedisCluster"):
        module.Lock(module.connect(server.port), "a").acquire()
    assert asked == [b"LOCK.ACQUIRE"]


@pytest.mark.parametrize("reply", [b"-LOADING the dataset\r\n", b"-MASTERDOWN no primary\r\n"])
def test_a_call_that_does_not_wait_is_not_busy_but_unreachable_if_no_server_serves(
    module: Any, scripted: Any, reply: bytes
) -> None:
    server = scripted(lambda _: reply)
    with pytest.raises(UnreachableError):
        module.Lock(module.connect(server.port), "a", patience=0.3).acquire(blocking=False)


def test_the_error_names_the_reason_of_an_earlier_attempt_if_the_last_attempt_has_no_reply(
    module: Any, scripted: Any
) -> None:
    replies, is_over = [b"-LOADING the dataset\r\n"], threading.Event()

    def answer(_: list[bytes]) -> bytes:
        if replies:
            return replies.pop()
        is_over.wait(20)
        return b""

    lock = module.Lock(module.connect(scripted(answer).port), "a", patience=2)
    with pytest.raises(UnreachableError, match="LOADING") as raised:
        lock.acquire(blocking=False)
    assert "None" not in str(raised.value)
    is_over.set()


def test_a_lock_is_released_although_a_script_delays_the_handshake_of_a_connection(
    module: Any, own_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = own_server("busy-reply-threshold 10")
    client, scripts = server.client(), server.client()

    def run_script() -> None:
        with suppress(redis.RedisError):
            scripts.eval("while true do end", 0)

    def is_busy() -> bool:
        try:
            return not client.ping()
        except redis.ResponseError:
            return True

    def end_script(failures: int = 0) -> float:
        with suppress(redis.ResponseError):  # the script has ended already
            client.script_kill()
        return 0.01

    lock = module.Lock(module.connect(server.port, db=1), "a", timeout=60)
    assert lock.acquire()
    monkeypatch.setattr("lockward._runtime.Runtime._take_idle", lambda *_: None)  # there is no idle connection
    running = threading.Thread(target=run_script)
    running.start()
    try:
        eventually(is_busy)
        monkeypatch.setattr("lockward._protocol.back_off", end_script)  # at the first failure of the release
        lock.release()
    finally:
        end_script()
        running.join()
    assert not holders(server.client(db=1), "a")


@pytest.fixture
def replying(module: Any, scripted: Any) -> Any:
    """A function that starts a server which sends these replies to a command, the last one again and again. The function
    returns a client, and the list of the commands that the server gets."""

    def start(command: bytes, *replies: bytes) -> tuple[Any, list[bytes]]:
        usual = {b"LOCK.ACQUIRE": GRANT, b"LOCK.RELEASE": b":0\r\n", b"WAIT": b":1\r\n"}
        left, asked = list(replies), []

        def answer(words: list[bytes]) -> bytes:
            asked.append(words[0])
            if words[0] != command:
                return usual.get(words[0], OK)
            return left.pop(0) if len(left) > 1 else left[0]

        return module.connect(scripted(answer).port), asked

    return start


NOREPLICAS = b"-NOREPLICAS Not enough good replicas to write.\r\n"
UNBLOCKED = b"-UNBLOCKED force unblock from blocking operation\r\n"
MISCONF = b"-MISCONF Errors writing to the AOF file\r\n"


def test_a_request_is_repeated_while_the_server_has_too_few_replicas(module: Any, replying: Any) -> None:
    own, asked = replying(b"LOCK.ACQUIRE", NOREPLICAS, GRANT)
    assert module.Lock(own, "a").acquire(blocking=False)
    assert asked == [b"LOCK.ACQUIRE"] * 2


def test_a_request_is_repeated_on_a_new_connection_if_the_primary_has_become_a_replica(
    module: Any, scripted: Any
) -> None:
    """The replica keeps all its connections. A new connection may lead to the new primary."""
    earlier: set[threading.Thread] = set()  # the server has a thread for each connection
    is_primary, all_connected = threading.Event(), threading.Barrier(16)

    def answer(words: list[bytes]) -> bytes:
        if not is_primary.is_set():
            earlier.add(threading.current_thread())
            all_connected.wait(20)
        elif threading.current_thread() in earlier:
            return b"-READONLY You can't write against a read only replica.\r\n"
        return GRANT

    own = module.connect(scripted(answer).port)
    if module is lockward:
        threads = [threading.Thread(target=lockward.Lock(own, f"{n}").acquire, daemon=True) for n in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    else:

        async def acquire() -> None:
            await asyncio.gather(*(lockward.asyncio.Lock(own, f"{n}").acquire() for n in range(16)))

        module.run(acquire())
    is_primary.set()
    assert module.Lock(own, "a", patience=0.5).acquire(blocking=False)


def test_a_wait_is_unreachable_and_not_busy_if_the_server_has_too_few_replicas(module: Any, replying: Any) -> None:
    own, _ = replying(b"LOCK.ACQUIRE", NOREPLICAS)
    with pytest.raises(UnreachableError):
        module.Lock(own, "a").acquire(blocking_timeout=0.3)


def test_a_guarded_command_is_not_repeated_if_the_server_has_too_few_replicas(module: Any, replying: Any) -> None:
    own, asked = replying(b"LOCK.GUARD", NOREPLICAS, OK)
    lock = module.Lock(own, "a")
    assert lock.acquire()
    with pytest.raises(redis.ResponseError, match="NOREPLICAS"):
        lock.guarded("SET", "x", 1)
    assert asked.count(b"LOCK.GUARD") == 1


def test_only_a_release_is_repeated_while_the_server_cannot_write_to_its_disk(module: Any, replying: Any) -> None:
    own, asked = replying(b"LOCK.RELEASE", MISCONF, b":0\r\n")
    lock = module.Lock(own, "a")
    assert lock.acquire()
    lock.release()
    assert asked.count(b"LOCK.RELEASE") == 2
    own, asked = replying(b"LOCK.ACQUIRE", MISCONF, GRANT)
    with pytest.raises(LockRefusedError, match="MISCONF"):
        module.Lock(own, "a").acquire()
    assert asked.count(b"LOCK.ACQUIRE") == 1


def test_a_grant_is_given_back_although_the_server_cannot_write_to_its_disk_at_first(
    module: Any, replying: Any
) -> None:
    own, asked = replying(b"LOCK.RELEASE", MISCONF, b":0\r\n")
    with pytest.raises(UnreplicatedError):
        module.Lock(own, "a", replicas=(2, 0.1)).acquire()
    assert asked.count(b"LOCK.RELEASE") == 2


def test_an_acquisition_is_repeated_if_its_wait_for_replicas_is_unblocked(module: Any, replying: Any) -> None:
    own, asked = replying(b"WAIT", UNBLOCKED, b":1\r\n")
    assert module.Lock(own, "a", replicas=(1, 0.1)).acquire()
    assert asked == [b"LOCK.ACQUIRE", b"WAIT"] * 2


def test_a_grant_whose_wait_for_replicas_is_unblocked_is_given_back_if_the_repeat_is_refused(
    module: Any, scripted: Any
) -> None:
    asked: list[bytes] = []

    def answer(words: list[bytes]) -> bytes:
        asked.append(words[0])
        grant = GRANT if asked.count(b"LOCK.ACQUIRE") == 1 else b"-OOM no memory\r\n"
        return {b"LOCK.ACQUIRE": grant, b"WAIT": UNBLOCKED}.get(words[0], b":0\r\n")

    with pytest.raises(LockRefusedError):
        module.Lock(module.connect(scripted(answer).port), "a", replicas=(1, 0.1)).acquire()
    assert asked == [b"LOCK.ACQUIRE", b"WAIT"] * 2 + [b"LOCK.RELEASE"]


def test_a_reply_that_never_ends_counts_as_lost(module: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve(client: socket.socket) -> None:
            with client, suppress(OSError):
                client.sendall(b"*1000000000\r\n")
                while True:
                    client.sendall(b":1\r\n" * 10_000)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        lock = module.Lock(module.connect(listener.getsockname()[1]), "a", patience=0.5, response_limit=0.2)
        ended = threading.Event()

        def acquire() -> None:
            with pytest.raises(UnreachableError):
                lock.acquire(blocking=False)
            ended.set()

        threading.Thread(target=acquire, daemon=True).start()
        assert ended.wait(20)


def test_a_sentinel_or_primary_that_answers_nonsense_is_no_primary(module: Any, scripted: Any) -> None:
    for role in (b"*0\r\n", b"*1\r\n*0\r\n", OK, b":1\r\n", b"$-1\r\n"):
        primary = scripted(lambda words, role=role: {b"ROLE": role, b"LOCK.ACQUIRE": GRANT}.get(words[0], b":0\r\n"))
        port = str(primary.port).encode()
        named = b"*2\r\n$9\r\n127.0.0.1\r\n$%d\r\n%b\r\n" % (len(port), port)
        sentinel = scripted(lambda words, named=named: named)
        kind = redis.asyncio.sentinel.Sentinel if module is not lockward else redis.sentinel.Sentinel
        own = kind([("127.0.0.1", sentinel.port)]).master_for("main")
        with pytest.raises(UnreachableError):
            module.Lock(own, "a", patience=0.2).acquire()


def test_a_replica_that_sentinels_name_is_no_primary(module: Any) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # the port is bound but not listening, so connections are refused
        kind = redis.asyncio.sentinel.Sentinel if module is not lockward else redis.sentinel.Sentinel
        own = kind([unused.getsockname()]).slave_for("main")
        with pytest.raises(UnreachableError):
            module.Lock(own, "a", patience=0.2).acquire()


def test_two_event_loops_share_a_client(server: Any, client: redis.Redis) -> None:
    own, runtimes = redis.asyncio.Redis(port=server.port), []
    both_run = threading.Barrier(2)

    def run(name: str) -> None:
        async def main() -> None:
            found = set()
            for _ in range(20):
                async with lockward.asyncio.Lock(own, name) as lock:
                    found.add(lock._runtime)
                    both_run.wait(20)
            runtimes.append(found)

        asyncio.run(main())

    threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert [len(found) for found in runtimes] == [1, 1]
    assert not holders(client, "a") and not holders(client, "b")


def test_the_runtime_of_a_closed_event_loop_is_dropped(server: Any, client: redis.Redis) -> None:
    own = redis.asyncio.Redis(port=server.port)

    async def main() -> Any:
        async with lockward.asyncio.Lock(own, "a") as lock:
            return lock._runtime

    first = weakref.ref(asyncio.run(main()))
    asyncio.run(main())
    eventually(lambda: gc.collect() >= 0 and first() is None)


def test_a_lock_that_is_held_when_its_event_loop_is_closed_ends_with_its_lease(
    server: Any, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = redis.asyncio.Redis(port=server.port)
    lock = lockward.asyncio.Lock(own, "a", lease=0.3)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(lock.acquire())
    loop.close()
    del loop
    crashed: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: crashed.append(found.exc_value))
    eventually(lambda: not lock.held)

    async def release() -> None:
        with pytest.raises(LockLostError):
            await lock.release()
        assert await lock.acquire()
        await lock.release()

    asyncio.run(release())
    gc.collect()
    # The sockets of the closed event loop are still open, because nothing could close them.
    assert not [each for each in crashed if not isinstance(each, ResourceWarning)]
    assert not holders(client, "a")


def test_a_lock_can_be_released_while_the_interpreter_shuts_down(server: Any, client: redis.Redis) -> None:
    """The interpreter calls `__del__` of global objects when no thread can run any more."""
    script = f"""
import lockward, redis
class Job:
    def __init__(self): self.lock = lockward.Lock(redis.Redis(port={server.port}), "a"); self.lock.acquire()
    def __del__(self): self.lock._runtime.close_idle(); self.lock.release(); print("released")
job = Job()
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "released\n" and not ended.stderr and not holders(client, "a")


@pytest.mark.parametrize("login", [{}, {"username": "job", "password": "secret"}])
def test_a_lock_is_renewed_while_the_server_accepts_no_other_connection(
    own_server: Any, monkeypatch: pytest.MonkeyPatch, login: dict[str, str]
) -> None:
    """If the server refuses a new connection, the open connections still work, and the server may accept a connection later."""
    server = own_server()
    with server.client() as admin, server.client(**login) as own:
        admin.acl_setuser("job", enabled=True, passwords=["+secret"], keys=["*"], commands=["+@all"])
        lock, other = lockward.Lock(own, "a"), lockward.Lock(own, "b", patience=1)
        assert lock.acquire()
        admin.config_set("maxclients", 2)
        with monkeypatch.context() as patch, pytest.raises(UnreachableError, match="max number of clients"):
            patch.setattr(lock._runtime, "_take_idle", lambda *_: None)
            other.acquire()
        lock.renew()
        lock.release()


#: These programs release no lock and close no client before they end.
ENDINGS = {
    "a waiter": "asyncio.run(main(True))",
    "a loop that is closed": "loop = asyncio.new_event_loop(); kept = loop.run_until_complete(main(False)); loop.close()",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_program_in_asyncio_ends_without_messages(server: Any, client: redis.Redis, ending: str) -> None:
    script = f"""
import asyncio, gc, lockward.asyncio, redis.asyncio
async def main(waits):
    own = redis.asyncio.Redis(port={server.port}, protocol=2)
    lock = lockward.asyncio.Lock(own, "a", lease=1)
    await lock.acquire()
    waiting = asyncio.create_task(lockward.asyncio.Lock(own, "a").acquire()) if waits else None
    while waits and not (await own.execute_command("LOCK.INFO", "a"))[9]:
        pass
    return own, lock
{ENDINGS[ending]}
kept = loop = None
gc.collect()
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert not ended.stdout and not ended.stderr


#: The last lines of programs that hold a lock, while another thread waits for it and a third thread locks other keys.
THREAD_ENDINGS = {
    "the end of the program": "",
    "an exception": "raise SystemExit(0)",
    "the end of a child": """
if child := os.fork():
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
assert not lock.held and not waiter.acquire(blocking=False)
with lockward.Lock(own, "c") as other:
    assert other.owned()
""",
}


@pytest.mark.parametrize("ending", THREAD_ENDINGS)
def test_a_program_with_threads_ends_without_messages(server: Any, client: redis.Redis, ending: str) -> None:
    script = f"""
import lockward, os, redis, threading
own = redis.Redis(port={server.port}, protocol=2)
lock, waiter = lockward.Lock(own, "a", lease=30), lockward.Lock(own, "a", thread_local=False)
def work():
    while True:
        with lockward.Lock(own, "b"):
            pass
lock.acquire()
for call in (waiter.acquire, work):
    threading.Thread(target=call, daemon=True).start()
while not own.execute_command("LOCK.INFO", "a")[9]:
    pass
{THREAD_ENDINGS[ending]}
"""
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-c", script], capture_output=True, text=True, timeout=20, check=True
    )
    assert not ended.stdout and not ended.stderr


@pytest.mark.parametrize("name", ["timeout", "lease", "hold_limit"])
def test_an_infinite_lease_is_refused(module: Any, own: Any, name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} "):
        module.Lock(own, "a", **{name: float("inf")})


def test_the_patience_may_be_infinite(client: redis.Redis) -> None:
    lock = lockward.Lock(client, "a", patience=float("inf"), reentrant=True, thread_local=False)
    assert lock.acquire()
    runtime = lock._runtime
    [holding] = lock._local.__dict__.values()
    turn = Turn(runtime, holding.turns, 1)
    assert turn.has_begun()
    outcomes: list[Any] = []

    def release() -> None:
        lock.release()
        outcomes.append("released")

    threading.Thread(target=release, daemon=True).start()  # the release waits for the turn
    eventually(lambda: len(holding.turns) == 2)
    turn.__exit__()
    eventually(lambda: outcomes == ["released"])


@pytest.mark.parametrize("state", ["held", "busy", "free"])
def test_an_interruption_leaves_no_caller_in_a_queue(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """A caller that never leaves the queue would block the later callers."""
    lock = lockward.Lock(client, "a", reentrant=True, blocking_timeout=0.05, lease=0.5)
    has_begun, runtime = Turn.has_begun, lock._runtime
    if state == "held":
        assert lock.acquire()
        [holding] = lock._local.__dict__.values()
        queue = holding.turns
    elif state == "busy":
        assert lockward.Lock(client, "a").acquire(blocking=False)
        queue = runtime.turns
    else:
        queue = runtime._turns.setdefault((None, False), {})
    left: list[Any] = []

    def interrupt(turn: Turn) -> bool:
        if turn._queue is not queue:
            return has_begun(turn)
        monkeypatch.undo()
        has_begun(turn)
        left.extend(queue)
        raise KeyboardInterrupt

    monkeypatch.setattr(Turn, "has_begun", interrupt)
    with pytest.raises(KeyboardInterrupt):
        lock.acquire()
    assert len(left) == 1 and not queue


def test_interruptions_of_callers_that_leave_a_queue_do_not_block_later_callers(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    lock = lockward.Lock(client, "a", patience=0.3)
    for _ in range(20):
        monkeypatch.setattr(Turn, "__exit__", interrupt)
        with suppress(KeyboardInterrupt):
            lock.acquire()
    assert lock.acquire(blocking_timeout=20)
