package lockward

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
	"weak"
)

// A Lock is held, by an owner of its own. The client renews its lease while it is held. It can be lost all the same: the
// process is paused for longer than the lease, no server is reachable, or an administrator breaks the lock. Lost and Context
// tell when that happens, and Held tells when asked. None of them stops a write that is under way. Write to the lock's server
// with Guarded. Pass the Token to anything else that the lock protects, and refuse a smaller token there than the largest one
// seen.
//
// Many goroutines may use a Lock; they hold it together. A Lock that becomes unreachable is renewed no more, and ends with its
// lease. It must not be copied.
type Lock struct {
	client *Client
	acquireRequest
	token int64

	requestMutex chan struct{} // one request about the tenure at a time; a channel, so that a context can end the wait
	lost         chan struct{}
	over         context.Context // ends when the lock is released or lost
	end          context.CancelCauseFunc

	mu          sync.Mutex // and requestMutex, to change the lease
	holds       int
	serverHolds int // the server counts no more than these
	deadline    time.Time
	renewal     *time.Timer
	expiry      *time.Timer
	failures    int   // of renewals, since the last success
	lastFailure error // of a renewal
}

// newLock returns a lock that has been granted.
func newLock(c *Client, request acquireRequest, granted *grant) *Lock {
	request.lease = granted.lease
	l := &Lock{
		client: c, acquireRequest: request, token: granted.token,
		requestMutex: make(chan struct{}, 1), lost: make(chan struct{}), holds: 1, serverHolds: 1,
		deadline: leaseEnd(granted.sent, granted.lease),
	}
	l.over, l.end = context.WithCancelCause(context.Background())
	c.watch(l, granted.sent)
	return l
}

// leaseEnd is when a lease in milliseconds ends. The server starts counting after the request was sent. A thousandth and a
// millisecond are subtracted, because the server's clock may be faster.
func leaseEnd(sent time.Time, lease int64) time.Time {
	return sent.Add(time.Duration(lease-lease/1000-1) * time.Millisecond)
}

// Key returns the key of the lock.
func (l *Lock) Key() string { return l.key }

// Owner returns the owner that holds the lock.
func (l *Lock) Owner() string { return l.owner }

// Token returns the fencing token: below 2^53, and larger than that of every earlier tenure of this lock.
func (l *Lock) Token() int64 { return l.token }

// Holds returns how many holds there are: one for the acquisition and one for each Reenter, less one for each Release. It is 0
// when the lock was released or lost.
func (l *Lock) Holds() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.isHeld() {
		return 0
	}
	return l.holds
}

// Held returns whether the lock is held, as far as this process knows. It asks no server. It counts the lease on its own
// monotonic clock, from before the request was sent, so the lease ends here before it ends at the server. (Linux does not
// count the time while the whole machine sleeps.)
func (l *Lock) Held() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.isHeld()
}

// Until returns when the lease ends by the clock of this process, if it is not renewed again. It means something only while
// the lock is Held.
func (l *Lock) Until() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deadline
}

// Lost returns a channel that is closed when the lock is lost. It is not closed when the lock is released. When the last
// Release finds that the lock was lost, only its error says so.
func (l *Lock) Lost() <-chan struct{} { return l.lost }

// Context returns a context that ends with parent, or when the lock is lost or its last hold released. context.Cause then is
// an error that is ErrLost or ErrReleased.
func (l *Lock) Context(parent context.Context) context.Context {
	over := l.over
	ctx, cancel := context.WithCancelCause(context.WithValue(parent, parentKey{over}, parent))
	stop := context.AfterFunc(over, func() { cancel(context.Cause(over)) })
	context.AfterFunc(ctx, func() { stop() })
	return ctx
}

// parentKey finds the parent of a context that Context has made.
type parentKey struct{ over context.Context }

// withoutLockEnd returns a context like ctx that does not end with the lock.
func (l *Lock) withoutLockEnd(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, hasDeadline := ctx.Deadline()
	for {
		parent, isOurs := ctx.Value(parentKey{l.over}).(context.Context)
		if !isOurs {
			break
		}
		ctx = parent
	}
	if hasDeadline {
		return context.WithDeadline(ctx, deadline)
	}
	return ctx, func() {}
}

// Renew starts the lease again. Call it just before the result of the work is published, to know that the lock was held up to
// then. Otherwise the client renews the lock by itself, unless WithoutRenewal was given; if the server refuses so long a lease,
// with the longest that it accepts.
//
// The error is ErrLost when the lock is lost; ErrReleased; ErrUnreachable when no server answers while the patience and the
// lease last, and then the lock may still be held; the cause of the context; or a *ServerError.
func (l *Lock) Renew(ctx context.Context) error {
	return l.exclusively(ctx, func(ctx context.Context) error { return l.renew(ctx, l.lease) })
}

// Reenter adds a hold, which is to be released as well. It starts the lease again.
//
// The errors are those of Renew. After an error the lock has as many holds as before, if it is not lost.
func (l *Lock) Reenter(ctx context.Context) error { return l.exclusively(ctx, l.reenter) }

