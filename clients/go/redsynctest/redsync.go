// Package redsync has the part of redsync's interface that redsync's own tests need, implemented with Lockward's client on one
// server.
//
// The package is for these tests only. README.md explains how to run the tests, and which parts of redsync have no
// counterpart.
package redsync

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-redsync/redsync/v4/redis"

	"github.com/lockward/lockward-go"
)

// client is set by the tests.
var client *lockward.Client

// byValue maps redsync's value to a lock, so that another Mutex of this process finds the lock.
var byValue sync.Map

// ErrTaken is returned when another owner holds the lock.
type ErrTaken struct{ Nodes []int }

func (e *ErrTaken) Error() string { return fmt.Sprint("taken on nodes ", e.Nodes) }

// ErrNodeTaken is redsync's error for one of several servers.
type ErrNodeTaken struct{ Node int }

func (e *ErrNodeTaken) Error() string { return fmt.Sprint("taken on node ", e.Node) }

// Mutex has the fields that redsync's tests set.
type Mutex struct {
	name   string
	expiry time.Duration

	tries     int
	delayFunc func(tries int) time.Duration

	driftFactor   float64
	timeoutFactor float64
	quorum        int
	genValueFunc  func() (string, error)
	value         string
	setNXOnExtend bool
	pools         []redis.Pool
}

// Redsync creates mutexes.
type Redsync struct{ pools []redis.Pool }

// New returns a Redsync.
func New(pools ...redis.Pool) *Redsync { return &Redsync{pools} }

// An Option of a Mutex.
type Option func(*Mutex)

// WithExpiry sets the lease.
func WithExpiry(expiry time.Duration) Option { return func(m *Mutex) { m.expiry = expiry } }

// WithValue continues another Mutex's lock.
func WithValue(value string) Option { return func(m *Mutex) { m.value = value } }

// NewMutex returns a Mutex with redsync's defaults.
func (r *Redsync) NewMutex(name string, options ...Option) *Mutex {
	m := &Mutex{
		name: name, expiry: 8 * time.Second, tries: 32, quorum: 1, pools: r.pools,
		delayFunc: func(int) time.Duration { return 150 * time.Millisecond },
	}
	for _, option := range options {
		option(m)
	}
	return m
}

func genValue() (string, error) { return "", errors.New("the client chooses the owner") }

// TryLock calls Acquire without waiting.
func (m *Mutex) TryLock() error { return m.TryLockContext(context.Background()) }

// TryLockContext calls Acquire without waiting.
func (m *Mutex) TryLockContext(ctx context.Context) error {
	return m.keep(client.Acquire(ctx, m.name, lockward.WithoutWaiting(), lockward.WithLease(m.expiry), lockward.WithoutRenewal()))
}

// Lock calls Acquire. The deadline is the time of redsync's last attempt.
func (m *Mutex) Lock() error {
	if m.tries == 1 {
		return m.TryLock()
	}
	limit := time.Duration(0)
	for try := 1; try < m.tries; try++ {
		limit += m.delayFunc(try)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return m.keep(client.Acquire(ctx, m.name, lockward.WithLease(m.expiry), lockward.WithoutRenewal()))
}

func (m *Mutex) keep(lock *lockward.Lock, err error) error {
	if errors.Is(err, lockward.ErrBusy) {
		return &ErrTaken{[]int{0}}
	}
	if err == nil {
		m.value = lock.Owner()
		byValue.Store(m.value, lock)
	}
	return err
}

func (m *Mutex) lock() (*lockward.Lock, error) {
	lock, ok := byValue.Load(m.value)
	if !ok {
		return nil, errors.New("not locked")
	}
	return lock.(*lockward.Lock), nil
}

// Unlock calls Release.
func (m *Mutex) Unlock() (bool, error) {
	lock, err := m.lock()
	if err == nil {
		err = lock.Release(context.Background())
	}
	return err == nil, err
}

// Extend calls Renew.
func (m *Mutex) Extend() (bool, error) {
	lock, err := m.lock()
	if err == nil {
		err = lock.Renew(context.Background())
	}
	if m.setNXOnExtend && errors.Is(err, lockward.ErrLost) {
		err = m.TryLock()
	}
	return err == nil, err
}

// Until calls Until.
func (m *Mutex) Until() time.Time {
	lock, err := m.lock()
	if err != nil {
		return time.Time{}
	}
	return lock.Until()
}

// Value returns the owner.
func (m *Mutex) Value() string { return m.value }

// Valid calls Held.
func (m *Mutex) Valid() (bool, error) {
	lock, err := m.lock()
	return err == nil && lock.Held(), err
}
