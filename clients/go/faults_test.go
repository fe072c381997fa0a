package lockward_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockward/lockward-go"
)

// A fake is a server whose replies a test chooses.
type fake struct {
	addr  string
	mu    sync.Mutex
	sent  []string // the lock commands of the client
	conns []net.Conn
}

// startFake starts a server that ends with the test. reply gets a lock command, and returns the reply. For an empty
// reply, the server sends nothing.
func startFake(tb testing.TB, reply func(command string) string) *fake {
	tb.Helper()
	return startFakeWithTLS(tb, nil, reply)
}

// startFakeWithTLS starts a server as startFake does. If secure is not nil, the server uses TLS.
func startFakeWithTLS(tb testing.TB, secure *tls.Config, reply func(command string) string) *fake {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(tb, err)
	tb.Cleanup(func() { _ = listener.Close() })
	f := &fake{addr: listener.Addr().String()}
	if secure != nil {
		listener = tls.NewListener(listener, secure)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			f.mu.Lock()
			f.conns = append(f.conns, conn)
			f.mu.Unlock()
			go func() {
				defer conn.Close()
				for input := bufio.NewReader(conn); ; {
					command, err := readCommand(input)
					if err != nil {
						return
					}
					answer := "-ERR unknown command\r\n"
					if command == "cluster slots" {
						host, port, _ := net.SplitHostPort(f.addr)
						answer = fmt.Sprintf("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$%d\r\n%s\r\n:%s\r\n", len(host), host, port)
					} else if strings.HasPrefix(command, "LOCK.") || strings.HasPrefix(command, "sentinel") || command == "ASKING" || command == "ROLE" {
						f.mu.Lock()
						f.sent = append(f.sent, command)
						f.mu.Unlock()
						answer = reply(command)
					}
					_, _ = io.WriteString(conn, answer)
				}
			}()
		}
	}()
	return f
}

// readCommand returns the words of a request, with spaces between them.
func readCommand(input *bufio.Reader) (string, error) {
	line := func() (string, error) {
		text, err := input.ReadString('\n')
		return strings.TrimRight(text, "\r\n"), err
	}
	header, err := line()
	if err != nil {
		return "", err
	}
	count, err := strconv.Atoi(header[1:])
	words := make([]string, count)
	for i := range words {
		if _, err = line(); err == nil {
			words[i], err = line()
		}
	}
	return strings.Join(words, " "), err
}

// count returns how many of the client's lock commands start with beginning.
func (f *fake) count(beginning string) (count int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, command := range f.sent {
		if strings.HasPrefix(command, beginning) {
			count++
		}
	}
	return count
}

// cut closes all connections.
func (f *fake) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, conn := range f.conns {
		_ = conn.Close()
	}
}

func (f *fake) client(tb testing.TB) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: f.addr})
	tb.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// cluster returns a client of a cluster whose only node is the server.
func (f *fake) cluster(tb testing.TB) *redis.ClusterClient {
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{f.addr}})
	tb.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// A steppedConn calls step before each read and write.
type steppedConn struct {
	net.Conn
	step func()
}

func (c *steppedConn) Read(received []byte) (int, error) { c.step(); return c.Conn.Read(received) }
func (c *steppedConn) Write(sent []byte) (int, error)    { c.step(); return c.Conn.Write(sent) }

// stepped returns a go-redis client which calls step before it dials, reads and writes.
func (s *server) stepped(step func()) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: s.addr, Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		step()
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return &steppedConn{conn, step}, err
	}})
	s.tb.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

