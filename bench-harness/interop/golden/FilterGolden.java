import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;

/**
 * Asks Apache's own SQL92 filter what it makes of every expression with every set of properties, and prints the table that the tests of
 * {@code filter/} compare with.
 *
 * <p>{@code java -cp "$APACHE_LIB/*" FilterGolden.java EXPRESSIONS PROPERTIES > ANSWERS}. Both inputs hold one case a line, with
 * Java's escapes of tab, line ends, backslash and code units for what a line cannot hold; lines that begin with {@code ##} are comments. A property set is
 * {@code name=value} pairs with tabs between. Each line of the output is the answers, a tab, the expression as it was read: {@code refused},
 * or one letter a set: {@code T}rue, {@code F}alse, {@code N}ull, e{@code X}ception, {@code O}ther than a boolean.
 */
final class FilterGolden {
    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        List<Map<String, Object>> sets = new ArrayList<>();
        for (String line : cases(args[1])) {
            sets.add(properties(line));
        }
        for (String line : cases(args[0])) {
            out.println(answers(unescape(line), sets) + "\t" + line);
        }
        out.flush();
    }

    private static List<String> cases(String file) throws Exception {
        return Files.readAllLines(Path.of(file)).stream().filter(line -> !line.startsWith("##")).toList();
    }

    private static Map<String, Object> properties(String line) {
        Map<String, Object> set = new HashMap<>();
        for (String pair : line.split("\t")) {
            int at = pair.indexOf('=');
            if (at > 0) {
                set.put(unescape(pair.substring(0, at)), unescape(pair.substring(at + 1)));
            }
        }
        return set;
    }

    private static String answers(String text, List<Map<String, Object>> sets) {
        Expression compiled;
        try {
            compiled = FilterFactory.INSTANCE.get("SQL92").compile(text);
        } catch (Throwable e) {
            return "refused";
        }
        StringBuilder letters = new StringBuilder();
        for (Map<String, Object> set : sets) {
            letters.append(answer(compiled, set));
        }
        return letters.toString();
    }

    private static char answer(Expression compiled, Map<String, Object> set) {
        Object value;
        try {
            value = compiled.evaluate(new EvaluationContext() {
                @Override
                public Object get(String name) {
                    return set.get(name);
                }

                @Override
                public Map<String, Object> keyValues() {
                    return set;
                }
            });
        } catch (Throwable e) {
            return 'X';
        }
        if (value == null) {
            return 'N';
        }
        return value instanceof Boolean ? ((Boolean) value ? 'T' : 'F') : 'O';
    }

    private static String unescape(String text) {
        StringBuilder plain = new StringBuilder();
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            if (c != '\\' || i + 1 == text.length()) {
                plain.append(c);
                continue;
            }
            char kind = text.charAt(++i);
            switch (kind) {
                case 't' -> plain.append('\t');
                case 'n' -> plain.append('\n');
                case 'r' -> plain.append('\r');
                case 'u' -> {
                    plain.append((char) Integer.parseInt(text.substring(i + 1, i + 5), 16));
                    i += 4;
                }
                default -> plain.append(kind);
            }
        }
        return plain.toString();
    }
}
