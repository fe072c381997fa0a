// The lock of etcd.

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
	connect:  connectEtcd,
}

type etcdClient struct {
	etcd    *clientv3.Client
	session *concurrency.Session
	mutex   *concurrency.Mutex
}

func connectEtcd(ctx context.Context, address string, lock int64, _ share) (client, error) {
	etcd, err := clientv3.New(clientv3.Config{
		Endpoints:   []string{address},
		DialTimeout: 5 * time.Second,
		// Without this logger, etcd's client logs each wait that the end of the job cancels.
		Logger: zap.NewNop(),
	})
	if err != nil {
		return nil, err
	}
	session, err := concurrency.NewSession(etcd)
	if err != nil {
		return nil, err
	}
	return &etcdClient{etcd, session, concurrency.NewMutex(session, fmt.Sprintf("/lock/%d", lock))}, nil
}

func (c *etcdClient) acquire(ctx context.Context) error {
	return c.mutex.Lock(ctx)
}

func (c *etcdClient) release(ctx context.Context) error {
	return c.mutex.Unlock(ctx)
}

func (c *etcdClient) close() {
	c.session.Close()
	c.etcd.Close()
}
