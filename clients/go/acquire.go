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
	// replyMargin is how long after the deadline of a waiter the server's null may arrive.
	replyMargin = 100 * time.Millisecond
	// maxWait is the longest wait limit that is sent, in milliseconds: ten years.
	maxWait = 10 * 365 * 24 * 3_600_000
)

// An AcquireOption sets what an acquisition asks for.
type AcquireOption func(*acquireRequest)

// ownedKey is a lock's key and the owner that requests are sent for.
type ownedKey struct{ key, owner string }

// An acquireRequest is what an acquisition asks for.
type acquireRequest struct {
	ownedKey
	mode      command // the arguments that say with whom the lock is shared
	lease     int64   // milliseconds
	hasLease  bool    // otherwise the server's default is asked for
	isRenewed bool
	replicas  int
	within    time.Duration // for the replicas
}

// acquire is the command that leads to so many holds.
func (r *acquireRequest) acquire(holds int) command {
	return append(command{"LOCK.ACQUIRE", r.key, r.owner, "HOLDS", holds}, r.mode...)
}

// renew is the command that gives a tenure a lease in milliseconds. In quarantine it restores a tenure that the server has
// forgotten.
func (r *acquireRequest) renew(lease, token int64, holds int) command {
	return append(command{"LOCK.RENEW", r.key, r.owner, "PX", lease, "TOKEN", token, "HOLDS", holds}, r.mode...)
}

// Shared acquires the lock together with all others who ask for it as Shared: a read lock. Without Shared or Slots, the lock
// is exclusive.
func Shared() AcquireOption {
	return func(r *acquireRequest) { r.mode = append(r.mode, "SHARED") }
}

// Slots acquires one of n slots of the lock: a semaphore. n is 1 to 1,000,000, and should be the same for all.
func Slots(n int) AcquireOption {
	return func(r *acquireRequest) { r.mode = append(r.mode, "SLOTS", n) }
}

// Weight acquires w of the Slots, and not one: 1 to the number of slots.
func Weight(w int) AcquireOption {
	return func(r *acquireRequest) { r.mode = append(r.mode, "WEIGHT", w) }
}

// WithLease sets the lease, in whole milliseconds, from 1 ms to the longest that the server takes. Without it, the lease is
// the server's setting lock.default-lease.
func WithLease(lease time.Duration) AcquireOption {
	return func(r *acquireRequest) { r.lease, r.hasLease = lease.Milliseconds(), true }
}

// WithoutRenewal lets the lock end with its lease, unless the caller calls Renew.
func WithoutRenewal() AcquireOption {
	return func(r *acquireRequest) { r.isRenewed = false }
}

// WithReplicas acquires the lock only if count replicas confirm the grant in time: from a millisecond to a day. Otherwise the
// lock is given back, and the error is ErrUnreplicated.
func WithReplicas(count int, within time.Duration) AcquireOption {
	return func(r *acquireRequest) {
		r.replicas, r.within = count, min(max(within, time.Millisecond), 24*time.Hour)
	}
}

// Acquire acquires a lock. If the lock is held, Acquire waits in the server's queue until ctx ends. Any string is a key; in a
// cluster, the part in {...} decides which node has it. Each Lock has an owner of its own: of two goroutines that acquire the
// same lock, the second waits for the first.
//
// After an error nothing is held. The error is ErrBusy when the deadline of ctx has passed and the lock was not free; the
// cause of ctx when it is cancelled, and then the caller has left the queue; ErrUnreachable when no server answers; a
// *ServerError when the server refuses; ErrUnreplicated; ErrClosed.
func (c *Client) Acquire(ctx context.Context, key string, options ...AcquireOption) (*Lock, error) {
	return c.acquire(ctx, key, true, options)
}

// TryAcquire acquires a lock if it is free, or else fails with ErrBusy at once. Otherwise it is like Acquire.
func (c *Client) TryAcquire(ctx context.Context, key string, options ...AcquireOption) (*Lock, error) {
	return c.acquire(ctx, key, false, options)
}

