import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.atomic.AtomicValue;
import org.apache.curator.framework.recipes.atomic.DistributedAtomicLong;
import org.apache.curator.framework.recipes.atomic.PromotedToLock;
import org.apache.curator.framework.recipes.barriers.DistributedBarrier;
import org.apache.curator.framework.recipes.barriers.DistributedDoubleBarrier;
import org.apache.curator.framework.recipes.cache.CuratorCache;
import org.apache.curator.framework.recipes.cache.CuratorCacheListener;
import org.apache.curator.framework.recipes.cache.NodeCache;
import org.apache.curator.framework.recipes.cache.PathChildrenCache;
import org.apache.curator.framework.recipes.cache.TreeCache;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.leader.LeaderSelector;
import org.apache.curator.framework.recipes.leader.LeaderSelectorListenerAdapter;
import org.apache.curator.framework.recipes.locks.InterProcessMultiLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreMutex;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.framework.recipes.nodes.GroupMember;
import org.apache.curator.framework.recipes.nodes.PersistentNode;
import org.apache.curator.framework.recipes.nodes.PersistentTtlNode;
import org.apache.curator.framework.recipes.queue.DistributedDelayQueue;
import org.apache.curator.framework.recipes.queue.DistributedPriorityQueue;
import org.apache.curator.framework.recipes.queue.DistributedQueue;
import org.apache.curator.framework.recipes.queue.QueueBuilder;
import org.apache.curator.framework.recipes.queue.QueueConsumer;
import org.apache.curator.framework.recipes.queue.QueueSerializer;
import org.apache.curator.framework.recipes.queue.SimpleDistributedQueue;
import org.apache.curator.framework.recipes.shared.SharedCount;
import org.apache.curator.framework.recipes.shared.SharedValue;
import org.apache.curator.framework.recipes.watch.PersistentWatcher;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.RetryNTimes;
import org.apache.curator.x.discovery.ServiceCache;
import org.apache.curator.x.discovery.ServiceDiscovery;
import org.apache.curator.x.discovery.ServiceDiscoveryBuilder;
import org.apache.curator.x.discovery.ServiceInstance;
import org.apache.zookeeper.CreateMode;

/** Each recipe of Curator, by two clients. */
public class CuratorRecipes extends Checks {
    private static CuratorFramework one;
    private static CuratorFramework two;

    public static void main(String[] args) throws Exception {
        one = started(builder(WIRE));
        two = connect();
        run("locks", CuratorRecipes::locks);
        run("leaders", CuratorRecipes::leaders);
        run("barriers", CuratorRecipes::barriers);
        run("counters", CuratorRecipes::counters);
        run("queues", CuratorRecipes::queues);
        run("nodes", CuratorRecipes::nodes);
        run("caches", CuratorRecipes::caches);
        run("discovery", CuratorRecipes::discovery);
        end();
    }

    private static void locks() throws Exception {
        InterProcessMutex first = new InterProcessMutex(one, "/mutex"), second = new InterProcessMutex(two, "/mutex");
        first.acquire();
        first.acquire();
        check("another waits", second.acquire(50, TimeUnit.MILLISECONDS), false);
        Thread waits = background(() -> second.acquire());
        until("it stands in the queue", 2, () -> first.getParticipantNodes().size());
        first.release();
        check("held twice", waits.isAlive(), true);
        first.release();
        join("then it has it", waits);
        InterProcessReadWriteLock left = new InterProcessReadWriteLock(one, "/rw");
        InterProcessReadWriteLock right = new InterProcessReadWriteLock(two, "/rw");
        left.readLock().acquire();
        check("readers share", right.readLock().acquire(10, TimeUnit.SECONDS), true);
        right.readLock().release();
        check("a writer waits", right.writeLock().acquire(50, TimeUnit.MILLISECONDS), false);
        left.readLock().release();
        check("until the readers have gone", right.writeLock().acquire(10, TimeUnit.SECONDS), true);
        check("a reader waits", left.readLock().acquire(50, TimeUnit.MILLISECONDS), false);
        right.readLock().acquire();
        right.writeLock().release();
        check("from writer to reader", left.readLock().acquire(10, TimeUnit.SECONDS), true);
        InterProcessSemaphoreV2 permits = new InterProcessSemaphoreV2(one, "/permits", 2);
        InterProcessSemaphoreV2 same = new InterProcessSemaphoreV2(two, "/permits", 2);
        Collection<Lease> both = permits.acquire(2);
        check("none is left", same.acquire(50, TimeUnit.MILLISECONDS), null);
        permits.returnAll(both);
        check("now there is", same.acquire(10, TimeUnit.SECONDS) != null, true);
        check("a mutex of a semaphore", new InterProcessSemaphoreMutex(one, "/sm").acquire(10, TimeUnit.SECONDS), true);
        check("is one", new InterProcessSemaphoreMutex(two, "/sm").acquire(50, TimeUnit.MILLISECONDS), false);
        InterProcessMultiLock several = new InterProcessMultiLock(one, List.of("/multi/a", "/multi/b"));
        several.acquire();
        check("several at once", new InterProcessMutex(two, "/multi/b").acquire(50, TimeUnit.MILLISECONDS), false);
        several.release();
        until("the queue's parent is a container, and goes", null, () -> two.checkExists().forPath("/multi/a"));
    }

