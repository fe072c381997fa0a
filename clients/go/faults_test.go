package lockward_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockward"
)

// through returns a client of go-redis that connects to a proxy.
func through(tb testing.TB, p *proxy) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: p.addr})
	tb.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

func TestALostReplyIsNotCountedTwice(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := startProxy(t, s)
	loseReply := func(command string) { t.Helper(); p.plan("reply " + command + " 1") }
	client := newClient(t, through(t, p))
	holds := func(want int64) {
		t.Helper()
		if holders, _ := s.info("k"); len(holders) != 1 || holders[0].holds != want {
			t.Fatal(holders)
		}
	}
	loseReply("LOCK.ACQUIRE")
	lock := acquire(t, client, "k")
	holds(1)
	loseReply("LOCK.ACQUIRE")
	check(t, lock.Reenter(t.Context()))
	holds(2)
	loseReply("LOCK.RENEW")
	check(t, lock.Renew(t.Context()))
	loseReply("LOCK.RELEASE")
	check(t, lock.Release(t.Context()))
	holds(1)
	granted, _ := acquiring(t.Context(), client, "k")
	s.waitFor("k", 1)
	loseReply("LOCK.RELEASE")
	check(t, lock.Release(t.Context()))
	late := receive(t, "the grant", granted)
	holds(1)
	check(t, late.Release(t.Context()))
	if lost := p.lost(); lost != 5 {
		t.Fatal(lost, "replies are lost")
	}
}

func TestHoldsAreRightAfterAThousandLostReplies(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := startProxy(t, s)
	p.tell("random 7 167 167 LOCK.*")
	client := newClient(t, through(t, p), lockward.WithPatience(time.Minute))
	var running sync.WaitGroup
	var inside [4]atomic.Int64
	for i := range 8 {
		running.Add(1)
		go func() {
			defer running.Done()
			key := i % len(inside)
			for p.lost() < 1000 {
				err := client.Do(t.Context(), fmt.Sprint(key), func(ctx context.Context, lock *lockward.Lock) error {
					if inside[key].Add(1) != 1 {
						t.Error("two at a time")
					}
					if err := lock.Reenter(ctx); err != nil {
						return err
					}
					if holders, _ := s.info(lock.Key()); len(holders) != 1 || holders[0].holds != 2 {
						t.Error(holders)
					}
					inside[key].Add(-1)
					return lock.Release(ctx)
				}, lockward.WithLease(time.Hour))
				if err != nil {
					t.Error(err)
				}
			}
		}()
	}
	running.Wait()
	for i := range inside {
		if holders, waiters := s.info(fmt.Sprint(i)); holders != nil || waiters != 0 {
			t.Fatal(holders, waiters)
		}
	}
}

func TestAWaiterKeepsWaitingWhenItsConnectionBreaks(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := startProxy(t, s)
	patience := time.Second
	client := newClient(t, through(t, p), lockward.WithPatience(patience), lockward.WithResponseLimit(patience/3))
	lock := acquire(t, client, "k")
	granted, _ := acquiring(t.Context(), client, "k")
	for range 3 {
		s.waitFor("k", 1)
		began := time.Now()
		eventually(t, "it has waited for more than twice the patience", func() bool { return time.Since(began) > 2*patience })
		before := s.waiter("k")
		p.cut()
		eventually(t, "it waits again", func() bool { now := s.waiter("k"); return now != nil && now != before })
	}
	s.waitFor("k", 1)
	check(t, lock.Release(t.Context()))
	check(t, receive(t, "the grant", granted).Release(t.Context()))
}

func TestABrokenConnectionRenewsAllLocksAtOnce(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := startProxy(t, s)
	client := newClient(t, through(t, p))
	locks := make([]*lockward.Lock, 5)
	for i := range locks {
		options := []lockward.AcquireOption{lockward.WithLease(time.Hour)}
		if i == 0 {
			options = append(options, lockward.WithoutRenewal())
		}
		locks[i] = acquire(t, client, fmt.Sprint(i), options...)
	}
	end := locks[0].Until()
	p.cut()
	acquire(t, client, "another")
	eventually(t, "they are renewed", func() bool { return s.calls("lock.renew") >= 5 })
	if locks[0].Until().After(end) {
		t.Fatal("one without renewal has a longer lease")
	}
	for _, lock := range locks {
		check(t, lock.Release(t.Context()))
	}
}

