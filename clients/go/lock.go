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

// A Lock is held, by an owner of its own. While it is, its lease is renewed. It may be lost all the same: this process stands
// still past its lease, no server is reached, somebody breaks the lock by hand. Lost and Context tell of it as it happens,
// Held when asked. None of them stops a write that is under way: hand the Token to what the lock protects, and let that
// refuse a smaller token than it has seen.
//
// It may be used by many goroutines, which hold it together. A Lock that the program drops is renewed no more, and ends with
// its lease. It must not be copied.
type Lock struct {
	client *Client
	claim
	token int64

	// turn is held by whoever asks a server about the tenure, so that they do it one after the other.
	turn chan struct{}
	lost chan struct{}
	over context.Context // until it is released or lost
	end  context.CancelCauseFunc

	mu       sync.Mutex // and turn, to change the lease
	holds    int
	counted  int // holds at the server, at most
	until    time.Time
	renewal  *time.Timer
	lapse    *time.Timer
	failures int   // of renewals, since the last one
	trouble  error // why the last of them has failed
}

// newLock is a lock that has been granted.
func newLock(c *Client, cl claim, got *grant) *Lock {
	cl.lease = got.lease
	l := &Lock{
		client: c, claim: cl, token: got.token,
		turn: make(chan struct{}, 1), lost: make(chan struct{}), holds: 1, counted: 1,
		until: leaseEnd(got.sent, got.lease),
	}
	l.over, l.end = context.WithCancelCause(context.Background())
	c.keep(l, got.sent)
	return l
}

// leaseEnd is when a lease of so many milliseconds ends. The server begins to count it later than it was asked for; what its
// clock may be faster than ours, a thousandth and a millisecond, is left out.
func leaseEnd(sent time.Time, lease int64) time.Time {
	return sent.Add(time.Duration(lease-lease/1000-1) * time.Millisecond)
}

// Key is the name of the lock.
func (l *Lock) Key() string { return l.key }

// Owner is in whose name it is held.
func (l *Lock) Owner() string { return l.owner }

// Token is the fencing token: below 2^53, and larger than that of every earlier tenure of this lock.
func (l *Lock) Token() int64 { return l.token }

// Holds is how many times the lock is held: once for its acquisition and each Reenter, less one for each Release. It is 0
// when it was released or lost.
func (l *Lock) Holds() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.held() {
		return 0
	}
	return l.holds
}

// Held tells whether the lock is held now, by what this process knows. It counts the lease on its own monotonic clock, from
// before it has asked for it, so that it is over here before it is over at the server. (Linux does not count the time that
// the whole machine sleeps.)
func (l *Lock) Held() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held()
}

// Until is when the lease ends by the clock of this process, should it not be renewed any more. It is meant for a lock that
// is Held.
func (l *Lock) Until() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.until
}

// Lost is closed when the lock is lost. It is not closed when it is released: a loss that the last Release finds out is told by
// that alone.
func (l *Lock) Lost() <-chan struct{} { return l.lost }

// Context is a context that ends with parent, or when the lock is lost or released for the last time: context.Cause then
// tells, with an error that is ErrLost or ErrReleased.
func (l *Lock) Context(parent context.Context) context.Context {
	over := l.over
	ctx, cancel := context.WithCancelCause(context.WithValue(parent, within{over}, parent))
	stop := context.AfterFunc(over, func() { cancel(context.Cause(over)) })
	context.AfterFunc(ctx, func() { stop() })
	return ctx
}

// within finds the parent of a context that a Lock has made, which ends with what it names.
type within struct{ over context.Context }

// outside is a context like ctx that does not end with the lock.
func (l *Lock) outside(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, limited := ctx.Deadline()
	for {
		parent, ends := ctx.Value(within{l.over}).(context.Context)
		if !ends {
			break
		}
		ctx = parent
	}
	if limited {
		return context.WithDeadline(ctx, deadline)
	}
	return ctx, func() {}
}

// Renew gives the lock its lease anew. Who does so just before the work is made public knows that the lock was held up to
// then. (It is renewed by itself, unless that was declined; then also with a shorter lease, where the server takes none so long
// any more.)
//
// The error is ErrLost when the lock is lost; ErrReleased; ErrUnreachable when no server answers for as long as the patience
// and the lease last, and then the lock may still be held; the cause of the context; or a *ServerError.
func (l *Lock) Renew(ctx context.Context) error {
	ctx, end, err := l.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	if err := l.renew(ctx, l.lease); err != nil {
		return cmp.Or(l.checked(), err)
	}
	return nil
}

