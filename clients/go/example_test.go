package lockward_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"lockward"
)

var (
	ctx  = context.Background()
	addr string // of a server with the module
)

// newExample returns a client, and a function that closes it.
func newExample() (*lockward.Client, func()) {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	client, err := lockward.New(rdb)
	if err != nil {
		panic(err)
	}
	return client, func() { _ = client.Close(); _ = rdb.Close() }
}

func Example() {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	client, err := lockward.New(rdb)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()

	lock, err := client.Acquire(ctx, "order:42")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("held:", lock.Held())
	if err := lock.Release(ctx); err != nil {
		fmt.Println("the work was not protected up to its end:", err)
	}
	fmt.Println("held:", lock.Held())
	// Output:
	// held: true
	// held: false
}

func ExampleClient_Do() {
	client, end := newExample()
	defer end()
	stored := int64(0) // the largest token that the storage has seen
	err := client.Do(ctx, "order:43", func(ctx context.Context, lock *lockward.Lock) error {
		if lock.Token() < stored {
			return errors.New("somebody has acquired the lock since")
		}
		stored = lock.Token()
		return ctx.Err() // nil, as the lock is not lost
	})
	fmt.Println(err)
	// Output: <nil>
}

func ExampleClient_Acquire() {
	client, end := newExample()
	defer end()
	first, err := client.Acquire(ctx, "order:44")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer first.Release(ctx)

	limited, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	_, err = client.Acquire(limited, "order:44")
	fmt.Println(errors.Is(err, lockward.ErrBusy), errors.Is(err, context.DeadlineExceeded))
	// Output: true true
}

func ExampleClient_TryAcquire() {
	client, end := newExample()
	defer end()
	lock, err := client.TryAcquire(ctx, "order:45")
	fmt.Println(err)
	_, err = client.TryAcquire(ctx, "order:45")
	fmt.Println(err)
	fmt.Println(lock.Release(ctx))
	// Output:
	// <nil>
	// lockward: the lock is busy
	// <nil>
}

func ExampleLock_Reenter() {
	client, end := newExample()
	defer end()
	_ = client.Do(ctx, "order:46", func(ctx context.Context, lock *lockward.Lock) error {
		if err := lock.Reenter(ctx); err != nil {
			return err
		}
		fmt.Println(lock.Holds())
		return lock.Release(ctx)
	})
	// Output: 2
}

func ExampleLock_Context() {
	client, end := newExample()
	defer end()
	lock, err := client.Acquire(ctx, "order:47")
	if err != nil {
		fmt.Println(err)
		return
	}
	work := lock.Context(ctx)
	_ = lock.Release(ctx)
	<-work.Done()
	fmt.Println(context.Cause(work))
	// Output: lockward: the lock was released
}
