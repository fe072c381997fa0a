package lockward

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// Guarded runs a command only while the server has this tenure: it sends LOCK.GUARD with the token of the lock. The server
// checks the token and runs the command in one step, so a late write of a process that was paused does not run. Without a
// command, it only checks the token.
//
//	count, err := lock.Guarded(ctx, "INCR", "{order:42}:count").Int64()
//
// The data must be on the lock's server. In a cluster its keys need the slot of the lock, by a common tag such as {order:42}.
//
// The error is ErrLost when the lock is lost, or ErrReleased; then the command did not run. An error reply to the command is
// the one of go-redis, and the lock stays held. Guarded does not repeat the command when its reply is missing, because it may
// have run: then the error is ErrUnreachable, and also that of the context if this has ended.
func (l *Lock) Guarded(ctx context.Context, command ...any) *redis.Cmd {
	guard := append([]any{"LOCK.GUARD", l.key, l.token}, command...)
	reply, err := l.guarded(ctx, guard, false)
	if err != nil {
		reply = redis.NewCmd(ctx, guard...)
		reply.SetErr(err)
	}
	return reply
}

// guarded sends LOCK.GUARD. If the server denies the tenure, it renews it first: a server in quarantine restores it.
func (l *Lock) guarded(caller context.Context, guard command, isRenewed bool) (*redis.Cmd, error) {
	c := l.client
	ctx, end, err := c.begin(caller)
	if err != nil {
		return nil, err
	}
	defer end()
	commands := func(time.Time) []command { return []command{guard} }
	reply, err := c.askIf(ctx, l.key, c.patience, c.responseLimit, commands, func(missing error) error {
		switch {
		case missing == nil:
			return l.checkHeld()
		case ctx.Err() != nil:
			return fmt.Errorf("%w: %w, and the command may have run: %w", ErrUnreachable, ctx.Err(), missing)
		}
		return fmt.Errorf("%w, and the command may have run: %w", ErrUnreachable, missing)
	})
	if err != nil {
		return nil, err
	}
	if refusal := reply.serverError(); refusal != nil && refusal.Code == "FENCED" {
		if isRenewed {
			return nil, l.lose(refusal)
		}
		if err := l.Renew(caller); err != nil {
			return nil, err
		}
		return l.guarded(caller, guard, true)
	}
	return reply.replies[0], nil
}