func TestAFailedRenewalIsRepeated(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := startProxy(t, s)
	p.plan("request LOCK.RENEW 5")
	lock := acquire(t, newClient(t, through(t, p)), "k", lockward.WithLease(3*time.Second))
	eventually(t, "it is renewed", func() bool { return s.calls("lock.renew") > 0 })
	if lost := p.lost(); lost != 5 || !lock.Held() {
		t.Fatal(lost)
	}
	check(t, lock.Release(t.Context()))
}

func TestATenureSurvivesARestart(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string][]string{
		"remembered": {"lock.default-lease 20000", "appendonly yes", "appendfsync always"},
		"forgotten":  {"lock.default-lease 20000", "lock.quarantine 20000"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, settings...)
			rdb := s.client()
			if name == "forgotten" {
				s.do("CONFIG", "SET", "lock.quarantine", "0")
			}
			client := newClient(t, rdb)
			kept, released := acquire(t, client, "kept"), acquire(t, client, "released")
			entered, left := acquire(t, client, "entered"), acquire(t, client, "left")
			check(t, left.Reenter(t.Context()))
			granted, _ := acquiring(t.Context(), client, "kept")
			s.waitFor("kept", 1)
			s.kill()
			s.start()
			check(t, released.Release(t.Context()))
			check(t, entered.Reenter(t.Context()))
			check(t, left.Release(t.Context()))
			eventually(t, "the server restores it", func() bool { holders, _ := s.info("kept"); return len(holders) == 1 })
			s.waitFor("kept", 1)
			for lock, holds := range map[*lockward.Lock]int64{kept: 1, entered: 2, left: 1} {
				holders, _ := s.info(lock.Key())
				if len(holders) != 1 || holders[0] != (holder{lock.Owner(), lock.Token(), holds}) || !lock.Held() {
					t.Fatal(lock.Key(), holders)
				}
			}
			s.do("CONFIG", "SET", "lock.quarantine", "0")
			check(t, kept.Release(t.Context()))
			check(t, receive(t, "the grant", granted).Release(t.Context()))
		})
	}
}

func TestALockIsLostWhenTheServerHasForgottenIt(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	lock := acquire(t, client, "k", lockward.WithLease(3*time.Second))
	s.kill()
	s.start()
	receive(t, "the loss", lock.Lost())
	err := lock.Release(t.Context())
	expect(t, err, lockward.ErrLost)
	refused(t, err, "NOTHELD")
}

func TestAReleaseThatWasNeverSentIsNotTakenAsDone(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	lock := acquire(t, client, "k", lockward.WithLease(time.Minute))
	s.kill()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := client.TryAcquire(ctx, "another") // closes all connections
	expect(t, err, lockward.ErrUnreachable)
	released := make(chan error, 1)
	go func() { released <- lock.Release(t.Context()) }()
	eventually(t, "Release has begun", func() bool { return !lock.Held() })
	s.start()
	expect(t, receive(t, "the end of the release", released), lockward.ErrLost)
}

func TestALockAtAStoppedServerIsLostWhenItsLeaseEnds(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client(), lockward.WithResponseLimit(200*time.Millisecond), lockward.WithPatience(time.Second))
	lock := acquire(t, client, "k", lockward.WithLease(time.Second))
	other := acquire(t, client, "other", lockward.WithLease(time.Minute))
	s.pause()
	receive(t, "the loss", lock.Lost())
	if lock.Held() || !other.Held() {
		t.Fatal("held")
	}
	expect(t, lock.Release(t.Context()), lockward.ErrLost)
	expect(t, other.Renew(t.Context()), lockward.ErrUnreachable)
	_, err := client.TryAcquire(t.Context(), "another")
	expect(t, err, lockward.ErrUnreachable)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = client.Acquire(ctx, "another")
	expect(t, err, lockward.ErrUnreachable, context.DeadlineExceeded)
	expect(t, other.Release(t.Context()), lockward.ErrUnreachable)
	if other.Held() {
		t.Fatal("held after Release")
	}
	s.resume()
	eventually(t, "both locks are given back", func() bool {
		others, _ := s.info("other")
		another, _ := s.info("another")
		return others == nil && another == nil
	})
}

