// Lockward's Go client.

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
	isShared: true,
	connect:  connectLockward,
}

type lockwardClient struct {
	redis    *redis.Client
	lockward *lockward.Client
	key      string
	options  []lockward.AcquireOption
	held     *lockward.Lock
}

func connectLockward(ctx context.Context, address string, lock int64, share share) (client, error) {
	connection := redis.NewClient(&redis.Options{Addr: address})
	ours, err := lockward.New(connection)
	if err != nil {
		return nil, err
	}
	c := &lockwardClient{redis: connection, lockward: ours, key: fmt.Sprintf("lock:%d", lock)}
	switch {
	case share.isReader:
		c.options = []lockward.AcquireOption{lockward.Shared()}
	case share.permits > 0:
		c.options = []lockward.AcquireOption{lockward.Slots(semaphore), lockward.Weight(share.permits)}
	}
	return c, connection.Ping(ctx).Err()
}

func (c *lockwardClient) acquire(ctx context.Context) (err error) {
	c.held, err = c.lockward.Acquire(ctx, c.key, c.options...)
	return err
}

func (c *lockwardClient) release(ctx context.Context) error {
	return c.held.Release(ctx)
}

func (c *lockwardClient) close() {
	c.lockward.Close()
	c.redis.Close()
}
