/**
 * Auto-configuration for Spring Boot: a {@link dev.lockward.LockwardClient}, a lock registry for Spring Integration, and a lock
 * provider for ShedLock.
 */
@NullMarked
package dev.lockward.spring;

import org.jspecify.annotations.NullMarked;
