package lockward

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// These are the errors of this package, for errors.Is. An error that is returned also tells the key and the cause. If the
// cause is an error reply of the server, redis.HasErrorPrefix tells which.
var (
	// ErrBusy means that others hold the lock or wait for it, for as long as the caller waits, or that the server is in
	// quarantine. If the deadline of the context was the limit, the error is context.DeadlineExceeded, too.
	ErrBusy error = &outcome{"others hold it or wait for it", "wait longer, or try again later"}

	// ErrLost means that the tenure ended before it was released: another owner may hold the lock now.
	ErrLost error = &outcome{"it is lost", "stop the work: another owner may hold the lock"}

	// ErrReleased means that the Lock was released, or its Handle taken, before.
	ErrReleased error = &outcome{"it was released", "acquire it again"}

	// ErrRefused means that the server has answered with an error, such as MAXWAITERS, OOM, NOPERM or WRONGTYPE.
	ErrRefused error = &outcome{"the server refuses the request", "correct what its answer names"}

	// ErrUnreachable means that no server answers for as long as the client's patience, or until the deadline of the context.
	// What may have been granted is given back, or ends with its lease. A command of Lock.Guarded may have run.
	ErrUnreachable error = &outcome{"no server answers", "try again when a server can be reached"}

	// ErrUnreplicated means that fewer replicas than wanted have confirmed the grant in time. The lock has been given back.
	ErrUnreplicated error = &outcome{"too few replicas have confirmed it", "try again when more replicas are connected"}

	// ErrClosed means that the client is closed. It is also the reason why its locks are lost then.
	ErrClosed error = &outcome{"the client is closed", "use one that is open"}

	errCancelled = &outcome{"the caller has left", "nothing is held"}
)

// An outcome says what happened, and what to do.
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

// contextError tells why a context has ended, and why no server has answered until then.
func contextError(ctx context.Context, key string, failure error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &keyError{ErrUnreachable, key, []error{ctx.Err(), failure}}
	}
	return &keyError{errCancelled, key, []error{context.Cause(ctx), ctx.Err()}}
}

// isTransient returns whether the server, or another one in its place, may accept the same request later.
func isTransient(err error) bool {
	return hasCode(err, "LOADING", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN", "UNBLOCKED", "SUPERSEDED")
}

// deniesTenure returns whether the owner does not hold the lock as the client believed. (WRONGTYPE: the key was overwritten.)
func deniesTenure(err error) bool { return hasCode(err, "NOTHELD", "HOLDS", "WRONGTYPE") }

// hasCode returns whether a server has replied an error with one of these codes.
func hasCode(err error, codes ...string) bool {
	hasPrefix := func(code string) bool { return redis.HasErrorPrefix(err, code) }
	return err != nil && slices.ContainsFunc(codes, hasPrefix) // HasErrorPrefix allocates
}
