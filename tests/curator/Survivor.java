import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.RetryForever;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.Op;
import org.apache.zookeeper.OpResult;
import org.apache.zookeeper.Watcher.Event.EventType;
import org.apache.zookeeper.Watcher.Event.KeeperState;
import org.apache.zookeeper.ZooDefs.Ids;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.data.Stat;

/**
 * A client that uses Curator, and below it ZooKeeper's own client, of a server that is killed again
 * and again.
 *
 * <pre>Survivor NAME HOST:PORT TIMEOUT_MS WRITERS</pre>
 *
 * What it does and says is told in tests/recipes/kill/line.rs. It ends when its stdin ends.
 */
public class Survivor {
    /** How many numbers after a znode was made it is deleted. */
    private static final int LIFETIME = 19;

    private final String name;
    private final CuratorFramework client;
    private final FileOutputStream out = new FileOutputStream(FileDescriptor.out);
    private volatile boolean over;
    private boolean hasEnded;
    private volatile CountDownLatch connected = new CountDownLatch(1);
    /** The session that is believed in, and when the last request was sent that proves it. */
    private long session;
    private long proved = System.nanoTime();
    /** The session whose ephemeral znode was made. */
    private long atHomeIn;

    private interface Task {
        void run() throws Exception;
    }

    public static void main(String[] args) throws Exception {
        Survivor survivor = new Survivor(args[0], args[1], Integer.parseInt(args[2]));
        Thread[] writing = new Thread[Integer.parseInt(args[3])];
        for (int number = 0; number < writing.length; number++) {
            int writer = number;
            writing[number] = survivor.start(() -> survivor.write(writer));
        }
        survivor.start(survivor::contend);
        survivor.start(survivor::watch);
        while (System.in.read() >= 0) {
            // Only its end is of interest.
        }
        survivor.over = true;
        for (Thread thread : writing) {
            thread.join();
        }
        survivor.say("ended");
        survivor.client.close();
        Runtime.getRuntime().halt(0);
    }

    private Survivor(String name, String hosts, int timeout) throws Exception {
        this.name = name;
        client = CuratorFrameworkFactory.newClient(hosts, timeout, 60_000, new RetryForever(50));
        client.getConnectionStateListenable().addListener((unused, state) -> listen(state));
        client.start();
        client.blockUntilConnected();
    }

    private void say(Object... words) throws Exception {
        StringBuilder line = new StringBuilder(name);
        for (Object word : words) {
            line.append(' ').append(word);
        }
        // One write: it is whole, and in order with what other processes write.
        synchronized (out) {
            if (!hasEnded) {
                out.write(line.append('\n').toString().getBytes());
                hasEnded = words[0].equals("ended");
            }
        }
    }