func TestACallerCanLeaveAtEachStepOfTheConnection(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	rdb := s.client()
	held := func(client *lockward.Client) *lockward.Lock {
		lock, err := client.Acquire(t.Context(), "k", lockward.WithLease(time.Hour))
		check(t, err)
		return lock
	}
	acquired := func(lock *lockward.Lock, err error) {
		if err == nil {
			check(t, lock.Release(t.Context()))
		} else {
			expect(t, err, context.Canceled)
		}
	}
	busyFor := func(key string, lease int) {
		check(t, rdb.Do(t.Context(), "LOCK.ACQUIRE", key, "other", "PX", lease).Err())
	}
	keptHeld := func(lock *lockward.Lock, err error) {
		if err != nil {
			expect(t, err, context.Canceled)
		}
		if !lock.Held() {
			t.Error("lost")
		}
		check(t, lock.Renew(t.Context()))
		check(t, lock.Release(t.Context()))
	}
	for name, call := range map[string]func(ctx context.Context, client *lockward.Client, begin func()){
		"acquire a free lock": func(ctx context.Context, client *lockward.Client, begin func()) {
			begin()
			acquired(client.Acquire(ctx, "k", lockward.WithLease(time.Hour)))
		},
		"acquire and release several free locks": func(ctx context.Context, client *lockward.Client, begin func()) {
			begin()
			lock, err := client.AcquireAll(ctx, []string{"k", "l"}, lockward.WithLease(time.Hour))
			if err == nil {
				err = lock.Release(ctx)
			}
			if err != nil {
				expect(t, err, context.Canceled)
			}
		},
		"lead": func(ctx context.Context, client *lockward.Client, begin func()) {
			begin()
			err := client.Lead(ctx, "k", func(ctx context.Context, lock *lockward.Lock) error { return lock.Renew(ctx) })
			if err != nil {
				expect(t, err, context.Canceled)
			}
		},
		"wait for a lock": func(ctx context.Context, client *lockward.Client, begin func()) {
			busyFor("k", 30)
			begin()
			acquired(client.Acquire(ctx, "k", lockward.WithLease(time.Hour)))
		},
		"wait for the second key": func(ctx context.Context, client *lockward.Client, begin func()) {
			busyFor("l", 30)
			begin()
			acquired(client.AcquireAll(ctx, []string{"k", "l"}, lockward.WithLease(time.Hour)))
		},
		"wait as a named owner": func(ctx context.Context, client *lockward.Client, begin func()) {
			busyFor("k", 30)
			begin()
			acquired(client.Acquire(ctx, "k", lockward.WithLease(time.Hour), lockward.WithOwner("me")))
		},
		"renew": func(ctx context.Context, client *lockward.Client, begin func()) {
			lock := held(client)
			begin()
			keptHeld(lock, lock.Renew(ctx))
		},
		"downgrade": func(ctx context.Context, client *lockward.Client, begin func()) {
			lock := held(client)
			begin()
			keptHeld(lock, lock.Downgrade(ctx, lockward.Shared()))
		},
		"guarded": func(ctx context.Context, client *lockward.Client, begin func()) {
			lock := held(client)
			check(t, rdb.Set(t.Context(), "count", 0, 0).Err())
			begin()
			err := lock.Guarded(ctx, "INCR", "count").Err()
			count, _ := rdb.Get(t.Context(), "count").Int()
			if count > 1 || err == nil && count != 1 || err != nil && !errors.Is(err, lockward.ErrUnreachable) && count != 0 {
				t.Error(count, err)
			}
			keptHeld(lock, err)
		},
		"release": func(ctx context.Context, client *lockward.Client, begin func()) {
			lock := held(client)
			begin()
			if err := lock.Release(ctx); err != nil {
				expect(t, err, context.Canceled)
			}
		},
		"resume": func(ctx context.Context, client *lockward.Client, begin func()) {
			handle, err := held(client).Handle()
			check(t, err)
			begin()
			lock, err := client.Resume(ctx, handle)
			if err != nil {
				expect(t, err, context.Canceled)
				lock, err = client.Resume(t.Context(), handle)
				check(t, err)
			}
			check(t, lock.Release(t.Context()))
		},
	} {
		for isLast, last := false, 0; !isLast; last++ {
			ctx, cancel := context.WithCancel(t.Context())
			var hasBegun atomic.Bool
			var steps atomic.Int64
			client := newClient(t, s.stepped(func() {
				if hasBegun.Load() && steps.Add(1) == int64(last) {
					cancel()
				}
			}))
			call(ctx, client, func() { hasBegun.Store(true) })
			isLast = ctx.Err() == nil
			cancel()
			check(t, client.Close())
			for _, key := range []string{"k", "l"} {
				s.waitUntilFree(key)
			}
			if last > 200 {
				t.Fatal(name, "takes too many steps")
			}
		}
	}
}

// A tornConn breaks after it has received left bytes.
type tornConn struct {
	net.Conn
	left int
}

func (c *tornConn) Read(received []byte) (int, error) {
	if c.left == 0 {
		_ = c.Conn.Close()
		return 0, io.EOF
	}
	count, err := c.Conn.Read(received[:min(c.left, len(received))])
	c.left -= count
	return count, err
}

