// Package lockward is a client for locks on Redis and Valkey servers with the Lockward module, over go-redis.
//
// A lock has a lease. The client renews the lease while the lock is held. When the process dies, nobody renews the lease, and the
// lock ends when the lease ends. The server grants a lock in the order of the requests. Each tenure has a fencing token, which is
// larger than the token of every earlier tenure.
//
//	client, err := lockward.New(rdb)
//	...
//	err = client.Do(ctx, "order:42", func(ctx context.Context, lock *lockward.Lock) error {
//		return write(ctx, order, lock.Token())
//	})
//
// When a reply is lost, the client does not know whether the server has carried out the request. Then the client sends the request
// again. Each request names the resulting count of holds, or the token of its tenure. So the server does not count a hold twice.
package lockward

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

// A Client acquires locks on one deployment: a server, the servers that Sentinels watch, or a cluster. Any number of goroutines
// may use it. The client closes a connection that was idle for 30 seconds.
type Client struct {
	rdb           redis.UniversalClient
	responseLimit time.Duration
	patience      time.Duration
	idleLimit     time.Duration // how long an unused connection stays open
	waiting       int           // how many connections may wait for locks
	waitPermits   chan struct{} // has an element for each connection that waits for a lock

	id      string
	owners  atomic.Uint64   // the number of the last owner
	open    context.Context // ends when the client is closed
	shut    context.CancelCauseFunc
	running sync.WaitGroup // the tasks that Close waits for
	alarm   *time.Timer    // calls watch

	mu       sync.Mutex
	nodes    map[string]*node
	locks    map[*Lock]struct{} // the locks that have not ended
	isBroken bool               // a connection broke, so watch must renew all locks
	wakesAt  time.Time          // when the alarm is due; the zero time means never
}

// An Option sets how a Client behaves.
type Option func(*Client)

// WithResponseLimit sets how long the client waits for a reply: 1 ms to an hour, by default 2 seconds. If there is no reply within
// the limit, the client closes the connection and sends the request again. For a renewal the limit is at most a sixth of the lease.
func WithResponseLimit(limit time.Duration) Option {
	return func(c *Client) { c.responseLimit = limit }
}

// WithPatience sets how long the client repeats a request while no server answers: at least 1 ms, by default 5 seconds. When this time
// is over, the request fails with ErrUnreachable. But a caller in a lock's queue keeps waiting, even if no server answers for longer
// than this time.
func WithPatience(patience time.Duration) Option { return func(c *Client) { c.patience = patience } }

// WithWaitingConnections sets how many connections may wait for locks at a time: at least 1, by default 256. Further callers have no
// place in the server's queue until one of these connections is free. Until then these callers poll. The first pause between two polls
// is 50 ms. Each further pause is twice as long, up to a second.
func WithWaitingConnections(count int) Option {
	return func(c *Client) { c.waiting = count }
}

// New returns a client of the servers that rdb is connected to. rdb must be a *redis.Client, with or without Sentinels, or for a
// cluster a *redis.ClusterClient. For any other client, and for options that are out of range, New returns an error.
//
// The client connects when it sends its first request. It opens connections of its own with rdb's options: dialer, TLS, user and
// password, database. Hooks and limiters of rdb do not apply to these connections. Do not close rdb before you close the client: the
// client finds the primary that Sentinels name, and the nodes of a cluster, through rdb. While no Sentinel answers, the client connects
// to the last known primary. But if FailoverOptions has a Dialer that wraps its connections, the client waits for the Sentinels, because
// only go-redis can call this Dialer.
func New(rdb redis.UniversalClient, options ...Option) (*Client, error) {
	c := &Client{
		rdb:           rdb,
		responseLimit: 2 * time.Second,
		patience:      5 * time.Second,
		idleLimit:     30 * time.Second,
		waiting:       256,
		id:            uuid.NewString(),
		nodes:         make(map[string]*node),
		locks:         make(map[*Lock]struct{}),
	}
	c.open, c.shut = context.WithCancelCause(context.Background())
	c.alarm = time.AfterFunc(math.MaxInt64, c.watch)
	for _, option := range options {
		option(c)
	}
	switch {
	case c.responseLimit < time.Millisecond || c.responseLimit > time.Hour:
		return nil, fmt.Errorf("lockward: the response limit is %v, but must be 1ms to 1h", c.responseLimit)
	case c.patience < time.Millisecond:
		return nil, fmt.Errorf("lockward: the patience is %v, but must be 1ms or more", c.patience)
	case c.waiting < 1:
		return nil, fmt.Errorf("lockward: the number of waiting connections is %d, but must be 1 or more", c.waiting)
	}
	c.waitPermits = make(chan struct{}, c.waiting)
	switch rdb.(type) {
	case *redis.Client, *redis.ClusterClient:
		return c, nil
	}
	return nil, fmt.Errorf("lockward: New takes a *redis.Client or a *redis.ClusterClient, not a %T", rdb)
}

