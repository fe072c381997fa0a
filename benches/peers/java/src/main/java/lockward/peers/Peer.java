package lockward.peers;

import java.util.concurrent.Callable;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.ReadWriteLock;

/**
 * A lock library, connected to its server.
 *
 * @param library the name of the library in versions.properties
 * @param notes the important defaults and peculiarities, for the table
 * @param locks the locks of the library
 */
record Peer(String library, String notes, Locks locks) {
    interface Locks {
        /** Returns the lock of this name for one client. Only the client's thread calls the methods of the lock. */
        Lock lock(String name, Job job, int client) throws Exception;
    }

    interface Action {
        void run() throws Exception;
    }

    /** Two functions: one waits until the client holds the lock, and the other releases the lock. */
    record Lock(Action acquire, Action release) {
        static Lock of(java.util.concurrent.locks.Lock lock) {
            return new Lock(lock::lockInterruptibly, lock::unlock);
        }

        static Lock of(ReadWriteLock lock, boolean isWriter) {
            return of(isWriter ? lock.writeLock() : lock.readLock());
        }

        /** A lock whose release gets the result of its acquisition. */
        static <T> Lock of(Callable<T> acquire, Release<T> release) {
            AtomicReference<T> held = new AtomicReference<>();
            return new Lock(() -> held.set(acquire.call()), () -> release.release(held.get()));
        }
    }

    /** Releases what a client holds. */
    interface Release<T> {
        void release(T held) throws Exception;
    }
}