func (c *Client) acquire(ctx context.Context, key string, mayWait bool, options []AcquireOption) (*Lock, error) {
	request := acquireRequest{ownedKey: ownedKey{key, c.newOwner()}, isRenewed: true}
	for _, option := range options {
		option(&request)
	}
	ctx, end, err := c.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	if ctx.Err() != nil {
		return nil, contextError(ctx)
	}
	p := pendingAcquire{acquireRequest: request, client: c}
	lock, err := p.run(ctx, mayWait)
	if err == nil && ctx.Err() != nil {
		lock.mu.Lock()
		lock.finish(ErrReleased)
		lock.mu.Unlock()
		p.mayBeGranted, err = true, contextError(ctx)
	}
	if err == nil {
		return lock, nil
	}
	if p.mayBeGranted {
		select {
		case <-c.runInBackground(max(c.patience, p.maxLease()), p.withdraw):
		case <-ctx.Done():
		case <-time.After(c.patience):
		}
	}
	return nil, err
}

// A pendingAcquire is an acquisition under way. The server may have granted it, or queued it, without the client knowing.
type pendingAcquire struct {
	acquireRequest
	client       *Client
	mayBeGranted bool
}

// A grant is what the server has granted.
type grant struct {
	token int64
	lease int64     // milliseconds
	sent  time.Time // the lease is counted from here
}

// run tries to acquire the lock, and waits for it if that is wanted.
func (p *pendingAcquire) run(ctx context.Context, mayWait bool) (*Lock, error) {
	granted, err := p.try(ctx)
	for err == nil {
		isConfirmed := false
		if granted != nil {
			isConfirmed, err = p.confirm(ctx, granted)
		}
		switch {
		case err != nil:
		case isConfirmed:
			return newLock(p.client, p.acquireRequest, granted), nil
		case mayWait:
			granted, err = p.wait(ctx)
		default:
			err = ErrBusy
		}
	}
	return nil, err
}

// wait waits in the server's queue, as soon as one of the connections for that is free. Until then it tries again now and
// then, because callers that wait for a lock which this caller holds may have taken all connections.
func (p *pendingAcquire) wait(ctx context.Context) (*grant, error) {
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		select {
		case p.client.waitPermits <- struct{}{}:
			defer func() { <-p.client.waitPermits }()
			return p.waitInQueue(ctx)
		case <-ctx.Done():
			return nil, busyError(ctx)
		case <-time.After(pause):
		}
		if granted, err := p.try(ctx); granted != nil || err != nil {
			return granted, err
		}
	}
}

func (p *pendingAcquire) waitInQueue(ctx context.Context) (*grant, error) {
	deadline, hasDeadline := ctx.Deadline()
	if !hasDeadline {
		return p.ask(ctx, p.client.patience, 0, deadline)
	}
	// At the deadline the server replies null. Then there is nothing to be withdrawn.
	ctx, cancel := withLaterDeadline(ctx, deadline.Add(replyMargin))
	defer cancel()
	granted, err := p.ask(ctx, math.MaxInt64, 0, deadline)
	if granted == nil && err == nil {
		return nil, fmt.Errorf("%w: %w", ErrBusy, context.DeadlineExceeded)
	}
	return granted, err
}

// try asks for the lock without waiting. It returns nil if the lock is busy.
func (p *pendingAcquire) try(ctx context.Context) (*grant, error) {
	return p.ask(ctx, p.client.patience, p.client.responseLimit+p.within, time.Time{})
}

// ask asks for the lock. If limit is 0, the server may let the request wait: until the deadline, if there is one. ask returns
// nil if the lock is busy.
func (p *pendingAcquire) ask(
	ctx context.Context, patience, limit time.Duration, deadline time.Time,
) (*grant, error) {
	reply, err := p.client.ask(ctx, p.key, patience, limit, func(sent time.Time) []command {
		return p.commands(sent, limit == 0, deadline)
	})
	if err != nil {
		p.mayBeGranted = p.mayBeGranted || reply.mayHaveRun
		return nil, err
	}
	if refusal := reply.serverError(); refusal != nil {
		p.mayBeGranted = reply.mayHaveRun
		return nil, refusal
	}
	if errors.Is(reply.replies[0].Err(), redis.Nil) {
		p.mayBeGranted = false
		return nil, nil
	}
	p.mayBeGranted = true
	return p.readGrant(reply)
}

