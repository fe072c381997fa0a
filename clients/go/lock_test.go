package lockward_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"
	"go.uber.org/goleak"

	"github.com/lockward/lockward-go"
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

// withoutTest replaces the testing.TB of the server that TestMain starts for the examples.
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

// newClient returns a client that is closed when the test ends. The client has a long patience, because on a busy machine a server may not
// answer within the default patience.
func newClient(tb testing.TB, rdb redis.UniversalClient, options ...lockward.Option) *lockward.Client {
	tb.Helper()
	client, err := lockward.New(rdb, append([]lockward.Option{lockward.WithPatience(patience)}, options...)...)
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

// acquiring acquires a lock of one or several keys in the background.
func acquiring(
	ctx context.Context, client *lockward.Client, keys []string, options ...lockward.AcquireOption,
) (<-chan *lockward.Lock, <-chan error) {
	granted, failed := make(chan *lockward.Lock, 1), make(chan error, 1)
	go func() {
		if lock, err := client.AcquireAll(ctx, keys, options...); err != nil {
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
	if !first.Held() || first.Key() != "k" || time.Until(first.Until()) > 30*time.Second {
		t.Fatal("wrong state after Acquire")
	}
	if holders, _ := s.info("k"); len(holders) != 1 || holders[0] != (holder{first.Owner(), first.Token(), 1}) {
		t.Fatal(holders)
	}
	_, err := client.Acquire(t.Context(), "k", lockward.WithoutWaiting())
	expect(t, err, lockward.ErrBusy)
	check(t, first.Release(t.Context()))
	if holders, _ := s.info("k"); holders != nil || first.Held() {
		t.Fatal("still held", holders)
	}
	expect(t, first.Release(t.Context()), lockward.ErrReleased)
	expect(t, first.Renew(t.Context()), lockward.ErrReleased)
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
		t.Fatal("a lock that was released must not be reported as lost")
	default:
	}
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

// A conn over SSH has no deadlines.
type sshConn struct{ net.Conn }

func (sshConn) SetDeadline(time.Time) error      { return errors.ErrUnsupported }
func (sshConn) SetReadDeadline(time.Time) error  { return errors.ErrUnsupported }
func (sshConn) SetWriteDeadline(time.Time) error { return errors.ErrUnsupported }

func TestADialerMayReturnConnectionsWithoutDeadlines(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	rdb := redis.NewClient(&redis.Options{Addr: s.addr, Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return sshConn{conn}, err
	}})
	defer rdb.Close()
	client := newClient(t, rdb)
	lock := acquire(t, client, "k")
	ctx, cancel := context.WithCancel(t.Context())
	_, failed := acquiring(ctx, client, []string{"k"})
	s.waitFor("k", 1)
	cancel()
	expect(t, receive(t, "the end of the wait", failed), context.Canceled)
	check(t, lock.Renew(t.Context()))
	s.pause()
	limited, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	renewed := make(chan error, 1)
	go func() { renewed <- lock.Renew(limited) }()
	expect(t, receive(t, "the end of the renewal", renewed), lockward.ErrUnreachable)
	s.resume()
	check(t, lock.Release(t.Context()))
}

// A streamer is a StreamingCredentialsProvider.
type streamer struct {
	password    atomic.Value
	subscribers atomic.Int64
}

func (s *streamer) Subscribe(auth.CredentialsListener) (auth.Credentials, auth.UnsubscribeFunc, error) {
	s.subscribers.Add(1)
	unsubscribe := sync.OnceValue(func() error { s.subscribers.Add(-1); return nil }) // go-redis may call it twice
	return auth.NewBasicCredentials("me", s.password.Load().(string)), unsubscribe, nil
}

func TestCredentialsMayBeStreamed(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	credentials := new(streamer)
	rotate := func(password string) {
		s.do("ACL", "SETUSER", "me", "on", "+@all", "~*", "resetpass", ">"+password)
		credentials.password.Store(password)
	}
	rotate("first")
	rdb := redis.NewClient(&redis.Options{Addr: s.addr, StreamingCredentialsProvider: credentials})
	defer rdb.Close()
	client := newClient(t, rdb)
	lock := acquire(t, client, "k")
	rotate("second")
	s.do("CLIENT", "KILL", "USER", "me")
	check(t, lock.Renew(t.Context()))
	check(t, lock.Release(t.Context()))
	check(t, client.Close())
	if count := credentials.subscribers.Load(); count != 0 {
		t.Error(count, "subscribers")
	}
}

func TestCallbacksOfTheProgramGetAContextThatEndsInTime(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	hang := func(ctx context.Context) error {
		select {
		case <-ctx.Done():
		case <-time.After(patience):
			t.Error("the context must end")
		}
		return ctx.Err()
	}
	for _, options := range []redis.Options{
		{OnConnect: func(ctx context.Context, _ *redis.Conn) error { return hang(ctx) }},
		{CredentialsProviderContext: func(ctx context.Context) (string, string, error) { return "", "", hang(ctx) }},
	} {
		options.Addr = s.addr
		rdb := redis.NewClient(&options)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		_, err := newClient(t, rdb).Acquire(ctx, "k")
		expect(t, err, lockward.ErrUnreachable, context.DeadlineExceeded)
		cancel()
		_, err = newClient(t, rdb, lockward.WithPatience(100*time.Millisecond)).Acquire(t.Context(), "k")
		expect(t, err, lockward.ErrUnreachable)
		check(t, rdb.Close())
	}
}

func TestACallWhoseContextHasEndedSendsNothing(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	lock, err := client.AcquireAll(t.Context(), []string{"a", "b"})
	check(t, err)
	requests := s.calls("lock.acquire")
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	for _, ctx := range []context.Context{cancelled, late} {
		_, one := client.Acquire(ctx, "c")
		_, several := client.AcquireAll(ctx, []string{"c", "d"})
		_, isBusy := client.Acquire(ctx, "c", lockward.WithoutWaiting())
		for _, err := range []error{one, several, isBusy, lock.Renew(ctx)} {
			expect(t, err, ctx.Err())
			if errors.Is(err, lockward.ErrUnreachable) || !strings.Contains(err.Error(), "the context of the caller has ended") {
				t.Error(err)
			}
		}
	}
	if sent := s.calls("lock.acquire") - requests; sent > 0 {
		t.Error(sent, "requests")
	}
	check(t, lock.Release(t.Context()))
}

func TestAnyStringIsAKey(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	for _, name := range []string{"", "\x00\xff\r\n", strings.Repeat("k", 100_000), "{a}b"} {
		check(t, client.Do(t.Context(), name, func(context.Context, *lockward.Lock) error { return nil }))
	}
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
	if err != failure { // Do must not wrap the error
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
		return lock.Release(ctx) // the release ends ctx
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
		t.Fatal("the context must have the values of its parent")
	}
	cancel(stop)
	receive(t, "the end of the context", ctx.Done())
	expect(t, context.Cause(ctx), stop)
	if other.Err() != nil || !lock.Held() {
		t.Fatal("the end of one context must not end another one or the lock")
	}
	check(t, lock.Release(t.Context()))
	receive(t, "the end of the other context", other.Done())
	expect(t, context.Cause(other), lockward.ErrReleased)
	late := lock.Context(t.Context())
	receive(t, "the end of a context made after the release", late.Done())
}

func TestAGrantToACallerThatHasLeftIsReleased(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client, rdb := newClient(t, s.client()), s.client()
	for i := range 200 {
		isCancelled := i%2 != 0
		lease := time.Duration(1+i/2%5) * time.Millisecond
		ctx, cancel := context.WithTimeout(t.Context(), lease) // the deadline passes when the lease of the owner "other" ends
		if isCancelled {
			lease = time.Hour
			ctx, cancel = context.WithCancel(t.Context())
		}
		check(t, rdb.Do(t.Context(), "LOCK.ACQUIRE", "k", "other", "PX", lease.Milliseconds()).Err())
		granted, failed := acquiring(ctx, client, []string{"k"}, lockward.WithLease(time.Hour))
		released := make(chan error, 1)
		if isCancelled {
			s.waitFor("k", 1)
			go func() { released <- rdb.Do(t.Context(), "LOCK.RELEASE", "k", "other").Err() }()
			cancel()
		} else {
			close(released)
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

func TestManyCallersOnFewConnections(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client(), lockward.WithWaitingConnections(20), lockward.WithPatience(time.Hour), lockward.WithResponseLimit(time.Hour))
	rdb, done := s.client(), make(chan error, 300)
	connections := func() int { return strings.Count(rdb.ClientList(t.Context()).Val(), "\n") }
	holder := acquire(t, client, "k")
	for range cap(done) {
		go func() {
			done <- client.Do(t.Context(), "k", func(context.Context, *lockward.Lock) error { return nil })
		}()
	}
	s.waitFor("k", 20)
	most := connections()
	check(t, holder.Release(t.Context()))
	eventually(t, "all callers have had the lock", func() bool {
		most = max(most, connections())
		return len(done) == cap(done)
	})
	for range cap(done) {
		check(t, <-done)
	}
	if most < 20 || most > 20+16+5 {
		t.Fatal(most, "connections")
	}
}

func TestVeryShortAndVeryLongLeases(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	long := acquire(t, client, "long", lockward.WithLease(10*365*24*time.Hour))
	short := acquire(t, client, "short", lockward.WithLease(3*time.Second))
	eventually(t, "the short lease is renewed", func() bool { return s.calls("lock.renew") > 1 })
	if !long.Held() || !short.Held() {
		t.Fatal("lost")
	}
	check(t, long.Release(t.Context()))
	check(t, short.Release(t.Context()))
	for range 100 {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if lock, err := client.Acquire(ctx, "tiny", lockward.WithLease(2*time.Millisecond)); err != nil {
			if !errors.Is(err, context.DeadlineExceeded) {
				expect(t, err, lockward.ErrLost)
			}
		} else {
			receive(t, "the loss", lock.Lost())
		}
		cancel()
	}
}

func TestOptionsThatAreOutOfRangeAreErrorsBeforeAnyRequest(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	nothing := func(context.Context, *lockward.Lock) error { t.Error("done"); return nil }
	for want, option := range map[string]lockward.AcquireOption{
		"lockward: the lease is -1s, but must be 2ms or more":       lockward.WithLease(-time.Second),
		"lockward: the lease is 1.999ms, but must be 2ms or more":   lockward.WithLease(1999 * time.Microsecond),
		"lockward: the hold limit is -1ms, but must be 2ms or more": lockward.WithHoldLimit(-time.Millisecond),
		"lockward: 1 replicas cannot confirm the lock within 0s":    lockward.WithReplicas(1, 0),
		"lockward: -1 replicas cannot confirm the lock within 1s":   lockward.WithReplicas(-1, time.Second),
		"lockward: the owner must not be *":                         lockward.WithOwner("*"),
	} {
		_, acquired := client.Acquire(t.Context(), "k", option, lockward.WithoutWaiting())
		_, acquiredAll := client.AcquireAll(t.Context(), []string{"a", "b"}, option, lockward.WithoutWaiting())
		for _, err := range []error{
			acquired, acquiredAll,
			client.Do(t.Context(), "k", nothing, option, lockward.WithoutWaiting()),
			client.DoAll(t.Context(), []string{"a", "b"}, nothing, option, lockward.WithoutWaiting()),
			client.Lead(t.Context(), "k", nothing, option, lockward.WithoutWaiting()),
		} {
			if err == nil || err.Error() != want {
				t.Errorf("got %v, not %s", err, want)
			}
		}
	}
	if requests := s.calls("lock.acquire"); requests != 0 {
		t.Error(requests, "requests")
	}
}

func TestTheServerRefusesAKindThatDoesNotExist(t *testing.T) {
	t.Parallel()
	client := newClient(t, startServer(t).client())
	for _, options := range [][]lockward.AcquireOption{
		{lockward.Slots(0)},
		{lockward.Slots(2_000_000)},
		{lockward.Slots(2), lockward.Weight(0)},
		{lockward.Slots(2), lockward.Weight(3)},
		{lockward.Weight(1)},
		{lockward.Shared(), lockward.Weight(2)},
		{lockward.WithOwner(strings.Repeat("x", 1025))},
	} {
		_, err := client.Acquire(t.Context(), "k", options...)
		expect(t, err, lockward.ErrRefused)
	}
}

func TestAZeroValueAsksForTheDefault(t *testing.T) {
	t.Parallel()
	client := newClient(t, startServer(t).client())
	lock := acquire(t, client, "k", lockward.WithLease(0), lockward.WithHoldLimit(0), lockward.WithOwner(""), lockward.WithReplicas(0, 0))
	if left := time.Until(lock.Until()); left < 20*time.Second || lock.Owner() == "" {
		t.Error(left, lock.Owner())
	}
}

func TestReleaseAndLossAtTheSameTime(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	short := func(key string) *lockward.Lock {
		return acquire(t, client, key, lockward.WithLease(20*time.Millisecond), lockward.WithoutRenewal())
	}
	var released []*lockward.Lock
	lost := 0
	for range 50 {
		locks := make([]*lockward.Lock, 5)
		for i := range locks {
			locks[i] = short(fmt.Sprint("k", i))
		}
		receive(t, "the loss of the first lock", locks[0].Lost()) // the leases of the other locks end just after this lease
		for _, lock := range locks[1:] {
			if err := lock.Release(t.Context()); err != nil {
				if !errors.Is(err, lockward.ErrUnreachable) { // the client got no reply before the lease ended
					expect(t, err, lockward.ErrLost)
				}
				lost++
			} else {
				released = append(released, lock)
			}
		}
	}
	t.Log(len(released), "locks are released in time,", lost, "are lost")
	receive(t, "a loss after the leases of all locks", short("last").Lost())
	for _, lock := range released {
		select {
		case <-lock.Lost():
			t.Fatal("Release succeeded, but the lock is reported as lost")
		default:
		}
	}
}

func TestALockWithoutAReferenceStaysHeld(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	_, err := client.Acquire(t.Context(), "k", lockward.WithLease(time.Second))
	check(t, err)
	eventually(t, "renewals after the lease", func() bool {
		runtime.GC()
		return s.calls("lock.renew") > 4
	})
	if holders, _ := s.info("k"); len(holders) != 1 {
		t.Fatal(holders)
	}
}

func TestClose(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	lock := acquire(t, client, "k")
	_, failed := acquiring(t.Context(), client, []string{"k"})
	s.waitFor("k", 1)
	check(t, client.Close())
	expect(t, receive(t, "the end of the wait", failed), lockward.ErrClosed)
	receive(t, "the loss", lock.Lost())
	expect(t, lock.Release(t.Context()), lockward.ErrLost, lockward.ErrClosed)
	_, err := client.Acquire(t.Context(), "free", lockward.WithoutWaiting())
	expect(t, err, lockward.ErrClosed)
	if !strings.HasPrefix(err.Error(), `lockward: lock "free": the client is closed`) {
		t.Error(err)
	}
	if holders, waiters := s.info("k"); len(holders) != 1 || waiters != 0 {
		t.Fatal(holders, waiters)
	}
	eventually(t, "all connections are closed", func() bool {
		return strings.Count(s.do("CLIENT", "LIST").(string), "\n") == 1
	})
	check(t, client.Close())

	idle := newClient(t, s.client())
	check(t, idle.Do(t.Context(), "free", func(context.Context, *lockward.Lock) error { return nil }))
	check(t, idle.Close())
	eventually(t, "idle connections are closed", func() bool {
		return strings.Count(s.do("CLIENT", "LIST").(string), "\n") == 1
	})
}

func TestTheClientClosesAfterANilContextCausedAPanic(t *testing.T) {
	t.Parallel()
	client := newClient(t, startServer(t).client())
	func() {
		defer func() {
			if recover() == nil {
				t.Error("Acquire must panic")
			}
		}()
		var none context.Context
		_, _ = client.Acquire(none, "k")
	}()
	closed := make(chan error)
	go func() { closed <- client.Close() }()
	check(t, receive(t, "the end", closed))
}

func TestAReleaseWithoutAReplySaysThatTheLockEndsWithItsLease(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client(), lockward.WithPatience(100*time.Millisecond))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	for i, ctx := range []context.Context{t.Context(), ended, late} {
		lock := acquire(t, client, fmt.Sprint("k", i))
		s.pause()
		err := lock.Release(ctx)
		s.resume()
		if err == nil || !strings.HasSuffix(err.Error(), "; the lock ends with its lease at the latest") || strings.Contains(err.Error(), "again") {
			t.Error(err)
		}
		expect(t, lock.Release(t.Context()), lockward.ErrReleased)
	}
}

func TestReleaseWithAnEndedContextReleasesTheLock(t *testing.T) {
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
	for want, option := range map[string]lockward.Option{
		"lockward: the patience is 0s, but must be 1ms or more":                    lockward.WithPatience(0),
		"lockward: the response limit is -1ns, but must be 1ms to 1h":              lockward.WithResponseLimit(-1),
		"lockward: the response limit is 2h0m0s, but must be 1ms to 1h":            lockward.WithResponseLimit(2 * time.Hour),
		"lockward: the number of waiting connections is 0, but must be 1 or more":  lockward.WithWaitingConnections(0),
		"lockward: the number of waiting connections is -1, but must be 1 or more": lockward.WithWaitingConnections(-1),
	} {
		if _, err := lockward.New(rdb, option); err == nil || err.Error() != want {
			t.Errorf("got %v, not %s", err, want)
		}
	}
}

func TestErrorsTellTheKeyAndTheReplyOfTheServer(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	s.do("SET", "string", "")
	_, err := client.Acquire(t.Context(), "string")
	expect(t, err, lockward.ErrRefused)
	want := `lockward: lock "string": the server refuses the request (WRONGTYPE `
	if !redis.HasErrorPrefix(err, "WRONGTYPE") || !strings.HasPrefix(err.Error(), want) {
		t.Error(err)
	}
	lock := acquire(t, client, "k")
	if err := lock.Guarded(t.Context(), "GET", "nothing").Err(); err != redis.Nil {
		t.Error(err)
	}
	err = lock.Guarded(t.Context(), "LPUSH", "string", "x").Err()
	if !redis.HasErrorPrefix(err, "WRONGTYPE") || errors.Is(err, lockward.ErrRefused) || !lock.Held() {
		t.Error(err)
	}
	s.do("DEL", "k")
	err = lock.Guarded(t.Context()).Err()
	expect(t, err, lockward.ErrLost)
	if errors.Is(err, lockward.ErrRefused) {
		t.Error("a lost lock is not refused: ", err)
	}
	if strings.Count(err.Error(), "lockward") != 1 || !redis.HasErrorPrefix(err, "NOTHELD") {
		t.Error(err)
	}
}

func TestALockThatIsLostInAnOutageIsNotUnreachable(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	var isCut atomic.Bool
	client := newClient(t, s.tapped(func([]byte) (bool, error) {
		if isCut.Load() {
			return false, io.ErrClosedPipe
		}
		return true, nil
	}))
	lock := acquire(t, client, "k", lockward.WithLease(time.Second), lockward.WithoutRenewal())
	isCut.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_ = lock.Renew(ctx) // the failure of this renewal is a cause of the loss
	receive(t, "the loss", lock.Lost())
	err := lock.Release(t.Context())
	expect(t, err, lockward.ErrLost)
	if errors.Is(err, lockward.ErrUnreachable) {
		t.Error(err)
	}
}

func TestAGuardedWriteWhoseContextHasEnded(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	lock := acquire(t, newClient(t, s.tapped(func(sent []byte) (bool, error) {
		if bytes.Contains(sent, []byte("LOCK.GUARD")) {
			cancel(nil)
			return false, io.ErrClosedPipe
		}
		return true, nil
	})), "k")
	late, stop := context.WithDeadlineCause(t.Context(), time.Now(), io.EOF)
	defer stop()
	err := lock.Guarded(late, "SET", "state", "paid").Err()
	expect(t, err, io.EOF, context.DeadlineExceeded)
	if errors.Is(err, lockward.ErrUnreachable) || !lock.Held() {
		t.Error(err)
	}
	err = lock.Guarded(ctx, "SET", "state", "paid").Err() // the server may have executed the command
	expect(t, err, lockward.ErrUnreachable, context.Canceled)
	err = lock.Guarded(ctx, "SET", "state", "paid").Err()
	expect(t, err, context.Canceled)
	if errors.Is(err, lockward.ErrUnreachable) {
		t.Error(err)
	}
	if calls := s.calls("lock.guard"); calls != 0 {
		t.Error(calls)
	}
	check(t, lock.Release(t.Context()))
}

func TestIdleConnectionsAreClosed(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	client.SetIdleLimit(200 * time.Millisecond)
	lock := acquire(t, client, "k")
	done := make(chan error, 120)
	for range cap(done) {
		go func() {
			done <- client.Do(t.Context(), "k", func(context.Context, *lockward.Lock) error { return nil })
		}()
	}
	s.waitFor("k", 120)
	check(t, lock.Release(t.Context()))
	for range cap(done) {
		check(t, receive(t, "a grant", done))
	}
	eventually(t, "the unused connections are closed", func() bool {
		return strings.Count(s.do("CLIENT", "LIST").(string), "\n") == 1
	})
}

func TestALockSurvivesSilentSentinelsAndACutConnection(t *testing.T) {
	t.Parallel()
	s, sentinel := startServer(t), startSentinel(t)
	host, port, _ := strings.Cut(s.addr, ":")
	sentinel.do("SENTINEL", "MONITOR", "it", host, port, "1")
	rdb := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "it", SentinelAddrs: []string{sentinel.addr}})
	t.Cleanup(func() { _ = rdb.Close() })
	client := newClient(t, rdb)
	lock := acquire(t, client, "k", lockward.WithLease(3*time.Second))
	sentinel.pause()
	defer sentinel.resume()
	s.do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	renewals := s.calls("lock.renew")
	eventually(t, "the lock is renewed", func() bool { return s.calls("lock.renew") > renewals+1 })
	s.do("REPLICAOF", "127.0.0.1", "1")
	s.do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	receive(t, "the loss at a replica", lock.Lost())
}

// A tappedConn lets a test read and suppress what the client sends.
type tappedConn struct {
	net.Conn
	tap func(sent []byte) (isSent bool, err error)
}

func (c *tappedConn) Write(sent []byte) (int, error) {
	isSent, err := c.tap(sent)
	if isSent && err == nil {
		return c.Conn.Write(sent)
	}
	return len(sent), err
}

// tapped returns a go-redis client whose connections are tapped.
func (s *server) tapped(tap func(sent []byte) (isSent bool, err error)) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: s.addr, Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return &tappedConn{conn, tap}, err
	}})
	s.tb.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// A contextWithErr is a context whose method Err calls a function of the test.
