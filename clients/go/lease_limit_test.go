package lockward_test

import (
	"testing"
	"time"

	"lockward"
)

func TestALeaseThatBecomesTooLongIsShortened(t *testing.T) {
	t.Parallel()
	for _, setting := range []string{"lock.max-lease", "lock.quarantine"} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, "lock.default-lease 7000")
			client := newClient(t, s.client())
			locks := []*lockward.Lock{
				acquire(t, client, "named", lockward.WithLease(6*time.Second)),
				acquire(t, client, "unnamed"),
				acquire(t, client, "asked", lockward.WithLease(time.Hour)),
			}
			asked := locks[2]
			fixed := acquire(t, client, "fixed", lockward.WithLease(time.Hour), lockward.WithoutRenewal())
			end := fixed.Until()
			s.do("CONFIG", "SET", setting, "4000")
			check(t, fixed.Reenter(t.Context()))
			check(t, asked.Reenter(t.Context()))
			before := time.Now()
			check(t, asked.Renew(t.Context()))
			if lease := asked.Until().Sub(before); lease < 3900*time.Millisecond || lease > 4*time.Second+time.Since(before) {
				t.Fatal(lease)
			}
			for _, lock := range locks {
				eventually(t, "its lease is shorter", func() bool { return time.Until(lock.Until()) < 4*time.Second })
				short := lock.Until()
				eventually(t, "the shorter lease is renewed", func() bool { return lock.Until().After(short) })
				holders, _ := s.info(lock.Key())
				if !lock.Held() || len(holders) != 1 || holders[0].token != lock.Token() {
					t.Fatal(lock.Key(), holders)
				}
			}
			refused(t, fixed.Renew(t.Context()), "ERR") // nobody would renew a shorter lease
			if !fixed.Held() || fixed.Until() != end {
				t.Fatal(fixed.Until(), end)
			}
			for _, lock := range append(locks, asked, fixed, fixed) {
				check(t, lock.Release(t.Context()))
			}
		})
	}
}

func TestATenureIsRestoredWithAShorterLease(t *testing.T) {
	t.Parallel()
	s := startServer(t, "lock.quarantine 4000")
	s.do("CONFIG", "SET", "lock.quarantine", "0")
	client := newClient(t, s.client())
	entered := acquire(t, client, "entered", lockward.WithLease(time.Minute))
	left := acquire(t, client, "left", lockward.WithLease(time.Minute))
	s.kill()
	s.start()
	check(t, entered.Reenter(t.Context()))
	check(t, left.Release(t.Context()))
	if holders, _ := s.info("entered"); len(holders) != 1 || holders[0] != (holder{entered.Owner(), entered.Token(), 2}) {
		t.Fatal(holders)
	}
	if left := time.Until(entered.Until()); !entered.Held() || left > 4*time.Second {
		t.Fatal(left)
	}
}
