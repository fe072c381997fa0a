package lockward

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/gob"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// A Lock is held by an owner of its own. While the Lock is held, the client renews its lease. The Lock can still be lost: if
// the process is paused for longer than the lease, if no server is reachable, or if an administrator breaks the lock. Lost and Context
// report the loss. Held returns whether the lock is held. If an administrator breaks the lock, the client notices this at
// the next renewal, within a third of the lease. A loss does not stop a write that is in progress. So use Guarded to write to the
// lock's server. With each write to another store, send the Token, and let the store refuse a token that is smaller than an earlier
// token.
//
// Several goroutines may use one Lock at the same time. A Lock must not be copied.
type Lock struct {
	client *Client
	settings
	parts        []*part         // one for each key, in the order of the keys' bytes
	isOwnerNamed bool            // the program has named the owner
	over         context.Context // ends when the lock is released or lost
	cancel       context.CancelCauseFunc
	lost         chan struct{}
	isAnswered   atomic.Bool    // a server has answered a request
	unread       sync.WaitGroup // the requests without a reply that the server may not have read yet

	// renewing has an element during a renewal or a downgrade. Two renewals must not overlap: the server could carry out the older
	// renewal last, and the older renewal may have a shorter lease.
	renewing chan struct{}

	mu       sync.Mutex
	renewals int       // how many renewals of keys are in progress
	holdEnd  time.Time // when the hold limit is over; the zero time means never, or that not all keys are held yet
}

// A part is the state of one key of a lock. Its methods try, wait for, hold and release the key.
type part struct {
	*Lock
	key       string
	token     int64
	lease     int64 // milliseconds; 0 until the server has chosen the lease
	mayBeHeld bool  // the server may have a grant, a wait or a place in the queue for this owner

	// When the key is held, Lock.mu guards the following fields.
	kinds    []kind    // the kinds that the server may have: several after downgrades without replies; the next renewal names the first
	isHeld   bool      // the key is held, or was held
	end      time.Time // the server does not end the lease before this time
	deadline time.Time // the end of the lease by the clock of this process
	renewAt  time.Time
	refusal  error // the error of the last renewal, or nil
}

// newLock returns a lock that is not held.
func (c *Client) newLock(keys []string, with settings) *Lock {
	l := &Lock{client: c, settings: with, parts: make([]*part, len(keys)), isOwnerNamed: with.owner != ""}
	l.lost, l.renewing = make(chan struct{}), make(chan struct{}, 1)
	if !l.isOwnerNamed {
		l.owner = c.id + ":" + strconv.FormatUint(c.owners.Add(1), 10) // no other tenure has this owner
	}
	l.over, l.cancel = context.WithCancelCause(context.Background())
	lease := with.lease
	if with.holdLimit > 0 {
		lease = min(lease, with.holdLimit)
	}
	for i, key := range keys {
		l.parts[i] = &part{Lock: l, key: key, lease: lease.Milliseconds(), kinds: []kind{with.kind}}
	}
	c.mu.Lock()
	c.locks[l] = struct{}{}
	c.mu.Unlock()
	_ = l.checkHeld() // the client may be closed
	return l
}

// Key returns the key of the lock. If the lock has several keys, Key returns the first key in the order of their bytes.
func (l *Lock) Key() string { return l.parts[0].key }

// Owner returns the owner that holds the lock.
func (l *Lock) Owner() string { return l.owner }

// Token returns the fencing token. The token is below 2^53, and larger than the token of every earlier tenure of this lock. If the
// lock has several keys, Token returns the token of the first key.
func (l *Lock) Token() int64 { return l.parts[0].token }

// Tokens returns the fencing tokens of all keys, in the order of the keys' bytes.
func (l *Lock) Tokens() []int64 {
	tokens := make([]int64, len(l.parts))
	for i, p := range l.parts {
		tokens[i] = p.token
	}
	return tokens
}

