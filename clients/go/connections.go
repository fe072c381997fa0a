package lockward

import (
	"cmp"
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const (
	// maxConnections is how many connections to each node may be in use at a time, not counting those that wait for a lock or
	// for replicas. As many are for renewals, and as many may be idle.
	maxConnections = 16
	// watchAfter is how long a connection is idle before the client reads from it, to hear when it breaks.
	watchAfter = 50 * time.Millisecond
	// sentinelPatience is how long Sentinels have to answer before the last known primary is taken.
	sentinelPatience = 250 * time.Millisecond
)

// A connection is used by one attempt at a time. It is a go-redis client of its own, with one connection that this package has
// opened. So an attempt can end at its deadline, or when its caller leaves.
type connection struct {
	net     net.Conn
	client  *redis.Client
	conn    *redis.Conn
	isReady bool        // the handshake is over
	watch   *time.Timer // calls watchIdle
	isTaken atomic.Bool // watchIdle is to end
	watched chan bool   // whether the connection is intact after that
}

func (cn *connection) close() { _ = cn.net.Close(); _ = cn.client.Close() }

// A node is a server, or what leads to the one that is the primary now.
type node struct {
	options  *redis.Options
	permits  chan struct{}          // one for each connection in use
	renewals chan struct{}          // the same for renewals, which nothing else must delay
	primary  atomic.Pointer[string] // the last one that Sentinels have named
	idle     chan *connection       // some may be closed
}

// A redirect is the address of the cluster node that has a key, or (isAsk) that is importing it. isAny leads to any node, which
// knows where the key is now.
type redirect struct {
	addr         string
	isAsk, isAny bool
}

// redirected reads a redirection, such as MOVED 3999 127.0.0.1:6381.
func redirected(err error) redirect {
	if addr, isMoved := redis.IsMovedError(err); isMoved {
		return redirect{addr: addr}
	}
	addr, isAsk := redis.IsAskError(err)
	return redirect{addr: addr, isAsk: isAsk}
}

// resolve is the complete address. A node that does not know its own host leaves it out, and then the host of asked is meant.
// An IPv6 address has no brackets.
func (r redirect) resolve(asked string) string {
	colon := strings.LastIndexByte(r.addr, ':')
	host := strings.Trim(r.addr[:max(colon, 0)], "[]?")
	if host == "" {
		host, _, _ = net.SplitHostPort(asked)
	}
	return net.JoinHostPort(host, r.addr[colon+1:])
}

// nodeFor is the node that has a key. rdb finds the nodes of a cluster for the first time without a limit.
func (c *Client) nodeFor(ctx context.Context, deadline time.Time, key string, to redirect) (n *node, err error) {
	master, _ := c.rdb.(*redis.Client)
	if cluster, ok := c.rdb.(*redis.ClusterClient); ok {
		if to != (redirect{}) {
			cluster.ReloadState(ctx) // in the background
		}
		if to.isAny {
			key = strconv.FormatInt(time.Now().UnixNano(), 36)
		}
		find := func(ctx context.Context) (*redis.Client, error) { return cluster.MasterForKey(ctx, key) }
		if master, err = bounded(ctx, deadline, find, func(*redis.Client) {}); err != nil {
			return nil, err
		}
	}
	addr := master.Options().Addr
	if to.addr != "" {
		addr = to.resolve(addr)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if n = c.nodes[addr]; n == nil {
		n = &node{
			options:  ownOptions(master.Options(), addr),
			permits:  make(chan struct{}, maxConnections),
			renewals: make(chan struct{}, maxConnections),
			idle:     make(chan *connection, maxConnections),
		}
		c.nodes[addr] = n
	}
	return n, nil
}

// ownOptions are the options for the client's own connections, made from those of rdb.
func ownOptions(theirs *redis.Options, addr string) *redis.Options {
	own := *theirs
	own.Addr, own.Protocol, own.Limiter = addr, 2, nil
	own.ReadTimeout, own.WriteTimeout = -2, -2 // an attempt has a deadline
	own.MaxRetries = -1                        // ask has to know when a request is repeated
	own.DisableIdentity = true                 // it costs a round trip
	own.PoolSize, own.MinIdleConns, own.MaxConcurrentDials = 1, 0, 1
	own.ReadBufferSize, own.WriteBufferSize = 4096, 4096
	own.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return &own
}

// connection returns an idle connection to a node, or a new one.
func (c *Client) connection(ctx context.Context, deadline time.Time, n *node, isNew bool) (*connection, error) {
	if !isNew {
		if cn := n.takeIdle(); cn != nil {
			return cn, nil
		}
	}
	conn, isLastKnown, err := n.dial(ctx, deadline)
	if err != nil {
		return nil, err
	}
	cn, own := &connection{net: conn, watched: make(chan bool, 1)}, *n.options
	own.Dialer = func(context.Context, string, string) (net.Conn, error) { return conn, nil }
	own.OnConnect = func(ctx context.Context, conn *redis.Conn) (err error) {
		if isLastKnown {
			if role, err := conn.Do(ctx, "ROLE").Slice(); err != nil || role[0] != "master" {
				return cmp.Or(err, errors.New("no Sentinel answers, and the last known primary is a replica"))
			}
		}
		if n.options.OnConnect != nil {
			err = n.options.OnConnect(ctx, conn)
		}
		cn.isReady = err == nil
		return err
	}
	cn.client = redis.NewClient(&own)
	cn.conn = cn.client.Conn()
	cn.watch = time.AfterFunc(time.Hour, func() { c.watchIdle(n, cn) })
	cn.watch.Stop() // keepIdle starts it
	return cn, nil
}

// keepIdle keeps a connection for the next request. When it has been idle for a moment, the client reads from it: so it hears when the
// server closes it. It is closed at the idle limit.
func (c *Client) keepIdle(n *node, cn *connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(n.idle) == maxConnections || c.open.Err() != nil {
		cn.close()
		return
	}
	cn.isTaken.Store(false)
	cn.watch.Reset(watchAfter)
	n.idle <- cn
}

// watchIdle reads from an idle connection, until takeIdle, the idle limit, or the server ends that.
func (c *Client) watchIdle(n *node, cn *connection) {
	until := time.Now().Add(c.idleLimit)
	_ = cn.net.SetReadDeadline(until)
	if cn.isTaken.Load() { // the deadline may replace the one of takeIdle
		_ = cn.net.SetReadDeadline(time.Unix(1, 0))
	}
	_, err := cn.net.Read(make([]byte, 1))
	isBroken := !errors.Is(err, os.ErrDeadlineExceeded)
	isIntact := !isBroken && time.Now().Before(until)
	if !isIntact {
		c.discard(n, cn, isBroken)
	}
	cn.watched <- isIntact
}

// takeIdle ends the watch over a connection and returns it, if an idle one is intact.
func (n *node) takeIdle() *connection {
	for {
		select {
		case cn := <-n.idle:
			if cn.watch.Stop() {
				return cn
			}
			cn.isTaken.Store(true)
			_ = cn.net.SetReadDeadline(time.Unix(1, 0))
			if <-cn.watched {
				return cn
			}
		default:
			return nil
		}
	}
}

// discard closes a connection that is not used again. If it broke, then the server may have restarted, or another one may be the
// primary. So all locks of the node are renewed: a server that has forgotten a tenure restores it for the first owner that claims it.
func (c *Client) discard(n *node, cn *connection, isBroken bool) {
	cn.close()
	if isBroken {
		c.mu.Lock()
		c.broken[n] = true
		c.mu.Unlock()
		c.wakeAt(time.Now().Add(20 * time.Millisecond)) // many connections may break together
	}
}

// dial opens a connection, and tells whether it leads to the last known primary, because no Sentinel has answered in time. The
// dialer of go-redis asks Sentinels without a limit.
func (n *node) dial(ctx context.Context, deadline time.Time) (conn net.Conn, isLastKnown bool, err error) {
	dial := func(dialer func(ctx context.Context, network, addr string) (net.Conn, error), addr string, until time.Time) {
		conn, err = bounded(ctx, until, func(ctx context.Context) (net.Conn, error) {
			return dialer(ctx, n.options.Network, addr)
		}, func(late net.Conn) { _ = late.Close() })
	}
	asking, primary := deadline, n.primary.Load()
	if primary != nil {
		asking = time.Now().Add(min(sentinelPatience, time.Until(deadline)/4))
	}
	dial(n.options.Dialer, n.options.Addr, asking)
	if err == nil && n.options.Addr == "FailoverClient" { // so go-redis calls a server that Sentinels name
		addr := conn.RemoteAddr().String()
		n.primary.Store(&addr)
	}
	if isLastKnown = err != nil && primary != nil && ctx.Err() == nil; isLastKnown {
		dial(redis.NewDialer(n.options), *primary, deadline)
	}
	return conn, isLastKnown, err
}

// bounded runs a task that may take longer than its context. Then it goes on, and drop gets its late result.
func bounded[T any](
	ctx context.Context, deadline time.Time, task func(ctx context.Context) (T, error), drop func(T),
) (value T, err error) {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := task(ctx)
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		go func() {
			if late := <-done; late.err == nil {
				drop(late.value)
			}
		}()
		return value, ctx.Err()
	}
}

// exchange sends commands and reads all replies until the deadline. The connection is closed when the context ends. An error that a
// server replies is only in its command.
func (cn *connection) exchange(ctx context.Context, deadline time.Time, commands []command) error {
	if ctx.Done() != nil { // otherwise AfterFunc allocates for nothing
		defer context.AfterFunc(ctx, func() { _ = cn.net.Close() })()
	}
	err := cn.net.SetDeadline(deadline)
	if err != nil {
		return err
	}
	if len(commands) == 1 { // a pipeline costs more
		err = cn.conn.Process(context.Background(), commands[0])
	} else {
		pipe := cn.conn.Pipeline()
		for _, command := range commands {
			_ = pipe.Process(context.Background(), command)
		}
		_, err = pipe.Exec(context.Background())
	}
	if reply := redis.Error(nil); cn.isReady && errors.As(err, &reply) { // otherwise it may be the reply to the login
		return nil
	}
	return err
}
