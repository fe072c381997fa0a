"""Peers: lock libraries written in Python, as peer programs of `make bench-peers`.

    peers.py <peer> <job> <address> <clients> <begin> <seconds>

The peer is lockward-python or redis-py. A Redis server listens at the address. ../README.md describes the rest.

Each client is a thread with its own connection. One process of CPython runs only one thread at a time. So the threads are
spread over as many processes as there are CPUs.
"""

import json
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from importlib.metadata import version

import lockward
import redis

PERMITS = 10  # the permits of a semaphore
WRITERS = 10  # one of 10 clients writes
HOLD = 0.001  # how long a client holds a shared lock, in seconds


def redis_py_lock(server, name, job, index):
    return server.lock(name)


def lockward_lock(server, name, job, index):
    if job == "readers":
        lock = lockward.ReadWriteLock(server, name)
        return lock.write() if index % WRITERS == 0 else lock.read()
    if job in ("permits", "weights"):
        return lockward.Semaphore(server, name, PERMITS).permits(index % 3 + 1 if job == "weights" else 1)
    return lockward.Lock(server, name)


# Each peer has a function that makes the lock of a client, its version, and its notes for the table.
PEERS = {
    "lockward-python": (
        lockward_lock,
        f"{version('lockward')}, redis-py {redis.__version__}",
        "a redis.Redis for each client; lease 30 s, renewed",
    ),
    "redis-py": (redis_py_lock, f"redis-py {redis.__version__}", "no lease, tries every 100 ms without limit"),
}


def run_client(lock, job, begin, end):
    """Acquires and releases until the end of the job. Returns three numbers for each tenure: see ../README.md."""
    tenures = []
    while (asked := time.monotonic()) < end:
        if not lock.acquire(blocking_timeout=end - asked):
            break
        granted = time.monotonic()
        if job == "contended":
            time.sleep(0)
        elif job != "uncontended":
            time.sleep(HOLD)
        tenures += [round((instant - begin) * 1e6) for instant in (asked, granted, time.monotonic())]
        lock.release()
    return tenures


def run_clients(peer, job, address, begin, end, name, indexes):
    """Runs some of the clients, in a child process. Returns their tenures."""
    host, port = address.rsplit(":", 1)
    locks = []
    for index in indexes:
        connection = redis.Redis(host=host, port=int(port))
        connection.ping()
        own = f"{name}:{index}" if job == "uncontended" else name
        locks.append(PEERS[peer][0](connection, own, job, index))
    with ThreadPoolExecutor(len(locks)) as threads:
        return list(threads.map(lambda lock: run_client(lock, job, begin, end), locks))


def main():
    peer, job, address, *numbers = sys.argv[1:]
    clients, begin, seconds = map(int, numbers)
    processes = min(clients, os.cpu_count() or 1)
    # All processes have the same monotonic clock.
    begin = time.monotonic() + begin / 1000 - time.time()
    # The process id makes the name unique: the server may still hold the locks of an earlier run.
    name = f"lock:{os.getpid()}"
    with ProcessPoolExecutor(processes, multiprocessing.get_context("fork")) as pool:
        shares = [range(number, clients, processes) for number in range(processes)]
        parts = [pool.submit(run_clients, peer, job, address, begin, begin + seconds, name, share) for share in shares]
        tenures = [[]] * clients
        for number, part in enumerate(parts):
            tenures[number::processes] = part.result()
    _, shown, notes = PEERS[peer]
    print(json.dumps({"version": shown, "notes": f"{notes}; {processes} processes", "tenures_us": tenures}))


if __name__ == "__main__":
    main()