type contextWithErr struct {
	context.Context
	err func() error
}

func (c contextWithErr) Err() error { return c.err() }

func TestALateReleaseDoesNotEndALaterGrant(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	other := acquire(t, newClient(t, s.client()), "b")
	var stopped atomic.Pointer[[]byte]
	client := newClient(t, s.tapped(func(sent []byte) (bool, error) {
		copied := bytes.Clone(sent)
		return !bytes.Contains(sent, []byte("LOCK.RELEASE")) || !stopped.CompareAndSwap(nil, &copied), nil
	}))
	granted, _ := acquiring(t.Context(), client, []string{"a", "b"}, lockward.WithLease(time.Hour))
	s.waitFor("b", 1)
	conn, err := net.Dial("tcp", s.addr)
	check(t, err)
	defer conn.Close()
	_, err = conn.Write(*stopped.Load())
	check(t, err)
	_, err = conn.Read(make([]byte, 100))
	check(t, err)
	if holders, _ := s.info("a"); len(holders) != 1 {
		t.Fatal(holders)
	}
	check(t, other.Release(t.Context()))
	check(t, receive(t, "the grant", granted).Release(t.Context()))
}

func TestReleaseAfterOneKeyIsLostReleasesTheOtherKeys(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	for _, isLate := range []bool{false, true} {
		lock, err := client.AcquireAll(t.Context(), []string{"a", "b", "c"}, lockward.WithLease(time.Hour))
		check(t, err)
		s.do("DEL", "a")
		expect(t, lock.Renew(t.Context()), lockward.ErrLost)
		ctx, cancel := context.WithCancel(t.Context())
		if isLate {
			cancel()
		}
		expect(t, lock.Release(ctx), lockward.ErrLost)
		s.waitUntilFree("b")
		s.waitUntilFree("c")
		expect(t, lock.Release(ctx), lockward.ErrLost)
		cancel()
	}
}

