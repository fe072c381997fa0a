//! Asks whether servers answer, and which ones are primaries.

use crate::address::Deployment;
use crate::attempts::Attempts;
use crate::cluster::read_primaries;
use crate::connections::ConnectionKind;
use crate::error::Error;
use crate::servers::Servers;
use redis::{ConnectionInfo, cmd};
use std::time::Instant;

impl Servers {
    /// Waits until a server answers, as long as the client's patience.
    pub(crate) async fn reach(&self) -> Result<(), Error> {
        self.patient_attempts().request(&cmd("PING")).await.map(drop)
    }

    /// All primaries. See [`Client::primaries`](crate::Client::primaries).
    pub(crate) async fn primaries(&self) -> Result<Vec<ConnectionInfo>, Error> {
        let mut attempts = self.patient_attempts();
        match &self.deployment {
            Deployment::Server(info) => Ok(vec![info.clone()]),
            Deployment::Sentinels { .. } => loop {
                match self.node_for(b"").await {
                    Ok(node) => return Ok(vec![node.info.clone()]),
                    Err(error) => {
                        let error = attempts.classify(None, error);
                        attempts.wait_to_retry(error).await?;
                    }
                }
            },
            Deployment::Cluster(_) => {
                let slots = cmd("CLUSTER").arg("SLOTS").to_owned();
                loop {
                    // The reply may leave out the host of the node that sends it, so the node is fixed before. If it does
                    // not answer, the attempt forgets it, and the next one asks another node.
                    let node = self.assign(self.slot(b""), self.node_for(b"").await?);
                    if let Some(reply) = attempts.attempt(&mut ConnectionKind::Shared, &slots).await? {
                        return read_primaries(reply, &node.info);
                    }
                }
            }
        }
    }

    fn patient_attempts(&self) -> Attempts<'_> {
        self.attempts(b"", Instant::now() + self.settings.patience)
    }
}
