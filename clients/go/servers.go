package lockward

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const (
	// spare is how many connections to each node are in use at a time but for those that wait for a lock or for replicas, and
	// how many stand by.
	spare = 16
	// silence is after how many response limits a server where somebody waits is asked whether it is there: one that stands
	// still keeps its connections.
	silence = 6
	// bySentinels is the address that go-redis gives a server that Sentinels tell of.
	bySentinels = "FailoverClient"
)

// A line is one connection, used by one request at a time. go-redis does not end a read when the context ends, so each
// is a client of its own that is closed under whoever reads.
type line struct {
	client *redis.Client
	conn   *redis.Conn
	remote atomic.Value // string
}

// A node is a server, or what leads to the one that is the primary now.
type node struct {
	options *redis.Options
	busy    chan struct{} // as many as may be in use
	idle    []*line       // under Client.mu
}

// A command is its name and arguments.
type command []any

// An answer is what a server has replied to some commands.
type answer struct {
	sent     time.Time
	replies  []*redis.Cmd
	repeated bool // an earlier request, whose reply is lost, may have been carried out
}

// said is the error that the server has answered to the first command.
func (a *answer) said() *ServerError { return said(a.replies[0].Err()) }

// ask sends commands to the node that has the key, until a server answers or the context ends, or there was none for as
// long as the patience. limit is how long a reply may take, from when it is asked for; 0: any time, as it waits. The
// answer tells whether a request was sent, also with an error.
func (c *Client) ask(
	ctx context.Context, key string, patience time.Duration, limit time.Duration, commands func(sent time.Time) []command,
) (*answer, error) {
	var failing time.Time // since when
	var to redirect
	leaps, failures, repeated := 0, 0, false
	for {
		sent := time.Now()
		replies, err := c.attempt(ctx, key, to, limit, commands(sent))
		if err == nil {
			refusal := said(replies[0].Err())
			if to = redirected(refusal); to.addr != "" && leaps < 5 {
				c.reload()
				leaps++
				continue
			}
			if to.addr == "" && (refusal == nil || !refusal.passes()) {
				return &answer{sent, replies, repeated}, nil
			}
			err = refusal
		} else {
			if refusal := said(err); refusal != nil && !refusal.passes() { // it does not let this client in
				return &answer{repeated: repeated}, refusal
			}
			to = redirect{}
			repeated = repeated || !errors.As(err, new(unsent))
		}
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return &answer{repeated: repeated}, fmt.Errorf("%w: %w (%w)", ErrUnreachable, ctx.Err(), err)
		}
		if ctx.Err() != nil {
			return &answer{repeated: repeated}, ended(ctx)
		}
		waited := limit == 0 && time.Since(sent) > c.responseLimit*2 && !errors.Is(err, errSilent)
		if waited || failing.IsZero() {
			failing, failures = time.Now(), 0
		}
		leaps = 0
		pause := backOff(failures)
		failures++
		if time.Since(failing)+pause > patience {
			return &answer{repeated: repeated}, fmt.Errorf("%w: %w", ErrUnreachable, err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// backOff is how long to wait before the next attempt: not at all at first, since the connection may have been cut while it
// was idle; then 50 ms, doubling to a second, with jitter.
func backOff(failures int) time.Duration {
	if failures == 0 {
		return 0
	}
	longest := min(time.Second, 25*time.Millisecond<<min(failures, 6))
	return longest/2 + rand.N(longest/2)
}

// attempt sends commands once. It fails if a reply is missing.
func (c *Client) attempt(
	caller context.Context, key string, to redirect, limit time.Duration, commands []command,
) ([]*redis.Cmd, error) {
	prompt, done := context.WithTimeout(caller, c.responseLimit)
	defer done()
	at, err := c.home(prompt, key, to)
	if err != nil {
		return nil, unsent{err}
	}
	if 0 < limit && limit <= c.responseLimit { // who waits for replicas must not keep others from renewing
		select {
		case at.busy <- struct{}{}:
			defer func() { <-at.busy }()
		case <-caller.Done():
			return nil, unsent{ended(caller)}
		}
	}
	ctx, cancel := context.WithCancelCause(caller)
	defer cancel(nil)
	used := c.take(at)
	if limit > 0 {
		defer time.AfterFunc(limit, func() { cancel(nil) }).Stop()
	} else {
		c.working.Add(1) // Close waits for that, no grant does
		go func() { defer c.working.Done(); c.listen(ctx, at, used, func() { cancel(errSilent) }) }()
	}
	replies, err := used.exchange(ctx, to.asking, commands)
	if err != nil && context.Cause(ctx) == errSilent {
		err = errSilent
	}
	failed := err != nil || said(replies[0].Err()).passes()
	switch {
	case failed && caller.Err() == nil:
		used.close() // a new connection may lead to another server
		c.broken(at)
	case failed || ctx.Err() != nil:
		used.close()
	default:
		c.put(at, used)
	}
	if err != nil && used.remote.Load() == nil {
		err = unsent{err}
	}
	return replies, err
}

// errSilent is why nobody waits any longer at a server that does not answer.
var errSilent = errors.New("the server does not answer any more, or is not the primary")

// unsent is why a request was not even sent.
type unsent struct{ error }

func (e unsent) Unwrap() error { return e.error }

// listen ends a wait on a connection when its server does not answer any more, or another one has taken its place.
func (c *Client) listen(ctx context.Context, at *node, waiting *line, end func()) {
	every := time.NewTicker(silence * c.responseLimit)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
		if remote, connected := waiting.remote.Load().(string); connected && c.gone(ctx, at.options, remote) {
			end()
			return
		}
	}
}

// gone tells whether the server at an address does not answer any more, or is not the primary. That no other connection can be
// made does not: no Sentinel may answer, or the server take no more clients. Whatever it replies, it is there.
func (c *Client) gone(ctx context.Context, options *redis.Options, remote string) bool {
	prompt, cancel := context.WithTimeout(ctx, c.responseLimit)
	defer cancel()
	for _, addr := range []string{options.Addr, remote} { // a name may lead to another server of several
		conn, err := options.Dialer(prompt, options.Network, addr)
		var failed *net.OpError
		switch {
		case errors.As(err, &failed):
			return errors.Is(err, syscall.ECONNREFUSED) && failed.Addr != nil && failed.Addr.String() == remote
		case err != nil: // TLS that is not answered fails by the time alone
			return options.TLSConfig != nil && options.Addr != bySentinels && errors.Is(err, context.DeadlineExceeded)
		}
		defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
		defer conn.Close()
		if conn.RemoteAddr().String() == remote {
			return silent(conn, c.responseLimit)
		}
		if options.Addr == bySentinels {
			return true
		}
	}
	return false
}

// silent tells whether nothing is replied on a connection. A process that stood still reads what has come meanwhile.
func silent(conn net.Conn, limit time.Duration) bool {
	_, _ = conn.Write([]byte("PING\r\n"))
	for range 2 {
		_ = conn.SetReadDeadline(time.Now().Add(limit / 2))
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			return false
		}
	}
	return true
}

// home is the node that has a key.
func (c *Client) home(ctx context.Context, key string, to redirect) (*node, error) {
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
		addr = to.from(addr)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.nodes[addr]
	if at == nil {
		at = &node{options: c.options(theirs, addr), busy: make(chan struct{}, spare)}
		c.nodes[addr] = at
	}
	return at, nil
}

// options are those of a connection of ours, which leads to where theirs do.
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
		DialerRetryTimeout:           1,  // after the last one, too
		ReadTimeout:                  -1, // each request has a limit of its own
		WriteTimeout:                 -1,
		MaxRetries:                   -1, // who repeats a request has to know of it
		PoolSize:                     2,  // of which one is used: where all have failed, go-redis dials on by itself
		MaintNotificationsConfig:     &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// take is a connection to a node.
func (c *Client) take(at *node) *line {
	c.mu.Lock()
	defer c.mu.Unlock()
	if last := len(at.idle) - 1; last >= 0 {
		used := at.idle[last]
		at.idle = at.idle[:last]
		return used
	}
	return dial(at.options)
}

// put keeps a connection for whoever needs one next.
func (c *Client) put(at *node, used *line) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(at.idle) < spare && !c.closed {
		at.idle = append(at.idle, used)
	} else {
		used.close()
	}
}

