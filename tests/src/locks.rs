//! Typed replies of the lock commands, and common steps of tests with locks.

use crate::client::Client;
use crate::reply::Reply;
use crate::server::{Server, Setup};
use crate::wait::eventually;

/// The reply of LOCK.ACQUIRE to a request that is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The fencing token.
    pub token: i64,
    /// The owner's hold count.
    pub holds: i64,
}

/// The reply of LOCK.INFO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// The `SLOTS` of the lock: the smallest `SLOTS` of its holders; 0 if all holders are `SHARED`.
    pub slots: i64,
    /// The sum of the holders' weights.
    pub weight: i64,
    /// The number of holders.
    pub holding: i64,
    /// The first holders.
    pub holders: Vec<Holder>,
    /// The number of waiters.
    pub waiters: i64,
    /// The first waiters, if requested.
    pub queue: Option<Vec<Waiter>>,
}

/// A holder in LOCK.INFO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The name of the owner.
    pub owner: String,
    /// The owner's hold count.
    pub holds: i64,
    /// The tenure's fencing token.
    pub token: i64,
    /// The `SLOTS` of the tenure; 0 for `SHARED`.
    pub slots: i64,
    /// The weight of the tenure.
    pub weight: i64,
    /// The milliseconds until the lease ends.
    pub lease_left: i64,
    /// The milliseconds since the first hold of the tenure.
    pub held_for: i64,
}

impl Holder {
    /// Owner, holds and token: the fields that are the same on a replica and after a restart.
    pub fn tenure(&self) -> (&str, i64, i64) {
        (&self.owner, self.holds, self.token)
    }

    /// The owner, its holds and its mode: `A x1 SHARED` or `B x2 SLOTS 5 WEIGHT 2`.
    pub fn described(&self) -> String {
        let Self { owner, holds, slots, weight, .. } = self;
        match slots {
            0 => format!("{owner} x{holds} SHARED"),
            _ => format!("{owner} x{holds} SLOTS {slots} WEIGHT {weight}"),
        }
    }
}

/// A waiter in LOCK.INFO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// The owner that waits.
    pub owner: String,
    /// The `SLOTS` in the request; 0 for `SHARED`.
    pub slots: i64,
    /// The weight in the request.
    pub weight: i64,
    /// The id of the waiting connection.
    pub client_id: i64,
    /// The milliseconds since the wait began.
    pub waited: i64,
    /// The milliseconds until the wait limit is reached; -1 without a limit.
    pub wait_left: i64,
}

impl Reply {
    /// The reply as a grant of LOCK.ACQUIRE, an array of three integers: token, holds and lease.
    #[track_caller]
    pub fn grant(&self) -> Grant {
        match self.items() {
            [Self::Int(token), Self::Int(holds), Self::Int(_)] => Grant { token: *token, holds: *holds },
            _ => panic!("no grant: {self:?}"),
        }
    }

    /// The rest of the lease in milliseconds, as stated in the reply of LOCK.ACQUIRE.
    #[track_caller]
    pub fn granted_lease(&self) -> i64 {
        self.grant();
        self.items()[2].int()
    }

    /// The decoded reply of LOCK.INFO.
    #[track_caller]
    pub fn info(&self) -> Info {
        let int = |map: &Self, name: &str| map.field(name).int();
        let holder = |map: &Self| Holder {
            owner: map.field("owner").text(),
            holds: int(map, "holds"),
            token: int(map, "token"),
            slots: int(map, "slots"),
            weight: int(map, "weight"),
            lease_left: int(map, "lease-left"),
            held_for: int(map, "held-for"),
        };
        let waiter = |map: &Self| Waiter {
            owner: map.field("owner").text(),
            slots: int(map, "slots"),
            weight: int(map, "weight"),
            client_id: int(map, "client-id"),
            waited: int(map, "waited"),
            wait_left: int(map, "wait-left"),
        };
        Info {
            slots: int(self, "slots"),
            weight: int(self, "weight"),
            holding: int(self, "holding"),
            holders: self.field("holders").items().iter().map(holder).collect(),
            waiters: int(self, "waiters"),
            queue: self.find("queue").map(|queue| queue.items().iter().map(waiter).collect()),
        }
    }
}

impl Server {
    /// A server on which A holds `lock` and B waits for `lock` without limit. Also returns the connections of A and B.
    #[track_caller]
    pub fn start_contended() -> (Self, Client, Client) {
        Setup::new().start_contended()
    }

    /// A new connection that waits for a held lock by a request such as `"lock B BLOCK 0"`.
    #[track_caller]
    pub fn waiter(&self, request: &str) -> Client {
        let key = request.split(' ').next().unwrap_or_default();
        let mut observer = self.client();
        let before = observer.info(key).unwrap_or_else(|| panic!("nobody holds {key}")).waiters;
        let mut waiter = self.client();
        waiter.ask(request);
        observer.see_waiters(key, before + 1);
        waiter
    }