func TestTheWaitLimitHoldsAtAStoppedServer(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client(), lockward.WithResponseLimit(200*time.Millisecond))
	lock := acquire(t, client, "k", lockward.WithLease(time.Minute))
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	_, failed := acquiring(ctx, client, "k")
	s.waitFor("k", 1)
	s.pause()
	expect(t, receive(t, "the end of the wait", failed), lockward.ErrUnreachable, context.DeadlineExceeded)
	s.resume()
	check(t, lock.Release(t.Context()))
}

func TestAWaiterLeavesAStoppedServer(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client(), lockward.WithResponseLimit(500*time.Millisecond), lockward.WithPatience(2*time.Second))
	lock := acquire(t, client, "k", lockward.WithLease(time.Minute))
	granted, failed := acquiring(t.Context(), client, "k")
	s.waitFor("k", 1)
	asked := s.calls("ping")
	eventually(t, "the server gets a PING", func() bool { return s.calls("ping") >= asked+2 })
	if _, waiters := s.info("k"); waiters != 1 {
		t.Fatal(waiters)
	}
	s.pause()
	select {
	case <-granted:
		t.Fatal("granted")
	case err := <-failed:
		expect(t, err, lockward.ErrUnreachable)
	case <-time.After(patience):
		t.Fatal("it still waits")
	}
	s.resume()
	check(t, lock.Release(t.Context()))
}

func TestACancelledReenterOrReleaseLeavesNoHoldBehind(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	lock := acquire(t, client, "k", lockward.WithLease(time.Minute))
	holds := func(want int) {
		t.Helper()
		holders, _ := s.info("k")
		if lock.Holds() != want || len(holders) != 1 || holders[0].holds != int64(want) {
			t.Fatal(lock.Holds(), holders)
		}
	}
	cancelled := func(ask func(context.Context) error) {
		t.Helper()
		s.pause()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		expect(t, ask(ctx), context.DeadlineExceeded)
		s.resume()
	}
	check(t, lock.Reenter(t.Context()))
	cancelled(lock.Reenter)
	eventually(t, "the server has carried it out", func() bool { holders, _ := s.info("k"); return holders[0].holds == 3 })
	if lock.Holds() != 2 {
		t.Fatal(lock.Holds())
	}
	check(t, lock.Release(t.Context()))
	holds(1)
	cancelled(lock.Reenter)
	check(t, lock.Reenter(t.Context()))
	holds(2)
	cancelled(lock.Release)
	check(t, lock.Reenter(t.Context()))
	holds(2)
	check(t, lock.Release(t.Context()))
	check(t, lock.Release(t.Context()))
	s.checkFree("k")
}

func TestAGrantWhoseReplyIsLostIsGivenBackAfterALongOutage(t *testing.T) {
	t.Parallel()
	s := startServer(t, "lock.default-lease 600000")
	p := startProxy(t, s)
	patience := 300 * time.Millisecond
	client := newClient(t, through(t, p), lockward.WithPatience(patience))
	p.plan("reply LOCK.ACQUIRE 1, request *")
	_, err := client.TryAcquire(t.Context(), "k")
	expect(t, err, lockward.ErrUnreachable)
	down := time.Now()
	eventually(t, "the network is down for long", func() bool { return time.Since(down) > 10*patience })
	if holders, _ := s.info("k"); len(holders) != 1 {
		t.Fatal(holders)
	}
	p.plan("")
	s.waitUntilFree("k")
}

func TestTryAcquireReturnsWhenRepliesTakeLongerThanTheLease(t *testing.T) {
	t.Parallel()
	s := startServer(t, "lock.default-lease 40")
	p := startProxy(t, s)
	p.delay(60 * time.Millisecond)
	client := newClient(t, through(t, p))
	_, err := client.TryAcquire(t.Context(), "k")
	expect(t, err, lockward.ErrBusy)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, failed := acquiring(ctx, client, "k")
	expect(t, receive(t, "the end of the wait", failed), context.DeadlineExceeded)
}

func TestNoServer(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	t.Cleanup(func() { _ = rdb.Close() })
	client := newClient(t, rdb, lockward.WithPatience(200*time.Millisecond))
	_, err := client.Acquire(t.Context(), "k")
	expect(t, err, lockward.ErrUnreachable)
	ctx, cancel := context.WithCancel(t.Context())
	_, failed := acquiring(ctx, client, "k")
	cancel()
	if err := receive(t, "the end", failed); err == nil {
		t.Fatal("acquired")
	}
}