// Held returns whether the lock is held, as far as this process knows. Held sends no request. The client counts the lease on its
// monotonic clock, from before it sent the request. So the lease ends in this process before it ends at the server. But on Linux
// this clock stops while the whole machine is suspended.
func (l *Lock) Held() bool { return l.checkHeld() == nil }

// Until returns when the lease ends by the clock of this process, if the lease is not renewed again. The result has a meaning only
// while the lock is held.
func (l *Lock) Until() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.MinFunc(l.parts, func(a, b *part) int { return a.deadline.Compare(b.deadline) }).deadline
}

// Lost returns a channel that is closed when the lock is lost: at most 50 ms after the end of its lease, even if a server or a
// request hangs. A release does not close the channel. If the reply to a release shows that the lock was lost, Release returns
// ErrLost, but does not close the channel.
func (l *Lock) Lost() <-chan struct{} { return l.lost }

// Context returns a context that ends when parent ends, or when the lock is lost or released. If the lock ends first, context.Cause
// returns an error that is ErrLost or ErrReleased, for errors.Is.
func (l *Lock) Context(parent context.Context) context.Context {
	ctx, end := joined(parent, l.over)
	context.AfterFunc(ctx, end)
	return ctx
}

// joined returns a context that ends when parent ends, when other ends, or when the caller calls end. The caller must call end.
func joined(parent, other context.Context) (ctx context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(parent)
	if other.Err() != nil { // cancel ctx now, because AfterFunc would cancel it a moment later
		cancel(context.Cause(other))
	}
	stop := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return ctx, func() { stop(); cancel(nil) }
}

// Renew starts the lease again. Call Renew just before you publish the result of the work: if Renew returns nil, the lock was held
// until this call. You need no other calls of Renew, because the client renews the lock by itself. But if you acquire the lock with
// WithoutRenewal, only your calls renew the lock. If the server refuses the lease as too long, the client uses the longest lease that
// the server accepts.
//
// The error is ErrLost, ErrReleased, ErrRefused, ErrUnreachable, or the cause of ctx. ErrUnreachable means that no server answered
// before the patience, the deadline of ctx or the lease ended. Then the lock may still be held.
func (l *Lock) Renew(ctx context.Context) error { return l.renew(ctx, "") }

// Downgrade sets a larger limit, so that other owners can hold the lock together with this Lock. limit is Shared or Slots. The server
// refuses a limit that is smaller than the present limit. The present limit changes nothing. In the same step the server grants the
// lock to the waiters that fit now. The token and the weight do not change.
//
// Downgrade returns the errors of Renew. After ErrUnreachable, or after the end of ctx, the next renewal may still downgrade the lock.
// If the server has refused only some of several keys, the other keys are downgraded.
func (l *Lock) Downgrade(ctx context.Context, limit AcquireOption) error {
	var wanted settings
	limit(&wanted)
	if wanted.kind.Limit == "" {
		return errors.New("lockward: Downgrade takes Shared or Slots")
	}
	return l.renew(ctx, wanted.kind.Limit)
}

