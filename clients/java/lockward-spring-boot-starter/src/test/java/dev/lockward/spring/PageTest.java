package dev.lockward.spring;

import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.lockward.Server;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.parallel.ResourceLock;
import org.junit.jupiter.api.parallel.Resources;
import org.springframework.boot.SpringApplication;
import org.springframework.context.ConfigurableApplicationContext;

/** The programs of docs/coming-from/spring.md that use this starter. */
class PageTest {
    private static final Path REPOSITORY = Path.of(System.getProperty("repository"));
    private static final Pattern BLOCK =
            Pattern.compile("<!-- run by: (\\S*?/(shop/\\w+/\\w+)\\.java) -->\n```java\n(.*?)```\n", Pattern.DOTALL);

    private static final String[] ARGUMENTS = {
        "--spring.data.redis.port=" + Server.shared().port, "--spring.main.banner-mode=off"
    };

    private record Program(Path file, String className, String text) {}

    private static List<Program> programs() throws IOException {
        List<Program> programs = new ArrayList<>();
        Matcher found = BLOCK.matcher(Files.readString(REPOSITORY.resolve("docs/coming-from/spring.md")));
        while (found.find()) {
            programs.add(new Program(
                    REPOSITORY.resolve(found.group(1)), found.group(2).replace('/', '.'), found.group(3)));
        }
        return programs;
    }

    @Test
    void thePageShowsThesePrograms() throws IOException {
        assertEquals(2, programs().size());
        for (Program program : programs()) {
            String packaged = Files.readString(program.file());
            assertEquals(packaged.substring(packaged.indexOf("import ")), program.text());
        }
    }

    /** The output of a program. */
    private static String written(Callable<?> action) throws Exception {
        PrintStream real = System.out;
        ByteArrayOutputStream written = new ByteArrayOutputStream();
        System.setOut(new PrintStream(written, true, StandardCharsets.UTF_8));
        try {
            action.call();
        } finally {
            System.setOut(real);
        }
        return written.toString(StandardCharsets.UTF_8);
    }

    private static Method method(String className, String name, Class<?>... parameters)
            throws ReflectiveOperationException {
        Method method = Class.forName(className).getDeclaredMethod(name, parameters);
        method.setAccessible(true);
        return method;
    }

    @Test
    @ResourceLock(Resources.SYSTEM_OUT)
    void theOrderIsCancelled() throws Exception {
        Method main = method("shop.registry.CancelOrder", "main", String[].class);
        assertEquals("work\n", written(() -> main.invoke(null, (Object) ARGUMENTS)));
    }

    @Test
    @ResourceLock(Resources.SYSTEM_OUT)
    void onlyOneProcessMakesTheReport() throws Exception {
        Method report = method("shop.shedlock.DailyReport", "report");
        try (ConfigurableApplicationContext one = SpringApplication.run(report.getDeclaringClass(), ARGUMENTS);
                ConfigurableApplicationContext another = SpringApplication.run(report.getDeclaringClass(), ARGUMENTS)) {
            assertEquals("the report\n", written(() -> {
                report.invoke(one.getBean(report.getDeclaringClass()));
                // lockAtLeastFor prevents this second execution.
                return report.invoke(another.getBean(report.getDeclaringClass()));
            }));
        }
    }
}
