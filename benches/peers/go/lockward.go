package main

import (
	"context"
	"fmt"

	"github.com/lockward/lockward-go"
	"github.com/redis/go-redis/v9"
)

var lockwardPeer = peer{
	modules: [][2]string{
		{"lockward", "github.com/lockward/lockward-go"},
		{"go-redis", "github.com/redis/go-redis/v9"},
	},
	defaults: "a redis.Client and a lockward.Client for each client; lease 30 s, renewed",
	connect: func(ctx context.Context, address string, lock int64, job string, index int) (client, error) {
		connection := redis.NewClient(&redis.Options{Addr: address})
		ours, err := lockward.New(connection)
		if err != nil {
			return client{}, err
		}
		var options []lockward.AcquireOption
		switch {
		case job == "readers" && index%10 != 0: // one of 10 clients writes
			options = append(options, lockward.Shared())
		case job == "permits":
			options = append(options, lockward.Slots(10))
		case job == "weights":
			options = append(options, lockward.Slots(10), lockward.Weight(index%3+1))
		}
		key := fmt.Sprintf("lock:%d", lock)
		var held *lockward.Lock
		return client{
			acquire: func(ctx context.Context) (err error) {
				held, err = ours.Acquire(ctx, key, options...)
				return err
			},
			release: func(ctx context.Context) error { return held.Release(ctx) },
		}, connection.Ping(ctx).Err()
	},
}
