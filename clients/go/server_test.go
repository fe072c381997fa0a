package lockward_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// patience is how long a test waits for a condition.
const patience = 20 * time.Second

// A process runs the program of tests/src/bin/lockward-test-server.rs, which describes its protocol.
type process struct {
	tb    testing.TB
	input io.Writer
	facts struct {
		Port  int
		Ports []int
	}
	mu     sync.Mutex
	output *json.Decoder
}

// startProcess starts a process that ends with the test.
func startProcess(tb testing.TB, args ...string) *process {
	tb.Helper()
	p := &process{tb: tb}
	running := exec.Command("../../target/release/lockward-test-server", args...)
	running.Stderr = os.Stderr
	input, err := running.StdinPipe()
	check(tb, err)
	output, err := running.StdoutPipe()
	check(tb, err)
	check(tb, running.Start())
	p.input, p.output = input, json.NewDecoder(output)
	tb.Cleanup(func() {
		_ = input.Close()
		if err := running.Wait(); err != nil {
			tb.Error("the server has crashed: ", err)
		}
	})
	check(tb, p.output.Decode(&p.facts))
	return p
}

// ask sends a line, and decodes the answer into reply.
func (p *process) ask(line string, reply any) {
	p.tb.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err := fmt.Fprintln(p.input, line)
	check(p.tb, err)
	check(p.tb, p.output.Decode(reply))
}

// tell sends a line whose answer is empty.
func (p *process) tell(line string) {
	p.tb.Helper()
	p.ask(line, &struct{}{})
}

// A server is a process of redis-server with the module, or a node of a cluster.
type server struct {
	*process
	node string // the prefix of the commands to this server
	addr string
}

// startServer starts a server that ends with the test. A setting is a line of redis.conf.
func startServer(tb testing.TB, settings ...string) *server {
	tb.Helper()
	p := startProcess(tb, append([]string{"server"}, settings...)...)
	return &server{process: p, addr: address(p.facts.Port)}
}

// startSentinel starts a Sentinel that ends with the test.
func startSentinel(tb testing.TB) *server {
	tb.Helper()
	p := startProcess(tb, "sentinel")
	return &server{process: p, addr: address(p.facts.Port)}
}

func address(port int) string { return fmt.Sprint("127.0.0.1:", port) }

// pause stops the server process, and resume continues it. The connections of the process stay open.
func (s *server) pause()  { s.tb.Helper(); s.tell(s.node + "pause") }
func (s *server) resume() { s.tb.Helper(); s.tell(s.node + "resume") }

// connect returns a client for one command.
func (s *server) connect() *redis.Client {
	return redis.NewClient(&redis.Options{Addr: s.addr, DialTimeout: patience, ReadTimeout: patience})
}

// do sends a command.
func (s *server) do(args ...any) any {
	s.tb.Helper()
	rdb := s.connect()
	defer rdb.Close()
	reply, err := rdb.Do(context.Background(), args...).Result()
	if err != nil && err != redis.Nil {
		s.tb.Fatal(args, err)
	}
	return reply
}

// calls is how often a command was called since the server started.
func (s *server) calls(command string) int {
	s.tb.Helper()
	for line := range strings.Lines(s.do("INFO", "commandstats").(string)) {
		if stats, found := strings.CutPrefix(line, "cmdstat_"+command+":calls="); found {
			count, _, _ := strings.Cut(stats, ",")
			calls, _ := strconv.Atoi(count)
			return calls
		}
	}
	return 0
}

// client is a client of go-redis with default options.
func (s *server) client() *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: s.addr})
	s.tb.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// A holder is an element of LOCK.INFO's reply.
type holder struct {
	owner        string
	token, holds int64
}

// info returns the holders of a lock, and how many clients wait for the lock.
func (s *server) info(key string) (holders []holder, waiters int64) {
	s.tb.Helper()
	rdb := s.connect()
	defer rdb.Close()
	reply, err := rdb.Do(context.Background(), "LOCK.INFO", key).Result()
	if err == redis.Nil {
		return nil, 0
	}
	if err != nil {
		s.tb.Fatal(err)
	}
	lock := reply.(map[any]any)
	for _, h := range lock["holders"].([]any) {
		h := h.(map[any]any)
		holders = append(holders, holder{h["owner"].(string), h["token"].(int64), h["holds"].(int64)})
	}
	return holders, lock["waiters"].(int64)
}

// waitFor waits for a number of waiters.
func (s *server) waitFor(key string, count int64) {
	s.tb.Helper()
	eventually(s.tb, fmt.Sprintf("%d waiters", count), func() bool {
		_, waiters := s.info(key)
		return waiters == count
	})
}

// checkFree checks that no owner holds a lock.
func (s *server) checkFree(key string) {
	s.tb.Helper()
	if holders, _ := s.info(key); holders != nil {
		s.tb.Fatal(key, "is held: ", holders)
	}
}

// waitUntilFree waits until no owner holds a lock.
func (s *server) waitUntilFree(key string) {
	s.tb.Helper()
	eventually(s.tb, key+" is free", func() bool { holders, _ := s.info(key); return holders == nil })
}

// eventually waits for a condition.
func eventually(tb testing.TB, what string, holds func() bool) {
	tb.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatalf("never: %s", what)
		}
	}
}

// receive waits for a value from a channel.
func receive[T any](tb testing.TB, what string, from <-chan T) T {
	tb.Helper()
	select {
	case value := <-from:
		return value
	case <-time.After(patience):
		tb.Fatalf("never: %s", what)
		panic("unreachable")
	}
}
