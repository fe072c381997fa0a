package lockward.peers;

import java.util.concurrent.locks.ReadWriteLock;

/** A lock library, connected to its server. */
interface Peer {
    /** A lock by its name, as a client uses it in a job: all calls come from the client's own thread. */
    Lock lock(String name, Job job, int client) throws Exception;

    /** The version of the library. */
    String version();

    /** The defaults that matter, and whatever is peculiar. */
    String notes();

    /** A lock. */
    interface Lock {
        /** Waits until it is ours. */
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
