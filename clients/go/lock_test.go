package lockward_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"lockward"
)

func TestMain(m *testing.M) {
	redis.SetLogger(noLog{})
	forExamples := new(withoutTest)
	addr = startServer(forExamples).addr
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		for _, end := range slices.Backward(forExamples.ends) {
			end()
		}
		os.Exit(code)
	}))
}

// withoutTest stands in for the test of a server that no test has started.
type withoutTest struct {
	testing.TB
	ends []func()
}

func (*withoutTest) Helper()              {}
func (*withoutTest) Fatal(args ...any)    { panic(fmt.Sprint(args...)) }
func (*withoutTest) Error(args ...any)    { panic(fmt.Sprint(args...)) }
func (o *withoutTest) Cleanup(end func()) { o.ends = append(o.ends, end) }

// noLog drops what go-redis logs about servers that the tests stop.
type noLog struct{}

func (noLog) Printf(context.Context, string, ...any) {}

// newClient returns a client that is closed when the test ends.
func newClient(tb testing.TB, rdb redis.UniversalClient, options ...lockward.Option) *lockward.Client {
	tb.Helper()
	client, err := lockward.New(rdb, options...)
	check(tb, err)
	tb.Cleanup(func() { _ = client.Close() })
	return client
}

func acquire(tb testing.TB, client *lockward.Client, key string, options ...lockward.AcquireOption) *lockward.Lock {
	tb.Helper()
	lock, err := client.Acquire(tb.Context(), key, options...)
	check(tb, err)
	return lock
}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// expect checks that err is each of the wanted errors.
func expect(tb testing.TB, err error, wanted ...error) {
	tb.Helper()
	for _, want := range wanted {
		if !errors.Is(err, want) {
			tb.Fatalf("got %v, not %v", err, want)
		}
	}
}

// refused checks that err is a ServerError with this code.
func refused(tb testing.TB, err error, code string) {
	tb.Helper()
	var refusal *lockward.ServerError
	if !errors.As(err, &refusal) || refusal.Code != code {
		tb.Fatalf("got %v, not %s", err, code)
	}
}

// acquiring acquires a lock in the background.
func acquiring(
	ctx context.Context, client *lockward.Client, key string, options ...lockward.AcquireOption,
) (<-chan *lockward.Lock, <-chan error) {
	granted, failed := make(chan *lockward.Lock, 1), make(chan error, 1)
	go func() {
		if lock, err := client.Acquire(ctx, key, options...); err != nil {
			failed <- err
		} else {
			granted <- lock
		}
	}()
	return granted, failed
}

func TestAcquireAndRelease(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	first := acquire(t, client, "k")
	if !first.Held() || first.Holds() != 1 || first.Key() != "k" || time.Until(first.Until()) > 30*time.Second {
		t.Fatal("wrong state after Acquire")
	}
	if holders, _ := s.info("k"); len(holders) != 1 || holders[0] != (holder{first.Owner(), first.Token(), 1}) {
		t.Fatal(holders)
	}
	_, err := client.TryAcquire(t.Context(), "k")
	expect(t, err, lockward.ErrBusy)
	check(t, first.Release(t.Context()))
	if holders, _ := s.info("k"); holders != nil || first.Held() || first.Holds() != 0 {
		t.Fatal("still held", holders)
	}
	expect(t, first.Release(t.Context()), lockward.ErrReleased)
	expect(t, first.Renew(t.Context()), lockward.ErrReleased)
	expect(t, first.Reenter(t.Context()), lockward.ErrReleased)
	second := acquire(t, client, "k", lockward.WithLease(time.Minute))
	if second.Token() <= first.Token() || second.Owner() == first.Owner() {
		t.Fatal(first.Token(), second.Token())
	}
	if left := time.Until(second.Until()); left > time.Minute || left < 30*time.Second {
		t.Fatal(left)
	}
	check(t, second.Release(t.Context()))
	select {
	case <-second.Lost():
		t.Fatal("a lock that was released is not lost")
	default:
	}
}