func TestAResumeThatFindsALossReleasesTheOtherKeys(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	lock, err := client.AcquireAll(t.Context(), []string{"a", "b", "c"}, lockward.WithLease(time.Hour))
	check(t, err)
	handle, err := lock.Handle()
	check(t, err)
	s.do("DEL", "b")
	_, err = client.Resume(t.Context(), handle)
	expect(t, err, lockward.ErrLost)
	s.checkFree("a")
	s.checkFree("c")
}

func TestAGuardedCommandNeedsALockOfOneKey(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	lock, err := newClient(t, s.client()).AcquireAll(t.Context(), []string{"a", "b"})
	check(t, err)
	err = lock.Guarded(t.Context(), "SET", "state", "paid").Err()
	if err == nil || err.Error() != "lockward: a guarded command needs a lock of one key" || s.calls("lock.guard") != 0 {
		t.Error(err)
	}
	check(t, lock.Release(t.Context()))
}

func TestAReleaseWhoseReplyIsLostReportsNoLoss(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	ctx, cancel := context.WithCancel(t.Context())
	client := newClient(t, s.tapped(func(sent []byte) (bool, error) {
		if !bytes.Contains(sent, []byte("LOCK.RELEASE")) || ctx.Err() != nil {
			return true, nil
		}
		carryOut, _, _ := bytes.Cut(sent, []byte("LOCK.RELEASE\r\n$1\r\nb")) // carry out only the release of the first key
		conn, err := net.Dial("tcp", s.addr)
		check(t, err)
		defer conn.Close()
		_, err = conn.Write(carryOut)
		check(t, err)
		s.waitUntilFree("a")
		cancel()
		return false, io.ErrClosedPipe
	}))
	lock, err := client.AcquireAll(t.Context(), []string{"a", "b"})
	check(t, err)
	check(t, lock.Release(ctx))
	s.checkFree("b")
}

