package shop.shedlock;

import net.javacrumbs.shedlock.spring.annotation.EnableSchedulerLock;
import net.javacrumbs.shedlock.spring.annotation.SchedulerLock;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.scheduling.annotation.EnableScheduling;
import org.springframework.scheduling.annotation.Scheduled;

@SpringBootApplication
@EnableScheduling
@EnableSchedulerLock(defaultLockAtMostFor = "10m")
class DailyReport {
    public static void main(String[] arguments) {
        SpringApplication.run(DailyReport.class, arguments);
    }

    @Scheduled(cron = "0 0 6 * * *")
    @SchedulerLock(name = "report", lockAtLeastFor = "1m")
    void report() {
        System.out.println("the report");
    }
}