func TestLeaseDefaultsToTheServersSetting(t *testing.T) {
	t.Parallel()
	s := startServer(t, "lock.default-lease 70000")
	lock := acquire(t, newClient(t, s.client()), "k")
	if left := time.Until(lock.Until()); left > 70*time.Second || left < 40*time.Second {
		t.Fatal(left)
	}
	check(t, lock.Release(t.Context()))
}

func TestConnectionsUseTheOptionsOfTheGoRedisClient(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "socket")
	s := startServer(t, "unixsocket "+socket)
	s.do("CONFIG", "SET", "requirepass", "secret")
	for network, addr := range map[string]string{"tcp": s.addr, "unix": socket} {
		connected := false
		rdb := redis.NewClient(&redis.Options{
			Network: network, Addr: addr, Password: "secret", DB: 3, ClientName: "me", MaxRetries: -1, ReadTimeout: -1,
			OnConnect: func(context.Context, *redis.Conn) error { connected = true; return nil },
		})
		client := newClient(t, rdb)
		lock := acquire(t, client, network)
		if !connected || rdb.Exists(t.Context(), network).Val() != 1 {
			t.Fatal("not in the database")
		}
		if names := strings.Count(rdb.ClientList(t.Context()).Val(), " name=me "); names < 2 {
			t.Fatal(names, "connections of that name")
		}
		check(t, rdb.Close())
		check(t, lock.Release(t.Context())) // rdb is needed only for Sentinels and clusters
	}
}

func TestAnyStringIsAKey(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	for _, name := range []string{"", "\x00\xff\r\n", strings.Repeat("k", 100_000), "{a}b"} {
		check(t, client.Do(t.Context(), name, func(context.Context, *lockward.Lock) error { return nil }))
	}
}

func TestReentry(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	lock := acquire(t, newClient(t, s.client()), "k")
	holds := func(want int) {
		t.Helper()
		holders, _ := s.info("k")
		if lock.Holds() != want || len(holders) != 1 || holders[0] != (holder{lock.Owner(), lock.Token(), int64(want)}) {
			t.Fatal(lock.Holds(), holders)
		}
	}
	check(t, lock.Reenter(t.Context()))
	check(t, lock.Reenter(t.Context()))
	holds(3)
	check(t, lock.Release(t.Context()))
	holds(2)
	check(t, lock.Reenter(t.Context()))
	holds(3)
	for range 2 {
		check(t, lock.Release(t.Context()))
	}
	holds(1)
	check(t, lock.Release(t.Context()))
	s.checkFree("k")
}

func TestManyGoroutinesMayUseOneLock(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	lock := acquire(t, newClient(t, s.client()), "k")
	var running sync.WaitGroup
	for range 20 {
		running.Add(1)
		go func() {
			defer running.Done()
			if err := errors.Join(lock.Reenter(t.Context()), lock.Renew(t.Context()), lock.Release(t.Context())); err != nil {
				t.Error(err)
			}
		}()
	}
	running.Wait()
	if holders, _ := s.info("k"); len(holders) != 1 || holders[0].holds != 1 || lock.Holds() != 1 {
		t.Fatal(holders)
	}
	var released [2]error
	for i := range released {
		running.Add(1)
		go func() { defer running.Done(); released[i] = lock.Release(t.Context()) }()
	}
	running.Wait()
	if (released[0] == nil) == (released[1] == nil) {
		t.Fatal(released)
	}
	expect(t, errors.Join(released[:]...), lockward.ErrReleased)
}

