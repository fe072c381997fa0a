package lockward

import "testing"

func TestRedirectIsResolvedToAnAddress(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]string{
		"MOVED 3999 127.0.0.1:6381":   "127.0.0.1:6381",
		"ASK 3999 node.example:6381":  "node.example:6381",
		"MOVED 3999 :6381":            "asked:6381",
		"MOVED 3999 ?:6381":           "asked:6381",
		"MOVED 3999 ::1:6381":         "[::1]:6381",
		"MOVED 3999 [2001:db8::1]:81": "[2001:db8::1]:81",
	} {
		if got := redirected(reply(message)).resolve("asked:6379"); got != want {
			t.Errorf("%s leads to %s", message, got)
		}
	}
	if to := redirected(reply("ERR MOVED 3999 127.0.0.1:6381")); to != (redirect{}) {
		t.Error(to)
	}
}

// reply is an error that a server has sent as its reply.
type reply string

func (r reply) Error() string { return string(r) }
func (reply) RedisError()     {}
