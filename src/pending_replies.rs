//! Replies that have been decided but not sent, to clients whose wait has ended.
//!
//! A wait ends with a decision. The client gets its reply at the end of the iteration of the event loop. If the client
//! leaves before the reply, the hold that the reply grants is *passed on*: the module takes the hold back and serves
//! the next waiters. Between the decision and the reply, the server runs other commands and the callbacks of other
//! modules. Meanwhile the client may disconnect, or another client may send CLIENT KILL or CLIENT UNBLOCK.
//!
//! ```text
//! waiting  -- decided -->  pending  -- the client is there --> answered
//!    |                        |
//!    | the client leaves      | the client leaves
//!    v                        v
//!   gone                gone; a hold that the client was granted is passed on
//! ```
//!
//! A reply is added within the decision, so at every moment a client is either in its wait queue or in
//! [`PendingReplies`]. A reply is found by the handle of its client, which the server frees only after the reply has
//! been taken out.
//!
//! While replies are pending, the module records two kinds of event for each fencing token. The first kind is a
//! repeated request: its owner keeps the hold, even if the client that asked first has left. The second kind is RENAME
//! or MOVE: the hold is passed on under the new name of the lock.

use crate::server::BlockedClient;
use lockward_core::{ById, Completion, Db, FencingToken, Lock, LockName, Outcome, Owner, Waiter};
use std::collections::{HashMap, VecDeque};

/// The reply to a client whose wait has ended.
pub struct PendingReply {
    pub client: BlockedClient,
    /// The owner that waited.
    pub owner: Owner,
    /// How the wait has ended.
    pub outcome: Outcome,
    /// The present name of the lock, if the wait has ended with a decision on the lock. `None` after the owner has
    /// repeated its request, and so keeps the hold: see [`PendingReplies::claim`].
    lock: Option<LockName>,
    /// The place in the queue, which is kept for the owner if the client leaves before the reply; `None` without KEEP.
    pub place: Option<Waiter<BlockedClient>>,
    /// The number of this reply, in the order in which the waits ended.
    number: u64,
}

impl PendingReply {
    /// The tenure, if the reply grants a hold.
    fn granted(&self) -> Option<FencingToken> {
        if let Outcome::Granted(grant) = self.outcome
            && grant.counted
        {
            Some(grant.token)
        } else {
            None
        }
    }

    /// The lock and the tenure, if the reply grants a hold that must be passed on if the client has left.
    pub fn to_pass_on(&self) -> Option<(&LockName, FencingToken)> {
        self.lock.as_ref().zip(self.granted())
    }
}

/// All pending replies, and the holds to pass on.
#[derive(Default)]
pub struct PendingReplies {
    replies: HashMap<BlockedClient, PendingReply, ById>,
    /// The replies that grant a hold, and whose clients left before the reply was sent.
    undelivered: VecDeque<PendingReply>,
    decisions: u64,
    /// For each tenure whose owner has repeated its request: the number of the last reply at that time. Holds from
    /// replies up to this number are not passed on.
    claimed: HashMap<FencingToken, u64, ById>,
    /// For each tenure whose lock was renamed or moved: the present name of the lock.
    moved: HashMap<FencingToken, LockName, ById>,
}

impl PendingReplies {
    /// Adds the reply for a client that has left its wait queue. The caller must unblock the client afterwards, once.
    /// `lock` is the lock that the client may have been granted.
    pub fn add(&mut self, completion: Completion<BlockedClient>, lock: Option<LockName>) -> BlockedClient {
        self.decisions = self.decisions.wrapping_add(1);
        let Completion { waiter, outcome } = completion;
        let place = waiter.place();
        let (client, owner) = (waiter.wait_request.handle, waiter.wait_request.request.owner);
        let reply = PendingReply { client, owner, outcome, lock, place, number: self.decisions };
        self.replies.insert(client, reply);
        client
    }

    /// Removes and returns the reply for a client.
    pub fn take(&mut self, client: BlockedClient) -> Option<PendingReply> {
        const KEPT: usize = 64;
        let mut reply = self.replies.remove(&client)?;
        self.update(&mut reply);
        if self.replies.is_empty() {
            self.replies.shrink_to(KEPT);
            self.forget_if_empty();
        }
        Some(reply)
    }

    /// The caller has taken a reply, but the client has left. If the reply grants a hold, the hold must be passed on.
    pub fn leave_undelivered(&mut self, reply: PendingReply) {
        if reply.to_pass_on().is_some() {
            self.undelivered.push_back(reply);
        }
    }

    /// Takes a hold that is to be passed on.
    pub fn next_undelivered(&mut self) -> Option<PendingReply> {
        while let Some(mut next) = self.undelivered.pop_front() {
            self.update(&mut next);
            if next.lock.is_some() {
                return Some(next);
            }
        }
        self.forget_if_empty();
        None
    }

    /// Records in a reply whether its owner has repeated the request, and which name its lock has now.
    fn update(&self, reply: &mut PendingReply) {
        if let Some(token) = reply.granted() {
            if self.claimed.get(&token).is_some_and(|claimed| reply.number <= *claimed) {
                reply.lock = None;
            } else if let Some(lock) = self.moved.get(&token) {
                reply.lock = Some(lock.clone());
            }
        }
    }

    /// Puts back a hold that cannot be passed on now.
    pub fn put_back(&mut self, undelivered: PendingReply) {
        self.undelivered.push_back(undelivered);
    }

    /// Whether holds are to be passed on.
    pub fn has_undelivered(&self) -> bool {
        !self.undelivered.is_empty()
    }

    /// Whether no reply is pending and no hold is to be passed on.
    pub fn is_empty(&self) -> bool {
        self.replies.is_empty() && self.undelivered.is_empty()
    }

    /// The owner of a tenure has repeated its request and got the reply that it holds the lock. The owner keeps every
    /// hold that was granted so far, even if the client that asked for the hold has left without a reply.
    #[inline]
    pub fn claim(&mut self, token: FencingToken) {
        if !self.is_empty() {
            self.claimed.insert(token, self.decisions);
        }
    }

    /// A lock has another name now. The lock may have very many holders, and there may be many replies. So this
    /// function visits the fewer of the two.
    pub fn moved(&mut self, lock: &Lock, to: &LockName) {
        let here = |token| (token, to.clone());
        if lock.holders().len() <= self.replies.len().saturating_add(self.undelivered.len()) {
            self.moved.extend(lock.holders().map(|holder| here(holder.token)));
        } else {
            let replies = self.replies.values().chain(&self.undelivered);
            let tokens = replies.filter_map(PendingReply::granted);
            self.moved.extend(tokens.filter(|token| lock.of_token(*token).is_some()).map(here));
        }
    }

    pub fn swap(&mut self, one: Db, other: Db) {
        let replies = self.replies.values_mut().chain(&mut self.undelivered);
        let locks = replies.filter_map(|reply| reply.lock.as_mut()).chain(self.moved.values_mut());
        locks.for_each(|(db, _)| *db = db.swapped(one, other));
    }

    /// Drops the holds to pass on, because this server is not a primary any more.
    pub fn drop_undelivered(&mut self) {
        self.undelivered.clear();
        self.forget_if_empty();
    }

    /// Forgets the records about tenures if nothing is pending.
    fn forget_if_empty(&mut self) {
        if self.is_empty() {
            self.claimed = HashMap::default();
            self.moved = HashMap::default();
        }
    }
}