func TestAConnectionCanBreakAtEachByteOfAReply(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	rdb := s.client()
	for isIntact, length := false, 0; !isIntact; length++ {
		var first *tornConn
		torn := redis.NewClient(&redis.Options{Addr: s.addr, Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			if first == nil {
				first = &tornConn{conn, length}
				conn = first
			}
			return conn, err
		}})
		client := newClient(t, torn)
		check(t, rdb.Set(t.Context(), "count", 0, 0).Err())
		check(t, rdb.Do(t.Context(), "LOCK.ACQUIRE", "k", "other", "PX", 10).Err()) // so that Acquire has to wait
		lock, err := client.Acquire(t.Context(), "k", lockward.WithLease(time.Hour))
		check(t, err)
		check(t, lock.Renew(t.Context()))
		err = lock.Guarded(t.Context(), "INCR", "count").Err()
		if err != nil {
			expect(t, err, lockward.ErrUnreachable)
		}
		if count, _ := rdb.Get(t.Context(), "count").Int(); count > 1 || err == nil && count != 1 {
			t.Error(count, err)
		}
		check(t, lock.Release(t.Context()))
		s.checkFree("k")
		check(t, client.Close())
		check(t, torn.Close())
		isIntact = first.left > 0
		if length > 2000 {
			t.Fatal("too many bytes")
		}
	}
}

func TestAReplyOfAnotherFormIsNoSuccess(t *testing.T) {
	t.Parallel()
	for _, grant := range []string{"+OK", ":7", "$1\r\n7", "*0", "*2\r\n:7\r\n:1", "*3\r\n:7\r\n:1\r\n-ERR", "*3\r\n:7\r\n:1\r\n*-1"} {
		f := startFake(t, func(command string) string {
			if strings.HasPrefix(command, "LOCK.RELEASE") {
				return ":0\r\n"
			}
			return grant + "\r\n"
		})
		client := newClient(t, f.client(t))
		_, err := client.Acquire(t.Context(), "k")
		expect(t, err, lockward.ErrRefused)
		if !strings.Contains(err.Error(), "unexpected reply") || f.count("LOCK.ACQUIRE") != 1 || f.count("LOCK.RELEASE") != 1 {
			t.Errorf("%q: %v", grant, err)
		}
		check(t, client.Close())
	}
	for _, reply := range []string{"+OK", "$-1", "*0", "$1\r\nx", "*1\r\n:7", ":8"} {
		f := startFake(t, func(command string) string {
			if strings.HasPrefix(command, "LOCK.ACQUIRE") {
				return "*3\r\n:7\r\n:1\r\n:900\r\n"
			}
			return reply + "\r\n"
		})
		client := newClient(t, f.client(t))
		lock := acquire(t, client, "k", lockward.WithLease(900*time.Millisecond))
		until := lock.Until()
		expect(t, lock.Renew(t.Context()), lockward.ErrRefused)
		if lock.Until().After(until) {
			t.Errorf("%q has renewed the lease", reply)
		}
		receive(t, "the loss", lock.Lost())
		other := acquire(t, client, "other", lockward.WithLease(time.Hour))
		if err := other.Release(t.Context()); reply != ":8" {
			expect(t, err, lockward.ErrRefused)
		}
		check(t, client.Close())
	}
}

func TestADowngradeToAnInvalidKindWhoseReplyWasLostKeepsTheLock(t *testing.T) {
	t.Parallel()
	var downgrades, renewals atomic.Int64
	f := startFake(t, func(command string) string {
		switch {
		case strings.HasPrefix(command, "LOCK.ACQUIRE"):
			return "*3\r\n:7\r\n:1\r\n:3000\r\n"
		case strings.Contains(command, "SLOTS") && downgrades.Add(1) == 1:
			return ""
		case strings.Contains(command, "SLOTS"):
			return "-ERR invalid slots in 'lock.renew' command\r\n"
		case strings.HasPrefix(command, "LOCK.RENEW"):
			renewals.Add(1)
			return ":7\r\n"
		}
		return ":0\r\n"
	})
	// The patience is shorter than the time limit of a renewal, so the client sends the downgrade only once.
	client := newClient(t, f.client(t), lockward.WithPatience(1500*time.Millisecond))
	lock := acquire(t, client, "k", lockward.WithLease(12*time.Second))
	expect(t, lock.Downgrade(t.Context(), lockward.Slots(2)), lockward.ErrUnreachable)
	eventually(t, "the client renews the lock with its earlier kind, or loses it", func() bool {
		return renewals.Load() >= 1 || !lock.Held()
	})
	if !lock.Held() || downgrades.Load() > 3 {
		t.Error("held: ", lock.Held(), ", downgrades: ", downgrades.Load())
	}
	check(t, lock.Release(t.Context()))
}

