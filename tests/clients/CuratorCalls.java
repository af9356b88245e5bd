import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.stream.Collectors;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.api.transaction.CuratorOp;
import org.apache.curator.framework.api.transaction.CuratorTransactionResult;
import org.apache.zookeeper.AddWatchMode;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.Op;
import org.apache.zookeeper.OpResult;
import org.apache.zookeeper.Watcher;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.data.ACL;
import org.apache.zookeeper.data.Id;
import org.apache.zookeeper.data.Stat;

/** Every builder of Curator's framework, and the calls of ZooKeeper's own Java client beneath it. */
public class CuratorCalls extends Checks {
    private static CuratorFramework client;
    private static CuratorFramework other;

    public static void main(String[] args) throws Exception {
        client = connect();
        other = connect();
        run("creating", CuratorCalls::creating);
        run("reading and writing", CuratorCalls::readingAndWriting);
        run("transactions", CuratorCalls::transactions);
        run("background", CuratorCalls::background);
        run("rights", CuratorCalls::rights);
        run("watches", CuratorCalls::watches);
        run("persistent watches", CuratorCalls::persistentWatches);
        run("ZooKeeper's own", CuratorCalls::zookeeper);
        client.close();
        other.close();
        end();
    }

    private static void creating() throws Exception {
        check("parents", client.create().creatingParentsIfNeeded().forPath("/c/a/b", "x".getBytes()), "/c/a/b");
        raises("again", KeeperException.NodeExistsException.class, () -> client.create().forPath("/c/a/b"));
        raises("no parent", KeeperException.NoNodeException.class, () -> client.create().forPath("/c/no/x"));
        check("or set", client.create().orSetData().forPath("/c/a/b", "y".getBytes()), "/c/a/b");
        check("is set", client.checkExists().forPath("/c/a/b").getVersion(), 1);
        check("container parents", client.create().creatingParentContainersIfNeeded().forPath("/box/x"), "/box/x");
        for (CreateMode mode : CreateMode.values()) {
            Stat stat = new Stat();
            String path = mode.isTTL()
                ? client.create().withTtl(60_000).storingStatIn(stat).withMode(mode).forPath("/c/m-" + mode + "-")
                : client.create().storingStatIn(stat).withMode(mode).forPath("/c/m-" + mode + "-");
            check(mode.toString(), path + " " + shape(stat) + " " + (stat.getEphemeralOwner() != 0),
                "/c/m-" + mode + "-" + (mode.isSequential() ? String.format("%010d", mode.ordinal() + 1) : "")
                    + " version 0, cversion 0, aversion 0, 0 bytes, 0 children " + mode.isEphemeral());
        }
        String hidden = client.create().withProtection().withMode(CreateMode.EPHEMERAL_SEQUENTIAL).forPath("/c/p-");
        check("protection", hidden.replaceAll("_c_[-0-9a-f]{36}", "_c_UUID"), "/c/_c_UUID-p-0000000008");
        check("idempotent", client.create().idempotent().forPath("/c/i", "i".getBytes()), "/c/i");
        check("and again", client.create().idempotent().forPath("/c/i", "i".getBytes()), "/c/i");
        check("compressed", client.create().compressed().forPath("/c/z", new byte[10_000]), "/c/z");
        check("is smaller", client.checkExists().forPath("/c/z").getDataLength() < 1000, true);
        check("and comes back", client.getData().decompressed().forPath("/c/z").length, 10_000);
        client.createContainers("/c/con/tain/ers");
        check("createContainers", client.checkExists().forPath("/c/con/tain/ers") != null, true);
        check("creating parents while asking", client.checkExists().creatingParentsIfNeeded().forPath("/c/q/r"), null);
        check("made them", client.checkExists().forPath("/c/q") != null, true);
        check("namespace", client.usingNamespace("space").create().forPath("/n"), "/n");
        check("is outside", client.checkExists().forPath("/space/n") != null, true);
    }

