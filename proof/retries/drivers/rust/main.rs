//! Executes the commands from standard input with redis-rs: see ../README.md.

use redis::aio::ConnectionManager;
use redis::{Client, Value};
use serde::Deserialize;
use serde_json::json;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use tokio::sync::OnceCell;

#[derive(Deserialize)]
struct Order {
    id: u64,
    connection: usize,
    command: Vec<String>,
}

#[tokio::main]
async fn main() {
    let port: u16 = std::env::args().nth(1).and_then(|port| port.parse().ok()).expect("a port");
    let client = Client::open(("127.0.0.1", port)).expect("a client");
    println!("{}", json!({ "client": "redis-rs", "version": version() }));
    let mut connections: HashMap<usize, Arc<OnceCell<ConnectionManager>>> = HashMap::new();
    for line in io::stdin().lines() {
        let order: Order = serde_json::from_str(&line.expect("a line")).expect("an order");
        let connection = Arc::clone(connections.entry(order.connection).or_default());
        let client = client.clone();
        tokio::spawn(async move {
            let id = order.id;
            let told = match call(&client, &connection, &order.command).await {
                Ok(reply) => json!({ "id": id, "reply": shown(&reply) }),
                Err(error) if error.code().is_some() => json!({ "id": id, "refused": error.to_string() }),
                Err(error) => json!({ "id": id, "failed": error.to_string() }),
            };
            println!("{told}");
        });
    }
}

async fn call(
    client: &Client,
    connection: &OnceCell<ConnectionManager>,
    command: &[String],
) -> redis::RedisResult<Value> {
    let mut connection = connection.get_or_try_init(|| client.get_connection_manager()).await?.clone();
    redis::cmd(&command[0]).arg(&command[1..]).query_async(&mut connection).await
}

fn shown(reply: &Value) -> serde_json::Value {
    match reply {
        Value::Nil => json!(null),
        Value::Int(number) => json!(number),
        Value::Array(items) => items.iter().map(shown).collect(),
        other => json!(format!("{other:?}")),
    }
}

/// The version in the workspace's Cargo.lock.
fn version() -> &'static str {
    let locked = include_str!("../../../../Cargo.lock").split_once("name = \"redis\"\nversion = \"");
    locked.and_then(|(_, rest)| rest.split('"').next()).expect("redis-rs in Cargo.lock")
}