func TestARedirectionThatDoesNotEndEndsTheCallInTime(t *testing.T) {
	t.Parallel()
	for _, redirection := range []string{"MOVED", "ASK"} {
		var to atomic.Value
		to.Store("")
		f := startFake(t, func(command string) string {
			if command == "ASKING" {
				return "+OK\r\n"
			}
			return fmt.Sprintf("-%s 1 %s\r\n", redirection, to.Load())
		})
		to.Store(f.addr)
		client := newClient(t, f.cluster(t), lockward.WithPatience(300*time.Millisecond))
		_, err := client.Acquire(t.Context(), "k", lockward.WithoutWaiting())
		expect(t, err, lockward.ErrUnreachable)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		_, err = client.Acquire(ctx, "k")
		expect(t, err, lockward.ErrUnreachable) // the patience or the deadline ends the call
		cancel()
		if count := f.count("LOCK.ACQUIRE"); count > 100 {
			t.Error(count, "requests")
		}
	}
}

func TestAClientOfOneServerRefusesAClusterAtOnce(t *testing.T) {
	t.Parallel()
	for _, redirection := range []string{"MOVED", "ASK"} {
		f := startFake(t, func(string) string { return "-" + redirection + " 1 127.0.0.1:1\r\n" })
		client := newClient(t, f.client(t))
		_, err := client.Acquire(t.Context(), "k")
		expect(t, err, lockward.ErrRefused)
		if !redis.HasErrorPrefix(err, redirection) || !strings.Contains(err.Error(), "redis.ClusterClient") || f.count("") != 1 {
			t.Error(f.count(""), err)
		}
	}
}

func TestAGuardedCommandThatIsRedirectedToTheSameNodeRuns(t *testing.T) {
	t.Parallel()
	var addr atomic.Value
	var guards atomic.Int64
	f := startFake(t, func(command string) string {
		switch {
		case strings.HasPrefix(command, "LOCK.ACQUIRE"):
			return "*3\r\n:7\r\n:1\r\n:30000\r\n"
		case strings.HasPrefix(command, "LOCK.GUARD") && guards.Add(1)%2 == 1:
			return fmt.Sprintf("-MOVED 1 %s\r\n", addr.Load())
		}
		return "+OK\r\n"
	})
	addr.Store(f.addr)
	lock := acquire(t, newClient(t, f.cluster(t)), "k")
	for range 20 {
		check(t, lock.Guarded(t.Context(), "SET", "state", "paid").Err())
	}
}

func TestAServerThatAcceptsAndNeverAnswers(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer listener.Close()
	rdb := redis.NewClient(&redis.Options{Addr: listener.Addr().String()})
	defer rdb.Close()
	client := newClient(t, rdb, lockward.WithPatience(300*time.Millisecond), lockward.WithResponseLimit(50*time.Millisecond))
	_, err = client.Acquire(t.Context(), "k", lockward.WithoutWaiting())
	expect(t, err, lockward.ErrUnreachable)
	_, err = client.AcquireAll(t.Context(), []string{"a", "b"}, lockward.WithoutWaiting())
	expect(t, err, lockward.ErrUnreachable)
	patient := newClient(t, rdb)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = patient.Acquire(ctx, "k")
	expect(t, err, lockward.ErrUnreachable, context.DeadlineExceeded)
	_, failed := acquiring(t.Context(), patient, []string{"k"})
	_, closed := acquiring(t.Context(), client, []string{"k"})
	select {
	case <-failed:
		t.Error("the call must go on for its patience")
	case <-closed:
	}
}

