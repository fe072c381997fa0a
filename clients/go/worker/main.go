// Command worker lets the conformance suite drive this client: see clients/conformance/README.md.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockward/lockward-go"
)

func main() {
	redis.SetLogger(noLog{})
	lines := bufio.NewScanner(os.Stdin)
	lines.Scan()
	opening := strings.Split(lines.Text(), " ")
	settings := readSettings(opening[3:])
	rdb := connect(opening[2], settings)
	client, err := lockward.New(rdb, settings.options()...)
	if err != nil {
		panic(err)
	}
	w := &worker{client: client, leading: make(map[string]chan struct{})}
	say(opening[0], "ok")
	for lines.Scan() {
		words := strings.Split(lines.Text(), " ")
		if words[1] == "close" {
			return
		}
		if words[1] == "cancel" { // cancel runs at once, so that no later command overtakes it
			if cancel, ok := w.cancels.Load(words[2]); ok {
				cancel.(context.CancelFunc)()
			}
			say(words[0], "ok")
			continue
		}
		ctx, cancel := context.WithCancel(context.Background())
		w.cancels.Store(words[0], cancel)
		go func() {
			reply, err := w.run(ctx, words[1], words[2:])
			if err != nil {
				reply = describe(err)
			}
			say(words[0], reply)
		}()
	}
}

// noLog drops what go-redis logs.
type noLog struct{}

func (noLog) Printf(context.Context, string, ...any) {}

var output sync.Mutex

func say(words ...string) {
	output.Lock()
	defer output.Unlock()
	fmt.Println(strings.Join(words, " "))
}

func describe(err error) string {
	kind := "other"
	for _, known := range []struct {
		err  error
		kind string
	}{
		{lockward.ErrLost, "lost"},
		{lockward.ErrBusy, "busy"},
		{lockward.ErrUnreplicated, "unreplicated"},
		{lockward.ErrUnreachable, "unreachable"},
		{lockward.ErrRefused, "refused"},
		{context.Canceled, "cancelled"},
	} {
		if errors.Is(err, known.err) {
			kind = known.kind
			break
		}
	}
	if kind == "other" && errors.As(err, new(redis.Error)) { // the server's error reply to a guarded command
		kind = "refused"
	}
	if kind == "busy" || kind == "cancelled" {
		return kind
	}
	return "error " + kind + " " + strings.ReplaceAll(err.Error(), "\n", " ")
}

// arguments are words such as wait=200.
type arguments map[string]string

func readSettings(words []string) arguments {
	settings := make(arguments)
	for _, word := range words {
		name, value, _ := strings.Cut(word, "=")
		settings[name] = value
	}
	return settings
}

func (a arguments) number(name string) (int, bool) {
	text, ok := a[name]
	number, _ := strconv.Atoi(text)
	return number, ok
}

func (a arguments) duration(name string) (time.Duration, bool) {
	number, ok := a.number(name)
	return time.Duration(number) * time.Millisecond, ok
}

func (a arguments) options() (options []lockward.Option) {
	if d, ok := a.duration("patience"); ok {
		options = append(options, lockward.WithPatience(d))
	}
	if d, ok := a.duration("response-limit"); ok {
		options = append(options, lockward.WithResponseLimit(d))
	}
	if n, ok := a.number("waiting-connections"); ok {
		options = append(options, lockward.WithWaitingConnections(n))
	}
	return options
}

// connect returns a client for an address such as cluster://host:port,host:port.
func connect(address string, settings arguments) redis.UniversalClient {
	scheme, rest, _ := strings.Cut(address, "://")
	login, hosts, hasLogin := strings.Cut(rest, "@")
	if !hasLogin {
		login, hosts = "", rest
	}
	user, password, _ := strings.Cut(login, ":")
	user, _ = url.PathUnescape(user)
	password, _ = url.PathUnescape(password)
	hosts, name, _ := strings.Cut(strings.TrimSuffix(hosts, "/"), "/")
	addrs := strings.Split(hosts, ",")
	var secure *tls.Config
	if scheme == "rediss" {
		secure = new(tls.Config)
		if file, ok := settings["ca"]; ok {
			pem, err := os.ReadFile(file)
			if err != nil {
				panic(err)
			}
			secure.RootCAs = x509.NewCertPool()
			secure.RootCAs.AppendCertsFromPEM(pem)
		}
		if file, ok := settings["cert"]; ok {
			pair, err := tls.LoadX509KeyPair(file, settings["key"])
			if err != nil {
				panic(err)
			}
			secure.Certificates = []tls.Certificate{pair}
		}
	}
	switch scheme {
	case "cluster":
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, Username: user, Password: password})
	case "sentinel":
		return redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: name, SentinelAddrs: addrs, Username: user, Password: password, ContextTimeoutEnabled: true,
		})
	}
	return redis.NewClient(&redis.Options{Addr: addrs[0], Username: user, Password: password, TLSConfig: secure})
}

type worker struct {
	client  *lockward.Client
	cancels sync.Map // the key is the ID of a command
	locks   sync.Map // the key is NAME
	mu      sync.Mutex
	leading map[string]chan struct{} // the command resign closes the channel
}

