package lockward

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"slices"
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
	idle    *time.Timer // calls watchIdle
	watched chan error  // how that has ended for a connection that was taken
}

func (cn *connection) close() { _ = cn.net.Close(); _ = cn.client.Close() }

// A node is a server, or what leads to the one that is the primary now.
type node struct {
	options  *redis.Options
	permits  chan struct{}          // one for each connection in use
	renewals chan struct{}          // the same for renewals, which nothing else must delay
	primary  atomic.Pointer[string] // the last one that Sentinels have named
	idle     []*connection          // guarded by Client.mu
}

// A redirect is the address of the cluster node that has a key, or (isAsk) that is importing it. isAny leads to any node, which
// knows where the key is now.
type redirect struct {
	addr         string
	isAsk, isAny bool
}

// redirected reads a redirection, such as MOVED 3999 127.0.0.1:6381.
func redirected(err error) redirect {
	code := errorCode(err)
	if code != "MOVED" && code != "ASK" {
		return redirect{}
	}
	words := strings.Fields(err.Error())
	return redirect{addr: words[len(words)-1], isAsk: code == "ASK"}
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
	for !isNew {
		cn := c.takeIdle(n)
		if cn == nil {
			break
		}
		err := cn.endWatch()
		if err == nil {
			return cn, nil
		}
		c.discard(n, cn, err)
	}
	conn, isLastKnown, err := n.dial(ctx, deadline)
	if err != nil {
		return nil, err
	}
	cn, own := &connection{net: conn, watched: make(chan error, 1)}, *n.options
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
	return cn, nil
}

// takeIdle returns the connection that was used last, or nil.
func (c *Client) takeIdle(n *node) (cn *connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if last := len(n.idle) - 1; last >= 0 {
		cn = n.idle[last]
		n.idle = n.idle[:last]
	}
	return cn
}

// keepIdle keeps a connection for the next request. When it has been idle for a moment, the client reads from it: so it hears when the
// server closes it. It is closed at the idle limit.
func (c *Client) keepIdle(n *node, cn *connection) {
	c.mu.Lock()
	isKept := len(n.idle) < maxConnections && c.open.Err() == nil
	if isKept {
		n.idle = append(n.idle, cn)
		if cn.idle == nil {
			cn.idle = time.AfterFunc(watchAfter, func() { c.watchIdle(n, cn) })
		} else {
			cn.idle.Reset(watchAfter)
		}
	}
	c.mu.Unlock()
	if !isKept {
		c.discard(n, cn, nil)
	}
}

func (c *Client) watchIdle(n *node, cn *connection) {
	c.mu.Lock()
	if slices.Contains(n.idle, cn) { // otherwise endWatch has set another deadline, or does so now
		_ = cn.net.SetReadDeadline(time.Now().Add(c.idleLimit))
	} else {
		_ = cn.net.SetReadDeadline(time.Unix(1, 0))
	}
	c.mu.Unlock()
	_, err := cn.net.Read(make([]byte, 1))
	err = cmp.Or(err, errors.New("the server has sent what nobody asked for"))
	c.mu.Lock()
	at := slices.Index(n.idle, cn)
	if at >= 0 {
		n.idle = slices.Delete(n.idle, at, at+1)
	}
	c.mu.Unlock()
	switch {
	case at < 0: // it was taken
		cn.watched <- err
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.discard(n, cn, nil)
	default:
		c.discard(n, cn, err)
	}
}

// endWatch lets a connection be used again. It returns an error if it is broken.
func (cn *connection) endWatch() error {
	if cn.idle.Stop() {
		return nil
	}
	_ = cn.net.SetReadDeadline(time.Unix(1, 0))
	if err := <-cn.watched; !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return cn.net.SetReadDeadline(time.Time{})
}

// discard closes a connection that is not used again. If it broke, then the server may have restarted, or another one may be the
// primary. So all locks of the node are renewed: a server that has forgotten a tenure restores it for the first owner that claims it.
func (c *Client) discard(n *node, cn *connection, failure error) {
	cn.close()
	if failure != nil {
		c.mu.Lock()
		c.broken[n] = true
		c.mu.Unlock()
		c.wakeAt(time.Now().Add(20 * time.Millisecond)) // many connections may break together
	}
}

// dial opens a connection, and tells whether it leads to the last known primary, because no Sentinel has answered in time. The
// dialer of go-redis asks Sentinels without a limit.
func (n *node) dial(ctx context.Context, deadline time.Time) (conn net.Conn, isLastKnown bool, err error) {
	asking, primary := deadline, n.primary.Load()
	if primary != nil {
		asking = time.Now().Add(min(sentinelPatience, time.Until(deadline)/4))
	}
	conn, err = bounded(ctx, asking, func(ctx context.Context) (net.Conn, error) {
		return n.options.Dialer(ctx, n.options.Network, n.options.Addr)
	}, func(late net.Conn) { _ = late.Close() })
	if err == nil && n.options.Addr == "FailoverClient" { // so go-redis calls a server that Sentinels name
		addr := conn.RemoteAddr().String()
		n.primary.Store(&addr)
	}
	if err == nil || primary == nil || ctx.Err() != nil {
		return conn, false, err
	}
	dialer := &net.Dialer{Deadline: deadline}
	dial := dialer.DialContext
	if n.options.TLSConfig != nil {
		dial = (&tls.Dialer{NetDialer: dialer, Config: n.options.TLSConfig}).DialContext
	}
	conn, err = dial(ctx, n.options.Network, *primary)
	return conn, true, err
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
	done := make(chan result)
	go func() {
		value, err := task(ctx)
		select {
		case done <- result{value, err}:
		case <-ctx.Done():
			if err == nil {
				drop(value)
			}
		}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		return value, ctx.Err()
	}
}

// exchange sends commands and reads all replies until the deadline. The connection is closed when the context ends.
func (cn *connection) exchange(ctx context.Context, deadline time.Time, commands []command) ([]*redis.Cmd, error) {
	if ctx.Done() != nil { // otherwise AfterFunc allocates for nothing
		defer context.AfterFunc(ctx, func() { _ = cn.net.Close() })()
	}
	if err := cn.net.SetDeadline(deadline); err != nil {
		return nil, err
	}
	var err error
	replies := make([]*redis.Cmd, len(commands))
	if len(commands) == 1 { // a pipeline costs more
		replies[0] = cn.conn.Do(context.Background(), commands[0]...)
		err = replies[0].Err()
	} else {
		pipe := cn.conn.Pipeline()
		for i, command := range commands {
			replies[i] = pipe.Do(context.Background(), command...)
		}
		_, err = pipe.Exec(context.Background())
	}
	if !cn.isReady { // maybe the server has refused the login, with the error of all replies
		return nil, cmp.Or(err, io.ErrUnexpectedEOF)
	}
	for _, reply := range replies {
		switch own := reply.Err(); {
		case own == nil && reply.Val() == nil: // go-redis did not send it
			return nil, cmp.Or(err, io.ErrUnexpectedEOF)
		case own != nil && errorCode(own) == "" && !errors.Is(own, redis.Nil):
			return nil, own
		}
	}
	return replies, nil
}
