package lockward

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	acquireCommand = "LOCK.ACQUIRE"
	renewCommand   = "LOCK.RENEW"

	shortLease = 3000                   // the lease of a grant in the queue until the client confirms it, in milliseconds
	slice      = 10 * time.Second       // the wait limit of one request: a wait is a series of requests
	keep       = 5000                   // how long the server keeps the queue place between two requests, in milliseconds
	replyTime  = 5 * time.Millisecond   // the server ends a wait this long before the caller's deadline
	firstPause = 50 * time.Millisecond  // the pause before the second attempt; each later pause is twice as long, up to a second
	leaveLimit = 200 * time.Millisecond // how long a caller that leaves waits for a release
)

// An AcquireOption changes the settings of an acquisition.
type AcquireOption func(*settings)

// settings are the settings of an acquisition.
type settings struct {
	owner     string
	limit     []any // the arguments for how many owners may hold the lock
	weight    []any
	lease     int64         // in milliseconds; 0 means the server's default
	holdLimit time.Duration // 0 means no limit
	isRenewed bool
	mayWait   bool
	replicas  int
	within    time.Duration // the time limit for the replicas' confirmation
}

// Shared acquires a read lock: all owners that acquire the lock with Shared hold it together. Without Shared or Slots, the lock is
// exclusive.
func Shared() AcquireOption { return func(s *settings) { s.limit, s.weight = []any{"SHARED"}, nil } }

// Slots makes the lock a semaphore and acquires one of its n slots. n is 1 to 1,000,000. All callers should use the same n.
func Slots(n int) AcquireOption { return func(s *settings) { s.limit = []any{"SLOTS", n} } }

// Weight acquires w of the Slots instead of one. w is 1 to the number of slots.
func Weight(w int) AcquireOption { return func(s *settings) { s.weight = []any{"WEIGHT", w} } }

// WithLease sets the lease, in whole milliseconds and at least 1 ms. If the server refuses the lease as too long, the client uses
// the longest lease that the server accepts. Without WithLease, the lease is the server's setting lock.default-lease.
func WithLease(lease time.Duration) AcquireOption {
	return func(s *settings) { s.lease = max(lease.Milliseconds(), 1) }
}

// WithoutRenewal turns off automatic renewal: the lock is lost when its lease ends, unless the caller calls Renew.
func WithoutRenewal() AcquireOption { return func(s *settings) { s.isRenewed = false } }

// WithHoldLimit limits how long the lock is held, in spite of renewals. When limit has passed since the grant, the lock is lost.
// limit is at least 1 ms.
func WithHoldLimit(limit time.Duration) AcquireOption {
	return func(s *settings) { s.holdLimit = max(limit, time.Millisecond) }
}

// WithoutWaiting makes an acquisition fail at once with ErrBusy if the lock is not free.
func WithoutWaiting() AcquireOption { return func(s *settings) { s.mayWait = false } }

// WithOwner names the owner, in 1 to 1,024 bytes. Without WithOwner, each Lock has a new owner. If the named owner already holds the
// lock, the server grants the lock again, in the same tenure. Then the first release ends the tenure, so do not acquire a lock for an
// owner that already holds it.
func WithOwner(owner string) AcquireOption { return func(s *settings) { s.owner = owner } }

// WithReplicas acquires the lock only if count replicas confirm the grant within a time limit of 1 ms to a day. If they do not, the
// client releases the lock, and the error is ErrUnreplicated.
func WithReplicas(count int, within time.Duration) AcquireOption {
	return func(s *settings) {
		s.replicas, s.within = count, min(max(within, time.Millisecond), 24*time.Hour)
	}
}

// Acquire acquires a lock. If the lock is held, Acquire waits in the server's queue until ctx ends. A key may be any string. In a
// cluster, the part in {...} decides which node has the key. Each Lock has its own owner, so if two goroutines acquire the same
// lock, the second one waits for the first one.
//
// After an error the caller does not hold the lock. If the deadline of ctx passes while the lock is busy, the error is ErrBusy. If ctx
// is cancelled, Acquire leaves the queue at once, and the error is the cause of ctx. The other errors are ErrUnreachable, ErrRefused,
// ErrUnreplicated and ErrClosed.
func (c *Client) Acquire(ctx context.Context, key string, options ...AcquireOption) (*Lock, error) {
	return c.AcquireAll(ctx, []string{key}, options...)
}

