// Package lockward is a client for locks on Redis and Valkey servers with the Lockward module, over go-redis.
//
// A lock has a lease, and the client renews the lease while the lock is held. When the process dies, the lock ends with its lease. The
// server grants a lock in the order of the requests. Each tenure has a fencing token, which is larger than the tokens of all earlier
// tenures.
//
//	client, err := lockward.New(rdb)
//	...
//	err = client.Do(ctx, "order:42", func(ctx context.Context, lock *lockward.Lock) error {
//		return write(ctx, order, lock.Token())
//	})
//
// When a reply is lost, the client does not know whether the server has executed the request, so it sends the request again. Each
// request names the hold count that it leads to, or the token of its tenure. So the server counts no hold twice.
package lockward

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

// A Client acquires locks on one deployment: a server, the servers that Sentinels watch, or a cluster. Any number of goroutines may
// use it.
type Client struct {
	rdb           redis.UniversalClient
	responseLimit time.Duration
	patience      time.Duration
	idleLimit     time.Duration // how long an idle connection stays open
	waitPermits   chan struct{} // one for each connection that waits

	id      string
	owners  atomic.Uint64   // the number of owners so far
	open    context.Context // ends when the client is closed
	shut    context.CancelCauseFunc
	running sync.WaitGroup // the tasks that Close waits for
	alarm   *time.Timer    // calls watch

	mu      sync.Mutex
	nodes   map[string]*node
	tenures map[*tenure]struct{} // the tenures that have not ended
	broken  map[*node]bool       // nodes to which a connection broke: their locks are renewed soon
	wakesAt time.Time            // when the alarm fires; zero if it is not set
}

// An Option sets how a Client behaves.
type Option func(*Client)

// WithResponseLimit sets how long the client waits for a reply, from 1 ms to an hour. The default is 2 seconds. If no reply arrives in
// this time, the client closes the connection and sends the request again. A renewal waits for at most a sixth of the lease.
func WithResponseLimit(limit time.Duration) Option {
	return func(c *Client) { c.responseLimit = limit }
}

// WithPatience sets how long the client repeats a request while no server answers. Then the request fails with ErrUnreachable. The
// default is 5 seconds, and the minimum 1 ms. The patience does not end a wait in a lock's queue, however long the outage is.
func WithPatience(patience time.Duration) Option { return func(c *Client) { c.patience = patience } }

// WithWaitingConnections sets how many connections may wait for locks at the same time. The default is 256, and the minimum 1. While
// all these connections are in use, further callers poll: first after 50 ms, then after twice as long each time, up to a second. They
// have no place in the server's queue until one of these connections is free.
func WithWaitingConnections(count int) Option {
	return func(c *Client) { c.waitPermits = make(chan struct{}, max(1, count)) }
}

// New returns a client of the servers that rdb is connected to. rdb is a *redis.Client, also one for Sentinels, or a
// *redis.ClusterClient. New fails for any other client, and for options that are out of range.
//
// The client connects when it sends its first request. It opens its own connections, with the dialer, TLS, user, password and database
// in rdb's options. The hooks and the limiter of rdb do not apply to these connections. Do not close rdb before the client, because the
// client asks rdb for the primary and the cluster nodes.
func New(rdb redis.UniversalClient, options ...Option) (*Client, error) {
	c := &Client{
		rdb:           rdb,
		responseLimit: 2 * time.Second,
		patience:      5 * time.Second,
		idleLimit:     30 * time.Second,
		waitPermits:   make(chan struct{}, 256),
		id:            uuid.NewString(),
		nodes:         make(map[string]*node),
		tenures:       make(map[*tenure]struct{}),
		broken:        make(map[*node]bool),
	}
	c.open, c.shut = context.WithCancelCause(context.Background())
	c.alarm = time.AfterFunc(math.MaxInt64, c.watch)
	for _, option := range options {
		option(c)
	}
	if c.responseLimit < time.Millisecond || c.responseLimit > time.Hour || c.patience < time.Millisecond {
		return nil, errors.New("lockward: the response limit or the patience is out of range")
	}
	switch rdb.(type) {
	case *redis.Client, *redis.ClusterClient:
		return c, nil
	}
	return nil, fmt.Errorf("lockward: New takes a *redis.Client or a *redis.ClusterClient, not a %T", rdb)
}