func TestAPrimaryThatChangesDuringTheConfirmationOfAGrant(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	other := acquire(t, newClient(t, s.client()), "k", lockward.WithLease(time.Hour))
	var renewals atomic.Int64
	client := newClient(t, s.tapped(func(sent []byte) (bool, error) {
		if strings.Contains(string(sent), "LOCK.RENEW") {
			switch renewals.Add(1) {
			case 1:
				s.do("REPLICAOF", "127.0.0.1", "1")
			case 3:
				s.do("REPLICAOF", "NO", "ONE")
			}
		}
		return true, nil
	}))
	granted, failed := acquiring(t.Context(), client, []string{"k"}, lockward.WithLease(time.Hour))
	s.waitFor("k", 1)
	check(t, other.Release(t.Context()))
	select {
	case err := <-failed:
		t.Fatal(err)
	case lock := <-granted:
		if holders, _ := s.info("k"); len(holders) != 1 || holders[0] != (holder{lock.Owner(), lock.Token(), 1}) {
			t.Error(holders)
		}
		check(t, lock.Release(t.Context()))
	}
}

func TestAHoldLimitThatEndsDuringADowngradeLosesTheLock(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.tapped(func(sent []byte) (bool, error) {
		return !strings.Contains(string(sent), "LOCK.RENEW"), nil
	}))
	lock := acquire(t, client, "k", lockward.WithLease(time.Hour), lockward.WithHoldLimit(200*time.Millisecond))
	expect(t, lock.Downgrade(t.Context(), lockward.Shared()), lockward.ErrLost)
	receive(t, "the loss", lock.Lost())
	s.waitUntilFree("k")
}

func TestRequestsWithoutRepliesDoNotDelayARenewal(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	var guards atomic.Int64
	client := newClient(t, s.tapped(func(sent []byte) (bool, error) {
		isGuard := strings.Contains(string(sent), "LOCK.GUARD")
		if isGuard {
			guards.Add(1)
		}
		return !isGuard, nil
	}), lockward.WithResponseLimit(time.Hour))
	lock := acquire(t, client, "k", lockward.WithLease(time.Second))
	ctx, cancel := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	calls.Add(20)
	for range 20 {
		go func() { defer calls.Done(); _ = lock.Guarded(ctx) }()
	}
	eventually(t, "no further request has room", func() bool { return guards.Load() == 16 })
	renewals := s.calls("lock.renew")
	eventually(t, "renewals", func() bool { return s.calls("lock.renew") > renewals+3 || !lock.Held() })
	cancel()
	calls.Wait()
	check(t, lock.Release(t.Context()))
}

func TestRenewalsAfterABrokenPipelineShareFewConnections(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	var renewals, connections atomic.Int64
	client := newClient(t, s.tapped(func(sent []byte) (bool, error) {
		switch {
		case strings.Contains(string(sent), "LOCK.RENEW") && renewals.Add(1) == 1:
			return false, io.ErrUnexpectedEOF
		case strings.Contains(string(sent), "hello"):
			connections.Add(1)
		}
		return true, nil
	}))
	keys := make([]string, 1000)
	for i := range keys {
		keys[i] = fmt.Sprint("k", i)
	}
	lock, err := client.AcquireAll(t.Context(), keys, lockward.WithLease(time.Hour))
	check(t, err)
	check(t, lock.Renew(t.Context()))
	if count := connections.Load(); count > 100 {
		t.Error(count, "connections")
	}
	check(t, lock.Release(t.Context()))
}

func TestSeveralKeysWithTooFewReplicasAreUnreplicated(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client(), lockward.WithPatience(time.Second), lockward.WithResponseLimit(time.Second))
	_, err := client.AcquireAll(t.Context(), []string{"a", "b", "c"}, lockward.WithReplicas(1, 2*time.Second))
	expect(t, err, lockward.ErrUnreplicated)
	if waits := s.calls("wait"); waits != 1 {
		t.Error("the server got WAIT ", waits, " times for its three keys")
	}
	for _, key := range []string{"a", "b", "c"} {
		s.waitUntilFree(key)
	}
}

func TestAResumedLockHasTheRestOfTheHoldLimit(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	for _, options := range [][]lockward.AcquireOption{
		{lockward.WithHoldLimit(time.Second)},
		{lockward.WithHoldLimit(time.Second), lockward.WithLease(300 * time.Millisecond)},
		{lockward.WithHoldLimit(time.Second), lockward.WithoutRenewal()},
	} {
		lock := acquire(t, client, "k", options...)
		for range 3 {
			handle, err := lock.Handle()
			check(t, err)
			lock, err = client.Resume(t.Context(), handle)
			check(t, err)
			if left := time.Until(lock.Until()); left > time.Second { // without the hold limit it would be the lease
				t.Error(left)
			}
		}
		receive(t, "the hold limit is over", lock.Lost())
	}
}

