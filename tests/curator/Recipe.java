import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.function.Consumer;
import java.util.stream.Collectors;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.framework.recipes.locks.PredicateResults;
import org.apache.curator.framework.recipes.locks.StandardLockInternalsDriver;
import org.apache.zookeeper.data.Stat;

/** One of Curator's recipes as it is, but for what it says. */
abstract class Recipe {
    static Recipe of(String kind, CuratorFramework client, String path, String[] words, Consumer<String> say)
        throws Exception {
        switch (kind) {
            case "mutex":
                return new Mutex(client, path, say);
            case "revocable":
                Mutex mutex = new Mutex(client, path, say);
                mutex.mutex.makeRevocable(asked -> say.accept("revocation"));
                return mutex;
            case "read":
                return new ReadWrite(client, path, false);
            case "write":
                return new ReadWrite(client, path, true);
            case "semaphore":
                return new Semaphore(client, path, Integer.parseInt(words[4]));
            case "latch":
                return new Latch(client, path, words.length > 4 ? words[4] : "");
            default:
                throw new IllegalArgumentException(kind);
        }
    }

    /** Waits, and returns the znodes by which it holds. */
    abstract List<String> acquire(int count) throws Exception;

    abstract void release() throws Exception;

    /** How it passes the gate. */
    String mark() {
        return "x";
    }

    /** How many may hold at a time. */
    int limit() {
        return 1;
    }

    String downgrade() throws Exception {
        throw new UnsupportedOperationException();
    }

    private static class Mutex extends Recipe {
        private final InterProcessMutex mutex;
        private final String path;
        private String znode;

        Mutex(CuratorFramework client, String path, Consumer<String> say) {
            this.path = path;
            mutex = new InterProcessMutex(client, path, new StandardLockInternalsDriver() {
                @Override
                public PredicateResults getsTheLock(CuratorFramework client, List<String> children, String mine, int max)
                    throws Exception {
                    PredicateResults results = super.getsTheLock(client, children, mine, max);
                    if (!results.getsTheLock()) {
                        say.accept("queued " + results.getPathToWatch());
                    }
                    znode = mine;
                    return results;
                }
            });
        }

        @Override
        List<String> acquire(int count) throws Exception {
            mutex.acquire();
            return List.of(path + "/" + znode);
        }

        @Override
        void release() throws Exception {
            mutex.release();
        }
    }

    private static class ReadWrite extends Recipe {
        private final CuratorFramework client;
        private final InterProcessReadWriteLock lock;
        private boolean writes;

        ReadWrite(CuratorFramework client, String path, boolean writes) {
            this.client = client;
            this.writes = writes;
            lock = new InterProcessReadWriteLock(client, path);
        }

        private InterProcessMutex side() {
            return writes ? lock.writeLock() : lock.readLock();
        }

        @Override
        List<String> acquire(int count) throws Exception {
            side().acquire();
            return List.of(znode());
        }

        /** Its own znode: Curator 5.4 does not tell. */
        private String znode() throws Exception {
            long session = client.getZookeeperClient().getZooKeeper().getSessionId();
            for (String znode : side().getParticipantNodes()) {
                Stat stat = client.checkExists().forPath(znode);
                if (stat != null && stat.getEphemeralOwner() == session) {
                    return znode;
                }
            }
            throw new IllegalStateException("no znode of its own");
        }

        @Override
        String downgrade() throws Exception {
            lock.readLock().acquire();
            lock.writeLock().release();
            writes = false;
            return znode();
        }

        @Override
        void release() throws Exception {
            side().release();
        }

        @Override
        String mark() {
            return writes ? "x" : "s";
        }
    }

    private static class Semaphore extends Recipe {
        private final InterProcessSemaphoreV2 semaphore;
        private final int permits;
        private final String leases;
        private final List<Lease> held = new ArrayList<>();

        Semaphore(CuratorFramework client, String path, int permits) {
            this.permits = permits;
            leases = path + "/leases/";
            semaphore = new InterProcessSemaphoreV2(client, path, permits);
        }

        @Override
        List<String> acquire(int count) throws Exception {
            Collection<Lease> leases = semaphore.acquire(count);
            held.addAll(leases);
            return leases.stream().map(lease -> this.leases + lease.getNodeName()).collect(Collectors.toList());
        }

        @Override
        void release() {
            semaphore.returnAll(held);
            held.clear();
        }

        @Override
        String mark() {
            return "p";
        }

        @Override
        int limit() {
            return permits;
        }
    }

    private static class Latch extends Recipe {
        private final CuratorFramework client;
        private final String path;
        private final String id;
        private LeaderLatch latch;

        Latch(CuratorFramework client, String path, String id) {
            this.client = client;
            this.path = path;
            this.id = id;
        }

        @Override
        List<String> acquire(int count) throws Exception {
            // One that was closed cannot be started again.
            latch = new LeaderLatch(client, path, id);
            latch.start();
            latch.await();
            return List.of(latch.getOurPath());
        }

        @Override
        void release() throws Exception {
            latch.close();
        }
    }
}
