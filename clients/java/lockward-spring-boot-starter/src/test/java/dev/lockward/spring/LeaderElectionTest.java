package dev.lockward.spring;

import static dev.lockward.Server.eventually;

import dev.lockward.LockwardClient;
import dev.lockward.Server;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.springframework.integration.leader.Context;
import org.springframework.integration.leader.DefaultCandidate;
import org.springframework.integration.support.leader.LockRegistryLeaderInitiator;

/** Spring Integration's leader election, with a lock of the registry. */
class LeaderElectionTest {
    private static final Server SERVER = Server.shared();

    private final String role = UUID.randomUUID().toString();
    private final List<LockwardClient> clients = new ArrayList<>();
    private final List<LockRegistryLeaderInitiator> candidates = new ArrayList<>();

    /** Starts three candidates, each with its own client. */
    @BeforeEach
    void start() {
        for (int i = 0; i < 3; i++) {
            LockwardClient client = SERVER.client();
            LockRegistryLeaderInitiator candidate = new LockRegistryLeaderInitiator(
                    new LockwardLockRegistry(client, ""), new DefaultCandidate("" + i, role));
            candidate.setHeartBeatMillis(1_000); // the heartbeat is also the wait limit of tryLock
            candidate.setBusyWaitMillis(10);
            candidate.setApplicationEventPublisher(event -> {});
            candidate.start();
            clients.add(client);
            candidates.add(candidate);
        }
    }

    @AfterEach
    void stop() {
        candidates.forEach(LockRegistryLeaderInitiator::stop);
        eventually(() -> leaders().isEmpty());
        clients.forEach(LockwardClient::close);
    }

    private List<LockRegistryLeaderInitiator> leaders() {
        return candidates.stream()
                .filter(candidate -> candidate.getContext().isLeader())
                .toList();
    }

    private LockRegistryLeaderInitiator leader() {
        eventually(() -> leaders().size() == 1);
        return leaders().get(0);
    }

    @Test
    void anotherCandidateIsElectedWhenTheLeaderStops() {
        LockRegistryLeaderInitiator first = leader();
        first.stop();
        eventually(() -> leaders().size() == 1 && leaders().get(0) != first);
        LockRegistryLeaderInitiator second = leader();
        second.stop();
        eventually(() -> leaders().size() == 1
                && !List.of(first, second).contains(leaders().get(0)));
    }

    @Test
    void aLeaderWhoseLockIsBrokenMustBeElectedAgain() {
        Context before = leader().getContext();
        String owner = SERVER.owner(role);
        SERVER.call("DEL", role);
        // Any candidate may acquire the lock, in a new tenure.
        eventually(() -> !List.of("", owner).contains(SERVER.owner(role)));
        // The previous leader notices the loss at its next renewal at the latest.
        eventually(() -> {
            List<LockRegistryLeaderInitiator> now = leaders();
            return now.size() == 1 && (now.get(0).getContext() == before) == before.isLeader();
        });
    }

    @Test
    void aLeaderCanYield() {
        LockRegistryLeaderInitiator first = leader();
        eventually(() -> {
            // Usually the other candidates are in the queue, so one of them is elected.
            first.getContext().yield();
            return leaders().size() == 1 && leaders().get(0) != first;
        });
    }
}
