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

// A Lock is a held lock. The client renews its lease, but the lock can be lost nevertheless: the process is paused for longer than the
// lease, no server is reachable, or an administrator breaks the lock. Lost, Context and Held report the loss. If an administrator
// breaks the lock, they report it at the next renewal, after a third of the lease at the latest.
//
// A report of a loss does not stop a write that is under way. For writes to the lock's server, use Guarded. With every other write,
// send the Token, and let the store refuse a token smaller than the largest one that it has seen.
//
// Several goroutines may use one Lock. They hold the lock together. When the garbage collector finds that the program has no reference
// to the Lock any more, the client stops the renewals, and the lock ends with its lease. Do not copy a Lock.
type Lock struct {
	*tenure
}

// A tenure is the state of a Lock, for one or several keys. The client refers to the tenure and not to the Lock. So the garbage
// collector finds when the program has no reference to the Lock any more.
type tenure struct {
	client *Client
	settings
	keys         []string        // at least one, in the order of their bytes
	parts        []*part         // one for each key
	isOwnerNamed bool            // the program has named the owner
	over         context.Context // ends when the lock is released or lost
	cancel       context.CancelCauseFunc
	lost         chan struct{}

	mu        sync.Mutex
	holdEnd   time.Time // when the hold limit ends the tenure; zero if there is none
	isDropped bool      // the program has no reference to the Lock any more
}

// A part is the state of one key of a tenure.
type part struct {
	*tenure
	key       string
	token     int64
	lease     int64 // in milliseconds; 0 until the server has chosen it
	mayBeHeld bool  // the server may have a grant, a wait or a queue place of this owner
	node      atomic.Pointer[node]

	// Once the key is held, tenure.mu guards these fields.
	isHeld   bool      // the key is or was held
	deadline time.Time // the end of the lease by the clock of this process
	renewAt  time.Time
	isLast   bool  // the lease ends with the hold limit
	failure  error // the error of the last renewal

	// renewing has an element while a renewal is under way. At most one renewal is under way at a time. Otherwise the server could
	// execute an older renewal after a newer one, and the older one may set a shorter lease.
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

// setLease sets the lease of the next requests, in milliseconds. The hold limit bounds this lease.
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

// Key returns the key of the lock. If the lock has several keys, it returns the first one in the order of their bytes.
func (l *Lock) Key() string { return l.keys[0] }

// Owner returns the owner that holds the lock.
func (l *Lock) Owner() string { return l.owner }

// Token returns the fencing token. It is less than 2^53, and larger than the tokens of all earlier tenures of this lock. If the lock
// has several keys, Token returns the token of the first key.
func (l *Lock) Token() int64 { return l.parts[0].token }

// Tokens returns the fencing tokens of all keys, in the order of the keys' bytes.
func (l *Lock) Tokens() []int64 {
	tokens := make([]int64, len(l.parts))
	for i, p := range l.parts {
		tokens[i] = p.token
	}
	return tokens
}

// Held returns whether the lock is held, as far as this process knows. Held does not ask a server. The client counts the lease on its
// monotonic clock, from before it sends the request, so the lease ends in this process before it ends at the server. But on Linux this
// clock stops while the machine is suspended.
func (l *Lock) Held() bool { return l.checkHeld() == nil }

// Until returns when the lease ends by the clock of this process, if it is not renewed again. Use Until only while the lock is Held.
func (l *Lock) Until() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	var end time.Time
	for _, p := range l.parts {
		end = earliest(end, p.deadline)
	}
	return end
}

// Lost returns a channel that is closed when the lock is lost, at most 50 ms after the end of the lease. A hanging server does not
// delay this. A release does not close the channel, even if the release finds that the lock was lost. Then only the error of Release
// says so.
func (l *Lock) Lost() <-chan struct{} { return l.lost }

// Context returns a context that ends with parent, or when the lock is lost or released. After a loss or a release, context.Cause
// returns an error that is ErrLost or ErrReleased.
func (l *Lock) Context(parent context.Context) context.Context {
	ctx, end := joined(parent, l.over)
	context.AfterFunc(ctx, end)
	return ctx
}

// joined returns a context that ends when parent ends, when other ends, or when the caller calls end. The caller must call end.
func joined(parent, other context.Context) (ctx context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(parent)
	if other.Err() != nil { // AfterFunc alone would cancel a moment too late
		cancel(context.Cause(other))
	}
	stop := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return ctx, func() { stop(); cancel(nil) }
}

