"""Peers: lock libraries written in Python, as peer programs of `make bench-peers`.

    peers.py <peer> <job> <address> --clients N --seconds S

The peer is lockward-python or redis-py. A Redis server listens at the address. ../README.md describes the jobs.
The program prints its answer as one line of JSON. If the program fails, it prints the reason to standard error.

Each client is a thread with its own connection. One process of CPython runs only one thread at a time. So the threads are
spread over as many processes as there are CPUs.
"""

import argparse
import json
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from ctypes import c_double
from importlib.metadata import version

import lockward
import redis

PERMITS = 10  # the permits of a semaphore
WRITERS = 10  # one of 10 clients writes
HOLD = 0.001  # how long a client holds a shared lock, in seconds
WARM_UP = 1.5
PATIENCE = 30  # how long all clients together may take to connect, in seconds


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


def share(arguments, times):
    """Makes the arguments known to a child process, and the times that all processes share."""
    global shared
    shared = arguments, *times


def run_clients(name, indexes):
    """Runs some of the clients, in a child process. Returns their tenures."""
    arguments, connected, begins = shared
    host, port = arguments.address.rsplit(":", 1)
    locks = []
    for index in indexes:
        connection = redis.Redis(host=host, port=int(port))
        connection.ping()
        own = f"{name}:{index}" if arguments.job == "uncontended" else name
        locks.append(PEERS[arguments.peer][0](connection, own, arguments.job, index))
    connected.wait()
    begin = begins[0]
    with ThreadPoolExecutor(len(locks)) as threads:
        return list(threads.map(lambda lock: run_client(lock, arguments.job, begin, begin + arguments.seconds), locks))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("job")
    parser.add_argument("address")
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--seconds", type=int, required=True)
    arguments = parser.parse_args()

    processes = min(arguments.clients, os.cpu_count() or 1)
    # When the counted time begins, by time.monotonic() and by time.time(). All processes have the same clocks.
    begins = multiprocessing.RawArray(c_double, 2)

    def begin():
        begins[:] = [time.monotonic() + WARM_UP, time.time() + WARM_UP]

    connected = multiprocessing.Barrier(processes, begin, PATIENCE)
    fork = multiprocessing.get_context("fork")
    # The process id makes the name unique: the server may still hold the locks of an earlier run.
    name = f"lock:{os.getpid()}"
    with ProcessPoolExecutor(processes, fork, share, [arguments, (connected, begins)]) as pool:
        parts = [
            pool.submit(run_clients, name, range(number, arguments.clients, processes)) for number in range(processes)
        ]
        tenures = [[]] * arguments.clients
        for number, part in enumerate(parts):
            tenures[number::processes] = part.result()
    _, version_shown, notes = PEERS[arguments.peer]
    answer = {
        "version": version_shown,
        "notes": f"{notes}; {processes} processes",
        "began_unix_ms": begins[1] * 1000,
        "tenures_us": tenures,
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
