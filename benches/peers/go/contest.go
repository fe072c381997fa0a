package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	warmUp = 1500 * time.Millisecond
	// How long it may take for all clients to connect, or to end.
	patience = 30 * time.Second
)

var (
	errGaveUp = errors.New("the library gave up")
	errOver   = errors.New("the time is up")
)

// A contest lets the clients of a peer acquire and release for a while. Grants count from the end of the warm-up to the
// end of the time; a client that then still waits stops waiting.
type contest struct {
	peer     peer
	address  string
	job      string
	duration time.Duration

	// When counting begins and ends.
	from, to time.Time
	// By lock. Nothing but the lock protects them: grants that are missing here show that it did not exclude.
	counters []int64
	tallies  []tally
	// The client that had the lock of all last, protected likewise.
	holder int
	// How much is held now, where several clients may hold the lock, and the grants after which it was no more than allowed.
	held, allowed atomic.Int64
}

// What one client has seen.
type tally struct {
	grants, gaveUp int64
	// Grants after another client's.
	handoffs int64
	waits    []time.Duration
}

func (c *contest) run(count int) (*outcome, error) {
	ctx, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	go watch(ctx, stop, c.address)
	var clients []client
	err := within(ctx, func() (err error) {
		clients, err = c.connect(ctx, count)
		return err
	})
	if err != nil {
		return nil, err
	}

	c.counters = make([]int64, count)
	c.tallies = make([]tally, count)
	c.from = time.Now().Add(warmUp)
	c.to = c.from.Add(c.duration)
	time.AfterFunc(time.Until(c.to), func() { stop(errOver) })
	var loops sync.WaitGroup
	for index := range clients {
		loops.Go(func() {
			if err := c.loop(ctx, clients[index], index); err != nil {
				stop(fmt.Errorf("client %d: %w", index+1, err))
			}
		})
	}
	<-ctx.Done()
	if reason := context.Cause(ctx); reason != errOver {
		return nil, reason
	}
	err = within(context.Background(), func() error {
		loops.Wait()
		for _, client := range clients {
			client.close()
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	result := c.outcome()
	if result.Operations == 0 {
		return nil, errors.New("no client got a lock while it counted")
	}
	return result, nil
}

func (c *contest) connect(ctx context.Context, count int) ([]client, error) {
	// Numbers that no earlier run has left behind in the server.
	lock := int64(os.Getpid()) << 16
	var clients []client
	for index := range count {
		client, err := c.connectOne(ctx, lock, index)
		if err != nil {
			return nil, fmt.Errorf("client %d cannot connect: %w", index+1, err)
		}
		clients = append(clients, client)
		if c.job == uncontended {
			lock++
		}
	}
	return clients, nil
}

func (c *contest) connectOne(ctx context.Context, lock int64, index int) (client, error) {
	if c.peer.connectShare == nil {
		return c.peer.connect(ctx, c.address, lock)
	}
	return c.peer.connectShare(ctx, c.address, lock, shareOf(c.job, index))
}

func (c *contest) loop(ctx context.Context, client client, index int) error {
	tally := &c.tallies[index]
	for ctx.Err() == nil {
		asked := time.Now()
		err := client.acquire(ctx)
		for errors.Is(err, errGaveUp) {
			if c.counts(time.Now()) {
				tally.gaveUp++
			}
			err = client.acquire(ctx)
		}
		if ctx.Err() != nil && err != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("acquire: %w", err)
		}
		granted := time.Now()
		isCounted := c.counts(granted)
		if isShared(c.job) {
			c.hold(index, isCounted)
		} else if isCounted {
			c.count(index)
		}
		if isCounted {
			tally.grants++
			tally.waits = append(tally.waits, granted.Sub(asked))
		}
		// Not with ctx, which may end meanwhile.
		if err := client.release(context.Background()); err != nil {
			return fmt.Errorf("release: %w", err)
		}
	}
	return nil
}

// Count is what a client does while it alone holds the lock.
func (c *contest) count(index int) {
	counter := &c.counters[0]
	if c.job == uncontended {
		counter = &c.counters[index]
	}
	before := *counter
	runtime.Gosched()
	*counter = before + 1
	if c.job == contended && c.holder != index {
		c.tallies[index].handoffs++
		c.holder = index
	}
}

// Hold is what a client does while it holds what others may hold too.
func (c *contest) hold(index int, isCounted bool) {
	weight := shareOf(c.job, index).weight
	if c.held.Add(weight) <= limitOf(c.job) && isCounted {
		c.allowed.Add(1)
	}
	time.Sleep(holdTime)
	c.held.Add(-weight)
}

func (c *contest) counts(now time.Time) bool {
	return !now.Before(c.from) && now.Before(c.to)
}

func (c *contest) outcome() *outcome {
	result := &outcome{
		Clients:   len(c.tallies),
		BeganMs:   c.from.UnixMilli(),
		ElapsedMs: c.duration.Milliseconds(),
	}
	var waits, writers []time.Duration
	for index := range c.tallies {
		tally := &c.tallies[index]
		result.Operations += tally.grants
		result.Counter += c.counters[index]
		result.Grants = append(result.Grants, tally.grants)
		result.Handoffs += tally.handoffs
		result.GaveUp += tally.gaveUp
		if shareOf(c.job, index).isWriter {
			writers = append(writers, tally.waits...)
		} else {
			waits = append(waits, tally.waits...)
		}
	}
	result.AcquireUs = percentilesOf(waits)
	if isShared(c.job) {
		result.Counter = c.allowed.Load()
	}
	if c.job == readers {
		times := percentilesOf(writers)
		result.WritersUs = &times
	}
	return result
}

// Watch ends the contest when the server is gone. Libraries that try again and again would take long to say so.
func watch(ctx context.Context, stop context.CancelCauseFunc, address string) {
	for failures := 0; ctx.Err() == nil; time.Sleep(time.Second) {
		connection, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			connection.Close()
			failures = 0
			continue
		}
		if failures++; failures == 2 {
			stop(fmt.Errorf("the server is gone: %w", err))
		}
	}
}

// Within lets work be done while the context lasts, but not for ever.
func within(ctx context.Context, work func() error) error {
	done := make(chan error, 1)
	go func() { done <- work() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(patience):
		return fmt.Errorf("the clients do not connect, or end, within %v", patience)
	}
}

// How long grants took, in microseconds from asking to having.
type percentiles struct {
	P50 int64 `json:"p50"`
	P99 int64 `json:"p99"`
	Max int64 `json:"max"`
}

func percentilesOf(waits []time.Duration) percentiles {
	if len(waits) == 0 {
		return percentiles{}
	}
	slices.Sort(waits)
	at := func(percent int) int64 { return waits[(len(waits)-1)*percent/100].Microseconds() }
	return percentiles{P50: at(50), P99: at(99), Max: at(100)}
}
