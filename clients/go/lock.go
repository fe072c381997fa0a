package lockward

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/gob"
	"errors"
	"runtime"
	"slices"
	"strings"
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
	keys         []string        // at least one, in the order of their bytes
	parts        []*part         // one for each key
	isOwnerNamed bool            // by the program
	over         context.Context // ends when the lock is released or lost
	cancel       context.CancelCauseFunc
	lost         chan struct{}

	mu        sync.Mutex
	holdEnd   time.Time // of the hold limit
	isDropped bool      // the program has no reference to the Lock any more
}

// A part is the state of one key of a tenure: tried, waited for, held and released by its methods.
type part struct {
	*tenure
	key       string
	token     int64
	lease     int64 // milliseconds; 0 until the server has told it
	mayBeHeld bool  // the server may have a grant, a wait or a place in the queue
	node      atomic.Pointer[node]

	// guarded by tenure.mu, once it is held
	isHeld   bool      // or was
	deadline time.Time // the end of the lease by the clock of this process
	renewAt  time.Time
	isLast   bool  // the lease reaches the hold limit
	failure  error // of the last renewal

	// renewing has an element while a renewal is under way. There is one at a time: a server could carry out an earlier one later,
	// with a shorter lease.
	renewing chan struct{}
}

// newTenure returns a tenure that is not held.
func (c *Client) newTenure(keys []string, with settings, options []AcquireOption) *tenure {
	t := &tenure{client: c, settings: with, lost: make(chan struct{}), keys: keys, parts: make([]*part, len(keys))}
	for _, option := range options {
		option(&t.settings)
	}
	if t.isOwnerNamed = t.owner != ""; !t.isOwnerNamed {
		t.owner = c.newOwner()
	}
	t.over, t.cancel = context.WithCancelCause(context.Background())
	for i, key := range keys {
		t.parts[i] = &part{tenure: t, key: key, renewing: make(chan struct{}, 1)}
		t.parts[i].setLease(t.settings.lease)
	}
	c.mu.Lock()
	c.tenures[t] = struct{}{}
	c.mu.Unlock()
	_ = t.checkHeld() // the client may be closed
	return t
}

// setLease sets the lease of the next requests, in milliseconds.
func (p *part) setLease(lease int64) {
	if p.lease = lease; p.holdLimit > 0 {
		p.lease = min(lease, p.holdLimit.Milliseconds())
	}
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
func (l *Lock) Key() string { return l.keys[0] }

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
	var end time.Time
	for _, p := range l.parts {
		end = earliest(end, p.deadline)
	}
	return end
}

// Lost returns a channel that is closed when the lock is lost: at most 50 ms after the end of its lease, whatever hangs. It is
// not closed when the lock is released. When Release finds that the lock was lost, only its error says so.
func (l *Lock) Lost() <-chan struct{} { return l.lost }

// Context returns a context that ends with parent, or when the lock is lost or released. context.Cause then is an error that is
// ErrLost or ErrReleased.
func (l *Lock) Context(parent context.Context) context.Context {
	ctx, end := joined(parent, l.over)
	context.AfterFunc(ctx, end)
	return ctx
}

// joined returns a context that ends with its parent, with another one, or by end, which the caller must call.
func joined(parent, other context.Context) (ctx context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(parent)
	if other.Err() != nil { // AfterFunc would cancel a moment later
		cancel(context.Cause(other))
	}
	stop := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return ctx, func() { stop(); cancel(nil) }
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
	l.mu.Lock()
	before, wanted := l.settings, l.settings
	limit(&wanted)
	l.limit, l.weight = wanted.limit, wanted.weight
	l.mu.Unlock()
	err := l.renew(ctx)
	if errors.Is(err, ErrRefused) {
		l.mu.Lock()
		l.limit, l.weight = before.limit, before.weight
		l.mu.Unlock()
	}
	return err
}

// Guarded runs the command args only while the server has this tenure: it sends LOCK.GUARD with the token of the lock. The server
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
func (l *Lock) Guarded(ctx context.Context, args ...any) *redis.Cmd {
	defer runtime.KeepAlive(l)
	p, guard := l.parts[0], append([]any{"LOCK.GUARD", l.Key(), l.Token()}, args...)
	reply := newCommand(guard...)
	ctx, end := joined(ctx, l.client.open)
	defer end()
	for isRenewed := false; ; isRenewed = true {
		r := p.newCall(ctx, p.client.responseLimit, p.client.patience)
		r.isOnce = true
		r.request = func(*call) command { return newCommand(guard...) }
		err := p.checkHeld()
		if err == nil {
			err = r.ask()
		}
		switch isFenced := hasCode(err, "FENCED"); {
		case isFenced && isRenewed:
			_ = l.end(p.fail(ErrLost, err))
			err = l.checkHeld()
		case isFenced:
			if err = l.renew(ctx); err == nil { // a server in quarantine has restored the tenure
				continue
			}
		case r.replies != nil && (err == nil || errors.Is(err, ErrRefused)):
			return r.replies[0]
		}
		reply.SetErr(err)
		return reply
	}
}