func TestGoroutinesExcludeEachOther(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	count, last := 0, int64(0) // the race detector sees unprotected access
	var running sync.WaitGroup
	for range 50 {
		running.Add(1)
		go func() {
			defer running.Done()
			err := client.Do(t.Context(), "k", func(_ context.Context, lock *lockward.Lock) error {
				count++
				if lock.Token() <= last {
					return fmt.Errorf("token %d after %d", lock.Token(), last)
				}
				last = lock.Token()
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		}()
	}
	running.Wait()
	if count != 50 {
		t.Fatal(count)
	}
}

func TestDo(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	failure := errors.New("a failure")
	var inside context.Context
	err := client.Do(t.Context(), "k", func(ctx context.Context, lock *lockward.Lock) error {
		inside = lock.Context(ctx)
		if !lock.Held() || ctx.Err() != nil {
			t.Error("not held")
		}
		return failure
	})
	if err != failure { // not wrapped
		t.Fatal(err)
	}
	s.checkFree("k")
	receive(t, "the end of the context", inside.Done())
	expect(t, context.Cause(inside), lockward.ErrReleased)

	func() {
		defer func() { _ = recover() }()
		_ = client.Do(t.Context(), "k", func(context.Context, *lockward.Lock) error { panic("at the disco") })
		t.Error("no panic")
	}()
	s.checkFree("k")

	ctx, cancel := context.WithCancel(t.Context())
	err = client.Do(ctx, "k", func(ctx context.Context, _ *lockward.Lock) error {
		cancel()
		return ctx.Err()
	})
	if err != context.Canceled {
		t.Fatal(err)
	}
	s.checkFree("k")

	check(t, client.Do(t.Context(), "k", func(ctx context.Context, lock *lockward.Lock) error {
		ctx, cancel := context.WithTimeout(lock.Context(ctx), patience)
		defer cancel()
		return lock.Release(ctx)
	}))

	err = client.Do(t.Context(), "k", func(ctx context.Context, lock *lockward.Lock) error {
		s.do("DEL", "k")
		receive(t, "the loss", ctx.Done())
		expect(t, context.Cause(ctx), lockward.ErrLost)
		return failure
	}, lockward.WithLease(300*time.Millisecond))
	expect(t, err, lockward.ErrLost, failure)

	err = client.Do(ctx, "k", func(context.Context, *lockward.Lock) error { t.Error("done"); return nil })
	expect(t, err, context.Canceled)
}

func TestContext(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	lock := acquire(t, newClient(t, s.client()), "k")
	stop := errors.New("stop")
	parent, cancel := context.WithCancelCause(context.WithValue(t.Context(), holder{}, "a value"))
	ctx, other := lock.Context(parent), lock.Context(t.Context())
	if ctx.Value(holder{}) != "a value" {
		t.Fatal("not derived")
	}
	cancel(stop)
	receive(t, "the end of the context", ctx.Done())
	expect(t, context.Cause(ctx), stop)
	if other.Err() != nil || !lock.Held() {
		t.Fatal("it ends with its own parent only")
	}
	check(t, lock.Release(t.Context()))
	receive(t, "the end of the other context", other.Done())
	expect(t, context.Cause(other), lockward.ErrReleased)
	late := lock.Context(t.Context())
	receive(t, "the end of a context made after the release", late.Done())
}

func TestWaitersAreServedInOrder(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	lock := acquire(t, client, "k")
	order := make(chan int, 5)
	for i := range 5 {
		go func() {
			_ = client.Do(t.Context(), "k", func(context.Context, *lockward.Lock) error { order <- i; return nil })
		}()
		s.waitFor("k", int64(i+1))
	}
	check(t, client.Do(t.Context(), "another", func(context.Context, *lockward.Lock) error { return nil }))
	check(t, lock.Release(t.Context()))
	for i := range 5 {
		if got := receive(t, "a grant", order); got != i {
			t.Fatal(got, i)
		}
	}
}

func TestTheDeadlineIsTheWaitLimit(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	lock := acquire(t, client, "k")
	before := s.calls("lock.release")
	started := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := client.Acquire(ctx, "k")
	expect(t, err, lockward.ErrBusy, context.DeadlineExceeded)
	if waited := time.Since(started); waited < 990*time.Millisecond {
		t.Error("it returned before the deadline, after", waited)
	}
	if _, waiters := s.info("k"); waiters != 0 || s.calls("lock.release") != before {
		t.Fatal("it has left a waiter behind, or sent LOCK.RELEASE")
	}
	check(t, lock.Release(t.Context()))
}

func TestACancelledWaiterLeavesTheQueueAtOnce(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	lock := acquire(t, client, "k")
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	_, failed := acquiring(ctx, client, "k")
	s.waitFor("k", 1)
	cancel(stop)
	expect(t, receive(t, "the end of the wait", failed), stop, context.Canceled)
	s.waitFor("k", 0)
	check(t, lock.Release(t.Context()))
}

func TestAGrantToACallerThatHasLeftIsGivenBack(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	for i := range 200 {
		lock := acquire(t, client, "k", lockward.WithLease(time.Hour))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if i%2 == 0 { // the deadline passes at about the time of the grant
			ctx, cancel = context.WithTimeout(t.Context(), 5*time.Millisecond)
		}
		granted, failed := acquiring(ctx, client, "k", lockward.WithLease(time.Hour))
		released := make(chan error, 1)
		if i%2 == 0 {
			time.Sleep(4 * time.Millisecond)
		} else {
			s.waitFor("k", 1)
		}
		go func() { released <- lock.Release(t.Context()) }()
		if i%2 != 0 {
			cancel()
		}
		select {
		case lock := <-granted:
			check(t, lock.Release(t.Context()))
		case err := <-failed:
			if !errors.Is(err, context.DeadlineExceeded) {
				expect(t, err, context.Canceled)
			}
		}
		cancel()
		check(t, <-released)
		s.waitUntilFree("k")
	}
}

func TestAcquireFailsWhenTheGrantArrivesAfterTheContextEnded(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := startProxy(t, s)
	client := newClient(t, through(t, p))
	lock := acquire(t, newClient(t, s.client()), "k")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	granted, failed := acquiring(ctx, client, "k", lockward.WithLease(time.Hour))
	s.waitFor("k", 1)
	deadline, _ := ctx.Deadline()
	p.delay(time.Until(deadline) + 30*time.Millisecond)
	check(t, lock.Release(t.Context()))
	select {
	case <-granted:
		t.Fatal("granted")
	case err := <-failed:
		expect(t, err, context.DeadlineExceeded)
	}
	p.delay(0)
	s.waitUntilFree("k")
}

func TestMoreWaitersThanWaitingConnections(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client(), lockward.WithWaiters(2))
	lock := acquire(t, client, "k")
	done := make(chan error, 10)
	for range 10 {
		go func() {
			done <- client.Do(t.Context(), "k", func(context.Context, *lockward.Lock) error { return nil })
		}()
	}
	s.waitFor("k", 2)
	check(t, client.Do(t.Context(), "free", func(context.Context, *lockward.Lock) error { return nil }))
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err := client.Acquire(ctx, "k")
	expect(t, err, lockward.ErrBusy, context.DeadlineExceeded)
	if _, waiters := s.info("k"); waiters != 2 {
		t.Fatal(waiters)
	}
	check(t, lock.Release(t.Context()))
	for range 10 {
		check(t, receive(t, "a grant", done))
	}
}

func TestAHolderGetsAnotherLockWhileWaitersUseAllConnections(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client(), lockward.WithWaiters(1))
	lock, other := acquire(t, client, "a"), acquire(t, newClient(t, s.client()), "b")
	done := make(chan error, 2)
	go func() {
		done <- client.Do(t.Context(), "a", func(context.Context, *lockward.Lock) error { return nil })
	}()
	s.waitFor("a", 1) // all waiting connections are in use
	go func() {
		done <- client.Do(t.Context(), "b", func(context.Context, *lockward.Lock) error { return nil })
	}()
	rdb := s.client()
	eventually(t, "it has tried", func() bool {
		return !strings.Contains(rdb.Info(t.Context(), "lock").Val(), "lock_busy:0")
	})
	check(t, other.Release(t.Context()))
	check(t, receive(t, "another lock", done))
	check(t, lock.Release(t.Context()))
	check(t, receive(t, "the lock", done))
}

