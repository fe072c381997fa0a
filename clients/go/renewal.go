package lockward

import (
	"cmp"
	"context"
	"math/bits"
	"time"
)

// minRenewalLimit is how long a server has at least to reply to a renewal, however short the lease is.
const minRenewalLimit = 10 * time.Millisecond

// duration is a number of milliseconds, at most a hundred years.
func duration(milliseconds int64) time.Duration {
	return time.Duration(min(milliseconds, 100*365*24*3_600_000)) * time.Millisecond
}

// leaseEnd is when a lease ends by the clock of this process. The server starts counting after the request was sent. A thousandth
// and a millisecond are subtracted, because the server's clock may be faster.
func leaseEnd(sent time.Time, lease int64) time.Time {
	return sent.Add(duration(lease - lease/1000 - 1))
}

// renewalPeriod is a third of the lease, less a twentieth, so that a renewal which starts late is still in time.
func renewalPeriod(lease int64) time.Duration { return duration(lease) / 60 * 19 }

// granted notes a lease that the server has given before the key is held.
func (p *part) granted(sent time.Time, lease int64) {
	p.deadline = leaseEnd(sent, lease)
	p.renewAt = sent.Add(renewalPeriod(p.lease))
}

// hold watches the lease, and renews it, from now on.
func (p *part) hold() {
	t, c := p.tenure, p.client
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over.Err() != nil {
		return
	}
	p.isHeld = true
	t.isWhole = p == t.parts[len(t.parts)-1]
	if t.holdLimit > 0 && t.isWhole {
		t.holdEnd = time.Now().Add(t.holdLimit)
		for _, p := range t.parts {
			p.deadline = earliest(p.deadline, t.holdEnd)
			p.isLast = t.hasLease && p.lease >= t.holdLimit.Milliseconds()
		}
	}
	t.watch()
	c.mu.Lock()
	c.tenures[t] = struct{}{}
	isClosed := c.open.Err() != nil
	c.mu.Unlock()
	if isClosed {
		t.finish(&keyError{ErrLost, p.key, ErrClosed})
	} else if p.isAutomatic() {
		c.scheduleRenewal(p.renewAt)
	}
}

// firstEnd is the end of the first lease. The caller has mu.
func (t *tenure) firstEnd() (end time.Time) {
	for _, p := range t.parts {
		if p.isHeld {
			end = earliest(end, p.deadline)
		}
	}
	return end
}

// watch sets the timer that ends the tenure to the end of the first lease. The caller has mu.
func (t *tenure) watch() {
	if t.expiry == nil {
		t.expiry = time.AfterFunc(time.Until(t.firstEnd()), t.expire)
	} else if t.over.Err() == nil {
		t.expiry.Reset(time.Until(t.firstEnd()))
	}
}

// expire ends the tenure if a lease is over. Otherwise it has been renewed since the timer was set.
func (t *tenure) expire() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.endReason() == nil {
		t.watch()
	}
}

// isAutomatic returns whether the client renews the key by itself, as it always does while it waits for later keys. The caller
// has mu.
func (p *part) isAutomatic() bool { return (p.isRenewed || !p.isWhole) && !p.isDropped && !p.isLast }

// scheduleRenewal lets renewDue be called at a time, or before.
func (c *Client) scheduleRenewal(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if (c.renewAt.IsZero() || at.Before(c.renewAt)) && c.open.Err() == nil {
		c.renewAt = at
		c.renewal.Reset(time.Until(at))
	}
}

// renewDue renews all keys that have reached half of their renewal period, so that those of a node share a pipeline. Each node
// has a goroutine of its own. After a connection to a node broke, all keys of that node are due.
func (c *Client) renewDue(broken *node) {
	c.mu.Lock()
	if broken == nil {
		c.renewAt = time.Time{}
	} else {
		broken.isBroken = false
	}
	c.mu.Unlock()
	type group struct {
		n     *node
		isAsk bool
		limit int // similar ones, so that a short lease leaves a longer one its time
	}
	due := make(map[group][]*part)
	for _, t := range c.allTenures() {
		t.mu.Lock()
		for _, p := range t.parts {
			if !p.isHeld || p.isRenewing || p.isDropped || t.over.Err() != nil {
				continue
			}
			isDue, again := p.isDue(time.Now())
			if !isDue && broken == nil {
				if again {
					c.scheduleRenewal(p.renewAt)
				}
				continue
			}
			n, err := c.nodeFor(context.Background(), p.key, p.to)
			if err != nil {
				p.failed(err)
			} else if isDue || n == broken {
				p.isRenewing = true
				g := group{n, p.to.isAsk, bits.Len64(uint64(p.renewalLimit()))}
				due[g] = append(due[g], p)
			}
		}
		t.mu.Unlock()
	}
	for g, parts := range due {
		go c.renewTogether(g.n, g.isAsk, parts)
	}
}