// Reenter holds the lock once more, to be given back once more. Its lease starts anew.
//
// The errors are those of Renew. After one, the lock is held as often as before, if it is not lost.
func (l *Lock) Reenter(ctx context.Context) error {
	ctx, end, err := l.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	if err := l.reenter(ctx); err != nil {
		return cmp.Or(l.checked(), err)
	}
	return nil
}

// reenter holds the lock once more. The turn is held.
func (l *Lock) reenter(ctx context.Context) error {
	if err := l.settle(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	holds := l.holds + 1
	l.counted = holds
	l.mu.Unlock()
	restored, lease := false, l.lease
	for {
		answered, err := l.ask(ctx, func(time.Time) command {
			return command{"LOCK.ACQUIRE", l.key, l.owner, "PX", lease, "HOLDS", holds}
		})
		if err != nil {
			return err
		}
		refusal := answered.said()
		if refusal.tooLong() && lease > 1 { // one that is shorter ends no sooner for it
			l.shortens(refusal, lease)
			lease /= 2
			continue
		}
		if refusal != nil && !refusal.gone() {
			return refusal
		}
		if reply, _ := answered.replies[0].Int64Slice(); len(reply) == 2 && reply[0] == l.token {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.extend(answered.sent, lease)
			if !l.held() {
				return l.why()
			}
			l.holds++
			return nil
		}
		if restored {
			return l.lose(errors.New("another owner holds it"))
		}
		// A server that has forgotten the tenure takes it back in quarantine.
		if err := l.renew(ctx, l.lease); err != nil {
			return err
		}
		restored = true
	}
}

// Release gives one hold back. With the last one the first waiter has the lock by the time this returns.
//
// The error is ErrLost if the lock was lost before: the work was not protected up to its end. It is ErrReleased if it was
// released before. If the context ends, or no server answers (ErrUnreachable), a lock that was held once is given back in the
// background, as well as that goes; also where the context has ended before. Client.Close waits for that.
func (l *Lock) Release(ctx context.Context) error {
	ctx, cancel := l.outside(ctx)
	defer cancel()
	ctx, end, err := l.client.begin(ctx)
	if err != nil {
		return cmp.Or(l.checked(), l.lose(err))
	}
	defer end()
	l.mu.Lock()
	if !l.held() {
		defer l.mu.Unlock()
		if l.holds == 1 {
			l.client.leave(l.client.patience, l.giveBack)
		}
		l.holds = max(0, l.holds-1)
		return l.why()
	}
	l.holds--
	last := l.holds == 0
	if last {
		l.finish(ErrReleased) // nobody is to believe that it is held once its end is asked for
	}
	l.mu.Unlock()

	err = l.settleInTurn(ctx)
	if last && err != nil && !errors.Is(err, ErrLost) {
		l.client.leave(l.client.patience, func(ctx context.Context) { _ = l.settleInTurn(ctx) })
	}
	return err
}

// giveBack ends the tenure at a server whose lease is longer: it has heard a renewal whose reply was lost.
func (l *Lock) giveBack(ctx context.Context) {
	limit := l.client.responseLimit
	_, _ = l.client.ask(ctx, l.key, limit, limit, func(time.Time) []command {
		return []command{{"LOCK.RELEASE", l.key, l.owner, "ALL", "TOKEN", l.token}}
	})
}

// settleInTurn settles when nobody else asks about the tenure.
func (l *Lock) settleInTurn(ctx context.Context) error {
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
		return l.settle(ctx)
	case <-ctx.Done():
		return ended(ctx)
	}
}

// settle gives back what the server has counted beyond the holds that there are. Each request names the count that it leads to,
// but the last, which names the token: HOLDS 0 would be answered alike whether the lock was held or had been lost.
func (l *Lock) settle(ctx context.Context) error {
	restored := false
	for {
		l.mu.Lock()
		holds, left := l.holds, l.counted-1
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
		answered, err := l.ask(ctx, func(time.Time) command { return release })
		if err != nil {
			return err
		}
		refusal := answered.said()
		switch {
		case refusal == nil:
		case refusal.Code == "NOTHELD" && holds == 0 && answered.repeated: // an earlier request was heard
		case refusal.Code == "HOLDS": // the server has forgotten some, and has less to give back
		case !refusal.gone():
			return refusal
		case restored:
			return l.lose(refusal)
		default:
			// A server that has forgotten the tenure takes it back in quarantine.
			if _, _, err := l.restore(ctx, l.lease, max(holds, 1)); err != nil {
				return err
			}
			restored = true
			continue
		}
		l.mu.Lock()
		l.counted = left
		l.mu.Unlock()
	}
}