func TestAThousandCallersOnFewConnections(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client(), lockward.WithWaiters(20))
	rdb, most, done := s.client(), 0, make(chan error, 1000)
	for range 1000 {
		go func() {
			done <- client.Do(t.Context(), "k", func(context.Context, *lockward.Lock) error { return nil })
		}()
	}
	eventually(t, "all callers have had the lock", func() bool {
		most = max(most, strings.Count(rdb.ClientList(t.Context()).Val(), "\n"))
		return len(done) == cap(done)
	})
	for range 1000 {
		check(t, <-done)
	}
	if most < 20 || most > 20+16+5 {
		t.Fatal(most, "connections")
	}
}

func TestALongWaitEndsWithAWholeLease(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	lease := 2 * time.Second
	lock := acquire(t, client, "k")
	granted, _ := acquiring(t.Context(), client, "k", lockward.WithLease(lease), lockward.WithoutRenewal())
	s.waitFor("k", 1)
	time.Sleep(lease) // the test needs this time to pass
	check(t, lock.Release(t.Context()))
	if late := receive(t, "the grant", granted); !late.Held() || s.calls("lock.renew") != 1 {
		t.Fatal("its lease is over by its own clock")
	}
}

func TestLocksAreRenewedTogether(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	locks := make([]*lockward.Lock, 100)
	for i := range locks {
		locks[i] = acquire(t, client, fmt.Sprint(i), lockward.WithLease(1500*time.Millisecond))
	}
	eventually(t, "each is renewed four times", func() bool { return s.calls("lock.renew") > 4*len(locks) })
	for _, lock := range locks {
		if !lock.Held() {
			t.Fatal("lost")
		}
		check(t, lock.Release(t.Context()))
	}
	if connected := strings.Count(s.do("CLIENT", "LIST").(string), "\n"); connected > 5 {
		t.Fatal(connected, "connections")
	}
	calls := s.calls("lock.renew")
	time.Sleep(600 * time.Millisecond) // more than a third of the lease
	if more := s.calls("lock.renew") - calls; more != 0 {
		t.Fatal(more, "renewals of what was released")
	}
}