// Guarded runs the command args only while the server has this tenure: it sends LOCK.GUARD with the token of the lock. The server
// checks the token and runs the command in one step, so a late write of a process that was paused does not run. Without a
// command, the server only checks the token. LOCK.GUARD checks one key. So for a lock of several keys, Guarded sends
// nothing and returns an error.
//
//	count, err := lock.Guarded(ctx, "INCR", "{order:42}:count").Int64()
//
// The data must be on the lock's server. In a cluster, the keys of the data must be in the slot of the lock: give all keys a common
// tag such as {order:42}.
//
// After ErrLost or ErrReleased, the command did not run. If the server answers the command with an error, Guarded returns go-redis'
// error, and the lock stays held. When the reply is lost, the command may have run. Then Guarded does not repeat the command, and the
// error is ErrUnreachable. If ctx has ended, this error is also ctx.Err(). If ctx ends before the client sends the command, the
// command did not run. Then the error is the cause of ctx, not ErrUnreachable.
func (l *Lock) Guarded(ctx context.Context, args ...any) *redis.Cmd {
	p, words := l.parts[0], append([]any{"LOCK.GUARD", l.Key(), l.Token()}, args...)
	reply, err := newCommand(words...), error(nil)
	ctx, end := joined(ctx, l.client.open) // after a loss, Guarded waits for the reply, because the command may have run
	defer end()
	if len(l.parts) > 1 {
		err = errors.New("lockward: a guarded command needs a lock of one key")
	}
	for isRenewed := false; err == nil; isRenewed = true {
		r := p.newCall(ctx, func(*call) command { return newCommand(words...) })
		r.isOnce = true
		if err = p.checkHeld(); err == nil {
			err = r.ask()
		}
		switch isFenced := hasCode(err, "FENCED"); {
		case isFenced && isRenewed:
			_ = l.end(p.fail(ErrLost, r.failure))
			err = l.checkHeld()
		case isFenced:
			err = l.renew(ctx, "") // a server in quarantine restores the tenure
		case r.reply != nil && (err == nil || errors.Is(err, ErrRefused)):
			return r.reply
		case ctx.Err() != nil && errors.Is(err, ErrUnreachable) && !r.isUncertain:
			err = p.fail(errCancelled, context.Cause(ctx), ctx.Err(), r.failure)
		}
	}
	reply.SetErr(err)
	return reply
}

// Release releases the lock. When it returns nil, the first waiter has the lock.
//
// The error is ErrLost if the lock was lost before: the lock did not protect the work up to its end. The error is ErrReleased if the
// lock was released before. The error is ErrUnreachable if no server answers before the patience or the lease ends; then the lock
// ends with its lease. If ctx has ended, or ends during the call, Release returns within 200 ms. Then the client repeats the release
// in the background, but not for an owner that the program has named, and not for a lock that Resume has returned.
func (l *Lock) Release(ctx context.Context) error {
	lost := l.end(l.parts[0].fail(ErrReleased))
	if lost != nil && (len(l.parts) == 1 || !errors.Is(lost, ErrLost)) {
		return lost
	}
	if !l.client.begin() {
		return cmp.Or(lost, l.parts[0].fail(ErrClosed))
	}
	defer l.client.running.Done()
	calls := make([]*call, len(l.parts)) // if one key is lost, the other keys may still be held
	l.mu.Lock()
	for i, p := range l.parts {
		calls[i] = p.newRelease(ctx, "ALL", "TOKEN", p.token)
		calls[i].until = earliest(calls[i].until, p.deadline)
	}
	l.mu.Unlock()
	err := l.client.each(ctx, calls, (*call).finishRelease)
	undone := slices.DeleteFunc(calls, func(r *call) bool { return r.err == nil || errors.Is(r.err, ErrLost) })
	if ctx.Err() != nil && len(undone) > 0 {
		err = l.leave(err, leaveLimit, undone)
	}
	if err != nil && !errors.Is(err, ErrLost) {
		err = fmt.Errorf("%w; the lock ends with its lease at the latest", err)
	}
	return cmp.Or(lost, err)
}

// A handle is what another process needs to continue a tenure.
type handle struct {
	Owner     string
	Lease     time.Duration
	HoldLeft  time.Duration // the rest of the hold limit; 0 means no limit
	IsRenewed bool
	Keys      []string
	Tokens    []int64
	Kinds     []kind // they differ if the server has refused a downgrade of some keys
}

