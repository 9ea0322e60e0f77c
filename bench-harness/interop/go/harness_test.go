// Package interop judges a running broker by the official Go client. NAMESRV and BROKER (host:port) say where it is;
// `../run --only go` starts one and sets them.
package interop

import (
	"context"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const patience = 90 * time.Second

var (
	runID     = strconv.FormatInt(time.Now().UnixMilli(), 36)
	instances atomic.Int32
	clientLog = &judge{}
)

func TestMain(m *testing.M) {
	if os.Getenv("NAMESRV") == "" || os.Getenv("BROKER") == "" {
		fmt.Println("NAMESRV and BROKER are not set: start the suite by bench-harness/interop/run --only go")
		os.Exit(2)
	}
	rlog.SetLogger(clientLog)
	os.Exit(m.Run())
}

// judge takes what the client logs: errors that name a test's topic or group fail this test.
type judge struct {
	mu    sync.Mutex
	lines []string
}

func (j *judge) Debug(string, map[string]interface{})   {}
func (j *judge) Info(string, map[string]interface{})    {}
func (j *judge) Warning(string, map[string]interface{}) {}
func (j *judge) Level(string)                           {}
func (j *judge) OutputPath(string) error                { return nil }

func (j *judge) Error(msg string, fields map[string]interface{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, fmt.Sprint(msg, " ", fields))
}

func (j *judge) Fatal(msg string, fields map[string]interface{}) { j.Error(msg, fields) }

func (j *judge) naming(name string) []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var found []string
	for _, line := range j.lines {
		if strings.Contains(line, name) && !harmless(line) {
			found = append(found, line)
		}
	}
	return found
}

// harmless tells of errors that a healthy broker causes too (seen with Apache 5.5.0).
func harmless(line string) bool {
	for _, known := range []string{
		"topic not exist",                  // looked up before it is created
		"No topic route info",              //
		"the subscription is not latest",   // pulled before the first heartbeat
		"no consumer for this group",       // asked before the first heartbeat
		"subscription not latest",          //
		"fetch offset of mq from broker",   // a new group has none
		"get consumer list of group error", // asked before the first heartbeat
	} {
		if strings.Contains(line, known) {
			return true
		}
	}
	return false
}

// fixture gives a test its own names and stops its clients.
type fixture struct {
	*testing.T
	name, topic, group string
}

func start(t *testing.T) *fixture {
	t.Parallel()
	name := "go-" + runID + "-" + strings.NewReplacer("/", "-", "_", "-").Replace(t.Name())
	f := &fixture{T: t, name: name, topic: name + "-t", group: name + "-g"}
	return f
}

// verdict is to be called at the end of a test's body, while its clients still run.
func (f *fixture) verdict() {
	if lines := clientLog.naming(f.name); len(lines) > 0 {
		f.Errorf("%d client errors, first: %s", len(lines), lines[0])
	}
}

func namesrv() primitive.NamesrvAddr { return primitive.NamesrvAddr{os.Getenv("NAMESRV")} }

func instance() string { return fmt.Sprintf("go%d", instances.Add(1)) }

func (f *fixture) check(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) createTopic(queues int) {
	f.Helper()
	a, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver(namesrv())))
	f.check(err)
	defer a.Close()
	f.check(a.CreateTopic(context.Background(), admin.WithTopicCreate(f.topic), admin.WithBrokerAddrCreate(os.Getenv("BROKER")),
		admin.WithReadQueueNums(queues), admin.WithWriteQueueNums(queues)))
	f.await("route", func() bool {
		found, err := a.FetchPublishMessageQueues(context.Background(), f.topic)
		return err == nil && len(found) == queues
	}, func() string { return "none" })
}

func (f *fixture) producer(opts ...producer.Option) rocketmq.Producer {
	f.Helper()
	opts = append([]producer.Option{producer.WithNameServer(namesrv()), producer.WithGroupName(f.name + "-p"),
		producer.WithInstanceName(instance()), producer.WithRetry(0), producer.WithSendMsgTimeout(20 * time.Second)}, opts...)
	p, err := rocketmq.NewProducer(opts...)
	f.check(err)
	f.check(p.Start())
	f.Cleanup(func() { _ = p.Shutdown() })
	return p
}

type listener func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error)

func (f *fixture) push(subscription string, on listener, opts ...consumer.Option) rocketmq.PushConsumer {
	f.Helper()
	opts = append([]consumer.Option{consumer.WithNameServer(namesrv()), consumer.WithGroupName(f.group),
		consumer.WithInstance(instance()), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset)}, opts...)
	c, err := rocketmq.NewPushConsumer(opts...)
	f.check(err)
	f.check(c.Subscribe(f.topic, consumer.MessageSelector{Type: consumer.TAG, Expression: subscription}, on))
	f.check(c.Start())
	f.Cleanup(func() { _ = c.Shutdown() })
	return c
}

// await polls until done; it fails with what it saw instead.
func (f *fixture) await(what string, done func() bool, state func() string) {
	f.Helper()
	for deadline := time.Now().Add(patience); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			f.Fatalf("no %s within %v, but: %s", what, patience, state())
		}
	}
}

func message(topic, tag, text string) *primitive.Message {
	return primitive.NewMessage(topic, []byte(text)).WithTag(tag)
}

func (f *fixture) sendAll(p rocketmq.Producer, stem string, count int) []*primitive.SendResult {
	f.Helper()
	var results []*primitive.SendResult
	for _, text := range numbered(stem, count) {
		result, err := p.SendSync(context.Background(), message(f.topic, "TagA", text))
		f.check(err)
		if result.Status != primitive.SendOK {
			f.Fatalf("send of %s: %v", text, result)
		}
		results = append(results, result)
	}
	return results
}

func numbered(stem string, count int) []string {
	var texts []string
	for i := 0; i < count; i++ {
		texts = append(texts, stem+strconv.Itoa(i))
	}
	return texts
}

func sorted(texts []string) []string {
	texts = append([]string(nil), texts...)
	sort.Strings(texts)
	return texts
}

// received keeps what listeners were handed, in order.
type received struct {
	mu       sync.Mutex
	messages []*primitive.MessageExt
}

func (r *received) add(messages ...*primitive.MessageExt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.messages = append(r.messages, messages...)
}

func (r *received) accept(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	r.add(messages...)
	return consumer.ConsumeSuccess, nil
}

func (r *received) all() []*primitive.MessageExt {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*primitive.MessageExt(nil), r.messages...)
}

func (r *received) texts() []string {
	var texts []string
	for _, m := range r.all() {
		texts = append(texts, string(m.Body))
	}
	return texts
}

// exactly waits for the texts and a little longer: each once, no other.
func (f *fixture) exactly(wanted []string, rs ...*received) {
	f.Helper()
	together := func() []string {
		var texts []string
		for _, r := range rs {
			texts = append(texts, r.texts()...)
		}
		return texts
	}
	f.await(fmt.Sprintf("%d messages", len(wanted)), func() bool { return len(together()) >= len(wanted) },
		func() string { return fmt.Sprintf("%d", len(together())) })
	time.Sleep(300 * time.Millisecond)
	if got := sorted(together()); strings.Join(got, "|") != strings.Join(sorted(wanted), "|") {
		f.Fatalf("wanted %v\n got %v", sorted(wanted), got)
	}
}
