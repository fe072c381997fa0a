package lockward

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// A Lock is held, by an owner of its own. The client renews its lease while it is held. It can be lost all the same: the
// process is paused for longer than the lease, no server is reachable, or an administrator breaks the lock. Lost and Context
// tell when that happens, and Held tells when asked. When an administrator breaks the lock, they tell after a third of the lease
// at the latest. None of them stops a write that is under way. Write to the lock's server with Guarded. Pass the Token to anything
// else that the lock protects, and refuse a smaller token there than the largest one seen.
//
// Many goroutines may use a Lock; they hold it together. A Lock that becomes unreachable is renewed no more, and is lost when its
// lease ends. It must not be copied.
type Lock struct {
	*tenure
}

// A tenure is what a Lock holds, for one or several keys. Timers and renewals refer to the tenure, and not to the Lock: so the
// program's last reference to the Lock can be seen to go.
type tenure struct {
	client *Client
	settings
	parts      []*part   // at least one, in the order of their keys
	until      time.Time // the acquisition sends no request after that; zero is never
	isAnswered atomic.Bool
	over       context.Context // ends when the lock is released or lost
	end        context.CancelCauseFunc
	lost       chan struct{}

	isOwnerNamed bool // by the program

	mu        sync.Mutex
	expiry    *time.Timer // calls expire
	holdEnd   time.Time   // of the hold limit
	isWhole   bool        // all keys are held, or were
	isDropped bool        // the program has no reference to the Lock any more
}

// A part is the state of one key of a tenure: tried, waited for, held and released by its methods.
type part struct {
	*tenure
	key          string
	token        int64
	lease        int64 // milliseconds
	isLeaseKnown bool
	mayBeHeld    bool // the server may have a grant, a wait or a place in the queue

	// guarded by tenure.mu, once it is held
	isHeld     bool
	deadline   time.Time // the end of the lease by the clock of this process
	renewAt    time.Time
	isLast     bool         // the lease reaches the hold limit
	isRenewing bool         // a renewal is under way
	asked      int64        // milliseconds, the lease that the last renewal has asked for
	to         redirect     // where the next renewal is sent
	failures   int          // of renewals, since the last success
	failure    error        // of the last renewal
	callers    []chan error // of Renew: each gets the outcome of the next renewal
	served     int          // how many of the callers came before the last renewal was sent
}

// newTenure returns a tenure that is not held.
func (c *Client) newTenure(keys []string, with settings, options []AcquireOption) *tenure {
	t := &tenure{client: c, settings: with, lost: make(chan struct{}), parts: make([]*part, len(keys))}
	for _, option := range options {
		option(&t.settings)
	}
	if t.isOwnerNamed = t.owner != ""; !t.isOwnerNamed {
		t.owner = c.newOwner()
	}
	if t.holdLimit > 0 {
		t.lease = min(t.lease, t.holdLimit.Milliseconds())
	}
	t.over, t.end = context.WithCancelCause(context.Background())
	for i, key := range keys {
		t.parts[i] = &part{tenure: t, key: key, lease: t.lease, isLeaseKnown: t.hasLease}
	}
	return t
}

// lock returns the Lock of a tenure that is held.
func (t *tenure) lock() *Lock {
	l := &Lock{t}
	runtime.AddCleanup(l, func(t *tenure) {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.isDropped = true
	}, t)
	return l
}

// Key returns the key of the lock: the first one, in the order of their bytes, if there are several.
func (l *Lock) Key() string { return l.parts[0].key }

// Owner returns the owner that holds the lock.
func (l *Lock) Owner() string { return l.owner }

// Token returns the fencing token: below 2^53, and larger than that of every earlier tenure of this lock. Of several keys, it is
// that of the first one.
func (l *Lock) Token() int64 { return l.parts[0].token }

// Tokens returns the fencing tokens of all keys, in the order of the keys' bytes.
func (l *Lock) Tokens() []int64 {
	tokens := make([]int64, len(l.parts))
	for i, p := range l.parts {
		tokens[i] = p.token
	}
	return tokens
}

// Held returns whether the lock is held, as far as this process knows. It asks no server. It counts the lease on its own
// monotonic clock, from before the request was sent, so the lease ends here before it ends at the server. (Linux does not
// count the time while the whole machine sleeps.)
func (l *Lock) Held() bool { return l.checkHeld() == nil }

// Until returns when the lease ends by the clock of this process, if it is not renewed again. It means something only while
// the lock is Held.
func (l *Lock) Until() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.firstEnd()
}

// Lost returns a channel that is closed when the lock is lost: at most 50 ms after the end of its lease, whatever hangs. It is
// not closed when the lock is released. When Release finds that the lock was lost, only its error says so.
func (l *Lock) Lost() <-chan struct{} { return l.lost }