// reenter adds a hold. The caller has requestMutex.
func (l *Lock) reenter(ctx context.Context) error {
	if err := l.releaseSurplus(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	holds := l.holds + 1
	l.serverHolds = holds
	l.mu.Unlock()
	isRestored, lease := false, l.lease
	for {
		reply, err := l.ask(ctx, func(time.Time) command {
			return append(l.acquire(holds), "PX", lease)
		})
		if err != nil {
			return err
		}
		refusal := reply.serverError()
		if refusal.isLeaseTooLong(lease) { // a re-entry with a shorter lease does not shorten the tenure's
			l.shortenLease(refusal, lease)
			lease = refusal.longestLease()
			continue
		}
		if refusal != nil && !refusal.deniesTenure() {
			return refusal
		}
		if numbers, _ := reply.replies[0].Int64Slice(); len(numbers) == 3 && numbers[0] == l.token {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.noteLease(reply.sent, lease)
			if !l.isHeld() {
				return l.endReason()
			}
			l.holds++
			return nil
		}
		if isRestored {
			return l.lose(errors.New("another owner holds it"))
		}
		// A server that has forgotten the tenure restores it in quarantine.
		if err := l.renew(ctx, l.lease); err != nil {
			return err
		}
		isRestored = true
	}
}

// Release gives one hold back. After the last one, the first waiter has the lock when Release returns.
//
// The error is ErrLost if the lock was lost before: the work was not protected up to its end. It is ErrReleased if the lock was
// released before. If the context ends, or has ended before, or no server answers (ErrUnreachable), the last hold is given
// back in the background, for as long as the patience. Client.Close waits for that.
func (l *Lock) Release(ctx context.Context) error {
	ctx, cancel := l.withoutLockEnd(ctx)
	defer cancel()
	ctx, end, err := l.client.begin(ctx)
	if err != nil {
		return cmp.Or(l.checkHeld(), l.lose(err))
	}
	defer end()
	l.mu.Lock()
	if !l.isHeld() {
		defer l.mu.Unlock()
		if l.holds == 1 {
			l.client.runInBackground(l.client.patience, l.releaseAll)
		}
		l.holds = max(0, l.holds-1)
		return l.endReason()
	}
	l.holds--
	isLast := l.holds == 0
	if isLast {
		l.finish(ErrReleased) // before the request is sent: from then on the lock may be free
	}
	l.mu.Unlock()

	err = l.releaseSurplusExclusively(ctx)
	if isLast && err != nil && !errors.Is(err, ErrLost) {
		l.client.runInBackground(l.client.patience, func(ctx context.Context) { _ = l.releaseSurplusExclusively(ctx) })
	}
	return err
}

// releaseAll ends the tenure at a server whose lease may still run: it may have carried out a renewal whose reply was lost.
func (l *Lock) releaseAll(ctx context.Context) {
	limit := l.client.responseLimit
	_, _ = l.client.ask(ctx, l.key, limit, limit, func(time.Time) []command {
		return []command{{"LOCK.RELEASE", l.key, l.owner, "ALL", "TOKEN", l.token}}
	})
}

func (l *Lock) releaseSurplusExclusively(ctx context.Context) error {
	if err := l.lockRequests(ctx); err != nil {
		return err
	}
	defer l.unlockRequests()
	return l.releaseSurplus(ctx)
}

// releaseSurplus gives back the holds that the server counts beyond those of this process. Each request names the count that
// it leads to. The last one names the token instead, because the reply to HOLDS 0 does not tell whether the lock was lost.
// The caller has requestMutex.
func (l *Lock) releaseSurplus(ctx context.Context) error {
	isRestored := false
	for {
		l.mu.Lock()
		holds, left := l.holds, l.serverHolds-1
		l.mu.Unlock()
		if left < holds {
			return nil
		}
		release := command{"LOCK.RELEASE", l.key, l.owner, "TOKEN", l.token}
		if holds > 0 {
			release = append(release, "HOLDS", left)
		} else {
			release, left = append(release, "ALL"), 0
		}
		reply, err := l.ask(ctx, func(time.Time) command { return release })
		if err != nil {
			return err
		}
		refusal := reply.serverError()
		switch {
		case refusal == nil:
		case refusal.Code == "NOTHELD" && holds == 0 && reply.mayHaveRun: // an earlier request was carried out
		case refusal.Code == "HOLDS": // the server has forgotten some holds already
		case !refusal.deniesTenure():
			return refusal
		case isRestored:
			return l.lose(refusal)
		default:
			// A server that has forgotten the tenure restores it in quarantine.
			if _, _, err := l.restore(ctx, l.lease, max(holds, 1)); err != nil {
				return err
			}
			isRestored = true
			continue
		}
		l.mu.Lock()
		l.serverHolds = left
		l.mu.Unlock()
	}
}

// renew gives the tenure a lease in milliseconds. The caller has requestMutex.
func (l *Lock) renew(ctx context.Context, lease int64) error {
	l.mu.Lock()
	holds := l.holds
	l.mu.Unlock()
	sent, lease, err := l.restore(ctx, lease, holds)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.noteLease(sent, lease)
	if !l.isHeld() {
		return l.endReason()
	}
	return nil
}

// restore renews the tenure, with the longest lease that the server accepts if it refuses this one. In quarantine, that restores a tenure which the
// server has forgotten. It returns when the request was sent, and the lease.
func (l *Lock) restore(ctx context.Context, lease int64, holds int) (time.Time, int64, error) {
	for {
		reply, err := l.ask(ctx, func(sent time.Time) command {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.renewCommand(sent, lease, holds)
		})
		if err != nil {
			return time.Time{}, 0, err
		}
		switch refusal := reply.serverError(); {
		case refusal == nil:
			return reply.sent, lease, nil
		case refusal.deniesTenure():
			return time.Time{}, 0, l.lose(refusal)
		case !l.shortenLease(refusal, lease):
			return time.Time{}, 0, refusal
		}
		lease = l.lease
	}
}

// shortenLease takes the longest lease that the server accepts, if it refuses this one as too long. It does not change the lease of
// a lock without renewal, which would only end earlier. The caller has requestMutex.
func (l *Lock) shortenLease(refusal *ServerError, lease int64) bool {
	if !l.isRenewed || !refusal.isLeaseTooLong(lease) {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lease = refusal.longestLease()
	return true
}

// ask sends a command until a server answers, or the lease is over.
func (l *Lock) ask(ctx context.Context, request func(sent time.Time) command) (*answer, error) {
	l.mu.Lock()
	deadline := l.deadline
	l.mu.Unlock()
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	c := l.client
	limit := max(minResponseLimit, min(c.responseLimit, l.renewalPeriod()))
	return c.ask(ctx, l.key, c.patience, limit, func(sent time.Time) []command { return []command{request(sent)} })
}

// exclusively runs a request about a tenure that is held, while no other request about it is under way.
func (l *Lock) exclusively(ctx context.Context, request func(ctx context.Context) error) error {
	if err := l.checkHeld(); err != nil {
		return err
	}
	ctx, end, err := l.client.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	if err := l.lockRequests(ctx); err != nil {
		return err
	}
	defer l.unlockRequests()
	if err := l.checkHeld(); err != nil {
		return err
	}
	if err := request(ctx); err != nil {
		return cmp.Or(l.checkHeld(), err)
	}
	return nil
}

// lockRequests waits for requestMutex, or until the context ends.
func (l *Lock) lockRequests(ctx context.Context) error {
	select {
	case l.requestMutex <- struct{}{}:
		return nil
	case <-ctx.Done():
		return contextError(ctx)
	}
}

func (l *Lock) unlockRequests() { <-l.requestMutex }

// checkHeld returns why the lock is not held, or nil.
func (l *Lock) checkHeld() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isHeld() {
		return nil
	}
	return l.endReason()
}

// lose ends the tenure because it was lost.
func (l *Lock) lose(reason error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.finish(lostError(reason))
	return lostError(reason)
}

// The caller of the following has mu.

// isHeld returns whether the lease runs, and the tenure is neither released nor lost.
func (l *Lock) isHeld() bool { return l.over.Err() == nil && time.Now().Before(l.deadline) }

// endReason returns why the lock is not held.
func (l *Lock) endReason() error {
	reason := errors.New("its lease is over")
	if l.lastFailure != nil {
		reason = fmt.Errorf("its lease is over, and its renewal has failed: %w", l.lastFailure)
	}
	l.finish(lostError(reason))
	return context.Cause(l.over)
}

// finish ends the tenure in this process. The first reason stays.
func (l *Lock) finish(reason error) {
	if l.over.Err() != nil {
		return
	}
	l.end(reason)
	if errors.Is(reason, ErrLost) {
		close(l.lost)
	}
	l.renewal.Stop()
	l.expiry.Stop()
	l.client.forget(weak.Make(l))
}

// renewCommand is the command that renews the tenure. The lease may be shorter than what is left of the present one, and the
// server may set it though no reply arrives. So the deadline is moved forward before the command is sent.
func (l *Lock) renewCommand(sent time.Time, lease int64, holds int) command {
	if end := leaseEnd(sent, lease); l.isRenewed && end.Before(l.deadline) {
		l.deadline = end
		if l.over.Err() == nil {
			l.expiry.Reset(time.Until(end))
		}
	}
	return l.acquireRequest.renew(lease, l.token, holds)
}

// noteLease notes a lease that the server has set. A tenure that is over stays over.
func (l *Lock) noteLease(sent time.Time, lease int64) {
	if !l.isHeld() {
		return
	}
	l.failures, l.lastFailure = 0, nil
	if end := leaseEnd(sent, lease); end.After(l.deadline) {
		l.deadline = end
	}
	if l.isRenewed {
		l.renewal.Reset(time.Until(sent.Add(l.renewalPeriod())))
	}
}

// renewalPeriod is a third of the lease.
func (l *Lock) renewalPeriod() time.Duration { return time.Duration(l.lease) * time.Millisecond / 3 }
