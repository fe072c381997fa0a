package lockward

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// A command is a request, and later also the reply to it.
type command = *redis.Cmd

func newCommand(words ...any) command { return redis.NewCmd(context.Background(), words...) }

// A call is one request about a key, which may be sent several times.
type call struct {
	ctx     context.Context // the context of the caller
	part    *part
	request func(r *call) command
	read    func(r *call, err error) error // gets the outcome, and returns the outcome for the caller; may be nil

	limit        time.Duration // how long to wait for one reply
	until        time.Time     // the client does not send the request after this time; the zero time means no limit
	patience     time.Duration // when a server answers, until becomes now plus patience; 0 does not change until
	isReplicated bool          // replicas must confirm the grant
	isRenewal    bool          // the call is a renewal, and uses the connections that are reserved for renewals
	isUnlimited  bool          // the call needs no permit for its connection
	isOnce       bool          // the client does not repeat the request if the server may have carried it out

	sent        time.Time // when the last request was sent
	lease       int64     // the lease that the last request asked for, in milliseconds
	isAttempted bool      // an attempt has ended, and repeat has not handled its outcome yet
	replies     []command // the replies to the last request; nil if a reply is missing
	failure     error     // why there is no answer
	isUncertain bool      // a request was sent, and its reply is missing
	isNew       bool      // the next request needs a new connection
	isShortened bool      // the server has refused the lease as too long
	err         error     // the error that ask returns
}

// ask makes several calls at the same time, and waits until all calls have ended. The first requests to a node share a pipeline. ctx
// limits these first requests. After that, each call continues on its own until its own context ends.
func (c *Client) ask(ctx context.Context, calls ...*call) (err error) {
	if len(calls) == 1 {
		return calls[0].ask()
	}
	looking, cancel := attempt(ctx, calls...)
	byNode := make(map[*node][]*call)
	for _, r := range calls {
		n, _ := c.nodeFor(looking, r.part.key, redirect{})
		byNode[n] = append(byNode[n], r)
	}
	cancel()
	outcomes := make(chan error)
	for n, together := range byNode {
		go func() {
			if n != nil {
				c.send(ctx, redirect{}, together...)
			}
			for _, r := range together {
				go func() { outcomes <- r.ask() }()
			}
		}()
	}
	for range calls {
		err = errors.Join(err, <-outcomes)
	}
	return err
}

// ask repeats a request until a server answers, the time is over, or the caller leaves. For an error reply it returns ErrRefused.
func (r *call) ask() error {
	r.err = r.repeat()
	if r.read != nil {
		r.err = r.read(r, r.err)
	}
	return r.err
}

// newCall returns a call about the key. The call waits for each reply for at most limit. It fails with ErrUnreachable if no server has
// answered for the patience. If patience is 0, the call never fails for this reason.
func (p *part) newCall(ctx context.Context, limit, patience time.Duration) *call {
	r := &call{ctx: ctx, part: p, limit: limit}
	if patience > 0 {
		r.until = time.Now().Add(patience)
	}
	return r
}

// attempt returns a context for one attempt of calls. This context ends when the client stops waiting for the replies.
func attempt(ctx context.Context, calls ...*call) (context.Context, context.CancelFunc) {
	var end time.Time
	for _, r := range calls {
		end = earliest(earliest(end, r.until), time.Now().Add(r.limit))
	}
	return context.WithDeadlineCause(ctx, end, errors.New("no reply in time"))
}

