// Package lockward is a client for locks on Redis and Valkey servers with the Lockward module, over go-redis.
//
// A lock has a lease, which is renewed while it is held; so it ends by itself when its process does. It is acquired in the
// order of asking, as the server keeps the queue. Each acquisition has a fencing token, larger than all before.
//
//	client, err := lockward.New(rdb)
//	...
//	err = client.Do(ctx, "order:42", func(ctx context.Context, lock *lockward.Lock) error {
//		return write(ctx, order, lock.Token())
//	})
//
// A request may be sent twice: when its reply is lost, nobody knows whether the server has heard it. So each names the count
// of holds that it leads to, or the token of its tenure, and nothing is counted twice.
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

// A Client acquires locks on one deployment: a server, the servers that Sentinels watch, or a cluster. It may be used by any
// number of goroutines, and has one of its own only while a request is under way.
type Client struct {
	rdb           redis.UniversalClient
	responseLimit time.Duration
	patience      time.Duration
	waiting       chan struct{} // as many as may wait

	name    string
	open    context.Context // until it is closed
	shut    context.CancelCauseFunc
	working sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	owners  uint64
	nodes   map[string]*node
	held    map[weak.Pointer[Lock]]struct{}
	hurried time.Time
	due     map[*node][]*Lock // what is renewed next; there is a list while somebody does that
}

// An Option sets how a Client behaves.
type Option func(*Client)

// WithResponseLimit sets how long a server has to reply before it is taken for unreachable, and the request is sent again on
// another connection: 2 seconds, and at most an hour. A renewal is given no more than a part of the lease. A server where
// somebody waits is asked after six times as long whether it is there.
func WithResponseLimit(limit time.Duration) Option {
	return func(c *Client) { c.responseLimit = limit }
}

// WithPatience sets how long a request is sent again while no server takes it, before it fails with ErrUnreachable: 10
// seconds, or until its context ends. A failover or a restart has to be over by then. Who waits for a lock with a deadline
// bears an outage until then.
func WithPatience(patience time.Duration) Option {
	return func(c *Client) { c.patience = patience }
}

// WithWaiters sets how many connections may wait for locks at a time: 100, and at least 1. More callers that wait stand in
// line before these, in the process. Whoever finds the lock free needs none.
//
// Who stands in that line asks for its lock now and then, once a second or more often, and gets it when it is free and nobody
// waits in the server's queue: all connections may be taken by those who wait for a lock that it holds.
func WithWaiters(count int) Option {
	return func(c *Client) { c.waiting = make(chan struct{}, max(1, count)) }
}

// New is a client of the servers that rdb knows: a *redis.Client, also one for Sentinels, or a *redis.ClusterClient. It fails
// for any other, and for options that are out of range.
//
// It does not connect until it has to, and does so with connections of its own, made with rdb's options: those of rdb
// cannot be told to stop waiting, and repeat requests without telling. Hooks and limiters of rdb do not see them. Keep rdb
// open for as long as the client: it is what knows the Sentinels and the nodes of a cluster.
func New(rdb redis.UniversalClient, options ...Option) (*Client, error) {
	switch rdb.(type) {
	case *redis.Client, *redis.ClusterClient:
	default:
		return nil, fmt.Errorf("lockward: a *redis.Client or a *redis.ClusterClient is needed, not %T", rdb)
	}
	c := &Client{
		rdb:           rdb,
		responseLimit: 2 * time.Second,
		patience:      10 * time.Second,
		waiting:       make(chan struct{}, 100),
		name:          uuid.NewString(),
		nodes:         make(map[string]*node),
		held:          make(map[weak.Pointer[Lock]]struct{}),
		due:           make(map[*node][]*Lock),
	}
	c.open, c.shut = context.WithCancelCause(context.Background())
	for _, option := range options {
		option(c)
	}
	if c.responseLimit <= 0 || c.patience <= 0 {
		return nil, errors.New("lockward: the response limit and the patience are longer than nothing")
	}
	c.responseLimit = min(c.responseLimit, time.Hour)
	return c, nil
}

// Close ends what is under way with ErrClosed, and lets go of the locks that are held: they are lost to their holders, and end
// at the server with their leases, as the work may still go on. To give them back, release them before. It returns when
// nothing is left under way; that takes no longer than the patience.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return ErrClosed
	}
	c.closed = true
	c.mu.Unlock()

	for _, l := range c.locks() {
		_ = l.lose(ErrClosed)
	}
	c.shut(ErrClosed)
	c.working.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, at := range c.nodes {
		for _, used := range at.idle {
			used.close()
		}
	}
	return nil
}

// begin starts some work that Close waits for. The caller is to call end.
func (c *Client) begin(ctx context.Context) (_ context.Context, end func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, nil, ErrClosed
	}
	ctx, cancel := context.WithCancelCause(ctx) // panics if there is none
	c.working.Add(1)
	stop := context.AfterFunc(c.open, func() { cancel(ErrClosed) })
	return ctx, func() { stop(); cancel(nil); c.working.Done() }, nil
}

// leave has something done in the background, by somebody who has begun some work: what a caller that has left cannot do any
// more. It ends after a time, or when the client is closed and the patience over. The channel is closed when that is over.
func (c *Client) leave(after time.Duration, errand func(ctx context.Context)) <-chan struct{} {
	done := make(chan struct{})
	c.working.Add(1)
	go func() {
		defer c.working.Done()
		defer close(done)
		ctx, cancel := context.WithTimeout(context.Background(), after)
		defer cancel()
		defer context.AfterFunc(c.open, func() { time.AfterFunc(c.patience, cancel) })()
		errand(ctx)
	}()
	return done
}

// newOwner is an owner that nobody else is.
func (c *Client) newOwner() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owners++
	return c.name + ":" + strconv.FormatUint(c.owners, 10)
}

// Do runs fn while it holds the lock: it acquires it, as Acquire does, and gives it back when fn returns or panics.
//
// The context that fn is given is cancelled when the lock is lost; context.Cause then tells why. fn should stop at
// that, and may hand the lock's Token to what it writes to, so that a smaller one can be refused there.
//
// The error is that of Acquire, or else of fn; and if the lock was lost, it is ErrLost, too: the work was not protected
// up to its end.
func (c *Client) Do(
	ctx context.Context, key string, fn func(ctx context.Context, lock *Lock) error, options ...AcquireOption,
) (err error) {
	lock, err := c.Acquire(ctx, key, options...)
	if err != nil {
		return err
	}
	defer func() {
		// The caller may have left: the lock is given back all the same.
		released := lock.Release(context.WithoutCancel(ctx))
		if released != nil && !errors.Is(released, ErrReleased) {
			err = errors.Join(err, released)
		}
	}()
	return fn(lock.Context(ctx), lock)
}