func TestCloseWaitsForAReleaseUnderWay(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	var client *lockward.Client
	closed := make(chan error, 1)
	var isFirst sync.Once
	client = newClient(t, s.tapped(func(sent []byte) (bool, error) {
		if bytes.Contains(sent, []byte("LOCK.RELEASE")) {
			isFirst.Do(func() {
				go func() { closed <- client.Close() }()
				eventually(t, "the client is closing", func() bool {
					_, err := client.Acquire(t.Context(), "other", lockward.WithoutWaiting())
					return errors.Is(err, lockward.ErrClosed)
				})
				s.do("PING") // this request takes longer than a Close that does not wait
				if len(closed) > 0 {
					t.Error("Close has not waited")
				}
			})
		}
		return true, nil
	}))
	lock := acquire(t, client, "k")
	check(t, lock.Release(t.Context()))
	check(t, receive(t, "the end", closed))
	s.checkFree("k")
}

func TestAWaitForSeveralKeysStartsOverWhenOneIsLost(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	for _, isGranted := range []bool{true, false} {
		other := acquire(t, client, "b")
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if isGranted {
			ctx, cancel = context.WithTimeout(t.Context(), patience)
		}
		granted, failed := acquiring(ctx, client, []string{"a", "b"}, lockward.WithLease(3*time.Second))
		s.waitFor("b", 1)
		before, _ := s.info("a")
		s.do("DEL", "a")
		eventually(t, "a is acquired again", func() bool {
			now, _ := s.info("a")
			_, waiters := s.info("b")
			return len(failed) > 0 || len(now) == 1 && now[0].token > before[0].token && waiters == 1
		})
		if isGranted {
			check(t, other.Release(t.Context()))
			select {
			case err := <-failed:
				t.Fatal(err)
			case lock := <-granted:
				check(t, lock.Release(t.Context()))
			}
		} else {
			expect(t, receive(t, "the end of the wait", failed), lockward.ErrBusy, context.DeadlineExceeded)
			s.waitUntilFree("a")
			s.waitFor("b", 0)
			check(t, other.Release(t.Context()))
		}
		cancel()
	}
}