func TestALockWithoutRenewalIsNotRenewedAfterItsResume(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	lock := acquire(t, client, "k", lockward.WithLease(300*time.Millisecond), lockward.WithoutRenewal())
	for range 2 {
		handle, err := lock.Handle()
		check(t, err)
		lock, err = client.Resume(t.Context(), handle)
		check(t, err)
	}
	receive(t, "the lease is over", lock.Lost())
}

func TestSeveralKeysOnSeveralNodesOfAClusterAreOneLock(t *testing.T) {
	t.Parallel()
	p := startProcess(t, "cluster")
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{address(p.facts.Ports[0])}})
	t.Cleanup(func() { _ = rdb.Close() })
	client := newClient(t, rdb)
	keys := []string{"a", "b", "c", "d", "e", "f"}
	for _, isBusy := range []bool{false, true} {
		other := acquire(t, client, "d")
		granted, _ := acquiring(t.Context(), client, keys)
		if isBusy {
			eventually(t, "a caller waits", func() bool {
				info, _ := rdb.Do(t.Context(), "LOCK.INFO", "d").Result()
				return info.(map[any]any)["waiters"] == int64(1)
			})
		}
		check(t, other.Release(t.Context()))
		lock := receive(t, "the grant", granted)
		check(t, lock.Renew(t.Context()))
		_, err := client.AcquireAll(t.Context(), keys, lockward.WithoutWaiting())
		expect(t, err, lockward.ErrBusy)
		check(t, lock.Downgrade(t.Context(), lockward.Shared()))
		shared, err := client.AcquireAll(t.Context(), keys, lockward.Shared(), lockward.WithoutWaiting())
		check(t, err)
		check(t, shared.Release(t.Context()))
		check(t, lock.Release(t.Context()))
		for _, key := range keys {
			if held := rdb.Exists(t.Context(), key).Val(); held != 0 {
				t.Error(key, "is held")
			}
		}
	}
}

func TestCloseEndsEverythingThatIsUnderWay(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	rdb := s.client()
	for round := range 10 {
		client := newClient(t, s.client(), lockward.WithWaitingConnections(3))
		handle, err := acquire(t, client, "resumed").Handle()
		check(t, err)
		var running sync.WaitGroup
		for i := range 40 {
			running.Add(1)
			go func() {
				defer running.Done()
				key := fmt.Sprint("k", i%4)
				var err error
				for err == nil || !errors.Is(err, lockward.ErrClosed) {
					switch i % 5 {
					case 0:
						err = client.DoAll(t.Context(), []string{key, "l"}, func(ctx context.Context, lock *lockward.Lock) error {
							return lock.Downgrade(ctx, lockward.Shared())
						})
					case 1:
						err = client.Lead(t.Context(), key, func(ctx context.Context, lock *lockward.Lock) error { return lock.Renew(ctx) })
					case 2:
						err = client.Do(t.Context(), key, func(ctx context.Context, lock *lockward.Lock) error {
							return lock.Guarded(ctx, "INCR", "count").Err()
						})
					case 3:
						var lock *lockward.Lock
						if lock, err = client.Resume(t.Context(), handle); err == nil {
							_, err = lock.Handle()
						}
					default:
						ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
						err = client.Do(ctx, key, func(context.Context, *lockward.Lock) error { return nil })
						cancel()
					}
				}
			}()
		}
		eventually(t, "the clients work", func() bool { return s.calls("lock.acquire") > 200*(round+1) })
		closed := make(chan error, 1)
		go func() { closed <- client.Close() }()
		check(t, receive(t, "the end of Close", closed))
		ended := make(chan struct{})
		go func() { running.Wait(); close(ended) }()
		receive(t, "the end of all calls", ended)
		check(t, rdb.FlushAll(t.Context()).Err())
		eventually(t, "nobody waits", func() bool { return s.blocked() == 0 })
	}
}

// blocked is how many clients wait at the server.
func (s *server) blocked() int {
	_, after, _ := strings.Cut(s.do("INFO", "clients").(string), "blocked_clients:")
	count, _ := strconv.Atoi(strings.TrimRight(strings.SplitN(after, "\n", 2)[0], "\r"))
	return count
}

