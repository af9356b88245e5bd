import java.util.List;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.zookeeper.AddWatchMode;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.Watcher;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.ZooKeeper;

/** Connections that break and servers that restart, under Curator and ZooKeeper's own Java client. */
public class CuratorSessions extends Checks {
    private static CuratorFramework other;

    public static void main(String[] args) throws Exception {
        other = started(builder(WIRE));
        run("watches over a break", CuratorSessions::watchesOverABreak);
        run("many watches", CuratorSessions::manyWatches);
        run("taking over", CuratorSessions::takingOver);
        run("restarts", CuratorSessions::restarts);
        end();
    }

    private static CuratorFramework watched(Told states) throws Exception {
        CuratorFramework client = builder(WIRE).build();
        client.getConnectionStateListenable().addListener((self, state) -> states.tell(state.toString()));
        client.start();
        client.blockUntilConnected();
        states.await("states", ConnectionState.CONNECTED.toString());
        return client;
    }

    /** Each kind of watch, of what changes while the connection is away and of what does not. */
    private static void watchesOverABreak() throws Exception {
        Told states = new Told();
        CuratorFramework client = watched(states);
        CuratorFramework direct = connect();
        long session = client.getZookeeperClient().getZooKeeper().getSessionId();
        for (String which : List.of("changed", "same")) {
            for (String path : List.of("data", "gone", "children", "kept/child", "flat", "tree/below")) {
                direct.create().creatingParentsIfNeeded().forPath("/" + which + "/" + path);
            }
        }
        client.create().withMode(CreateMode.EPHEMERAL).forPath("/mine");
        Told changed = new Told(), same = new Told(), flat = new Told(), tree = new Told();
        for (String which : List.of("changed", "same")) {
            Watcher told = which.equals("same") ? same : changed;
            client.getData().usingWatcher(told).forPath("/" + which + "/data");
            client.getData().usingWatcher(told).forPath("/" + which + "/gone");
            client.checkExists().usingWatcher(told).forPath("/" + which + "/new");
            client.getChildren().usingWatcher(told).forPath("/" + which + "/children");
        }
        for (String which : List.of("changed", "same")) {
            client.watchers().add().withMode(AddWatchMode.PERSISTENT).usingWatcher((Watcher) flat)
                .forPath("/" + which + "/flat");
            client.watchers().add().withMode(AddWatchMode.PERSISTENT_RECURSIVE).usingWatcher((Watcher) tree)
                .forPath("/" + which + "/tree");
        }
        order("cut");
        states.await("it breaks", "SUSPENDED");
        direct.setData().forPath("/changed/data", "1".getBytes());
        direct.delete().forPath("/changed/gone");
        direct.create().forPath("/changed/new");
        direct.create().forPath("/changed/children/x");
        direct.setData().forPath("/changed/flat", "1".getBytes());
        direct.setData().forPath("/changed/tree/below", "1".getBytes());
        order("heal");
        states.await("and comes back", "RECONNECTED");
        until("what changed is told", 4, () -> changed.seen().size());
        check("of each", sorted(changed), List.of("NodeChildrenChanged /changed/children", "NodeCreated /changed/new",
            "NodeDataChanged /changed/data", "NodeDeleted /changed/gone"));
        check("the session", client.getZookeeperClient().getZooKeeper().getSessionId() == session, true);
        check("the ephemeral", direct.checkExists().forPath("/mine").getEphemeralOwner() == session, true);
        client.sync().forPath("/");
        check("what is the same is not told", same.seen(), List.of());
        check("persistent watches missed it", List.of(flat.seen(), tree.seen()), List.of(List.of(), List.of()));
        direct.setData().forPath("/same/data", "1".getBytes());
        direct.delete().forPath("/same/gone");
        direct.create().forPath("/same/new");
        direct.create().forPath("/same/children/x");
        same.await("all are armed again", "NodeDataChanged /same/data", "NodeDeleted /same/gone", "NodeCreated /same/new",
            "NodeChildrenChanged /same/children");
        for (String which : List.of("changed", "same")) {
            direct.setData().forPath("/" + which + "/flat", "2".getBytes());
            direct.create().forPath("/" + which + "/flat/x");
            direct.create().forPath("/" + which + "/tree/below/x");
            direct.setData().forPath("/" + which + "/tree", "2".getBytes());
        }
        flat.await("persistent ones too", "NodeDataChanged /changed/flat", "NodeChildrenChanged /changed/flat",
            "NodeDataChanged /same/flat", "NodeChildrenChanged /same/flat");
        tree.await("and recursive ones", "NodeCreated /changed/tree/below/x", "NodeDataChanged /changed/tree",
            "NodeCreated /same/tree/below/x", "NodeDataChanged /same/tree");
        direct.setData().forPath("/changed/data", "2".getBytes());
        client.sync().forPath("/");
        check("what was told is over", changed.seen().size(), 4);
        client.close();
        direct.close();
    }

