// Peers: lock libraries written in Go, as peer programs of `make bench-peers`.
//
//	peers <peer> <job> <address> --clients N --seconds S
//
// The peer is lockward-go, redsync, etcd, mariadb or postgres. The server of the peer listens at the address.
// ../README.md describes the jobs. The program prints its answer as one line of JSON. If the program fails, it prints the
// reason to standard error.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"
)

// A client of a peer, with its own connection.
type client struct {
	// Waits for the lock. Returns errGaveUp if the library itself stops trying.
	acquire func(context.Context) error
	release func(context.Context) error
	close   func()
}

type peer struct {
	// The Go modules of the library, each with its common name and its path.
	modules [][2]string
	// The defaults of the library, for the table.
	defaults string
	// Whether the library has shared locks.
	isShared bool
	// Connects a client that will take this share of the lock whose number is `lock`.
	connect func(ctx context.Context, address string, lock int64, share share) (client, error)
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
	Version  string    `json:"version"`
	Notes    string    `json:"notes"`
	BeganMs  int64     `json:"began_unix_ms"`
	WaitsUs  [][]int64 `json:"waits_us"`
	Counter  int64     `json:"counter"`
	Handoffs int64     `json:"handoffs"`
	GaveUp   int64     `json:"gave_up"`
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
	if len(arguments) < 3 {
		return nil, fmt.Errorf("usage: peers <peer> <job> <address> --clients N --seconds S")
	}
	name, job, address := arguments[0], arguments[1], arguments[2]
	flags := flag.NewFlagSet("peers", flag.ExitOnError)
	clients := flags.Int("clients", 50, "how many clients")
	seconds := flags.Int("seconds", 10, "how long to count, after the warm-up")
	if err := flags.Parse(arguments[3:]); err != nil {
		return nil, err
	}
	peer, known := peers[name]
	if !known {
		return nil, fmt.Errorf("there is no peer %q", name)
	}
	if job != uncontended && job != contended && !(isShared(job) && peer.isShared) {
		return nil, fmt.Errorf("%s has no job %q", name, job)
	}
	if *clients < 1 || *seconds < 1 {
		return nil, fmt.Errorf("--clients and --seconds must be at least 1")
	}
	run := &jobRun{
		peer:     peer,
		address:  address,
		job:      job,
		duration: time.Duration(*seconds) * time.Second,
	}
	result, err := run.run(*clients)
	if err != nil {
		return nil, fmt.Errorf("%s at %s: %w", name, address, err)
	}
	result.Version, result.Notes = peer.version(), peer.defaults
	return result, nil
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
