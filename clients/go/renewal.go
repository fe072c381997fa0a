package lockward

import (
	"cmp"
	"context"
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

// renewalPeriod returns a third of the lease, less a twentieth of this third, so that a renewal that starts late is still in time.
func renewalPeriod(lease int64) time.Duration { return duration(lease) / 60 * 19 }

// hold starts to watch and renew the leases that calls have obtained. It returns ErrBusy if a key is not granted, or if the lease of
// a key is already over.
func (t *tenure) hold(calls ...*call) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	for _, r := range calls {
		if !r.part.mayBeHeld || !now.Before(leaseEnd(r.sent, r.lease)) {
			return r.part.fail(ErrBusy)
		}
	}
	for _, r := range calls {
		r.part.isHeld = true
		r.part.extend(r)
	}
	if t.holdLimit > 0 && t.isWhole() {
		last := slices.MaxFunc(calls, func(a, b *call) int { return a.sent.Compare(b.sent) })
		t.holdEnd = last.sent.Add(t.holdLimit)
		for _, p := range t.parts {
			if p.deadline = earliest(p.deadline, t.holdEnd); p.end.After(t.holdEnd) { // the server has chosen too long a lease
				p.renewAt = now
			}
		}
		t.client.wakeAt(now)
	}
	for _, r := range calls {
		t.client.wakeAt(r.part.nextEvent())
	}
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

// watch ends the tenures whose leases are over, and renews the keys that have reached half of their renewal period. It renews keys
// this early so that the keys of a node share a pipeline. If a connection to a node broke, watch renews all keys of this node. watch
// does not wait for a server.
func (c *Client) watch() {
	c.mu.Lock()
	c.wakesAt = time.Time{}
	broken, tenures := c.broken, slices.Collect(maps.Keys(c.tenures))
	c.broken = make(map[*node]bool)
	c.mu.Unlock()
	var due []*call
	for _, t := range tenures {
		t.mu.Lock()
		isOver := t.endReason(t.parts...) != nil
		for _, p := range t.parts {
			if isOver || !p.isHeld {
				continue
			}
			if p.isDue() || broken[p.node.Load()] && !p.isDropped {
				select {
				case p.renewing <- struct{}{}:
					due = append(due, p.newRenewal(t.over, false))
				default:
				}
			}
			c.wakeAt(p.nextEvent())
		}
		t.mu.Unlock()
	}
	if len(due) > 0 {
		go func() { _ = c.ask(c.open, due...) }()
	}
}

// newRenewal returns the call that renews a key. The call asks for the whole lease if the program has called Renew (isWanted), or if
// the client renews the key automatically. If neither is true, the call asks for the rest of the present lease, to restore a tenure
// that a server has forgotten. The new lease does not end after the hold limit. The caller must add an element to renewing before it
// makes the call. The call removes this element at its end.
func (p *part) newRenewal(ctx context.Context, isWanted bool) *call {
	limit := max(minRenewalLimit, min(p.client.responseLimit, duration(p.lease)/6))
	r := p.newCall(ctx, limit, 0)
	if r.isRenewal, r.read = true, p.renewed; !isWanted {
		r.until = p.deadline
	}
	r.request = func(r *call) command {
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
	}
	return r
}

// renewed reads the reply to a renewal. If the server has refused the renewal, the client repeats it later.
func (p *part) renewed(r *call, err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	<-p.renewing
	err = r.checkNumber(err, true)
	p.failure = err
	switch ended := p.endReason(p); { // only this key, because a check of many keys takes long; watch checks the other keys
	case ended != nil:
		return ended
	case deniesTenure(err):
		p.finish(p.fail(ErrLost, err))
		return context.Cause(p.over)
	case err == nil:
		p.extend(r)
	default:
		if hasCode(err, "LIMIT", "ERR") { // the server refuses a downgrade whose reply was lost
			p.limit, p.weight = p.earlier.limit, p.earlier.weight
		}
		p.renewAt = time.Now().Add(min(time.Second, duration(p.lease)/6))
	}
	p.client.wakeAt(p.nextEvent())
	return err
}

// renew renews all keys, and also returns the call of each key.
func (t *tenure) renew(ctx context.Context) ([]*call, error) {
	ctx, cancel := joined(ctx, t.over)
	defer cancel()
	ctx, stop := context.WithTimeout(ctx, t.client.patience)
	defer stop()
	calls := make([]*call, len(t.parts))
	for i, p := range t.parts {
		p.mu.Lock()
		calls[i] = p.newRenewal(ctx, true)
		p.mu.Unlock()
		select {
		case p.renewing <- struct{}{}:
		case <-ctx.Done(): // another renewal is still in progress, and there is no time left to send this renewal
			calls[i].read = nil
		}
	}
	err := t.client.ask(ctx, calls...)
	return calls, cmp.Or(t.checkHeld(), err)
}

// The caller of the following functions must hold mu, except while the key is not held yet.

// extend stores the lease that a call has obtained.
func (p *part) extend(r *call) {
	p.end = r.sent.Add(duration(r.lease))
	p.deadline = earliest(leaseEnd(r.sent, r.lease), p.holdEnd)
	p.renewAt = r.sent.Add(renewalPeriod(min(r.lease, p.lease)))
}

// isAutomatic returns whether the client renews the key by itself. While the caller waits for further keys, the client always renews
// the key. If the lease ends after the hold limit, the client sends a renewal that shortens the lease. If the lease ends with the hold
// limit, the client does not renew the key any more.
func (p *part) isAutomatic() bool {
	isRenewed := p.isRenewed
	if left := p.holdEnd.Sub(p.end); !p.holdEnd.IsZero() && left < time.Millisecond { // a lease is in whole milliseconds
		isRenewed = left < 0
	}
	return !p.isDropped && (isRenewed || !p.isWhole())
}

// isWhole returns whether all keys are held, or were held. The last key is acquired last.
func (t *tenure) isWhole() bool { return t.parts[len(t.parts)-1].isHeld }

// isDue returns whether the key is to be renewed now.
func (p *part) isDue() bool {
	early := renewalPeriod(p.lease) / 2
	if p.failure != nil {
		early = 0
	}
	return p.isAutomatic() && !time.Now().Before(p.renewAt.Add(-early))
}

// nextEvent returns when watch must renew the key or end its tenure.
func (p *part) nextEvent() time.Time {
	if len(p.renewing) == 0 && p.isAutomatic() {
		return earliest(p.renewAt, p.deadline)
	}
	return p.deadline
}
