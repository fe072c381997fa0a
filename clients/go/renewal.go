package lockward

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"
)

// minRenewalLimit is the shortest time that the client waits for the reply to a renewal, however short the lease is.
const minRenewalLimit = 10 * time.Millisecond

// duration converts milliseconds, and returns at most a hundred years.
func duration(milliseconds int64) time.Duration {
	return time.Duration(min(milliseconds, 100*365*24*3_600_000)) * time.Millisecond
}

// leaseEnd returns when a lease ends by the clock of this process. The server starts the lease after the client has sent the request. A
// thousandth and a millisecond are subtracted, because the server's clock may be faster.
func leaseEnd(sent time.Time, lease int64) time.Time {
	return sent.Add(duration(lease - lease/1000 - 1))
}

// renewalPeriod returns a little less than a third of the lease. So a renewal that starts late still starts within a third of the lease.
func renewalPeriod(lease int64) time.Duration { return duration(lease) / 60 * 19 }

// hold starts to watch and renew the leases that calls have obtained. It returns ErrBusy if a key was not granted, or if a lease is
// already over.
func (l *Lock) hold(calls []*call) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for _, r := range calls {
		if !r.mayBeHeld || !now.Before(leaseEnd(r.sent, r.asked)) {
			return r.fail(ErrBusy)
		}
	}
	for _, r := range calls {
		r.isHeld = true
		r.extend()
	}
	if l.holdLimit > 0 && l.isWhole() {
		last := slices.MaxFunc(calls, func(a, b *call) int { return a.sent.Compare(b.sent) })
		l.holdEnd = last.sent.Add(l.holdLimit)
		for _, p := range l.parts {
			if p.deadline = earliest(p.deadline, l.holdEnd); p.end.After(l.holdEnd) { // the server has chosen too long a lease
				p.renewAt = now
			}
		}
	}
	l.wake()
	return nil
}

// wakeAt makes the alarm call watch at the given time, or earlier.
func (c *Client) wakeAt(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wakesAt.IsZero() || at.Before(c.wakesAt) {
		c.wakesAt = at
		c.alarm.Reset(time.Until(at))
	}
}

// watch ends the locks whose leases are over. It renews each lock that has a key whose renewal period is half over. It renews the
// locks this early so that their renewals share a pipeline. If a connection broke, watch renews all locks. watch does not wait for a
// server.
func (c *Client) watch() {
	c.mu.Lock()
	c.wakesAt = time.Time{}
	isBroken, locks := c.isBroken, slices.Collect(maps.Keys(c.locks))
	c.isBroken = false
	c.mu.Unlock()
	var due []*call
	for _, l := range locks {
		l.mu.Lock()
		isDue := func(p *part) bool { return p.isHeld && (p.isDue() || isBroken) }
		if l.endReason(l.parts...) == nil && slices.ContainsFunc(l.parts, isDue) {
			select {
			case l.renewing <- struct{}{}:
				due = append(due, l.newRenewals(l.over, false)...)
			default:
			}
		}
		l.wake()
		l.mu.Unlock()
	}
	if len(due) > 0 {
		automatic := func(r *call) error { return r.finishRenewal(false) }
		go func() { _ = c.each(c.open, due, automatic) }()
	}
}

// renew renews all keys for the program. If limit is not empty, the renewal is a downgrade to this limit.
func (l *Lock) renew(ctx context.Context, limit string) error {
	ctx, end := joined(ctx, l.over)
	defer end()
	ctx, stop := context.WithTimeoutCause(ctx, l.client.patience, errLate)
	defer stop()
	select {
	case l.renewing <- struct{}{}:
	case <-ctx.Done(): // another renewal is still in progress
		return cmp.Or(l.checkHeld(), l.parts[0].contextError(ctx, nil))
	}
	l.mu.Lock()
	for _, p := range l.parts {
		if limit != "" {
			wanted := kind{limit, p.kinds[0].Weight}
			if limit == "SHARED" && wanted.Weight != "" { // the server refuses SHARED with a weight
				wanted.Limit = "SLOTS 1000000"
			}
			p.kinds = append([]kind{wanted}, slices.DeleteFunc(p.kinds, func(k kind) bool { return k == wanted })...)
		}
	}
	calls, before := l.newRenewals(ctx, true), l.countKinds()
	l.mu.Unlock()
	err := l.client.each(ctx, calls, func(r *call) error { return r.finishRenewal(limit != "") })
	l.mu.Lock()
	isOfAnotherKind := l.countKinds() < before
	l.mu.Unlock()
	if limit == "" && errors.Is(err, ErrRefused) && isOfAnotherKind {
		return l.renew(ctx, "") // the next renewal names another kind
	}
	return cmp.Or(l.checkHeld(), err)
}

