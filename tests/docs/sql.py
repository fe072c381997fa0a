"""tests/docs/sql.py PORT FILE: runs a file of SQL on a MariaDB, for scripts/run-docs, and shows the rows it is answered."""

import sys
from pathlib import Path

import pymysql
from pymysql.constants.CLIENT import MULTI_STATEMENTS

with pymysql.connect(host="127.0.0.1", port=int(sys.argv[1]), client_flag=MULTI_STATEMENTS, autocommit=True) as connection:
    cursor = connection.cursor()
    cursor.execute(Path(sys.argv[2]).read_text())
    while True:
        for row in cursor.fetchall():
            print(*row, sep=" | ")
        if not cursor.nextset():
            break