    private static void readingAndWriting() throws Exception {
        Stat stat = new Stat();
        client.create().forPath("/r", "one".getBytes());
        check("getData", new String(client.getData().storingStatIn(stat).forPath("/r")), "one");
        check("its stat", shape(stat), "version 0, cversion 0, aversion 0, 3 bytes, 0 children");
        check("setData", shape(client.setData().withVersion(0).forPath("/r", "four".getBytes())),
            "version 1, cversion 0, aversion 0, 4 bytes, 0 children");
        raises("of a wrong version", KeeperException.BadVersionException.class,
            () -> client.setData().withVersion(0).forPath("/r"));
        check("idempotent", client.setData().idempotent().withVersion(1).forPath("/r", "x".getBytes()).getVersion(), 2);
        check("and again", client.setData().idempotent().withVersion(1).forPath("/r", "x".getBytes()).getVersion(), 2);
        raises("of nothing", KeeperException.NoNodeException.class, () -> client.getData().forPath("/none"));
        client.create().forPath("/r/a");
        client.create().forPath("/r/b");
        check("getChildren", client.getChildren().storingStatIn(stat).forPath("/r").stream().sorted()
            .collect(Collectors.toList()), List.of("a", "b"));
        check("and the stat", shape(stat), "version 2, cversion 2, aversion 0, 1 bytes, 2 children");
        raises("delete with children", KeeperException.NotEmptyException.class, () -> client.delete().forPath("/r"));
        raises("delete of a wrong version", KeeperException.BadVersionException.class,
            () -> client.delete().withVersion(7).forPath("/r/a"));
        client.delete().withVersion(0).forPath("/r/a");
        client.delete().quietly().forPath("/r/a");
        client.delete().idempotent().forPath("/r/a");
        client.delete().guaranteed().deletingChildrenIfNeeded().forPath("/r");
        check("all is gone", client.checkExists().forPath("/r"), null);
        client.sync().forPath("/");
        raises("reconfig", KeeperException.UnimplementedException.class,
            () -> client.reconfig().joining("server.1=localhost:1:2;3").forEnsemble());
        byte[] config = client.getConfig().forEnsemble();
        check("getConfig has no member", config == null || config.length == 0, true);
    }

    private static void transactions() throws Exception {
        List<CuratorTransactionResult> results = client.transaction().forOperations(
            client.transactionOp().create().forPath("/t", "t".getBytes()),
            client.transactionOp().create().withMode(CreateMode.PERSISTENT_SEQUENTIAL).forPath("/t/n-"),
            client.transactionOp().create().withMode(CreateMode.EPHEMERAL).forPath("/t/e"),
            client.transactionOp().create().withMode(CreateMode.CONTAINER).forPath("/t/box"),
            client.transactionOp().create().withTtl(60_000).withMode(CreateMode.PERSISTENT_WITH_TTL).forPath("/t/ttl"),
            client.transactionOp().setData().withVersion(0).forPath("/t", "more".getBytes()),
            client.transactionOp().check().withVersion(1).forPath("/t"),
            client.transactionOp().delete().forPath("/t/e"));
        check("results", results.stream().map(one -> one.getType() + " " + one.getResultPath() + " "
            + (one.getType().name().equals("SET_DATA") ? shape(one.getResultStat()) : "")).collect(Collectors.toList()),
            List.of("CREATE /t ", "CREATE /t/n-0000000000 ", "CREATE /t/e ", "CREATE null ", "CREATE null ",
                "SET_DATA null version 1, cversion 4, aversion 0, 4 bytes, 4 children", "CHECK null ", "DELETE null "));
        CuratorOp first = client.transactionOp().create().forPath("/t/first");
        CuratorOp wrong = client.transactionOp().check().withVersion(9).forPath("/t");
        CuratorOp last = client.transactionOp().delete().forPath("/t/none");
        raises("one that fails", KeeperException.BadVersionException.class,
            () -> client.transaction().forOperations(first, wrong, last));
        check("nothing came of it", client.checkExists().forPath("/t/first"), null);
        try {
            client.transaction().forOperations(first, last, wrong);
        } catch (KeeperException error) {
            check("each has its code", error.getResults().stream().map(one -> ((OpResult.ErrorResult) one).getErr())
                .collect(Collectors.toList()), List.of(0, -101, -2));
        }
    }

