package lockward_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockward"
)

func TestAPausedProcessKnowsThatItsLeaseIsOver(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	process := exec.Command(os.Args[0], "-test.run=^TestHolder$")
	process.Env = append(os.Environ(), "LOCKWARD_TEST_ADDR="+s.addr)
	process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	input, err := process.StdinPipe()
	check(t, err)
	output, err := process.StdoutPipe()
	check(t, err)
	check(t, process.Start())
	defer func() { _ = process.Process.Kill() }()
	lines := bufio.NewScanner(output)
	if !lines.Scan() || lines.Text() != "held" {
		t.Fatal(lines.Text())
	}
	check(t, process.Process.Signal(syscall.SIGSTOP))
	s.waitUntilFree("k")
	_, err = fmt.Fprintln(input)
	check(t, err)
	check(t, process.Process.Signal(syscall.SIGCONT))
	if !lines.Scan() || !strings.HasPrefix(lines.Text(), "false lockward: the lock is lost: its lease is over") {
		t.Fatal(lines.Text())
	}
	for lines.Scan() {
	}
	check(t, process.Wait())
}

// TestHolder runs in the other process.
func TestHolder(t *testing.T) {
	addr := os.Getenv("LOCKWARD_TEST_ADDR")
	if addr == "" {
		t.Skip("TestAPausedProcessKnowsThatItsLeaseIsOver runs it")
	}
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	lock := acquire(t, newClient(t, rdb), "k", lockward.WithLease(time.Second))
	fmt.Println("held")
	bufio.NewScanner(os.Stdin).Scan()
	fmt.Println(lock.Held(), lock.Release(t.Context()))
}