// Context returns a context that ends with parent, or when the lock is lost or released. context.Cause then is an error that is
// ErrLost or ErrReleased.
func (l *Lock) Context(parent context.Context) context.Context {
	over := l.over
	ctx, cancel := context.WithCancelCause(parent)
	stop := context.AfterFunc(over, func() { cancel(context.Cause(over)) })
	context.AfterFunc(ctx, func() { stop() })
	return ctx
}

// Renew starts the lease again. Call it just before the result of the work is published, to know that the lock was held up to
// then. Otherwise the client renews the lock by itself, unless WithoutRenewal was given; if the server refuses so long a lease,
// with the longest that it accepts.
//
// The error is ErrLost when the lock is lost; ErrReleased; ErrUnreachable when no server answers while the patience, the deadline
// of ctx and the lease last, and then the lock may still be held; the cause of ctx; or ErrRefused.
func (l *Lock) Renew(ctx context.Context) error {
	defer runtime.KeepAlive(l)
	return l.renew(ctx)
}

// Downgrade lets others hold the lock beside this Lock from now on: limit is Shared or Slots, and larger than what the Lock has
// now. Those who wait and fit are served in the same step. The token and the weight stay.
//
// The errors are those of Renew. After ErrUnreachable, or if ctx has ended, a later renewal downgrades the lock.
func (l *Lock) Downgrade(ctx context.Context, limit AcquireOption) error {
	defer runtime.KeepAlive(l)
	set := func(change func(*settings)) {
		l.mu.Lock()
		defer l.mu.Unlock()
		change(&l.settings)
	}
	before := l.settings
	set(limit)
	err := l.renew(ctx)
	if errors.Is(err, ErrRefused) {
		set(func(s *settings) { s.limit, s.weight = before.limit, before.weight })
	}
	return err
}

// Guarded runs a command only while the server has this tenure: it sends LOCK.GUARD with the token of the lock. The server
// checks the token and runs the command in one step, so a late write of a process that was paused does not run. Without a
// command, it only checks the token. Of several keys, it checks the first one.
//
//	count, err := lock.Guarded(ctx, "INCR", "{order:42}:count").Int64()
//
// The data must be on the lock's server. In a cluster its keys need the slot of the lock, by a common tag such as {order:42}.
//
// The error is ErrLost when the lock is lost, or ErrReleased; then the command did not run. An error reply to the command is
// the one of go-redis, and the lock stays held. Guarded does not repeat the command when its reply is missing, because it may
// have run: then the error is ErrUnreachable, and also that of the context if this has ended.
func (l *Lock) Guarded(ctx context.Context, command ...any) *redis.Cmd {
	defer runtime.KeepAlive(l)
	p, guard := l.parts[0], append([]any{"LOCK.GUARD", l.Key(), l.Token()}, command...)
	for isRenewed := false; ; isRenewed = true {
		r := &call{key: p.key, limit: p.client.responseLimit, until: time.Now().Add(p.client.patience), isOnce: true}
		r.commands = func(time.Time) [][]any { return [][]any{guard} }
		err := p.checkHeld()
		if err == nil {
			err = p.client.ask(ctx, r)
		}
		if err == nil && errorCode(r.replies[0].Err()) != "FENCED" {
			return r.replies[0]
		}
		if err == nil && isRenewed {
			err = p.lose(r.replies[0].Err())
		} else if err == nil {
			err = p.renew(ctx) // a server in quarantine restores the tenure
		}
		if err != nil {
			reply := redis.NewCmd(ctx, guard...)
			reply.SetErr(err)
			return reply
		}
	}
}

// Release gives the lock back. When it returns, the first waiter has the lock.
//
// The error is ErrLost if the lock was lost before: the work was not protected up to its end. It is ErrReleased if the lock was
// released before. It is ErrUnreachable if no server answers while the patience and the lease last; then the lock ends with its
// lease. If ctx ends, or has ended before, Release takes 200 ms at most, and goes on in the background.
func (l *Lock) Release(ctx context.Context) error {
	t := l.tenure
	lost := t.leave()
	if lost != nil && (len(t.parts) == 1 || !errors.Is(lost, ErrLost)) {
		return lost
	}
	released := t.each(func(p *part) error { return p.release(ctx) }) // if one key is lost, the other ones may be held
	return cmp.Or(lost, released)
}

// release releases one key. If ctx ends, it goes on in the background. The reply to a repeated request does not tell whether the
// tenure was lost before.
func (p *part) release(ctx context.Context) error {
	r := &call{key: p.key, limit: p.client.responseLimit}
	r.commands = func(time.Time) []command {
		return []command{{"LOCK.RELEASE", p.key, p.owner, "ALL", "TOKEN", p.token}}
	}
	err := p.askForRelease(ctx, r)
	if err == nil || ctx.Err() == nil || errors.Is(err, ErrLost) {
		return err
	}
	late := err
	r.isCleanup = true
	done := p.client.background(func() { late = p.askForRelease(context.Background(), r) })
	select {
	case <-done:
		return late
	case <-time.After(leaveLimit):
		return err
	}
}

