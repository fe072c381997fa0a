package lockward

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	acquireCommand = "LOCK.ACQUIRE"
	renewCommand   = "LOCK.RENEW"

	shortLease = 3000                   // the lease in milliseconds of a grant that the client has not confirmed yet
	slice      = 10 * time.Second       // how long one request waits at most; the next request continues the wait
	keep       = 5000                   // how long the server keeps the caller's place in the queue between two requests, in milliseconds
	shortest   = time.Second            // if a slice ends earlier, the server did not block, for example in a script of a proxy
	replyTime  = 5 * time.Millisecond   // the server ends a wait this long before the caller's deadline
	firstPause = 50 * time.Millisecond  // the first pause between two attempts; each further pause is twice as long, up to a second
	leaveLimit = 200 * time.Millisecond // how long a failed call waits for the replies to its releases

	// minLease is the shortest lease that an option accepts: leaseEnd subtracts a millisecond, so a lease of 1 ms would be over at once.
	minLease = 2 * time.Millisecond
)

// An AcquireOption sets what an acquisition asks for. For WithLease, WithHoldLimit, WithOwner and WithReplicas, the zero value of an
// argument asks for the default.
type AcquireOption func(*settings)

// settings are what an acquisition asks for.
type settings struct {
	kind      kind
	owner     string
	lease     time.Duration // 0 asks for the server's default
	holdLimit time.Duration // 0 means no limit
	isRenewed bool
	mayWait   bool
	isLeader  bool
	replicas  int
	within    time.Duration // how long the replicas may take to confirm the grant
}

// A kind says which owners may hold the lock together. It has words of a command.
type kind struct{ Limit, Weight string }

// newSettings returns the defaults with the options of the caller, or an error if an option is out of range.
func newSettings(options []AcquireOption) (settings, error) {
	s := settings{isRenewed: true, mayWait: true}
	for _, option := range options {
		option(&s)
	}
	switch {
	case s.lease != 0 && s.lease < minLease:
		return s, fmt.Errorf("lockward: the lease is %v, but must be %v or more", s.lease, minLease)
	case s.holdLimit != 0 && s.holdLimit < minLease:
		return s, fmt.Errorf("lockward: the hold limit is %v, but must be %v or more", s.holdLimit, minLease)
	case s.replicas < 0 || s.replicas > 0 && s.within < time.Millisecond:
		return s, fmt.Errorf("lockward: %d replicas cannot confirm the lock within %v", s.replicas, s.within)
	case s.isLeader && s.kind != kind{}:
		return s, errors.New("lockward: Lead takes neither Shared nor Slots nor Weight")
	case s.owner == "*": // the server would make up an owner
		return s, errors.New("lockward: the owner must not be *")
	}
	return s, nil
}

// Shared acquires a read lock: all owners that ask for Shared may hold the lock together. Without Shared or Slots, the lock is
// exclusive.
func Shared() AcquireOption { return func(s *settings) { s.kind.Limit = "SHARED" } }

// Slots makes the lock a semaphore with n slots, and acquires one slot. n is 1 to 1,000,000, and should be the same for all callers.
// The server refuses any other number.
func Slots(n int) AcquireOption { return func(s *settings) { s.kind.Limit = fmt.Sprint("SLOTS ", n) } }

// Weight acquires w slots of a semaphore. w is 1 to the number of Slots. The server refuses any other number. Without Weight, the
// client acquires one slot.
func Weight(w int) AcquireOption {
	return func(s *settings) { s.kind.Weight = fmt.Sprint(" WEIGHT ", w) }
}

// WithLease sets the lease, in whole milliseconds. With a lease below 2 ms, the acquisition fails at once: the server's clock may be
// faster, so the client subtracts a thousandth and a millisecond from each lease. If the server refuses the lease as too long, the
// client uses the longest lease that the server accepts. Without WithLease, the lease is the server's setting lock.default-lease.
func WithLease(lease time.Duration) AcquireOption { return func(s *settings) { s.lease = lease } }

// WithoutRenewal turns off the automatic renewal: the lock ends with its lease, unless the caller calls Renew.
func WithoutRenewal() AcquireOption { return func(s *settings) { s.isRenewed = false } }

// WithHoldLimit limits how long the lock is held. The lock is lost when this time has passed since the grant. Until then the client
// renews the lock. With a limit below 2 ms, the acquisition fails at once.
func WithHoldLimit(limit time.Duration) AcquireOption {
	return func(s *settings) { s.holdLimit = limit }
}