// commands acquire the lock, and wait for replicas.
func (p *pendingAcquire) commands(sent time.Time, mayWait bool, deadline time.Time) []command {
	acquire := p.acquire(1)
	if p.hasLease {
		acquire = append(acquire, "PX", p.lease)
	}
	if mayWait {
		block := int64(0) // without limit
		if !deadline.IsZero() {
			// The server counts whole milliseconds: it must not reply before the deadline.
			block = min(max(1, deadline.Sub(sent).Milliseconds()+2), maxWait)
		}
		acquire = append(acquire, "BLOCK", block)
	}
	commands := []command{acquire}
	if p.replicas > 0 {
		commands = append(commands, command{"WAIT", p.replicas, p.within.Milliseconds()})
	}
	return commands
}

// readGrant reads the replies to commands, of which the first is not null.
func (p *pendingAcquire) readGrant(reply *answer) (*grant, error) {
	numbers, err := reply.replies[0].Int64Slice()
	if err != nil || len(numbers) != 3 {
		return nil, fmt.Errorf("lockward: unexpected reply: %v", reply.replies[0])
	}
	granted := &grant{token: numbers[0], lease: numbers[2], sent: reply.sent}
	if p.replicas > 0 {
		reached, err := reply.replies[len(reply.replies)-1].Int()
		if refusal := serverError(err); refusal != nil {
			return nil, refusal
		}
		if reached < p.replicas {
			return nil, fmt.Errorf("%w: %d of %d", ErrUnreplicated, reached, p.replicas)
		}
	}
	return granted, nil
}

// confirm returns whether the client can rely on a grant. The client counts the lease from before the request was sent, so
// after a long wait the lease may be over by its clock. Then confirm renews it first.
func (p *pendingAcquire) confirm(ctx context.Context, granted *grant) (bool, error) {
	if time.Since(granted.sent) <= time.Duration(granted.lease)*time.Millisecond/3 {
		return true, nil
	}
	c := p.client
	reply, err := c.ask(ctx, p.key, c.patience, c.responseLimit, func(time.Time) []command {
		return []command{p.renew(granted.lease, granted.token, 1)}
	})
	if err != nil && ctx.Err() != nil {
		return false, busyError(ctx)
	}
	if err != nil {
		return false, err
	}
	refusal := reply.serverError()
	switch {
	case refusal == nil:
		granted.sent = reply.sent
		return true, nil
	case !p.hasLease && refusal.isLeaseTooLong(granted.lease):
		granted.lease = refusal.longestLease()
		return p.confirm(ctx, granted)
	case refusal.deniesTenure():
		return false, nil
	}
	return false, refusal
}

// maxLease is how long the lock may stay held if it cannot be withdrawn: an hour, if the lease is the server's default, which
// the client does not know.
func (p *pendingAcquire) maxLease() time.Duration {
	if !p.hasLease {
		return time.Hour
	}
	return time.Duration(min(p.lease, maxWait)) * time.Millisecond
}

// withdraw leaves the queue, and gives back what may have been granted.
func (p *pendingAcquire) withdraw(ctx context.Context) {
	c := p.client
	// If no server answers, the lock ends with its lease.
	_, _ = c.ask(ctx, p.key, math.MaxInt64, c.responseLimit, func(time.Time) []command {
		return []command{{"LOCK.RELEASE", p.key, p.owner, "HOLDS", 0}}
	})
}

// withLaterDeadline returns a context that is cancelled with ctx, but has a later deadline.
func withLaterDeadline(ctx context.Context, deadline time.Time) (context.Context, func()) {
	later, cancelDeadline := context.WithDeadline(context.WithoutCancel(ctx), deadline)
	later, cancel := context.WithCancelCause(later)
	stop := context.AfterFunc(ctx, func() {
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			cancel(context.Cause(ctx))
		}
	})
	return later, func() { stop(); cancel(nil); cancelDeadline() }
}