// Release gives the lock back. When it returns, the first waiter has the lock.
//
// The error is ErrLost if the lock was lost before: the work was not protected up to its end. It is ErrReleased if the lock was
// released before. It is ErrUnreachable if no server answers while the patience and the lease last; then the lock ends with its
// lease. If ctx ends, or has ended before, Release takes 200 ms at most, and goes on in the background.
func (l *Lock) Release(ctx context.Context) error {
	lost := l.end(l.parts[0].fail(ErrReleased))
	if lost != nil && (len(l.parts) == 1 || !errors.Is(lost, ErrLost)) {
		return lost
	}
	if !l.client.begin() {
		return cmp.Or(lost, l.parts[0].fail(ErrClosed))
	}
	defer l.client.running.Done()
	calls := make([]*call, len(l.parts)) // if one key is lost, the other ones may be held
	for i, p := range l.parts {
		calls[i] = p.newRelease(ctx)
	}
	err := l.client.ask(ctx, calls...)
	undone := slices.DeleteFunc(calls, func(r *call) bool { return r.err == nil || errors.Is(r.err, ErrLost) })
	if ctx.Err() != nil && len(undone) > 0 {
		err = l.leave(err, leaveLimit, undone)
	}
	return cmp.Or(lost, err)
}

// newRelease returns the call that releases a key. After a lost reply, the next one does not tell whether the tenure was lost before.
func (p *part) newRelease(ctx context.Context) *call {
	r := p.newCall(ctx, p.client.responseLimit, p.client.patience)
	p.mu.Lock()
	r.until = earliest(r.until, p.deadline)
	p.mu.Unlock()
	r.request = func(*call) command { return newCommand("LOCK.RELEASE", p.key, p.owner, "ALL", "TOKEN", p.token) }
	r.read = func(r *call, err error) error {
		switch {
		case r.isUncertain && hasCode(err, "NOTHELD"):
			return nil
		case deniesTenure(err):
			return p.fail(ErrLost, err)
		}
		return err
	}
	return r
}

// A handle is what another process has to know of a tenure.
type handle struct {
	Owner         string
	Limit, Weight []any
	Lease         int64
	Keys          []string
	Tokens        []int64
}

// Handle returns a string from which another process can go on with the tenure, by Client.Resume. This Lock ends as if it was
// released, but the server keeps the tenure until its lease ends: it is renewed no more. The error is ErrLost or ErrReleased.
func (l *Lock) Handle() (string, error) {
	if err := l.end(l.parts[0].fail(ErrReleased)); err != nil {
		return "", err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	h := handle{l.owner, l.limit, l.weight, l.parts[0].lease, l.keys, l.Tokens()}
	var encoded bytes.Buffer
	err := gob.NewEncoder(&encoded).Encode(h)
	return base64.RawURLEncoding.EncodeToString(encoded.Bytes()), err
}

// Resume goes on with the tenure of a Handle. It renews it, and then it is held as after Acquire. Of the options, those of the
// lease, the renewal and the hold limit have a meaning.
//
// The errors are those of Lock.Renew.
func (c *Client) Resume(ctx context.Context, text string, options ...AcquireOption) (*Lock, error) {
	var h handle
	encoded := base64.NewDecoder(base64.RawURLEncoding, strings.NewReader(text))
	if err := gob.NewDecoder(encoded).Decode(&h); err != nil || len(h.Keys) == 0 || len(h.Tokens) != len(h.Keys) {
		return nil, errors.New("lockward: this is not the handle of a lock")
	}
	t := c.newTenure(h.Keys, settings{owner: h.Owner, limit: h.Limit, weight: h.Weight, lease: h.Lease, isRenewed: true}, options)
	for i, p := range t.parts {
		p.token = h.Tokens[i]
	}
	ctx, cancel := joined(ctx, t.over)
	defer cancel()
	err := t.take(ctx, renewCommand, c.patience, t.parts...)
	if errors.Is(err, ErrBusy) { // the lease is over again
		err = t.parts[0].fail(ErrLost)
	}
	if err != nil {
		return nil, cmp.Or(t.end(err), err)
	}
	return t.lock(), nil
}

// checkHeld returns why the lock is not held, or nil.
func (t *tenure) checkHeld() error { return t.end(nil) }

// end ends the tenure in this process if there is a reason, and returns why it has ended before, or nil. After that the lock may be
// free.
func (t *tenure) end(reason error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	earlier := t.endReason()
	t.finish(reason)
	return earlier
}

// endReason returns why the lock is not held, or nil. With several keys, it is lost when the lease of one of them is over. The caller has mu.
func (t *tenure) endReason() error {
	now, first := time.Now(), t.parts[0]
	for _, p := range t.parts {
		if p.isHeld && !now.Before(p.deadline) {
			t.finish(p.fail(ErrLost, errors.New("its lease is over"), p.failure))
		}
	}
	if t.client.open.Err() != nil && first.isHeld {
		t.finish(first.fail(ErrLost, ErrClosed))
	} else if t.client.open.Err() != nil {
		t.finish(first.fail(ErrClosed))
	}
	return context.Cause(t.over)
}

// finish ends the tenure if there is a reason. The first reason stays. The caller has mu.
func (t *tenure) finish(reason error) {
	if reason == nil || t.over.Err() != nil {
		return
	}
	if errors.Is(reason, ErrLost) {
		close(t.lost)
	}
	t.cancel(reason)
	t.client.mu.Lock()
	defer t.client.mu.Unlock()
	delete(t.client.tenures, t)
}
