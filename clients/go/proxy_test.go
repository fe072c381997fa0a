package lockward_test

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A fate is what the proxy does with a request.
type fate int

const (
	delivered fate = iota
	requestLost
	replyLost
)

// A proxy forwards requests to a server, or loses a request or its reply. Then it closes the connection.
type proxy struct {
	addr     string
	decide   func(request string) fate
	delay    atomic.Int64 // of replies, in nanoseconds
	listener net.Listener
	running  sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

func startProxy(tb testing.TB, server string, decide func(request string) fate) *proxy {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &proxy{
		addr: listener.Addr().String(), decide: decide, listener: listener, conns: make(map[net.Conn]struct{}),
	}
	p.running.Add(1)
	go func() {
		defer p.running.Done()
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			p.running.Add(1)
			go p.serve(conn, server)
		}
	}()
	tb.Cleanup(func() {
		_ = listener.Close()
		p.cut()
		p.running.Wait()
	})
	return p
}

func (p *proxy) serve(client net.Conn, addr string) {
	defer p.running.Done()
	defer client.Close()
	server, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	defer server.Close()
	p.mu.Lock()
	p.conns[client] = struct{}{}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.conns, client)
		p.mu.Unlock()
	}()
	var swallow atomic.Bool
	p.running.Add(1)
	go func() {
		defer p.running.Done()
		defer client.Close()
		buffer := make([]byte, 65536)
		for {
			n, err := server.Read(buffer)
			if err != nil || swallow.Load() {
				return
			}
			time.Sleep(time.Duration(p.delay.Load()))
			if _, err := client.Write(buffer[:n]); err != nil {
				return
			}
		}
	}()
	buffer := make([]byte, 65536)
	for {
		n, err := client.Read(buffer)
		if err != nil {
			return
		}
		switch p.decide(string(buffer[:n])) {
		case requestLost:
			return
		case replyLost:
			swallow.Store(true)
		case delivered:
		}
		if _, err := server.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// cut closes all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		_ = conn.Close()
	}
}