func TestAnUnconfirmedGrantIsReleasedWhenAnotherKeyIsLost(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	other := acquire(t, newClient(t, s.client()), "b", lockward.WithLease(time.Hour))
	var unconfirmed atomic.Pointer[string] // the owner of the unconfirmed tenure
	var isReleased atomic.Bool
	client := newClient(t, s.tapped(func(sent []byte) (bool, error) {
		if _, renewal, isRenewal := strings.Cut(string(sent), "LOCK.RENEW\r\n$1\r\nb\r\n"); isRenewal {
			if owner := strings.Split(renewal, "\r\n")[1]; unconfirmed.CompareAndSwap(nil, &owner) {
				s.do("DEL", "a")
				return false, nil
			}
		}
		if owner := unconfirmed.Load(); owner != nil && bytes.Contains(sent, []byte("LOCK.RELEASE\r\n$1\r\nb\r\n")) {
			isReleased.CompareAndSwap(false, bytes.Contains(sent, []byte(*owner)))
		}
		return true, nil
	}))
	granted, _ := acquiring(t.Context(), client, []string{"a", "b"}, lockward.WithLease(3*time.Second))
	s.waitFor("b", 1)
	check(t, other.Release(t.Context()))
	lock := receive(t, "the grant", granted)
	eventually(t, "the unconfirmed grant of b is released", isReleased.Load)
	check(t, lock.Release(t.Context()))
}