// Close makes all calls that are under way fail with ErrClosed. All locks of the client are lost, but stay held at the server until
// their leases end, because the work may still go on. Release a lock before Close to free it at once. Close waits, at most for the
// patience, until releases that are under way have ended.
func (c *Client) Close() error {
	c.mu.Lock()
	wasClosed := c.open.Err() != nil
	c.shut(ErrClosed)
	c.mu.Unlock()
	if wasClosed {
		return ErrClosed
	}
	c.watch() // ends all tenures
	c.running.Wait()
	c.alarm.Stop()
	c.mu.Lock()
	nodes := slices.Collect(maps.Values(c.nodes))
	c.mu.Unlock()
	for _, n := range nodes {
		for cn := n.takeIdle(); cn != nil; cn = n.takeIdle() {
			cn.close()
		}
	}
	return nil
}

// begin begins a task that Close waits for. The task ends with running.Done. begin returns false if the client is closed.
func (c *Client) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	isOpen := c.open.Err() == nil
	if isOpen {
		c.running.Add(1)
	}
	return isOpen
}

// newOwner returns an owner that no other tenure has.
func (c *Client) newOwner() string { return c.id + ":" + strconv.FormatUint(c.owners.Add(1), 10) }

// Do acquires the lock, as Acquire does, runs fn, and releases the lock when fn returns or panics.
//
// When the lock is lost, the context of fn is cancelled, and context.Cause returns the reason. fn should then stop. fn may send the
// lock's Token with each write, so that the store can refuse writes with a smaller token.
//
// Do returns the error of Acquire, or else the error of fn. If the lock was lost, the error is also ErrLost, because the work was not
// protected until its end.
func (c *Client) Do(
	ctx context.Context, key string, fn func(ctx context.Context, lock *Lock) error, options ...AcquireOption,
) error {
	return c.DoAll(ctx, []string{key}, fn, options...)
}

// DoAll is like Do, but acquires several keys as one lock, as AcquireAll does.
func (c *Client) DoAll(
	ctx context.Context, keys []string, fn func(ctx context.Context, lock *Lock) error, options ...AcquireOption,
) (err error) {
	lock, err := c.AcquireAll(ctx, keys, options...)
	if err != nil {
		return err
	}
	defer func() {
		released := lock.Release(context.WithoutCancel(ctx)) // also when ctx has ended
		if released != nil && !errors.Is(released, ErrReleased) {
			err = errors.Join(err, released)
		}
	}()
	return fn(lock.Context(ctx), lock)
}

// Lead waits until this candidate is the leader, runs fn, and then gives up the leadership. The lock is exclusive. lock.Token is the
// number of the term, and is larger than the numbers of all earlier terms.
//
// When the lock is lost, the context of fn is cancelled. After fn has returned, the candidate waits again, and Lead calls fn again.
// If fn returns without a loss, Lead returns the error of fn. If the release then finds that the lock was lost, the error is also
// ErrLost. Lead also returns when ctx ends, and when the server refuses the request. While no server answers, Lead continues.
func (c *Client) Lead(
	ctx context.Context, key string, fn func(ctx context.Context, lock *Lock) error, options ...AcquireOption,
) error {
	for {
		hasRun, isDeposed := false, false
		err := c.Do(ctx, key, func(ctx context.Context, lock *Lock) error {
			err := fn(ctx, lock)
			hasRun, isDeposed = true, errors.Is(context.Cause(ctx), ErrLost)
			return err
		}, options...)
		goesOn := isDeposed || !hasRun && (errors.Is(err, ErrUnreachable) || errors.Is(err, ErrLost))
		if !goesOn || ctx.Err() != nil {
			return err
		}
	}
}
