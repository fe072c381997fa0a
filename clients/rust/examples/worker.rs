//! The worker of the conformance suite. The worker reads commands from its input and executes each command with
//! the client. See `clients/conformance/README.md`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::wildcard_enum_match_arm
)]

use lockward_client::redis::{Cmd, Value, cmd, from_redis_value_ref};
use lockward_client::{Address, Client, Error, Guard, Limit, Lock, Settings};
use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

struct Worker {
    client: Client,
    guards: Mutex<HashMap<String, Arc<Guard>>>,
    /// The tasks that print losses.
    watchers: Mutex<HashMap<String, JoinHandle<()>>>,
    /// The acquisitions in progress, by the ids of their commands.
    acquiring: Mutex<HashMap<String, oneshot::Sender<()>>>,
    leading: Mutex<HashMap<String, mpsc::Sender<()>>>,
}

fn print(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).expect("an output");
}

fn ms(text: &str) -> Duration {
    Duration::from_millis(text.parse().expect("milliseconds"))
}

/// Creates a client from an address and settings.
fn connect(arguments: &[String]) -> Client {
    let url =
        arguments[0].replace("cluster://", "redis+cluster://").replace("sentinel://", "redis+sentinel://");
    let mut settings = Settings::default();
    let mut files = HashMap::new();
    for setting in &arguments[1..] {
        let (name, value) = setting.split_once('=').expect("a setting");
        settings = match name {
            "patience" => settings.patience(ms(value)),
            "response-limit" => settings.response_limit(ms(value)),
            "waiting-connections" => settings.waiting_connections(value.parse().expect("a count")),
            _ => {
                files.insert(name, std::fs::read(value).expect("a file"));
                settings
            }
        };
    }
    let address: Address = url.parse().expect("an address");
    #[cfg(feature = "tls")]
    let address = if files.is_empty() {
        address
    } else {
        use lockward_client::redis::{ClientTlsConfig, TlsCertificates};
        let client_tls = files.remove("cert").zip(files.remove("key"));
        let client_tls =
            client_tls.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
        let certificates = TlsCertificates { client_tls, root_cert: files.remove("ca") };
        address.certificates(&certificates).expect("certificates")
    };
    Client::new(address, settings).expect("a client")
}

/// The lock that the words of `acquire` or `lead` describe, and how long the callback for the loss blocks.
fn lock(client: &Client, words: &[&str]) -> (Lock, Duration) {
    let mut lock = client.locks(words[0].split(','));
    let mut slow = Duration::ZERO;
    for option in &words[1..] {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        lock = match name {
            "wait" => lock.wait(ms(value)),
            "lease" => lock.lease(ms(value)),
            "shared" => lock.shared(),
            "slots" => lock.slots(value.parse().expect("a count")),
            "weight" => lock.weight(value.parse().expect("a count")),
            "owner" => lock.owner(value),
            "hold-limit" => lock.hold_limit(ms(value)),
            "no-renewal" => lock.without_renewal(),
            "replicas" => {
                let (count, within) = value.split_once(':').expect("a time");
                lock.replicas(count.parse().expect("a count"), ms(within))
            }
            _ => {
                slow = ms(value);
                lock
            }
        };
    }
    (lock, slow)
}

impl Worker {
    async fn answer(self: Arc<Self>, id: String, words: Vec<String>) {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let reply = match self.reply(&id, &words).await {
            Ok(reply) => reply,
            Err(Error::Busy { .. }) if words[0] == "acquire" => "busy".to_owned(),
            Err(error) => {
                let kind = match error {
                    Error::Busy { .. } => "busy",
                    Error::Lost { .. } => "lost",
                    Error::Refused { .. } => "refused",
                    Error::Unreachable { .. } => "unreachable",
                    Error::Unreplicated { .. } => "unreplicated",
                    _ => "other",
                };
                format!("error {kind} {error}")
            }
        };
        print(&format!("{id} {reply}"));
    }

