package lockward

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// maxConnections is how many connections to each node may be in use at a time, not counting those that wait for a lock or for
// replicas. As many may be idle.
const maxConnections = 16

// A connection is used by one request at a time. go-redis does not end a read when the context ends, so each connection is a
// client of its own, which can be closed while a read is under way.
type connection struct {
	client *redis.Client
	conn   *redis.Conn
	remote atomic.Value // string: the address, once connected
}

// A node is a server, or what leads to the one that is the primary now.
type node struct {
	options *redis.Options
	permits chan struct{} // one for each connection in use
	idle    []*connection // guarded by Client.mu
}

// nodeFor is the node that has a key.
func (c *Client) nodeFor(ctx context.Context, key string, to redirect) (*node, error) {
	var theirs *redis.Options
	switch rdb := c.rdb.(type) {
	case *redis.Client:
		theirs = rdb.Options()
	case *redis.ClusterClient:
		master, err := rdb.MasterForKey(ctx, key)
		if err != nil {
			return nil, err
		}
		theirs = master.Options()
	}
	addr := theirs.Addr
	if to.addr != "" {
		addr = to.resolve(addr)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes[addr]
	if n == nil {
		n = &node{options: c.options(theirs, addr), permits: make(chan struct{}, maxConnections)}
		c.nodes[addr] = n
	}
	return n, nil
}

// options are the options for the client's own connections, made from those of rdb.
func (c *Client) options(theirs *redis.Options, addr string) *redis.Options {
	return &redis.Options{
		Network:                      theirs.Network,
		Addr:                         addr,
		ClientName:                   theirs.ClientName,
		Dialer:                       theirs.Dialer,
		OnConnect:                    theirs.OnConnect,
		Protocol:                     2,
		Username:                     theirs.Username,
		Password:                     theirs.Password,
		CredentialsProvider:          theirs.CredentialsProvider,
		CredentialsProviderContext:   theirs.CredentialsProviderContext,
		StreamingCredentialsProvider: theirs.StreamingCredentialsProvider,
		DB:                           theirs.DB,
		TLSConfig:                    theirs.TLSConfig,
		DisableIdentity:              theirs.DisableIdentity,
		IdentitySuffix:               theirs.IdentitySuffix,
		DialTimeout:                  c.responseLimit,
		DialerRetries:                1,
		DialerRetryTimeout:           1,  // go-redis waits for it after the last attempt, too
		ReadTimeout:                  -1, // each request has a limit of its own
		WriteTimeout:                 -1,
		MaxRetries:                   -1, // ask has to know when a request is repeated
		PoolSize:                     2,  // one is used; if all connections of a pool have failed, go-redis keeps dialing
		MaintNotificationsConfig:     &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// connection returns an idle connection to a node, or a new one.
func (c *Client) connection(n *node) *connection {
	c.mu.Lock()
	defer c.mu.Unlock()
	if last := len(n.idle) - 1; last >= 0 {
		conn := n.idle[last]
		n.idle = n.idle[:last]
		return conn
	}
	return newConnection(n.options)
}

// keepIdle keeps a connection for the next request.
func (c *Client) keepIdle(n *node, conn *connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(n.idle) < maxConnections && !c.closed {
		n.idle = append(n.idle, conn)
	} else {
		conn.close()
	}
}

// connectionLost closes the idle connections to a node, after one to it has failed, and renews all locks: a server that has
// forgotten a tenure restores it for the first owner that claims it.
func (c *Client) connectionLost(n *node) {
	c.mu.Lock()
	idle := n.idle
	n.idle = nil
	c.mu.Unlock()
	for _, conn := range idle {
		conn.close()
	}
	c.reload()
	c.renewAllNow()
}

// reload lets rdb ask in the background which node of a cluster has which slots.
func (c *Client) reload() {
	if rdb, ok := c.rdb.(*redis.ClusterClient); ok {
		rdb.ReloadState(context.Background())
	}
}

// newConnection returns a connection that is opened when it is first used.
func newConnection(options *redis.Options) *connection {
	c := new(connection)
	own := *options
	own.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := options.Dialer(ctx, network, addr)
		if err == nil {
			c.remote.Store(conn.RemoteAddr().String())
			keepAlive(conn, options.DialTimeout)
		}
		return conn, err
	}
	c.client = redis.NewClient(&own)
	c.conn = c.client.Conn()
	return c
}

// keepAlive lets the system find out when a server's host is gone, which closes no connection.
func keepAlive(conn net.Conn, limit time.Duration) {
	if secured, ok := conn.(*tls.Conn); ok {
		conn = secured.NetConn()
	}
	if plain, ok := conn.(*net.TCPConn); ok {
		_ = plain.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: probeAfter * limit, Interval: limit, Count: 3})
	}
}

// exchange sends commands and reads their replies. It fails if one is missing, and closes the connection when the context
// ends.
func (c *connection) exchange(ctx context.Context, isAsk bool, commands []command) ([]*redis.Cmd, error) {
	stop := context.AfterFunc(ctx, c.close)
	defer stop()
	replies := make([]*redis.Cmd, 0, len(commands))
	_, err := c.conn.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, command := range commands {
			if isAsk {
				pipe.Do(ctx, "ASKING")
			}
			replies = append(replies, pipe.Do(ctx, command...))
		}
		return nil
	})
	for _, reply := range replies {
		switch own := reply.Err(); {
		case own == nil && reply.Val() == nil: // go-redis did not send it
			return nil, cmp.Or(err, io.ErrUnexpectedEOF)
		case own != nil && serverError(own) == nil && !errors.Is(own, redis.Nil):
			return nil, own
		}
	}
	return replies, nil
}

// close closes the connection, also while a read is under way.
func (c *connection) close() { _ = c.client.Close() }