    private static List<String> sorted(Told told) {
        List<String> seen = told.seen();
        seen.sort(null);
        return seen;
    }

    /** So many that the client arms them again by several requests. */
    private static void manyWatches() throws Exception {
        Told states = new Told(), told = new Told();
        CuratorFramework client = watched(states);
        CuratorFramework direct = connect();
        String folder = "/many/" + "x".repeat(100);
        direct.create().creatingParentsIfNeeded().forPath(folder);
        int count = 3000;
        Told armed = new Told();
        for (int number = 0; number < count; number++) {
            client.checkExists().usingWatcher(told).inBackground((self, event) -> armed.tell("one"))
                .forPath(folder + "/" + number);
        }
        until("armed", count, () -> armed.seen().size());
        order("cut");
        states.await("it breaks", "SUSPENDED");
        direct.create().forPath(folder + "/7");
        direct.create().forPath(folder + "/2999");
        order("heal");
        states.await("and comes back", "RECONNECTED");
        until("those two are told", 2, () -> told.seen().size());
        check("which", sorted(told).toString().replace("x", ""), "[NodeCreated /many//2999, NodeCreated /many//7]");
        direct.create().forPath(folder + "/1000");
        until("the others are armed", 3, () -> told.seen().size());
        client.close();
        direct.close();
    }

    /** ZooKeeper's own client with the id and password of a session. */
    private static void takingOver() throws Exception {
        Told first = new Told(), second = new Told(), third = new Told();
        CuratorFramework direct = connect();
        ZooKeeper one = new ZooKeeper(WIRE, 50_000, event -> first.tell(event.getState().toString()));
        first.await("one", "SyncConnected");
        one.create("/over", new byte[0], ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL);
        ZooKeeper two = new ZooKeeper(HOSTS, 20_000, event -> second.tell(event.getState().toString()),
            one.getSessionId(), one.getSessionPasswd());
        second.awaitLast("two", "SyncConnected");
        check("the same session", two.getSessionId() == one.getSessionId(), true);
        until("the first is dropped", true, () -> first.seen().contains("Disconnected"));
        byte[] wrong = one.getSessionPasswd().clone();
        wrong[3] ^= 1;
        ZooKeeper three = new ZooKeeper(HOSTS, 50_000, event -> third.tell(event.getState().toString()),
            one.getSessionId(), wrong);
        third.await("a wrong password", "Expired");
        three.close();
        check("the session is there", direct.checkExists().forPath("/over").getEphemeralOwner() == one.getSessionId(), true);
        // Each throws out the other, until one stays away.
        order("cut");
        until("the second keeps it", true, () -> isThere(two, "/over"));
        Told gone = new Told();
        direct.checkExists().usingWatcher(gone).forPath("/over");
        two.close();
        gone.await("closed by one", "NodeDeleted /over");
        order("heal");
        until("the other learns it", true, () -> first.seen().contains("Expired") || first.seen().contains("Closed"));
        one.close();
        direct.close();
    }

    private static boolean isThere(ZooKeeper zk, String path) throws Exception {
        try {
            return zk.exists(path, false) != null;
        } catch (KeeperException.ConnectionLossException lost) {
            return false;
        }
    }

    private static void restarts() throws Exception {
        Told states = new Told(), told = new Told();
        CuratorFramework client = watched(states);
        long session = client.getZookeeperClient().getZooKeeper().getSessionId();
        long before = 0;
        for (String end : List.of("stop", "kill")) {
            client.create().forPath("/" + end, "before".getBytes());
            client.create().withMode(CreateMode.EPHEMERAL).forPath("/" + end + "/e");
            client.getData().usingWatcher(told).forPath("/" + end);
            client.getChildren().usingWatcher(told).forPath("/" + end);
            client.checkExists().usingWatcher(told).forPath("/" + end + "/new");
            client.watchers().add().withMode(AddWatchMode.PERSISTENT).usingWatcher((Watcher) told).forPath("/" + end + "/e");
            order(end);
            states.await("it breaks", "SUSPENDED");
            order("start");
            states.await("and comes back", "RECONNECTED");
            check("the session", client.getZookeeperClient().getZooKeeper().getSessionId() == session, true);
            check("the data", new String(client.getData().forPath("/" + end)), "before");
            check("the ephemeral", client.checkExists().forPath("/" + end + "/e").getEphemeralOwner() == session, true);
            client.setData().forPath("/" + end, "after".getBytes());
            client.setData().forPath("/" + end + "/e", "after".getBytes());
            client.create().forPath("/" + end + "/new");
            told.await("watches fire", "NodeDataChanged /" + end, "NodeDataChanged /" + end + "/e",
                "NodeCreated /" + end + "/new", "NodeChildrenChanged /" + end);
            long now = client.checkExists().forPath("/" + end + "/new").getCzxid();
            check("zxids grow", now > before, true);
            before = now;
        }
        client.close();
        until("closing takes the ephemerals along", null, () -> other.checkExists().forPath("/stop/e"));
        other.close();
    }
}
