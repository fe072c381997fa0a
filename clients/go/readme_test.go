package lockward_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The program runs in a new module. The go.mod command of the README makes the new module depend on
// this module.
func TestTheProgramInTheReadmeRuns(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("README.md")
	check(t, err)
	block := func(language string) string {
		_, after, _ := strings.Cut(string(readme), "```"+language+"\n")
		shown, _, _ := strings.Cut(after, "```")
		return shown
	}
	here, err := filepath.Abs("../..")
	check(t, err)
	folder := t.TempDir()
	check(t, os.WriteFile(filepath.Join(folder, "main.go"), []byte(block("go")), 0o600))
	s := startServer(t)
	install := strings.ReplaceAll(block("sh"), "COPY", here)
	run := exec.Command("bash", "-euc", "go mod init program && "+strings.TrimSpace(install)+" && go run .")
	run.Dir, run.Env = folder, append(os.Environ(), "REDIS="+s.addr, "GOWORK=off")
	if output, err := run.CombinedOutput(); err != nil || !regexp.MustCompile(`held, token [1-9]\d*\n.*done: <nil>\n`).Match(output) {
		t.Fatal(err, string(output))
	}
	if state := s.do("GET", "state:42"); state != "paid" {
		t.Error(state)
	}
	s.checkFree("order:42")
}
