package main

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
)

var postgresPeer = peer{
	modules:  [][2]string{{"pgx", "github.com/jackc/pgx/v5"}},
	defaults: "a connection for each client; no lease",
	connect: func(ctx context.Context, address string, lock int64, _ string, _ int) (client, error) {
		connection, err := pgx.Connect(ctx, "postgres://postgres@"+address+"/postgres")
		return client{
			acquire: func(ctx context.Context) error {
				_, err := connection.Exec(ctx, "SELECT pg_advisory_lock($1)", lock)
				return err
			},
			release: func(ctx context.Context) error {
				var released bool
				err := connection.QueryRow(ctx, "SELECT pg_advisory_unlock($1)", lock).Scan(&released)
				if err == nil && !released {
					return errors.New("the client did not hold the lock")
				}
				return err
			},
		}, err
	},
}
