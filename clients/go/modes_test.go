package lockward_test

import (
	"errors"
	"testing"

	"lockward"
)

// acquireFree acquires the lock k, and does not wait.
func acquireFree(t *testing.T, client *lockward.Client, mode ...lockward.AcquireOption) *lockward.Lock {
	t.Helper()
	lock, err := client.TryAcquire(t.Context(), "k", mode...)
	check(t, err)
	return lock
}

func TestReadersHoldTogetherAndAWriterWaits(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s.client())
	readers := []*lockward.Lock{acquireFree(t, client, lockward.Shared()), acquireFree(t, client, lockward.Shared())}
	s.kill()
	s.tell("module quarantine 60000")
	s.start() // it has forgotten the readers, and restores them as readers
	for _, reader := range readers {
		check(t, reader.Renew(t.Context()))
		check(t, reader.Reenter(t.Context()))
		check(t, reader.Release(t.Context()))
	}
	s.do("CONFIG", "SET", "lock.quarantine", "0")
	writer, _ := acquiring(t.Context(), client, "k")
	s.waitFor("k", 1)
	if _, err := client.TryAcquire(t.Context(), "k", lockward.Shared()); !errors.Is(err, lockward.ErrBusy) {
		t.Fatal("a reader has overtaken a writer:", err)
	}
	if holders, _ := s.info("k"); len(holders) != 2 {
		t.Fatal(holders)
	}
	for _, reader := range readers {
		check(t, reader.Release(t.Context()))
	}
	check(t, receive(t, "the grant", writer).Release(t.Context()))
}

func TestTwoOfThreePermits(t *testing.T) {
	t.Parallel()
	client := newClient(t, startServer(t).client())
	two := acquireFree(t, client, lockward.Slots(3), lockward.Weight(2))
	one := acquireFree(t, client, lockward.Slots(3))
	if _, err := client.TryAcquire(t.Context(), "k", lockward.Slots(3)); !errors.Is(err, lockward.ErrBusy) {
		t.Fatal("a fourth permit:", err)
	}
	check(t, two.Release(t.Context()))
	check(t, acquireFree(t, client, lockward.Weight(2), lockward.Slots(3)).Release(t.Context()))
	check(t, one.Release(t.Context()))
	_, err := client.Acquire(t.Context(), "k", lockward.Slots(3), lockward.Weight(4))
	refused(t, err, "ERR")
}
