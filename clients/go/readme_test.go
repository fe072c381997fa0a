package lockward_test

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockward"
)

// program is the one that README.md shows.
func program(ctx context.Context, addr string) error {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	client, err := lockward.New(rdb)
	if err != nil {
		return err
	}
	defer client.Close()

	return client.Do(ctx, "order:42", func(ctx context.Context, lock *lockward.Lock) error {
		// ctx is cancelled when the lock is lost. The server refuses this write if the lock is lost. To write elsewhere, send
		// lock.Token() with each write, so that the store can refuse an old one.
		return lock.Guarded(ctx, "SET", "state:42", "paid").Err()
	})
}

func TestTheProgramInTheReadme(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("README.md")
	check(t, err)
	source, err := os.ReadFile("readme_test.go")
	check(t, err)
	_, shown, _ := strings.Cut(string(readme), "```go\n")
	shown, _, _ = strings.Cut(shown, "```")
	indented := strings.ReplaceAll("\t"+strings.TrimSpace(shown), "\n", "\n\t")
	if !strings.Contains(string(source), strings.ReplaceAll(indented, "\n\t\n", "\n\n")) {
		t.Fatal("README.md shows another program")
	}
	s := startServer(t)
	check(t, program(t.Context(), s.addr))
	if state := s.do("GET", "state:42"); state != "paid" {
		t.Error(state)
	}
	s.checkFree("order:42")
}