func TestWithoutRenewal(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	lock := acquire(t, client, "k", lockward.WithLease(1500*time.Millisecond), lockward.WithoutRenewal())
	first := lock.Until()
	check(t, lock.Renew(t.Context()))
	if !lock.Until().After(first) {
		t.Fatal("not renewed by hand")
	}
	receive(t, "the loss", lock.Lost())
	if lock.Held() || lock.Holds() != 0 {
		t.Fatal("held")
	}
	expect(t, lock.Release(t.Context()), lockward.ErrLost)
	expect(t, lock.Renew(t.Context()), lockward.ErrLost)
	expect(t, lock.Reenter(t.Context()), lockward.ErrLost)
	if calls := s.calls("lock.renew"); calls != 1 {
		t.Fatal(calls, "renewals")
	}
	// The client releases the lock in the background: the server's lease may be longer.
	eventually(t, "given back", func() bool { return s.calls("lock.release") > 0 })
	expect(t, lock.Release(t.Context()), lockward.ErrLost)
}

func TestLeasesOfAnyLength(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	long := acquire(t, client, "long", lockward.WithLease(10*365*24*time.Hour))
	short := acquire(t, client, "short", lockward.WithLease(1500*time.Millisecond))
	eventually(t, "it is renewed", func() bool { return s.calls("lock.renew") > 3 })
	if !long.Held() || !short.Held() {
		t.Fatal("lost")
	}
	check(t, long.Release(t.Context()))
	check(t, short.Release(t.Context()))
	for range 100 {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if lock, err := client.Acquire(ctx, "tiny", lockward.WithLease(time.Millisecond)); err != nil {
			expect(t, err, context.DeadlineExceeded) // each lease ends before it is confirmed
		} else {
			receive(t, "the loss", lock.Lost())
		}
		cancel()
	}
}

func TestReleaseAndLossAtTheSameTime(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	released := 0
	for range 100 {
		lock, err := client.TryAcquire(t.Context(), "k", lockward.WithLease(20*time.Millisecond), lockward.WithoutRenewal())
		if errors.Is(err, lockward.ErrBusy) { // the last lease is not over yet at the server
			continue
		}
		check(t, err)
		time.Sleep(time.Until(lock.Until()) - 500*time.Microsecond)
		if err := lock.Release(t.Context()); err != nil {
			if !errors.Is(err, lockward.ErrUnreachable) { // no reply before the lease ended
				expect(t, err, lockward.ErrLost)
			}
			continue
		}
		released++
		select {
		case <-lock.Lost():
			t.Fatal("released and lost")
		default:
		}
	}
	t.Log(released, "of 100 are released in time")
}

