import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Scanner;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;

/**
 * Apache Curator's mutex under the workloads of benches/locks.rs. Reads a workload a line, answers each with one line of
 * JSON: `w1 SECONDS`, `w2 CLIENTS SECONDS`, `w3 WAITING SECONDS`, `w4 KEYS CLIENTS SECONDS`, and for the kill of a holder
 * `hold PATH TIMEOUT_MS` and `wait PATH`.
 */
public class Curator {
    /** Tasks over many keys that hold or request a lock: as many as in the other systems. */
    private static final int IN_FLIGHT = 256;

    /** Time in which a contender finds its predecessor, in milliseconds. */
    private static final long PAUSE = 5;

    private final String hosts;
    private final List<CuratorFramework> clients = new ArrayList<>();
    private int paths;

    private Curator(String hosts) {
        this.hosts = hosts;
    }

    public static void main(String[] args) throws Exception {
        Curator curator = new Curator(args[0]);
        Scanner lines = new Scanner(System.in);
        while (lines.hasNextLine()) {
            String[] words = lines.nextLine().split(" ");
            double seconds = words[0].startsWith("w") && !words[0].equals("wait")
                ? Double.parseDouble(words[words.length - 1]) : 0;
            System.out.println(switch (words[0]) {
                case "w1" -> curator.uncontended(seconds);
                case "w2" -> curator.contended(Integer.parseInt(words[1]), seconds);
                case "w3" -> curator.handedOver(Integer.parseInt(words[1]), seconds);
                case "w4" -> curator.manyKeys(Integer.parseInt(words[1]), Integer.parseInt(words[2]));
                case "hold" -> curator.hold(words[1], Integer.parseInt(words[2]));
                case "wait" -> curator.await(words[1]);
                default -> throw new IllegalArgumentException(words[0]);
            });
        }
        System.exit(0);
    }

    private CuratorFramework client(int number) throws Exception {
        while (clients.size() <= number) {
            CuratorFramework client = CuratorFrameworkFactory.newClient(hosts, new RetryOneTime(1000));
            client.start();
            client.blockUntilConnected();
            clients.add(client);
        }
        return clients.get(number);
    }

    private String freshPath() {
        return "/bench/curator-" + ProcessHandle.current().pid() + "-" + paths++;
    }

    private String uncontended(double seconds) throws Exception {
        InterProcessMutex mutex = new InterProcessMutex(client(0), freshPath());
        List<Long> acquires = new ArrayList<>();
        List<Long> releases = new ArrayList<>();
        long start = System.nanoTime();
        long end = start + (long) (seconds * 1e9);
        while (System.nanoTime() < end) {
            long asked = System.nanoTime();
            mutex.acquire();
            long granted = System.nanoTime();
            mutex.release();
            acquires.add(granted - asked);
            releases.add(System.nanoTime() - granted);
        }
        double elapsed = (System.nanoTime() - start) / 1e9;
        return "{\"cycles_per_s\":" + acquires.size() / elapsed
            + quantiles("acquire", acquires) + quantiles("release", releases) + "}";
    }

    private String contended(int count, double seconds) throws Exception {
        String path = freshPath();
        AtomicBoolean stop = new AtomicBoolean();
        AtomicBoolean held = new AtomicBoolean();
        AtomicInteger lastHolder = new AtomicInteger(-1);
        AtomicLong handovers = new AtomicLong();
        AtomicLong violations = new AtomicLong();
        List<List<Long>> waits = new ArrayList<>();
        Thread[] threads = new Thread[count];
        for (int i = 0; i < count; i++) {
            int me = i;
            InterProcessMutex mutex = new InterProcessMutex(client(i), path);
            List<Long> mine = new ArrayList<>();
            waits.add(mine);
            threads[i] = new Thread(() -> {
                try {
                    while (!stop.get()) {
                        long asked = System.nanoTime();
                        mutex.acquire();
                        mine.add(System.nanoTime() - asked);
                        if (held.getAndSet(true)) {
                            violations.incrementAndGet();
                        }
                        if (lastHolder.getAndSet(me) != me) {
                            handovers.incrementAndGet();
                        }
                        held.set(false);
                        mutex.release();
                    }
                } catch (Exception e) {
                    throw new RuntimeException(e);
                }
            });
        }
        long start = System.nanoTime();
        for (Thread thread : threads) {
            thread.start();
        }
        Thread.sleep((long) (seconds * 1e3));
        double perSecond = handovers.get() / ((System.nanoTime() - start) / 1e9);
        stop.set(true);
        for (Thread thread : threads) {
            thread.join();
        }
        List<Long> all = new ArrayList<>();
        int most = 0;
        int least = Integer.MAX_VALUE;
        for (List<Long> of : waits) {
            all.addAll(of);
            most = Math.max(most, of.size());
            least = Math.min(least, of.size());
        }
        return "{\"handovers_per_s\":" + perSecond + ",\"grants_max\":" + most
            + ",\"grants_min\":" + least + ",\"exclusion_violations\":" + violations.get()
            + quantiles("wait", all) + "}";
    }