    /// New connections that wait for a held lock without limit. The connections queue in the given order.
    #[track_caller]
    pub fn waiters<const N: usize>(&self, key: &str, owners: [&str; N]) -> [Client; N] {
        owners.map(|owner| self.waiter(&format!("{key} {owner} BLOCK 0")))
    }
}

impl Setup {
    /// Starts a server with this setup, on which A holds `lock` and B waits for `lock` without limit. Also returns the
    /// connections of A and B.
    #[track_caller]
    pub fn start_contended(self) -> (Server, Client, Client) {
        let server = self.start();
        let mut a = server.client();
        a.acquire("lock A PX 600000");
        let b = server.waiter("lock B BLOCK 0");
        (server, a, b)
    }
}

impl Client {
    /// Acquires a lock that is free or held by this owner, by a request such as `"lock A PX 1000"`.
    #[track_caller]
    pub fn acquire(&mut self, request: &str) -> Grant {
        self.call(format!("LOCK.ACQUIRE {request}")).grant()
    }

    /// Sends LOCK.ACQUIRE without waiting for the reply.
    #[track_caller]
    pub fn ask(&mut self, request: &str) {
        self.send(format!("LOCK.ACQUIRE {request}"));
    }

    /// The reply of LOCK.INFO; `None` when the lock is free.
    #[track_caller]
    pub fn info(&mut self, key: &str) -> Option<Info> {
        let reply = self.call(["LOCK.INFO", key]);
        (!reply.is_null()).then(|| reply.info())
    }

    /// The only holder of a lock.
    #[track_caller]
    pub fn holder(&mut self, key: &str) -> Holder {
        let mut info = self.info(key).unwrap_or_else(|| panic!("no lock: {key}"));
        assert_eq!(info.holders.len(), 1, "one holder: {info:?}");
        info.holders.remove(0)
    }

    /// All holders of a lock, in the order of their grants: `A x1 SHARED` or `B x2 SLOTS 5 WEIGHT 2`. The list is empty
    /// when the lock is free.
    #[track_caller]
    pub fn holders(&mut self, key: &str) -> Vec<String> {
        let reply = self.call(["LOCK.INFO", key, "HOLDERS", "10000000"]);
        if reply.is_null() {
            Vec::new()
        } else {
            reply.info().holders.iter().map(Holder::described).collect()
        }
    }

    /// Waits until [`Client::holders`] returns these holders.
    #[track_caller]
    pub fn see_holders<const N: usize>(&mut self, key: &str, holders: [&str; N]) {
        eventually(&format!("{holders:?} hold {key}"), || self.holders(key) == holders);
    }

    /// The number of kept places: `lock_places_kept` in INFO.
    #[track_caller]
    pub fn places_kept(&mut self) -> i64 {
        self.stat("lock", "lock_places_kept")
    }

    /// Waits until the server has this number of kept places.
    #[track_caller]
    pub fn see_places_kept(&mut self, count: i64) {
        eventually(&format!("{count} places are kept"), || self.places_kept() == count);
    }

    /// The owner of a lock; `None` when the lock is free.
    #[track_caller]
    pub fn owner(&mut self, key: &str) -> Option<String> {
        self.info(key).map(|info| info.holders[0].owner.clone())
    }

    /// The owners that wait for a lock, in the order of the wait queue.
    #[track_caller]
    pub fn queue(&mut self, key: &str) -> Vec<String> {
        let reply = self.call(["LOCK.INFO", key, "WAITERS", "1000000"]);
        if reply.is_null() {
            return Vec::new();
        }
        reply.info().queue.expect("a queue").into_iter().map(|waiter| waiter.owner).collect()
    }

    /// The first waiter for a held lock.
    #[track_caller]
    pub fn first_waiter(&mut self, key: &str) -> Waiter {
        let info = self.call(["LOCK.INFO", key, "WAITERS", "1"]).info();
        info.queue.expect("a queue").into_iter().next().unwrap_or_else(|| panic!("nobody waits for {key}"))
    }

    /// Sets a memory limit until the server has evicted the key, and then removes the limit. The server may evict other
    /// keys with an expiry too.
    #[track_caller]
    pub fn evict(&mut self, key: &str) {
        self.call("CONFIG SET maxmemory-policy volatile-random");
        self.call("CONFIG SET maxmemory 1");
        eventually("the lock is evicted", || {
            self.call("SET filler value");
            self.call(["EXISTS", key]) == Reply::Int(0)
        });
        assert!(self.stat("stats", "evicted_keys") > 0);
        self.call("CONFIG SET maxmemory 0");
        self.call("CONFIG SET maxmemory-policy noeviction");
    }

    /// Waits until a held lock has this many waiters.
    #[track_caller]
    pub fn see_waiters(&mut self, key: &str, count: i64) {
        eventually(&format!("{count} waiters for {key}"), || {
            self.info(key).is_some_and(|info| info.waiters == count)
        });
    }

    /// Waits until this many clients of the server are blocked.
    #[track_caller]
    pub fn see_blocked(&mut self, count: i64) {
        eventually(&format!("{count} blocked clients"), || self.stat("clients", "blocked_clients") == count);
    }
}