// Close ends all requests in progress with ErrClosed. All locks that are held are lost. The server keeps these locks until their
// leases end, because the program may still do the work that the locks protect. To free the locks at once, release them before you
// call Close. Close waits until the releases in progress have ended, at most for the patience.
func (c *Client) Close() error {
	c.mu.Lock()
	c.shut(ErrClosed)
	c.mu.Unlock()
	c.watch() // ends all locks
	c.running.Wait()
	c.alarm.Stop()
	c.mu.Lock()
	nodes := slices.Collect(maps.Values(c.nodes))
	c.mu.Unlock()
	for _, n := range nodes {
		for cn := c.takeIdle(n, time.Time{}, false); cn != nil; cn = c.takeIdle(n, time.Time{}, false) {
			cn.close()
		}
	}
	return nil
}

// begin begins a task that Close waits for. When the task ends, the caller must call running.Done. If the client is closed, begin
// returns false.
func (c *Client) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	isOpen := c.open.Err() == nil
	if isOpen {
		c.running.Add(1)
	}
	return isOpen
}

// Do acquires the lock, as Acquire does, runs fn, and releases the lock when fn returns or panics.
//
// When the lock is lost, the context of fn is cancelled, and context.Cause returns the reason. Then fn should stop. fn may send the
// lock's Token with each write, so that the store can refuse a write whose token is smaller than an earlier token.
//
// The deadline of ctx limits the wait and the work, because the context of fn also ends at this deadline. To limit only the wait, call
// Acquire with a context that has the deadline, and give the work lock.Context(parent), where parent has no deadline.
//
// Do returns the error of Acquire or of fn. If the lock was lost, Do joins this error with ErrLost, because the lock did not protect
// the work up to its end.
func (c *Client) Do(
	ctx context.Context, key string, fn func(ctx context.Context, lock *Lock) error, options ...AcquireOption,
) error {
	return c.DoAll(ctx, []string{key}, fn, options...)
}

// DoAll acquires several keys as one lock, as AcquireAll does. Then DoAll works like Do.
func (c *Client) DoAll(
	ctx context.Context, keys []string, fn func(ctx context.Context, lock *Lock) error, options ...AcquireOption,
) (err error) {
	lock, err := c.AcquireAll(ctx, keys, options...)
	if err != nil {
		return err
	}
	defer func() {
		released := lock.Release(context.WithoutCancel(ctx)) // ctx may have ended
		if released != nil && !errors.Is(released, ErrReleased) {
			err = errors.Join(err, released)
		}
	}()
	return fn(lock.Context(ctx), lock)
}

// Lead waits until this candidate is the leader, runs fn, and then releases the lock. The lock is exclusive. lock.Token is the number
// of the term. This number is larger than the number of every earlier term.
//
// When the lock is lost, the context of fn is cancelled. After fn has returned, the candidate waits again, and Lead calls fn
// again. If fn returns while the candidate is the leader, Lead returns the error of fn. If the release finds that the lock is lost,
// Lead joins this error with ErrLost. Lead also returns when ctx ends, or when the server refuses the request. While no server
// answers, Lead keeps trying.
func (c *Client) Lead(
	ctx context.Context, key string, fn func(ctx context.Context, lock *Lock) error, options ...AcquireOption,
) error {
	options = append(slices.Clip(options), func(s *settings) { s.isLeader = true })
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
