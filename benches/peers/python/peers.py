"""Peers: lock libraries written in Python, as peer programs of `make bench-peers`.

    peers.py <peer> <job> <address> --clients N --seconds S

The peer is lockward-python or redis-py. A Redis server listens at the address. ../README.md describes the jobs.
The program prints its answer as one line of JSON. If the program fails, it prints the reason to standard error.

Each client is a thread with its own connection. One process of CPython runs only one thread at a time. So the threads are
spread over as many processes as there are CPUs. The counters are in shared memory.
"""

import argparse
import json
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from ctypes import c_double, c_int64
from importlib.metadata import version

import lockward
import redis

EXCLUSIVE = ["uncontended", "contended"]
SHARED = ["readers", "permits", "weights"]
# The permits of a semaphore.
PERMITS = 10
# One of 10 clients writes.
WRITERS = 10
# The limit of a read-write lock: a reader takes 1, a writer takes all.
READERS = 2**31
# How long a client holds a shared lock, in seconds.
HOLD = 0.001
WARM_UP = 1.5
# How long all clients together may take to connect, in seconds.
PATIENCE = 30


class Peer:
    """A lock as one client uses it."""

    def acquire(self, limit):
        """Waits for at most `limit` seconds. Returns whether the client holds the lock."""
        return self.lock.acquire(blocking_timeout=limit)

    def release(self):
        self.lock.release()


class RedisPy(Peer):
    """redis-py's Lock."""

    jobs = EXCLUSIVE
    version = f"redis-py {redis.__version__}"
    notes = "no lease, tries every 100 ms without limit"

    def __init__(self, server, name, job_run, index):
        self.lock = server.lock(name)


class Lockward(Peer):
    """Lockward's Lock, ReadWriteLock and Semaphore."""

    jobs = EXCLUSIVE + SHARED
    version = f"{version('lockward')}, redis-py {redis.__version__}"
    notes = "a redis.Redis for each client; lease 30 s, renewed"

    def __init__(self, server, name, job_run, index):
        if job_run.job == "readers":
            lock = lockward.ReadWriteLock(server, name)
            self.lock = lock.write() if job_run.writes(index) else lock.read()
        elif job_run.job in SHARED:
            self.lock = lockward.Semaphore(server, name, PERMITS).permits(job_run.weight(index))
        else:
            self.lock = lockward.Lock(server, name)


PEERS = {"lockward-python": Lockward, "redis-py": RedisPy}


class JobRun:
    """The data that all processes share."""

    def __init__(self, arguments):
        host, port = arguments.address.rsplit(":", 1)
        self.address = (host, int(port))
        self.peer = PEERS[arguments.peer]
        self.job = arguments.job
        self.is_shared = self.job in SHARED
        self.clients = arguments.clients
        self.seconds = arguments.seconds
        # A counter of grants for each lock. Only the lock protects its counter, so a missing grant shows that two clients
        # held the lock at once.
        self.counters = multiprocessing.RawArray(c_int64, self.clients)
        # In the job "contended": the last holder. Only the lock protects this field.
        self.holder = multiprocessing.RawValue(c_int64)
        # In the jobs with several holders: the sum of the holders' weights.
        self.held = multiprocessing.Value(c_int64)
        # The process id makes the name unique: the server may still hold the locks of an earlier run.
        self.name = f"lock:{os.getpid()}"
        self.processes = min(self.clients, os.cpu_count() or 1)
        # When the counted time begins, by time.monotonic() and by time.time().
        self.begins = multiprocessing.RawArray(c_double, 2)
        self.connected = multiprocessing.Barrier(self.processes, self.begin, PATIENCE)

    def begin(self):
        """Called when the clients of all processes are connected. time.monotonic() is the same clock in all processes."""
        self.begins[:] = [time.monotonic() + WARM_UP, time.time() + WARM_UP]

    def writes(self, index):
        return self.job == "readers" and index % WRITERS == 0

    def weight(self, index):
        """How much of the lock's limit a client takes."""
        if self.writes(index):
            return self.limit()
        return index % 3 + 1 if self.job == "weights" else 1

    def limit(self):
        """The limit of the lock: the largest allowed sum of the holders' weights."""
        return READERS if self.job == "readers" else PERMITS


class Client:
    """One client, and its measurements."""

    def __init__(self, job_run, index):
        self.job_run = job_run
        self.index = index
        self.own = index if job_run.job == "uncontended" else 0
        host, port = job_run.address
        connection = redis.Redis(host=host, port=port)
        connection.ping()
        self.lock = job_run.peer(connection, f"{job_run.name}:{self.own}", job_run, index)
        self.waits_us = []
        self.handoffs = 0
        # In the jobs with several holders: the number of grants that kept the sum of the weights within the limit.
        self.allowed = 0

    def run(self, begin):
        """Acquires and releases until the end of the job. Counts the grants from `begin` on."""
        end = begin + self.job_run.seconds
        while (asked := time.monotonic()) < end:
            if not self.lock.acquire(end - asked):
                return
            granted = time.monotonic()
            is_counted = begin <= granted < end
            if self.job_run.is_shared:
                self.hold(is_counted)
            elif is_counted:
                self.count()
            if is_counted:
                self.waits_us.append(round((granted - asked) * 1e6))
            self.lock.release()

    def count(self):
        """The work of a client that holds the lock alone."""
        counters, holder = self.job_run.counters, self.job_run.holder
        before = counters[self.own]
        time.sleep(0)
        counters[self.own] = before + 1
        if self.job_run.job == "contended" and holder.value != self.index:
            self.handoffs += 1
            holder.value = self.index

    def hold(self, is_counted):
        """The work of a client that shares the lock."""
        held, weight = self.job_run.held, self.job_run.weight(self.index)
        with held:
            held.value += weight
            self.allowed += is_counted and held.value <= self.job_run.limit()
        time.sleep(HOLD)
        with held:
            held.value -= weight


def join(shared):
    """Makes the shared data known to a child process."""
    global job_run
    job_run = shared


def run_clients(indexes):
    """Runs some of the clients, in a child process. Returns their measurements."""
    clients = [Client(job_run, index) for index in indexes]
    job_run.connected.wait()
    with ThreadPoolExecutor(len(clients)) as threads:
        list(threads.map(lambda client: client.run(job_run.begins[0]), clients))
    return [(client.index, client.waits_us, client.handoffs, client.allowed) for client in clients]


def run(arguments):
    job_run = JobRun(arguments)
    processes = job_run.processes
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(processes, fork, join, [job_run]) as pool:
        parts = [pool.submit(run_clients, range(number, job_run.clients, processes)) for number in range(processes)]
        seen = sorted(sum((part.result() for part in as_completed(parts)), []))
    return {
        "version": job_run.peer.version,
        "notes": f"{job_run.peer.notes}; {processes} processes",
        "began_unix_ms": job_run.begins[1] * 1000,
        "waits_us": [waits for _, waits, _, _ in seen],
        "counter": sum(allowed for *_, allowed in seen) if job_run.is_shared else sum(job_run.counters),
        "handoffs": sum(handoffs for _, _, handoffs, _ in seen),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("job", choices=EXCLUSIVE + SHARED)
    parser.add_argument("address")
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--seconds", type=int, required=True)
    arguments = parser.parse_args()
    if arguments.job not in PEERS[arguments.peer].jobs:
        parser.error(f"{arguments.peer} has no job {arguments.job}")
    print(json.dumps(run(arguments)))


if __name__ == "__main__":
    main()
