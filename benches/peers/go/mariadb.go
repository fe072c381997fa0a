// The locks of MariaDB.

package main

import (
	"context"
	"database/sql"
	"fmt"

	_ "github.com/go-sql-driver/mysql"
)

var mariadbPeer = peer{
	modules:  [][2]string{{"go-sql-driver/mysql", "github.com/go-sql-driver/mysql"}},
	defaults: "a connection for each client; no lease",
	connect:  connectMariadb,
}

type mariadbClient struct {
	database   *sql.DB
	connection *sql.Conn
	// The statements contain the name of the lock. With the name as an argument, each statement would take two more round trips.
	acquireStatement, releaseStatement string
}

func connectMariadb(ctx context.Context, address string, lock int64, _ share) (client, error) {
	database, err := sql.Open("mysql", "root@tcp("+address+")/")
	if err != nil {
		return nil, err
	}
	connection, err := database.Conn(ctx)
	return &mariadbClient{
		database:         database,
		connection:       connection,
		acquireStatement: fmt.Sprintf("SELECT GET_LOCK('lock:%d', 86400)", lock),
		releaseStatement: fmt.Sprintf("SELECT RELEASE_LOCK('lock:%d')", lock),
	}, err
}

func (c *mariadbClient) acquire(ctx context.Context) error {
	return c.ask(ctx, c.acquireStatement)
}

func (c *mariadbClient) release(ctx context.Context) error {
	return c.ask(ctx, c.releaseStatement)
}

// Ask sends a statement. A reply other than 1 is an error.
func (c *mariadbClient) ask(ctx context.Context, statement string) error {
	var reply sql.NullInt64
	if err := c.connection.QueryRowContext(ctx, statement).Scan(&reply); err != nil {
		return err
	}
	if reply.Int64 != 1 {
		return fmt.Errorf("the reply to %s is %v", statement, reply)
	}
	return nil
}

func (c *mariadbClient) close() {
	c.connection.Close()
	c.database.Close()
}
