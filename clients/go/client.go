// Package lockward is a client for locks on Redis and Valkey servers with the Lockward module, over go-redis.
//
// A lock has a lease. The client renews it while the lock is held, so a lock ends by itself when its process dies. The server
// grants a lock in the order of the requests. Each tenure has a fencing token, larger than that of every earlier tenure.
//
//	client, err := lockward.New(rdb)
//	...
//	err = client.Do(ctx, "order:42", func(ctx context.Context, lock *lockward.Lock) error {
//		return write(ctx, order, lock.Token())
//	})
//
// A request may be sent twice: when its reply is lost, the client does not know whether the server has carried it out. So
// each request names the count of holds that it leads to, or the token of its tenure, and nothing is counted twice.
package lockward

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"
	"weak"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

// A Client acquires locks on one deployment: a server, the servers that Sentinels watch, or a cluster. Any number of goroutines
// may use it. It runs a goroutine of its own only while a request is under way.
type Client struct {
	rdb           redis.UniversalClient
	responseLimit time.Duration
	patience      time.Duration
	waitPermits   chan struct{} // one for each connection that waits

	id      string
	open    context.Context // ends when the client is closed
	shut    context.CancelCauseFunc
	running sync.WaitGroup // Close waits for it

	mu           sync.Mutex
	closed       bool
	owners       uint64 // how many were made
	nodes        map[string]*node
	locks        map[weak.Pointer[Lock]]struct{}
	renewedAllAt time.Time
	due          map[*node][]*Lock // to be renewed next; a node is in the map while a goroutine renews its locks
}

// An Option sets how a Client behaves.
type Option func(*Client)

// WithResponseLimit sets how long a server has to reply before the client takes it for unreachable and sends the request again
// on another connection: 2 seconds unless set, and at most an hour. A renewal gets only a part of the lease. While a caller
// waits for a lock, the client asks the server by PING every six response limits whether it still answers.
func WithResponseLimit(limit time.Duration) Option {
	return func(c *Client) { c.responseLimit = limit }
}

// WithPatience sets how long the client repeats a request while no server takes it, before it fails with ErrUnreachable: 10
// seconds, or until the context ends. A failover or a restart has to be over by then. A caller that waits for a lock with a
// deadline survives an outage until that deadline.
func WithPatience(patience time.Duration) Option {
	return func(c *Client) { c.patience = patience }
}

// WithWaiters sets how many connections may wait for locks at a time: 100 unless set, and at least 1. More callers wait in
// the process until one of these connections is free. A caller that finds the lock free needs none.
//
// A caller without a connection asks for its lock once a second or more often. It gets the lock when the lock is free and
// nobody waits in the server's queue. Otherwise callers that wait for a lock which this caller holds could take all
// connections, and block it forever.
func WithWaiters(count int) Option {
	return func(c *Client) { c.waitPermits = make(chan struct{}, max(1, count)) }
}

// New returns a client of the servers that rdb is connected to. rdb is a *redis.Client, also one for Sentinels, or a
// *redis.ClusterClient. New fails for any other client, and for options that are out of range.
//
// The client connects when it sends its first request. It opens connections of its own with rdb's options, because a wait on
// rdb's connections cannot be ended, and rdb repeats requests by itself. Hooks and limiters of rdb do not apply to them. Keep
// rdb open for as long as the client: rdb knows the Sentinels and the nodes of a cluster.
func New(rdb redis.UniversalClient, options ...Option) (*Client, error) {
	switch rdb.(type) {
	case *redis.Client, *redis.ClusterClient:
	default:
		return nil, fmt.Errorf("lockward: New takes a *redis.Client or a *redis.ClusterClient, not a %T", rdb)
	}
	c := &Client{
		rdb:           rdb,
		responseLimit: 2 * time.Second,
		patience:      10 * time.Second,
		waitPermits:   make(chan struct{}, 100),
		id:            uuid.NewString(),
		nodes:         make(map[string]*node),
		locks:         make(map[weak.Pointer[Lock]]struct{}),
		due:           make(map[*node][]*Lock),
	}
	c.open, c.shut = context.WithCancelCause(context.Background())
	for _, option := range options {
		option(c)
	}
	if c.responseLimit <= 0 || c.patience <= 0 {
		return nil, errors.New("lockward: the response limit and the patience must be more than 0")
	}
	c.responseLimit = min(c.responseLimit, time.Hour)
	return c, nil
}

// Close ends all requests under way with ErrClosed. Locks that are held are lost to their holders. The server keeps them until
// their leases end, because the work may still go on; to give them back, release them before. Close returns when nothing is
// under way any more, after the patience at the latest.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return ErrClosed
	}
	c.closed = true
	c.mu.Unlock()

	for _, l := range c.liveLocks() {
		_ = l.lose(ErrClosed)
	}
	c.shut(ErrClosed)
	c.running.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.nodes {
		for _, idle := range n.idle {
			idle.close()
		}
	}
	return nil
}

// begin starts some work that Close waits for. The caller has to call end.
func (c *Client) begin(ctx context.Context) (_ context.Context, end func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, nil, ErrClosed
	}
	ctx, cancel := context.WithCancelCause(ctx) // panics if ctx is nil
	c.running.Add(1)
	stop := context.AfterFunc(c.open, func() { cancel(ErrClosed) })
	return ctx, func() { stop(); cancel(nil); c.running.Done() }, nil
}

// runInBackground runs a task for a caller that returns meanwhile; only between begin and its end. The task's context ends
// after limit, or when the client is closed and the patience is over. The channel is closed when the task has ended.
func (c *Client) runInBackground(limit time.Duration, task func(ctx context.Context)) <-chan struct{} {
	done := make(chan struct{})
	c.running.Add(1)
	go func() {
		defer c.running.Done()
		defer close(done)
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		defer context.AfterFunc(c.open, func() { time.AfterFunc(c.patience, cancel) })()
		task(ctx)
	}()
	return done
}

// newOwner returns an owner that no other tenure has.
func (c *Client) newOwner() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owners++
	return c.id + ":" + strconv.FormatUint(c.owners, 10)
}

// Do acquires the lock, as Acquire does, runs fn, and releases the lock when fn returns or panics.
//
// The context of fn is cancelled when the lock is lost; context.Cause then tells why. fn should stop then. It may pass the
// lock's Token to what it writes to, so that a write with a smaller token can be refused there.
//
// Do returns the error of Acquire, or else of fn. If the lock was lost, the error is ErrLost, too: the work was not protected
// up to its end.
func (c *Client) Do(
	ctx context.Context, key string, fn func(ctx context.Context, lock *Lock) error, options ...AcquireOption,
) (err error) {
	lock, err := c.Acquire(ctx, key, options...)
	if err != nil {
		return err
	}
	defer func() {
		// The lock is released also when ctx has ended.
		released := lock.Release(context.WithoutCancel(ctx))
		if released != nil && !errors.Is(released, ErrReleased) {
			err = errors.Join(err, released)
		}
	}()
	return fn(lock.Context(ctx), lock)
}
