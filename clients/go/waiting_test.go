package lockward_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockward"
)

// shortProbe lets the client probe a server where it waits every 1.5 s.
var shortProbe = lockward.WithResponseLimit(250 * time.Millisecond)

// An admin sends commands to a server on one connection that stays open.
type admin struct {
	tb   testing.TB
	conn *redis.Conn
}

func newAdmin(tb testing.TB, s *server) *admin {
	conn := s.client().Conn()
	tb.Cleanup(func() { _ = conn.Close() })
	a := &admin{tb, conn}
	a.do("PING")
	return a
}

func (a *admin) do(args ...any) any {
	a.tb.Helper()
	reply, err := a.conn.Do(context.Background(), args...).Result()
	if err != nil {
		a.tb.Fatal(args, err)
	}
	return reply
}

// waiter is the first waiter of the lock k, as LOCK.INFO shows it.
func (a *admin) waiter() string {
	return fmt.Sprint(a.do("LOCK.INFO", "k", "WAITERS", 1).(map[any]any)["queue"])
}

// counter is a number in the reply to INFO, by the text before it.
func (a *admin) counter(section, before string) (count int) {
	_, after, _ := strings.Cut(a.do("INFO", section).(string), before)
	_, _ = fmt.Sscan(after, &count)
	return count
}

// connectionID is the id of a waiter's connection.
func connectionID(queue string) string {
	_, after, _ := strings.Cut(queue, "client-id:")
	id, _, _ := strings.Cut(after, " ")
	return id
}

func TestAWaiterKeepsItsPositionWhenNewConnectionsAreRefused(t *testing.T) {
	t.Parallel()
	for name, what := range map[string]struct {
		settings        [2]string
		section, before string
	}{
		"too many clients": {[2]string{"maxclients", "1"}, "stats", "rejected_connections:"},
		"a new password":   {[2]string{"requirepass", "new"}, "stats", "total_error_replies:"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			admin := newAdmin(t, s)
			admin.do("CONFIG", "SET", "requirepass", "old")
			rdb := redis.NewClient(&redis.Options{Addr: s.addr, Password: "old"})
			t.Cleanup(func() { _ = rdb.Close() })
			holder := acquire(t, newClient(t, rdb), "k")
			granted, failed := acquiring(t.Context(), newClient(t, rdb, shortProbe), "k")
			eventually(t, "it waits", func() bool { return connectionID(admin.waiter()) != "" })
			first := connectionID(admin.waiter())
			admin.do("CONFIG", "SET", what.settings[0], what.settings[1])
			before := admin.counter(what.section, what.before)
			eventually(t, "the client tries to connect", func() bool { return admin.counter(what.section, what.before) >= before+3 })
			if now := connectionID(admin.waiter()); now != first {
				t.Fatal(first, now, len(failed))
			}
			check(t, holder.Release(t.Context()))
			check(t, receive(t, "the grant", granted).Release(t.Context()))
		})
	}
}

func TestAWaiterKeepsItsPositionWhenASentinelIsStopped(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	admin := newAdmin(t, s)
	host, port, _ := net.SplitHostPort(s.addr)
	var addrs []string
	sentinels := [2]*server{startSentinel(t), startSentinel(t)}
	for _, sentinel := range sentinels {
		sentinel.do("SENTINEL", "MONITOR", "it", host, port, "2")
		addrs = append(addrs, sentinel.addr)
	}
	rdb := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "it", SentinelAddrs: addrs})
	t.Cleanup(func() { _ = rdb.Close() })
	holder := acquire(t, newClient(t, s.client()), "k")
	granted, _ := acquiring(t.Context(), newClient(t, rdb, shortProbe), "k")
	eventually(t, "it waits", func() bool { return connectionID(admin.waiter()) != "" })
	first := connectionID(admin.waiter())
	for _, sentinel := range sentinels {
		sentinel.pause()
		stopped := time.Now()
		eventually(t, "it is stopped for 4 s", func() bool {
			if now := connectionID(admin.waiter()); now != first {
				t.Fatal(first, now)
			}
			return time.Since(stopped) > 4*time.Second
		})
		sentinel.resume()
	}
	sentinels[0].pause()
	sentinels[1].pause()
	check(t, holder.Release(t.Context()))
	check(t, receive(t, "the grant", granted).Release(t.Context()))
}

func TestAWaiterKeepsItsPositionWhenTheServersNameResolvesElsewhere(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	admin := newAdmin(t, s)
	proxies := [2]*proxy{startProxy(t, s), startProxy(t, s)}
	var asked atomic.Int64
	rdb := redis.NewClient(&redis.Options{
		Addr: "name:1",
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if addr == "name:1" {
				addr = proxies[asked.Add(1)%2].addr
			}
			return new(net.Dialer).DialContext(ctx, network, addr)
		},
	})
	t.Cleanup(func() { _ = rdb.Close() })
	holder := acquire(t, newClient(t, s.client()), "k")
	granted, _ := acquiring(t.Context(), newClient(t, rdb, shortProbe, lockward.WithPatience(time.Second)), "k")
	eventually(t, "it waits", func() bool { return connectionID(admin.waiter()) != "" })
	first, before := connectionID(admin.waiter()), asked.Load()
	eventually(t, "the name is resolved", func() bool { return asked.Load() >= before+4 })
	if now := connectionID(admin.waiter()); now != first {
		t.Fatal(first, now)
	}
	check(t, holder.Release(t.Context()))
	next := receive(t, "the grant", granted)

	// The client probes the server where it waits, not another one with the same name.
	second := acquire(t, newClient(t, s.client()), "other")
	_, failed := acquiring(t.Context(), newClient(t, rdb, shortProbe, lockward.WithPatience(time.Second)), "other")
	s.waitFor("other", 1)
	s.pause()
	expect(t, receive(t, "the end of the wait", failed), lockward.ErrUnreachable)
	s.resume()
	check(t, second.Release(t.Context()))
	check(t, next.Release(t.Context()))
}

func TestAGrantDoesNotWaitForAnotherConnection(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	var stuck atomic.Int64
	var hangs atomic.Bool
	end := make(chan struct{})
	rdb := redis.NewClient(&redis.Options{
		Addr: s.addr,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if hangs.Load() { // like a TLS dialer that ignores its context
				stuck.Add(1)
				<-end
			}
			return new(net.Dialer).DialContext(ctx, network, addr)
		},
	})
	t.Cleanup(func() { _ = rdb.Close() })
	holder := acquire(t, newClient(t, s.client()), "k")
	granted, _ := acquiring(t.Context(), newClient(t, rdb, shortProbe), "k")
	t.Cleanup(func() { close(end) })
	s.waitFor("k", 1)
	hangs.Store(true)
	eventually(t, "the client dials", func() bool { return stuck.Load() > 0 })
	check(t, holder.Release(t.Context()))
	check(t, receive(t, "the grant", granted).Release(t.Context()))
}