    async fn reply(self: &Arc<Self>, id: &str, words: &[&str]) -> Result<String, Error> {
        let ok = || "ok".to_owned();
        let name = words.get(1).copied().unwrap_or_default();
        match words[0] {
            "acquire" => self.acquire(id, name, &words[2..]).await,
            "cancel" => {
                if let Some(cancel) = self.acquiring.lock().unwrap().remove(name) {
                    let _ = cancel.send(());
                }
                Ok(ok())
            }
            "release" => {
                let guard = self.guards.lock().unwrap().remove(name).expect("a guard");
                self.unwatch_unless_lost(name, &guard);
                Arc::into_inner(guard).expect("nobody else uses it").release().await.map(|()| ok())
            }
            "renew" => self.guard(name).renew().await.map(|()| ok()),
            "downgrade" => {
                let limit = match words[2].split_once('=') {
                    Some((_, slots)) => Limit::Slots(slots.parse().expect("a count")),
                    None => Limit::Shared,
                };
                self.guard(name).downgrade(limit).await.map(|()| ok())
            }
            "status" => Ok(if self.guard(name).is_held() { "held" } else { "lost" }.to_owned()),
            "guarded" => {
                let mut command: Cmd = cmd(words[2]);
                command.arg(&words[3..]);
                let reply = self.guard(name).guarded::<Value>(&command).await?;
                let text = from_redis_value_ref::<String>(&reply).unwrap_or_else(|_| format!("{reply:?}"));
                Ok(format!("reply {text}"))
            }
            "handle" => {
                let guard = self.guards.lock().unwrap().remove(name).expect("a guard");
                self.unwatch_unless_lost(name, &guard);
                Ok(format!("handle {}", Arc::into_inner(guard).expect("nobody else uses it").handle()))
            }
            "resume" => {
                let guard = self.client.resume(words[2]).await?;
                Ok(self.hold(name, guard, Duration::ZERO))
            }
            "lead" => self.lead(name, &words[2..]).await.map(|()| ok()),
            "resign" => {
                let resign = self.leading.lock().unwrap().get(name).cloned();
                let _ = resign.expect("a candidate").send(()).await;
                Ok(ok())
            }
            "pairs" => {
                let end = Instant::now() + Duration::from_secs(words[2].parse().expect("seconds"));
                let mut pairs = 0;
                while Instant::now() < end {
                    self.client.lock(name).acquire().await?.release().await?;
                    pairs += 1;
                }
                Ok(format!("pairs {pairs}"))
            }
            _ => Ok("unsupported".to_owned()),
        }
    }

    fn guard(&self, name: &str) -> Arc<Guard> {
        Arc::clone(self.guards.lock().unwrap().get(name).expect("a guard"))
    }

    async fn acquire(self: &Arc<Self>, id: &str, name: &str, words: &[&str]) -> Result<String, Error> {
        let (lock, slow) = lock(&self.client, words);
        let (cancel, cancelled) = oneshot::channel();
        self.acquiring.lock().unwrap().insert(id.to_owned(), cancel);
        let guard = tokio::select! {
            guard = lock.acquire() => guard?,
            Ok(()) = cancelled => return Ok("cancelled".to_owned()),
        };
        self.acquiring.lock().unwrap().remove(id);
        Ok(self.hold(name, guard, slow))
    }

    fn hold(self: &Arc<Self>, name: &str, guard: Guard, slow: Duration) -> String {
        let tokens: Vec<_> = guard.tokens().map(|(_, token)| token.to_string()).collect();
        let (lost, shown) = (guard.lost(), name.to_owned());
        let watcher = tokio::spawn(async move {
            lost.await;
            print(&format!("event lost {shown}"));
            // A program must not block a thread of the runtime itself: then the timers of all tasks may stop.
            tokio::task::block_in_place(|| std::thread::sleep(slow));
        });
        self.watchers.lock().unwrap().insert(name.to_owned(), watcher);
        self.guards.lock().unwrap().insert(name.to_owned(), Arc::new(guard));
        format!("held {}", tokens.join(","))
    }

    /// Stops the task that reports a loss. `release` calls this function first, because a release is not a loss.
    fn unwatch_unless_lost(&self, name: &str, guard: &Guard) {
        if guard.is_held()
            && let Some(watcher) = self.watchers.lock().unwrap().remove(name)
        {
            watcher.abort();
        }
    }

    async fn lead(self: &Arc<Self>, name: &str, words: &[&str]) -> Result<(), Error> {
        struct Deposed<'a>(&'a str, bool);
        impl Drop for Deposed<'_> {
            fn drop(&mut self) {
                if !self.1 {
                    print(&format!("event deposed {}", self.0));
                }
            }
        }
        let (resign, resigned) = mpsc::channel(1);
        self.leading.lock().unwrap().insert(name.to_owned(), resign);
        let resigned = tokio::sync::Mutex::new(resigned);
        let resigned = &resigned;
        let work = async |leader: Arc<Guard>| {
            print(&format!("event leading {name} {}", leader.token()));
            let mut deposed = Deposed(name, false);
            resigned.lock().await.recv().await;
            deposed.1 = true;
        };
        lock(&self.client, words).0.lead(work).await
    }
}

#[tokio::main(worker_threads = 4)]
async fn main() {
    let (lines, mut commands) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let _ = lines.send(line);
        }
    });
    let opening = commands.recv().await.unwrap_or_default();
    let words: Vec<String> = opening.split(' ').map(str::to_owned).collect();
    let worker = Arc::new(Worker {
        client: connect(&words[2..]),
        guards: Mutex::default(),
        watchers: Mutex::default(),
        acquiring: Mutex::default(),
        leading: Mutex::default(),
    });
    print(&format!("{} ok", words[0]));
    while let Some(line) = commands.recv().await {
        let mut words = line.split(' ').map(str::to_owned);
        let id = words.next().unwrap_or_default();
        let words: Vec<String> = words.collect();
        if words[0] == "close" {
            break;
        }
        tokio::spawn(Arc::clone(&worker).answer(id, words));
    }
    std::process::exit(0);
}
