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

func TestHoldersAndWaitersSurviveAFailover(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(*server){
		"manual":          func(*server) {},
		"killed primary":  (*server).kill,
		"stopped primary": (*server).pause,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			primary := startServer(t)
			replica := startServer(t)
			host, port, _ := net.SplitHostPort(primary.addr)
			replica.do("REPLICAOF", host, port)
			sentinel := startSentinel(t)
			sentinel.do("SENTINEL", "MONITOR", "it", host, port, "1")
			sentinel.do("SENTINEL", "SET", "it", "down-after-milliseconds", "1000")
			eventually(t, "the Sentinel knows the replica", func() bool {
				return strings.Contains(sentinel.do("INFO", "sentinel").(string), "slaves=1") &&
					strings.Contains(replica.do("INFO", "replication").(string), "master_link_status:up")
			})

			rdb := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "it", SentinelAddrs: []string{sentinel.addr}})
			t.Cleanup(func() { _ = rdb.Close() })
			client := newClient(t, rdb, lockward.WithResponseLimit(500*time.Millisecond), lockward.WithPatience(time.Minute))
			lock := acquire(t, client, "k", lockward.WithLease(time.Minute))
			granted, _ := acquiring(t.Context(), client, "k")
			primary.waitFor("k", 1)
			eventually(t, "the replica has the lock", func() bool { holders, _ := replica.info("k"); return len(holders) == 1 })

			stop(primary)
			if name == "manual" {
				eventually(t, "the Sentinel starts the failover", func() bool {
					return sentinel.client().Do(t.Context(), "SENTINEL", "FAILOVER", "it").Err() == nil
				})
			}
			eventually(t, "the replica is the primary", func() bool {
				return strings.Contains(replica.do("INFO", "replication").(string), "role:master")
			})
			replica.waitFor("k", 1)
			if !lock.Held() {
				t.Fatal("not held")
			}
			check(t, lock.Release(t.Context()))
			check(t, receive(t, "the grant", granted).Release(t.Context()))
		})
	}
}

func newClusterClient(tb testing.TB, nodes [3]*server) *redis.ClusterClient {
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{nodes[0].addr}})
	tb.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

func TestACluster(t *testing.T) {
	t.Parallel()
	nodes := startCluster(t)
	client := newClient(t, newClusterClient(t, nodes))
	keys := [3]string{"b", "c", "a"} // in slots 3300, 7365 and 15495
	var locks [3]*lockward.Lock
	for i, key := range keys {
		locks[i] = acquire(t, client, key, lockward.WithLease(2*time.Second))
		if holders, _ := nodes[i].info(key); len(holders) != 1 {
			t.Fatal(key, "is not on its node")
		}
	}
	for i, node := range nodes {
		eventually(t, "they are renewed on their nodes", func() bool { return node.calls("lock.renew") >= 3 })
		if !locks[i].Held() {
			t.Fatal("lost")
		}
		check(t, locks[i].Release(t.Context()))
	}
}

func TestAHolderAndAWaiterFollowTheirMigratedSlot(t *testing.T) {
	t.Parallel()
	const key, slot = "a", 15495
	nodes := startCluster(t)
	from, to := nodes[2], nodes[0]
	client := newClient(t, newClusterClient(t, nodes))
	lock := acquire(t, client, key, lockward.WithLease(2*time.Second))
	granted, _ := acquiring(t.Context(), client, key)
	from.waitFor(key, 1)

	old, now := from.do("CLUSTER", "MYID"), to.do("CLUSTER", "MYID")
	to.do("CLUSTER", "SETSLOT", slot, "IMPORTING", old)
	from.do("CLUSTER", "SETSLOT", slot, "MIGRATING", now)
	host, port, _ := net.SplitHostPort(to.addr)
	from.do("MIGRATE", host, port, key, 0, 5000)
	// The slot has not moved yet: requests for the key are redirected with ASK.
	calls := to.calls("lock.renew")
	eventually(t, "it is renewed on the new node", func() bool { return to.calls("lock.renew") > calls+2 })
	check(t, lock.Reenter(t.Context()))
	fresh := acquire(t, client, "{a} fresh")
	_, err := client.TryAcquire(t.Context(), key)
	expect(t, err, lockward.ErrBusy)
	check(t, lock.Release(t.Context()))

	for _, node := range []*server{to, from, nodes[1]} {
		node.do("CLUSTER", "SETSLOT", slot, "NODE", now)
	}
	to.waitFor(key, 1)
	if holders, _ := to.info(fresh.Key()); len(holders) != 1 || !fresh.Held() {
		t.Fatal(holders)
	}
	check(t, fresh.Release(t.Context()))
	check(t, lock.Release(t.Context()))
	check(t, receive(t, "the grant", granted).Release(t.Context()))
}

func TestAClientFollowsASlotThatMovedWithoutNotice(t *testing.T) {
	t.Parallel()
	const key, slot = "a", 15495
	nodes := startCluster(t)
	from, to := nodes[2], nodes[0]
	client := newClient(t, newClusterClient(t, nodes))
	late := newClient(t, newClusterClient(t, nodes), lockward.WithPatience(3*time.Second))
	for _, client := range []*lockward.Client{client, late} {
		check(t, client.Do(t.Context(), key, func(context.Context, *lockward.Lock) error { return nil }))
	}
	now := to.do("CLUSTER", "MYID")
	// The new node comes last: its claim is older than that of a node which still has the slot.
	for _, node := range []*server{from, nodes[1], to} {
		node.do("CLUSTER", "SETSLOT", slot, "NODE", now)
	}
	lock := acquire(t, client, key)
	if holders, _ := to.info(key); len(holders) != 1 {
		t.Fatal("it is not on the new node")
	}
	check(t, lock.Release(t.Context()))
	to.kill()
	_, err := late.Acquire(t.Context(), key)
	expect(t, err, lockward.ErrUnreachable)
}
