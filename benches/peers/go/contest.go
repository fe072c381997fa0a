// The clients of a peer, and their counters.

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

const (
	warmUp = 1500 * time.Millisecond
	// How long all clients together may take to connect, and how long they may take to end.
	patience = 30 * time.Second
)

var (
	errGaveUp = errors.New("the library gave up")
	errOver   = errors.New("the time is up")
)

// A contest lets the clients of a peer acquire and release for a while. The contest counts the grants between the end
// of the warm-up and the end of the job. A client that waits at the end of the job stops waiting.
type contest struct {
	peer     peer
	address  string
	job      string
	duration time.Duration

	// When counting begins and ends.
	from, to time.Time
	// A counter of grants for each lock. Only the lock protects its counter, so a missing grant shows that two clients held the
	// lock at once.
	counters []int64
	tallies  []tally
	// In the job "contended": the last holder. Only the lock protects this field.
	holder int
	// In the jobs with several holders: the sum of the holders' weights, and the number of grants that kept this sum within the
	// limit.
	held, allowed atomic.Int64
}

// The measurements of one client.
type tally struct {
	gaveUp int64
	// The grants to this client that directly followed a grant to another client.
	handoffs int64
	// How long the client waited for each counted grant, in microseconds.
	waits []int64
}

func (c *contest) run(count int) (*answer, error) {
	ctx, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
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
	return c.answer(), nil
}

func (c *contest) connect(ctx context.Context, count int) ([]client, error) {
	// The process id makes the numbers unique: the server may still hold the locks of an earlier run.
	lock := int64(os.Getpid()) << 16
	var clients []client
	for index := range count {
		client, err := c.peer.connect(ctx, c.address, lock, shareOf(c.job, index))
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
			tally.waits = append(tally.waits, granted.Sub(asked).Microseconds())
		}
		// The release does not use ctx, because ctx may have ended while the client held the lock.
		if err := client.release(context.Background()); err != nil {
			return fmt.Errorf("release: %w", err)
		}
	}
	return nil
}

// Count is the work of a client that holds the lock alone.
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

// Hold is the work of a client that shares the lock.
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

func (c *contest) answer() *answer {
	result := &answer{BeganMs: c.from.UnixMilli(), WaitsUs: make([][]int64, len(c.tallies))}
	for index := range c.tallies {
		tally := &c.tallies[index]
		result.WaitsUs[index] = append([]int64{}, tally.waits...)
		result.Counter += c.counters[index]
		result.Handoffs += tally.handoffs
		result.GaveUp += tally.gaveUp
	}
	if isShared(c.job) {
		result.Counter = c.allowed.Load()
	}
	return result
}

// Within runs work until the context ends, or until the time limit.
func within(ctx context.Context, work func() error) error {
	done := make(chan error, 1)
	go func() { done <- work() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(patience):
		return fmt.Errorf("the clients did not connect or end within %v", patience)
	}
}
