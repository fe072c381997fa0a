package lockward_test

import "testing"

// BenchmarkPair measures an acquisition of a free lock and its release.
func BenchmarkPair(b *testing.B) {
	client := newClient(b, startServer(b).client())
	b.ReportAllocs()
	for b.Loop() {
		lock, err := client.Acquire(b.Context(), "k")
		check(b, err)
		check(b, lock.Release(b.Context()))
	}
}