func TestKeysAreRenewedDuringTheWaitForTheNextKeyEvenWithoutRenewal(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	other := acquire(t, client, "b", lockward.WithLease(time.Hour))
	granted, failed := acquiring(t.Context(), client, []string{"a", "b"}, lockward.WithLease(3*time.Second), lockward.WithoutRenewal())
	eventually(t, "a is renewed for longer than its lease", func() bool { return s.calls("lock.renew") >= 4 || len(failed) > 0 })
	check(t, other.Release(t.Context()))
	select {
	case err := <-failed:
		t.Fatal(err)
	case lock := <-granted:
		receive(t, "the end of the lease", lock.Lost())
	}
}

func TestACandidateThatWasPausedAtTheGrantLeadsLater(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	pauses, terms := 0, 0
	ctx := contextWithErr{t.Context(), func() error {
		if holders, _ := s.info("k"); holders != nil && pauses == 0 {
			pauses++
			s.waitUntilFree("k")
		}
		return nil
	}}
	check(t, client.Lead(ctx, "k", func(context.Context, *lockward.Lock) error {
		terms++
		return nil
	}, lockward.WithLease(2*time.Second), lockward.WithoutRenewal()))
	if pauses != 1 || terms != 1 {
		t.Fatal(pauses, terms)
	}
}

func TestLeadershipIsExclusive(t *testing.T) {
	t.Parallel()
	client := newClient(t, startServer(t).client())
	check(t, client.Lead(t.Context(), "k", func(ctx context.Context, _ *lockward.Lock) error {
		_, err := client.Acquire(ctx, "k", lockward.Shared(), lockward.WithoutWaiting())
		expect(t, err, lockward.ErrBusy)
		return nil
	}))
	for _, option := range []lockward.AcquireOption{lockward.Shared(), lockward.Slots(2), lockward.Weight(2)} {
		err := client.Lead(t.Context(), "k", func(context.Context, *lockward.Lock) error {
			t.Error("a candidate leads")
			return nil
		}, option)
		if err == nil || err.Error() != "lockward: Lead takes neither Shared nor Slots nor Weight" {
			t.Error(err)
		}
	}
}

func TestALeaseShorterThanARoundTripIsNotRequestedInABusyLoop(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.tapped(func([]byte) (bool, error) {
		receive(t, "the end of the lease", time.After(2*time.Millisecond))
		return true, nil
	}))
	ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
	defer cancel()
	_, err := client.Acquire(ctx, "k", lockward.WithLease(2*time.Millisecond))
	expect(t, err, context.DeadlineExceeded)
	if calls := s.calls("lock.acquire") + s.calls("lock.renew"); calls > 20 {
		t.Fatal(calls, "requests")
	}
}

func TestTheRenewalPeriodOfVeryLongLeases(t *testing.T) {
	t.Parallel()
	for _, years := range []int64{1, 60, 100} {
		year := 365 * 24 * time.Hour
		if period := lockward.RenewalPeriod(years * year.Milliseconds()); period/year != time.Duration(years*19/60) {
			t.Error(years, period)
		}
	}
}

func TestReplicasMayTakeLongerThanThePatience(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client(), lockward.WithPatience(2*time.Second))
	_, err := client.Acquire(t.Context(), "k", lockward.WithReplicas(1, 3*time.Second))
	expect(t, err, lockward.ErrUnreplicated)
}

func TestThePatienceMayBeEndless(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client(), lockward.WithPatience(math.MaxInt64))
	_, err := client.Acquire(t.Context(), "k", lockward.WithReplicas(1, 10*time.Millisecond))
	expect(t, err, lockward.ErrUnreplicated)
	lock := acquire(t, client, "k")
	check(t, lock.Renew(t.Context()))
	check(t, lock.Guarded(t.Context(), "SET", "state", "paid").Err())
	check(t, lock.Release(t.Context()))
}

func TestTheReleaseAfterACancelledAcquireIsRetriedInTheBackground(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	ctx, cancel := context.WithCancel(t.Context())
	var releases atomic.Int64
	client := newClient(t, s.tapped(func(sent []byte) (bool, error) {
		switch {
		case bytes.Contains(sent, []byte("LOCK.ACQUIRE")):
			defer cancel()
		case bytes.Contains(sent, []byte("LOCK.RELEASE")) && releases.Add(1) <= 5:
			// Acquire has returned before the client sends the last of these five releases.
			return false, io.ErrClosedPipe
		}
		return true, nil
	}))
	_, err := client.Acquire(ctx, "k", lockward.WithLease(time.Hour))
	expect(t, err, context.Canceled)
	s.waitUntilFree("k")
}

func TestCloseReleasesALockThatWasGrantedToAnInterruptedCaller(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	var client *lockward.Client
	closed := make(chan error, 1)
	var isFirst sync.Once
	client = newClient(t, s.tapped(func(sent []byte) (isSent bool, err error) {
		isSent = true
		if bytes.Contains(sent, []byte("LOCK.ACQUIRE\r\n$1\r\nk\r\n")) {
			isFirst.Do(func() {
				isSent, err = false, io.ErrClosedPipe
				conn, failure := net.Dial("tcp", s.addr)
				check(t, failure)
				defer conn.Close()
				_, failure = conn.Write(sent)
				check(t, failure)
				eventually(t, "the lock is granted", func() bool { holders, _ := s.info("k"); return holders != nil })
				go func() { closed <- client.Close() }()
				eventually(t, "the client is closing", func() bool {
					_, err := client.Acquire(t.Context(), "other", lockward.WithoutWaiting())
					return errors.Is(err, lockward.ErrClosed)
				})
			})
		}
		return isSent, err
	}))
	_, err := client.Acquire(t.Context(), "k", lockward.WithLease(time.Hour))
	expect(t, err, lockward.ErrClosed)
	check(t, receive(t, "the end", closed))
	s.waitUntilFree("k")
}

