package lockward_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockward/lockward-go"
)

var (
	ctx  = context.Background()
	addr string // the address of a server with the module
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
			return errors.New("another owner has acquired the lock meanwhile")
		}
		stored = lock.Token()
		return ctx.Err() // nil, because the lock is not lost
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

	limited, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	_, err = client.Acquire(limited, "order:44")
	fmt.Println(errors.Is(err, lockward.ErrBusy), errors.Is(err, context.DeadlineExceeded))
	// Output: true true
}

func ExampleWithoutWaiting() {
	client, end := newExample()
	defer end()
	lock, err := client.Acquire(ctx, "order:45", lockward.WithoutWaiting())
	fmt.Println(err)
	_, err = client.Acquire(ctx, "order:45", lockward.WithoutWaiting())
	fmt.Println(err)
	fmt.Println(lock.Release(ctx))
	// Output:
	// <nil>
	// lockward: lock "order:45": others hold it or wait for it; wait longer, or try again later
	// <nil>
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
	// Output: lockward: lock "order:47": it was released; acquire it again
}

func ExampleClient_AcquireAll() {
	client, end := newExample()
	defer end()
	lock, err := client.AcquireAll(ctx, []string{"account:9", "account:8"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(lock.Key(), len(lock.Tokens()), lock.Release(ctx))
	// Output: account:8 2 <nil>
}

func ExampleClient_Lead() {
	client, end := newExample()
	defer end()
	err := client.Lead(ctx, "leader", func(ctx context.Context, lock *lockward.Lock) error {
		fmt.Println("leading:", lock.Held()) // ctx ends when the leadership is lost
		return nil
	})
	fmt.Println(err)
	// Output:
	// leading: true
	// <nil>
}

func ExampleLock_Downgrade() {
	client, end := newExample()
	defer end()
	writer, err := client.Acquire(ctx, "file")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(writer.Downgrade(ctx, lockward.Shared()))
	reader, err := client.Acquire(ctx, "file", lockward.Shared())
	fmt.Println(err)
	fmt.Println(errors.Join(writer.Release(ctx), reader.Release(ctx)))
	// Output:
	// <nil>
	// <nil>
	// <nil>
}

func ExampleLock_Handle() {
	client, end := newExample()
	defer end()
	lock, err := client.Acquire(ctx, "job:1", lockward.Slots(8), lockward.Weight(2))
	if err != nil {
		fmt.Println(err)
		return
	}
	handle, err := lock.Handle()
	fmt.Println(lock.Held(), err)

	resumed, err := client.Resume(ctx, handle) // maybe in another process
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(resumed.Token() == lock.Token(), resumed.Release(ctx))
	// Output:
	// false <nil>
	// true <nil>
}
