package lockward

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// grace is how long after the deadline of a waiter the server may tell that it was reached.
	grace = 100 * time.Millisecond
	// longest is the longest wait limit that is asked for, in milliseconds: ten years.
	longest = 10 * 365 * 24 * 3_600_000
)

// An AcquireOption sets what an acquisition asks for.
type AcquireOption func(*claim)

// A claim is what an acquisition asks for.
type claim struct {
	key, owner string
	lease      int64 // milliseconds; 0: the server's default
	named      bool  // the lease
	renewed    bool
	replicas   int
	within     time.Duration
}

// WithLease sets how long the lock lasts unless it is renewed, in whole milliseconds, from 1 ms to what the server allows.
// Without it, that is as long as the server's setting lock.default-lease says, and the caller needs permission to LOCK.INFO.
func WithLease(lease time.Duration) AcquireOption {
	return func(cl *claim) { cl.lease, cl.named = lease.Milliseconds(), true }
}

// WithoutRenewal lets the lock end with its lease, unless it is renewed by hand.
func WithoutRenewal() AcquireOption {
	return func(cl *claim) { cl.renewed = false }
}

// WithReplicas has the grant confirmed by so many replicas within a time, from a millisecond to a day, or gives it back and
// fails with ErrUnreplicated.
func WithReplicas(count int, within time.Duration) AcquireOption {
	return func(cl *claim) {
		cl.replicas, cl.within = count, min(max(within, time.Millisecond), 24*time.Hour)
	}
}

// Acquire acquires a lock, waiting in the server's queue if need be, until the context ends. Any string is a name; in a
// cluster, what stands in {...} decides which node has it. Each Lock has an owner of its own: of two goroutines that acquire
// the same lock, the second waits for the first.
//
// After any error nothing is held. It is ErrBusy when the context's deadline has passed and the lock was not to be had;
// the cause of the context when it is cancelled, which leaves the queue at once; ErrUnreachable when no server answers; a
// *ServerError when the server refuses; ErrUnreplicated; ErrClosed.
func (c *Client) Acquire(ctx context.Context, key string, options ...AcquireOption) (*Lock, error) {
	return c.acquire(ctx, key, true, options)
}

// TryAcquire acquires a lock if it is free, or else fails with ErrBusy at once; otherwise it is as Acquire.
func (c *Client) TryAcquire(ctx context.Context, key string, options ...AcquireOption) (*Lock, error) {
	return c.acquire(ctx, key, false, options)
}

func (c *Client) acquire(ctx context.Context, key string, waits bool, options []AcquireOption) (*Lock, error) {
	cl := claim{key: key, owner: c.newOwner(), renewed: true}
	for _, option := range options {
		option(&cl)
	}
	ctx, end, err := c.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	if ctx.Err() != nil {
		return nil, ended(ctx)
	}
	a := acquisition{client: c, claim: cl}
	lock, err := a.run(ctx, waits)
	if err == nil && ctx.Err() != nil {
		lock.mu.Lock()
		lock.finish(ErrReleased)
		lock.mu.Unlock()
		a.atStake, err = true, ended(ctx)
	}
	if err == nil {
		return lock, nil
	}
	if a.atStake {
		select {
		case <-c.leave(max(c.patience, a.lasts()), a.giveBack):
		case <-ctx.Done():
		case <-time.After(c.patience):
		}
	}
	return nil, err
}

// An acquisition is under way.
type acquisition struct {
	claim
	client  *Client
	waited  bool // it may stand in the queue
	atStake bool // it may leave that, or a grant, behind
}

// A grant is what the server has granted.
type grant struct {
	token int64
	lease int64     // milliseconds
	sent  time.Time // from when it counts
}

// run acquires the lock.
func (a *acquisition) run(ctx context.Context, waits bool) (*Lock, error) {
	got, err := a.ask(ctx, a.client.patience, a.client.responseLimit+a.within, time.Time{})
	for err == nil {
		confirmed := false
		if got != nil {
			confirmed, err = a.confirm(ctx, got)
		}
		switch {
		case err != nil:
		case confirmed:
			return newLock(a.client, a.claim, got), nil
		case waits:
			got, err = a.wait(ctx)
		default:
			err = ErrBusy
		}
	}
	return nil, err
}

// wait stands in the queue, on one of the connections for that. Until there is one it tries now and then: all may be taken by
// those who wait for a lock that the caller holds.
func (a *acquisition) wait(ctx context.Context) (*grant, error) {
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		select {
		case a.client.waiting <- struct{}{}:
			defer func() { <-a.client.waiting }()
			return a.queue(ctx)
		case <-ctx.Done():
			return nil, busy(ctx)
		case <-time.After(pause):
		}
		if got, err := a.ask(ctx, a.client.patience, a.client.responseLimit+a.within, time.Time{}); got != nil || err != nil {
			return got, err
		}
	}
}

// queue stands in the queue.
func (a *acquisition) queue(ctx context.Context) (*grant, error) {
	a.waited = true
	deadline, limited := ctx.Deadline()
	if !limited {
		return a.ask(ctx, a.client.patience, 0, deadline)
	}
	// At the deadline the server answers null: then there is nothing to be given back.
	ctx, cancel := until(ctx, deadline.Add(grace))
	defer cancel()
	got, err := a.ask(ctx, math.MaxInt64, 0, deadline)
	if got == nil && err == nil {
		return nil, fmt.Errorf("%w: %w", ErrBusy, context.DeadlineExceeded)
	}
	return got, err
}