func (l *Lock) countKinds() (count int) {
	for _, p := range l.parts {
		count += len(p.kinds)
	}
	return count
}

// newRenewals returns the calls that renew the keys that are held. The caller must hold mu, and must have added an element to renewing.
// The last call removes this element. The calls ask for the whole lease if the program wants the renewal (isWanted), or if the client
// renews the key automatically. Otherwise a call asks only for the time that is left of the lease. Such a call does not extend the
// lease, but restores a tenure that a server has forgotten. The new lease does not end after the hold limit.
func (l *Lock) newRenewals(ctx context.Context, isWanted bool) (calls []*call) {
	for _, p := range l.parts {
		if !p.isHeld {
			continue
		}
		limit := max(minRenewalLimit, min(p.client.responseLimit, duration(p.lease)/6))
		r := &call{part: p, ctx: ctx, limit: limit, isRenewal: true, request: func(r *call) command {
			p.mu.Lock()
			defer p.mu.Unlock()
			lease := p.lease
			if !isWanted && !p.isAutomatic() {
				lease = min(lease, p.deadline.Sub(r.sent).Milliseconds())
			}
			if !p.holdEnd.IsZero() {
				lease = min(lease, p.holdEnd.Sub(r.sent).Milliseconds())
			}
			lease = max(lease, 1)
			// The new lease may end before the present lease, and the server may set the new lease even if the reply is lost.
			if end := leaseEnd(r.sent, lease); end.Before(p.deadline) {
				p.deadline = end
				p.client.wakeAt(end)
			}
			return p.command(r, renewCommand, lease)
		}}
		if !isWanted {
			r.until = p.deadline
		}
		calls = append(calls, r)
	}
	l.renewals = len(calls)
	return calls
}

// finishRenewal sends the request of a call that newRenewals has returned, and stores the outcome. If the server has refused the
// renewal, the client renews again later.
func (r *call) finishRenewal(isDowngrade bool) error {
	err := r.checkNumber(r.ask(), true)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.renewals--; r.renewals == 0 {
		<-r.renewing
		defer r.wake()
	}
	r.refusal = r.failure
	switch ended := r.endReason(r.part); { // only this key, because a check of many keys takes long; watch checks the other keys
	case ended != nil:
		return ended
	case deniesTenure(err):
		r.finish(r.fail(ErrLost, r.failure))
		return context.Cause(r.over)
	case err == nil:
		r.extend()
		r.kinds = r.kinds[:1]
		return nil
	}
	r.renewAt = time.Now().Add(min(time.Second, duration(r.lease)/6))
	isOfAnotherKind := hasCode(err, "LIMIT", "ERR") // the server has executed no request for this kind
	if len(r.kinds) > 1 && (isOfAnotherKind || isDowngrade && errors.Is(err, ErrRefused)) {
		refused := r.kinds[0]
		r.kinds = r.kinds[1:]
		if isOfAnotherKind {
			r.renewAt = time.Now()
		} else if r.isUncertain { // the server may have executed an earlier request
			r.kinds = append(r.kinds, refused)
		}
	}
	return err
}

// The caller of the following functions must hold mu, except before the key is held.

// extend stores the lease that the call has obtained.
func (r *call) extend() {
	r.end = r.sent.Add(duration(r.asked))
	r.deadline = earliest(leaseEnd(r.sent, r.asked), r.holdEnd)
	r.renewAt = r.sent.Add(renewalPeriod(min(r.asked, r.lease)))
}

// wake makes watch run when it must renew the tenure or end it.
func (l *Lock) wake() {
	for _, p := range l.parts {
		switch {
		case !p.isHeld:
		case len(l.renewing) == 0 && p.isAutomatic():
			l.client.wakeAt(earliest(p.renewAt, p.deadline))
		default:
			l.client.wakeAt(p.deadline)
		}
	}
}

// isAutomatic returns whether the client renews the key by itself. While the caller waits for further keys, the client always renews
// the key. If the lease ends after the hold limit, the client sends a renewal that shortens the lease. If the lease ends with the hold
// limit, the client does not renew the key any more.
func (p *part) isAutomatic() bool {
	isRenewed := p.isRenewed
	if left := p.holdEnd.Sub(p.end); !p.holdEnd.IsZero() && left < time.Millisecond { // a lease is in whole milliseconds
		isRenewed = left < 0
	}
	return isRenewed || !p.isWhole()
}

// isWhole returns whether all keys are held, or were held. It checks only the last key, because no key is acquired after this key.
func (l *Lock) isWhole() bool { return l.parts[len(l.parts)-1].isHeld }

// isDue returns whether the key is to be renewed now.
func (p *part) isDue() bool {
	early := renewalPeriod(p.lease) / 2
	if p.refusal != nil {
		early = 0
	}
	return p.isAutomatic() && !time.Now().Before(p.renewAt.Add(-early))
}
