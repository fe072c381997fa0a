package redsync

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4/redis"
	goredis "github.com/redis/go-redis/v9"
	_ "golang.org/x/sync/errgroup" // redsync's tests import it

	"github.com/lockward/lockward-go"
)

var server *goredis.Client

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// run runs the tests on a new server.
func run(m *testing.M) (code int, err error) {
	running := exec.Command("../../../target/release/lockward-test-server", "server")
	running.Stderr = os.Stderr
	input, err := running.StdinPipe() // the server ends when its input is closed
	if err != nil {
		return 0, err
	}
	output, err := running.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := running.Start(); err != nil {
		return 0, err
	}
	defer func() {
		_ = input.Close()
		err = cmp.Or(err, running.Wait())
	}()
	var facts struct{ Port int }
	if err := json.NewDecoder(output).Decode(&facts); err != nil {
		return 0, err
	}
	server = goredis.NewClient(&goredis.Options{Addr: fmt.Sprint("127.0.0.1:", facts.Port)})
	defer server.Close()
	if client, err = lockward.New(server); err != nil {
		return 0, err
	}
	defer client.Close()
	return m.Run(), nil
}

type testCase struct {
	poolCount int
	pools     []redis.Pool
}

// makeCases returns one case. It has one server, whatever count is.
func makeCases(count int) map[string]*testCase {
	return map[string]*testCase{"lockward": {count, []redis.Pool{pool{}}}}
}

// A pool lets the tests read from the server.
type pool struct{}

func (pool) Get(context.Context) (redis.Conn, error) { return conn{}, nil }

type conn struct{ redis.Conn }

func (conn) Close() error { return nil }

// Get returns the owner of a lock.
func (conn) Get(name string) (string, error) {
	lock, err := server.Do(context.Background(), "LOCK.INFO", name).Result()
	if err == goredis.Nil {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	holder := lock.(map[any]any)["holders"].([]any)[0].(map[any]any)
	return holder["owner"].(string), nil
}

func (conn) Set(name, value string) (bool, error) {
	return true, server.Set(context.Background(), name, value, 0).Err()
}

func (conn) PTTL(name string) (time.Duration, error) {
	return server.PTTL(context.Background(), name).Result()
}
