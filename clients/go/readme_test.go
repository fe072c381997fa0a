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
func program(ctx context.Context, addr string, write func(context.Context, string, int64) error) error {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	client, err := lockward.New(rdb)
	if err != nil {
		return err
	}
	defer client.Close()

	return client.Do(ctx, "order:42", func(ctx context.Context, lock *lockward.Lock) error {
		// ctx is cancelled when the lock is lost. Send the token with each write, so that the store can refuse an old one.
		return write(ctx, "order:42", lock.Token())
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
	check(t, program(t.Context(), s.addr, func(_ context.Context, key string, token int64) error {
		if holders, _ := s.info(key); len(holders) != 1 || holders[0].token != token {
			t.Error(holders)
		}
		return nil
	}))
	s.checkFree("order:42")
}
