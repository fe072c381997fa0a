//! Requests that replicas must confirm.

use crate::mutex::locked;
use crate::servers::{Awaited, Inner, Node};
use crate::time::millis;
use futures_util::future::{BoxFuture, FutureExt};
use redis::aio::MultiplexedConnection;
use redis::{Pipeline, RedisResult, Value, pipe};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{OnceCell, OwnedSemaphorePermit};
use tokio::task::yield_now;

/// The requests of one call that replicas must confirm. The requests to a node share a pipeline that ends with WAIT, on a
/// connection of its own: on the shared connection, WAIT would delay the requests of other calls.
pub(crate) struct Replication {
    /// How many replicas must confirm the requests, and within which time.
    pub(crate) wanted: (usize, Duration),
    /// The permit to open connections, which this call gives back when this value is dropped.
    pub(crate) permit: OnceCell<OwnedSemaphorePermit>,
    /// The pipelines that are not sent yet.
    batches: Mutex<Vec<Batch>>,
}

/// A pipeline to a node.
struct Batch {
    node: Arc<Node>,
    connection: Awaited<MultiplexedConnection>,
    /// `None` when the pipeline is sent.
    pipeline: Arc<Mutex<Option<Pipeline>>>,
    replies: Awaited<Arc<[Value]>>,
}

impl Replication {
    pub(crate) fn new(wanted: (usize, Duration)) -> Arc<Self> {
        Arc::new(Self { wanted, permit: OnceCell::new(), batches: Mutex::default() })
    }

    /// Adds the commands of a request to the next pipeline to a node. Returns the connection, and the replies to the last
    /// of these commands and to WAIT.
    pub(crate) fn join(
        &self,
        client: &Inner,
        node: &Arc<Node>,
        commands: &Pipeline,
    ) -> (Awaited<MultiplexedConnection>, BoxFuture<'static, RedisResult<Vec<Value>>>) {
        let mut batches = locked(&self.batches);
        let has_failed = |batch: &Batch| matches!(batch.connection.peek(), Some(Err(_)));
        batches.retain(|batch| locked(&batch.pipeline).is_some() && !has_failed(batch));
        let open = batches.iter().position(|batch| Arc::ptr_eq(&batch.node, node));
        let batch = match open {
            Some(at) => batches.swap_remove(at),
            None => self.begin(client, Arc::clone(node)),
        };
        let at = locked(&batch.pipeline).as_mut().map_or(0, |pipeline| {
            commands.cmd_iter().for_each(|command| _ = pipeline.add_command(command.clone()));
            pipeline.len() - 1
        });
        let (connection, replies) = (batch.connection.clone(), batch.replies.clone());
        batches.push(batch);
        let replied = async move {
            // The other requests of the call join the pipeline before it is sent.
            yield_now().await;
            let replies = replies.await?;
            Ok(replies.get(at).into_iter().chain(replies.last()).cloned().collect())
        };
        (connection, replied.boxed())
    }

    fn begin(&self, client: &Inner, node: Arc<Node>) -> Batch {
        let (connection, pipeline) = (client.own(&node), Arc::new(Mutex::new(Some(pipe()))));
        let (count, within) = self.wanted;
        let (at, opening, unsent) = (Arc::clone(&node), connection.clone(), Arc::clone(&pipeline));
        // This future is polled, and the pipeline is sent, when the first request waits for its reply.
        let replies = async move {
            let mut open = opening.clone().await?;
            let mut pipeline = locked(&unsent).take().unwrap_or_default();
            // For WAIT, a time of 0 means no limit.
            pipeline.cmd("WAIT").arg(count).arg(millis(within).max(1));
            let replies = open.send_packed_commands(&pipeline, 0, pipeline.len()).await?;
            at.keep_idle(opening);
            Ok(replies.into())
        };
        Batch { node, connection, pipeline, replies: replies.boxed().shared() }
    }
}