// AcquireAll acquires several keys as one lock. The lock is lost when one of its keys is lost.
//
// AcquireAll first tries all keys at once. If a key is busy, it acquires one key after the other, in the order of their bytes, until
// ctx ends. If a key is lost before all keys are held, it starts over. If it fails, the caller holds none of the keys.
func (c *Client) AcquireAll(ctx context.Context, keys []string, options ...AcquireOption) (*Lock, error) {
	keys = slices.Compact(slices.Sorted(slices.Values(keys)))
	if len(keys) == 0 {
		return nil, errors.New("lockward: there is no key to acquire")
	}
	if !c.begin() {
		return nil, &keyError{ErrClosed, keys[0], nil}
	}
	defer c.running.Done()
	for isFirst := true; ; isFirst = false {
		// Unless the program names the owner, each round has a new one. Otherwise a late release of the previous round could end a
		// tenure of this round.
		t := c.newTenure(keys, settings{isRenewed: true, mayWait: true}, options)
		err := t.acquire(ctx, isFirst)
		if err == nil {
			return t.lock(), nil
		}
		t.giveBack(ctx, err)
		isLost := errors.Is(err, ErrLost) && !errors.Is(err, ErrClosed)
		isTried := isFirst && len(keys) > 1 && errors.Is(err, ErrBusy)
		isAnswered := !isFirst || slices.ContainsFunc(t.parts, func(p *part) bool { return p.node.Load() != nil })
		switch {
		case t.mayWait && isLost:
			sleep(ctx, time.Now().Add(firstPause)) // without this pause, very short leases would make this a busy loop
		case t.mayWait && isTried:
		case ctx.Err() != nil && t.mayWait && isAnswered && errors.Is(err, ErrUnreachable):
			return nil, t.parts[0].fail(ErrBusy, ctx.Err())
		default:
			return nil, err
		}
	}
}

// acquire acquires all keys, or ends the tenure. In the first round it tries all keys at once, and waits only if there is one key. In
// later rounds it waits for one key after the other.
func (t *tenure) acquire(ctx context.Context, isFirst bool) error {
	acquiring, cancel := joined(ctx, t.over) // a key may be lost while the client waits for a later key
	defer cancel()
	var err error
	if isFirst {
		err = t.take(acquiring, acquireCommand, t.client.patience, t.parts...)
	}
	if !isFirst || t.mayWait && len(t.parts) == 1 && errors.Is(err, ErrBusy) {
		err = nil
		for _, p := range t.parts {
			if err == nil {
				err = p.acquire(acquiring)
			}
		}
	}
	hasLeft, ended := ctx.Err() != nil, t.checkHeld()
	if hasLeft && (err == nil || ended != nil) {
		ended = contextError(ctx, t.parts[0].key, nil)
	}
	if err = cmp.Or(ended, err); err != nil {
		_ = t.end(err)
	}
	return err
}

// take sends the command name for all these keys at once, without waiting for a lock. The command is LOCK.ACQUIRE, or LOCK.RENEW for
// keys that were granted before. If a key is not granted, take returns ErrBusy. If no server answers within the patience, take fails.
// A patience of 0 means no limit.
func (t *tenure) take(ctx context.Context, name string, patience time.Duration, parts ...*part) error {
	if patience > 0 {
		patience += t.within // the replicas need time to confirm
	}
	calls := make([]*call, len(parts))
	for i, p := range parts {
		r := p.newCall(ctx, t.client.responseLimit+t.within, patience)
		if calls[i] = r; t.mayWait {
			r.patience = patience
		}
		r.isReplicated = t.replicas > 0
		r.isUnlimited = r.isReplicated // WAIT blocks, so it must not use up the permits of other requests
		r.request = func(r *call) command { return p.command(r, name, p.lease) }
		if r.read = p.readGrant; name == renewCommand {
			r.read = p.granted
		}
	}
	if err := t.client.ask(ctx, calls...); err != nil {
		return err
	}
	return t.hold(parts...)
}

// giveBack is called after an acquisition has failed. It removes the owner from the queues and releases the keys that may have been
// granted. If the caller's context has ended, giveBack does not wait for the releases, unless the program has named the owner.
func (t *tenure) giveBack(ctx context.Context, failure error) {
	var calls []*call
	for _, p := range t.parts {
		if p.mayBeHeld {
			r := p.newCall(ctx, p.client.responseLimit, p.client.patience)
			r.request = func(*call) command { return newCommand("LOCK.RELEASE", p.key, p.owner, "HOLDS", 0) }
			calls = append(calls, r)
		}
	}
	grace := leaveLimit
	if ctx.Err() != nil || errors.Is(failure, ErrUnreachable) {
		grace = 0
	}
	_ = t.leave(failure, grace, calls)
}

// leave sends calls that release keys, in the background. It returns when the calls have ended, or after the grace, with the error
// failure.
//
// If the program has named the owner, it may acquire the lock again, and a late release would end the new tenure. So the calls for a
// named owner end after 200 ms, and leave waits for their end. The caller of leave must have called begin.
func (t *tenure) leave(failure error, grace time.Duration, calls []*call) error {
	limit, late := t.client.patience, time.After(grace)
	if t.isOwnerNamed {
		limit, late = leaveLimit, nil
	}
	asking, stop := context.WithTimeout(context.Background(), limit)
	for _, r := range calls {
		r.ctx = asking
	}
	done := make(chan error, 1)
	t.client.running.Add(1)
	go func() {
		defer t.client.running.Done()
		defer stop()
		done <- t.client.ask(asking, calls...)
	}()
	select {
	case err := <-done:
		return err
	case <-late:
		return failure
	}
}