// keep remembers a lock, and reports its loss.
func (w *worker) keep(name string, lock *lockward.Lock, slowLost time.Duration) string {
	w.locks.Store(name, lock)
	context.AfterFunc(lock.Context(context.Background()), func() {
		select {
		case <-lock.Lost():
			say("event lost", name)
			time.Sleep(slowLost)
		default:
		}
	})
	tokens := make([]string, 0, 1)
	for _, token := range lock.Tokens() {
		tokens = append(tokens, strconv.FormatInt(token, 10))
	}
	return "held " + strings.Join(tokens, ",")
}

func (w *worker) run(ctx context.Context, name string, words []string) (string, error) {
	var lock *lockward.Lock
	if held, ok := w.locks.Load(words[0]); ok {
		lock = held.(*lockward.Lock)
	}
	switch name {
	case "acquire":
		return w.acquire(ctx, words[0], strings.Split(words[1], ","), readSettings(words[2:]))
	case "release":
		return "ok", lock.Release(ctx)
	case "renew":
		return "ok", lock.Renew(ctx)
	case "downgrade":
		return "ok", lock.Downgrade(ctx, acquireOptions(readSettings(words[1:]))[0])
	case "status":
		if lock.Held() {
			return "held", nil
		}
		return "lost", nil
	case "guarded":
		command := make([]any, 0, len(words))
		for _, word := range words[1:] {
			command = append(command, word)
		}
		reply, err := lock.Guarded(ctx, command...).Result()
		if err == redis.Nil {
			err = nil
		}
		return fmt.Sprint("reply ", reply), err
	case "handle":
		handle, err := lock.Handle()
		return "handle " + handle, err
	case "resume":
		lock, err := w.client.Resume(ctx, words[1])
		if err != nil {
			return "", err
		}
		return w.keep(words[0], lock, 0), nil
	case "lead":
		return "ok", w.lead(ctx, words[0], words[1], readSettings(words[2:]))
	case "resign":
		w.mu.Lock()
		defer w.mu.Unlock()
		close(w.resigned(words[0]))
		return "ok", nil
	case "pairs":
		return w.pairs(ctx, words[0], words[1])
	}
	return "unsupported", nil
}

func acquireOptions(a arguments) (options []lockward.AcquireOption) {
	if _, ok := a["shared"]; ok {
		options = append(options, lockward.Shared())
	}
	if n, ok := a.number("slots"); ok {
		options = append(options, lockward.Slots(n))
	}
	if n, ok := a.number("weight"); ok {
		options = append(options, lockward.Weight(n))
	}
	if d, ok := a.duration("lease"); ok {
		options = append(options, lockward.WithLease(d))
	}
	if d, ok := a.duration("hold-limit"); ok {
		options = append(options, lockward.WithHoldLimit(d))
	}
	if owner, ok := a["owner"]; ok {
		options = append(options, lockward.WithOwner(owner))
	}
	if _, ok := a["no-renewal"]; ok {
		options = append(options, lockward.WithoutRenewal())
	}
	if count, within, ok := strings.Cut(a["replicas"], ":"); ok {
		n, _ := strconv.Atoi(count)
		milliseconds, _ := strconv.Atoi(within)
		options = append(options, lockward.WithReplicas(n, time.Duration(milliseconds)*time.Millisecond))
	}
	return options
}

func (w *worker) acquire(ctx context.Context, name string, keys []string, a arguments) (string, error) {
	options := acquireOptions(a)
	if wait, ok := a.duration("wait"); ok && wait > 0 {
		limited, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		ctx = limited
	} else if ok {
		options = append(options, lockward.WithoutWaiting())
	}
	lock, err := w.client.AcquireAll(ctx, keys, options...)
	if err != nil {
		return "", err
	}
	slowLost, _ := a.duration("slow-lost")
	return w.keep(name, lock, slowLost), nil
}

func (w *worker) resigned(name string) chan struct{} {
	if w.leading[name] == nil {
		w.leading[name] = make(chan struct{})
	}
	return w.leading[name]
}

func (w *worker) lead(ctx context.Context, name, key string, a arguments) error {
	w.mu.Lock()
	w.leading[name] = nil
	resigned := w.resigned(name)
	w.mu.Unlock()
	return w.client.Lead(ctx, key, func(ctx context.Context, lock *lockward.Lock) error {
		say("event leading", name, strconv.FormatInt(lock.Token(), 10))
		select {
		case <-ctx.Done():
			say("event deposed", name)
		case <-resigned:
		}
		return nil
	}, acquireOptions(a)...)
}

func (w *worker) pairs(ctx context.Context, key, seconds string) (string, error) {
	length, _ := strconv.ParseFloat(seconds, 64)
	count := 0
	for end := time.Now().Add(time.Duration(length * float64(time.Second))); time.Now().Before(end); count++ {
		lock, err := w.client.Acquire(ctx, key)
		if err != nil {
			return "", err
		}
		if err := lock.Release(ctx); err != nil {
			return "", err
		}
	}
	return fmt.Sprint("pairs ", count), nil
}
