import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import javax.security.auth.x500.X500Principal;

/** Reads names in DER, in hex, line by line, and prints each with the text by which ZooKeeper calls it, in hex of UTF-8. */
class Names {
    public static void main(String[] arguments) throws Exception {
        HexFormat hex = HexFormat.of();
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = in.readLine()) != null; ) {
            String name = new X500Principal(hex.parseHex(line)).getName();
            out.println(line + " " + hex.formatHex(name.getBytes(StandardCharsets.UTF_8)));
        }
    }
}