// Handle returns a string. Another process passes this string to Client.Resume to continue the tenure. This Lock ends as if it was
// released, and the client does not renew the lock any more. But the server keeps the tenure until its lease ends. The error is ErrLost
// or ErrReleased.
func (l *Lock) Handle() (string, error) {
	if err := l.end(l.parts[0].fail(ErrReleased)); err != nil {
		return "", err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	h := handle{Owner: l.owner, Lease: duration(l.parts[0].lease), IsRenewed: l.isRenewed, Tokens: l.Tokens()}
	if l.holdLimit > 0 {
		h.HoldLeft = max(time.Millisecond, time.Until(l.holdEnd))
	}
	for _, p := range l.parts {
		h.Keys, h.Kinds = append(h.Keys, p.key), append(h.Kinds, p.kinds[0])
	}
	var encoded bytes.Buffer
	err := gob.NewEncoder(&encoded).Encode(h)
	return base64.RawURLEncoding.EncodeToString(encoded.Bytes()), err
}

// Resume continues the tenure of a handle that Lock.Handle has returned. Resume renews the tenure, and returns a Lock that is held.
// The lock is lost when the rest of its hold limit has passed since this renewal. After WithoutRenewal, only calls of Renew renew the
// lock.
//
// Resume returns the errors of Lock.Renew. If one of several keys is lost, Resume releases the other keys. After any error
// except ErrLost, the program can resume the handle again.
func (c *Client) Resume(ctx context.Context, text string) (*Lock, error) {
	var h handle
	encoded := base64.NewDecoder(base64.RawURLEncoding, strings.NewReader(text))
	err := gob.NewDecoder(encoded).Decode(&h)
	if count := len(h.Keys); err != nil || count == 0 || len(h.Tokens) != count || len(h.Kinds) != count {
		return nil, errors.New("lockward: this is not the handle of a lock")
	}
	l := c.newLock(h.Keys, settings{owner: h.Owner, lease: h.Lease, holdLimit: h.HoldLeft, isRenewed: h.IsRenewed})
	for i, p := range l.parts {
		p.token, p.kinds = h.Tokens[i], h.Kinds[i:i+1:i+1]
	}
	renewing, end := joined(ctx, l.over)
	defer end()
	err = l.take(renewing, renewCommand, false, l.parts...)
	if errors.Is(err, ErrBusy) { // the renewed lease is already over
		err = l.parts[0].fail(ErrLost)
	}
	if err != nil {
		err = cmp.Or(l.end(err), err)
		if errors.Is(err, ErrLost) { // the other keys may still be held
			_ = l.Release(ctx)
		}
		return nil, err
	}
	return l, nil
}

// checkHeld returns why the lock is not held, or nil if it is held.
func (l *Lock) checkHeld() error { return l.end(nil) }

// end ends the tenure in this process if reason is not nil. It returns why the tenure had ended before the call, or nil.
func (l *Lock) end(reason error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	earlier := l.endReason(l.parts...)
	l.finish(reason)
	return earlier
}

// endReason returns why the lock is not held, or nil if it is held. The lock is lost when the lease of one of its keys is over.
// endReason checks only the leases of parts. The caller must hold mu.
func (l *Lock) endReason(parts ...*part) error {
	now, first := time.Now(), l.parts[0]
	for _, p := range parts {
		if p.isHeld && !now.Before(p.deadline) {
			l.finish(p.fail(ErrLost, errors.New("its lease is over"), p.refusal))
		}
	}
	if l.client.open.Err() != nil && first.isHeld {
		l.finish(first.fail(ErrLost, ErrClosed))
	} else if l.client.open.Err() != nil {
		l.finish(first.fail(ErrClosed))
	}
	return context.Cause(l.over)
}

// finish ends the tenure if reason is not nil. If the tenure has ended before, finish does nothing. The caller must hold mu.
func (l *Lock) finish(reason error) {
	if reason == nil || l.over.Err() != nil {
		return
	}
	if errors.Is(reason, ErrLost) {
		close(l.lost)
	}
	l.cancel(reason)
	l.client.mu.Lock()
	defer l.client.mu.Unlock()
	delete(l.client.locks, l)
}
