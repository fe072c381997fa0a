// The advisory locks of PostgreSQL.

package main

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
)

var postgresPeer = peer{
	modules:  [][2]string{{"pgx", "github.com/jackc/pgx/v5"}},
	defaults: "a connection for each client; no lease",
	connect:  connectPostgres,
}

type postgresClient struct {
	connection *pgx.Conn
	lock       int64
}

func connectPostgres(ctx context.Context, address string, lock int64, _ share) (client, error) {
	connection, err := pgx.Connect(ctx, "postgres://postgres@"+address+"/postgres")
	return &postgresClient{connection, lock}, err
}

func (c *postgresClient) acquire(ctx context.Context) error {
	_, err := c.connection.Exec(ctx, "SELECT pg_advisory_lock($1)", c.lock)
	return err
}

func (c *postgresClient) release(ctx context.Context) error {
	var released bool
	err := c.connection.QueryRow(ctx, "SELECT pg_advisory_unlock($1)", c.lock).Scan(&released)
	if err == nil && !released {
		return errors.New("the client did not hold the lock")
	}
	return err
}

func (c *postgresClient) close() {
	c.connection.Close(context.Background())
}