func TestALockThatIsTakenAwayIsLost(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	for name, theft := range map[string]func(*lockward.Lock){
		"deleted":     func(l *lockward.Lock) { s.do("DEL", l.Key()) },
		"overwritten": func(l *lockward.Lock) { s.do("SET", l.Key(), "a string") },
		"broken":      func(l *lockward.Lock) { s.do("LOCK.RELEASE", l.Key(), l.Owner(), "ALL") },
		"taken": func(l *lockward.Lock) {
			s.do("LOCK.RELEASE", l.Key(), l.Owner(), "ALL")
			s.do("LOCK.ACQUIRE", l.Key(), "a thief")
		},
		"taken by the owner": func(l *lockward.Lock) {
			s.do("LOCK.RELEASE", l.Key(), l.Owner(), "ALL")
			s.do("LOCK.ACQUIRE", l.Key(), l.Owner())
		},
	} {
		soon := acquire(t, client, name+" soon", lockward.WithLease(1500*time.Millisecond))
		theft(soon)
		receive(t, "the loss, found by the renewal", soon.Lost())
		if soon.Held() {
			t.Fatal(name, "held")
		}
		expect(t, soon.Release(t.Context()), lockward.ErrLost)

		for what, ask := range map[string]func(*lockward.Lock) error{
			"release": func(l *lockward.Lock) error { return l.Release(t.Context()) },
			"renew":   func(l *lockward.Lock) error { return l.Renew(t.Context()) },
			"reenter": func(l *lockward.Lock) error { return l.Reenter(t.Context()) },
		} {
			lock := acquire(t, client, name+what)
			theft(lock)
			expect(t, ask(lock), lockward.ErrLost)
			if lock.Held() {
				t.Fatal(name, what, "held")
			}
		}
	}
}

func TestServerErrorsAreReturned(t *testing.T) {
	t.Parallel()
	s := startServer(t, "lock.max-waiters 1")
	rdb := s.client()
	client := newClient(t, rdb)
	s.do("SET", "string", "")
	_, err := client.Acquire(t.Context(), "string")
	refused(t, err, "WRONGTYPE")
	for _, lease := range []time.Duration{0, -1, time.Microsecond, 1 << 62} {
		_, err = client.Acquire(t.Context(), "k", lockward.WithLease(lease))
		refused(t, err, "ERR")
	}
	lock := acquire(t, client, "k")
	granted, _ := acquiring(t.Context(), client, "k")
	s.waitFor("k", 1)
	_, err = client.Acquire(t.Context(), "k")
	refused(t, err, "MAXWAITERS")
	check(t, lock.Release(t.Context()))
	check(t, receive(t, "the grant", granted).Release(t.Context()))

	user := func(rules ...any) *lockward.Client {
		s.do(append([]any{"ACL", "SETUSER", "u", "reset", "on", ">secret", "~*", "+@connection"}, rules...)...)
		options := *rdb.Options()
		options.Username, options.Password = "u", "secret"
		theirs := redis.NewClient(&options)
		t.Cleanup(func() { _ = theirs.Close() })
		return newClient(t, theirs)
	}
	_, err = user().Acquire(t.Context(), "k")
	refused(t, err, "NOPERM")
	check(t, acquire(t, user("+lock.acquire", "+lock.release"), "k").Release(t.Context()))

	wrong := *rdb.Options()
	wrong.Username, wrong.Password = "u", "wrong"
	theirs := redis.NewClient(&wrong)
	t.Cleanup(func() { _ = theirs.Close() })
	_, err = newClient(t, theirs).Acquire(t.Context(), "k")
	refused(t, err, "WRONGPASS")
}

func TestWithReplicas(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	enough := lockward.WithReplicas(1, 50*time.Millisecond)
	_, err := client.Acquire(t.Context(), "k", enough)
	expect(t, err, lockward.ErrUnreplicated)
	s.checkFree("k")
	replica := startServer(t)
	host, port, _ := strings.Cut(s.addr, ":")
	replica.do("REPLICAOF", host, port)
	eventually(t, "the replica is there", func() bool {
		return strings.Contains(replica.do("INFO", "replication").(string), "master_link_status:up")
	})
	patient := lockward.WithReplicas(1, patience)
	lock := acquire(t, client, "k", patient)
	granted, _ := acquiring(t.Context(), client, "k", patient, lockward.WithLease(time.Minute))
	s.waitFor("k", 1)
	check(t, lock.Release(t.Context()))
	check(t, receive(t, "the grant", granted).Release(t.Context()))
}