// Renew starts the lease again. Call Renew just before you publish the result of the work, to check that the lock was held until then.
// Except with WithoutRenewal, the client also renews the lock by itself. If the server refuses the lease as too long, the client uses
// the longest lease that the server accepts.
//
// The error is ErrLost or ErrReleased if the tenure is over, or ErrRefused. If no server answers within the patience, before the
// deadline of ctx and before the lease ends, the error is ErrUnreachable, and the lock may still be held. If ctx is cancelled, the error
// is its cause.
func (l *Lock) Renew(ctx context.Context) error {
	defer runtime.KeepAlive(l)
	return l.renew(ctx)
}

// Downgrade lets other owners hold the lock together with this Lock. The new limit is Shared or Slots, and must be larger than the
// present one. The same step grants the lock to the first waiters that the new limit allows. The token and the weight do not change.
//
// Downgrade returns the same errors as Renew. After ErrUnreachable, or if ctx has ended, the next renewal downgrades the lock.
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

// Guarded runs the command args only if the server still has this tenure. It sends LOCK.GUARD with the token of the lock. The server
// checks the token and runs the command in one step, so it refuses the late write of a process that was paused. Without a command,
// Guarded only checks the token. If the lock has several keys, Guarded checks the token of the first key.
//
//	count, err := lock.Guarded(ctx, "INCR", "{order:42}:count").Int64()
//
// The data must be on the lock's server. In a cluster the lock and the data need the same slot, so give all their keys a common tag
// such as {order:42}.
//
// If the error is ErrLost or ErrReleased, the command did not run. If the server replies to the command with an error, Guarded returns
// the error of go-redis, and the lock stays held. If the reply is lost, the command may have run, so Guarded does not repeat it. Then
// the error is ErrUnreachable, and also the error of the context if the context has ended.
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
			if err = l.renew(ctx); err == nil { // a server in quarantine had forgotten the tenure and has restored it
				continue
			}
		case r.replies != nil && (err == nil || errors.Is(err, ErrRefused)):
			return r.replies[0]
		}
		reply.SetErr(err)
		return reply
	}
}

// Release releases the lock. When Release returns without an error, the server has granted the lock to the first waiter.
//
// If the lock was already lost, the error is ErrLost, because the work was not protected until its end. If the lock was already
// released, the error is ErrReleased. If no server answers within the patience and before the lease ends, the error is ErrUnreachable,
// and the lock ends with its lease. If ctx has ended or ends during the call, Release returns after at most 200 ms and continues in the
// background.
func (l *Lock) Release(ctx context.Context) error {
	lost := l.end(l.parts[0].fail(ErrReleased))
	if lost != nil && (len(l.parts) == 1 || !errors.Is(lost, ErrLost)) {
		return lost
	}
	if !l.client.begin() {
		return cmp.Or(lost, l.parts[0].fail(ErrClosed))
	}
	defer l.client.running.Done()
	calls := make([]*call, len(l.parts)) // all keys: if one key is lost, the others may still be held
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

// newRelease returns the call that releases a key. If a reply was lost, NOTHELD counts as success: an earlier attempt of the call may
// have released the key.
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

// A handle has the data that another process needs to continue a tenure.
type handle struct {
	Owner         string
	Limit, Weight []any
	Lease         int64
	Keys          []string
	Tokens        []int64
}

// Handle returns a string with which another process can continue the tenure: see Client.Resume. This Lock ends as if it were released,
// but the server keeps the tenure. This client no longer renews it, so it ends with its lease if no process resumes it. The error is
// ErrLost or ErrReleased.
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

// Resume continues the tenure of a Handle. It renews the lease and returns a Lock, as Acquire does. Only WithLease, WithoutRenewal and
// WithHoldLimit have an effect.
//
// Resume returns the same errors as Lock.Renew.
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
	if errors.Is(err, ErrBusy) { // the renewed lease is already over
		err = t.parts[0].fail(ErrLost)
	}
	if err != nil {
		return nil, cmp.Or(t.end(err), err)
	}
	return t.lock(), nil
}

// checkHeld returns why the lock is not held, or nil.
func (t *tenure) checkHeld() error { return t.end(nil) }

// end ends the tenure in this process if reason is not nil. If the tenure had already ended, end returns why. Otherwise it returns nil.
func (t *tenure) end(reason error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	earlier := t.endReason()
	t.finish(reason)
	return earlier
}

// endReason returns why the lock is not held, or nil. First it ends the tenure if the lease of a key is over, or if the client is closed.
// The caller holds mu.
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

// finish ends the tenure if reason is not nil and the tenure has not ended yet. The caller holds mu.
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