// WithoutWaiting makes an acquisition fail with ErrBusy at once if the lock is not free.
func WithoutWaiting() AcquireOption { return func(s *settings) { s.mayWait = false } }

// WithOwner names the owner: up to 1,024 bytes, and not the name *. The server refuses a longer name. Without WithOwner, each Lock has
// a new owner. Do not acquire a lock for an owner that still holds this lock: both Locks would share one tenure, and the first release
// would end this tenure.
func WithOwner(owner string) AcquireOption { return func(s *settings) { s.owner = owner } }

// WithReplicas acquires the lock only if count replicas confirm the grant before the time within is over. If fewer replicas confirm
// the grant, the client releases the lock, and the error is ErrUnreplicated. If within is less than a millisecond, the acquisition
// fails at once. If within is more than a day, the client uses one day.
func WithReplicas(count int, within time.Duration) AcquireOption {
	return func(s *settings) { s.replicas, s.within = count, min(within, 24*time.Hour) }
}

// Acquire acquires a lock. If the lock is held, Acquire waits in the server's queue until ctx ends. The key may be any string. In a
// cluster, the part of the key in {...} decides which node has the key. Each Lock has an owner of its own: if two goroutines acquire
// the same lock, the second goroutine waits for the first.
//
// After an error the caller holds nothing. The error is ErrBusy if the lock is not free before the deadline of ctx. It is
// ErrUnreachable if no server answers. Other errors are ErrRefused, ErrUnreplicated and ErrClosed. When ctx is cancelled, the caller
// leaves the queue at once, and the error is the cause of ctx. If ctx ends before the first request, Acquire sends no request, and
// the error is also the cause of ctx. If a lease, a hold limit or a number of replicas is out of range, Acquire sends no request, and
// the error names the option. The server checks the other options: the error is ErrRefused.
func (c *Client) Acquire(ctx context.Context, key string, options ...AcquireOption) (*Lock, error) {
	return c.AcquireAll(ctx, []string{key}, options...)
}

// AcquireAll acquires several keys as one lock. The lock is lost when one of its keys is lost. AcquireAll first tries all keys at
// once. If a key is busy, AcquireAll acquires one key after the other, in the order of their bytes, until ctx ends. If a key is lost
// before all keys are held, AcquireAll starts again. After an error the caller holds none of the keys.
func (c *Client) AcquireAll(ctx context.Context, keys []string, options ...AcquireOption) (*Lock, error) {
	keys = slices.Compact(slices.Sorted(slices.Values(keys)))
	if len(keys) == 0 {
		return nil, errors.New("lockward: there is no key to acquire")
	}
	wanted, err := newSettings(options)
	if err != nil {
		return nil, err
	}
	if !c.begin() {
		return nil, (&part{key: keys[0]}).fail(ErrClosed)
	}
	defer c.running.Done()
	isAnswered := false
	for isTrial := len(keys) > 1; ; isTrial = false {
		// If the program has named no owner, each attempt has a new owner: a late release of an earlier attempt must not end a new tenure.
		l := c.newLock(keys, wanted)
		if err = l.acquire(ctx, isTrial); err == nil {
			return l, nil
		}
		l.giveBack(ctx, err)
		isAnswered = isAnswered || l.isAnswered.Load()
		switch isLost := errors.Is(err, ErrLost) && !errors.Is(err, ErrClosed); {
		case l.mayWait && isLost: // pause: a lease that is shorter than a round trip is lost in every attempt
			sleep(ctx, time.Now().Add(firstPause))
		case l.mayWait && isTrial && errors.Is(err, ErrBusy):
		case l.mayWait && isAnswered && errors.Is(ctx.Err(), context.DeadlineExceeded) &&
			(errors.Is(err, ErrUnreachable) || errors.Is(err, errCancelled)):
			return nil, l.parts[0].fail(ErrBusy, ctx.Err())
		default:
			return nil, err
		}
	}
}

// acquire acquires all keys, or ends the tenure. A trial tries all keys at once. Otherwise acquire waits for one key after the other.
func (l *Lock) acquire(ctx context.Context, isTrial bool) (err error) {
	acquiring, end := joined(ctx, l.over)
	defer end()
	if isTrial {
		err = l.take(acquiring, acquireCommand, false, l.parts...)
	}
	for i := 0; !isTrial && err == nil && i < len(l.parts); i++ {
		err = l.parts[i].acquire(acquiring)
	}
	hasLeft, ended := ctx.Err() != nil, l.checkHeld()
	if hasLeft && (err == nil || ended != nil) {
		ended = l.parts[0].contextError(ctx, nil)
	}
	if err = cmp.Or(ended, err); err != nil {
		_ = l.end(err)
	}
	return err
}

