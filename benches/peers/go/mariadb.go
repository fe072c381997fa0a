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
	connect: func(ctx context.Context, address string, lock int64, _ string, _ int) (client, error) {
		database, err := sql.Open("mysql", "root@tcp("+address+")/")
		if err != nil {
			return client{}, err
		}
		connection, err := database.Conn(ctx)
		// The statements contain the name of the lock. With the name as an argument, each statement would take two more round
		// trips. A reply other than 1 is an error.
		ask := func(statement string) func(context.Context) error {
			return func(ctx context.Context) error {
				var reply sql.NullInt64
				err := connection.QueryRowContext(ctx, statement).Scan(&reply)
				if err == nil && reply.Int64 != 1 {
					return fmt.Errorf("the reply to %s is %v", statement, reply)
				}
				return err
			}
		}
		return client{
			acquire: ask(fmt.Sprintf("SELECT GET_LOCK('lock:%d', 86400)", lock)),
			release: ask(fmt.Sprintf("SELECT RELEASE_LOCK('lock:%d')", lock)),
		}, err
	},
}
