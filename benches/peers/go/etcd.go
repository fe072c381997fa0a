package main

import (
	"context"
	"fmt"
	"time"

	"go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

var etcdPeer = peer{
	modules:  [][2]string{{"etcd/client", "go.etcd.io/etcd/client/v3"}},
	defaults: "a session for each client; lease 60 s, renewed",
	connect: func(_ context.Context, address string, lock int64, _ string, _ int) (client, error) {
		etcd, err := clientv3.New(clientv3.Config{
			Endpoints:   []string{address},
			DialTimeout: 5 * time.Second,
			// Without this logger, etcd's client logs each wait that the end of the job cancels.
			Logger: zap.NewNop(),
		})
		if err != nil {
			return client{}, err
		}
		session, err := concurrency.NewSession(etcd)
		if err != nil {
			return client{}, err
		}
		mutex := concurrency.NewMutex(session, fmt.Sprintf("/lock/%d", lock))
		return client{mutex.Lock, mutex.Unlock}, nil
	},
}
