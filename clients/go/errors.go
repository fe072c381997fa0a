package lockward

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

var (
	// ErrBusy is returned when another owner holds the lock, or others wait for it, for as long as the caller waits, or when
	// the server is in quarantine. If the deadline of the context was the limit, the error is context.DeadlineExceeded, too.
	ErrBusy = errors.New("lockward: the lock is busy")

	// ErrLost is returned when the tenure ended before it was released: another owner may hold the lock now.
	ErrLost = errors.New("lockward: the lock is lost")

	// ErrReleased is returned when the last hold of a Lock was released before.
	ErrReleased = errors.New("lockward: the lock was released")

	// ErrUnreachable is returned when no server answers for as long as the client's patience, or until the context ends.
	// The client gives back what may have been granted when a server answers; otherwise it ends with its lease. A command of
	// Lock.Guarded may have run.
	ErrUnreachable = errors.New("lockward: no server answers")

	// ErrUnreplicated is returned when fewer replicas than wanted confirm the grant in time. The lock has been given back.
	ErrUnreplicated = errors.New("lockward: too few replicas have confirmed the grant")

	// ErrClosed is returned when the client is closed. It is also the reason why its locks are lost then.
	ErrClosed = errors.New("lockward: the client is closed")
)

// A ServerError is an error reply of the server, such as MAXWAITERS, OOM, NOPERM or WRONGTYPE. Nothing has changed at the
// server.
type ServerError struct {
	Code    string // the first word
	Message string // the rest
}

// Error is the server's text.
func (e *ServerError) Error() string { return "lockward: " + e.Code + " " + e.Message }

// serverError is the error that a server has replied. It is nil if err is nil, a null reply or a failure of the connection.
func serverError(err error) *ServerError {
	var reply redis.Error
	if !errors.As(err, &reply) || errors.Is(err, redis.Nil) {
		return nil
	}
	code, message, _ := strings.Cut(reply.Error(), " ")
	return &ServerError{code, message}
}

// isTransient returns whether the server, or another one in its place, may accept the same request later.
func (e *ServerError) isTransient() bool {
	if e == nil {
		return false
	}
	switch e.Code {
	case "UNBLOCKED", "LOADING", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN", "NOREPLICAS", "BUSY":
		return true
	}
	return false
}

// deniesTenure returns whether the owner does not hold the lock any more as the client believed. (WRONGTYPE: the key was
// overwritten.)
func (e *ServerError) deniesTenure() bool {
	return e != nil && (e.Code == "NOTHELD" || e.Code == "HOLDS" || e.Code == "WRONGTYPE")
}

// isLeaseTooLong returns whether the server refuses a lease in milliseconds because it accepts only shorter ones. Its limit may
// have changed meanwhile.
func (e *ServerError) isLeaseTooLong(lease int64) bool {
	return e != nil && 0 < e.longestLease() && e.longestLease() < lease
}

// longestLease is the longest lease in milliseconds that the server accepts. It is 0 if the error does not tell that.
func (e *ServerError) longestLease() int64 {
	_, limit, _ := strings.Cut(e.Message, " command: at most ")
	number, _, _ := strings.Cut(limit, " ")
	longest, _ := strconv.ParseInt(number, 10, 64)
	return longest
}

func lostError(reason error) error { return fmt.Errorf("%w: %w", ErrLost, reason) }

// contextError tells why a context has ended.
func contextError(ctx context.Context) error {
	if cause := context.Cause(ctx); !errors.Is(cause, ctx.Err()) {
		return fmt.Errorf("lockward: %w: %w", ctx.Err(), cause)
	}
	return fmt.Errorf("lockward: %w", ctx.Err())
}

// busyError is the error for a caller whose context has ended before it got the lock.
func busyError(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", ErrBusy, context.DeadlineExceeded)
	}
	return contextError(ctx)
}
