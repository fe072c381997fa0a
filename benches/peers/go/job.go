// The jobs, and how each client asks for the lock in a job.

package main

import (
	"math"
	"time"
)

// The jobs: see ../README.md.
const (
	uncontended = "uncontended"
	contended   = "contended"
	readers     = "readers"
	permits     = "permits"
	weights     = "weights"
)

const (
	// The permits of a semaphore.
	semaphore = 10
	// One of 10 clients writes.
	writers = 10
	// How long a client holds a shared lock.
	holdTime = time.Millisecond
)

// A share says how much of a lock a client takes.
type share struct {
	isReader, isWriter bool
	// How many permits of a semaphore the client takes; 0 if the lock is not a semaphore.
	permits int
	// How much of the lock's limit the client takes.
	weight int64
}

// isShared returns whether several clients may hold the lock at once.
func isShared(job string) bool { return job == readers || job == permits || job == weights }

func shareOf(job string, client int) share {
	switch job {
	case readers:
		if client%writers == 0 {
			return share{isWriter: true, weight: limitOf(job)}
		}
		return share{isReader: true, weight: 1}
	case permits:
		return share{permits: 1, weight: 1}
	case weights:
		taken := client%3 + 1
		return share{permits: taken, weight: int64(taken)}
	}
	return share{weight: 1}
}

// limitOf returns the largest sum of weights that clients may hold at once.
func limitOf(job string) int64 {
	switch job {
	case readers:
		return math.MaxInt32
	case permits, weights:
		return semaphore
	}
	return 1
}
