package lockward.peers;

import java.util.concurrent.locks.ReadWriteLock;

/** A lock library, connected to its server. */
interface Peer {
    /** Returns the lock of this name for one client. Only the client's thread calls the methods of the lock. */
    Lock lock(String name, Job job, int client) throws Exception;

    /** The version of the library. */
    String version();

    /** The important defaults and peculiarities, for the table. */
    String notes();

    /** A lock. */
    interface Lock {
        /** Waits until the client holds the lock. */
        void acquire() throws Exception;

        void release() throws Exception;

        static Lock of(java.util.concurrent.locks.Lock lock) {
            return new Lock() {
                @Override
                public void acquire() throws InterruptedException {
                    lock.lockInterruptibly();
                }

                @Override
                public void release() {
                    lock.unlock();
                }
            };
        }

        static Lock of(ReadWriteLock lock, boolean isWriter) {
            return of(isWriter ? lock.writeLock() : lock.readLock());
        }
    }
}
