//! Readers, and permits of a semaphore.

use crate::{client, granted};
use futures_util::future::join_all;
use lockward_client::{Error, Lock};
use lockward_tests::Server;

#[tokio::test(flavor = "multi_thread")]
async fn readers_hold_a_lock_together_and_a_writer_waits() {
    let mut server = Server::start_with("quarantine 60000");
    server.client().call("CONFIG SET lock.quarantine 0");
    let client = client(&server).await;
    let reading = client.lock("k").shared();
    let readers = [reading.clone(), reading.clone()].map(Lock::try_acquire);
    let readers = join_all(readers).await.into_iter().map(|reader| reader.expect("a guard"));
    let readers: Vec<_> = readers.collect();
    // The server forgets the readers, and restores them as readers.
    server.kill_and_start_again();
    for reader in &readers {
        reader.renew().await.expect("a renewal");
        reader.re_enter().await.expect("a guard").release().await.expect("a release");
    }
    let mut observer = server.client();
    observer.call("CONFIG SET lock.quarantine 0");
    let writer = tokio::spawn(client.lock("k").acquire());
    observer.see_waiters("k", 1);
    let overtaking = reading.try_acquire().await;
    assert!(matches!(overtaking, Err(Error::Busy)), "{overtaking:?}");
    assert_eq!(observer.info("k").expect("a lock").holders.len(), 2);
    for reader in readers {
        reader.release().await.expect("a release");
    }
    granted(writer).await.release().await.expect("a release");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_of_three_permits() {
    let server = Server::start();
    let client = client(&server).await;
    let permits = |weight| client.lock("k").slots(3).weight(weight).try_acquire();
    let two = permits(2).await.expect("a guard");
    let one = client.lock("k").slots(3).try_acquire().await.expect("a guard");
    assert!(matches!(permits(1).await, Err(Error::Busy)));
    two.release().await.expect("a release");
    let two = permits(2).await.expect("a guard");
    for guard in [one, two] {
        guard.release().await.expect("a release");
    }
    assert!(matches!(permits(4).await, Err(Error::Invalid(_))));
}