    /** A mutex of Curator's belongs to its thread, so the holder itself queues again, behind the others. */
    private String handedOver(int waiting, double seconds) throws Exception {
        String path = freshPath();
        int count = waiting + 1;
        AtomicBoolean stop = new AtomicBoolean();
        AtomicLong released = new AtomicLong();
        BlockingQueue<long[]> granted = new LinkedBlockingQueue<>();
        Semaphore[] goes = new Semaphore[count];
        Thread[] threads = new Thread[count];
        for (int i = 0; i < count; i++) {
            int me = i;
            goes[i] = new Semaphore(0);
            InterProcessMutex mutex = new InterProcessMutex(client(i), path);
            threads[i] = new Thread(() -> {
                try {
                    while (!stop.get()) {
                        mutex.acquire();
                        granted.add(new long[] {me, System.nanoTime()});
                        goes[me].acquire();
                        released.set(System.nanoTime());
                        mutex.release();
                    }
                } catch (Exception e) {
                    throw new RuntimeException(e);
                }
            });
            threads[i].start();
        }
        long[] holder = granted.take();
        Thread.sleep(100 * PAUSE);
        List<Long> times = new ArrayList<>();
        List<Long> order = new ArrayList<>();
        order.add(holder[0]);
        int violations = 0;
        long end = System.nanoTime() + (long) (seconds * 1e9);
        while (System.nanoTime() < end) {
            violations += granted.size();
            goes[(int) holder[0]].release();
            holder = granted.take();
            times.add(holder[1] - released.get());
            order.add(holder[0]);
            Thread.sleep(PAUSE);
        }
        stop.set(true);
        for (int i = 0; i < count; i++) {
            goes[i].release();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        int checked = order.size() - count;
        int overtakes = 0;
        for (int i = 0; i < checked; i++) {
            overtakes += order.get(i).equals(order.get(i + count)) ? 0 : 1;
        }
        return "{\"handovers\":" + times.size() + ",\"exclusion_violations\":" + violations
            + (waiting > 1 && checked > 0
                ? ",\"order_overtakes\":" + overtakes + ",\"order_checked\":" + checked : "")
            + quantiles("handover", times) + "}";
    }

    private String manyKeys(int keys, int sessions) throws Exception {
        String path = freshPath();
        for (int i = 0; i < sessions; i++) {
            client(i);
        }
        AtomicInteger next = new AtomicInteger();
        List<Long> times = Collections.synchronizedList(new ArrayList<>());
        Thread[] threads = new Thread[Math.min(IN_FLIGHT, keys)];
        long start = System.nanoTime();
        for (int i = 0; i < threads.length; i++) {
            threads[i] = new Thread(() -> {
                try {
                    for (int key = next.getAndIncrement(); key < keys; key = next.getAndIncrement()) {
                        InterProcessMutex mutex = new InterProcessMutex(clients.get(key % sessions), path + "/" + key);
                        long asked = System.nanoTime();
                        mutex.acquire();
                        times.add(System.nanoTime() - asked);
                        mutex.release();
                    }
                } catch (Exception e) {
                    throw new RuntimeException(e);
                }
            });
            threads[i].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        double perSecond = keys / ((System.nanoTime() - start) / 1e9);
        return "{\"cycles_per_s\":" + perSecond + quantiles("acquire", times) + "}";
    }

    private String hold(String path, int timeout) throws Exception {
        CuratorFramework client =
            CuratorFrameworkFactory.newClient(hosts, timeout, timeout, new RetryOneTime(1000));
        client.start();
        client.blockUntilConnected();
        clients.add(client);
        new InterProcessMutex(client, path).acquire();
        return "{}";
    }

    private String await(String path) throws Exception {
        InterProcessMutex mutex = new InterProcessMutex(client(0), path);
        long asked = System.nanoTime();
        mutex.acquire();
        double waited = (System.nanoTime() - asked) / 1e9;
        mutex.release();
        return "{\"wait_s\":" + waited + "}";
    }

    private static String quantiles(String what, List<Long> times) {
        long[] sorted = times.stream().mapToLong(Long::longValue).toArray();
        Arrays.sort(sorted);
        return ",\"" + what + "_p50_us\":" + sorted[(sorted.length - 1) / 2] / 1e3
            + ",\"" + what + "_p99_us\":" + sorted[(int) ((sorted.length - 1) * 0.99)] / 1e3;
    }
}
