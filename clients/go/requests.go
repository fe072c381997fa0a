package lockward

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// A command is a request, and later also its reply.
type command = *redis.Cmd

func newCommand(words ...any) command { return redis.NewCmd(context.Background(), words...) }

// A call is a request about one key, with all its attempts.
type call struct {
	ctx     context.Context // the caller's context
	part    *part
	request func(r *call) command
	read    func(r *call, err error) error // reads the outcome and may replace its error; may be nil

	limit        time.Duration // how long a reply may take
	until        time.Time     // no attempt starts later; the zero time means no limit
	patience     time.Duration // if not 0, each answer, even an error, sets until to this long from now
	isReplicated bool          // WAIT follows, so that replicas confirm the request
	isRenewal    bool          // the call needs a permit for renewals
	isUnlimited  bool          // the call needs no permit for its connection
	isOnce       bool          // the request is not sent again if the server may have executed it

	sent        time.Time // when the last attempt was sent
	lease       int64     // the lease in the last attempt, in milliseconds
	isSent      bool      // an attempt was sent, and its outcome is not handled yet
	replies     []command // the replies to the last attempt; nil if a reply is missing
	failure     error     // why the last attempt has no answer
	isUncertain bool      // an attempt was sent and has no reply, so the server may have executed it
	isShortened bool      // the server has refused the lease as too long
	err         error     // the outcome
}

// ask runs calls at the same time. Their first requests to a node share a pipeline. After it, each call continues on its own.
func (c *Client) ask(ctx context.Context, calls ...*call) error {
	if len(calls) == 1 {
		return calls[0].ask()
	}
	byNode := make(map[*node][]*call)
	lookUpEnd := deadline(calls...)
	for _, r := range calls {
		n, _ := c.nodeFor(ctx, lookUpEnd, r.part.key, redirect{})
		byNode[n] = append(byNode[n], r)
	}
	outcomes := make(chan error)
	for n, together := range byNode {
		go func() {
			if n != nil {
				c.send(ctx, deadline(together...), n, false, false, together...)
			}
			for _, r := range together {
				go func() { outcomes <- r.ask() }()
			}
		}()
	}
	var err error
	for range calls {
		err = errors.Join(err, <-outcomes)
	}
	return err
}

// ask repeats the request until a server answers, the time is over, or the caller's context ends. An error reply becomes ErrRefused.
func (r *call) ask() error {
	r.err = r.repeat()
	if r.read != nil {
		r.err = r.read(r, r.err)
	}
	return r.err
}

// newCall returns a call about the key. limit is how long a reply may take. If no server answers within the patience, the call fails. A
// patience of 0 means no limit.
func (p *part) newCall(ctx context.Context, limit, patience time.Duration) *call {
	r := &call{ctx: ctx, part: p, limit: limit}
	if patience > 0 {
		r.until = time.Now().Add(patience)
	}
	return r
}

// deadline returns when replies are too late if these calls are sent now.
func deadline(calls ...*call) (end time.Time) {
	for _, r := range calls {
		end = earliest(earliest(end, r.until), time.Now().Add(r.limit))
	}
	return end
}

// repeat sends the request until it has a final answer. A missing reply, a redirection and a transient error are not final.
func (r *call) repeat() error {
	to := redirect{}
	for failures, redirects := 0, 0; ; {
		switch {
		case r.isSent:
		case r.ctx.Err() != nil:
			return contextError(r.ctx, r.part.key, r.failure)
		case !r.until.IsZero() && !time.Now().Before(r.until):
			return r.part.fail(ErrUnreachable, r.failure)
		default:
			r.sendAlone(to, deadline(r), failures > 0)
		}
		r.isSent = false
		to = redirect{isAny: failures%2 == 1} // if the node is gone, another node may know where the key is
		switch {
		case r.replies != nil:
			refusal := r.replies[0].Err()
			moved := redirected(refusal)
			switch {
			case refusal == nil || errors.Is(refusal, redis.Nil):
				return nil
			case r.shorten(refusal):
				continue
			case moved.addr == "" && !isTransient(refusal):
				return r.part.fail(ErrRefused, refusal)
			}
			r.failure = refusal
			if r.patience > 0 {
				r.until = time.Now().Add(r.patience)
			}
			if redirects++; moved.addr != "" && redirects < 5 {
				to = moved
				continue
			}
		case r.isOnce && r.isUncertain:
			return r.part.fail(ErrUnreachable, errors.New("the command may have run"), r.ctx.Err(), r.failure)
		case hasCode(r.failure, "WRONGPASS", "NOAUTH", "NOPERM"): // the server has refused the login
			return r.part.fail(ErrRefused, r.failure)
		}
		sleep(r.ctx, earliest(time.Now().Add(backOff(failures)), r.until))
		failures, redirects = failures+1, 0
	}
}

