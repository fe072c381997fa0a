package lockward

import (
	"context"
	"errors"
	"time"
	"weak"
)

// minResponseLimit is how long a server has at least to reply, however short the lease is.
const minResponseLimit = 10 * time.Millisecond

// watch renews a lock from now on, and ends it when its lease is over. It refers to the lock weakly: a lock that the program
// has dropped is collected, and renewed no more.
func (c *Client) watch(l *Lock, sent time.Time) {
	self := weak.Make(l)
	lost, over, end := l.lost, l.over, l.end
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expiry = time.AfterFunc(time.Until(l.deadline), func() {
		if l := self.Value(); l != nil {
			l.expire()
			return
		}
		if over.Err() == nil {
			c.forget(self)
			end(lostError(errors.New("the program has dropped it")))
			close(lost)
		}
	})
	l.renewal = time.AfterFunc(time.Until(sent.Add(l.renewalPeriod())), func() {
		if l := self.Value(); l != nil {
			c.renew(l)
		}
	})
	if !l.isRenewed {
		l.renewal.Stop()
	}
	c.mu.Lock()
	closed := c.closed
	c.locks[self] = struct{}{}
	c.mu.Unlock()
	if closed {
		l.finish(lostError(ErrClosed))
	}
}

// forget watches a lock no longer.
func (c *Client) forget(self weak.Pointer[Lock]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.locks, self)
}

// liveLocks are the watched locks that the program has not dropped.
func (c *Client) liveLocks() []*Lock {
	c.mu.Lock()
	defer c.mu.Unlock()
	live := make([]*Lock, 0, len(c.locks))
	for self := range c.locks {
		if l := self.Value(); l != nil {
			live = append(live, l)
		}
	}
	return live
}

// renewAllNow renews all locks at once, except those whose renewal has failed and is repeated anyway. It does so at most once
// a second: several connections may break together.
func (c *Client) renewAllNow() {
	c.mu.Lock()
	isTooEarly := time.Since(c.renewedAllAt) < time.Second
	if !isTooEarly {
		c.renewedAllAt = time.Now()
	}
	c.mu.Unlock()
	if isTooEarly {
		return
	}
	for _, l := range c.liveLocks() {
		l.mu.Lock()
		if l.isHeld() && l.failures == 0 {
			l.renewal.Reset(0)
		}
		l.mu.Unlock()
	}
}

// renew renews a lock, together with the locks of the same node that become due before the request is sent.
func (c *Client) renew(l *Lock) {
	ctx, done, err := c.begin(context.Background())
	if err != nil {
		return
	}
	defer done()
	n, err := c.nodeFor(ctx, l.key, redirect{})
	if err != nil {
		l.postponeRenewal(err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	others, isRunning := c.due[n]
	c.due[n] = append(others, l)
	if isRunning {
		return
	}
	for len(c.due[n]) > 0 {
		batch := c.due[n]
		c.due[n] = nil
		c.mu.Unlock()
		c.renewTogether(ctx, batch)
		c.mu.Lock()
	}
	delete(c.due, n)
}

// renewTogether renews locks of one node in one pipeline.
func (c *Client) renewTogether(ctx context.Context, due []*Lock) {
	var batch []*Lock
	var leases []int64
	var commands []command
	limit := c.responseLimit
	for _, l := range due {
		select {
		case l.requestMutex <- struct{}{}:
			defer l.unlockRequests()
		default: // another request about the tenure is under way
			l.postponeRenewal(nil)
			continue
		}
		l.mu.Lock()
		if l.isHeld() {
			lease := l.lease
			if !l.isRenewed { // it gets no more than what is left
				lease = max(1, time.Until(l.deadline).Milliseconds())
			}
			batch, leases = append(batch, l), append(leases, lease)
			commands = append(commands, l.renewCommand(time.Now(), lease, l.holds))
			limit = min(limit, l.renewalPeriod()/2)
		}
		l.mu.Unlock()
	}
	if len(batch) == 0 {
		return
	}
	limit = max(minResponseLimit, limit)
	sent := time.Now()
	replies, err := c.attempt(ctx, batch[0].key, redirect{}, limit, commands)
	for i, l := range batch {
		if err == nil {
			l.renewed(ctx, sent, leases[i], serverError(replies[i].Err()), limit)
		} else {
			l.postponeRenewal(err)
		}
	}
}

// renewed handles the reply to a renewal.
func (l *Lock) renewed(ctx context.Context, sent time.Time, lease int64, refusal *ServerError, limit time.Duration) {
	switch {
	case refusal == nil:
		l.mu.Lock()
		l.noteLease(sent, lease)
		l.mu.Unlock()
	case refusal.deniesTenure():
		_ = l.lose(refusal)
	case l.shortenLease(refusal, lease):
		l.mu.Lock()
		if l.isHeld() {
			l.renewal.Reset(0)
		}
		l.mu.Unlock()
	case redirected(refusal).addr != "":
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		if err := l.renew(ctx, lease); err != nil {
			l.postponeRenewal(err)
		}
	default:
		l.postponeRenewal(refusal)
	}
}

// postponeRenewal repeats a renewal soon. failure is nil if the renewal was not sent.
func (l *Lock) postponeRenewal(failure error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.isHeld() {
		return
	}
	pause := backOff(1)
	if failure != nil {
		pause = backOff(l.failures)
		l.failures++
		l.lastFailure = failure
	}
	l.renewal.Reset(pause)
}

// expire ends a lock if its lease is over.
func (l *Lock) expire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if left := time.Until(l.deadline); left > 0 {
		l.expiry.Reset(left)
	} else {
		_ = l.endReason()
	}
}
