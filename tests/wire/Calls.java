// Every kind of call that ZooKeeper's own Java client has, once or twice: java Calls HOST:PORT.
// A line "cut" on stdout asks whoever holds the wire to break the connections; the program goes on
// when the client is connected again. See record.py.

import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import org.apache.zookeeper.AddWatchMode;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.Op;
import org.apache.zookeeper.WatchedEvent;
import org.apache.zookeeper.Watcher;
import org.apache.zookeeper.ZooDefs.Ids;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.admin.ZooKeeperAdmin;
import org.apache.zookeeper.data.Stat;

public final class Calls {
    private static final byte[] DATA = "some data".getBytes();

    /** A watcher that keeps what it is told. */
    private static final class Seen extends LinkedBlockingQueue<WatchedEvent> implements Watcher {
        @Override
        public void process(WatchedEvent event) {
            add(event);
        }

        void await(Event.KeeperState state) throws InterruptedException {
            while (take().getState() != state) {
                continue;
            }
        }
    }

    private interface Call {
        void run() throws Exception;
    }

    private static void fails(Call call) throws Exception {
        try {
            call.run();
        } catch (KeeperException expected) {
            return;
        }
        throw new AssertionError("a call that should fail did not");
    }

    private static Seen states;

    private static ZooKeeper connect(String hosts) throws Exception {
        states = new Seen();
        ZooKeeper client = new ZooKeeper(hosts, 30_000, states);
        states.await(Watcher.Event.KeeperState.SyncConnected);
        return client;
    }

    private static void sync(ZooKeeper client, String path) throws InterruptedException {
        CountDownLatch done = new CountDownLatch(1);
        client.sync(path, (code, at, context) -> done.countDown(), null);
        done.await();
    }

    private static void cut(ZooKeeper client) throws Exception {
        states.clear();
        System.out.println("cut");
        System.out.flush();
        states.await(Watcher.Event.KeeperState.Disconnected);
        states.await(Watcher.Event.KeeperState.SyncConnected);
        // Behind the setWatches.
        client.exists("/", false);
    }

    public static void main(String[] arguments) throws Exception {
        String hosts = arguments[0];
        nodes(hosts);
        standardWatches(hosts);
        persistentWatches(hosts);
        try (ZooKeeperAdmin admin = new ZooKeeperAdmin(hosts, 30_000, new Seen())) {
            admin.addAuthInfo("digest", "user:secret".getBytes());
            fails(() -> admin.reconfigure("server.5=localhost:1:2;3", null, null, -1, new Stat()));
        }
        // The client's threads are daemons, but for this.
        System.exit(0);
    }