// ask asks for the lock, and waits for it where there is no limit to the reply: until the deadline, if there is one. It
// returns nil where the lock is busy.
func (a *acquisition) ask(
	ctx context.Context, patience, limit time.Duration, deadline time.Time,
) (*grant, error) {
	answered, err := a.client.ask(ctx, a.key, patience, limit, func(sent time.Time) []command {
		acquire := command{"LOCK.ACQUIRE", a.key, a.owner, "HOLDS", 1}
		if a.named {
			acquire = append(acquire, "PX", a.lease)
		}
		if limit == 0 {
			block := int64(0) // without limit
			if !deadline.IsZero() {
				// The server's clock may just be about to tick.
				block = min(max(1, deadline.Sub(sent).Milliseconds()+2), longest)
			}
			acquire = append(acquire, "BLOCK", block)
		}
		commands := []command{acquire}
		if !a.named {
			commands = append(commands, command{"LOCK.INFO", a.key})
		}
		if a.replicas > 0 {
			commands = append(commands, command{"WAIT", a.replicas, a.within.Milliseconds()})
		}
		return commands
	})
	if err != nil {
		a.atStake = a.atStake || answered.repeated
		return nil, err
	}
	if refusal := answered.said(); refusal != nil {
		a.atStake = answered.repeated
		return nil, refusal
	}
	if errors.Is(answered.replies[0].Err(), redis.Nil) {
		a.atStake = false
		return nil, nil
	}
	a.atStake = true
	reply, err := answered.replies[0].Int64Slice()
	if err != nil || len(reply) != 2 {
		return nil, fmt.Errorf("lockward: unexpected reply: %v", answered.replies[0])
	}
	got := &grant{token: reply[0], lease: a.lease, sent: answered.sent}
	if !a.named {
		if got.lease, err = leaseLeft(answered.replies[1], got.token); err != nil {
			return nil, err
		}
	}
	if a.replicas > 0 {
		reached, err := answered.replies[len(answered.replies)-1].Int()
		if refusal := said(err); refusal != nil {
			return nil, refusal
		}
		if reached < a.replicas {
			return nil, fmt.Errorf("%w: %d of %d", ErrUnreplicated, reached, a.replicas)
		}
	}
	return got, nil
}

// confirm tells whether a grant is to be relied on. If it was long in coming, its lease may be over by the clock of this
// process, which counts from before it was asked for. So that is renewed before anybody hears of it.
func (a *acquisition) confirm(ctx context.Context, got *grant) (bool, error) {
	if got.lease == 0 {
		return false, nil
	}
	if time.Since(got.sent) <= time.Duration(got.lease)*time.Millisecond/3 {
		return true, nil
	}
	c := a.client
	answered, err := c.ask(ctx, a.key, c.patience, c.responseLimit, func(time.Time) []command {
		return []command{a.renew(got.lease, got.token, 1)}
	})
	if err != nil && ctx.Err() != nil {
		return false, busy(ctx)
	}
	if err != nil {
		return false, err
	}
	if refusal := answered.said(); refusal.tooLong() && !a.named && got.lease > 1 {
		got.lease /= 2
		return a.confirm(ctx, got)
	} else if refusal != nil {
		if refusal.gone() {
			return false, nil
		}
		return false, refusal
	}
	got.sent = answered.sent
	return true, nil
}

// renew gives a tenure a lease.
func (cl *claim) renew(lease, token int64, holds int) command {
	return command{"LOCK.RENEW", cl.key, cl.owner, "PX", lease, "TOKEN", token, "HOLDS", holds}
}

// lasts is how long what is left behind may be held: an hour, where the lease is the server's own and may be anything.
func (a *acquisition) lasts() time.Duration {
	if !a.named {
		return time.Hour
	}
	return time.Duration(min(a.lease, longest)) * time.Millisecond
}

// giveBack leaves the queue, and gives back what may have been granted. The server may not have heard yet that who waits
// there has left: so its place is taken over, for an instant.
func (a *acquisition) giveBack(ctx context.Context) {
	commands := []command{{"LOCK.RELEASE", a.key, a.owner, "HOLDS", 0}}
	if a.waited {
		takeOver := command{"LOCK.ACQUIRE", a.key, a.owner, "HOLDS", 1, "PX", 1, "BLOCK", 1}
		commands = append([]command{takeOver}, commands...)
	}
	c := a.client
	// What cannot be given back ends with its lease.
	_, _ = c.ask(ctx, a.key, math.MaxInt64, c.responseLimit, func(time.Time) []command { return commands })
}

// leaseLeft is what LOCK.INFO tells of the tenure with a token, in milliseconds; 0 if it is over.
func leaseLeft(info *redis.Cmd, token int64) (int64, error) {
	if refusal := said(info.Err()); refusal != nil {
		return 0, refusal
	}
	lock, _ := info.Slice()
	holders, _ := field(lock, "holders").([]any)
	for _, holder := range holders {
		holder, _ := holder.([]any)
		if field(holder, "token") == token {
			left, _ := field(holder, "lease-left").(int64)
			return left, nil
		}
	}
	return 0, nil
}

// field is a value of a map, as RESP2 tells it.
func field(pairs []any, name string) any {
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i] == name {
			return pairs[i+1]
		}
	}
	return nil
}

// until is a context that ends with another one, but at a later deadline.
func until(ctx context.Context, deadline time.Time) (context.Context, func()) {
	later, cancelDeadline := context.WithDeadline(context.WithoutCancel(ctx), deadline)
	later, cancel := context.WithCancelCause(later)
	stop := context.AfterFunc(ctx, func() {
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			cancel(context.Cause(ctx))
		}
	})
	return later, func() { stop(); cancel(nil); cancelDeadline() }
}
