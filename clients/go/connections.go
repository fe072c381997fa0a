package lockward

import (
	"bytes"
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
	// maxConnections is how many connections to each node may be in use at a time. Connections that wait for a lock or for replicas do
	// not count. Renewals may use maxConnections further connections. At most maxConnections connections are idle.
	maxConnections = 16
	// watchAfter is how long a connection is idle before the client reads from it. The read shows when the connection breaks.
	watchAfter = 50 * time.Millisecond
	// lookUpLimit is how long an attempt waits for an answer of the Sentinels, or of the nodes of a cluster. go-redis asks one server
	// after the other, in random order. It may wait for a silent server without a time limit. After lookUpLimit the client connects to
	// the last known primary. In a cluster, the next attempt asks the nodes in another order.
	lookUpLimit = 250 * time.Millisecond
)

// past is a deadline that ends a read or a write at once.
var past = time.Unix(1, 0)

// A connection is used by one attempt at a time. It is a separate go-redis client over one network connection that this package has
// opened. So this package can end the attempt when its context ends.
type connection struct {
	net.Conn
	client  *redis.Client
	opened  time.Time   // when the connection was opened
	isReady bool        // the handshake is over
	idleEnd time.Time   // when the idle limit is over
	watch   *time.Timer // calls watchIdle
	watched chan bool   // when watchIdle ends, it sends whether the connection is intact
}

// Read fails if the server is full: such a server sends an error and closes the connection. go-redis would take this error for the
// answer to HELLO, and go on.
func (cn *connection) Read(b []byte) (int, error) {
	n, err := cn.Conn.Read(b)
	if bytes.HasPrefix(b[:n], []byte("-ERR max number of clients")) {
		return 0, errors.New(string(bytes.TrimSpace(b[1:n])))
	}
	return n, err
}

// Close does nothing. go-redis calls it when a request ends without a reply, and then abandon still needs the connection.
func (cn *connection) Close() error { return nil }

// close closes the connection with its client.
func (cn *connection) close() {
	_ = cn.Conn.Close()
	_ = cn.client.Close()
}

// A node is a server, or the Sentinels' present primary.
type node struct {
	options  *redis.Options
	permits  chan struct{}                 // has an element for each connection in use
	renewals chan struct{}                 // permits of renewals only, so that other requests cannot delay renewals
	primary  atomic.Pointer[redis.Options] // how to connect to the last primary that Sentinels have named
	idle     []*connection                 // connections for the next requests; Client.mu guards them, and some of them may be closed
}

// A redirect says which cluster node gets the next request for a key. addr is the address of the node that has the key. With isAsk,
// addr is the address of the node that is importing the key. With isAny, any node gets the request, and replies which node has the key.
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

// resolve returns the complete address. A node that does not know its own host leaves the host out. Then resolve uses the host of
// asked, which is the address of the node that has answered. Servers write an IPv6 address without brackets.
func (r redirect) resolve(asked string) string {
	colon := strings.LastIndexByte(r.addr, ':')
	host := strings.Trim(r.addr[:max(colon, 0)], "[]?")
	if host == "" {
		host, _, _ = net.SplitHostPort(asked)
	}
	return net.JoinHostPort(host, r.addr[colon+1:])
}

