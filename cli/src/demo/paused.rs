//! `lockward demo --paused`: a holder that is stopped until its lease is over, and its late write.
//!
//! Alice and Bob sell pairs from one stock. Under the lock, each of them reads the number of pairs and writes the
//! number that is left. Alice is stopped between her read and her write, for longer than her lease. In the first sale
//! they write with SET, in the second sale with LOCK.GUARD.

use redis::Connection;
use uuid::Uuid;

use super::counting::{EXPIRY_S, LEASE_MS, acquire, connect, release};
use crate::failure::Failure;
use crate::output;
use crate::server::Server;

const SHORT_LEASE_MS: u64 = 200;
const STOCK: i64 = 10;
const ALICE_SELLS: i64 = 1;
const BOB_SELLS: i64 = 3;
/// The number of pairs that must be left after Alice and Bob have sold.
const LEFT: i64 = STOCK - ALICE_SELLS - BOB_SELLS;

/// Shows both sales. Fails if the late write was accepted in spite of LOCK.GUARD.
pub(super) fn run(server: &Server) -> Result<(), Failure> {
    say(&format!(
        "Alice sells {ALICE_SELLS} of {STOCK} pairs, and Bob sells {BOB_SELLS}: {LEFT} must be left. Both read and write under one lock.\n\
         Alice's lease is {SHORT_LEASE_MS} ms, and she is stopped for longer. Server: {}",
        server.address()
    ))?;
    let (mut alice, mut bob) = (connect(server)?, connect(server)?);
    for guarded in [false, true] {
        // In a cluster the lock and the data must have the same slot.
        let name = format!("lockward:demo:{{{}}}", Uuid::new_v4());
        let sale = Sale { lock: format!("{name}:lock"), stock: format!("{name}:pairs"), guarded };
        let left = sale.show(&mut alice, &mut bob);
        let deleted = redis::cmd("DEL").arg(&sale.lock).arg(&sale.stock).exec(&mut bob);
        let left = left?;
        deleted?;
        if guarded && left != LEFT {
            return Err(Failure::new(format!(
                "{left} pairs are left instead of {LEFT}. Please report this."
            )));
        }
    }
    Ok(())
}

fn say(line: &str) -> Result<(), Failure> {
    output::print(&format!("{line}\n"))
}

/// One sale, with SET or with LOCK.GUARD.
struct Sale {
    lock: String,
    stock: String,
    guarded: bool,
}

impl Sale {
    /// Sells, and prints each step. Returns how many pairs are left.
    fn show(&self, alice: &mut Connection, bob: &mut Connection) -> Result<i64, Failure> {
        say(&format!("\n{}", if self.guarded { "LOCK.GUARD ... SET" } else { "SET" }))?;
        redis::cmd("SET").arg(&self.stock).arg(STOCK).arg("EX").arg(EXPIRY_S).exec(alice)?;
        let old_token = acquire(&self.lock, "alice", SHORT_LEASE_MS, alice)?;
        let old = self.read(alice)?;
        say(&format!("  alice  has the lock with token {old_token}, reads {old}, and is stopped"))?;
        // Bob gets the lock when Alice's lease ends.
        let token = acquire(&self.lock, "bob", LEASE_MS, bob)?;
        let read = self.read(bob)?;
        let left = read - BOB_SELLS;
        let wrote = self.write(token, left, bob)?;
        say(&format!("  bob    has the lock with token {token}, reads {read}, writes {left}: {wrote}"))?;
        let wrote = self.write(old_token, old - ALICE_SELLS, alice)?;
        say(&format!("  alice  goes on, writes {}: {wrote}", old - ALICE_SELLS))?;
        release(&self.lock, "bob", bob)?;
        if self.guarded {
            let token = acquire(&self.lock, "alice", LEASE_MS, alice)?;
            let read = self.read(alice)?;
            let left = read - ALICE_SELLS;
            let wrote = self.write(token, left, alice)?;
            say(&format!("  alice  starts again with token {token}, reads {read}, writes {left}: {wrote}"))?;
        }
        let left = self.read(bob)?;
        let verdict = if left == LEFT { "right" } else { "wrong: Bob's sale is lost" };
        say(&format!("  {left} pairs are left: {verdict}"))?;
        Ok(left)
    }

    fn read(&self, connection: &mut Connection) -> Result<i64, Failure> {
        Ok(redis::cmd("GET").arg(&self.stock).query(connection)?)
    }

    /// Writes the number of pairs that are left. Returns the reply, or the text of the error FENCED.
    fn write(&self, token: u64, pairs: i64, connection: &mut Connection) -> Result<String, Failure> {
        let mut request = redis::Cmd::new();
        if self.guarded {
            request.arg("LOCK.GUARD").arg(&self.lock).arg(token);
        }
        request.arg("SET").arg(&self.stock).arg(pairs).arg("EX").arg(EXPIRY_S);
        match request.query(connection) {
            Ok(reply) => Ok(reply),
            Err(error) if error.code() == Some("FENCED") => {
                Ok(format!("FENCED {}", error.detail().unwrap_or_default()))
            }
            Err(error) => Err(error.into()),
        }
    }
}
