package lockward

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"
)

// minRenewalLimit is how long the client waits for the reply to a renewal at least, however short the lease is.
const minRenewalLimit = 10 * time.Millisecond

// duration converts milliseconds to a time.Duration of at most a hundred years.
func duration(milliseconds int64) time.Duration {
	return time.Duration(min(milliseconds, 100*365*24*3_600_000)) * time.Millisecond
}

// leaseEnd returns when a lease ends by the clock of this process. The lease counts from before the request was sent, so it ends in
// this process before it ends at the server. leaseEnd subtracts a thousandth and a millisecond, because the server's clock may run
// faster.
func leaseEnd(sent time.Time, lease int64) time.Time {
	return sent.Add(duration(lease - lease/1000 - 1))
}

// renewalPeriod returns the time from a grant or a renewal to the next renewal: 95 % of a third of the lease. So a renewal that starts a
// little late still comes before a third of the lease has passed.
func renewalPeriod(lease int64) time.Duration { return duration(lease) / 60 * 19 }

// hold marks granted keys as held, and schedules their renewals and the check of their deadlines. It returns ErrBusy if a key was not
// granted or its lease is already over.
func (t *tenure) hold(parts ...*part) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	for _, p := range parts {
		if !now.Before(p.deadline) {
			return p.fail(ErrBusy)
		}
	}
	for _, p := range parts {
		p.isHeld = true
	}
	if t.holdLimit > 0 && t.isWhole() {
		t.holdEnd = now.Add(t.holdLimit)
		for _, p := range t.parts {
			p.deadline = earliest(p.deadline, t.holdEnd)
		}
	}
	for _, p := range parts {
		t.client.wakeAt(p.nextEvent())
	}
	return nil
}

// wakeAt sets the alarm so that it calls watch at this time, unless the alarm fires earlier anyway.
func (c *Client) wakeAt(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wakesAt.IsZero() || at.Before(c.wakesAt) {
		c.wakesAt = at
		c.alarm.Reset(time.Until(at))
	}
}

// watch ends the tenures whose leases are over, and starts renewals in the background. It renews every key that has reached half of its
// renewal period, so that many keys of a node share a pipeline. After a connection to a node has broken, it renews all keys of that node.
func (c *Client) watch() {
	c.mu.Lock()
	c.wakesAt = time.Time{}
	broken, tenures := c.broken, slices.Collect(maps.Keys(c.tenures))
	c.broken = make(map[*node]bool)
	c.mu.Unlock()
	var due []*call
	for _, t := range tenures {
		t.mu.Lock()
		isOver := t.endReason() != nil
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

// newRenewal returns the call that renews a key. isWanted means that the program has asked for the renewal. If it has not, and the
// client does not renew the key automatically, the call sends only the rest of the present lease. Otherwise it sends the whole lease.
// No lease ends after the hold limit. At its end the call removes the element from renewing.
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
		// The new lease may end before the present one. The server may set the new lease although its reply is lost, so the earlier
		// end counts from now on.
		if end := leaseEnd(r.sent, lease); end.Before(p.deadline) {
			p.deadline = end
			p.client.wakeAt(end)
		}
		return p.command(r, renewCommand, lease)
	}
	return r
}

// renewed reads the reply to a renewal. If the renewal failed and the lock is not lost, it schedules another one.
func (p *part) renewed(r *call, err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	<-p.renewing
	p.failure = err
	switch ended := p.endReason(); {
	case ended != nil:
		return ended
	case deniesTenure(err):
		p.finish(p.fail(ErrLost, err))
		return context.Cause(p.over)
	case err == nil:
		p.extend(r)
	default:
		p.renewAt = time.Now().Add(min(time.Second, duration(p.lease)/6))
	}
	p.client.wakeAt(p.nextEvent())
	return err
}

// renew renews all keys.
func (t *tenure) renew(ctx context.Context) error {
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
		case <-ctx.Done(): // another renewal was under way until ctx ended, so this one is not sent
			calls[i].read = nil
		}
	}
	err := t.client.ask(ctx, calls...)
	return cmp.Or(t.checkHeld(), err)
}

// The callers of the following functions hold mu, unless the key is not held yet.

// extend records the lease that a call has set.
func (p *part) extend(r *call) {
	p.deadline = earliest(leaseEnd(r.sent, r.lease), p.holdEnd)
	p.renewAt = r.sent.Add(renewalPeriod(min(r.lease, p.lease)))
	p.isLast = p.holdLimit > 0 && (r.lease < p.lease || r.lease == p.holdLimit.Milliseconds())
}

// isAutomatic returns whether the client renews the key by itself. It always does so while it waits for other keys of the lock.
func (p *part) isAutomatic() bool { return (p.isRenewed || !p.isWhole()) && !p.isDropped && !p.isLast }

// isWhole returns whether all keys are or were held. Checking the last key is enough, because keys are acquired in their order.
func (t *tenure) isWhole() bool { return t.parts[len(t.parts)-1].isHeld }

// isDue returns whether the client should renew the key now.
func (p *part) isDue() bool {
	early := renewalPeriod(p.lease) / 2
	if p.failure != nil {
		early = 0
	}
	return p.isAutomatic() && !time.Now().Before(p.renewAt.Add(-early))
}

// nextEvent returns when watch must next renew the key or end its tenure.
func (p *part) nextEvent() time.Time {
	if len(p.renewing) == 0 && p.isAutomatic() {
		return earliest(p.renewAt, p.deadline)
	}
	return p.deadline
}
