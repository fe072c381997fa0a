package lockward

import (
	"context"
	"errors"
	"time"
	"weak"
)

// minLimit is how long a server has at least to reply, however short the lease.
const minLimit = 10 * time.Millisecond

// keep renews a lock from now on, and ends it when its lease is over. Nothing here keeps it from being collected: one that the
// program has dropped is renewed no more.
func (c *Client) keep(l *Lock, sent time.Time) {
	self := weak.Make(l)
	tell, over, end := l.lost, l.over, l.end
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lapse = time.AfterFunc(time.Until(l.until), func() {
		if l := self.Value(); l != nil {
			l.lapsed()
			return
		}
		if over.Err() == nil {
			c.forget(self)
			end(lost(errors.New("the program has dropped it")))
			close(tell)
		}
	})
	l.renewal = time.AfterFunc(time.Until(sent.Add(l.third())), func() {
		if l := self.Value(); l != nil {
			c.renew(l)
		}
	})
	if !l.renewed {
		l.renewal.Stop()
	}
	c.mu.Lock()
	closed := c.closed
	c.held[self] = struct{}{}
	c.mu.Unlock()
	if closed {
		l.finish(lost(ErrClosed))
	}
}

// forget keeps a lock no longer.
func (c *Client) forget(self weak.Pointer[Lock]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.held, self)
}

// locks are those that are kept.
func (c *Client) locks() []*Lock {
	c.mu.Lock()
	defer c.mu.Unlock()
	held := make([]*Lock, 0, len(c.held))
	for self := range c.held {
		if l := self.Value(); l != nil {
			held = append(held, l)
		}
	}
	return held
}

// hurry has all locks renewed at once, but for those whose renewal has failed and is tried again anyway. It does so once in a
// while: of several connections that break together, the first is enough.
func (c *Client) hurry() {
	c.mu.Lock()
	early := time.Since(c.hurried) < time.Second
	if !early {
		c.hurried = time.Now()
	}
	c.mu.Unlock()
	if early {
		return
	}
	for _, l := range c.locks() {
		l.mu.Lock()
		if l.held() && l.failures == 0 {
			l.renewal.Reset(0)
		}
		l.mu.Unlock()
	}
}

// renew renews a lock, together with the others at the same node that become due before that is asked for.
func (c *Client) renew(l *Lock) {
	ctx, done, err := c.begin(context.Background())
	if err != nil {
		return
	}
	defer done()
	at, err := c.home(ctx, l.key, redirect{})
	if err != nil {
		l.postpone(err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	others, running := c.due[at]
	c.due[at] = append(others, l)
	if running {
		return
	}
	for len(c.due[at]) > 0 {
		batch := c.due[at]
		c.due[at] = nil
		c.mu.Unlock()
		c.renewTogether(ctx, batch)
		c.mu.Lock()
	}
	delete(c.due, at)
}

// renewTogether renews locks at one node.
func (c *Client) renewTogether(ctx context.Context, due []*Lock) {
	var batch []*Lock
	var leases []int64
	var commands []command
	limit := c.responseLimit
	for _, l := range due {
		select {
		case l.turn <- struct{}{}:
			defer func() { <-l.turn }()
		default: // its holder is asking something else about it
			l.postpone(nil)
			continue
		}
		l.mu.Lock()
		if l.held() {
			lease := l.lease
			if !l.renewed { // it gets no more than it has
				lease = max(1, time.Until(l.until).Milliseconds())
			}
			batch, leases = append(batch, l), append(leases, lease)
			commands = append(commands, l.asksFor(time.Now(), lease, l.holds))
			limit = min(limit, l.third()/2)
		}
		l.mu.Unlock()
	}
	if len(batch) == 0 {
		return
	}
	limit = max(minLimit, limit)
	sent := time.Now()
	replies, err := c.attempt(ctx, batch[0].key, redirect{}, limit, commands)
	for i, l := range batch {
		if err == nil {
			l.answered(ctx, sent, leases[i], said(replies[i].Err()), limit)
		} else {
			l.postpone(err)
		}
	}
}

// answered notes what a server has said to a renewal.
func (l *Lock) answered(ctx context.Context, sent time.Time, lease int64, refusal *ServerError, limit time.Duration) {
	switch {
	case refusal == nil:
		l.mu.Lock()
		l.extend(sent, lease)
		l.mu.Unlock()
	case refusal.gone():
		_ = l.lose(refusal)
	case l.shortens(refusal, lease):
		l.mu.Lock()
		if l.held() {
			l.renewal.Reset(0)
		}
		l.mu.Unlock()
	case redirected(refusal).addr != "":
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		if err := l.renew(ctx, lease); err != nil {
			l.postpone(err)
		}
	default:
		l.postpone(refusal)
	}
}

// postpone has a renewal tried again soon, which has failed, or could not be asked for.
func (l *Lock) postpone(trouble error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.held() {
		return
	}
	pause := backOff(1)
	if trouble != nil {
		pause = backOff(l.failures)
		l.failures++
		l.trouble = trouble
	}
	l.renewal.Reset(pause)
}

// lapsed ends a lock whose lease is over.
func (l *Lock) lapsed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if left := time.Until(l.until); left > 0 {
		l.lapse.Reset(left)
	} else {
		_ = l.why()
	}
}
