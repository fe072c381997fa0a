package lockward_test

import (
	"fmt"
	"net"
	"testing"
	"time"
)

// A proxy forwards requests to a server, or loses a request or its reply. Then it closes the connection.
type proxy struct {
	*process
	addr string
}

func startProxy(tb testing.TB, s *server) *proxy {
	tb.Helper()
	_, port, _ := net.SplitHostPort(s.addr)
	p := startProcess(tb, "proxy", port)
	return &proxy{p, address(p.facts.Port)}
}

// plan sets what is lost from now on.
func (p *proxy) plan(steps string) { p.tb.Helper(); p.tell("plan " + steps) }

// delay delays replies from now on.
func (p *proxy) delay(d time.Duration) { p.tb.Helper(); p.tell(fmt.Sprint("delay ", d.Milliseconds())) }

// cut closes all connections.
func (p *proxy) cut() { p.tb.Helper(); p.tell("cut") }

// lost returns how many requests and replies have been lost.
func (p *proxy) lost() int {
	p.tb.Helper()
	var losses struct{ Requests, Replies int }
	p.ask("losses", &losses)
	return losses.Requests + losses.Replies
}
