package dev.lockward.spring;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.lockward.LockwardClient;
import dev.lockward.Server;
import java.time.Duration;
import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.test.support.AbstractExtensibleLockProviderIntegrationTest;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** ShedLock's own tests for lock providers. */
class ShedlockConformanceTest extends AbstractExtensibleLockProviderIntegrationTest {
    private static final Server SERVER = Server.shared();
    private static final LockwardClient CLIENT = SERVER.client();

    /** Loads the classes. On a busy machine this takes longer than the leases of these tests. */
    @BeforeAll
    static void load() {
        assertThat(new LockwardLockProvider(CLIENT, "load:").lock(lockConfig("load")))
                .isNotEmpty();
        assertTrue(SERVER.isLocked("load:load"));
    }

    @AfterAll
    static void close() {
        CLIENT.close();
    }

    /** Runs ShedLock's test with a longer lease than ShedLock's 50 ms. */
    @Test
    @Override
    public void shouldTimeout() throws InterruptedException {
        doTestTimeout(Duration.ofSeconds(1));
    }

    @Override
    protected ExtensibleLockProvider getLockProvider() {
        return new LockwardLockProvider(CLIENT, "conformance:");
    }

    @Override
    protected void assertUnlocked(String name) {
        assertFalse(SERVER.isLocked("conformance:" + name));
    }

    @Override
    protected void assertLocked(String name) {
        assertTrue(SERVER.isLocked("conformance:" + name));
    }
}