func TestThousandsOfCallersLeaveTogether(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	other := acquire(t, client, "k", lockward.WithLease(time.Hour))
	ctx, cancel := context.WithCancel(t.Context())
	const callers = 3000
	done := make(chan error, callers)
	for range callers {
		go func() {
			_, err := client.Acquire(ctx, "k", lockward.WithLease(time.Hour))
			done <- err
		}()
	}
	s.waitFor("k", 256)
	cancel()
	for range callers {
		expect(t, receive(t, "the end of a call", done), context.Canceled)
	}
	s.waitFor("k", 0)
	check(t, other.Release(t.Context()))
	check(t, client.Close())
	s.checkFree("k")
}

func TestAHandleOfKeysWithDifferentKindsCanBeResumed(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	lock, err := client.AcquireAll(t.Context(), []string{"a", "b"}, lockward.Slots(2))
	check(t, err)
	s.do("ACL", "SETUSER", "default", "resetkeys", "~b")
	expect(t, lock.Downgrade(t.Context(), lockward.Slots(3)), lockward.ErrRefused)
	s.do("ACL", "SETUSER", "default", "allkeys")
	handle, err := lock.Handle()
	check(t, err)
	resumed, err := client.Resume(t.Context(), handle)
	check(t, err)
	for key, want := range map[string]int64{"a": 2, "b": 3} {
		if slots := s.do("LOCK.INFO", key).(map[any]any)["slots"]; slots != want {
			t.Error(key, "has", slots, "slots")
		}
	}
	check(t, resumed.Release(t.Context()))
}

func TestAServerWithoutARoleIsNoPrimary(t *testing.T) {
	t.Parallel()
	f := startFake(t, func(command string) string {
		switch {
		case strings.HasPrefix(command, "LOCK.ACQUIRE"):
			return "*3\r\n:7\r\n:1\r\n:30000\r\n"
		case command == "ROLE":
			return "*0\r\n"
		}
		return ""
	})
	sentinel := startSentinel(t)
	host, port, _ := strings.Cut(f.addr, ":")
	sentinel.do("SENTINEL", "MONITOR", "it", host, port, "1")
	rdb := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "it", SentinelAddrs: []string{sentinel.addr}})
	defer rdb.Close()
	client := newClient(t, rdb, lockward.WithPatience(2*time.Second), lockward.WithResponseLimit(200*time.Millisecond))
	lock := acquire(t, client, "k", lockward.WithoutRenewal())
	sentinel.pause()
	defer sentinel.resume()
	expect(t, lock.Renew(t.Context()), lockward.ErrUnreachable)
	if f.count("ROLE") == 0 {
		t.Error("the client has not asked for the role")
	}
	check(t, client.Close())
}

func TestARefusedKeyEndsTheCallAtOnceThoughAnotherKeyIsBusy(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	s.do("SET", "string", "")
	acquire(t, client, "busy", lockward.WithLease(time.Hour))
	_, failed := acquiring(t.Context(), client, []string{"busy", "string"})
	err := receive(t, "the refusal", failed)
	expect(t, err, lockward.ErrRefused)
	if errors.Is(err, lockward.ErrBusy) {
		t.Error(err)
	}
}

// proxied returns a go-redis client whose connections lead through a proxy. The proxy calls pass with each part of a request, and sends
// this part to the server when pass returns.
func (s *server) proxied(pass func(request []byte)) *redis.Client {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(s.tb, err)
	s.tb.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			upstream, err := net.Dial("tcp", s.addr)
			if err != nil {
				_ = conn.Close()
				return
			}
			go func() {
				_, _ = io.Copy(conn, upstream)
				_ = conn.Close()
			}()
			go func() {
				defer upstream.Close()
				for request := make([]byte, 4096); ; {
					length, err := conn.Read(request)
					if err != nil {
						return
					}
					pass(request[:length])
					_, _ = upstream.Write(request[:length])
				}
			}()
		}
	}()
	rdb := redis.NewClient(&redis.Options{Addr: listener.Addr().String()})
	s.tb.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

