package lockward

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// The errors of this package, for errors.Is. The text of a returned error also names the key and the cause. If the cause is an error
// reply of the server, redis.HasErrorPrefix finds its code.
var (
	// ErrBusy means that the caller's wait is over, and other owners hold the lock or wait for it, or the server is in quarantine.
	// If the deadline of the context ended the wait, the error is also context.DeadlineExceeded.
	ErrBusy error = &outcome{"others hold it or wait for it", "wait longer, or try again later"}

	// ErrLost means that the tenure ended before it was released: another owner may hold the lock now.
	ErrLost error = &outcome{"it is lost", "stop the work: another owner may hold the lock"}

	// ErrReleased means that the Lock was already released, or that Handle was called.
	ErrReleased error = &outcome{"it was released", "acquire it again"}

	// ErrRefused means that the server has replied with an error, such as MAXWAITERS, OOM, NOPERM or WRONGTYPE.
	ErrRefused error = &outcome{"the server refuses the request", "correct what its answer names"}

	// ErrUnreachable means that no server has answered within the client's patience, or before the deadline of the context. If the
	// server has granted a lock meanwhile, the client releases it, or it ends with its lease. A command of Lock.Guarded may have run.
	ErrUnreachable error = &outcome{"no server answers", "try again when a server can be reached"}

	// ErrUnreplicated means that too few replicas have confirmed the grant in time. The client has released the lock.
	ErrUnreplicated error = &outcome{"too few replicas have confirmed it", "try again when more replicas are connected"}

	// ErrClosed means that the client is closed. The locks that were held at that time are lost, with this error as the cause.
	ErrClosed error = &outcome{"the client is closed", "use one that is open"}

	errCancelled = &outcome{"the caller has left", "nothing is held"}
)

// An outcome is an error text in two parts: what happened, and what to do.
type outcome struct{ what, todo string }

func (o *outcome) Error() string { return "lockward: " + o.what + "; " + o.todo }

// A keyError is an outcome for one key.
type keyError struct {
	outcome error
	key     string
	causes  []error // some may be nil
}

func (e *keyError) Error() string {
	return fmt.Sprintf("lockward: lock %q: %s; %s", e.key, e.what(), e.outcome.(*outcome).todo)
}

func (e *keyError) what() string {
	what := e.outcome.(*outcome).what
	for _, cause := range e.causes {
		if inner, ok := cause.(*keyError); ok {
			what += " (" + inner.what() + ")"
		} else if cause != nil && !strings.Contains(what, cause.Error()) {
			what += fmt.Sprintf(" (%v)", cause)
		}
	}
	return what
}

func (e *keyError) Unwrap() []error { return append([]error{e.outcome}, e.causes...) }

func (p *part) fail(outcome error, causes ...error) error { return &keyError{outcome, p.key, causes} }

// contextError returns the error of a call whose context has ended. failure is the reason why no server has answered.
func contextError(ctx context.Context, key string, failure error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &keyError{ErrUnreachable, key, []error{ctx.Err(), failure}}
	}
	return &keyError{errCancelled, key, []error{context.Cause(ctx), ctx.Err()}}
}

// isTransient returns whether the same request may succeed later, on this server or on another one.
func isTransient(err error) bool {
	return hasCode(err, "LOADING", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN", "UNBLOCKED", "SUPERSEDED")
}

// deniesTenure returns whether the error means that the tenure is over. After WRONGTYPE, another value has overwritten the lock.
func deniesTenure(err error) bool { return hasCode(err, "NOTHELD", "HOLDS", "WRONGTYPE") }

// hasCode returns whether the error is an error reply with one of these codes.
func hasCode(err error, codes ...string) bool {
	hasPrefix := func(code string) bool { return redis.HasErrorPrefix(err, code) }
	return err != nil && slices.ContainsFunc(codes, hasPrefix) // HasErrorPrefix allocates
}
