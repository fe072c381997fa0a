package lockward

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

var (
	// ErrBusy is returned when another owner holds the lock, or others wait for it, for as long as the caller waits. (Or
	// the server is in quarantine.) When the context's deadline was the limit, the error is context.DeadlineExceeded, too.
	ErrBusy = errors.New("lockward: the lock is busy")

	// ErrLost tells that the tenure is over though it was not released: whoever goes on with the work may not be alone.
	ErrLost = errors.New("lockward: the lock is lost")

	// ErrReleased tells that the last hold of a Lock has been given back before.
	ErrReleased = errors.New("lockward: the lock was released")

	// ErrUnreachable is returned when no server answers for as long as the client's patience, or the context, lasts.
	// Whatever had been asked for is given back when one does, or ends with its lease.
	ErrUnreachable = errors.New("lockward: no server answers")

	// ErrUnreplicated is returned when fewer replicas than wanted have heard of the grant in time. It has been given back.
	ErrUnreplicated = errors.New("lockward: too few replicas have heard of the grant")

	// ErrClosed is returned when the client is closed, and the reason why its locks are lost then.
	ErrClosed = errors.New("lockward: the client is closed")
)

// A ServerError is what a server refuses in words of its own, such as MAXWAITERS, OOM, NOPERM or WRONGTYPE. Nothing has
// changed at the server.
type ServerError struct {
	Code    string // its first word
	Message string // the rest of it
}

// Error is what the server said.
func (e *ServerError) Error() string { return "lockward: " + e.Code + " " + e.Message }

// said is the error that a server has answered, or nil: the reply is lost, was null, or is none.
func said(err error) *ServerError {
	var reply redis.Error
	if !errors.As(err, &reply) || errors.Is(err, redis.Nil) {
		return nil
	}
	code, message, _ := strings.Cut(reply.Error(), " ")
	return &ServerError{code, message}
}

// passes tells whether a server may be of use later, or another one in its place.
func (e *ServerError) passes() bool {
	if e == nil {
		return false
	}
	switch e.Code {
	case "UNBLOCKED", "LOADING", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN", "NOREPLICAS", "BUSY":
		return true
	}
	return false
}

// gone tells whether the lock is not there any more as this owner had it. (WRONGTYPE: it was overwritten.)
func (e *ServerError) gone() bool {
	return e != nil && (e.Code == "NOTHELD" || e.Code == "HOLDS" || e.Code == "WRONGTYPE")
}

// tooLong tells whether the server takes no lease so long, or not any more.
func (e *ServerError) tooLong() bool {
	return e != nil && strings.HasPrefix(e.Message, "invalid expire time")
}

func lost(why error) error { return fmt.Errorf("%w: %w", ErrLost, why) }

// ended is why a context has ended.
func ended(ctx context.Context) error {
	if cause := context.Cause(ctx); !errors.Is(cause, ctx.Err()) {
		return fmt.Errorf("lockward: %w: %w", ctx.Err(), cause)
	}
	return fmt.Errorf("lockward: %w", ctx.Err())
}

// busy is what is told a caller whose context has ended before it had the lock.
func busy(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", ErrBusy, context.DeadlineExceeded)
	}
	return ended(ctx)
}
