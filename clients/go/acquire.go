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

	shortLease = 3000                   // milliseconds, of a grant that ends a wait, until it is confirmed
	slice      = 10 * time.Second       // a wait is repeated in slices of this length
	keep       = 5000                   // milliseconds, for which the server keeps the place between them
	replyTime  = 5 * time.Millisecond   // how long before the deadline of the caller the server ends a wait
	firstPause = 50 * time.Millisecond  // before a lock is asked for again, doubling to a second
	leaveLimit = 200 * time.Millisecond // how long a caller that leaves waits for a release
)

// An AcquireOption sets what an acquisition asks for.
type AcquireOption func(*settings)

// settings are what an acquisition asks for.
type settings struct {
	owner     string
	limit     []any // of the kind: how many may hold the lock
	weight    []any
	lease     int64         // milliseconds; 0 asks for the server's default
	holdLimit time.Duration // 0: none
	isRenewed bool
	mayWait   bool
	replicas  int
	within    time.Duration // for the replicas
}

// Shared acquires the lock together with all others who ask for it as Shared: a read lock. Without Shared or Slots, the lock
// is exclusive.
func Shared() AcquireOption { return func(s *settings) { s.limit, s.weight = []any{"SHARED"}, nil } }

// Slots acquires one of n slots of the lock: a semaphore. n is 1 to 1,000,000, and should be the same for all.
func Slots(n int) AcquireOption { return func(s *settings) { s.limit = []any{"SLOTS", n} } }

// Weight acquires w of the Slots, and not one: 1 to the number of slots.
func Weight(w int) AcquireOption { return func(s *settings) { s.weight = []any{"WEIGHT", w} } }

// WithLease sets the lease, in whole milliseconds, from 1 ms to the longest that the server takes: if it refuses a longer one,
// the client takes that. Without WithLease, the lease is the server's setting lock.default-lease.
func WithLease(lease time.Duration) AcquireOption {
	return func(s *settings) { s.lease = max(lease.Milliseconds(), 1) }
}

// WithoutRenewal lets the lock end with its lease, unless the caller calls Renew.
func WithoutRenewal() AcquireOption { return func(s *settings) { s.isRenewed = false } }

// WithHoldLimit lets the lock end so long after it was granted, however often it is renewed. It is lost then. limit is 1 ms or
// more.
func WithHoldLimit(limit time.Duration) AcquireOption {
	return func(s *settings) { s.holdLimit = max(limit, time.Millisecond) }
}

// WithoutWaiting lets an acquisition fail with ErrBusy at once if the lock is not free.
func WithoutWaiting() AcquireOption { return func(s *settings) { s.mayWait = false } }

// WithOwner names the owner, 1 to 1,024 bytes, instead of a new one for each Lock. The server grants a lock again to the owner that
// holds it, as the same tenure. So an owner must not acquire a lock twice at a time: the first release ends the tenure.
func WithOwner(owner string) AcquireOption { return func(s *settings) { s.owner = owner } }

// WithReplicas acquires the lock only if count replicas confirm the grant in time: from a millisecond to a day. Otherwise the
// lock is given back, and the error is ErrUnreplicated.
func WithReplicas(count int, within time.Duration) AcquireOption {
	return func(s *settings) {
		s.replicas, s.within = count, min(max(within, time.Millisecond), 24*time.Hour)
	}
}

// Acquire acquires a lock. If the lock is held, Acquire waits in the server's queue until ctx ends. Any string is a key; in a
// cluster, the part in {...} decides which node has it. Each Lock has an owner of its own: of two goroutines that acquire the
// same lock, the second waits for the first.
//
// After an error nothing is held. The error is ErrBusy when the deadline of ctx has passed and the lock was not free; the
// cause of ctx when it is cancelled, and then the caller leaves the queue at once; ErrUnreachable when no server answers;
// ErrRefused; ErrUnreplicated; ErrClosed.
func (c *Client) Acquire(ctx context.Context, key string, options ...AcquireOption) (*Lock, error) {
	return c.AcquireAll(ctx, []string{key}, options...)
}

// AcquireAll acquires several keys as one lock, which is lost when one of them is lost. It tries all of them at once. If one is
// busy, it acquires them one after the other, in the order of their bytes, until ctx ends. If one is lost before all are held, it
// starts over. If it fails, it holds none of them.
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
		// A new owner each time: a release that arrives late must not end what is granted from now on.
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
			sleep(ctx, time.Now().Add(firstPause)) // the lease may be shorter than a round trip
		case t.mayWait && isTried:
		case ctx.Err() != nil && t.mayWait && isAnswered && errors.Is(err, ErrUnreachable):
			return nil, t.parts[0].fail(ErrBusy, ctx.Err())
		default:
			return nil, err
		}
	}
}

// acquire acquires all keys, or ends the tenure. At first it tries all at once, and waits only if there is one key. Later it waits
// for one key after the other.
func (t *tenure) acquire(ctx context.Context, isFirst bool) error {
	acquiring, cancel := joined(ctx, t.over) // one key may be lost while a later one is waited for
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

// take asks for keys at the same time, without waiting: by LOCK.ACQUIRE, or by LOCK.RENEW if they were granted before. They are held
// if all of them are granted. Otherwise it returns ErrBusy. An answer must come within the patience; 0 is no limit.
func (t *tenure) take(ctx context.Context, name string, patience time.Duration, parts ...*part) error {
	if patience > 0 {
		patience += t.within // the replicas have their time, too
	}
	calls := make([]*call, len(parts))
	for i, p := range parts {
		r := p.newCall(ctx, t.client.responseLimit+t.within, patience)
		if calls[i] = r; t.mayWait {
			r.patience = patience
		}
		r.isReplicated = t.replicas > 0
		r.isUnlimited = r.isReplicated // while WAIT waits, it must not keep others from being sent
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

// giveBack ends the waits of all keys, and gives back what may have been granted, after the acquisition has failed. A caller that
// leaves does not wait for that.
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

// leave makes calls that release keys, in the background. The caller leaves after the grace, with a failure if they have not ended.
// But the program may acquire the lock again for an owner that it has named, and a late release would end that tenure: so the calls of
// such an owner end after 200 ms, and the caller waits for their end. The caller has begun a task that Close waits for.
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

// acquire waits until the key is held: in the server's queue, as soon as a connection for that is free. The connections are given in
// turn, first come, first served. Until then acquire tries again now and then: those who wait for a lock that this caller holds may
// use all connections.
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
			<-turn.Done() // the lease may be shorter than a round trip
		}
		cancel()
		if !isBusy {
			return err
		}
	}
}

// wait waits in slices, between which the server keeps the place in the queue, and confirms the grant. So a connection that breaks
// costs no place, and a slice without a reply in time tells that the server is gone. It returns ErrBusy if the grant is over, and
// also context.DeadlineExceeded if the server has ended the wait just before the deadline.
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
		case p.mayBeHeld: // to the full lease
			if err = p.take(ctx, renewCommand, p.client.patience, p); !p.mayBeHeld {
				err = p.fail(ErrBusy)
			}
			return err
		case isLast:
			return p.fail(ErrBusy, context.DeadlineExceeded)
		}
		p.mayBeHeld = true // the server keeps the place
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
	if p.lease == 0 { // it was the server's choice
		r.lease = numbers[2]
		p.setLease(r.lease)
	}
	return p.granted(r, nil)
}

// granted notes the lease that a call has got, and checks that enough replicas have confirmed it, if that was asked for. It returns
// ErrLost if the server denies an earlier grant.
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

// command is a request of this owner. The arguments are in the order that the protocol of all clients names.
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
