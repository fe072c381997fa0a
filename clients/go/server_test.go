package lockward_test

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// patience is how long a test waits for a condition.
const patience = 20 * time.Second

// A server is a process of redis-server with the module, in a folder of its own.
type server struct {
	tb      testing.TB
	command string
	args    []string
	addr    string
	log     string
	running *exec.Cmd
}

// startServer starts a server that ends with the test.
func startServer(tb testing.TB, settings ...string) *server {
	tb.Helper()
	module, err := filepath.Abs(cmp.Or(os.Getenv("LOCKWARD_MODULE"), "../../target/release/liblockward.so"))
	if err != nil {
		tb.Fatal(err)
	}
	s := newServer(tb)
	s.args = append(s.args, append([]string{"--save", "", "--loadmodule", module}, settings...)...)
	s.start()
	return s
}

// newServer returns a server that is not started yet. It ends with the test.
func newServer(tb testing.TB) *server {
	port, folder := freePort(), tb.TempDir()
	s := &server{
		log: filepath.Join(folder, "log"),
		tb:  tb, command: cmp.Or(os.Getenv("LOCKWARD_SERVER"), "redis-server"), addr: "127.0.0.1:" + port,
		args: []string{"--port", port, "--bind", "127.0.0.1", "--dir", folder},
	}
	tb.Cleanup(s.kill)
	return s
}

// do sends a command.
func (s *server) do(args ...any) any {
	s.tb.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: s.addr})
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

// start starts the server, and returns when it answers.
func (s *server) start() {
	s.tb.Helper()
	log, err := os.Create(s.log)
	if err != nil {
		s.tb.Fatal(err)
	}
	defer log.Close()
	s.running = exec.Command(s.command, s.args...)
	s.running.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // also when the tests panic
	s.running.Stdout = log
	if err := s.running.Start(); err != nil {
		s.tb.Fatal(err)
	}
	for end := time.Now().Add(patience); !s.answers(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			s.kill()
			log, _ := os.ReadFile(s.log)
			s.tb.Fatalf("the server does not start:\n%s", log)
		}
	}
}

// answers returns whether the server replies to PING, and so has loaded its data.
func (s *server) answers() bool {
	conn, err := net.DialTimeout("tcp", s.addr, time.Second)
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	_, _ = conn.Write([]byte("PING\r\n"))
	reply := make([]byte, 7)
	_, err = io.ReadFull(conn, reply)
	return err == nil && string(reply) == "+PONG\r\n"
}

// kill ends the server like a crash.
func (s *server) kill() {
	if s.running != nil {
		_ = s.running.Process.Kill()
		_ = s.running.Wait()
		s.running = nil
	}
}

// pause stops the server process. Its connections stay open.
func (s *server) pause() { s.signal(syscall.SIGSTOP) }

// resume continues the process.
func (s *server) resume() { s.signal(syscall.SIGCONT) }

func (s *server) signal(signal os.Signal) {
	s.tb.Helper()
	if err := s.running.Process.Signal(signal); err != nil {
		s.tb.Fatal(err)
	}
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

// info returns the holders of a lock, and how many wait for it.
func (s *server) info(key string) (holders []holder, waiters int64) {
	s.tb.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: s.addr, Protocol: 3})
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

// waiter is the id of the first waiter's connection, or nil.
func (s *server) waiter(key string) any {
	s.tb.Helper()
	queue := s.do("LOCK.INFO", key, "WAITERS", 1).(map[any]any)["queue"].([]any)
	if len(queue) == 0 {
		return nil
	}
	return queue[0].(map[any]any)["client-id"]
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

// freePort returns a port below the system's ephemeral ports. A cluster node also uses the port 10,000 above it.
func freePort() string {
	for {
		port := strconv.Itoa(10_000 + rand.IntN(12_000))
		if listener, err := net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			_ = listener.Close()
			return port
		}
	}
}
