package lockward_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockward"
)

// overtake gives a lock to another owner.
func overtake(s *server, key string) {
	s.tb.Helper()
	s.do("DEL", key)
	s.do("LOCK.ACQUIRE", key, "another", "PX", 600_000)
}

// checkUnwritten checks that there is no data.
func checkUnwritten(s *server) {
	s.tb.Helper()
	if s.do("EXISTS", "data") != int64(0) {
		s.tb.Fatal("the command has run")
	}
}

func TestAGuardedCommandRuns(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	lock := acquire(t, newClient(t, s.client()), "k")
	check(t, lock.Guarded(t.Context(), "SET", "data", 1).Err())
	count, err := lock.Guarded(t.Context(), "INCR", "data").Int64()
	check(t, err)
	if stored := s.do("GET", "data"); count != 2 || stored != "2" {
		t.Fatal(count, stored)
	}
}

func TestANullReplyToAGuardedCommandIsNil(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	lock := acquire(t, newClient(t, s.client()), "k")
	if err := lock.Guarded(t.Context(), "GET", "data").Err(); err != redis.Nil {
		t.Fatal(err)
	}
}

func TestGuardedWithoutACommandChecksTheToken(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	lock := acquire(t, newClient(t, s.client()), "k")
	if reply, err := lock.Guarded(t.Context()).Text(); err != nil || reply != "OK" {
		t.Fatal(reply, err)
	}
	overtake(s, "k")
	expect(t, lock.Guarded(t.Context()).Err(), lockward.ErrLost)
}

func TestAGuardedCommandOfAFormerHolderDoesNotRun(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	lock := acquire(t, newClient(t, s.client()), "k")
	overtake(s, "k")
	expect(t, lock.Guarded(t.Context(), "SET", "data", 1).Err(), lockward.ErrLost)
	checkUnwritten(s)
}

func TestARefusedGuardedCommandMarksTheLockAsLost(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	lock := acquire(t, newClient(t, s.client()), "k", lockward.WithLease(10*time.Minute))
	overtake(s, "k")
	if !lock.Held() {
		t.Fatal("the client cannot know")
	}
	for range 2 {
		expect(t, lock.Guarded(t.Context(), "SET", "data", 1).Err(), lockward.ErrLost)
		if lock.Held() {
			t.Fatal("it is held")
		}
	}
	receive(t, "the loss", lock.Lost())
	if calls := s.calls("lock.guard"); calls != 1 {
		t.Fatal("the second command was sent:", calls)
	}
}

func TestAForgottenTenureIsRestoredBeforeAGuardedCommandRuns(t *testing.T) {
	t.Parallel()
	s, empty := startServer(t), startServer(t)
	lock := acquire(t, newClient(t, s.client()), "k", lockward.WithLease(10*time.Minute))
	// The connection stays open, so the client notices nothing.
	host, port, _ := net.SplitHostPort(empty.addr)
	s.do("REPLICAOF", host, port)
	eventually(t, "it is forgotten", func() bool { return s.do("EXISTS", "k") == int64(0) })
	s.do("CONFIG", "SET", "lock.quarantine", "600000")
	s.do("REPLICAOF", "NO", "ONE")
	check(t, lock.Guarded(t.Context(), "SET", "data", 1).Err())
	if calls := s.calls("lock.guard"); calls != 2 || s.do("GET", "data") != "1" {
		t.Fatal(calls)
	}
}

func TestAnErrorOfAGuardedCommandKeepsTheLock(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	lock := acquire(t, newClient(t, s.client()), "k")
	err := lock.Guarded(t.Context(), "LPUSH", "k", "x").Err()
	if !redis.HasErrorPrefix(err, "WRONGTYPE") || !lock.Held() {
		t.Fatal(err)
	}
	check(t, lock.Release(t.Context()))
}

func TestAReleasedLockGuardsNothing(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	lock := acquire(t, newClient(t, s.client()), "k")
	check(t, lock.Release(t.Context()))
	expect(t, lock.Guarded(t.Context(), "SET", "data", 1).Err(), lockward.ErrReleased)
	checkUnwritten(s)
}

