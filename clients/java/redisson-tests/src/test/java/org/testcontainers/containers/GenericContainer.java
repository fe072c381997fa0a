package org.testcontainers.containers;

/** The part of a container that Redisson's tests use. Here it is a server on this machine. */
public abstract class GenericContainer<T> {
    public abstract void start();

    public abstract void stop();

    public abstract int getFirstMappedPort();
}
