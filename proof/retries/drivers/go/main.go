// Executes the commands from standard input with go-redis: see ../README.md.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/redis/go-redis/v9"
)

type order struct {
	ID      int   `json:"id"`
	Command []any `json:"command"`
}

var writing sync.Mutex

func tell(line map[string]any) {
	writing.Lock()
	defer writing.Unlock()
	if err := json.NewEncoder(os.Stdout).Encode(line); err != nil {
		os.Exit(1)
	}
}

func call(client *redis.Client, order order) {
	reply, err := client.Do(context.Background(), order.Command...).Result()
	told := map[string]any{"id": order.ID}
	var refusal redis.Error
	switch {
	case err == nil || errors.Is(err, redis.Nil):
		told["reply"] = reply
	case errors.As(err, &refusal):
		told["refused"] = err.Error()
	default:
		told["failed"] = err.Error()
	}
	tell(told)
}

func main() {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + os.Args[1]})
	tell(map[string]any{"client": "go-redis", "version": redis.Version()})
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var order order
		if err := json.Unmarshal(lines.Bytes(), &order); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		go call(client, order)
	}
}