func (p *part) askForRelease(ctx context.Context, r *call) error {
	p.mu.Lock()
	r.until = earliest(time.Now().Add(p.client.patience), p.deadline)
	p.mu.Unlock()
	if err := p.client.ask(ctx, r); err != nil {
		return err
	}
	switch err := r.replies[0].Err(); {
	case err == nil || r.isUncertain && errorCode(err) == "NOTHELD":
		return nil
	case deniesTenure(err):
		return &keyError{ErrLost, p.key, err}
	default:
		return p.refused(err)
	}
}

// Handle returns a string from which another process can go on with the tenure, by Client.Resume. This Lock ends as if it was
// released, but the server keeps the tenure until its lease ends: it is renewed no more. The error is ErrLost or ErrReleased.
func (l *Lock) Handle() (string, error) {
	if err := l.leave(); err != nil {
		return "", err
	}
	values := url.Values{"owner": {l.owner}}
	for _, word := range slices.Concat(l.limit, l.weight) {
		values.Add("kind", fmt.Sprint(word))
	}
	for _, p := range l.parts {
		values.Add("key", p.key)
		values.Add("token", strconv.FormatInt(p.token, 10))
		values.Add("lease", strconv.FormatInt(p.lease, 10))
	}
	return values.Encode(), nil
}

// Resume goes on with the tenure of a Handle. It renews it, and then it is held as after Acquire. Of the options, those of the
// lease, the renewal and the hold limit have a meaning.
//
// The errors are those of Lock.Renew.
func (c *Client) Resume(ctx context.Context, handle string, options ...AcquireOption) (*Lock, error) {
	values, err := url.ParseQuery(handle)
	keys, kind := values["key"], values["kind"]
	if err != nil || len(keys) == 0 || len(values["token"]) != len(keys) || len(values["lease"]) != len(keys) {
		return nil, errors.New("lockward: this is not the handle of a lock")
	}
	from := settings{owner: values.Get("owner"), isRenewed: true, hasLease: true}
	for _, word := range kind {
		from.limit = append(from.limit, word)
	}
	t := c.newTenure(keys, from, options)
	t.until = time.Now().Add(c.patience)
	for i, p := range t.parts {
		p.token, _ = strconv.ParseInt(values["token"][i], 10, 64)
		if p.lease == 0 {
			p.lease, _ = strconv.ParseInt(values["lease"][i], 10, 64)
		}
	}
	err = t.each(func(p *part) error {
		isHeld, err := p.confirm(ctx)
		if err == nil && !isHeld {
			err = &keyError{ErrLost, p.key, errors.New("the server denies the tenure of the handle")}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, p := range t.parts {
		p.hold()
	}
	return t.lock(), nil
}

// each runs a task for all keys at the same time.
func (t *tenure) each(task func(p *part) error) error {
	if len(t.parts) == 1 {
		return task(t.parts[0])
	}
	errs := make([]error, len(t.parts))
	var running sync.WaitGroup
	for i, p := range t.parts {
		running.Add(1)
		go func() {
			defer running.Done()
			errs[i] = task(p)
		}()
	}
	running.Wait()
	return errors.Join(errs...)
}

// leave ends a tenure that is held in this process, before the server is told: from then on the lock may be free.
func (t *tenure) leave() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	err := t.endReason()
	t.finish(&keyError{ErrReleased, t.parts[0].key, nil})
	return err
}

// checkHeld returns why the lock is not held, or nil.
func (t *tenure) checkHeld() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.endReason()
}

// lose ends the tenure because one key was lost.
func (p *part) lose(reason error) error {
	err := &keyError{ErrLost, p.key, reason}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.finish(err)
	return err
}

// The caller of the following has mu.

// endReason returns why the lock is not held, or nil. It is lost when the first one of its leases is over.
func (t *tenure) endReason() error {
	if t.over.Err() == nil {
		now := time.Now()
		for _, p := range t.parts {
			if p.isHeld && !now.Before(p.deadline) {
				reason := errors.New("its lease is over")
				if p.failure != nil {
					reason = fmt.Errorf("its lease is over, and its renewal has failed: %w", p.failure)
				}
				t.finish(&keyError{ErrLost, p.key, reason})
			}
		}
	}
	return context.Cause(t.over)
}

// finish ends the tenure in this process. The first reason stays.
func (t *tenure) finish(reason error) {
	if t.over.Err() != nil {
		return
	}
	if errors.Is(reason, ErrLost) {
		close(t.lost)
	}
	t.end(reason)
	if t.expiry != nil {
		t.expiry.Stop()
	}
	c := t.client
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.tenures, t)
}