func TestAGuardedCommandIsNotSentAfterTheLease(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	options := []lockward.AcquireOption{lockward.WithLease(100 * time.Millisecond), lockward.WithoutRenewal()}
	lock := acquire(t, newClient(t, s.client()), "k", options...)
	receive(t, "the loss", lock.Lost())
	expect(t, lock.Guarded(t.Context(), "SET", "data", 1).Err(), lockward.ErrLost)
	if s.calls("lock.guard") != 0 {
		t.Fatal("it was sent")
	}
}

func TestAGuardedCommandThatArrivesAfterTheLeaseDoesNotRun(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := startProxy(t, s)
	lock := acquire(t, newClient(t, through(t, p)), "k", lockward.WithLease(time.Second), lockward.WithoutRenewal())
	p.plan("hold LOCK.GUARD")
	result := make(chan error, 1)
	go func() { result <- lock.Guarded(context.Background(), "SET", "data", 1).Err() }()
	s.waitUntilFree("k")
	s.do("LOCK.ACQUIRE", "k", "another", "PX", 600_000)
	p.plan("")
	expect(t, receive(t, "the reply", result), lockward.ErrLost)
	checkUnwritten(s)
	if s.calls("lock.guard") != 1 {
		t.Fatal("it was not sent")
	}
}

func TestAGuardedCommandIsNotRepeatedWhenItsReplyIsLost(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := startProxy(t, s)
	lock := acquire(t, newClient(t, through(t, p)), "k")
	p.plan("reply LOCK.GUARD")
	expect(t, lock.Guarded(t.Context(), "INCR", "data").Err(), lockward.ErrUnreachable)
	if count := s.do("GET", "data"); count != "1" || !lock.Held() {
		t.Fatal(count)
	}
}

func TestACancelledGuardedCommandMayHaveRun(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	lock := acquire(t, newClient(t, s.client()), "k")
	s.pause()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	err := lock.Guarded(ctx, "SET", "data", 1).Err()
	s.resume()
	expect(t, err, lockward.ErrUnreachable, context.DeadlineExceeded)
	if !lock.Held() {
		t.Fatal("its lease runs")
	}
}

func TestAGuardedCommandIsSentAgainWhenAReplicaHasRefusedIt(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	lock := acquire(t, newClient(t, s.client()), "k")
	s.do("REPLICAOF", "127.0.0.1", 1)
	result := make(chan error, 1)
	go func() { result <- lock.Guarded(context.Background(), "SET", "data", 1).Err() }()
	eventually(t, "it is refused", func() bool {
		return strings.Contains(s.do("INFO", "errorstats").(string), "errorstat_READONLY")
	})
	s.do("REPLICAOF", "NO", "ONE")
	check(t, receive(t, "the reply", result))
}

func TestAGuardedCommandFollowsASlotThatMoves(t *testing.T) {
	t.Parallel()
	const key, data, slot = "{a}lock", "{a}data", 15495
	nodes := startCluster(t)
	from, to := nodes[2], nodes[0]
	lock := acquire(t, newClient(t, newClusterClient(t, nodes)), key)
	check(t, lock.Guarded(t.Context(), "SET", data, 1).Err())
	if from.do("GETDEL", data) != "1" {
		t.Fatal("it ran on another node")
	}
	old, now := from.do("CLUSTER", "MYID"), to.do("CLUSTER", "MYID")
	to.do("CLUSTER", "SETSLOT", slot, "IMPORTING", old)
	from.do("CLUSTER", "SETSLOT", slot, "MIGRATING", now)
	host, port, _ := net.SplitHostPort(to.addr)
	from.do("MIGRATE", host, port, key, 0, 5000)
	check(t, lock.Guarded(t.Context()).Err()) // redirected by ASK
	for _, node := range []*server{to, from, nodes[1]} {
		node.do("CLUSTER", "SETSLOT", slot, "NODE", now)
	}
	check(t, lock.Guarded(t.Context(), "SET", data, 2).Err()) // redirected by MOVED
	if to.do("GET", data) != "2" {
		t.Fatal("it ran on another node")
	}
}
