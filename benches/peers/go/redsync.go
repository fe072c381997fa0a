package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

var redsyncPeer = peer{
	modules: [][2]string{
		{"redsync", "github.com/go-redsync/redsync/v4"},
		{"go-redis", "github.com/redis/go-redis/v9"},
	},
	defaults: "lease 8 s, not renewed; 32 tries 50 to 250 ms apart, and then a new call",
	connect: func(ctx context.Context, address string, lock int64, _ string, _ int) (client, error) {
		connection := redis.NewClient(&redis.Options{Addr: address})
		mutex := redsync.New(goredis.NewPool(connection)).NewMutex(fmt.Sprintf("lock:%d", lock))
		return client{
			acquire: func(ctx context.Context) error {
				err := mutex.LockContext(ctx)
				var taken *redsync.ErrTaken
				if errors.As(err, &taken) && ctx.Err() == nil {
					return errGaveUp
				}
				return err
			},
			release: func(ctx context.Context) error {
				released, err := mutex.UnlockContext(ctx)
				if err == nil && !released {
					return errors.New("the client no longer holds the lock")
				}
				return err
			},
		}, connection.Ping(ctx).Err()
	},
}