// isDue returns whether the key may be renewed now, and whether it is to be renewed at all. The caller has mu.
func (p *part) isDue(now time.Time) (isDue, again bool) {
	early := renewalPeriod(p.lease) / 2
	if p.failures > 0 {
		early = 0
	}
	again = p.isAutomatic() || p.failures > 0
	return len(p.callers) > 0 || again && !now.Before(p.renewAt.Add(-early)), again
}

// renewalLimit is how long a server has to reply to a renewal: a sixth of the lease.
func (p *part) renewalLimit() time.Duration {
	return max(minRenewalLimit, min(p.client.responseLimit, duration(p.lease)/6))
}

// renewTogether renews keys of one node in one pipeline.
func (c *Client) renewTogether(n *node, isAsk bool, parts []*part) {
	limit, isNew := c.responseLimit, false
	calls := make([]*call, len(parts))
	for i, p := range parts {
		calls[i] = &call{key: p.key, commands: func(sent time.Time) []command { return []command{p.renewal(sent)} }}
		p.mu.Lock()
		limit = min(limit, p.renewalLimit())
		isNew = isNew || p.failures > 0
		p.mu.Unlock()
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	err := c.attempt(ctx, n, isAsk, isNew, calls...)
	for i, p := range parts {
		p.mu.Lock()
		p.isRenewing = false
		if err != nil {
			p.failed(err)
		} else {
			p.renewed(calls[i])
		}
		p.mu.Unlock()
	}
}

// renewal is the command that renews the key: with the whole lease, or, if neither the program nor the client renews it, with what
// is left. No lease ends after the hold limit.
func (p *part) renewal(sent time.Time) command {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = p.lease
	if !p.isAutomatic() && len(p.callers) == 0 {
		p.asked = min(p.asked, p.deadline.Sub(sent).Milliseconds())
	}
	if !p.holdEnd.IsZero() {
		p.asked = min(p.asked, p.holdEnd.Sub(sent).Milliseconds())
	}
	p.asked, p.served = max(p.asked, 1), len(p.callers)
	// The lease may be shorter than what is left of the present one, and the server may set it though no reply arrives.
	if end := leaseEnd(sent, p.asked); end.Before(p.deadline) {
		p.deadline = end
		p.watch()
	}
	return p.renewCommand(p.asked)
}

// The caller of the following has mu.

// renewed handles the reply to a renewal.
func (p *part) renewed(r *call) {
	refusal := r.replies[0].Err()
	switch to := redirected(refusal); {
	case p.endReason() != nil:
	case deniesTenure(refusal):
		p.finish(&keyError{ErrLost, p.key, refusal})
	case refusal == nil:
		p.to, p.failures, p.failure = redirect{}, 0, nil
		if end := leaseEnd(r.sent, p.asked); end.After(p.deadline) {
			p.deadline = end
		}
		p.deadline = earliest(p.deadline, p.holdEnd)
		p.isLast = !p.holdEnd.IsZero() && p.asked < p.lease
		p.renewAt = r.sent.Add(renewalPeriod(p.asked))
		if p.isAutomatic() {
			p.client.scheduleRenewal(p.renewAt)
		}
	case p.shorten(refusal, p.asked):
		p.client.scheduleRenewal(time.Now())
		p.renewAt = time.Now()
		return
	case to.addr != "" || isTransient(refusal):
		p.failed(refusal)
		if to.addr != "" {
			p.to = to
		}
		return
	default:
		p.failed(refusal)
		refusal = p.refused(refusal)
	}
	for _, caller := range p.callers[:p.served] {
		caller <- cmp.Or(context.Cause(p.over), refusal)
	}
	if p.callers = p.callers[p.served:]; len(p.callers) > 0 { // they came after the request was sent
		p.client.scheduleRenewal(time.Now())
	}
}

// failed lets a renewal be repeated soon, in a cluster first at its node and then at any.
func (p *part) failed(failure error) {
	p.to = redirect{isAny: p.failures%2 == 1}
	p.renewAt = time.Now().Add(backOff(p.failures))
	p.failures++
	p.failure = failure
	p.client.scheduleRenewal(p.renewAt)
}

// renew lets the program wait for a renewal of all keys.
func (t *tenure) renew(ctx context.Context) error {
	return t.each(func(p *part) error { return p.renew(ctx) })
}

func (p *part) renew(ctx context.Context) error {
	outcome := make(chan error, 1)
	p.mu.Lock()
	err := p.endReason()
	if err == nil {
		p.callers = append(p.callers, outcome)
		p.renewAt = time.Now()
	}
	p.mu.Unlock()
	if err != nil {
		return err
	}
	p.client.renewDue(nil)
	limit := time.NewTimer(p.client.patience)
	defer limit.Stop()
	select {
	case err := <-outcome:
		return err
	case <-p.over.Done():
		return context.Cause(p.over)
	case <-ctx.Done():
		return contextError(ctx, p.key, nil)
	case <-limit.C:
		p.mu.Lock()
		defer p.mu.Unlock()
		return &keyError{ErrUnreachable, p.key, p.failure}
	}
}