    private Thread start(Task task) {
        Thread thread = new Thread(() -> {
            try {
                task.run();
            } catch (Throwable failure) {
                if (!over) {
                    failure.printStackTrace();
                    quietly(() -> say("failed", failure));
                }
            }
        });
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    private static void quietly(Task task) {
        try {
            task.run();
        } catch (Exception failure) {
            throw new IllegalStateException(failure);
        }
    }

    private synchronized void listen(ConnectionState state) {
        long silent = (System.nanoTime() - proved) / 1_000_000;
        quietly(() -> {
            if (state.isConnected()) {
                long now = handle().getSessionId();
                if (now == session) {
                    say("back", session, silent);
                }
                session = now;
                connected.countDown();
                return;
            }
            if (connected.getCount() == 0) {
                connected = new CountDownLatch(1);
            }
            if (session == 0 || over) {
                return;
            }
            if (state == ConnectionState.SUSPENDED) {
                say("away", session);
            } else {
                say("lost", session, silent);
                session = 0;
                proved = System.nanoTime();
            }
        });
    }

    private synchronized long session() {
        return session;
    }

    private synchronized void prove(long sent) {
        proved = Math.max(proved, sent);
    }

    /** ZooKeeper's own client: nothing is repeated there. */
    private ZooKeeper handle() throws Exception {
        return client.getZookeeperClient().getZooKeeper();
    }

    // Writing.

    private void write(int number) throws Exception {
        String home = "/work/" + name + "/" + number;
        for (String znode : List.of("counter", "pair")) {
            make(home + "/" + znode);
        }
        for (int step = 0; !over; ) {
            connected.await();
            ZooKeeper handle;
            try {
                handle = handle();
            } catch (KeeperException nothingWasSent) {
                continue;
            }
            long sent = System.nanoTime();
            try {
                long[] done = step(handle, home, step);
                say("done", number, step, done[0], done[1]);
                prove(sent);
            } catch (KeeperException.NoNodeException refused) {
                say("refused", number, step);
            } catch (KeeperException unknown) {
                if (!isUnknown(unknown)) {
                    throw unknown;
                }
                say("unknown", number, step);
            }
            step++;
        }
    }

    private static boolean isUnknown(KeeperException failure) {
        switch (failure.code()) {
            case CONNECTIONLOSS:
            case OPERATIONTIMEOUT:
            case SESSIONEXPIRED:
                return true;
            default:
                return false;
        }
    }

    private long[] step(ZooKeeper handle, String home, int step) throws Exception {
        byte[] data = Integer.toString(step).getBytes();
        Stat stat = new Stat();
        switch (step % 4) {
            case 0:
                handle.create(home + "/n-" + step, data, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT, stat);
                return new long[] {stat.getCzxid(), -1};
            case 2:
                List<OpResult> results = handle.multi(List.of(
                    Op.setData(home + "/pair", data, -1),
                    Op.create(home + "/m-" + step, data, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT)));
                stat = ((OpResult.SetDataResult) results.get(0)).getStat();
                return new long[] {stat.getMzxid(), stat.getVersion()};
            case 3:
                if (step >= LIFETIME) {
                    handle.delete(home + "/n-" + (step - LIFETIME), -1);
                    return new long[] {-1, -1};
                }
                // fall through
            default:
                stat = handle.setData(home + "/counter", data, -1);
                return new long[] {stat.getMzxid(), stat.getVersion()};
        }
    }

    private void make(String path) throws Exception {
        try {
            client.create().creatingParentsIfNeeded().forPath(path, "-1".getBytes());
        } catch (KeeperException.NodeExistsException isThere) {
            // Its own, whose answer was lost.
        }
    }

    // The lock.

    private static class Lock extends InterProcessMutex {
        Lock(CuratorFramework client) {
            super(client, "/lock");
        }

        String znode() {
            return getLockPath();
        }
    }

    private void contend() throws Exception {
        Lock lock = new Lock(client);
        while (!over) {
            try {
                lock.acquire();
                hold(lock.znode());
            } catch (KeeperException failure) {
                if (!isUnknown(failure)) {
                    throw failure;
                }
            } finally {
                if (lock.isOwnedByCurrentThread()) {
                    release(lock);
                }
            }
        }
    }

    private void release(Lock lock) throws Exception {
        try {
            lock.release();
        } catch (KeeperException failure) {
            if (!isUnknown(failure)) {
                throw failure;
            }
        }
    }

    private void hold(String znode) throws Exception {
        Stat stat = client.checkExists().forPath(znode);
        if (stat == null || stat.getEphemeralOwner() != session()) {
            return;
        }
        say("held", stat.getEphemeralOwner(), stat.getCzxid());
        try {
            passGate(stat.getEphemeralOwner(), stat.getCzxid());
        } finally {
            say("left", stat.getEphemeralOwner(), stat.getCzxid());
        }
    }

    /** Does what the lock protects: shows the token. */
    private void passGate(long in, long token) throws Exception {
        while (true) {
            Stat stat = new Stat();
            byte[] data = client.getData().storingStatIn(stat).forPath("/gate");
            if (Long.parseLong(new String(data)) >= token) {
                return;
            }
            try {
                client.setData().withVersion(stat.getVersion()).forPath("/gate", Long.toString(token).getBytes());
                say("shown", in, token);
                return;
            } catch (KeeperException.BadVersionException changed) {
                // Its own change, whose answer was lost; or it holds no more.
            }
        }
    }

    // The bell, and what must live as long as the session.

    private void watch() throws Exception {
        while (!over) {
            connected.await();
            // Of this watch alone: those of a session before say nothing of it.
            LinkedBlockingQueue<EventType> events = new LinkedBlockingQueue<>();
            try {
                long in = session();
                Stat stat = new Stat();
                handle().getData("/bell", event -> {
                    // A watch stays through a broken connection, and goes with its session.
                    if (event.getType() != EventType.None || event.getState() == KeeperState.Expired
                        || event.getState() == KeeperState.Closed) {
                        events.add(event.getType());
                    }
                }, stat);
                say("saw", in, stat.getVersion());
                while (!isHome()) {
                    // The watch stays armed.
                }
                if (events.take() != EventType.None) {
                    say("fired", in);
                }
            } catch (KeeperException failure) {
                if (!isUnknown(failure)) {
                    throw failure;
                }
            }
        }
    }

    /** Whether that could be told; a znode of the session before is waited out first. */
    private boolean isHome() throws Exception {
        connected.await();
        try {
            return over || lookHome();
        } catch (KeeperException failure) {
            if (!isUnknown(failure)) {
                throw failure;
            }
            return false;
        }
    }

    private boolean lookHome() throws Exception {
        long in = session();
        if (in == 0) {
            return false;
        }
        String path = "/alive/" + name;
        if (atHomeIn != in) {
            try {
                handle().create(path, new byte[0], Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL);
            } catch (KeeperException.NodeExistsException isThere) {
                // Its own, whose answer was lost; or of the session before.
            }
        }
        CountDownLatch changed = new CountDownLatch(1);
        Stat stat = handle().exists(path, event -> changed.countDown());
        if (in != session()) {
            return false;
        }
        if (atHomeIn != in && (stat == null || stat.getEphemeralOwner() != in)) {
            changed.await();
            return false;
        }
        atHomeIn = in;
        say("alive", in, stat == null ? 0 : stat.getCzxid());
        return true;
    }
}