// broken lets go of the other connections to a node where one has failed, and has all locks renewed: a server that has
// forgotten tenures takes them from who claims them first.
func (c *Client) broken(at *node) {
	c.mu.Lock()
	idle := at.idle
	at.idle = nil
	c.mu.Unlock()
	for _, used := range idle {
		used.close()
	}
	c.reload()
	c.hurry()
}

// reload has rdb ask, in the background, which node of a cluster has which slots.
func (c *Client) reload() {
	if rdb, ok := c.rdb.(*redis.ClusterClient); ok {
		rdb.ReloadState(context.Background())
	}
}

// dial is a connection, made when it is first used.
func dial(options *redis.Options) *line {
	l := new(line)
	own := *options
	own.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := options.Dialer(ctx, network, addr)
		if err == nil {
			l.remote.Store(conn.RemoteAddr().String())
			keepAlive(conn, options.DialTimeout)
		}
		return conn, err
	}
	l.client = redis.NewClient(&own)
	l.conn = l.client.Conn()
	return l
}

// keepAlive has the system tell when a server's host is gone, which closes no connection.
func keepAlive(conn net.Conn, limit time.Duration) {
	if secured, ok := conn.(*tls.Conn); ok {
		conn = secured.NetConn()
	}
	if plain, ok := conn.(*net.TCPConn); ok {
		_ = plain.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: silence * limit, Interval: limit, Count: 3})
	}
}

