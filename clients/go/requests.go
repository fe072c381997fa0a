package lockward

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// errLate means that an attempt has lasted too long.
var errLate = errors.New("no reply in time")

// A command is a request, and later also the reply to it.
type command = *redis.Cmd

func newCommand(words ...any) command { return redis.NewCmd(context.Background(), words...) }

// A call is one request about a key, which may be sent several times. When no server has answered until the end of its time, the call
// fails with ErrUnreachable.
type call struct {
	*part
	ctx          context.Context       // ends the call
	request      func(r *call) command // returns the request for one attempt
	limit        time.Duration         // how long to wait for one reply
	until        time.Time             // the client does not send the request after this time; the zero time means no limit
	isWait       bool                  // the request waits in the server's queue
	isRenewal    bool                  // the request uses the connections for renewals
	isReplicated bool                  // replicas must confirm the grant
	isRelease    bool                  // the client repeats the request while the server cannot write to its disk
	isOnce       bool                  // the client does not repeat the request if the server may have carried it out

	sent        time.Time // when the last request was sent
	asked       int64     // the lease that the last request asked for, in milliseconds
	isAttempted bool      // an attempt has ended, and ask has not handled its outcome yet
	reply       command   // the last request with its reply; nil if the reply is missing
	confirmed   command   // the WAIT after the last request, with its reply
	failure     error     // the error reply, or why there is no reply
	err         error     // the error that finishRelease has returned
	isUncertain bool      // a request was sent, and its reply is missing
	after       time.Time // the next request needs a connection that was opened after this time
	isShortened bool      // the server has refused the lease as too long
}

// newCall returns a call that sends a request. A server must answer within the patience.
func (p *part) newCall(ctx context.Context, request func(r *call) command) *call {
	until := time.Now().Add(p.client.patience)
	return &call{part: p, ctx: ctx, request: request, limit: p.client.responseLimit, until: until}
}

// newRelease returns a call that releases the key.
func (p *part) newRelease(ctx context.Context, words ...any) *call {
	words = append([]any{"LOCK.RELEASE", p.key, p.owner}, words...)
	r := p.newCall(ctx, func(*call) command { return newCommand(words...) })
	r.isRelease = true
	return r
}

// each runs finish for several calls at the same time, and waits until finish has returned for all of them. finish must call ask. The
// first requests to a node share a pipeline. The end of ctx ends these first requests.
func (c *Client) each(ctx context.Context, calls []*call, finish func(r *call) error) error {
	if len(calls) == 1 {
		return finish(calls[0])
	}
	looking, cancel := context.WithTimeout(ctx, calls[0].limit)
	byNode := make(map[*node][]*call)
	for _, r := range calls {
		n, _ := c.nodeFor(looking, r.key, redirect{})
		byNode[n] = append(byNode[n], r)
	}
	cancel()
	outcomes := make(chan error)
	for n, together := range byNode {
		go func() {
			if n != nil && ctx.Err() == nil {
				c.send(ctx, redirect{}, together...)
			}
			for _, r := range together {
				go func() { outcomes <- finish(r) }()
			}
		}()
	}
	errs := make([]error, len(calls))
	for i := range errs {
		errs[i] = <-outcomes
	}
	return errors.Join(errs...)
}

// ask sends the request until a server answers, the time is over, or the context of the call ends. For an error reply, ask returns
// ErrRefused.
func (r *call) ask() error {
	to := redirect{}
	for failures, redirects := 0, 0; ; {
		switch {
		case r.isAttempted:
		case r.ctx.Err() != nil:
			return r.contextError(r.ctx, r.failure)
		case !r.until.IsZero() && !time.Now().Before(r.until):
			return r.fail(ErrUnreachable, r.failure)
		default:
			r.client.send(r.ctx, to, r)
		}
		r.isAttempted = false
		to = redirect{isAny: failures%2 == 1} // the node may be gone, and any other node knows where the key is now
		switch {
		case r.reply != nil:
			refusal := r.reply.Err()
			moved := redirected(refusal)
			_, isCluster := r.client.rdb.(*redis.ClusterClient)
			switch {
			case refusal == nil || errors.Is(refusal, redis.Nil):
				return nil
			case r.shorten(refusal):
				continue
			case r.isRelease && hasCode(refusal, "MISCONF"):
			case moved.addr == "" && !isTransient(refusal), r.isOnce && endsWait(refusal):
				return r.fail(ErrRefused, refusal)
			case moved.addr != "" && !isCluster:
				return r.fail(ErrRefused, refusal, errors.New("the server is a node of a cluster, which needs a *redis.ClusterClient"))
			}
			if r.mayWait && !r.isHeld && !r.until.IsZero() && !isNoAnswer(refusal) { // each answer starts the patience again
				r.until = time.Now().Add(r.client.patience).Add(r.within)
			}
			if redirects++; moved.addr != "" && redirects < 5 {
				to = moved
				continue
			}
		case r.isOnce && r.isUncertain:
			return r.fail(ErrUnreachable, errors.New("the command may have run"), r.ctx.Err(), r.failure)
		case hasCode(r.failure, "WRONGPASS", "NOAUTH", "NOPERM", "ERR"): // the server refuses the user or the database
			return r.fail(ErrRefused, r.failure)
		}
		sleep(r.ctx, earliest(time.Now().Add(backOff(failures)), r.until))
		failures, redirects = failures+1, 0
	}
}

