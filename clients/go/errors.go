package lockward

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// These are the errors of this package, for errors.Is. A returned error also names the key and the cause. If the cause is an error
// reply of the server, redis.HasErrorPrefix recognizes its code.
var (
	// ErrBusy means that the lock did not become free while the caller waited: other owners hold the lock or wait for it, or the server
	// is in quarantine. If the deadline of the context ended the wait, the error is also context.DeadlineExceeded.
	ErrBusy = errors.New("others hold it or wait for it; wait longer, or try again later")

	// ErrLost means that the tenure ended before the program released the lock: another owner may hold the lock now. The text of the
	// error names the cause. Even if a refused or unanswered request is the cause, the error is not ErrRefused or ErrUnreachable.
	ErrLost = errors.New("it is lost; stop the work: another owner may hold the lock")

	// ErrReleased means that the Lock was released before, or that Handle has ended it.
	ErrReleased = errors.New("it was released; acquire it again")

	// ErrRefused means that the server has answered with an error, such as MAXWAITERS, OOM, NOPERM or WRONGTYPE.
	ErrRefused = errors.New("the server refuses the request")

	// ErrUnreachable means that the client has tried to send a request, but no server has answered within the client's patience, or
	// before the deadline of the context. If the server may have granted the lock, the client tries to release the lock. If
	// no server answers, the lock ends with its lease. If Lock.Guarded returns ErrUnreachable, the command may have run.
	ErrUnreachable = errors.New("no server answers")

	// ErrUnreplicated means that fewer replicas than wanted have confirmed the grant in time. The client releases the lock.
	ErrUnreplicated = errors.New("too few replicas have confirmed it; try again when more replicas are connected")

	// ErrClosed means that the client is closed. If Close has ended a lock, the error of this lock is both ErrLost and ErrClosed.
	ErrClosed = errors.New("the client is closed; use one that is open")

	errCancelled = errors.New("the context of the caller has ended")
)

// fail returns an error for the key. It is the outcome, and it is also each of the causes that are not nil.
func (p *part) fail(outcome error, causes ...error) error {
	err := fmt.Errorf("lockward: lock %q: %w", p.key, outcome)
	for _, cause := range causes {
		if cause != nil && !errors.Is(err, cause) {
			err = fmt.Errorf("%w (%w)", err, cause)
		}
	}
	return err
}

// contextError returns the error of a call whose context has ended. failure is the reason why no server has answered. It is nil if the
// client has not tried to send the request. If the cause of the context is errLate, the patience is over.
func (p *part) contextError(ctx context.Context, failure error) error {
	hasTried := failure != nil || context.Cause(ctx) == errLate
	if hasTried && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return p.fail(ErrUnreachable, ctx.Err(), failure)
	}
	return p.fail(errCancelled, context.Cause(ctx), ctx.Err())
}

// isTransient returns whether the server, or another server in its place, may accept the same request later.
func isTransient(err error) bool {
	return hasCode(err, "LOADING", "BUSY", "READONLY", "CLUSTERDOWN", "MASTERDOWN") || endsWait(err) || redis.IsMaxClientsError(err)
}

// endsWait returns whether the client repeats the request, but not a guarded command: the script of this command may have returned the
// error itself.
func endsWait(err error) bool {
	return hasCode(err, "TRYAGAIN", "UNBLOCKED", "SUPERSEDED", "NOREPLICAS")
}

// isNoAnswer returns whether an answer does not show that a primary accepts the request: the server is a replica, has too few
// replicas, or names another node, which may be silent.
func isNoAnswer(err error) bool { return hasCode(err, "READONLY", "NOREPLICAS", "MOVED", "ASK") }

// deniesTenure returns whether the server says that the owner does not hold the lock. WRONGTYPE means that the key was overwritten.
func deniesTenure(err error) bool {
	// Other errors, such as ErrLost, may also have such a reply as their cause.
	return errors.Is(err, ErrRefused) && hasCode(err, "NOTHELD", "HOLDS", "WRONGTYPE")
}

// hasCode returns whether a server has replied an error with one of these codes, or any error if there are no codes.
// redis.HasErrorPrefix does not recognize ERR.
func hasCode(err error, codes ...string) bool {
	if err == nil { // reply takes memory from the heap
		return false
	}
	var reply redis.Error
	isReply := errors.As(err, &reply)
	return isReply && (len(codes) == 0 || slices.Contains(codes, strings.Split(reply.Error(), " ")[0]))
}
