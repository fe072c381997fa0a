/**
 * Locks on Redis and Valkey servers with the Lockward module. They implement {@link java.util.concurrent.locks.Lock}.
 *
 * <p>{@link dev.lockward.LockwardClient} connects to the servers. {@link dev.lockward.LockwardLock} is a lock that threads hold.
 * {@link dev.lockward.HeldLock} is a lock that an object holds, independent of threads.
 */
@NullMarked
package dev.lockward;

import org.jspecify.annotations.NullMarked;