    private static void leaders() throws Exception {
        LeaderLatch first = new LeaderLatch(one, "/latch", "one"), second = new LeaderLatch(two, "/latch", "two");
        first.start();
        first.await();
        second.start();
        until("both take part", 2, () -> first.getParticipants().size());
        check("the first leads", first.hasLeadership() + " " + second.hasLeadership() + " " + second.getLeader().getId(),
            "true false one");
        first.close();
        second.await();
        check("then the second", second.hasLeadership(), true);
        second.close();
        Told told = new Told();
        CountDownLatch resign = new CountDownLatch(1);
        LeaderSelector[] selectors = {null, null};
        for (int number = 0; number < 2; number++) {
            String name = number == 0 ? "one" : "two";
            selectors[number] = new LeaderSelector(number == 0 ? one : two, "/selector", new LeaderSelectorListenerAdapter() {
                @Override
                public void takeLeadership(CuratorFramework client) throws Exception {
                    told.tell(name + " leads");
                    resign.await();
                }
            });
            selectors[number].setId(name);
            selectors[number].start();
            int count = number + 1;
            until("candidates", count, () -> selectors[0].getParticipants().size());
        }
        told.await("one leads", "one leads");
        resign.countDown();
        told.await("and then another", "two leads");
        selectors[0].close();
        selectors[1].close();
    }

    private static void barriers() throws Exception {
        DistributedBarrier barrier = new DistributedBarrier(one, "/barrier");
        barrier.setBarrier();
        check("it stands", new DistributedBarrier(two, "/barrier").waitOnBarrier(50, TimeUnit.MILLISECONDS), false);
        Thread waits = background(() -> new DistributedBarrier(two, "/barrier").waitOnBarrier());
        barrier.removeBarrier();
        join("it is gone", waits);
        List<Thread> both = new ArrayList<>();
        for (CuratorFramework client : List.of(one, two)) {
            both.add(background(() -> {
                DistributedDoubleBarrier two = new DistributedDoubleBarrier(client, "/double", 2);
                two.enter();
                two.leave();
            }));
        }
        join("both have passed", both.toArray(new Thread[0]));
    }

    private static void counters() throws Exception {
        List<Thread> all = new ArrayList<>();
        for (CuratorFramework client : List.of(one, two, one, two)) {
            all.add(background(() -> {
                DistributedAtomicLong count = new DistributedAtomicLong(client, "/atomic", new RetryNTimes(3, 1),
                    PromotedToLock.builder().lockPath("/atomic-lock").retryPolicy(new RetryNTimes(1000, 1)).build());
                for (int number = 0; number < 20; number++) {
                    AtomicValue<Long> value = count.increment();
                    if (!value.succeeded()) {
                        throw new IllegalStateException("an increment failed");
                    }
                }
            }));
        }
        join("counting", all.toArray(new Thread[0]));
        check("none is lost", new DistributedAtomicLong(one, "/atomic", new RetryNTimes(3, 1)).get().postValue(), 80L);
        Told told = new Told();
        SharedCount first = new SharedCount(one, "/shared", 3), second = new SharedCount(two, "/shared", 0);
        first.start();
        second.start();
        second.addListener(new org.apache.curator.framework.recipes.shared.SharedCountListener() {
            @Override
            public void countHasChanged(org.apache.curator.framework.recipes.shared.SharedCountReader reader, int count) {
                told.tell("count " + count);
            }

            @Override
            public void stateChanged(CuratorFramework client, ConnectionState state) {
            }
        });
        check("a shared count", second.getCount(), 3);
        check("is set", first.trySetCount(first.getVersionedValue(), 9), true);
        told.awaitLast("and told", "count 9");
        SharedValue value = new SharedValue(one, "/value", "a".getBytes());
        value.start();
        value.setValue("b".getBytes());
        check("a shared value", new String(two.getData().forPath("/value")), "b");
    }