    private static void nodes(String hosts) throws Exception {
        ZooKeeper client = connect(hosts);
        client.addAuthInfo("digest", "user:secret".getBytes());
        client.create("/java", DATA, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        fails(() -> client.create("/java", DATA, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT));
        fails(() -> client.create("/no/java", DATA, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT));
        Stat stat = new Stat();
        String entry = client.create(
            "/java/e-", DATA, Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL_SEQUENTIAL, stat);
        client.create("/java/own", DATA, Ids.CREATOR_ALL_ACL, CreateMode.PERSISTENT);
        client.create("/java/c", DATA, Ids.OPEN_ACL_UNSAFE, CreateMode.CONTAINER, stat);
        client.create(
            "/java/t", DATA, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT_WITH_TTL, stat, 3_600_000);
        client.create("/java/ts-", DATA, Ids.OPEN_ACL_UNSAFE,
            CreateMode.PERSISTENT_SEQUENTIAL_WITH_TTL, stat, 3_600_000);
        fails(() -> client.create(entry + "/x", DATA, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT));
        client.exists("/java", false);
        client.exists("/java/missing", false);
        client.getData("/java", false, stat);
        fails(() -> client.getData("/java/missing", false, stat));
        client.setData("/java", "é ü €".getBytes("UTF-8"), 0);
        fails(() -> client.setData("/java", DATA, 7));
        client.getChildren("/java", false);
        client.getChildren("/java", false, stat);
        client.getChildren(entry, false);
        client.getACL("/java/own", stat);
        client.setACL("/java/own", Ids.READ_ACL_UNSAFE, 0);
        fails(() -> client.setACL("/java/own", Ids.READ_ACL_UNSAFE, 0));
        fails(() -> client.create("/java/bad", DATA, List.of(), CreateMode.PERSISTENT));
        sync(client, "/java");
        client.getEphemerals();
        client.getEphemerals("/java/e");
        client.getAllChildrenNumber("/java");
        client.whoAmI();
        client.multi(Arrays.asList(
            Op.check("/java", 1),
            Op.create("/java/m", DATA, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT),
            Op.create("/java/mc", DATA, Ids.OPEN_ACL_UNSAFE, CreateMode.CONTAINER),
            Op.create("/java/mt", DATA, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT_WITH_TTL, 3_600_000),
            Op.setData("/java/m", "other".getBytes(), 0),
            Op.delete("/java/m", 1)));
        fails(() -> client.multi(Arrays.asList(
            Op.check("/java", 1),
            Op.delete("/java/missing", -1),
            Op.delete("/java", -1))));
        client.multi(Arrays.asList(
            Op.getData("/java"), Op.getChildren("/java"), Op.getData("/java/missing")));
        fails(() -> client.delete("/java", -1));
        client.delete("/java/c", -1);
        client.close();
    }

    private static void standardWatches(String hosts) throws Exception {
        ZooKeeper client = connect(hosts);
        ZooKeeper other = connect(hosts);
        Seen data = new Seen();
        Seen exists = new Seen();
        Seen children = new Seen();
        client.create("/java/w", DATA, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        client.getData("/java/w", data, null);
        client.exists("/java/w/later", exists);
        client.getChildren("/java/w", children);
        client.setData("/java/w", DATA, -1);
        client.create("/java/w/later", DATA, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        data.take();
        exists.take();
        children.take();
        // The server judges these anew when the client comes back.
        client.getData("/java/w", data, null);
        client.getData("/java/own", data, null);
        client.exists("/java/w/much-later", exists);
        client.exists("/java/w/never", exists);
        client.getChildren("/java/w", children);
        client.getChildren("/java/t", children);
        states = new Seen();
        client.register(states);
        cut(client);
        other.setData("/java/w", DATA, -1);
        data.take();
        other.close();
        client.getData("/java/w", data, null);
        client.getChildren("/java/w", true);
        client.delete("/java/w/later", -1);
        client.removeWatches("/java/own", data, Watcher.WatcherType.Data, false);
        // Two watchers of a path: the first that goes is only checked.
        Seen second = new Seen();
        client.getData("/java/w", second, null);
        client.removeWatches("/java/w", second, Watcher.WatcherType.Data, false);
        client.removeAllWatches("/java/w", Watcher.WatcherType.Any, false);
        client.close();
    }

    private static void persistentWatches(String hosts) throws Exception {
        ZooKeeper client = connect(hosts);
        Seen one = new Seen();
        Seen tree = new Seen();
        client.create("/java/p", DATA, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        client.addWatch("/java/p", one, AddWatchMode.PERSISTENT);
        client.addWatch("/java/t", tree, AddWatchMode.PERSISTENT_RECURSIVE);
        client.getData("/java/p", true, null);
        client.create("/java/p/x", DATA, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        client.create("/java/t/x", DATA, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        client.setData("/java/t/x", DATA, -1);
        one.take();
        tree.take();
        states = new Seen();
        client.register(states);
        cut(client);
        client.delete("/java/p/x", -1);
        client.delete("/java/t/x", -1);
        one.take();
        tree.take();
        client.removeWatches("/java/p", one, Watcher.WatcherType.Any, false);
        client.close();
    }
}