// send sends the requests of calls to the node that has their keys, in one pipeline. If one reply is missing, all replies count as
// missing. When ctx ends, send returns at once.
func (c *Client) send(ctx context.Context, to redirect, calls ...*call) {
	end := time.Time{}
	for _, r := range calls {
		end = earliest(earliest(end, r.until), time.Now().Add(r.limit))
	}
	ctx, cancel := context.WithDeadlineCause(ctx, end, errLate)
	defer cancel()
	n, permits, err := calls[0].permit(ctx, to)
	if permits != nil {
		defer func() { <-permits }()
	}
	var cn *connection
	if err == nil {
		cn, err = c.connection(ctx, n, calls[0].after, calls[0].isWait)
	}
	if err == nil {
		err = cn.request(ctx, to.isAsk, calls)
	}
	c.settle(n, cn, calls, err, context.Cause(ctx))
}

// permit returns the node of the call, and the permits of the node. The caller must return the permit that permit has taken from them.
// A request that waits at the server takes no permit, because other calls need the permits. Then permits is nil.
func (r *call) permit(ctx context.Context, to redirect) (n *node, permits chan struct{}, err error) {
	n, err = r.client.nodeFor(ctx, r.key, to)
	if err != nil || r.isWait || r.isReplicated {
		return n, nil, err
	}
	permits = n.permits
	if r.isRenewal {
		permits = n.renewals
	}
	select {
	case permits <- struct{}{}:
		return n, permits, nil
	case <-ctx.Done():
		return n, nil, ctx.Err()
	}
}

// request sends the requests of the calls in one pipeline, and receives the replies.
func (cn *connection) request(ctx context.Context, isAsk bool, calls []*call) error {
	commands := make([]command, 0, len(calls)+2)
	if isAsk {
		commands = append(commands, newCommand("ASKING"))
	}
	sent := time.Now()
	for _, r := range calls {
		r.sent = sent
		r.reply = r.request(r)
		commands = append(commands, r.reply)
	}
	first := calls[0]
	if first.isReplicated { // one WAIT serves all keys, because each WAIT may last for the whole time
		first.confirmed = newCommand("WAIT", first.replicas, first.within.Milliseconds())
		commands = append(commands, first.confirmed)
		for _, r := range calls {
			r.confirmed = first.confirmed
		}
	}
	err := cn.exchange(ctx, commands)
	if err == nil && first.isReplicated && isTransient(first.confirmed.Err()) {
		return first.confirmed.Err()
	}
	return err
}

// settle stores the outcome of the calls, and keeps or closes the connection. cn is nil if no connection could be opened. err is the
// error of the exchange, and ended is why its context has ended.
func (c *Client) settle(n *node, cn *connection, calls []*call, err, ended error) {
	first := calls[0]
	isSent := cn != nil && cn.isReady
	isBroken := isSent && err != nil && ended == nil
	for _, r := range calls {
		r.isAttempted, r.after = true, time.Time{}
		if err != nil {
			r.reply = nil
			// A missing reply does not hide the earlier reason why no connection could be opened.
			if isLate := ended != nil || errors.Is(err, context.DeadlineExceeded); !isLate || r.failure == nil || hasCode(r.failure) {
				r.failure = cmp.Or(ended, err)
			}
			r.isUncertain = r.isUncertain || isSent
			if isBroken || ended != nil { // not after every error: a full server refuses only new connections
				r.after = time.Now()
			}
			continue
		}
		r.failure = r.reply.Err()
		if !isNoAnswer(r.failure) {
			r.isAnswered.Store(true)
		}
		if isTransient(r.failure) { // a new connection may lead to another server
			r.after, isBroken = time.Now(), true
		}
	}
	switch {
	case cn == nil, err == nil && !isBroken && ended == nil && c.keepIdle(n, cn):
	case isSent && err != nil && ended != nil && !first.isHeld: // no release may overtake the request
		limit := time.Second
		if first.isOwnerNamed { // the program waits for the release
			limit = leaveLimit / 2
		}
		first.unread.Add(1)
		go func() { defer first.unread.Done(); cn.abandon(limit) }()
	default:
		c.discard(cn, isBroken)
	}
}

// If the server has refused the lease as too long, shorten sets the lease to the longest lease that the server accepts. A call
// shortens its lease only once. shorten returns whether it has set the lease.
func (r *call) shorten(refusal error) bool {
	var longest int64
	_, limit, _ := strings.Cut(refusal.Error(), " command: at most ")
	_, _ = fmt.Sscan(limit, &longest)
	if r.isShortened || longest <= 0 || longest >= r.asked {
		return false
	}
	r.isShortened = true
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lease = longest
	return true
}

// checkNumber checks that the reply is a number, and if isToken is true, the token. If err is not nil, checkNumber returns err.
func (r *call) checkNumber(err error, isToken bool) error {
	if err != nil {
		return err
	}
	number, err := r.reply.Int64()
	if err != nil || isToken && number != r.token {
		return r.unexpected()
	}
	return nil
}

// unexpected returns the error for a reply that the server never sends to this command. The server may have carried out the request.
func (r *call) unexpected() error {
	r.isUncertain = true
	return r.fail(ErrRefused, fmt.Errorf("unexpected reply: %v", r.reply))
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
