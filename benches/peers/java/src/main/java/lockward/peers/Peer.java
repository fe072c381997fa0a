package lockward.peers;

import java.util.concurrent.Callable;
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

    interface Lock {
        /** Waits until the client holds the lock. */
        void acquire() throws Exception;

        void release() throws Exception;

        /** A lock from two functions. The function that releases gets the result of the function that acquires. */
        static <T> Lock of(Callable<T> acquire, Release<T> release) {
            return new Lock() {
                private T held;

                @Override
                public void acquire() throws Exception {
                    held = acquire.call();
                }

                @Override
                public void release() throws Exception {
                    release.release(held);
                }
            };
        }

        static Lock of(java.util.concurrent.locks.Lock lock) {
            return of(
                    () -> {
                        lock.lockInterruptibly();
                        return lock;
                    },
                    java.util.concurrent.locks.Lock::unlock);
        }

        static Lock of(ReadWriteLock lock, boolean isWriter) {
            return of(isWriter ? lock.writeLock() : lock.readLock());
        }
    }

    /** Releases what a client holds. */
    interface Release<T> {
        void release(T held) throws Exception;
    }
}
