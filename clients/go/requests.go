package lockward

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"
)

// A command is its name and arguments.
type command = []any

// A call is one request, which may be sent several times.
type call struct {
	key      string
	commands func(sent time.Time) []command // the request is the first one

	// for ask
	limit             time.Duration // of one reply
	until             time.Time     // it is not sent after that; the zero time is never
	patience          time.Duration // it fails if no server answers for so long; 0 is never
	isOnce, isCleanup bool          // it is not sent again if it may have been carried out; Close waits for it

	sent                    time.Time // the last time
	replies                 []*redis.Cmd
	isAnswered, isUncertain bool // a server has answered, maybe with an error; a reply to a request that was sent is missing
}

// ask sends a request to the node that has its key, until a server answers, it is too late, or the caller leaves. It takes a
// redirection and a transient error for no answer.
func (c *Client) ask(ctx context.Context, r *call) error {
	var to redirect
	var failure error
	heard := time.Now()
	for failures, redirects := 0, 0; ; {
		now, until := time.Now(), r.until
		if r.patience > 0 {
			until = earliest(until, heard.Add(r.patience))
		}
		switch {
		case !r.isCleanup && c.open.Err() != nil:
			return &keyError{ErrClosed, r.key, failure}
		case ctx.Err() != nil:
			return contextError(ctx, r.key, failure)
		case !until.IsZero() && !now.Before(until):
			return &keyError{ErrUnreachable, r.key, failure}
		}
		failure = c.askOnce(ctx, r, to, earliest(now.Add(r.limit), until), failures > 0)
		to = redirect{isAny: failures%2 == 1} // the node may be gone, and another one knows where the key is now
		switch {
		case failure == nil:
			r.isAnswered, heard, failure = true, time.Now(), r.replies[0].Err()
			moved := redirected(failure)
			if moved.addr == "" && !isTransient(failure) {
				return nil
			}
			if redirects++; moved.addr != "" && redirects < 5 {
				to = moved
				continue
			}
		case r.isOnce && r.isUncertain:
			return &keyError{ErrUnreachable, r.key, fmt.Errorf("the command may have run: %w", joined(ctx.Err(), failure))}
		case isLoginRefused(failure):
			return &keyError{ErrRefused, r.key, failure}
		}
		c.pause(ctx, earliest(time.Now().Add(backOff(failures)), until))
		failures, redirects = failures+1, 0
	}
}

// askOnce sends a request once.
func (c *Client) askOnce(ctx context.Context, r *call, to redirect, deadline time.Time, isNew bool) error {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	n, err := c.nodeFor(ctx, r.key, to)
	if err != nil {
		return err
	}
	if r.limit <= c.responseLimit { // a request that waits at the server must not keep others from being sent
		select {
		case n.permits <- struct{}{}:
			defer func() { <-n.permits }()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return c.attempt(ctx, n, to.isAsk, isNew, r)
}

// attempt sends the requests of one node in one pipeline. It fails if a reply is missing, and at the deadline of the context.
func (c *Client) attempt(ctx context.Context, n *node, isAsk, isNew bool, calls ...*call) error {
	cn, err := c.connection(ctx, n, isNew)
	if err != nil {
		return err
	}
	sent, commands := time.Now(), []command(nil)
	for _, r := range calls {
		if isAsk {
			commands = append(commands, command{"ASKING"})
		}
		r.sent, commands = sent, append(commands, r.commands(sent)...)
	}
	replies, err := cn.exchange(ctx, commands)
	failure, count := err, len(commands)/len(calls)
	for i, r := range calls {
		if err != nil {
			r.isUncertain = r.isUncertain || cn.isReady
			continue
		}
		r.replies = replies[i*count : (i+1)*count]
		if isAsk {
			r.replies = r.replies[1:]
		}
		if isTransient(r.replies[0].Err()) { // a new connection may lead to another server
			failure = r.replies[0].Err()
		}
	}
	switch {
	case ctx.Err() != nil:
		c.discard(n, cn, nil)
	case failure != nil:
		c.discard(n, cn, failure)
	default:
		c.keepIdle(n, cn)
	}
	return err
}

// pause waits until a time, or until the caller leaves or the client is closed.
func (c *Client) pause(ctx context.Context, until time.Time) {
	select {
	case <-time.After(time.Until(until)):
	case <-ctx.Done():
	case <-c.open.Done():
	}
}

// backOff is the pause before the next attempt: none after the first failure, because the connection may have been closed
// while it was idle; then 50 ms, doubling to a second, with jitter.
func backOff(failures int) time.Duration {
	if failures == 0 {
		return 0
	}
	longest := min(time.Second, 25*time.Millisecond<<min(failures, 6))
	return longest*3/4 + rand.N(longest/4)
}

// earliest is the earlier one of two times, of which the zero time is never.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