// renew gives the tenure a lease of so many milliseconds. The turn is held.
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
	l.extend(sent, lease)
	if !l.held() {
		return l.why()
	}
	return nil
}

// restore tells the server of the tenure; when, and with which lease.
func (l *Lock) restore(ctx context.Context, lease int64, holds int) (time.Time, int64, error) {
	for {
		answered, err := l.ask(ctx, func(sent time.Time) command {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.asksFor(sent, lease, holds)
		})
		if err != nil {
			return time.Time{}, 0, err
		}
		switch refusal := answered.said(); {
		case refusal == nil:
			return answered.sent, lease, nil
		case refusal.gone():
			return time.Time{}, 0, l.lose(refusal)
		case !l.shortens(refusal, lease):
			return time.Time{}, 0, refusal
		}
		lease = l.lease
	}
}

// shortens halves the lease, where the server takes it no longer. It does not for a lock without renewal: that would only end
// the sooner. The turn is held.
func (l *Lock) shortens(refusal *ServerError, lease int64) bool {
	if !l.renewed || lease <= 1 || !refusal.tooLong() {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lease = lease / 2
	return true
}

// ask sends a command until a server answers, or the lease is over.
func (l *Lock) ask(ctx context.Context, request func(sent time.Time) command) (*answer, error) {
	l.mu.Lock()
	until := l.until
	l.mu.Unlock()
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	c := l.client
	limit := max(minLimit, min(c.responseLimit, l.third()))
	return c.ask(ctx, l.key, c.patience, limit, func(sent time.Time) []command { return []command{request(sent)} })
}

// begin takes the turn of who asks about a tenure that is held.
func (l *Lock) begin(ctx context.Context) (context.Context, func(), error) {
	if err := l.checked(); err != nil {
		return nil, nil, err
	}
	ctx, end, err := l.client.begin(ctx)
	if err != nil {
		return nil, nil, err
	}
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		err := ended(ctx)
		end()
		return nil, nil, err
	}
	stop := func() { <-l.turn; end() }
	if err := l.checked(); err != nil {
		stop()
		return nil, nil, err
	}
	return ctx, stop, nil
}

// checked is why the lock is not held, if it is not.
func (l *Lock) checked() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held() {
		return nil
	}
	return l.why()
}

// The rest is called with mu held, but lose.

// held tells whether the lease runs, and no server has denied the tenure.
func (l *Lock) held() bool { return l.over.Err() == nil && time.Now().Before(l.until) }

// why is why the lock is not held.
func (l *Lock) why() error {
	reason := errors.New("its lease is over")
	if l.trouble != nil {
		reason = fmt.Errorf("its lease is over, and its renewal has failed: %w", l.trouble)
	}
	l.finish(lost(reason))
	return context.Cause(l.over)
}

// lose notes that the server has denied the tenure.
func (l *Lock) lose(reason error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.finish(lost(reason))
	return lost(reason)
}

// finish ends the tenure as far as this process is concerned. The first reason stays.
func (l *Lock) finish(reason error) {
	if l.over.Err() != nil {
		return
	}
	l.end(reason)
	if errors.Is(reason, ErrLost) {
		close(l.lost)
	}
	l.renewal.Stop()
	l.lapse.Stop()
	l.client.forget(weak.Make(l))
}

// asksFor is the request for a lease. It may be shorter than what is left, and be heard though no reply comes.
func (l *Lock) asksFor(sent time.Time, lease int64, holds int) command {
	if end := leaseEnd(sent, lease); l.renewed && end.Before(l.until) {
		l.until = end
		if l.over.Err() == nil {
			l.lapse.Reset(time.Until(end))
		}
	}
	return l.claim.renew(lease, l.token, holds)
}

// extend notes a lease that was asked for at a time. A tenure that is over stays over.
func (l *Lock) extend(sent time.Time, lease int64) {
	if !l.held() {
		return
	}
	l.failures, l.trouble = 0, nil
	if end := leaseEnd(sent, lease); end.After(l.until) {
		l.until = end
	}
	if l.renewed {
		l.renewal.Reset(time.Until(sent.Add(l.third())))
	}
}

// third is when to renew.
func (l *Lock) third() time.Duration { return time.Duration(l.lease) * time.Millisecond / 3 }
