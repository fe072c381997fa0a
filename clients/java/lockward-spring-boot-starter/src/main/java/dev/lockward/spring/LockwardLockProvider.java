package dev.lockward.spring;

import dev.lockward.LockLostException;
import dev.lockward.LockwardClient;
import dev.lockward.LockwardException;
import dev.lockward.Tenure;
import java.time.Duration;
import java.util.Objects;
import java.util.Optional;
import net.javacrumbs.shedlock.core.AbstractSimpleLock;
import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.support.LockException;

/**
 * A lock provider for ShedLock. {@code lockAtMostFor} is the lease, which is not renewed. The server keeps the lock for {@code
 * lockAtLeastFor} even if the task ends earlier. Both are counted on monotonic clocks, so wall clocks need not agree.
 *
 * <p>The execution of a task holds a lock, not a thread: two executions in one thread exclude each other, too.
 */
public final class LockwardLockProvider implements ExtensibleLockProvider {
    private static final System.Logger LOGGER = System.getLogger(LockwardLockProvider.class.getName());

    private final LockwardClient client;
    private final String prefix;

    /**
     * A provider of a client's locks.
     *
     * @param prefix the prefix of all names in the keys on the server
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
            return client.tryAcquire(prefix + configuration.getName(), Duration.ZERO, configuration.getLockAtMostFor())
                    .map(tenure -> new Execution(configuration, tenure, asked));
        } catch (LockwardException error) {
            throw new LockException("Unable to lock " + configuration.getName(), error);
        } catch (InterruptedException interrupt) {
            Thread.currentThread().interrupt();
            throw new LockException("Interrupted, so " + configuration.getName() + " is not locked", interrupt);
        }
    }

    private static final class Execution extends AbstractSimpleLock {
        private final Tenure tenure;
        private final long begun;

        Execution(LockConfiguration configuration, Tenure tenure, long begun) {
            super(configuration);
            this.tenure = tenure;
            this.begun = begun;
        }

        @Override
        protected void doUnlock() {
            Duration rest = lockConfiguration.getLockAtLeastFor().minusNanos(System.nanoTime() - begun);
            try {
                if (rest.isNegative() || rest.isZero()) {
                    tenure.release();
                } else {
                    tenure.releaseAfter(rest);
                }
            } catch (LockLostException lost) {
                LOGGER.log(
                        System.Logger.Level.WARNING,
                        "another process may have run the same task: " + lost.getMessage());
            } catch (LockwardException error) {
                throw new LockException("Unable to unlock " + lockConfiguration.getName(), error);
            }
        }

        @Override
        protected Optional<SimpleLock> doExtend(LockConfiguration wanted) {
            long asked = System.nanoTime();
            try {
                tenure.renew(wanted.getLockAtMostFor());
                return Optional.of(new Execution(wanted, tenure, asked));
            } catch (LockLostException lost) {
                return Optional.empty();
            } catch (LockwardException error) {
                throw new LockException("Unable to extend " + lockConfiguration.getName(), error);
            }
        }
    }
}
