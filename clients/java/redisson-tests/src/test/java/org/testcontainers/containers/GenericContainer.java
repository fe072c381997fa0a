package org.testcontainers.containers;

/** What Redisson's tests start and stop, and ask for its port. Here it is a server on this machine. */
public abstract class GenericContainer<T> {
    public abstract void start();

    public abstract void stop();

    public abstract int getFirstMappedPort();
}
