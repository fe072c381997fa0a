// Peers: lock libraries written in Go, as peer programs of `make bench-peers`.
//
//	peers <peer> <job> <address> <clients> <begin> <seconds>
//
// The peer is lockward-go, redsync, etcd, mariadb or postgres. The server of the peer listens at the address.
// ../README.md describes the rest.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// How long a client holds a shared lock.
const holdTime = time.Millisecond

var errGaveUp = errors.New("the library gave up")

type client struct {
	// Waits for the lock. Returns errGaveUp if the library itself stops trying.
	acquire func(context.Context) error
	release func(context.Context) error
}

type peer struct {
	// The Go modules of the library, each with its common name and its path.
	modules [][2]string
	// The defaults of the library, for the table.
	defaults string
	// Connects the client with this index. In the job, the client wants the lock with this number.
	connect func(ctx context.Context, address string, lock int64, job string, index int) (client, error)
}

var peers = map[string]peer{
	"lockward-go": lockwardPeer,
	"redsync":     redsyncPeer,
	"etcd":        etcdPeer,
	"mariadb":     mariadbPeer,
	"postgres":    postgresPeer,
}

// The answer that the program prints: see ../README.md.
type answer struct {
	Version   string    `json:"version"`
	Notes     string    `json:"notes"`
	TenuresUs [][]int64 `json:"tenures_us"`
	GaveUp    int64     `json:"gave_up"`
}

func main() {
	result, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
		os.Exit(1)
	}
}

func run(arguments []string) (*answer, error) {
	if len(arguments) != 6 {
		return nil, fmt.Errorf("usage: peers <peer> <job> <address> <clients> <begin> <seconds>")
	}
	name, job, address := arguments[0], arguments[1], arguments[2]
	var numbers [3]int64
	for place := range numbers {
		var err error
		if numbers[place], err = strconv.ParseInt(arguments[3+place], 10, 64); err != nil {
			return nil, err
		}
	}
	count, begin := numbers[0], time.Now().Add(time.Until(time.UnixMilli(numbers[1])))
	end := begin.Add(time.Duration(numbers[2]) * time.Second)
	peer, known := peers[name]
	if !known {
		return nil, fmt.Errorf("there is no peer %q", name)
	}

	// The process id makes the numbers unique: the server may still hold the locks of an earlier run.
	lock := int64(os.Getpid()) << 16
	ctx, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	clients := make([]client, count)
	for index := range clients {
		if job == "uncontended" {
			lock++
		}
		var err error
		if clients[index], err = peer.connect(ctx, address, lock, job, index); err != nil {
			return nil, fmt.Errorf("client %d cannot connect: %w", index+1, err)
		}
	}
	result := &answer{peer.version(), peer.defaults, make([][]int64, count), 0}
	time.AfterFunc(time.Until(end), func() { stop(nil) })
	var loops sync.WaitGroup
	for index, client := range clients {
		loops.Go(func() {
			tenures, err := loop(ctx, client, job, begin, &result.GaveUp)
			result.TenuresUs[index] = tenures
			if err != nil {
				stop(fmt.Errorf("client %d: %w", index+1, err))
			}
		})
	}
	loops.Wait()
	if reason := context.Cause(ctx); reason != context.Canceled {
		return nil, reason
	}
	return result, nil
}

// Loop lets a client acquire and release until the context ends. A client that waits at this time stops waiting. The
// result has three numbers for each tenure, in microseconds after begin: see ../README.md.
func loop(ctx context.Context, client client, job string, begin time.Time, gaveUp *int64) ([]int64, error) {
	tenures := []int64{}
	for ctx.Err() == nil {
		asked := time.Now()
		err := client.acquire(ctx)
		for errors.Is(err, errGaveUp) {
			atomic.AddInt64(gaveUp, 1)
			err = client.acquire(ctx)
		}
		if err != nil && ctx.Err() != nil {
			break
		}
		if err != nil {
			return tenures, fmt.Errorf("acquire: %w", err)
		}
		granted := time.Now()
		switch job {
		case "contended":
			runtime.Gosched()
		case "readers", "permits", "weights":
			time.Sleep(holdTime)
		}
		for _, instant := range []time.Time{asked, granted, time.Now()} {
			tenures = append(tenures, instant.Sub(begin).Microseconds())
		}
		// The release does not use ctx, because ctx may have ended while the client held the lock.
		if err := client.release(context.Background()); err != nil {
			return tenures, fmt.Errorf("release: %w", err)
		}
	}
	return tenures, nil
}

// Version names the version of each module of the peer: "redsync 4.18.1, go-redis 9.23.0".
func (p peer) version() string {
	info, _ := debug.ReadBuildInfo()
	var versions []string
	for _, named := range p.modules {
		for _, module := range info.Deps {
			if module.Path == named[1] {
				versions = append(versions, named[0]+" "+strings.TrimPrefix(module.Version, "v"))
			}
		}
	}
	return strings.Join(versions, ", ")
}
