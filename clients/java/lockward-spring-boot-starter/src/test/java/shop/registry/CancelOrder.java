package shop.registry;

import org.springframework.boot.CommandLineRunner;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.annotation.Bean;
import org.springframework.integration.support.locks.LockRegistry;

@SpringBootApplication
class CancelOrder {
    public static void main(String[] arguments) {
        SpringApplication.run(CancelOrder.class, arguments).close();
    }

    @Bean
    CommandLineRunner cancel(LockRegistry<?> locks) {
        return arguments -> locks.executeLocked("order:42", () -> System.out.println("work"));
    }
}