func TestWaitingForReplicasDoesNotBlockRenewal(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	lock := acquire(t, client, "renewed", lockward.WithLease(3*time.Second))
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	for i := range 20 {
		waiting.Add(1)
		go func() {
			defer waiting.Done()
			_, _ = client.TryAcquire(ctx, fmt.Sprint("replicated ", i), lockward.WithReplicas(1, time.Minute))
		}()
	}
	renewals := s.calls("lock.renew")
	eventually(t, "renewals", func() bool { return s.calls("lock.renew") > renewals+1 })
	if !lock.Held() {
		t.Fatal("lost")
	}
	cancel()
	waiting.Wait()
}

func TestADroppedLockIsNotRenewed(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	parent, cancel := context.WithCancel(t.Context())
	defer cancel()
	lock := acquire(t, client, "k", lockward.WithLease(1500*time.Millisecond))
	lost, ctx := lock.Lost(), lock.Context(parent)
	runtime.KeepAlive(lock)
	eventually(t, "it ends", func() bool {
		runtime.GC()
		holders, _ := s.info("k")
		return holders == nil
	})
	receive(t, "the loss", lost)
	receive(t, "the end of the context", ctx.Done())
	expect(t, context.Cause(ctx), lockward.ErrLost)
}

func TestClose(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	lock := acquire(t, client, "k")
	_, failed := acquiring(t.Context(), client, "k")
	s.waitFor("k", 1)
	check(t, client.Close())
	expect(t, receive(t, "the end of the wait", failed), lockward.ErrClosed)
	receive(t, "the loss", lock.Lost())
	expect(t, lock.Release(t.Context()), lockward.ErrLost, lockward.ErrClosed)
	_, err := client.TryAcquire(t.Context(), "free")
	expect(t, err, lockward.ErrClosed)
	if holders, waiters := s.info("k"); len(holders) != 1 || waiters != 0 {
		t.Fatal(holders, waiters)
	}
	eventually(t, "all connections are closed", func() bool {
		return strings.Count(s.do("CLIENT", "LIST").(string), "\n") == 1
	})
	expect(t, client.Close(), lockward.ErrClosed)

	idle := newClient(t, s.client())
	check(t, idle.Do(t.Context(), "free", func(context.Context, *lockward.Lock) error { return nil }))
	check(t, idle.Close())
	eventually(t, "idle connections are closed", func() bool {
		return strings.Count(s.do("CLIENT", "LIST").(string), "\n") == 1
	})
	runtime.KeepAlive(idle)
}

func TestANilContextPanicsAndTheClientStillCloses(t *testing.T) {
	t.Parallel()
	client := newClient(t, startServer(t).client())
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		var none context.Context
		_, _ = client.Acquire(none, "k")
	}()
	closed := make(chan error)
	go func() { closed <- client.Close() }()
	check(t, receive(t, "the end", closed))
}

func TestReleaseWithAnEndedContextGivesTheLockBack(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	lock := acquire(t, client, "k")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := lock.Release(ctx); err != nil {
		expect(t, err, context.Canceled)
	}
	check(t, client.Close())
	s.checkFree("k")
}

func TestNewRefusesUnknownClientsAndOptionsOutOfRange(t *testing.T) {
	t.Parallel()
	ring := redis.NewRing(&redis.RingOptions{})
	defer ring.Close()
	if _, err := lockward.New(ring); err == nil {
		t.Fatal("New accepts a ring")
	}
	if _, err := lockward.New(nil); err == nil {
		t.Fatal("New accepts nil")
	}
	rdb := redis.NewClient(&redis.Options{})
	defer rdb.Close()
	for _, option := range []lockward.Option{lockward.WithPatience(0), lockward.WithResponseLimit(-1)} {
		if _, err := lockward.New(rdb, option); err == nil {
			t.Fatal("New accepts an option out of range")
		}
	}
}
