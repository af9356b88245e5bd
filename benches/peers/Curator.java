import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Scanner;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;

/**
 * Apache Curator's mutex under the workloads of benches/locks.rs. Reads `w1 SECONDS` or
 * `w2 CLIENTS SECONDS` a line, answers each with one line of JSON.
 */
public class Curator {
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
            System.out.println(words[0].equals("w1")
                ? curator.uncontended(Double.parseDouble(words[1]))
                : curator.contended(Integer.parseInt(words[1]), Double.parseDouble(words[2])));
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

    private static String quantiles(String what, List<Long> times) {
        long[] sorted = times.stream().mapToLong(Long::longValue).toArray();
        Arrays.sort(sorted);
        return ",\"" + what + "_p50_us\":" + sorted[(sorted.length - 1) / 2] / 1e3
            + ",\"" + what + "_p99_us\":" + sorted[(int) ((sorted.length - 1) * 0.99)] / 1e3;
    }
}