// exchange sends commands and reads their replies. It fails if one is missing, and closes the connection when the context
// ends.
func (l *line) exchange(ctx context.Context, asking bool, commands []command) ([]*redis.Cmd, error) {
	stop := context.AfterFunc(ctx, l.close)
	defer stop()
	replies := make([]*redis.Cmd, 0, len(commands))
	_, err := l.conn.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, command := range commands {
			if asking {
				pipe.Do(ctx, "ASKING")
			}
			replies = append(replies, pipe.Do(ctx, command...))
		}
		return nil
	})
	for _, reply := range replies {
		switch own := reply.Err(); {
		case own == nil && reply.Val() == nil: // it was not even asked for
			return nil, cmp.Or(err, io.ErrUnexpectedEOF)
		case own != nil && said(own) == nil && !errors.Is(own, redis.Nil):
			return nil, own
		}
	}
	return replies, nil
}

// close closes the connection, also under whoever reads from it.
func (l *line) close() { _ = l.client.Close() }

// A redirect is the node of a cluster that has a key, or (asking) that is about to.
type redirect struct {
	addr   string
	asking bool
}

// redirected is where the server says that the key is, as in MOVED 3999 127.0.0.1:6381.
func redirected(refusal *ServerError) redirect {
	if refusal == nil || refusal.Code != "MOVED" && refusal.Code != "ASK" {
		return redirect{}
	}
	_, addr, _ := strings.Cut(refusal.Message, " ")
	return redirect{addr, refusal.Code == "ASK"}
}

// from is the whole address, as told by a node that may not know its own host. One by IPv6 is told without brackets.
func (r redirect) from(asked string) string {
	colon := strings.LastIndexByte(r.addr, ':')
	host, port := strings.Trim(r.addr[:max(colon, 0)], "[]"), r.addr[colon+1:]
	if host == "" || host == "?" {
		host, _, _ = net.SplitHostPort(asked)
	}
	return net.JoinHostPort(host, port)
}