func TestAReleaseDoesNotOvertakeARequestThatTheCallerHasLeft(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	rdb := s.client()
	for i, word := range []string{"HOLDS", "BLOCK"} { // the first request tries, and the second request waits
		ctx, cancel := context.WithCancel(t.Context())
		releases := s.calls("lock.release")
		var isFirst sync.Once
		client := newClient(t, s.proxied(func(request []byte) {
			if bytes.Contains(request, []byte("LOCK.ACQUIRE")) && bytes.Contains(request, []byte(word)) {
				isFirst.Do(func() {
					rdb.Del(ctx, "k") // now the server can grant the lock
					cancel()
					for end := time.Now().Add(40 * time.Millisecond); time.Now().Before(end) && s.calls("lock.release") == releases; {
						time.Sleep(time.Millisecond)
					}
				})
			}
		}))
		if word == "BLOCK" {
			check(t, rdb.Do(t.Context(), "LOCK.ACQUIRE", "k", "other").Err())
		}
		acquires := s.calls("lock.acquire")
		_, err := client.Acquire(ctx, "k", lockward.WithLease(time.Hour))
		expect(t, err, context.Canceled)
		eventually(t, "all requests", func() bool {
			return s.calls("lock.acquire") > acquires+i && s.calls("lock.release") > releases
		})
		check(t, client.Close())
		s.checkFree("k")
	}
}

func TestTheLastKnownPrimaryIsVerifiedByItsHostName(t *testing.T) {
	t.Parallel()
	example := httptest.NewTLSServer(nil)
	secure := &tls.Config{Certificates: example.TLS.Certificates}
	example.Close()
	primary := startFakeWithTLS(t, secure, func(command string) string {
		switch {
		case strings.HasPrefix(command, "LOCK.ACQUIRE"):
			return "*3\r\n:7\r\n:1\r\n:30000\r\n"
		case command == "ROLE":
			return "*1\r\n$6\r\nmaster\r\n"
		}
		return ":7\r\n"
	})
	_, port, _ := strings.Cut(primary.addr, ":")
	var isSilent atomic.Bool
	sentinel := startFakeWithTLS(t, secure, func(command string) string {
		switch {
		case isSilent.Load():
			return ""
		case strings.HasPrefix(command, "sentinel get-master-addr-by-name"):
			return fmt.Sprintf("*2\r\n$9\r\nlocalhost\r\n$%d\r\n%s\r\n", len(port), port)
		}
		return "*0\r\n"
	})
	rdb := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: "it", SentinelAddrs: []string{strings.Replace(sentinel.addr, "127.0.0.1", "localhost", 1)},
		TLSConfig: &tls.Config{InsecureSkipVerify: true, VerifyConnection: func(state tls.ConnectionState) error {
			if state.ServerName != "localhost" {
				return fmt.Errorf("the name of the host is %q", state.ServerName)
			}
			return nil
		}},
	})
	defer rdb.Close()
	client := newClient(t, rdb, lockward.WithPatience(3*time.Second))
	lock := acquire(t, client, "k", lockward.WithoutRenewal())
	isSilent.Store(true)
	primary.cut()
	check(t, lock.Renew(t.Context()))
	check(t, lock.Release(t.Context()))
	check(t, client.Close())
}

func TestNoConnectionPassesByTheDialerOfTheProgram(t *testing.T) {
	t.Parallel()
	s, sentinel := startServer(t), startSentinel(t)
	host, port, _ := strings.Cut(s.addr, ":")
	sentinel.do("SENTINEL", "MONITOR", "it", host, port, "1")
	rdb := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: "it", SentinelAddrs: []string{sentinel.addr},
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return &tappedConn{conn, func([]byte) (bool, error) { return true, nil }}, err
		},
	})
	defer rdb.Close()
	client := newClient(t, rdb)
	lock := acquire(t, client, "k", lockward.WithLease(2*time.Second), lockward.WithoutRenewal())
	sentinel.pause()
	defer sentinel.resume()
	s.do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	expect(t, lock.Renew(t.Context()), lockward.ErrLost)
	if calls := s.calls("lock.renew"); calls > 0 {
		t.Error(calls, "renewals")
	}
}

func TestTheCallerMayChangeItsSlicesDuringACall(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	other := acquire(t, newClient(t, s.client()), "b")
	keys, options := []string{"a", "b"}, []lockward.AcquireOption{lockward.WithOwner("me")}
	client := newClient(t, s.tapped(func(sent []byte) (bool, error) {
		if bytes.Contains(sent, []byte("LOCK.RELEASE")) { // after the first attempt
			keys[0], options[0] = "c", lockward.WithOwner("somebody else")
		}
		return true, nil
	}))
	granted, _ := acquiring(t.Context(), client, keys, options...)
	s.waitFor("b", 1)
	check(t, other.Release(t.Context()))
	lock := receive(t, "the grant", granted)
	if lock.Key() != "a" || lock.Owner() != "me" {
		t.Error(lock.Key(), lock.Owner())
	}
	check(t, lock.Release(t.Context()))
}