// acquire waits until the key is held. It waits in the server's queue as soon as a waiting connection is free. Callers get these
// connections first come, first served. Until acquire gets a connection, it polls. Without polling there could be a deadlock: callers
// that wait for a lock of this caller may use all connections.
func (p *part) acquire(ctx context.Context) (err error) {
	for pause := firstPause; ; pause = min(2*pause, time.Second) {
		turn, cancel := context.WithTimeout(ctx, pause)
		select {
		case p.client.waitPermits <- struct{}{}:
			err = p.wait(ctx)
		case <-turn.Done():
			err = p.take(ctx, acquireCommand, 0, p)
		}
		isBusy := errors.Is(err, ErrBusy) && !errors.Is(err, context.DeadlineExceeded)
		if isBusy {
			<-turn.Done() // without this pause, very short leases would make this a busy loop
		}
		cancel()
		if !isBusy {
			return err
		}
	}
}

// wait waits for a grant and confirms it. It waits in slices, one request each. Between two requests the server keeps the place in the
// queue, so a broken connection does not cost the place. If a slice gets no reply in time, the client knows that the server is gone.
//
// If the lease of the grant ends before the confirmation, wait returns ErrBusy. If the server ends the wait just before the deadline,
// the error is also context.DeadlineExceeded.
func (p *part) wait(ctx context.Context) error {
	defer func() { <-p.client.waitPermits }()
	deadline, hasDeadline := ctx.Deadline()
	isLast := false
	r := p.newCall(ctx, slice+p.client.responseLimit, 0)
	r.read, r.isUnlimited = p.readGrant, true
	r.request = func(r *call) command {
		arguments := []any{"BLOCK", slice.Milliseconds(), "KEEP", keep}
		if left := deadline.Sub(r.sent); hasDeadline && left <= slice {
			isLast = true
			arguments = []any{"BLOCK", max(1, (left - replyTime).Milliseconds())}
		}
		return p.command(r, acquireCommand, min(p.lease, shortLease), arguments...)
	}
	for {
		err := r.ask()
		switch {
		case err != nil:
			return err
		case p.mayBeHeld: // confirm the grant: renew its short lease to the full lease
			if err = p.take(ctx, renewCommand, p.client.patience, p); !p.mayBeHeld {
				err = p.fail(ErrBusy)
			}
			return err
		case isLast:
			return p.fail(ErrBusy, context.DeadlineExceeded)
		}
		p.mayBeHeld = true // the server keeps the place in the queue
	}
}

// readGrant reads the reply to LOCK.ACQUIRE.
func (p *part) readGrant(r *call, err error) error {
	p.deadline = time.Time{}
	if err != nil {
		p.mayBeHeld = p.mayBeHeld || r.isUncertain
		return err
	}
	if p.mayBeHeld = !errors.Is(r.replies[0].Err(), redis.Nil); !p.mayBeHeld {
		return nil
	}
	numbers, err := r.replies[0].Int64Slice()
	if err != nil || len(numbers) != 3 {
		return p.fail(ErrRefused, fmt.Errorf("unexpected reply: %v", r.replies[0]))
	}
	p.token = numbers[0]
	if p.lease == 0 { // the server has chosen the lease
		r.lease = numbers[2]
		p.setLease(r.lease)
	}
	return p.granted(r, nil)
}

// granted records the lease that a call has set. With WithReplicas, it also checks that enough replicas have confirmed the grant. If
// the server replies that the owner does not hold the lock, granted returns ErrLost.
func (p *part) granted(r *call, err error) error {
	if err != nil {
		if r.replies != nil && deniesTenure(err) {
			p.mayBeHeld = false
			return p.fail(ErrLost, err)
		}
		return err
	}
	p.extend(r)
	if !r.isReplicated {
		return nil
	}
	switch count, err := r.replies[1].Int(); {
	case err != nil:
		return p.fail(ErrRefused, err)
	case count < p.replicas:
		return p.fail(ErrUnreplicated, fmt.Errorf("%d of %d", count, p.replicas))
	}
	return nil
}

// command returns a request of this owner. clients/README.md defines the order of the arguments.
func (p *part) command(r *call, name string, lease int64, arguments ...any) command {
	words := append(make([]any, 0, 16), name, p.key, p.owner)
	if r.lease = lease; lease > 0 {
		words = append(words, "PX", lease)
	}
	if name == renewCommand {
		words = append(words, "TOKEN", p.token)
	}
	words = append(words, arguments...)
	words = append(words, "HOLDS", 1)
	words = append(words, p.limit...)
	return newCommand(append(words, p.weight...)...)
}