// repeat sends the request again if no server answers, and after a redirection or a transient error.
func (r *call) repeat() error {
	to := redirect{}
	for failures, redirects := 0, 0; ; {
		switch {
		case r.isAttempted:
		case r.ctx.Err() != nil:
			return contextError(r.ctx, r.part.key, r.failure)
		case !r.until.IsZero() && !time.Now().Before(r.until):
			return r.part.fail(ErrUnreachable, r.failure)
		default:
			r.part.client.send(r.ctx, to, r)
		}
		r.isAttempted = false
		to = redirect{isAny: failures%2 == 1} // the node may be gone, and any other node knows where the key is now
		switch {
		case r.replies != nil:
			refusal := r.replies[0].Err()
			moved := redirected(refusal)
			switch {
			case refusal == nil || errors.Is(refusal, redis.Nil):
				return nil
			case r.shorten(refusal):
				continue
			case moved.addr == "" && !isTransient(refusal), r.isOnce && hasCode(refusal, "TRYAGAIN", "UNBLOCKED", "SUPERSEDED"):
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
		case hasCode(r.failure, "WRONGPASS", "NOAUTH", "NOPERM"): // the server refuses the user
			return r.part.fail(ErrRefused, r.failure)
		}
		sleep(r.ctx, earliest(time.Now().Add(backOff(failures)), r.until))
		failures, redirects = failures+1, 0
	}
}

// mayBeDone returns whether the server may have carried out a request of the call.
func (r *call) mayBeDone() bool {
	return !errors.Is(r.err, ErrRefused) || r.isUncertain && !hasCode(r.err, "LIMIT", "ERR") // every request of the call gets these errors
}

// shorten handles a refusal of the lease as too long: it sets the lease to the longest lease that the server accepts. It does this
// once for each call. shorten returns whether it has set the lease.
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

// send sends the requests of calls to the node that has their keys, in one pipeline. If one reply is missing, all
// replies count as missing.
func (c *Client) send(ctx context.Context, to redirect, calls ...*call) {
	ctx, cancel := attempt(ctx, calls...)
	defer cancel()
	first, cn := calls[0], (*connection)(nil)
	n, err := c.nodeFor(ctx, first.part.key, to)
	if err == nil && !first.isUnlimited {
		permits := n.permits
		if first.isRenewal {
			permits = n.renewals
		}
		select {
		case permits <- struct{}{}:
			defer func() { <-permits }()
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	if err == nil {
		cn, err = c.connection(ctx, n, first.isNew, first.isUnlimited && !first.isReplicated)
	}
	if err == nil {
		var commands, wait []command
		if to.isAsk {
			commands = append(commands, newCommand("ASKING"))
		}
		if first.isReplicated { // one WAIT serves all keys, because each WAIT may last for the whole time
			wait = append(wait, newCommand("WAIT", first.part.replicas, first.part.within.Milliseconds()))
		}
		sent := time.Now()
		for _, r := range calls {
			r.sent = sent
			r.replies = append([]command{r.request(r)}, wait...)
			commands = append(commands, r.replies[0])
		}
		err = cn.exchange(ctx, append(commands, wait...))
	}
	isSent := cn != nil && cn.isReady
	isBroken := isSent && cn.isUsed && err != nil && ctx.Err() == nil
	for _, r := range calls {
		r.isAttempted, r.failure = true, err
		if err != nil {
			r.replies = nil
			r.isUncertain = r.isUncertain || isSent
			r.isNew = isBroken || ctx.Err() != nil // a full server refuses new connections, but answers on open connections
			continue
		}
		r.part.node.Store(n)
		r.isNew = isTransient(r.replies[0].Err()) // a new connection may lead to another server
		isBroken = isBroken || r.isNew
	}
	switch {
	case cn == nil:
	case err == nil && !isBroken && ctx.Err() == nil:
		cn.isUsed = true
		c.keepIdle(n, cn)
	default:
		c.discard(n, cn, isBroken)
	}
}

// checkNumber checks that the reply is a number, or the token. If err is not nil, it returns err.
func (r *call) checkNumber(err error, isToken bool) error {
	if err != nil {
		return err
	}
	number, err := r.replies[0].Int64()
	if err != nil || isToken && number != r.part.token {
		return r.unexpected()
	}
	return nil
}

// unexpected returns the error for a reply that the server never sends to this command. The server may have carried out the request.
func (r *call) unexpected() error {
	r.isUncertain = true
	return r.part.fail(ErrRefused, fmt.Errorf("unexpected reply: %v", r.replies[0]))
}

// sleep waits until a time, or until the context ends.
func sleep(ctx context.Context, until time.Time) {
	select {
	case <-time.After(time.Until(until)):
	case <-ctx.Done():
	}
}

// backOff returns the pause before the next attempt. After the first failure there is no pause: the server may have closed the
// connection while it was idle. The next pause is 50 ms, and each further pause is twice as long, up to a second, with jitter.
func backOff(failures int) time.Duration {
	if failures == 0 {
		return 0
	}
	longest := min(time.Second, 25*time.Millisecond<<min(failures, 6))
	return longest*3/4 + rand.N(longest/4)
}

// earliest returns the earlier of two times. The zero time means never.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
