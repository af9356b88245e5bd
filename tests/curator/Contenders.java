import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.ArrayDeque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.stream.Collectors;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.Revoker;
import org.apache.curator.retry.RetryNTimes;
import org.apache.zookeeper.CreateMode;

/**
 * Contenders that use Apache Curator's recipes.
 *
 * <pre>Contenders HOST:PORT[/CHROOT] INSIDE GRANTS TIMEOUT_MS</pre>
 *
 * The words on stdin and stdout, and the gate, are those of tests/recipes/peer.rs. Each contender has
 * a connection and, since Curator's locks belong to threads, a thread of its own. There is more to say:
 *
 * <pre>
 * acquire COUNT       so many permits of a semaphore
 * downgrade           from writer to reader: "held ZNODE"
 * make HOW PATH       a znode, as users of Curator make the parents of their locks: "made"
 * revoke ZNODE        asks a holder to give up: "asked"; one that is revocable says "revocation" then
 * </pre>
 */
public class Contenders {
    private final String name;
    private final CuratorFramework client;
    private final Recipe recipe;
    private final Gate gate;
    private final ExecutorService thread = Executors.newSingleThreadExecutor();

    private interface Step {
        void run() throws Exception;
    }

    public static void main(String[] args) throws Exception {
        Map<String, Contenders> contenders = new HashMap<>();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        String line;
        while ((line = lines.readLine()) != null) {
            String[] words = line.split(" ");
            if (words[1].equals("new")) {
                contenders.put(words[0], new Contenders(words[0], words, args));
            } else {
                contenders.get(words[0]).obey(words);
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private Contenders(String name, String[] words, String[] args) throws Exception {
        this.name = name;
        int timeout = Integer.parseInt(args[3]);
        client = CuratorFrameworkFactory.newClient(args[0], timeout, 30_000, new RetryNTimes(10, 100));
        client.start();
        client.blockUntilConnected();
        gate = new Gate(client, args[1], args[2]);
        recipe = Recipe.of(words[2], client, words[3], words, this::say);
        say("ready");
    }

    private void obey(String[] words) {
        switch (words[1]) {
            case "acquire":
                step(() -> {
                    List<String> znodes = recipe.acquire(words.length > 2 ? Integer.parseInt(words[2]) : 1);
                    for (String znode : znodes) {
                        gate.enter(recipe.mark(), recipe.limit(), znode);
                    }
                    say("held " + znodes.stream().map(Contenders::last).collect(Collectors.joining(" ")));
                });
                break;
            case "release":
                step(() -> {
                    gate.leave();
                    recipe.release();
                    say("released");
                });
                break;
            case "downgrade":
                step(() -> {
                    gate.leave();
                    String znode = recipe.downgrade();
                    gate.enter("s", 0, znode);
                    say("held " + last(znode));
                });
                break;
            case "revoke":
                step(() -> {
                    Revoker.attemptRevoke(client, words[2]);
                    say("asked");
                });
                break;
            case "make":
                step(() -> {
                    make(words[2], words[3]);
                    say("made");
                });
                break;
            default:
                say("failed unknown command " + words[1]);
        }
    }

    /** Makes a znode in one of the ways in which Curator's users make the parents of their locks. */
    private void make(String how, String path) throws Exception {
        switch (how) {
            case "container":
                client.createContainers(path);
                break;
            case "empty":
                client.create().creatingParentsIfNeeded().forPath(path, new byte[0]);
                break;
            case "address":
                // Without data of its own Curator writes the address of the host.
                client.create().creatingParentsIfNeeded().forPath(path);
                break;
            default:
                throw new IllegalArgumentException(how);
        }
    }

    private void step(Step step) {
        thread.execute(() -> {
            try {
                step.run();
            } catch (Throwable failure) {
                StringWriter trace = new StringWriter();
                failure.printStackTrace(new PrintWriter(trace));
                say("failed " + trace.toString().strip().replace("\n", " | "));
            }
        });
    }

    private void say(String words) {
        synchronized (System.out) {
            System.out.println(name + " " + words);
            System.out.flush();
        }
    }

    private static String last(String znode) {
        return znode.substring(znode.lastIndexOf('/') + 1);
    }

    /** Where each holder looks whether he may be there: see tests/recipes/peer.rs. */
    private static class Gate {
        private final CuratorFramework client;
        private final String inside;
        private final String grants;
        private final Queue<String> places = new ArrayDeque<>();

        Gate(CuratorFramework client, String inside, String grants) {
            this.client = client;
            this.inside = inside;
            this.grants = grants;
        }

        void enter(String mark, int limit, String znode) throws Exception {
            String place = client.create().withMode(CreateMode.EPHEMERAL_SEQUENTIAL)
                .forPath(inside + "/" + mark + "-");
            places.add(place);
            List<String> there = client.getChildren().forPath(inside);
            if (!fits(mark, limit, there)) {
                throw new IllegalStateException(znode + " holds as " + place + " beside others: " + there);
            }
            long czxid = client.checkExists().forPath(znode).getCzxid();
            String note = last(znode) + " " + czxid;
            client.create().withMode(CreateMode.PERSISTENT_SEQUENTIAL)
                .forPath(grants + "/g-", note.getBytes());
        }

        private static boolean fits(String mark, int limit, List<String> there) {
            switch (mark) {
                case "x":
                    return there.size() == 1;
                case "s":
                    return there.stream().noneMatch(other -> other.startsWith("x-"));
                default:
                    return there.size() <= limit;
            }
        }

        void leave() throws Exception {
            while (!places.isEmpty()) {
                client.delete().forPath(places.remove());
            }
        }
    }
}