// A countedConn is counted in open until it is closed.
type countedConn struct {
	net.Conn
	open *atomic.Int64
	once sync.Once
}

func (c *countedConn) Close() error {
	c.once.Do(func() { c.open.Add(-1) })
	return c.Conn.Close()
}

func TestRenewalsWithoutRepliesTakeFewConnections(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	var open, most atomic.Int64
	rdb := redis.NewClient(&redis.Options{Addr: s.addr, Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		for now := open.Add(1); ; {
			if before := most.Load(); before >= now || most.CompareAndSwap(before, now) {
				return &countedConn{Conn: conn, open: &open}, nil
			}
		}
	}})
	t.Cleanup(func() { _ = rdb.Close() })
	client := newClient(t, rdb)
	locks := make([]*lockward.Lock, 200)
	for i := range locks {
		locks[i] = acquire(t, client, fmt.Sprint("k", i), lockward.WithLease(3*time.Second))
	}
	s.pause()
	defer s.resume()
	for _, lock := range locks {
		receive(t, "the loss", lock.Lost())
	}
	if most.Load() > 16+16 {
		t.Fatal(most.Load(), "connections")
	}
}

func TestADowngradeChangesOnlyTheLimit(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	lock := acquire(t, newClient(t, s.client()), "k")
	if err := lock.Downgrade(t.Context(), lockward.WithOwner("another")); err == nil || s.calls("lock.renew") > 0 {
		t.Error(err)
	}
	expect(t, lock.Downgrade(t.Context(), lockward.Slots(0)), lockward.ErrRefused)
	var running sync.WaitGroup
	for range 2 { // the race detector sees unprotected access
		running.Add(1)
		go func() {
			defer running.Done()
			if err := lock.Downgrade(t.Context(), lockward.Slots(4)); err != nil {
				t.Error(err)
			}
		}()
	}
	running.Wait()
	check(t, lock.Release(t.Context()))
}

func TestAHoldLimitBeginsWhenAllKeysAreHeld(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	limit := 3 * time.Second
	other := acquire(t, client, "b", lockward.WithLease(time.Hour))
	granted, _ := acquiring(t.Context(), client, []string{"a", "b"}, lockward.WithLease(time.Hour), lockward.WithHoldLimit(limit))
	s.waitFor("b", 1)
	waiting, _ := s.info("a")
	renewals := s.calls("lock.renew")
	eventually(t, "a is renewed during the wait", func() bool { return s.calls("lock.renew") > renewals })
	if now, _ := s.info("a"); len(now) != 1 || now[0] != waiting[0] {
		t.Fatal("the wait has started over: ", waiting, now)
	}
	short := acquire(t, client, "short", lockward.WithLease(300*time.Millisecond), lockward.WithoutRenewal())
	receive(t, "its loss", short.Lost()) // now the lease of the lock "a" ends well before the hold limit
	before := time.Now()
	check(t, other.Release(t.Context()))
	lock := receive(t, "the grant", granted)
	after := time.Now()
	eventually(t, "the last lease ends with the hold limit", func() bool {
		end := lock.Until() // the client subtracts a thousandth and some milliseconds from each lease
		return end.After(before.Add(limit-10*time.Millisecond)) && !end.After(after.Add(limit))
	})
	receive(t, "the loss", lock.Lost())
	if end := lock.Until(); time.Now().Before(end) || end.After(after.Add(limit)) {
		t.Fatal("lost at", time.Now(), "but held until", end)
	}
}

func TestALeaseOfTheServerIsShortenedToTheHoldLimit(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	lock := acquire(t, client, "k", lockward.WithHoldLimit(500*time.Millisecond), lockward.WithoutRenewal())
	receive(t, "the loss", lock.Lost())
	eventually(t, "the server has ended the lease", func() bool {
		holders, _ := s.info("k")
		return holders == nil
	})
}

func TestADowngradeThatOneOfSeveralKeysRefusesStaysForTheOtherKeys(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	lock, err := newClient(t, s.client()).AcquireAll(t.Context(), []string{"a", "b"}, lockward.Slots(2))
	check(t, err)
	s.do("ACL", "SETUSER", "default", "resetkeys", "~a")
	expect(t, lock.Downgrade(t.Context(), lockward.Slots(3)), lockward.ErrRefused)
	s.do("ACL", "SETUSER", "default", "allkeys")
	check(t, lock.Renew(t.Context()))
	check(t, lock.Release(t.Context()))
}

func TestADowngradeThatIsRefusedAfterALostReplyStays(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	var isFirst sync.Once
	lock := acquire(t, newClient(t, s.tapped(func(sent []byte) (isSent bool, err error) {
		isSent = true
		if bytes.Contains(sent, []byte("LOCK.RENEW")) {
			isFirst.Do(func() {
				isSent, err = false, io.ErrClosedPipe
				conn, failure := net.Dial("tcp", s.addr)
				check(t, failure)
				defer conn.Close()
				_, failure = conn.Write(sent)
				check(t, failure)
				_, failure = conn.Read(make([]byte, 100))
				check(t, failure)
				s.do("ACL", "SETUSER", "default", "-lock.renew")
			})
		}
		return isSent, err
	})), "k", lockward.Slots(2))
	expect(t, lock.Downgrade(t.Context(), lockward.Slots(3)), lockward.ErrRefused)
	s.do("ACL", "SETUSER", "default", "+lock.renew")
	check(t, lock.Renew(t.Context()))
	check(t, lock.Release(t.Context()))
}

