package dev.lockward.spring;

import dev.lockward.HeldLock;
import dev.lockward.LockLostException;
import dev.lockward.LockwardClient;
import dev.lockward.LockwardException;
import java.time.Duration;
import java.util.Objects;
import java.util.Optional;
import net.javacrumbs.shedlock.core.AbstractSimpleLock;
import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.support.LockException;

/**
 * A lock provider for ShedLock. {@code lockAtMostFor} is the lease, which the client does not renew. The server keeps the lock for {@code
 * lockAtLeastFor} even if the task ends earlier. Both times are measured on monotonic clocks, so the wall clocks of the machines may
 * differ.
 *
 * <p>Each execution of a task is a different owner, independent of the thread. So two executions of a task never hold the lock at the same
 * time, even if one thread runs both executions.
 */
public final class LockwardLockProvider implements ExtensibleLockProvider {
    private static final System.Logger LOGGER = System.getLogger(LockwardLockProvider.class.getName());

    private final LockwardClient client;
    private final String prefix;

    /**
     * A provider of a client's locks.
     *
     * @param prefix the prefix of all keys on the server
     */
    public LockwardLockProvider(LockwardClient client, String prefix) {
        this.client = Objects.requireNonNull(client);
        this.prefix = Objects.requireNonNull(prefix);
    }

    /**
     * Acquires a lock if it is free.
     *
     * @throws LockException when the server replies with an error, or no server answers within the client's patience, or the thread is
     *     interrupted
     */
    @Override
    public Optional<SimpleLock> lock(LockConfiguration configuration) {
        long asked = System.nanoTime();
        try {
            return client.request(prefix + configuration.getName())
                    .lease(configuration.getLockAtMostFor())
                    .renewal(false)
                    .tryAcquire(Duration.ZERO)
                    .map(held -> new Execution(configuration, held, asked));
        } catch (LockwardException error) {
            throw new LockException("Unable to lock " + configuration.getName(), error);
        } catch (InterruptedException interrupt) {
            Thread.currentThread().interrupt();
            throw new LockException("Interrupted, so " + configuration.getName() + " is not locked", interrupt);
        }
    }

    private static final class Execution extends AbstractSimpleLock {
        private final HeldLock held;
        private final long begun;

        Execution(LockConfiguration configuration, HeldLock held, long begun) {
            super(configuration);
            this.held = held;
            this.begun = begun;
        }

        @Override
        protected void doUnlock() {
            Duration rest = lockConfiguration.getLockAtLeastFor().minusNanos(System.nanoTime() - begun);
            try {
                if (rest.isNegative() || rest.isZero()) {
                    held.release();
                } else {
                    held.releaseAfter(rest);
                }
            } catch (LockLostException lost) {
                warn(lost);
            } catch (LockwardException error) {
                if (!leaseIsOver()) {
                    throw new LockException("Unable to unlock " + lockConfiguration.getName(), error);
                }
                warn(error);
            }
        }

        private static void warn(Exception error) {
            LOGGER.log(
                    System.Logger.Level.WARNING, "another process may have run the same task: " + error.getMessage());
        }

        private boolean leaseIsOver() {
            Duration lease = lockConfiguration.getLockAtMostFor();
            // The client counts the lease as over so much earlier.
            Duration drift = lease.dividedBy(1_000).plusMillis(1);
            return System.nanoTime() - begun >= lease.minus(drift).toNanos();
        }

        @Override
        protected Optional<SimpleLock> doExtend(LockConfiguration wanted) {
            long asked = System.nanoTime();
            try {
                held.renew(wanted.getLockAtMostFor());
                return Optional.of(new Execution(wanted, held, asked));
            } catch (LockLostException lost) {
                return Optional.empty();
            } catch (LockwardException error) {
                throw new LockException("Unable to extend " + lockConfiguration.getName(), error);
            }
        }
    }
}
