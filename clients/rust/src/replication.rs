//! Requests that replicas must confirm.

use crate::mutex::locked;
use crate::servers::{Awaited, Inner, Node};
use crate::time::millis;
use futures_util::future::FutureExt;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, Value, pipe};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{OnceCell, OwnedSemaphorePermit};

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
#[derive(Clone)]
pub(crate) struct Batch {
    node: Arc<Node>,
    pub(crate) connection: Awaited<MultiplexedConnection>,
    /// `None` when the pipeline is sent.
    pipeline: Arc<Mutex<Option<Pipeline>>>,
    /// The last reply is the reply to WAIT.
    pub(crate) replies: Awaited<Arc<[Value]>>,
}

impl Replication {
    pub(crate) fn new(wanted: (usize, Duration)) -> Arc<Self> {
        Arc::new(Self { wanted, permit: OnceCell::new(), batches: Mutex::default() })
    }

    /// Adds commands to the next pipeline to a node. Returns the pipeline, and the number of its commands before them.
    pub(crate) fn join(
        &self,
        client: &Inner,
        node: &Arc<Node>,
        commands: impl Iterator<Item = Cmd>,
    ) -> (Batch, usize) {
        let mut batches = locked(&self.batches);
        batches.retain(|batch| {
            locked(&batch.pipeline).is_some() && !matches!(batch.connection.peek(), Some(Err(_)))
        });
        let open = batches.iter().find(|batch| Arc::ptr_eq(&batch.node, node)).cloned();
        let batch = open.unwrap_or_else(|| {
            let batch = self.begin(client, Arc::clone(node));
            batches.push(batch.clone());
            batch
        });
        let mut pipeline = locked(&batch.pipeline);
        let pipeline = pipeline.get_or_insert_with(pipe);
        let before = pipeline.len();
        commands.for_each(|command| _ = pipeline.add_command(command));
        (batch.clone(), before)
    }

    fn begin(&self, client: &Inner, node: Arc<Node>) -> Batch {
        let connection = client.own(&node);
        let pipeline = Arc::new(Mutex::new(Some(pipe())));
        let (count, within) = self.wanted;
        let (at, opening, unsent) = (Arc::clone(&node), connection.clone(), Arc::clone(&pipeline));
        // This future is polled, and the pipeline is sent, when the first request waits for its reply.
        let replies = async move {
            let mut open = opening.clone().await?;
            let mut pipeline = locked(&unsent).take().unwrap_or_default();
            // For WAIT, a time of 0 means no limit.
            pipeline.cmd("WAIT").arg(count).arg(millis(within).max(1));
            let replies = open.send_packed_commands(&pipeline, 0, pipeline.len()).await?;
            at.keep_idle(Some(opening));
            Ok(replies.into())
        };
        Batch { node, connection, pipeline, replies: replies.boxed().shared() }
    }
}
