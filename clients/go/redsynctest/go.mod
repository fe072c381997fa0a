module redsynctest

go 1.26.0

require (
	github.com/go-redsync/redsync/v4 v4.18.1
	github.com/lockward/lockward-go v0.0.0
	github.com/redis/go-redis/v9 v9.23.0
	golang.org/x/sync v0.24.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/google/uuid v1.6.0 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
)

replace github.com/lockward/lockward-go => ../
