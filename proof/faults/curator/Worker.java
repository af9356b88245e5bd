import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.retry.RetryNTimes;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.data.Stat;

/**
 * Contenders by Apache Curator, which share locks with the workers of this package.
 *
 * <pre>Worker HOST:PORT,… SEED TIMEOUT_MS</pre>
 *
 * Reports and answers are those of proof/faults/src/report.rs. A holder believes as Curator's documentation advises: until the
 * connection is suspended.
 */
public class Worker {
    private final CuratorFramework client;
    private final FileOutputStream out = new FileOutputStream(FileDescriptor.out);
    private final AtomicLong numbers = new AtomicLong();
    /** How often the connection was suspended or lost. */
    private final AtomicLong suspensions = new AtomicLong();
    private final Map<Long, BlockingQueue<Boolean>> uses = new ConcurrentHashMap<>();
    private volatile boolean finishing;

    private static final String[][] LOCKS = {
        {"mutex", "mutex-0"}, {"mutex", "mutex-1"}, {"write", "rwlock"}, {"semaphore", "semaphore"},
    };

    public static void main(String[] args) throws Exception {
        Worker worker = new Worker(args[0], Integer.parseInt(args[2]));
        worker.say("Ready");
        for (int i = 0; i < LOCKS.length; i++) {
            String[] lock = LOCKS[i];
            Random random = new Random(Long.parseLong(args[1]) * 31 + i);
            new Thread(() -> worker.compete(lock[0], lock[1], random)).start();
        }
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        String line;
        while ((line = lines.readLine()) != null) {
            worker.hear(line.split(" "));
        }
        Runtime.getRuntime().halt(0);
    }

    private Worker(String hosts, int timeout) throws Exception {
        client = CuratorFrameworkFactory.newClient(hosts, timeout, timeout, new RetryNTimes(5, 100));
        client.getConnectionStateListenable().addListener((unused, state) -> {
            if (!state.isConnected()) {
                suspensions.incrementAndGet();
            }
        });
        client.start();
        client.blockUntilConnected();
    }

    private void hear(String[] words) {
        if (words[0].equals("finish")) {
            finishing = true;
        } else {
            uses.get(Long.parseLong(words[1])).add(words[2].equals("admitted"));
        }
    }

    /** Writes a report with the names and the values of its fields, as JSON. */
    private void say(String report, Object... fields) {
        StringBuilder line = new StringBuilder("{\"report\":\"" + report + "\"");
        for (int i = 0; i < fields.length; i += 2) {
            String quote = fields[i + 1] instanceof String ? "\"" : "";
            line.append(",\"" + fields[i] + "\":" + quote + fields[i + 1] + quote);
        }
        line.append("}\n");
        try {
            // One write: a line of a process that is killed is whole, or is not there.
            synchronized (out) {
                out.write(line.toString().getBytes());
            }
        } catch (Exception gone) {
            Runtime.getRuntime().halt(0);
        }
    }

    private void compete(String kind, String key, Random random) {
        while (true) {
            boolean isLast = finishing;
            try {
                Thread.sleep(random.nextInt(60));
                if (turn(kind, key, random) && isLast) {
                    say("Done");
                    return;
                }
            } catch (KeeperException failure) {
                say("NoGrant", "reason", "Curator: " + failure.code());
            } catch (Exception failure) {
                say("NoGrant", "reason", "Curator: " + failure.getClass().getSimpleName());
            }
        }
    }

    /** Takes the lock, uses the resource, and releases. Returns false if the lock was lost. */
    private boolean turn(String kind, String key, Random random) throws Exception {
        String[] words = {"", "", "", "", "3"};
        Recipe recipe = Recipe.of(kind, client, "/" + key, words, unused -> { });
        String znode = recipe.acquire(1).get(0);
        try {
            long before = suspensions.get();
            long at = System.nanoTime();
            Stat stat = client.checkExists().forPath(znode);
            // The session may have ended meanwhile, and the znode with it.
            if (stat == null) {
                say("NoGrant", "reason", "Curator: lost at once");
                return false;
            }
            long grant = numbers.incrementAndGet();
            boolean isShared = kind.equals("semaphore");
            Object share = isShared ? new StringBuilder("{\"Permits\":1}") : "Exclusive";
            String token = Long.toString(stat.getCzxid());
            say("Granted", "grant", grant, "key", key, "share", share, "token", token, "at", at);
            return stay(grant, isShared, before, random);
        } finally {
            recipe.release();
        }
    }

    private boolean stay(long grant, boolean isShared, long before, Random random) throws Exception {
        for (int step = random.nextInt(4); step >= 0; step--) {
            Thread.sleep(random.nextInt(15));
            if (!confirm(grant, before)) {
                say("Lost", "grant", grant, "at", System.nanoTime(), "reason", "Curator: suspended");
                return false;
            }
            if (!isShared && !write(grant)) {
                say("Refused", "grant", grant, "is_held", confirm(grant, before));
                return false;
            }
        }
        confirm(grant, before);
        say("Released", "grant", grant);
        return true;
    }

    /** Returns whether the holder believes, and reports that it does. */
    private boolean confirm(long grant, long before) {
        long at = System.nanoTime();
        boolean isHeld = suspensions.get() == before;
        if (isHeld) {
            say("Held", "grant", grant, "at", at);
        }
        return isHeld;
    }

    /** Writes to the resource. Returns false if the token is refused. */
    private boolean write(long grant) throws Exception {
        BlockingQueue<Boolean> answer = new LinkedBlockingQueue<>();
        uses.put(grant, answer);
        say("Use", "grant", grant);
        Boolean admitted = answer.poll(60, TimeUnit.SECONDS);
        uses.remove(grant);
        return admitted == null || admitted;
    }
}
