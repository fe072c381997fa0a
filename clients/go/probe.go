package lockward

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// probeAfter is after how many response limits a server where a caller waits is asked whether it still answers. A server
	// process that is stopped keeps its connections.
	probeAfter = 6
	// sentinelAddr is the address that go-redis gives to a server which Sentinels name.
	sentinelAddr = "FailoverClient"
)

// errServerGone is why a wait at a server has ended.
var errServerGone = errors.New("the server does not answer any more, or is not the primary")

// probeWhileWaiting ends a wait on a connection when its server does not answer any more, or is not the primary any more.
func (c *Client) probeWhileWaiting(ctx context.Context, n *node, waiting *connection, end func()) {
	ticker := time.NewTicker(probeAfter * c.responseLimit)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if remote, isConnected := waiting.remote.Load().(string); isConnected && c.isGone(ctx, n.options, remote) {
			end()
			return
		}
	}
}

// isGone returns whether the server at an address does not answer any more, or is not the primary. A reply of any kind is an
// answer. That no second connection can be opened proves nothing: no Sentinel may answer, or the server takes no more clients.
func (c *Client) isGone(ctx context.Context, options *redis.Options, remote string) bool {
	dialCtx, cancel := context.WithTimeout(ctx, c.responseLimit)
	defer cancel()
	for _, addr := range []string{options.Addr, remote} { // a name may lead to another one of several servers
		conn, err := options.Dialer(dialCtx, options.Network, addr)
		var failed *net.OpError
		switch {
		case errors.As(err, &failed):
			return errors.Is(err, syscall.ECONNREFUSED) && failed.Addr != nil && failed.Addr.String() == remote
		case err != nil: // a TLS handshake that is not answered fails only by the deadline
			return options.TLSConfig != nil && options.Addr != sentinelAddr && errors.Is(err, context.DeadlineExceeded)
		}
		defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
		defer conn.Close()
		if conn.RemoteAddr().String() == remote {
			return isSilent(conn, c.responseLimit)
		}
		if options.Addr == sentinelAddr {
			return true
		}
	}
	return false
}

// isSilent returns whether no reply to PING arrives on a connection. It reads twice: this process may have been paused, and
// then the reply is already there when the first deadline has passed.
func isSilent(conn net.Conn, limit time.Duration) bool {
	_, _ = conn.Write([]byte("PING\r\n"))
	for range 2 {
		_ = conn.SetReadDeadline(time.Now().Add(limit / 2))
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			return false
		}
	}
	return true
}