    private static final QueueSerializer<String> TEXT = new QueueSerializer<>() {
        @Override
        public byte[] serialize(String item) {
            return item.getBytes(StandardCharsets.UTF_8);
        }

        @Override
        public String deserialize(byte[] bytes) {
            return new String(bytes, StandardCharsets.UTF_8);
        }
    };

    private static QueueConsumer<String> consumer(Told told) {
        return new QueueConsumer<>() {
            @Override
            public void consumeMessage(String message) {
                told.tell(message);
            }

            @Override
            public void stateChanged(CuratorFramework client, ConnectionState state) {
            }
        };
    }

    private static void queues() throws Exception {
        Told told = new Told();
        DistributedQueue<String> out = QueueBuilder.builder(two, consumer(told), TEXT, "/queue").lockPath("/queue-lock").buildQueue();
        DistributedQueue<String> in = QueueBuilder.builder(one, null, TEXT, "/queue").buildQueue();
        out.start();
        in.start();
        for (String item : List.of("a", "b", "c")) {
            in.put(item);
        }
        told.await("a queue", "a", "b", "c");
        out.close();
        DistributedPriorityQueue<String> first = QueueBuilder.builder(one, null, TEXT, "/priority").buildPriorityQueue(0);
        first.start();
        first.put("late", 9);
        first.put("soon", 1);
        check("flushed", first.flushPuts(10, TimeUnit.SECONDS), true);
        DistributedPriorityQueue<String> taken = QueueBuilder.builder(two, consumer(told), TEXT, "/priority").buildPriorityQueue(0);
        taken.start();
        told.await("by priority", "soon", "late");
        taken.close();
        DistributedDelayQueue<String> delayed = QueueBuilder.builder(two, consumer(told), TEXT, "/delay").buildDelayQueue();
        delayed.start();
        long start = System.currentTimeMillis();
        delayed.put("later", start + 300);
        delayed.put("sooner", start + 100);
        told.await("by time", "sooner", "later");
        delayed.close();
        SimpleDistributedQueue simple = new SimpleDistributedQueue(one, "/simple");
        check("offer", simple.offer("x".getBytes()), true);
        check("peek", new String(simple.peek()), "x");
        check("take", new String(new SimpleDistributedQueue(two, "/simple").take()), "x");
        check("poll", simple.poll(50, TimeUnit.MILLISECONDS), null);
    }

    private static void nodes() throws Exception {
        PersistentNode node = new PersistentNode(one, CreateMode.EPHEMERAL, false, "/node", "data".getBytes());
        node.start();
        check("a node", node.waitForInitialCreate(10, TimeUnit.SECONDS), true);
        two.delete().forPath("/node");
        until("comes again", true, () -> two.checkExists().forPath("/node") != null);
        node.setData("more".getBytes());
        until("with its data", "more", () -> new String(two.getData().forPath("/node")));
        node.close();
        until("and goes", null, () -> two.checkExists().forPath("/node"));
        PersistentTtlNode ttl = new PersistentTtlNode(one, "/ttl", 1_000, new byte[0]);
        ttl.start();
        check("a node with a TTL", ttl.waitForInitialCreate(10, TimeUnit.SECONDS), true);
        until("is touched", true, () -> two.checkExists().forPath("/ttl/touch") != null);
        ttl.close();
        until("goes when nobody touches it", null, () -> two.checkExists().forPath("/ttl"));
        GroupMember first = new GroupMember(one, "/group", "one", "1".getBytes());
        GroupMember second = new GroupMember(two, "/group", "two", "2".getBytes());
        first.start();
        second.start();
        until("a group", "[one, two]", () -> first.getCurrentMembers().keySet().stream().sorted().collect(Collectors.toList()).toString());
        second.close();
        until("one leaves", "[one]", () -> first.getCurrentMembers().keySet().toString());
        first.close();
        Told told = new Told();
        PersistentWatcher watcher = new PersistentWatcher(one, "/pw", true);
        CountDownLatch armed = new CountDownLatch(1);
        watcher.getResetListenable().addListener(armed::countDown);
        watcher.getListenable().addListener(told);
        watcher.start();
        armed.await();
        two.create().forPath("/pw");
        two.create().forPath("/pw/x");
        two.setData().forPath("/pw/x");
        two.delete().deletingChildrenIfNeeded().forPath("/pw");
        told.await("a persistent watcher", "NodeCreated /pw", "NodeCreated /pw/x", "NodeDataChanged /pw/x",
            "NodeDeleted /pw/x", "NodeDeleted /pw");
        watcher.close();
    }

