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

// A jobRun lets the clients of a peer acquire and release for a while. The jobRun counts the grants between the end
// of the warm-up and the end of the job. A client that waits at the end of the job stops waiting.
type jobRun struct {
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

func (r *jobRun) run(count int) (*answer, error) {
	ctx, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	var clients []client
	err := within(ctx, func() (err error) {
		clients, err = r.connect(ctx, count)
		return err
	})
	if err != nil {
		return nil, err
	}

	r.counters = make([]int64, count)
	r.tallies = make([]tally, count)
	r.from = time.Now().Add(warmUp)
	r.to = r.from.Add(r.duration)
	time.AfterFunc(time.Until(r.to), func() { stop(errOver) })
	var loops sync.WaitGroup
	for index := range clients {
		loops.Go(func() {
			if err := r.loop(ctx, clients[index], index); err != nil {
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
	return r.answer(), nil
}

func (r *jobRun) connect(ctx context.Context, count int) ([]client, error) {
	// The process id makes the numbers unique: the server may still hold the locks of an earlier run.
	lock := int64(os.Getpid()) << 16
	var clients []client
	for index := range count {
		client, err := r.peer.connect(ctx, r.address, lock, shareOf(r.job, index))
		if err != nil {
			return nil, fmt.Errorf("client %d cannot connect: %w", index+1, err)
		}
		clients = append(clients, client)
		if r.job == uncontended {
			lock++
		}
	}
	return clients, nil
}

func (r *jobRun) loop(ctx context.Context, client client, index int) error {
	tally := &r.tallies[index]
	for ctx.Err() == nil {
		asked := time.Now()
		err := client.acquire(ctx)
		for errors.Is(err, errGaveUp) {
			if r.counts(time.Now()) {
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
		isCounted := r.counts(granted)
		if isShared(r.job) {
			r.hold(index, isCounted)
		} else if isCounted {
			r.count(index)
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
func (r *jobRun) count(index int) {
	counter := &r.counters[0]
	if r.job == uncontended {
		counter = &r.counters[index]
	}
	before := *counter
	runtime.Gosched()
	*counter = before + 1
	if r.job == contended && r.holder != index {
		r.tallies[index].handoffs++
		r.holder = index
	}
}

// Hold is the work of a client that shares the lock.
func (r *jobRun) hold(index int, isCounted bool) {
	weight := shareOf(r.job, index).weight
	if r.held.Add(weight) <= limitOf(r.job) && isCounted {
		r.allowed.Add(1)
	}
	time.Sleep(holdTime)
	r.held.Add(-weight)
}

func (r *jobRun) counts(now time.Time) bool {
	return !now.Before(r.from) && now.Before(r.to)
}

func (r *jobRun) answer() *answer {
	result := &answer{BeganMs: r.from.UnixMilli(), WaitsUs: make([][]int64, len(r.tallies))}
	for index := range r.tallies {
		tally := &r.tallies[index]
		result.WaitsUs[index] = append([]int64{}, tally.waits...)
		result.Counter += r.counters[index]
		result.Handoffs += tally.handoffs
		result.GaveUp += tally.gaveUp
	}
	if isShared(r.job) {
		result.Counter = r.allowed.Load()
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
