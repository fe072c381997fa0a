//! `lockward demo --paused`: a holder that is stopped until its lease is over, and its late write.
//!
//! Alice and Bob sell pairs from one stock. Under the lock, each of them reads the number of pairs and writes the
//! number that is left. Alice is stopped between her read and her write, for longer than her lease. In the first sale
//! they write with SET, in the second sale with LOCK.GUARD.

use std::io::{self, Write};

use redis::{Cmd, Connection, RedisError};
use uuid::Uuid;

use super::counting::{LEASE_MS, REPLY_LIMIT, WAIT_LIMIT_MS};
use crate::failure::Failure;
use crate::server::Server;

const SHORT_LEASE_MS: u64 = 200;
/// The TTL of the stock, in case the demo is killed.
const STOCK_EXPIRY_S: u64 = 60;
const STOCK: i64 = 10;
const ALICE_SELLS: i64 = 1;
const BOB_SELLS: i64 = 3;
/// The number of pairs that are left when both sales count.
const LEFT: i64 = STOCK - ALICE_SELLS - BOB_SELLS;

/// Shows both sales. Fails if the late write was accepted in spite of LOCK.GUARD.
pub(super) fn run(server: &Server) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "Alice sells {ALICE_SELLS} of {STOCK} pairs, and Bob sells {BOB_SELLS}: {LEFT} must be left. Both read and write under one lock.\n\
         Alice's lease is {SHORT_LEASE_MS} ms, and she is stopped for longer. Server: {}",
        server.address()
    )?;
    for guarded in [false, true] {
        let mut sale = Sale::new(server, guarded)?;
        let shown = sale.show(&mut out);
        sale.end()?;
        let left = shown?;
        if guarded && left != LEFT {
            return Err(Failure::new(format!(
                "{left} pairs are left instead of {LEFT}. Please report this."
            )));
        }
    }
    Ok(())
}

/// One of the two sales.
struct Sale {
    alice: Connection,
    bob: Connection,
    lock: String,
    stock: String,
    guarded: bool,
}

impl Sale {
    fn new(server: &Server, guarded: bool) -> Result<Self, Failure> {
        let (alice, bob) = (server.connect(REPLY_LIMIT)?, server.connect(REPLY_LIMIT)?);
        // In a cluster the lock and the data must have the same slot.
        let name = format!("lockward:demo:{{{}}}", Uuid::new_v4());
        Ok(Self { alice, bob, lock: format!("{name}:lock"), stock: format!("{name}:pairs"), guarded })
    }

    /// Sells, and prints each step. Returns how many pairs are left.
    fn show(&mut self, out: &mut impl Write) -> Result<i64, Failure> {
        let how = if self.guarded { "LOCK.GUARD ... SET" } else { "SET" };
        writeln!(out, "\n{how}")?;
        set(&self.stock, STOCK).exec(&mut self.alice)?;
        let alice_token = acquire(&self.lock, "alice", SHORT_LEASE_MS, &mut self.alice)?;
        let alice_read = read(&self.stock, &mut self.alice)?;
        writeln!(out, "  alice  has the lock with token {alice_token}, reads {alice_read}, and is stopped")?;
        // Bob has the lock when Alice's lease is over.
        let bob_token = acquire(&self.lock, "bob", LEASE_MS, &mut self.bob)?;
        let bob_read = read(&self.stock, &mut self.bob)?;
        let wrote = write(self, bob_token, bob_read - BOB_SELLS, Seller::Bob)?;
        writeln!(
            out,
            "  bob    has the lock with token {bob_token}, reads {bob_read}, writes {}: {wrote}",
            bob_read - BOB_SELLS
        )?;
        let wrote = write(self, alice_token, alice_read - ALICE_SELLS, Seller::Alice)?;
        writeln!(out, "  alice  goes on, writes {}: {wrote}", alice_read - ALICE_SELLS)?;
        redis::cmd("LOCK.RELEASE").arg(&self.lock).arg("bob").arg("HOLDS").arg(0).exec(&mut self.bob)?;
        if self.guarded {
            let token = acquire(&self.lock, "alice", LEASE_MS, &mut self.alice)?;
            let again = read(&self.stock, &mut self.alice)?;
            let wrote = write(self, token, again - ALICE_SELLS, Seller::Alice)?;
            writeln!(
                out,
                "  alice  starts again with token {token}, reads {again}, writes {}: {wrote}",
                again - ALICE_SELLS
            )?;
        }
        let left = read(&self.stock, &mut self.bob)?;
        let verdict = if left == LEFT { "right" } else { "wrong: Bob's sale is lost" };
        writeln!(out, "  {left} pairs are left: {verdict}")?;
        Ok(left)
    }

    fn end(&mut self) -> Result<(), Failure> {
        redis::cmd("DEL").arg(&self.lock).arg(&self.stock).exec(&mut self.bob)?;
        Ok(())
    }
}

#[derive(Clone, Copy)]
enum Seller {
    Alice,
    Bob,
}

/// Waits for the lock. Returns the fencing token.
fn acquire(lock: &str, owner: &str, lease_ms: u64, connection: &mut Connection) -> Result<u64, Failure> {
    let mut request = redis::cmd("LOCK.ACQUIRE");
    request.arg(lock).arg(owner).arg("PX").arg(lease_ms).arg("BLOCK").arg(WAIT_LIMIT_MS);
    let grant: Option<(u64, u32, u64)> = request.query(connection)?;
    grant
        .map(|(token, _, _)| token)
        .ok_or_else(|| Failure::new("the lock of the demo was not free in a minute"))
}

fn read(stock: &str, connection: &mut Connection) -> Result<i64, Failure> {
    Ok(redis::cmd("GET").arg(stock).query(connection)?)
}

fn set(stock: &str, pairs: i64) -> Cmd {
    let mut set = redis::cmd("SET");
    set.arg(stock).arg(pairs).arg("EX").arg(STOCK_EXPIRY_S);
    set
}

/// Writes the number of pairs that are left. Returns the reply, or the text of the error FENCED.
fn write(sale: &mut Sale, token: u64, pairs: i64, seller: Seller) -> Result<String, Failure> {
    let mut request = set(&sale.stock, pairs);
    if sale.guarded {
        let mut guarded = redis::cmd("LOCK.GUARD");
        guarded
            .arg(&sale.lock)
            .arg(token)
            .arg("SET")
            .arg(&sale.stock)
            .arg(pairs)
            .arg("EX")
            .arg(STOCK_EXPIRY_S);
        request = guarded;
    }
    let connection = match seller {
        Seller::Alice => &mut sale.alice,
        Seller::Bob => &mut sale.bob,
    };
    match request.query(connection) {
        Ok(reply) => Ok(reply),
        Err(error) if error.code() == Some("FENCED") => Ok(fenced(&error)),
        Err(error) => Err(error.into()),
    }
}

fn fenced(error: &RedisError) -> String {
    format!("FENCED {}", error.detail().unwrap_or_default())
}