    private static void caches() throws Exception {
        for (String name : List.of("a", "b")) {
            two.create().creatingParentsIfNeeded().forPath("/cache/" + name, name.getBytes());
        }
        Told paths = new Told(), tree = new Told(), curator = new Told(), node = new Told();
        PathChildrenCache children = new PathChildrenCache(one, "/cache", true);
        children.getListenable().addListener((client, event) ->
            paths.tell(event.getType() + (event.getData() == null ? "" : " " + event.getData().getPath())));
        children.start(PathChildrenCache.StartMode.BUILD_INITIAL_CACHE);
        check("children", children.getCurrentData().size(), 2);
        TreeCache whole = new TreeCache(one, "/cache");
        whole.getListenable().addListener((client, event) ->
            tree.tell(event.getType() + (event.getData() == null ? "" : " " + event.getData().getPath())));
        whole.start();
        tree.awaitLast("a tree", "INITIALIZED");
        CuratorCache cache = CuratorCache.build(one, "/cache");
        CountDownLatch initialized = new CountDownLatch(1);
        cache.listenable().addListener(CuratorCacheListener.builder().forInitialized(initialized::countDown)
            .forAll((type, before, after) -> curator.tell(type + " " + (after == null ? before : after).getPath())).build());
        cache.start();
        initialized.await();
        check("a cache", sorted(curator), List.of("NODE_CREATED /cache", "NODE_CREATED /cache/a", "NODE_CREATED /cache/b"));
        curator.await("and no more", curator.seen().toArray(new String[0]));
        NodeCache single = new NodeCache(one, "/cache/a");
        single.getListenable().addListener(() ->
            node.tell(single.getCurrentData() == null ? "none" : new String(single.getCurrentData().getData())));
        single.start(true);
        two.setData().forPath("/cache/a", "A".getBytes());
        paths.await("children's change", "CHILD_UPDATED /cache/a");
        tree.await("the tree's", "NODE_UPDATED /cache/a");
        curator.await("the cache's", "NODE_CHANGED /cache/a");
        node.await("the node's", "A");
        order("cut");
        paths.awaitLast("a break", "CONNECTION_SUSPENDED");
        two.create().forPath("/cache/new", "n".getBytes());
        two.delete().forPath("/cache/b");
        two.setData().forPath("/cache/a", "AA".getBytes());
        order("heal");
        until("children catch up", "[/cache/a, /cache/new]", () -> children.getCurrentData().stream()
            .map(one -> one.getPath()).sorted().collect(Collectors.toList()).toString());
        until("the tree, too", "[a, new]", () -> new java.util.TreeSet<>(whole.getCurrentChildren("/cache").keySet()).toString());
        until("and the cache", "[/cache, /cache/a, /cache/new]", () -> cache.stream()
            .map(one -> one.getPath()).sorted().collect(Collectors.toList()).toString());
        until("and the node", "AA", () -> new String(single.getCurrentData().getData()));
        until("and the cache's data", "AA", () -> new String(cache.get("/cache/a").get().getData()));
        children.close();
        whole.close();
        cache.close();
        single.close();
    }

    private static List<String> sorted(Told told) {
        List<String> seen = told.seen();
        seen.sort(null);
        return seen;
    }

    private static void discovery() throws Exception {
        ServiceInstance<Void> instance = ServiceInstance.<Void>builder().name("web").address("127.0.0.1").port(80).build();
        ServiceDiscovery<Void> offers = ServiceDiscoveryBuilder.builder(Void.class).client(one).basePath("/services")
            .thisInstance(instance).build();
        offers.start();
        ServiceDiscovery<Void> asks = ServiceDiscoveryBuilder.builder(Void.class).client(two).basePath("/services").build();
        asks.start();
        ServiceCache<Void> cache = asks.serviceCacheBuilder().name("web").build();
        cache.start();
        until("a service", 1, () -> asks.queryForInstances("web").size());
        until("in the cache", 1, () -> cache.getInstances().size());
        check("its port", asks.queryForInstances("web").iterator().next().getPort(), 80);
        check("names", new ArrayList<>(asks.queryForNames()), List.of("web"));
        offers.unregisterService(instance);
        until("it is gone", 0, () -> cache.getInstances().size());
        cache.close();
        asks.close();
        offers.close();
    }
}