    private static void background() throws Exception {
        client.create().forPath("/b");
        int count = 300;
        CountDownLatch all = new CountDownLatch(count * 3);
        Told wrong = new Told();
        for (int number = 0; number < count; number++) {
            String path = "/b/" + number;
            byte[] data = path.getBytes();
            client.create().inBackground((self, event) -> {
                if (event.getResultCode() != 0 || !event.getName().equals(path)) wrong.tell(event.toString());
                all.countDown();
            }).forPath(path, data);
            client.getData().inBackground((self, event) -> {
                if (event.getResultCode() != 0 || !new String(event.getData()).equals(path)) wrong.tell(event.toString());
                all.countDown();
            }).forPath(path);
            client.checkExists().inBackground((self, event) -> {
                if (event.getResultCode() != KeeperException.Code.NONODE.intValue()) wrong.tell(event.toString());
                all.countDown();
            }).forPath(path + "/none");
        }
        all.await();
        check("wrong answers", wrong.seen(), List.of());
        check("all are there", client.getChildren().forPath("/b").size(), count);
        Told listener = new Told();
        client.getCuratorListenable().addListener((self, event) -> {
            if (event.getType().name().equals("SYNC") || event.getType().name().equals("CHILDREN")) {
                listener.tell(event.getType() + " " + event.getPath() + " " + event.getResultCode());
            }
        });
        client.sync().inBackground().forPath("/b");
        client.getChildren().inBackground().forPath("/none");
        listener.await("a listener", "SYNC /b 0", "CHILDREN /none -101");
        CountDownLatch done = new CountDownLatch(1);
        client.transaction().inBackground((self, event) -> {
            check("a transaction in the background", event.getOpResults().get(0).getResultPath(), "/b/t");
            done.countDown();
        }).forOperations(client.transactionOp().create().forPath("/b/t"));
        done.await();
    }

    private static void rights() throws Exception {
        CuratorFramework fred = started(builder(HOSTS).authorization("digest", "fred:secret".getBytes()));
        check("auth", fred.create().withACL(ZooDefs.Ids.CREATOR_ALL_ACL).forPath("/a", "a".getBytes()), "/a");
        List<ACL> list = fred.getACL().forPath("/a");
        check("getACL", list, List.of(new ACL(31, new Id("digest", "fred:lVt6OABBJX49qC19kt5J5OU3Neo="))));
        raises("another reads", KeeperException.NoAuthException.class, () -> client.getData().forPath("/a"));
        raises("another writes", KeeperException.NoAuthException.class, () -> client.setData().forPath("/a"));
        check("its own", new String(fred.getData().forPath("/a")), "a");
        check("setACL", shape(fred.setACL().withVersion(0).withACL(ZooDefs.Ids.READ_ACL_UNSAFE).forPath("/a")),
            "version 0, cversion 0, aversion 1, 1 bytes, 0 children");
        check("another reads", new String(client.getData().forPath("/a")), "a");
        raises("setACL of a wrong version", KeeperException.NoAuthException.class,
            () -> client.setACL().withVersion(9).withACL(ZooDefs.Ids.OPEN_ACL_UNSAFE).forPath("/a"));
        raises("a list that is none", KeeperException.InvalidACLException.class, () -> client.create()
            .withACL(Collections.singletonList(new ACL(31, new Id("none", "x")))).forPath("/a2"));
        check("whoAmI", fred.getZookeeperClient().getZooKeeper().whoAmI().stream()
            .map(one -> one.getAuthScheme() + ":" + one.getUser()).collect(Collectors.toList()),
            List.of("ip:127.0.0.1", "digest:fred"));
        fred.close();
    }

    private static void watches() throws Exception {
        Told data = new Told(), exists = new Told(), children = new Told();
        client.create().forPath("/w");
        client.getData().usingWatcher((Watcher) data).forPath("/w");
        client.checkExists().usingWatcher((Watcher) exists).forPath("/w/x");
        client.getChildren().usingWatcher((Watcher) children).forPath("/w");
        other.setData().forPath("/w", "1".getBytes());
        other.create().forPath("/w/x");
        data.await("data", "NodeDataChanged /w");
        exists.await("exists", "NodeCreated /w/x");
        children.await("children", "NodeChildrenChanged /w");
        client.getData().usingWatcher((Watcher) data).forPath("/w");
        client.getChildren().usingWatcher((Watcher) children).forPath("/w");
        client.checkExists().usingWatcher((Watcher) exists).forPath("/w");
        client.watches().remove(data).ofType(Watcher.WatcherType.Data).forPath("/w");
        data.await("removed, and told so", "DataWatchRemoved /w");
        other.setData().forPath("/w", "2".getBytes());
        exists.await("the other on the same path stays", "NodeDataChanged /w");
        client.watches().removeAll().forPath("/w");
        children.await("all removed", "ChildWatchRemoved /w");
        raises("none is left", KeeperException.NoWatcherException.class, () -> {
            client.watches().removeAll().forPath("/w");
            return null;
        });
        client.watches().removeAll().quietly().forPath("/w");
        other.delete().deletingChildrenIfNeeded().forPath("/w");
        check("nothing more is told", List.of(data.seen(), exists.seen(), children.seen()),
            List.of(List.of(), List.of(), List.of()));
    }