// take requests several keys at the same time, and does not wait for a busy key. name is the command: LOCK.ACQUIRE, or LOCK.RENEW for
// keys that were granted before. If take returns nil, all keys are held. If a key is not granted, take returns ErrBusy. A server must
// answer within the patience, but a poll has no limit.
func (l *Lock) take(ctx context.Context, name string, isPoll bool, parts ...*part) error {
	calls := make([]*call, len(parts))
	for i, p := range parts {
		r := p.newCall(ctx, func(r *call) command { return p.command(r, name, p.lease) })
		r.isReplicated = l.replicas > 0
		r.limit += l.within // the server waits for the replicas for the time within
		r.until = r.until.Add(l.within)
		if isPoll {
			r.until = time.Time{}
		}
		calls[i] = r
	}
	err := l.client.each(ctx, calls, func(r *call) (err error) {
		if err = r.ask(); name == renewCommand {
			err = r.readConfirmation(err)
		} else {
			err = r.readGrant(err)
		}
		if err == nil && r.mayBeHeld && r.isReplicated {
			err = r.checkReplicas()
		}
		return err
	})
	if err != nil {
		return err
	}
	return l.hold(calls)
}

// waitPermit asks for one of the waitPermits, and returns a channel that is closed when the caller has the permit. Callers get the
// permits in the order in which they ask. The end of ctx gives the permit back.
func (c *Client) waitPermit(ctx context.Context) <-chan struct{} {
	permit := make(chan struct{})
	go func() {
		select {
		case c.waitPermits <- struct{}{}:
			close(permit)
			<-ctx.Done()
			<-c.waitPermits
		case <-ctx.Done():
		}
	}()
	return permit
}

// acquire tries the key, and then waits until the key is held, if the caller wants to wait. To wait in the server's queue, acquire
// needs one of the client's waitPermits. Until acquire gets a permit, it polls. Without the polls there could
// be a deadlock: the callers that have the permits may all wait for a key that this caller already holds.
func (p *part) acquire(ctx context.Context) error {
	err := p.take(ctx, acquireCommand, false, p)
	if !p.mayWait || !errors.Is(err, ErrBusy) {
		return err
	}
	waiting, end := context.WithCancel(ctx)
	defer end()
	permit := p.client.waitPermit(waiting)
	for pause := firstPause; errors.Is(err, ErrBusy) && !errors.Is(err, context.DeadlineExceeded); pause = min(2*pause, time.Second) {
		turn, stop := context.WithTimeout(ctx, pause)
		select {
		case <-permit:
			err = p.wait(ctx)
		case <-turn.Done():
			err = p.take(ctx, acquireCommand, true, p)
		}
		if errors.Is(err, ErrBusy) {
			<-turn.Done() // pause: a lease that is shorter than a round trip is over in every attempt
		}
		stop()
	}
	return err
}

// wait waits in the server's queue, with one request for each slice of the wait, and then confirms the grant. The server keeps the place
// in the queue between two slices, and while a connection is broken. If the lease of the grant is over before the client has confirmed
// the grant, wait returns ErrBusy. If the server ends the wait just before the deadline, the error is ErrBusy and also
// context.DeadlineExceeded.
func (p *part) wait(ctx context.Context) error {
	deadline, hasDeadline := ctx.Deadline()
	isLast := false
	r := &call{part: p, ctx: ctx, limit: slice + p.client.responseLimit, isWait: true, request: func(r *call) command {
		arguments := []any{"BLOCK", slice.Milliseconds(), "KEEP", keep}
		if left := deadline.Sub(r.sent); hasDeadline && left <= slice {
			isLast = true
			arguments = []any{"BLOCK", max(1, (left - replyTime).Milliseconds())}
		}
		return p.command(r, acquireCommand, min(p.lease, shortLease), arguments...)
	}}
	for early := 0; ; {
		err := r.readGrant(r.ask())
		switch {
		case err != nil:
			return err
		case p.mayBeHeld: // the grant has a short lease: set the whole lease
			if err = p.take(ctx, renewCommand, false, p); !p.mayBeHeld {
				err = p.fail(ErrBusy)
			}
			return err
		case isLast:
			return p.fail(ErrBusy, context.DeadlineExceeded)
		}
		p.mayBeHeld = true                                     // the server keeps the place in the queue
		if ended := time.Now(); ended.Sub(r.sent) < shortest { // do not send requests without a break
			sleep(ctx, ended.Add(backOff(early)))
			early++
		}
	}
}

