package lockward

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// A command is its name and arguments.
type command []any

// An answer is what a server has replied to some commands.
type answer struct {
	sent       time.Time
	replies    []*redis.Cmd
	mayHaveRun bool // an earlier request, whose reply was lost, may have been carried out
}

// serverError is the error reply to the first command, or nil.
func (a *answer) serverError() *ServerError { return serverError(a.replies[0].Err()) }

// ask sends commands to the node that has the key, until a server answers, the context ends, or no server has answered for
// as long as the patience. limit is how long a reply may take; 0 means without limit, for a request that waits. The answer is
// never nil: also with an error, it tells whether a request may have been carried out.
func (c *Client) ask(
	ctx context.Context, key string, patience time.Duration, limit time.Duration, commands func(sent time.Time) []command,
) (*answer, error) {
	return c.askIf(ctx, key, patience, limit, commands, func(error) error { return nil })
}

// askIf is like ask, but stops when permit returns an error, and returns that. It calls permit with nil before each attempt,
// and after an attempt that a server may have carried out, with the reason why the reply is missing.
func (c *Client) askIf(
	ctx context.Context, key string, patience time.Duration, limit time.Duration, commands func(sent time.Time) []command,
	permit func(missing error) error,
) (*answer, error) {
	var failingSince time.Time
	var to redirect
	redirects, failures, mayHaveRun := 0, 0, false
	for {
		if stop := permit(nil); stop != nil {
			return &answer{mayHaveRun: mayHaveRun}, stop
		}
		sent := time.Now()
		replies, err := c.attempt(ctx, key, to, limit, commands(sent))
		if err == nil {
			refusal := serverError(replies[0].Err())
			if to = redirected(refusal); to.addr != "" && redirects < 5 {
				c.reload()
				redirects++
				continue
			}
			if to.addr == "" && !refusal.isTransient() {
				return &answer{sent, replies, mayHaveRun}, nil
			}
			err = refusal
		} else {
			if refusal := serverError(err); refusal != nil && !refusal.isTransient() { // the login was refused
				return &answer{mayHaveRun: mayHaveRun}, refusal
			}
			to = redirect{}
			if !errors.As(err, new(notSent)) {
				mayHaveRun = true
				if stop := permit(err); stop != nil {
					return &answer{mayHaveRun: mayHaveRun}, stop
				}
			}
		}
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return &answer{mayHaveRun: mayHaveRun}, fmt.Errorf("%w: %w (%w)", ErrUnreachable, ctx.Err(), err)
		}
		if ctx.Err() != nil {
			return &answer{mayHaveRun: mayHaveRun}, contextError(ctx)
		}
		hasWaited := limit == 0 && time.Since(sent) > c.responseLimit*2 && !errors.Is(err, errServerGone)
		if hasWaited || failingSince.IsZero() {
			failingSince, failures = time.Now(), 0
		}
		redirects = 0
		pause := backOff(failures)
		failures++
		if time.Since(failingSince)+pause > patience {
			return &answer{mayHaveRun: mayHaveRun}, fmt.Errorf("%w: %w", ErrUnreachable, err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// backOff is the pause before the next attempt: none after the first failure, because the connection may have been closed
// while it was idle; then 50 ms, doubling to a second, with jitter.
func backOff(failures int) time.Duration {
	if failures == 0 {
		return 0
	}
	longest := min(time.Second, 25*time.Millisecond<<min(failures, 6))
	return longest/2 + rand.N(longest/2)
}

// attempt sends commands once. It fails if a reply is missing.
func (c *Client) attempt(
	caller context.Context, key string, to redirect, limit time.Duration, commands []command,
) ([]*redis.Cmd, error) {
	findCtx, done := context.WithTimeout(caller, c.responseLimit)
	defer done()
	n, err := c.nodeFor(findCtx, key, to)
	if err != nil {
		return nil, notSent{err}
	}
	// A request that waits for replicas takes no permit: it must not keep others from being renewed.
	if 0 < limit && limit <= c.responseLimit {
		select {
		case n.permits <- struct{}{}:
			defer func() { <-n.permits }()
		case <-caller.Done():
			return nil, notSent{contextError(caller)}
		}
	}
	ctx, cancel := context.WithCancelCause(caller)
	defer cancel(nil)
	conn := c.connection(n)
	if limit > 0 {
		defer time.AfterFunc(limit, func() { cancel(nil) }).Stop()
	} else {
		c.running.Add(1) // a grant does not wait for the probe, but Close does
		go func() {
			defer c.running.Done()
			c.probeWhileWaiting(ctx, n, conn, func() { cancel(errServerGone) })
		}()
	}
	replies, err := conn.exchange(ctx, to.isAsk, commands)
	if err != nil && context.Cause(ctx) == errServerGone {
		err = errServerGone
	}
	hasFailed := err != nil || serverError(replies[0].Err()).isTransient()
	switch {
	case hasFailed && caller.Err() == nil:
		conn.close() // a new connection may lead to another server
		c.connectionLost(n)
	case hasFailed || ctx.Err() != nil:
		conn.close()
	default:
		c.keepIdle(n, conn)
	}
	if err != nil && conn.remote.Load() == nil {
		err = notSent{err}
	}
	return replies, err
}

// notSent is why a request was not sent at all.
type notSent struct{ error }

func (e notSent) Unwrap() error { return e.error }

// A redirect is the address of the cluster node that has a key, or (isAsk) that is importing it.
type redirect struct {
	addr  string
	isAsk bool
}

// redirected reads a redirection, such as MOVED 3999 127.0.0.1:6381.
func redirected(refusal *ServerError) redirect {
	if refusal == nil || refusal.Code != "MOVED" && refusal.Code != "ASK" {
		return redirect{}
	}
	_, addr, _ := strings.Cut(refusal.Message, " ")
	return redirect{addr, refusal.Code == "ASK"}
}

// resolve is the complete address. A node that does not know its own host leaves it out, and then the host of asked is meant.
// An IPv6 address has no brackets.
func (r redirect) resolve(asked string) string {
	colon := strings.LastIndexByte(r.addr, ':')
	host, port := strings.Trim(r.addr[:max(colon, 0)], "[]"), r.addr[colon+1:]
	if host == "" || host == "?" {
		host, _, _ = net.SplitHostPort(asked)
	}
	return net.JoinHostPort(host, port)
}