    private static void persistentWatches() throws Exception {
        Told flat = new Told(), deep = new Told();
        client.create().forPath("/p");
        client.watchers().add().withMode(AddWatchMode.PERSISTENT).usingWatcher((Watcher) flat).forPath("/p");
        CuratorFramework third = connect();
        third.watchers().add().withMode(AddWatchMode.PERSISTENT_RECURSIVE).usingWatcher((Watcher) deep).forPath("/p");
        other.setData().forPath("/p", "1".getBytes());
        other.setData().forPath("/p", "2".getBytes());
        other.create().forPath("/p/x");
        other.create().forPath("/p/x/y");
        other.setData().forPath("/p/x/y");
        other.transaction().forOperations(other.transactionOp().delete().forPath("/p/x/y"),
            other.transactionOp().delete().forPath("/p/x"));
        other.delete().forPath("/p");
        other.create().forPath("/p");
        flat.await("persistent", "NodeDataChanged /p", "NodeDataChanged /p", "NodeChildrenChanged /p",
            "NodeChildrenChanged /p", "NodeDeleted /p", "NodeCreated /p");
        deep.await("recursive", "NodeDataChanged /p", "NodeDataChanged /p", "NodeCreated /p/x", "NodeCreated /p/x/y",
            "NodeDataChanged /p/x/y", "NodeDeleted /p/x/y", "NodeDeleted /p/x", "NodeDeleted /p", "NodeCreated /p");
        third.watches().remove(deep).ofType(Watcher.WatcherType.Any).forPath("/p");
        deep.await("one is removed", "PersistentWatchRemoved /p");
        raises("a second time", KeeperException.NoWatcherException.class, () -> {
            third.watches().remove(deep).ofType(Watcher.WatcherType.Any).forPath("/p");
            return null;
        });
        other.create().forPath("/p/z");
        flat.await("the other's stays", "NodeChildrenChanged /p");
        third.close();
        Told both = new Told();
        client.watchers().add().withMode(AddWatchMode.PERSISTENT_RECURSIVE).usingWatcher((Watcher) both).forPath("/p");
        other.create().forPath("/p/last");
        other.setData().forPath("/p/last");
        client.sync().forPath("/p");
        until("both modes on one path", "NodeDataChanged /p/last", () -> last(both.seen()));
        boolean isTold = flat.seen().contains("NodeChildrenChanged /p");
        say("~ the first is told still: " + isTold);
        if (isTold != known("MODES_SHARE_A_PATH")) {
            fail("the first is told: " + isTold + " " + flat.seen());
        }
    }

    private static Object last(List<String> seen) {
        return seen.isEmpty() ? "nothing" : seen.get(seen.size() - 1);
    }

    private static void zookeeper() throws Exception {
        ZooKeeper zk = client.getZookeeperClient().getZooKeeper();
        String name = "/z";
        List<ACL> open = ZooDefs.Ids.OPEN_ACL_UNSAFE;
        zk.create(name, "z".getBytes(), open, CreateMode.PERSISTENT);
        zk.create(name + "/e", null, open, CreateMode.EPHEMERAL);
        List<OpResult> read = zk.multi(List.of(Op.getData(name), Op.getChildren(name), Op.getData("/none")));
        check("a multi of reads", new String(((OpResult.GetDataResult) read.get(0)).getData())
            + ((OpResult.GetChildrenResult) read.get(1)).getChildren()
            + ((OpResult.ErrorResult) read.get(2)).getErr(), "z[e]-101");
        check("ephemerals", zk.getEphemerals(name), List.of(name + "/e"));
        check("how many below", zk.getAllChildrenNumber(name), 1);
        check("null data", zk.getData(name + "/e", false, null) == null, true);
        check("getACL", zk.getACL(name, new Stat()), open);
        check("the timeout", zk.getSessionTimeout(), 50_000);
        raises("a check by itself is no call", KeeperException.BadVersionException.class,
            () -> zk.multi(List.of(Op.check(name, 4))));
        raises("a TTL that is none", IllegalArgumentException.class,
            () -> zk.create("/ttl", null, open, CreateMode.PERSISTENT_WITH_TTL, new Stat(), 0));
        raises("delete of nothing", KeeperException.NoNodeException.class, () -> {
            zk.delete("/none", -1);
            return null;
        });
    }
}