// readGrant reads the reply to LOCK.ACQUIRE.
func (r *call) readGrant(err error) error {
	if err != nil {
		r.mayBeHeld = r.mayBeHeld || r.isUncertain
		return err
	}
	if r.mayBeHeld = !errors.Is(r.reply.Err(), redis.Nil); !r.mayBeHeld {
		return nil
	}
	numbers, err := r.reply.Int64Slice()
	if err != nil || len(numbers) != 3 {
		return r.unexpected()
	}
	r.token = numbers[0]
	if r.lease == 0 { // the server has chosen the lease
		r.asked, r.lease = numbers[2], numbers[2]
	}
	return nil
}

// readConfirmation reads the reply to the LOCK.RENEW that follows a grant. It returns ErrLost if the server denies the grant.
func (r *call) readConfirmation(err error) error {
	err = r.checkNumber(err, true)
	if r.mayBeHeld = !deniesTenure(err); !r.mayBeHeld {
		return r.fail(ErrLost, r.failure)
	}
	return err
}

// checkReplicas returns an error if too few replicas have confirmed a grant.
func (r *call) checkReplicas() error {
	switch count, err := r.confirmed.Int(); {
	case err != nil:
		return r.fail(ErrRefused, err)
	case count < r.replicas:
		return r.fail(ErrUnreplicated, fmt.Errorf("%d of %d", count, r.replicas))
	}
	return nil
}

// command returns a request of this owner. The arguments are in the order that all clients use.
func (p *part) command(r *call, name string, lease int64, arguments ...any) command {
	words := append(make([]any, 0, 16), name, p.key, p.owner)
	if r.asked = lease; lease > 0 {
		words = append(words, "PX", lease)
	}
	if name == renewCommand {
		words = append(words, "TOKEN", p.token)
	}
	words = append(words, arguments...)
	words = append(words, "HOLDS", 1)
	for _, word := range strings.Fields(p.kinds[0].Limit + p.kinds[0].Weight) {
		words = append(words, word)
	}
	return newCommand(words...)
}

// giveBack cleans up after an acquisition that has failed: it releases the keys that the server may have granted, and leaves the
// queues of the keys. If the context of the caller has ended, or if no server has answered, giveBack does not wait for the replies.
// But if the program has named the owner, giveBack waits: see leave.
func (l *Lock) giveBack(ctx context.Context, failure error) {
	var calls []*call
	for _, p := range l.parts {
		if p.mayBeHeld { // HOLDS 0 also removes the owner from the key's queue
			calls = append(calls, p.newRelease(ctx, "HOLDS", 0))
		}
	}
	grace := leaveLimit
	if ctx.Err() != nil || errors.Is(failure, ErrUnreachable) {
		grace = 0
	}
	if len(calls) > 0 {
		_ = l.leave(failure, grace, calls)
	}
}

// leave makes calls that release keys, in the background. If the calls last longer than the grace, leave returns the failure.
//
// If the program has named the owner, the program may acquire the lock again for this owner. A late release would end the new tenure.
// So for such an owner the calls end after 200 ms, and leave waits until they have ended.
//
// The caller must have called Client.begin.
func (l *Lock) leave(failure error, grace time.Duration, calls []*call) error {
	limit, late := l.client.patience, time.After(grace)
	if l.isOwnerNamed {
		limit, late = leaveLimit, nil
	}
	asking, stop := context.WithTimeout(context.Background(), limit)
	for _, r := range calls {
		r.ctx = asking
	}
	done := make(chan error, 1)
	l.client.running.Add(1)
	go func() {
		defer l.client.running.Done()
		defer stop()
		l.unread.Wait() // no release may overtake a request
		done <- l.client.each(asking, calls, (*call).finishRelease)
	}()
	select {
	case err := <-done:
		return err
	case <-late:
		return failure
	}
}

// finishRelease sends a LOCK.RELEASE, and reads the reply. If a reply was lost, the server may already have released the key. So NOTHELD
// in a later reply does not mean that the tenure was lost.
func (r *call) finishRelease() error {
	switch r.err = r.checkNumber(r.ask(), false); {
	case r.isUncertain && hasCode(r.err, "NOTHELD"):
		r.err = nil
	case deniesTenure(r.err):
		r.err = r.fail(ErrLost, r.failure)
	}
	return r.err
}
