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
	shortLease = 3000                   // milliseconds, of a grant that ends a wait, until it is confirmed
	slice      = 10 * time.Second       // a wait is repeated in slices of this length
	keep       = 5000                   // milliseconds, for which the server keeps the place between them
	replyTime  = 5 * time.Millisecond   // how long before the deadline of the caller the server ends a wait
	leaveLimit = 200 * time.Millisecond // how long giving up may take
)

// An AcquireOption sets what an acquisition asks for.
type AcquireOption func(*settings)

// settings are what an acquisition asks for.
type settings struct {
	owner     string
	limit     []any // of the kind: how many may hold the lock
	weight    []any
	lease     int64         // milliseconds
	hasLease  bool          // otherwise the server's default is asked for
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
	return func(s *settings) { s.lease, s.hasLease = lease.Milliseconds(), true }
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
// busy, it acquires them one after the other, in the order of their bytes, until ctx ends. If it fails, it holds none of them.
func (c *Client) AcquireAll(ctx context.Context, keys []string, options ...AcquireOption) (*Lock, error) {
	if len(keys) > 1 {
		keys = slices.Compact(slices.Sorted(slices.Values(keys)))
	}
	if len(keys) == 0 {
		return nil, errors.New("lockward: there is no key to acquire")
	}
	t := c.newTenure(keys, settings{isRenewed: true, mayWait: true}, options)
	if !t.mayWait {
		t.until = time.Now().Add(c.patience + t.within)
	}
	err := t.acquire(ctx)
	if err == nil && ctx.Err() != nil {
		err = contextError(ctx, keys[0], nil)
	}
	if err == nil || errors.Is(err, ErrLost) {
		err = cmp.Or(t.checkHeld(), err)
	}
	if err == nil {
		return t.lock(), nil
	}
	t.mu.Lock()
	t.finish(err)
	t.mu.Unlock()
	leaving, cancel := context.WithCancel(ctx)
	defer cancel()
	if errors.Is(err, ErrUnreachable) {
		cancel() // no answer is to be expected
		if ctx.Err() != nil && t.mayWait && t.isAnswered.Load() {
			err = &keyError{ErrBusy, keys[0], ctx.Err()}
		}
	}
	t.giveBack(leaving)
	return nil, err
}

// acquire acquires all keys.
func (t *tenure) acquire(ctx context.Context) error {
	if len(t.parts) > 1 {
		if isHeld, err := t.tryTogether(ctx); isHeld || err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(t.over, func() { cancel(context.Cause(t.over)) })() // one key is lost while a later one is waited for
	for _, p := range t.parts {
		if err := p.acquire(ctx); err != nil {
			return err
		}
	}
	return nil
}

// tryTogether tries all keys, without waiting, in one pipeline if one node has them. If it does not get all, it gives them back.
func (t *tenure) tryTogether(ctx context.Context) (isHeld bool, err error) {
	sending, cancel := context.WithTimeout(ctx, t.client.responseLimit+t.within)
	defer cancel()
	var n *node
	calls := make([]*call, len(t.parts))
	for i, p := range t.parts {
		calls[i] = p.newCall(0, 0, p.tryCommand)
		before := n
		if n, err = t.client.nodeFor(sending, p.key, redirect{}); err != nil || before != nil && n != before {
			return false, nil // each key is tried on its own, for as long as it may take
		}
	}
	_ = t.client.attempt(sending, n, false, false, calls...)
	isHeld, isBusy := true, false
	for i, p := range t.parts {
		p.mayBeHeld = calls[i].isUncertain
		replies := calls[i].replies
		t.isAnswered.Store(replies != nil)
		switch {
		case replies != nil && replies[0].Err() == nil:
			err = cmp.Or(err, p.readGrant(calls[i]))
			isHeld = isHeld && time.Now().Before(p.deadline)
		default:
			isHeld, isBusy = false, isBusy || replies != nil && errors.Is(replies[0].Err(), redis.Nil)
		}
	}
	switch {
	case err != nil:
		return false, err
	case isHeld:
		for _, p := range t.parts {
			p.hold()
		}
		return true, nil
	case isBusy && !t.mayWait:
		return false, &keyError{ErrBusy, t.parts[0].key, nil}
	}
	t.giveBack(ctx)
	if !t.isOwnerNamed { // a release that arrives late must not end what is granted from now on
		t.owner = t.client.newOwner()
	}
	return false, nil
}

// giveBack ends the waits of all keys, and gives back what may have been granted. It returns when that is done or ctx ends.
func (t *tenure) giveBack(ctx context.Context) {
	for _, p := range t.parts {
		if p.mayBeHeld {
			p.mayBeHeld = false
			commands := []command{{"LOCK.RELEASE", p.key, p.owner, "HOLDS", 0}}
			release := &call{key: p.key, limit: leaveLimit, until: time.Now().Add(leaveLimit), isCleanup: true}
			release.commands = func(time.Time) []command { return commands }
			done := t.client.background(func() { _ = t.client.ask(context.Background(), release) })
			defer func() {
				select {
				case <-done:
				case <-ctx.Done():
				}
			}()
		}
	}
}

// acquire goes through the states try, wait and confirm, until the key is held.
func (p *part) acquire(ctx context.Context) error {
	isGranted, err := p.try(ctx, p.client.patience)
	isConfirmed, pause := isGranted, 50*time.Millisecond
	for err == nil && !(isConfirmed && time.Now().Before(p.deadline)) {
		switch {
		case isGranted:
			isConfirmed, err = p.confirm(ctx)
			if isGranted = isConfirmed; err == nil && !(isConfirmed && time.Now().Before(p.deadline)) {
				p.client.pause(ctx, earliest(time.Now().Add(pause), p.until)) // the lease may be shorter than a round trip
				pause = min(2*pause, time.Second)
			}
		case p.mayWait:
			isGranted, err = p.wait(ctx)
		default:
			err = &keyError{ErrBusy, p.key, nil}
		}
	}
	if err == nil {
		p.hold()
	}
	return err
}

// try asks for the lock without waiting. It returns false if the lock is busy.
func (p *part) try(ctx context.Context, patience time.Duration) (bool, error) {
	return p.request(ctx, p.newCall(p.client.responseLimit, patience, p.tryCommand), func() bool { return false })
}

// wait waits in the server's queue, as soon as a connection for that is free. Until then it tries again now and then.
func (p *part) wait(ctx context.Context) (bool, error) {
	c := p.client
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		select {
		case c.waitPermits <- struct{}{}:
			defer func() { <-c.waitPermits }()
			return p.waitInQueue(ctx)
		default:
		}
		c.pause(ctx, time.Now().Add(pause))
		if isGranted, err := p.try(ctx, 0); isGranted || err != nil {
			return isGranted, err
		}
	}
}

// waitInQueue waits in slices, between which the server keeps the place in the queue. So a connection that breaks costs no place,
// and a slice without a reply in time tells that the server is gone.
func (p *part) waitInQueue(ctx context.Context) (isGranted bool, err error) {
	deadline, hasDeadline := ctx.Deadline()
	isLast := false
	r := p.newCall(slice+p.client.responseLimit, 0, nil)
	r.commands = func(sent time.Time) []command {
		arguments := []any{"BLOCK", slice.Milliseconds(), "KEEP", keep}
		if left := deadline.Sub(sent); hasDeadline && left <= slice {
			isLast = true
			arguments = []any{"BLOCK", max(1, (left - replyTime).Milliseconds())}
		}
		return []command{p.command("LOCK.ACQUIRE", min(p.lease, shortLease), arguments...)}
	}
	for err == nil && !isGranted && !isLast {
		isGranted, err = p.request(ctx, r, func() bool { return !isLast })
	}
	if err == nil && !isGranted {
		err = &keyError{ErrBusy, p.key, context.DeadlineExceeded}
	}
	return isGranted, err
}

// request asks for the lock. It returns false if the reply is null; isKept then tells whether the server keeps a place.
func (p *part) request(ctx context.Context, r *call, isKept func() bool) (bool, error) {
	switch refusal, err := p.ask(ctx, r); {
	case refusal == nil && err == nil:
		return true, p.readGrant(r)
	case errors.Is(refusal, redis.Nil):
		p.mayBeHeld = isKept()
		return false, nil
	default:
		p.mayBeHeld = p.mayBeHeld || r.isUncertain
		return false, cmp.Or(err, p.refused(refusal))
	}
}

// confirm renews a grant to the full lease. It returns false if the grant is over.
func (p *part) confirm(ctx context.Context) (bool, error) {
	r := p.newCall(p.client.responseLimit, p.client.patience, func() command { return p.renewCommand(p.lease) })
	switch refusal, err := p.ask(ctx, r); {
	case err != nil:
		return false, err
	case refusal == nil:
		p.granted(r.sent, p.lease)
		return true, p.readReplicas(r)
	case deniesTenure(refusal):
		p.mayBeHeld = false
		return false, nil
	default:
		return false, p.refused(refusal)
	}
}

// ask returns the error that the server has replied, or why there is no reply. If the server refuses the lease, ask asks once more
// with the longest one that it accepts.
func (p *part) ask(ctx context.Context, r *call) (refusal, err error) {
	for range 2 {
		err = p.client.ask(ctx, r)
		if r.isAnswered {
			p.isAnswered.Store(true)
		}
		if err != nil {
			return nil, err
		}
		if refusal = r.replies[0].Err(); !p.shorten(refusal, p.lease) {
			break
		}
	}
	return refusal, nil
}

// shorten takes the longest lease that the server accepts, if that is shorter than the one that it has refused.
func (p *part) shorten(refusal error, asked int64) bool {
	longest := longestLease(refusal)
	isShorter := 0 < longest && longest < asked
	if isShorter {
		p.lease = longest
	}
	return isShorter
}

// readGrant reads a grant. Its lease is the one that was asked for, or that the server tells.
func (p *part) readGrant(r *call) error {
	p.mayBeHeld = true
	numbers, err := r.replies[0].Int64Slice()
	if err != nil || len(numbers) != 3 {
		return p.refused(fmt.Errorf("unexpected reply: %v", r.replies[0]))
	}
	p.token = numbers[0]
	if !p.isLeaseKnown {
		p.lease, p.isLeaseKnown = numbers[2], true
		if p.holdLimit > 0 {
			p.lease = min(p.lease, p.holdLimit.Milliseconds())
		}
	}
	p.granted(r.sent, min(p.lease, numbers[2]))
	return p.readReplicas(r)
}

// readReplicas reads how many replicas have confirmed a grant, if that was asked for.
func (p *part) readReplicas(r *call) error {
	if len(r.replies) < 2 {
		return nil
	}
	switch count, err := r.replies[1].Int(); {
	case err != nil:
		return p.refused(err)
	case count < p.replicas:
		return &keyError{ErrUnreplicated, p.key, fmt.Errorf("%d of %d", count, p.replicas)}
	}
	return nil
}

// newCall is a request about the key, for as long as the acquisition may take. If replicas are to confirm it, they do.
func (p *part) newCall(limit, patience time.Duration, request func() command) *call {
	if patience > 0 {
		patience += p.within
	}
	r := &call{key: p.key, limit: limit + p.within, patience: patience, until: p.until}
	r.commands = func(time.Time) []command {
		if p.replicas > 0 {
			return []command{request(), {"WAIT", p.replicas, p.within.Milliseconds()}}
		}
		return []command{request()}
	}
	return r
}

// command is a request of this owner. The arguments are in the order that the protocol of all clients names.
func (p *part) command(name string, lease int64, arguments ...any) command {
	request := append(make(command, 0, 16), name, p.key, p.owner)
	if p.isLeaseKnown {
		request = append(request, "PX", lease)
	}
	request = append(request, arguments...)
	request = append(request, "HOLDS", 1)
	request = append(request, p.limit...)
	return append(request, p.weight...)
}

func (p *part) tryCommand() command { return p.command("LOCK.ACQUIRE", p.lease) }

func (p *part) renewCommand(lease int64) command {
	return p.command("LOCK.RENEW", lease, "TOKEN", p.token)
}

func (p *part) refused(refusal error) error { return &keyError{ErrRefused, p.key, refusal} }