// shorten reads the longest lease that the server accepts from the error about a lease that is too long. It sets this lease and returns
// true, but only once for each call.
func (r *call) shorten(refusal error) bool {
	var longest int64
	_, limit, _ := strings.Cut(refusal.Error(), " command: at most ")
	_, _ = fmt.Sscan(limit, &longest)
	if r.isShortened || longest <= 0 || longest >= r.lease {
		return false
	}
	r.isShortened = true
	r.part.mu.Lock()
	defer r.part.mu.Unlock()
	r.part.lease = longest
	return true
}

// sendAlone makes one attempt, without other calls, at the node that has the key.
func (r *call) sendAlone(to redirect, deadline time.Time, isNew bool) {
	c := r.part.client
	n, err := c.nodeFor(r.ctx, deadline, r.part.key, to)
	if err == nil && !r.isUnlimited {
		permits := n.permits
		if r.isRenewal {
			permits = n.renewals
		}
		select {
		case permits <- struct{}{}:
			defer func() { <-permits }()
		case <-r.ctx.Done():
			err = r.ctx.Err()
		case <-time.After(time.Until(deadline)):
			err = os.ErrDeadlineExceeded
		}
	}
	if r.replies, r.failure = nil, err; err == nil {
		c.send(r.ctx, deadline, n, to.isAsk, isNew, r)
	}
}

// send sends the requests of calls to a node, in one pipeline. If one reply is missing at the deadline, all replies count as missing.
func (c *Client) send(ctx context.Context, deadline time.Time, n *node, isAsk, isNew bool, calls ...*call) {
	cn, err := c.connection(ctx, deadline, n, isNew)
	isBroken := false // whether the connection failed, or a transient error shows that a new one may lead to another server
	if err == nil {
		var commands []command
		if isAsk {
			commands = append(commands, newCommand("ASKING"))
		}
		sent := time.Now()
		for _, r := range calls {
			r.sent = sent
			r.replies = []command{r.request(r)}
			if r.isReplicated {
				r.replies = append(r.replies, newCommand("WAIT", r.part.replicas, r.part.within.Milliseconds()))
			}
			commands = append(commands, r.replies...)
		}
		err = cn.exchange(ctx, deadline, commands)
		isBroken = err != nil
	}
	for _, r := range calls {
		r.isSent, r.failure = true, err
		if err != nil {
			r.replies = nil
			r.isUncertain = r.isUncertain || cn != nil && cn.isReady
			continue
		}
		r.part.node.Store(n)
		isBroken = isBroken || isTransient(r.replies[0].Err())
	}
	switch {
	case cn == nil:
	case err == nil && !isBroken && ctx.Err() == nil:
		c.keepIdle(n, cn)
	default:
		c.discard(n, cn, isBroken && ctx.Err() == nil && !errors.Is(err, os.ErrDeadlineExceeded))
	}
}

// sleep waits until a time, or until the context ends.
func sleep(ctx context.Context, until time.Time) {
	select {
	case <-time.After(time.Until(until)):
	case <-ctx.Done():
	}
}

// backOff returns the pause before the next attempt. After the first failure there is no pause, because the connection may have been
// closed while it was idle. Then the pause is 50 ms, and twice as long each time up to a second, with jitter.
func backOff(failures int) time.Duration {
	if failures == 0 {
		return 0
	}
	longest := min(time.Second, 25*time.Millisecond<<min(failures, 6))
	return longest*3/4 + rand.N(longest/4)
}

// earliest returns the earlier one of two times. The zero time means never.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
