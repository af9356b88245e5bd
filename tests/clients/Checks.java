import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.Socket;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.retry.RetryForever;
import org.apache.zookeeper.WatchedEvent;
import org.apache.zookeeper.Watcher;
import org.apache.zookeeper.data.Stat;

/** What the scripts in Java share. See checks.py for what is printed, and how. */
class Checks {
    static final String HOSTS = System.getenv("HOSTS");
    static final String WIRE = System.getenv("WIRE");
    static final long PATIENCE = 30_000;

    interface Part {
        void run() throws Exception;
    }

    static void say(Object words) {
        synchronized (System.out) {
            System.out.println(words);
            System.out.flush();
        }
    }

    static void fail(Object words) {
        say("DIFFERENT " + words);
        StringBuilder where = new StringBuilder();
        for (StackTraceElement line : Thread.currentThread().getStackTrace()) {
            where.append("    ").append(line).append('\n');
        }
        say(where);
        Runtime.getRuntime().halt(1);
    }

    static void check(String name, Object got, Object expected) {
        if (!Objects.equals(got, expected)) {
            fail(name + ": got " + got + ", expected " + expected);
        }
        say(name + ": " + got);
    }

    static void raises(String name, Class<? extends Exception> kind, Callable<?> call) {
        try {
            fail(name + ": got " + call.call() + ", expected " + kind.getSimpleName());
        } catch (Exception error) {
            if (error.getClass() != kind) {
                fail(name + ": " + error + ", expected " + kind.getSimpleName());
            }
            say(name + ": " + kind.getSimpleName());
        }
    }

    /** Nobody tells when this comes about: it is asked for again and again. */
    static void until(String name, Object expected, Callable<?> get) throws Exception {
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(PATIENCE);
        Object got;
        while (!Objects.equals(got = get.call(), expected)) {
            if (System.nanoTime() > end) {
                fail(name + ": still " + got + " in the end, expected " + expected);
            }
            Thread.sleep(20);
        }
        say(name + ": " + expected);
    }

    /** What of a Stat is the same on every server and in every run. */
    static String shape(Stat stat) {
        return stat == null ? "none" : "version " + stat.getVersion() + ", cversion " + stat.getCversion() + ", aversion "
            + stat.getAversion() + ", " + stat.getDataLength() + " bytes, " + stat.getNumChildren() + " children";
    }

    /** Keeps what it is told. */
    static class Told implements Watcher {
        private final List<String> seen = new ArrayList<>();

        @Override
        public void process(WatchedEvent event) {
            if (event.getType() != Event.EventType.None) {
                tell(event.getType() + " " + event.getPath());
            }
        }

        synchronized void tell(String word) {
            seen.add(word);
            notifyAll();
        }

        synchronized List<String> seen() {
            return new ArrayList<>(seen);
        }

        /** Waits until exactly these have come, and forgets them. */
        synchronized void await(String name, String... expected) throws InterruptedException {
            long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(PATIENCE);
            while (seen.size() < expected.length && System.nanoTime() < end) {
                wait(100);
            }
            check(name, seen, Arrays.asList(expected));
            seen.clear();
        }

        /** Waits until this is the last that has come. */
        synchronized void awaitLast(String name, String expected) throws InterruptedException {
            long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(PATIENCE);
            while (!(seen.size() > 0 && seen.get(seen.size() - 1).equals(expected)) && System.nanoTime() < end) {
                wait(100);
            }
            check(name, seen.isEmpty() ? "nothing" : seen.get(seen.size() - 1), expected);
            seen.clear();
        }
    }

    static CuratorFrameworkFactory.Builder builder(String hosts) {
        return CuratorFrameworkFactory.builder().connectString(hosts).sessionTimeoutMs(50_000)
            .connectionTimeoutMs(30_000).retryPolicy(new RetryForever(50)).defaultData(new byte[0]);
    }

    static CuratorFramework started(CuratorFrameworkFactory.Builder builder) throws Exception {
        CuratorFramework client = builder.build();
        client.start();
        client.blockUntilConnected();
        return client;
    }

    static CuratorFramework connect() throws Exception {
        return started(builder(HOSTS));
    }

    /** An order to the wire: see wire.py. */
    static void order(String word) throws Exception {
        try (Socket wire = new Socket("127.0.0.1", Integer.parseInt(System.getenv("CONTROL")))) {
            wire.getOutputStream().write((word + "\n").getBytes());
            String answer = new BufferedReader(new InputStreamReader(wire.getInputStream())).readLine();
            check("order " + word, answer, "ok");
        }
    }

    static boolean known(String name) {
        return System.getenv("EXPECT_" + name).equals("yes");
    }

    static void run(String name, Part part) {
        say("= " + name);
        try {
            part.run();
        } catch (Throwable error) {
            say("DIFFERENT an exception that nobody expected");
            error.printStackTrace(System.out);
            Runtime.getRuntime().halt(1);
        }
    }

    static void end() {
        Runtime.getRuntime().halt(0);
    }

    /** Runs it in a thread of its own; `join` waits for its end. */
    static Thread background(Part part) {
        Thread thread = new Thread(() -> {
            try {
                part.run();
            } catch (Throwable error) {
                say("DIFFERENT an exception in the background");
                error.printStackTrace(System.out);
                Runtime.getRuntime().halt(1);
            }
        });
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    static void join(String name, Thread... threads) throws InterruptedException {
        for (Thread thread : threads) {
            thread.join(PATIENCE);
            check(name, thread.isAlive() ? "goes on" : "done", "done");
        }
    }
}
