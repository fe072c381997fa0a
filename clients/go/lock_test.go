package lockward_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"lockward"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newClient is a client that ends with the test.
func newClient(tb testing.TB, rdb redis.UniversalClient, options ...lockward.Option) *lockward.Client {
	tb.Helper()
	client, err := lockward.New(rdb, options...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = client.Close() })
	return client
}

func acquire(tb testing.TB, client *lockward.Client, key string, options ...lockward.AcquireOption) *lockward.Lock {
	tb.Helper()
	lock, err := client.Acquire(tb.Context(), key, options...)
	if err != nil {
		tb.Fatal(err)
	}
	return lock
}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func expect(tb testing.TB, err error, wanted ...error) {
	tb.Helper()
	for _, want := range wanted {
		if !errors.Is(err, want) {
			tb.Fatalf("got %v, not %v", err, want)
		}
	}
}

func TestAcquireAndRelease(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	first := acquire(t, client, "k")
	if !first.Held() || first.Holds() != 1 {
		t.Fatal("not held")
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
	second := acquire(t, client, "k", lockward.WithLease(time.Minute))
	if second.Token() <= first.Token() || second.Owner() == first.Owner() {
		t.Fatal(first.Token(), second.Token())
	}
	check(t, second.Release(context.Background()))
}