// nodeFor returns the node that has a key.
func (c *Client) nodeFor(ctx context.Context, key string, to redirect) (n *node, err error) {
	master, _ := c.rdb.(*redis.Client)
	if cluster, ok := c.rdb.(*redis.ClusterClient); ok {
		if to != (redirect{}) {
			cluster.ReloadState(ctx) // in the background
		}
		if to.isAny {
			key = strconv.FormatInt(time.Now().UnixNano(), 36)
		}
		// The look-up continues after ctx has ended, because a late result helps later attempts.
		lookUp := func(ctx context.Context) (*redis.Client, error) {
			return cluster.MasterForKey(context.WithoutCancel(ctx), key)
		}
		if master, err = bounded(ctx, lookUpLimit, lookUp, nil); err != nil {
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

// ownOptions returns the options for the client's own connections: the options of rdb with some changes.
func ownOptions(theirs *redis.Options, addr string) *redis.Options {
	own := *theirs
	own.Addr, own.Protocol, own.Limiter = addr, 2, nil
	own.ReadTimeout, own.WriteTimeout = -2, -2 // the context of the attempt has the time limit
	own.MaxRetries = -1                        // only call.ask may repeat a request
	own.DisableIdentity = true                 // CLIENT SETINFO would cost a round trip
	own.PoolSize, own.MinIdleConns, own.MaxConcurrentDials = 1, 0, 1
	own.ConnMaxIdleTime, own.ConnMaxLifetime = -1, -1 // a connection cannot be opened again
	own.ReadBufferSize, own.WriteBufferSize = 4096, 4096
	own.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return &own
}

// connection returns an idle connection to the node, which was opened after the given time. If there is none, it opens a connection.
func (c *Client) connection(ctx context.Context, n *node, after time.Time, isWait bool) (*connection, error) {
	if cn := c.takeIdle(n, after, isWait); cn != nil {
		return cn, nil
	}
	conn, isLastKnown, err := n.dial(ctx)
	if err != nil {
		return nil, err
	}
	cn, own := &connection{Conn: conn, opened: time.Now(), watched: make(chan bool, 1)}, *n.options
	own.Addr = "the node" // not the real address: go-redis would close this connection if a MOVED reply named own.Addr
	own.Dialer = func(context.Context, string, string) (net.Conn, error) { return cn, nil }
	own.OnConnect = func(ctx context.Context, conn *redis.Conn) (err error) {
		if isLastKnown {
			if role, err := conn.Do(ctx, "ROLE").Slice(); len(role) == 0 || role[0] != "master" {
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
	cn.watch = time.AfterFunc(time.Hour, func() { c.watchIdle(cn) })
	cn.watch.Stop() // keepIdle starts the timer
	return cn, nil
}

// keepIdle keeps a connection for the next request. After watchAfter, watchIdle reads from the connection to notice when the server
// closes the connection. At the idle limit the client closes the connection. keepIdle returns false if the connection has no
// deadlines, if there are enough idle connections, or if the client is closed.
func (c *Client) keepIdle(n *node, cn *connection) bool {
	cn.idleEnd = time.Now().Add(c.idleLimit)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open.Err() != nil || len(n.idle) == maxConnections || cn.SetReadDeadline(cn.idleEnd) != nil {
		return false
	}
	cn.watch.Reset(watchAfter)
	n.idle = append(n.idle, cn)
	return true
}

// watchIdle reads from an idle connection until takeIdle takes the connection, the idle limit is over, or the server closes the
// connection.
func (c *Client) watchIdle(cn *connection) {
	_, err := cn.Read(make([]byte, 1))
	isBroken := !errors.Is(err, os.ErrDeadlineExceeded)
	isIntact := !isBroken && time.Now().Before(cn.idleEnd)
	if !isIntact {
		c.discard(cn, isBroken)
	}
	cn.watched <- isIntact
}

// takeIdle returns an idle connection that is intact and was opened after a time. If there is none, takeIdle returns nil. A wait does
// not get the last idle connection, because the renewals need this connection if the server accepts no further connection. watchIdle
// does not read from the returned connection any more.
func (c *Client) takeIdle(n *node, after time.Time, isWait bool) *connection {
	for {
		c.mu.Lock()
		i := slices.IndexFunc(n.idle, func(cn *connection) bool { return cn.opened.After(after) })
		if i < 0 || isWait && len(n.idle) == 1 {
			c.mu.Unlock()
			return nil
		}
		cn := n.idle[i]
		n.idle = slices.Delete(n.idle, i, i+1)
		c.mu.Unlock()
		if cn.watch.Stop() {
			return cn
		}
		_ = cn.SetReadDeadline(past)
		if <-cn.watched {
			return cn
		}
	}
}

// discard closes a connection that is not used again. If the connection broke, the server may have restarted, or another server may
// be the primary now. The restarted server or the new primary may have forgotten tenures. A renewal restores a tenure, so the client
// renews all locks.
func (c *Client) discard(cn *connection, isBroken bool) {
	cn.close()
	if isBroken {
		c.mu.Lock()
		c.isBroken = true
		c.mu.Unlock()
		c.wakeAt(time.Now().Add(20 * time.Millisecond)) // a short delay, because many connections may break together
	}
}

// abandon closes a connection whose request has no reply. First it waits until the server has read the request and closed the
// connection, but not longer than the limit. If the operating system has not sent the request by then, it drops the request.
func (cn *connection) abandon(limit time.Duration) {
	defer cn.close()
	conn := cn.Conn
	if half, ok := conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		_ = conn.SetReadDeadline(time.Now().Add(limit))
		_, _ = io.Copy(io.Discard, conn)
	}
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
}

// dial opens a connection. If no Sentinel answers in time, dial connects to the last known primary, and isLastKnown is true. dial sets
// a time limit, because go-redis' own dialer asks the Sentinels without a time limit.
func (n *node) dial(ctx context.Context) (conn net.Conn, isLastKnown bool, err error) {
	dial := func(dialer func(ctx context.Context, network, addr string) (net.Conn, error), addr string, limit time.Duration) {
		task := func(ctx context.Context) (net.Conn, error) { return dialer(ctx, n.options.Network, addr) }
		conn, err = bounded(ctx, limit, task, net.Conn.Close)
	}
	deadline, _ := ctx.Deadline()
	limit, primary := time.Until(deadline), n.primary.Load()
	hasSentinels := n.options.Addr == "FailoverClient" // go-redis' name for the Sentinels' primary
	asking := limit
	if primary != nil {
		asking = min(lookUpLimit, limit/4)
	} else if hasSentinels { // end before ctx does, so that the error of the call names the Sentinels
		asking = limit * 9 / 10
	}
	dial(n.options.Dialer, n.options.Addr, asking)
	switch {
	case hasSentinels && err == nil:
		n.primary.Store(lastKnown(conn, *n.options))
	case hasSentinels && errors.Is(err, context.DeadlineExceeded): // go-redis does not say why
		err = errors.New("no Sentinel names a primary that answers")
	}
	if isLastKnown = err != nil && primary != nil && ctx.Err() == nil; isLastKnown {
		dial(redis.NewDialer(primary), primary.Addr, limit)
	}
	return conn, isLastKnown, err
}

// lastKnown returns the options for a connection to the same server as conn, without the Sentinels. It returns nil if go-redis cannot
// have opened conn by itself: then the program has a dialer that only go-redis knows.
func lastKnown(conn net.Conn, options redis.Options) *redis.Options {
	options.Addr = conn.RemoteAddr().String()
	secure, isSecure := conn.(*tls.Conn)
	if isSecure && options.TLSConfig != nil {
		options.TLSConfig = options.TLSConfig.Clone()
		options.TLSConfig.ServerName = cmp.Or(secure.ConnectionState().ServerName, options.TLSConfig.ServerName)
		return &options
	}
	if _, isPlain := conn.(*net.TCPConn); isPlain && options.TLSConfig == nil {
		return &options
	}
	return nil
}

// bounded runs a task that may last longer than the limit or ctx. When one of them ends, bounded returns at once. If the task succeeds
// later, bounded passes the value to drop.
func bounded[T any](
	ctx context.Context, limit time.Duration, task func(ctx context.Context) (T, error), drop func(T) error,
) (value T, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	results := make(chan func() (T, error))
	go func() {
		value, err := task(ctx)
		select {
		case results <- func() (T, error) { return value, err }:
		case <-ctx.Done():
			if err == nil && drop != nil {
				_ = drop(value)
			}
		}
	}()
	select {
	case result := <-results:
		return result()
	case <-ctx.Done():
		return value, context.Cause(ctx)
	}
}

// exchange sends commands and reads all replies, until ctx ends. For an error reply of a server, exchange returns nil, because the
// command contains the error.
func (cn *connection) exchange(ctx context.Context, commands []command) (err error) {
	_ = cn.SetDeadline(time.Time{})
	defer context.AfterFunc(ctx, func() {
		if cn.SetDeadline(past) != nil { // a connection over SSH has no deadlines
			_ = cn.Conn.Close()
		}
	})()
	if len(commands) == 1 { // for one command, Process costs less than a pipeline
		err = cn.client.Process(ctx, commands[0])
	} else {
		pipe := cn.client.Pipeline()
		for _, command := range commands {
			_ = pipe.Process(ctx, command)
		}
		_, err = pipe.Exec(ctx)
	}
	if cn.isReady && hasCode(err) { // if isReady is false, the error may be the reply to the login
		return nil
	}
	return err
}