func TestARefusedDowngradeUndoesNoOtherDowngrade(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	for i := range 50 {
		key := fmt.Sprint("k", i)
		lock := acquire(t, client, key, lockward.Slots(2))
		other := make(chan error, 1)
		go func() { other <- lock.Downgrade(t.Context(), lockward.Slots(4)) }()
		expect(t, lock.Downgrade(t.Context(), lockward.Slots(1)), lockward.ErrRefused)
		check(t, receive(t, "the other downgrade", other))
		for range 3 {
			acquire(t, client, key, lockward.Slots(4), lockward.WithoutWaiting())
		}
		check(t, lock.Renew(t.Context()))
	}
}

func TestADatabaseThatDoesNotExistIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: startServer(t).addr, DB: 99})
	defer rdb.Close()
	begun := time.Now()
	_, err := newClient(t, rdb).Acquire(t.Context(), "k")
	expect(t, err, lockward.ErrRefused)
	if !strings.Contains(err.Error(), "DB index is out of range") || time.Since(begun) > patience/2 {
		t.Error(err)
	}
}

func TestAnUnansweredAttemptHidesNoEarlierReason(t *testing.T) {
	t.Parallel()
	closed := "127.0.0.1:1"
	var dials atomic.Int64
	rdb := redis.NewClient(&redis.Options{Addr: closed, Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		if dials.Add(1) > 1 {
			<-ctx.Done()
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}})
	defer rdb.Close()
	sentinels := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "it", SentinelAddrs: []string{closed}})
	defer sentinels.Close()
	for client, want := range map[*redis.Client]string{rdb: "connection refused", sentinels: "no Sentinel names a primary"} {
		_, err := newClient(t, client, lockward.WithPatience(time.Second)).Acquire(t.Context(), "k")
		expect(t, err, lockward.ErrUnreachable)
		if !strings.Contains(err.Error(), want) {
			t.Error(err)
		}
	}
}

func TestAFullServerDoesNotStopTheConnectionsThatAreOpen(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	refused := make(chan struct{})
	refuse := sync.OnceFunc(func() { close(refused) })
	var isFull atomic.Bool
	client := newClient(t, s.tapped(func(sent []byte) (bool, error) {
		switch {
		case bytes.Contains(sent, []byte("first")):
			receive(t, "the second request", refused)
		case bytes.Contains(sent, []byte("second")), isFull.Load() && bytes.Contains(sent, []byte("hello")):
			refuse()
		}
		return true, nil
	}), lockward.WithPatience(time.Hour), lockward.WithResponseLimit(time.Hour))
	check(t, acquire(t, client, "k").Release(t.Context()))
	isFull.Store(true)
	s.do("CONFIG", "SET", "maxclients", "1") // the server accepts no new connection, so the client has only its idle connection
	first, _ := acquiring(t.Context(), client, []string{"first"})
	second, _ := acquiring(t.Context(), client, []string{"second"})
	check(t, receive(t, "the first grant", first).Release(t.Context()))
	check(t, receive(t, "the second grant", second).Release(t.Context()))
	check(t, client.Close())
}

func TestASilentSeedOfAClusterDelaysACallOnlyShortly(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer silent.Close()
	p := startProcess(t, "cluster")
	for range 8 { // go-redis begins with the silent seed in half of the cases
		rdb := redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: []string{silent.Addr().String(), address(p.facts.Ports[0])}, ReadTimeout: time.Hour,
		})
		// These two limits are so long that only the limit for the seeds can end the wait for the silent seed.
		client := newClient(t, rdb, lockward.WithPatience(time.Hour), lockward.WithResponseLimit(time.Hour))
		granted, _ := acquiring(t.Context(), client, []string{"k"})
		check(t, receive(t, "the grant", granted).Release(t.Context()))
		check(t, client.Close())
		check(t, rdb.Close())
	}
}

// The method Close of a slowConn waits until the channel mayClose is closed.
type slowConn struct {
	net.Conn
	mayClose <-chan struct{}
}

func (c slowConn) Close() error {
	<-c.mayClose
	return c.Conn.Close()
}

func TestConnectionsThatCloseSlowlyDelayNoLostSignal(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	mayClose := make(chan struct{})
	allow := sync.OnceFunc(func() { close(mayClose) })
	rdb := redis.NewClient(&redis.Options{Addr: s.addr, Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return slowConn{conn, mayClose}, err
	}})
	t.Cleanup(func() { _ = rdb.Close() })
	// These two limits are so long that no late reply closes a connection.
	client := newClient(t, rdb, lockward.WithPatience(time.Hour), lockward.WithResponseLimit(time.Hour))
	t.Cleanup(allow) // allow runs before the client is closed
	other := acquire(t, client, "other")
	const callers = 40
	done := make(chan error, callers+1)
	for range callers {
		go func() {
			lock, err := client.Acquire(t.Context(), "other", lockward.Shared())
			if err == nil {
				err = lock.Release(t.Context())
			}
			done <- err
		}()
	}
	s.waitFor("other", callers)
	lock := acquire(t, client, "k", lockward.WithLease(500*time.Millisecond), lockward.WithoutRenewal())
	// After this release, more connections are idle than the client keeps.
	go func() { done <- other.Release(t.Context()) }()
	receive(t, "the loss", lock.Lost())
	allow()
	for range cap(done) {
		check(t, receive(t, "a release", done))
	}
}

func TestAFullServerIsNamedAndGetsNoGuardedCommand(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client(), lockward.WithPatience(300*time.Millisecond))
	lock := acquire(t, client, "k", lockward.WithoutRenewal())
	rdb := s.connect()
	defer rdb.Close()
	only := rdb.Conn() // stays open, so the server is full
	defer only.Close()
	check(t, only.Do(t.Context(), "CONFIG", "SET", "maxclients", "1").Err())
	check(t, only.Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Err())
	expect(t, lock.Renew(t.Context()), lockward.ErrUnreachable) // now the client knows that its connection is closed
	err := lock.Guarded(t.Context(), "SET", "value", "1").Err()
	expect(t, err, lockward.ErrUnreachable)
	if text := err.Error(); !strings.Contains(text, "max number of clients") || strings.Contains(text, "may have run") {
		t.Error(text)
	}
}
